"""Tables of rates or times, judged by how far policies are from one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unislab.reproduction.data import published
from unislab.reproduction.judge import JUDGED_SIGN, Skill, percent_more, skill_checks
from unislab.reproduction.points import Outcome, Point, Stretches
from unislab.reproduction.policies import POLICIES, Policy
from unislab.reproduction.table import Judged, Key, row_of

__all__ = ["Differences"]


def _same_sign(published: float, modelled: float) -> bool | None:
    """None where the published difference is too small to be judged."""
    return None if abs(published) <= JUDGED_SIGN else published * modelled > 0


@dataclasses.dataclass(frozen=True)
class Differences:
    """Rates or times of several policies, judged by their differences to one of them.

    Attributes
    ----------
    name : str
    key : str
        What heads the rows.
    base, columns : str
        Differences are those of the columns to the base.
    point : callable
        Makes the point of a row (a mapping of the published row), a policy and times.
    times, quick_times : Stretches
    bounds : mapping
        Largest mean absolute error by column; none: shown only.
    quick_rows : tuple
        Positions of the rows that a quick run makes.
    seconds : bool
        What is published are seconds, and less is better.
    direct : mapping
        Columns that publish differences, not rates.
    """

    name: str
    key: str
    base: str
    columns: tuple[str, ...]
    point: Callable[[Mapping[str, Any], Policy, Stretches, int], Point]
    times: Stretches
    quick_times: Stretches
    quick_rows: tuple[int, ...]
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: bool = False
    direct: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def axis(self) -> str:
        """Axis of plots."""
        return self.key

    def _published(self) -> list[dict[str, Any]]:
        frame = published(self.name)
        return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]

    def _label(self, row: Mapping[str, Any]) -> str:
        if "loops" in row:
            return f"{row[self.key]} {self.key}, {row['loops']} loops"
        return f"{row[self.key]} {self.key}"

    def points(self, quick: bool, seed: int) -> dict[Key, Point]:
        """See :class:`Table`."""
        rows = self._published()
        if quick:
            rows = [rows[i] for i in self.quick_rows]
        times = self.quick_times if quick else self.times
        return {
            (self._label(row), column): self.point(row, POLICIES[column], times, seed)
            for row in rows
            for column in (self.base, *self.columns)
        }

    def judge(self, done: Mapping[Key, Outcome]) -> Judged:
        """See :class:`Table`."""
        judged = Judged([], [], list(self.notes))
        rows = [row for row in self._published() if (self._label(row), self.base) in done]
        self._show_base(rows, done, judged)
        for column in self.columns:
            pairs = [self._differences(row, column, done) for row in rows]
            what = f"{column} vs {self.base}"
            for row, (was, got) in zip(rows, pairs, strict=True):
                sign = _same_sign(was, got)
                judged.rows.append(row_of(self._label(row), what, was, got, "%", sign))
                judged.curves.append(
                    {"column": what, "x": row[self.key], "published": was, "modelled": got}
                )
            skill = Skill.of([was for was, _ in pairs], [got for _, got in pairs])
            labels = [self._label(row) for row in rows]
            if column in self.bounds:
                judged.checks.extend(skill_checks(column, labels, skill, self.bounds[column]))
            else:
                right = skill.judged - len(skill.wrong)
                judged.notes.append(
                    f"{what}: mean absolute error {skill.error:.1f} points (the best constant, "
                    f"{skill.constant:+.1f} %, has {skill.constant_error:.1f}), rank correlation "
                    f"{skill.rank:+.2f}, {right} of {skill.judged} signs right"
                )
            worst = max(range(len(rows)), key=lambda i: abs(pairs[i][1] - pairs[i][0]))
            judged.misses.append((labels[worst], self.base, column))
        return judged

    def _show_base(
        self, rows: Sequence[Mapping[str, Any]], done: Mapping[Key, Outcome], judged: Judged
    ) -> None:
        """What the fit had to follow: the base's own rates."""
        if self.base not in rows[0] or self.seconds:
            return
        for row in rows:
            got = done[self._label(row), self.base].rate
            line = row_of(self._label(row), f"{self.base} rate", row[self.base], got, "1/s")
            judged.rows.append(line)

    def _differences(
        self, row: Mapping[str, Any], column: str, done: Mapping[Key, Outcome]
    ) -> tuple[float, float]:
        label = self._label(row)
        rate, base = done[label, column].rate, done[label, self.base].rate
        got = percent_more(base, rate) if self.seconds else percent_more(rate, base)
        if column in self.direct:
            return float(row[self.direct[column]]), got
        return percent_more(row[column], row[self.base]), got
