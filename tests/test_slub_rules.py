"""SLUB of 2.6.25 to 2.6.36 on scripted machines: exact counters, freelists and partial lists.

The numbers used: objects of 256 bytes, 16 to a slab of one page, min_partial = log2(256) = 8.  A
freelist is written oldest first, so its last address is the next one served.  `Rules` at the end
is the published algorithm in forty lines of Python; random programs must leave both alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from rules.machines import grid
from rules.names import SLUB
from rules.scene import Scene
from rules.slub_model import FEW, KEPT, Slab, SlubModel, follow, steps

pytestmark = pytest.mark.once

N = 16  # objects of a slab
SIZE = 256
MIN_PARTIAL = 8


class SlubScene(Scene):
    """A scene whose counters are SLUB's."""

    counters = SLUB

    def slab_of(self, cpu: int) -> int | None:
        """Address of a CPU's slab."""
        slabs = self.cache.slabs()
        owned = slabs[(slabs["place"] == "cpu") & (slabs["cpu"] == cpu)]
        return int(owned["address"].iloc[0]) if len(owned) else None


Set = Callable[..., SlubScene]


@pytest.fixture
def slub(make: Any) -> Any:
    """Sets a cache of slub on a scripted machine of two nodes, CPUs 0, 1 and CPUs 2, 3."""
    made: list[SlubScene] = []

    def set_scene(debug: str | None = None, **tunables: Any) -> SlubScene:
        alloc = make("slub", machine=grid(2, 1, 2), debug=debug)
        tunables = {"min_objects": N, "remote_node_defrag_ratio": 0} | tunables
        made.append(SlubScene(alloc, alloc.create_cache("scene", SIZE, **tunables)))
        return made[-1]

    yield set_scene
    for scene in made:
        with scene.allocator.on_cpu(0):
            scene.cache.free_bulk(scene.cache.live())


# ---- allocation -------------------------------------------------------------------------------


def test_every_cpu_has_a_slab_of_its_own(slub: Set) -> None:
    s = slub()
    first = [s.one(cpu) for cpu in range(4)]
    # Nobody finds anything partial: frozen slabs are on no list.
    s.counted(alloc_slab=4, alloc_slowpath=4)
    assert len({s.slab(address) for address in first}) == 4
    for cpu, address in enumerate(first):
        assert s.cpu(cpu) == s.objects(address, N - 1, 1)
        assert s.slab_of(cpu) == address
    stats = s.cache.stats(exact=True)
    assert stats["alloc_slow"] == 4
    assert stats["alloc_remote"] == 0


def test_counters_are_kept_by_the_cpu_that_acts(slub: Set) -> None:
    s = slub()
    got = s.alloc(0, 3)
    s.free(0, got[0])
    s.free(1, got[1])
    s.free(3, got[2])
    per_cpu = s.cache.stats(exact=True).per_cpu
    assert list(per_cpu["alloc_fastpath"]) == [2, 0, 0, 0]
    assert list(per_cpu["alloc_slowpath"]) == [1, 0, 0, 0]
    assert list(per_cpu["free_fastpath"]) == [1, 0, 0, 0]
    assert list(per_cpu["free_frozen"]) == [0, 1, 0, 1]
    # CPU 1 is of the slab's node, CPU 3 is not.
    assert list(per_cpu["free_slow"]) == [0, 1, 0, 0]
    assert list(per_cpu["free_remote"]) == [0, 0, 0, 1]


def test_a_partial_slab_goes_to_whichever_cpu_of_the_node_asks_first(slub: Set) -> None:
    s = slub()
    got = s.alloc(0, N + 1)  # a full slab, and one more in a new one
    s.free(3, got[:2])
    a = got[0]
    assert s.partial(0) == [(a, 2)]
    s.delta()
    # CPU 2 is of the other node and leaves it alone (the ratio is 0); CPU 1 takes it.
    other = s.one(2)
    s.counted(alloc_slab=1, alloc_slowpath=1)
    assert s.one(1) == got[1]
    s.counted(alloc_from_partial=1, alloc_slowpath=1)
    assert s.slab_of(1) == a
    assert s.cpu(1) == [got[0]]
    # For CPU 0, which allocated it, a free to that slab is a slow one now.
    s.free(0, got[5])
    s.counted(free_slowpath=1, free_frozen=1)
    s.free(1, got[6])
    s.counted(free_fastpath=1)
    assert s.cpu(1) == [got[0], got[6]]
    assert s.slab(other) != a


def test_one_free_object_at_a_time_makes_every_pair_slow(slub: Set) -> None:
    # What was seen under TCP_RR: all slabs full, each free makes one partial, the next allocation
    # takes that one object, and the CPU slab is exhausted at once.
    s = slub()
    got = s.alloc(0, 8 * N)
    s.delta()
    rounds = 5
    for i in range(rounds):
        s.free(0, got[i * N])
        assert s.one(0) == got[i * N]
    # Each allocation finds its CPU slab full, later on the one it took the round before.
    s.counted(
        free_slowpath=rounds,
        free_add_partial=rounds,
        alloc_slowpath=rounds,
        alloc_refill=rounds,
        deactivate_full=rounds,
        alloc_from_partial=rounds,
    )


def test_an_explicit_node_pins(slub: Set) -> None:
    s = slub(remote_node_defrag_ratio=100)
    far = s.alloc(2, (MIN_PARTIAL + 1) * N)
    s.flush()
    s.free(2, far[::N])
    assert len(s.partial(1)) == MIN_PARTIAL + 1
    s.delta()
    # Enough partial slabs on node 1 for anybody to take, but node 0 was named.
    near = s.one(0, node=0)
    s.counted(alloc_slab=1, alloc_slowpath=1)
    assert s.slab(near) not in [address for address, _ in s.partial(1)]
    # Node 1 named: CPU 0's slab of node 0 is given up, its 15 objects first.
    assert s.one(0, node=1) == far[0]
    s.counted(deactivate_to_head=1, alloc_from_partial=1, alloc_slowpath=1)
    assert s.partial(0) == [(near, N - 1)]
    stats = s.cache.stats(exact=True)
    assert stats["alloc_remote"] == 1


# ---- free, deactivation -----------------------------------------------------------------------


def test_a_deactivated_slab_that_got_remote_frees_only_goes_to_the_tail(slub: Set) -> None:
    s = slub()
    a = s.alloc(0, N)
    b = s.alloc(0, N)  # a is full and on no list
    c = s.alloc(0, N)
    s.free(1, a[0])
    s.free(1, c[3])  # c is CPU 0's
    s.delta()
    s.flush()
    # Nothing was on the freelist, one object on the slab's own.
    s.counted(cpuslab_flush=1, deactivate_remote_frees=1, deactivate_to_tail=1)
    assert s.partial(0) == [(a[0], 1), (c[0], 1)]
    # b's turn, with objects on the freelist: head.
    s.free(1, b[:2])
    assert s.partial(0) == [(a[0], 1), (c[0], 1), (b[0], 2)]
    assert s.alloc(0, 2) == [a[0], c[3]]
    assert s.one(0) == b[1]
    s.free(1, a[0])
    s.delta()
    s.flush()
    s.counted(cpuslab_flush=1, deactivate_to_head=1)
    assert s.partial(0) == [(b[0], 1), (a[0], 1)]


def test_deactivation_turns_the_freelist_around(slub: Set) -> None:
    s = slub()
    got = s.alloc(0, N)
    s.free(0, [got[4], got[9], got[2]])
    assert s.cpu(0) == [got[4], got[9], got[2]]
    s.flush()
    # Moved one by one from the freelist's top, so the last moved is the first served.
    assert s.one(0) == got[4]
    assert s.cpu(0) == [got[2], got[9]]


def test_min_partial_is_asked_at_deactivation_only(slub: Set) -> None:
    s = slub(min_partial=5)
    got = s.alloc(0, 6 * N)
    s.flush()
    s.free(0, got[: 5 * N : N])  # five partial slabs
    spare = s.alloc(0, 1)
    assert spare == [got[0]]  # the head: four are listed, one is the CPU's
    s.delta()
    # Emptied by its CPU and flushed: 4 < 5, so it is kept, at the tail.
    s.free(0, got[:N])
    s.flush()
    s.counted(free_fastpath=N, cpuslab_flush=1, deactivate_empty=1)
    assert s.partial(0)[-1] == (got[0], N)
    assert len(s.partial(0)) == 5
    # The sixth, the list being as long as it may be, goes back.
    kept = s.alloc(0, 4 + N)  # the four single objects and the empty slab, which are full now
    last = s.one(0)
    s.free(0, [*kept[:4], kept[4]])
    assert len(s.partial(0)) == 5
    s.delta()
    s.free(0, last)
    s.flush()
    s.counted(free_fastpath=1, cpuslab_flush=1, deactivate_empty=1, free_slab=1)
    # A partial slab that a free empties goes back however short the list is.
    s.free(0, kept[5:])
    s.counted(free_slowpath=N - 1, free_remove_partial=1, free_slab=1)
    assert len(s.partial(0)) == 4


def test_flush_visits_every_cpu(slub: Set) -> None:
    s = slub()
    for cpu in range(3):
        s.one(cpu)
    s.delta()
    s.flush()
    s.counted(cpuslab_flush=3, deactivate_to_head=3)
    assert [len(s.partial(node)) for node in (0, 1)] == [2, 1]
    assert s.cache.tunables.cpu_slabs == 0
    assert s.cache.tunables.partial == 3


# ---- tunables ---------------------------------------------------------------------------------


def test_epochs_and_rules_by_name(make: Any) -> None:
    alloc = make("slub", machine=grid(1, 1, 16))
    old = alloc.create_cache("old", 1024, epoch="2.6.25")
    new = alloc.create_cache("new", 1024)
    rule = alloc.create_cache("rule", 1024, min_objects="2*cpus_per_node")
    # The published table: 1 KiB holds 4 objects in order 0 in 2.6.25, 32 in order 3 on 16 CPUs.
    assert (old.order, old.objects_per_slab) == (0, 4)
    assert (new.order, new.objects_per_slab) == (3, 32)
    # 2 * 16 = 32 objects.
    assert (rule.order, rule.objects_per_slab) == (3, 32)
    assert rule.tunables["min_objects"] == "2*cpus_per_node"
    assert old.tunables["epoch"] == "2.6.25"


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("min_partial", 4, "5 to 10"),
        ("min_partial", 11, "5 to 10"),
        ("remote_node_defrag_ratio", 101, "0 to 100"),
        ("order", 4, "0 to 3"),
    ],
)
def test_limits_are_named(slub: Set, name: str, value: int, limits: str) -> None:
    s = slub()
    before = s.cache.tunables[name]
    with pytest.raises(ValueError, match=f"{value}.*{limits}"):
        s.cache.tunables[name] = value
    assert s.cache.tunables[name] == before


def test_order_changes_future_slabs(slub: Set) -> None:
    s = slub()
    small = s.alloc(0, N)
    s.cache.tunables.order = 2
    large = s.one(0)
    slabs = s.cache.slabs().set_index("address")
    assert slabs.loc[small[0], "objects"] == N
    assert slabs.loc[large, "objects"] == 4 * N
    assert s.cache.tunables.objs_per_slab == 4 * N


# ---- the rules, written down, against random programs -----------------------------------------


# Small slabs make long lists: 1 KiB objects, four to a page, min_partial 5 by request.


class Rules(SlubModel):
    """Sections "allocation", "free" and "deactivation" of the published algorithm."""

    def alloc(self, cpu: int, node: int | None) -> int | None:
        """Address served; None means a new slab, which `adopt` hears of."""
        slab = self.owned.get(cpu)
        if slab and self.freelist[cpu] and node in (None, slab.node):
            self.counts["alloc_fastpath"] += 1
            self.served(cpu)
            return self.freelist[cpu].pop()
        self.slow(cpu)
        if slab:
            if node in (None, slab.node):
                self.counts["alloc_refill"] += 1
                if slab.free:
                    return self.load(cpu, slab)
            self.deactivate(cpu)
        home = self.node_of[cpu] if node is None else node
        taken = self.pick(cpu, home)
        if taken is None:
            return None
        self.counts["alloc_from_partial"] += 1
        return self.load(cpu, taken)

    def pick(self, cpu: int, home: int) -> Slab | None:
        """The partial slab that becomes the CPU's."""
        return self.partial[home].pop(0) if self.partial[home] else None

    def served(self, cpu: int) -> None:
        """A fast allocation."""

    def slow(self, cpu: int) -> None:
        """A slow allocation begins."""

    def at_tail(self, cpu: int, slab: Slab, otherwise: bool) -> bool:
        """Where the CPU adds a slab to a list."""
        return otherwise

    def add(self, cpu: int, slab: Slab, tail: bool) -> None:
        listed = self.partial[slab.node]
        listed.insert(len(listed) if self.at_tail(cpu, slab, tail) else 0, slab)

    def adopt(self, cpu: int, node: int | None, base: int) -> int:
        """A new slab at `base`, its objects in address order."""
        return self.load(cpu, self.new_slab(cpu, node, base))

    def load(self, cpu: int, slab: Slab) -> int:
        self.counts["alloc_slowpath"] += 1
        slab.frozen = True
        self.owned[cpu] = slab
        address = slab.free.pop()
        self.freelist[cpu] = []
        if not self.debug:
            self.freelist[cpu], slab.free = slab.free, []
        return address

    def deactivate(self, cpu: int) -> None:
        slab, freelist = self.owned.pop(cpu), self.freelist.pop(cpu)
        moved = bool(freelist)
        self.counts["deactivate_remote_frees"] += bool(slab.free)
        while freelist:
            slab.free.append(freelist.pop())
        slab.frozen = False
        partial = self.partial[slab.node]
        if not slab.free:
            self.counts["deactivate_full"] += 1
        elif len(slab.free) < FEW:
            tail = self.at_tail(cpu, slab, not moved)
            self.counts["deactivate_to_tail" if tail else "deactivate_to_head"] += 1
            self.add(cpu, slab, tail)
        else:
            self.counts["deactivate_empty"] += 1
            if len(partial) < KEPT:
                self.add(cpu, slab, True)
            else:
                self.release(slab)

    def free(self, cpu: int, address: int) -> None:
        slab = self.slab_of(address)
        if self.owned.get(cpu) is slab and not self.debug:
            self.counts["free_fastpath"] += 1
            self.freelist[cpu].append(address)
            return
        self.counts["free_slowpath"] += 1
        slab.free.append(address)
        partial = self.partial[slab.node]
        if slab.frozen:
            self.counts["free_frozen"] += 1
        elif len(slab.free) == FEW:
            partial.remove(slab)
            self.counts["free_remove_partial"] += 1
            self.release(slab)
        elif len(slab.free) == 1:
            self.add(cpu, slab, True)
            self.counts["free_add_partial"] += 1

    def flush(self) -> None:
        for cpu in sorted(self.owned):
            self.counts["cpuslab_flush"] += 1
            self.deactivate(cpu)


@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
@given(program=steps)
def test_random_programs_follow_the_rules(debug: str | None, program: list[Any]) -> None:
    rules = Rules(debug is not None, [0, 0, 1, 1])
    follow("slub", rules, program, debug=debug)
