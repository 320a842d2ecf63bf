"""Workloads: what runs on an allocator, as tasks made of operations.

Everything that :func:`unislab.run` runs is a :class:`Workload`: a replayed trace, a micro-benchmark
of :mod:`unislab.workloads`, or one built by hand.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from unislab import _native
from unislab.arguments import several, whole
from unislab.ops import OP_DTYPE, Ops, sequence
from unislab.sizes import parse_size

if TYPE_CHECKING:
    from unislab.trace import Trace

__all__ = ["Task", "Workload", "WorkloadCache"]


@dataclasses.dataclass(frozen=True)
class WorkloadCache:
    """A cache of a workload, or a size of kmalloc."""

    name: str
    size: int
    align: int = 0
    flags: tuple[str, ...] = ()
    kmalloc: bool = False


@dataclasses.dataclass(frozen=True)
class Task:
    """One thread of a workload: its operations, and the CPUs it may run on (none named: any).

    An ``interrupt`` has one CPU and, on a modelled machine, preempts what runs there.
    """

    ops: Ops
    cpus: tuple[int, ...] = ()
    name: str = ""
    interrupt: bool = False


class Workload:
    """Tasks, caches and channels.

    Parameters
    ----------
    name : str
        Shown in results.

    Attributes
    ----------
    caches : list of WorkloadCache
    tasks : list of Task
    channels : list of int
        How many messages each holds.
    window : int
        Events of a trace that one task may run ahead of another: 500 for each CPU of the trace, and
        at least 1000.
    counts : mapping
        ``allocs`` and ``frees`` of one pass, ``marks`` if it has any, and for a trace all its
        counts.

    Examples
    --------
    One task on CPU 0 that allocates and frees a thousand times:

    >>> import unislab as us
    >>> from unislab import ops
    >>> w = us.Workload("pair")
    >>> skb = w.add_cache("skbuff_head_cache", 232)
    >>> w.add_task(ops.repeat(1000, ops.alloc(skb, 0), ops.free(0)), cpu=0)
    0
    >>> w.counts["allocs"]
    1000
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.caches: list[WorkloadCache] = []
        self.tasks: list[Task] = []
        self.channels: list[int] = []
        self.window = 1000
        self._trace_counts: dict[str, int] = {}

    # ---- building --------------------------------------------------------------------------

    def add_cache(
        self,
        name: str,
        size: int | str,
        *,
        align: int = 0,
        flags: Iterable[str] = (),
        kmalloc: bool = False,
    ) -> int:
        """Add a cache and return its number, which ``ops.alloc`` takes.

        Parameters
        ----------
        name : str
            Unique among the named caches.
        size : int or str
            Bytes of an object, such as ``232`` or ``"4 KiB"``.
        align : int
            A power of two, or 0.
        flags : iterable of str
            As for :meth:`Allocator.create_cache`.
        kmalloc : bool
            No cache of its own: ``kmalloc(size)`` from the policy's general caches.

        Examples
        --------
        >>> import unislab as us
        >>> w = us.Workload("two")
        >>> w.add_cache("inode", 640), w.add_cache("buffer", 512, kmalloc=True)
        (0, 1)
        """
        if not isinstance(name, str):
            raise TypeError(f"a cache name cannot be {name!r}: expected a string")
        given = several("flags", flags, "names of cache flags")
        cache = WorkloadCache(
            name,
            parse_size(size),
            whole(f"align of cache {name!r}", align, 0, 2**32 - 1, "a power of two"),
            tuple(str(flag) for flag in given),
            kmalloc,
        )
        if not kmalloc and any(c.name == name and not c.kmalloc for c in self.caches):
            raise ValueError(
                f"workload {self.name!r} has a cache {name!r} already; take its number"
            )
        if not 1 <= cache.size <= 2**40:
            raise ValueError(f"cache {name!r}: {size!r} bytes, expected at least 1, at most 2**40")
        self.caches.append(cache)
        return len(self.caches) - 1

    def channel(self, capacity: int = 64) -> int:
        """Add a channel that holds up to ``capacity`` messages, and return its number.

        Examples
        --------
        >>> import unislab as us
        >>> us.Workload("talk").channel(8)
        0
        """
        self.channels.append(whole("channel: capacity {}", capacity, 1, 2**20))
        return len(self.channels) - 1

    def add_task(
        self,
        *ops: Ops,
        cpu: int | Iterable[int] | None = None,
        name: str = "",
        interrupt: bool = False,
    ) -> int:
        """Add a task and return its number.

        Parameters
        ----------
        *ops : arrays of OP_DTYPE
            Run one after the other; see :mod:`unislab.ops`.
        cpu : int or iterable of int, optional
            The CPU, or the CPUs it may move between; by default any.  CPUs that the machine lacks
            are folded modulo those it has, with a warning.
        name : str
            For pictures and tables.
        interrupt : bool
            The task is the interrupt handler of its one CPU: on a modelled machine a message for
            it preempts what runs there, at the cost of an interrupt instead of a context switch.
            On this machine it is a thread like the others.

        Examples
        --------
        >>> import unislab as us
        >>> from unislab import ops
        >>> w = us.Workload("free to move")
        >>> w.add_task(ops.work(100)), w.add_task(ops.work(100), cpu=[0, 1])
        (0, 1)
        """
        number = len(self.tasks)
        one = cpu is None or hasattr(cpu, "__index__")
        given = (cpu,) if one else several("cpu", cpu, "a number or numbers")
        cpus = [
            whole(f"task {number}: cpu={{}}", c, 0, 2**31 - 1, "numbers from 0")
            for c in given
            if c is not None
        ]
        if interrupt and len(cpus) != 1:
            raise ValueError(
                f"task {number}: an interrupt needs exactly one CPU, found cpu={cpu!r:.60}"
            )
        self.tasks.append(Task(sequence(*ops), tuple(cpus), name, bool(interrupt)))
        return len(self.tasks) - 1

    # ---- traces ----------------------------------------------------------------------------

    @classmethod
    def from_trace(
        cls,
        trace: Trace,
        *,
        implied: str = "before",
        sizes: str = "requested",
        seed: int = 0,
        paced: bool = False,
    ) -> Workload:
        """The replay of a trace: one task for each traced CPU.

        An object that is freed on another CPU than the one that allocated it is freed after its
        allocation, and no CPU runs more than :attr:`window` events ahead of another.

        Parameters
        ----------
        implied : {"before", "spread"}
            Where the frees that printed no event go, see :meth:`Trace.ops`.
        sizes : {"requested", "kernel"}
            ``kmalloc`` of the bytes asked for, or of the bytes the kernel's own caches gave.
        seed : int
            For ``implied="spread"``.
        paced : bool
            Keep enough time stamps to keep the gaps between events.

        Examples
        --------
        >>> import unislab as us
        >>> w = us.Workload.from_trace(us.datasets.load("tcp_rr"))
        >>> w.counts["live_at_end"] == w.counts["allocs"] - w.counts["frees"]
        True
        """
        from unislab._replay import build

        return build(cls(_short(trace.source)), trace, implied, sizes, seed, paced)

    # ---- what it is ------------------------------------------------------------------------

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of one pass; checks the operations."""
        checked = self.check()
        return MappingProxyType({**self._trace_counts, **checked})

    def check(self) -> dict[str, int]:
        """Check all operations; return how many allocations and frees one pass makes.

        Raises
        ------
        ValueError
            The first thing that is wrong, with task, operation and value: a slot freed twice,
            filled twice or never filled, an unknown operation, cache or channel, a size.

        Examples
        --------
        >>> import unislab as us
        >>> from unislab import ops
        >>> w = us.Workload("wrong")
        >>> cache = w.add_cache("c", 64)
        >>> w.add_task(ops.alloc(cache, 0), ops.free(0), ops.free(0))
        0
        >>> w.check()
        Traceback (most recent call last):
        ValueError: task 0, op 2 (FREE): slot 0 was emptied by op 1 already
        """
        found = _native.check_program(*self._program(tuple))
        counts = {"allocs": int(found["allocs"]), "frees": int(found["frees"])}
        return counts | ({"marks": int(found["marks"])} if found["marks"] else {})

    def _program(self, place: Any) -> tuple[list[Any], list[int], list[Any]]:
        """Caches, channels and tasks as the native functions take them."""
        caches = [(None if c.kmalloc else c.name, c.size, c.align) for c in self.caches]
        tasks = [(np.ascontiguousarray(t.ops), place(t.cpus), int(t.interrupt)) for t in self.tasks]
        return caches, list(self.channels), tasks

    def __repr__(self) -> str:
        ops = sum(len(t.ops) for t in self.tasks)
        return (
            f"<Workload {self.name}: {len(self.tasks)} tasks, {ops} ops, "
            f"{len(self.caches)} caches, {len(self.channels)} channels>"
        )

    # ---- files (a baseline in another process reads it) ------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a numpy archive.

        Examples
        --------
        >>> import os, tempfile
        >>> import unislab as us
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "pair.npz")
        ...     us.workloads.pair().save(path)
        ...     us.Workload.load(path).counts == us.workloads.pair().counts
        True
        """
        import json

        about = {
            "name": self.name,
            "caches": [dataclasses.astuple(c) for c in self.caches],
            "channels": self.channels,
            "window": self.window,
            "tasks": [(t.cpus, t.name, t.interrupt) for t in self.tasks],
            "counts": self._trace_counts,
        }
        arrays = {f"ops{i}": t.ops.view(np.uint8) for i, t in enumerate(self.tasks)}
        with open(path, "wb") as file:
            np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Workload:
        """Read what :meth:`save` wrote.

        Raises
        ------
        ValueError
            The file is something else.

        Examples
        --------
        >>> import unislab as us
        >>> us.Workload.load("/dev/null")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: /dev/null: is no workload saved by Workload.save ...
        """
        try:
            return cls._load(path)
        except OSError:
            raise
        except Exception as error:  # whatever numpy, zipfile and json make of another kind of file
            raise ValueError(f"{path}: is no workload saved by Workload.save ({error})") from error

    @classmethod
    def _load(cls, path: str | os.PathLike[str]) -> Workload:
        import json

        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            about = json.loads(archive["about"].tobytes())
            made = cls(about["name"])
            made.caches = [
                WorkloadCache(name, size, align, tuple(flags), kmalloc)
                for name, size, align, flags, kmalloc in about["caches"]
            ]
            made.channels = about["channels"]
            made.window = about["window"]
            made._trace_counts = about["counts"]
            made.tasks = [
                Task(archive[f"ops{i}"].view(OP_DTYPE), tuple(cpus), *rest)
                for i, (cpus, *rest) in enumerate(about["tasks"])
            ]
        return made


def _short(source: str) -> str:
    """The name of a file without its folder; a shipped trace has a name without an ending.

    >>> _short("/data/tcp_rr.trace.xz"), _short("tcp_rr"), _short("")
    ('tcp_rr.trace.xz', 'tcp_rr', 'trace')
    """
    return os.path.basename(source) or "trace"


def fold_cpus(workload: Workload, cpus: Sequence[int] | None = None) -> dict[int, int]:
    """Which CPU of this machine stands for each CPU the workload names; warns when they share.

    Parameters
    ----------
    cpus : sequence of int, optional
        By default those this process may use.
    """
    have = sorted(os.sched_getaffinity(0)) if cpus is None else list(cpus)
    wanted = sorted({c for task in workload.tasks for c in task.cpus})
    lacking = [c for c in wanted if c >= len(have)]
    if lacking:
        warnings.warn(
            f"{workload.name}: runs on CPUs {wanted[0]} to {wanted[-1]}, but this machine offers "
            f"{len(have)}; CPU n runs on n modulo {len(have)}",
            stacklevel=4,
        )
    return {c: have[c % len(have)] for c in wanted}
