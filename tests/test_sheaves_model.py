"""The algorithm of SLUB with sheaves in Python, beside the policy, under random programs.

`Rules` is written from the published description (1.3 of the reference) and knows nothing of the
core but where new slabs came to lie.  Objects of 4096 bytes, two to a slab, sheaves of four, six
slabs kept a node: small numbers, so that programs reach the limits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules.books import balance
from rules.inside import queues_of, slabs_of
from rules.machines import grid
from test_sheaves_rules import COUNTERS

import unislab as us

pytestmark = pytest.mark.once

SIZE, N, C, KEPT = 4096, 2, 4, 6
BARN, BATCH, LOOKAHEAD = 10, 32, 3


@dataclass
class Barn:
    """A node's sheaves: full ones, the next first, and how many empty ones."""

    full: list[list[int]] = field(default_factory=list)
    empty: int = 0


@dataclass
class Rules:
    """What the published rules make of a program."""

    fresh: list[int]  # addresses of slabs that the operation at hand made, in order
    node_of: dict[int, int]  # of slabs
    counts: Counter[str] = field(default_factory=Counter)
    main: dict[int, list[int]] = field(default_factory=dict)
    spare: dict[int, list[int] | None] = field(default_factory=dict)
    barns: list[Barn] = field(default_factory=lambda: [Barn(), Barn()])
    free: dict[int, list[int]] = field(default_factory=dict)  # of a slab: the next to serve first
    partial: list[list[int]] = field(default_factory=lambda: [[], []])

    def slab(self, address: int) -> int:
        return next(slab for slab in self.free if 0 <= address - slab < N * SIZE)

    def count(self, name: str, n: int = 1) -> None:
        self.counts[name] += n

    # -- slabs ---------------------------------------------------------------------------------

    def new_slab(self) -> int:
        slab = self.fresh.pop(0)
        self.free[slab] = [slab + i * SIZE for i in range(N)]
        self.count("alloc_slab")
        return slab

    def put(self, slab: int, objects: list[int]) -> None:
        """A chain to its slab; the last of `objects` is served first afterwards."""
        was_full = not self.free[slab]
        self.free[slab] = [*reversed(objects), *self.free[slab]]
        listed = self.partial[self.node_of[slab]]
        if len(self.free[slab]) == N and len(listed) >= KEPT:
            if not was_full:
                listed.remove(slab)
                self.count("free_remove_partial")
            self.count("free_slab")
            del self.free[slab]
        elif was_full:
            listed.append(slab)
            self.count("free_add_partial")

    def put_all(self, objects: list[int]) -> None:
        """Batches from the end; in each, those of the last one's slab, up to three others away."""
        while objects:
            batch, objects = objects[-BATCH:], objects[:-BATCH]
            while batch:
                slab, passed, chain = self.slab(batch[-1]), [], []
                while batch and len(passed) < LOOKAHEAD:
                    address = batch.pop()
                    (chain if self.slab(address) == slab else passed).append(address)
                batch += reversed(passed)
                self.put(slab, chain)

    def refill(self, node: int, wanted: int) -> list[int]:
        got: list[int] = []
        listed, pulled = self.partial[node], []
        while listed and sum(len(self.free[slab]) for slab in pulled) < wanted:
            pulled.append(listed.pop(0))
        for slab in pulled:
            taken, rest = self.free[slab][: wanted - len(got)], self.free[slab][wanted - len(got) :]
            got += taken
            self.free[slab] = []
            if rest:
                self.put(slab, rest[::-1])
        while len(got) < wanted:
            slab = self.new_slab()
            n = min(wanted - len(got), N)
            got += self.free[slab][:n]
            del self.free[slab][:n]
            if self.free[slab]:
                listed.insert(0, slab)
        return got

    def one(self, node: int) -> int:
        self.count("alloc_slowpath")
        listed = self.partial[node]
        if not listed:
            listed.insert(0, self.new_slab())
        slab = listed[0]
        address = self.free[slab].pop(0)
        if not self.free[slab]:
            listed.pop(0)
        return address

    # -- sheaves -------------------------------------------------------------------------------

    def populate(self, cpu: int) -> None:
        if cpu not in self.main:
            self.main[cpu], self.spare[cpu] = [], None
            self.count("sheaf_alloc")

    def replace_empty(self, cpu: int) -> bool:
        barn = self.barns[cpu // 2]
        if self.spare[cpu]:
            self.main[cpu], self.spare[cpu] = self.spare[cpu] or [], self.main[cpu]
        elif barn.full:
            self.main[cpu] = barn.full.pop(0)
            barn.empty += 1
            self.count("barn_get")
        else:
            self.count("barn_get_fail")
            return False
        return True

    def alloc(self, cpu: int, node: int | None) -> int:
        here = cpu // 2
        self.populate(cpu)
        if node is not None and node != here:
            self.count("alloc_node_mismatch")
            return self.one(node)
        if not self.main[cpu] and not self.replace_empty(cpu):
            if self.spare[cpu] is None:
                self.empty_sheaf(here)
            # Whichever sheaf was filled, the old main one, empty, is the spare now.
            self.main[cpu], self.spare[cpu] = self.refill(here, C), []
            self.count("sheaf_refill", C)
        self.count("alloc_fastpath")
        return self.main[cpu].pop()

    def empty_sheaf(self, node: int) -> None:
        """One from the barn, or a new one."""
        if self.barns[node].empty:
            self.barns[node].empty -= 1
        else:
            self.count("sheaf_alloc")

    def replace_full(self, cpu: int, bulk: bool) -> bool:
        """False: a bulk free gives up."""
        barn, main, spare = self.barns[cpu // 2], self.main[cpu], self.spare[cpu]
        if spare is not None and len(spare) < C:
            self.main[cpu], self.spare[cpu] = spare, main
            return True
        if spare is None:
            if bulk and not barn.empty:
                return False
            self.empty_sheaf(cpu // 2)
            self.main[cpu], self.spare[cpu] = [], main
            return True
        if len(barn.full) >= BARN:
            self.count("barn_put_fail")
            if not bulk:
                self.flush_sheaf(spare)
                self.main[cpu], self.spare[cpu] = [], main
            return not bulk
        if bulk and not barn.empty:
            return False
        self.empty_sheaf(cpu // 2)
        barn.full.insert(0, main)
        self.count("barn_put")
        self.main[cpu] = []
        return True

    def flush_sheaf(self, sheaf: list[int]) -> None:
        self.count("sheaf_flush", len(sheaf))
        self.put_all(sheaf)

    def give(self, cpu: int, address: int) -> None:
        self.populate(cpu)
        if self.node_of[self.slab(address)] != cpu // 2:
            self.count("free_slowpath")
            self.put(self.slab(address), [address])
            return
        if len(self.main[cpu]) == C:
            self.replace_full(cpu, False)
        self.main[cpu].append(address)
        self.count("free_fastpath")

    # -- bulk ----------------------------------------------------------------------------------

    def alloc_bulk(self, cpu: int, n: int) -> list[int]:
        got: list[int] = []
        sheaf = self.main.get(cpu, [])
        while len(got) < n:
            k = min(n - len(got), len(sheaf))
            got += sheaf[len(sheaf) - k :]
            del sheaf[len(sheaf) - k :]
            self.count("alloc_fastpath", k)
            if len(got) == n:
                break
            self.populate(cpu)
            if not self.replace_empty(cpu):
                self.count("alloc_slowpath", n - len(got))
                return got + self.refill(cpu // 2, n - len(got))
            sheaf = self.main[cpu]
        return got

    def free_bulk(self, cpu: int, objects: list[int]) -> None:
        remote: list[int] = []
        here = cpu // 2
        i = 0
        while i < len(objects):
            if self.node_of[self.slab(objects[i])] != here:
                remote.append(objects[i])
                if len(remote) == BATCH:
                    self.free_slow(remote)
                i += 1
                continue
            end = i
            while end < len(objects) and self.node_of[self.slab(objects[end])] == here:
                end += 1
            self.free_run(cpu, objects[i:end])
            i = end
        self.free_slow(remote)

    def free_slow(self, objects: list[int]) -> None:
        self.count("free_slowpath", len(objects))
        self.put_all(objects)
        objects.clear()

    def free_run(self, cpu: int, objects: list[int]) -> None:
        if cpu not in self.main and objects:
            self.give(cpu, objects[0])
            objects = objects[1:]
        while objects:
            if len(self.main[cpu]) == C and not self.replace_full(cpu, True):
                self.free_slow(objects)
                return
            self.main[cpu].append(objects[0])
            objects = objects[1:]
            self.count("free_fastpath")

    # -- flush, shrink -------------------------------------------------------------------------

    def flush(self) -> None:
        for cpu in sorted(self.main):
            if self.spare[cpu] is not None:
                self.flush_sheaf(self.spare[cpu] or [])
                self.count("sheaf_free")
                self.spare[cpu] = None
            self.flush_sheaf(self.main[cpu])
            self.main[cpu] = []

    def shrink(self) -> None:
        self.flush()
        for node, barn in enumerate(self.barns):
            for sheaf in barn.full:
                self.flush_sheaf(sheaf)
            self.count("sheaf_free", len(barn.full) + barn.empty)
            barn.full, barn.empty = [], 0
            for slab in [s for s in self.partial[node] if len(self.free[s]) == N]:
                self.partial[node].remove(slab)
                del self.free[slab]
            self.partial[node].sort(key=lambda slab: len(self.free[slab]))


def compare(rules: Rules, cache: us.Cache) -> None:
    """Sheaves, barns, free lists' lengths and partial lists are those of the rules."""
    queues = queues_of(cache)
    assert {q.cpu: q.addresses for q in queues if q.name == "main"} == rules.main
    assert {q.cpu: q.addresses for q in queues if q.name == "spare"} == {
        cpu: spare for cpu, spare in rules.spare.items() if spare is not None
    }
    for node, barn in enumerate(rules.barns):
        assert [q.addresses for q in queues if q.name == "full" and q.node == node] == barn.full
        assert sum(q.name == "empty" and q.node == node for q in queues) == barn.empty
    slabs = slabs_of(cache)
    assert {slab.address: slab.free for slab in slabs} == {
        slab: len(free) for slab, free in rules.free.items()
    }
    for node in (0, 1):
        listed = [s for s in slabs if s.place == "partial" and s.node == node]
        listed.sort(key=lambda slab: slab.position or 0)
        assert [slab.address for slab in listed] == rules.partial[node]


amounts = st.integers(1, 60)
cpus = st.integers(0, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), cpus, st.sampled_from([None, None, 0, 1])),
        st.tuples(st.sampled_from(["burst", "drop", "bulk", "drop bulk"]), cpus, amounts),
        st.tuples(st.just("churn"), cpus, st.integers(40, 60)),  # more than barn and CPU hold
        st.tuples(st.sampled_from(["flush", "shrink"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(program=steps)
def test_random_programs_follow_the_rules(program: list[Any]) -> None:
    with us.Allocator("sheaves", machine=grid(2, 1, 2), address_range="256 MiB") as alloc:
        cache = alloc.create_cache("model", SIZE, min_objects=N, remote_node_defrag_ratio=0)
        tunables = cache.tunables
        assert (tunables.objs_per_slab, tunables.sheaf_capacity) == (N, C)
        assert tunables.min_partial == KEPT
        rules = Rules([], {})
        live: list[int] = []

        def learn(served: list[int]) -> None:
            """Where the slabs lie that the last call made, in the order of what came of them."""
            slabs = slabs_of(cache)
            rules.node_of.update({s.address: s.node for s in slabs})
            made = {s.address for s in slabs} - set(rules.free)
            bases = [address - offset for address in served for offset in range(0, N * SIZE, SIZE)]
            rules.fresh = sorted(made, key=bases.index)

        def one(cpu: int, node: int | None) -> None:
            with alloc.on_cpu(cpu):
                live.append(cache.alloc_address(node=node))
            (main,) = [q.addresses for q in queues_of(cache) if (q.name, q.cpu) == ("main", cpu)]
            learn([*main, live[-1]])
            assert live[-1] == rules.alloc(cpu, node)

        def drop(cpu: int, address: int) -> None:
            with alloc.on_cpu(cpu):
                cache.free(address)
            rules.give(cpu, address)

        def some(n: int) -> list[int]:
            """Objects from all over, oldest and newest mixed."""
            return [live.pop((7 * i) % len(live)) for i in range(min(n, len(live)))]

        for what, cpu, detail in program:
            if what == "alloc":
                one(cpu, detail)
            elif what in ("burst", "churn"):
                for _ in range(detail):
                    one(cpu, None)
                for address in live[-detail:] if what == "churn" else []:
                    drop(cpu, address)
                    live.remove(address)
            elif what == "drop":
                for address in some(detail):
                    drop(cpu, address)
            elif what == "bulk":
                with alloc.on_cpu(cpu):
                    got = [int(a) for a in cache.alloc_bulk(detail)]
                learn(got)
                assert got == rules.alloc_bulk(cpu, detail)
                live += got
            elif what == "drop bulk" and live:
                objects = some(detail)
                with alloc.on_cpu(cpu):
                    cache.free_bulk(objects)
                rules.free_bulk(cpu, objects)
            elif what == "flush":
                alloc.flush()
                rules.flush()
            elif what == "shrink":
                cache.shrink()
                rules.shrink()
        compare(rules, cache)
        stats = cache.stats(exact=True)
        assert {name: stats[name] for name in COUNTERS} == {
            name: rules.counts[name] for name in COUNTERS
        }
        assert balance(cache) == len(live)
        cache.free_bulk(live)
