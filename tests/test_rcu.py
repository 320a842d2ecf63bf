"""Frees after a grace period, under every policy: when they happen, and what they are until then.

The grace period is a minute of the policy's clock here: no test runs that long, so that only
``advance`` ends one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rules.books import balance
from rules.machines import grid, place
from rules.scene import Scene

import unislab as us

DELAY = 60  # seconds
C = 12  # pointers of a sheaf for objects of 1024 bytes
BARN = 10  # full sheaves of a barn

every_policy = pytest.mark.every_policy


@pytest.fixture
def alloc(make: Any, policy: str, kind: str, debug: str | None) -> us.Allocator:
    return make(policy, debug=debug, rcu_delay=DELAY, **place(kind))


@pytest.fixture
def cache(alloc: us.Allocator) -> us.Cache:
    return alloc.create_cache("pending", 64)


# ---- when ----------------------------------------------------------------------------------------


@every_policy
def test_an_object_is_live_until_its_grace_period_is_over(cache: us.Cache) -> None:
    alloc = cache.allocator
    address = cache.alloc_address()
    us.raw.poke(address, b"still read")
    cache.free_rcu(address)
    for seconds in (0, DELAY - 30):
        alloc.advance(seconds)
        assert cache.live().tolist() == [address]
        assert us.raw.peek(address, 10) == b"still read"
        assert (cache.account()["live_objects"], cache.stats(exact=True).frees) == (1, 0)
        assert cache.validate().ok
    alloc.advance(30)
    assert len(cache.live()) == 0
    assert (cache.account()["live_objects"], cache.stats(exact=True).frees) == (0, 1)


@every_policy
def test_each_waits_from_its_own_free_on(cache: us.Cache) -> None:
    alloc = cache.allocator
    first, second = cache.alloc_bulk(100), cache.alloc_bulk(100)
    for address in first:
        cache.free_rcu(address)
    alloc.advance(DELAY - 20)
    for address in second:
        cache.free_rcu(address)
    alloc.advance(30)  # the first ones' time has come, but for those that share the last batch
    live = set(cache.live().tolist())
    assert set(second.tolist()) <= live
    assert len(live) < 200
    alloc.advance(DELAY - 30)
    assert len(cache.live()) == 0
    assert cache.stats(exact=True).frees == 200


ENDS: dict[str, Callable[[us.Cache], object]] = {
    "barrier": lambda cache: cache.allocator.rcu_barrier(),
    "flush": lambda cache: cache.allocator.flush(),
    "shrink": lambda cache: cache.allocator.shrink(),
    "shrink the cache": lambda cache: cache.shrink(),
}


@every_policy
@pytest.mark.parametrize("end", ENDS)
def test_what_does_not_wait_for_the_clock(cache: us.Cache, end: str) -> None:
    for address in cache.alloc_bulk(150):
        cache.free_rcu(address)
    assert len(cache.live()) == 150
    ENDS[end](cache)
    assert len(cache.live()) == 0
    assert cache.stats(exact=True).frees == 150
    assert balance(cache) == 0


@every_policy
def test_destroy_and_close_need_no_force(cache: us.Cache) -> None:
    alloc = cache.allocator
    other = alloc.create_cache("other", 64)
    cache.free_rcu(cache.alloc_address())
    other.free_rcu(other.alloc_address())
    cache.destroy()
    alloc.close()


@every_policy
def test_the_end_by_force_takes_what_waits_along(alloc: us.Allocator) -> None:
    cache = alloc.create_cache("pending", 64)
    for address in cache.alloc_bulk(150):
        cache.free_rcu(address)
    live = cache.alloc()
    cache.destroy(force=True)
    assert not live.alive
    assert alloc.account()["live_objects"] == 0
    alloc.rcu_barrier()
    alloc.advance(2 * DELAY)
    again = alloc.create_cache("pending", 64)
    again.alloc().free()


@pytest.mark.once
def test_a_plain_object_that_waits_is_in_the_books_as_live(make: Any) -> None:
    for policy in us.policies():
        cache = make(policy, **place("model")).create_cache("pending", 64)
        for address in cache.alloc_bulk(70):
            cache.free_rcu(address)
        assert balance(cache) == 70
        cache.allocator.rcu_barrier()
        assert balance(cache) == 0


# ---- what ----------------------------------------------------------------------------------------


@every_policy
def test_general_and_large_allocations(alloc: us.Allocator) -> None:
    small, large = alloc.kmalloc(100), alloc.kmalloc(300_000)
    alloc.kfree_rcu(small)
    alloc.kfree_rcu(large)
    alloc.kfree_rcu(0)
    if not alloc.debug:  # it is no longer the caller's
        assert alloc.ksize(small) >= 100
    assert alloc.account()["live_objects"] == 2
    alloc.advance(DELAY)
    assert alloc.account()["live_objects"] == 0


@every_policy
def test_an_owned_object_is_dead_at_once(cache: us.Cache) -> None:
    obj = cache.alloc()
    with memoryview(obj), pytest.raises(BufferError):
        cache.free_rcu(obj)
    assert obj.alive
    cache.free_rcu(obj)
    assert not obj.alive
    assert cache.live().tolist() == [obj.address]
    with pytest.raises(us.CorruptionError, match="freed already"):
        cache.free_rcu(obj)
    with pytest.raises(us.CorruptionError, match="freed already"):
        obj.free()
    other = cache.allocator.create_cache("other", 64)
    with other.alloc() as foreign, pytest.raises(ValueError, match="no object of cache pending"):
        cache.free_rcu(foreign)
    cache.allocator.rcu_barrier()


@every_policy
def test_misuse_is_found_at_the_call(cache: us.Cache) -> None:
    address = cache.alloc_address()
    for wrong in (8, address + 1):
        with pytest.raises(us.CorruptionError):
            cache.free_rcu(wrong)
    cache.free_rcu(0)
    with pytest.raises(TypeError):
        cache.free_rcu("it")  # type: ignore[arg-type]
    if cache.debug:
        cache.free_rcu(address)
        for again in (cache.free_rcu, cache.free):
            with pytest.raises(us.CorruptionError, match="free already"):
                again(address)
    else:
        cache.free(address)
    cache.allocator.rcu_barrier()
    if cache.debug:
        with pytest.raises(us.CorruptionError):
            cache.free_rcu(address)
    assert cache.stats(exact=True).frees == 1
    assert cache.validate().ok


@every_policy
def test_without_memory_for_a_note_the_call_waits(cache: us.Cache) -> None:
    address = cache.alloc_address()
    cache.allocator.fail("meta", rate=1.0)
    cache.free_rcu(address)
    cache.allocator.fail("meta")
    assert len(cache.live()) == 0
    assert cache.stats(exact=True).frees == 1


def test_a_delay_of_nothing_is_over_at_the_next_look(make: Any, kind: str) -> None:
    cache = make("unified", rcu_delay=0, **place(kind)).create_cache("pending", 64)
    cache.free_rcu(cache.alloc_address())
    assert len(cache.live()) == 1  # nothing runs by itself
    cache.allocator.advance("1 us")
    assert len(cache.live()) == 0


@every_policy
def test_a_free_of_what_waits_is_seen_by_validate(make: Any, policy: str) -> None:
    alloc = make(policy, machine=grid(1, 1, 1), rcu_delay=DELAY)
    cache = alloc.create_cache("pending", 64)
    address = cache.alloc_address()
    cache.free_rcu(address)
    cache.free(address)  # without debug="F" nobody looks
    assert f"object {address:#x} waits for a grace period and is also" in str(cache.validate())
    alloc.close(force=True)


@every_policy
def test_the_books_hold_what_waits_as_live(cache: us.Cache) -> None:
    waiting = cache.alloc_bulk(70).tolist()
    for address in waiting:
        cache.free_rcu(address)
    with cache.alloc() as obj:
        live = sorted([*waiting, obj.address])
        assert cache.live().tolist() == live
        account = cache.account()
        assert account["live"] == 71 * cache.stride
        assert account["queued_objects"] == sum(q[5] for q in cache._snapshot()[1])
        validation = cache.validate()
        assert validation.ok
        if cache.debug:  # what is not marked as in use, though it is in no queue
            assert (validation.checked, validation.unchecked) == (1, 70)
    cache.allocator.rcu_barrier()


# ---- who -----------------------------------------------------------------------------------------


@every_policy
def test_an_offline_cpu_keeps_nothing_back(make: Any, policy: str) -> None:
    alloc = make(policy, machine=grid(1, 1, 2), rcu_delay=DELAY)
    cache = alloc.create_cache("pending", 64)
    with alloc.on_cpu(1):
        for address in cache.alloc_bulk(5):
            cache.free_rcu(address)
    alloc.offline_cpu(1)
    assert len(cache.live()) == 5
    alloc.advance(DELAY)
    assert len(cache.live()) == 0


@every_policy
def test_threads_free_while_barriers_run(make: Any, policy: str) -> None:
    cache = make(policy, rcu_delay=DELAY).create_cache("pending", 64)
    rounds = 300

    def work() -> None:
        for _ in range(rounds):
            cache.free_rcu(cache.alloc_address())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        cache.allocator.rcu_barrier()
    for thread in threads:
        thread.join()
    cache.allocator.rcu_barrier()
    assert len(cache.live()) == 0
    assert cache.stats(exact=True).frees == 3 * rounds
    assert cache.validate().ok


@every_policy
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_each_side_of_a_fork_frees_its_own(make: Any, policy: str) -> None:
    cache = make(policy, rcu_delay=DELAY).create_cache("pending", 64)
    for address in cache.alloc_bulk(100):
        cache.free_rcu(address)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            cache.allocator.rcu_barrier()
            code = 0 if len(cache.live()) == 0 and cache.validate().ok else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(cache.live()) == 100
    cache.allocator.rcu_barrier()


# ---- sheaves of their own (7.1) ------------------------------------------------------------------


class RcuScene(Scene):
    """Counters of sheaves; four objects of 1024 bytes to a slab, sheaves of 12."""

    counters = (
        "free_rcu_sheaf",
        "free_rcu_sheaf_fail",
        "free_fastpath",
        "free_slowpath",
        "sheaf_flush",
        "sheaf_alloc",
        "sheaf_free",
        "barn_put",
        "barn_put_fail",
        "free_second_level",
        "free_slow",
        "free_remote",
    )

    def free_rcu(self, cpu: int, addresses: list[int]) -> None:
        with self.allocator.on_cpu(cpu):
            for address in addresses:
                self.cache.free_rcu(address)


@pytest.fixture
def sheaves(make: Any) -> Callable[..., RcuScene]:
    def set_scene(debug: str | None = None) -> RcuScene:
        alloc = make("sheaves", machine=grid(2, 1, 2), debug=debug, rcu_delay=DELAY)
        return RcuScene(alloc, alloc.create_cache("scene", 1024, min_objects=4))

    return set_scene


@pytest.mark.once
def test_a_full_sheaf_goes_to_the_barn_after_its_time(sheaves: Any) -> None:
    s = sheaves()
    taken = s.alloc(0, 2 * C)
    s.delta()
    # Every refill made the emptied main sheaf the spare: it is used. The second time there is no
    # spare, and nothing in the barn: a new sheaf.
    s.free_rcu(0, taken[:C])
    s.counted(free_rcu_sheaf=C)
    s.free_rcu(0, taken[C:])
    s.counted(free_rcu_sheaf=C, sheaf_alloc=1)
    s.allocator.advance(DELAY - 1)
    s.counted()
    s.allocator.advance(1)
    s.counted(barn_put=2, free_second_level=2 * C)


@pytest.mark.once
def test_a_sheaf_that_is_not_full_goes_past_the_barn(sheaves: Any) -> None:
    for end in (lambda s: s.allocator.advance(DELAY), lambda s: s.allocator.rcu_barrier()):
        s = sheaves()
        s.free_rcu(0, s.alloc(0, C - 1))
        s.delta()
        end(s)
        s.counted(sheaf_flush=C - 1, sheaf_free=1, free_slow=C - 1)


@pytest.mark.once
def test_a_barn_with_ten_full_sheaves_takes_no_more(sheaves: Any) -> None:
    s = sheaves()
    taken = s.alloc(0, (BARN + 1) * C)
    s.free_rcu(0, taken)
    s.delta()
    s.allocator.advance(DELAY)
    # The last one is flushed, and stays as an empty sheaf of the barn.
    s.counted(
        barn_put=BARN,
        barn_put_fail=1,
        sheaf_flush=C,
        free_second_level=BARN * C,
        free_slow=C,
    )
    assert len([q for q in s.cache._snapshot()[1] if q[1] == "empty"]) == 1
    s.free_rcu(0, s.alloc(0, 1))  # which serves the next one
    s.counted(free_rcu_sheaf=1)
    s.allocator.rcu_barrier()


@pytest.mark.once
def test_an_empty_spare_is_used(sheaves: Any) -> None:
    s = sheaves()
    with s.allocator.on_cpu(0), s.cache.prefill_sheaf(1) as sheaf:
        taken = [sheaf.alloc_address() for _ in range(C)]
    (spare,) = [q for q in s.cache._snapshot()[1] if q[1] == "spare"]
    assert spare[5] == 0
    s.delta()
    s.free_rcu(0, taken)
    s.counted(free_rcu_sheaf=C)
    assert [q for q in s.cache._snapshot()[1] if q[1] == "spare"] == []
    s.allocator.rcu_barrier()


@pytest.mark.once
def test_another_nodes_objects_enter_no_sheaf(sheaves: Any) -> None:
    s = sheaves()
    there = s.alloc(2, 3)
    s.delta()
    s.free_rcu(0, there)
    s.counted(free_rcu_sheaf_fail=3)
    with s.allocator.on_cpu(0):
        s.allocator.advance(DELAY)
    s.counted(free_slowpath=3, free_remote=3)  # freed on node 0: straight to their slab


@pytest.mark.once
def test_caches_with_debug_have_no_sheaf_for_it(sheaves: Any) -> None:
    s = sheaves(debug="F")
    s.free_rcu(0, s.alloc(0, 2))
    s.counted(free_rcu_sheaf_fail=2)
    s.allocator.rcu_barrier()
    s.counted(free_slowpath=2, free_slow=2)
