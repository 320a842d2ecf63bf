"""What each published table is modelled by: machine, workload, policies, virtual time, and checks.

Constants of T1's and T2's workloads come from the data file that tools/fit.py writes; X3 and X5
were taken on T2's machines and use T2's. Everything else is the workloads' own defaults.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from unislab.explanation import Explanation
from unislab.reproduction.data import fitted, published
from unislab.reproduction.judge import (
    JUDGED_SIGN,
    Check,
    Skill,
    percent_more,
    skill_checks,
)
from unislab.reproduction.points import ONE_PASS, Outcome, Point, Stretches

if TYPE_CHECKING:
    pass

__all__ = ["NOT_BUILT", "TABLES", "Judged", "Table", "measured_share", "network_point"]

Key = tuple[str, str]
Pairs = tuple[tuple[str, Any], ...]
Policy = tuple[str, Pairs]

SLUB: Policy = ("slub", (("epoch", "2.6.32"),))
#: What the published columns are modelled by.
POLICIES: dict[str, Policy] = {
    "SLAB": ("slab", ()),
    "SLUB": SLUB,
    "SLUB+patchset": ("slub-thrash", (("epoch", "2.6.32"), ("mode", "ratio"))),
    "Unified V4": ("unified-v4", ()),
    "SLUB+Q": ("sleb", ()),
    "SLUB+Q V2": ("sleb", ()),
}

#: Published, but there is nothing yet that it could be run with.
NOT_BUILT = {
    "T5": "accounting to groups is not built yet",
    "X4": "its tests (kernbench, fsmark, sysbench, streams) are not built yet",
}


@dataclasses.dataclass(frozen=True)
class Judged:
    """What became of a table.

    Attributes
    ----------
    rows : list of dict
        ``row``, ``figure``, ``published``, ``modelled``, ``error``, ``sign``, ``unit``.
    checks, notes : list
    curves : list of dict
        What a plot shows: ``column``, ``x``, ``published``, ``modelled``.
    misses : list of (row, base, column)
        Cells to be explained, the worst of each column.
    """

    rows: list[dict[str, Any]]
    checks: list[Check]
    notes: list[str] = dataclasses.field(default_factory=list)
    curves: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    misses: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)


class Table(Protocol):
    """A published table that can be modelled."""

    @property
    def axis(self) -> str:
        """Axis of plots."""
        ...

    def points(self, quick: bool, seed: int) -> dict[Key, Point]:
        """What is run, by row and column."""
        ...

    def judge(self, done: Mapping[Key, Outcome]) -> Judged:
        """Published beside modelled."""
        ...


def _row(
    row: str, figure: str, published: float, modelled: float, unit: str, sign: bool | None = None
) -> dict[str, Any]:
    return {
        "row": row,
        "figure": figure,
        "published": float(published),
        "modelled": float(modelled),
        "error": float(modelled - published),
        "sign": sign,
        "unit": unit,
    }


def _same_sign(published: float, modelled: float) -> bool | None:
    """None where the published difference is too small to be judged."""
    return None if abs(published) <= JUDGED_SIGN else published * modelled > 0


# ---- rates against streams or groups --------------------------------------------------------


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
                judged.rows.append(_row(self._label(row), what, was, got, "%", sign))
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
            line = _row(self._label(row), f"{self.base} rate", row[self.base], got, "1/s")
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


def network_point(
    streams: int,
    policy: Policy,
    times: Stretches,
    seed: int,
    constants: Mapping[str, Any],
    machine: str = "amd_16core_2010",
    cpus: int = 16,
) -> Point:
    """TCP_RR to another host, with the constants of a fit.

    ``serial_ns`` is the serial part outside this host: what each stream adds to the round trips of
    all, on the wire and at the other end, where the streams' requests arrive in bursts.
    """
    parameters = {
        "streams": int(streams),
        "cpus": cpus,
        "irq_cpus": tuple(range(constants["irq_cpus"])),
        "rx_ring": constants["rx_ring"],
        "round_trip": f"{constants['round_trip_ns'] + constants['serial_ns'] * int(streams)} ns",
        "stack_cycles": constants["stack_cycles"],
        "app_cycles": constants["app_cycles"],
        "transactions": None,
    }
    return Point(machine, "tcp_rr", tuple(parameters.items()), *policy, times, seed)


def _network(table: str) -> Callable[[Mapping[str, Any], Policy, Stretches, int], Point]:
    def point(row: Mapping[str, Any], policy: Policy, times: Stretches, seed: int) -> Point:
        return network_point(row["threads"], policy, times, seed, fitted(table))

    return point


def _localhost(row: Mapping[str, Any], policy: Policy, times: Stretches, seed: int) -> Point:
    parameters = {
        "streams": int(row["threads"]),
        "cpus": 64,
        "remote": False,
        "transactions": None,
    }
    return Point("dell_r910_2010", "tcp_rr", tuple(parameters.items()), *policy, times, seed)


def _hackbench(row: Mapping[str, Any], policy: Policy, times: Stretches, seed: int) -> Point:
    # As many messages a row, whole passes: sockets fill and empty in waves, so that no moment is
    # like the next.
    groups = int(row["groups"])
    loops = (2000 if times == _LONG else 200) // groups
    parameters = (("groups", groups), ("loops", loops))
    return Point("intel_8core_2008", "hackbench", parameters, *policy, ONE_PASS, seed)


# ---- S1 -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SlowShares:
    """S1: shares of slow calls in T1's SLUB column, all rows together."""

    name: str = "S1"
    axis: str = "virtual time, ms"

    def points(self, quick: bool, seed: int) -> dict[Key, Point]:
        """See :class:`Table`."""
        wanted = TABLES["T1"].points(quick, seed)
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
                judged.rows.append(_row(str(cache), f"{what} slow share", was, got, "%"))
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
    """Every row runs for equal time, as in the original."""
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


# ---- T3 -----------------------------------------------------------------------------------------


#: T3: profile and CPUs by row.
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
                judged.rows.append(_row(str(row), figure, was, got, "ratio"))
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
            judged.rows.append(_row("16 CPUs", figure, was, got, "%"))
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


# ---- T4 -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Prefetch:
    """T4: prefetch of the next free object, off and on, under TCP_RR and UDP_RR.

    The mail names no machine. Its cycles over its task-clock make 2.2 GHz, so the 16-CPU machine of
    that clock is taken. CPU 0 serves interrupts, the others run the clients. These stay where they
    are: which CPUs a balancer gives them changes more, from one run to the next, than a prefetch.
    """

    name: str = "T4"
    axis: str = "figure"

    def points(self, quick: bool, seed: int) -> dict[Key, Point]:
        """See :class:`Table`."""
        times = Stretches.of("100 ms", "400 ms") if not quick else Stretches.of("20 ms", "40 ms")
        parameters = (
            ("streams", 32),
            ("cpus", 16),
            ("irq_cpus", (0,)),
            ("app_cpus", tuple(range(1, 16))),
            ("pinned", True),
            ("transactions", None),
        )
        return {
            (kind, f"prefetch {on}"): Point(
                "amd_16core_2010",
                kind,
                parameters,
                "slub-partial",
                (("epoch", "3.2"), ("prefetch", on)),
                times,
                seed,
            )
            for kind in ("tcp_rr", "udp_rr")
            for on in (0, 1)
        }

    def judge(self, done: Mapping[Key, Outcome]) -> Judged:
        """See :class:`Table`."""
        table = published("T4").set_index("figure")
        changes = {
            kind: (
                percent_more(*(_busy(done[kind, f"prefetch {on}"]) for on in (1, 0))),
                percent_more(*(done[kind, f"prefetch {on}"].rate for on in (0, 1))),
            )
            for kind in ("tcp_rr", "udp_rr")
        }
        cycles, elapsed = changes["tcp_rr"]
        was_cycles, was_elapsed = (
            percent_more(table["after"][name], table["before"][name])
            for name in ("cycles G", "elapsed s")
        )
        spent = _busy(done["tcp_rr", "prefetch 0"]) * 2.2e9
        udp = changes["udp_rr"][0]
        rows = [
            _row("TCP_RR", "cycles", was_cycles, cycles, "%", cycles < 0),
            _row("TCP_RR", "elapsed", was_elapsed, elapsed, "%", elapsed < 0),
            _row("TCP_RR", "cycles a transaction", 83.564e9 / 3.2e6, spent, "cycles"),
        ]
        checks = [
            Check(
                "TCP_RR: change of cycles",
                f"{cycles:+.2f} %",
                "-2.1 within 1 point",
                abs(cycles + 2.1) <= 1,
                cycles < 0,
            ),
            Check(
                "TCP_RR: change of elapsed time",
                f"{elapsed:+.2f} %",
                "-6 to -1",
                -6 <= elapsed <= -1,
                elapsed < 0,
            ),
            Check(
                "UDP_RR gains more cycles than TCP_RR",
                f"{udp:+.2f} % against {cycles:+.2f} %",
                "yes",
                udp < cycles,
                udp < cycles,
            ),
        ]
        curves = [
            {
                "column": row["figure"],
                "x": i,
                "published": row["published"],
                "modelled": row["modelled"],
            }
            for i, row in enumerate(rows[:2])
        ]
        miss = ("tcp_rr", "prefetch 0", "prefetch 1")
        return Judged(rows, checks, curves=curves, misses=[miss])


def _busy(outcome: Outcome) -> float:
    """Seconds of CPU time a MARK."""
    result = outcome.result
    assert isinstance(result.explanation, Explanation) and result.marks
    return sum(s for phase, s in result.explanation.time.items() if phase != "idle") / result.marks


# ---- all of them --------------------------------------------------------------------------------

_LONG, _SHORT = Stretches.of("100 ms", "100 ms"), Stretches.of("20 ms", "20 ms")
_QUICK_ROWS = (0, 1, 3, 9)

TABLES: dict[str, Table] = {
    "T1": Differences(
        "T1",
        "threads",
        "SLAB",
        ("SLUB", "SLUB+patchset"),
        _network("T1"),
        _LONG,
        _SHORT,
        _QUICK_ROWS,
        bounds={"SLUB": 5.0, "SLUB+patchset": 2.5},
    ),
    "S1": SlowShares(),
    "T2": Differences(
        "T2",
        "threads",
        "SLAB",
        ("Unified V4",),
        _network("T2"),
        _LONG,
        _SHORT,
        _QUICK_ROWS,
        bounds={"Unified V4": 4.0},
    ),
    "T3": MinObjects(),
    "T4": Prefetch(),
    "X1": Differences(
        "X1",
        "threads",
        "SLAB",
        ("Unified V4", "SLUB"),
        _localhost,
        Stretches.of("10 ms", "10 ms"),
        Stretches.of("2 ms", "2 ms"),
        (0, 11),
    ),
    "X2": Differences(
        "X2",
        "groups",
        "SLAB",
        ("SLUB", "SLUB+Q"),
        _hackbench,
        _LONG,
        _SHORT,
        (2, 3),
        seconds=True,
        notes=(
            "2000 loops divided by the groups, so that every row passes 800 000 messages; rows "
            "that differ in loops alone are the same run",
        ),
    ),
    "X3": Differences(
        "X3",
        "threads",
        "SLAB",
        ("SLUB+Q V2",),
        _network("T2"),
        _LONG,
        _SHORT,
        (0, 2),
        notes=("with the constants fitted to T2, which was taken on these machines",),
    ),
    "X5": Differences(
        "X5",
        "threads",
        "SLUB",
        ("SLAB",),
        _network("T2"),
        _LONG,
        _SHORT,
        (0, 2),
        direct={"SLAB": "SLAB vs SLUB %"},
        notes=("with the constants fitted to T2, on machines of the same class; SLUB of 2.6.32",),
    ),
}
