"""Points of a reproduction: one modelled run each, described by plain values.

A point can be sent to another process, and equal points of two tables are run once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from unislab.contestant import PolicyContestant, Stretch
from unislab.environment import environment
from unislab.explanation import Explanation
from unislab.machine import Machine
from unislab.result import Result
from unislab.sizes import parse_time
from unislab.topology import grid_topology

__all__ = ["ONE_PASS", "Outcome", "Point", "Stretches", "run_point"]

Pairs = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Stretches:
    """Virtual time of a point: equal stretches, the first of which warm up; or whole passes."""

    #: 0: each is a pass of the workload to its end.
    each_ns: int
    warm: int
    measured: int

    @classmethod
    def of(cls, warmup: str, duration: str, measured: int = 4) -> Stretches:
        """As many as fit into the warm-up, each a part of the duration."""
        each = parse_time(duration) // measured
        return cls(each, max(1, parse_time(warmup) // each), measured)

    def __str__(self) -> str:
        if not self.each_ns:
            return "one whole pass on an empty allocator"
        warm, measured = (n * self.each_ns / 1e6 for n in (self.warm, self.measured))
        return f"{measured:g} ms of virtual time after {warm:g} ms of warm-up"


#: Of programs that end.
ONE_PASS = Stretches(0, 0, 1)


@dataclasses.dataclass(frozen=True)
class Point:
    """One cell of a table.

    Attributes
    ----------
    machine : str
        Name of a profile.
    cpus : int
        So many CPUs of it, 0 for all.
    workload : str
    parameters : tuple
        Of the workload, names and values.
    policy, tunables, stretches, seed
        Of the run.
    caches : tuple of str
        Those whose counters are kept.
    """

    machine: str
    workload: str
    parameters: Pairs
    policy: str
    tunables: Pairs
    stretches: Stretches
    seed: int = 0
    cpus: int = 0
    caches: tuple[str, ...] = ("kmalloc-256", "kmalloc-2048")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a point gave.

    Attributes
    ----------
    result : Result
        Of the measured part.
    rates : tuple of float
        MARKs a second of each stretch, the warm-up's too.
    calls : tuple of mapping
        For each stretch: counters by cache.
    wall : float
        Seconds that it took to compute.
    """

    result: Result
    rates: tuple[float, ...]
    calls: tuple[Mapping[str, Mapping[str, int]], ...]
    wall: float

    @property
    def rate(self) -> float:
        """MARKs a second of the measured part."""
        return self.result.rate or 0.0

    @property
    def drift(self) -> float:
        """The second half of the measured part against its first, relative: 0 is steady."""
        return _drift(self.rates)


def _drift(rates: tuple[float, ...]) -> float:
    half = len(rates) // 2
    if not half:
        return 0.0
    first, second = sum(rates[:half]), sum(rates[len(rates) - half :])
    return second / first - 1 if first else 0.0


def _machine(point: Point) -> Machine:
    machine = Machine.profile(point.machine)
    if not point.cpus or point.cpus == machine.cpus:
        return machine
    topology = machine.topology
    domain = topology.cpu_domain.count(topology.cpu_domain[0])
    domains = -(-point.cpus // domain)
    part = grid_topology(1, domains, min(domain, point.cpus))
    return machine.replace(topology=part, name=f"{point.cpus} CPUs of {machine.name}")


def run_point(point: Point) -> Outcome:
    """Run one point in this process.

    Examples
    --------
    >>> from unislab.reproduction.points import Point, Stretches, run_point
    >>> some = (("streams", 4), ("cpus", 16), ("transactions", None))
    >>> point = Point("amd_16core_2010", "tcp_rr", some, "slab", (), Stretches.of("2 ms", "2 ms"))
    >>> run_point(point).rate > 0
    True
    """
    import time

    from unislab import workloads

    start = time.perf_counter()
    workload = getattr(workloads, point.workload)(**dict(point.parameters))
    contestant = PolicyContestant(
        workload,
        point.policy,
        machine=_machine(point),
        pace=1.0,
        seed=point.seed,
        tunables=dict(point.tunables),
    )
    times = point.stretches
    try:
        stretches = [contestant.go_on(times.each_ns) for _ in range(times.warm + times.measured)]
        memory = {name: int(value) for name, value in contestant.allocator.account().items()}
    finally:
        contestant.close()
    measured = stretches[times.warm :]
    return Outcome(
        result=_result(point, workload.name, measured, memory, dict(workload.counts)),
        rates=tuple(s.marks / s.seconds for s in measured),
        calls=tuple({c: s.calls.get(c, {}) for c in point.caches} for s in stretches),
        wall=time.perf_counter() - start,
    )


def _result(
    point: Point,
    workload: str,
    stretches: list[Stretch],
    memory: dict[str, int],
    counts: dict[str, int],
) -> Result:
    import pandas as pd

    told: dict[str, int] = {}
    calls: dict[tuple[str, str], int] = {}
    for stretch in stretches:
        for name, value in stretch.told.items():
            told[name] = told.get(name, 0) + value
        for cache, counters in stretch.calls.items():
            for name, value in counters.items():
                calls[cache, name] = calls.get((cache, name), 0) + value
    rows = [(point.policy, cache, name, value) for (cache, name), value in calls.items()]
    return Result(
        workload=workload,
        policy=point.policy,
        seconds=None,
        counters={},
        caches=pd.DataFrame(rows, columns=["policy", "cache", "counter", "value"]),
        memory=memory,
        counts=counts,
        environment=environment(),
        seed=point.seed,
        tunables=dict(point.tunables),
        marks=sum(stretch.marks for stretch in stretches),
        elapsed=sum(stretch.seconds for stretch in stretches),
        explanation=Explanation._of(told),
    )
