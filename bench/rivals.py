"""Every policy on every shipped trace: time and memory of `unified` against its best rival.

Times are those of interleaved rounds in one comparison. A peak depends on how the threads happened
to run, and a comparison tells one of each policy: it is taken from several comparisons, each on
allocators of its own.
"""

from __future__ import annotations

import os
import statistics
import time

import unislab as us
from figure import Figure, figure, ratios

ROUNDS = 15
HACKBENCH_ROUNDS = 50
PEAK_RUNS = 9
PEAK_ROUNDS = 3  # the fewest that a comparison takes
CPU_ALLOWANCE = 256 << 10  # bytes a CPU that the bar on memory leaves beside 5 %

ByPolicy = dict[str, list[float]]


def _compare(trace: us.Trace, rounds: int) -> us.Comparison:
    return us.compare(trace, "all", baselines=[], rounds=rounds, min_time=0)


def _peaks(trace: us.Trace, runs: int) -> ByPolicy:
    """ByPolicy of reserved bytes by policy, one a run."""
    peaks: ByPolicy = {name: [] for name in us.policies()}
    for _ in range(runs):
        for name, result in _compare(trace, PEAK_ROUNDS).results.items():
            peaks[name].append(result.memory["reserved_peak"])
    return peaks


def _best(values: ByPolicy) -> str:
    """The rival with the least median."""
    rivals = [name for name in values if name != "unified"]
    return min(rivals, key=lambda name: statistics.median(values[name]))


def _time_figure(name: str, c: us.Comparison) -> Figure:
    best = _best(c.rounds)
    return figure(
        f"{name} under all policies: unified / {best}, the fastest rival",
        ratios(c.rounds["unified"], c.rounds[best]),
        at_most=1.05,
    )


def _peak_figure(name: str, peaks: ByPolicy) -> Figure:
    leanest = _best(peaks)
    allowance = CPU_ALLOWANCE * len(os.sched_getaffinity(0))
    bars = [1.05 * peak + allowance for peak in peaks[leanest]]
    return figure(
        f"{name} under all policies: peak of unified / bar of {leanest}, the leanest rival",
        ratios(peaks["unified"], bars),
        at_most=1,
    )


def figures(rounds: int = ROUNDS, peak_runs: int = PEAK_RUNS) -> list[Figure]:
    """Compare all policies on each shipped trace, rounds interleaved."""
    out: list[Figure] = []
    for name in us.datasets.names():
        trace = us.datasets.load(name)
        hackbench = name == "hackbench"
        start = time.monotonic()
        c = _compare(trace, HACKBENCH_ROUNDS if hackbench else rounds)
        seconds = time.monotonic() - start
        out += [_time_figure(name, c), _peak_figure(name, _peaks(trace, peak_runs))]
        if hackbench:
            label = f"comparing all policies on hackbench, {HACKBENCH_ROUNDS} rounds each"
            out.append(figure(label, [seconds], "s", at_most=15))
    return out
