"""CPUs that leave and come back: drained, passed over, opened again, under every policy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from rules.books import balance, balance_all
from rules.inside import look
from rules.machines import grid, place
from rules.names import ALLOCS

import unislab as us
from unislab import ops

pytestmark = pytest.mark.every_policy

Make = Callable[..., us.Allocator]


def held_by(cache: us.Cache, cpu: int) -> int:
    """Objects in the CPU's own stocks."""
    return sum(queue.objects for queue in look(cache)[1] if queue.cpu == cpu)


def fast(cache: us.Cache, cpu: int) -> int:
    """Calls that the CPU's own stock served."""
    per_cpu = cache.stats(exact=True).per_cpu
    return int(per_cpu["alloc_fast"][cpu] + per_cpu["free_fast"][cpu])


def served(cache: us.Cache, cpu: int) -> int:
    """Allocations on the CPU."""
    per_cpu = cache.stats(exact=True).per_cpu
    return sum(int(per_cpu[name][cpu]) for name in ALLOCS)


def work(cache: us.Cache, n: int = 300) -> None:
    """Objects come and go on the CPU of the caller, singly and in bulk."""
    cache.free_bulk(cache.alloc_bulk(n))
    for address in [cache.alloc_address() for _ in range(n)]:
        cache.free(address)


# ---- off ---------------------------------------------------------------------------------------


def test_a_cpu_that_leaves_keeps_nothing(opened: us.Allocator) -> None:
    caches = [opened.create_cache(f"size-{size}", size) for size in (24, 700)]
    kept = {}
    for cpu in (0, 1):
        with opened.on_cpu(cpu):
            for cache in caches:
                kept[cpu, cache.name] = [int(a) for a in cache.alloc_bulk(50)]
                work(cache)
    opened.offline_cpu(1)
    for cache in caches:
        assert held_by(cache, 1) == 0
        assert balance(cache) == 100
        cache.free_bulk([*kept[0, cache.name], *kept[1, cache.name]])


def test_calls_on_it_are_served_from_the_next_level(opened: us.Allocator) -> None:
    """A closed region is the slow path: no call is fast, and none leaves a stock behind."""
    cache = opened.create_cache("served", 64)
    with opened.on_cpu(1):
        work(cache)
        opened.offline_cpu(1)
        before = fast(cache, 1)
        assert opened.cpu == 1
        work(cache)
        with cache.alloc() as obj:
            assert obj.address in cache.live().tolist()
        assert fast(cache, 1) == before
        assert held_by(cache, 1) == 0
        # The other CPU is as it was.
        with opened.on_cpu(0):
            work(cache)
    balance_all(opened)


def test_it_comes_back_with_open_queues(opened: us.Allocator, policy: str) -> None:
    cache = opened.create_cache("back", 64)
    with opened.on_cpu(1):
        work(cache)
    opened.offline_cpu(1)
    opened.online_cpu(1)
    assert held_by(cache, 1) == 0
    with opened.on_cpu(1):
        kept = cache.alloc_bulk(2)  # makes the CPU's stock, which serves the pair,
        cache.free(cache.alloc_address())  # or the free does
        before = fast(cache, 1)
        cache.free(cache.alloc_address())
        # Lists of other policies have no CPU stock under debug.
        assert fast(cache, 1) - before == 2 or (cache.debug and policy != "unified")
    cache.free_bulk(kept)


def test_a_cache_made_meanwhile_opens_when_the_cpu_comes(opened: us.Allocator) -> None:
    with opened.on_cpu(1):
        opened.offline_cpu(1)
        cache = opened.create_cache("meanwhile", 64)
        work(cache)
        assert fast(cache, 1) == 0
        assert held_by(cache, 1) == 0
        opened.online_cpu(1)
        work(cache)
        assert fast(cache, 1) > 0 or cache.debug


def test_everything_else_works_meanwhile(opened: us.Allocator) -> None:
    """And opens nothing: each of these stops the machine, or closes and opens regions."""
    tunable = {"slab": ("limit", 100), "slqb": ("hiwater", 7)}.get(
        opened.policy, ("min_partial", 7)
    )
    cache = opened.create_cache("meanwhile", 64)
    other = opened.create_cache("other", 100)
    with opened.on_cpu(1):
        work(cache)
        opened.offline_cpu(1)
        before = fast(cache, 1)
        for do in (
            lambda: opened.expire(),
            lambda: opened.flush(),
            lambda: opened.shrink(),
            lambda: opened.validate(),
            lambda: opened.account(),
            lambda: opened.stats(exact=True),
            lambda: opened.advance("10 s"),
            lambda: setattr(cache.tunables, *tunable),
            lambda: other.destroy(),
        ):
            work(cache, 100)
            do()
            assert held_by(cache, 1) == 0
        assert fast(cache, 1) == before
    assert balance(cache) == 0


def test_a_resize_leaves_it_closed(opened: us.Allocator, policy: str) -> None:
    cache = opened.create_cache("resized", 64)
    with opened.on_cpu(1):
        work(cache)
        opened.offline_cpu(1)
        before = fast(cache, 1)
        for name, value in {
            "unified": [("cpu_queue_size", 8), ("cpu_queue_size", 500), ("shared_queue_size", 0)],
        }.get(policy, []):
            setattr(cache.tunables, name, value)
            work(cache, 100)
        assert fast(cache, 1) == before
        opened.online_cpu(1)
        work(cache)
    assert balance(cache) == 0


def test_a_fork_leaves_it_closed(make: Make, policy: str) -> None:
    alloc = make(policy, **place("native"))
    cache = alloc.create_cache("forked", 64)
    alloc.offline_cpu(1)
    child = os.fork()
    if child == 0:
        try:
            with alloc.on_cpu(0):
                work(cache)
            ok = alloc.online_cpus == tuple(c.number for c in alloc.cpus if c.number != 1)
            alloc.online_cpu(1)
            with alloc.on_cpu(1):
                work(cache)
            ok = ok and fast(cache, 1) > 0
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert 1 not in alloc.online_cpus
    with pytest.raises(ValueError, match="offline"), alloc.on_cpu(1):
        pass


# ---- what it says ------------------------------------------------------------------------------


def test_the_state_is_shown(make: Make) -> None:
    alloc = make(machine=grid(2, 1, 2))
    assert [tuple(cpu) for cpu in alloc.cpus] == [
        (0, 0, 0, True),
        (1, 0, 0, True),
        (2, 1, 1, True),
        (3, 1, 1, True),
    ]
    assert "online" not in repr(alloc)
    alloc.offline_cpu(2)
    assert alloc.cpus[2] == (2, 1, 1, False)
    assert alloc.online_cpus == (0, 1, 3)
    assert "3 of 4 CPUs online" in repr(alloc)
    alloc.online_cpu(2)
    assert alloc.online_cpus == (0, 1, 2, 3)


@pytest.mark.parametrize("call", ["offline_cpu", "online_cpu"])
@pytest.mark.parametrize("cpu", [2, -1, 2**40])
def test_a_cpu_that_is_not_there(make: Make, call: str, cpu: int) -> None:
    alloc = make(machine=grid(1, 1, 2))
    with pytest.raises(ValueError, match=f"^CPU {cpu} is not on this machine: expected 0 to 1$"):
        getattr(alloc, call)(cpu)


def test_what_is_refused(make: Make, kind: str) -> None:
    alloc = make(**place(kind))
    with pytest.raises(ValueError, match=r"^CPU 1 is online already$"):
        alloc.online_cpu(1)
    alloc.offline_cpu(1)
    with pytest.raises(ValueError, match=r"^CPU 1 is offline already$"):
        alloc.offline_cpu(1)
    expected = f"CPU 1 is offline: expected one of {list(alloc.online_cpus)}, or online_cpu(1) fir"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}"), alloc.on_cpu(1):
        pass
    for cpu in alloc.online_cpus[1:]:  # a native machine may have more
        alloc.offline_cpu(cpu)
    with pytest.raises(ValueError, match=r"^CPU 0 is the last one online"):
        alloc.offline_cpu(0)
    alloc.kfree(alloc.kmalloc(10))


def test_a_script_goes_back_to_where_it_was(make: Make) -> None:
    alloc = make(machine=grid(1, 1, 3))
    with alloc.on_cpu(1):
        with alloc.on_cpu(2):
            alloc.offline_cpu(1)
        assert alloc.cpu == 1  # it stood there before
    assert alloc.cpu == 0


def pinned(cpu: int | list[int] | None) -> us.Workload:
    """One task on a CPU, on one of several, or on any."""
    workload = us.Workload("pinned")
    cache = workload.add_cache("pinned", 64)
    workload.add_task(ops.alloc(cache, 0), ops.free(0), cpu=cpu)
    return workload


def test_a_workload_on_it_is_refused(make: Make, policy: str, kind: str) -> None:
    alloc = make(policy, **place(kind))
    alloc.offline_cpu(1)
    with pytest.raises(ValueError, match=r"^pinned: a task is placed on CPU 1, which"):
        us.run(pinned(1), allocator=alloc, min_time=0)
    # A task that has a choice runs on what is online, and so does one that may run anywhere.
    for cpu in ([0, 1], 0, None):
        us.run(pinned(cpu), allocator=alloc, min_time=0)
        assert served(alloc.cache("pinned"), 1) == 0
    alloc.online_cpu(1)
    us.run(pinned(1), allocator=alloc, min_time=0)
    assert served(alloc.cache("pinned"), 1) > 0


# ---- levels beyond the CPU -----------------------------------------------------------------------


def test_the_last_cpu_of_a_domain_leaves_nothing_in_it(make: Make, policy: str) -> None:
    """Two domains: what the second keeps for its CPUs goes to slabs with the last of them."""
    alloc = make(policy, machine=grid(1, 2, 2))
    cache = alloc.create_cache("levels", 64)
    for cpu in range(4):
        with alloc.on_cpu(cpu):
            cache.free_bulk(cache.alloc_bulk(600))
    alloc.offline_cpu(2)
    alloc.offline_cpu(3)
    second = alloc.cpus[2].domain
    assert sum(queue.objects for queue in look(cache)[1] if queue.domain == second) == 0
    assert balance(cache) == 0


def test_timers_pass_it_over(make: Make) -> None:
    """Unified ages a node once a period, from its first CPU: from the first that is online."""
    alloc = make("unified", machine=grid(1, 1, 2), expire_period=1000)
    cache = alloc.create_cache("aged", 64)
    alloc.offline_cpu(0)
    with alloc.on_cpu(1):
        cache.free_bulk(cache.alloc_bulk(100))
        assert held_by(cache, 1) > 0
        alloc.advance("60 s")
    # Sixty passes: the first takes the mark of use, each later one a batch, of a queue of a few.
    assert held_by(cache, 1) == 0
    assert balance(cache) == 0


def test_cpus_come_and_go_under_load(make: Make, policy: str) -> None:
    from rules.crowd import Crowd

    alloc = make(policy, **place("native"))
    cache = alloc.create_cache("busy", 64)
    with Crowd(2, lambda i: work(cache, 50)):
        for _ in range(30):
            alloc.offline_cpu(1)
            alloc.online_cpu(1)
    assert balance_all(alloc) == 0
