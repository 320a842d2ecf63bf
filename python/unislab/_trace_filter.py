"""Which rows of a trace :meth:`unislab.Trace.filter` keeps, and which names rows use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unislab._trace_columns import ALLOC, FREE
from unislab.arguments import several, whole
from unislab.errors import unknown_name

if TYPE_CHECKING:
    from unislab.trace import Trace

_KINDS = {"alloc": ALLOC, "free": FREE, ALLOC: ALLOC, FREE: FREE}


def chosen(
    trace: Trace,
    caches: str | Iterable[str] | None,
    cpus: int | Iterable[int] | None,
    kinds: str | Iterable[str] | None,
) -> NDArray[np.bool_]:
    """The rows that meet all that is given, as a mask."""
    keep = np.ones(len(trace), dtype=bool)
    if caches is not None:
        keep &= _in_caches(trace, caches)
    if cpus is not None:
        keep &= _on_cpus(trace, cpus)
    if kinds is not None:
        keep &= _of_kinds(trace, kinds)
    return keep


def _in_caches(trace: Trace, caches: str | Iterable[str]) -> NDArray[np.bool_]:
    from unislab._trace_describe import cache_labels

    group, names = cache_labels(trace.columns, trace.caches)
    keep = np.zeros(len(trace), dtype=bool)
    for name in [str(c) for c in several("caches", caches, "names")]:
        if name not in names:
            raise unknown_name("cache of this trace", name, names)
        if name in trace.caches:
            keep |= trace.columns["cache"] == trace.caches.index(name)
        keep |= np.isin(group, [i for i, known in enumerate(names) if known == name])
    return keep


def _on_cpus(trace: Trace, cpus: int | Iterable[int]) -> NDArray[np.bool_]:
    one = hasattr(cpus, "__index__")
    given = (cpus,) if one else several("cpus", cpus, "a number or numbers")
    wanted = [whole("a CPU", cpu, 0, 2**31 - 1, "numbers from 0") for cpu in given]
    if absent := sorted(set(wanted) - set(trace.cpus)):
        raise ValueError(f"no event on CPU {absent[0]}: this trace has CPUs {list(trace.cpus)}")
    return np.isin(trace.columns["cpu"], wanted)


def _of_kinds(trace: Trace, kinds: str | Iterable[str]) -> NDArray[np.bool_]:
    codes = []
    for kind in several("kinds", kinds, "'alloc' or 'free'"):
        if kind not in _KINDS:
            raise ValueError(f"unknown kind {kind!r}: expected 'alloc' or 'free'")
        codes.append(_KINDS[kind])
    return np.isin(trace.columns["kind"], codes)


def used(ids: NDArray[Any], names: tuple[str, ...]) -> tuple[NDArray[Any], list[str]]:
    """Leave out the names that no row uses."""
    present = np.unique(ids[ids >= 0])
    fresh = np.full(len(names) + 1, -1, dtype=ids.dtype)
    fresh[present] = np.arange(len(present))
    return fresh[ids], [names[i] for i in present]
