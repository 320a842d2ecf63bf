"""Expiration under Unified: four stages, a batch from each untouched queue, none from busy ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from rules.inside import queued, queues_of
from rules.machines import grid, place
from rules.scene import Scene

import unislab as us

Set = Callable[..., Scene]
both = pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
once = pytest.mark.once

BATCH = 60  # of 64-byte objects


def settle(s: Scene) -> None:
    """Age until nothing is touched and nothing moves, then forget the counts."""
    for _ in range(20):
        if s.expire() == 0 and s.cpu(0) == []:
            break
    s.delta()


@once
@both
def test_cpu_queues_lose_a_batch_a_pass_once_untouched(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    got = s.alloc(0, 128)
    s.free(0, got[:100])
    s.delta()
    assert s.expire() == 0  # touched: the mark is cleared, nothing is taken
    assert s.cpu(0) == got[:100]
    assert s.expire() == BATCH * 64  # the oldest batch; bytes of objects, not of pages
    assert s.cpu(0) == got[60:100]
    assert s.expire() == 40 * 64
    assert s.cpu(0) == []
    assert s.expire() == 0
    moved = s.cache.stats(exact=True)["expire_objects"]
    assert moved == 100


@once
@both
def test_a_queue_in_use_is_left_alone(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    idle, busy = s.alloc(0, 20), s.alloc(1, 20)
    s.free(0, idle)
    s.free(1, busy)
    kept = s.cpu(1)
    s.expire()
    for _ in range(3):  # CPU 1 is used between passes, CPU 0 is not
        s.free(1, s.one(1))
        s.expire()
    assert s.cpu(0) == []
    assert s.cpu(1) == kept


@once
@both
def test_the_shared_queue_loses_a_batch_a_pass(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    got = s.alloc(0, 320)
    s.free(0, got[:186])  # 126 and 60 more: two overflows of 60
    assert s.shared() == got[:120]
    assert s.cpu(0) == got[120:186]
    # The last push overflowed, so the CPU queue is untouched already and loses its batch at once;
    # the shared queue is touched by that overflow.
    assert s.expire() == BATCH * 64
    assert s.shared() == got[:120]
    assert s.cpu(0) == got[180:186]
    assert s.expire() == (BATCH + 6) * 64
    assert s.shared() == got[60:120]
    assert s.expire() == BATCH * 64
    assert s.shared() == []


@once
@both
def test_alien_queues_lose_a_batch_a_pass(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    got = s.alloc(2, 128)
    s.free(0, got[:100])
    assert s.alien(0, 1) == got[:100]
    assert s.expire() == 0
    assert s.expire() == BATCH * 64
    assert s.alien(0, 1) == got[60:100]
    assert s.expire() == 40 * 64
    assert s.alien(0, 1) == []


@once
@both
def test_every_alien_queue_of_a_domain_ages(scene: Set, debug: str | None) -> None:
    # The last slot too: V4 as posted forgot it.
    s = scene(nodes=4, cpus=1, debug=debug)
    theirs = [s.one(cpu) for cpu in (1, 2, 3)]
    s.flush()
    s.free(0, theirs)
    assert s.expire() == 0
    assert s.expire() == 3 * 64
    assert [s.alien(0, node) for node in (1, 2, 3)] == [[], [], []]


@once
@both
def test_the_partial_list_is_cleared_of_empty_slabs_when_untouched(
    scene: Set, debug: str | None
) -> None:
    s = scene(debug=debug)
    got = s.alloc(0, 192)
    a, b, c = got[:64], got[64:128], got[128:]
    s.free(0, a[:2])
    s.free(0, b[:30])
    s.flush()
    s.free(0, c)
    s.flush()
    # b, a by heads; c empty at the tail.
    assert s.partial() == [(b[0], 30), (a[0], 2), (c[0], 64)]
    s.delta()
    assert s.expire() == 0  # the list changed since the last visit
    assert len(s.partial()) == 3
    assert s.expire() == 0  # objects moved: none
    s.counted(free_slab=1)
    assert s.partial() == [(a[0], 2), (b[0], 30)]  # sorted as shrink does: fullest first


@once
@both
def test_a_node_can_be_named(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    zero, one = s.alloc(0, 16), s.alloc(2, 16)
    s.free(0, zero)
    s.free(2, one)
    assert s.expire(1) == 0
    # Only node 1's marks were cleared: CPU 0 keeps its protection.
    assert s.touched("cpu", cpu=0)
    assert not s.touched("cpu", cpu=2)
    assert s.expire(1) == 16 * 64
    assert s.cpu(0) == zero
    assert s.cpu(2) == []
    with pytest.raises((ValueError, TypeError), match="node"):
        s.cache.expire(2)


@once
@both
def test_writing_the_tunable_ages_as_the_call_does(scene: Set, debug: str | None) -> None:
    """As the sysfs file: write a node, or -1 for all; read the bytes of the last run."""
    s = scene(nodes=2, debug=debug)
    s.free(0, s.alloc(0, 16))
    s.free(2, s.alloc(2, 16))
    tunables = s.cache.tunables
    tunables.expire = -1
    assert tunables.expire == 0
    tunables.expire = 1
    assert tunables.expire == 16 * 64
    assert (len(s.cpu(0)), len(s.cpu(2))) == (16, 0)
    tunables.expire = -1
    assert tunables.expire == 16 * 64
    assert s.cpu(0) == []
    with pytest.raises(ValueError, match="2"):
        tunables.expire = 2


@once
def test_a_byte_budget_bounds_the_shared_queues(scene: Set) -> None:
    # Room for the two CPU queues of 125, and for 100 objects more.
    s = scene(queue_budget=64 * 350)
    for cpu in (0, 1):
        s.free(cpu, s.alloc(cpu, 3000))
        assert queued(s.cache) <= 350
        assert len(s.shared()) <= 100
    s.cache.tunables.queue_budget = 0
    s.free(0, s.alloc(0, 3000))
    assert len(s.shared()) > 350


@once
@both
def test_after_enough_idle_passes_nothing_is_retained(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    ours, theirs = s.alloc(0, 1000), s.alloc(2, 200)
    s.free(0, ours)
    s.free(0, theirs)
    for _ in range(40):
        s.expire()
    assert queued(s.cache) == 0
    assert len(s.cache.slabs()) == 0  # empty slabs went with the partial stage
    assert s.cache.account()["reserved"] == 0


@once
@both
def test_retention_without_expiration_is_bounded_by_queues_and_min_partial(
    scene: Set, debug: str | None
) -> None:
    s = scene(debug=debug)
    s.free(0, s.alloc(0, 5000))
    # 125 in the CPU queue, 1022 shared, and 7 empty slabs (min_partial 6, one more).
    queues = queues_of(s.cache)
    assert all(queue.objects <= queue.capacity for queue in queues)
    empty = [1 for _, free in s.partial() if free == 64]
    assert len(empty) <= 7
    assert queued(s.cache) <= 125 + 1022
    # Slabs that queued objects pin, and the empty ones: nothing else is left.
    pinned = {address & ~4095 for queue in queues for address in queue.addresses}
    assert len(s.cache.slabs()) == len(pinned) + len(empty)


@once
def test_expire_of_the_allocator_ages_every_cache(make: Callable[..., us.Allocator]) -> None:
    alloc = make(machine=grid(1, 1, 2))
    # Page-sized and LOWMEM caches have no shared queue; that must not end the pass (V4 did).
    caches = [
        alloc.create_cache("pages", 4096),
        alloc.create_cache("rare", 64, flags=["lowmem"]),
        alloc.create_cache("small", 64),
    ]
    with alloc.on_cpu(0):
        for cache in caches:
            cache.free_bulk(cache.alloc_bulk(4))
    total = sum(alloc.expire() for _ in range(7))
    assert [queued(cache) for cache in caches] == [0, 0, 0]
    assert total == sum(
        cache.stats(exact=True)["expire_objects"] * cache.stride for cache in caches
    )
    assert total > 0


@once
def test_the_clock_expires_when_a_period_is_set(make: Callable[..., us.Allocator]) -> None:
    alloc = make(machine=grid(1, 1, 2))
    cache = alloc.create_cache("aged", 64, expire_period=2000)
    idle = alloc.create_cache("kept", 64)
    with alloc.on_cpu(0):
        for one in (cache, idle):
            one.free_bulk(one.alloc_bulk(16))
    alloc.advance(1)
    assert queued(cache) == 16
    for _ in range(4):
        alloc.advance(2)
    assert queued(cache) == 0
    assert queued(idle) == 16  # on demand only, by default


@pytest.mark.parametrize("of", ["cache", "allocator"])
def test_two_passes_that_find_nothing_are_the_end(
    opened: us.Allocator, policy: str, of: str
) -> None:
    """The first pass only takes marks of use away: that it moves nothing means nothing."""
    cache = opened.create_cache("aged", 64)
    with opened.on_cpu(0):
        cache.free_bulk(cache.alloc_bulk(3000))
    expire = cache.expire if of == "cache" else opened.expire
    assert expire() == 0
    idle = 0
    while idle < 2:
        idle = 0 if expire() else idle + 1
    # Others have no ageing at all; a pass of V4 over all caches ends at the first one that has no
    # shared queue (table 2.13, row 4), before CPU queues are looked at.
    aged = {("unified", "cache"), ("unified", "allocator"), ("unified-v4", "cache")}
    assert (policy, of) not in aged or queued(cache) == 0
    before = opened.account()["reserved"]
    assert expire() == 0
    assert opened.account()["reserved"] == before


def test_the_reaper_expires_in_real_time(make: Callable[..., us.Allocator]) -> None:
    alloc = make(**place("native"))
    cache = alloc.create_cache("reaped", 64)
    cache.free_bulk(cache.alloc_bulk(200))
    with alloc.reaper("2 ms"):
        deadline = time.monotonic() + 20
        while queued(cache) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert queued(cache) == 0


def test_reapers_come_and_go_while_queues_change_their_sizes(
    make: Callable[..., us.Allocator], policy: str
) -> None:
    """Who stops a reaper holds nothing that the reaper, at work just then, may want."""
    alloc = make(policy)
    cache = alloc.create_cache("busy", 64)
    ended = threading.Barrier(4)

    def come_and_go() -> None:
        for _ in range(40):
            with alloc.reaper("1 ms"):
                time.sleep(0.002)
        ended.wait(60)

    threads = [threading.Thread(target=come_and_go, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and ended.n_waiting < 3:
        cache.free_bulk(cache.alloc_bulk(3000))
    ended.wait(60)
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_expire_under_every_policy(opened: us.Allocator, policy: str) -> None:
    cache = opened.create_cache("aged", 64)
    with opened.on_cpu(0):
        cache.free_bulk(cache.alloc_bulk(64))
    total = sum(opened.expire() for _ in range(8))
    assert total == opened.stats(exact=True)["expire_objects"] * 64
    # Unified ages the 64 queued objects, 60 and 4; as posted a pass over all caches does not come
    # to CPU queues; SLAB's goes by the clock alone, the others have no ageing at all.
    assert total == {"unified": 64 * 64}.get(policy, 0)
