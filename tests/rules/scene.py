"""A scripted scene: one cache, stepped call by call, whose state can be read and printed.

``scene.alloc(cpu, n)`` and ``scene.free(cpu, addresses)`` run on the named CPU.  ``scene.cpu(0)``,
``scene.shared(0)`` and ``scene.alien(0, 1)`` are the addresses in a queue, oldest first;
``scene.partial(0)`` is a node's partial list, head first.  ``scene.counted(...)`` asserts which
counters moved since the last look, and that no other did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import unislab as us
from rules.inside import Queue, listed, queues_of, slabs_of
from rules.names import UNIFIED


class Scene:
    """One cache of an allocator and what was done to it."""

    #: The policy's own counters.
    counters: Sequence[str] = UNIFIED
    #: Where the first object of a slab begins.
    offset = 0

    def __init__(self, allocator: us.Allocator, cache: us.Cache) -> None:
        self.allocator = allocator
        self.cache = cache
        self.stride = cache.stride
        self.steps: list[str] = []
        self._slabs: list[int] = []
        self._last = cache.stats(exact=True)

    # -- steps ---------------------------------------------------------------------------------

    def alloc(self, cpu: int, n: int = 1, **where: object) -> list[int]:
        """Allocate n objects on a CPU, one call each."""
        with self.allocator.on_cpu(cpu):
            got = [self.cache.alloc_address(**where) for _ in range(n)]
        self._know()
        names = self.names(got)
        self.steps.append(f"cpu {cpu} alloc {where or ''} -> {names}")
        return got

    def one(self, cpu: int, **where: object) -> int:
        """Allocate one object on a CPU."""
        return self.alloc(cpu, 1, **where)[0]

    def free(self, cpu: int, addresses: int | Iterable[int]) -> None:
        """Free objects on a CPU in the given order, one call each."""
        todo = [addresses] if isinstance(addresses, int) else list(addresses)
        self.steps.append(f"cpu {cpu} free {self.names(todo)}")
        with self.allocator.on_cpu(cpu):
            for address in todo:
                self.cache.free(address)

    def take_slabs(self, n: int, cpu: int = 0) -> list[list[int]]:
        """Allocate all objects of n fresh slabs of 64; the objects of each, ascending.

        For queues of Unified's default size: 16 + 48 from the first slab, 60 + 4 from each other (a
        refill gives what the partial slab has), so that queue and partial list end empty.
        """
        taken = self.alloc(cpu, n * 64)
        assert self.cpu(cpu) == []
        assert self.partial(self.cache.allocator.topology.cpu_node[cpu]) == []
        self.delta()
        return [taken[i * 64 : i * 64 + 64] for i in range(n)]

    def flush(self) -> None:
        """Empty all queues into slabs."""
        self.steps.append("flush")
        self.allocator.flush()

    def expire(self, node: int | None = None) -> int:
        """Age the cache once."""
        moved = self.cache.expire(node)
        self.steps.append(f"expire({node}) -> {moved} bytes")
        return moved

    def shrink(self) -> int:
        """Shrink the cache."""
        released = self.cache.shrink()
        self.steps.append(f"shrink -> {released} bytes")
        return released

    # -- state ---------------------------------------------------------------------------------

    def queue(self, kind: str, **which: int) -> Queue | None:
        """One queue, None when it does not exist."""
        found = queues_of(self.cache, kind=kind, **which)
        assert len(found) <= 1, f"{kind} {which}: {found}"
        return found[0] if found else None

    def _addresses(self, row: Queue | None) -> list[int]:
        return [] if row is None else row.addresses

    def cpu(self, cpu: int) -> list[int]:
        """Objects in a CPU's queue, oldest first."""
        return self._addresses(self.queue("cpu", cpu=cpu))

    def shared(self, domain: int = 0) -> list[int]:
        """Objects in a domain's shared queue, oldest first."""
        return self._addresses(self.queue("shared", domain=domain))

    def alien(self, domain: int, node: int) -> list[int]:
        """Objects of another node that a domain keeps, oldest first."""
        return self._addresses(self.queue("alien", domain=domain, node=node))

    def touched(self, kind: str, **which: int) -> bool:
        """The ageing mark of a queue; a queue that nobody used yet is untouched."""
        row = self.queue(kind, **which)
        return row is not None and row.touched

    def partial(self, node: int = 0) -> list[tuple[int, int]]:
        """(address, free objects) of the slabs on a node's partial list, head first."""
        return [(slab.address, slab.free) for slab in listed(self.cache, node=node)]

    def slab(self, address: int) -> int:
        """Address of the slab that holds an object."""
        for slab in slabs_of(self.cache):
            if 0 <= address - slab.address < 4096 << slab.order:
                return slab.address
        raise LookupError(f"no slab of {self.cache.name} holds {address:#x}")

    def objects(self, slab: int, first: int, last: int) -> list[int]:
        """Addresses of objects first..last (inclusive, either direction) of a slab."""
        step = 1 if last >= first else -1
        start = slab + self.offset
        return [start + i * self.stride for i in range(first, last + step, step)]

    # -- counters ------------------------------------------------------------------------------

    def delta(self) -> dict[str, int]:
        """The policy's own counters that moved since the last look."""
        now = self.cache.stats(exact=True)
        moved = {name: now[name] - self._last[name] for name in self.counters if name in now}
        self._last = now
        return {name: value for name, value in moved.items() if value}

    def counted(self, **expected: int) -> None:
        """Exactly these counters moved since the last look."""
        moved = self.delta()
        assert moved == expected, f"counted {moved}, by the rules {expected}\n{self}"

    # -- printing ------------------------------------------------------------------------------

    def _know(self) -> None:
        known = set(self._slabs)
        self._slabs += [slab.address for slab in slabs_of(self.cache) if slab.address not in known]

    def names(self, addresses: Sequence[int]) -> str:
        """Addresses as slab letter and index, runs abbreviated."""
        parts: list[str] = []
        run: list[tuple[str, int]] = []
        for address in addresses:
            name = self._name(address)
            if run and name[0] == run[-1][0] and abs(name[1] - run[0][1]) == len(run):
                run.append(name)
                continue
            parts += _run(run)
            run = [name]
        return " ".join(parts + _run(run))

    def _name(self, address: int) -> tuple[str, int]:
        for i, slab in enumerate(self._slabs):
            index = (address - slab - self.offset) // self.stride
            if 0 <= index < self.cache.objects_per_slab:
                return f"S{i}", index
        return f"{address:#x}:", 0

    def __str__(self) -> str:
        lines = [f"scene of {self.cache!r}", *(f"  {step}" for step in self.steps)]
        for row in queues_of(self.cache):
            mark = "*" if not row.touched else ""
            lines.append(
                f"  {row.kind} cpu={row.cpu} domain={row.domain} node={row.node} "
                f"{row.objects}/{row.capacity}{mark}: {self.names(row.addresses)}"
            )
        lines.append(self.cache.slabs().to_string())
        lines.append(str({k: v for k, v in self.cache.stats(exact=True).items() if v}))
        return "\n".join(lines)


def _run(run: list[tuple[str, int]]) -> list[str]:
    if not run:
        return []
    slab, first = run[0]
    return [f"{slab}[{first}]" if len(run) == 1 else f"{slab}[{first}..{run[-1][1]}]"]
