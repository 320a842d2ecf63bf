"""The rules of SLUB once more, in plain Python: what CPU slabs and lists hold after every call.

A slab is known by its address.  Written from the published algorithm, not from the C code; random
programs run on a policy and by its rules, and must leave both alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

import unislab as us
from rules.books import balance
from rules.machines import grid
from rules.names import SLUB
from rules.scene import Scene

FEW = 4  # objects of 1 KiB to a slab
LARGE = 1024
KEPT = 5


@dataclass
class Slab:
    node: int
    base: int
    free: list[int]  # the slab's own freelist, last = first served
    frozen: bool = False
    chained: tuple[int, int] = (0, 0)  # slabs and objects of a CPU's list when it joined it


@dataclass
class SlubModel:
    """What the forms of SLUB have in common: slabs, the CPUs' own ones, lists, counters."""

    debug: bool
    node_of: list[int]
    counts: Counter[str] = field(default_factory=Counter)
    partial: dict[int, list[Slab]] = field(default_factory=lambda: {0: [], 1: []})
    owned: dict[int, Slab] = field(default_factory=dict)  # CPU -> its slab
    freelist: dict[int, list[int]] = field(default_factory=dict)
    slabs: list[Slab] = field(default_factory=list)

    def alloc(self, cpu: int, node: int | None) -> int | None:
        """Address served; None means a new slab, which `adopt` hears of."""
        raise NotImplementedError

    def adopt(self, cpu: int, node: int | None, base: int) -> int:
        """A new slab at `base`; the address served."""
        raise NotImplementedError

    def free(self, cpu: int, address: int) -> None:
        """A free on a CPU."""
        raise NotImplementedError

    def flush(self) -> None:
        """Every CPU gives up what it has."""
        raise NotImplementedError

    def slab_of(self, address: int) -> Slab:
        """The slab that holds an object."""
        return next(s for s in self.slabs if 0 <= address - s.base < FEW * LARGE)

    def new_slab(self, cpu: int, node: int | None, base: int) -> Slab:
        """A slab at `base`, its objects in address order."""
        self.counts["alloc_slab"] += 1
        home = self.node_of[cpu] if node is None else node
        self.slabs.append(Slab(home, base, [base + i * LARGE for i in reversed(range(FEW))]))
        return self.slabs[-1]

    def release(self, slab: Slab) -> None:
        self.counts["free_slab"] += 1
        self.slabs.remove(slab)

    def shrink(self) -> None:
        """Empty slabs go; the others are sorted, the fullest first."""
        self.flush()
        for node, slabs in self.partial.items():
            self.slabs = [slab for slab in self.slabs if len(slab.free) < FEW]
            kept = [slab for slab in slabs if len(slab.free) < FEW]
            self.partial[node] = sorted(kept, key=lambda slab: len(slab.free))

    def compare(self, s: Scene) -> None:
        """Lists and freelists of the cache are those of the rules, address by address."""
        for node, slabs in self.partial.items():
            assert s.partial(node) == [(slab.base, len(slab.free)) for slab in slabs]
        for cpu in range(len(self.node_of)):
            assert s.cpu(cpu) == self.freelist.get(cpu, [])
        assert sorted(s.cache.slabs()["address"]) == sorted(slab.base for slab in self.slabs)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(0, 3), st.sampled_from([None, None, None, 0, 1])),
        st.tuples(st.just("burst"), st.integers(0, 3), st.integers(2, 40)),
        st.tuples(st.just("free"), st.integers(0, 3), st.integers(0, 1000)),
        st.tuples(st.just("drop"), st.integers(0, 3), st.integers(2, 40)),
        st.tuples(st.just("hollow"), st.integers(0, 3), st.just(0)),
        st.tuples(st.sampled_from(["flush", "shrink"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def follow(
    policy: str,
    rules: SlubModel,
    program: list[Any],
    scene: type[Scene] = Scene,
    counters: tuple[str, ...] = SLUB,
    debug: str | None = None,
    **tunables: Any,
) -> None:
    """Runs a program on the policy and by the rules; both end alike."""
    with us.Allocator(policy, machine=grid(2, 1, 2), debug=debug, address_range="256 MiB") as alloc:
        cache = alloc.create_cache(
            "model",
            LARGE,
            min_objects=FEW,
            min_partial=KEPT,
            remote_node_defrag_ratio=0,
            **tunables,
        )
        s = scene(alloc, cache)
        live: list[int] = []

        def one(cpu: int, node: int | None) -> None:
            expected = rules.alloc(cpu, node)
            with alloc.on_cpu(cpu):
                address = cache.alloc_address(node=node)
            if expected is None:
                expected = rules.adopt(cpu, node, address)
            assert address == expected
            live.append(address)

        def drop(cpu: int, which: int) -> None:
            address = live.pop(which % len(live))
            rules.free(cpu, address)
            with alloc.on_cpu(cpu):
                cache.free(address)

        for what, cpu, detail in program:
            if what == "alloc":
                one(cpu, detail)
            elif what == "burst":
                for _ in range(detail):
                    one(cpu, None)
            elif what == "free" and live:
                drop(cpu, detail)
            elif what == "drop":
                for i in range(min(detail, len(live))):
                    drop(cpu, 7 * i)
            elif what == "hollow" and cpu in rules.owned:  # its slab has nothing in use any more
                base = rules.owned[cpu].base
                for address in [a for a in live if 0 <= a - base < FEW * LARGE]:
                    drop(cpu, live.index(address))
            elif what == "flush":
                rules.flush()
                alloc.flush()
            elif what == "shrink":
                rules.shrink()
                cache.shrink()
        rules.compare(s)
        stats = cache.stats(exact=True)
        assert {name: stats[name] for name in counters} == {
            name: rules.counts[name] for name in counters
        }
        assert balance(cache) == len(live)
        cache.free_bulk(live)
