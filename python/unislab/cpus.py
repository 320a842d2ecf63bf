"""The part of an allocator that knows its CPUs and nodes: standing on one, taking one offline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self

from unislab.allocator_base import AllocatorBase
from unislab.arguments import several, whole

__all__ = ["CPU", "Cpus"]


class CPU(NamedTuple):
    """One CPU of an allocator's machine, as :attr:`Allocator.cpus` lists them.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator(machine=us.Machine.grid(1, 1, 2)) as alloc:
    ...     alloc.cpus[1].online
    True
    """

    number: int
    node: int
    domain: int
    online: bool


class Cpus(AllocatorBase):
    """Where calls run, and where their objects come from."""

    __slots__ = ()

    @contextmanager
    def on_cpu(self, cpu: int) -> Iterator[Self]:
        """Do what is in the block on a CPU: by script on a machine, by pinning the thread here.

        Raises
        ------
        ValueError
            For a CPU that is not on the machine, and for one that is offline.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(2, 1, 2)) as alloc, alloc.on_cpu(3):
        ...     alloc.cpu
        3
        """
        cpu = self._cpu(cpu)
        if not self._online()[cpu]:
            raise ValueError(
                f"CPU {cpu} is offline: expected one of {list(self.online_cpus)}, "
                f"or online_cpu({cpu}) first"
            )
        if self.machine is None:
            affinity = os.sched_getaffinity(0)
            self._on_cpu(cpu)
            try:
                yield self
            finally:
                with suppress(RuntimeError):  # the allocator was closed in the block
                    self._on_cpu(-1)
                os.sched_setaffinity(0, affinity)
            return
        previous = self._on_cpu(cpu)
        try:
            yield self
        finally:
            if not self.closed:
                self._on_cpu(previous)

    def _cpu(self, cpu: int) -> int:
        """A CPU of the machine, online or not."""
        return whole("CPU {} is not on this machine", cpu, 0, len(self._topology[0]) - 1)

    @property
    def cpus(self) -> tuple[CPU, ...]:
        """Every CPU: ``number``, ``node``, ``domain`` and whether it is ``online``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(2, 1, 1)) as alloc:
        ...     alloc.offline_cpu(1)
        ...     alloc.cpus[1]
        CPU(number=1, node=1, domain=1, online=False)
        """
        nodes, domains = self._topology
        rows = zip(nodes, domains, self._online(), strict=True)
        return tuple(CPU(number, *row) for number, row in enumerate(rows))

    @property
    def online_cpus(self) -> tuple[int, ...]:
        """Numbers of the CPUs that are in use: all, but for those taken offline.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 3)) as alloc:
        ...     alloc.offline_cpu(1)
        ...     alloc.online_cpus
        (0, 2)
        """
        return tuple(cpu for cpu, online in enumerate(self._online()) if online)

    def offline_cpu(self, cpu: int) -> None:
        """Take a CPU out of use, as when it is unplugged.

        Its stocks are drained in every cache, and when it was the last one of its node or cache
        domain what the policy keeps there for CPUs is drained too. Timers pass it over. The
        operating system knows nothing of this: a thread that runs there (on a scripted machine: a
        script that stands there) goes on, and its calls are served from the next level.
        :meth:`on_cpu`, and workloads that are placed on the CPU, are refused.

        Parameters
        ----------
        cpu : int

        Raises
        ------
        ValueError
            When it is not on the machine, is offline already, or is the last one online.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 2)) as alloc:
        ...     with alloc.on_cpu(1):
        ...         alloc.kfree(alloc.kmalloc(100))
        ...     alloc.offline_cpu(1)
        ...     alloc.account()["queued"], alloc.online_cpus
        (0, (0,))
        """
        self._offline_cpu(self._cpu(cpu))

    def online_cpu(self, cpu: int) -> None:
        """Take a CPU into use again; its queues start empty.

        Raises
        ------
        ValueError
            When it is not on the machine or is online already.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 2)) as alloc:
        ...     alloc.offline_cpu(0)
        ...     alloc.online_cpu(0)
        ...     alloc.online_cpus
        (0, 1)
        """
        self._online_cpu(self._cpu(cpu))

    @contextmanager
    def memory_policy(
        self, *, preferred: int | None = None, interleave: Sequence[int] | None = None
    ) -> Iterator[Self]:
        """Place the objects that the calling thread takes from ``mem_spread`` caches.

        Under policy ``sheaves`` with ``slab_strict_numa=1`` single allocations of every cache
        follow it, too.

        Parameters
        ----------
        preferred : int
            One node for all.
        interleave : sequence of int
            Nodes in turn. Exactly one of the two is given.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(2, 1, 1)) as alloc:
        ...     cache = alloc.create_cache("pair", 16, flags="mem_spread")
        ...     with alloc.memory_policy(preferred=1):
        ...         obj = cache.alloc()
        ...     cache.slabs()["node"].tolist()
        ...     obj.free()
        [1]
        """
        if (preferred is None) == (interleave is None):
            raise TypeError("expected either preferred= or interleave=")
        last = self.topology.nodes - 1
        given: tuple[object, ...] = (preferred,)
        if interleave is not None:
            given = several("interleave", interleave, "a sequence of nodes")
        nodes = tuple(whole("node {} is not on this machine", node, 0, last) for node in given)
        if not nodes:
            raise ValueError("interleave cannot be empty: expected at least one node")
        old = self._memory_policy(nodes, interleave is not None)
        try:
            yield self
        finally:
            self._memory_policy_restore(old)
