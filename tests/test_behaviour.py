"""What every policy owes its user, on this machine and modelled, with and without checks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from rules.books import balance, balance_all
from rules.inside import Queue, look, slabs_of
from rules.machines import place
from rules.names import ALLOCS, FREES, general_sizes

import unislab as us

pytestmark = pytest.mark.every_policy

Make = Callable[..., us.Allocator]


# ---- objects  ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 8, 24, 64, 100, 192, 1000, 4096, 10_000, 65_536])
def test_objects_do_not_overlap_and_keep_their_contents(opened: us.Allocator, size: int) -> None:
    cache = opened.create_cache("sized", size)
    n = 150 if size <= 4096 else 20
    got = [cache.alloc_address() for _ in range(n)]
    assert cache.stride >= cache.size == size
    ordered = sorted(got)
    assert all(b - a >= size for a, b in itertools.pairwise(ordered))
    for i, address in enumerate(got):
        us.raw.poke(address, bytes([i % 251]) * size)
    rng = random.Random(size)
    kept = dict(enumerate(got))
    for _ in range(2):
        for i in rng.sample(sorted(kept), len(kept) // 3):
            cache.free(kept.pop(i))
        fresh = [cache.alloc_address() for _ in range(10)]
        assert not set(fresh) & set(kept.values())
        for address in fresh:
            us.raw.poke(address, b"\xff" * size)
        for i, address in kept.items():
            assert us.raw.peek(address, size) == bytes([i % 251]) * size
        cache.free_bulk(fresh)
    assert sorted(cache.live().tolist()) == sorted(kept.values())
    cache.free_bulk(list(kept.values()))


@pytest.mark.parametrize(
    ("size", "align", "flags", "stride"),
    [
        (1, 0, (), 8),
        (13, 0, (), 16),
        (100, 64, (), 128),
        (24, 4096, (), 4096),
        (100, 0, ("hwcache_align",), 128),
        # The line is halved while the object fits into half of it.
        (20, 0, ("hwcache_align",), 32),
        (10, 0, ("hwcache_align",), 16),
    ],
)
def test_alignment(
    opened: us.Allocator, size: int, align: int, flags: tuple[str, ...], stride: int
) -> None:
    cache = opened.create_cache("aligned", size, align=align, flags=flags)
    # List policies may widen an object that is smaller than their link; none is here.
    assert cache.stride == stride
    got = cache.alloc_bulk(200)
    step = max(align, 8, min(stride, 64) if flags else 0)
    assert not (got % np.uint64(step)).any()
    cache.free_bulk(got)


def test_zeroed_objects_are_zero(opened: us.Allocator) -> None:
    cache = opened.create_cache("zeroed", 96)
    dirty = cache.alloc_bulk(100)
    for address in dirty:
        us.raw.poke(int(address), b"\xaa" * 96)
    cache.free_bulk(dirty)
    got = [cache.alloc_address(zero=True) for _ in range(50)]
    got += [int(a) for a in cache.alloc_bulk(60, zero=True)]
    assert all(us.raw.peek(address, 96) == bytes(96) for address in got)
    cache.free_bulk(got)


def test_an_owned_object(opened: us.Allocator) -> None:
    cache = opened.create_cache("owned", 40)
    with cache.alloc(zero=True) as obj:
        assert obj.cache is cache
        assert obj.size == 40
        assert obj.alive
        assert obj.address in cache.live().tolist()
        view = memoryview(obj)
        assert view.nbytes == 40
        assert not view.readonly
        view[:5] = b"hello"
        assert us.raw.peek(obj.address, 6) == b"hello\0"
        view.release()
    assert not obj.alive
    assert len(cache.live()) == 0


def test_a_pattern_constructs_objects(opened: us.Allocator, policy: str) -> None:
    cache = opened.create_cache("built", 64, constructor=b"\x01\x02\x03\x04")
    got = [int(a) for a in cache.alloc_bulk(100)]
    assert all(us.raw.peek(address, 64) == b"\x01\x02\x03\x04" * 16 for address in got)
    # Freed in the constructed state, they come back in it.
    cache.free_bulk(got)
    again = [int(a) for a in cache.alloc_bulk(100)]
    assert all(us.raw.peek(address, 64) == b"\x01\x02\x03\x04" * 16 for address in again)
    cache.free_bulk(again)


def test_a_callable_constructs_objects_once_a_slab(opened: us.Allocator) -> None:
    seen: list[int] = []

    def build(view: memoryview) -> None:
        view[:4] = b"made"
        seen.append(len(view))

    cache = opened.create_cache("built", 64, constructor=build)
    got = [int(a) for a in cache.alloc_bulk(10)]
    assert all(us.raw.peek(address, 4) == b"made" for address in got)
    # Called for every object of each new slab, when the slab is made.
    assert len(seen) == int(cache.slabs()["objects"].sum())
    assert set(seen) == {64}
    cache.free_bulk(got)
    cache.free_bulk(cache.alloc_bulk(10))
    assert len(seen) == int(cache.slabs()["objects"].sum())


# Policies whose originals have bulk calls that are not n single calls.
OWN_BULK = ("slub-partial",)


# ---- bulk  ---------------------------------------------------------------------------------------


def test_bulk_addresses_are_an_array(opened: us.Allocator) -> None:
    cache = opened.create_cache("bulk", 64)
    got = cache.alloc_bulk(1000)
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.uint64
    assert len(np.unique(got)) == 1000
    assert sorted(got.tolist()) == sorted(cache.live().tolist())
    cache.free_bulk(got[::2])
    cache.free_bulk([int(a) for a in got[1::2]])
    assert len(cache.live()) == 0


def test_bulk_leaves_what_single_calls_leave(
    make: Make, policy: str, kind: str, debug: str | None
) -> None:
    if policy == "sheaves":
        pytest.skip("its original has bulk calls of its own: test_sheaves_rules.py")
    one, bulk = (make(policy, debug=debug, **place(kind)) for _ in range(2))
    caches = [alloc.create_cache("same", 128) for alloc in (one, bulk)]
    with one.on_cpu(0):
        singly = [caches[0].alloc_address() for _ in range(300)]
        for address in singly[:250]:
            caches[0].free(address)
    with bulk.on_cpu(0):
        together = [int(a) for a in caches[1].alloc_bulk(300)]
        caches[1].free_bulk(together[:250])
    stats = [cache.stats(exact=True) for cache in caches]
    if policy in OWN_BULK:  # its chains are one operation each; the objects are as many
        stats = [{name: s[name] for name in (*ALLOCS, *FREES)} for s in stats]
    assert stats[0] == stats[1]
    tables = [cache.slabs()[["order", "in_use", "free", "queued"]] for cache in caches]
    assert tables[0].equals(tables[1])
    caches[0].free_bulk(singly[250:])
    caches[1].free_bulk(together[250:])


# ---- general caches  -----------------------------------------------------------------------------


def test_kmalloc_serves_from_general_caches(opened: us.Allocator, policy: str) -> None:
    for size in (1, 8, 9, 65, 97, 129, 193, 257, 4097, 8192):
        general = next(known for known in general_sizes(policy) if known >= size)
        got = opened.kmalloc(size)
        assert opened.ksize(got) == general
        assert opened.cache(f"kmalloc-{general}").live().tolist() == [got]
        us.raw.poke(got, b"\x55" * size)
        opened.kfree(got)
        assert len(opened.cache(f"kmalloc-{general}").live()) == 0
    balance_all(opened)


@pytest.mark.parametrize(("size", "block"), [(8193, 16384), (20_000, 32768), (4 << 20, 4 << 20)])
def test_large_kmalloc(opened: us.Allocator, policy: str, size: int, block: int) -> None:
    if policy == "slqb" and size <= 4096 << 9:
        pytest.skip("SLQB has a general cache for that")
    got = opened.kmalloc(size, zero=True)
    assert opened.ksize(got) == block
    assert got % 4096 == 0
    assert us.raw.peek(got, 64) == bytes(64)
    assert us.raw.peek(got + size - 64, 64) == bytes(64)
    stats = opened.stats(exact=True)
    assert (stats["alloc_slow"], stats["free_slow"]) == (1, 0)
    us.raw.poke(got + size - 1, b"x")
    opened.kfree(got)
    if size > max(general_sizes(policy)):  # its pages are its own
        assert opened.stats(exact=True)["free_slow"] == 1
    else:
        opened.shrink()
    assert opened.account()["reserved"] == 0


def test_kmalloc_zeroes_on_request(opened: us.Allocator) -> None:
    for size in (50, 5000, 50_000):
        got = opened.kmalloc(size)
        us.raw.poke(got, b"\xaa" * size)
        opened.kfree(got)
        got = opened.kmalloc(size, zero=True)
        assert us.raw.peek(got, size) == bytes(size)
        opened.kfree(got)


# ---- the whole  ----------------------------------------------------------------------------------


def test_caches_are_found_by_name(opened: us.Allocator) -> None:
    cache = opened.create_cache("named", 64)
    assert opened.cache("named") is cache
    assert opened.caches["named"] is cache
    assert opened.cache("kmalloc-64").size == 64
    assert cache.allocator is opened
    assert cache.policy == opened.policy
    with pytest.raises((KeyError, ValueError), match="named"):
        opened.cache("nameb")


def test_shrink_returns_what_nobody_uses(opened: us.Allocator) -> None:
    cache = opened.create_cache("shrunk", 64)
    got = [int(a) for a in cache.alloc_bulk(64 * 20)]
    kept = got[::64]
    cache.free_bulk([a for a in got if a not in set(kept)])
    opened.shrink()
    # Twenty objects pin no more than twenty slabs; nothing is queued.
    assert len(cache.slabs()) <= 20
    assert cache.account()["queued"] == 0
    assert sorted(cache.live().tolist()) == sorted(kept)
    cache.free_bulk(kept)
    opened.shrink()
    assert opened.account()["reserved"] == 0


def test_flush_empties_every_stock(opened: us.Allocator, policy: str) -> None:
    cache = opened.create_cache("flushed", 64)
    for cpu in (0, 1):
        with opened.on_cpu(cpu):
            cache.free_bulk(cache.alloc_bulk(300))
    opened.flush()
    if opened.policy == "sheaves":  # a flush deliberately leaves out the barn, a shrink does not
        cache.shrink()
    assert cache.account()["queued"] == 0
    # CPUs own nothing of a debug cache there: nothing to flush.
    nothing = cache.debug and policy in ("slub-partial", "sheaves")
    assert (cache.stats(exact=True)["flush"] >= 1) != nothing
    balance(cache)


def test_slabinfo_shows_objects_and_slabs(opened: us.Allocator) -> None:
    cache = opened.create_cache("shown", 64)
    got = cache.alloc_bulk(100)
    text = opened.slabinfo_text()
    assert text.startswith("slabinfo - version: 2.1\n")
    line = next(line for line in text.splitlines() if line.startswith("shown "))
    _, active, total, size, per_slab, pages = line.split()[:6]
    slabs = cache.slabs()
    assert int(total) == int(slabs["objects"].sum())
    assert 100 <= int(active) <= int(total)
    assert (int(size), int(per_slab), int(pages)) == (64, cache.objects_per_slab, 1)
    frame = opened.slabinfo()
    assert "shown" in set(frame["name"] if "name" in frame.columns else frame.index)
    cache.free_bulk(got)


def test_tables_show_every_slab_and_queue(opened: us.Allocator) -> None:
    cache = opened.create_cache("shown", 64)
    got = cache.alloc_bulk(200)
    cache.free_bulk(got[:150])
    slabs, queues = look(cache)
    table = cache.slabs()
    assert set(table.columns) == set(slabs[0]._fields)
    for row, slab in zip(table.itertuples(index=False), slabs, strict=True):
        for name in ("address", "node", "order", "objects", "in_use", "free", "queued", "place"):
            assert getattr(row, name) == getattr(slab, name)
    table = cache.queues()
    assert set(table.columns) == set(Queue._fields)
    for row, queue in zip(table.itertuples(index=False), queues, strict=True):
        for name in ("kind", "name", "objects", "capacity", "touched", "addresses"):
            assert getattr(row, name) == getattr(queue, name)
    cache.free_bulk(got[150:])


def test_validate_counts_every_object(opened: us.Allocator) -> None:
    cache = opened.create_cache("counted", 64)
    got = [int(a) for a in cache.alloc_bulk(100)]
    cache.free_bulk(got[:30])
    report = cache.validate()
    assert report.ok
    assert report.total == int(cache.slabs()["objects"].sum())
    assert report.available == int(cache.slabs()["free"].sum())
    text = str(report)
    assert text.startswith("Validation of slab counted: total=")
    # Slabs by objects that are not free in them, a full one too.
    expected: dict[int, int] = {}
    for slab in slabs_of(cache):
        expected[slab.objects - slab.free] = expected.get(slab.objects - slab.free, 0) + 1
    assert {k: n for k, n in report.histogram.items() if n} == expected
    whole = opened.validate()
    assert whole.ok
    assert "Validation of slab counted:" in str(whole)
    cache.free_bulk(got[30:])


def test_the_build_tells_its_mode() -> None:
    info = us.build_info()
    assert {"version", "build_id", "compiler", "mode", "page_size", "cpus"} <= set(info)
    assert info["version"] == us.__version__
    assert set(us.policies()) >= {"unified", "slub"}
