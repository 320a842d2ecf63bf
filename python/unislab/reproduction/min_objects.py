"""T3: hackbench against the least number of objects of a slab."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping

from unislab.reproduction.data import published
from unislab.reproduction.judge import Check
from unislab.reproduction.points import ONE_PASS, Outcome, Point
from unislab.reproduction.table import Judged, Key, row_of

__all__ = ["MACHINES", "MinObjects"]

#: Profile and CPUs by row.
MACHINES = {
    "8 CPUs": ("intel_8core_2008", 8),
    "4 CPUs": ("intel_8core_2008", 4),
    "2 CPUs": ("intel_8core_2008", 2),
    "8 logical on 4": ("intel_ht_2004", 8),
    "16 CPUs": ("intel_16core_2008", 16),
}


@dataclasses.dataclass(frozen=True)
class MinObjects:
    """T3: hackbench against the least number of objects of a slab."""

    name: str = "T3"
    axis: str = "min_objects"
    orders: tuple[int, ...] = (1, 3)

    def points(self, quick: bool, seed: int) -> dict[Key, Point]:
        """See :class:`Table`."""
        parameters = (("groups", 100), ("loops", 2 if quick else 20))
        made = {}
        for row, least in self._cells():
            machine, cpus = MACHINES[row]
            if quick and row in ("4 CPUs", "2 CPUs"):
                continue
            for order in self.orders:
                tunables = (("epoch", "2.6.25"), ("min_objects", least), ("max_order", order))
                made[row, f"{least}, max_order {order}"] = Point(
                    machine, "hackbench", parameters, "slub", tunables, ONE_PASS, seed, cpus
                )
        return made

    def _cells(self) -> list[tuple[str, int]]:
        frame = published("T3")
        cells = [
            (row["machine"], int(least))
            for row in frame.to_dict("records")
            for least in frame.columns[1:]
            if row[least] == row[least]
        ]
        shares = published("T3.shares")
        return cells + [("16 CPUs", int(least)) for least in shares["min_objects"]]

    def judge(self, done: Mapping[Key, Outcome]) -> Judged:
        """See :class:`Table`."""
        parts = {order: self._judge(done, order) for order in self.orders}
        errors = {
            order: statistics.fmean(
                abs(row["error"]) for row in part.rows if row["figure"].startswith("time")
            )
            for order, part in parts.items()
        }
        best = min(errors, key=lambda order: errors[order])
        judged = parts[best]
        for order, part in parts.items():
            if order != best:
                judged.rows.extend(part.rows)
        told = ", ".join(f"{error:.2f} with max_order {o}" for o, error in errors.items())
        judged.notes.append(
            f"mean absolute error of the ratios: {told}; max_order {best} fits better and is judged"
        )
        return judged

    def _judge(self, done: Mapping[Key, Outcome], order: int) -> Judged:
        judged = Judged([], [])
        frame = published("T3").set_index("machine")
        for row, cells in frame.iterrows():
            for least in frame.columns[1:]:
                key = (str(row), f"{least}, max_order {order}")
                if key not in done or least == "8":
                    continue
                was = cells[least] / cells["8"]
                base = done[str(row), f"8, max_order {order}"]
                got = base.rate / done[key].rate
                figure = f"time at {least} to that at 8, max_order {order}"
                judged.rows.append(row_of(str(row), figure, was, got, "ratio"))
                judged.checks.append(
                    Check(
                        f"{row}: {figure}",
                        f"{got:.2f}",
                        f"{was:.2f} within 20 %",
                        abs(got / was - 1) <= 0.2,
                        got < 1,
                    )
                )
                judged.curves.append(
                    {"column": str(row), "x": int(least), "published": was, "modelled": got}
                )
        self._judge_shares(done, order, judged)
        return judged

    def _judge_shares(self, done: Mapping[Key, Outcome], order: int, judged: Judged) -> None:
        shares = []
        for cells in published("T3.shares").to_dict("records"):
            was, least = cells["share"], cells["min_objects"]
            explained = done["16 CPUs", f"{least}, max_order {order}"].result.explanation
            assert explained is not None
            got = explained.allocator_share * 100
            shares.append(got)
            figure = f"share of CPU time at {least}, max_order {order}"
            judged.rows.append(row_of("16 CPUs", figure, was, got, "%"))
            judged.checks.append(
                Check(
                    f"16 CPUs: {figure}",
                    f"{got:.0f} %",
                    f"{was} within 15 points",
                    abs(got - was) <= 15,
                    True,
                )
            )
        falling = all(a >= b for a, b in itertools.pairwise(shares))
        text = " / ".join(f"{share:.0f}" for share in shares)
        judged.checks.append(
            Check("shares in order, falling", text, "88 / 44 / 13 / 12", falling, falling)
        )
