"""How a reproduction is judged.

What counts is the sign of each published difference and its size in percentage points. A prediction
has *skill* when its mean absolute error is below that of the best constant, fitted afterwards, and
its rank correlation with the published differences is positive. The verdict of a table is

- ``reproduced``: every check holds, skill included;
- ``sign only``: every direction is right, but some size is not;
- ``not reproduced``: some direction is wrong.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

__all__ = [
    "JUDGED_SIGN",
    "Check",
    "Skill",
    "percent_more",
    "rank_correlation",
    "skill_checks",
    "verdict_of",
]

#: A sign is judged where the published difference exceeds this, in percent.
JUDGED_SIGN = 3.0


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that is asked of a table.

    Attributes
    ----------
    what, found, expected : str
    ok : bool
    direction : bool
        Whether what is not right in size is right in sign, or in order.
    """

    what: str
    found: str
    expected: str
    ok: bool
    direction: bool

    def __str__(self) -> str:
        return (
            f"{'ok' if self.ok else 'MISS':4} {self.what}: {self.found}, expected {self.expected}"
        )


def verdict_of(checks: Sequence[Check]) -> str:
    """The verdict on a table.

    Examples
    --------
    >>> from unislab.reproduction.judge import Check, verdict_of
    >>> verdict_of([Check("error", "6", "at most 5", ok=False, direction=True)])
    'sign only'
    """
    if all(check.ok for check in checks):
        return "reproduced"
    return "sign only" if all(check.direction for check in checks) else "not reproduced"


def percent_more(value: float, base: float) -> float:
    """How much more a value is than another, in percent.

    Examples
    --------
    >>> from unislab.reproduction.judge import percent_more
    >>> percent_more(90, 100)
    -10.0
    """
    return (value - base) / base * 100


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in ordered}
    return [first[value] + (ordered.count(value) + 1) / 2 for value in values]


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's; equal values share their mean rank, and a constant correlates with nothing.

    Examples
    --------
    >>> from unislab.reproduction.judge import rank_correlation
    >>> rank_correlation([1, 2, 3], [10, 30, 20])
    0.5
    """
    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return statistics.correlation(_ranks(a), _ranks(b))


@dataclasses.dataclass(frozen=True)
class Skill:
    """How well differences were predicted.

    Attributes
    ----------
    error : float
        Mean absolute error, percentage points.
    constant, constant_error : float
        The best constant (the median of what was published), and its mean absolute error.
    rank : float
        Rank correlation.
    wrong : tuple of int
        Rows whose sign is judged and wrong.
    judged : int
        Rows whose sign is judged.

    Examples
    --------
    >>> from unislab.reproduction.judge import Skill
    >>> skill = Skill.of([-10, -6, -2], [-9, -6, 1])
    >>> round(skill.error, 2), skill.constant, round(skill.constant_error, 2), skill.wrong
    (1.33, -6, 2.67, ())
    >>> skill.proven
    True
    """

    error: float
    constant: float
    constant_error: float
    rank: float
    wrong: tuple[int, ...]
    judged: int

    @classmethod
    def of(cls, published: Sequence[float], modelled: Sequence[float]) -> Skill:
        """From differences in percent, row by row."""
        constant = statistics.median(published)
        pairs = list(zip(published, modelled, strict=True))
        judged = [i for i, (p, _) in enumerate(pairs) if abs(p) > JUDGED_SIGN]
        return cls(
            error=statistics.fmean(abs(m - p) for p, m in pairs),
            constant=constant,
            constant_error=statistics.fmean(abs(constant - p) for p in published),
            rank=rank_correlation(published, modelled),
            wrong=tuple(i for i in judged if pairs[i][0] * pairs[i][1] <= 0),
            judged=len(judged),
        )

    @property
    def proven(self) -> bool:
        """Better than the best constant, and in the right order."""
        return self.error < self.constant_error and self.rank > 0


def skill_checks(column: str, rows: Iterable[str], skill: Skill, bound: float) -> list[Check]:
    """The checks on a column of differences."""
    names = list(rows)
    wrong = ", ".join(names[i] for i in skill.wrong)
    right = not skill.wrong
    return [
        Check(
            f"{column}: signs where more than {JUDGED_SIGN:g} % is published",
            f"{skill.judged - len(skill.wrong)} of {skill.judged} right"
            + (f", wrong at {wrong}" if wrong else ""),
            "all",
            right,
            right,
        ),
        Check(
            f"{column}: mean absolute error",
            f"{skill.error:.1f} points",
            f"at most {bound:g}",
            skill.error <= bound,
            True,
        ),
        Check(
            f"{column}: skill",
            f"error {skill.error:.1f}, rank correlation {skill.rank:+.2f}",
            f"error below {skill.constant_error:.1f} (the best constant, {skill.constant:+.1f} %), "
            "rank correlation above 0",
            skill.proven,
            True,
        ),
    ]
