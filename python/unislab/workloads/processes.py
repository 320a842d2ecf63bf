"""Processes that are started and end: what the kernel allocates for each.

Which objects, how many and of which size is taken from the shipped trace ``fork`` (a shell that
starts programs): for each cache and size, allocations by the parent and by all others over the
number of processes started, rounded; what is below one half is left out.  A test holds the tables
below against the trace.
"""

from __future__ import annotations

from unislab import ops
from unislab.arguments import whole
from unislab.sizes import parse_size
from unislab.workload import Workload
from unislab.workloads.sockets import rounds

__all__ = ["CHILD", "PARENT", "TRANSIENT", "fork", "fork_touch"]

#: (cache, bytes): objects of one process.  ``kmalloc`` is a size of the general caches.
Objects = dict[tuple[str, int], int]

#: Allocated by the parent in fork(): the copy of its address space and tables, freed by the child.
PARENT: Objects = {
    ("task_struct", 5952): 1,
    ("signal_cache", 1152): 1,
    ("sighand_cache", 2080): 1,
    ("pid", 184): 2,
    ("kmalloc", 11): 1,
    ("files_cache", 704): 1,
    ("kmalloc", 2048): 1,
    ("mm_struct", 1568): 1,
    ("maple_node", 256): 5,
    ("vm_area_struct", 192): 42,
    ("anon_vma_chain", 64): 29,
    ("anon_vma", 96): 14,
    ("kmalloc", 72): 2,
    ("kmalloc", 56): 1,
    ("kmalloc", 32): 1,
}

#: Those of them that the parent frees, when it has waited for the child.
REAPED = ("task_struct", "signal_cache", "sighand_cache", "pid")

#: Allocated and freed by the child, which executes another program.
CHILD: Objects = {
    ("mm_struct", 1568): 1,
    ("pid", 184): 1,
    ("kmalloc", 11): 1,
    ("maple_node", 256): 35,
    ("vm_area_struct", 192): 29,
    ("anon_vma_chain", 64): 10,
    ("anon_vma", 96): 7,
    ("filp", 184): 5,
    ("lsm_file_cache", 24): 5,
}

#: By the child too, each freed at once.
TRANSIENT: Objects = {
    ("names_cache", 4096): 6,
    ("kmalloc", 728): 1,
    ("kmalloc", 504): 1,
    ("kmalloc", 408): 1,
    ("kmalloc", 64): 1,
    ("kmalloc", 28): 1,
}


def fork(
    processes: int | None = 50,
    *,
    parents: int = 2,
    program: bool = True,
    fork_cycles: int = 60_000,
    program_cycles: int = 200_000,
) -> Workload:
    """Parents that start children and wait for them, one after the other.

    In fork() the parent allocates and fills the copy of its own address space and tables: 103
    objects in 15 caches, among them 42 ``vm_area_struct``.  The child, a task that may run on any
    CPU, drops what it inherited when it executes a program, whose 94 objects it allocates and frees
    itself, with 11 that live for a moment.  The parent frees ``task_struct`` and three other kinds
    of objects when the child has ended.

    Parameters
    ----------
    processes : int or None
        Children of each parent.  None: without end, for runs with a ``duration``.
    parents : int
        Pairs of tasks; all are free to move.
    program : bool
        False: the child ends without executing anything, the "fork intensive" case of T5.
    fork_cycles, program_cycles : int
        Work of fork() beside allocation (page tables), and of the child's program with its page
        faults.  Estimated from the shipped trace: 132 processes take 55 ms of two CPUs, 830 us each
        with tracing on, of which the work given here is 90 us at 3 GHz.

    Returns
    -------
    Workload
        Every process that ended is marked.

    Examples
    --------
    >>> import unislab as us
    >>> w = us.workloads.fork(processes=3, parents=2)
    >>> dict(w.counts) == {"allocs": 6 * (103 + 94 + 11), "frees": 6 * (103 + 94 + 11), "marks": 6}
    True
    """
    work = _cycles(fork_cycles, program_cycles)
    return _build("fork", processes, parents, program, work, pages=0)


def fork_touch(
    processes: int | None = 50,
    *,
    parents: int = 2,
    memory: int | str = "1 MiB",
    program: bool = False,
    fork_cycles: int = 60_000,
    program_cycles: int = 20_000,
    fault_cycles: int = 1500,
) -> Workload:
    """Processes as of :func:`fork` that touch user memory: "fork + user memory" of T5.

    User pages come from no slab cache.  Each costs the work of its fault, and its lines push others
    out of the CPU's caches: every child writes all lines of one large block, which its task keeps.

    Parameters
    ----------
    processes, parents, program, fork_cycles, program_cycles
        As for :func:`fork`; here the default is no program.
    memory : int or str
        User memory of a child, in whole pages of 4 KiB.
    fault_cycles : int
        Work of a page fault with the zeroing of the page (estimated).

    Returns
    -------
    Workload

    Examples
    --------
    >>> import unislab as us
    >>> us.workloads.fork_touch(processes=3, parents=1, memory="64 KiB").counts["allocs"]
    310
    """
    pages = -(-parse_size(memory) // 4096)
    whole(f"memory={memory!r}: {{}} pages", pages, 1, 2**18)
    faults = pages * whole("fault_cycles={}", fault_cycles, 0, 2**20)
    work = _cycles(fork_cycles, program_cycles)
    return _build("fork_touch", processes, parents, program, (work[0], work[1] + faults), pages)


def _cycles(fork_cycles: int, program_cycles: int) -> tuple[int, int]:
    most = 2**40
    return (
        whole("fork_cycles={}", fork_cycles, 0, most),
        whole("program_cycles={}", program_cycles, 0, most),
    )


class _Slots:
    """Objects of the tables as caches of a workload and slots of a task."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.cache: dict[tuple[str, int], int] = {}

    def take(self, objects: Objects, first: int) -> tuple[list[ops.Ops], dict[str, list[int]]]:
        """Allocations into slots from ``first`` on, each object written, and the slots by name."""
        made, slots = [], dict[str, list[int]]()
        for (name, size), number in objects.items():
            if (name, size) not in self.cache:
                self.cache[name, size] = self.workload.add_cache(
                    name, size, align=64 if size >= 192 else 0, kmalloc=name == "kmalloc"
                )
            own = range(first, first + number)
            first += number
            made.append(ops.alloc(self.cache[name, size], own))
            made.append(ops.touch(own))
            slots.setdefault(name, []).extend(own)
        return made, slots


def _build(
    name: str,
    processes: int | None,
    parents: int,
    program: bool,
    cycles: tuple[int, int],
    pages: int,
) -> Workload:
    processes = rounds("processes={}", processes)
    parents = whole("parents={}", parents, 1, 10_000)
    made = Workload(name)
    known = _Slots(made)
    inherit, slots = known.take(PARENT, 0)
    kept = [slot for kind in REAPED for slot in slots[kind]]
    given = [slot for own in slots.values() for slot in own if slot not in kept]
    run = _program(known, len(given)) if program else []
    buffer = made.add_cache("user memory", pages * 4096, kmalloc=True) if pages else None
    last = 2 + len(given) + sum(CHILD.values())
    for number in range(parents):
        image, start, ended = made.channel(len(given)), made.channel(1), made.channel(1)
        made.add_task(
            ops.repeat(
                processes,
                *inherit,
                ops.work(cycles[0]),
                ops.send(image, given),
                ops.send(start),
                ops.recv(ended),
                ops.free(kept),
                ops.mark(),
            ),
            name=f"parent {number}",
        )
        inherited = range(len(given))
        body = [
            ops.recv(start),
            ops.recv(image, inherited),
            ops.work(cycles[1]),
            *([ops.touch(last)] if pages else []),
            # Executing a program drops the inherited address space before the end does.
            *([ops.free(inherited), *run] if program else [ops.free(inherited)]),
            ops.send(ended),
        ]
        before = [] if buffer is None else [ops.alloc(buffer, last)]
        after = [] if buffer is None else [ops.free(last)]
        made.add_task(*before, ops.repeat(processes, *body), *after, name=f"child {number}")
    return made


def _program(known: _Slots, first: int) -> list[ops.Ops]:
    """What executing a program and ending allocates and frees, from slot ``first`` on."""
    momentary: list[ops.Ops] = []
    for key, number in TRANSIENT.items():
        taken, slots = known.take({key: 1}, first)
        momentary += (*taken, ops.free(slots[key[0]])) * number
    taken, slots = known.take(CHILD, first)
    return [*momentary, *taken, ops.free([slot for own in slots.values() for slot in own])]
