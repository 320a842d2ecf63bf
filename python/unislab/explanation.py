"""Where the time of a modelled run went, and why another took longer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from unislab.result import Result

__all__ = ["Explanation", "why"]

#: Phases as tables and pictures name them; what waits for locks is told apart by lock class.
PHASES = {
    "work": "the workload's own computing",
    "touch": "touching objects",
    "fast": "fast paths, on the CPU's own stock",
    "second": "second level: shared, alien and remote stocks",
    "slow": "slow paths: slabs and what surrounds them",
    "provider": "page provider",
    "switch": "context switches and wake-ups",
    "interrupt": "interrupts",
    "idle": "idle",
}
#: The phases that a policy answers for.
ALLOCATOR = ("fast", "second", "slow", "provider", "lock")


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """Virtual time of all CPUs, by what it went to.

    Attributes
    ----------
    time : mapping
        Seconds by phase: ``work``, ``touch``, ``fast``, ``second``, ``slow``, ``provider``,
        ``switch``, ``interrupt``, ``lock`` (waiting for locks), ``idle``. They add up to the
        elapsed time of all CPUs.
    locks, lock_counts : mapping
        Seconds waited, and how often, by lock class; the seconds add up to ``time["lock"]``. Those
        of ``gate`` are of CPUs that are held off while all must stand still: queues change their
        sizes, a cache comes or goes, somebody reads exact counters.
    lines, line_counts : mapping
        Seconds spent on cache lines beyond a hit in L1, and how often, by where the line was:
        ``l1``, ``l2``, ``llc``, ``memory``, ``memory_far``, ``line_domain``, ``line_node``,
        ``line_far`` (last written by another core), ``invalidate_domain``, ``invalidate_node``,
        ``invalidate_far`` (written here, read there). A second view: they are part of the phases.
    counts : mapping
        ``events`` (operations; a TOUCH counts once a line), ``switches``, ``wakeups``,
        ``interrupts``, ``steals``, ``comparisons`` (in the order of virtual time).

    Examples
    --------
    >>> import unislab as us
    >>> machine = us.Machine.grid(1, 1, 2)
    >>> r = us.run(us.workloads.pair(times=1000), "slub", machine=machine)
    >>> r.explanation.time["fast"] > 0, r.explanation.locks["node"]
    (True, 0.0)
    """

    time: Mapping[str, float]
    locks: Mapping[str, float]
    lock_counts: Mapping[str, int]
    lines: Mapping[str, float]
    line_counts: Mapping[str, int]
    counts: Mapping[str, int]

    @classmethod
    def _of(cls, told: Mapping[str, int]) -> Explanation:
        """From what the core tells: ps and counts by dotted name."""
        parts: dict[str, dict[str, int]] = {}
        for name, value in told.items():
            group, _, key = name.partition(".")
            parts.setdefault(group, {})[key] = value

        def seconds(group: str) -> dict[str, float]:
            return {key: ps * 1e-12 for key, ps in parts[group].items()}

        # Whoever is held off while the machine stands still waits for no lock that has a class.
        parts["lock"]["gate"] = parts["time"]["lock"] - sum(parts["lock"].values())
        return cls(
            time=seconds("time"),
            locks=seconds("lock"),
            lock_counts=parts["lock_count"],
            lines=seconds("lines"),
            line_counts=parts["lines_count"],
            counts=parts["op"],
        )

    @property
    def allocator_share(self) -> float:
        """Share of the time that was not idle in which the allocator worked or waited for a lock.

        Examples
        --------
        >>> import unislab as us
        >>> r = us.run(us.workloads.pair(), machine=us.Machine.grid(1, 1, 1))
        >>> 0 < r.explanation.allocator_share <= 1
        True
        """
        busy = sum(s for phase, s in self.time.items() if phase != "idle")
        return sum(self.time[phase] for phase in ALLOCATOR) / busy if busy else 0.0

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """What time went to, in words, its seconds and its share, the largest first.

        Examples
        --------
        >>> import unislab as us
        >>> r = us.run(us.workloads.batch(64), "slub", machine=us.Machine.grid(1, 1, 1))
        >>> round(sum(share for _, _, share in r.explanation.parts), 6)
        1.0
        """
        total = sum(self.time.values())
        told = sorted(self._by_cause().items(), key=lambda item: -item[1])
        return [(what, s, s / total) for what, s in told if s]

    def to_frame(self) -> pd.DataFrame:
        """A long table: ``quantity`` (time, lock, lines and their counts), ``detail``, ``unit``,
        ``value``.

        Examples
        --------
        >>> import unislab as us
        >>> r = us.run(us.workloads.pair(), machine=us.Machine.grid(1, 1, 1))
        >>> list(r.explanation.to_frame().columns)
        ['quantity', 'detail', 'unit', 'value']
        """
        import pandas as pd

        groups: list[tuple[str, str, Mapping[str, float]]] = [
            ("time", "s", self.time),
            ("lock", "s", self.locks),
            ("lock_count", "waits", self.lock_counts),
            ("lines", "s", self.lines),
            ("lines_count", "lines", self.line_counts),
            ("count", "events", self.counts),
        ]
        rows = [
            (quantity, detail, unit, value)
            for quantity, unit, values in groups
            for detail, value in values.items()
        ]
        return pd.DataFrame(rows, columns=["quantity", "detail", "unit", "value"])

    def _by_cause(self) -> dict[str, float]:
        """Seconds by what :func:`why` names; they add up to all time."""
        told = {text: self.time[phase] for phase, text in PHASES.items()}
        told |= {
            "held off at the gate" if name == "gate" else f"waiting for {name} locks": s
            for name, s in self.locks.items()
        }
        return told

    def __repr__(self) -> str:
        total = sum(self.time.values())
        parts = sorted(self.time.items(), key=lambda item: -item[1])[:4]
        shown = ", ".join(f"{phase} {s / total:.0%}" for phase, s in parts if total and s)
        return f"<Explanation: {shown}>"


def _units(result: Result) -> tuple[float, str]:
    """What times are divided by, and its name."""
    if result.marks:
        return float(result.marks), "mark"
    made = sum(n for name, n in result.counters.items() if name.startswith("alloc_"))
    return float(made or 1), "allocation"


def why(first: Result, second: Result) -> pd.DataFrame:
    """See :meth:`Result.why`."""
    import pandas as pd

    if not hasattr(second, "explanation"):
        raise TypeError(f"other cannot be {second!r:.60}: expected a Result, as us.run returns")
    for result in (first, second):
        if result.explanation is None:
            raise ValueError(
                f"{result.label} ran on this machine, where nobody can say what time went to; "
                "run both on a modelled machine (machine=us.Machine.host())"
            )
    assert first.explanation is not None and second.explanation is not None
    units = [_units(result) for result in (first, second)]
    unit = "mark" if all(name == "mark" for _, name in units) else "allocation"
    if unit == "allocation":
        units = [_units(dataclasses.replace(result, marks=None)) for result in (first, second)]
    mine, other = first.label, second.label
    if mine == other:
        mine, other = f"{mine} (first)", f"{other} (second)"
    views = (
        ("time", first.explanation._by_cause(), second.explanation._by_cause()),
        ("lines", first.explanation.lines, second.explanation.lines),
    )
    rows = []
    for view, a, b in views:
        for what in a:
            x, y = (s[what] / n * 1e9 for s, (n, _) in zip((a, b), units, strict=True))
            if x or y:
                rows.append((view, what, x, y, y - x))
    # Having nothing to do follows from all the others: last of its view.
    rows.sort(key=lambda row: (row[0] != "time", row[1] == PHASES["idle"], -abs(row[4]), row[1]))
    frame = pd.DataFrame(rows, columns=["view", "what", mine, other, "difference"])
    frame.attrs["unit"] = {"mark": "ns a mark", "allocation": "ns an allocation"}[unit]
    return frame
