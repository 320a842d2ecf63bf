"""S1: how often SLUB's calls are slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from unislab.reproduction.data import published
from unislab.reproduction.judge import Check
from unislab.reproduction.points import Outcome, Point
from unislab.reproduction.table import Judged, Key, Table, row_of

__all__ = ["SlowShares", "measured_share"]


@dataclasses.dataclass(frozen=True)
class SlowShares:
    """S1: shares of slow calls in T1's SLUB column, all rows together."""

    #: The table whose runs they are.
    rates: Table
    name: str = "S1"
    axis: str = "virtual time, ms"

    def points(self, quick: bool, seed: int) -> dict[Key, Point]:
        """See :class:`Table`."""
        wanted = self.rates.points(quick, seed)
        return {key: point for key, point in wanted.items() if key[1] == "SLUB"}

    def judge(self, done: Mapping[Key, Outcome]) -> Judged:
        """See :class:`Table`."""
        table = published(self.name).set_index("cache")
        outcomes = list(done.values())
        judged = Judged([], [])
        shares = {}
        for cache, row in table.iterrows():
            for what, bound in (("ALLOC", 4.0), ("FREE", 0.5)):
                was = _share(row[f"{what}_SLOWPATH"], row[f"{what}_FASTPATH"])
                series = _shares_over_time(outcomes, str(cache), what.lower())
                got = measured_share(outcomes, str(cache), what.lower())
                shares[cache, what] = got
                judged.rows.append(row_of(str(cache), f"{what} slow share", was, got, "%"))
                judged.checks.append(
                    Check(
                        f"{cache}: slow share of {what.lower()}s",
                        f"{got:.1f} %",
                        f"{was:.1f} within {bound:g} points",
                        abs(got - was) <= bound,
                        True,
                    )
                )
                judged.curves.extend(
                    {"column": f"{cache} {what}", "x": at, "published": was, "modelled": share}
                    for at, share in series
                )
        order = shares["kmalloc-2048", "ALLOC"] > shares["kmalloc-256", "ALLOC"]
        judged.checks.append(
            Check(
                "the larger cache, of fewer objects a slab, has the larger share of slow "
                "allocations, and frees are slow more often than both",
                "yes" if order else "no",
                "yes",
                order,
                order and shares["kmalloc-256", "FREE"] > shares["kmalloc-2048", "ALLOC"],
            )
        )
        judged.notes.append(
            "rx_ring was fitted to the share of kmalloc-2048 allocations; the other three are "
            "predictions"
        )
        judged.notes.append(_over_time(judged.curves, outcomes))
        return judged


def _share(slow: float, fast: float) -> float:
    return slow / (slow + fast) * 100 if slow + fast else 0.0


def _calls_a_second(outcome: Outcome, stretches: slice, cache: str, what: str) -> tuple[int, int]:
    calls = [stretch[cache] for stretch in outcome.calls[stretches]]
    return (
        sum(c.get(f"{what}_slowpath", 0) for c in calls),
        sum(c.get(f"{what}_fastpath", 0) for c in calls),
    )


def measured_share(outcomes: Sequence[Outcome], cache: str, what: str) -> float:
    """Percent of the calls in the measured parts that were slow.

    Every row runs for equal time, as in the original.
    """
    parts = [
        _calls_a_second(o, slice(len(o.calls) - len(o.rates), None), cache, what) for o in outcomes
    ]
    return _share(sum(slow for slow, _ in parts), sum(fast for _, fast in parts))


def _shares_over_time(
    outcomes: Sequence[Outcome], cache: str, what: str
) -> list[tuple[float, float]]:
    found = []
    for i in range(len(outcomes[0].calls)):
        parts = [_calls_a_second(o, slice(i, i + 1), cache, what) for o in outcomes]
        share = _share(sum(slow for slow, _ in parts), sum(fast for _, fast in parts))
        found.append(((i + 1) * _each_ms(outcomes[0]), share))
    return found


def _each_ms(outcome: Outcome) -> float:
    return (outcome.result.elapsed or 0.0) * 1000 / len(outcome.rates)


def _over_time(curves: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome]) -> str:
    warm = len(outcomes[0].calls) - len(outcomes[0].rates)
    told = [
        f"{column}: " + " ".join(f"{c['modelled']:.1f}" for c in curves if c["column"] == column)
        for column in dict.fromkeys(c["column"] for c in curves if "ALLOC" in c["column"])
    ]
    return (
        f"slow shares against virtual time, every {_each_ms(outcomes[0]):.3g} ms, the first {warm} "
        f"are warm-up; {'; '.join(told)}"
    )
