"""Calls from Python: bulk calls an object, and single calls against an empty METH_FASTCALL pair."""

from __future__ import annotations

import os
import time
from functools import partial

import unislab as us
from figure import Figure, figure, interleave, ratios
from local_paths import Child, build, quiet_cpu
from unislab import _native

ROUNDS = 21
BULK = 1000
CALLS = 100_000


def _bulk(cache: us.Cache) -> float:
    """Nanoseconds an object of alloc_bulk + free_bulk."""
    repeats = CALLS // BULK
    start = time.perf_counter_ns()
    for _ in range(repeats):
        cache.free_bulk(cache.alloc_bulk(BULK))
    return (time.perf_counter_ns() - start) / (repeats * BULK)


def _single(cache: us.Cache) -> float:
    """Nanoseconds of alloc_address + free."""
    alloc, free = cache.alloc_address, cache.free
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        free(alloc())
    return (time.perf_counter_ns() - start) / CALLS


def _empty() -> float:
    """Nanoseconds of a pair of empty METH_FASTCALL methods called the same way."""
    first, second = _native._noop, _native._noop
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        second(first())
    return (time.perf_counter_ns() - start) / CALLS


def figures(rounds: int = ROUNDS) -> list[Figure]:
    """Measure bulk and single calls of a 64-byte cache under `unified`."""
    program = build("contest")
    cpus, cpu = os.sched_getaffinity(0), quiet_cpu(program)
    child = Child(program, "unified", cpu)
    os.sched_setaffinity(0, {cpu})
    try:
        with us.Allocator("unified") as alloc:
            cache = alloc.create_cache("bench", 64)
            bulk = interleave(
                {"python": partial(_bulk, cache), "c": partial(child.ask, "bulk", 64)}, rounds
            )
            single = interleave({"unislab": partial(_single, cache), "empty": _empty}, rounds)
    finally:
        child.close()
        os.sched_setaffinity(0, cpus)
    ratio = ratios(bulk["python"], bulk["c"])
    pair = ratios(single["unislab"], single["empty"])
    return [
        figure("bulk of 1000 from Python, an object", bulk["python"], "ns", at_most=6),
        figure("bulk of 1000: Python / C", ratio, at_most=3),
        figure("alloc_address + free / empty METH_FASTCALL pair", pair, at_most=2.5),
    ]
