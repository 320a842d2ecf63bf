"""Running out: budgets, injected failures of every request, what is given back before failing."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from rules.books import balance_all
from rules.crowd import Crowd
from rules.inside import queued
from rules.machines import CPUS, declared, grid, place

import unislab as us

Make = Callable[..., us.Allocator]
once = pytest.mark.once


def fill(cache: us.Cache, **where: Any) -> list[int]:
    """Allocate until MemoryError."""
    got: list[int] = []
    with pytest.raises(MemoryError):
        while True:
            got.append(cache.alloc_address(**where))
    return got


# ---- the budget  ---------------------------------------------------------------------------------


def test_a_spent_budget_is_a_memory_error(
    make: Make, policy: str, kind: str, debug: str | None
) -> None:
    alloc = make(policy, memory="2 MiB", debug=debug, **place(kind))
    cache = alloc.create_cache("filled", 1024)
    got = fill(cache)
    assert 0.8 * 2048 < len(got) <= 2048  # 2 MiB of 1 KiB objects, less a little
    assert alloc.account()["reserved"] <= 2 << 20
    assert balance_all(alloc) == len(got)
    # It lasts while nothing is freed, and ends when something is.
    with pytest.raises(MemoryError):
        cache.alloc_bulk(100)
    assert balance_all(alloc) == len(got)
    cache.free(got.pop())
    got.append(cache.alloc_address())
    cache.free_bulk(got)
    alloc.shrink()
    assert alloc.account()["reserved"] == 0
    again = fill(cache)
    assert len(again) >= len(got) - 16
    cache.free_bulk(again)


def test_the_error_says_what_was_asked_and_what_is_allowed(make: Make, policy: str) -> None:
    alloc = make(policy, memory="1 MiB", machine=grid(1, 1, 2))
    with pytest.raises(us.LimitExceeded) as error:
        alloc.kmalloc(2 << 20)
    assert error.value.requested >= 2 << 20
    assert error.value.limit == 1 << 20
    assert isinstance(error.value, MemoryError)
    assert balance_all(alloc) == 0


@pytest.mark.parametrize(("size", "n"), [(600, 100_000), (64, 20_000), (4096, 2**40)])
def test_a_bulk_call_that_fails_names_what_it_wanted(
    make: Make, policy: str, kind: str, size: int, n: int
) -> None:
    """So many objects of that size: not one object of all bytes together."""
    alloc = make(policy, memory="1 MiB", **place(kind))
    cache = alloc.create_cache("bulk", size)
    with pytest.raises(us.LimitExceeded, match=f"{n} objects of {size} bytes") as error:
        cache.alloc_bulk(n)
    assert error.value.requested == n * size
    assert error.value.limit == 1 << 20
    assert balance_all(alloc) == 0
    with pytest.raises(us.LimitExceeded, match=f"an object of {size} bytes"):
        while True:
            cache.alloc_address()
    for address in cache.live().tolist():
        cache.free(address)


def test_a_bulk_call_that_fails_half_way_gives_all_back(
    make: Make, policy: str, kind: str, debug: str | None
) -> None:
    alloc = make(policy, memory="1 MiB", debug=debug, **place(kind))
    cache = alloc.create_cache("bulk", 1024)
    with pytest.raises(MemoryError):
        cache.alloc_bulk(3000)
    assert balance_all(alloc) == 0
    got = cache.alloc_bulk(500)
    cache.free_bulk(got)


def test_other_caches_give_back_what_they_only_keep(
    make: Make, policy: str, kind: str, debug: str | None
) -> None:
    """Before an allocation fails everything idle is flushed, shrunk and tried again."""
    alloc = make(policy, memory="2 MiB", debug=debug, **place(kind))
    hoard = alloc.create_cache("hoard", 4096)
    needy = alloc.create_cache("needy", 1024)
    with alloc.on_cpu(0):
        # Free objects of one cache: in its queues, and in slabs that its objects pinned.
        got = fill(hoard)
        hoard.free_bulk(got)
        # Nearly all of the budget is needed now, and nothing of it is live.
        theirs = needy.alloc_bulk(1600)
        needy.free_bulk(theirs)
        large = alloc.kmalloc(1 << 20)
        alloc.kfree(large)
    assert balance_all(alloc) == 0


@once
def test_below_low_unified_expires_that_node(make: Make) -> None:
    """Nobody called expire(): the page provider did, before it had to fail."""
    alloc = make(machine=grid(1, 1, 2), memory="4 MiB")
    idle = alloc.create_cache("idle", 1000)
    user = alloc.create_cache("user", 4096)
    with alloc.on_cpu(0):
        idle.free_bulk(idle.alloc_bulk(400))
        held = queued(idle)
        assert held > 100
        info = alloc.memory_info(0)
        assert info["free"] > info["low"]
        got = []
        # Until below `low`, far from the end; some more requests let the pressure act.
        while alloc.memory_info(0)["free"] > info["min"]:
            got.append(user.alloc_address())
    assert idle.stats(exact=True)["expire_objects"] > 0
    assert queued(idle) < held
    user.free_bulk(got)


@once
def test_unified_keeps_its_queues_while_there_is_room(make: Make) -> None:
    alloc = make(machine=grid(1, 1, 2), memory="64 MiB")
    idle = alloc.create_cache("idle", 1000)
    user = alloc.create_cache("user", 4096)
    with alloc.on_cpu(0):
        idle.free_bulk(idle.alloc_bulk(400))
        held = queued(idle)
        user.free_bulk(user.alloc_bulk(1000))
    assert queued(idle) == held
    assert idle.stats(exact=True)["expire_objects"] == 0


# ---- injected failures  --------------------------------------------------------------------------


def program(alloc: us.Allocator) -> None:
    """Allocates from several caches on two CPUs; whatever fails is passed over, all is freed."""
    live: list[tuple[us.Cache, list[int]]] = []
    blocks: list[int] = []
    made: list[us.Cache] = []

    def tried(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except MemoryError:
            return None

    for i, size in enumerate((64, 700, 8192)):
        cache = tried(alloc.create_cache, f"made-{i}", size)
        if cache is not None:
            made.append(cache)
    for cpu in (0, 1):
        with alloc.on_cpu(cpu):
            for cache in made:
                got = tried(cache.alloc_bulk, 30)
                if got is not None:
                    live.append((cache, [int(a) for a in got]))
                one = tried(cache.alloc_address, zero=True)
                if one is not None:
                    live.append((cache, [one]))
            for size in (40, 500, 50_000):
                block = tried(alloc.kmalloc, size)
                if block is not None:
                    blocks.append(block)
    assert balance_all(alloc) == sum(len(got) for _, got in live) + len(blocks)
    for cpu, (cache, got) in enumerate(live):
        with alloc.on_cpu(cpu % 2):
            cache.free_bulk(got)
    for block in blocks:
        alloc.kfree(block)
    assert balance_all(alloc) == 0
    alloc.expire()
    alloc.shrink()
    assert alloc.account()["reserved"] == 0
    for cache in made:
        cache.destroy()


@once
@pytest.mark.parametrize("what", ["pages", "meta"])
def test_every_single_failure_leaves_everything_balanced(
    make: Make, policy: str, debug: str | None, what: str
) -> None:
    """The nth request fails, for every n that the program makes."""
    alloc = make(policy, debug=debug, machine=grid(1, 1, 2))
    program(alloc)  # what is made on first use is made
    before = alloc.account()
    for nth in range(1, 60):
        alloc.fail(what, nth=nth)
        program(alloc)
        after = alloc.account()
        assert after["metadata"] == before["metadata"], f"request {nth} leaked"
    alloc.fail(what)  # no more of that
    program(alloc)


@once
@pytest.mark.parametrize("what", ["pages", "meta"])
def test_every_failure_while_an_allocator_is_made(make: Make, policy: str, what: str) -> None:
    """With a fresh allocator each time: first uses fail too."""
    for nth in range(1, 30):
        alloc = make(policy, machine=grid(2, 1, 1))
        alloc.fail(what, nth=nth)
        program(alloc)
        alloc.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_queue_size", 1000),
        ("cpu_queue_size", 8),
        ("shared_queue_size", 2000),
        ("alien_queue_size", 1000),
        ("alien_queue_size", 10),
    ],
)
@once
def test_a_resize_that_fails_changes_nothing(make: Make, name: str, value: int) -> None:
    """Whichever request for metadata fails: the old size stays, nothing is lost or leaked."""
    alloc = make(machine=grid(2, 1, 2))
    before = alloc.account()["metadata"]
    failures = 0
    for nth in range(1, 20):
        cache = alloc.create_cache("resized", 64)
        live = []
        for cpu in range(4):
            with alloc.on_cpu(cpu):
                got = cache.alloc_bulk(150)
                cache.free_bulk(got[:100])
                live += got[100:].tolist()
        sizes = dict(cache.tunables)
        alloc.fail("meta", nth=nth)
        try:
            setattr(cache.tunables, name, value)
        except MemoryError:
            failures += 1
            now = dict(cache.tunables)
            for row in ("queue_size", "batch_size", "cpu_queue_size", "shared_queue_size"):
                assert now[row] == sizes[row]
            assert now["alien_queue_size"] == sizes["alien_queue_size"]
        alloc.fail("meta")
        assert sorted(cache.live().tolist()) == sorted(live)
        assert balance_all(alloc) == len(live)
        setattr(cache.tunables, name, value)  # now it works
        assert cache.tunables[name] >= value
        for cpu in range(4):
            with alloc.on_cpu(cpu):
                cache.free_bulk(cache.alloc_bulk(300))
        cache.free_bulk(live)
        assert balance_all(alloc) == 0
        cache.destroy()
        assert alloc.account()["metadata"] == before
    assert 0 < failures < 19


@pytest.mark.parametrize("what", ["pages", "meta"])
def test_random_failures(make: Make, policy: str, kind: str, what: str) -> None:
    alloc = make(policy, **place(kind))
    rng = random.Random(5)
    cache = alloc.create_cache("shaky", 2048)
    alloc.fail(what, rate=0.5)
    live: list[int] = []
    failed = 0
    for _ in range(400):
        if rng.random() < 0.6:
            try:
                live += [int(a) for a in cache.alloc_bulk(rng.randrange(1, 40))]
            except MemoryError:
                failed += 1
        else:
            n = rng.randrange(len(live) + 1)
            cache.free_bulk(live[:n])
            live = live[n:]
            if rng.random() < 0.2:
                alloc.shrink()
    assert balance_all(alloc) == len(live)
    alloc.fail(what, rate=0.0)
    cache.free_bulk(live)
    alloc.shrink()
    assert alloc.account()["reserved"] == 0
    cache.free_bulk(cache.alloc_bulk(1000))


@pytest.mark.parametrize("failing", [False, True], ids=["budget", "failures"])
def test_threads_share_too_little(
    make: Make, policy: str, debug: str | None, failing: bool
) -> None:
    """Several threads meet the end of the memory at once; each gets what it can, nobody waits."""
    alloc = make(policy, memory="6 MiB", debug=debug, topology=declared([0, 1][: len(CPUS)]))
    caches = [alloc.create_cache(f"size-{size}", size) for size in (64, 700, 4096, 8192)]
    if failing:
        alloc.fail("pages", rate=0.1)
        alloc.fail("meta", rate=0.2)
    failed = [0] * 4

    def step(number: int) -> None:
        rng = random.Random()
        live = []
        for _ in range(20):
            cache = rng.choice(caches)
            try:
                live.append((cache, cache.alloc_bulk(rng.randrange(1, 300))))
                alloc.kfree(alloc.kmalloc(rng.choice([100, 5000, 100_000])))
            except MemoryError:
                failed[number] += 1
            if len(live) > 6:
                cache, got = live.pop(rng.randrange(len(live)))
                cache.free_bulk(got)
        for cache, got in live:
            cache.free_bulk(got)

    with Crowd(4, step):
        deadline = time.monotonic() + 10
        while sum(failed) < 100 and time.monotonic() < deadline:
            alloc.expire()
            with contextlib.suppress(MemoryError):
                made = alloc.create_cache("passing", 96)
                with contextlib.suppress(MemoryError):
                    made.free_bulk(made.alloc_bulk(100))
                made.destroy()
            if policy == "unified":
                with contextlib.suppress(MemoryError):
                    caches[0].tunables.cpu_queue_size = random.choice([4, 60, 120, 1000])
    alloc.fail("pages")
    alloc.fail("meta")
    assert sum(failed) >= 100
    assert balance_all(alloc) == 0
    alloc.shrink()
    assert alloc.account()["reserved"] == 0


@once
def test_certain_failure_of_pages_fails_and_recovers(make: Make, policy: str) -> None:
    alloc = make(policy, machine=grid(1, 1, 2))
    cache = alloc.create_cache("starved", 64)
    alloc.fail("pages", rate=1.0)
    with pytest.raises(MemoryError):
        cache.alloc()
    with pytest.raises(MemoryError):
        alloc.kmalloc(100_000)
    assert balance_all(alloc) == 0
    alloc.fail("pages", rate=0.0)
    cache.alloc().free()


@once
def test_a_refused_order_falls_back_to_the_smallest(make: Make, policy: str) -> None:
    """ORDER_FALLBACK: 512 bytes on two CPUs prefer order 1 (16 objects); order 0 holds 8."""
    if policy == "slab":
        pytest.skip("SLAB takes the order that its rule says, or none")
    alloc = make(policy, machine=grid(1, 1, 2))
    cache = alloc.create_cache("fallen", 512)
    if "order_fallback" not in cache.stats():
        pytest.skip("the policy has slabs of one order only")
    assert (cache.order, cache.objects_per_slab) == (1, 16)
    alloc.fail("pages", nth=1)
    got = [int(a) for a in cache.alloc_bulk(8)]
    stats = cache.stats(exact=True)
    assert stats["order_fallback"] == 1
    # The first miss of a queue wants 16 objects: as posted it goes on until it has them.
    more = [(1, 16)] if policy in ("unified-v4", "sleb") else []
    assert sorted((row.order, row.objects) for row in cache.slabs().itertuples()) == [(0, 8), *more]
    got += [int(a) for a in cache.alloc_bulk(8)]
    assert sorted((row.order, row.objects) for row in cache.slabs().itertuples()) == [
        (0, 8),
        (1, 16),
    ]
    balance_all(alloc)
    cache.free_bulk(got)


@once
@pytest.mark.parametrize(
    "arguments",
    [{"kind": "disk"}, {"kind": "pages", "rate": 1.5}, {"kind": "pages", "rate": -0.1}],
)
def test_failures_that_cannot_be(make: Make, arguments: dict[str, Any]) -> None:
    alloc = make(machine=grid())
    with pytest.raises(ValueError, match=r"disk|1\.5|-0\.1"):
        alloc.fail(arguments.pop("kind"), **arguments)
