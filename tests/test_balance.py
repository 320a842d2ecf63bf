"""Counters: each allocation in exactly one common counter, each free too; made up as published."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
from rules.books import balance, live_by_counters
from rules.inside import listed, slabs_of
from rules.machines import grid
from rules.names import ALLOCS, COMMON, FREES, UNIFIED, UNIFIED_FEEDS

import unislab as us

once = pytest.mark.once


def test_every_policy_has_the_common_counters(opened: us.Allocator) -> None:
    cache = opened.create_cache("counted", 64)
    stats = cache.stats()
    for name in COMMON:
        assert stats[name] == getattr(stats, name) == 0
    if opened.policy == "unified":
        for name in UNIFIED:
            assert stats[name] == 0


def test_snapshots_are_frozen_and_subtract(opened: us.Allocator) -> None:
    cache = opened.create_cache("counted", 64)
    cache.free(cache.alloc_address())
    before = cache.stats(exact=True)
    kept = dict(before)
    got = cache.alloc_bulk(10)
    cache.free_bulk(got)
    moved = cache.stats(exact=True) - before
    assert sum(moved[name] for name in ALLOCS) == sum(moved[name] for name in FREES) == 10
    assert dict(before) == kept
    with pytest.raises(TypeError):
        before["alloc_fast"] = 0  # type: ignore[index]


def test_per_cpu_counts_sum_to_the_totals(opened: us.Allocator) -> None:
    cache = opened.create_cache("counted", 64)
    for cpu in (0, 1, 0):
        with opened.on_cpu(cpu):
            cache.free_bulk(cache.alloc_bulk(100))
    stats = cache.stats(exact=True)
    table = stats.per_cpu
    assert table.dtype.names
    for name in COMMON:
        if name in table.dtype.names:
            assert int(table[name].sum()) == stats[name]
    if opened.policy == "unified":  # its counts belong to the CPU that did the work
        allocs = sum(table[name].astype(np.int64) for name in ALLOCS)
        assert list(allocs[:2]) == [200, 100]


def test_a_random_program_balances(opened: us.Allocator) -> None:
    rng = random.Random(7)
    cache = opened.create_cache("mixed", 128)
    live: list[int] = []
    allocs = frees = 0
    for _ in range(300):
        n = rng.choice([1, 1, 2, 30, 150])
        with opened.on_cpu(rng.randrange(2)):
            if rng.random() < 0.55 or len(live) < n:
                live += [int(a) for a in cache.alloc_bulk(n)]
                allocs += n
            else:
                rng.shuffle(live)
                gone, live = live[:n], live[n:]
                cache.free_bulk(gone)
                frees += n
    stats = cache.stats(exact=True)
    assert sum(stats[name] for name in ALLOCS) == allocs
    assert sum(stats[name] for name in FREES) == frees
    assert balance(cache) == len(live) == allocs - frees
    cache.free_bulk(live)


@once
def test_common_counters_of_unified_are_made_of_its_own(
    make: Callable[..., us.Allocator],
) -> None:
    alloc = make(machine=grid(2, 1, 2))
    cache = alloc.create_cache("mixed", 64, shared_queue_size=64)
    rng = random.Random(3)
    live: list[int] = []
    for _ in range(200):
        with alloc.on_cpu(rng.randrange(4)):
            if rng.random() < 0.5 or len(live) < 80:
                node = rng.choice([None, 0, 1])
                live += [int(a) for a in cache.alloc_bulk(rng.randrange(1, 80), node=node)]
            else:
                rng.shuffle(live)
                cache.free_bulk(live[:80])
                live = live[80:]
        if rng.random() < 0.02:
            alloc.flush()
    stats = cache.stats(exact=True)
    for common, parts in UNIFIED_FEEDS.items():
        assert stats[common] == sum(stats[part] for part in parts), common
    assert all(stats[name] for name in (*ALLOCS, *FREES)), dict(stats)
    # Slabs with objects free in them are on a list, the others are on none.
    with_free = sorted(slab.address for slab in slabs_of(cache) if slab.free)
    assert with_free == sorted(slab.address for slab in listed(cache))
    cache.free_bulk(live)


def test_threads_without_a_pin_balance(
    make: Callable[..., us.Allocator], policy: str, debug: str | None
) -> None:
    """Threads that the scheduler moves as it likes."""
    alloc = make(policy, debug=debug)
    cache = alloc.create_cache("wild", 192)
    per_thread, threads = 3000, 4
    left: list[int] = []
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        mine: list[int] = []
        try:
            for _ in range(per_thread):
                mine.append(cache.alloc_address())
                if len(mine) > 40 or rng.random() < 0.4:
                    cache.free(mine.pop(rng.randrange(len(mine))))
            cache.free_bulk(mine[1:])
            left.append(mine[0])
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not errors
    stats = cache.stats(exact=True)
    assert sum(stats[name] for name in ALLOCS) == per_thread * threads
    assert live_by_counters(stats) == threads
    assert sorted(cache.live().tolist()) == sorted(left)
    cache.free_bulk(left)


def test_bulk_calls_without_the_interpreter_lock_balance(
    make: Callable[..., us.Allocator], policy: str
) -> None:
    alloc = make(policy)
    cache = alloc.create_cache("bulk", 64)
    rounds, n = 60, 1000
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(rounds):
                got = cache.alloc_bulk(n)
                assert len(np.unique(got)) == n
                cache.free_bulk(got)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=work) for _ in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not errors
    stats = cache.stats(exact=True)
    assert sum(stats[name] for name in ALLOCS) == 3 * rounds * n
    assert live_by_counters(stats) == 0


def test_statistics_never_go_back_under_load(
    make: Callable[..., us.Allocator], policy: str
) -> None:
    """Inexact reads are monotone while other threads work."""
    alloc = make(policy)
    cache = alloc.create_cache("watched", 64)
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                cache.free_bulk(cache.alloc_bulk(500))
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=work) for _ in range(2)]
    for thread in running:
        thread.start()
    last = cache.stats()
    for _ in range(200):
        now = cache.stats()
        gone = {name: (last[name], now[name]) for name in COMMON if now[name] < last[name]}
        if gone:
            errors.append(AssertionError(f"went back: {gone}"))
            break
        last = now
    stop.set()
    for thread in running:
        thread.join(60)
    assert not errors
