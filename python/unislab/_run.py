"""Run a workload under one policy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from unislab.allocator import Allocator
from unislab.arguments import real, whole
from unislab.contestant import CHUNK_S, PolicyContestant, harness_seconds, passes_for
from unislab.environment import environment
from unislab.result import Result, Seconds
from unislab.sizes import parse_time
from unislab.trace import Trace
from unislab.workload import Workload

if TYPE_CHECKING:
    from unislab.machine import Machine

__all__ = ["run"]

#: Warm passes of a run, at least.
MIN_PASSES = 5
#: Warm passes of a modelled run: nothing disturbs it, but each goes on where the last one ended.
MODELLED_PASSES = 3


def run(
    workload: Workload | Trace,
    policy: str = "unified",
    *,
    machine: Machine | None = None,
    seed: int = 0,
    allocator: Allocator | None = None,
    min_time: float | str = "0.5 s",
    duration: float | str | None = None,
    warmup: float | str | None = None,
    pace: float | None = None,
    touch: str = "first",
    implied: str = "before",
    sizes: str = "requested",
    memory: int | str | None = None,
    timeline: float | str | None = None,
    **tunables: Any,
) -> Result:
    """Run a workload, or the replay of a trace, under one policy.

    The first pass, on an empty allocator, is timed apart; then passes are repeated. Objects that
    are live at the end of a pass are freed between passes, outside of times and counters.

    Parameters
    ----------
    workload : Workload or Trace
    policy : str
        One of :func:`unislab.policies`.
    machine : Machine, optional
        A modelled machine: times are virtual, the same on every host, and explained.
    seed : int
        For what is drawn: placement of implied frees, the allocator's random choices.
    allocator : Allocator, optional
        Run on this one, which can be watched meanwhile and stays open; its policy, memory and
        tunables are used as they are.
    min_time : float or str
        Passes are repeated for at least this long (seconds, or text as ``"0.5 s"``).
    duration : float or str, optional
        Instead of passes to the end of the workload's programs, one that is stopped after so much
        time: ``result.marks`` and ``result.rate`` tell what was done in it. The programs must be
        long enough for it.
    warmup : float or str, optional
        Time before the ``duration`` begins; by default a tenth of it.
    pace : float, optional
        1.0 keeps the gaps between a trace's events, 2.0 halves them: the default on a modelled
        machine. By default this machine runs flat out; the policy's timers follow the trace's time
        stamps all the same.
    touch : {"first", "all", "none"}
        Which lines of an object are written when it is allocated.
    implied, sizes : str
        As for :meth:`Workload.from_trace`.
    memory : int or str, optional
        Budget of the allocator.
    timeline : float or str, optional
        On a modelled machine: take the accounts of memory so often, for ``result.timeline``.
    **tunables
        Of the policy, for all caches.

    Returns
    -------
    Result
        Of a modelled run, ``result.explanation`` says where time went, ``result.why(other)`` where
        another run spent more or less.

    Raises
    ------
    MemoryError
        An allocation failed; everything is freed.
    ValueError
        The workload, an option or a tunable is wrong.
    RuntimeError
        All tasks wait for one another.

    Examples
    --------
    >>> import unislab as us
    >>> result = us.run(us.datasets.load("tcp_rr"), "slub", min_time="10 ms")
    >>> made = sum(result.counters[k] for k in
    ...            ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote"))
    >>> made == result.counts["allocs"]
    True
    """
    budget = parse_time(min_time) * 1e-9
    warmup_ns, duration_ns = times_of(duration, warmup)
    check_options(touch, pace, implied, sizes)
    seed = whole("seed", seed, 0, 2**64 - 1, "0 to 2**64 - 1")
    if pace is None and machine is not None:
        pace = 1.0
    workload = as_workload(workload, implied=implied, sizes=sizes, seed=seed, pace=pace)
    if allocator is not None:
        if not isinstance(allocator, Allocator):
            raise TypeError(f"allocator cannot be {allocator!r:.60}: expected an Allocator")
        if machine is not None or memory is not None or tunables:
            raise ValueError(
                "allocator=: its machine, memory and tunables are those it was made with; "
                "leave machine=, memory= and tunables out"
            )
        policy = allocator.policy
    modelled = machine is not None or (allocator is not None and allocator.machine is not None)
    timeline_ns = 0
    if timeline is not None:
        timeline_ns = parse_time(timeline)
        if not timeline_ns:
            raise ValueError(f"timeline={timeline!r}: expected more than 0, such as '1 ms'")
        if not modelled:
            raise ValueError(
                f"timeline={timeline!r}: only a modelled machine keeps one; give machine= "
                "(us.Machine.host() is a model of this one)"
            )
    contestant = PolicyContestant(
        workload,
        policy,
        touch=touch,
        pace=pace,
        machine=machine,
        seed=seed,
        memory=memory,
        allocator=allocator,
        tunables=tunables,
        warmup_ns=warmup_ns,
        duration_ns=duration_ns,
        timeline_ns=timeline_ns,
    )
    timed = not duration_ns
    try:
        cold = 0.0 if duration_ns else contestant.passes(1)[0]
        if not timed:
            warm = []
        elif modelled:
            warm = contestant.passes(MODELLED_PASSES - 1)
        else:
            warm = _warm_passes(contestant, budget, paced=bool(pace))
        last, counters, caches, used = contestant.last_pass()
    finally:
        contestant.close()
    warm.append(last)
    check_lasted(workload, contestant, duration_ns)
    seconds = Seconds.of(cold, warm) if timed else None
    has_marks = "marks" in workload.counts
    return Result(
        workload=workload.name,
        policy=policy,
        seconds=seconds,
        counters=counters,
        caches=caches,
        memory=used,
        counts=workload.counts,
        environment=environment(),
        seed=seed,
        harness=None
        if not timed or modelled or pace
        else harness_seconds(workload, touch=touch, budget=budget),
        repeats=tuple(warm) if timed else (),
        tunables=tunables,
        marks=contestant.marks if has_marks else None,
        elapsed=seconds.warm if seconds else contestant.elapsed,
        explanation=contestant.explanation,
        rows=contestant.rows,
    )


def times_of(duration: float | str | None, warmup: float | str | None) -> tuple[int, int]:
    """Nanoseconds of the warm-up and of the duration; 0 is none."""
    if duration is None:
        if warmup is not None:
            raise ValueError(f"warmup={warmup!r}: it comes before a duration; give duration= too")
        return 0, 0
    ns = parse_time(duration)
    if ns == 0:
        raise ValueError(f"duration={duration!r}: expected more than 0, such as '50 ms'")
    return ns // 10 if warmup is None else parse_time(warmup), ns


def check_lasted(workload: Workload, contestant: PolicyContestant, duration_ns: int) -> None:
    """Refuse a run whose programs ended before its duration.

    A modelled run is cut between operations, so it may end a little early.
    """
    if contestant.elapsed * 1e9 < 0.9 * duration_ns:
        raise ValueError(
            f"{workload.name}: its programs were done {contestant.elapsed:.3g} s after the warm-up,"
            f" before the duration of {duration_ns * 1e-9:.3g} s; give it more repetitions"
        )


def _warm_passes(contestant: PolicyContestant, budget: float, *, paced: bool) -> list[float]:
    """Passes for at least the budget, but for the last one, which is counted."""
    warm: list[float] = []
    least = 0 if paced else MIN_PASSES - 1
    start = time.perf_counter()
    while len(warm) < least or time.perf_counter() - start < budget:
        n = 1 if not warm else passes_for(warm[-1], min(CHUNK_S, budget), 1)
        warm += contestant.passes(n)
    return warm


def check_options(touch: str, pace: float | None, implied: str, sizes: str) -> None:
    """Refuse what no run takes."""
    if implied not in ("before", "spread"):
        raise ValueError(f"implied={implied!r}: expected 'before' or 'spread'")
    if sizes not in ("requested", "kernel"):
        raise ValueError(f"sizes={sizes!r}: expected 'requested' or 'kernel'")
    if touch not in ("first", "all", "none"):
        raise ValueError(f"touch={touch!r}: expected 'first', 'all' or 'none'")
    expected = "a number above 0 (1.0 keeps the gaps), or None"
    if pace is not None and not 0 < real("pace={}", pace, expected) <= 1e6:
        raise ValueError(f"pace={pace!r}: expected {expected}")


def as_workload(
    workload: Workload | Trace, *, implied: str, sizes: str, seed: int, pace: float | None
) -> Workload:
    """A workload as it is, a trace as its replay."""
    if isinstance(workload, Trace):
        return Workload.from_trace(
            workload, implied=implied, sizes=sizes, seed=seed, paced=pace is not None
        )
    if not isinstance(workload, Workload):
        raise TypeError(
            f"expected a Workload or a Trace (us.Trace.read(path), us.datasets.load(name)), "
            f"not {workload!r:.80}"
        )
    workload.check()
    return workload
