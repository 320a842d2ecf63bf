"""From the rows of a trace to the operations of a workload."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unislab import _native
from unislab.ops import FLAGS, OP_DTYPE, OPS
from unislab.trace import GFP, Trace
from unislab.workload import Workload

#: As struct us_event_in of csrc/work/events.h.
EVENT_DTYPE = np.dtype(
    [
        ("time_ns", "<i8"),
        ("object", "<u4"),
        ("task", "<u2"),
        ("cache", "<u2"),
        ("node", "<i2"),
        ("op", "u1"),
        ("flags", "u1"),
        ("pad", "<u4"),
    ]
)

#: Trace time between two looks of the policy's timers in a flat-out run, and the shortest gap that
#: a paced run keeps.
CLOCK_NS = 5_000_000
PACED_CLOCK_NS = 50_000

#: Events of each CPU that the others may be ahead; a workload's window of 1000 is that of two CPUs.
CPU_WINDOW = 500

_KINDS = {1: OPS["ALLOC"], 2: OPS["FREE"]}


def build(
    workload: Workload, trace: Trace, implied: str, sizes: str, seed: int, paced: bool
) -> Workload:
    """Fill an empty workload with the replay of a trace."""
    if sizes not in ("requested", "kernel"):
        raise ValueError(f"sizes={sizes!r}: expected 'requested' or 'kernel'")
    rows = trace.ops(implied=implied, seed=seed)
    if not len(rows):
        raise ValueError(
            f"{trace.source or 'the trace'} has no event that could be replayed; expected "
            "those of kmem, as 'trace-cmd record -e kmem' or 'perf record -e kmem:*' records them"
        )
    cpus, task = np.unique(rows["cpu"], return_inverse=True)
    workload.window = max(workload.window, CPU_WINDOW * len(cpus))
    events = np.zeros(len(rows), EVENT_DTYPE)
    # Times step back where buffers of several CPUs were merged; a clock does not.
    events["time_ns"] = np.maximum.accumulate(rows["time_ns"]) - rows["time_ns"][0]
    events["object"], events["task"], events["node"] = rows["object"], task, rows["node"]
    events["op"] = np.where(rows["kind"] == 1, _KINDS[1], _KINDS[2])
    events["flags"] = _flags(rows)
    events["cache"] = _add_caches(workload, trace, rows, sizes)
    programs = _native.compile_events(
        events,
        ntasks=len(cpus),
        nobjects=int(rows["object"].max()) + 1,
        window=workload.window,
        clock_ns=PACED_CLOCK_NS if paced else CLOCK_NS,
        clock_of_each=paced,
    )
    for cpu, program in zip(cpus.tolist(), programs, strict=True):
        workload.add_task(np.frombuffer(program, OP_DTYPE), cpu=cpu, name=f"CPU {cpu}")
    workload._trace_counts = dict(trace.counts)
    return workload


def _flags(rows: NDArray[np.void]) -> NDArray[Any]:
    made = rows["kind"] == 1
    zero = (rows["gfp"] & GFP["ZERO"]) != 0
    thisnode = ((rows["gfp"] & GFP["THISNODE"]) != 0) & (rows["node"] >= 0)
    flags = FLAGS["ZERO"] * zero | FLAGS["THISNODE"] * thisnode
    flags |= FLAGS["ACCOUNTED"] * (rows["accounted"] == 1)
    return np.where(made, flags, 0).astype(np.uint8)


def _add_caches(
    workload: Workload, trace: Trace, rows: NDArray[np.void], sizes: str
) -> NDArray[np.uint16]:
    """Add the caches and the sizes of kmalloc; return which one each allocation uses.

    Where the kernel merged caches, one name has grown with each cache that joined: the largest
    object size counts.
    """
    made = rows["kind"] == 1
    is_kmalloc = np.array([name == "kmalloc" for name in trace.caches] + [False])[rows["cache"]]
    number = np.zeros(len(rows), np.int64)
    named = made & ~is_kmalloc
    for cache in np.unique(rows["cache"][named]).tolist():
        mine = named & (rows["cache"] == cache)
        size = max(int(rows["bytes_req"][mine].max()), 1)
        name = trace.caches[cache] if cache >= 0 else "unknown"
        number[mine] = workload.add_cache(name, size)
    column = "bytes_req" if sizes == "requested" else "bytes_alloc"
    general = made & is_kmalloc
    asked = np.maximum(rows[column][general], 1)
    distinct, which = np.unique(asked, return_inverse=True)
    first = len(workload.caches)
    for size in distinct.tolist():
        workload.add_cache(f"kmalloc({size})", size, kmalloc=True)
    number[general] = first + which
    if len(workload.caches) > 65535:
        raise ValueError(
            f"{trace.source}: {len(workload.caches)} caches and sizes of kmalloc, at most "
            "65535 can be told apart; use sizes='kernel' or filter the trace"
        )
    return number.astype(np.uint16)
