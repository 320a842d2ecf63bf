"""Why one policy serves a workload better than another, in ten lines at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from unislab.result import duration, share
from unislab.sizes import format_size

if TYPE_CHECKING:
    from unislab.comparison import Comparison
    from unislab.result import Result

__all__ = ["ALLOCS", "FREES", "LEVELS", "explain", "lock_totals", "percent"]

#: Where an object comes from and goes to, nearest first.
LEVELS = ("fast", "second_level", "slow", "remote")
ALLOCS = tuple(f"alloc_{level}" for level in LEVELS)
FREES = tuple(f"free_{level}" for level in LEVELS)


def explain(c: Comparison) -> list[str]:
    """Who wins by how much; then of the first two policies where calls were served, which locks
    they took and what they reserved; then the caches that contribute most.
    """
    pair = c.policies[:2]
    lines = [_winner(c)]
    if others := _others(c):
        lines.append(others)
    for what, names in (("allocations", ALLOCS), ("frees", FREES)):
        lines.append(_both(c, what, (_served(c.results[n].counters, names) for n in pair)))
    for what, kind in (("locks taken", "acquired"), ("locks contended", "contended")):
        lines.append(_both(c, what, (_locks(c.results[n].counters, kind) for n in pair)))
    lines.append(_both(c, "reserved at its peak", (_reserved(c.results[n]) for n in pair)))
    return [line for line in lines if line] + c.reasons


def _winner(c: Comparison) -> str:
    names = c.policies
    if not c.timed or not names:
        return c.verdict
    if len(names) == 1:
        return f"{c.shown(names[0])} serves {c.workload} in {duration(c.warm(names[0]))} a pass"
    return c.first_two() + "; in one pass:"


def _others(c: Comparison) -> str:
    """All that take part behind the first two, with their time over that of the first."""
    if not c.timed or not c.policies:
        return ""
    first = c.policies[0]
    behind = [
        f"{c.shown(name)} {c.ratio(name, first)[0]:.2f} x"
        for name in [*c.policies[2:], *sorted(c.baselines, key=c.warm)]
    ]
    return f"time of {c.shown(first)}: " + ", ".join(behind) if behind else ""


def _both(c: Comparison, what: str, values: Iterable[str]) -> str:
    """One line on the first two policies; nothing where there is nothing to say."""
    told = [
        f"{c.shown(name)} {value}"
        for name, value in zip(c.policies[:2], values, strict=True)
        if value
    ]
    return f"{what}: " + "; ".join(told) if told else ""


def _served(counters: Mapping[str, int], names: Iterable[str]) -> str:
    """Shares of calls by level, those of none left out."""
    calls = {name: counters.get(name, 0) for name in names}
    total = sum(calls.values())
    return ", ".join(
        f"{percent(share(n, total))} {name.partition('_')[2].replace('_', ' ')}"
        for name, n in calls.items()
        if n
    )


def lock_totals(counters: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Acquisitions, and how many of them found the lock taken; None where nothing was counted."""
    acquired, contended = (_by_class(counters, kind) for kind in ("acquired", "contended"))
    if not acquired:
        return None, None
    return sum(acquired.values()), sum(contended.values())


def _by_class(counters: Mapping[str, int], kind: str) -> dict[str, int]:
    prefix = f"lock_{kind}_"
    return {k.removeprefix(prefix): n for k, n in counters.items() if k.startswith(prefix)}


def _locks(counters: Mapping[str, int], kind: str) -> str:
    """A total, and its parts by class of lock, largest first."""
    classes = sorted(
        ((n, name) for name, n in _by_class(counters, kind).items() if n), reverse=True
    )
    if not classes:
        return "0" if _by_class(counters, kind) else ""
    parts = ", ".join(f"{name} {n:,}" for n, name in classes)
    return f"{sum(n for n, _ in classes):,} ({parts})"


def _reserved(result: Result) -> str:
    peak = result.memory.get("reserved_peak")
    return "" if peak is None else format_size(peak)


def percent(value: float | None) -> str:
    """A share for people: what is not all is not shown as all, nor what is not nothing as nothing.

    >>> percent(0.5), percent(0.99951), percent(1e-5), percent(1e-9), percent(1.0), percent(None)
    ('50.0 %', '99.95 %', '0.001 %', '< 0.001 %', '100.0 %', '')
    """
    if value is None:
        return ""
    for digits in (1, 2, 3):
        text = f"{value:.{digits}%}".replace("%", " %")
        if value in (0, 1) or float(text[:-2]) not in (0, 100):
            return text
    return "< 0.001 %" if value < 0.5 else "> 99.999 %"
