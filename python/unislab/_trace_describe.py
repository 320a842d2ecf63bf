"""What a trace consists of: the table of :meth:`unislab.Trace.describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from unislab._trace_columns import ALLOC, FREE, Columns, alloc_rows

if TYPE_CHECKING:
    from unislab.trace import Trace


def cache_labels(columns: Columns, caches: tuple[str, ...]) -> tuple[NDArray[np.intp], list[str]]:
    """A group for each row (-1 if unknown) and names of the groups: kmalloc is split by stride."""
    cache = columns["cache"].astype(np.int64)
    names = list(caches)
    if "kmalloc" in names:
        rows = np.flatnonzero(cache == names.index("kmalloc"))
        strides, which = np.unique(columns["bytes_alloc"][rows], return_inverse=True)
        cache[rows] = len(names) + which
        names += [f"kmalloc-{stride}" for stride in strides]
    return cache, names


def count_groups(trace: Trace) -> tuple[int, int]:
    """How many rows of :func:`describe` are caches, and how many are sizes of kmalloc."""
    columns = trace.columns
    group, _names = cache_labels(columns, trace.caches)
    shown = (columns["kind"] == ALLOC) | ((columns["kind"] == FREE) & (columns["object"] < 0))
    present = np.unique(group[shown & (group >= 0)])
    sizes = int((present >= len(trace.caches)).sum())
    return len(present) - sizes, sizes


def describe(trace: Trace) -> pd.DataFrame:
    """One row a cache; see :meth:`unislab.Trace.describe`."""
    columns = trace.columns
    group, names = cache_labels(columns, trace.caches)
    made = alloc_rows(columns)
    kind, obj = columns["kind"], columns["object"]
    frees = np.flatnonzero((kind == FREE) & (obj >= 0))
    born = made[obj[frees]]
    unknown = np.flatnonzero((kind == FREE) & (obj < 0) & (group >= 0))
    implying = np.flatnonzero(columns["implied"] >= 0)

    allocs = pd.DataFrame(
        {
            "group": group[made],
            "bytes_req": columns["bytes_req"][made],
            "accounted": np.where(
                columns["accounted"][made] < 0, np.nan, columns["accounted"][made]
            ),
        }
    ).groupby("group")
    ends = pd.DataFrame(
        {
            "group": group[frees],
            "lifetime_us": np.maximum(columns["time_ns"][frees] - columns["time_ns"][born], 0)
            / 1e3,
            "remote": columns["cpu"][frees] != columns["cpu"][born],
        }
    ).groupby("group")
    peaks = _peaks(trace, len(names), group)

    def tally(rows: NDArray[np.intp]) -> NDArray[np.intp]:
        return np.bincount(group[rows], minlength=len(names))

    table = pd.DataFrame(
        {
            "allocs": tally(made),
            "frees": tally(frees),
            "implied_frees": tally(made[columns["implied"][implying]]),
            "frees_unknown": tally(unknown),
            "bytes_req_min": allocs["bytes_req"].min(),
            "bytes_req_median": allocs["bytes_req"].median(),
            "bytes_req_max": allocs["bytes_req"].max(),
            "live_peak": peaks[0],
            "bytes_peak": peaks[1],
            "lifetime_median_us": ends["lifetime_us"].median(),
            "remote_share": ends["remote"].mean(),
            "accounted_share": allocs["accounted"].mean(),
        },
        index=range(len(names)),
    )
    table.index = pd.Index(names, name="cache")
    table = table[(table["allocs"] > 0) | (table["frees_unknown"] > 0)]
    for name in ("bytes_req_min", "bytes_req_max"):
        table[name] = table[name].fillna(0).astype(np.int64)
    return table.sort_values("allocs", ascending=False, kind="stable")


def _peaks(
    trace: Trace, groups: int, group: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Most live objects and most live bytes (strides) of each group."""
    ops = trace.ops()
    of_object = group[alloc_rows(trace.columns)]
    op_group = of_object[ops["object"]]
    order = np.argsort(op_group, kind="stable")
    step = np.where(ops["kind"] == ALLOC, 1, -1).astype(np.int64)[order]
    size = ops["bytes_alloc"].astype(np.int64)[order]
    present, starts = np.unique(op_group[order], return_index=True)
    peaks = []
    for change in (step, step * size):
        level = np.cumsum(change)
        # Every group begins at zero: take off what the groups before it left.
        before = np.concatenate([[0], level])[starts]
        peak = np.zeros(groups, dtype=np.int64)
        if len(present):
            peak[present] = np.maximum.reduceat(level, starts) - before
        peaks.append(peak)
    return peaks[0], peaks[1]
