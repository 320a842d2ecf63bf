"""Accounts: where every reserved byte is, after every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rules.books import adds_up, balance
from rules.machines import grid, place
from rules.scene import Scene

import unislab as us

Set = Callable[..., Scene]
once = pytest.mark.once


@once
@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
def test_one_object_of_unified(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    got = s.one(0)
    # One page of 64 objects: one with the user, 15 queued, 48 in the slab.
    assert account(s.cache) == (4096, 64, 15 * 64, 48 * 64, 0)
    s.free(0, got)
    assert account(s.cache) == (4096, 0, 16 * 64, 48 * 64, 0)
    s.flush()
    assert account(s.cache) == (4096, 0, 0, 4096, 0)
    s.shrink()
    assert account(s.cache) == (0, 0, 0, 0, 0)


@once
def test_waste_is_what_no_object_covers(scene: Set) -> None:
    # 96 bytes on two CPUs: 42 objects a page (the order table), 64 bytes over.
    s = scene(96)
    s.one(0)
    assert account(s.cache) == (4096, 96, 15 * 96, 26 * 96, 64)


@once
def test_bytes_are_counted_in_strides(scene: Set) -> None:
    s = scene(100)  # rounded to machine words: 104; 39 in a page
    assert (s.cache.size, s.cache.stride) == (100, 104)
    s.one(0)
    assert account(s.cache) == (4096, 104, 15 * 104, 23 * 104, 40)


def account(cache: us.Cache) -> tuple[int, ...]:
    """(reserved, live, queued, free in slabs, waste)."""
    a = cache.account()
    return tuple(a[name] for name in ("reserved", "live", "queued", "free_in_slabs", "waste"))


def test_accounts_add_up_after_every_step(opened: us.Allocator) -> None:
    caches = [
        opened.create_cache("odd", 40),
        opened.create_cache("aligned", 100, align=64),
        opened.create_cache("big", 3000),
    ]
    kept: list[tuple[us.Cache, list[int]]] = []

    def check() -> None:
        for cache in caches:
            balance(cache)
        adds_up(opened.account())
        expected = sum(len(got) * cache.stride for cache, got in kept)
        assert opened.account()["live"] == expected

    check()
    for cpu in (0, 1):
        for cache in caches:
            with opened.on_cpu(cpu):
                kept.append((cache, [int(a) for a in cache.alloc_bulk(70)]))
            check()
    for cache, got in kept[:3]:
        with opened.on_cpu(1):
            cache.free_bulk(got[::2])
        got[:] = got[1::2]
        check()
    opened.expire()
    check()
    opened.flush()
    check()
    opened.shrink()
    check()
    for cache, got in kept:
        cache.free_bulk(got)
    kept.clear()
    check()
    opened.shrink()
    assert opened.account()["reserved"] == 0


def test_large_kmalloc_is_live(opened: us.Allocator) -> None:
    # Above the last general cache a request is a block of pages of its own: 3 MB -> 1024 pages.
    # SLAB has general caches of such sizes too, with slabs of one object.
    before = opened.account()
    address = opened.kmalloc(3_000_000)
    after = opened.account()
    assert after["reserved"] - before["reserved"] == 1024 * 4096
    assert after["live"] - before["live"] + after["waste"] - before["waste"] == 1024 * 4096
    assert after["live"] - before["live"] >= 3_000_000
    adds_up(after)
    opened.kfree(address)
    if opened.policy == "slab":
        opened.shrink()
    assert opened.account()["reserved"] == before["reserved"]


def test_peaks_stay(opened: us.Allocator) -> None:
    cache = opened.create_cache("peak", 512)
    got = cache.alloc_bulk(1000)
    high = opened.account()
    assert high["reserved"] >= 1000 * 512
    cache.free_bulk(got)
    opened.shrink()
    low = opened.account()
    assert low["reserved"] == 0
    assert low["reserved_peak"] == high["reserved_peak"] >= high["reserved"]
    assert low["resident_peak"] >= low["reserved_peak"]


def test_shrink_gives_pages_back_to_the_system(opened: us.Allocator) -> None:
    cache = opened.create_cache("purged", 4096)
    before = opened.account()["resident"]
    got = cache.alloc_bulk(1024)
    assert opened.account()["resident"] >= before + 4 * 1024 * 1024
    cache.free_bulk(got)
    opened.shrink()
    assert opened.account()["resident"] <= before + 256 * 1024


def test_free_pages_are_purged_after_the_delay(make: Callable[..., us.Allocator]) -> None:
    alloc = make(machine=grid(1, 1, 1), purge_delay="1 s")
    address = alloc.kmalloc(1 << 20)
    alloc.kfree(address)
    assert alloc.account()["resident"] >= 1 << 20
    alloc.advance(0.01)
    assert alloc.account()["resident"] >= 1 << 20
    for _ in range(3):  # one to two delays
        alloc.advance(1)
    assert alloc.account()["resident"] < 1 << 20


def test_metadata_is_apart(make: Callable[..., us.Allocator], policy: str, kind: str) -> None:
    alloc = make(policy, **place(kind))
    before = alloc.account()
    cache = alloc.create_cache("counted", 64)
    cache.free(cache.alloc_address())
    after = alloc.account()
    assert after["metadata"] > before["metadata"]
    assert after["reserved"] == 4096
    alloc.shrink()
    cache.destroy()
    assert alloc.account()["reserved"] == 0
    assert alloc.account()["metadata"] == before["metadata"]


def test_the_budget_is_the_node_memory(make: Callable[..., us.Allocator]) -> None:
    alloc = make(machine=grid(2, 1, 1), memory="16 MiB")
    assert alloc.memory_budget == 16 << 20
    for node in (0, 1):
        info = alloc.memory_info(node)
        assert 0 < info["min"] < info["low"] < info["high"] < info["free"]
    free = alloc.memory_info(1)["free"]
    with alloc.on_cpu(0):
        address = alloc.kmalloc(1 << 20, node=1)
    spent = free - alloc.memory_info(1)["free"]
    assert spent in (256, 1 << 20)  # pages, or their bytes
    alloc.kfree(address)
    assert alloc.memory_info(1)["free"] == free
