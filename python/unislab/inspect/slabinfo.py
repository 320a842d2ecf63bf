"""The table of all caches, as ``/proc/slabinfo`` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from unislab.allocator import Allocator
    from unislab.cache import Cache

__all__ = ["COLUMNS", "slabinfo_frame", "slabinfo_text"]

#: Columns in the order of ``/proc/slabinfo``.
COLUMNS = [
    "name",
    "active_objs",
    "num_objs",
    "objsize",
    "objperslab",
    "pagesperslab",
    "limit",
    "batchcount",
    "sharedfactor",
    "active_slabs",
    "num_slabs",
    "sharedavail",
]


def _tunable(cache: Cache, name: str) -> int:
    """A number the policy may not have."""
    if name not in cache.tunables:
        return 0
    value = cache.tunables[name]
    return value if isinstance(value, int) else 0


def _row(cache: Cache) -> tuple[object, ...]:
    account = cache._account()
    slabs, queues = cache._snapshot()
    active_slabs = sum(1 for row in slabs if row[5] < row[3])
    shared = sum(row[5] for row in queues if row[0] == "shared")
    limit = _tunable(cache, "cpu_queue_size")
    batch = _tunable(cache, "batch_size")
    factor = round(_tunable(cache, "shared_queue_size") / batch) if batch else 0
    return (
        cache.name,
        account["live_objects"],
        account["objects"],
        cache.stride,
        cache.objects_per_slab,
        2**cache.order,
        limit,
        batch,
        factor,
        active_slabs,
        len(slabs),
        shared,
    )


def slabinfo_frame(allocator: Allocator) -> pd.DataFrame:
    """One row a cache, created ones first, general ones after."""
    import pandas as pd

    caches = sorted(allocator._caches(), key=lambda cache: cache.general)
    return pd.DataFrame([_row(cache) for cache in caches], columns=COLUMNS)


def slabinfo_text(allocator: Allocator) -> str:
    """The same as text, in the format of ``/proc/slabinfo`` version 2.1."""
    lines = [
        "slabinfo - version: 2.1",
        "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab>"
        " : tunables <limit> <batchcount> <sharedfactor>"
        " : slabdata <active_slabs> <num_slabs> <sharedavail>",
    ]
    for cache in sorted(allocator._caches(), key=lambda cache: cache.general):
        name, active, total, size, per_slab, pages, *rest = _row(cache)
        limit, batch, factor, active_slabs, slabs, shared = rest
        lines.append(
            f"{name!s:<17} {active!s:>6} {total!s:>6} {size!s:>6} {per_slab!s:>4} {pages!s:>4}"
            f" : tunables {limit!s:>4} {batch!s:>4} {factor!s:>4}"
            f" : slabdata {active_slabs!s:>6} {slabs!s:>6} {shared!s:>6}"
        )
    return "\n".join(lines) + "\n"
