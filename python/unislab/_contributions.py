"""Which caches make the difference between the first two policies of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from unislab._explain import ALLOCS, FREES, percent
from unislab.result import share

if TYPE_CHECKING:
    import pandas as pd

    from unislab.comparison import Comparison

__all__ = ["contributions", "reasons"]

_COLUMNS = [
    "cache",
    "calls",
    "calls_saved",
    "alloc_fast_share",
    "free_fast_share",
    "other_alloc_fast_share",
    "other_free_fast_share",
]
_GENERAL = "kmalloc-"

Counters = dict[str, int]


def contributions(c: Comparison) -> pd.DataFrame:
    """See :meth:`Comparison.contributions`."""
    import pandas as pd

    pair = c.policies[:2]
    if len(pair) < 2:
        return pd.DataFrame(columns=_COLUMNS)
    first, second = _comparable(*(_by_cache(c.results[name].caches) for name in pair))
    rows = []
    for cache in first.keys() | second.keys():
        mine, other = first.get(cache, {}), second.get(cache, {})
        row = {
            "cache": cache,
            "calls": _sum(mine, ALLOCS) + _sum(mine, FREES),
            "calls_saved": _left_stock(other) - _left_stock(mine),
        }
        for prefix, counters in (("", mine), ("other_", other)):
            for call, names in (("alloc", ALLOCS), ("free", FREES)):
                fast = counters.get(f"{call}_fast", 0)
                row[f"{prefix}{call}_fast_share"] = share(fast, _sum(counters, names))
        rows.append(row)
    frame = pd.DataFrame(rows, columns=_COLUMNS, dtype=object).sort_values(
        ["calls_saved", "calls", "cache"],
        key=lambda column: column if column.name == "cache" else -column.abs(),
        ignore_index=True,
    )
    frame.attrs["policies"] = pair
    return frame


def reasons(c: Comparison) -> list[str]:
    """See :attr:`Comparison.reasons`."""
    table = contributions(c)
    if table.empty:
        return []
    shown = [c.shown(name) for name in table.attrs["policies"]]
    lines = []
    for row in table[table["calls_saved"] != 0].head(3).to_dict("records"):
        turn = 1 if row["calls_saved"] > 0 else -1
        better, worse = shown[::turn]
        shares = []
        for call in ("alloc", "free"):
            both = (row[f"{call}_fast_share"], row[f"other_{call}_fast_share"])
            more, less = (percent(value) for value in both[::turn])
            if more and less and more != less:
                shares.append(f"{call}s {more} fast, not {less}")
        lines.append(
            f"{row['cache']}: of {row['calls']:,} calls {better} serves {abs(row['calls_saved']):,}"
            f" from the CPU's stock that {worse} does not"
            + (f" ({'; '.join(shares)})" if shares else "")
        )
    return lines


def _by_cache(caches: pd.DataFrame) -> dict[str, Counters]:
    """Calls of each cache that had any."""
    table: dict[str, Counters] = {}
    wanted = caches[caches["counter"].isin([*ALLOCS, *FREES])]
    for cache, counter, value in zip(
        wanted["cache"], wanted["counter"], wanted["value"], strict=True
    ):
        table.setdefault(cache, {})[counter] = int(value)
    return {cache: counters for cache, counters in table.items() if any(counters.values())}


def _comparable(
    first: dict[str, Counters], second: dict[str, Counters]
) -> tuple[dict[str, Counters], dict[str, Counters]]:
    """The same, kmalloc as one where the two serve it from caches of other sizes."""

    def sizes(table: Mapping[str, Counters]) -> set[str]:
        return {cache for cache in table if cache.startswith(_GENERAL)}

    if sizes(first) == sizes(second):
        return first, second
    return _folded(first), _folded(second)


def _folded(table: Mapping[str, Counters]) -> dict[str, Counters]:
    folded: dict[str, Counters] = {}
    for cache, counters in table.items():
        into = folded.setdefault("kmalloc" if cache.startswith(_GENERAL) else cache, {})
        for counter, value in counters.items():
            into[counter] = into.get(counter, 0) + value
    return folded


def _sum(counters: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(counters.get(name, 0) for name in names)


def _left_stock(counters: Mapping[str, int]) -> int:
    return _sum(counters, ALLOCS[1:]) + _sum(counters, FREES[1:])
