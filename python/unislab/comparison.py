"""What a comparison of policies found, and how it says so."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unislab.result import Result, duration, median_interval, share

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Comparison", "ratio_interval"]

_ALLOCS = ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote")
_FREES = ("free_fast", "free_second_level", "free_slow", "free_remote")
_RESAMPLES = 2000


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
        By policy, in the order asked for; baselines behind.
    rounds : dict of list of float
        Seconds of a pass (median of the round) by contestant; round n of all ran one after another.
    baselines : tuple of str
        Which results are mallocs.
    notes : tuple of str
        What is to be known, such as baselines that are not installed.
    verdict : str
        Who wins by how much.
    reasons : list of str
        The three caches that contribute most to the difference between the first two policies, by
        calls that the CPU's own stock did not serve.
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

    @property
    def policies(self) -> list[str]:
        """The policies, fastest first; in the order asked for where there are no times."""
        names = [n for n in self.results if n not in self.baselines]
        return sorted(names, key=self._warm) if self.timed else names

    @property
    def timed(self) -> bool:
        """False on a modelled machine."""
        return all(result.seconds is not None for result in self.results.values())

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
        return ratio_interval(self.rounds[name], self.rounds[reference], self.seed)

    def _warm(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    # ---- in words --------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """Who wins by how much, in a sentence or two."""
        names = self.policies
        if not self.timed:
            return f"{self.workload} on a modelled machine: counters and memory only, no times"
        if len(names) < 2:
            only = names[0] if names else min(self.baselines, key=self._warm)
            parts = [f"{only} serves {self.workload} in {duration(self._warm(only))} a pass"]
        else:
            parts = [self._first_two(names[0], names[1])]
            parts += [self._takes(name, names[0]) for name in names[2:]]
        if self.baselines and names:
            best = min(self.baselines, key=self._warm)
            parts.append(self._takes(best, names[0], "the fastest malloc, "))
        return "; ".join(parts) + "."

    def _first_two(self, first: str, second: str) -> str:
        ratio, low, high = self.ratio(second, first)
        interval = f"95 % interval {low:.2f} to {high:.2f}"
        memory = self._memory_ratio(first, second)
        if low <= 1 <= high:
            text = (
                f"no difference in time between {first} and {second} on {self.workload} "
                f"({second} takes {ratio:.2f} x, {interval})"
            )
        else:
            text = f"{first} serves {self.workload} {ratio:.2f} x as fast as {second} ({interval})"
        if memory:
            text += f"; {first} reserved {memory:.2f} x the memory of {second} at its peak"
        return text

    def _takes(self, name: str, reference: str, what: str = "") -> str:
        ratio, low, high = self.ratio(name, reference)
        same = "no difference, " if low <= 1 <= high else ""
        interval = f"{same}{low:.2f} to {high:.2f}"
        return f"{what}{name} takes {ratio:.2f} x the time of {reference} ({interval})"

    def _memory_ratio(self, name: str, reference: str) -> float | None:
        mine = self.results[name].memory.get("reserved_peak")
        other = self.results[reference].memory.get("reserved_peak")
        return share(mine, other) if mine is not None and other else None

    @property
    def reasons(self) -> list[str]:
        """One line a cache; see :meth:`contributions` for all of them as a table."""
        table = self.contributions()
        if table.empty:
            return []
        first, second = table.attrs["policies"]
        lines = []
        for row in table[table["calls_saved"] != 0].head(3).to_dict("records"):
            better, saved = (first, row["calls_saved"])
            if saved < 0:
                better, saved = second, -saved
            lines.append(
                f"{row['cache']}: fast are {_percent(row['alloc_fast_share'])} of allocations and "
                f"{_percent(row['free_fast_share'])} of frees under {first}, "
                f"{_percent(row['other_alloc_fast_share'])} and "
                f"{_percent(row['other_free_fast_share'])} under {second}; "
                f"{saved:,} calls left the CPU's stock less often under {better}"
            )
        return lines

    def contributions(self) -> pd.DataFrame:
        """How the first two policies differ by cache, those that contribute most first.

        Columns: ``cache``, ``calls`` (allocations and frees), ``calls_saved`` (calls that left the
        CPU's stock under the second policy less those under the first), and the shares of
        allocations and frees that were fast, for the first and (``other_``) the second.
        """
        import pandas as pd

        pair = self.policies[:2]
        if len(pair) < 2:
            return pd.DataFrame(columns=["cache", "calls", "calls_saved"])
        tables = [_by_cache(self.results[name].caches) for name in pair]
        rows = []
        for cache in tables[0].keys() | tables[1].keys():
            mine, other = (table.get(cache, {}) for table in tables)
            rows.append(
                {
                    "cache": cache,
                    "calls": _sum(mine, _ALLOCS) + _sum(mine, _FREES),
                    "calls_saved": _left_stock(other) - _left_stock(mine),
                    "alloc_fast_share": share(mine.get("alloc_fast", 0), _sum(mine, _ALLOCS)),
                    "free_fast_share": share(mine.get("free_fast", 0), _sum(mine, _FREES)),
                    "other_alloc_fast_share": share(
                        other.get("alloc_fast", 0), _sum(other, _ALLOCS)
                    ),
                    "other_free_fast_share": share(other.get("free_fast", 0), _sum(other, _FREES)),
                }
            )
        frame = pd.DataFrame(rows, dtype=object).sort_values(
            ["calls_saved", "calls", "cache"],
            key=lambda c: c if c.name == "cache" else -c.abs(),
            ignore_index=True,
        )
        frame.attrs["policies"] = pair
        return frame

    # ---- tables and pictures ---------------------------------------------------------------

    @property
    def summary(self) -> pd.DataFrame:
        """One row a policy or baseline, fastest policy first.

        Columns: ``warm_s`` (median over rounds) with ``low_s`` and ``high_s`` (95 % interval),
        ``cold_s``, ``harness_s`` (a pass that allocates nothing, contained in all times) and
        ``net_s`` (warm less harness), ``ratio`` to the fastest policy with ``ratio_low`` and
        ``ratio_high``, the shares of calls that were fast, ``reserved_peak_bytes``,
        ``reserved_ratio`` and ``metadata_bytes``.
        What does not apply is None.
        """
        import pandas as pd

        order = self.policies + sorted(self.baselines, key=self._warm)
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
        return {
            "warm_s": self._warm(name) if times else None,
            "low_s": low,
            "high_s": high,
            "cold_s": times.cold if times else None,
            "harness_s": result.harness,
            "net_s": self._warm(name) - result.harness if times and result.harness else None,
            "ratio": ratio[0],
            "ratio_low": ratio[1],
            "ratio_high": ratio[2],
            "alloc_fast_share": fast_allocs,
            "free_fast_share": fast_frees,
            "reserved_peak_bytes": result.memory.get("reserved_peak"),
            "reserved_ratio": self._memory_ratio(name, reference),
            "metadata_bytes": result.memory.get("metadata"),
        }

    def to_frame(self) -> pd.DataFrame:
        """Every number of every result, as a long table (see :meth:`Result.to_frame`), and the
        rounds, as quantity ``round n``.
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
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(7, 0.6 + 0.45 * len(self.results)), layout="constrained")
        table = self.summary.iloc[::-1]
        if not self.timed:
            ax.barh(table.index, table["alloc_fast_share"].astype(float))
            ax.set_xlabel("share of allocations that are fast")
            return ax
        warm = table["warm_s"].astype(float) * 1e3
        low, high = (table[c].astype(float) * 1e3 for c in ("low_s", "high_s"))
        spread = [(warm - low).clip(lower=0), (high - warm).clip(lower=0)]
        colours = ["tab:gray" if n in self.baselines else "tab:blue" for n in table.index]
        ax.barh(table.index, warm, xerr=spread, color=colours, capsize=3)
        harness = [self.results[n].harness or 0.0 for n in table.index]
        ax.barh(
            table.index, [h * 1e3 for h in harness], color="none", edgecolor="black", hatch="//"
        )
        ax.set_xlabel("ms a pass (hatched: harness)")
        ax.set_title(self.workload)
        return ax

    def __repr__(self) -> str:
        return f"<Comparison {self.verdict}>"

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self.reasons)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        table = self.summary.to_html(float_format=lambda x: f"{x:.4g}", na_rep="")
        return (
            f"<p><b>{html.escape(self.workload)}</b>: {html.escape(self.verdict)}</p>{table}"
            f"<ul>{lines}</ul>{notes}"
        )


def _by_cache(caches: pd.DataFrame) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    wanted = caches[caches["counter"].isin([*_ALLOCS, *_FREES])]
    for cache, counter, value in zip(
        wanted["cache"], wanted["counter"], wanted["value"], strict=True
    ):
        table.setdefault(cache, {})[counter] = int(value)
    return {cache: counters for cache, counters in table.items() if any(counters.values())}


def _sum(counters: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(counters.get(name, 0) for name in names)


def _left_stock(counters: Mapping[str, int]) -> int:
    return _sum(counters, _ALLOCS[1:]) + _sum(counters, _FREES[1:])


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}".replace("%", " %")
