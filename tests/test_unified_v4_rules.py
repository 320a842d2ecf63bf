"""V4 as posted, path by path, on a scripted machine: what Unified as intended does otherwise.

Every expected value is derived in the comment beside it from the published description (section 2
of it, and its table 2.13).  The numbers used most, for objects of 64 bytes on two CPUs: a slab is
one page of 64 objects; the CPU queue is asked for 120, moves batches of 60 and really holds 125;
the shared queue is asked for 600.  A queue is written oldest first; a refill leaves the lowest
address of a slab on top, so that pops ascend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from rules.machines import grid
from rules.scene import Scene

import unislab as us

pytestmark = pytest.mark.once

BATCH = 60
CAPACITY = 125
PAGE = 4096
SIZES = (8, 16, 24, 32, 64, 96, 128, 192, 256, 264, 512, 1024, 1032, 2048, 4096, 4104, 8192, 16384)

Set = Callable[..., Scene]
both = pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])


@pytest.fixture
def posted(scene: Set) -> Set:
    """Sets a cache of V4 as posted."""
    return functools.partial(scene, policy="unified-v4")


# ---- sizes and geometry  -------------------------------------------------------------------------


def queue_by_size(size: int) -> int:
    """2.3: the CPU queue that is asked for."""
    return 8 if size > 4096 else 24 if size > 1024 else 54 if size > 256 else 120


# 2.3: real capacities of the CPU queue, and of alien queues on 2 to 4, 5 to 32 and more nodes.
CPU_CAPACITY = {8: 13, 24: 29, 54: 61, 120: 125}
ALIENS = {8: (14, 14, 6), 24: (30, 30, 6), 54: (62, 30, 6), 120: (126, 30, 6)}


def block(alien_bytes: int, entries: int) -> int:
    """2.3: the shared queue's capacity: what header and aliens leave of the rounded block."""
    total = alien_bytes + 16 + 8 * entries
    general = [8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048]
    fitting = [size for size in general if size >= total] if total <= PAGE // 2 else []
    rounded = fitting[0] if fitting else max(PAGE, 1 << (total - 1).bit_length())
    return (rounded - alien_bytes - 16) // 8


@pytest.mark.parametrize("size", SIZES)
def test_queue_sizes_equal_the_published_table(posted: Set, size: int) -> None:
    queue = queue_by_size(size)
    for nodes, column in ((1, None), (2, 0), (4, 0), (6, 1), (33, 2)):
        s = posted(size, nodes=nodes, cpus=2)
        shown = s.cache.tunables
        assert shown.queue_size == queue
        assert shown.batch_size == (queue + 1) // 2
        assert shown.cpu_queue_size == CPU_CAPACITY[queue]
        second_level = size < PAGE
        alien = ALIENS[queue][column] if column is not None and second_level else 0
        assert shown.alien_queue_size == alien
        assert shown.shared_queue_desired == (10 * ((queue + 1) // 2) if second_level else 0)
        room = block((nodes - 1) * (alien * 8 + 16 if alien else 0), 10 * ((queue + 1) // 2))
        assert shown.shared_queue_size == (room if second_level else 0)


def test_queues_are_accounted_as_the_posted_blocks(make: Callable[..., us.Allocator]) -> None:
    """2.3, the example: CPU queues of 1 KiB, and a domain's aliens and shared queue in 8 KiB."""
    alloc = make("unified-v4", machine=grid(4, 1, 2))

    def made(**tunables: int) -> int:
        before = alloc.account()["metadata"]
        cache = alloc.create_cache("made", 64, **tunables)
        taken = alloc.account()["metadata"] - before
        cache.destroy()
        assert alloc.account()["metadata"] == before
        return taken

    # Beside them a table of four pointers for each domain, which V4 did not need.
    assert made() - made(shared_queue_size=0) == 4 * (8192 + 4 * 8)
    cache = alloc.create_cache("used", 64)
    with alloc.on_cpu(0):
        address = cache.alloc_address()
    before = alloc.account()["metadata"]
    with alloc.on_cpu(1):
        cache.free(address)
    assert alloc.account()["metadata"] - before == 1024


@pytest.mark.parametrize("policy", ["unified-v4", "sleb"])
@pytest.mark.parametrize("size", SIZES)
def test_a_bitmap_above_one_word_takes_room_of_the_slab(scene: Set, policy: str, size: int) -> None:
    s = scene(size, policy=policy)
    slab = PAGE << s.cache.order
    # 2.2: up to 64 objects the bitmap is the metadata word; above, objects and bits share the slab.
    objects = slab // size
    if objects > 64:
        objects = (slab // 8 * 64) // (size // 8 * 64 + 1)
    assert s.cache.objects_per_slab == objects
    assert objects * size + (8 * -(-objects // 64) if objects > 64 else 0) <= slab
    got = s.one(0)
    account = s.cache.account()
    # What the objects do not use is waste, the unused bitmap's room included.
    slabs = len(s.cache.slabs())
    assert account["waste"] == slabs * (slab - objects * size)
    s.free(0, got)


def test_order_is_slubs_with_at_most_64_objects_wanted(posted: Set) -> None:
    # 2.2: min(64, 4*(fls(cpus)+1)) objects are wanted: 12 on 2 CPUs, 32 on 64.  The smallest order
    # that holds them serves, 256 bytes leaving no waste.
    for nodes, cpus, wanted in ((1, 2, 12), (4, 16, 32)):
        s = posted(256, nodes=nodes, cpus=cpus)
        assert s.cache.order == next(o for o in range(4) if PAGE << o >= wanted * 256)


def test_rows_that_v4_lacks_are_unknown(make: Callable[..., us.Allocator]) -> None:
    alloc = make("unified-v4", machine=grid())
    for name in ("eager_refill", "sorted_drain", "empty_to_tail", "queue_budget", "adapt_period"):
        with pytest.raises(ValueError, match=f"unified-v4.*{name}"):
            alloc.create_cache("refused", 64, **{name: 1})
    cache = alloc.create_cache("taken", 64)
    assert {"cpu_queue_size", "shared_queue_size", "alien_queue_size", "expire"} <= set(
        cache.tunables
    )
    assert "adapt_max" not in cache.tunables


# ---- allocation  ---------------------------------------------------------------------------------


@both
def test_a_miss_fetches_slabs_until_a_batch_is_there(posted: Set, debug: str | None) -> None:
    # 16 KiB: two objects a slab of order 3; batch 4, so that a miss needs two slabs.
    s = posted(16384, debug=debug)
    assert (s.cache.order, s.cache.objects_per_slab) == (3, 2)
    got = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=2)
    first, second = (int(address) for address in sorted(s.cache.slabs()["address"]))
    # Each slab is taken from its high end down; the second lies above the first.
    assert got == second
    assert s.cpu(0) == [*s.objects(first, 1, 0), second + s.stride]


@both
def test_what_partial_slabs_gave_is_enough(posted: Set, debug: str | None) -> None:
    s = posted(16384, debug=debug)
    got = s.alloc(0, 4)
    s.free(0, got[0])
    s.flush()
    s.delta()
    # 2.6.1 d: something was obtained, though less than a batch: no slab is fetched.
    assert s.one(0) == got[0]
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.cpu(0) == []


def test_one_cpu_refills_from_slabs_only(posted: Set) -> None:
    s = posted(cpus=1)
    assert s.queue("shared", domain=0) is None
    first = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=1)
    assert s.cpu(0) == s.objects(first, 15, 1)  # untouched: 16
    s.alloc(0, 15)
    s.delta()
    s.one(0)
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.cpu(0) == s.objects(first, 63, 17)  # touched: 60, of which the slab has 48


def test_a_named_node_is_ignored(posted: Set) -> None:
    # Row 1: the effective node is the local one unless the cache is spread by memory policy.
    s = posted(nodes=2)
    s.alloc(0, 2, node=1)
    s.counted(alloc_slowpath=1, alloc_slab=1, alloc_fastpath=1)
    assert s.partial(1) == []
    assert s.partial(0) == [(s.slab(s.cpu(0)[0]), 48)]
    # A node that must be is honoured all the same: the first alien allocation of the domain.
    there = s.one(0, node=1, thisnode=True)
    s.counted(alloc_alien_slow=1, alloc_alien=1, alloc_slab=1)
    assert s.alien(0, 1) == s.objects(there, 63, 1)


def test_a_named_node_counts_in_a_spread_cache(posted: Set) -> None:
    s = posted(nodes=2, flags=("mem_spread",))
    there = s.one(0, node=1)
    # 2.6.2: from one slab min(available 64, min(126, 120) - 0); the pop counts as ALLOC_ALIEN.
    s.counted(alloc_alien_slow=1, alloc_alien=1, alloc_slab=1)
    assert s.alien(0, 1) == s.objects(there, 63, 1)
    assert s.one(1, node=1) == there + 64  # the CPUs of a domain share it
    s.counted(alloc_alien=1)


def test_an_alien_refill_is_a_whole_queue(posted: Set) -> None:
    # 16 bytes: 254 objects a slab (254*16 bytes and 254 bits fill a page); 120 go to the alien
    # queue, not a batch of 60, from the slab at the tail; the rest stays listed at the tail.
    s = posted(16, nodes=2, flags=("mem_spread",))
    there = s.one(0, node=1)
    assert len(s.alien(0, 1)) == 119
    assert s.partial(1) == [(s.slab(there), 254 - 120)]


def test_what_the_provider_takes_elsewhere_is_queued_all_the_same(
    make: Callable[..., us.Allocator],
) -> None:
    # Two nodes of 4 MiB: one is used up, so that a miss on its CPU gets a slab of the other.
    alloc = make("unified-v4", machine=grid(2, 1, 1), memory="8 MiB")
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
        # 2.6.2, end: foreign objects enter the queue; the rest of the slab is on its true node.
        assert s.cpu(0) == s.objects(one, 15, 1)
        assert s.partial(1) == [(one, 48)]
        two = s.one(0)
        s.counted(alloc_fastpath=1)
        # They are freed to their true node: the alien queue of node 1.
        s.free(0, [one, two])
        s.counted(free_alien=2)
        assert s.alien(0, 1) == [one, two]
        full.free_bulk(got)


# ---- free  ---------------------------------------------------------------------------------------


def overflowed(s: Scene) -> tuple[list[int], list[int]]:
    """Objects of 3 slabs; 126 of them freed on CPU 0, the last of which overflows the queue."""
    objects = [address for slab in s.take_slabs(3) for address in slab]
    s.free(0, objects[: CAPACITY + 1])
    return objects[: CAPACITY + 1], objects[CAPACITY + 1 :]


@both
def test_overflow_moves_the_oldest_batch_to_the_domains_shared_queue(
    posted: Set, debug: str | None
) -> None:
    s = posted(domains=2, debug=debug)
    freed, _ = overflowed(s)
    s.counted(free_fastpath=CAPACITY, free_shared=1)
    assert s.shared(0) == freed[:BATCH]
    assert s.cpu(0) == freed[BATCH:]
    assert not s.touched("cpu", cpu=0)
    # CPU 1 shares it: 16 of the top for an untouched queue.  CPU 2 is in the other domain: slabs.
    assert s.one(1) == freed[BATCH - 1]
    s.counted(alloc_shared=1)
    assert s.cpu(1) == freed[BATCH - 16 : BATCH - 1]
    s.one(2)
    s.counted(alloc_slowpath=1, alloc_slab=1)


def test_a_shared_queue_without_room_sends_the_overflow_to_slabs(posted: Set) -> None:
    # 60 entries asked for: 16 + 8*60 = 496 bytes, rounded to 512: 62 entries.
    s = posted(shared_queue_size=60)
    assert s.queue("shared", domain=0).capacity == 62
    freed, rest = overflowed(s)
    s.free(0, rest[:59])  # 66 + 59 = 125
    s.delta()
    # Room for two: they move, and the queue is no longer full.
    s.free(0, rest[59])
    s.counted(free_shared=1)
    assert s.shared() == freed[:62]
    assert len(s.cpu(0)) == 124
    s.free(0, rest[60])
    s.counted(free_fastpath=1)
    # No room: the oldest 60 go to slabs: objects 62 to 121 lie in two of them, in queue order.
    s.free(0, rest[61])
    s.counted(free_slowpath=1, free_add_partial=2)
    assert s.shared() == freed[:62]
    assert s.partial() == [(freed[64], 58), (freed[0], 2)]


def test_a_full_alien_queue_drains_its_oldest_batch(posted: Set) -> None:
    s = posted(nodes=2)
    a, b = s.take_slabs(2, cpu=2)
    s.free(0, [*a, *b[:62]])
    s.counted(free_alien=126)
    assert len(s.alien(0, 1)) == 126
    assert s.touched("alien", domain=0, node=1)
    s.free(0, b[62])
    # The oldest 60 are all of slab a, which comes on its node's list.
    s.counted(free_alien_slow=1, free_add_partial=1)
    assert s.alien(0, 1) == [*a[60:], *b[:63]]
    assert s.partial(1) == [(a[0], 60)]
    assert not s.touched("alien", domain=0, node=1)


def test_a_drain_goes_through_the_vector_as_it_is(posted: Set) -> None:
    s = posted()
    a, b = s.take_slabs(2)
    s.free(0, [b[5], a[10], b[6], a[11]])
    s.flush()
    # b's first object lists b, a's lists a at the head; ordered by slab it would be b's turn last.
    s.counted(free_fastpath=4, queue_flush=2, free_add_partial=2)
    assert s.partial() == [(a[0], 2), (b[0], 2)]


def test_empty_slabs_stay_where_they_are_or_go_to_the_head(posted: Set) -> None:
    s = posted()
    a, b, c = s.take_slabs(3)
    for slab in (b, c):
        s.free(0, slab[:2])
        s.flush()
    assert s.partial() == [(c[0], 2), (b[0], 2)]
    s.free(0, c[2:])  # listed and now empty: it keeps its place
    s.flush()
    assert s.partial() == [(c[0], 64), (b[0], 2)]
    s.free(0, a)  # not listed, and empty at once: the head
    s.flush()
    assert s.partial() == [(a[0], 64), (c[0], 64), (b[0], 2)]


# ---- limits  -------------------------------------------------------------------------------------


def test_a_batch_cannot_be_lowered(posted: Set) -> None:
    # Row 8: values below the queue's size are rejected.
    s = posted(16)
    with pytest.raises(ValueError, match="batch_size 30 is below queue_size 120"):
        s.cache.tunables.batch_size = 30
    assert s.cache.tunables.batch_size == BATCH
    with pytest.raises(ValueError, match="batch_size 119 is below queue_size 120"):
        s.allocator.create_cache("refused", 16, batch_size=119)
    # Above it they are taken; a refill stops at queue_size: 120 of the slab's 254.
    s.cache.tunables.batch_size = 200
    s.alloc(0, 16)  # the first 16 of an untouched queue
    s.one(0)
    assert len(s.cpu(0)) == 119


def test_lowmem_keeps_five_empty_slabs(posted: Set) -> None:
    # Row 9: LOWMEM asks for 0, the setter clamps it to 5.  Queue 5, batch 3, real capacity 5.
    s = posted(flags=("lowmem",))
    shown = s.cache.tunables
    assert (shown.queue_size, shown.batch_size, shown.cpu_queue_size) == (5, 3, 5)
    assert shown.shared_queue_size == 0
    assert shown.min_partial == 5
    objects = sorted(s.alloc(0, 8 * 64))
    s.flush()
    s.delta()
    s.free(0, objects)
    s.flush()
    # Slab after slab comes on the list with its first object.  The sixth to be emptied finds six
    # listed, itself among them, which is above 5, and goes back; so do those after it.
    moved = s.delta()
    assert moved["free_slab"] == moved["free_remove_partial"] == 3
    assert [free for _, free in s.partial()] == [64] * 5


def test_resizing_empties_what_it_replaces(posted: Set) -> None:
    s = posted()
    freed, _ = overflowed(s)
    s.delta()
    s.cache.tunables.shared_queue_size = 200
    # 2.11: shared queues are drained and made anew; CPU queues stay.  60 objects of the first slab.
    s.counted(free_add_partial=1)
    assert s.shared() == []
    assert s.cpu(0) == freed[BATCH:]
    s.cache.tunables.cpu_queue_size = 54
    # The old area of every CPU is flushed: 4 objects of the first slab, which is empty now and
    # keeps its place, and 62 of the second, which goes to the head.
    s.counted(queue_flush=2, free_add_partial=1)
    assert s.cpu(0) == []
    assert s.partial() == [(freed[64], 62), (freed[0], 64)]
    shown = s.cache.tunables
    assert (shown.queue_size, shown.batch_size, shown.cpu_queue_size) == (54, 27, 61)


# ---- expiration  ---------------------------------------------------------------------------------


def test_the_last_alien_slot_never_expires(posted: Set) -> None:
    # Row 5, three nodes: seen from node 0, slot 1 is node 1's and slot 2 node 2's; slots 0 and 1
    # are visited.
    s = posted(nodes=3, cpus=1)
    of = {node: s.alloc(node, 10) for node in (1, 2)}
    s.free(0, of[1] + of[2])
    assert s.expire(0) == 0  # marks only
    assert not s.touched("alien", domain=0, node=1)
    assert s.touched("alien", domain=0, node=2)
    assert s.expire(0) == 10 * 64
    assert s.alien(0, 1) == []
    for _ in range(3):
        s.expire(0)
    assert s.alien(0, 2) == of[2]
    # Seen from node 2 the slots are 1: node 0, 2: node 1.
    mine = s.alloc(0, 10)
    other = s.alloc(1, 10)
    s.free(2, mine + other)
    for _ in range(4):
        s.expire(2)
    assert s.alien(2, 0) == []
    assert s.alien(2, 1) == other


def test_the_shared_queue_is_visited_with_the_aliens(posted: Set) -> None:
    # Row 5: slot 0 is the shared queue.  The alien stage takes its mark, the shared stage of the
    # same pass a batch; so does the CPU stage, since an overflow leaves the CPU queue untouched.
    s = posted(nodes=2)
    freed, _ = overflowed(s)
    assert s.touched("shared", domain=0)
    assert s.expire(0) == 2 * BATCH * 64
    assert s.shared() == []
    assert s.cpu(0) == freed[2 * BATCH :]
    # On one node there is no alien stage, and the first pass takes the mark only.
    s = posted()
    freed, _ = overflowed(s)
    assert s.expire(0) == BATCH * 64
    assert s.shared() == freed[:BATCH]


def test_the_cpu_stage_takes_the_marks_of_all_cpus(posted: Set) -> None:
    # Row 6: CPUs of other nodes are not drained, but count as untouched from then on.
    s = posted(nodes=2, cpus=1)
    got = s.alloc(1, 3)
    held = s.cpu(1)
    assert s.touched("cpu", cpu=1)
    assert s.expire(0) == 0
    assert s.cpu(1) == held
    assert not s.touched("cpu", cpu=1)
    assert s.expire(1) == len(held) * 64
    s.free(1, got)


def test_a_pass_over_all_caches_never_comes_to_cpu_queues(posted: Set) -> None:
    # Row 4: general caches of a page or more have no shared queue; for such a cache the stage
    # fails, which ends the pass.  A cache alone goes through all stages.
    s = posted()
    got = s.alloc(0, 64)
    s.free(0, got[:40])
    for _ in range(4):
        s.allocator.expire()
    assert s.cpu(0) == got[:40]
    assert s.touched("cpu", cpu=0)
    assert s.expire() == 0
    assert s.expire() == 40 * 64
    assert s.cpu(0) == []


def test_writing_all_runs_the_partial_stage_only(posted: Set) -> None:
    # Row 7: the loop over all nodes leaves no node for the stages after the first.
    s = posted()
    a, b = s.take_slabs(2)
    s.free(0, a)
    s.flush()
    s.free(0, b[:40])
    assert s.partial() == [(a[0], 64)]
    s.cache.tunables.expire = -1  # the list was touched: its mark goes
    s.cache.tunables.expire = -1  # untouched: empty slabs go
    assert s.partial() == []
    assert s.cpu(0) == b[:40]
    assert s.touched("cpu", cpu=0)
    s.cache.tunables.expire = 0  # a node: all stages
    s.cache.tunables.expire = 0
    assert s.cpu(0) == []
    assert s.cache.tunables.expire == 40 * 64
