"""Run a workload under several policies, round by round, and say which serves it best and why."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from unislab._entries import Entry, Policies, entries_of
from unislab._run import (
    MODELLED_PASSES,
    as_workload,
    check_lasted,
    check_options,
    times_of,
)
from unislab.arguments import several, whole
from unislab.baseline import BASELINES, BaselineContestant, Missing
from unislab.comparison import Comparison
from unislab.contestant import Contestant, Harness, PolicyContestant, Turns, passes_for
from unislab.environment import environment
from unislab.ops import OPS
from unislab.result import Result, Seconds
from unislab.sizes import parse_time
from unislab.trace import Trace
from unislab.workload import Workload

if TYPE_CHECKING:
    from unislab.machine import Machine

__all__ = ["compare"]


def compare(
    workload: Workload | Trace,
    policies: Policies = "all",
    *,
    baselines: str | Sequence[str] = (),
    rounds: int = 11,
    min_time: float | str = "0.5 s",
    machine: Machine | None = None,
    seed: int = 0,
    pace: float | None = None,
    touch: str = "first",
    implied: str = "before",
    sizes: str = "requested",
    memory: int | str | None = None,
    tunables: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = False,
    duration: float | str | None = None,
    warmup: float | str | None = None,
) -> Comparison:
    """Compare policies, and perhaps mallocs, on one workload.

    Each contestant runs its cold pass; then all run in turns, so that what disturbs the machine
    disturbs all of them. Ratios are those of medians, with a 95 % interval over the rounds.

    Parameters
    ----------
    workload : Workload or Trace
    policies : "all", sequence or mapping
        Names as :func:`unislab.policies` gives them, or pairs of a name and tunables: a policy can
        be set against itself, ``[("unified", {"adapt_period": 0}), "unified"]``. A mapping gives
        each a label, ``{"fixed": ("unified", {"adapt_period": 0}), "as it comes": "unified"}``;
        without one it is ``unified:adapt_period=0``, which is also how the text may be written.
    baselines : "all" or sequence of str
        ``malloc`` (this system's), ``malloc:jemalloc``, ``malloc:mimalloc``, ``malloc:tcmalloc``,
        each in a child process; what is not installed is left out with a note.
    rounds : int
        Turns of each contestant, at least 3.
    min_time : float or str
        Warm passes of each contestant take at least this long in all.
    machine, seed, pace, touch, implied, sizes, memory, duration, warmup
        As for :func:`unislab.run`. On a modelled machine nothing disturbs: three warm passes each,
        and where the gaps of a trace are kept, what is compared is the time in which CPUs were
        busy. With a ``duration`` each runs once for that long, and times are those of a MARK.
    tunables : mapping
        By policy or label, beside those of ``policies``: ``{"slub": {"min_objects": 16}}``.
    progress : bool
        Show a bar on the standard error.

    Returns
    -------
    Comparison

    Raises
    ------
    MemoryError, ValueError, RuntimeError
        As for :func:`unislab.run`; the text begins with the contestant that it happened to.

    Examples
    --------
    >>> import unislab as us
    >>> c = us.compare(us.datasets.load("tcp_rr"), ["unified", "slub"], rounds=3, min_time="30 ms")
    >>> sorted(c.summary.index)
    ['slub', 'unified']
    >>> both = {"plain": "slub", "ahead": ("slub", {"prefetch": 1})}
    >>> c = us.compare(us.workloads.pair(), both, rounds=3, min_time="5 ms")
    >>> dict(c.results["ahead"].tunables)
    {'prefetch': 1}
    """
    entries = _with_tunables(_entries(policies, baselines), tunables)
    mallocs = _baselines(baselines)
    names = [*entries, *mallocs]
    budget = parse_time(min_time) * 1e-9
    rounds = whole("rounds={}", rounds, 3, 10**6, "at least 3, an interval needs them")
    check_options(touch, pace, implied, sizes)
    seed = whole("seed", seed, 0, 2**64 - 1, "0 to 2**64 - 1")
    warmup_ns, duration_ns = times_of(duration, warmup)
    if duration_ns and baselines:
        raise ValueError("duration=: a malloc runs passes; leave baselines out")
    if pace is None and machine is not None:
        pace = 1.0
    workload = as_workload(workload, implied=implied, sizes=sizes, seed=seed, pace=pace)
    if machine is not None and baselines:
        raise ValueError("machine=: a modelled machine has no malloc; leave baselines out")
    notes: list[str] = []
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        # Child processes take long to start: they come first, so that a policy's cold pass follows
        # on the making of its allocator, as in a run of its own.
        for name in sorted(names, key=lambda n: n not in BASELINES):
            try:
                made = (
                    BaselineContestant(workload, name, touch=touch, pace=pace)
                    if name in mallocs
                    else _policy(
                        workload,
                        entries[name],
                        touch=touch,
                        pace=pace,
                        machine=machine,
                        seed=seed,
                        memory=memory,
                        warmup_ns=warmup_ns,
                        duration_ns=duration_ns,
                    )
                )
            except Missing as missing:
                notes.append(str(missing))
                continue
            stack.callback(made.close)
            contestants.append(made)
        contestants.sort(key=lambda c: names.index(c.name))
        timed = not duration_ns
        if machine is not None:
            rounds, budget = MODELLED_PASSES, 0.0
        cold = {c.name: _passes(c, 1)[0] for c in contestants} if timed else {}
        turns: list[Turns] = [*contestants]
        if timed and machine is None and not pace:
            turns.append(Harness(workload, touch))
            stack.callback(turns[-1].close)
        one_each = bool(pace) or machine is not None
        paced = machine is not None and timed and _has_gaps(workload)
        if paced:
            passes = {c.name: [[_busy(c)] for _ in range(rounds)] for c in contestants}
        else:
            passes = _rounds(turns, rounds if timed else 0, budget / rounds, one_each, progress)
        harness = _median(passes.pop(Harness.name, []))
        results = {}
        about, counts = environment(), workload.counts
        for c in contestants:
            with _naming(c.name):
                last, counters, caches, used = c.last_pass()
            entry = entries.get(c.name)
            # What is compared may be the time in which CPUs were busy: no time of a pass.
            warm = [] if paced else [s for chunk in passes[c.name] for s in chunk]
            results[c.name] = Result(
                workload=workload.name,
                policy=entry.policy if entry else c.name,
                label=c.name,
                seconds=Seconds.of(cold[c.name], [*warm, last]) if timed else None,
                counters=counters,
                caches=caches,
                memory=used,
                counts=counts,
                environment=about,
                seed=seed,
                harness=harness,
                repeats=(*warm, last) if timed else (),
                tunables=entry.tunables if entry else {},
                marks=c.marks if isinstance(c, PolicyContestant) and "marks" in counts else None,
                elapsed=c.elapsed if isinstance(c, PolicyContestant) and not timed else None,
                explanation=c.explanation if isinstance(c, PolicyContestant) else None,
            )
            if isinstance(c, PolicyContestant) and not timed:
                check_lasted(workload, c, duration_ns)
                passes[c.name] = [[c.elapsed / c.marks if c.marks else c.elapsed]]
    medians = {n: [statistics.median(chunk) for chunk in chunks] for n, chunks in passes.items()}
    used_baselines = [n for n in results if n in mallocs]
    return Comparison(
        workload.name, results, medians, baselines=used_baselines, notes=notes, seed=seed
    )


def _has_gaps(workload: Workload) -> bool:
    """Whether tasks wait for the workload's own time."""
    return any((task.ops["op"] == OPS["CLOCK"]).any() for task in workload.tasks)


def _busy(contestant: Any) -> float:
    """Seconds in which CPUs were busy in one more pass: gaps between a trace's events are none."""
    _passes(contestant, 1)
    return float(contestant.busy())


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say in an error to which contestant it happened."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        text = str(error)
        if not text.startswith(f"{name}: "):
            error.args = (f"{name}: {text}", *error.args[1:])
        raise


def _passes(contestant: Turns, n: int) -> list[float]:
    with _naming(contestant.name):
        return contestant.passes(n)


def _policy(workload: Workload, entry: Entry, **options: Any) -> PolicyContestant:
    with _naming(entry.label):
        return PolicyContestant(
            workload, entry.policy, name=entry.label, tunables=entry.tunables, **options
        )


def _with_tunables(
    entries: Sequence[Entry], tunables: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Entry]:
    """The entries by label, with the tunables that were given beside them."""
    given = {} if tunables is None else tunables
    if not isinstance(given, Mapping) or not all(isinstance(s, Mapping) for s in given.values()):
        raise TypeError(
            f"tunables cannot be {tunables!r:.60}: expected a mapping by policy, as "
            "{'slub': {'min_objects': 16}}"
        )
    known = dict.fromkeys(name for e in entries for name in (e.label, e.policy))
    if stray := sorted(given.keys() - known):
        raise ValueError(f"tunables for {stray[0]!r}, which takes no part: {', '.join(known)} do")
    return {
        e.label: dataclasses.replace(
            e, tunables={**given.get(e.policy, {}), **given.get(e.label, {}), **e.tunables}
        )
        for e in entries
    }


def _median(chunks: Sequence[Sequence[float]]) -> float | None:
    return statistics.median(s for chunk in chunks for s in chunk) if chunks else None


def _rounds(
    contestants: Sequence[Turns], rounds: int, budget: float, paced: bool, progress: bool
) -> dict[str, list[list[float]]]:
    """All warm passes, by contestant and round; who begins a round changes."""
    taken: dict[str, list[list[float]]] = {c.name: [] for c in contestants}
    number = dict.fromkeys(taken, 1)
    if rounds and not paced:
        number = {c.name: passes_for(_passes(c, 1)[0], budget, 1) for c in contestants}
    for turn in _bar(range(rounds), progress):
        for i in range(len(contestants)):
            c = contestants[(turn + i) % len(contestants)]
            taken[c.name].append(_passes(c, number[c.name]))
    return taken


def _bar(turns: range, progress: bool) -> Iterable[int]:
    if not progress:
        return turns
    from tqdm.auto import tqdm

    bar: Iterable[int] = tqdm(turns, desc="rounds", leave=False)
    return bar


def _entries(policies: Policies, baselines: object) -> list[Entry]:
    """The policies that take part."""
    import unislab

    entries = entries_of(policies, unislab.policies(), (*BASELINES, Harness.name))
    if not entries and not baselines:
        raise ValueError("nothing to compare: give policies or baselines")
    return entries


def _baselines(baselines: str | Sequence[str]) -> list[str]:
    """The mallocs that take part, each once."""
    named = BASELINES if baselines == "all" else several("baselines", baselines, "'all' or names")
    for name in named:
        if name not in BASELINES:
            raise ValueError(f"no baseline {name!r}: expected {', '.join(BASELINES)}")
    return [str(name) for name in dict.fromkeys(named)]
