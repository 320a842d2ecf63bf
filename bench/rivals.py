"""Every policy on every shipped trace: time and memory of `unified` against its best rival."""

from __future__ import annotations

import os
import statistics
import time

import unislab as us
from figure import Figure, figure, ratios

ROUNDS = 15
HACKBENCH_ROUNDS = 50
CPU_ALLOWANCE = 256 << 10  # bytes a CPU that the bar on memory leaves beside 5 %


def _figures(name: str, c: us.Comparison) -> list[Figure]:
    rivals = [policy for policy in c.results if policy != "unified"]
    best = min(rivals, key=lambda policy: statistics.median(c.rounds[policy]))
    peak = {policy: c.results[policy].memory["reserved_peak"] for policy in c.results}
    leanest = min(rivals, key=lambda policy: peak[policy])
    bar = 1.05 * peak[leanest] + CPU_ALLOWANCE * len(os.sched_getaffinity(0))
    return [
        figure(
            f"{name} under all policies: unified / {best}, the fastest rival",
            ratios(c.rounds["unified"], c.rounds[best]),
            at_most=1.05,
        ),
        figure(
            f"{name} under all policies: peak of unified / bar of {leanest}, the leanest rival",
            [peak["unified"] / bar],
            at_most=1,
        ),
    ]


def figures(rounds: int = ROUNDS) -> list[Figure]:
    """Compare all policies on each shipped trace, rounds interleaved."""
    out: list[Figure] = []
    for name in us.datasets.names():
        hackbench = name == "hackbench"
        start = time.monotonic()
        c = us.compare(
            us.datasets.load(name),
            "all",
            baselines=[],
            rounds=HACKBENCH_ROUNDS if hackbench else rounds,
            min_time=0,
        )
        seconds = time.monotonic() - start
        out.extend(_figures(name, c))
        if hackbench:
            label = f"comparing all policies on hackbench, {HACKBENCH_ROUNDS} rounds each"
            out.append(figure(label, [seconds], "s", at_most=15))
    return out
