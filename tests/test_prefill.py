"""Prefilled sheaves from Python: what they guarantee, what they count, how they end.

By the rules of 7.1 (prefill, refill, return).  The numbers used: objects of 1024 bytes, four to a
slab of one page, sheaves of 12 pointers; scripted machines have one node and two CPUs.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import pytest
from rules.inside import queues_of
from rules.machines import grid, place

import unislab as us

SIZE = 1024
C = 12  # pointers of a sheaf
MOST = 2**14 - 2  # what the size field of a sheaf's header can say, less two

COUNTERS = (
    "alloc_fastpath",
    "alloc_slowpath",
    "alloc_slab",
    "sheaf_flush",
    "sheaf_refill",
    "sheaf_alloc",
    "sheaf_free",
    "barn_get",
    "barn_get_fail",
    "barn_put",
    "sheaf_prefill_fast",
    "sheaf_prefill_slow",
    "sheaf_prefill_oversize",
    "sheaf_return_fast",
    "sheaf_return_slow",
)


class Counted:
    """The counters that moved between two looks."""

    def __init__(self, cache: us.Cache) -> None:
        self.cache = cache
        self.last = cache.stats(exact=True)

    def __call__(self, **expected: int) -> None:
        now = self.cache.stats(exact=True)
        moved = {name: now[name] - self.last[name] for name in COUNTERS}
        self.last = now
        assert {name: n for name, n in moved.items() if n} == expected


def scripted(make: Any, **keywords: Any) -> us.Cache:
    """A cache of sheaves of 12, four objects to a slab."""
    alloc = make("sheaves", machine=grid(1, 1, 2), **keywords)
    return alloc.create_cache("scene", SIZE, min_objects=4)


@pytest.fixture
def cache(make: Any, kind: str, debug: str | None) -> us.Cache:
    """The same on both machines, with and without consistency checks."""
    return make("sheaves", debug=debug, **place(kind)).create_cache("scene", SIZE)


def without_memory(alloc: us.Allocator, rate: float = 1.0) -> None:
    """No request for pages or metadata succeeds any more (0: they do)."""
    alloc.fail("pages", rate=rate)
    alloc.fail("meta", rate=rate)


# ---- what is counted -----------------------------------------------------------------------------


@pytest.mark.once
def test_the_first_prefill_makes_a_sheaf(make: Any) -> None:
    cache = scripted(make)
    counted = Counted(cache)
    with cache.prefill_sheaf(5) as sheaf:
        # No spare, the barn has neither a full one nor an empty one: it is allocated, as is the
        # CPU's main sheaf on its first slow path; it holds fewer than asked: filled to capacity.
        assert (len(sheaf), sheaf.size, sheaf.capacity) == (C, C, C)
        counted(
            sheaf_prefill_slow=1, barn_get_fail=1, sheaf_alloc=2, sheaf_refill=C, alloc_slab=C // 4
        )
        cache.free_bulk([sheaf.alloc_address() for _ in range(4)])
        assert len(sheaf) == C - 4
        counted(alloc_fastpath=4)
    counted(sheaf_return_fast=1)  # the place of the spare was free, though it is not full
    (spare,) = queues_of(cache, name="spare")
    assert spare.objects == C - 4


@pytest.mark.once
def test_the_spare_is_used_and_topped_up_only_when_too_small(make: Any) -> None:
    cache = scripted(make)
    sheaf = cache.prefill_sheaf(1)
    objects = [sheaf.alloc_address() for _ in range(4)]
    sheaf.close()
    counted = Counted(cache)
    sheaf = cache.prefill_sheaf(C - 4)
    counted(sheaf_prefill_fast=1)  # enough in it
    assert len(sheaf) == C - 4
    sheaf.close()
    counted(sheaf_return_fast=1)
    sheaf = cache.prefill_sheaf(C - 3)  # one more than it has: topped up to capacity
    counted(sheaf_prefill_fast=1, sheaf_refill=4, alloc_slab=1)
    sheaf.close()
    cache.free_bulk(objects)


@pytest.mark.once
def test_a_second_sheaf_goes_to_the_barn_full(make: Any) -> None:
    cache = scripted(make)
    first, second = cache.prefill_sheaf(1), cache.prefill_sheaf(1)
    cache.free_bulk([second.alloc_address() for _ in range(2)])
    counted = Counted(cache)
    first.close()
    counted(sheaf_return_fast=1)
    second.close()  # the spare's place is taken, the barn has less than ten: refilled and put
    counted(sheaf_return_slow=1, sheaf_refill=2, alloc_slab=1, barn_put=1)
    (full,) = queues_of(cache, name="full")
    assert full.objects == C
    third = cache.prefill_sheaf(1)  # the spare
    fourth = cache.prefill_sheaf(1)  # from the barn
    counted(sheaf_prefill_fast=1, sheaf_prefill_slow=1, barn_get=1)
    third.close()
    fourth.close()


@pytest.mark.once
def test_more_than_a_sheaf_holds_is_one_of_its_own(make: Any) -> None:
    cache = scripted(make)
    counted = Counted(cache)
    n = C + 1
    sheaf = cache.prefill_sheaf(n)
    # Filled from slabs: four slabs for 13 objects; the main sheaf of the CPU is allocated too.
    counted(sheaf_prefill_oversize=1, sheaf_refill=n, sheaf_alloc=1, alloc_slab=4)
    assert (sheaf.size, sheaf.capacity) == (n, n)
    # Replaced: 26 objects, 3 of them left in the fourth slab, 23 from six new ones; then the old
    # sheaf, whose capacity is odd, is flushed and freed.
    sheaf.refill(2 * n)
    counted(sheaf_prefill_oversize=1, sheaf_refill=2 * n, sheaf_flush=n, alloc_slab=6)
    assert (sheaf.size, sheaf.capacity) == (2 * n, 2 * n)
    sheaf.close()
    counted(sheaf_flush=2 * n)
    assert cache.account()["queued"] == 0


@pytest.mark.once
def test_refill_tops_up_to_capacity(make: Any) -> None:
    cache = scripted(make)
    with cache.prefill_sheaf(1) as sheaf:
        objects = [sheaf.alloc_address() for _ in range(8)]
        counted = Counted(cache)
        sheaf.refill(C - 8)  # it has as many
        counted()
        sheaf.refill(C - 7)
        counted(sheaf_refill=8, alloc_slab=2)
        assert len(sheaf) == C
    cache.free_bulk(objects)


# ---- the guarantee -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, C, C + 1, 100])
def test_as_many_as_asked_for_cannot_fail(cache: us.Cache, n: int) -> None:
    with cache.prefill_sheaf(n) as sheaf:
        without_memory(cache.allocator)
        objects = [sheaf.alloc_address() for _ in range(n)]
        assert sorted(objects) == cache.live().tolist()
        # What came with them is as good.
        objects += [sheaf.alloc_address() for _ in range(len(sheaf))]
        with pytest.raises(MemoryError, match=r"sheaf of cache scene is empty: refill"):
            sheaf.alloc_address()
        with pytest.raises(MemoryError):
            sheaf.refill(5000)  # more than slabs have left
        assert len(sheaf) == 0
        without_memory(cache.allocator, 0.0)
        sheaf.refill(n)
        assert len(sheaf) >= n
        cache.free_bulk(objects)


def test_without_memory_there_is_no_sheaf(cache: us.Cache) -> None:
    cache.alloc().free()
    cache.shrink()
    cache.allocator.fail("pages", rate=1.0)
    for n in (1, 100):
        with pytest.raises(MemoryError):
            cache.prefill_sheaf(n)
    cache.allocator.fail("pages")
    assert cache.account()["queued"] == 0  # what there was went back


def test_its_objects_are_queued_until_they_are_handed_out(cache: us.Cache) -> None:
    n = 5
    sheaf = cache.prefill_sheaf(n)
    held = len(sheaf)
    assert held == (n if cache.debug else sheaf.capacity)  # debug: capacity 0, so one of its own
    (out,) = queues_of(cache, kind="prefilled")
    assert (out.name, out.objects, out.cpu) == ("prefilled", held, None)
    before = cache.account()
    assert (before["live_objects"], before["queued_objects"]) == (0, held)
    with sheaf.alloc(zero=True) as obj:
        assert bytes(obj) == bytes(SIZE)
        after = cache.account()
        assert (after["live_objects"], after["queued_objects"]) == (1, held - 1)
        assert cache.validate().ok
    cache.shrink()  # leaves it alone
    cache.allocator.flush()
    assert len(sheaf) == held - 1
    assert cache.validate().ok
    sheaf.close()


# ---- how it ends ---------------------------------------------------------------------------------


def test_a_returned_sheaf_is_no_longer_there(cache: us.Cache) -> None:
    with cache.prefill_sheaf(3) as sheaf:
        assert sheaf.alive
        assert repr(sheaf) == f"<Sheaf of 'scene': {len(sheaf)} of {sheaf.capacity} objects>"
    sheaf.close()  # twice is fine
    assert (sheaf.alive, len(sheaf), sheaf.capacity) == (False, 0, 0)
    assert repr(sheaf) == "<Sheaf of 'scene': returned>"
    for call in (sheaf.alloc, sheaf.alloc_address, lambda: sheaf.refill(1)):
        with pytest.raises(RuntimeError, match="was returned"):
            call()
    assert queues_of(cache, kind="prefilled") == []


def test_one_that_is_dropped_warns_and_is_returned(cache: us.Cache) -> None:
    sheaf: us.Sheaf | None = cache.prefill_sheaf(3)
    assert sheaf is not None
    obj = sheaf.alloc_address()
    with pytest.warns(ResourceWarning, match="Sheaf of 'scene'.* was dropped unreturned"):
        sheaf = None
        gc.collect()
    assert cache.dropped == 1
    assert queues_of(cache, kind="prefilled") == []
    cache.free(obj)


def test_a_cache_with_a_sheaf_out_is_not_destroyed(cache: us.Cache) -> None:
    sheaves = [cache.prefill_sheaf(2), cache.prefill_sheaf(3)]
    held = sum(map(len, sheaves))
    out = f"2 prefilled sheaves of {held} objects"
    with pytest.raises(us.LiveObjectsError, match=f"cache 'scene' has {out} out"):
        cache.destroy()
    with pytest.raises(us.LiveObjectsError, match=rf"2 prefilled sheaves are .*\(scene: {out}\)"):
        cache.allocator.close()
    cache.free(sheaves[0].alloc_address())  # both refusals left everything as it was
    cache.destroy(force=True)
    for sheaf in sheaves:
        assert not sheaf.alive
        sheaf.close()
        with pytest.raises(RuntimeError):
            sheaf.alloc_address()


def test_objects_and_sheaves_are_listed_together(cache: us.Cache) -> None:
    alloc = cache.allocator
    with cache.prefill_sheaf(2) as sheaf:
        obj = sheaf.alloc_address()
        with pytest.raises(us.LiveObjectsError) as caught:
            alloc.close()
        held = len(sheaf)
        one = f"1 at {obj:#x}, and 1 prefilled sheaf of {held} object{'s' * (held != 1)}"
        assert f"1 object is still live and 1 prefilled sheaf is not returned (scene: {one})" in (
            str(caught.value)
        )
        cache.free(obj)


def test_closing_by_force_ends_it(kind: str) -> None:
    alloc = us.Allocator("sheaves", **place(kind))
    sheaf = alloc.create_cache("scene", SIZE).prefill_sheaf(2)
    alloc.close(force=True)
    assert not sheaf.alive
    sheaf.close()


@pytest.mark.once
def test_an_offline_cpu_does_not_take_it_along(make: Any) -> None:
    cache = scripted(make)
    alloc = cache.allocator
    with alloc.on_cpu(1):
        sheaf = cache.prefill_sheaf(2)
    alloc.offline_cpu(1)
    objects = [sheaf.alloc_address() for _ in range(2)]
    sheaf.close()  # on CPU 0
    assert cache.account()["queued_objects"] == C - 2
    cache.free_bulk(objects)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.once
def test_each_side_of_a_fork_has_its_own(make: Any) -> None:
    cache = make("sheaves").create_cache("scene", SIZE)
    sheaf = cache.prefill_sheaf(4)
    held = len(sheaf)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            cache.free_bulk([sheaf.alloc_address() for _ in range(held)])
            sheaf.close()
            code = 0 if cache.validate().ok and len(cache.live()) == 0 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(sheaf) == held
    sheaf.close()


# ---- who may -------------------------------------------------------------------------------------


@pytest.mark.every_policy
def test_policies_without_sheaves_say_what_to_use(opened: us.Allocator, policy: str) -> None:
    cache = opened.create_cache("scene", SIZE)
    if policy == "sheaves":
        cache.prefill_sheaf(2).close()
        return
    with pytest.raises(ValueError, match=f"policy {policy} has no sheaves.*alloc_bulk"):
        cache.prefill_sheaf(2)


def test_numbers_are_checked(cache: us.Cache) -> None:
    for n in (0, -1, MOST + 1):
        with pytest.raises(ValueError, match="expected"):
            cache.prefill_sheaf(n)
    with pytest.raises(TypeError):
        cache.prefill_sheaf("many")  # type: ignore[arg-type]
    with cache.prefill_sheaf(1) as sheaf:
        with pytest.raises(ValueError, match=f"1 to {MOST}"):
            sheaf.refill(MOST + 1)
        with pytest.raises(TypeError, match="unexpected keyword argument 'node'"):
            sheaf.alloc(node=0)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="no positional"):
            sheaf.alloc_address(1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="prefill_sheaf"):
        us.Sheaf()


@pytest.mark.once
def test_large_kmalloc_has_no_sheaves(make: Any) -> None:
    with pytest.raises(TypeError, match="kmalloc-large"):
        make("sheaves").cache("kmalloc-large").prefill_sheaf(1)


def test_constructors_have_run_on_what_it_hands_out(make: Any, kind: str) -> None:
    alloc = make("sheaves", **place(kind))
    raising = [True]

    def constructor(view: memoryview) -> None:
        if raising[0]:
            raise OSError("not now")
        view[:4] = b"made"

    cache = alloc.create_cache("scene", SIZE, constructor=constructor)
    with pytest.raises(OSError, match="not now"):
        cache.prefill_sheaf(2)
    assert queues_of(cache, kind="prefilled") == []
    raising[0] = False
    with cache.prefill_sheaf(2) as sheaf, sheaf.alloc() as obj:
        assert bytes(obj)[:4] == b"made"


def test_its_own_constructor_may_not_use_it(make: Any, kind: str) -> None:
    alloc = make("sheaves", **place(kind))
    found: list[BaseException] = []
    sheaves: list[us.Sheaf] = []

    def constructor(view: memoryview) -> None:
        if sheaves:
            try:
                sheaves[0].alloc_address()
            except RuntimeError as error:
                found.append(error)

    cache = alloc.create_cache("scene", SIZE, constructor=constructor)
    sheaves.append(cache.prefill_sheaf(1))
    sheaves[0].refill(500)
    assert found and "in use by another call" in str(found[0])
    sheaves[0].close()


@pytest.mark.once
def test_a_sheaf_may_be_handed_to_another_thread(make: Any) -> None:
    cache = make("sheaves").create_cache("scene", SIZE)
    sheaf = cache.prefill_sheaf(8)
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.extend(sheaf.alloc_address() for _ in range(8)))
    thread.start()
    thread.join()
    sheaf.close()
    assert cache.live().tolist() == sorted(taken)
    cache.free_bulk(taken)
