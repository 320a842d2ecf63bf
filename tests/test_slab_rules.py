"""SLAB, path by path, on a scripted machine: exact counters, arrays, and the three lists of slabs.

Every expected value is derived in the comment beside it from the written rules.  The numbers used
most, for objects of 64 bytes on two CPUs: a descriptor of 48 + 4 * 59 = 284 bytes, rounded to 288,
and 59 objects fit a page (288 + 59 * 64 = 4064); CPU arrays hold 120 and move batches of 60, the
node's shared array holds 8 batches.  Arrays are written oldest first.  A refill pushes objects in
the order in which the slab gives them, so that the last one it took is handed out first; slabs give
what was freed last first, fresh ones ascend.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rules.inside import queues_of, slabs_of
from rules.machines import grid
from rules.names import ALLOCS, FREES, SLAB
from rules.scene import Scene
from rules.slab_model import Obj, SlabModel

import unislab as us

pytestmark = pytest.mark.once

NUM = 59
FIRST = 288  # offset of the first object
LIMIT = 120
BATCH = 60


class SlabScene(Scene):
    """A scene whose slabs are on three lists and begin at an offset."""

    counters = SLAB
    offset = FIRST

    def on(self, place: str, node: int = 0) -> list[tuple[int, int]]:
        """(address, free objects) of the slabs on one of a node's lists, head first."""
        found = [row for row in slabs_of(self.cache, node=node) if row.place == place]
        assert all(row.position is not None for row in found)
        return [(row.address, row.free) for row in sorted(found, key=lambda row: row.position)]

    def lists(self, node: int = 0) -> dict[str, list[tuple[int, int]]]:
        """The lists of a node that are not empty."""
        every = {place: self.on(place, node) for place in ("partial", "full", "free")}
        return {place: slabs for place, slabs in every.items() if slabs}

    def index(self, address: int) -> int:
        """Number of an object in its slab."""
        index, rest = divmod(address - self.slab(address) - self.offset, self.stride)
        assert rest == 0
        return index

    def node_shared(self, node: int = 0) -> list[int]:
        """Objects in a node's shared array, oldest first."""
        return self._addresses(self.queue("shared", node=node))

    def slabs_taken(self, n: int, cpu: int = 0) -> list[list[int]]:
        """Allocate all objects of n fresh slabs, arrays ending empty; the objects of each slab.

        16 and 43 objects of the first slab, then 59 of each: a refill takes what the lists have,
        and grows only when that is nothing.
        """
        taken = self.alloc(cpu, n * NUM)
        assert self.cpu(cpu) == []
        assert set(self.lists()) == {"full"}
        self.delta()
        return [sorted(taken[i * NUM : (i + 1) * NUM]) for i in range(n)]


@pytest.fixture
def scene(make: Callable[..., us.Allocator]) -> Iterator[Callable[..., SlabScene]]:
    """Sets a cache of SLAB on a scripted machine; takes all objects back at the end."""
    made: list[SlabScene] = []

    def set_scene(
        size: int = 64,
        *,
        nodes: int = 1,
        domains: int = 1,
        cpus: int = 2,
        debug: str | None = None,
        memory: str | None = None,
        flags: tuple[str, ...] = (),
        align: int = 0,
        **tunables: Any,
    ) -> SlabScene:
        more = {"memory": memory} if memory else {}
        alloc = make("slab", machine=grid(nodes, domains, cpus), debug=debug, **more)
        while len(alloc.caches) % 4:  # the cache's number is a multiple of four: no stagger
            alloc.create_cache(f"filler-{len(alloc.caches)}", 8)
        cache = alloc.create_cache("scene", size, flags=flags, align=align, **tunables)
        made.append(SlabScene(alloc, cache))
        return made[-1]

    yield set_scene
    for one in made:
        with one.allocator.on_cpu(0):
            one.cache.free_bulk(one.cache.live())


Set = Callable[..., SlabScene]

# ---- allocation  ---------------------------------------------------------------------------------


def test_the_first_refill_of_an_untouched_array_is_16(scene: Set) -> None:
    s = scene()
    first = s.one(0)
    slab = s.slab(first)
    # Objects 0..15 are pushed, the last of them is handed out.
    assert s.index(first) == 15
    assert s.cpu(0) == s.objects(slab, 0, 14)
    s.counted(allocmiss=1, listallocs=16, maxobjs=16, grown=1)
    assert s.lists() == {"partial": [(slab, 43)]}
    assert s.touched("cpu", cpu=0)


def test_a_touched_array_is_refilled_with_a_batch_or_what_slabs_have(scene: Set) -> None:
    s = scene()
    slab = s.slab(s.one(0))
    assert s.alloc(0, 15) == s.objects(slab, 14, 0)
    s.counted(allocmiss=1, listallocs=16, maxobjs=16, grown=1, allochit=15)
    # 60 are wanted, 43 are there; as something was obtained the cache does not grow.
    got = s.one(0)
    assert s.index(got) == 58
    assert s.cpu(0) == s.objects(slab, 16, 57)
    s.counted(allocmiss=1, listallocs=43, maxobjs=43)
    assert s.lists() == {"full": [(slab, 0)]}


def test_a_refill_uses_up_partial_slabs_from_the_head_and_then_free_ones(scene: Set) -> None:
    s = scene()
    a, b, c = s.slabs_taken(3)
    for part in (a[1:3], b[:3], c):
        s.free(0, part)
        s.flush()
    # 2 + 3 + 59 free objects are not above the limit of 239: the emptied slab stays.
    assert s.lists() == {
        "partial": [(s.slab(a[0]), 2), (s.slab(b[0]), 3)],
        "free": [(s.slab(c[0]), NUM)],
    }
    s.delta()
    # Freed a1 a2: a2 comes first.  b2 b1 b0, then 55 of c, which was freed from 0 to 58.
    assert s.one(0) == c[4]
    assert s.cpu(0) == [a[2], a[1], b[2], b[1], b[0], *reversed(c[5:])]
    # 113 objects were out before, 173 are now: not as many as 177 at first.
    s.counted(allocmiss=1, listallocs=60)
    # Slabs that gave go to the head of their list.
    assert s.lists() == {
        "partial": [(s.slab(c[0]), 4)],
        "full": [(s.slab(b[0]), 0), (s.slab(a[0]), 0)],
    }


def test_a_new_slab_comes_from_the_tail_of_the_free_list_like_any_other(scene: Set) -> None:
    # Batches of 2 and no shared array: one slab serves 29 refills and a last one of one object.
    s = scene(limit=4, batchcount=2, shared=0)
    s.alloc(0, NUM)
    s.counted(allochit=29, allocmiss=30, listallocs=NUM, maxobjs=NUM, grown=1)
    assert set(s.lists()) == {"full"}


# ---- shared array  -------------------------------------------------------------------------------


def overflowed(s: SlabScene, slabs: int = 3) -> list[int]:
    """All objects of some slabs, 121 of which were freed on CPU 0: the last one overflowed."""
    objects = [address for slab in s.slabs_taken(slabs) for address in slab]
    s.free(0, objects[:LIMIT])
    s.counted(freehit=LIMIT)
    assert s.cpu(0) == objects[:LIMIT]
    s.free(0, objects[LIMIT])
    return objects


def test_overflow_moves_the_oldest_batch_to_the_shared_array(scene: Set) -> None:
    s = scene()
    objects = overflowed(s)
    s.counted(freemiss=1)
    assert s.node_shared() == objects[:BATCH]
    assert s.cpu(0) == objects[BATCH : LIMIT + 1]
    assert not s.touched("shared", node=0)  # only a refill marks it
    assert set(s.lists()) == {"full"}
    assert s.cache.stats(exact=True)["free_second_level"] == 1


def test_a_refill_takes_the_top_of_the_shared_array(scene: Set) -> None:
    s = scene()
    objects = overflowed(s)
    s.delta()
    # CPU 1's array was never used: the 16 hottest of the 60, in order.
    assert s.one(1) == objects[59]
    assert s.cpu(1) == objects[44:59]
    assert s.node_shared() == objects[:44]
    assert s.touched("shared", node=0)
    s.counted(allocmiss=1)
    # Touched: min(44, 60).
    s.alloc(1, 15)
    assert s.one(1) == objects[43]
    s.counted(allochit=15, allocmiss=1)
    assert s.node_shared() == []
    assert s.cache.stats(exact=True)["alloc_second_level"] == 2


def test_a_full_shared_array_sends_the_batch_to_slabs_and_a_short_one_takes_what_fits(
    scene: Set,
) -> None:
    s = scene(shared=1)
    assert s.queue("shared", node=0).capacity == BATCH
    objects = overflowed(s, 5)  # the shared array is full now, the CPU's holds 61
    s.delta()
    s.free(0, objects[121:180])
    s.free(0, objects[180])
    s.counted(freehit=59, freemiss=1)
    # Of the 60 oldest, objects 60..119, 58 are of the second slab and 2 of the third.
    assert s.node_shared() == objects[:60]
    assert s.cpu(0) == objects[120:181]
    assert s.on("partial") == [(s.slab(objects[60]), 58), (s.slab(objects[118]), 2)]
    assert s.cache.stats(exact=True)["free_slow"] == 1
    # CPU 1 takes 16: room for as many, and no more are moved.
    s.one(1)
    s.free(0, objects[181:240])
    s.delta()
    s.free(0, objects[240])
    s.counted(freemiss=1)
    assert s.node_shared() == objects[:44] + objects[120:136]
    assert s.cpu(0) == objects[136:241]


def test_a_node_has_one_shared_array_for_all_its_domains(scene: Set) -> None:
    # Two domains of two CPUs: SLAB knows nodes only.
    s = scene(domains=2)
    objects = overflowed(s)
    assert [queue.kind for queue in queues_of(s.cache)].count("shared") == 1
    s.delta()
    assert s.one(3) == objects[59]
    s.counted(allocmiss=1)


def test_one_cpu_alone_has_no_shared_array_and_flushes_to_slabs(scene: Set) -> None:
    s = scene(cpus=1)
    assert s.cache.tunables.shared == 0
    objects = overflowed(s)
    s.counted(freemiss=1, maxfreeable=1)
    assert s.queue("shared", node=0) is None
    # The 60 oldest: all 59 of the first slab, which is emptied and kept, since 59 objects are not
    # above (1 + 1) * 60 + 59, and one of the second.  The flush sees that one free slab.
    assert s.lists()["free"] == [(s.slab(objects[0]), NUM)]
    assert s.lists()["partial"] == [(s.slab(objects[59]), 1)]


def test_the_longest_free_list_seen_at_a_flush(scene: Set) -> None:
    s = scene(cpus=1)
    objects = [address for slab in s.slabs_taken(4) for address in slab]
    # The first flush, of 60, frees one slab; the second, of objects 60..119, the next one.
    s.free(0, objects[:121])
    s.counted(freehit=120, freemiss=1, maxfreeable=1)
    s.free(0, objects[121:181])
    s.counted(freehit=59, freemiss=1, maxfreeable=1)
    assert s.cache.stats(exact=True)["maxfreeable"] == 2


def test_a_free_on_another_cpu_of_the_node_is_an_ordinary_one(scene: Set) -> None:
    s = scene()
    got = s.one(0)
    s.delta()
    s.free(1, got)
    s.counted(freehit=1)
    assert s.cpu(1) == [got]
    assert not s.touched("cpu", cpu=1)  # a free does not touch


# ---- slabs  --------------------------------------------------------------------------------------


def test_a_slab_that_gets_an_object_back_goes_to_the_tail_of_partial(scene: Set) -> None:
    s = scene()
    a, b = s.slabs_taken(2)
    slab_a, slab_b = s.slab(a[0]), s.slab(b[0])
    for back, expected in (
        (a[0], [(slab_a, 1)]),
        (b[0], [(slab_a, 1), (slab_b, 1)]),
        (a[1], [(slab_b, 1), (slab_a, 2)]),  # on the list already, and moved all the same
    ):
        s.free(0, back)
        s.flush()
        assert s.on("partial") == expected


def test_an_emptied_slab_goes_when_the_node_has_more_free_objects_than_its_limit(
    scene: Set,
) -> None:
    s = scene(limit=4, batchcount=2, shared=0)
    # (1 + 2 CPUs) * 2 + 59.
    assert s.cache.tunables.free_limit == 65
    a, b = (s.alloc(0, NUM) for _ in range(2))
    s.delta()
    # 4 pushes; then every second of the other 55 finds the array full and flushes 2.
    s.free(0, a)
    s.flush()
    s.counted(freehit=4 + 27, freemiss=28)
    assert s.on("free") == [(s.slab(a[0]), NUM)]
    slab_a = s.slab(a[0])
    # With 118 free objects b has no place when its last one comes back.
    s.free(0, b)
    s.flush()
    s.counted(freehit=4 + 27, freemiss=28, maxfreeable=1)
    assert s.lists() == {"free": [(slab_a, NUM)]}
    assert s.cache.tunables.free_objects == NUM
    assert s.cache.stats(exact=True)["slab_free"] == 1


def test_emptied_slabs_go_to_the_head_of_the_free_list(scene: Set) -> None:
    s = scene()
    slabs = s.slabs_taken(5)
    for slab in slabs[:4]:
        s.free(0, slab)
        s.flush()
    heads = [(s.slab(slab[0]), NUM) for slab in reversed(slabs[:4])]
    assert s.lists()["free"] == heads
    # 4 * 59 = 236 are not above 239; with the fifth they would be.
    s.free(0, slabs[4])
    s.flush()
    assert s.lists() == {"free": heads}


def test_slabs_begin_at_offsets_that_take_turns(scene: Set) -> None:
    # 704 bytes: an order of 0 leaves 4096 - 5 * 704 = 576, more than an eighth; order 1 holds 11
    # and leaves 448.  The descriptor of 48 + 44 bytes, 96, finds room there: 352 bytes are left for
    # 5 colours of 64.
    s = scene(704)
    assert (s.cache.order, s.cache.objects_per_slab) == (1, 11)
    assert (s.cache.tunables.colour, s.cache.tunables.colour_off) == (5, 64)
    got = s.alloc(0, 7 * 11)
    starts: dict[int, int] = {}
    for address in got:
        slab = s.slab(address)
        starts[slab] = min(starts.get(slab, address - slab), address - slab)
    # In the order in which they were made.
    offsets = [starts[slab] for slab in dict.fromkeys(s.slab(address) for address in got)]
    assert offsets == [96, 160, 224, 288, 352, 96, 160]
    assert s.cache.validate().ok
    with pytest.raises(us.CorruptionError, match="start of an object"):
        s.cache.free(got[0] + 64)
    assert sorted(s.cache.live().tolist()) == sorted(got)


def test_each_node_has_a_colour_rotor_of_its_own(scene: Set) -> None:
    s = scene(704, nodes=2)
    on_0, on_1, again = s.one(0, node=0), s.one(0, node=1), s.one(2, node=1)
    assert on_0 - s.slab(on_0) == 96 + 10 * 704  # the refill of 11 ends with the last one
    assert on_1 - s.slab(on_1) == 96  # a node allocation takes the first one
    # CPU 2's refill finds that slab's other ten.
    assert again - s.slab(again) == 96 + 10 * 704


# ---- nodes: CPUs 0 and 1 on node 0, 2 and 3 on node 1  -------------------------------------------


def test_a_node_allocation_takes_one_object_and_asks_no_array(scene: Set) -> None:
    s = scene(nodes=2)
    # Node 1 has objects in an array of each kind: CPU 2's, its shared one, and node 0's for it.
    there = s.alloc(2, 2 * NUM)
    s.free(0, there[0])
    s.free(2, there[1:])  # 117 frees fit
    s.delta()
    got = s.alloc(0, 2, node=1)
    slab = s.slab(got[0])
    assert got == s.objects(slab, 0, 1)
    s.counted(nodeallocs=2, grown=1, maxobjs=2)
    assert s.lists(1)["partial"] == [(slab, NUM - 2)]
    assert (s.alien(0, 1), s.cpu(2)) == ([there[0]], there[1:])
    assert s.cache.stats(exact=True)["alloc_remote"] == 2


def test_naming_the_own_node_uses_the_cpus_array(scene: Set) -> None:
    s = scene(nodes=2)
    s.one(0, node=0)
    s.counted(allocmiss=1, listallocs=16, maxobjs=16, grown=1)
    s.one(0, node=0)
    s.counted(allochit=1)


def test_frees_of_another_nodes_objects_wait_in_an_alien_array_of_12(scene: Set) -> None:
    s = scene(nodes=2)
    got = s.alloc(0, 16)
    assert s.cpu(0) == []
    s.delta()
    s.free(2, got[:8])
    s.free(3, got[8:12])  # one array for all CPUs of the node
    s.counted(remotefrees=12)
    assert s.alien(1, 0) == got[:12]
    # Full: all twelve go to node 0's shared array, which has room for 480.
    s.free(2, got[12])
    s.counted(remotefrees=1, alienoverflow=1)
    assert s.alien(1, 0) == [got[12]]
    assert s.node_shared(0) == got[:12]
    assert s.node_shared(1) == []
    # Node 0 gets them hot.
    s.delta()
    assert s.one(1) == got[11]
    s.counted(allocmiss=1)
    assert s.cpu(1) == got[:11]


def test_what_the_targets_shared_array_has_no_room_for_goes_to_slabs(scene: Set) -> None:
    s = scene(nodes=2, limit=10, batchcount=5, shared=1)
    got = s.alloc(0, 16)  # four refills of five: 20 are out, 39 free
    slab = s.slab(got[0])
    s.free(2, got[:13])
    # Five fit, the hottest; the seven oldest go to their slab.
    assert s.node_shared(0) == got[7:12]
    assert s.alien(1, 0) == [got[12]]
    assert s.lists(0) == {"partial": [(slab, 39 + 7)]}
    assert s.cache.tunables.num_active == 20 - 7


def test_without_alien_arrays_remote_frees_go_to_their_slabs(scene: Set) -> None:
    s = scene(nodes=2, use_alien_caches=0)
    got = s.one(0)
    slab = s.slab(got)
    s.delta()
    s.free(2, got)
    s.counted(remotefrees=1)
    assert [queue for queue in queues_of(s.cache) if queue.kind == "alien"] == []
    assert s.lists(0) == {"partial": [(slab, 43 + 1)]}


def test_alien_arrays_of_a_limit_of_one_hold_one(scene: Set) -> None:
    s = scene(nodes=2, limit=1)
    assert (s.cache.tunables.batchcount, s.cache.tunables.alien_limit) == (1, 1)
    got = s.alloc(0, 2)
    s.delta()
    s.free(2, got)
    s.counted(remotefrees=2, alienoverflow=1)
    assert s.node_shared(0) == [got[0]]


def test_a_node_without_memory_falls_back(scene: Set) -> None:
    # 128 pages a node, objects of a page.
    s = scene(4096, nodes=2, memory="1 MiB")
    assert (s.cache.order, s.cache.objects_per_slab) == (0, 1)
    here = s.alloc(0, 128)
    s.delta()
    with pytest.raises(MemoryError):
        s.one(0, node=0, thisnode=True)
    s.counted(allocmiss=1)
    assert sum(s.cache.stats(exact=True)[name] for name in ALLOCS) == 128
    # Nothing is free anywhere: pages of the other node, and one object of them past all arrays.
    far = s.one(0)
    s.counted(allocmiss=1, nodeallocs=1, grown=1, maxobjs=1)
    assert [slab.node for slab in slabs_of(s.cache) if slab.address == far] == [1]
    # What is free in another node's slabs comes before new pages.
    s.free(2, far)
    s.flush()
    s.delta()
    assert s.one(0) == far
    s.counted(allocmiss=1, nodeallocs=1)
    stats = s.cache.stats(exact=True)
    assert (stats["alloc_slow"] + stats["alloc_fast"], stats["alloc_remote"]) == (128, 2)
    s.free(0, here)


# ---- ageing  -------------------------------------------------------------------------------------


def test_an_idle_cpu_array_empties_by_fifths_of_its_limit(scene: Set) -> None:
    s = scene()
    objects = [address for slab in s.slabs_taken(2) for address in slab]
    s.free(0, objects[:100])
    left = []
    for _ in range(8):
        s.allocator.advance(2)
        left.append(len(s.cpu(0)))
    # Touched by the allocations: the first pass takes the mark away.  Then 24 each; 24 are more
    # than 4, so half of those, rounded up, and so on.
    assert left == [100, 76, 52, 28, 4, 2, 1, 0]
    assert s.cache.stats(exact=True)["expire_objects"] == 100


def test_ageing_takes_the_oldest_and_a_free_does_not_touch(scene: Set) -> None:
    s = scene()
    objects = [address for slab in s.slabs_taken(2) for address in slab]
    s.free(0, objects[:50])
    s.allocator.advance(2)
    assert not s.touched("cpu", cpu=0)
    s.free(0, objects[50:60])
    assert not s.touched("cpu", cpu=0)
    s.allocator.advance(2)
    assert s.cpu(0) == objects[24:60]
    s.one(0)
    s.allocator.advance(2)  # touched again
    assert s.cpu(0) == objects[24:59]


def test_an_array_untouched_since_the_last_pass_is_refilled_with_16(scene: Set) -> None:
    s = scene()
    s.slabs_taken(1)
    s.allocator.advance(2)
    s.one(0)
    s.counted(allocmiss=1, listallocs=16, maxobjs=16, grown=1)
    s.alloc(0, 15)
    s.one(0)
    s.counted(allochit=15, allocmiss=1, listallocs=43, maxobjs=43)


def test_the_shared_array_ages_every_four_seconds(scene: Set) -> None:
    s = scene()
    objects = overflowed(s)
    s.allocator.advance(2)
    assert s.node_shared() == objects[:60]
    # A fifth of 480 is more than 60: half of them.
    s.allocator.advance(2)
    assert s.node_shared() == objects[30:60]
    # A refill marks it (CPU 1's array: 16), and the pass at eight seconds only takes that away.
    s.one(1)
    assert s.node_shared() == objects[30:44]
    s.allocator.advance(4)
    assert s.node_shared() == objects[30:44]
    s.allocator.advance(4)
    assert s.node_shared() == objects[37:44]


def test_a_nodes_first_pass_is_staggered_by_the_caches_number(scene: Set) -> None:
    s = scene()
    alloc = s.allocator
    # The next caches have the numbers 4k + 1, + 2 and + 3: their nodes' passes are due 5, 6 and 7
    # seconds after they were made, ticks come every two.
    caches = [alloc.create_cache(f"staggered-{i}", 64) for i in range(3)]
    with alloc.on_cpu(0):
        for cache in caches:
            cache.free_bulk(sorted(int(address) for address in cache.alloc_bulk(3 * NUM))[:121])
    first: dict[str, int] = {}
    for second in range(2, 12, 2):
        alloc.advance(2)
        for cache in caches:
            (shared,) = queues_of(cache, kind="shared")
            if shared.objects < BATCH:
                first.setdefault(cache.name, second)
    assert first == {"staggered-0": 6, "staggered-1": 6, "staggered-2": 8}
    for cache in caches:
        cache.free_bulk(cache.live())


def test_the_reap_destroys_free_slabs_from_the_tail(scene: Set) -> None:
    s = scene()
    slabs = s.slabs_taken(4)
    for slab in slabs:
        s.free(0, slab)
        s.flush()
    heads = [(s.slab(slab[0]), NUM) for slab in reversed(slabs)]
    assert s.on("free") == heads
    s.delta()
    # Growing went through the free list: the first pass only takes that mark away.
    s.allocator.advance(4)
    assert s.on("free") == heads
    s.counted()
    # ceil(239 / (5 * 59)) = 1 a pass.
    for n in (3, 2, 1):
        s.allocator.advance(4)
        assert s.on("free") == heads[:n]
        s.counted(reaped=1)
    # An allocation from the free list marks it again.
    s.one(0)
    s.free(0, s.cpu(0)[-1:] and s.cache.live().tolist())
    s.flush()
    s.delta()
    s.allocator.advance(4)
    assert s.on("free") == heads[:1]
    s.allocator.advance(4)
    s.counted(reaped=1)
    assert s.lists() == {}


def test_each_pass_reaps_one_foreign_nodes_alien_array(scene: Set) -> None:
    # Three nodes of one CPU.
    s = scene(nodes=3, cpus=1)
    of_1, of_2 = s.alloc(1, 5), s.alloc(2, 5)
    s.free(0, of_1)
    s.free(0, of_2)
    assert (s.alien(0, 1), s.alien(0, 2)) == (of_1, of_2)
    # CPU 0 begins with the node after its own.
    s.allocator.advance(2)
    assert (s.alien(0, 1), s.alien(0, 2)) == ([], of_2)
    assert s.node_shared(1) == of_1
    assert s.cache.stats(exact=True)["expire_objects"] == 0  # none reached a slab
    s.allocator.advance(2)
    assert s.alien(0, 2) == []


# ---- shrink, tuning, CPUs that go  ---------------------------------------------------------------


def test_shrink_empties_every_array_and_the_free_lists(scene: Set) -> None:
    s = scene(nodes=2)
    here, there = s.alloc(0, 5 * NUM), s.alloc(2, NUM)
    kept = here.pop()
    s.free(0, here)
    s.free(3, there[:30])
    s.free(0, there[30:])
    assert all(
        s.queue(kind, **which).objects
        for kind, which in (
            ("cpu", {"cpu": 0}),
            ("cpu", {"cpu": 3}),
            ("shared", {"node": 0}),
            ("alien", {"node": 1}),
        )
    )
    s.delta()
    before = s.cache.account()["reserved"]
    # One slab of node 0 is pinned by one object.
    assert s.shrink() == before - 4096
    assert sum(queue.objects for queue in queues_of(s.cache)) == 0
    assert s.lists(0) == {"partial": [(s.slab(kept), NUM - 1)]}
    assert s.lists(1) == {}
    assert s.cache.stats(exact=True)["reaped"] == 0


def test_tuning_takes_what_the_original_takes(scene: Set) -> None:
    s = scene()
    tunables = s.cache.tunables
    for name, value, words in (
        ("limit", 0, "limit of policy slab is '0'; expected 1"),
        ("batchcount", 0, "batchcount of policy slab is '0'; expected 1"),
        ("shared", -1, "shared of policy slab is '-1'; expected 0"),
        ("batchcount", 121, "policy slab: batchcount 121 is above limit 120"),
        ("limit", 59, "policy slab: batchcount 60 is above limit 59"),
        ("shared", 1000, "policy slab: shared 1000 of batchcount 60"),
    ):
        with pytest.raises(ValueError, match=words):
            setattr(tunables, name, value)
    assert (tunables.limit, tunables.batchcount, tunables.shared) == (120, 60, 8)
    with pytest.raises(ValueError, match="batchcount 9 is above limit 8"):
        s.allocator.create_cache("wrong", 64, limit=8, batchcount=9)


def test_tuning_sends_what_arrays_hold_to_slabs(scene: Set) -> None:
    s = scene(nodes=2)
    objects = overflowed(s)
    s.free(2, objects[121:124])
    s.delta()
    s.cache.tunables.batchcount = 10
    # New arrays of the same limit; the shared one holds 8 batches; alien arrays stay as they were.
    assert s.queue("cpu", cpu=0).capacity == LIMIT
    assert s.queue("shared", node=0).capacity == 80
    assert (s.cpu(0), s.node_shared(0)) == ([], [])
    assert s.alien(1, 0) == objects[121:124]
    assert s.cache.tunables.free_limit == 3 * 10 + NUM
    s.counted()
    # The CPU's 61, objects 60..120, came back first: 58 of the second slab, 3 of the third.  Then
    # the shared 60: with the first slab 120 are free, more than 89, so it goes; the second gets its
    # last one, 62 are free, and it stays.
    assert s.lists(0) == {
        "partial": [(s.slab(objects[118]), 3)],
        "free": [(s.slab(objects[59]), NUM)],
    }
    s.cache.tunables.limit = 10
    assert s.queue("cpu", cpu=0).capacity == 10
    s.cache.tunables.shared = 0
    assert s.queue("shared", node=0) is None


def test_an_offline_cpu_leaves_its_nodes_arrays_until_it_is_the_last(scene: Set) -> None:
    s = scene(nodes=2)
    objects = overflowed(s)
    s.free(2, objects[121:124])
    assert s.cache.tunables.free_limit == 3 * 60 + NUM
    s.allocator.offline_cpu(0)
    assert s.cpu(0) == []
    assert s.node_shared(0) == objects[:60]
    s.allocator.offline_cpu(1)
    assert s.node_shared(0) == []
    # Node 1's CPUs: one goes, its alien array stays; with the other it is drained.
    s.allocator.offline_cpu(2)
    assert s.alien(1, 0) == objects[121:124]
    s.allocator.online_cpu(0)
    s.allocator.offline_cpu(3)
    assert s.alien(1, 0) == []
    for cpu in (1, 2, 3):
        s.allocator.online_cpu(cpu)
    assert s.cache.tunables.free_limit == 3 * 60 + NUM


def test_debug_arrays_hold_32(scene: Set) -> None:
    s = scene(debug="F")
    # (32 + 1) / 2 = 16, and 8 batches.
    assert (s.cache.tunables.limit, s.cache.tunables.batchcount) == (32, 16)
    assert s.queue("shared", node=0).capacity == 128
    objects = [s.one(0) for _ in range(48)]  # three refills
    s.delta()
    s.free(0, objects[:33])
    s.counted(freehit=32, freemiss=1)
    assert s.node_shared() == objects[:16]
    assert s.cpu(0) == objects[16:33]


@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 200])
def test_a_bulk_call_is_n_single_calls(scene: Set, n: int) -> None:
    one, bulk = scene(), scene()
    singly = one.alloc(0, n)
    with bulk.allocator.on_cpu(0):
        together = [int(address) for address in bulk.cache.alloc_bulk(n)]
    assert one.delta() == bulk.delta()
    shift = one.slab(singly[0]) - bulk.slab(together[0])
    assert singly == [address + shift for address in together]
    assert one.cpu(0) == [address + shift for address in bulk.cpu(0)]
    one.free(0, singly)
    with bulk.allocator.on_cpu(0):
        bulk.cache.free_bulk(together)
    assert one.delta() == bulk.delta()
    assert one.cpu(0) == [address + shift for address in bulk.cpu(0)]
    assert one.node_shared() == [address + shift for address in bulk.node_shared()]


def test_common_counters_are_made_of_slabs_own(scene: Set) -> None:
    s = scene(nodes=2, limit=8, batchcount=4, shared=1)
    live: list[int] = []
    for round_ in range(60):
        live += s.alloc(round_ % 4, 7 + round_ % 5, **({"node": 1} if round_ % 3 == 0 else {}))
        gone, live = live[::2], live[1::2]
        s.free((round_ + 1) % 4, gone)
    stats = s.cache.stats(exact=True)
    assert stats["alloc_fast"] == stats["allochit"]
    assert stats["alloc_second_level"] + stats["alloc_slow"] == stats["allocmiss"]
    assert stats["alloc_remote"] == stats["nodeallocs"]
    assert stats["free_fast"] == stats["freehit"]
    assert stats["free_second_level"] + stats["free_slow"] == stats["freemiss"]
    assert stats["free_remote"] == stats["remotefrees"]
    assert stats["slab_new"] == stats["grown"]
    assert stats["errors"] == 0
    assert all(stats[name] for name in (*ALLOCS, *FREES)), dict(stats)
    assert s.cache.tunables.num_active == len(live) + sum(q.objects for q in queues_of(s.cache))


# ---- geometry  -----------------------------------------------------------------------------------

SIZES = sorted(
    {*(8 << i for i in range(12)), 24, 96, 100, 192, 232, 320, 500, 504, 511, 513, 576, 704}
    | {832, 1000, 1500, 2000, 2049, 3000, 4000, 4097, 5000, 6000, 9000, 10_000, 12_000, 16_380}
)


def on_slab(num: int, align: int) -> int:
    """Bytes of a descriptor in its slab: 48, 4 for each object, up to the alignment."""
    return -(-(48 + 4 * num) // align) * align


def expected_geometry(size: int, align: int = 8) -> dict[str, int]:
    """Order, objects, colours and place of the descriptor, tried out order by order."""
    stride = -(-size // align) * align
    off = stride >= 4096 // 8
    for order in range(11):
        room = 4096 << order
        own = 0
        num = room // stride
        if not off:
            num = max(
                (n for n in range(num + 1) if on_slab(n, align) + n * stride <= room), default=0
            )
            own = on_slab(num, align)
        if num == 0:
            continue
        left = room - own - num * stride
        if order >= 1 or left * 8 <= room:
            break
    if off and left >= on_slab(num, align):
        off = False
        left -= on_slab(num, align)
    limits = ((131072, 1), (4096, 8), (1024, 24), (256, 54), (0, 120))
    limit = next(limit for above, limit in limits if stride > above)
    return {
        "order": order,
        "objects_per_slab": num,
        "stride": stride,
        "off_slab": int(off),
        "colour": left // max(64, align),
        "limit": limit,
        "batchcount": {1: 1, 8: 4, 24: 12, 54: 27, 120: 60}[limit],
        "shared": 8 if stride <= 4096 else 0,
    }


@pytest.mark.parametrize("align", [8, 64])
def test_geometry_of_sizes_up_to_16_kib(scene: Set, align: int) -> None:
    alloc = scene().allocator
    for size in SIZES:
        cache = alloc.create_cache(f"sized-{size}-{align}", size, align=align)
        shown = {
            "order": cache.order,
            "objects_per_slab": cache.objects_per_slab,
            "stride": cache.stride,
        }
        for name in ("off_slab", "colour", "limit", "batchcount", "shared"):
            shown[name] = cache.tunables[name]
        assert shown == expected_geometry(size, align), size


def test_orders_known_by_hand(scene: Set) -> None:
    alloc = scene().allocator
    # 256: 4096 - 48 = 4048 / 260 = 15, left over 4096 - 15 * 256 - 112 = 144.
    # 1024: off-slab, 4, nothing left.  2048: 2.  3000: order 0 leaves 1096 > 512; order 1: 2,
    # 2192 left, on-slab by that.  8192: order 1, one.
    for size, order, num, off in (
        (256, 0, 15, 0),
        (1024, 0, 4, 1),
        (2048, 0, 2, 1),
        (3000, 1, 2, 0),
        (8192, 1, 1, 1),
    ):
        cache = alloc.create_cache(f"known-{size}", size)
        found = (cache.order, cache.objects_per_slab, cache.tunables.off_slab)
        assert found == (order, num, off), size


def test_reclaimable_caches_and_small_machines_take_the_first_order(scene: Set) -> None:
    # 704 bytes go to order 1 for the 576 bytes that a page leaves; not so here.
    assert scene(704).cache.order == 1
    assert scene(704, flags=("reclaim_account",)).cache.order == 0
    assert scene(704, memory="32 MiB").cache.order == 0
    assert scene(704, slab_break_gfp_order=0).cache.order == 0
    for options, order in (({}, 1), ({"memory": "32 MiB"}, 0), ({"slab_break_gfp_order": 2}, 2)):
        assert scene(704, **options).cache.tunables.slab_break_gfp_order == order
    # An order of 3 leaves 32768 - 46 * 704 = 384, 2 leaves 192: an eighth is reached at order 1
    # already.  4200 bytes: order 1 leaves nearly half, order 2 (3) leaves 3784, order 3 (7) 3368.
    assert scene(4200, slab_break_gfp_order=3).cache.order == 3


def descriptor_of(s: SlabScene) -> int:
    """Metadata that one more slab takes, the arrays being there."""
    for _ in range(2):
        s.free(0, s.one(0))
        s.shrink()
    before = s.allocator.account()["metadata"]
    s.free(0, s.one(0))
    taken = s.allocator.account()["metadata"] - before
    s.shrink()
    assert s.allocator.account()["metadata"] == before
    return taken


def test_descriptors_are_waste_in_the_slab_and_metadata_off_it(scene: Set) -> None:
    s = scene()
    assert descriptor_of(s) == 256  # the index alone: 4 * 59 bytes
    s.one(0)
    account = s.cache.account()
    assert account["waste"] == 4096 - NUM * 64  # 288 of descriptor, 32 left over
    # Off-slab: 48 + 4 * 4 bytes from the general cache of 64; 48 + 4 * 8 from that of 128, there
    # being none of 96.
    for size, expected in ((1024, 64), (512, 128)):
        s = scene(size)
        assert s.cache.tunables.off_slab == 1
        assert descriptor_of(s) == expected
        s.one(0)
        assert s.cache.account()["waste"] == 0


@pytest.mark.parametrize(
    ("size", "array", "shared"),
    # 24 bytes of header and 8 a pointer: 984, 456, 216 and 88 bytes of CPU arrays of 120, 54, 24
    # and 8; shared arrays of 480, 216 and 96 take 3864, 1752 and 792. No general cache has 96.
    [(64, 1024, 4096), (512, 512, 2048), (2048, 256, 1024), (8192, 128, 0)],
)
def test_arrays_are_accounted_as_the_general_caches_they_came_from(
    make: Callable[..., us.Allocator], size: int, array: int, shared: int
) -> None:
    alloc = make("slab", machine=grid(2, 1, 2))

    def made(**tunables: int) -> int:
        before = alloc.account()["metadata"]
        cache = alloc.create_cache("made", size, **tunables)
        taken = alloc.account()["metadata"] - before
        cache.destroy()
        assert alloc.account()["metadata"] == before
        return taken

    assert made() - made(shared=0) == 2 * shared
    # 24 + 12 * 8 bytes for the other node's objects, and a table of two pointers, on each node.
    assert made() - made(use_alien_caches=0) == 2 * (128 + 16)
    cache = alloc.create_cache("used", size)
    with alloc.on_cpu(0):
        address = cache.alloc_address()
    before = alloc.account()["metadata"]
    with alloc.on_cpu(1):  # of the same node: its array, and no new slab
        cache.free(address)
    assert alloc.account()["metadata"] - before == array


def test_general_caches_reach_to_the_largest_block(make: Callable[..., us.Allocator]) -> None:
    alloc = make("slab", machine=grid(1, 1, 2))
    sizes = [int(name[8:]) for name in alloc.caches if name[8:].isdigit()]
    assert sorted(sizes) == sorted([*(1 << shift for shift in range(5, 23)), 192])


def test_slabinfo_shows_slabs_numbers(scene: Set) -> None:
    s = scene()
    objects = overflowed(s)
    frame = s.allocator.slabinfo().set_index("name").loc["scene"]
    # 177 objects are out of 3 slabs: those in arrays are active too.
    assert (frame["active_objs"], frame["num_objs"]) == (177, 177)
    assert (frame["objsize"], frame["objperslab"], frame["pagesperslab"]) == (64, NUM, 1)
    assert (frame["limit"], frame["batchcount"], frame["sharedfactor"]) == (120, 60, 8)
    assert (frame["active_slabs"], frame["num_slabs"], frame["sharedavail"]) == (3, 3, 60)
    assert s.cache.tunables.sharedavail == 60
    assert len(objects) == 177


# ---- random programs  ----------------------------------------------------------------------------


class Twins:
    """A cache and the rules in Python, stepped together."""

    def __init__(self, s: SlabScene, model: SlabModel, first: int, colour_off: int) -> None:
        self.s, self.model, self.first, self.colour_off = s, model, first, colour_off
        self.base: dict[int, int] = {}
        self.live: list[Obj] = []

    def address(self, obj: Obj) -> int:
        """Where an object of the model lies."""
        slab, index = obj
        offset = self.first + self.model.offset[slab] * self.colour_off
        return self.base[slab] + offset + index * self.s.stride

    def learn(self) -> None:
        """A slab that was just made gets its address; those that went away lose theirs."""
        self.base = {slab: at for slab, at in self.base.items() if slab in self.model.stack}
        new = [slab for slab in self.model.stack if slab not in self.base]
        if new:
            assert len(new) == 1
            known = set(self.base.values())
            (row,) = (row for row in slabs_of(self.s.cache) if row.address not in known)
            assert row.node == self.model.home[new[0]]
            self.base[new[0]] = row.address

    def alloc(self, cpu: int, node: int | None) -> None:
        """One object on both."""
        obj = self.model.alloc(cpu, node)
        got = self.s.one(cpu, **({} if node is None else {"node": node}))
        self.learn()
        assert got == self.address(obj)
        self.live.append(obj)

    def free(self, cpu: int, at: int) -> None:
        """One live object on both."""
        obj = self.live.pop(at)
        address = self.address(obj)
        self.model.free_one(cpu, obj)
        self.s.free(cpu, address)

    def agree(self) -> None:
        """Arrays, lists and counters are the same."""
        self.learn()
        s, model = self.s, self.model
        expected: dict[tuple[str, int, int], list[int]] = {}
        for cpu, array in enumerate(model.cpu):
            expected["cpu", cpu, model.node_of(cpu)] = [self.address(o) for o in array.entry]
        for n, node in enumerate(model.node):
            expected["shared", n, n] = [self.address(o) for o in node.shared.entry]
            for home, array in node.alien.items():
                expected["alien", n, home] = [self.address(o) for o in array.entry]
        found = {
            (row.kind, row.cpu if row.kind == "cpu" else row.domain, row.node): row.addresses
            for row in queues_of(s.cache)
        }
        # A CPU that has done nothing has no array yet.
        assert {k: v for k, v in found.items() if v} == {k: v for k, v in expected.items() if v}
        for n, node in enumerate(model.node):
            for place in ("partial", "full", "free"):
                slabs = [(self.base[x], len(model.stack[x])) for x in getattr(node, place)]
                assert s.on(place, n) == slabs, (place, n)
        stats = s.cache.stats(exact=True)
        assert {name: stats[name] for name in SLAB} == {name: model.count[name] for name in SLAB}
        assert s.cache.tunables.num_active == model.active


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("size", "nodes", "cpus", "limit", "batch", "shared"),
    [(64, 1, 1, 20, 18, 0), (64, 1, 2, 40, 20, 2), (704, 2, 2, 6, 3, 2), (1024, 3, 1, 9, 4, 1)],
)
def test_random_programs_do_as_the_rules_say(
    scene: Set, seed: int, size: int, nodes: int, cpus: int, limit: int, batch: int, shared: int
) -> None:
    s = scene(size, nodes=nodes, cpus=cpus, limit=limit, batchcount=batch, shared=shared)
    shape = expected_geometry(size)
    first = 0 if shape["off_slab"] else on_slab(shape["objects_per_slab"], 8)
    model = SlabModel(nodes, cpus, shape["objects_per_slab"], shape["colour"], limit, batch, shared)
    twins = Twins(s, model, first, 64)
    rng = random.Random(seed)
    for step in range(60):
        cpu = rng.randrange(nodes * cpus)
        growing = rng.random() < (0.7 if step < 30 else 0.35)
        for _ in range(rng.randrange(1, 2 * limit)):
            if growing:
                twins.alloc(cpu, rng.choice([None, None, None, rng.randrange(nodes)]))
            elif twins.live:
                twins.free(cpu, rng.choice([-1, 0, rng.randrange(len(twins.live))]))
        what = rng.random()
        if what < 0.3:
            model.tick()
            s.allocator.advance(2)
        elif what < 0.33:
            model.flush()
            s.flush()
        elif what < 0.36:
            model.shrink()
            s.shrink()
        twins.agree()
