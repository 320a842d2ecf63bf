"""Results as tables on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from unislab._explain import percent
from unislab.comparison import Comparison
from unislab.machine import Machine
from unislab.result import Result, duration
from unislab.sizes import format_size

__all__ = [
    "console",
    "show_comparison",
    "show_counters",
    "show_description",
    "show_frame",
    "show_machine",
    "show_pairs",
    "show_result",
    "show_tunables",
]


#: Columns of the terminal that a column of text needs to be read with ease.
_TEXT_WIDTH = 36


def console(file: TextIO | None = None) -> Console:
    """Standard output; wide enough for our tables where it is no terminal."""
    file = file or sys.stdout
    made = Console(file=file, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made = Console(file=file, highlight=False, markup=False, emoji=False, width=200)
    return made


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _show(table: Table, out: Console, least: Sequence[str] = ()) -> None:
    """Print a table; what a terminal has no room for is left out whole, and named.

    ``least`` are heads that go first; then columns go from the right, but never the first two.
    """
    gone = []
    heads = [str(column.header) for column in table.columns]
    order = [*[head for head in least if head in heads], *heads[:1:-1]]
    roomy = out.options.update(width=1000)
    for head in dict.fromkeys(order):
        needed = Measurement.get(out, roomy, table).maximum
        if not out.is_terminal or needed <= out.width or len(table.columns) <= 2:
            break
        table.columns = [column for column in table.columns if column.header != head]
        gone.append(" ".join(head.split()))
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"  # what is left is broken, never cut
    out.print(table)
    if gone:
        out.print(f"No room for {', '.join(gone)}: --json has all, a wider terminal too.")


def _seconds(value: float | None) -> str:
    return "" if value is None else duration(value)


def _size(value: float | None) -> str:
    return "" if value is None else format_size(int(value))


def show_comparison(comparison: Comparison, out: Console) -> None:
    """Who wins and why in ten lines, then one row a policy."""
    for line in comparison.explanation:
        out.print(line, soft_wrap=not out.is_terminal)
    _show(_summary(comparison, out.width), out, _LEAST)
    for note in comparison.notes:
        out.print(f"note: {note}", soft_wrap=True)
    any_result = next(iter(comparison.results.values()))
    out.print(_where(any_result), soft_wrap=True)


#: Columns of the summary: head, and whether a narrow terminal shows it too.
_SUMMARY = {
    "policy": True,
    "a pass": True,
    "ratio, 95 % interval": True,
    "less harness": False,
    "cold pass": True,
    "fast allocs": True,
    "frees": True,
    "locks": True,
    "contended": False,
    "reserved peak": True,
    "metadata": False,
}
_WIDE = 130
#: What goes first where even those find no room.
_LEAST = ("cold pass", "frees", "locks", "fast allocs")


def _summary(comparison: Comparison, width: int) -> Table:
    rows = [
        [
            comparison.shown(str(name)),
            _seconds(row["warm_s"]),
            _ratio(row["ratio"], row["ratio_low"], row["ratio_high"]),
            _seconds(row["net_s"]),
            _seconds(row["cold_s"]),
            percent(row["alloc_fast_share"]),
            percent(row["free_fast_share"]),
            _cell(row["lock_acquired"]),
            _cell(row["lock_contended"]),
            _size(row["reserved_peak_bytes"]),
            _size(row["metadata_bytes"]),
        ]
        for name, row in comparison.summary.iterrows()
    ]
    shown = [i for i, narrow in enumerate(_SUMMARY.values()) if narrow or width >= _WIDE]
    return _table([list(_SUMMARY)[i] for i in shown], ([row[i] for i in shown] for row in rows))


def _ratio(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None or low is None or high is None:
        return ""
    return f"{ratio:.2f}" + ("" if low == high == 1 else f" ({low:.2f} to {high:.2f})")


def _where(result: Result) -> str:
    about = result.environment
    return (
        f"{about['cpu']}, {about['cpus']} CPUs, {about['kernel']}, unislab {about['unislab']} "
        f"({about['build_id']}), {about['mode']}"
    )


def show_result(result: Result, out: Console, *, caches: int = 8) -> None:
    """Times, counters, memory, and the caches with most calls."""
    out.print(repr(result)[8:-1], soft_wrap=not out.is_terminal)
    if result.explanation:
        rows = [[what, duration(s), f"{share:.1%}"] for what, s, share in result.explanation.parts]
        _show(_table(["time of all CPUs", "seconds", "share"], rows), out)
    rows = [[name, f"{value:,}"] for name, value in result.counters.items() if value]
    _show(_table(["counter, of one pass", "calls"], rows), out)
    rows = [[name, format_size(value)] for name, value in result.memory.items()]
    _show(_table(["memory", "bytes"], rows), out)
    _show(_busiest(result.caches, caches), out)
    for note in result.notes:
        out.print(f"note: {note}", soft_wrap=True)
    out.print(_where(result), soft_wrap=True)


def _busiest(caches: pd.DataFrame, n: int) -> Table:
    wide = caches.pivot_table(index="cache", columns="counter", values="value", aggfunc="sum")
    allocs = [
        c
        for c in wide.columns
        if c in ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote")
    ]
    frees = [
        c
        for c in wide.columns
        if c in ("free_fast", "free_second_level", "free_slow", "free_remote")
    ]
    wide["allocs"], wide["frees"] = wide[allocs].sum(axis=1), wide[frees].sum(axis=1)
    wide = wide[wide["allocs"] + wide["frees"] > 0]
    wide = wide.sort_values("allocs", ascending=False, kind="stable").head(n)
    rows = [
        [
            str(name),
            f"{row['allocs']:,.0f}",
            percent(row["alloc_fast"] / row["allocs"]) if row["allocs"] else "",
            f"{row['frees']:,.0f}",
            percent(row["free_fast"] / row["frees"]) if row["frees"] else "",
            f"{row['slab_new']:,.0f}",
        ]
        for name, row in wide.iterrows()
    ]
    return _table(["cache", "allocs", "fast", "frees", "fast", "new slabs"], rows)


def show_tunables(table: pd.DataFrame, out: Console) -> None:
    """The tunables of a policy; what they do is wrapped to the terminal."""
    heads = ["tunable", "default", "least", "most", "unit", "set", ""]
    rows = [
        [
            str(row["name"]),
            _cell(row["default"]),
            *(["", ""] if _in_words(row) else [_cell(row["min"]), _cell(row["max"])]),
            _cell(row["unit"]),
            "never" if row["readonly"] else "at creation" if row["creation"] else "any time",
            str(row["help"]) + _words(row),
        ]
        for row in table.to_dict("records")
    ]
    _show_wrapped(heads, rows, out, left=(0, 4, 5, 6))


def _in_words(row: Mapping[str, Any]) -> bool:
    """Whether each number that a tunable takes has a word, which then is what people write."""
    return bool(row["choices"]) and len(row["choices"]) == row["max"] - row["min"] + 1


def _words(row: Mapping[str, Any]) -> str:
    if not row["choices"]:
        return ""
    return f"; {'' if _in_words(row) else 'or '}one of {', '.join(row['choices'])}"


def show_counters(table: pd.DataFrame, out: Console) -> None:
    """The counters of a policy: the common ones and what they are sums of, then its own."""
    for common, heads in (
        (True, ["common counter", "is the sum of", "what it counts"]),
        (False, ["its own counter", "feeds", "what it counts"]),
    ):
        part = table[table["common"] == common]
        rows = [
            [name, feeds or (_unfed(name) if common else ""), text]
            for name, feeds, text in part[["name", "feeds", "help"]].to_numpy().tolist()
        ]
        _show_wrapped(heads, rows, out, left=(0, 1, 2))
        if common and any("(" in feeds for _, feeds, _ in rows):
            out.print("Those in brackets are counted inside and not shown by themselves.")


def _unfed(counter: str) -> str:
    """What is said of a common counter that none of the policy's own adds to."""
    return "nothing: stays 0" if counter.startswith(("alloc_", "free_")) else "counted by itself"


def _show_wrapped(
    heads: Sequence[str], rows: Iterable[Sequence[str]], out: Console, *, left: Sequence[int]
) -> None:
    """A table whose last column is text: wrapped, and where it finds no room a paragraph a row."""
    rows = list(rows)
    beside = _table(heads[:-1], [row[:-1] for row in rows])
    taken = Measurement.get(out, out.options.update(width=1000), beside).maximum
    if out.is_terminal and out.width - taken < _TEXT_WIDTH:
        _show_paragraphs(heads, rows, out)
        return
    table = _table(heads, rows)
    for i, column in enumerate(table.columns):
        column.justify = "left" if i in left else "right"
        column.no_wrap, column.overflow = i == 0, "fold"
    out.print(table)


def _show_paragraphs(heads: Sequence[str], rows: Sequence[Sequence[str]], out: Console) -> None:
    """Each row as a line of its own, then its text, set in."""
    out.print()
    for row in rows:
        facts = [
            f"{head} {cell}" for head, cell in zip(heads[1:-1], row[1:-1], strict=True) if cell
        ]
        out.print(Padding(Text(", ".join([row[0], *facts])), (0, 0, 0, 1)))
        out.print(Padding(Text(row[-1]), (0, 0, 0, 5)))


def show_machine(machine: Machine, out: Console) -> None:
    """Shape, clock and caches, then each cost with its source."""
    caches = repr(machine.caches)[9:-1]
    about = f"{repr(machine)[9:-1]}; {machine.clock_ghz:.4g} GHz, smt {machine.smt}; {caches}"
    out.print(about, soft_wrap=not out.is_terminal)
    if machine.notes:
        out.print(machine.notes, soft_wrap=not out.is_terminal)
    rows = [
        [name, f"{value:,.4g}", unit, text, source]
        for name, value, unit, text, source in machine.costs.rows()
    ]
    heads = ["cost", "value", "unit", "of what", "source"]
    _show_wrapped(heads, rows, out, left=(0, 2, 3, 4))


def show_pairs(heads: tuple[str, str], pairs: Mapping[str, str], out: Console) -> None:
    """Two columns of text."""
    _show(_table(heads, pairs.items(), left=2), out)


_DESCRIBE = {
    "allocs": "allocs",
    "frees": "frees",
    "implied_frees": "implied",
    "bytes_req_median": "size",
    "live_peak": "live peak",
    "bytes_peak": "bytes peak",
    "lifetime_median_us": "life us",
    "remote_share": "remote",
}


def show_description(table: pd.DataFrame, out: Console, *, rows: int | None) -> None:
    """The columns of :meth:`Trace.describe` that fit a terminal; --json has all."""
    shown = table[list(_DESCRIBE)].copy()
    shown["lifetime_median_us"] = [
        f"{v:,.1f}" if v == v else "" for v in shown["lifetime_median_us"]
    ]
    shown["remote_share"] = [percent(v) if v == v else "" for v in shown["remote_share"]]
    show_frame(shown.rename(columns=_DESCRIBE), out, rows=rows)


def show_frame(frame: pd.DataFrame, out: Console, *, rows: int | None = None) -> None:
    """A DataFrame: index first, numbers to the right."""
    shown = frame if rows is None else frame.head(rows)
    heads = [str(frame.index.name or ""), *map(str, frame.columns)]
    lines = zip(shown.index, shown.to_numpy(), strict=True)
    _show(_table(heads, ([str(i), *map(_cell, row)] for i, row in lines)), out)
    if len(shown) < len(frame):
        out.print(f"and {len(frame) - len(shown)} more rows; --all shows them")


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return ""
    if isinstance(value, float):
        return f"{value:,.3g}" if not value.is_integer() else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int | np.integer) else str(value)
