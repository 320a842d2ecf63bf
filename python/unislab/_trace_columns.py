"""Arithmetic on the columns of a trace: which free ends which allocation, in part and whole.

Columns are a dict of numpy arrays of one length, as the native reader makes them.  The one rule
that all functions keep: an object is a number from 0 to allocs - 1 in the order of the allocations,
a free names the allocation it ends or -1, and ``implied`` names on an allocation the object whose
unseen free it implies, or -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unislab import _native

ALLOC = 1
FREE = 2

Columns = Mapping[str, NDArray[Any]]

COLUMN_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code) for name, (code, _) in _native.TRACE_COLUMNS.items()
}

#: One operation of a replay, laid out as a C compiler lays out the struct of the same fields.
OPS_DTYPE = np.dtype(
    [
        ("time_ns", "i8"),
        ("cpu", "i4"),
        ("kind", "u1"),
        ("cache", "i4"),
        ("object", "i8"),
        ("bytes_req", "u4"),
        ("bytes_alloc", "u4"),
        ("gfp", "u4"),
        ("node", "i2"),
        ("accounted", "i1"),
        ("implied", "u1"),
    ],
    align=True,
)


def alloc_rows(columns: Columns) -> NDArray[np.intp]:
    """Row of the allocation of each object."""
    return np.flatnonzero(columns["kind"] == ALLOC)


def count(columns: Columns) -> dict[str, int]:
    """The counts that rows tell; those of events without a row are zero."""
    made = alloc_rows(columns)
    frees = np.flatnonzero(columns["kind"] == FREE)
    objects = columns["object"][frees]
    matched = objects >= 0
    remote = columns["cpu"][frees[matched]] != columns["cpu"][made[objects[matched]]]
    implied = int(np.count_nonzero(columns["implied"] >= 0))
    counts = dict.fromkeys(_native.TRACE_COUNTS, 0)
    counts |= {
        "events": len(made) + len(frees),
        "allocs": len(made),
        "frees": len(frees),
        "frees_matched": int(np.count_nonzero(matched)),
        "frees_unknown": int(np.count_nonzero(~matched)),
        "implied_frees": implied,
        "remote_frees": int(np.count_nonzero(remote)),
    }
    counts["live_at_end"] = counts["allocs"] - counts["frees_matched"] - implied
    return counts


def select(columns: Columns, rows: slice | NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Some rows as a trace of their own: objects allocated elsewhere become unknown."""
    part = {name: column[rows] for name, column in columns.items()}
    made = part["kind"] == ALLOC
    total = int(np.count_nonzero(columns["kind"] == ALLOC))
    fresh = np.full(total + 1, -1, dtype=np.int64)  # the last entry stands for object -1
    fresh[part["object"][made]] = np.arange(np.count_nonzero(made))
    part["object"] = fresh[part["object"]]
    part["implied"] = fresh[part["implied"]]
    return part


def number(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Give objects their numbers by the order of allocation, from labels of any kind.

    Raises
    ------
    ValueError
        An object is allocated twice, freed twice, or freed before it is allocated.
    """
    made = alloc_rows(columns)
    labels = columns["object"][made]
    order = np.argsort(labels, kind="stable")
    known = labels[order]
    twice = np.flatnonzero(known[1:] == known[:-1])
    if len(twice):
        row = made[order[twice[0] + 1]]
        raise ValueError(f"row {row}: object {known[twice[0]]} is allocated a second time")
    if len(known) and known[0] < 0:
        raise ValueError(
            f"row {made[order[0]]}: an allocation needs an object number from 0, found {known[0]}"
        )

    def lookup(wanted: NDArray[Any]) -> NDArray[np.int64]:
        if not len(known):
            return np.full(len(wanted), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[at] == wanted, order[at], -1).astype(np.int64)

    fresh = dict(columns)
    fresh["object"] = lookup(columns["object"])
    fresh["implied"] = np.where(columns["kind"] == ALLOC, lookup(columns["implied"]), -1)
    _check_ends(fresh, made)
    return fresh


def _check_ends(columns: Columns, made: NDArray[np.intp]) -> None:
    frees = np.flatnonzero((columns["kind"] == FREE) & (columns["object"] >= 0))
    implying = np.flatnonzero(columns["implied"] >= 0)
    rows = np.concatenate([frees, implying])
    objects = np.concatenate([columns["object"][frees], columns["implied"][implying]])
    early = np.flatnonzero(rows <= made[objects])
    if len(early):
        row, obj = rows[early[0]], objects[early[0]]
        raise ValueError(
            f"row {row} ends the object allocated in row {made[obj]}; rows must be in the order of "
            "the events, a free after its allocation"
        )
    order = np.argsort(objects, kind="stable")
    twice = np.flatnonzero(objects[order][1:] == objects[order][:-1])
    if len(twice):
        first, second = rows[order[twice[0]]], rows[order[twice[0] + 1]]
        raise ValueError(f"rows {first} and {second} both end the same object; free it once")


def operations(columns: Columns, implied: str, seed: int) -> NDArray[np.void]:
    """All operations of a replay in order, implied frees among them."""
    if implied not in ("before", "spread"):
        raise ValueError(f"implied={implied!r}: expected 'before' or 'spread'")
    made = alloc_rows(columns)
    events = np.flatnonzero((columns["kind"] == ALLOC) | (columns["object"] >= 0))
    implying = np.flatnonzero(columns["implied"] >= 0)
    ended = columns["implied"][implying]
    if implied == "before":
        place = implying
    else:
        rng = np.random.default_rng(seed)
        place = rng.integers(made[ended] + 1, implying, endpoint=True, dtype=np.int64)

    ops = np.zeros(len(events) + len(implying), dtype=OPS_DTYPE)
    # An event in row r has key 2r + 1, a free placed before it 2r.
    order = np.argsort(np.concatenate([2 * events + 1, 2 * place]), kind="stable")
    at = np.empty(len(ops), dtype=np.intp)
    at[order] = np.arange(len(ops))
    at_events, at_implied = at[: len(events)], at[len(events) :]
    for field in OPS_DTYPE.names or ():
        if field == "implied":
            ops[field][at_implied] = 1
            continue
        ops[field][at_events] = columns[field][events]
        ops[field][at_implied] = columns[field][made[ended]]
    ops["kind"][at_implied] = FREE
    ops["cpu"][at_implied] = columns["cpu"][implying]
    ops["time_ns"][at_implied] = columns["time_ns"][place]
    for field, blank in (("gfp", 0), ("node", -1)):
        ops[field][at_implied] = blank
    return ops


def copies(columns: Columns, shifts_ns: NDArray[np.int64], width: int) -> dict[str, NDArray[Any]]:
    """One copy for each shift in time, each on CPUs of its own, merged by time."""
    rows = len(columns["kind"])
    total = int(np.count_nonzero(columns["kind"] == ALLOC))
    # Time may step back within a trace; the order of its events is kept all the same.
    clock = np.maximum.accumulate(columns["time_ns"]) if rows else columns["time_ns"]
    order = np.argsort((clock[None, :] + shifts_ns[:, None]).ravel(), kind="stable")
    copy = np.repeat(np.arange(len(shifts_ns)), rows)[order]
    row = np.tile(np.arange(rows), len(shifts_ns))[order]
    merged = {name: column[row] for name, column in columns.items()}
    merged["time_ns"] = merged["time_ns"] + shifts_ns[copy]
    merged["cpu"] = (merged["cpu"] + copy * width).astype(np.int32)
    for name in ("object", "implied"):
        merged[name] = np.where(merged[name] >= 0, merged[name] + copy * total, -1)
    return number(merged)
