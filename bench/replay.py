"""Warm native replay of each shipped trace under `unified` against the best of the mallocs."""

from __future__ import annotations

import statistics

import unislab as us
from figure import Figure, figure, ratios

ROUNDS = 15


def figures(rounds: int = ROUNDS) -> list[Figure]:
    """Replay every shipped trace, all contestants in turns; harness and cold pass beside it."""
    out: list[Figure] = []
    for name in us.datasets.names():
        trace = us.datasets.load(name)
        c = us.compare(
            trace, ["unified"], baselines="all", touch="none", rounds=rounds, min_time="0.3 s"
        )
        best = min(c.baselines, key=lambda b: statistics.median(c.rounds[b]))
        mine = c.results["unified"]
        out.append(
            figure(
                f"replay of {name}: unified / {best}",
                ratios(c.rounds["unified"], c.rounds[best]),
                at_most=1.05,
            )
        )
        out.append(
            figure(f"replay of {name}: unified", [1e6 * t for t in c.rounds["unified"]], "us")
        )
        if mine.seconds is not None:
            cold, theirs = mine.seconds.cold, c.results[best].seconds
            out.append(figure(f"replay of {name}: unified, cold pass", [1e6 * cold], "us"))
            if theirs is not None:
                out.append(
                    figure(f"replay of {name}: {best}, cold pass", [1e6 * theirs.cold], "us")
                )
        if mine.harness is not None:
            out.append(figure(f"replay of {name}: harness alone", [1e6 * mine.harness], "us"))
    return out
