"""Published beside modelled, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from unislab.reproduction.run import Reproduction

__all__ = ["draw", "picture"]


def draw(reproduction: Reproduction, ax: Axes | None = None) -> Axes:
    """Full lines are modelled, broken ones published."""
    import matplotlib.pyplot as plt

    ax = ax or plt.subplots(figsize=(7, 4.5))[1]
    ax.set_title(f"{reproduction.table}: {reproduction.verdict}", fontsize=10)
    curves = reproduction.curves
    if curves is None or curves.empty:
        ax.text(0.5, 0.5, reproduction.verdict, ha="center", transform=ax.transAxes)
        return ax
    for column, part in curves.groupby("column", sort=False):
        (line,) = ax.plot(part["x"], part["modelled"], marker="o", ms=4, label=str(column))
        ax.plot(part["x"], part["published"], "--", marker="x", ms=4, color=line.get_color())
    ax.plot([], [], "-", color="gray", label="modelled")
    ax.plot([], [], "--", color="gray", label="published")
    ax.set_xlabel(reproduction.axis)
    units = dict.fromkeys(row for row in reproduction.rows["unit"] if row != "1/s")
    ax.set_ylabel(" / ".join(units))
    ax.legend(fontsize=8)
    return ax


def picture(reproductions: Sequence[Reproduction]) -> Figure:
    """Several tables in one figure; those that are not built are left out."""
    import matplotlib.pyplot as plt

    shown = [one for one in reproductions if one.verdict != "not built"] or reproductions[:1]
    columns = 1 if len(shown) == 1 else 2
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(7 * columns, 4.5 * rows), squeeze=False)
    for ax, one in zip(axes.flat, shown, strict=False):
        draw(one, ax)
    for ax in axes.flat[len(shown) :]:
        ax.remove()
    figure.tight_layout()
    return figure
