"""Owned objects: buffers, lifetimes, what closing does to them, constructors in Python."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unislab as us


@pytest.fixture
def cache(opened: us.Allocator) -> us.Cache:
    """A cache of 40-byte objects, for every policy, machine and debug setting."""
    return opened.create_cache("forty", 40)


# ---- buffers -----------------------------------------------------------------------------------


def test_an_object_is_a_writable_buffer_of_its_bytes(cache: us.Cache) -> None:
    with cache.alloc(zero=True) as obj:
        with memoryview(obj) as view:
            assert (view.nbytes, view.format, view.readonly, view.ndim) == (40, "B", False, 1)
            view[:3] = b"abc"
        assert us.raw.peek(obj.address, 4) == b"abc\0"
        assert len(obj) == obj.size == 40
        array = np.frombuffer(obj, np.uint64)
        array[4] = 2**63
        assert bytes(obj)[32:] == (2**63).to_bytes(8, "little")
        del array


def test_an_array_over_an_object_keeps_it(cache: us.Cache) -> None:
    array = np.frombuffer(cache.alloc(zero=True), np.uint8)
    gc.collect()
    array[0] = 7
    assert array.sum() == 7
    assert len(cache.live()) == 1
    with pytest.warns(ResourceWarning, match="dropped while live"):
        del array
        gc.collect()
    assert len(cache.live()) == 0


def test_views_are_counted_one_by_one(cache: us.Cache) -> None:
    obj = cache.alloc()
    views = [memoryview(obj) for _ in range(3)]
    for view in views:
        with pytest.raises(BufferError, match="view"):
            obj.free()
        view.release()
    obj.free()
    with pytest.raises(RuntimeError, match="freed"):
        memoryview(obj)


def test_a_block_that_ends_with_a_view_out_says_so(cache: us.Cache) -> None:
    with pytest.raises(BufferError), cache.alloc() as obj:
        view = memoryview(obj)
    view.release()
    obj.free()


def test_an_error_in_a_block_is_the_one_to_see(cache: us.Cache) -> None:
    view = None
    with pytest.raises(ZeroDivisionError), cache.alloc() as obj:
        view = memoryview(obj)
        1 / 0  # noqa: B018
    assert obj.alive
    view.release()
    obj.free()


def test_freeing_inside_the_block_is_enough(cache: us.Cache) -> None:
    with cache.alloc() as obj:
        obj.free()
    assert not obj.alive


# ---- lifetimes ---------------------------------------------------------------------------------


def test_an_object_keeps_cache_and_allocator(policy: str, kind: str) -> None:
    machine = us.Machine.grid(1, 1, 1) if kind == "model" else None
    alloc = us.Allocator(policy, machine=machine)
    gone = weakref.ref(alloc)
    obj = alloc.create_cache("pair", 16).alloc(zero=True)
    del alloc
    gc.collect()
    assert bytes(obj) == bytes(16)
    obj.free()
    assert gone() is not None
    del obj
    gc.collect()
    assert gone() is None


def test_dropped_objects_are_counted(cache: us.Cache) -> None:
    for n in range(1, 4):
        with pytest.warns(ResourceWarning, match="forty"):
            cache.alloc()
        assert cache.dropped == n
    assert cache.stats().frees == 3
    cache.destroy()
    assert cache.dropped == 3


def test_dropping_is_an_error_where_warnings_are(
    cache: us.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hooked: seen.append(hooked.exc_type))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.alloc()
    assert seen == [ResourceWarning]
    assert len(cache.live()) == 0


def test_an_object_in_a_cycle_is_freed(cache: us.Cache) -> None:
    ring: list[Any] = [cache.alloc()]
    ring.append(ring)
    with pytest.warns(ResourceWarning):
        del ring
        gc.collect()
    assert len(cache.live()) == 0


def test_destroying_by_force_makes_handles_dead(cache: us.Cache) -> None:
    obj = cache.alloc()
    with pytest.raises(us.LiveObjectsError, match="forty"):
        cache.destroy()
    assert obj.alive
    cache.destroy(force=True)
    assert not obj.alive
    with pytest.raises(RuntimeError, match="destroyed"):
        obj.free()
    with pytest.raises(RuntimeError, match="destroyed"):
        memoryview(obj)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del obj
        gc.collect()


def test_closing_by_force_makes_handles_dead(opened: us.Allocator, cache: us.Cache) -> None:
    obj = cache.alloc()
    with pytest.raises(us.LiveObjectsError, match=r"1.*live.*forty"):
        opened.close()
    assert cache.alive
    assert bytes(obj)
    opened.close(force=True)
    assert not obj.alive
    assert not cache.alive
    with pytest.raises(RuntimeError, match=r"destroyed|closed"):
        obj.free()
    assert obj.address > 0
    assert "freed" in repr(obj)


def test_nothing_is_unmapped_under_a_view(opened: us.Allocator, cache: us.Cache) -> None:
    obj = cache.alloc(zero=True)
    view = memoryview(obj)
    for end in (cache.destroy, opened.close):
        with pytest.raises(BufferError, match="view"):
            end(force=True)
    view[0] = 1
    assert cache.alive
    view.release()
    obj.free()


@pytest.mark.parametrize("machine", [None, us.Machine.grid(1, 1, 1)])
def test_memory_of_a_view_outlives_an_error(policy: str, machine: us.Machine | None) -> None:
    view = None
    with pytest.raises(ZeroDivisionError), us.Allocator(policy, machine=machine) as alloc:
        cache = alloc.create_cache("pair", 16)
        obj = cache.alloc(zero=True)
        view = memoryview(obj)
        1 / 0  # noqa: B018
    assert alloc.closed
    assert not obj.alive
    gone = weakref.ref(alloc)
    del alloc, cache, obj
    gc.collect()
    view[:2] = b"ok"  # still mapped
    assert bytes(view[:3]) == b"ok\0"
    assert gone() is not None
    view.release()
    del view
    gc.collect()
    assert gone() is None


# ---- constructors in Python --------------------------------------------------------------------


def fill(view: memoryview) -> None:
    """A constructor: every byte is 7."""
    view[:] = b"\x07" * len(view)


def test_a_constructor_sees_each_object_once(opened: us.Allocator) -> None:
    sizes = []
    addresses = set()

    def construct(view: memoryview) -> None:
        sizes.append(view.nbytes)
        addresses.add(np.frombuffer(view, np.uint8).ctypes.data)
        fill(view)

    cache = opened.create_cache("made", 64, constructor=construct)
    assert cache.constructor is construct
    got = cache.alloc_bulk(5)
    assert set(got.tolist()) <= addresses
    assert all(us.raw.peek(int(address), 64) == b"\x07" * 64 for address in got)
    assert set(sizes) == {64}
    assert len(sizes) == len(addresses)
    cache.free_bulk(got)
    before = len(sizes)
    cache.alloc().free()
    assert len(sizes) == before


def test_an_allocation_raises_what_its_constructor_raised(opened: us.Allocator) -> None:
    class Broken(Exception):
        pass

    def construct(view: memoryview) -> None:
        raise Broken(len(view))

    cache = opened.create_cache("broken", 24, constructor=construct)
    for allocate in (cache.alloc, cache.alloc_address, lambda: cache.alloc_bulk(3)):
        with pytest.raises(Broken, match="24"):
            allocate()
    assert len(cache.live()) == 0


def test_nobody_gets_an_object_that_is_not_constructed(opened: us.Allocator) -> None:
    calls = 0

    def construct(view: memoryview) -> None:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise ValueError(f"call {calls}")
        fill(view)

    cache = opened.create_cache("shy", 64, constructor=construct)
    for _ in range(100):
        try:
            objects = cache.alloc_bulk(8)
        except ValueError:
            continue
        break
    assert all(us.raw.peek(int(address), 64) == b"\x07" * 64 for address in objects)
    cache.free_bulk(objects)


def test_a_constructor_may_use_the_allocator(opened: us.Allocator) -> None:
    helper = opened.create_cache("helper", 32)

    def construct(view: memoryview) -> None:
        helper.alloc().free()
        fill(view)

    cache = opened.create_cache("made", 64, constructor=construct)
    with cache.alloc() as obj:
        assert bytes(obj) == b"\x07" * 64


@pytest.mark.parametrize("end", ["destroy", "close"])
def test_a_constructor_cannot_end_what_it_serves(opened: us.Allocator, end: str) -> None:
    def construct(view: memoryview) -> None:
        cache.destroy(force=True) if end == "destroy" else opened.close(force=True)

    cache = opened.create_cache("made", 64, constructor=construct)
    with pytest.raises(RuntimeError, match="constructor cannot"):
        cache.alloc()
    assert cache.alive


@pytest.mark.parametrize("caches", [1, 3])
def test_constructors_that_allocate_in_a_circle_end(opened: us.Allocator, caches: int) -> None:
    """With an error, not with the stack; and soon, however many objects a slab has."""
    calls = 0
    made: list[us.Cache] = []

    def circle(i: int) -> Callable[[memoryview], None]:
        def construct(view: memoryview) -> None:
            nonlocal calls
            calls += 1
            made[(i + 1) % caches].alloc_address()

        return construct

    made += [opened.create_cache(f"circle-{i}", 64, constructor=circle(i)) for i in range(caches)]
    with pytest.raises(RecursionError, match="constructors of caches nest"):
        made[0].alloc()
    assert calls < 100
    assert all(len(cache.live()) == 0 for cache in made)
    assert opened.validate().ok


def test_after_an_error_no_further_object_is_constructed(opened: us.Allocator) -> None:
    calls = 0

    def construct(view: memoryview) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyError("third")
        fill(view)

    cache = opened.create_cache("third", 64, constructor=construct)
    with pytest.raises(KeyError, match="third"):
        cache.alloc_bulk(10)
    assert calls == 3
    got = cache.alloc_bulk(200)  # the rest, and what was left out
    assert all(us.raw.peek(int(address), 64) == b"\x07" * 64 for address in got)
    cache.free_bulk(got)


def test_a_constructor_cannot_keep_its_view(opened: us.Allocator) -> None:
    kept: list[np.ndarray[Any, Any]] = []
    cache = opened.create_cache(
        "kept", 64, constructor=lambda view: kept.append(np.frombuffer(view, np.uint8))
    )
    with pytest.raises(BufferError):
        cache.alloc()
    with pytest.raises(BufferError, match="view"):
        opened.close(force=True)
    kept.clear()
    gc.collect()
    opened.close(force=True)


def test_a_released_view_is_released(opened: us.Allocator) -> None:
    kept: list[memoryview] = []
    cache = opened.create_cache("kept", 64, constructor=kept.append)
    cache.alloc().free()
    with pytest.raises(ValueError, match="released"):
        kept[0][0]


def test_a_constructor_in_a_cycle_with_its_allocator_goes(policy: str) -> None:
    alloc = us.Allocator(policy)
    gone = weakref.ref(alloc)
    alloc.create_cache("cycle", 64, constructor=lambda view: alloc and fill(view))
    alloc.cache("cycle").alloc().free()
    alloc = None  # type: ignore[assignment]
    gc.collect()
    assert gone() is None


def test_a_constructor_lives_as_long_as_its_cache(opened: us.Allocator) -> None:
    def make() -> weakref.ref[Callable[[memoryview], None]]:
        def construct(view: memoryview) -> None:
            fill(view)

        opened.create_cache("made", 64, constructor=construct)
        return weakref.ref(construct)

    gone = make()
    gc.collect()
    with opened.cache("made").alloc() as obj:
        assert bytes(obj) == b"\x07" * 64
    opened.cache("made").destroy()
    gc.collect()
    assert gone() is None


# ---- ends within calls ---------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "destroy"])
def test_a_finalizer_within_a_call_cannot_end_what_the_call_is_on(
    opened: us.Allocator, end: str
) -> None:
    """The collector runs finalizers wherever something is made: also within our own calls."""
    cache = opened.create_cache("held", 64)
    got = cache.alloc_bulk(5000)
    said: list[str] = []

    class Owner:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            try:
                opened.close(force=True) if end == "close" else cache.destroy(force=True)
            except RuntimeError as error:
                said.append(str(error))

    threshold = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        Owner()  # garbage from now on, found by the first collection
        gc.set_threshold(1)
        gc.enable()
        rows = cache._tunables()
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
    gc.collect()
    assert rows
    if sys.version_info < (3, 12):  # later ones collect between calls, where ending is right
        assert said and all("cannot" in text for text in said)
    if cache.alive:
        cache.free_bulk(got)


def test_a_constructor_may_use_what_it_served_when_it_goes(policy: str) -> None:
    """It goes with its cache; by then others may go on."""
    log: list[str] = []

    class Constructor:
        def __call__(self, view: memoryview) -> None:
            fill(view)

        def __del__(self) -> None:
            log.append(repr(cache.alive))
            alloc.kfree(alloc.kmalloc(10))
            log.append("done")

    alloc = us.Allocator(policy)
    cache = alloc.create_cache("made", 64, constructor=Constructor())
    cache.alloc().free()
    cache.destroy()
    gc.collect()
    assert log == ["False", "done"]
    alloc.close()
