"""What a published table is to whoever runs it, and what became of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from unislab.reproduction.judge import Check
from unislab.reproduction.points import Outcome, Point

__all__ = ["Judged", "Key", "Table", "row_of"]

#: Row and column.
Key = tuple[str, str]


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


def row_of(
    row: str, figure: str, published: float, modelled: float, unit: str, sign: bool | None = None
) -> dict[str, Any]:
    """One line of a table."""
    return {
        "row": row,
        "figure": figure,
        "published": float(published),
        "modelled": float(modelled),
        "error": float(modelled - published),
        "sign": sign,
        "unit": unit,
    }
