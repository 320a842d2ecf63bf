"""slub-thrash on scripted machines: which partial slab a CPU takes, and what it counts.

The numbers used: objects of 256 bytes, 16 to a slab of one page, so that the default ratio of 25 %
asks for 4 free objects.  A CPU that never allocated has had no fast allocation: its third slow one
in a row that finds fewer than 4 before it is the first that thrashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from rules.machines import grid
from rules.names import SLUB
from rules.orders import ORDERS
from rules.slub_model import FEW, Slab, follow, steps
from test_slub_rules import SIZE, N, Rules, SlubScene

from unislab.inspect import is_reconstructed, policy_counters, policy_tunables

pytestmark = pytest.mark.once

THRASHING = 3
OWN = (*SLUB, "deferred_partial")


class ThrashScene(SlubScene):
    """A scene that also tells deferrals."""

    counters = OWN

    def listed(self, counts: list[int], cpu: int = 0) -> list[list[int]]:
        """Slabs with these numbers of free objects, on the node's list in this order."""
        got = self.alloc(cpu, len(counts) * N)
        self.flush()
        slabs = [got[i : i + N] for i in range(0, len(got), N)]
        for slab, n in zip(slabs, counts, strict=True):
            self.free(cpu, slab[:n])
        node = cpu // 2
        assert self.partial(node) == [(s[0], n) for s, n in zip(slabs, counts, strict=True)]
        self.delta()
        return slabs

    def taken(self, cpu: int) -> int:
        """Allocates on the CPU; the slab that served."""
        return self.slab(self.one(cpu))


Set = Callable[..., ThrashScene]


@pytest.fixture
def thrash(make: Any) -> Any:
    """Sets a cache of slub-thrash on two nodes, CPUs 0, 1 and CPUs 2, 3."""
    made: list[ThrashScene] = []

    def set_scene(debug: str | None = None, **tunables: Any) -> ThrashScene:
        alloc = make("slub-thrash", machine=grid(2, 1, 2), debug=debug)
        tunables = {"min_objects": N, "remote_node_defrag_ratio": 0} | tunables
        made.append(ThrashScene(alloc, alloc.create_cache("scene", SIZE, **tunables)))
        return made[-1]

    yield set_scene
    for scene in made:
        with scene.allocator.on_cpu(0):
            scene.cache.free_bulk(scene.cache.live())


# ---- ratio ------------------------------------------------------------------------------------


def test_it_says_that_it_is_reconstructed() -> None:
    # 5.4, mode ratio, is a reconstruction; 5.3 is told in words, and off is SLUB.
    for mode, told in (("ratio", True), (1, True), ("mostfree", False), (2, False), ("off", False)):
        assert is_reconstructed("slub-thrash", {"mode": mode}) == told
    assert is_reconstructed("slub-thrash") and is_reconstructed("sleb", {"min_objects": 4})
    assert not is_reconstructed("slub")
    tunables = policy_tunables("slub-thrash").set_index("name")
    counters = policy_counters("slub-thrash").set_index("name")
    assert "reconstructed" in tunables.loc["mode", "help"]
    assert "reconstructed" in tunables.loc["slab_thrash_ratio", "help"]
    assert "reconstructed" in counters.loc["deferred_partial", "help"]
    assert tunables.loc["slab_thrash_ratio", "default"] == 25


def test_a_cpu_that_thrashes_defers_poor_slabs_and_gets_a_new_one(thrash: Set) -> None:
    s = thrash()
    a, b, c, d = s.listed([1, 1, 1, 3])
    assert [s.taken(1), s.taken(1)] == [a[0], b[0]]
    s.counted(alloc_slowpath=2, alloc_from_partial=2, alloc_refill=1, deactivate_full=1)
    # The third: neither 1 nor 3 objects are 4.
    fresh = s.taken(1)
    s.counted(alloc_slowpath=1, alloc_refill=1, deactivate_full=1, deferred_partial=1, alloc_slab=1)
    assert fresh not in (a[0], b[0], c[0], d[0])
    assert s.partial(0) == [(c[0], 1), (d[0], 3)]
    # 15 fast allocations from the new slab: the next slow one is ordinary.
    s.alloc(1, N - 1)
    s.delta()
    assert s.taken(1) == c[0]
    s.counted(alloc_slowpath=1, alloc_refill=1, deactivate_full=1, alloc_from_partial=1)


def test_a_cpu_that_thrashes_takes_the_first_slab_with_enough(thrash: Set) -> None:
    s = thrash()
    _a, _b, c, d, e = s.listed([1, 1, 3, 5, 4])
    s.alloc(1, 2)
    s.delta()
    assert s.taken(1) == d[0]
    s.counted(alloc_slowpath=1, alloc_refill=1, deactivate_full=1, alloc_from_partial=1)
    assert s.partial(0) == [(c[0], 3), (e[0], 4)]
    # It passed: the thrashing is over, and the list's first is good enough again.
    s.alloc(1, 4)
    s.delta()
    assert s.taken(1) == c[0]
    s.counted(alloc_slowpath=1, alloc_refill=1, deactivate_full=1, alloc_from_partial=1)


def test_fast_allocations_end_a_row(thrash: Set) -> None:
    s = thrash()
    slabs = s.listed([1, 5, 1, 1, 1])
    # Slow, slow with 4 fast ones after it, slow: that one begins the row anew.
    s.alloc(1, 1 + 5)
    for slab in slabs[2:4]:
        assert s.taken(1) == slab[0]
    assert "deferred_partial" not in s.delta()
    # Rows: 1, 2 | 0, 1 | now 2.
    assert s.taken(1) == slabs[4][0]
    assert "deferred_partial" not in s.delta()


def test_one_less_than_the_watermark_does_not(thrash: Set) -> None:
    s = thrash()
    slabs = s.listed([1, 4, 1])
    s.alloc(1, 1 + 4)  # 3 fast ones after the second
    s.delta()
    s.one(1)
    assert s.delta()["deferred_partial"] == 1
    assert s.partial(0) == [(slabs[2][0], 1)]


def test_rows_are_kept_by_cpu(thrash: Set) -> None:
    s = thrash()
    slabs = s.listed([1] * 5)
    s.alloc(1, 2)
    # CPU 0's last slab served 15 fast allocations before it was flushed.
    assert s.taken(0) == slabs[2][0]
    assert "deferred_partial" not in s.delta()
    s.one(1)
    assert s.delta()["deferred_partial"] == 1


def test_an_empty_list_is_no_deferral(thrash: Set) -> None:
    s = thrash()
    s.listed([1, 1])
    s.alloc(1, 3)
    assert "deferred_partial" not in s.delta()


def test_a_deferral_asks_no_other_node(thrash: Set) -> None:
    s = thrash(remote_node_defrag_ratio=100, min_partial=5)
    near = s.listed([1, 1, 1])
    far = s.listed([1] * 6, cpu=2)  # 6 > 5: node 1 could be robbed
    s.alloc(1, 3)
    assert s.delta()["deferred_partial"] == 1
    assert s.partial(0) == [(near[2][0], 1)]
    assert len(s.partial(1)) == len(far)


def test_while_it_thrashes_rich_slabs_go_to_the_head(thrash: Set) -> None:
    # 8 free objects are enough: SLUB's own place, too. 2 are not: SLUB would say head.
    for left, place in ((8, "deactivate_to_head"), (2, "deactivate_to_tail")):
        s = thrash()
        poor = s.listed([1, 1, 1])
        s.alloc(1, 3)  # deferred, a new slab
        new = s.slab(s.alloc(1, N - 1 - left)[0])
        s.delta()
        s.flush()
        s.counted(cpuslab_flush=1, **{place: 1})
        expected = [(new, left), (poor[2][0], 1)]
        assert s.partial(0) == (expected if left == 8 else expected[::-1])


def test_while_it_thrashes_a_free_may_go_to_the_head(thrash: Set) -> None:
    s = thrash(slab_thrash_ratio=7)  # 16 * 7 / 100 = 1
    a, b = s.listed([1, 1])
    s.alloc(1, 3)  # both exhausted, none deferred: the list is empty; still thrashing
    s.delta()
    s.free(1, a[3])
    s.free(1, b[3])
    s.counted(free_slowpath=2, free_add_partial=2)
    assert s.partial(0) == [(b[0], 1), (a[0], 1)]
    # CPU 0 does not thrash.
    s.free(1, s.alloc(1, 1))
    (c,) = [s.alloc(0, N)]
    s.flush()
    s.free(0, c[0])
    assert s.partial(0)[-1] == (s.slab(c[0]), 1)


def test_deferred_slabs_serve_when_there_is_no_page(thrash: Set) -> None:
    s = thrash()
    slabs = s.listed([1, 1, 1])
    s.alloc(1, 2)
    s.delta()
    s.allocator.fail("pages", rate=1.0)
    try:
        assert s.taken(1) == slabs[2][0]
    finally:
        s.allocator.fail("pages")
    assert s.delta()["deferred_partial"] == 1


def test_the_watermark_follows_the_order(thrash: Set) -> None:
    s = thrash()
    s.cache.tunables.order = 2  # 64 objects: 16 must be free
    got = s.alloc(0, 3 * 64)
    s.flush()
    for i, n in enumerate((1, 1, 15)):
        s.free(0, got[64 * i : 64 * i + n])
    s.delta()
    s.alloc(1, 3)
    assert s.delta()["deferred_partial"] == 1
    assert [n for _, n in s.partial(0)] == [15]


# ---- mostfree ---------------------------------------------------------------------------------


def test_mostfree_takes_the_first_with_enough(thrash: Set) -> None:
    s = thrash(mode="mostfree")
    a, b, c = s.listed([3, 4, 9])
    assert s.taken(1) == b[0]
    s.counted(alloc_slowpath=1, alloc_from_partial=1)
    assert s.partial(0) == [(a[0], 3), (c[0], 9)]


def test_mostfree_else_takes_the_one_with_most(thrash: Set) -> None:
    s = thrash(mode="mostfree")
    slabs = s.listed([1, 3, 2, 3])
    # Of equals the first; never a new slab while there is a partial one.
    order = [slabs[1], slabs[3], slabs[2], slabs[0]]
    for slab, n in zip(order, (3, 3, 2, 1), strict=True):
        assert s.taken(1) == slab[0]
        s.alloc(1, n - 1)
    moved = s.delta()
    assert moved["alloc_from_partial"] == 4
    assert "alloc_slab" not in moved


def test_mostfree_looks_so_at_other_nodes_too(thrash: Set) -> None:
    s = thrash(mode="mostfree", remote_node_defrag_ratio=100)
    slabs = s.listed([1, 2, 7, 1, 1, 1, 1, 1, 1], cpu=2)  # 9 > min_partial 8
    taken = [s.taken(0)]
    while not (moved := s.delta()).get("alloc_from_partial"):  # 24 of 1024 times it is not asked
        s.alloc(0, N - 1)
        taken.append(s.taken(0))
    assert moved["alloc_slowpath"] == 1
    assert taken[-1] == slabs[2][0]


# ---- off --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tunables", [{"mode": "off"}, {"slab_thrash_ratio": 0}], ids=str)
def test_off_is_slub(thrash: Set, tunables: dict[str, Any]) -> None:
    s = thrash(**tunables)
    slabs = s.listed([1] * 6)
    assert [s.taken(1) for _ in slabs] == [slab[0] for slab in slabs]
    s.counted(alloc_slowpath=6, alloc_from_partial=6, alloc_refill=5, deactivate_full=5)


@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
@given(program=steps)
def test_off_counts_what_slub_counts(debug: str | None, program: list[Any]) -> None:
    rules = Rules(debug is not None, [0, 0, 1, 1])
    follow("slub-thrash", rules, program, counters=OWN, debug=debug, mode="off")


def test_debug_caches_work_as_off(thrash: Set) -> None:
    s = thrash(debug="F")
    slabs = s.listed([1] * 5)
    assert [s.taken(1) for _ in slabs] == [slab[0] for slab in slabs]
    assert "deferred_partial" not in s.delta()


def test_the_mode_can_be_changed_at_any_time(thrash: Set) -> None:
    s = thrash(mode="off")
    slabs = s.listed([1, 1, 1, 2, 1])
    s.alloc(1, 3)
    s.cache.tunables.mode = "mostfree"
    assert s.taken(1) == slabs[3][0]
    s.cache.tunables.mode = "ratio"
    s.alloc(1, 1)
    # The row begins where the mode does.
    assert s.taken(1) == slabs[4][0]


def test_limits_are_named(thrash: Set) -> None:
    s = thrash()
    with pytest.raises(ValueError, match=r"101.*0 to 100"):
        s.cache.tunables.slab_thrash_ratio = 101
    with pytest.raises(ValueError, match="mode"):
        s.cache.tunables.mode = "most"
    assert s.cache.tunables["mode"] == "ratio"


@pytest.mark.parametrize("cpus", [1, 2, 4, 8, 16, 64])
def test_orders_are_those_of_the_known_answers(make: Any, cpus: int) -> None:
    alloc = make("slub-thrash", machine=grid(1, 1, cpus))
    for size, answers in ORDERS.items():
        cache = alloc.create_cache(f"size-{size}", size)
        assert (cache.order, cache.objects_per_slab) == answers[cpus], size


# ---- the rules, written down, against random programs -----------------------------------------


@dataclass
class ThrashRules(Rules):
    """SLUB's rules and, on top, those of the two patchsets."""

    mode: str = "ratio"
    watermark: int = 1
    fast: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(4), 0))
    row: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(4), 0))

    def served(self, cpu: int) -> None:
        """Rule 1."""
        self.fast[cpu] += 1

    def slow(self, cpu: int) -> None:
        """Rule 2."""
        self.row[cpu] = self.row[cpu] + 1 if self.fast[cpu] < self.watermark else 0
        self.fast[cpu] = 0

    def thrashes(self, cpu: int) -> bool:
        """Rule 3."""
        return self.mode == "ratio" and self.row[cpu] >= THRASHING

    def pick(self, cpu: int, home: int) -> Slab | None:
        """Rule 4, or the second patchset's scan."""
        listed = self.partial[home]
        if not listed:
            return None
        enough = [slab for slab in listed if len(slab.free) >= self.watermark]
        if self.mode == "mostfree":
            chosen = enough[0] if enough else max(listed, key=lambda slab: len(slab.free))
        elif not self.thrashes(cpu):
            chosen = listed[0]
        elif enough:
            chosen = enough[0]
            self.row[cpu] = 0
        else:
            self.counts["deferred_partial"] += 1
            return None
        listed.remove(chosen)
        return chosen

    def at_tail(self, cpu: int, slab: Slab, otherwise: bool) -> bool:
        """Rule 5."""
        return len(slab.free) < self.watermark if self.thrashes(cpu) else otherwise


@pytest.mark.parametrize(("mode", "ratio"), [("ratio", 25), ("ratio", 60), ("mostfree", 60)])
@given(program=steps)
def test_random_programs_follow_the_rules(mode: str, ratio: int, program: list[Any]) -> None:
    rules = ThrashRules(False, [0, 0, 1, 1], mode=mode, watermark=FEW * ratio // 100)
    follow("slub-thrash", rules, program, counters=OWN, mode=mode, slab_thrash_ratio=ratio)
