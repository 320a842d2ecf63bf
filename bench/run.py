"""The benchmark suite: every figure of the README's table, as ratios within one run.

``python bench/run.py`` prints a table on standard error and the figures as JSON on standard output.
``--only NAME`` runs one part. Exit status 1 when a bound is missed.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

import click
from rich.console import Console
from rich.table import Table

from figure import Figure

PARTS = (
    "local_paths",
    "python_calls",
    "reading",
    "replay",
    "rivals",
    "memory",
    "instructions",
    "model",
    "honesty",
)


def _table(figures: list[Figure]) -> Table:
    table = Table(title="unislab benchmarks", title_justify="left")
    for column in ("figure", "median", "95 % interval", "bound", ""):
        table.add_column(column, justify="left" if column in ("figure", "") else "right")
    for f in figures:
        mark = {True: "ok", False: "[red]missed[/red]", None: ""}[f.ok]
        low, high = f.interval
        interval = f"{low:.3g} .. {high:.3g}"
        table.add_row(f.name, f"{f.value:.4g} {f.unit}", interval, f.bound or "", mark)
    return table


@click.command()
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Run these parts alone.")
def main(only: tuple[str, ...]) -> None:
    """Run the benchmarks; figures as JSON on standard output."""
    console = Console(stderr=True, width=120)
    figures: list[Figure] = []
    rows: list[dict[str, object]] = []
    for part in only or PARTS:
        start = time.monotonic()
        measured = importlib.import_module(part).figures()
        figures.extend(measured)
        rows.extend(f.row() | {"part": part} for f in measured)
        console.print(f"{part}: {time.monotonic() - start:.0f} s")
    console.print(_table(figures))
    json.dump(rows, sys.stdout, indent=1)
    sys.stdout.write("\n")
    sys.exit(any(f.ok is False for f in figures))


if __name__ == "__main__":
    main()
