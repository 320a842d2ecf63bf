"""Real kernel traces end to end: what the trace holds is what the policies counted."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from rules.books import adds_up, balance_all
from rules.names import ALLOCS, FREES

import unislab as us
from unislab.contestant import PolicyContestant

# Two CPUs recorded the traces; where there is one, they fold, and a run says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*CPU:UserWarning"),
    pytest.mark.every_policy,
]

NAMES = ["hackbench", "tcp_rr", "fork", "files", "bursts"]


@functools.cache
def trace_of(name: str) -> us.Trace:
    """Each trace is read once."""
    return us.datasets.load(name)


def test_the_shipped_traces_are_these() -> None:
    assert sorted(us.datasets.names()) == sorted(NAMES)


@pytest.mark.once
@pytest.mark.parametrize("name", NAMES)
def test_counts_of_a_trace_add_up(name: str) -> None:
    counts = trace_of(name).counts
    assert counts["allocs"] > 10_000
    assert counts["events"] == counts["allocs"] + counts["allocs_failed"] + counts["frees"]
    assert counts["frees"] == (
        counts["frees_matched"] + counts["frees_unknown"] + counts["frees_null"]
    )
    # An object ends by its free or by the next allocation of its address, or it is live at the end.
    assert counts["allocs"] == (
        counts["frees_matched"] + counts["implied_frees"] + counts["live_at_end"]
    )
    assert 0 < counts["remote_frees"] <= counts["frees_matched"]


@pytest.mark.parametrize("name", NAMES)
def test_counters_of_a_run_are_the_traces_counts(
    make: Callable[..., us.Allocator], policy: str, name: str
) -> None:
    trace = trace_of(name)
    alloc = make(policy, address_range="16 GiB")
    result = us.run(trace, policy=policy, allocator=alloc, min_time=0)
    counters, counts = result.counters, trace.counts
    assert sum(counters[c] for c in ALLOCS) == counts["allocs"]
    assert sum(counters[c] for c in FREES) == counts["frees_matched"] + counts["implied_frees"]
    # Objects that the trace leaves live were freed between passes.
    assert balance_all(alloc) == 0
    memory = result.memory
    assert memory["reserved_peak"] >= memory["reserved"]
    alloc.shrink()
    assert alloc.account()["reserved"] == 0


@pytest.mark.parametrize("touch", ["first", "all", "none"])
@pytest.mark.parametrize("debug", ["F"])
def test_a_part_of_a_trace_under_debug(policy: str, touch: str, debug: str) -> None:
    part = trace_of("tcp_rr")[5000:9000]
    result = us.run(part, policy=policy, debug=debug, touch=touch, min_time=0)
    counts = part.counts
    assert sum(result.counters[c] for c in ALLOCS) == counts["allocs"]
    assert sum(result.counters[c] for c in FREES) == (
        counts["frees_matched"] + counts["implied_frees"]
    )


def test_cpus_that_are_not_here_fold_with_a_warning(policy: str) -> None:
    """Two CPUs recorded it, one replays it: another order of calls, the same sums."""
    part = trace_of("hackbench")[:6000]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with pytest.warns(UserWarning, match="CPU"):
            result = us.run(part, policy, min_time=0)
    finally:
        os.sched_setaffinity(0, allowed)
    assert sum(result.counters[c] for c in ALLOCS) == part.counts["allocs"]
    assert sum(result.counters[c] for c in FREES) == (
        part.counts["frees_matched"] + part.counts["implied_frees"]
    )


@pytest.mark.parametrize("implied", ["before", "spread"])
@pytest.mark.parametrize("sizes", ["requested", "kernel"])
def test_counts_do_not_depend_on_how_a_trace_is_laid_out(
    policy: str, implied: str, sizes: str
) -> None:
    """Where implied frees go and which sizes are asked for changes paths, never the sums."""
    part = trace_of("fork")[:8000]
    result = us.run(part, policy=policy, implied=implied, sizes=sizes, min_time=0)
    counts = part.counts
    assert counts["implied_frees"] > 0
    assert sum(result.counters[c] for c in ALLOCS) == counts["allocs"]
    assert sum(result.counters[c] for c in FREES) == (
        counts["frees_matched"] + counts["implied_frees"]
    )


# A trim is due so long after a cache was made: here some real time passes before the trace begins.
TRIMMED = ("slqb",)


@pytest.mark.parametrize("name", ["tcp_rr", "bursts"])
def test_one_cpus_part_counts_the_same_here_and_modelled(policy: str, name: str) -> None:
    """A real trace on one CPU takes the same paths on this machine and on a model of it."""
    if policy == "slab" and name == "bursts":
        pytest.skip("its timer goes on between the native passes, for as long as they really take")
    if policy == "sleb" and name == "bursts":
        pytest.skip("without a second level its slabs differ from pass to pass; the model has two")
    part = trace_of(name).filter(cpus=0)[:20_000]
    here = _second_pass(us.Workload.from_trace(part, paced=True), policy, pace=1e6)
    machine = us.Machine.from_topology(us.Topology.native())
    model = _second_pass(us.Workload.from_trace(part), policy, machine=machine)
    if policy in TRIMMED:
        for names in (ALLOCS, FREES):
            assert sum(here[0][n] for n in names) == sum(model[0][n] for n in names)
        return
    assert here[0] == model[0]
    key = ["cache", "counter"]
    counted = [caches.groupby(key)["value"].sum().to_dict() for _, caches in (here, model)]
    assert counted[0] == counted[1]


def _second_pass(
    workload: us.Workload, policy: str, **options: Any
) -> tuple[dict[str, int], pd.DataFrame]:
    """Common counters, and all by cache, of a pass on what one before has left."""
    contestant = PolicyContestant(workload, policy, **options)
    try:
        contestant.passes(1)
        _, counters, caches, _ = contestant.last_pass()
    finally:
        contestant.close()
    return counters, caches


def test_memory_of_a_run_adds_up(policy: str) -> None:
    result = us.run(trace_of("files")[:20_000], policy, min_time=0)
    adds_up(result.memory)
    for account in ("reserved", "metadata", "resident"):
        assert result.memory[account] <= result.memory[f"{account}_peak"]
