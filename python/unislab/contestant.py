"""What takes part in a run or a comparison: a heap on which a workload's passes run."""

from __future__ import annotations

import os
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from unislab import _model, _native
from unislab.explanation import Explanation
from unislab.stats import common_counters, lock_counts
from unislab.workload import Workload, fold_cpus

if TYPE_CHECKING:
    import pandas as pd

    from unislab.allocator import Allocator

__all__ = ["Contestant", "Harness", "PolicyContestant", "Stretch", "Turns", "harness_seconds"]

#: Passes of a chunk take about this long, so that a call into C is nothing beside it.
CHUNK_S = 0.03
MAX_PASSES = 100_000


class Turns(Protocol):
    """Runs passes of one workload, chunk by chunk."""

    name: str

    def passes(self, n: int) -> list[float]:
        """Seconds of n passes, one after the other."""
        ...

    def close(self) -> None:
        """End it; what it allocated is freed."""
        ...


class Contestant(Turns, Protocol):
    """Says at the end what it counted."""

    def last_pass(self) -> tuple[float, dict[str, int], pd.DataFrame, dict[str, int]]:
        """One more pass: its seconds, common counters, counters by cache, memory at its end."""
        ...


class Stretch(NamedTuple):
    """What was done in a part of a modelled pass."""

    seconds: float
    marks: int
    #: As the core tells it, for :class:`Explanation`.
    told: dict[str, int]
    #: Counters by cache.
    calls: dict[str, dict[str, int]]


class PolicyContestant:
    """A workload on an allocator.

    Parameters
    ----------
    name : str, optional
        What results call it; by default the policy.
    allocator : Allocator, optional
        One that exists already and stays; by default one is made and closed.
    warmup_ns, duration_ns : int
        With a duration a pass is stopped when that much time has gone by after the warm-up.

    Attributes
    ----------
    marks, elapsed : int, float
        Of :meth:`last_pass`: MARKs of its measured part, and the seconds of that.
    explanation, rows
        Of the same on a modelled machine: where its time went, and its timeline.
    """

    def __init__(
        self,
        workload: Workload,
        policy: str,
        *,
        name: str | None = None,
        touch: str = "first",
        pace: float | None = None,
        machine: Any = None,
        seed: int = 0,
        memory: int | str | None = None,
        allocator: Allocator | None = None,
        tunables: Mapping[str, Any] | None = None,
        warmup_ns: int = 0,
        duration_ns: int = 0,
        timeline_ns: int = 0,
    ) -> None:
        import unislab
        from unislab.workloads.sockets import ENDLESS

        self.name = name or policy
        self._workload = workload.name
        # On an allocator of the caller's it can be watched, and interrupted, meanwhile.
        self._endless = allocator is None and workload.counts.get("marks", 0) >= ENDLESS
        self._own = allocator is None
        self.allocator: Allocator = allocator or unislab.Allocator(
            policy, memory=memory, machine=machine, seed=seed, **(tunables or {})
        )
        self._runner: Any = None
        self.marks, self.elapsed = 0, 0.0
        self.explanation: Explanation | None = None
        self.rows: tuple[tuple[int, ...], ...] = ()
        self.modelled = self.allocator.machine is not None
        self._warmup_ns, self._duration_ns = warmup_ns, duration_ns
        try:
            handles = [self._cache(c) for c in workload.caches if not c.kmalloc]
            module = _model if self.modelled else _native
            place = _place(workload, self.modelled, self.allocator)
            self._runner = module.Runner(
                *workload._program(place),
                allocator=self.allocator,
                handles=handles,
                touch=touch,
                pace=pace or 0.0,
                window=workload.window,
                seed=seed,
                warmup_ns=warmup_ns,
                duration_ns=duration_ns,
                timeline_ns=timeline_ns,
            )
        except BaseException:
            self.close()
            raise

    def _cache(self, wanted: Any) -> Any:
        known = self.allocator._named(wanted.name)
        if known is None:
            return self.allocator.create_cache(
                wanted.name, wanted.size, align=wanted.align, flags=wanted.flags
            )
        # Objects of a merged cache may be larger than its user asked.
        if known.size != wanted.size and not (known.aliases and known.size > wanted.size):
            raise ValueError(
                f"the allocator has a cache {wanted.name!r} of {known.size} bytes, the workload "
                f"needs {wanted.size}; destroy it or use another allocator"
            )
        return known

    def passes(self, n: int) -> list[float]:
        """Seconds of n passes; what the last leaves live stays."""
        if self._endless and not self._duration_ns:
            raise ValueError(f"{self._workload} never ends: give a duration, such as '50 ms'")
        return list(self._runner.passes(n))

    def busy(self) -> float:
        """Seconds in which CPUs had something to do in the last pass, on a modelled machine."""
        time = Explanation._of(self._runner.explain()).time
        return sum(seconds for phase, seconds in time.items() if phase != "idle")

    def last_pass(self) -> tuple[float, dict[str, int], pd.DataFrame, dict[str, int]]:
        """One pass, counted from a clean start to before its clean-up."""
        import pandas as pd

        self._runner.clean()
        measured = self.modelled and self._duration_ns
        if measured and self._warmup_ns:
            self._runner.run_for(self._warmup_ns)
        by_cache = self._cache_stats()
        # Reading takes locks too: those are read last before the pass and first after it.
        reading = self._locks()
        locks = self._locks()
        run = self._runner
        seconds = run.run_for(self._duration_ns) if measured else run.passes(1)[0]
        self.marks, self.elapsed = sum(self._runner.marks()), self._runner.elapsed()
        locks_after = self._locks()
        by_cache_after = self._cache_stats()
        memory = _memory(self.allocator.account(), self._runner.peaks)
        if self.modelled:
            self.explanation = Explanation._of(self._runner.explain())
            self.rows = tuple(self._runner.timeline())
        self._runner.clean()
        changes = {
            name: sum(
                counters[name] - by_cache.get(cache, {}).get(name, 0)
                for cache, counters in by_cache_after.items()
            )
            for name in common_counters(self.allocator)
        }
        changes |= {n: locks_after[n] - 2 * locks[n] + reading[n] for n in locks}
        rows = [
            # A general cache may have been made by the pass itself.
            (self.name, cache, counter, value - by_cache.get(cache, {}).get(counter, 0))
            for cache, counters in by_cache_after.items()
            for counter, value in counters.items()
        ]
        frame = pd.DataFrame(rows, columns=["policy", "cache", "counter", "value"])
        return seconds, changes, frame, memory

    def go_on(self, ns: int) -> Stretch:
        """Go on with a modelled pass for so long, or make a whole one (0); tell what was done."""
        before = self._cache_stats()
        seconds = self._runner.run_for(ns) if ns else self._runner.passes(1)[0]
        marks, told = sum(self._runner.marks()), dict(self._runner.explain())
        after = self._cache_stats()
        calls = {
            cache: {n: v - before.get(cache, {}).get(n, 0) for n, v in counters.items()}
            for cache, counters in after.items()
        }
        return Stretch(seconds, marks, told, calls)

    def _locks(self) -> dict[str, int]:
        return lock_counts(self.allocator)

    def _cache_stats(self) -> dict[str, dict[str, int]]:
        return {
            name: {k: int(v) for k, v in cache.stats(exact=True).items()}
            for name, cache in self.allocator.caches.items()
        }

    def close(self) -> None:
        """Free what is live, end the threads, close the allocator if it is our own."""
        if self._runner is not None:
            self._runner.close()
        if self._own:
            self.allocator.close(force=True)


def _memory(account: Mapping[str, int], peaks: Callable[[], Mapping[str, int]]) -> dict[str, int]:
    """Byte accounts at this moment, then each one's peak, some of which a pass of its own finds."""
    names = ("reserved", "live", "queued", "free_in_slabs", "waste")
    apart = ("metadata", "resident", "address_range")
    now = {name: int(account[name]) for name in (*names, *apart)}
    seen = peaks()
    for name in (*names, *apart):
        known = account.get(f"{name}_peak", seen.get(name, 0))
        now[f"{name}_peak"] = max(int(known), now[name])
    return now


def _place(workload: Workload, modelled: bool, allocator: Allocator) -> Any:
    """How CPUs of the workload become CPUs of the machine that are online."""
    if modelled:
        count = len(allocator.topology.cpu_node)
        folded = fold_cpus(workload, range(count))
    else:
        folded = fold_cpus(workload)
    online = allocator._online()

    def place(cpus: Sequence[int]) -> tuple[int, ...]:
        wanted = tuple(dict.fromkeys(folded[c] for c in cpus))
        if all(online):
            return wanted
        possible = wanted or (range(len(online)) if modelled else sorted(os.sched_getaffinity(0)))
        usable = tuple(cpu for cpu in possible if cpu >= len(online) or online[cpu])
        if not usable:
            raise ValueError(
                f"{workload.name}: a task is placed on {_named(possible)}, which the allocator has "
                f"offline; place it on one of {list(allocator.online_cpus)}, or call "
                f"online_cpu({possible[0]}) first"
            )
        return usable

    return place


def _named(cpus: Sequence[int]) -> str:
    """CPUs in a text."""
    return f"CPU{'s' if len(cpus) > 1 else ''} {', '.join(map(str, cpus))}"


class Harness:
    """Passes that allocate nothing: the loop, slots, order between tasks, touches of one object."""

    name = "harness"

    def __init__(self, workload: Workload, touch: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run itself warned of folded CPUs
            folded = fold_cpus(workload)
        self._runner = _native.Runner(
            *workload._program(lambda cpus: tuple(dict.fromkeys(folded[c] for c in cpus))),
            heap="null",
            touch=touch,
            window=workload.window,
        )

    def passes(self, n: int) -> list[float]:
        """Seconds of n passes."""
        return list(self._runner.passes(n))

    def close(self) -> None:
        """End the threads."""
        self._runner.close()


def harness_seconds(workload: Workload, *, touch: str, budget: float) -> float:
    """Median seconds of a pass that allocates nothing, from passes for at most about the budget."""
    time = min(3 * CHUNK_S, budget)
    harness = Harness(workload, touch)
    try:
        harness.passes(1)
        return statistics.median(harness.passes(passes_for(harness.passes(1)[0], time, 5)))
    finally:
        harness.close()


def passes_for(pass_seconds: float, seconds: float, at_least: int) -> int:
    """How many passes take about that long."""
    return max(at_least, min(MAX_PASSES, round(seconds / max(pass_seconds, 1e-7))))
