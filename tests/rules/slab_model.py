"""The rules of SLAB once more, in plain Python: what arrays and lists hold after every call.

Objects are (slab, index) pairs; a slab is known by the number of its making.  Written from the
description of the original, not from the C code; test_slab_rules.py runs random programs on both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

Obj = tuple[int, int]

CPU_PERIOD = 2
NODE_PERIOD = 4


@dataclass
class Array:
    """An array of objects, oldest first."""

    limit: int
    entry: list[Obj] = field(default_factory=list)
    touched: bool = False

    @property
    def room(self) -> int:
        """How many more it takes."""
        return self.limit - len(self.entry)

    def oldest(self, n: int) -> list[Obj]:
        """Take the n oldest out."""
        taken, self.entry = self.entry[:n], self.entry[n:]
        return taken

    def hottest(self, n: int) -> list[Obj]:
        """Take the n hottest out, in their order."""
        n = min(n, len(self.entry))
        taken = self.entry[len(self.entry) - n :]
        del self.entry[len(self.entry) - n :]
        return taken

    def due(self) -> int:
        """How many an ageing pass takes from it."""
        fifth = -(-self.limit // 5)
        return fifth if fifth <= len(self.entry) else (len(self.entry) + 1) // 2


@dataclass
class Node:
    """Three lists of slabs, head first, and the arrays that the node's CPUs share."""

    shared: Array
    alien: dict[int, Array]
    free_limit: int
    partial: list[int] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    free_objects: int = 0
    free_touched: bool = False
    colour: int = 0
    next_reap: int = NODE_PERIOD


class SlabModel:
    """One cache."""

    def __init__(
        self, nodes: int, cpus: int, num: int, colours: int, limit: int, batch: int, shared: int
    ) -> None:
        self.cpus_of_node, self.num, self.colours = cpus, num, colours
        self.batch = batch
        self.cpu = [Array(limit) for _ in range(nodes * cpus)]
        self.node = [
            Node(
                Array(shared * batch),
                {other: Array(12) for other in range(nodes) if other != n},
                (1 + cpus) * batch + num,
            )
            for n in range(nodes)
        ]
        self.rotor = [0] * len(self.cpu)
        self.stack: dict[int, list[int]] = {}  # free objects of a slab, the next one last
        self.home: dict[int, int] = {}
        self.offset: dict[int, int] = {}
        self.made = 0
        self.active = 0
        self.now = 0
        self.count: Counter[str] = Counter()

    def node_of(self, cpu: int) -> int:
        """Node of a CPU."""
        return cpu // self.cpus_of_node

    # -- slabs ---------------------------------------------------------------------------------

    def list_of(self, slab: int) -> list[int]:
        """The list on which a slab is to be found."""
        node = self.node[self.home[slab]]
        left = len(self.stack[slab])
        return node.full if left == 0 else node.free if left == self.num else node.partial

    def grow(self, n: int) -> None:
        """A new slab at the tail of a node's free list."""
        node, slab = self.node[n], self.made
        self.made += 1
        self.offset[slab] = node.colour
        node.colour = node.colour + 1 if node.colour + 1 < self.colours else 0
        self.stack[slab] = list(range(self.num - 1, -1, -1))
        self.home[slab] = n
        node.free.append(slab)
        node.free_objects += self.num
        self.count["grown"] += 1

    def destroy(self, slab: int) -> None:
        """A slab that is on no list goes away."""
        del self.stack[slab], self.home[slab], self.offset[slab]

    def from_lists(self, n: int, wanted: int) -> list[Obj]:
        """Objects of partial slabs, then of free ones; the first taken comes first."""
        node, got = self.node[n], []
        while len(got) < wanted:
            if not node.partial:
                node.free_touched = True
                if not node.free:
                    break
            slab = (node.partial or node.free)[0]
            self.list_of(slab).remove(slab)
            while self.stack[slab] and len(got) < wanted:
                got.append((slab, self.stack[slab].pop()))
                node.free_objects -= 1
            self.list_of(slab).insert(0, slab)
        self.active += len(got)
        self.count["maxobjs"] = max(self.count["maxobjs"], self.active)
        return got

    def put(self, objects: list[Obj]) -> None:
        """Objects go back to their slabs one after the other."""
        for slab, index in objects:
            node = self.node[self.home[slab]]
            self.list_of(slab).remove(slab)
            self.stack[slab].append(index)
            node.free_objects += 1
            self.active -= 1
            if len(self.stack[slab]) < self.num:
                node.partial.append(slab)
            elif node.free_objects > node.free_limit:
                node.free_objects -= self.num
                self.destroy(slab)
            else:
                node.free.insert(0, slab)

    # -- allocation ------------------------------------------------------------------------------

    def alloc(self, cpu: int, node: int | None = None) -> Obj:
        """One object."""
        if node is not None and node != self.node_of(cpu):
            return self.node_alloc(node)
        array = self.cpu[cpu]
        if array.entry:
            self.count["allochit"] += 1
        else:
            self.count["allocmiss"] += 1
            self.refill(cpu)
        array.touched = True
        return array.entry.pop()

    def refill(self, cpu: int) -> None:
        """From the shared array, else from slabs, else from a new slab."""
        array, n = self.cpu[cpu], self.node_of(cpu)
        node = self.node[n]
        wanted = self.batch if array.touched else min(self.batch, 16)
        array.entry = node.shared.hottest(wanted)
        if array.entry:
            node.shared.touched = True
            return
        while not array.entry:
            array.entry = self.from_lists(n, wanted)
            if not array.entry:
                self.grow(n)
        self.count["listallocs"] += len(array.entry)

    def node_alloc(self, n: int) -> Obj:
        """One object past all arrays."""
        self.count["nodeallocs"] += 1
        got = self.from_lists(n, 1)
        if not got:
            self.grow(n)
            got = self.from_lists(n, 1)
        return got[0]

    # -- free ------------------------------------------------------------------------------------

    def free_one(self, cpu: int, obj: Obj) -> None:
        """One object."""
        n, home = self.node_of(cpu), self.home[obj[0]]
        if home != n:
            self.free_alien(n, home, obj)
            return
        array = self.cpu[cpu]
        if array.room:
            self.count["freehit"] += 1
        else:
            self.count["freemiss"] += 1
            self.flush_array(array, self.node[n])
        array.entry.append(obj)

    def flush_array(self, array: Array, node: Node) -> None:
        """The oldest to the shared array as far as there is room, else a batch to slabs."""
        if node.shared.room:
            node.shared.entry += array.oldest(min(self.batch, node.shared.room))
        else:
            self.put(array.oldest(self.batch))
        self.count["maxfreeable"] = max(self.count["maxfreeable"], len(node.free))

    def free_alien(self, n: int, home: int, obj: Obj) -> None:
        """To the alien array; a full one is drained first."""
        self.count["remotefrees"] += 1
        array = self.node[n].alien[home]
        if array.room == 0:
            self.count["alienoverflow"] += 1
            self.drain_alien(array, home)
        array.entry.append(obj)

    def drain_alien(self, array: Array, home: int) -> None:
        """The hottest to the target's shared array, the others to slabs."""
        shared = self.node[home].shared
        shared.entry += array.hottest(shared.room)
        self.put(array.oldest(12))

    # -- time, flush, shrink ---------------------------------------------------------------------

    def tick(self) -> None:
        """Two seconds pass: every CPU reaps."""
        self.now += CPU_PERIOD
        for cpu in range(len(self.cpu)):
            self.reap_alien(cpu)
            self.age(self.cpu[cpu])
            node = self.node[self.node_of(cpu)]
            if self.now >= node.next_reap:
                node.next_reap = self.now + NODE_PERIOD
                self.reap_node(node)

    def reap_alien(self, cpu: int) -> None:
        """One foreign node's array, the next one every time."""
        nodes, n = len(self.node), self.node_of(cpu)
        if nodes > 1:
            home = (n + 1 + self.rotor[cpu]) % nodes
            self.rotor[cpu] = (self.rotor[cpu] + 1) % (nodes - 1)
            self.drain_alien(self.node[n].alien[home], home)

    def age(self, array: Array) -> None:
        """A touched array loses its mark, another one its oldest."""
        if not array.touched:
            self.put(array.oldest(array.due()))
        array.touched = False

    def reap_node(self, node: Node) -> None:
        """The shared array and the free list."""
        if node.shared.limit:
            self.age(node.shared)
        if not node.free_touched:
            for _ in range(-(-node.free_limit // (5 * self.num))):
                if node.free:
                    self.drop_last(node)
                    self.count["reaped"] += 1
        node.free_touched = False

    def drop_last(self, node: Node) -> None:
        """The last slab of the free list goes."""
        self.destroy(node.free.pop())
        node.free_objects -= self.num

    def flush(self) -> None:
        """Every CPU's array, its node's alien arrays, the shared arrays those went to."""
        for cpu, array in enumerate(self.cpu):
            n = self.node_of(cpu)
            self.put(array.oldest(len(array.entry)))
            for home in range(len(self.node)):
                if home != n:
                    self.drain_alien(self.node[n].alien[home], home)
                shared = self.node[home].shared
                self.put(shared.oldest(len(shared.entry)))

    def shrink(self) -> None:
        """Flush, and no free slab stays."""
        self.flush()
        for node in self.node:
            while node.free:
                self.drop_last(node)
