"""Which CPU is on which node, and which CPUs share a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from unislab.arguments import several, whole

__all__ = ["Topology", "check_counts", "grid_topology"]

_MAX_CPUS = 8192


def check_counts(**counts: int) -> None:
    """Raise unless each is a whole number that a machine can have.

    >>> from unislab.topology import check_counts
    >>> check_counts(nodes=2)
    """
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


def grid_topology(nodes: int, domains_per_node: int, cpus_per_domain: int) -> Topology:
    """Nodes of equal domains of equal CPUs, numbered in that order.

    >>> from unislab.topology import grid_topology
    >>> grid_topology(2, 1, 2).cpu_node
    (0, 0, 1, 1)
    """
    check_counts(nodes=nodes, domains_per_node=domains_per_node, cpus_per_domain=cpus_per_domain)
    check_counts(cpus=nodes * domains_per_node * cpus_per_domain)
    domains = [d for d in range(nodes * domains_per_node) for _ in range(cpus_per_domain)]
    return Topology([d // domains_per_node for d in domains], domains)
