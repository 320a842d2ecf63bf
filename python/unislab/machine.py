"""Machines: this one, and machines that need not exist.

A :class:`Topology` says which CPU belongs to which node and cache domain. Given to an
:class:`~unislab.Allocator` as ``topology=``, it lays nodes and domains over the CPUs at hand, so
that their paths run for real on a one-node machine. A :class:`Machine`, given as ``machine=``,
replaces this machine by a scripted one of any size, on which nothing happens but what the script
says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

from unislab.arguments import several, whole

__all__ = ["Machine", "Topology"]

_MAX_CPUS = 8192


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        whole(name, count, 1, _MAX_CPUS)


def _numbers(what: str, numbers: object) -> tuple[int, ...]:
    given = several(what, numbers, "a sequence of integers")
    return tuple(whole(f"a number in {what}", n, 0, _MAX_CPUS - 1) for n in given)


def _check_numbering(what: str, numbers: Sequence[int]) -> None:
    """Numbers must be 0..n-1, each in use."""
    used = sorted(set(numbers))
    if used != list(range(len(used))):
        raise ValueError(f"{what} are numbered {used}: expected every number from 0 on")


def _settle_domains(nodes: Sequence[int], domains: Sequence[int]) -> tuple[int, ...]:
    """Split, grouped and numbered, as csrc/machine/topology.c does it."""
    parts = list(zip(nodes, domains, strict=True))
    cpus = Counter(parts)
    groups = [(node, domain if cpus[node, domain] > 1 else None) for node, domain in parts]
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return tuple(number[group] for group in groups)


@dataclass(frozen=True, repr=False)
class Topology:
    """Which CPU is on which node, and which CPUs share a cache.

    Parameters
    ----------
    cpu_node : sequence of int
        Node of each CPU.
    cpu_domain : sequence of int, optional
        Cache domain of each CPU; by default the CPUs of a node share one.

    Notes
    -----
    A cache domain never spans nodes: one that is declared so becomes one domain a node. CPUs of a
    node that are alone in their domain form one group, since a queue shared by one CPU is none.
    Domains are then numbered in the order in which CPUs first show them; ``cpu_domain`` holds the
    result.

    Examples
    --------
    >>> import unislab as us
    >>> us.Topology([0, 0, 1, 1])
    <Topology: 2 nodes, 2 domains, 4 CPUs>
    >>> us.Topology([0, 0, 1, 1], cpu_domain=[0, 0, 0, 0]).cpu_domain
    (0, 0, 1, 1)
    >>> us.Topology([0, 0, 0, 0], cpu_domain=[0, 0, 1, 2]).cpu_domain
    (0, 0, 1, 1)
    """

    cpu_node: tuple[int, ...]
    cpu_domain: tuple[int, ...] = ()

    def __init__(self, cpu_node: Sequence[int], cpu_domain: Sequence[int] | None = None) -> None:
        nodes = _numbers("cpu_node", cpu_node)
        domains = nodes if cpu_domain is None else _numbers("cpu_domain", cpu_domain)
        if not 1 <= len(nodes) <= _MAX_CPUS:
            raise ValueError(f"a topology of {len(nodes)} CPUs: expected 1 to {_MAX_CPUS}")
        if len(domains) != len(nodes):
            raise ValueError(
                f"cpu_node has {len(nodes)} CPUs, cpu_domain {len(domains)}: expected as many"
            )
        _check_numbering("nodes", nodes)
        _check_numbering("cache domains", domains)
        object.__setattr__(self, "cpu_node", nodes)
        object.__setattr__(self, "cpu_domain", _settle_domains(nodes, domains))

    @property
    def cpus(self) -> int:
        """Number of CPUs."""
        return len(self.cpu_node)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(self.cpu_node) + 1

    @property
    def domains(self) -> int:
        """Number of cache domains."""
        return max(self.cpu_domain) + 1

    @classmethod
    def native(cls) -> Topology:
        """The topology of this machine, as the system describes it.

        Examples
        --------
        >>> import unislab as us
        >>> us.Topology.native().cpus == us.build_info()["cpus"]
        True
        """
        from unislab import _native

        return cls(*_native._topology())

    def __repr__(self) -> str:
        def counted(n: int, noun: str) -> str:
            return f"{n} {noun}{'' if n == 1 else 's'}"

        return (
            f"<Topology: {counted(self.nodes, 'node')}, {counted(self.domains, 'domain')}, "
            f"{counted(self.cpus, 'CPU')}>"
        )


@dataclass(frozen=True, repr=False)
class Machine:
    """A machine that need not exist, on which single operations are scripted.

    Make one with :meth:`grid` or :meth:`from_topology`. The current CPU is what
    :meth:`Allocator.on_cpu <unislab.Allocator.on_cpu>` says, CPU 0 at first; the clock stands
    still but for :meth:`Allocator.advance <unislab.Allocator.advance>`; everything is
    deterministic.

    Parameters
    ----------
    topology : Topology
        Its CPUs.
    smt : int
        Threads of a core; neighbouring CPUs are siblings.
    page_size : int
        Bytes of a page, a power of two from 4096 on.
    name : str
        For texts and plots.

    Examples
    --------
    >>> import unislab as us
    >>> machine = us.Machine.grid(nodes=2, domains_per_node=1, cpus_per_domain=2)
    >>> with us.Allocator("unified", machine=machine) as alloc:
    ...     cache = alloc.create_cache("pair", 16)
    ...     with alloc.on_cpu(3):
    ...         address = cache.alloc_address()
    ...     cache.slabs()["node"].tolist()
    ...     cache.free(address)
    [1]
    """

    topology: Topology
    smt: int = 1
    page_size: int = 4096
    name: str = field(default="machine", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.topology, Topology):
            raise TypeError(f"topology cannot be {self.topology!r}: expected a unislab.Topology")
        _check_counts(smt=self.smt)
        whole("page_size", self.page_size, 4096, 65536, "a power of two, 4096 to 65536")
        if self.topology.cpus % self.smt:
            raise ValueError(f"{self.topology.cpus} CPUs are not a multiple of smt={self.smt}")
        if self.page_size & (self.page_size - 1):
            raise ValueError(
                f"page_size cannot be {self.page_size}: expected a power of two, 4096 to 65536"
            )

    @classmethod
    def grid(
        cls,
        nodes: int,
        domains_per_node: int,
        cpus_per_domain: int,
        smt: int = 1,
        *,
        page_size: int = 4096,
    ) -> Machine:
        """A regular machine: nodes of equal domains of equal CPUs, numbered in that order.

        Parameters
        ----------
        nodes, domains_per_node, cpus_per_domain : int
            How many of each.
        smt : int
            Threads of a core, counted in ``cpus_per_domain``.
        page_size : int
            Bytes of a page.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.grid(nodes=2, domains_per_node=2, cpus_per_domain=4)
        <Machine grid 2x2x4: 2 nodes, 4 domains, 16 CPUs>
        """
        _check_counts(
            nodes=nodes, domains_per_node=domains_per_node, cpus_per_domain=cpus_per_domain
        )
        _check_counts(cpus=nodes * domains_per_node * cpus_per_domain)
        domains = [d for d in range(nodes * domains_per_node) for _ in range(cpus_per_domain)]
        topology = Topology([d // domains_per_node for d in domains], domains)
        name = f"grid {nodes}x{domains_per_node}x{cpus_per_domain}"
        return cls(topology, smt=smt, page_size=page_size, name=name)

    @classmethod
    def from_topology(cls, topology: Topology, *, name: str = "machine") -> Machine:
        """A scripted machine with the CPUs of a topology.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.from_topology(us.Topology([0, 1])).cpus
        2
        """
        return cls(topology, name=name)

    @property
    def cpus(self) -> int:
        """Number of CPUs."""
        return self.topology.cpus

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.topology.nodes

    @property
    def domains(self) -> int:
        """Number of cache domains."""
        return self.topology.domains

    def __repr__(self) -> str:
        return f"<Machine {self.name}: {repr(self.topology)[11:]}"


def core_of(machine: Machine | None) -> ModuleType:
    """The extension module that runs a machine: ``_native`` for this one, else ``_model``."""
    if machine is None:
        from unislab import _native

        return _native
    from unislab import _model

    return _model
