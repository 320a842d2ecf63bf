"""Does the model tell the truth: ratios between policies here and on a model of this machine.

The machine is calibrated first. Then every workload runs under all policies, natively in
interleaved rounds and modelled, flat out both times. For each pair of policies the ratio of times
is compared; of native rounds the lower quartile of their fastest passes, as calibration takes it,
since a machine that is shared only ever gets slower and the model has nobody beside it. Pairs that
miss are printed on standard error with what the model says that their difference is made of: where
that is small beside the native one, something is not charged.

What the native executor does for an op beside the allocator's part takes no time in the model,
where programs say what a system does. Here they do not, and its share is measured: the model runs
each program with as many cycles of WORK after every op (:class:`Executor`).
"""

from __future__ import annotations

import itertools
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

import unislab as us
from figure import Figure, figure
from unislab import ops
from unislab.contestant import PolicyContestant, harness_seconds, passes_for
from unislab.explanation import Explanation

CPUS = 2
ROUNDS = 15
SECONDS = 1.5  # of native passes, each policy and workload
CALIBRATION_S = 10
PASSES = 3  # modelled, the last one counts
NEAR = 20.0  # percent that nine of ten pairs may be off
SHOWN = 25  # misses
TIMES = 20_000  # of what is measured of the executor


@dataclass(frozen=True)
class Executor:
    """What the native executor itself costs here, in ns.

    Attributes
    ----------
    op : float
        Of an ALLOC, FREE or TOUCH, its share of the loop.
    alone, streamed : float
        Of a SEND or RECV by tasks of one CPU, and of two.
    spun : float
        From a SEND to the RECV that waits for it, where every task has a CPU and spins.
    """

    op: float
    alone: float
    streamed: float
    spun: float

    @classmethod
    def measured(cls) -> Executor:
        """By programs that do nothing else; the fastest of a few turns."""

        def fastest(made: us.Workload) -> float:
            turns = [harness_seconds(made, touch="none", budget=0.06) for _ in range(7)]
            return min(turns) / TIMES

        loop = fastest(us.workloads.pair(64, times=TIMES)) / 2

        def channels(*tasks: tuple[int, list[ops.Ops]], depth: int) -> float:
            made = us.Workload("channels")
            for _ in range(2):
                made.channel(depth)
            for cpu, parts in tasks:
                made.add_task(ops.repeat(TIMES, *parts), cpu=cpu)
            return fastest(made)

        send, recv = ops.send(0), ops.recv(0)
        alone = channels((0, [send, recv]), depth=64) / 2
        streamed = channels((0, [send]), (1, [recv]), depth=64)
        there, back = [send, ops.recv(1)], [recv, ops.send(1)]
        spun = channels((0, there), (1, back), depth=64) / 2 - 2 * alone
        return cls(1e9 * loop, 1e9 * alone, 1e9 * streamed, max(1e9 * spun, 0.0))

    def costs(self, made: us.Workload) -> tuple[dict[int, float], bool]:
        """Nanoseconds by op, and whether those who wait spin."""
        spins = len(made.tasks) <= CPUS
        message = max(self.streamed, self.alone) if spins else self.alone
        by_name = {"ALLOC": self.op, "FREE": self.op, "TOUCH": self.op}
        by_name |= {"SEND": message, "RECV": message}
        return {ops.OPS[name]: ns for name, ns in by_name.items()}, spins

    def modelled(self, made: us.Workload, machine: us.Machine) -> tuple[us.Workload, us.Machine]:
        """The workload with its share of the executor, and the machine with its waits."""
        by_op, spins = self.costs(made)
        cycles = {op: round(ns * machine.clock_ghz) for op, ns in by_op.items()}
        told = us.Workload(made.name)
        for c in made.caches:
            told.add_cache(c.name, c.size, align=c.align, kmalloc=c.kmalloc)
        for capacity in made.channels:
            told.channel(capacity)
        told.window = made.window
        for task in made.tasks:
            told.add_task(
                _worked(task.ops, cycles),
                cpu=task.cpus or None,
                name=task.name,
                interrupt=task.interrupt,
            )
        if spins:
            machine = machine.replace(costs__wakeup=0.0, costs__idle_exit=self.spun)
        return told, machine


def _worked(program: ops.Ops, cycles: dict[int, int]) -> ops.Ops:
    """The program with WORK after each op that has some; REPEATs reach back as far as they did."""
    more = np.array([cycles.get(int(op), 0) for op in range(256)])[program["op"]]
    at = np.arange(len(program)) + np.concatenate([[0], np.cumsum(more > 0)[:-1]])
    longer: ops.Ops = np.zeros(len(program) + int((more > 0).sum()), program.dtype)
    longer[at] = program
    work = at[more > 0] + 1
    longer["op"][work], longer["arg"][work] = ops.OPS["WORK"], more[more > 0]
    for i in np.flatnonzero(program["op"] == ops.OPS["REPEAT"]):
        longer["slot"][at[i]] = at[i] - at[i - int(program["slot"][i])]
    return longer


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
    """Seconds of a pass by policy, one a round: what a tenth of its passes kept within.

    A thread that is set aside by others of the machine while it holds a lock costs the other thread
    thousands of times what the lock does; most passes of a busy machine may see that.
    """
    taken: dict[str, list[float]] = {name: [] for name in us.policies()}
    with ExitStack() as stack:
        turns = {}
        for name in taken:
            turns[name] = PolicyContestant(made, name)
            stack.callback(turns[name].close)
            turns[name].passes(PASSES)
        each = {
            name: passes_for(statistics.median(turn.passes(3)), seconds / rounds, 1)
            for name, turn in turns.items()
        }
        for turn in range(rounds):
            names = list(turns)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                taken[name].append(float(np.quantile(turns[name].passes(each[name]), 0.1)))
    return taken


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


def pairs(
    machine: us.Machine, executor: Executor, made: us.Workload, seconds: float, rounds: int
) -> list[Pair]:
    """Every pair of policies under one workload."""
    here = native(made, seconds, rounds)
    told, on = executor.modelled(made, machine)
    there = {name: modelled(told, name, on) for name in here}
    found = []
    for first, second in itertools.combinations(here, 2):
        ratio, low, high = quartiles_ratio(here[first], here[second])
        (mine, why, allocs), (other, why_other, _) = there[first], there[second]
        told = cause(why, why_other, allocs)
        found.append(Pair(made.name, first, second, mine / other, ratio, low, high, told))
    return found


def quartiles_ratio(above: list[float], below: list[float]) -> tuple[float, float, float]:
    """Ratio of two lower quartiles with its 95 % interval, the same rounds drawn for both."""
    a, b = np.asarray(above), np.asarray(below)
    drawn = np.random.default_rng(0).integers(0, len(a), (2000, len(a)))
    ratios = np.quantile(a[drawn], 0.25, axis=1) / np.quantile(b[drawn], 0.25, axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.quantile(a, 0.25) / np.quantile(b, 0.25)), float(low), float(high)


def _share(name: str, hits: list[bool], least: float) -> Figure:
    value = 100 * sum(hits) / len(hits) if hits else 100.0
    return Figure(name, value, "%", f">= {least:g}", value >= least, (value, value))


def figures(
    seconds: float = SECONDS, rounds: int = ROUNDS, calibration: float = CALIBRATION_S
) -> list[Figure]:
    """Errors of all pairs of policies, by workload and in all."""
    machine = us.Machine.calibrate(seconds=calibration, save=False)
    executor = Executor.measured()
    print(executor, file=sys.stderr)
    found: list[Pair] = []
    out: list[Figure] = []
    for made in workloads():
        some = pairs(machine, executor, made, seconds, rounds)
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
