"""The table of all caches, as ``/proc/slabinfo`` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from unislab.allocator_base import AllocatorBase
    from unislab.cache import Cache

_Row = tuple[str, int, int, int, int, int, int, int, int, int, int, int, str]

__all__ = ["COLUMNS", "slabinfo_frame", "slabinfo_text"]

#: Columns in the order of ``/proc/slabinfo``; then what a cache is called beside its name.
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
    "aliases",
]


def _tunable(cache: Cache, name: str) -> int:
    """A number the policy may not have."""
    if name not in cache.tunables:
        return 0
    value = cache.tunables[name]
    return value if isinstance(value, int) else 0


def _row(cache: Cache) -> _Row:
    account = cache._account()
    slabs, queues = cache._snapshot()
    active_slabs = sum(1 for row in slabs if row[5] < row[3])
    shared = sum(row[5] for row in queues if row[0] == "shared")
    active = account["live_objects"]
    if "batchcount" in cache.tunables:  # SLAB: what lies in its arrays is active
        limit, batch, factor = (_tunable(cache, name) for name in ("limit", "batchcount", "shared"))
        active += account["queued_objects"]
    elif "hiwater" in cache.tunables:  # SLQB: its watermark and its freebatch stand there
        limit, batch, factor = _tunable(cache, "hiwater"), _tunable(cache, "freebatch"), 0
    else:
        limit = _tunable(cache, "cpu_queue_size") or _tunable(cache, "hiwater")
        batch = _tunable(cache, "batch_size") or _tunable(cache, "freebatch")
        factor = round(_tunable(cache, "shared_queue_size") / batch) if batch else 0
    return (
        cache.name,
        active,
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
        ", ".join(cache.aliases),
    )


def _rows(allocator: AllocatorBase) -> list[_Row]:
    """Created caches first, general ones after."""
    rows = allocator._each(lambda cache: (cache.general, _row(cache)))
    return [row for _, row in sorted(rows.values(), key=lambda pair: pair[0])]


def slabinfo_frame(allocator: AllocatorBase) -> pd.DataFrame:
    """One row a cache, columns as ``/proc/slabinfo`` has them.

    Examples
    --------
    >>> import unislab as us
    >>> from unislab.inspect import slabinfo_frame
    >>> with us.Allocator() as alloc:
    ...     slabinfo_frame(alloc).columns.tolist()[:3]
    ['name', 'active_objs', 'num_objs']
    """
    import pandas as pd

    return pd.DataFrame(_rows(allocator), columns=COLUMNS)


def slabinfo_text(allocator: AllocatorBase) -> str:
    """The same as text, in the format of ``/proc/slabinfo`` version 2.1.

    Examples
    --------
    >>> import unislab as us
    >>> from unislab.inspect import slabinfo_text
    >>> with us.Allocator() as alloc:
    ...     slabinfo_text(alloc).splitlines()[0]
    'slabinfo - version: 2.1'
    """
    lines = [
        "slabinfo - version: 2.1",
        "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab>"
        " : tunables <limit> <batchcount> <sharedfactor>"
        " : slabdata <active_slabs> <num_slabs> <sharedavail>",
    ]
    for row in _rows(allocator):
        name, active, total, size, per_slab, pages = row[:6]
        limit, batch, factor, active_slabs, slabs, shared = row[6:12]
        lines.append(
            f"{name:<17} {active:>6} {total:>6} {size:>6} {per_slab:>4} {pages:>4}"
            f" : tunables {limit:>4} {batch:>4} {factor:>4}"
            f" : slabdata {active_slabs:>6} {slabs:>6} {shared:>6}"
        )
    return "\n".join(lines) + "\n"
