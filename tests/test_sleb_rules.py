"""The queue-only form of mid-2010, path by path, on a scripted machine.

It is reconstructed (csrc/policy/unified_forms.c says from what): CPU queues of V4's sizes over
bitmaps in the slabs, no shared and no alien queues, not NUMA clean.  Every expected value is
derived in the comment beside it.  For objects of 64 bytes a slab is one page of 64 objects; the CPU
queue is asked for 120, moves batches of 60 and really holds 125.  A queue is written oldest first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from rules.inside import queues_of
from rules.machines import grid
from rules.scene import Scene

import unislab as us

pytestmark = pytest.mark.once

BATCH = 60
CAPACITY = 125

Set = Callable[..., Scene]
both = pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])


@pytest.fixture
def queued(scene: Set) -> Set:
    """Sets a cache of the queue-only form."""
    return functools.partial(scene, policy="sleb")


def full_queue(s: Scene) -> tuple[list[int], list[int]]:
    """Objects of 3 slabs, 125 of them freed on CPU 0: its queue is full."""
    objects = [address for slab in s.take_slabs(3) for address in slab]
    s.free(0, objects[:CAPACITY])
    s.delta()
    return objects[:CAPACITY], objects[CAPACITY:]


# ---- what it is  ---------------------------------------------------------------------------------


# Size, queue asked for, real capacity: queue*8 + 24 bytes fill lines of 64.
@pytest.mark.parametrize(
    ("size", "queue", "capacity"),
    [
        *((size, 120, 125) for size in (8, 16, 24, 32, 64, 96, 128, 192, 256)),
        *((size, 54, 61) for size in (264, 512, 1024)),
        *((size, 24, 29) for size in (1032, 2048, 4096)),
        *((size, 8, 13) for size in (4104, 8192, 16384)),
    ],
)
def test_queues_are_sized_by_the_object(queued: Set, size: int, queue: int, capacity: int) -> None:
    s = queued(size, nodes=2)
    shown = s.cache.tunables
    assert (shown.queue_size, shown.batch_size, shown.cpu_queue_size) == (
        queue,
        queue // 2,
        capacity,
    )
    got = s.one(0)
    assert {row.kind for row in queues_of(s.cache)} == {"cpu"}
    s.free(0, got)


def test_rows_that_it_lacks_are_unknown(make: Callable[..., us.Allocator]) -> None:
    alloc = make("sleb", machine=grid(2))
    later = ("shared_queue_size", "alien_queue_size", "expire", "eager_refill", "adapt_period")
    for name in later:
        with pytest.raises(ValueError, match=f"sleb.*{name}"):
            alloc.create_cache("refused", 64, **{name: 1})
    cache = alloc.create_cache("taken", 64)
    assert not set(later) & set(cache.tunables)
    stats = cache.stats()
    assert not {"alloc_shared", "free_shared", "alloc_alien", "free_alien", "free_direct"} & set(
        stats
    )


def test_lowmem_is_not_known(queued: Set) -> None:
    # The flag came with V4: the queue is the size's own, and min_partial log2(64) = 6.
    s = queued(flags=("lowmem",))
    assert (s.cache.tunables.queue_size, s.cache.tunables.min_partial) == (120, 6)


def test_nothing_expires(queued: Set) -> None:
    s = queued()
    got = s.alloc(0, 20)
    s.free(0, got)
    held = s.cpu(0)
    for _ in range(3):
        assert s.expire() == 0
        assert s.allocator.expire() == 0
        s.allocator.advance(10)
    assert s.cpu(0) == held


# ---- one CPU  ------------------------------------------------------------------------------------


@both
def test_refills_of_an_untouched_and_of_a_touched_queue(queued: Set, debug: str | None) -> None:
    s = queued(cpus=1, debug=debug)
    first = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=1)
    assert s.cpu(0) == s.objects(first, 15, 1)  # min(60, 16), lowest on top
    assert s.alloc(0, 15) == s.objects(first, 1, 15)
    s.counted(alloc_fastpath=15)
    s.one(0)
    # Touched: 60 are wanted, the partial slab has 48, which is enough: no slab is fetched.
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.cpu(0) == s.objects(first, 63, 17)


@both
def test_a_miss_fetches_slabs_until_a_batch_is_there(queued: Set, debug: str | None) -> None:
    # 16 KiB: two objects a slab, batch 4.
    s = queued(16384, cpus=1, debug=debug)
    got = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=2)
    first, second = (int(address) for address in sorted(s.cache.slabs()["address"]))
    assert got == second
    assert s.cpu(0) == [*s.objects(first, 1, 0), second + s.stride]


def test_batches_between_4_and_the_queue(queued: Set) -> None:
    s = queued(cpus=1)
    for value in (3, 121):
        with pytest.raises(ValueError, match="4 to 1"):
            s.cache.tunables.batch_size = value
    s.cache.tunables.batch_size = 10
    first = s.one(0)
    assert s.cpu(0) == s.objects(first, 9, 1)  # a batch of at most 16 is never cut


@both
def test_an_overflow_goes_to_slabs(queued: Set, debug: str | None) -> None:
    s = queued(cpus=1, debug=debug)
    freed, rest = full_queue(s)
    s.free(0, rest[0])
    # The oldest 60, all of the first slab, which comes on the list at the head.
    s.counted(free_slowpath=1, free_add_partial=1)
    assert s.cpu(0) == [*freed[BATCH:], rest[0]]
    assert s.partial() == [(freed[0], BATCH)]
    assert not s.touched("cpu", cpu=0)
    # 66 pops touch it, so that the next miss takes a whole batch: all that the slab has.
    s.alloc(0, 66)
    s.delta()
    s.one(0)
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert len(s.cpu(0)) == BATCH - 1


def test_empty_slabs_beyond_min_partial_go_back(queued: Set) -> None:
    # min_partial 6: slabs that are emptied at once find 0, 1, ... 6 listed and stay; then seven.
    s = queued(cpus=1)
    slabs = s.take_slabs(9)
    for slab in slabs[:8]:
        s.free(0, slab)
        s.flush()
    s.counted(free_fastpath=8 * 64, queue_flush=8, free_add_partial=7, free_slab=1)
    # Each went to the head.
    assert [address for address, _ in s.partial()] == [slab[0] for slab in reversed(slabs[:7])]


def test_a_drain_goes_through_the_vector_as_it_is(queued: Set) -> None:
    s = queued(cpus=1)
    a, b = s.take_slabs(2)
    s.free(0, [b[5], a[10], b[6], a[11]])
    s.flush()
    s.counted(free_fastpath=4, queue_flush=1, free_add_partial=2)
    assert s.partial() == [(a[0], 2), (b[0], 2)]


def test_shrink_orders_the_list(queued: Set) -> None:
    s = queued(cpus=1)
    a, b, c = s.take_slabs(3)
    s.free(0, [*a[:5], *b[:2], *c])
    s.flush()
    s.delta()
    # Empty slabs go, the fullest (fewest free) come first.
    assert s.shrink() == 4096
    s.counted(queue_flush=1, free_slab=1)
    assert s.partial() == [(b[0], 2), (a[0], 5)]


def test_resizing_flushes_the_queues(queued: Set) -> None:
    s = queued(cpus=2)
    freed, _ = full_queue(s)
    s.cache.tunables.cpu_queue_size = 50
    # As patch 03 had it: 50 and 25.  64 objects of the first slab, 61 of the second, in that order.
    shown = s.cache.tunables
    assert (shown.queue_size, shown.batch_size) == (50, 25)
    s.counted(queue_flush=2, free_add_partial=2)
    assert s.cpu(0) == []
    assert s.partial() == [(freed[64], 61), (freed[0], 64)]


# ---- two CPUs, two domains  ----------------------------------------------------------------------


@both
def test_an_object_enters_the_queue_of_who_frees_it(queued: Set, debug: str | None) -> None:
    s = queued(cpus=2, debug=debug)
    got = s.alloc(0, 3)
    s.delta()
    s.free(1, got)
    s.counted(free_fastpath=3)
    assert s.cpu(1) == got
    assert s.one(1) == got[2]
    s.counted(alloc_fastpath=1)


def test_cpus_exchange_objects_through_slabs_only(queued: Set) -> None:
    # Of one domain or of two: there is no stock between the queues and the slabs.
    for domains, other in ((1, 1), (2, 2)):
        s = queued(domains=domains, cpus=2)
        freed, rest = full_queue(s)
        s.free(0, rest[0])
        s.delta()
        assert s.one(other) == freed[0]
        s.counted(alloc_slowpath=1, alloc_from_partial=1)
        # Untouched: 16 of the 60 that the overflow put back.
        assert s.cpu(other) == list(reversed(freed[1:16]))
        assert s.partial() == [(freed[0], BATCH - 16)]


# ---- two nodes  ----------------------------------------------------------------------------------


@both
def test_an_off_node_object_enters_the_queue_like_any_other(queued: Set, debug: str | None) -> None:
    s = queued(nodes=2, debug=debug)
    theirs = s.alloc(2, 5)
    s.delta()
    s.free(0, theirs)
    s.counted(free_fastpath=5)
    assert s.cpu(0) == theirs
    # And comes out of it again, local or not.
    assert s.alloc(0, 5) == list(reversed(theirs))
    s.counted(alloc_fastpath=5)


@both
def test_a_mixed_batch_is_drained_to_both_nodes(queued: Set, debug: str | None) -> None:
    s = queued(nodes=2, debug=debug)
    mine = s.take_slabs(1, cpu=0)[0]
    theirs = s.take_slabs(1, cpu=2)[0]
    s.free(0, theirs[:30] + mine[:64] + theirs[30:61])
    assert len(s.cpu(0)) == CAPACITY
    s.delta()
    s.free(0, theirs[61])
    # The oldest 60: 30 of node 1, then 30 of node 0; each slab comes on its own node's list.
    s.counted(free_slowpath=1, free_add_partial=2)
    assert s.partial(1) == [(theirs[0], 30)]
    assert s.partial(0) == [(mine[0], 30)]


def test_another_node_is_served_from_the_head_of_its_list(queued: Set) -> None:
    s = queued(nodes=2)
    got = s.one(0, node=1)
    # One object of a new slab of that node, past the queue.
    s.counted(alloc_direct=1, alloc_slab=1)
    assert s.partial(1) == [(got, 63)]
    assert s.cpu(0) == []
    assert s.one(0, node=1) == got + 64
    s.counted(alloc_direct=1, alloc_from_partial=1)
    assert s.partial(1) == [(got, 62)]
    assert s.cache.stats(exact=True)["alloc_remote"] == 2


def test_the_own_node_is_what_the_queue_has_unless_it_must_be(queued: Set) -> None:
    s = queued(nodes=2)
    theirs = s.alloc(2, 1)
    s.free(0, theirs)
    s.delta()
    # Not NUMA clean: the queue serves, whatever it holds.
    assert s.alloc(0, 1, node=0) == theirs
    s.counted(alloc_fastpath=1)
    s.free(0, theirs)
    s.delta()
    mine = s.one(0, node=0, thisnode=True)
    assert s.slab(mine) in [address for address, _ in s.partial(0)]
    assert s.cpu(0) == theirs  # back where it was


def test_what_the_provider_takes_elsewhere_is_queued(make: Callable[..., us.Allocator]) -> None:
    alloc = make("sleb", machine=grid(2, 1, 1), memory="8 MiB")
    full = alloc.create_cache("full", 4096)
    cache = alloc.create_cache("scene", 64)
    got = []
    with alloc.on_cpu(0):
        with pytest.raises(MemoryError):
            while True:
                got.append(full.alloc_address(node=0, thisnode=True))
        s = Scene(alloc, cache)
        one = s.one(0)
        s.counted(alloc_slowpath=1, alloc_slab=1)
        assert s.cpu(0) == s.objects(one, 15, 1)
        assert s.partial(1) == [(one, 48)]
        # A free puts it back on this CPU's queue.
        s.free(0, one)
        s.counted(free_fastpath=1)
        assert s.cpu(0) == [*s.objects(one, 15, 1), one]
        full.free_bulk(got)


def test_flush_empties_every_cpu(queued: Set) -> None:
    s = queued(nodes=2)
    a = s.take_slabs(1, cpu=0)[0]
    s.free(0, a[:3])
    s.free(3, a[3:5])
    s.delta()
    s.flush()
    # Two nodes of two CPUs: four flushes; the slab is listed once, by its own node.
    s.counted(queue_flush=4, free_add_partial=1)
    assert s.partial(0) == [(a[0], 5)]
