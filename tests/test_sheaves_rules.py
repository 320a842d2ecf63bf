"""SLUB with sheaves (7.1) on scripted machines: exact counters, sheaves, barns and partial lists.

The numbers used: objects of 1024 bytes, four to a slab of one page, sheaves of 12, min_partial = 5.
A sheaf is written oldest first, so its last address is the next one served.  Two nodes with CPUs
0, 1 and CPUs 2, 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rules.books import balance
from rules.inside import queues_of, slabs_of
from rules.machines import grid
from rules.scene import Scene

pytestmark = pytest.mark.once

SIZE = 1024
N = 4  # objects of a slab
C = 12  # pointers of a sheaf
MIN_PARTIAL = 5
BARN = 10  # full sheaves of a barn

COUNTERS = (
    "alloc_fastpath",
    "alloc_slowpath",
    "free_fastpath",
    "free_slowpath",
    "free_add_partial",
    "free_remove_partial",
    "alloc_slab",
    "alloc_node_mismatch",
    "free_slab",
    "order_fallback",
    "cmpxchg_double_fail",
    "free_rcu_sheaf",
    "free_rcu_sheaf_fail",
    "sheaf_flush",
    "sheaf_refill",
    "sheaf_alloc",
    "sheaf_free",
    "barn_get",
    "barn_get_fail",
    "barn_put",
    "barn_put_fail",
    "sheaf_prefill_fast",
    "sheaf_prefill_slow",
    "sheaf_prefill_oversize",
    "sheaf_return_fast",
    "sheaf_return_slow",
)
COMMON = (
    "alloc_fast",
    "alloc_second_level",
    "alloc_slow",
    "alloc_remote",
    "free_fast",
    "free_second_level",
    "free_slow",
    "free_remote",
)


class SheafScene(Scene):
    """A scene whose counters and stocks are those of sheaves."""

    levels: dict[str, int]

    def delta(self) -> dict[str, int]:
        """The counters of 7.1 that moved since the last look."""
        now = self.cache.stats(exact=True)
        moved = {name: now[name] - self._last[name] for name in COUNTERS}
        self.levels = {n: now[n] - self._last[n] for n in COMMON if now[n] != self._last[n]}
        self._last = now
        return {name: value for name, value in moved.items() if value}

    def served(self, **expected: int) -> None:
        """Common counters that moved between the last two looks."""
        assert self.levels == expected, f"served {self.levels}, by the rules {expected}\n{self}"

    def _sheaves(self, name: str, **which: int) -> list[list[int]]:
        return [q.addresses for q in queues_of(self.cache, name=name, **which)]

    def main(self, cpu: int) -> list[int]:
        """A CPU's main sheaf."""
        (found,) = self._sheaves("main", cpu=cpu)
        return found

    def spare(self, cpu: int) -> list[int] | None:
        """A CPU's spare sheaf, None when it has none."""
        found = self._sheaves("spare", cpu=cpu)
        return found[0] if found else None

    def barn(self, node: int = 0) -> list[list[int]]:
        """Full sheaves of a barn, the next one to be taken first."""
        return self._sheaves("full", node=node)

    def empties(self, node: int = 0) -> int:
        """Empty sheaves of a barn."""
        return len(self._sheaves("empty", node=node))


Set = Callable[..., SheafScene]


@pytest.fixture
def sheaves(make: Any) -> Any:
    """Sets a cache of sheaves on a scripted machine of two nodes, CPUs 0, 1 and CPUs 2, 3."""
    made: list[SheafScene] = []

    def set_scene(size: int = SIZE, debug: str | None = None, **tunables: Any) -> SheafScene:
        alloc = make("sheaves", machine=grid(2, 1, 2), debug=debug)
        tunables = {"min_objects": N, "remote_node_defrag_ratio": 0} | tunables
        made.append(SheafScene(alloc, alloc.create_cache("scene", size, **tunables)))
        return made[-1]

    yield set_scene
    for scene in made:
        with scene.allocator.on_cpu(0):
            scene.cache.free_bulk(scene.cache.live())


def slabs_in_order(objects: list[int]) -> list[list[int]]:
    """Runs of objects that lie one after the other."""
    runs: list[list[int]] = []
    for address in objects:
        if runs and address == runs[-1][-1] + SIZE and len(runs[-1]) < N:
            runs[-1].append(address)
        else:
            runs.append([address])
    return runs


# ---- allocation -------------------------------------------------------------------------------


def test_the_first_allocation_fills_a_sheaf_and_keeps_the_old_one_as_spare(sheaves: Set) -> None:
    s = sheaves()
    assert s.cache.tunables.sheaf_capacity == C
    got = s.one(0)
    # The CPU's main sheaf; nothing in barn and slabs; a sheaf to fill, from three new slabs.
    s.counted(sheaf_alloc=2, barn_get_fail=1, alloc_slab=3, sheaf_refill=C, alloc_fastpath=1)
    s.served(alloc_slow=1)
    # Step f: the old main sheaf, empty, becomes the spare.
    assert s.spare(0) == []
    # Slabs are emptied in the order of their free lists, ascending; the last pointer is served.
    runs = slabs_in_order([*s.main(0), got])
    assert [len(run) for run in runs] == [N, N, N]
    assert got == runs[-1][-1]
    assert s.partial(0) == []
    rest = s.alloc(0, C - 1)
    s.counted(alloc_fastpath=C - 1)
    s.served(alloc_fast=C - 1)
    assert rest == list(reversed([*runs[0], *runs[1], *runs[2][:-1]]))
    # The spare has nothing, nor has the barn: it is filled itself, no sheaf is allocated.
    s.one(0)
    s.counted(barn_get_fail=1, alloc_slab=3, sheaf_refill=C, alloc_fastpath=1)
    assert s.spare(0) == []


def test_a_refill_empties_partial_slabs_first_and_lists_what_is_left(sheaves: Set) -> None:
    s = sheaves(min_objects=8)  # order 1, eight to a slab: a sheaf takes one and a half
    a = s.alloc(0, C)
    s.counted(sheaf_alloc=2, barn_get_fail=1, alloc_slab=2, sheaf_refill=C, alloc_fastpath=C)
    # The new slab that gave four keeps four, and is on the list.
    (slab,) = [s.slab(a[0])]
    assert s.partial(0) == [(slab, 4)]
    s.alloc(0)
    # Those four, then a new slab, all of it: nothing is left over.
    s.counted(barn_get_fail=1, alloc_slab=1, sheaf_refill=C, alloc_fastpath=1)
    assert s.partial(0) == []
    assert set(s.objects(slab, 4, 7)) == set(s.main(0)[:4])


def test_what_a_refill_took_too_much_goes_back_to_the_tail(sheaves: Set) -> None:
    s = sheaves(min_objects=8)
    got = s.alloc(0, 4 * C)  # six slabs, all full
    slabs = sorted({s.slab(address) for address in got})
    assert len(slabs) == 6
    # CPU 2 is of the other node: its frees go to the slabs. Five, five, five and one become free.
    for slab, n in zip(slabs, (5, 5, 5, 1), strict=False):
        s.free(2, s.objects(slab, 0, n - 1))
    s.delta()
    order = [(slab, n) for slab, n in zip(slabs, (5, 5, 5, 1), strict=False)]
    assert s.partial(0) == order
    s.one(1)
    # CPU 1 pulls three slabs (5 + 5 < 12 <= 15); three objects of the third go back as one chain,
    # to a slab that is full by then: to the tail, behind the one that was never touched.
    s.counted(sheaf_alloc=2, barn_get_fail=1, sheaf_refill=C, alloc_fastpath=1, free_add_partial=1)
    assert s.partial(0) == [order[3], (slabs[2], 3)]
    # Free lists are served newest first: each slab's objects were freed ascending.
    assert s.main(1)[:10] == [*s.objects(slabs[0], 4, 0), *s.objects(slabs[1], 4, 0)]


def test_the_spare_is_used_before_the_barn(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 2 * C)
    s.free(0, got)  # main and spare are full
    assert (len(s.main(0)), len(s.spare(0) or [])) == (C, C)
    first, second = s.main(0), s.spare(0)
    s.delta()
    assert s.alloc(0, C) == first[::-1]
    assert s.alloc(0, C) == (second or [])[::-1]
    s.counted(alloc_fastpath=2 * C)
    s.served(alloc_fast=2 * C)
    assert (s.main(0), s.spare(0)) == ([], [])


def test_an_empty_main_sheaf_is_exchanged_with_the_barn(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 4 * C)
    s.free(0, got)  # main, spare, and two sheaves in the barn
    newest, oldest = s.barn(0)
    s.alloc(0, 2 * C)
    s.delta()
    assert s.one(0) == newest[-1]  # last put, first taken
    s.counted(barn_get=1, alloc_fastpath=1)
    s.served(alloc_second_level=1)
    assert s.main(0) == newest[:-1]
    assert s.barn(0) == [oldest]
    assert s.empties(0) == 1  # the barn keeps what was given for it
    # Any CPU of the node may have the other one, but not one of another node.
    assert s.one(1) == oldest[-1]
    s.counted(sheaf_alloc=1, barn_get=1, alloc_fastpath=1)
    assert s.spare(1) is None
    s.one(2)
    s.counted(sheaf_alloc=2, barn_get_fail=1, alloc_slab=3, sheaf_refill=C, alloc_fastpath=1)


def test_a_node_that_was_asked_for(sheaves: Set) -> None:
    s = sheaves()
    s.one(0, node=0)  # of the CPU's own node: by way of sheaves
    s.counted(sheaf_alloc=2, barn_get_fail=1, alloc_slab=3, sheaf_refill=C, alloc_fastpath=1)
    far = s.one(0, node=1)
    # One object of a new slab, which goes to the head of its list.
    s.counted(alloc_node_mismatch=1, alloc_slab=1, alloc_slowpath=1)
    s.served(alloc_remote=1)
    assert s.partial(1) == [(far, N - 1)]
    assert s.alloc(0, N - 1, node=1) == s.objects(far, 1, N - 1)
    # With its last free object the slab leaves the list.
    s.counted(alloc_node_mismatch=N - 1, alloc_slowpath=N - 1)
    assert s.partial(1) == []


# ---- free -------------------------------------------------------------------------------------


def test_frees_fill_main_and_spare_without_the_barn(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 2 * C)  # main and spare are empty
    s.delta()
    s.free(0, got)
    s.counted(free_fastpath=2 * C)
    s.served(free_fast=2 * C)
    # The full main sheaf and the empty spare changed places once.
    assert (s.spare(0), s.main(0)) == (got[:C], got[C:])


def test_a_first_full_sheaf_without_a_spare_gets_an_empty_one(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, C)
    s.delta()
    s.free(1, got)  # CPU 1: its main sheaf is made, and filled
    s.counted(sheaf_alloc=1, free_fastpath=C)
    assert s.spare(1) is None
    more = s.alloc(0, 2)
    s.delta()
    s.free(1, more[0])
    # No spare, no empty sheaf in the barn: one is allocated; the full one becomes the spare.
    s.counted(sheaf_alloc=1, free_fastpath=1)
    s.served(free_fast=1)
    assert (s.spare(1), s.main(1)) == (got, [more[0]])


def test_an_empty_sheaf_of_the_barn_is_used_before_a_new_one(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 4 * C)
    s.free(0, got)
    s.alloc(0, 3 * C)  # one exchange with the barn: it holds an empty sheaf
    assert s.empties(0) == 1
    held = s.alloc(0, 2)  # and another one
    assert s.empties(0) == 2
    s.delta()
    s.free(1, got[:C])
    s.free(1, held[0])
    s.counted(sheaf_alloc=1, free_fastpath=C + 1)
    s.served(free_fast=C, free_second_level=1)
    assert s.empties(0) == 1
    assert s.spare(1) == got[:C]


def test_a_barn_takes_ten_full_sheaves(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, (BARN + 3) * C)
    s.delta()
    # Main and spare; then each sheaf that is full goes to the barn while an empty one has to be
    # allocated, since nobody ever gave the barn one.
    s.free(0, got[: (BARN + 2) * C])
    s.counted(free_fastpath=(BARN + 2) * C, barn_put=BARN, sheaf_alloc=BARN)
    s.served(free_fast=(BARN + 2) * C - BARN, free_second_level=BARN)
    assert len(s.barn(0)) == BARN
    assert s.barn(0)[-1] == got[C : 2 * C]  # the first main sheaf after the swap with the spare
    spare, main = s.spare(0), s.main(0)
    assert spare == got[:C]
    assert main == got[-2 * C : -C]
    # Now the spare is flushed to its slabs, all of which are full: three of them, four objects each
    # in one chain, so that each goes straight from full to empty. Five of them are kept at most.
    s.free(0, got[-C])
    s.counted(free_fastpath=1, barn_put_fail=1, sheaf_flush=C, free_add_partial=3)
    s.served(free_slow=1)
    assert s.spare(0) == main
    assert s.main(0) == [got[-C]]
    assert [free for _, free in s.partial(0)] == [N, N, N]
    # The other eleven fill the main sheaf, the next overflow flushes again.
    s.free(0, got[-C + 1 :])
    s.counted(free_fastpath=C - 1)


def test_full_and_empty_sheaves_are_exchanged_with_the_barn(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 3 * C)
    s.free(0, got)  # one full sheaf in the barn
    s.alloc(0, 3 * C)
    assert (s.barn(0), s.empties(0)) == ([], 1)
    s.delta()
    s.free(0, got)
    # As many sheaves as before are on their way: none is allocated, none freed.
    s.counted(free_fastpath=3 * C, barn_put=1)
    s.served(free_fast=3 * C - 1, free_second_level=1)
    assert (len(s.barn(0)), s.empties(0)) == (1, 0)


def test_remote_objects_go_straight_to_their_slabs(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, C)
    a, b, c = (s.slab(got[i]) for i in (0, N, 2 * N))
    s.delta()
    s.free(2, got[0])
    # CPU 2 has a main sheaf by now, which the object does not enter.
    s.counted(sheaf_alloc=1, free_slowpath=1, free_add_partial=1)
    s.served(free_remote=1)
    assert s.main(2) == []
    assert s.partial(0) == [(a, 1)]
    s.free(2, [got[2 * N], got[N]])
    s.counted(free_slowpath=2, free_add_partial=2)
    assert s.partial(0) == [(a, 1), (c, 1), (b, 1)]  # each at the tail
    # The same objects freed on a CPU of their node are fast ones.
    s.free(1, got[1])
    s.counted(sheaf_alloc=1, free_fastpath=1)


def test_emptied_slabs_stay_while_the_list_is_short(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 2 * C)  # six slabs
    slabs = slabs_in_order(sorted(got))
    s.delta()
    for i, objects in enumerate(slabs[: MIN_PARTIAL - 1]):
        s.free(2, objects)
        assert len(s.partial(0)) == i + 1
    s.counted(sheaf_alloc=1, free_slowpath=4 * N, free_add_partial=4)
    # With the fifth the list has five slabs when its last object comes: it goes back.
    s.free(2, slabs[4])
    s.counted(free_slowpath=N, free_add_partial=1, free_remove_partial=1, free_slab=1)
    assert s.partial(0) == [(objects[0], N) for objects in slabs[:4]]
    s.cache.tunables.min_partial = 0
    s.free(2, slabs[5])
    s.counted(free_slowpath=N, free_add_partial=1, free_remove_partial=1, free_slab=1)


# ---- bulk -------------------------------------------------------------------------------------


def bulk(s: SheafScene, cpu: int, n: int) -> list[int]:
    """Allocate n objects on a CPU in one call."""
    with s.allocator.on_cpu(cpu):
        return [int(a) for a in s.cache.alloc_bulk(n)]


def free_bulk(s: SheafScene, cpu: int, objects: list[int]) -> None:
    """Free objects on a CPU in one call."""
    with s.allocator.on_cpu(cpu):
        s.cache.free_bulk(objects)


def test_a_bulk_allocation_drains_sheaves_and_gets_the_rest_from_slabs(sheaves: Set) -> None:
    s = sheaves()
    held = s.alloc(0, 4 * C)
    s.free(0, held)  # main, spare, two in the barn
    main, spare, barn = s.main(0), s.spare(0) or [], s.barn(0)
    s.delta()
    got = bulk(s, 0, 4 * C + 6)
    # Copied as they lie: the main sheaf, the spare, both of the barn; then six from two new slabs.
    assert got[: 4 * C] == [*main, *spare, *barn[0], *barn[1]]
    s.counted(alloc_fastpath=4 * C, barn_get=2, barn_get_fail=1, alloc_slab=2, alloc_slowpath=6)
    s.served(alloc_fast=4 * C - 2, alloc_second_level=2, alloc_slow=6)
    assert s.empties(0) == 2
    assert [free for _, free in s.partial(0)] == [2]
    free_bulk(s, 0, got)


def test_a_part_of_a_sheaf_is_copied_from_its_top(sheaves: Set) -> None:
    s = sheaves()
    s.free(0, s.alloc(0, C))
    main = s.main(0)
    s.delta()
    assert bulk(s, 0, 5) == main[-5:]
    s.counted(alloc_fastpath=5)
    assert s.main(0) == main[:-5]


def test_a_bulk_free_allocates_no_sheaves(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 4 * C)  # main and spare empty
    s.delta()
    free_bulk(s, 0, got)
    # Two sheaves are filled; the barn has no empty one to give, so the rest goes to slabs.
    # Six full slabs get all their objects back in one chain each: five are kept, the sixth was on
    # no list that it could be taken off.
    s.counted(free_fastpath=2 * C, free_slowpath=2 * C, free_add_partial=5, free_slab=1)
    s.served(free_fast=2 * C, free_slow=2 * C)
    assert (s.spare(0), s.main(0)) == (got[:C], got[C : 2 * C])


def test_a_bulk_free_beyond_the_barns_limit_goes_to_slabs(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, (BARN + 3) * C)
    s.free(0, got[: (BARN + 2) * C])  # main, spare and barn are full
    s.delta()
    free_bulk(s, 0, got[-C:])
    s.counted(barn_put_fail=1, free_slowpath=C, free_add_partial=3)
    s.served(free_slow=C)
    assert len(s.barn(0)) == BARN


def test_a_bulk_free_collects_remote_objects_and_links_those_of_a_slab(sheaves: Set) -> None:
    s = sheaves()
    near, far = s.alloc(0, C), s.alloc(2, C)
    s.delta()
    mixed = [address for pair in zip(near, far, strict=True) for address in pair]
    free_bulk(s, 0, mixed)
    # The local ones fill the main sheaf; the remote ones go to three full slabs, each in one chain:
    # on the list at once, entirely free.
    s.counted(free_fastpath=C, free_slowpath=C, free_add_partial=3)
    s.served(free_fast=C, free_remote=C)
    assert s.main(0) == near
    # Linked from the end of the array, where the slab with the lowest addresses is.
    slabs = [run[0] for run in slabs_in_order(sorted(far))]
    assert s.partial(1) == [(slab, N) for slab in slabs]


def test_objects_of_three_other_slabs_end_a_chain(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 4 * C)  # twelve slabs
    slabs = slabs_in_order(sorted(got))
    a, b, c, d = slabs[:4]
    s.delta()
    # From the end: a1; three of others are passed over, a0 is not seen any more.
    free_bulk(s, 2, [a[0], b[0], c[0], d[0], a[1]])
    s.counted(free_slowpath=5, free_add_partial=4)
    # a alone, then d, c, b; a0 finds its slab on the list.
    assert s.partial(0) == [(a[0], 2), (d[0], 1), (c[0], 1), (b[0], 1)]


# ---- flush, shrink, CPUs that go ----------------------------------------------------------------


def test_a_flush_leaves_out_the_barn_and_a_shrink_does_not(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(0, 3 * C)
    s.free(0, got)
    s.delta()
    s.flush()
    # Spare and main are flushed, the spare sheaf is freed; six slabs become empty, five are kept.
    s.counted(sheaf_flush=2 * C, sheaf_free=1, free_add_partial=5, free_slab=1)
    assert s.cache.stats(exact=True)["flush"] == 1
    assert (s.main(0), s.spare(0), len(s.barn(0))) == ([], None, 1)
    assert len(s.partial(0)) == MIN_PARTIAL
    s.shrink()
    # The barn's sheaf fills three more slabs, which the list is too long for; the five listed ones
    # are given back by the shrink itself and not counted as FREE_SLAB.
    s.counted(sheaf_flush=C, sheaf_free=1, free_slab=3)
    assert s.barn(0) == []
    assert s.cache.slabs().empty
    stats = s.cache.stats(exact=True)
    assert stats["alloc_slab"] == stats["slab_free"] == 9
    assert stats["sheaf_alloc"] - stats["sheaf_free"] == 1  # the main sheaf stays
    # Nothing to flush: not counted.
    s.flush()
    assert s.cache.stats(exact=True)["flush"] == 1


def test_shrink_puts_the_fullest_slabs_first(sheaves: Set) -> None:
    s = sheaves(size=64, min_objects=64)  # 64 to a slab of one page, sheaves of 60
    got = sorted(s.alloc(0, 5 * 60))  # four full slabs, and 44 objects of a fifth
    slabs = [[a for a in got if s.slab(a) == slab] for slab in sorted({s.slab(a) for a in got})]
    assert [len(objects) for objects in slabs] == [64, 64, 64, 64, 44]
    for objects, n in zip(slabs, (40, 3, 33, 25), strict=False):
        s.free(2, objects[:n])
    assert [free for _, free in s.partial(0)] == [20, 40, 3, 33, 25]
    s.shrink()
    # Slabs with up to 32 free objects come first, fullest first; the others keep their order.
    assert [free for _, free in s.partial(0)] == [3, 20, 25, 40, 33]


def test_a_cpu_that_goes_is_flushed(sheaves: Set) -> None:
    s = sheaves()
    s.free(1, s.alloc(0, C + 2))
    assert s.spare(1) is not None
    s.delta()
    s.allocator.offline_cpu(1)
    s.counted(sheaf_flush=C + 2, sheaf_free=1, free_add_partial=4)
    assert (s.main(1), s.spare(1)) == ([], None)
    s.allocator.online_cpu(1)
    s.free(1, s.one(0))
    s.delta()
    s.free(1, s.one(0))
    s.counted(alloc_fastpath=1, free_fastpath=1)
    assert len(s.main(1)) == 2


def test_with_its_last_cpu_a_node_loses_its_barn(sheaves: Set) -> None:
    s = sheaves()
    got = s.alloc(2, 4 * C)
    s.free(2, got)  # CPU 2: main, spare and two in the barn
    s.allocator.offline_cpu(2)
    assert len(s.barn(1)) == 2
    s.delta()
    s.allocator.offline_cpu(3)
    assert s.barn(1) == []
    # Six slabs, while there are five on the list already: all are given back.
    s.counted(sheaf_flush=2 * C, sheaf_free=2, free_slab=6)


# ---- without sheaves ----------------------------------------------------------------------------


def test_a_cache_with_debug_has_no_sheaves(sheaves: Set) -> None:
    s = sheaves(debug="F")
    assert s.cache.tunables.sheaf_capacity == 0
    got = s.alloc(0, N + 1)
    # One object at a time from the first listed slab, which a new one joins at the head.
    s.counted(alloc_slab=2, alloc_slowpath=N + 1)
    s.served(alloc_slow=N + 1)
    assert s.partial(0) == [(s.slab(got[-1]), N - 1)]
    s.free(0, got[0])
    s.counted(free_slowpath=1, free_add_partial=1)
    assert queues_of(s.cache) == []
    balance(s.cache)


# ---- what is decided before the first slab ------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "capacity", "bytes_"),
    [
        (8, 60, 512),
        (64, 60, 512),
        (255, 28, 256),  # the stride counts: 256
        (248, 60, 512),
        (256, 28, 256),
        (1016, 28, 256),
        (1024, 12, 128),
        (4088, 12, 128),
        (4096, 4, 64),
        (16384, 4, 64),
    ],
)
def test_capacities(make: Any, size: int, capacity: int, bytes_: int) -> None:
    alloc = make("sheaves", machine=grid(1, 1, 1))
    cache = alloc.create_cache("sized", size)
    assert cache.tunables.sheaf_capacity == capacity
    # A sheaf and its header of 32 bytes fill a general cache, whose size the account shows.
    assert 32 + 8 * capacity == bytes_
    before = alloc.account()["metadata"]
    cache.free(cache.alloc_address())
    # The CPU's region, a line, its main sheaf and the one that was filled.
    assert alloc.account()["metadata"] - before == 64 + 2 * bytes_


def test_a_creator_may_ask_for_more_but_not_for_less(make: Any) -> None:
    alloc = make("sheaves", machine=grid(1, 1, 1))
    assert alloc.create_cache("more", 1024, sheaf_capacity=32).tunables.sheaf_capacity == 32
    assert alloc.create_cache("less", 1024, sheaf_capacity=2).tunables.sheaf_capacity == 12


@pytest.mark.parametrize(
    ("size", "kept"), [(8, 5), (1024, 5), (2048, 5), (4088, 5), (4096, 6), (16384, 7)]
)
def test_min_partial_is_half_of_log2(make: Any, size: int, kept: int) -> None:
    alloc = make("sheaves", machine=grid(1, 1, 1))
    assert alloc.create_cache("sized", size).tunables.min_partial == kept


def test_tunables_refuse_what_the_original_refuses(make: Any) -> None:
    alloc = make("sheaves", machine=grid(1, 1, 1))
    cache = alloc.create_cache("tuned", 64)
    cache.tunables.cpu_partial = 0
    with pytest.raises(ValueError, match="cpu_partial"):
        cache.tunables.cpu_partial = 1
    with pytest.raises(ValueError, match="remote_node_defrag_ratio"):
        cache.tunables.remote_node_defrag_ratio = 101
    with pytest.raises(ValueError, match="min_order 3 is above max_order 1"):
        alloc.create_cache("none", 64, min_order=3, max_order=1)
    cache.tunables.min_partial = 100_000  # stored as it is


def order_by_rule(size: int, cpus: int) -> int:
    """1.3.9: min_objects, capped by what fits at order 3; 1/16, 1/8, 1/4, 1/2 of waste."""
    page, max_order = 4096, 3
    wanted = min(4 * (cpus.bit_length() + 1), max((page << max_order) // size, 1))
    least = next(order for order in range(11) if page << order >= wanted * size)
    for fraction in (16, 8, 4, 2):
        for order in range(least, max_order + 1):
            if (page << order) % size <= (page << order) // fraction:
                return order
    return next(order for order in range(11) if page << order >= size)


@pytest.mark.parametrize("cpus", [1, 2, 4, 8, 64])
def test_orders_follow_the_rule(make: Any, cpus: int) -> None:
    alloc = make("sheaves", machine=grid(1, 1, cpus))
    sizes = [
        *range(8, 520, 24),
        704,
        1024,
        1088,
        1216,
        2048,
        2368,
        3072,
        4096,
        6000,
        8192,
        10928,
        12280,
        12288,
        16384,
    ]
    for size in sizes:
        cache = alloc.create_cache(f"sized-{size}", size)
        order = order_by_rule(size, cpus)
        assert (cache.tunables.order, cache.tunables.objs_per_slab) == (
            order,
            (4096 << order) // size,
        ), size
        cache.destroy()


@pytest.mark.parametrize(
    ("size", "known"),
    # Known answers of the reference, order/objects for 1, 2, 4, 8, 16 and 64 CPUs.
    [
        (64, ["0/64"] * 6),
        (192, ["0/21", "0/21", "0/21", "0/21", "1/42", "1/42"]),
        (256, ["0/16", "0/16", "0/16", "1/32", "1/32", "1/32"]),
        (512, ["0/8", "1/16", "1/16", "2/32", "2/32", "2/32"]),
        (1024, ["1/8", "2/16", "2/16", "3/32", "3/32", "3/32"]),
        (1216, ["2/13", "2/13", "3/26", "3/26", "3/26", "3/26"]),
        (4096, ["3/8"] * 6),
        (8192, ["3/4"] * 6),
    ],
)
def test_orders_are_the_known_ones(make: Any, size: int, known: list[str]) -> None:
    for cpus, answer in zip((1, 2, 4, 8, 16, 64), known, strict=True):
        cache = make("sheaves", machine=grid(1, 1, cpus)).create_cache("known", size)
        assert f"{cache.tunables.order}/{cache.tunables.objs_per_slab}" == answer


def test_the_counters_are_those_of_7_1(make: Any) -> None:
    alloc = make("sheaves", machine=grid(1, 1, 1))
    names = set(alloc.create_cache("counted", 64).stats())
    assert len(COUNTERS) == 26
    assert set(COUNTERS) <= names


# ---- slab_strict_numa ---------------------------------------------------------------------------


def on_node(scene: SheafScene, address: int) -> int:
    """The node of the slab that an object lies in."""
    (found,) = {row.node for row in slabs_of(scene.cache, address=scene.slab(address))}
    return found


def test_a_memory_policy_says_nothing_by_default(sheaves: Set) -> None:
    scene = sheaves()
    with scene.allocator.memory_policy(preferred=1):
        address = scene.one(0)
    assert on_node(scene, address) == 0
    moved = scene.delta()
    assert "alloc_node_mismatch" not in moved
    scene.free(0, address)


def test_strict_numa_turns_a_preferred_node_into_a_node_asked_for(sheaves: Set) -> None:
    scene = sheaves(slab_strict_numa=1)
    with scene.allocator.memory_policy(preferred=1):
        address = scene.one(0)
        # Not the node of CPU 0: the sheaves are passed by, one object comes from a new slab.
        assert on_node(scene, address) == 1
        moved = scene.delta()
        assert (moved["alloc_node_mismatch"], moved["alloc_slowpath"]) == (1, 1)
        assert (moved["alloc_slab"], moved.get("alloc_fastpath", 0)) == (1, 0)
        named = scene.one(0, node=0)  # who names a node gets that one
        assert on_node(scene, named) == 0
        local = scene.one(2)  # node 1 is this CPU's own: its sheaf serves
        assert on_node(scene, local) == 1
        moved = scene.delta()
        assert (moved.get("alloc_node_mismatch", 0), moved["alloc_fastpath"]) == (0, 2)
    scene.free(0, [address, named, local])


def test_strict_numa_interleaves_object_by_object(sheaves: Set) -> None:
    scene = sheaves(slab_strict_numa=1)
    with scene.allocator.memory_policy(interleave=[0, 1]):
        taken = scene.alloc(0, 6)
    assert [on_node(scene, address) for address in taken] == [0, 1] * 3
    scene.free(0, taken)


def test_strict_numa_does_not_reach_bulk_calls_and_prefilled_sheaves(sheaves: Set) -> None:
    scene = sheaves(slab_strict_numa=1)
    alloc = scene.allocator
    with alloc.memory_policy(preferred=1), alloc.on_cpu(0):
        taken = scene.cache.alloc_bulk(3).tolist()
        with scene.cache.prefill_sheaf(2) as sheaf:
            taken += [sheaf.alloc_address(), sheaf.alloc_address()]
    assert {on_node(scene, address) for address in taken} == {0}
    scene.free(0, taken)


def test_strict_numa_holds_under_debug_and_for_general_caches(sheaves: Set, make: Any) -> None:
    scene = sheaves(debug="F", slab_strict_numa=1)
    with scene.allocator.memory_policy(preferred=1):
        address = scene.one(0)
    assert on_node(scene, address) == 1
    scene.free(0, address)
    alloc = make("sheaves", machine=grid(2, 1, 2), slab_strict_numa=1)
    general = alloc.cache("kmalloc-64")
    with alloc.memory_policy(preferred=1):
        address = alloc.kmalloc(64)
    assert [row.node for row in slabs_of(general)] == [1]
    alloc.kfree(address)


def test_strict_numa_is_chosen_when_the_cache_is_made(sheaves: Set) -> None:
    scene = sheaves()
    with pytest.raises(ValueError, match="slab_strict_numa"):
        scene.cache.tunables["slab_strict_numa"] = 1
    with pytest.raises(ValueError, match="slab_strict_numa"):
        scene.allocator.create_cache("other", SIZE, slab_strict_numa=2)
