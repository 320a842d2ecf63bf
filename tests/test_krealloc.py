"""krealloc: an object gets another size, where it is or elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rules.machines import grid, place
from rules.names import general_sizes

import unislab as us

pytestmark = pytest.mark.every_policy

Make = Callable[..., us.Allocator]

# The new size is one that the old object's usable bytes hold: of the same general cache (97 to 128
# bytes) or the same number of pages, or of a smaller one.
STAY = [(100, 128), (128, 97), (200, 100), (9000, 16384), (20_000, 32_768), (20_000, 100)]
# Growth across general caches, from them to pages, and between numbers of pages.
MOVE = [(100, 200), (100, 20_000), (20_000, 40_000)]


def filled(alloc: us.Allocator, size: int) -> tuple[int, bytes]:
    """An allocation whose usable bytes all differ from their neighbours."""
    address = alloc.kmalloc(size)
    content = bytes(i % 251 for i in range(alloc.ksize(address)))
    us.raw.poke(address, content)
    return address, content


@pytest.mark.parametrize(("old", "new"), STAY)
def test_an_object_that_suffices_stays(opened: us.Allocator, old: int, new: int) -> None:
    address, content = filled(opened, old)
    assert opened.krealloc(address, new) == address
    assert us.raw.peek(address, len(content)) == content
    opened.kfree(address)


@pytest.mark.parametrize(("old", "new"), MOVE)
def test_an_object_that_does_not_is_copied(opened: us.Allocator, old: int, new: int) -> None:
    """All that it held; the old object is free afterwards."""
    address, content = filled(opened, old)
    moved = opened.krealloc(address, new)
    assert moved != address
    assert opened.ksize(moved) >= new
    assert us.raw.peek(moved, len(content)) == content
    live = [a for cache in opened.caches.values() for a in cache.live().tolist()]
    assert live == [moved]
    opened.kfree(moved)


@pytest.mark.parametrize(("old", "new"), [(100, 300), (9000, 40_000)])
def test_what_is_not_copied_is_zeroed_on_request(opened: us.Allocator, old: int, new: int) -> None:
    dirty = opened.kmalloc(new)
    us.raw.poke(dirty, b"\xff" * new)
    opened.kfree(dirty)
    address, content = filled(opened, old)
    moved = opened.krealloc(address, new, zero=True)
    assert us.raw.peek(moved, new) == content + bytes(new - len(content))
    opened.kfree(moved)


@pytest.mark.parametrize(("old", "new"), [(100, 70), (200, 100), (20_000, 9000)])
def test_what_shrinks_with_zero_grows_into_zeros(opened: us.Allocator, old: int, new: int) -> None:
    address, content = filled(opened, old)
    assert opened.krealloc(address, new, zero=True) == address
    rest = bytes(len(content) - new)
    assert us.raw.peek(address, len(content)) == content[:new] + rest
    opened.kfree(address)


def test_no_object_and_no_size(opened: us.Allocator) -> None:
    address = opened.krealloc(0, 100)
    assert opened.ksize(address) == 128
    assert opened.krealloc(address, 0) == 0
    assert opened.krealloc(0, 0) == 0
    assert opened.account()["live"] == 0


def test_an_object_of_a_named_cache_grows_into_a_general_one(opened: us.Allocator) -> None:
    """kfree takes them too."""
    cache = opened.create_cache("named", 72)
    address = cache.alloc_address()
    us.raw.poke(address, b"named" + bytes(67))
    assert opened.krealloc(address, 72) == address
    moved = opened.krealloc(address, 73)
    general = next(size for size in general_sizes(opened.policy) if size >= 73)
    assert opened.cache(f"kmalloc-{general}").live().tolist() == [moved]
    assert us.raw.peek(moved, 72) == b"named" + bytes(67)
    assert len(cache.live()) == 0
    opened.kfree(moved)


@pytest.mark.parametrize("size", [100, 20_000])
def test_without_memory_the_old_object_stays(make: Make, policy: str, kind: str, size: int) -> None:
    alloc = make(policy, memory="8 MiB", **place(kind))
    address, content = filled(alloc, size)
    alloc.fail("pages", rate=1.0)
    with pytest.raises(MemoryError):
        alloc.krealloc(address, 200_000)
    with pytest.raises(us.LimitExceeded):
        alloc.krealloc(address, 2**40)
    alloc.fail("pages")
    assert alloc.ksize(address) == len(content)
    assert us.raw.peek(address, len(content)) == content
    alloc.kfree(address)


def test_a_new_object_comes_from_the_node(make: Make, policy: str) -> None:
    alloc = make(policy, machine=grid(2, 1, 1))
    address = alloc.krealloc(0, 100, node=1)
    moved = alloc.krealloc(address, 1000, node=1, thisnode=True)
    assert alloc.cache("kmalloc-1024").slabs()["node"].tolist() == [1]
    assert alloc.krealloc(moved, 1024, node=0) == moved  # it stays, wherever it is
    alloc.kfree(moved)


def test_what_is_no_object_is_refused(opened: us.Allocator) -> None:
    small, large = opened.kmalloc(100), opened.kmalloc(20_000)
    for wrong in (8, small + 8, large + 8, large + 4096):
        for size in (0, 50, 100, 20_000):
            with pytest.raises(us.CorruptionError):
                opened.krealloc(wrong, size)
        with pytest.raises(us.CorruptionError):
            opened.ksize(wrong)
    assert opened.ksize(small) == 128
    assert opened.ksize(large) == 32_768
    opened.kfree(small)
    opened.kfree(large)
    assert opened.validate().ok


@pytest.mark.parametrize("size", [0, 100, 128, 1000])
def test_a_freed_object_is_refused_under_debug(
    make: Make, policy: str, kind: str, size: int
) -> None:
    alloc = make(policy, debug="F", **place(kind))
    address = alloc.kmalloc(100)
    alloc.kfree(address)
    with pytest.raises(us.CorruptionError, match="free already"):
        alloc.krealloc(address, size)
    with pytest.raises(us.CorruptionError):
        alloc.ksize(address)
    assert alloc.validate().ok


def test_wrong_arguments(opened: us.Allocator) -> None:
    for wrong in ((), (1,), (1, 2, 3)):
        with pytest.raises(TypeError, match="takes an address and a size"):
            opened.krealloc(*wrong)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        opened.krealloc("1", 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size"):
        opened.krealloc(0, -1)
