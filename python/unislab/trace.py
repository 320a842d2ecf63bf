"""Traces of kernel allocations: read, look at, cut, combine.

A :class:`Trace` holds what the kernel's ``kmem`` events told: one row per successful allocation and
per free, in the order of the lines.  It is read from the text that ftrace, ``trace-cmd report`` or
``perf script`` print, by a native reader that also finds which free ends which allocation.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from unislab import _native, _trace_store
from unislab import _trace_columns as _columns
from unislab._trace_columns import COLUMN_DTYPES, OPS_DTYPE
from unislab._trace_filter import chosen, used
from unislab._trace_open import TraceFormatError, TraceSource, open_text, shorten, source_name
from unislab.arguments import real, whole
from unislab.errors import unknown_name

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GFP", "OPS_DTYPE", "Trace", "TraceFormatError"]

#: Bits of the ``gfp`` column by name, such as ``GFP["ZERO"]``.  Numbers in a trace are decoded with
#: the values of 6.x kernels.
GFP: Mapping[str, int] = MappingProxyType(dict(_native.TRACE_GFP))

_WITHOUT_ROWS = ("allocs_failed", "frees_null", "lost_events", "other_events")


class Trace:
    """A kernel allocation trace.

    Made by :meth:`read`, :meth:`load`, :meth:`from_frame` or ``unislab.datasets.load``; not changed
    afterwards.  ``len(trace)`` is the number of rows.  ``trace[1000:2000]`` is a part by rows,
    ``trace["cpu"]`` a column.

    A part of a trace stands on its own: frees of objects allocated outside of it become unknown
    frees, objects freed outside of it are live at its end, and events that have no row (failed
    allocations, frees of NULL, lost and other events) are in no part.

    Attributes
    ----------
    counts : mapping
        ``events`` (= allocs + allocs_failed + frees), ``allocs`` (successful), ``allocs_failed``,
        ``frees`` (all), ``frees_matched``, ``frees_unknown`` (an address with no live allocation in
        the trace), ``frees_null``, ``implied_frees`` (an allocation of an address that is live),
        ``remote_frees`` (matched, on another CPU than the allocation), ``live_at_end``,
        ``lost_events`` (sum of the printed numbers), ``other_events``.
    columns : mapping of read-only arrays
        ``time_ns``, ``cpu``, ``pid``, ``kind`` (1 allocation, 2 free), ``cache`` (index into
        :attr:`caches`), ``object`` (number of the allocation made or ended, -1 for unknown),
        ``implied`` (the object whose unseen free this allocation implies, or -1), ``bytes_req``,
        ``bytes_alloc``, ``gfp`` (bits of ``unislab.trace.GFP``), ``node`` (-1 any), ``accounted``
        (1, 0, -1 not printed), ``call_site`` (index into :attr:`call_sites`).  Times may step back
        where a tool merged the buffers of several CPUs; nothing depends on their order.
    caches, call_sites : tuple of str
        Names.  Every kmalloc has the name ``kmalloc``.  Kernels before 6.18 print no name with an
        allocation: it is taken from the frees of the same objects or of the same call site and
        sizes, and where there is none it is ``unnamed-<object size>``.
    other_events_by_name : mapping
        Events that allocate or free no object.
    skipped : int
        Lines that ``lenient`` reading skipped; ``first_skipped`` is the first, as an error.
    lost_marks : int
        Lines that say that events were lost; ftrace does not always print how many.
    format : str or None
        ``ftrace``, ``trace-cmd`` or ``perf``; None if no event was read.
    source : str
        Where it came from.

    Examples
    --------
    >>> import io
    >>> import unislab as us
    >>> trace = us.Trace.read(io.StringIO('''\\
    ... # tracer: nop
    ...     bash-12 [000] d..1. 5.000001: kmalloc: ptr=0xa0 bytes_req=28 bytes_alloc=32
    ...     bash-12 [001] d..1. 5.000003: kfree: ptr=0xa0
    ... '''))
    >>> trace.counts["allocs"], trace.counts["remote_frees"]
    (1, 1)
    """

    __slots__ = (
        "caches",
        "call_sites",
        "columns",
        "counts",
        "first_skipped",
        "format",
        "lost_marks",
        "other_events_by_name",
        "skipped",
        "source",
    )

    columns: Mapping[str, NDArray[Any]]
    counts: Mapping[str, int]
    caches: tuple[str, ...]
    call_sites: tuple[str, ...]
    other_events_by_name: Mapping[str, int]
    skipped: int
    first_skipped: TraceFormatError | None
    lost_marks: int
    format: str | None
    source: str

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        caches: Iterable[str],
        call_sites: Iterable[str],
        *,
        source: str = "",
        format: str | None = None,
        counts: Mapping[str, int] | None = None,
        other_events: Mapping[str, int] | None = None,
        lost_marks: int = 0,
        skipped: int = 0,
        first_skipped: TraceFormatError | None = None,
    ) -> None:
        arrays = {name: columns[name].view() for name in COLUMN_DTYPES}
        for array in arrays.values():
            array.flags.writeable = False
        self.columns = MappingProxyType(arrays)
        self.caches = tuple(caches)
        self.call_sites = tuple(call_sites)
        self.counts = MappingProxyType(dict(counts or _columns.count(arrays)))
        self.other_events_by_name = MappingProxyType(dict(other_events or {}))
        self.lost_marks = lost_marks
        self.skipped = skipped
        self.first_skipped = first_skipped
        self.format = format
        self.source = source

    # ---- reading and writing ---------------------------------------------------------------

    @classmethod
    def read(
        cls, source: TraceSource, *, lenient: bool = False, format: str | None = None
    ) -> Trace:
        """Read the text of ftrace, ``trace-cmd report`` or ``perf script``.

        Parameters
        ----------
        source : path, "-" or file object
            ``"-"`` is the standard input.  Plain text, or packed by gzip, xz, zstd or bzip2, which
            is told by content.
        lenient : bool
            Skip and count lines that are no events instead of raising.
        format : {"ftrace", "trace-cmd", "perf"}, optional
            Take only lines of this form.  By default every line is taken as it comes.

        Raises
        ------
        TraceFormatError
            The file is no printed trace (empty, a binary recording, cut), or a line is no event.
        OSError
            As ``open`` raises, such as ``FileNotFoundError``.

        Examples
        --------
        >>> import unislab as us
        >>> us.Trace.read("no-such-file")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'no-such-file'
        """
        reader = _native.TraceReader(lenient=lenient, format=format)
        name = source_name(source)
        try:
            with open_text(source) as pieces:
                for piece in pieces:
                    reader.feed(piece)
            result = reader.finish()
        except TraceFormatError:
            raise
        except ValueError as error:
            if reader.error is None:
                raise
            raise _line_error(name, reader.error) from error
        skipped = result["first_skipped"]
        first_skipped = None if skipped is None else _line_error(name, skipped)
        if first_skipped and not result["counts"]["events"] and not result["other_events"]:
            raise TraceFormatError(
                name, None, None, f"holds no event, all lines were skipped; {first_skipped.problem}"
            )
        return cls(
            {
                column: np.frombuffer(result["columns"][column], dtype)
                for column, dtype in COLUMN_DTYPES.items()
            },
            result["caches"],
            result["call_sites"],
            source=name,
            format=result["format"],
            counts=result["counts"],
            other_events=result["other_events"],
            lost_marks=result["lost_marks"],
            skipped=result["lines_skipped"],
            first_skipped=first_skipped,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as a compressed numpy archive, exactly to ``path``.

        Examples
        --------
        >>> import os, tempfile
        >>> import unislab as us
        >>> trace = us.datasets.load("tcp_rr")[:1000]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "part.npz")
        ...     trace.save(path)
        ...     us.Trace.load(path).counts == trace.counts
        True
        """
        _trace_store.save(path, self.columns, self._about())

    @classmethod
    def load(cls, path: str | os.PathLike[str] | BinaryIO) -> Trace:
        """Read what :meth:`save` wrote.

        Raises
        ------
        TraceFormatError
            The file is something else.

        Examples
        --------
        >>> import io
        >>> import unislab as us
        >>> us.Trace.load(io.BytesIO(b"something else"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        unislab._trace_open.TraceFormatError: <BytesIO>: ...
        """
        columns, about = _trace_store.load(path)
        return cls(columns, **about)

    # ---- tables ----------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """All rows as a DataFrame: the columns, with names for kinds, caches and call sites.

        The counts that no row tells are in ``frame.attrs["unislab"]``.

        Examples
        --------
        >>> import unislab as us
        >>> trace = us.datasets.load("tcp_rr")
        >>> frame = trace.to_frame()
        >>> us.Trace.from_frame(frame).counts == trace.counts
        True
        """
        import pandas as pd

        frame = pd.DataFrame(dict(self.columns))
        frame["kind"] = pd.Categorical.from_codes(frame["kind"] - 1, ["alloc", "free"])
        frame["cache"] = pd.Categorical.from_codes(frame["cache"], list(self.caches))
        frame["call_site"] = pd.Categorical.from_codes(frame["call_site"], list(self.call_sites))
        frame.attrs["unislab"] = {
            "rows": len(self),
            "counts": {name: self.counts[name] for name in _WITHOUT_ROWS},
            "other_events": dict(self.other_events_by_name),
            "source": self.source,
            "format": self.format,
        }
        return frame

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Trace:
        """Make a trace of a table with one row an event, in the order of the events.

        Parameters
        ----------
        frame : DataFrame
            Needed: ``time_ns``, ``cpu``, ``kind`` ("alloc" or "free", 1 or 2), ``object`` (any
            label from 0; negative or missing on a free of an object that the table does not
            allocate), ``cache`` and ``bytes_req``.  Others of :attr:`columns` are optional,
            ``bytes_alloc`` is ``bytes_req`` by default.

        Raises
        ------
        ValueError
            A column is missing, or an object is freed twice or before its allocation.

        Examples
        --------
        >>> import pandas as pd
        >>> import unislab as us
        >>> us.Trace.from_frame(pd.DataFrame({
        ...     "time_ns": [0, 500], "cpu": [0, 1], "kind": ["alloc", "free"], "object": [7, 7],
        ...     "cache": "dentry", "bytes_req": 192,
        ... })).counts["remote_frees"]
        1
        """
        from unislab._trace_frame import columns_of_frame

        columns, caches, call_sites = columns_of_frame(frame)
        kept = frame.attrs.get("unislab", {})
        counts = _columns.count(columns)
        if kept.get("rows") != len(frame):
            return cls(columns, caches, call_sites, counts=counts)
        counts |= kept["counts"]
        counts["frees"] += counts["frees_null"]
        counts["events"] += counts["frees_null"] + counts["allocs_failed"]
        return cls(
            columns,
            caches,
            call_sites,
            counts=counts,
            other_events=kept["other_events"],
            source=kept["source"],
            format=kept["format"],
        )

    def describe(self) -> pd.DataFrame:
        """One row a cache, most allocations first; kmalloc by stride, as ``kmalloc-64``.

        Columns: ``allocs``, ``frees`` (matched), ``implied_frees``, ``frees_unknown`` (where the
        event names the cache), ``bytes_req_min``, ``bytes_req_median``, ``bytes_req_max``,
        ``live_peak`` (objects), ``bytes_peak`` (their strides), ``lifetime_median_us`` and
        ``remote_share`` (of matched frees), ``accounted_share`` (of allocations that say so).

        Examples
        --------
        >>> import unislab as us
        >>> trace = us.datasets.load("tcp_rr")
        >>> int(trace.describe()["allocs"].sum()) == trace.counts["allocs"]
        True
        """
        from unislab._trace_describe import describe

        return describe(self)

    # ---- parts and combinations ------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.columns["kind"])

    @overload
    def __getitem__(self, key: str) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, key: slice) -> Trace: ...
    def __getitem__(self, key: str | slice) -> NDArray[Any] | Trace:
        if isinstance(key, str):
            if key not in self.columns:
                raise unknown_name("column of a trace", key, self.columns)
            return self.columns[key]
        if not isinstance(key, slice):
            raise TypeError(
                f"a trace is indexed by a slice of rows or by a column name, not by {key!r}"
            )
        if key.step not in (None, 1):
            raise ValueError(f"a part of a trace is contiguous: step {key.step} is not 1")
        return self._part(key)

    def between(self, start: float, stop: float) -> Trace:
        """The rows from ``start`` up to, not including, ``stop``, in seconds after the first event.

        Examples
        --------
        >>> import unislab as us
        >>> trace = us.datasets.load("bursts")
        >>> trace.between(0, 5).duration <= 5
        True
        """
        start = real("start of a part", start, "seconds")
        stop = real("end of a part", stop, "seconds")
        if not start <= stop:
            raise ValueError(f"between({start}, {stop}): the first time must not exceed the second")
        seconds = (self.columns["time_ns"] - self._first_ns()) / 1e9
        return self._part(np.flatnonzero((seconds >= start) & (seconds < stop)))

    def filter(
        self,
        *,
        caches: str | Iterable[str] | None = None,
        cpus: int | Iterable[int] | None = None,
        kinds: str | Iterable[str] | None = None,
    ) -> Trace:
        """The rows of some caches, CPUs or kinds ("alloc", "free").

        ``caches`` takes names as :attr:`caches` and as :meth:`describe` give them: ``kmalloc`` is
        all of kmalloc, ``kmalloc-64`` what has that stride.

        Examples
        --------
        >>> import unislab as us
        >>> us.datasets.load("tcp_rr").filter(caches="skbuff_head_cache").caches
        ('skbuff_head_cache',)
        """
        keep = chosen(self, caches, cpus, kinds)
        return self._part(np.flatnonzero(keep))

    def scale(self, cpus: int, *, spread: float = 0.0, seed: int = 0) -> Trace:
        """Lay copies of the trace over more CPUs.

        Copy ``k`` runs on CPUs ``k * n`` to ``k * n + n - 1``, where ``n`` is the highest CPU of
        the trace plus one, and has objects of its own; caches are common to all.

        Parameters
        ----------
        cpus : int
            CPUs of the result, a multiple of ``n``.
        spread : float
            Each copy but the first starts up to this many seconds late, at a moment drawn with
            ``seed``.

        Examples
        --------
        >>> import unislab as us
        >>> trace = us.datasets.load("tcp_rr")
        >>> len(trace.scale(cpus=8).cpus)
        8
        """
        width = max(self.cpus, default=0) + 1
        multiple = f"a multiple of {width}, the trace has CPUs 0 to {width - 1}"
        cpus = whole("cpus", cpus, -(2**63), 2**31 - 1, multiple)
        if cpus < width or cpus % width:
            raise ValueError(f"cpus={cpus}: expected {multiple}")
        seed = whole("seed", seed, 0, 2**64 - 1, "0 to 2**64 - 1")
        if not real("spread={}", spread, "seconds, 0 or more") >= 0:
            raise ValueError(f"spread={spread}: expected seconds, 0 or more")
        number = cpus // width
        shifts = np.random.default_rng(seed).uniform(0, spread * 1e9, number).astype(np.int64)
        shifts[0] = 0
        columns = _columns.copies(self.columns, shifts, width)
        return Trace(
            columns,
            self.caches,
            self.call_sites,
            source=f"{self.source} x {number}",
            format=self.format,
            counts={name: count * number for name, count in self.counts.items()},
            other_events={n: count * number for n, count in self.other_events_by_name.items()},
            lost_marks=self.lost_marks * number,
        )

    def ops(self, implied: str = "before", seed: int = 0) -> NDArray[np.void]:
        """The operations of a replay, in order.

        Frees of unknown objects are left out.  Implied frees are rows of their own (``implied`` 1),
        on the CPU that allocates the address again.

        Parameters
        ----------
        implied : {"before", "spread"}
            Just before the allocation that implies the free, or at a random event between the
            object's own allocation and that one, drawn with ``seed``.

        Returns
        -------
        structured array of ``unislab.trace.OPS_DTYPE``

        Examples
        --------
        >>> import unislab as us
        >>> trace = us.datasets.load("fork")
        >>> ops = trace.ops()
        >>> int(ops["implied"].sum()) == trace.counts["implied_frees"]
        True
        """
        seed = whole("seed", seed, 0, 2**64 - 1, "0 to 2**64 - 1")
        return _columns.operations(self.columns, implied, seed)

    # ---- what it is ------------------------------------------------------------------------

    @property
    def duration(self) -> float:
        """Seconds from the first time stamp to the last.

        Examples
        --------
        >>> import unislab as us
        >>> round(us.datasets.load("bursts").duration)
        39
        """
        times = self.columns["time_ns"]
        return float((times.max() - times.min()) / 1e9) if len(times) else 0.0

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that have events.

        Examples
        --------
        >>> import unislab as us
        >>> us.datasets.load("fork").cpus
        (0, 1)
        """
        return tuple(np.unique(self.columns["cpu"]).tolist())

    @property
    def implied_share(self) -> float:
        """Share of the allocations that imply an unseen free: bulk and RCU frees print no event.

        Examples
        --------
        >>> import unislab as us
        >>> trace = us.datasets.load("files")
        >>> trace.implied_share == trace.counts["implied_frees"] / trace.counts["allocs"]
        True
        """
        return self.counts["implied_frees"] / max(self.counts["allocs"], 1)

    def __repr__(self) -> str:
        return f"<Trace {self._summary()}>"

    def _repr_html_(self) -> str:
        table = self.describe()
        rows = [f"<p><b>Trace</b> {html.escape(self._summary())}</p>", table.head(12).to_html()]
        if len(table) > 12:
            rows.append(f"<p>and {len(table) - 12} more caches: describe()</p>")
        return "".join(rows)

    def _summary(self) -> str:
        name = os.path.basename(self.source) or "made"
        lost = f", {self.counts['lost_events']} events lost" if self.lost_marks else ""
        return (
            f"{name}: {self.counts['events']} events, {len(self.cpus)} CPUs, "
            f"{self._groups()}, {self.duration:.3g} s, "
            f"{self.implied_share:.1%} implied frees{lost}"
        )

    def _groups(self) -> str:
        """How many caches there are, sizes of kmalloc apart: the rows of :meth:`describe`."""
        from unislab._trace_describe import count_groups

        caches, sizes = count_groups(self)
        text = f"{caches} {'cache' if caches == 1 else 'caches'}"
        if sizes:
            text += f" and {sizes} {'size' if sizes == 1 else 'sizes'} of kmalloc"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self.columns), self._about())

    def _about(self) -> dict[str, Any]:
        """All but the columns, as arguments of the constructor."""
        return {
            "caches": self.caches,
            "call_sites": self.call_sites,
            "source": self.source,
            "format": self.format,
            "counts": dict(self.counts),
            "other_events": dict(self.other_events_by_name),
            "lost_marks": self.lost_marks,
            "skipped": self.skipped,
        }

    def _first_ns(self) -> int:
        times = self.columns["time_ns"]
        return int(times.min()) if len(times) else 0

    def _part(self, rows: slice | NDArray[Any]) -> Trace:
        columns = _columns.select(self.columns, rows)
        columns["cache"], caches = used(columns["cache"], self.caches)
        columns["call_site"], call_sites = used(columns["call_site"], self.call_sites)
        return Trace(columns, caches, call_sites, source=self.source, format=self.format)


def _restore(columns: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> Trace:
    return Trace(columns, **about)


def _line_error(name: str, error: tuple[int, bytes, str, bool]) -> TraceFormatError:
    number, line, expected, cut = error
    problem = f"expected {expected}"
    if cut:
        problem += "; the text ends within this line, the file may have been cut"
    return TraceFormatError(name, number, shorten(line), problem)
