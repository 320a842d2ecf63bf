"""What one run of a workload gave."""

from __future__ import annotations

import dataclasses
import html
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from unislab.explanation import Explanation

__all__ = ["Result", "Seconds", "median_interval"]


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Times of passes: the first one, on an empty allocator, and those after it.

    Attributes
    ----------
    cold : float
        The first pass.
    warm : float
        Median of the others.
    low, high : float
        95 % interval of that median, from the order of the passes.
    """

    cold: float
    warm: float
    low: float
    high: float

    @property
    def interval(self) -> tuple[float, float]:
        """``low`` and ``high``."""
        return self.low, self.high

    @classmethod
    def of(cls, cold: float, passes: Sequence[float]) -> Seconds:
        """From the cold pass and all warm ones."""
        low, high = median_interval(passes)
        return cls(cold, statistics.median(passes), low, high)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of a median: two order statistics that enclose it with that probability.

    Of fewer than six values no interval has it: then the smallest and the largest.

    Examples
    --------
    >>> from unislab.result import median_interval
    >>> median_interval(range(1, 101))
    (40, 61)
    """
    ordered = sorted(values)
    n = len(ordered)
    if n > 100:  # the normal approximation of the sum below
        k = math.floor((n - 1 - 1.96 * math.sqrt(n)) / 2)
    else:
        below, k = 0.0, -1  # probability that at most k values lie below the median
        while k + 1 < n // 2 and below + math.comb(n, k + 1) * 0.5**n <= 0.025:
            k += 1
            below += math.comb(n, k) * 0.5**n
    k = max(k, 0)
    return ordered[k], ordered[n - 1 - k]


def share(part: float, whole: float) -> float | None:
    """A share, None of nothing."""
    return part / whole if whole else None


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """One policy (or another heap) under one workload.

    Attributes
    ----------
    workload, policy : str
    label : str
        What a comparison calls it, by default the policy; the column ``policy`` of tables.
    seconds : Seconds or None
        ``cold``, ``warm`` (median), ``low`` and ``high`` (its 95 % interval) of one pass; virtual
        time on a modelled machine; None for a run with a ``duration``.
    counters : mapping
        The common counters over all caches of the last warm pass, without the frees that cleaned
        up after it: the four ``alloc_*`` add up to the allocations of the workload, the four
        ``free_*`` to its frees.
    caches : DataFrame
        Columns ``policy``, ``cache``, ``counter``, ``value``: all counters of that pass by cache,
        the policy's own ones too.
    memory : mapping
        Bytes at the end of that pass: ``reserved`` = ``live`` + ``queued`` + ``free_in_slabs`` +
        ``waste``, and ``metadata``, ``resident``, ``address_range``; ``*_peak`` of each.  The peaks
        of the four parts are the largest values seen at some moments of one further pass, the
        others those since the allocator was made.
    counts : mapping
        What one pass of the workload does: ``allocs``, ``frees``, and a trace's counts.
    harness : float or None
        Seconds of a pass that allocates nothing: part of every ``seconds``, never subtracted.
    repeats : tuple of float
        Seconds of each warm pass.
    marks : int or None
        Units of work (MARK operations) done in ``elapsed``: in one pass, or in the measured part of
        a run with a ``duration``. None for a workload that marks none.
    elapsed : float or None
        Seconds of that: ``seconds.warm``, or the duration.
    explanation : Explanation or None
        Where the time went, on a modelled machine.
    rows : tuple
        What :attr:`timeline` shows.
    tunables, environment, seed, notes
        What was asked for, where it ran, and what is to be known about it.

    Examples
    --------
    >>> import unislab as us
    >>> result = us.run(us.workloads.pair(times=100), min_time="10 ms")
    >>> result.counters["alloc_fast"] + result.counters["alloc_slow"], result.memory["live"]
    (100, 0)
    >>> result.seconds.low <= result.seconds.warm <= result.seconds.high
    True
    """

    workload: str
    policy: str
    seconds: Seconds | None
    counters: Mapping[str, int]
    caches: pd.DataFrame
    memory: Mapping[str, int]
    counts: Mapping[str, int]
    environment: Mapping[str, Any]
    seed: int = 0
    harness: float | None = None
    repeats: tuple[float, ...] = ()
    tunables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    label: str = ""
    marks: int | None = None
    elapsed: float | None = None
    explanation: Explanation | None = None
    rows: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.policy)

    def __reduce__(self) -> tuple[Any, ...]:
        # Mappings that are views of others cannot be pickled.
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return Result, tuple(dict(f) if isinstance(f, Mapping) else f for f in fields)

    @property
    def rate(self) -> float | None:
        """Units of work (``marks``) a second; None when there are none or no time is known.

        Examples
        --------
        >>> import unislab as us
        >>> result = us.run(us.workloads.pair(), min_time="1 ms")
        >>> result.marks, result.rate
        (None, None)
        """
        return self.marks / self.elapsed if self.marks is not None and self.elapsed else None

    @property
    def fast_share(self) -> tuple[float | None, float | None]:
        """Shares of the allocations and of the frees that the CPU's own stock served.

        Examples
        --------
        >>> import unislab as us
        >>> us.run(us.workloads.pair(), min_time="10 ms").fast_share
        (1.0, 1.0)
        """
        made = sum(v for k, v in self.counters.items() if k.startswith("alloc_"))
        freed = sum(v for k, v in self.counters.items() if k.startswith("free_"))
        return (
            share(self.counters.get("alloc_fast", 0), made),
            share(self.counters.get("free_fast", 0), freed),
        )

    def why(self, other: Result) -> pd.DataFrame:
        """Where another modelled run spent more or less time, the largest difference first.

        Columns ``view``, ``what``, the two labels and ``difference`` (the other less this one), in
        ns a MARK, or an allocation where there are no marks (``frame.attrs["unit"]``). The rows of
        view ``time`` add up to all time of all CPUs, with idleness last, since it follows from the
        others; those of view ``lines`` say how much went to getting cache lines, and from where.

        Raises
        ------
        ValueError
            One of them ran on this machine, where nobody can say what time went to.

        Examples
        --------
        >>> import unislab as us
        >>> machine = us.Machine.grid(2, 1, 2)
        >>> w = us.workloads.batch(64)
        >>> slab, slub = (us.run(w, policy, machine=machine) for policy in ("slab", "slub"))
        >>> list(slab.why(slub).columns)
        ['view', 'what', 'slab', 'slub', 'difference']
        """
        from unislab.explanation import why

        return why(self, other)

    @property
    def timeline(self) -> pd.DataFrame | None:
        """Memory over virtual time, of a modelled run with ``timeline=``; else None.

        Columns ``seconds``, ``live``, ``queued``, ``free_in_slabs``, ``reserved``, ``metadata``
        (bytes), ``slabs`` and ``marks`` (so far).

        Examples
        --------
        >>> import unislab as us
        >>> machine = us.Machine.grid(1, 1, 1)
        >>> r = us.run(us.workloads.batch(64), machine=machine, timeline="1 us")
        >>> int(r.timeline["live"].max()) > 0
        True
        """
        import pandas as pd

        if not self.rows:
            return None
        names = ["seconds", "live", "queued", "free_in_slabs", "reserved", "metadata"]
        frame = pd.DataFrame(self.rows, columns=[*names, "slabs", "marks"])
        frame["seconds"] *= 1e-9
        return frame

    def plot_timeline(self, ax: Axes | None = None) -> Axes:
        """Plot what reserved memory consisted of over virtual time.

        Raises
        ------
        ValueError
            The run had no ``timeline=``.

        Examples
        --------
        >>> import unislab as us
        >>> machine = us.Machine.grid(1, 1, 1)
        >>> r = us.run(us.workloads.batch(64), machine=machine, timeline="1 us")
        >>> r.plot_timeline().get_ylabel()
        'KiB'
        """
        import matplotlib.pyplot as plt

        frame = self.timeline
        if frame is None:
            raise ValueError(
                f"{self.label} has no timeline; give timeline='1 ms' to run() on a machine"
            )
        ax = ax or plt.subplots()[1]
        parts = ["live", "queued", "free_in_slabs"]
        ax.stackplot(frame["seconds"], *(frame[p] / 1024 for p in parts), labels=parts, step="post")
        ax.step(frame["seconds"], frame["reserved"] / 1024, where="post", label="reserved")
        ax.set(xlabel="virtual time, s", ylabel="KiB", title=f"{self.workload} under {self.label}")
        ax.legend(loc="upper left", fontsize="small")
        return ax

    def to_frame(self) -> pd.DataFrame:
        """Every number, as a long table: ``workload, policy, quantity, unit, value``.

        Examples
        --------
        >>> import unislab as us
        >>> frame = us.run(us.workloads.pair(), min_time="10 ms").to_frame()
        >>> sorted(set(frame["unit"]))
        ['acquisitions', 'bytes', 'calls', 'flushes', 'objects', 's', 'slabs']
        """
        import pandas as pd

        rows: list[tuple[str, str, float]] = []
        if self.seconds:
            rows += [(k, "s", v) for k, v in dataclasses.asdict(self.seconds).items()]
        if self.harness is not None:
            rows.append(("harness", "s", self.harness))
        if self.marks is not None:
            rows.append(("marks", "marks", self.marks))
        if self.rate is not None:
            rows.append(("rate", "marks/s", self.rate))
        rows += [(k, _unit(k), v) for k, v in self.counters.items()]
        rows += [(k, "bytes", v) for k, v in self.memory.items()]
        frame = pd.DataFrame(rows, columns=["quantity", "unit", "value"])
        frame.insert(0, "policy", self.label)
        frame.insert(0, "workload", self.workload)
        return frame

    def __repr__(self) -> str:
        parts = [f"{self.workload} under {shown_name(self.label, self.policy, self.tunables)}"]
        if self.seconds:
            parts.append(
                f"{duration(self.seconds.warm)} a pass ({duration(self.seconds.low)} to "
                f"{duration(self.seconds.high)}), cold {duration(self.seconds.cold)}"
            )
        if self.rate is not None:
            parts.append(f"{self.rate:,.0f} marks a second")
        for share_, what in zip(self.fast_share, ("allocations", "frees"), strict=True):
            if share_ is not None:
                parts.append(f"{share_:.1%} of {what} fast")
        if "reserved_peak" in self.memory:
            parts.append(f"{self.memory['reserved_peak'] / 1024:,.0f} KiB reserved at peak")
        return f"<Result {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        table = self.to_frame().drop(columns=["workload", "policy"]).to_html(index=False)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p><b>Result</b> {html.escape(repr(self)[8:-1])}</p>{table}{notes}"


_UNITS = {
    "slab_new": "slabs",
    "slab_free": "slabs",
    "flush": "flushes",
    "expire_objects": "objects",
    "objects_moved": "objects",
}


def _unit(counter: str) -> str:
    """What a common counter counts."""
    return "acquisitions" if counter.startswith("lock_") else _UNITS.get(counter, "calls")


def shown_name(label: str, policy: str, tunables: Mapping[str, Any]) -> str:
    """A label as people see it: what is reconstructed says so."""
    from unislab.inspect.policies import is_reconstructed

    if is_reconstructed(policy, tunables) and "reconstructed" not in label:
        return f"{label} (reconstructed)"
    return label


def duration(seconds: float) -> str:
    """Seconds as people read them.

    >>> from unislab.result import duration
    >>> duration(0.00123), duration(12.0), duration(3.2e-7)
    ('1.23 ms', '12 s', '320 ns')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
