"""From a table to the columns of a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from unislab._trace_columns import ALLOC, COLUMN_DTYPES, FREE, number

_NEEDED = ("time_ns", "cpu", "kind", "object", "cache", "bytes_req")
_DEFAULTS = {"implied": -1, "call_site": -1, "pid": -1, "gfp": 0, "node": -1, "accounted": -1}


def columns_of_frame(
    frame: pd.DataFrame,
) -> tuple[dict[str, NDArray[Any]], list[str], list[str]]:
    """Columns, cache names and call sites of a table; see :meth:`unislab.Trace.from_frame`."""
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"a trace is made of a DataFrame, not of {type(frame).__name__}")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"the table has column {twice!r} twice; expected each once")
    if missing := [name for name in _NEEDED if name not in frame]:
        raise ValueError(
            f"the table has no column {missing[0]!r}; a trace needs {', '.join(_NEEDED)}"
        )
    columns: dict[str, NDArray[Any]] = {"kind": _kinds(frame["kind"])}
    columns["cache"], caches = _codes(frame["cache"])
    call_sites: list[str] = []
    if "call_site" in frame:
        columns["call_site"], call_sites = _codes(frame["call_site"])
    for name, dtype in COLUMN_DTYPES.items():
        if name not in columns:
            columns[name] = _integers(frame, name, dtype)
    allocs = columns["kind"] == ALLOC
    for wrong, what in (
        (allocs & (columns["cache"] < 0), "an allocation needs the name of its cache"),
        (allocs & frame["bytes_req"].isna().to_numpy(), "an allocation needs its bytes_req"),
        (frame["time_ns"].isna().to_numpy(), "an event needs its time_ns"),
        (columns["cpu"] < 0, "an event needs its cpu, a number from 0"),
    ):
        if wrong.any():
            raise ValueError(f"row {np.flatnonzero(wrong)[0]}: {what}")
    return number(columns), caches, call_sites


def _kinds(kinds: pd.Series) -> NDArray[Any]:
    values = kinds.astype(object).map({"alloc": ALLOC, "free": FREE, ALLOC: ALLOC, FREE: FREE})
    wrong = np.flatnonzero(values.isna())
    if len(wrong):
        raise ValueError(
            f"row {wrong[0]}: kind {kinds.iloc[wrong[0]]!r}, expected 'alloc' or 'free' (or 1, 2)"
        )
    return np.asarray(values, np.uint8)


def _codes(names: pd.Series) -> tuple[NDArray[Any], list[str]]:
    """Indices into the names, in the order that a categorical column has or of first sight."""
    if isinstance(names.dtype, pd.CategoricalDtype):
        return names.cat.codes.to_numpy(np.int32), [str(name) for name in names.cat.categories]
    codes, unique = pd.factorize(names)
    return codes.astype(np.int32), [str(name) for name in unique]


def _integers(frame: pd.DataFrame, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    if name == "bytes_alloc" and name not in frame:
        name = "bytes_req"
    if name not in frame:
        return np.full(len(frame), _DEFAULTS[name], dtype)
    blank = 0 if dtype.kind == "u" else -1
    try:
        values = pd.to_numeric(frame[name]).fillna(blank).to_numpy()
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name!r}: expected numbers: {error}") from error
    if name == "object":
        values = np.maximum(values, -1)
    with np.errstate(invalid="ignore"):  # what does not fit differs, and is told below
        whole: NDArray[Any] = values.astype(dtype)
    wrong = np.flatnonzero(whole != values)
    if len(wrong):
        limits = np.iinfo(dtype)
        raise ValueError(
            f"row {wrong[0]}: {name} is {values[wrong[0]]}, expected a whole number from "
            f"{limits.min} to {limits.max}"
        )
    return whole
