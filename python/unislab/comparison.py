"""What a comparison of policies found, and how it says so."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unislab._contributions import contributions, reasons
from unislab._explain import ALLOCS, FREES, explain, lock_totals
from unislab.result import Result, duration, median_interval, share, shown_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Comparison", "ratio_interval"]

_RESAMPLES = 2000
_COMMON = (
    *ALLOCS,
    *FREES,
    "slab_new",
    "slab_free",
    "flush",
    "expire_objects",
    "objects_moved",
)
#: Columns of the summary that a page shows.
_SHOWN = [
    "warm_s",
    "low_s",
    "high_s",
    "cold_s",
    "ratio",
    "ratio_low",
    "ratio_high",
    "alloc_fast_share",
    "free_fast_share",
    "lock_acquired",
    "lock_contended",
    "reserved_peak_bytes",
]
_ACCOUNTS = ("reserved", "live", "queued", "free_in_slabs", "waste", "metadata", "resident")


def ratio_interval(
    above: Sequence[float], below: Sequence[float], seed: int = 0
) -> tuple[float, float, float]:
    """Ratio of two medians with its 95 % interval, from rounds in which both took part.

    Rounds are drawn again with replacement, the same ones for both, so that what disturbed a whole
    round disturbs neither side alone.

    Parameters
    ----------
    above, below : sequences of one length
        Seconds by round.

    Returns
    -------
    ratio, low, high : float

    Examples
    --------
    >>> from unislab.comparison import ratio_interval
    >>> ratio_interval([2.0] * 9, [1.0] * 9)
    (2.0, 2.0, 2.0)
    """
    a, b = np.asarray(above), np.asarray(below)
    drawn = np.random.default_rng(seed).integers(0, len(a), (_RESAMPLES, len(a)))
    ratios = np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(a) / np.median(b)), float(low), float(high)


class Comparison:
    """Several policies, and perhaps mallocs, under one workload.

    Attributes
    ----------
    workload : str
    results : dict of Result
        By label, which is the policy where none was given, in the order asked for; baselines
        behind.
    rounds : dict of list of float
        Seconds of a pass (median of the round) by contestant; round n of all ran one after another.
    baselines : tuple of str
        Which results are mallocs.
    notes : tuple of str
        What is to be known, such as baselines that are not installed.
    verdict : str
        Who wins by how much.
    explanation : list of str
        Who wins, and why, in ten lines at most; ``print(comparison)`` shows them.
    reasons : list of str
        The three caches that contribute most to the difference between the first two policies, by
        calls that the CPU's own stock did not serve.

    Examples
    --------
    >>> import unislab as us
    >>> c = us.compare(us.workloads.batch(8), ["unified", "slub"], rounds=3, min_time="5 ms")
    >>> sorted(c.results), 0 < len(str(c).splitlines()) <= 10
    (['slub', 'unified'], True)
    """

    def __init__(
        self,
        workload: str,
        results: Mapping[str, Result],
        rounds: Mapping[str, Sequence[float]],
        *,
        baselines: Iterable[str] = (),
        notes: Iterable[str] = (),
        seed: int = 0,
    ) -> None:
        self.workload = workload
        self.results = dict(results)
        self.rounds = {name: list(times) for name, times in rounds.items()}
        self.baselines = tuple(baselines)
        self.notes = tuple(notes)
        self.seed = seed
        self._ratios: dict[tuple[str, str], tuple[float, float, float]] = {}

    @property
    def policies(self) -> list[str]:
        """Labels of the policies, fastest first; in the order asked for where there are no times.

        Examples
        --------
        >>> import unislab as us
        >>> c = us.compare(us.workloads.pair(), {"a": "unified"}, rounds=3, min_time="5 ms")
        >>> c.policies
        ['a']
        """
        names = [n for n in self.results if n not in self.baselines]
        return sorted(names, key=self.warm) if self.timed else names

    @property
    def timed(self) -> bool:
        """Whether there are times of all.

        Examples
        --------
        >>> import unislab as us
        >>> machine = us.Machine.grid(1, 1, 1)
        >>> us.compare(us.workloads.pair(times=10), ["slub"], machine=machine).timed
        True
        """
        return all(self.rounds.get(name) for name in self.results)

    @property
    def _unit(self) -> str:
        """What took that time."""
        timed = all(result.seconds is not None for result in self.results.values())
        return "pass" if timed else "mark"

    def ratio(self, name: str, reference: str) -> tuple[float, float, float]:
        """Time of one contestant over that of another, with the 95 % interval.

        Examples
        --------
        >>> import unislab as us
        >>> c = us.compare(us.workloads.pair(), ["unified", "slub"], rounds=3, min_time="5 ms")
        >>> ratio, low, high = c.ratio("slub", "unified")
        >>> low <= ratio <= high
        True
        """
        for wanted in (name, reference):
            if wanted not in self.rounds:
                raise ValueError(f"no times of {wanted!r}: there are {', '.join(self.rounds)}")
        key = (name, reference)
        if key not in self._ratios:
            self._ratios[key] = ratio_interval(self.rounds[name], self.rounds[reference], self.seed)
        return self._ratios[key]

    def warm(self, name: str) -> float:
        """Seconds of a pass of one contestant, median over the rounds.

        Examples
        --------
        >>> import unislab as us
        >>> c = us.compare(us.workloads.pair(), ["unified"], rounds=3, min_time="5 ms")
        >>> c.warm("unified") == c.summary.loc["unified", "warm_s"]
        True
        """
        return statistics.median(self.rounds[name])

    def shown(self, name: str) -> str:
        """A label as texts and pictures show it: of a reconstructed policy they say so.

        Examples
        --------
        >>> import unislab as us
        >>> us.compare(us.workloads.pair(), ["slub"], rounds=3, min_time="5 ms").shown("slub")
        'slub'
        """
        return shown_name(name, self.results[name].policy, self.results[name].tunables)

    # ---- in words --------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """Who wins by how much, in a sentence or two.

        Examples
        --------
        >>> import unislab as us
        >>> us.compare(us.workloads.pair(), ["slub"], rounds=3, min_time="5 ms").verdict
        'slub serves pair in ... a pass.'
        """
        names = self.policies
        if not self.timed:
            return f"{self.workload} on a modelled machine: counters and memory only, no times"
        if len(names) < 2:
            only = names[0] if names else min(self.baselines, key=self.warm)
            took = duration(self.warm(only))
            parts = [f"{self.shown(only)} serves {self.workload} in {took} a {self._unit}"]
        else:
            first, second = names[:2]
            parts = [self.first_two()]
            if memory := self._memory_ratio(first, second):
                parts.append(
                    f"{self.shown(first)} reserved {memory:.2f} x the memory of "
                    f"{self.shown(second)} at its peak"
                )
            parts += [self._takes(name, first) for name in names[2:]]
        if self.baselines and names:
            best = min(self.baselines, key=self.warm)
            parts.append(self._takes(best, names[0], "the fastest malloc, "))
        return "; ".join(parts) + "."

    def first_two(self) -> str:
        """Which of the fastest two policies wins by how much, in a clause.

        Examples
        --------
        >>> import unislab as us
        >>> c = us.compare(us.workloads.pair(), ["unified", "slub"], rounds=3, min_time="5 ms")
        >>> c.verdict.startswith(c.first_two())
        True
        """
        ratio, low, high = self.ratio(self.policies[1], self.policies[0])
        first, second = (self.shown(name) for name in self.policies[:2])
        interval = f"95 % interval {low:.2f} to {high:.2f}"
        if low <= 1 <= high:
            return (
                f"no difference in time between {first} and {second} on {self.workload} "
                f"({second} takes {ratio:.2f} x, {interval})"
            )
        return f"{first} serves {self.workload} {ratio:.2f} x as fast as {second} ({interval})"

    def _takes(self, name: str, reference: str, what: str = "") -> str:
        ratio, low, high = self.ratio(name, reference)
        same = "no difference, " if low <= 1 <= high else ""
        interval = f"{same}{low:.2f} to {high:.2f}"
        return (
            f"{what}{self.shown(name)} takes {ratio:.2f} x the time of {self.shown(reference)} "
            f"({interval})"
        )

    def _memory_ratio(self, name: str, reference: str) -> float | None:
        mine = self.results[name].memory.get("reserved_peak")
        other = self.results[reference].memory.get("reserved_peak")
        return share(mine, other) if mine is not None and other else None

    @property
    def explanation(self) -> list[str]:
        """Who wins and why, in ten lines at most.

        The ratio of times with its interval; of the first two policies where allocations and frees
        were served, how often locks were taken, and found taken by another, by class of lock, and
        the peak of reserved bytes; and the :attr:`reasons`.

        Examples
        --------
        >>> import unislab as us
        >>> c = us.compare(us.workloads.pair(), ["unified", "slub"], rounds=3, min_time="5 ms")
        >>> [line.partition(":")[0] for line in c.explanation[1:6]]
        ['allocations', 'frees', 'locks taken', 'locks contended', 'reserved at its peak']
        """
        return explain(self)

    @property
    def reasons(self) -> list[str]:
        """One line a cache; see :meth:`contributions` for all of them as a table.

        Examples
        --------
        >>> import unislab as us
        >>> machine = us.Machine.grid(1, 1, 1)
        >>> c = us.compare(us.workloads.batch(64), ["unified", "slub"], machine=machine)
        >>> print(c.reasons[0])
        object: of 25,600 calls unified serves ... from the CPU's stock that slub does not (...)
        """
        return reasons(self)

    def contributions(self) -> pd.DataFrame:
        """How the first two policies differ by cache, those that contribute most first.

        Columns: ``cache``, ``calls`` (allocations and frees), ``calls_saved`` (calls that left the
        CPU's stock under the second policy less those under the first), and the shares of
        allocations and frees that were fast, for the first and (``other_``) the second. Policies
        differ in the sizes of their general caches: where the workload uses other ones under the
        second than under the first, all of ``kmalloc`` is one row.

        Examples
        --------
        >>> import unislab as us
        >>> c = us.compare(us.workloads.batch(99), ["unified", "slub"], rounds=3, min_time="5 ms")
        >>> c.contributions()[["cache", "calls"]].to_dict("records")
        [{'cache': 'object', 'calls': 39600}]
        """
        return contributions(self)

    # ---- tables and pictures ---------------------------------------------------------------

    @property
    def summary(self) -> pd.DataFrame:
        """One row a policy or baseline, fastest policy first, by label.

        Columns: ``warm_s`` (median over rounds) with ``low_s`` and ``high_s`` (95 % interval),
        ``cold_s``, ``harness_s`` (a pass that allocates nothing, contained in all times) and
        ``net_s`` (warm less harness), ``ratio`` to the fastest policy with ``ratio_low`` and
        ``ratio_high``, the shares of calls that were fast, ``reserved_ratio``; of one pass the
        common counters, and how often locks were taken (``lock_acquired``) and found taken
        (``lock_contended``), in all and by class; the byte accounts, ``reserved_bytes`` and so on,
        and the peak of each, ``reserved_peak_bytes``; ``reconstructed`` as the policy's title says,
        of ``slub-thrash`` in mode ``ratio``.
        What does not apply is None.

        Examples
        --------
        >>> import unislab as us
        >>> c = us.compare(us.workloads.pair(times=50), ["unified"], rounds=3, min_time="5 ms")
        >>> row = c.summary.loc["unified"]
        >>> row["ratio"], row["alloc_fast"] + row["alloc_slow"], row["live_bytes"]
        (1.0, 50, 0)
        """
        import pandas as pd

        order = self.policies + sorted(self.baselines, key=self.warm)
        rows = [self._summary_row(name, order[0]) for name in order]
        return pd.DataFrame(rows, index=pd.Index(order, name="policy"), dtype=object)

    def _summary_row(self, name: str, reference: str) -> dict[str, Any]:
        result = self.results[name]
        times = result.seconds
        ratio: tuple[float | None, ...] = (None, None, None)
        low = high = None
        if times is not None:
            ratio = self.ratio(name, reference)
            low, high = median_interval(self.rounds[name])
        fast_allocs, fast_frees = result.fast_share
        acquired, contended = lock_totals(result.counters)
        row: dict[str, Any] = {
            "warm_s": self.warm(name) if times else None,
            "low_s": low,
            "high_s": high,
            "cold_s": times.cold if times else None,
            "harness_s": result.harness,
            "net_s": self.warm(name) - result.harness if times and result.harness else None,
            "ratio": ratio[0],
            "ratio_low": ratio[1],
            "ratio_high": ratio[2],
            "alloc_fast_share": fast_allocs,
            "free_fast_share": fast_frees,
            "reserved_ratio": self._memory_ratio(name, reference),
            "lock_acquired": acquired,
            "lock_contended": contended,
            "reconstructed": self.shown(name) != name,
        }
        row |= {counter: result.counters.get(counter) for counter in self._counters()}
        for account in _ACCOUNTS:
            row[f"{account}_bytes"] = result.memory.get(account)
            row[f"{account}_peak_bytes"] = result.memory.get(f"{account}_peak")
        return row

    def _counters(self) -> list[str]:
        """The common counters, and those of classes of locks that anybody took."""
        classes = {
            counter: None
            for result in self.results.values()
            for counter, value in result.counters.items()
            if counter.startswith("lock_") and value
        }
        return [*_COMMON, *classes]

    def to_frame(self) -> pd.DataFrame:
        """Every number of every result, as a long table (see :meth:`Result.to_frame`), and the
        rounds, as quantity ``round n``: times, common counters, locks by class, byte accounts and
        their peaks.

        Examples
        --------
        >>> import unislab as us
        >>> c = us.compare(us.workloads.pair(), ["unified", "slub"], rounds=3, min_time="5 ms")
        >>> wide = c.to_frame().pivot(index="quantity", columns="policy", values="value")
        >>> wide.columns.tolist(), "round 2" in wide.index, "queued_peak" in wide.index
        (['slub', 'unified'], True, True)
        """
        import pandas as pd

        frames = [result.to_frame() for result in self.results.values()]
        rows = [
            (self.workload, name, f"round {i}", "s", seconds)
            for name, times in self.rounds.items()
            for i, seconds in enumerate(times)
        ]
        frames.append(pd.DataFrame(rows, columns=frames[0].columns))
        return pd.concat([f for f in frames if len(f)], ignore_index=True)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Time of a pass by contestant, with intervals; what the harness takes is hatched.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            By default those of a new figure.

        Examples
        --------
        >>> import matplotlib.pyplot as plt
        >>> import unislab as us
        >>> c = us.compare(us.workloads.pair(), ["unified", "slub"], rounds=3, min_time="5 ms")
        >>> _, ax = plt.subplots()
        >>> c.plot(ax).get_xlabel()
        'ms a pass (hatched: harness)'
        >>> plt.close()
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(7, 0.6 + 0.45 * len(self.results)), layout="constrained")
        table = self.summary.iloc[::-1]
        names = [self.shown(name) for name in table.index]
        if not self.timed:
            ax.barh(names, table["alloc_fast_share"].astype(float))
            ax.set_xlabel("share of allocations that are fast")
            return ax
        warm = table["warm_s"].astype(float) * 1e3
        low, high = (table[c].astype(float) * 1e3 for c in ("low_s", "high_s"))
        spread = [(warm - low).clip(lower=0), (high - warm).clip(lower=0)]
        colours = ["tab:gray" if n in self.baselines else "tab:blue" for n in table.index]
        ax.barh(names, warm, xerr=spread, color=colours, capsize=3)
        harness = [self.results[n].harness or 0.0 for n in table.index]
        ax.barh(names, [h * 1e3 for h in harness], color="none", edgecolor="black", hatch="//")
        ax.set_xlabel("ms a pass (hatched: harness)")
        ax.set_title(self.workload)
        return ax

    def __repr__(self) -> str:
        return f"<Comparison {self.verdict}>"

    def __str__(self) -> str:
        return "\n".join(self.explanation)

    def _repr_html_(self) -> str:
        first, *rest = self.explanation
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in rest)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        table = self.summary[_SHOWN].rename(index={name: self.shown(name) for name in self.results})
        return (
            f"<p><b>{html.escape(self.workload)}</b>: {html.escape(first)}</p><ul>{lines}</ul>"
            f"{table.to_html(float_format=lambda x: f'{x:.4g}', na_rep='')}{notes}"
        )
