"""The books of an allocator: accounts that add up, counters that balance, a clean validation.

Each function asserts; `balance_all` is what every allocator of a test goes through at its end.
"""

from __future__ import annotations

from collections.abc import Mapping

import unislab as us
from rules.inside import look
from rules.names import ALLOCS, FREES

PARTS = ("live", "queued", "free_in_slabs", "waste")


def adds_up(account: Mapping[str, int]) -> None:
    """Reserved bytes are live, queued, free in slabs, or waste; none is negative."""
    parts = {part: account[part] for part in PARTS}
    assert all(value >= 0 for value in parts.values()), parts
    assert account["reserved"] == sum(parts.values()), dict(account)


def live_by_counters(stats: Mapping[str, int]) -> int:
    """Successful allocations less frees: each is in exactly one common counter."""
    return sum(stats[name] for name in ALLOCS) - sum(stats[name] for name in FREES)


def balance(cache: us.Cache, *, misused: bool = False) -> int:
    """Counters, accounts, queues, slabs and validation of one cache agree; returns live objects."""
    stats = cache.stats(exact=True)
    account = cache.account()
    live = cache.live()
    slabs, queues = look(cache)
    validation = cache.validate()

    assert all(value >= 0 for value in stats.values()), dict(stats)
    assert len(set(live.tolist())) == len(live), "an address is live twice"
    adds_up(account)
    queued = [address for row in queues for address in row.addresses]
    assert len(set(queued)) == len(queued), "an object is queued twice"
    for queue in queues:
        assert queue.objects == len(queue.addresses) <= queue.capacity, queue
    assert not set(queued) & set(live.tolist()), "an object is queued and live"
    large = cache.name.startswith("kmalloc-large")  # blocks of one request each: no slabs
    assert large or stats["slab_new"] - stats["slab_free"] == len(slabs), (dict(stats), slabs)
    assert validation.slabs == len(slabs)
    if misused:
        return len(live)
    assert validation.ok, f"{validation}"
    assert validation.errors == 0
    assert live_by_counters(stats) == len(live), (dict(stats), len(live))
    if not large:
        free = sum(slab.free for slab in slabs)
        assert account["live"] == len(live) * cache.stride
        assert account["queued"] == len(queued) * cache.stride
        assert account["free_in_slabs"] == free * cache.stride
        assert validation.total == sum(slab.objects for slab in slabs)
        assert validation.available == free
        out = validation.total - validation.available
        if cache.debug:  # each object out of its slab is known to be in use, or in a queue
            assert (validation.checked, validation.onqueue) == (len(live), len(queued))
            assert validation.unchecked == 0
            assert len(live) + len(queued) == out
        else:  # in use cannot be told from queued by the object itself
            assert (validation.checked, validation.unchecked) == (0, out)
        for slab in slabs:
            assert slab.free + slab.queued + slab.in_use == slab.objects, slab
    return len(live)


def balance_all(alloc: us.Allocator, *, misused: bool = False) -> int:
    """All caches balance, and the allocator's sums are theirs; returns live objects."""
    live = 0
    totals = dict.fromkeys(PARTS, 0)
    counted = dict.fromkeys((*ALLOCS, *FREES), 0)
    for cache in alloc.caches.values():
        account = cache.account()
        for part in PARTS:
            totals[part] += account[part]
        stats = cache.stats(exact=True)
        for name in counted:
            counted[name] += stats[name]
        if any(stats.values()) or account["reserved"]:
            live += balance(cache, misused=misused)
    whole = alloc.account()
    adds_up(whole)
    assert {part: whole[part] for part in PARTS} == totals
    for name in ("reserved", "metadata", "resident"):
        assert 0 <= whole[name] <= whole[f"{name}_peak"], name
    assert whole["resident"] >= whole["reserved"]
    sums = alloc.stats(exact=True)
    assert {name: sums[name] for name in counted} == counted
    return live
