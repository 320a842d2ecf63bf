"""Queue sizes of `unified` that follow the traffic (DESIGN: between bounds, can be switched off).

The rules, as the tunables state them: sizes left to the rules double when objects went down only
to come up again, at a later look, or when CPUs exchange objects through the shared queue at least
32 times in 10 ms; looks happen every ``adapt_period`` of the policy's clock (10 ms,
up to 128 times that while nothing is to be done); queues grow while they can hold no more than
``adapt_max`` together. On a scripted machine nothing happens unless the script advances the clock.
"""

from __future__ import annotations

import pytest

import unislab as us

pytestmark = pytest.mark.once

SIZE = 64
LOOK = 1.5  # seconds: more than the longest wait between two looks at a cache
MANY = 6000  # objects: more than CPU queue and shared queue hold, twice doubled


@pytest.fixture
def machine() -> us.Machine:
    """One node, one domain, two CPUs."""
    return us.Machine.grid(nodes=1, domains_per_node=1, cpus_per_domain=2)


def thrash(cache: us.Cache, rounds: int = 2) -> None:
    """Objects overflow to slabs and are refilled from them."""
    for _ in range(rounds):
        addresses = cache.alloc_bulk(MANY)
        cache.free_bulk(addresses)


def exchange(alloc: us.Allocator, cache: us.Cache, rounds: int = 80) -> None:
    """CPU 0 allocates what CPU 1 frees, through the shared queue."""
    for _ in range(rounds):
        with alloc.on_cpu(0):
            addresses = cache.alloc_bulk(60)
        with alloc.on_cpu(1):
            cache.free_bulk(addresses)


def test_nothing_changes_unless_the_clock_moves(machine):
    """Outside a workload nothing runs by itself."""
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("still", SIZE)
        before = cache.tunables.shared_queue_desired
        thrash(cache)
        assert cache.tunables.shared_queue_desired == before == 600


def test_the_shared_queue_doubles_when_slabs_give_back_what_they_got(machine):
    """Drains to slabs and refills from them, both: one doubling a look."""
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("thrash", SIZE)
        thrash(cache)
        alloc.advance(LOOK)
        assert cache.tunables.shared_queue_desired == 600  # drained, and not come back yet
        for expected in (1200, 2400):
            thrash(cache)
            alloc.advance(LOOK)
            assert cache.tunables.shared_queue_desired == expected
        assert cache.validate().ok


def test_one_way_flow_gains_nothing_from_room(machine):
    """Frees that are never allocated again leave the sizes alone."""
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("one way", SIZE)
        cache.free_bulk(cache.alloc_bulk(10 * MANY))
        alloc.advance(LOOK)
        alloc.advance(LOOK)
        assert cache.tunables.shared_queue_desired == 600


def test_cpu_queues_double_when_cpus_exchange_objects_up_to_four_times(machine):
    """120 becomes 240, then 480, and stays there."""
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("exchange", SIZE)
        sizes = []
        for _ in range(4):
            exchange(alloc, cache)
            alloc.advance(LOOK)
            sizes.append(cache.tunables.queue_size)
        assert sizes[0] == 240
        assert sizes[-1] <= 480
        assert cache.tunables.batch_size == (cache.tunables.queue_size + 1) // 2


def test_cpu_queues_stay_when_cpus_meet_seldom(machine):
    """One round trip in 10 ms for 1.5 s: below 32 in 10 ms, however many come together in a look.

    A long wait between looks gathers more than 32 of them; what counts is how often they come.
    """
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("seldom", SIZE)
        for _ in range(150):
            exchange(alloc, cache, rounds=1)
            alloc.advance(0.01)
        assert cache.stats().free_shared > 32
        assert cache.tunables.queue_size == 120


def test_adapt_max_bounds_what_queues_can_hold(machine):
    """Queues never grow beyond the bytes they may hold together."""
    limit = 2 * SIZE * (2 * 120 + 600)  # room for one doubling of the shared queue at most
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("bounded", SIZE, adapt_max=limit)
        for _ in range(4):
            thrash(cache)
            exchange(alloc, cache)
            alloc.advance(LOOK)
        t = cache.tunables
        assert SIZE * (2 * t.queue_size + t.shared_queue_desired) <= limit


@pytest.mark.parametrize(
    "fixed", [{"adapt_period": 0}, {"shared_queue_size": 600, "cpu_queue_size": 120}]
)
def test_it_can_be_switched_off_and_leaves_given_sizes_alone(machine, fixed):
    """Period 0, or sizes that somebody chose."""
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("fixed", SIZE, **fixed)
        for _ in range(3):
            thrash(cache)
            exchange(alloc, cache)
            alloc.advance(LOOK)
        assert cache.tunables.shared_queue_desired == 600
        assert cache.tunables.queue_size == 120


def test_objects_survive_growth(machine):
    """What the queues held is still held, and nothing is handed out twice."""
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("kept", SIZE)
        held = cache.alloc_bulk(100)
        thrash(cache)
        alloc.advance(LOOK)
        thrash(cache)
        queued = cache.account()["queued"]
        alloc.advance(LOOK)
        assert cache.tunables.shared_queue_desired == 1200
        assert cache.account()["queued"] == queued
        more = cache.alloc_bulk(MANY)
        assert len(set(held) | set(more)) == 100 + MANY
        cache.free_bulk(held)
        cache.free_bulk(more)


def test_memory_pressure_brings_the_rules_back(machine):
    """Below the low mark sizes fall back at the next look."""
    with us.Allocator("unified", machine=machine, memory="4 MiB") as alloc:
        cache = alloc.create_cache("pressed", SIZE)
        for _ in range(2):
            thrash(cache)
            alloc.advance(LOOK)
        assert cache.tunables.shared_queue_desired == 1200
        big = alloc.create_cache("big", 4096)
        held = []
        while alloc.memory_info(0)["free"] >= alloc.memory_info(0)["low"]:
            held.append(big.alloc_address())
        alloc.advance(2 * LOOK)
        assert cache.tunables.shared_queue_desired == 600
        big.free_bulk(held)


def test_failing_to_get_memory_keeps_the_old_queues(machine):
    """Growth is all or nothing."""
    with us.Allocator("unified", machine=machine) as alloc:
        cache = alloc.create_cache("poor", SIZE)
        for nth in range(1, 6):
            thrash(cache)
            alloc.fail("meta", nth=nth)
            alloc.advance(LOOK)
            alloc.fail("meta")
            assert cache.validate().ok
        cache.free_bulk(cache.alloc_bulk(MANY))
