"""Figures of the benchmark: a ratio, its interval over interleaved rounds, and its bound."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes
    ----------
    name : str
        What was measured.
    value : float
        The median over rounds.
    unit : str
        Unit of `value`; ``"x"`` for a ratio.
    bound : str or None
        The bound as text, None for a figure that only informs.
    ok : bool or None
        Whether the bound is met.
    interval : tuple of float
        95 % interval of the median over rounds.
    """

    name: str
    value: float
    unit: str
    bound: str | None
    ok: bool | None
    interval: tuple[float, float]

    def row(self) -> dict[str, object]:
        """The figure as it stands in ``build/bench.json``."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "bound": self.bound,
            "ok": self.ok,
            "interval": [round(x, 4) for x in self.interval],
        }


def median_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = random.Random(seed)
    n = len(values)
    medians = sorted(statistics.median(rng.choices(values, k=n)) for _ in range(1000))
    return medians[24], medians[974]


def figure(
    name: str,
    values: Sequence[float],
    unit: str = "x",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Figure:
    """Make a figure from one value a round.

    Parameters
    ----------
    name : str
        What was measured.
    values : sequence of float
        One value a round.
    unit : str
        Unit of the values.
    at_most, at_least : float, optional
        The bound; the median must keep it.
    """
    value = statistics.median(values)
    bound = ok = None
    if at_most is not None:
        bound, ok = f"<= {at_most:g}", value <= at_most
    elif at_least is not None:
        bound, ok = f">= {at_least:g}", value >= at_least
    return Figure(name, value, unit, bound, ok, median_interval(values))


def interleave(
    contestants: dict[str, Callable[[], float]], rounds: int, seed: int = 0
) -> dict[str, list[float]]:
    """Run every contestant once a round, in an order shuffled anew each round."""
    rng = random.Random(seed)
    results: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for name in names:
        contestants[name]()  # warm-up, not counted
    for _ in range(rounds):
        rng.shuffle(names)
        for name in names:
            results[name].append(contestants[name]())
    return results


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Round by round a / b."""
    return [x / y for x, y in zip(a, b, strict=True)]
