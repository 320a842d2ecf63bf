"""Measuring this machine: short probes in turns, and costs from their lower quartiles.

A busy machine only ever makes things slower, so that of many rounds the lower quartile is near what
the machine can do; medians are kept beside it in the file.  Probes of one CPU count the time that
their thread ran, probes of two CPUs the time on the clock.  What comes out is put in order, since
noise must not make memory faster than a cache.
"""

from __future__ import annotations

import datetime
import os
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from unislab import _machine_json, _native, host
from unislab.costs import COST_NAMES, WAITER, Caches, Costs, checked_number
from unislab.environment import environment
from unislab.profiles import server_2026
from unislab.sizes import format_size
from unislab.topology import Topology

if TYPE_CHECKING:
    from unislab.machine import Machine

__all__ = ["Probe", "calibrate", "costs_of", "probes"]

_LEAST_ROUNDS, _MOST_ROUNDS = 2, 400
_MIB = 1 << 20
_PAGE = 1 << 16  # no probe works on less: a page of any machine
_PLACES = ("domain", "node", "far")


@dataclass(frozen=True)
class Probe:
    """One measurement, repeated in every round, or in every n-th."""

    key: str
    what: str
    cpu: int
    other: int = 0
    bytes: int = _PAGE
    repeat: int = 100
    every: int = 1

    def run(self) -> float:
        """One sample, in ns."""
        return _native._probe(self.what, self.cpu, self.other, self.bytes, self.repeat)


def calibrate(cls: type[Machine], seconds: float, save: bool) -> Machine:
    """See :meth:`Machine.calibrate <unislab.Machine.calibrate>`."""
    limit = checked_number("seconds", seconds, 0.001, 3600)
    topology, smt, numbers = host.shape()
    caches = host.caches()
    samples: dict[str, list[float]] = defaultdict(list)
    plan = probes(caches, sorted(os.sched_getaffinity(0)))
    begin, rounds = time.monotonic(), 0
    while rounds < _LEAST_ROUNDS or (time.monotonic() - begin < limit and rounds < _MOST_ROUNDS):
        for probe in plan:
            if rounds % probe.every == 0:
                samples[probe.key].append(probe.run())
        rounds += 1
    samples["provider"].append(_provider_ns())
    samples["pair"] = [_instruction_ns() for _ in range(5)]
    about = environment()
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = cls(
        topology,
        smt=smt,
        page_size=os.sysconf("SC_PAGE_SIZE"),
        name="host",
        clock_ghz=1 / _low(samples["cycle"]),
        caches=caches,
        costs=costs_of(samples, caches, smt),
        notes=f"Measured on {date} in {rounds} rounds, {about['cpu']}, {about['cpus']} CPUs.",
    )
    if save:
        kept: dict[str, Any] = {name: about[name] for name in ("cpu", "cpus", "kernel")}
        kept |= {"date": date, "rounds": rounds, "cpu_numbers": numbers}
        kept["median_ns"] = {key: statistics.median(found) for key, found in samples.items()}
        kept["lower_quartile_ns"] = {key: _low(found) for key, found in samples.items()}
        path = host.saved_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        _machine_json.write(made, path, {"calibration": kept})
    return made


def _low(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 4]


def probes(caches: Caches, cpus: list[int]) -> list[Probe]:
    """What is measured where, on the CPUs that this process may use.

    Examples
    --------
    >>> from unislab import calibrate, host
    >>> plan = calibrate.probes(host.caches(), [0])
    >>> {"cycle", "l2", "memory", "switch"} <= {probe.key for probe in plan}
    True
    """
    cpu = cpus[0]
    between = min(3 * caches.l2, max(caches.llc // 2, 2 * caches.l2))
    found = [
        Probe("cycle", "cycle", cpu, repeat=1000),
        Probe("instruction", "instruction", cpu, repeat=500),
        Probe("atomic", "atomic", cpu),
        Probe("lock", "lock", cpu),
        Probe("l1", "chase", cpu, bytes=max(caches.l1 // 2, _PAGE // 4), repeat=200),
        Probe("llc", "chase", cpu, bytes=between, repeat=400),
        Probe("memory", "chase", cpu, bytes=_beyond(caches), repeat=500, every=10),
        Probe("zero", "zero", cpu, bytes=max(2 * caches.l2, _PAGE), repeat=300),
        Probe("fault", "fault", cpu, bytes=_MIB),
        Probe("switch", "switch", cpu, repeat=200),
    ]
    if caches.l2 > caches.l1:
        found.append(Probe("l2", "chase", cpu, bytes=max(2 * caches.l1, caches.l2 // 2)))
    pairs = _pairs(cpus)
    for place, (one, two) in pairs.items():
        found.append(Probe(f"line_{place}", "line", one, two, repeat=20))
        found.append(Probe(f"invalidate_{place}", "invalidate", one, two, repeat=20))
    if pairs:
        one, two = next(iter(pairs.values()))
        found.append(Probe("handover", "handover", one, two, repeat=40))
        found.append(Probe("wake", "wake", one, two, repeat=15, every=2))
        found.append(Probe("arrive", "arrive", one, two, repeat=15, every=2))
    return found


def _beyond(caches: Caches) -> int:
    """Bytes that no cache holds, within what is filled in a second."""
    return min(max(3 * caches.llc, 32 * _MIB), 512 * _MIB)


def _pairs(cpus: list[int]) -> dict[str, tuple[int, int]]:
    """Two CPUs of different cores for each distance that there is."""
    native = Topology.native()
    _topology, smt, numbers = host.shape()
    core = {number: i // smt for i, number in enumerate(numbers)}
    found: dict[str, tuple[int, int]] = {}
    known = [cpu for cpu in cpus if cpu < native.cpus]
    for one in known[:1]:
        for two in known[1:]:
            if core[one] == core[two]:
                continue
            place = (
                "far"
                if native.cpu_node[one] != native.cpu_node[two]
                else "node"
                if native.cpu_domain[one] != native.cpu_domain[two]
                else "domain"
            )
            found.setdefault(place, (one, two))
    return {place: found[place] for place in _PLACES if place in found}


def _provider_ns(times: int = 2000) -> float:
    """A call of the page provider: half of a large ``kmalloc`` with its ``kfree``."""
    from unislab import ops
    from unislab._run import run
    from unislab.workload import Workload

    made = Workload("pages")
    size = made.add_cache("pages", 65536, kmalloc=True)
    made.add_task(ops.repeat(times, ops.alloc(size, 0), ops.free(0)))
    result = run(made, "slub", min_time="20 ms", touch="none")
    seconds = result.seconds.low if result.seconds else 0.0
    return max(seconds - (result.harness or 0.0), 0.0) / times / 2 * 1e9


#: Of an allocation and a free on the CPU's own stock under ``unified``, by gcc 12: the benchmark
#: `instructions` counts them.
_PAIR = 22 + 24


def _instruction_ns(times: int = 20_000) -> float:
    """An instruction of a pair of calls, without the loop that makes them."""
    from unislab._run import run
    from unislab.workloads import pair

    result = run(pair(64, times=times), "unified", min_time="10 ms", touch="none")
    seconds = result.seconds.low if result.seconds else 0.0
    return max(seconds - (result.harness or 0.0), 0.0) / times / _PAIR * 1e9


def costs_of(samples: dict[str, list[float]], caches: Caches, smt: int) -> Costs:
    """Costs from samples of probes, in order, and from estimates where there is no probe.

    Examples
    --------
    >>> from unislab import calibrate, host
    >>> keys = "cycle instruction atomic lock l1 llc memory zero fault switch provider"
    >>> samples = {key: [float(n + 1)] for n, key in enumerate(keys.split())}
    >>> costs = calibrate.costs_of(samples, host.caches(), 1)
    >>> costs.llc_hit, costs.memory, costs.line_domain < costs.line_far
    (2.0, 2.0, True)
    """
    default = server_2026().costs
    got = {key: _low(found) for key, found in samples.items() if found}
    best = "pair" if "pair" in got else "instruction"
    one, l1 = max(got[best], 0.001), got["l1"]
    values: dict[str, float] = {"instruction": one}
    sources = {"instruction": _measured("calls on the CPU's own stock", samples[best])}

    def put(name: str, key: str, ns: float, least: float, what: str) -> None:
        values[name], sources[name] = max(ns, least), _measured(what, samples[key])

    def guess(name: str, ns: float, why: str) -> None:
        values[name], sources[name] = ns, f"not measured: {why}"

    if "l2" in got:
        put("l2_hit", "l2", got["l2"] - l1, one, "loads in half of L2, less L1's")
    put("llc_hit", "llc", got["llc"] - l1, values.get("l2_hit", one), "loads beyond L2, less L1's")
    if "l2" not in got:
        guess("l2_hit", values["llc_hit"], "the last level is the L2")
    text = f"loads in {format_size(_beyond(caches))}, less L1's"
    put("memory", "memory", got["memory"] - l1, values["llc_hit"], text)
    more = default.memory_far - default.memory
    guess("memory_far", values["memory"] + more, f"{more:g} ns more than memory, as in server_2026")
    put("atomic", "atomic", got["atomic"] - l1, one, "locked additions, less a load of L1")
    put("lock", "lock", got["lock"] - l1, values["atomic"], "a lock of this build, less a load")
    _lines(got, samples, values, sources, default)
    if "handover" in got:
        put("handover_", "handover", got["handover"], one, "a spinning waiter, from drop to have")
        values["lock_handover"] = values.pop("handover_")
        sources["lock_handover"] = sources.pop("handover_")
    else:
        guess("lock_handover", values["line_domain"], "as line_domain, for want of a second CPU")
    guess("lock_waiter", values["lock_handover"] / 2, WAITER)
    provider = max(got["provider"] - values["lock"], 10 * one)
    for name in ("page_alloc", "page_free"):
        put(name, "provider", provider, one, "half of a pair of 64 KiB, less its lock")
    put("page_zero", "zero", got["zero"], one, "pages of a set twice as large as L2")
    put("page_fault", "fault", got["fault"], one, "an anonymous page with its zeroing")
    guess("interrupt", 1500 * got["cycle"], "1500 cycles")
    wakeup = min(got.get("wake", got["switch"]), 0.4 * got["switch"])
    put("wakeup", "switch", wakeup, one, "the call, at most 2/5 of a wake-up with a switch")
    put(
        "context_switch", "switch", got["switch"] - wakeup, one, "two threads of a CPU, less wakeup"
    )
    if "arrive" in got:
        put("idle_exit", "arrive", got["arrive"] - wakeup, one, "a sleeping CPU, less wakeup")
    else:
        guess("idle_exit", default.idle_exit, "for want of a second CPU")
    guess("smt_slowdown", default.smt_slowdown if smt > 1 else 100.0, "as in server_2026")
    return Costs(
        **{name: round(values[name], 4) for name in COST_NAMES},
        sources={name: sources[name] for name in COST_NAMES},
    )


def _measured(what: str, samples: list[float]) -> str:
    return f"measured: {what}; lower quartile of {len(samples)}"


def _lines(
    got: dict[str, float],
    samples: dict[str, list[float]],
    values: dict[str, float],
    sources: dict[str, str],
    default: Costs,
) -> None:
    """Transfers and invalidations by distance; of pairs that are not there, as ``server_2026``."""
    for kind, less in (("line", got["l1"]), ("invalidate", got["l1"] + values["atomic"])):
        names = [f"{kind}_{place}" for place in _PLACES]
        known = [name for name in names if name in got]
        for name in known:
            what = f"{kind} probe between two cores, less L1's" + (
                " and the atomic operation" if kind == "invalidate" else ""
            )
            values[name] = max(got[name] - less, values["l2_hit"])
            sources[name] = _measured(what, samples[name])
        for name in names:
            if name not in known:
                values[name] = getattr(default, name)
                sources[name] = "not measured: as in server_2026, and not less than nearer ones"
        for near, far in pairwise(names):
            values[far] = max(values[far], values[near])
