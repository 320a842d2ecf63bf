"""What things cost on a machine: caches by size, everything else by time.

All times are nanoseconds.  Those of cache lines come on top of an L1 hit, which ``instruction``
contains: a published latency of 15 cycles for L2 beside one of 3 for L1 enters as 12 cycles.  A
model rounds each of them once, to picoseconds, and computes in integers from there on.
"""

from __future__ import annotations

import dataclasses
import html
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from unislab.sizes import format_size, parse_size

__all__ = ["COST_NAMES", "LINE_BYTES", "WAITER", "Caches", "Costs", "checked_number"]

LINE_BYTES = 64
#: Why a further waiter costs half a hand-over: all who spin ask for the line, get it one after the
#: other, and the next owner is in their middle on average.
WAITER = "half a hand-over; waiters get the line in turn (Boyd-Wickizer 2012)"
_MOST_BYTES = 2**40
_MOST_WAYS = 1024
_MOST_NS = 1e9


def checked_number(what: str, value: object, least: float, most: float, unit: str = "") -> float:
    """A finite number within limits, as a float.

    Raises
    ------
    ValueError
        It is none: also for what is no number at all, since it is a field's value that is wrong.

    Examples
    --------
    >>> from unislab.costs import checked_number
    >>> checked_number("clock_ghz", 2, 0.001, 100)
    2.0
    >>> checked_number("costs.lock", -1, 0, 1e9, "ns")
    Traceback (most recent call last):
    ValueError: costs.lock cannot be -1: expected a number, 0 to 1e+09 ns
    """
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not least <= number <= most:  # also what is no number
        limits = f"{least:g} to {most:g}{unit and ' ' + unit}"
        raise ValueError(f"{what} cannot be {value!r:.60}: expected a number, {limits}")
    return number


def _cache_bytes(what: str, value: object) -> int:
    try:
        return parse_size(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(
            f"{what} cannot be {value!r:.60}: expected bytes, or text as '32 KiB'"
        ) from None


def _cache_ways(what: str, value: object) -> int:
    try:
        ways = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        ways = -1
    if not 1 <= ways <= _MOST_WAYS:
        raise ValueError(f"{what} cannot be {value!r:.60}: expected an integer, 1 to {_MOST_WAYS}")
    return ways


@dataclass(frozen=True, repr=False)
class Caches:
    """Three levels of set-associative caches, of lines of 64 bytes.

    L1 and L2 belong to a core (its threads share them), the last level to a cache domain.  A
    machine whose last level is its L2 is described with an L2 as large as its L1, which then never
    hits where the L1 does not, and the shared cache as ``llc``.

    Parameters
    ----------
    l1, l2, llc : int or str
        Bytes, or text as ``"32 KiB"``: a multiple of the ways' lines.
    l1_ways, l2_ways, llc_ways : int
        Lines of a set.

    Examples
    --------
    >>> import unislab as us
    >>> us.Caches(l1="32 KiB", l1_ways=8, l2="1 MiB", l2_ways=16, llc="32 MiB", llc_ways=16)
    <Caches: L1 32.0 KiB, L2 1.0 MiB, last level 32.0 MiB>
    """

    l1: int
    l1_ways: int
    l2: int
    l2_ways: int
    llc: int
    llc_ways: int

    def __init__(
        self,
        *,
        l1: int | str,
        l1_ways: int,
        l2: int | str,
        l2_ways: int,
        llc: int | str,
        llc_ways: int,
    ) -> None:
        for name, size, ways in (
            ("l1", l1, l1_ways),
            ("l2", l2, l2_ways),
            ("llc", llc, llc_ways),
        ):
            lines = _cache_ways(f"caches.{name}_ways", ways)
            found = _cache_bytes(f"caches.{name}", size)
            if found % (lines * LINE_BYTES) or not lines * LINE_BYTES <= found <= _MOST_BYTES:
                raise ValueError(
                    f"caches.{name} cannot be {size!r:.60}: expected a multiple of "
                    f"{lines} ways x {LINE_BYTES} bytes, up to {_MOST_BYTES}"
                )
            object.__setattr__(self, name, found)
            object.__setattr__(self, f"{name}_ways", lines)
        if not self.l1 <= self.l2 <= self.llc:
            raise ValueError(
                f"caches of {self.l1}, {self.l2} and {self.llc} bytes: expected none to be "
                "smaller than the one before it"
            )

    def replace(self, **fields: Any) -> Caches:
        """The same but for some fields.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.grid(1, 1, 2).caches.replace(llc="64 MiB").llc
        67108864
        """
        return Caches(**(dataclasses.asdict(self) | _known("caches", fields, _CACHE_NAMES)))

    def __repr__(self) -> str:
        sizes = (format_size(size) for size in (self.l1, self.l2, self.llc))
        return "<Caches: L1 {}, L2 {}, last level {}>".format(*sizes)


_CACHE_NAMES = tuple(f.name for f in dataclasses.fields(Caches))


def _known(what: str, given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The fields given, once it is sure that all of them exist."""
    for name in given:
        if name not in names:
            raise TypeError(f"{what} has no field {name!r}: expected one of {', '.join(names)}")
    return dict(given)


def _cost(text: str) -> Any:
    return field(metadata={"text": text})


@dataclass(frozen=True, repr=False, kw_only=True)
class Costs:
    """Times of a machine, in nanoseconds (``smt_slowdown`` in percent), each with its source.

    Lines of ``domain`` are those of CPUs that share a last-level cache, ``node`` those of another
    domain of the same node, ``far`` those of another node.  Where one machine has several
    distances to other nodes, ``far`` is their mean.

    Parameters
    ----------
    instruction : float
        One instruction of allocator code, its L1 hits included.
    l2_hit, llc_hit : float
        A line found in L2, in the last level.
    memory, memory_far : float
        A line from the memory of the own node, of another.
    line_domain, line_node, line_far : float
        A line last written by a CPU there.
    invalidate_domain, invalidate_node, invalidate_far : float
        A write to a line that CPUs there have read since.
    atomic : float
        A locked read-modify-write, beyond the access to its line.
    lock : float
        Taking and dropping a free lock, beyond its line.
    lock_handover : float
        From who drops a lock to who waits for it.
    lock_waiter : float
        The same, more for each further CPU that spins on the lock.
    page_alloc, page_free : float
        A call of the page provider, beyond its lines and its lock.
    page_zero : float
        Zeroing a page.
    page_fault : float
        First use of a page that the system has to supply; 0 in kernels, whose memory is mapped.
    interrupt : float
        Entry and exit of an interrupt.
    context_switch : float
        Between two tasks of one CPU.
    wakeup : float
        Making another task runnable, for who does it.
    idle_exit : float
        From a wake-up to running, on a CPU that was idle.
    smt_slowdown : float
        Percent: time of a CPU while its sibling is busy; 100 = none.
    sources : mapping of str to str
        Where each number is from; ``"given"`` where nothing is said.

    Examples
    --------
    >>> import unislab as us
    >>> costs = us.Machine.amd_16core_2010().costs
    >>> costs.line_domain < costs.line_far
    True
    >>> print(costs.sources["memory"])
    113 ns: AnandTech 2978 (Opteron 2435, the same DDR2)
    """

    instruction: float = _cost("one instruction of allocator code")
    l2_hit: float = _cost("line in L2")
    llc_hit: float = _cost("line in the last level")
    memory: float = _cost("memory of the own node")
    memory_far: float = _cost("memory of another node")
    line_domain: float = _cost("line written in the same domain")
    line_node: float = _cost("line written in another domain of the node")
    line_far: float = _cost("line written on another node")
    invalidate_domain: float = _cost("write to a line read in the same domain")
    invalidate_node: float = _cost("write to a line read in another domain of the node")
    invalidate_far: float = _cost("write to a line read on another node")
    atomic: float = _cost("locked read-modify-write, beyond its line")
    lock: float = _cost("taking and dropping a free lock, beyond its line")
    lock_handover: float = _cost("from who drops a lock to who waits")
    lock_waiter: float = _cost("the same, more for each further CPU that spins")
    page_alloc: float = _cost("allocating pages, beyond lines and lock")
    page_free: float = _cost("freeing pages, beyond lines and lock")
    page_zero: float = _cost("zeroing a page")
    page_fault: float = _cost("first use of a page")
    interrupt: float = _cost("entry and exit of an interrupt")
    context_switch: float = _cost("between two tasks of a CPU")
    wakeup: float = _cost("making a task runnable")
    idle_exit: float = _cost("from wake-up to running on an idle CPU")
    smt_slowdown: float = _cost("time while the sibling is busy, percent")
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name in COST_NAMES:
            least, most, unit = (100, 1000, "percent") if name == "smt_slowdown" else _LIMITS
            number = checked_number(f"costs.{name}", getattr(self, name), least, most, unit)
            object.__setattr__(self, name, number)
        if not isinstance(self.sources, Mapping):
            raise ValueError(f"costs.sources cannot be {self.sources!r:.60}: expected a mapping")
        given = _known("costs.sources", self.sources, COST_NAMES)
        sources = {name: str(given.get(name, "given")) for name in COST_NAMES}
        object.__setattr__(self, "sources", sources)

    def replace(self, **fields: Any) -> Costs:
        """The same but for some fields, whose source is then ``"given"``.

        Examples
        --------
        >>> import unislab as us
        >>> costs = us.Machine.grid(1, 1, 2).costs.replace(lock=50)
        >>> costs.lock, costs.sources["lock"]
        (50.0, 'given')
        """
        changed = _known("costs", fields, (*COST_NAMES, "sources"))
        sources = dict(self.sources) | {name: "given" for name in changed if name in COST_NAMES}
        sources |= changed.pop("sources", {})
        return dataclasses.replace(self, **changed, sources=sources)

    def rows(self) -> list[tuple[str, float, str, str, str]]:
        """Name, value, unit, meaning and source of each.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.intel_8core_2008().costs.rows()[3][:4]
        ('memory', 118.94, 'ns', 'memory of the own node')
        """
        return [
            (
                f.name,
                getattr(self, f.name),
                "%" if f.name == "smt_slowdown" else "ns",
                f.metadata["text"],
                self.sources[f.name],
            )
            for f in dataclasses.fields(self)
            if f.name != "sources"
        ]

    def __repr__(self) -> str:
        shown = ("l2_hit", "llc_hit", "memory", "line_domain", "line_far", "lock_handover")
        return f"<Costs: {', '.join(f'{n} {getattr(self, n):.4g} ns' for n in shown)}, ...>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{name}</td><td style='text-align:right'>{value:,.4g}</td><td>{unit}</td>"
            f"<td>{html.escape(text)}</td><td>{html.escape(source)}</td></tr>"
            for name, value, unit, text, source in self.rows()
        )
        heads = "".join(f"<th>{h}</th>" for h in ("cost", "value", "unit", "of what", "source"))
        return f"<table><tr>{heads}</tr>{rows}</table>"


COST_NAMES = tuple(f.name for f in dataclasses.fields(Costs) if f.name != "sources")
_LIMITS = (0.0, _MOST_NS, "ns")
