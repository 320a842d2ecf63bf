"""Misuse of memory: what is found at the call, what late, and that the allocator stays usable."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rules.books import balance_all
from rules.machines import place

import unislab as us

OUTSIDE = [0x10, 0x7FFF_FFFF_F000, (1 << 64) - 8]


@pytest.fixture
def cache(opened: us.Allocator) -> Iterator[us.Cache]:
    """A cache with some objects live, which are freed at the end; it must still work then."""
    made = opened.create_cache("misused", 64)
    kept = [int(a) for a in made.alloc_bulk(100)]
    yield made
    more = [int(a) for a in made.alloc_bulk(100)]
    assert len({*kept, *more}) == 200
    made.free_bulk(kept + more)


def refused(error: pytest.ExceptionInfo[Any], cache: us.Cache, address: int) -> None:
    """The error says which cache, which address, what was found and what was expected."""
    value = error.value
    assert value.cache == cache.name or getattr(value.cache, "name", None) == cache.name
    assert value.address == address
    assert value.found
    assert value.expected
    assert f"{address:x}" in str(value)


def clean(cache: us.Cache) -> None:
    """A misuse refused at the call leaves nothing behind."""
    assert cache.validate().ok
    balance_all(cache.allocator)


# ---- always at the call  -------------------------------------------------------------------------


@pytest.mark.parametrize("address", OUTSIDE)
def test_an_address_outside_the_arena(cache: us.Cache, address: int) -> None:
    with pytest.raises(us.CorruptionError) as error:
        cache.free(address)
    refused(error, cache, address)
    clean(cache)


@pytest.mark.parametrize("address", OUTSIDE)
def test_an_address_outside_the_arena_in_a_bulk_call(cache: us.Cache, address: int) -> None:
    got = cache.alloc_address()
    with pytest.raises(us.CorruptionError):
        cache.free_bulk([address])
    clean(cache)
    cache.free(got)


def test_no_object_start(cache: us.Cache) -> None:
    got = cache.alloc_address()
    for wrong in (got + 8, got + 1, got + 63):
        with pytest.raises(us.CorruptionError) as error:
            cache.free(wrong)
        refused(error, cache, wrong)
    clean(cache)
    cache.free(got)


def test_an_address_of_no_slab(cache: us.Cache) -> None:
    # Far behind everything in use, inside the arena.
    wrong = max(int(a) for a in cache.slabs()["address"]) + (1 << 26)
    with pytest.raises(us.CorruptionError):
        cache.free(wrong)
    clean(cache)


def test_an_object_of_another_cache(opened: us.Allocator, cache: us.Cache) -> None:
    other = opened.create_cache("other", 128)
    got = other.alloc_address()
    with pytest.raises(us.CorruptionError, match="other") as error:
        cache.free(got)
    refused(error, cache, got)
    assert other.live().tolist() == [got]
    other.free(got)
    clean(cache)


@pytest.mark.parametrize("address", OUTSIDE)
def test_kfree_of_something_else(opened: us.Allocator, address: int) -> None:
    with pytest.raises(us.CorruptionError):
        opened.kfree(address)
    got = opened.kmalloc(100)
    with pytest.raises(us.CorruptionError):
        opened.kfree(got + 8)
    big = opened.kmalloc(100_000)
    with pytest.raises(us.CorruptionError):
        opened.kfree(big + 4096)
    opened.kfree(big)
    opened.kfree(got)
    balance_all(opened)


def test_an_owned_object_is_freed_once(cache: us.Cache) -> None:
    obj = cache.alloc()
    address = obj.address
    obj.free()
    assert not obj.alive
    with pytest.raises(us.CorruptionError) as error:
        obj.free()
    refused(error, cache, address)
    clean(cache)


def test_an_object_with_a_view_out_is_not_freed(cache: us.Cache) -> None:
    obj = cache.alloc()
    view = memoryview(obj)
    with pytest.raises(BufferError):
        obj.free()
    assert obj.alive
    view[:4] = b"kept"
    assert bytes(view[:4]) == b"kept"
    view.release()
    obj.free()
    clean(cache)


def test_a_dropped_object_warns_and_is_freed(cache: us.Cache) -> None:
    before = len(cache.live())
    obj = cache.alloc()
    assert len(cache.live()) == before + 1
    with pytest.warns(ResourceWarning, match="misused"):
        del obj
        gc.collect()
    assert len(cache.live()) == before
    clean(cache)


@pytest.mark.parametrize("value", ["0x10", 1.5, None, [1]])
def test_what_is_no_address(cache: us.Cache, value: object) -> None:
    with pytest.raises(TypeError):
        cache.free(value)  # type: ignore[arg-type]
    clean(cache)


def test_addresses_may_be_integers_of_any_mixture(cache: us.Cache) -> None:
    """NumPy makes floats of these; the call does not."""
    got = cache.alloc_bulk(6)
    cache.free_bulk([got[0], int(got[1]), got[2].astype("int64")])
    with pytest.raises(us.CorruptionError) as error:
        cache.free_bulk([int(got[3]), 2**64 - 1])
    refused(error, cache, 2**64 - 1)
    cache.free_bulk(tuple(got[3:].astype(object)))
    clean(cache)


@pytest.mark.parametrize(
    "convert",
    [
        lambda a: bytes(a),
        lambda a: bytearray(a),
        lambda a: memoryview(a).cast("B"),
        lambda a: a.astype(float),
        lambda a: a.astype(str),
        lambda a: [*a.tolist(), None],
        lambda a: [*a.tolist(), 1.0],
        lambda a: set(a.tolist()),
        lambda a: (address for address in a.tolist()),
        lambda a: int(a[0]),
        lambda a: None,
    ],
)
def test_what_is_no_array_of_addresses(cache: us.Cache, convert: Callable[[Any], Any]) -> None:
    got = cache.alloc_bulk(8)
    with pytest.raises(TypeError, match="address"):
        cache.free_bulk(convert(got))
    cache.free_bulk(got)
    clean(cache)


def test_owned_objects_are_no_addresses(cache: us.Cache) -> None:
    """Nor are the bytes they hold, though each is a buffer."""
    objects = [cache.alloc(zero=True) for _ in range(3)]
    for wrong in (objects, objects[0]):
        with pytest.raises(TypeError, match="address"):
            cache.free_bulk(wrong)
    for obj in objects:
        obj.free()
    clean(cache)


@pytest.mark.parametrize("value", [-1, 1 << 64, 1 << 200])
def test_what_cannot_be_an_address(cache: us.Cache, value: int) -> None:
    with pytest.raises((us.CorruptionError, OverflowError, ValueError)):
        cache.free(value)
    clean(cache)


def test_an_error_without_a_slab_names_none(opened: us.Allocator, cache: us.Cache) -> None:
    for call in (cache.free, opened.kfree, lambda a: cache.free_bulk([a])):
        with pytest.raises(us.CorruptionError) as error:
            call(16)
        assert error.value.slab is None
        assert "slab 0x" not in str(error.value)
    address = cache.alloc_address()
    with pytest.raises(us.CorruptionError) as error:
        cache.free(address + 1)
    assert error.value.slab is not None
    assert f"slab {error.value.slab:#x}" in str(error.value)
    cache.free(address)


@pytest.mark.parametrize(
    "name",
    ["it's", "object 0x1", "a', object", "found nothing, expected", "slab 0x5: found", "50%s"],
)
def test_parts_of_an_error_do_not_mind_names(opened: us.Allocator, name: str) -> None:
    cache = opened.create_cache(name, 64)
    address = cache.alloc_address()
    for wrong in (address + 1, 16):
        with pytest.raises(us.CorruptionError) as error:
            cache.free(wrong)
        refused(error, cache, wrong)
        assert error.value.found.startswith("an address")
        assert not error.value.expected.startswith("0x")
    obj = cache.alloc()
    obj.free()
    with pytest.raises(us.CorruptionError) as error:
        obj.free()
    refused(error, cache, obj.address)
    cache.free(address)


def test_peek_and_poke_stay_inside(opened: us.Allocator, cache: us.Cache) -> None:
    got = cache.alloc_address()
    us.raw.poke(got, b"hello")
    assert us.raw.peek(got, 5) == b"hello"
    for address in OUTSIDE:
        with pytest.raises((ValueError, us.CorruptionError)):
            us.raw.peek(address, 8)
        with pytest.raises((ValueError, us.CorruptionError)):
            us.raw.poke(address, b"x")
    cache.free(got)


def test_the_error_of_poke_shows_the_address(opened: us.Allocator, cache: us.Cache) -> None:
    address = cache.alloc_address()
    for call in (lambda: us.raw.poke(address, bytes(2**24)), lambda: us.raw.peek(address, 2**24)):
        with pytest.raises(ValueError, match=f"{2**24} bytes at {address:#x} "):
            call()
    cache.free(address)


# ---- with debug F: everything at the call  -------------------------------------------------------


@pytest.fixture
def checked(make: Callable[..., us.Allocator], policy: str, kind: str) -> us.Cache:
    """A cache with consistency checks."""
    return make(policy, debug="F", **place(kind)).create_cache("checked", 64)


def test_f_a_double_free(checked: us.Cache) -> None:
    got, other = checked.alloc_address(), checked.alloc_address()
    checked.free(got)
    with pytest.raises(us.CorruptionError) as error:
        checked.free(got)
    refused(error, checked, got)
    assert error.value.slab
    clean(checked)
    checked.free(other)


def test_f_a_double_free_after_it_reached_its_slab(checked: us.Cache) -> None:
    got = [int(a) for a in checked.alloc_bulk(10)]
    checked.free_bulk(got[:9])
    checked.allocator.flush()
    for address in got[:9]:
        with pytest.raises(us.CorruptionError):
            checked.free(address)
    clean(checked)
    checked.free(got[9])


@pytest.mark.parametrize("wrong", ["outside", "inside", "twice", "other"])
def test_f_bulk_calls_find_everything(checked: us.Cache, wrong: str) -> None:
    other = checked.allocator.create_cache("other", 128)
    theirs = other.alloc_address()
    got = [int(a) for a in checked.alloc_bulk(20)]
    bad = {"outside": 0x10, "inside": got[5] + 8, "twice": got[3], "other": theirs}[wrong]
    with pytest.raises(us.CorruptionError) as error:
        checked.free_bulk([*got[:10], bad, *got[10:]])
    assert error.value.address == bad
    assert checked.validate().ok
    # The good ones may or may not have been freed before the bad one was met; none is lost.
    left = checked.live().tolist()
    assert set(left) <= set(got)
    checked.free_bulk(left)
    other.free(theirs)
    clean(checked)


def test_f_kfree_twice(make: Callable[..., us.Allocator], policy: str, kind: str) -> None:
    alloc = make(policy, debug="F", **place(kind))
    got = alloc.kmalloc(100)
    alloc.kfree(got)
    with pytest.raises(us.CorruptionError):
        alloc.kfree(got)
    large = alloc.kmalloc(1 << 20)
    alloc.kfree(large)
    with pytest.raises(us.CorruptionError):
        alloc.kfree(large)
    balance_all(alloc)


@pytest.mark.parametrize("word", ["Z", "P", "U", "FZ", "Q"])
def test_other_debug_options_are_refused_by_name(policy: str, word: str) -> None:
    missing = word.replace("F", "")
    with pytest.raises(ValueError, match=missing):
        us.Allocator(policy, debug=word)


# ---- without it: late  ---------------------------------------------------------------------------


def named(report: us.Validation, address: int) -> bool:
    """The object is named, or at least its slab: a broken list does not say by whom."""
    text = str(report)
    return f"{address:x}" in text or f"slab 0x{address & ~4095:x}" in text


@pytest.mark.parametrize("n", [10, 200], ids=["in the CPU's stock", "in a slab"])
def test_a_raw_double_free_is_found_when_it_reaches_a_slab(
    make: Callable[..., us.Allocator], policy: str, kind: str, n: int
) -> None:
    """Counted, named by validate(), kept out of circulation; the rest goes on."""
    alloc = make(policy, **place(kind))
    make.misused(alloc)  # type: ignore[attr-defined]
    cache = alloc.create_cache("doubled", 64)
    with alloc.on_cpu(0):
        got = [int(a) for a in cache.alloc_bulk(n)]
        cache.free(got[4])
        cache.free(got[4])  # without F nothing tells a queued object from a live one
        alloc.flush()
    report = cache.validate()
    assert not report.ok
    assert report.errors >= 1
    assert named(report, got[4])
    # The allocator is usable, and the address is handed out no more than once.
    with alloc.on_cpu(0):
        more = [int(a) for a in cache.alloc_bulk(300)]
    assert len(set(more)) == 300
    assert not {*more} & {x for x in got if x != got[4]}
    with alloc.on_cpu(0):
        cache.free_bulk(more)
        cache.free_bulk([x for x in got if x != got[4]])
        alloc.flush()
    assert not cache.validate().ok  # it is remembered


def test_a_write_after_free_into_a_free_list_is_found(
    make: Callable[..., us.Allocator], kind: str
) -> None:
    """SLUB links free objects through themselves: what breaks a link does not reach the user."""
    alloc = make("slub", **place(kind))
    make.misused(alloc)  # type: ignore[attr-defined]
    cache = alloc.create_cache("broken", 64)
    with alloc.on_cpu(0):
        got = [int(a) for a in cache.alloc_bulk(200)]
        cache.free_bulk(got[3:6])
        us.raw.poke(got[5], (0xDEADBEEF).to_bytes(8, "little"))
    slab = got[5] & ~4095
    report = cache.validate()
    assert not report.ok
    assert f"{slab:x}" in str(report)
    with alloc.on_cpu(0):
        more = [int(a) for a in cache.alloc_bulk(300)]
    assert len(set(more)) == 300
    assert not {*more} & {*got[:3], *got[6:]}


def test_a_wrong_address_in_a_raw_bulk_free_is_found_late(
    make: Callable[..., us.Allocator], policy: str, kind: str
) -> None:
    alloc = make(policy, **place(kind))
    make.misused(alloc)  # type: ignore[attr-defined]
    cache = alloc.create_cache("bulk", 64)
    other = alloc.create_cache("other", 128)
    with alloc.on_cpu(0):
        got = [int(a) for a in cache.alloc_bulk(4)]
        theirs = other.alloc_address()
        try:
            cache.free_bulk([got[0] + 8, theirs, got[1]])
        except us.CorruptionError:
            pass  # found early is as good
        else:
            alloc.flush()
            report = cache.validate()
            assert not report.ok
            assert named(report, got[0] + 8)
            assert named(report, theirs)
    assert len(set(cache.alloc_bulk(200).tolist())) == 200
    assert len(set(other.alloc_bulk(200).tolist())) == 200


# ---- life  ---------------------------------------------------------------------------------------


def test_destroying_with_live_objects_lists_them(opened: us.Allocator) -> None:
    cache = opened.create_cache("busy", 64)
    got = [int(a) for a in cache.alloc_bulk(3)]
    with pytest.raises(us.LiveObjectsError, match="3") as error:
        cache.destroy()
    assert any(f"{address:x}" in str(error.value) for address in got)
    assert cache.alive
    assert "busy" in opened.caches
    cache.free_bulk(got)
    cache.destroy()
    assert not cache.alive
    assert "busy" not in opened.caches
    for call in (cache.alloc, cache.alloc_address, cache.stats, cache.validate, cache.shrink):
        with pytest.raises(RuntimeError, match=r"destroyed|closed"):
            call()


def test_destroying_by_force(opened: us.Allocator) -> None:
    cache = opened.create_cache("busy", 64)
    obj = cache.alloc()
    cache.alloc_bulk(100)
    cache.destroy(force=True)
    assert not obj.alive
    assert opened.account()["reserved"] == 0
    again = opened.create_cache("busy", 64)
    again.free(again.alloc_address())


def test_closing_with_live_objects(
    make: Callable[..., us.Allocator], policy: str, kind: str
) -> None:
    alloc = make(policy, **place(kind))
    cache = alloc.create_cache("busy", 64)
    got = cache.alloc_address()
    with pytest.raises(us.LiveObjectsError, match="busy"):
        alloc.close()
    assert not alloc.closed
    cache.free(got)
    alloc.close()
    assert alloc.closed
    alloc.close()  # once more does nothing
    with pytest.raises(RuntimeError, match="closed"):
        alloc.create_cache("late", 64)
    with pytest.raises(RuntimeError, match=r"closed|destroyed"):
        cache.alloc_address()


def test_an_error_inside_with_is_not_hidden(policy: str, kind: str) -> None:
    """Leaving by an exception closes by force: the exception is what is seen."""
    with (
        pytest.raises(KeyError, match="mine"),
        us.Allocator(policy, address_range="1 GiB", **place(kind)) as alloc,
    ):
        alloc.create_cache("busy", 64).alloc_address()
        raise KeyError("mine")
    assert alloc.closed
    with (
        pytest.raises(us.LiveObjectsError),
        us.Allocator(policy, address_range="1 GiB", **place(kind)) as alloc,
    ):
        alloc.create_cache("busy", 64).alloc_address()
    alloc.close(force=True)


# ---- arguments  ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 0}, "0"),
        ({"size": -8}, "-8"),
        ({"size": 1 << 40}, str(1 << 40)),
        ({"size": 64, "align": 3}, "3"),
        ({"size": 64, "align": -8}, "-8"),
        ({"size": 64, "flags": ["hwcache_aling"]}, "hwcache_align"),
        ({"size": 64, "debug": "Z"}, "Z"),
    ],
)
def test_caches_that_cannot_be(opened: us.Allocator, arguments: dict[str, Any], said: str) -> None:
    before = set(opened.caches)
    with pytest.raises((ValueError, TypeError), match=said):
        opened.create_cache("wrong", **arguments)
    assert set(opened.caches) == before


def test_names_are_unique_and_not_empty(opened: us.Allocator) -> None:
    opened.create_cache("once", 64)
    with pytest.raises(ValueError, match="once"):
        opened.create_cache("once", 32)
    with pytest.raises(ValueError, match="name"):
        opened.create_cache("", 32)


@pytest.mark.parametrize(
    ("node", "error"),
    [(1, ValueError), (-2, ValueError), (10**9, ValueError), ("0", TypeError), (0.0, TypeError)],
)
def test_nodes_that_are_not_there(opened: us.Allocator, node: Any, error: type[Exception]) -> None:
    cache = opened.create_cache("placed", 64)
    for call in (cache.alloc_address, cache.alloc, lambda **k: cache.alloc_bulk(3, **k)):
        with pytest.raises(error, match=str(node) if error is ValueError else None):
            call(node=node)
    assert len(cache.live()) == 0


def test_sizes_of_kmalloc(opened: us.Allocator) -> None:
    for wrong in (-1, "8", 1.5):
        with pytest.raises((ValueError, TypeError)):
            opened.kmalloc(wrong)  # type: ignore[arg-type]
    # Above the largest buddy block (order 10) there is nothing to give.
    with pytest.raises(MemoryError):
        opened.kmalloc((4096 << 10) + 1)
    opened.kfree(opened.kmalloc(4096 << 10))


def test_bulk_counts(opened: us.Allocator) -> None:
    cache = opened.create_cache("bulk", 64)
    assert len(cache.alloc_bulk(0)) == 0
    cache.free_bulk([])
    for wrong in (-1, "3", 2.0):
        with pytest.raises((ValueError, TypeError)):
            cache.alloc_bulk(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("memory", [-1, "1 XB", "", 0.5, "much"])
def test_budgets_that_are_none(policy: str, memory: Any) -> None:
    with warnings.catch_warnings(), pytest.raises((ValueError, TypeError)):
        us.Allocator(policy, memory=memory)
