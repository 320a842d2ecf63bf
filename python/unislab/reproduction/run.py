"""Runs published tables and says what became of them."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from unislab.arguments import whole
from unislab.explanation import Explanation
from unislab.reproduction.data import published, table_name
from unislab.reproduction.judge import Check, verdict_of
from unislab.reproduction.points import Outcome, Point, run_point
from unislab.reproduction.table import Judged, Key
from unislab.reproduction.tables import NOT_BUILT, TABLES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from unislab.result import Result

__all__ = ["Reproduction", "processes", "reproduce", "run_tables"]

#: A rate that changes by more than this between the halves of what is measured is told.
STEADY = 0.02


@dataclasses.dataclass(frozen=True, repr=False)
class Reproduction:
    """One published table beside its model.

    Attributes
    ----------
    table, title : str
    rows : DataFrame
        ``row``, ``figure``, ``published``, ``modelled``, ``error`` (modelled less published, in
        ``unit``; percentage points where that is ``%``) and ``sign`` (right or wrong; None where it
        is not judged).
    verdict : str
        ``"reproduced"``, ``"sign only"`` or ``"not reproduced"``; ``"shown"`` without a bound,
        ``"not built"``.
    ok : bool or None
        Whether it is reproduced; None without a bound.
    checks : tuple of Check
        What was asked, and found.
    notes : tuple of str
        What else there is to know, reasons of misses among it.
    results : mapping
        A :class:`~unislab.Result` by (row, column), for ``why``.
    curves : DataFrame
        What :meth:`plot` draws.

    Examples
    --------
    >>> import unislab as us
    >>> us.reproduce("T5").verdict
    'not built'
    """

    table: str
    title: str
    rows: pd.DataFrame
    verdict: str
    ok: bool | None
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    results: Mapping[Key, Result] = dataclasses.field(default_factory=dict)
    curves: pd.DataFrame | None = None
    axis: str = ""

    @property
    def explanations(self) -> dict[Key, Explanation]:
        """Where the time went, by (row, column).

        Examples
        --------
        >>> import unislab as us
        >>> us.reproduce("T5").explanations
        {}
        """
        told = {key: result.explanation for key, result in self.results.items()}
        return {key: explanation for key, explanation in told.items() if explanation}

    @property
    def text(self) -> str:
        """What the command prints.

        Examples
        --------
        >>> import unislab as us
        >>> print(us.reproduce("T5").text)
        T5. Cost of accounting kernel memory to a group
        not built: accounting to groups is not built yet
        """
        lines = [f"{self.table}. {self.title}"]
        if self.verdict == "not built":
            return "\n".join([*lines, f"not built: {self.notes[0]}"])
        lines += ["", *_lines_of(self.rows), ""]
        lines += [f"  {check}" for check in self.checks]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join([*lines, f"  {self.table}: {self.verdict}"])

    def to_json(self) -> dict[str, Any]:
        """What ``unislab reproduce --json`` prints of it.

        Examples
        --------
        >>> import unislab as us
        >>> us.reproduce("X4").to_json()
        {'table': 'X4', 'rows': [], 'verdict': 'not built', 'ok': None}
        """
        rows = [
            {str(k): None if v is None or v != v else v for k, v in row.items()}
            for row in self.rows.to_dict("records")
        ]
        return {"table": self.table, "rows": rows, "verdict": self.verdict, "ok": self.ok}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Published beside modelled.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; by default a new figure.

        Examples
        --------
        >>> import unislab as us
        >>> us.reproduce("T5").plot().get_title()
        'T5: not built'
        """
        from unislab.reproduction.plot import draw

        return draw(self, ax)

    def __repr__(self) -> str:
        return f"<Reproduction {self.table}: {self.verdict}>"

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{self.table}. {html.escape(self.title)}</b>: {self.verdict}</p>"]
        if len(self.rows):
            parts.append(self.rows.to_html(index=False, float_format=lambda x: f"{x:.4g}"))
        told = [*map(str, self.checks), *self.notes]
        items = "".join(f"<li>{html.escape(one)}</li>" for one in told)
        return "".join(parts) + (f"<ul>{items}</ul>" if items else "")


def _number(value: float, unit: str) -> str:
    if value != value:
        return ""
    if unit == "1/s":
        return f"{value:,.0f}"
    if unit == "%":
        return f"{value:+.2f}"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def _lines_of(rows: pd.DataFrame) -> list[str]:
    """The rows as aligned text."""
    heads = ("row", "figure", "published", "modelled", "error", "sign")
    cells = [heads]
    for row in rows.to_dict("records"):
        unit = row["unit"]
        sign = "" if row["sign"] is None else "right" if row["sign"] else "WRONG"
        values = [_number(row[c], unit) for c in ("published", "modelled", "error")]
        cells.append((row["row"], f"{row['figure']}, {unit}", *values, sign))
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def reproduce(
    table: str = "all",
    *,
    quick: bool = False,
    seed: int = 0,
    executor: Executor | None = None,
    progress: bool = False,
) -> Reproduction | list[Reproduction]:
    """Run a published table on modelled machines and set the two side by side.

    Each cell runs for a stated virtual time after a warm-up, not for the published length.

    Parameters
    ----------
    table : str
        ``"T1"`` to ``"T5"``, ``"S1"``, ``"X1"`` to ``"X5"``, or ``"all"``.
    quick : bool
        Fewer rows and shorter times: for a look, not for a verdict.
    seed : int
        Of the allocators' random choices.
    executor : concurrent.futures.Executor, optional
        Cells are run there; by default one after the other here.
    progress : bool
        Show a bar.

    Returns
    -------
    Reproduction or list of Reproduction
        A list for ``"all"``.

    Raises
    ------
    UnknownNameError
        There is no such table.

    Examples
    --------
    >>> import unislab as us
    >>> us.reproduce("X4")
    <Reproduction X4: not built>
    """
    seed = whole("seed", seed, 0, 2**64 - 1, "0 to 2**64 - 1")
    everything = isinstance(table, str) and table.strip().lower() == "all"
    names = [*TABLES, *NOT_BUILT] if everything else [table_name(table)]
    done = run_tables(sorted(names), quick=quick, seed=seed, executor=executor, progress=progress)
    return done if everything else done[0]


def run_tables(
    names: Iterable[str],
    *,
    quick: bool = False,
    seed: int = 0,
    executor: Executor | None = None,
    progress: bool = False,
) -> list[Reproduction]:
    """Several tables at once: what two have in common is run once."""
    names = list(dict.fromkeys(map(table_name, names)))
    wanted = {name: TABLES[name].points(quick, seed) for name in names if name in TABLES}
    points = dict.fromkeys(point for cells in wanted.values() for point in cells.values())
    outcomes = _run(list(points), executor, progress)
    return [
        _judged(name, wanted[name], outcomes, quick) if name in wanted else _not_built(name)
        for name in names
    ]


def _run(
    points: Sequence[Point], executor: Executor | None, progress: bool
) -> dict[Point, Outcome]:
    # Its form for notebooks warns where widgets are missing: only where a bar is wanted.
    tqdm = importlib.import_module("tqdm.auto" if progress else "tqdm").tqdm
    outcomes = {}
    with tqdm(total=len(points), disable=not progress, unit="run", leave=False) as bar:
        if executor is None:
            for point in points:
                outcomes[point] = run_point(point)
                bar.update()
            return outcomes
        # The longest first, so that none is left over at the end.
        ordered = sorted(points, key=_size, reverse=True)
        futures = {executor.submit(run_point, point): point for point in ordered}
        with _cancelled(futures):
            for future in as_completed(futures):
                outcomes[futures[future]] = future.result()
                bar.update()
    return outcomes


@contextlib.contextmanager
def processes(jobs: int | None = None) -> Iterator[Executor | None]:
    """So many processes to run cells in, by default one for each CPU; None for a single one."""
    import multiprocessing

    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as executor:
        yield executor


@contextlib.contextmanager
def _cancelled(futures: Iterable[Future[Outcome]]) -> Iterator[None]:
    """What has not begun is not waited for when something fails."""
    try:
        yield
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _size(point: Point) -> tuple[bool, int]:
    return point.workload == "hackbench", point.stretches.each_ns


def _not_built(name: str) -> Reproduction:
    import pandas as pd

    heads = ["row", "figure", "published", "modelled", "error", "sign", "unit"]
    frame = pd.DataFrame([], columns=heads)
    title = published(name).attrs["title"]
    return Reproduction(name, title, frame, "not built", None, notes=(NOT_BUILT[name],))


def _judged(
    name: str, cells: Mapping[Key, Point], outcomes: Mapping[Point, Outcome], quick: bool
) -> Reproduction:
    import pandas as pd

    table = TABLES[name]
    done = {key: outcomes[point] for key, point in cells.items()}
    judged = table.judge(done)
    results = {
        key: dataclasses.replace(outcome.result, label=key[1]) for key, outcome in done.items()
    }
    verdict = verdict_of(judged.checks) if judged.checks else "shown"
    notes = [*judged.notes, *_reasons(judged, results), _time_note(cells, quick), *_unsteady(done)]
    return Reproduction(
        table=name,
        title=published(name).attrs["title"],
        rows=pd.DataFrame(judged.rows),
        verdict=verdict,
        ok=verdict == "reproduced" if judged.checks else None,
        checks=tuple(judged.checks),
        notes=tuple(notes),
        results=results,
        curves=pd.DataFrame(judged.curves),
        axis=table.axis,
    )


def _reasons(judged: Judged, results: Mapping[Key, Result]) -> list[str]:
    """For the worst cell of each column: what the model spends its difference on."""
    told = []
    for row, base, column in judged.misses:
        frame = results[row, base].why(results[row, column])
        frame = frame[(frame["view"] == "time") & (frame["what"] != "idle")]
        causes = ", ".join(
            f"{cause['difference']:+.0f} ns {cause['what']}"
            for cause in frame.head(3).to_dict("records")
        )
        busy = frame["difference"].sum()
        told.append(
            f"{row}, the farthest off of {column}: the model spends {busy:+.0f} ns of CPU time a "
            f"transaction more than {base} ({causes})"
        )
    return told


def _time_note(cells: Mapping[Key, Point], quick: bool) -> str:
    times = dict.fromkeys(str(point.stretches) for point in cells.values())
    note = f"each cell: {'; '.join(times)}"
    return note + (" (quick: fewer rows, shorter times; no verdict to rely on)" if quick else "")


def _unsteady(done: Mapping[Key, Outcome]) -> list[str]:
    moving = {key: o.drift for key, o in done.items() if abs(o.drift) > STEADY}
    if not moving:
        return []
    (row, column), worst = max(moving.items(), key=lambda item: abs(item[1]))
    return [
        f"{len(moving)} of {len(done)} rates were not steady: they changed by more than "
        f"{STEADY:.0%} while measured, most by {worst:+.1%} ({row}, {column})"
    ]
