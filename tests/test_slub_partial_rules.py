"""SLUB of 3.2 to 6.17 on scripted machines: exact counters, freelists and both kinds of lists.

The numbers used: objects of 256 bytes, 16 to a slab of one page.  A freelist is written oldest
first, so its last address is the next one served; a CPU's partial list is written from the slab
that is next.  `Rules` at the end is the published algorithm in a hundred lines of Python; random
programs must leave both alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from rules.inside import slabs_of
from rules.machines import grid
from rules.names import SLUB_PARTIAL
from rules.orders import ORDERS
from rules.scene import Scene
from rules.slub_model import FEW, KEPT, Slab, SlubModel, follow, steps

pytestmark = pytest.mark.once

N = 16  # objects of a slab
SIZE = 256


class PartialScene(Scene):
    """A scene whose counters are those of SLUB with CPU partial lists."""

    counters = SLUB_PARTIAL

    def cpu_partial(self, cpu: int) -> list[tuple[int, int]]:
        """(address, free objects) of the slabs on a CPU's partial list, the next one first."""
        found = [s for s in slabs_of(self.cache, place="cpu", cpu=cpu) if s.position is not None]
        return [(s.address, s.free) for s in sorted(found, key=lambda s: s.position or 0)]

    def full(self, n: int) -> list[list[int]]:
        """n slabs, all objects taken by CPU 0, which owns none of them."""
        got = self.alloc(0, n * N)
        self.flush()
        self.delta()
        return [got[i : i + N] for i in range(0, n * N, N)]


Set = Callable[..., PartialScene]


@pytest.fixture
def partial(make: Any) -> Any:
    """Sets a cache of slub-partial on two nodes, CPUs 0, 1 and CPUs 2, 3."""
    made: list[PartialScene] = []

    def set_scene(size: int = SIZE, debug: str | None = None, **tunables: Any) -> PartialScene:
        alloc = make("slub-partial", machine=grid(2, 1, 2), debug=debug)
        tunables = {"min_objects": N, "remote_node_defrag_ratio": 0} | tunables
        made.append(PartialScene(alloc, alloc.create_cache("scene", size, **tunables)))
        return made[-1]

    yield set_scene
    for scene in made:
        with scene.allocator.on_cpu(0):
            scene.cache.free_bulk(scene.cache.live())


# ---- allocation -------------------------------------------------------------------------------


def test_the_counters_of_the_era_are_all_there(partial: Set) -> None:
    stats = partial().cache.stats()
    assert len(SLUB_PARTIAL) == 26
    assert set(SLUB_PARTIAL) <= set(stats)


def test_a_cpu_slab_that_proves_full_is_bypassed(partial: Set) -> None:
    s = partial()
    got = s.alloc(0, N + 1)
    # Every entry of the slow path counts; the full slab is dropped without deactivation.
    s.counted(alloc_slab=2, alloc_slowpath=2, alloc_fastpath=N - 1, deactivate_bypass=1)
    assert got[:N] == s.objects(got[0], 0, N - 1)
    assert s.partial(0) == []


def test_the_freeing_cpu_adopts_a_full_slab(partial: Set) -> None:
    s = partial()
    (a,) = s.full(1)
    s.free(1, a[0])
    s.counted(free_slowpath=1, cpu_partial_free=1)
    assert s.cpu_partial(1) == [(a[0], 1)]
    # It is frozen: whoever frees into it, its adopter too.
    s.free(0, a[1])
    s.free(1, a[2])
    s.counted(free_slowpath=2, free_frozen=2)
    assert s.cpu_partial(1) == [(a[0], 3)]
    assert s.partial(0) == []
    assert s.cache.tunables.slabs_cpu_partial == 1


def test_the_cpu_partial_list_serves_before_the_node(partial: Set) -> None:
    s = partial()
    a, b = s.full(2)
    s.free(1, [a[0], a[1], b[5]])
    s.delta()
    assert s.cpu_partial(1) == [(b[0], 1), (a[0], 2)]
    # The next of the list becomes the CPU slab and its own freelist is taken over: a refill.
    assert s.one(1) == b[5]
    s.counted(alloc_slowpath=1, cpu_partial_alloc=1, alloc_refill=1)
    # b is exhausted: bypassed; then a, whose last freed object comes first.
    assert s.one(1) == a[1]
    s.counted(alloc_slowpath=1, deactivate_bypass=1, cpu_partial_alloc=1, alloc_refill=1)
    assert s.one(1) == a[0]
    s.counted(alloc_fastpath=1)
    stats = s.cache.stats(exact=True)
    assert stats["alloc_second_level"] == 2


def test_cpu_0_finds_nothing_of_what_cpu_1_adopted(partial: Set) -> None:
    s = partial()
    (a,) = s.full(1)
    s.free(1, a[:4])
    s.delta()
    other = s.one(0)
    s.counted(alloc_slowpath=1, alloc_slab=1)
    assert s.slab(other) != a[0]


def test_remote_frees_come_back_by_refill(partial: Set) -> None:
    s = partial()
    got = s.alloc(0, N)
    s.delta()
    s.free(1, got[3])
    s.free(2, got[8])
    s.counted(free_slowpath=2, free_frozen=2)
    stats = s.cache.stats(exact=True)
    assert (stats["free_slow"], stats["free_remote"]) == (1, 1)
    # CPU slab, own freelist: both at once, the last freed first.
    assert s.alloc(0, 2) == [got[8], got[3]]
    s.counted(alloc_slowpath=1, alloc_refill=1, alloc_fastpath=1)
    assert s.cache.stats(exact=True)["alloc_slow"] == 2


def listed(s: PartialScene, counts: list[int]) -> list[list[int]]:
    """Puts slabs with these numbers of free objects on node 0's list, in this order."""
    limit = s.cache.tunables.cpu_partial
    full = s.full(len(counts))
    s.cache.tunables.cpu_partial = 0
    for slab, n in zip(full, counts, strict=True):
        s.free(0, slab[:n])
    s.cache.tunables.cpu_partial = limit
    assert s.partial(0) == [(slab[0], n) for slab, n in zip(full, counts, strict=True)]
    s.delta()
    return full


def test_a_refill_takes_more_slabs_along_up_to_half_the_limit(partial: Set) -> None:
    # cpu_partial_slabs = ceil(2 * 16 / 16) = 2: stop when more than 1 extra slab was taken.
    s = partial(cpu_partial=N)
    assert s.cache.tunables.cpu_partial_slabs == 2
    a, b, c, d = listed(s, [1, 2, 3, 4])
    assert s.one(0) == a[0]
    s.counted(alloc_slowpath=1, alloc_from_partial=1, cpu_partial_node=2)
    assert s.partial(0) == [(d[0], 4)]
    # Pushed one after the other: the last is the next.
    assert s.cpu_partial(0) == [(c[0], 3), (b[0], 2)]
    assert s.one(0) == c[2]
    s.counted(alloc_slowpath=1, deactivate_bypass=1, cpu_partial_alloc=1, alloc_refill=1)


def test_a_refill_of_3_2_counts_objects(partial: Set) -> None:
    # Stop when more than 6 / 2 free objects were gathered, the first slab's among them.
    s = partial(epoch="3.2", cpu_partial=6)
    a, b, c = listed(s, [1, 3, 2])
    assert s.one(0) == a[0]
    s.counted(alloc_slowpath=1, alloc_from_partial=1, cpu_partial_node=1)
    assert s.cpu_partial(0) == [(b[0], 3)]
    assert s.partial(0) == [(c[0], 2)]
    assert s.cache.tunables.objects_cpu_partial == 3


def test_a_slab_of_another_node_than_asked_for_is_deactivated(partial: Set) -> None:
    s = partial()
    got = s.alloc(0, 3)
    s.delta()
    far = s.one(0, node=1)
    s.counted(alloc_slowpath=1, alloc_node_mismatch=1, deactivate_to_head=1, alloc_slab=1)
    assert s.partial(0) == [(got[0], N - 3)]
    # Back: node 0 named, its list has the slab. Of node 1's a remote free makes it the tail.
    s.free(1, far)
    s.delta()
    assert s.one(0, node=0) == got[0] + 3 * SIZE
    s.counted(
        alloc_slowpath=1,
        alloc_node_mismatch=1,
        deactivate_remote_frees=1,
        deactivate_to_tail=1,
        alloc_from_partial=1,
    )
    assert s.partial(1) == [(s.slab(far), N)]
    stats = s.cache.stats(exact=True)
    assert (stats["alloc_slow"], stats["alloc_remote"]) == (2, 1)


def test_other_nodes_are_robbed_above_min_partial(partial: Set) -> None:
    s = partial(min_partial=2, remote_node_defrag_ratio=100, cpu_partial=0)
    far = s.alloc(2, 3 * N)
    s.flush()
    s.free(2, far[::N])
    s.delta()
    assert len(s.partial(1)) == 3
    # 3 > 2 slabs: the first one; 2 are left, which is not more than min_partial. (The ratio is
    # 1000 of 1024: now and then nobody is robbed.)
    robbed = 0
    for _ in range(2):
        s.one(0)
        moved = s.delta()
        robbed += moved.get("alloc_from_partial", 0)
    assert len(s.partial(1)) == 3 - robbed >= 2
    assert s.cache.stats(exact=True)["alloc_remote"] == robbed


# ---- free -------------------------------------------------------------------------------------


def test_the_whole_list_is_drained_at_the_limit_in_slabs(partial: Set) -> None:
    s = partial(cpu_partial=N)  # 2 slabs
    a, b, c = s.full(3)
    s.free(1, [a[0], b[0]])
    s.counted(free_slowpath=2, cpu_partial_free=2)
    assert s.cpu_partial(1) == [(b[0], 1), (a[0], 1)]
    # Two are there: both go to the tail of the node's list, the next one first; c stays.
    s.free(1, c[0])
    s.counted(free_slowpath=1, cpu_partial_free=1, cpu_partial_drain=1, free_add_partial=2)
    assert s.cpu_partial(1) == [(c[0], 1)]
    assert s.partial(0) == [(b[0], 1), (a[0], 1)]


def test_the_limit_in_objects_trusts_an_old_estimate(partial: Set) -> None:
    s = partial(epoch="3.2", cpu_partial=2)
    a, b, c, d = s.full(4)
    s.free(1, a[0])
    s.free(0, a[1:9])  # CPU 1's list has 9 free objects now and says 1
    s.free(1, b[0])
    s.free(1, c[0])  # 2 are not more than 2
    assert s.cache.tunables.objects_cpu_partial == 3
    assert s.cpu_partial(1) == [(c[0], 1), (b[0], 1), (a[0], 9)]
    s.counted(free_slowpath=11, cpu_partial_free=3, free_frozen=8)
    s.free(1, d[0])
    s.counted(free_slowpath=1, cpu_partial_free=1, cpu_partial_drain=1, free_add_partial=3)
    assert s.partial(0) == [(c[0], 1), (b[0], 1), (a[0], 9)]


def test_a_drain_releases_empty_slabs_beyond_min_partial(partial: Set) -> None:
    s = partial(cpu_partial=N, min_partial=1)
    a, b, c = s.full(3)
    s.free(1, a)  # adopted, then emptied: frozen slabs are not released
    s.free(1, b)
    s.counted(free_slowpath=2 * N, cpu_partial_free=2, free_frozen=2 * N - 2)
    s.free(1, c[0])
    # b is first: the node's list is empty, 0 < 1, it is kept. Then 1 >= 1: a is released.
    s.counted(
        free_slowpath=1,
        cpu_partial_free=1,
        cpu_partial_drain=1,
        free_add_partial=1,
        deactivate_empty=1,
        free_slab=1,
    )
    assert s.partial(0) == [(b[0], N)]


def test_another_nodes_slab_is_adopted_and_goes_home(partial: Set) -> None:
    s = partial(cpu_partial=N // 2)  # 1 slab
    a, b = s.full(2)
    s.free(2, a[0])
    s.counted(free_slowpath=1, cpu_partial_free=1)
    assert s.cpu_partial(2) == [(a[0], 1)]
    s.free(2, b[0])
    s.counted(free_slowpath=1, cpu_partial_free=1, cpu_partial_drain=1, free_add_partial=1)
    assert s.partial(0) == [(a[0], 1)]
    # CPU 2 is of node 1, and is served by node 0's slab all the same.
    assert s.one(2) == b[0]
    s.counted(alloc_slowpath=1, cpu_partial_alloc=1, alloc_refill=1)
    # Unless a node is named.
    s.free(2, b[0])
    s.counted(free_fastpath=1)
    s.one(2, node=1)
    s.counted(alloc_slowpath=1, alloc_node_mismatch=1, deactivate_to_head=1, alloc_slab=1)
    assert s.partial(0) == [(b[0], 1), (a[0], 1)]


def test_without_cpu_lists_full_slabs_go_to_the_tail(partial: Set) -> None:
    s = partial(cpu_partial=0)
    a, b = s.full(2)
    s.free(1, b[0])
    s.free(2, a[0])
    s.counted(free_slowpath=2, free_add_partial=2)
    assert s.partial(0) == [(b[0], 1), (a[0], 1)]
    assert s.one(0) == b[0]
    s.counted(alloc_slowpath=1, alloc_from_partial=1)


@pytest.mark.parametrize(("epoch", "kept"), [("5.16", 4), ("3.2", 5)])
def test_an_empty_slab_goes_back_at_min_partial(partial: Set, epoch: str, kept: int) -> None:
    # 5.16: when the list, the slab itself included, has at least min_partial; 3.2: more than that.
    s = partial(epoch=epoch, cpu_partial=0, min_partial=5)
    slabs = listed(s, [1] * (kept + 1))
    s.free(0, slabs[-1][1:])
    s.counted(free_slowpath=N - 1, free_remove_partial=1, free_slab=1)
    assert len(s.partial(0)) == kept
    s.free(0, slabs[0][1:])
    s.counted(free_slowpath=N - 1)
    assert s.partial(0)[0] == (slabs[0][0], N)


def test_deactivation_keeps_or_releases_an_empty_slab(partial: Set) -> None:
    s = partial(min_partial=1)
    one = s.one(0)
    s.free(0, one)
    s.delta()
    s.flush()  # 0 < 1: kept. Nobody freed remotely: the head.
    s.counted(cpuslab_flush=1, deactivate_to_head=1)
    assert s.partial(0) == [(one, N)]
    got = s.alloc(0, N + 1)
    s.free(0, got[-1])
    s.free(1, got[:N])  # adopted by CPU 1
    s.flush()  # CPU 0's first, 0 < 1: kept; then CPU 1's list: 1 >= 1
    assert s.delta()["deactivate_empty"] == 1
    assert s.partial(0) == [(got[-1], N)]


@pytest.mark.parametrize("epoch", ["3.2", "5.16"])
def test_deactivation_turns_the_freelist_around_up_to_4_19(partial: Set, epoch: str) -> None:
    s = partial(epoch=epoch)
    got = s.alloc(0, N)
    s.free(0, [got[4], got[9], got[2]])
    s.flush()
    assert s.one(0) == (got[4] if epoch == "3.2" else got[2])
    rest = [got[2], got[9]] if epoch == "3.2" else [got[4], got[9]]
    assert s.cpu(0) == rest


def test_a_splice_goes_in_front_of_what_others_freed(partial: Set) -> None:
    s = partial()
    got = s.alloc(0, N)
    s.free(0, [got[1], got[2]])
    s.free(1, [got[3], got[4]])
    s.delta()
    s.flush()
    s.counted(cpuslab_flush=1, deactivate_remote_frees=1, deactivate_to_tail=1)
    assert s.alloc(0, 4) == [got[2], got[1], got[4], got[3]]


def test_a_flush_takes_the_cpu_partial_list_too(partial: Set) -> None:
    s = partial()
    a, b = s.full(2)
    s.free(1, [a[0], b[0]])
    s.one(0)
    s.delta()
    s.flush()
    # CPU 1 has no CPU slab: its list moves, no flush is counted for it, and no drain.
    s.counted(cpuslab_flush=1, deactivate_to_head=1, free_add_partial=2)
    assert [n for _, n in s.partial(0)] == [N - 1, 1, 1]
    assert s.cpu_partial(1) == []


def test_an_offline_cpu_leaves_nothing_behind(partial: Set) -> None:
    s = partial()
    a, b = s.full(2)
    s.free(1, [a[0], b[0]])
    s.delta()
    s.allocator.offline_cpu(1)
    s.counted(free_add_partial=2)
    assert s.partial(0) == [(b[0], 1), (a[0], 1)]


# ---- shrink, bulk, debug ------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "after"), [("5.16", [3, 10, 50, 40]), ("3.2", [3, 10, 40, 50])])
def test_shrink_promotes_or_sorts(partial: Set, epoch: str, after: list[int]) -> None:
    # 64 objects of 64 bytes to a slab. From 4.x on slabs with more than 32 free stay behind.
    s = partial(64, epoch=epoch, cpu_partial=0)
    got = s.alloc(0, 4 * 64)
    s.flush()
    for i, n in enumerate([50, 3, 40, 10]):
        s.free(0, got[64 * i : 64 * i + n])
    assert [n for _, n in s.partial(0)] == [50, 3, 40, 10]
    assert s.shrink() == 0
    assert [n for _, n in s.partial(0)] == after


def test_shrink_gives_every_empty_slab_back(partial: Set) -> None:
    s = partial(cpu_partial=0)
    slabs = listed(s, [N, 2, N])
    s.delta()
    assert s.shrink() == 2 * 4096
    s.counted()  # neither counted as free_slab
    assert s.partial(0) == [(slabs[1][0], 2)]
    assert s.cache.stats(exact=True)["slab_free"] == 2


def test_bulk_frees_go_to_a_slab_as_a_chain(partial: Set) -> None:
    s = partial(cpu_partial=0)
    a, b = s.full(2)
    with s.allocator.on_cpu(0):
        s.cache.free_bulk([a[0], b[0], a[1], b[1], a[2]])
    # From the end: a[2], a[1], a[0], passing over b[1] and b[0]; then b[1], b[0].
    s.counted(free_slowpath=2, free_add_partial=2)
    assert s.cache.stats(exact=True)["free_slow"] == 5
    assert s.partial(0) == [(a[0], 3), (b[0], 2)]
    # The first of the array is at the chain's head.
    assert s.alloc(0, 3) == [a[0], a[1], a[2]]


def test_the_third_object_of_another_slab_ends_a_chain(partial: Set) -> None:
    s = partial(cpu_partial=0)
    a, b = s.full(2)
    with s.allocator.on_cpu(0):
        s.cache.free_bulk([a[0], b[0], b[1], b[2], a[1]])
    # a[1] alone, for three b's come before a[0]; b[2], b[1], b[0]; then a[0].
    s.counted(free_slowpath=3, free_add_partial=2)
    assert s.partial(0) == [(a[0], 2), (b[0], 3)]
    assert s.alloc(0, 2) == [a[0], a[1]]


@pytest.mark.parametrize("epoch", ["3.2", "5.16"])
def test_debug_caches_own_nothing(partial: Set, epoch: str) -> None:
    s = partial(epoch=epoch, debug="F")
    got = s.alloc(0, 3)
    # A new slab, listed; then one object at a time from it. 3.2 deactivates it after each.
    old = {"alloc_from_partial": 2, "deactivate_to_head": 3} if epoch == "3.2" else {}
    s.counted(alloc_slowpath=3, alloc_slab=1, **old)
    assert got == s.objects(got[0], 0, 2)
    assert s.partial(0) == [(got[0], N - 3)]
    assert s.cache.tunables.cpu_partial == 0
    assert s.cache.tunables.cpu_slabs == 0
    s.free(1, got[1])
    s.counted(free_slowpath=1)
    with pytest.raises(ValueError, match=r"cpu_partial 4.*expected 0"):
        s.cache.tunables.cpu_partial = 4


# ---- tunables, geometry -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "old", "new"),
    [
        (8, 30, 120),
        (248, 30, 120),
        (255, 13, 52),
        (256, 13, 52),
        (1016, 13, 52),
        (1024, 6, 24),
        (4088, 6, 24),
        (4096, 2, 6),
        (16384, 2, 6),
    ],
)
def test_cpu_partial_defaults(make: Any, size: int, old: int, new: int) -> None:
    # By the stride: 255 bytes take 256.
    alloc = make("slub-partial", machine=grid(1, 1, 4))
    cache = alloc.create_cache("new", size)
    assert cache.tunables.cpu_partial == new
    assert cache.tunables.cpu_partial_slabs == -(-2 * new // cache.objects_per_slab)
    assert alloc.create_cache("old", size, epoch="3.2").tunables.cpu_partial == old


def test_a_new_limit_flushes(partial: Set) -> None:
    s = partial()
    (a,) = s.full(1)
    s.free(1, a[0])
    s.one(0)
    s.delta()
    s.cache.tunables.cpu_partial = 2 * N
    assert s.cache.tunables.cpu_partial_slabs == 4
    s.counted(cpuslab_flush=1, deactivate_to_head=1, free_add_partial=1)
    assert s.cache.tunables.cpu_slabs == 0


def test_cpu_slabs_counts_lists_of_cpus_with_a_slab(partial: Set) -> None:
    s = partial()
    a, b = s.full(2)
    s.free(1, [a[0], b[0]])
    assert s.cache.tunables.cpu_slabs == 0  # CPU 1 has a list and no CPU slab
    s.one(1)
    assert s.cache.tunables.cpu_slabs == 2
    # 5.16 shows half of what the slabs could hold.
    assert s.cache.tunables.objects_cpu_partial == N // 2


@pytest.mark.parametrize(
    ("epoch", "name", "value", "limits"),
    [
        ("3.2", "min_partial", 4, "5 to 10"),
        ("3.2", "min_partial", 11, "5 to 10"),
        ("5.16", "min_partial", -1, "0 to"),
        ("5.16", "order", 1, "5.8"),
        ("5.16", "cpu_partial", -1, "0 to"),
    ],
)
def test_limits_are_named(partial: Set, epoch: str, name: str, value: int, limits: str) -> None:
    s = partial(epoch=epoch)
    before = s.cache.tunables[name]
    with pytest.raises(ValueError, match=limits):
        s.cache.tunables[name] = value
    assert s.cache.tunables[name] == before


@pytest.mark.parametrize("cpus", [1, 2, 4, 8, 16, 64])
def test_orders_are_those_of_the_known_answers(make: Any, cpus: int) -> None:
    alloc = make("slub-partial", machine=grid(1, 1, cpus))
    for size, answers in ORDERS.items():
        cache = alloc.create_cache(f"size-{size}", size)
        assert (cache.order, cache.objects_per_slab) == answers[cpus], size


# ---- the rules, written down, against random programs -----------------------------------------


LIMIT = {"3.2": 5, "5.16": 4}  # 5.16: ceil(2 * 4 / 4) = 2 slabs


@dataclass
class Rules(SlubModel):
    """Sections "allocation", "free" and "deactivation" of the published algorithm."""

    epoch: str = "5.16"
    lists: dict[int, list[Slab]] = field(default_factory=lambda: {i: [] for i in range(4)})

    @property
    def keep(self) -> int:
        return KEPT + (self.epoch == "3.2")

    # -- allocation

    def alloc(self, cpu: int, node: int | None) -> int | None:
        """Address served; None means a new slab, which `adopt` hears of."""
        slab = self.owned.get(cpu)
        if slab and self.freelist[cpu] and node in (None, slab.node):
            self.counts["alloc_fastpath"] += 1
            return self.freelist[cpu].pop()
        self.counts["alloc_slowpath"] += 1
        home = self.node_of[cpu] if node is None else node
        if self.debug:
            return self.take_one(home)
        while cpu in self.owned or self.lists[cpu]:
            if cpu not in self.owned:
                self.owned[cpu], self.freelist[cpu] = self.lists[cpu].pop(0), []
                self.counts["cpu_partial_alloc"] += 1
            slab = self.owned[cpu]
            if node not in (None, slab.node):
                self.counts["alloc_node_mismatch"] += 1
                self.deactivate(cpu)
            elif slab.free:
                self.counts["alloc_refill"] += 1
                return self.load(cpu)
            else:
                self.counts["deactivate_bypass"] += 1
                slab.frozen = False
                del self.owned[cpu], self.freelist[cpu]
        return self.from_node(cpu, home)

    def from_node(self, cpu: int, home: int) -> int | None:
        listed = self.partial[home]
        if not listed:
            return None
        first = self.owned[cpu] = listed.pop(0)
        self.freelist[cpu] = []
        self.counts["alloc_from_partial"] += 1
        gathered, extra = len(first.free), 0
        while listed:
            limit = LIMIT[self.epoch]
            if self.epoch == "3.2" and gathered > limit // 2:
                break
            if self.epoch == "5.16" and extra > -(-2 * limit // FEW) // 2:
                break
            slab = listed.pop(0)
            gathered += len(slab.free)
            extra += 1
            self.push(cpu, slab)
            self.counts["cpu_partial_node"] += 1
        return self.load(cpu)

    def push(self, cpu: int, slab: Slab) -> None:
        before = self.lists[cpu][0].chained if self.lists[cpu] else (0, 0)
        slab.frozen = True
        slab.chained = (before[0] + 1, before[1] + len(slab.free))
        self.lists[cpu].insert(0, slab)

    def load(self, cpu: int) -> int:
        slab = self.owned[cpu]
        slab.frozen = True
        self.freelist[cpu], slab.free = slab.free, []
        return self.freelist[cpu].pop()

    def take_one(self, home: int) -> int | None:
        if not self.partial[home]:
            return None
        slab = self.partial[home][0]
        address = slab.free.pop()
        if not slab.free:
            self.partial[home].pop(0)
        if self.epoch == "3.2":
            self.counts["alloc_from_partial"] += 1
            self.counts["deactivate_to_head" if slab.free else "deactivate_full"] += 1
        return address

    def adopt(self, cpu: int, node: int | None, base: int) -> int:
        """A new slab at `base`, its objects in address order."""
        slab = self.new_slab(cpu, node, base)
        if self.debug:
            if self.epoch == "3.2":
                self.counts["deactivate_to_head"] += 1
            self.partial[slab.node].insert(0, slab)
            return slab.free.pop()
        self.owned[cpu] = slab
        return self.load(cpu)

    # -- giving slabs up

    def deactivate(self, cpu: int) -> None:
        slab, freelist = self.owned.pop(cpu), self.freelist.pop(cpu)
        remote = bool(slab.free)
        self.counts["deactivate_remote_frees"] += remote
        slab.free += reversed(freelist) if self.epoch == "3.2" else freelist
        slab.frozen = False
        partial = self.partial[slab.node]
        if not slab.free:
            self.counts["deactivate_full"] += 1
        elif len(slab.free) == FEW and len(partial) >= self.keep:
            self.counts["deactivate_empty"] += 1
            self.release(slab)
        else:
            self.counts["deactivate_to_tail" if remote else "deactivate_to_head"] += 1
            partial.insert(len(partial) if remote else 0, slab)

    def unfreeze(self, slabs: list[Slab]) -> None:
        for slab in slabs:
            slab.frozen = False
            if len(slab.free) == FEW and len(self.partial[slab.node]) >= self.keep:
                self.counts["deactivate_empty"] += 1
                self.release(slab)
            else:
                self.partial[slab.node].append(slab)
                self.counts["free_add_partial"] += 1

    # -- free

    def free(self, cpu: int, address: int) -> None:
        slab = self.slab_of(address)
        if self.owned.get(cpu) is slab:
            self.counts["free_fastpath"] += 1
            self.freelist[cpu].append(address)
            return
        self.counts["free_slowpath"] += 1
        was_full = not slab.free
        slab.free.append(address)
        partial = self.partial[slab.node]
        if slab.frozen:
            self.counts["free_frozen"] += 1
        elif was_full and not self.debug:
            self.own(cpu, slab)
        elif len(slab.free) == FEW and len(partial) >= self.keep:
            if not was_full:
                partial.remove(slab)
                self.counts["free_remove_partial"] += 1
            self.release(slab)
        elif was_full:
            partial.append(slab)
            self.counts["free_add_partial"] += 1

    def own(self, cpu: int, slab: Slab) -> None:
        before, limit = self.lists[cpu], LIMIT[self.epoch]
        drained: list[Slab] = []
        if before:
            slabs, objects = before[0].chained
            if objects > limit if self.epoch == "3.2" else slabs >= -(-2 * limit // FEW):
                drained, self.lists[cpu] = before, []
        self.push(cpu, slab)
        self.counts["cpu_partial_free"] += 1
        if drained:
            self.unfreeze(drained)
            self.counts["cpu_partial_drain"] += 1

    # -- everything

    def flush(self) -> None:
        for cpu in range(4):
            if cpu in self.owned:
                self.counts["cpuslab_flush"] += 1
                self.deactivate(cpu)
            self.unfreeze(self.lists[cpu])
            self.lists[cpu] = []

    def compare(self, s: Scene) -> None:
        """The CPUs' lists too."""
        super().compare(s)
        assert isinstance(s, PartialScene)
        for cpu, slabs in self.lists.items():
            assert s.cpu_partial(cpu) == [(slab.base, len(slab.free)) for slab in slabs]


@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
@pytest.mark.parametrize("epoch", ["3.2", "5.16"])
@given(program=steps)
def test_random_programs_follow_the_rules(
    epoch: str, debug: str | None, program: list[Any]
) -> None:
    rules = Rules(debug is not None, [0, 0, 1, 1], epoch=epoch)
    limit = {} if debug else {"cpu_partial": LIMIT[epoch]}
    follow(
        "slub-partial",
        rules,
        program,
        PartialScene,
        SLUB_PARTIAL,
        debug=debug,
        epoch=epoch,
        **limit,
    )
