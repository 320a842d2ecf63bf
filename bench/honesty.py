"""Does the model tell the truth: ratios between policies here and on a model of this machine.

The machine is calibrated first. Then every workload runs under all policies, natively in
interleaved rounds and modelled, flat out both times. For each pair of policies the ratio of times
is compared. Pairs that miss are printed on standard error with what the model says that their
difference is made of: where that is small beside the native one, something is not charged.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from dataclasses import dataclass

import unislab as us
from figure import Figure, figure
from unislab.comparison import ratio_interval
from unislab.contestant import PolicyContestant
from unislab.explanation import Explanation

CPUS = 2
ROUNDS = 15
SECONDS = 1.5  # of native passes, each policy and workload
CALIBRATION_S = 10
PASSES = 3  # modelled, the last one counts
NEAR = 20.0  # percent that nine of ten pairs may be off
SHOWN = 25  # misses


@dataclass(frozen=True)
class Pair:
    """Two policies under one workload."""

    workload: str
    first: str
    second: str
    modelled: float
    native: float
    low: float
    high: float
    cause: str

    @property
    def error(self) -> float:
        """Percent between the two ratios, whichever is the larger."""
        return 100 * (max(self.modelled / self.native, self.native / self.modelled) - 1)

    @property
    def apart(self) -> bool:
        """Whether the native interval says who is faster."""
        return not self.low <= 1 <= self.high

    @property
    def ranked(self) -> bool:
        """Whether the model agrees."""
        return (self.modelled > 1) == (self.native > 1)

    def __str__(self) -> str:
        return (
            f"{self.workload}: {self.first} / {self.second}: modelled {self.modelled:.2f}, native "
            f"{self.native:.2f} ({self.low:.2f} to {self.high:.2f}); model: {self.cause}"
        )


def workloads() -> list[us.Workload]:
    """Three made here, two from traces of a kernel."""
    w = us.workloads
    traces = [us.datasets.load(name) for name in ("tcp_rr", "fork")]
    return [
        w.hackbench(1, 10, tasks=5),
        w.producer_consumer(messages=5000),
        w.tcp_rr(8, cpus=CPUS, transactions=50),
        *(us.Workload.from_trace(trace) for trace in traces),
    ]


def native(made: us.Workload, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of a pass by policy, one a round."""
    compared = us.compare(made, "all", baselines=[], rounds=rounds, min_time=seconds)
    return {name: list(compared.rounds[name]) for name in us.policies()}


def modelled(
    made: us.Workload, policy: str, machine: us.Machine
) -> tuple[float, dict[str, float], int]:
    """Seconds of a warm pass, where they went, and what to divide them by."""
    contestant = PolicyContestant(made, policy, machine=machine)
    try:
        contestant.passes(PASSES - 1)
        seconds, _counters, _caches, _memory = contestant.last_pass()
        explained = contestant.explanation
    finally:
        contestant.close()
    assert isinstance(explained, Explanation)
    return seconds, explained._by_cause(), made.counts["allocs"]


def cause(first: dict[str, float], second: dict[str, float], allocs: int) -> str:
    """The three largest differences, in ns an allocation."""
    by = {k: 1e9 * (first[k] - second[k]) / allocs for k in first}
    largest = sorted(by.items(), key=lambda item: -abs(item[1]))[:3]
    return ", ".join(f"{k} {ns:+.1f} ns" for k, ns in largest)


def pairs(machine: us.Machine, made: us.Workload, seconds: float, rounds: int) -> list[Pair]:
    """Every pair of policies under one workload."""
    here = native(made, seconds, rounds)
    there = {name: modelled(made, name, machine) for name in here}
    found = []
    for first, second in itertools.combinations(here, 2):
        ratio, low, high = ratio_interval(here[first], here[second])
        (mine, why, allocs), (other, why_other, _) = there[first], there[second]
        told = cause(why, why_other, allocs)
        found.append(Pair(made.name, first, second, mine / other, ratio, low, high, told))
    return found


def _share(name: str, hits: list[bool], least: float) -> Figure:
    value = 100 * sum(hits) / len(hits) if hits else 100.0
    return Figure(name, value, "%", f">= {least:g}", value >= least, (value, value))


def figures(
    seconds: float = SECONDS, rounds: int = ROUNDS, calibration: float = CALIBRATION_S
) -> list[Figure]:
    """Errors of all pairs of policies, by workload and in all."""
    machine = us.Machine.calibrate(seconds=calibration, save=False)
    found: list[Pair] = []
    out: list[Figure] = []
    for made in workloads():
        some = pairs(machine, made, seconds, rounds)
        found += some
        out.append(figure(f"model, {made.name}: median error", [p.error for p in some], "%"))
        print(f"{made.name}: {statistics.median(p.error for p in some):.1f} %", file=sys.stderr)
    misses = [p for p in found if p.error > NEAR or (p.apart and not p.ranked)]
    for pair in sorted(misses, key=lambda p: -p.error)[:SHOWN]:
        print(pair, file=sys.stderr)
    errors = [p.error for p in found]
    apart = [p.ranked for p in found if p.apart]
    return [
        figure("model against this machine: median error of ratios", errors, "%", at_most=10),
        _share("model against this machine: pairs within 20 %", [e <= NEAR for e in errors], 90),
        _share("model against this machine: ranked right where apart", apart, 100),
        *out,
    ]
