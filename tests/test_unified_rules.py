"""Unified, path by path, on a scripted machine: exact counters, queue contents and slab lists.

Every expected value is derived in the comment beside it from the published rules.  The numbers used
most, for objects of 64 bytes on two CPUs: a slab is one page of 64 objects; the CPU queue is asked
for 120, moves batches of 60 and really holds 125; the shared queue is asked for 600.  A queue is
written oldest first; a refill leaves the lowest address on top, so that pops ascend.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from rules.inside import queues_of
from rules.scene import Scene

pytestmark = pytest.mark.once

BATCH = 60
CAPACITY = 125
MIN_PARTIAL = 6  # log2(64), within 5..10

Set = Callable[..., Scene]

both = pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])


def take_slabs(s: Scene, n: int, cpu: int = 0) -> list[list[int]]:
    """Allocate all objects of n fresh slabs, queues ending empty; the objects of each, ascending.

    64 objects a slab: 16 + 48 from the first, 60 + 4 from each other (a refill gives what the
    partial slab has), so n * 64 allocations leave the queue empty and no slab partial.
    """
    taken = s.alloc(cpu, n * 64)
    assert s.cpu(cpu) == []
    assert s.partial() == []
    s.delta()
    return [taken[i * 64 : i * 64 + 64] for i in range(n)]


# ---- allocation  ---------------------------------------------------------------------------------


@both
def test_the_first_refill_of_an_untouched_queue_is_16(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    first = s.one(0)
    # Nothing anywhere: a slow path that fetches one new slab and takes min(60, 16) of its 64
    # objects, lowest first; the caller gets index 0, the queue holds 15..1 with 1 on top.
    s.counted(alloc_slowpath=1, alloc_slab=1)
    slab = s.slab(first)
    assert first == slab
    assert s.cpu(0) == s.objects(slab, 15, 1)
    assert s.partial() == [(slab, 48)]
    assert s.touched("cpu", cpu=0)  # the allocation counts as a pop


@both
def test_pops_ascend_and_are_counted_one_by_one(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    got = s.alloc(0, 16)
    assert got == s.objects(got[0], 0, 15)
    s.counted(alloc_slowpath=1, alloc_slab=1, alloc_fastpath=15)
    assert s.cpu(0) == []


@both
def test_a_touched_queue_is_refilled_by_a_batch_or_what_the_slab_has(
    scene: Set, debug: str | None
) -> None:
    s = scene(debug=debug)
    slab = s.alloc(0, 16)[0]
    s.delta()
    # Touched: 60 are wanted, the partial slab has 48: it gives all, leaves the list, and as
    # something was obtained no new slab is fetched.
    assert s.one(0) == slab + 16 * 64
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.cpu(0) == s.objects(slab, 63, 17)
    assert s.partial() == []
    # 47 pops, then a new slab: 60 of 64, the other 4 stay at the list's head.
    s.alloc(0, 47)
    s.delta()
    second = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=1)
    assert s.cpu(0) == s.objects(second, 59, 1)
    assert s.partial() == [(second, 4)]


@both
def test_a_refill_goes_through_partial_slabs_from_the_head(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    a, b = take_slabs(s, 2)
    s.free(0, [a[10], b[5], a[11], b[6], a[12]])
    s.flush()
    # The drain puts a's three and b's two back, sorted by slab: a goes to the head, then b.
    assert s.partial() == [(b[0], 2), (a[0], 3)]
    # One flush on each of the two CPUs.
    s.counted(free_fastpath=5, queue_flush=2, free_add_partial=2)
    # b's two objects fill the bottom, a's three come above them, each highest first.
    assert s.one(0) == a[10]
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.cpu(0) == [b[6], b[5], a[12], a[11]]
    assert s.partial() == []
    s.alloc(0, 4)


@both
def test_a_partial_slab_that_is_not_used_up_stays_at_the_head(
    scene: Set, debug: str | None
) -> None:
    s = scene(debug=debug)
    a, b = take_slabs(s, 2)
    s.free(0, b[:3])
    s.flush()
    s.free(0, a[:40])
    s.flush()
    assert s.partial() == [(a[0], 40), (b[0], 3)]
    s.delta()
    # Drained queues are untouched: 16 of the head's 40.
    assert s.one(0) == a[0]
    assert s.cpu(0) == list(reversed(a[1:16]))
    assert s.partial() == [(a[0], 24), (b[0], 3)]
    s.counted(alloc_slowpath=1, alloc_from_partial=1)


@both
def test_refills_stop_at_the_queue_size_that_was_asked_for(scene: Set, debug: str | None) -> None:
    # Queue 8, batch 4, real capacity 13 (8*8 + 24 bytes fill two lines of 64).
    s = scene(cpu_queue_size=8, debug=debug)
    got = s.alloc(0, 1)
    # A batch of at most 16 is never cut: 4 of the new slab.
    assert s.cpu(0) == s.objects(got[0], 3, 1)
    s.counted(alloc_slowpath=1, alloc_slab=1)


@both
def test_one_miss_fetches_one_slab(scene: Set, debug: str | None) -> None:
    # 8192 bytes on two CPUs: slabs of 4 objects (order 3), queue 8, batch 4; page-sized and larger
    # objects have no shared queue.
    s = scene(8192, debug=debug)
    assert (s.cache.order, s.cache.objects_per_slab) == (3, 4)
    got = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=1)
    assert s.cpu(0) == s.objects(got, 3, 1)
    # A batch of 8 would need two slabs; one request needs one object, so one slab is fetched.
    s.cache.tunables.batch_size = 8
    s.alloc(0, 3)
    s.delta()
    second = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=1)
    assert s.cpu(0) == s.objects(second, 3, 1)


def test_as_posted_a_miss_fetches_slabs_until_a_batch_is_there(scene: Set) -> None:
    s = scene(8192, eager_refill=1)
    s.cache.tunables.batch_size = 8
    got = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=2)
    # The first slab's four at the bottom, the second's above them.
    first, second = (int(address) for address in sorted(s.cache.slabs()["address"]))
    assert got == second
    assert s.cpu(0) == s.objects(first, 3, 0) + s.objects(second, 3, 1)


# ---- shared queue  -------------------------------------------------------------------------------


def overflowed(s: Scene) -> tuple[list[int], list[int]]:
    """Objects of 3 slabs; 126 of them freed on CPU 0, the last of which overflows the queue."""
    objects = [address for slab in take_slabs(s, 3) for address in slab]
    s.free(0, objects[:CAPACITY])
    s.counted(free_fastpath=CAPACITY)
    assert s.cpu(0) == objects[:CAPACITY]
    s.free(0, objects[CAPACITY])
    return objects[: CAPACITY + 1], objects[CAPACITY + 1 :]


@both
def test_overflow_moves_the_oldest_batch_to_the_shared_queue(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    freed, _ = overflowed(s)
    s.counted(free_shared=1)
    assert s.shared() == freed[:BATCH]
    assert s.cpu(0) == freed[BATCH:]
    assert not s.touched("cpu", cpu=0)
    assert s.touched("shared", domain=0)
    assert s.partial() == []


@both
def test_refill_takes_the_top_of_the_shared_queue(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    freed, _ = overflowed(s)
    s.delta()
    # CPU 1's queue was never used: 16, the hottest of the 60, in order; the hottest is returned.
    assert s.one(1) == freed[59]
    s.counted(alloc_shared=1)
    assert s.cpu(1) == freed[44:59]
    assert s.shared() == freed[:44]
    # Then it is touched: min(44, 60).
    s.alloc(1, 15)
    s.counted(alloc_fastpath=15)
    assert s.one(1) == freed[43]
    s.counted(alloc_shared=1)
    assert s.cpu(1) == freed[:43]
    assert s.shared() == []


@both
def test_an_empty_shared_queue_sends_the_refill_to_slabs(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    assert not s.touched("shared", domain=0)
    s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=1)
    assert s.touched("shared", domain=0)  # the attempt counts, even for nothing


@both
def test_overflow_moves_no_more_than_the_shared_queue_has_room_for(
    scene: Set, debug: str | None
) -> None:
    # 64 entries asked for: 16 + 8*64 = 528 bytes, rounded to the general size 1024: 126 entries.
    s = scene(shared_queue_size=64, debug=debug)
    assert s.queue("shared", domain=0).capacity == 126
    objects = [address for slab in take_slabs(s, 6) for address in slab]
    s.free(0, objects[:126])  # moves 0..59, leaves 66
    s.free(0, objects[126:186])  # 60 more: the last overflows, moves 60..119
    s.counted(free_fastpath=125 + 59, free_shared=2)
    assert s.shared() == objects[:120]
    assert s.cpu(0) == objects[120:186]
    s.free(0, objects[186:245])
    assert len(s.cpu(0)) == CAPACITY
    s.delta()
    # Room for 6 only.
    s.free(0, objects[245])
    s.counted(free_shared=1)
    assert s.shared() == objects[:126]
    assert s.cpu(0) == objects[126:246]
    # 5 fit, then both are full: a batch of the oldest goes to slabs.
    s.free(0, objects[246:251])
    s.counted(free_fastpath=5)
    s.free(0, objects[251])
    # 126..185 lie in two slabs (objects 64..127 and 128..191), both with none free before.
    s.counted(free_slowpath=1, free_add_partial=2)
    assert s.shared() == objects[:126]
    assert s.cpu(0) == objects[186:252]
    assert s.partial() == [(objects[128], 58), (objects[64], 2)]
    assert not s.touched("cpu", cpu=0)


@both
def test_without_a_shared_queue_the_overflow_goes_to_slabs(scene: Set, debug: str | None) -> None:
    s = scene(shared_queue_size=0, debug=debug)
    assert s.queue("shared", domain=0) is None
    freed, _ = overflowed(s)
    # The oldest 60 are all of the first slab: 60 of its 64 objects free, slab at the head.
    s.counted(free_slowpath=1, free_add_partial=1)
    assert s.cpu(0) == freed[BATCH:]
    assert s.partial() == [(freed[0], 60)]


@both
def test_one_cpu_alone_has_no_shared_queue(scene: Set, debug: str | None) -> None:
    s = scene(cpus=1, debug=debug)
    s.free(0, s.one(0))
    assert [queue.kind for queue in queues_of(s.cache)] == ["cpu"]


@both
def test_another_cpus_object_of_the_node_is_an_ordinary_free(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    got = s.one(0)
    s.delta()
    s.free(1, got)
    s.counted(free_fastpath=1)
    assert s.cpu(1) == [got]


# ---- slabs  --------------------------------------------------------------------------------------


@both
def test_a_slab_that_gets_its_first_object_back_goes_to_the_head(
    scene: Set, debug: str | None
) -> None:
    s = scene(debug=debug)
    a, b, c = take_slabs(s, 3)
    for slab in (b, a, c):
        s.free(0, slab[7])
        s.flush()
    assert s.partial() == [(c[0], 1), (a[0], 1), (b[0], 1)]
    s.counted(free_fastpath=3, queue_flush=6, free_add_partial=3)
    # One that is on the list already keeps its place.
    s.free(0, b[8])
    s.flush()
    assert s.partial() == [(c[0], 1), (a[0], 1), (b[0], 2)]
    s.counted(free_fastpath=1, queue_flush=2)


@both
def test_an_entirely_free_slab_waits_at_the_tail(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    a, b = take_slabs(s, 2)
    s.free(0, a[3])
    s.flush()
    s.free(0, b)  # all 64 at once: b was on no list, is now entirely free
    s.flush()
    assert s.partial() == [(a[0], 1), (b[0], 64)]
    # One that was listed and becomes free moves to the tail as well.
    s.free(0, [x for x in a if x != a[3]])
    s.flush()
    assert s.partial() == [(b[0], 64), (a[0], 64)]


@both
def test_empty_slabs_beyond_min_partial_go_back(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    assert s.cache.tunables.min_partial == MIN_PARTIAL
    slabs = take_slabs(s, 9)
    # Kept while no more than min_partial are listed: with 0, 1, ... 6 others, so seven are kept.
    for slab in slabs[:7]:
        s.free(0, slab)
        s.flush()
    s.counted(free_fastpath=7 * 64, queue_flush=14, free_add_partial=7)
    assert [address for address, _ in s.partial()] == [slab[0] for slab in slabs[:7]]
    # The eighth finds seven: it goes back without having been on the list.
    s.free(0, slabs[7])
    s.flush()
    s.counted(free_fastpath=64, queue_flush=2, free_slab=1)
    # The ninth comes on the list with its first object and leaves it with its last.
    s.free(0, slabs[8][0])
    s.flush()
    s.free(0, slabs[8][1:])
    s.flush()
    s.counted(
        free_fastpath=64,
        queue_flush=4,
        free_add_partial=1,
        free_remove_partial=1,
        free_slab=1,
    )
    assert [address for address, _ in s.partial()] == [slab[0] for slab in slabs[:7]]


def test_as_posted_drains_go_object_by_object_in_queue_order(scene: Set) -> None:
    # Unsorted, slab a is left and entered again: b is added while a is already on the list.
    s = scene(sorted_drain=0, empty_to_tail=0)
    a, b = take_slabs(s, 2)
    s.free(0, [b[1], a[1], b[2], a[2]])
    s.flush()
    assert s.partial() == [(a[0], 2), (b[0], 2)]  # b first, then a at the head
    s.free(0, [x for x in a if x not in (a[1], a[2])])
    s.flush()
    assert s.partial() == [(a[0], 64), (b[0], 2)]  # entirely free, and keeps its place


# ---- flush, shrink  ------------------------------------------------------------------------------


@both
def test_flush_drains_the_cpu_queue_before_the_shared_queue(scene: Set, debug: str | None) -> None:
    s = scene(cpu_queue_size=8, shared_queue_size=8, debug=debug)
    # Queue 8: batch 4, capacity 13.  Shared: 16 + 8*8 = 80 -> 96 bytes: 10 entries.
    objects = s.alloc(0, 128)
    a, b = objects[:64], objects[64:]
    s.free(0, a[:4])
    s.free(0, b[:10])  # the 14th free overflows: the oldest four (all of slab a) are shared
    assert s.shared() == a[:4]
    assert s.cpu(0) == b[:10]
    s.delta()
    s.flush()
    # CPU 0's queue first: slab b is listed; then the shared queue: slab a comes before it.
    assert s.partial() == [(a[0], 4), (b[0], 10)]
    s.counted(queue_flush=2, free_add_partial=2)
    assert s.cpu(0) == s.shared() == []
    for kind, which in (("cpu", {"cpu": 0}), ("shared", {"domain": 0})):
        assert not s.touched(kind, **which)


@both
def test_shrink_frees_empty_slabs_and_puts_the_fullest_first(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    a, b, c, d = take_slabs(s, 4)
    for slab, n in ((a, 5), (b, 40), (c, 64), (d, 1)):
        s.free(0, slab[:n])
        s.flush()
    # d, b, a by heads, then the empty c at the tail.
    assert s.partial() == [(d[0], 1), (b[0], 40), (a[0], 5), (c[0], 64)]
    s.delta()
    assert s.shrink() == 4096
    s.counted(queue_flush=2, free_slab=1)
    assert s.partial() == [(d[0], 1), (a[0], 5), (b[0], 40)]


@both
def test_shrink_of_an_idle_cache_returns_every_slab(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    for slab in take_slabs(s, 3):
        s.free(1, slab)
    s.shrink()
    assert len(s.cache.slabs()) == 0
    assert s.cache.account()["reserved"] == 0


# ---- touched (the table of 2.9)  -----------------------------------------------------------------


@both
def test_touched_of_a_cpu_queue(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    objects = [address for slab in take_slabs(s, 3) for address in slab]

    def touched() -> bool:
        return s.touched("cpu", cpu=0)

    s.free(0, objects[1])
    s.flush()
    assert not touched()  # any drain
    s.free(0, objects[0])
    assert touched()  # a push without overflow
    s.expire()
    assert not touched()  # an expiration visit
    assert s.cpu(0) == [objects[0]]
    s.one(0)
    assert touched()  # a pop
    s.flush()
    s.free(0, objects[2:128])
    assert not touched()  # a push that overflowed
    s.one(0)
    assert touched()


@both
def test_touched_of_a_shared_queue(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)

    def touched() -> bool:
        return s.touched("shared", domain=0)

    got = s.one(0)
    assert touched()  # a refill attempt
    s.expire()
    assert not touched()  # an expiration visit
    s.free(0, got)
    assert not touched()  # frees that do not overflow leave it alone
    got = s.alloc(0, 200)
    s.flush()
    s.expire()
    assert not touched()
    s.free(0, got[:126])
    assert touched()  # an overflow attempt
    assert len(s.shared()) == BATCH
    s.flush()
    assert not touched()  # a drain


@both
def test_an_untouched_queue_is_refilled_by_16_only(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    take_slabs(s, 2)
    s.expire()  # clears the mark of the empty queue
    slab = s.one(0)
    assert s.cpu(0) == s.objects(slab, 15, 1)
    # Used up and touched: the whole batch, as far as the slab goes (48).
    s.alloc(0, 15)
    s.one(0)
    assert s.cpu(0) == s.objects(slab, 63, 17)


# ---- bulk  ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 200])
@both
def test_a_bulk_call_is_n_single_calls(scene: Set, debug: str | None, n: int) -> None:
    one, bulk = scene(debug=debug), scene(debug=debug)
    singly = one.alloc(0, n)
    with bulk.allocator.on_cpu(0):
        together = [int(address) for address in bulk.cache.alloc_bulk(n)]
    assert one.delta() == bulk.delta()
    base = one.slab(singly[0]), bulk.slab(together[0])
    assert [x - base[0] for x in singly] == [x - base[1] for x in together]
    assert one.cpu(0) == [x - base[1] + base[0] for x in bulk.cpu(0)]
    one.free(0, singly)
    with bulk.allocator.on_cpu(0):
        bulk.cache.free_bulk(together)
    assert one.delta() == bulk.delta()
    assert one.cpu(0) == [x - base[1] + base[0] for x in bulk.cpu(0)]
    assert one.shared() == [x - base[1] + base[0] for x in bulk.shared()]
    assert one.partial() == [(x - base[1] + base[0], free) for x, free in bulk.partial()]


def _state(s: Scene, base: int) -> tuple[object, ...]:
    """Everything single calls leave behind, addresses counted from `base`."""
    return (
        s.delta(),
        [x - base for x in s.cpu(0)],
        [x - base for x in s.shared()],
        [(x - base, free) for x, free in s.partial()],
        s.touched("cpu", cpu=0),
        s.touched("shared", domain=0),
    )


@pytest.mark.parametrize("queue", [8, 60, 120])
@pytest.mark.parametrize("shared", [0, 150, 601])
@pytest.mark.parametrize("seed", range(3))
def test_any_bulk_calls_are_as_many_single_calls(
    scene: Set, queue: int, shared: int, seed: int
) -> None:
    # Sizes around none, one and many batches, so that whole batches pass between the caller and the
    # shared queue, which is short, long or missing; queues visited by ageing in between.
    tunables = {"cpu_queue_size": queue, "shared_queue_size": shared}
    one, bulk = scene(**tunables), scene(**tunables)
    draw = random.Random(seed)
    singly: list[int] = []
    together: list[int] = []
    bases: tuple[int, int] | None = None
    for _ in range(40):
        n = draw.choice([1, queue - 1, queue, 2 * queue + 1, 5 * queue, draw.randrange(1, 900)])
        if draw.random() < 0.5 or not singly:
            got = one.alloc(0, n)
            with bulk.allocator.on_cpu(0):
                other = [int(address) for address in bulk.cache.alloc_bulk(n)]
            bases = bases or (one.slab(got[0]), bulk.slab(other[0]))
            assert [x - bases[0] for x in got] == [x - bases[1] for x in other]
            singly += got
            together += other
        else:
            assert bases
            first = draw.randrange(len(singly))
            last = min(len(singly), first + n)
            one.free(0, singly[first:last])
            with bulk.allocator.on_cpu(0):
                bulk.cache.free_bulk(together[first:last])
            del singly[first:last], together[first:last]
        assert bases
        assert _state(one, bases[0]) == _state(bulk, bases[1])
        if draw.random() < 0.2:
            assert one.expire() == bulk.expire()
    one.free(0, singly)
    bulk.cache.free_bulk(together)


# ---- domains  ------------------------------------------------------------------------------------


@both
def test_each_cache_domain_has_a_shared_queue_of_its_own(scene: Set, debug: str | None) -> None:
    # One node, two domains of two CPUs: CPUs 0 and 1, CPUs 2 and 3.
    s = scene(domains=2, debug=debug)
    freed, _ = overflowed(s)
    s.delta()
    assert s.shared(0) == freed[:BATCH]
    assert s.shared(1) == []
    # CPU 2 does not reach domain 0's objects: it takes a new slab.
    s.one(2)
    s.counted(alloc_slowpath=1, alloc_slab=1)
    assert s.one(1) == freed[59]
    s.counted(alloc_shared=1)


@both
def test_single_cpu_domains_of_a_node_form_one_group(scene: Set, debug: str | None) -> None:
    # Four domains of one CPU on one node: one shared queue for them all.
    s = scene(domains=4, cpus=1, debug=debug)
    freed, _ = overflowed(s)
    assert [queue.kind for queue in queues_of(s.cache)].count("shared") == 1
    s.delta()
    assert s.one(3) == freed[59]
    s.counted(alloc_shared=1)


# ---- many CPUs in a domain  ----------------------------------------------------------------------

SHARD = 511  # half of the 1022 entries that 600 asked for become (16 + 8*600 bytes: two pages)


def shards(s: Scene) -> list[list[int]]:
    """What the shards of the first domain's shared queue hold, in the order of their CPUs."""
    return [row.addresses for row in queues_of(s.cache, kind="shared", domain=0)]


@both
def test_above_eight_cpus_a_shared_queue_has_shards(scene: Set, debug: str | None) -> None:
    s = scene(cpus=16, debug=debug)
    # 16 CPUs: two shards of 8, which share the capacity.
    assert [q.capacity for q in queues_of(s.cache, kind="shared")] == [SHARD, SHARD]
    freed, rest = overflowed(s)
    s.delta()
    assert shards(s) == [freed[:BATCH], []]
    # CPU 7 goes to the first as well; CPU 8, whose own is empty, finds the other: 16 of the 44.
    assert s.one(7) == freed[59]
    assert s.one(8) == freed[43]
    s.counted(alloc_shared=2)
    assert s.cpu(8) == freed[28:43]
    assert shards(s) == [freed[:28], []]
    # What overflows there stays there: 15 + 66 + 125 frees pass 125 twice.
    more = s.alloc(15, CAPACITY)
    s.free(8, rest + more)
    assert len(shards(s)[1]) == 2 * BATCH


@both
def test_a_full_shard_sends_the_overflow_to_another(scene: Set, debug: str | None) -> None:
    # 240 entries asked for: 16 + 8*240 = 1936, rounded to 2048: 254, halved 127.  Room for two
    # batches of 60 and 7 more.
    s = scene(cpus=16, shared_queue_size=240, debug=debug)
    assert [q.capacity for q in queues_of(s.cache, kind="shared")] == [127, 127]
    objects = [address for slab in take_slabs(s, 6) for address in slab]
    s.free(0, objects[: CAPACITY + 1 + 2 * BATCH])
    assert [len(held) for held in shards(s)] == [127, 0]
    s.delta()
    # Three overflows: 60, 60 and the 7 that still fit, which left 119 in the CPU's queue.
    assert len(s.cpu(0)) == CAPACITY + 1 + 2 * BATCH - 127
    s.free(0, objects[246:252])
    s.counted(free_fastpath=6)
    s.free(0, objects[252])
    s.counted(free_shared=1)
    assert shards(s) == [objects[:127], objects[127:187]]
    # Every shard ages by itself: marks first, then a batch of each.
    s.expire()
    s.expire()
    assert [len(held) for held in shards(s)] == [127 - BATCH, 0]


def test_shards_can_be_switched_off_and_are_no_smaller_than_two_batches(scene: Set) -> None:
    s = scene(cpus=16, shard_cpus=0)
    assert [q.capacity for q in queues_of(s.cache, kind="shared")] == [2 * SHARD]
    s = scene(cpus=16, shard_cpus=2, shared_queue_size=64)
    assert [q.capacity for q in queues_of(s.cache, kind="shared")] == [2 * BATCH] * 8
    s = scene(cpus=9)
    assert [q.capacity for q in queues_of(s.cache, kind="shared")] == [SHARD, SHARD]
    objects = [address for slab in take_slabs(s, 3) for address in slab]
    s.free(0, objects[: CAPACITY + 1])
    s.free(8, objects[CAPACITY + 1 :])
    # Live resizing keeps what they hold.
    held = shards(s)
    s.cache.tunables.shared_queue_size = 700
    assert shards(s) == held
    s.cache.tunables.shared_queue_size = 0
    assert shards(s) == []


# ---- cache domains of a node  --------------------------------------------------------------------


@both
def test_each_domain_has_its_partial_list_and_steals_from_others(
    scene: Set, debug: str | None
) -> None:
    s = scene(domains=2, debug=debug)
    a, b = s.alloc(0, 64), s.alloc(2, 64)  # a slab for each domain, both used up
    s.free(0, a[:3])
    s.free(2, b[:2])
    s.flush()
    assert s.partial() == [(a[0], 3), (b[0], 2)]  # the list of domain 0, then that of domain 1
    s.delta()
    # CPU 2 finds something on its domain's list, and is content with it: untouched, it wants 16.
    assert s.one(2) == b[0]
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.cpu(2) == [b[1]]
    assert s.partial() == [(a[0], 3)]
    s.one(2)
    s.delta()
    # Now its own has none: the other domain's serves, before a new slab is got.
    assert s.one(2) == a[0]
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.cpu(2) == [a[2], a[1]]
    # The slab belongs where it came from: freed and drained here it is on that list again.
    s.free(2, [a[0], b[0]])
    s.flush()
    assert s.partial() == [(a[0], 3), (b[0], 1)]
    s.delta()
    assert s.one(1) == a[0]
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.partial() == [(b[0], 1)]


def test_partial_lists_need_not_be_split(scene: Set) -> None:
    s = scene(domains=2, split_partial=0)
    a, b = s.alloc(0, 64), s.alloc(2, 64)
    s.free(0, a[:3])
    s.free(2, b[:2])
    s.flush()
    # One list: each drain puts its slab at the head.
    assert s.partial() == [(b[0], 2), (a[0], 3)]
    s.delta()
    s.one(0)
    # 16 are wanted: both slabs give what they have.
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert len(s.cpu(0)) == 4
    assert s.partial() == []


def test_lists_of_a_node_share_min_partial(scene: Set) -> None:
    s = scene(domains=2)
    slabs = take_slabs(s, 5)
    others = take_slabs(s, 1, cpu=2)
    for slab in slabs:
        s.free(0, slab)
        s.flush()
    # Half of 6: kept while no more than 3 are listed: with 0, 1, 2 and 3 others; the fifth goes.
    s.counted(free_fastpath=5 * 64, queue_flush=5 * 4, free_add_partial=4, free_slab=1)
    # The other list has room of its own.
    s.free(2, others[0])
    s.flush()
    s.counted(free_fastpath=64, queue_flush=4, free_add_partial=1)
    assert [free for _, free in s.partial()] == [64] * 5
    # Shrinking and ageing go through both.
    assert s.shrink() == 5 * 4096
    assert s.partial() == []
