"""Statistics: frozen snapshots of counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from unislab.errors import unknown_name

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from unislab.allocator_base import AllocatorBase
    from unislab.cache import Cache

__all__ = ["Stats", "allocator_stats", "cache_stats", "common_counters", "lock_counts"]

#: Of the extension module: name, help, the common counter it feeds and the one it is taken from.
CounterRow = tuple[str, str, str, str]

_ALLOC = ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote")
_FREE = ("free_fast", "free_second_level", "free_slow", "free_remote")


class Stats(Mapping[str, int]):
    """Counters at one moment, summed over CPUs; mapping and attributes.

    The first rows are the *common counters*, the same for every policy: each allocation is in
    exactly one of ``alloc_fast``, ``alloc_second_level``, ``alloc_slow``, ``alloc_remote``, each
    free in exactly one of the four ``free_*``. A cache's snapshot continues with the policy's own
    counters under their historical names, an allocator's with ``lock_acquired_*`` and
    ``lock_contended_*`` by class of lock: ``shared`` (a stock that several CPUs share), ``alien``
    (one of another node's objects), ``slab`` (one slab), ``node`` (a node's lists of slabs),
    ``pages`` (the page provider), ``meta`` (memory for tables and stocks), ``control`` (one CPU,
    whose stock is drained from afar), ``config`` and ``stats`` (caches made, tuned, read).

    Subtracting an earlier snapshot gives what happened between the two.

    Attributes
    ----------
    allocs, frees : int
        Sums of the four common counters of each.
    per_cpu : numpy.ndarray
        Structured, one row a CPU, one field a counter.

    Examples
    --------
    >>> import unislab as us
    >>> alloc = us.Allocator()
    >>> cache = alloc.create_cache("pair", 16)
    >>> before = cache.stats()
    >>> cache.free_bulk(cache.alloc_bulk(100))
    >>> change = cache.stats() - before
    >>> change.allocs, change["frees"] if "frees" in change else change.frees
    (100, 100)
    >>> int(change.per_cpu["alloc_fast"].sum()) == change.alloc_fast
    True
    >>> alloc.close()
    """

    __slots__ = ("_counts", "_helps", "_locks", "_names", "_of", "_total")

    _names: tuple[str, ...]
    _counts: NDArray[np.int64]
    _locks: dict[str, int]
    _helps: dict[str, str]
    _of: str
    _total: dict[str, int]

    def __init__(
        self,
        names: tuple[str, ...],
        counts: NDArray[np.int64],
        locks: Mapping[str, int],
        helps: Mapping[str, str],
        of: str,
    ) -> None:
        total = dict(zip(names, counts.sum(axis=0, dtype="int64").tolist(), strict=True))
        counts.flags.writeable = False
        values = {
            "_names": names,
            "_counts": counts,
            "_locks": dict(locks),
            "_helps": dict(helps),
            "_of": of,
            "_total": total | dict(locks),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # ---- mapping and attributes -------------------------------------------------------------

    def __getitem__(self, name: str) -> int:
        try:
            return self._total[name]
        except KeyError:
            raise unknown_name("counter", name, self._total) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._total)

    def __len__(self) -> int:
        return len(self._total)

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("statistics are a snapshot: they cannot be changed")

    __delattr__ = None  # type: ignore[assignment]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def __reduce__(self) -> tuple[Any, ...]:
        return Stats, (self._names, self._counts, self._locks, self._helps, self._of)

    @property
    def allocs(self) -> int:
        """Successful allocations, objects of bulk calls counted singly."""
        return sum(self[name] for name in _ALLOC)

    @property
    def frees(self) -> int:
        """Frees, objects of bulk calls counted singly."""
        return sum(self[name] for name in _FREE)

    @property
    def per_cpu(self) -> NDArray[np.void]:
        """Structured array: one row a CPU, one ``int64`` field a counter."""
        import numpy as np

        dtype = np.dtype([(name, np.int64) for name in self._names])
        array: NDArray[np.void] = np.ascontiguousarray(self._counts).view(dtype)[:, 0]
        return array

    # ---- differences and tables -------------------------------------------------------------

    def __sub__(self, earlier: Stats) -> Stats:
        if not isinstance(earlier, Stats):
            return NotImplemented
        if self._names != earlier._names or self._counts.shape != earlier._counts.shape:
            raise ValueError(
                f"cannot subtract statistics of {earlier._of} from those of {self._of}: "
                "they have different counters or CPUs"
            )
        locks = {name: count - earlier._locks.get(name, 0) for name, count in self._locks.items()}
        return Stats(self._names, self._counts - earlier._counts, locks, self._helps, self._of)

    def to_frame(self, per_cpu: bool = False) -> pd.DataFrame:
        """The counters as a table.

        Parameters
        ----------
        per_cpu : bool
            One row for each counter and CPU instead of one for each counter.

        Returns
        -------
        pandas.DataFrame
            ``counter``, ``count`` and ``help``, or ``counter``, ``cpu`` and ``count``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     frame = alloc.create_cache("pair", 16).stats().to_frame()
        >>> frame.columns.tolist()
        ['counter', 'count', 'help']
        """
        import pandas as pd

        if not per_cpu:
            rows = [(name, count, self._helps.get(name, "")) for name, count in self.items()]
            return pd.DataFrame(rows, columns=["counter", "count", "help"])
        cpus = range(self._counts.shape[0])
        columns = zip(self._names, self._counts.T.tolist(), strict=True)
        long = [(name, cpu, row[cpu]) for name, row in columns for cpu in cpus]
        return pd.DataFrame(long, columns=["counter", "cpu", "count"])

    def __repr__(self) -> str:
        def share(total: int, fast: int) -> str:
            return f"{total}" + (f" ({100 * fast / total:.1f}% fast)" if total > 0 else "")

        return (
            f"<Stats of {self._of}: allocs {share(self.allocs, self.alloc_fast)}, "
            f"frees {share(self.frees, self.free_fast)}>"
        )

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        return str(frame[frame["count"] != 0].to_html(index=False))


def _rows(core: Any, policy: str) -> tuple[dict[str, str], int]:
    """Names and helps of all counters, and how many of them are the common ones."""
    rows: list[CounterRow]
    rows, common, _hidden = core._policy_counters(policy)
    return {name: help_ for name, help_, _feeds, _less in rows}, common


def common_counters(allocator: AllocatorBase) -> tuple[str, ...]:
    """Names of the counters that every policy has."""
    rows, common = _rows(allocator._core, allocator.policy)
    return tuple(rows)[:common]


def lock_counts(allocator: AllocatorBase) -> dict[str, int]:
    """How often locks were taken and found taken, by class."""
    counts = {}
    for name, acquired, contended in allocator._locks():
        counts[f"lock_acquired_{name}"] = acquired
        counts[f"lock_contended_{name}"] = contended
    return counts


def cache_stats(cache: Cache, exact: bool) -> Stats:
    """What :meth:`Cache.stats <unislab.Cache.stats>` returns."""
    import numpy as np

    rows, _ = _rows(cache.allocator._core, cache.policy)
    counts = np.frombuffer(cache._stats(exact), np.int64).reshape(-1, len(rows))
    return Stats(tuple(rows), counts, {}, rows, repr(cache.name))


def allocator_stats(allocator: AllocatorBase, exact: bool) -> Stats:
    """What :meth:`Allocator.stats <unislab.Allocator.stats>` returns: common counters and locks."""
    import numpy as np

    rows, common = _rows(allocator._core, allocator.policy)
    words = allocator._each(lambda cache: cache._stats(exact))
    counts = np.add.reduce(
        [
            np.frombuffer(each, np.int64).reshape(-1, len(rows))[:, :common]
            for each in words.values()
        ]
    )
    helps = dict(list(rows.items())[:common])
    of = f"{allocator.policy} allocator"
    return Stats(tuple(helps), counts, lock_counts(allocator), helps, of)
