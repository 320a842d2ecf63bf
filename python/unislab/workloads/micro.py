"""Micro-benchmarks: one pattern each, for looking at one path of a policy."""

from __future__ import annotations

from unislab import ops
from unislab.workload import Workload

__all__ = ["batch", "pair"]


def pair(size: int = 256, *, times: int = 10_000, tasks: int = 1) -> Workload:
    """Allocate one object and free it: the shortest path of every policy.

    Parameters
    ----------
    size : int
        Bytes of an object.
    times : int
        Pairs in one pass of each task.
    tasks : int
        Task n runs on CPU n; all use one cache.

    Examples
    --------
    >>> import unislab as us
    >>> us.workloads.pair(64, times=100).counts["allocs"]
    100
    """
    made = Workload("pair")
    cache = made.add_cache("object", size)
    for cpu in range(tasks):
        made.add_task(ops.repeat(times, ops.alloc(cache, 0), ops.free(0)), cpu=cpu)
    return made


def batch(
    n: int = 64, size: int = 256, *, times: int = 200, tasks: int = 1, order: str = "lifo"
) -> Workload:
    """Allocate n objects, then free them: what queues of which size are for.

    Parameters
    ----------
    n : int
        Objects of a batch.
    size : int
        Bytes of an object.
    times : int
        Batches in one pass of each task.
    tasks : int
        Task n runs on CPU n; all use one cache.
    order : {"lifo", "fifo"}
        Frees begin with the object allocated last, or first.

    Examples
    --------
    >>> import unislab as us
    >>> us.workloads.batch(8, times=10).counts["frees"]
    80
    """
    if order not in ("lifo", "fifo"):
        raise ValueError(f"order={order!r}: expected 'lifo' or 'fifo'")
    made = Workload(f"batch of {n}")
    cache = made.add_cache("object", size)
    frees = ops.free(range(n) if order == "fifo" else range(n - 1, -1, -1))
    for cpu in range(tasks):
        made.add_task(ops.repeat(times, ops.alloc(cache, range(n)), frees), cpu=cpu)
    return made
