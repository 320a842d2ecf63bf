"""Comparisons: verdicts of which times, tables, pictures, turns, mallocs in children."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

import unislab as us
from unislab import _compare, baseline
from unislab.comparison import Comparison, ratio_interval
from unislab.result import Result, Seconds, median_interval

pytestmark = pytest.mark.once

COUNTERS = ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote")
COUNTERS += tuple(name.replace("alloc", "free") for name in COUNTERS)


def result(policy: str, warm: float, caches: dict[str, Sequence[int]], peak: int = 1000) -> Result:
    """A made result; caches give the eight counters in order."""
    rows = [
        (policy, cache, counter, value)
        for cache, values in caches.items()
        for counter, value in zip(COUNTERS, values, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["policy", "cache", "counter", "value"])
    return Result(
        workload="made",
        policy=policy,
        seconds=Seconds(2 * warm, warm, warm, warm),
        counters={k: int(v) for k, v in frame.groupby("counter")["value"].sum().items()},
        caches=frame,
        memory={"reserved_peak": peak, "metadata": 10},
        counts={"allocs": 1},
        environment={},
        harness=warm / 10,
    )


def made(times: dict[str, Sequence[float]], **results: Result) -> Comparison:
    given = {name: results.get(name) or result(name, 1.0, {}) for name in times}
    return Comparison("made", given, times)


# ---- words ----------------------------------------------------------------------------------


def test_the_verdict_names_the_faster_and_by_how_much() -> None:
    times = {"slow": [2.0] * 9, "quick": [1.0] * 9}
    c = made(times, quick=result("quick", 1, {}, peak=1500), slow=result("slow", 2, {}, peak=1000))
    assert c.policies == ["quick", "slow"]
    assert c.verdict == (
        "quick serves made 2.00 x as fast as slow (95 % interval 2.00 to 2.00); "
        "quick reserved 1.50 x the memory of slow at its peak."
    )


def test_an_interval_that_holds_one_is_no_difference() -> None:
    times = {"a": [1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.1], "b": [1.05, 1.0, 1.0, 1.0, 1.1, 0.9, 1.1]}
    assert "no difference in time between" in made(times).verdict


def test_all_others_are_set_against_the_fastest() -> None:
    times = {"a": [1.0] * 5, "b": [2.0] * 5, "c": [4.0] * 5}
    assert "c takes 4.00 x the time of a" in made(times).verdict


def test_the_interval_of_a_ratio_follows_the_rounds_together() -> None:
    disturbed = np.array([1.0, 1.0, 5.0, 5.0, 1.0, 5.0, 1.0, 1.0, 5.0])
    ratio, low, high = ratio_interval((2 * disturbed).tolist(), disturbed.tolist())
    assert (ratio, low, high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("n", "expected"), [(5, (1, 5)), (6, (1, 6)), (10, (2, 9)), (25, (8, 18))])
def test_the_interval_of_a_median_is_that_of_the_textbook(
    n: int, expected: tuple[int, int]
) -> None:
    # Order statistics of the sign test at 95 %, as in any table of it.
    assert median_interval(range(1, n + 1)) == expected


def test_reasons_are_the_three_caches_that_left_the_stock_more_often() -> None:
    first = result(
        "first", 1, {"big": [90, 0, 10, 0] * 2, "small": [9, 1, 0, 0] * 2, "same": [5, 0, 5, 0] * 2}
    )
    second = result(
        "second",
        2,
        {
            "big": [40, 0, 60, 0] * 2,
            "small": [10, 0, 0, 0] * 2,
            "same": [5, 5, 0, 0] * 2,
            "x": [0] * 8,
        },
    )
    c = made({"first": [1.0] * 5, "second": [2.0] * 5}, first=first, second=second)
    table = c.contributions().set_index("cache")
    assert table["calls_saved"].to_dict() == {"big": 100, "small": -2, "same": 0}
    assert c.reasons == [
        "big: of 200 calls first serves 100 from the CPU's stock that second does not "
        "(allocs 90.0 % fast, not 40.0 %; frees 90.0 % fast, not 40.0 %)",
        "small: of 20 calls second serves 2 from the CPU's stock that first does not "
        "(allocs 100.0 % fast, not 90.0 %; frees 100.0 % fast, not 90.0 %)",
    ]


def test_kmalloc_is_one_cache_where_the_sizes_differ() -> None:
    same = {"inode": [5, 0, 0, 0] * 2}
    first = result(
        "first", 1, {"kmalloc-8": [4, 0, 0, 0] * 2, "kmalloc-32": [6, 0, 0, 0] * 2, **same}
    )
    second = result("second", 2, {"kmalloc-32": [3, 0, 7, 0] * 2} | same)
    c = made({"first": [1.0] * 5, "second": [2.0] * 5}, first=first, second=second)
    table = c.contributions().set_index("cache")
    assert table["calls"].to_dict() == {"kmalloc": 20, "inode": 10}
    assert table["calls_saved"].to_dict() == {"kmalloc": 14, "inode": 0}
    assert table.loc["kmalloc", "other_alloc_fast_share"] == 0.3


def test_ten_lines_say_who_won_and_why() -> None:
    one = result("one", 1, {c: [6, 2, 1, 1, 10, 0, 0, 0] for c in "abcd"}, peak=2048)
    two = result("two", 2, {c: [0, 0, 8, 2, 0, 0, 10, 0] for c in "abcd"}, peak=1024)
    one.counters.update(lock_acquired_node=3, lock_acquired_slab=0, lock_contended_node=0)
    two.counters.update(lock_acquired_node=70, lock_acquired_slab=1000, lock_contended_slab=7)
    times = {"two": [2.0] * 9, "one": [1.0] * 9, "three": [4.0] * 9, "four": [8.0] * 9}
    lines = made(times, one=one, two=two).explanation
    assert lines[:7] == [
        "one serves made 2.00 x as fast as two (95 % interval 2.00 to 2.00); in one pass:",
        "time of one: three 4.00 x, four 8.00 x",
        "allocations: one 60.0 % fast, 20.0 % second level, 10.0 % slow, 10.0 % remote; "
        "two 80.0 % slow, 20.0 % remote",
        "frees: one 100.0 % fast; two 100.0 % slow",
        "locks taken: one 3 (node 3); two 1,070 (slab 1,000, node 70)",
        "locks contended: one 0; two 7 (slab 7)",
        "reserved at its peak: one 2.0 KiB; two 1.0 KiB",
    ]
    assert lines[7:] == made(times, one=one, two=two).reasons and len(lines) == 10
    assert str(made(times, one=one, two=two)) == "\n".join(lines)


def test_what_is_reconstructed_says_so_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from unislab.inspect import policies

    monkeypatch.setattr(policies, "is_reconstructed", lambda policy, tunables: policy == "old")
    times = {"old": [1.0] * 9, "new": [2.0] * 9}
    c = made(times)
    mark = "old (reconstructed)"
    axes = c.plot()
    texts = [c.verdict, str(c), c._repr_html_(), repr(c.results["old"]), repr(c)]
    texts.append(" ".join(label.get_text() for label in axes.get_yticklabels()))
    for text in texts:
        assert mark in text
    assert "new (reconstructed)" not in "".join(texts)
    assert c.summary["reconstructed"].to_dict() == {"old": True, "new": False}


# ---- tables and pictures --------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Comparison:
    return us.compare(
        us.datasets.load("tcp_rr")[:20_000],
        ["slub", "unified"],
        baselines=["malloc"],
        rounds=3,
        min_time="10 ms",
    )


def test_the_summary_has_a_row_for_each_and_no_nan(real: Comparison) -> None:
    summary = real.summary
    assert sorted(summary.index) == ["malloc", "slub", "unified"]
    assert summary.index[-1] == "malloc"
    assert summary["ratio"].iloc[0] == 1.0
    assert not any(isinstance(v, float) and np.isnan(v) for v in summary.to_numpy().ravel())
    assert summary.loc["malloc", "alloc_fast_share"] is None
    assert (summary["net_s"].astype(float) < summary["warm_s"].astype(float)).all()


def test_the_long_table_holds_every_round(real: Comparison) -> None:
    frame = real.to_frame()
    rounds = frame[frame["quantity"].str.startswith("round ")]
    assert rounds.groupby("policy").size().to_dict() == {"malloc": 3, "slub": 3, "unified": 3}
    assert not frame["value"].isna().any()
    wide = frame.pivot(index="quantity", columns="policy", values="value")
    for account in ("reserved", "live", "queued", "free_in_slabs", "waste", "metadata"):
        for policy in ("slub", "unified"):
            assert wide.loc[f"{account}_peak", policy] >= wide.loc[account, policy]
            assert (
                real.summary.loc[policy, f"{account}_peak_bytes"]
                == wide.loc[f"{account}_peak", policy]
            )
    for counter in (*COUNTERS, "slab_new", "slab_free", "flush", "objects_moved"):
        for policy in ("slub", "unified"):
            assert real.summary.loc[policy, counter] == wide.loc[counter, policy]


def test_locks_of_the_summary_are_those_of_the_pass(real: Comparison) -> None:
    summary = real.summary
    for policy in ("slub", "unified"):
        row = summary.loc[policy]
        classes = [c for c in summary.columns if c.startswith("lock_acquired_")]
        assert row["lock_acquired"] == sum(row[c] for c in classes)
        assert row["lock_contended"] <= row["lock_acquired"]
        # Reading statistics takes locks of these classes, a pass takes none.
        assert "lock_acquired_stats" not in classes
    # Every slow free of SLUB takes its slab's lock.
    assert summary.loc["slub", "lock_acquired_slab"] >= summary.loc["slub", "free_slow"]


def test_pages_and_pictures_stand_alone(real: Comparison) -> None:
    page = real._repr_html_()
    assert real.verdict[:20] in page and "<table" in page
    assert "http" not in page and "<script" not in page
    axes = real.plot()
    assert {label.get_text() for label in axes.get_yticklabels()} >= {"slub", "unified", "malloc"}
    assert real.plot(axes) is axes
    assert "\n" not in repr(real)


def test_a_comparison_says_what_each_result_was_made_of(real: Comparison) -> None:
    for name, part in real.results.items():
        assert part.policy == name
        assert part.seconds is not None and part.seconds.cold > 0
        assert sum(len(chunk) for chunk in [part.repeats]) >= 4


# ---- turns ----------------------------------------------------------------------------------


class Counting:
    """Takes part in turns and remembers when."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def passes(self, n: int) -> list[float]:
        self.log.append(self.name)
        return [0.001] * n

    def close(self) -> None: ...


def test_contestants_take_turns_and_the_first_changes() -> None:
    log: list[str] = []
    parts = [Counting(name, log) for name in "abc"]
    taken = _compare._rounds(parts, 4, 0.002, paced=False, progress=False)
    assert "".join(log[3:]) == "abcbcacababc"
    assert {name: len(chunks) for name, chunks in taken.items()} == {"a": 4, "b": 4, "c": 4}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policies": ["unifed"]}, "did you mean 'unified'? known are unified, "),
        ({"policies": "unifed"}, "no policy 'unifed'"),
        ({"policies": ["slub:min_objects"]}, "cannot read 'slub:min_objects'"),
        ({"policies": {"slub": "unified"}}, "label 'slub' is the name of a policy"),
        ({"policies": {"malloc": "unified"}}, "a label cannot be 'malloc'"),
        ({"policies": {"": "unified"}}, "a label cannot be ''"),
        ({"policies": {"mine": ("unified", {"no_such": 1})}}, "mine: policy unified has no"),
        ({"policies": [("slub", {"prefetch": 1}), "slub:prefetch=1"]}, "'slub:prefetch=1': give"),
        ({"policies": [], "baselines": []}, "nothing to compare"),
        ({"baselines": ["malloc:foo"]}, "no baseline 'malloc:foo'"),
        ({"rounds": 2}, "at least 3"),
        ({"tunables": {"sulb": {"min_objects": 4}}}, "'sulb', which takes no part"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as error:
        us.compare(us.workloads.pair(), **options)
    assert said in str(error.value)


def test_tunables_go_to_their_policy_alone() -> None:
    c = us.compare(
        us.workloads.pair(times=50),
        ["slub", "unified"],
        tunables={"slub": {"min_objects": 8}},
        rounds=3,
        min_time="3 ms",
    )
    assert c.results["slub"].tunables == {"min_objects": 8}
    assert c.results["unified"].tunables == {}


@pytest.mark.parametrize(
    "wrong", [[1], [("slub", 1)], {"a": ("slub",)}, {1: "slub"}, [("slub", {}, {})], 7]
)
def test_policies_of_another_kind(wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected"):
        us.compare(us.workloads.pair(times=50), wrong)


def test_a_policy_is_set_against_itself() -> None:
    options: dict[str, Any] = {"rounds": 3, "min_time": "3 ms"}
    pair = us.workloads.pair(times=50)
    c = us.compare(pair, [("unified", {"adapt_period": 0}), "unified"], **options)
    fixed = "unified:adapt_period=0"
    assert set(c.results) == {"unified", fixed} == set(c.summary.index)
    assert c.results[fixed].policy == "unified" and c.results[fixed].label == fixed
    assert fixed in c.verdict
    assert set(c.results[fixed].to_frame()["policy"]) == {fixed}
    assert set(c.results[fixed].caches["policy"]) == {fixed}
    assert c.results[fixed].tunables == {"adapt_period": 0}
    c = us.compare(
        pair,
        {"small": ("unified", {"cpu_queue_size": 8}), "plain": "unified"},
        tunables={"unified": {"cpu_queue_size": 16, "batch_size": 8}, "plain": {"batch_size": 4}},
        **options,
    )
    assert c.results["small"].tunables == {"cpu_queue_size": 8, "batch_size": 8}
    assert c.results["plain"].tunables == {"cpu_queue_size": 16, "batch_size": 4}


def test_an_error_names_the_contestant() -> None:
    large = us.Workload("large")
    cache = large.add_cache("large", 4096)
    large.add_task(us.ops.alloc(cache, range(1000)))
    with pytest.raises(us.LimitExceeded, match=r"^tight: task 0, op ") as error:
        us.compare(large, {"tight": "slub"}, memory="1 MiB", rounds=3)
    assert error.value.limit == 2**20


def test_a_paced_comparison_keeps_busy_time_and_the_time_of_passes_apart() -> None:
    # A pass lasts as long as the trace, whose gaps of 50 us and more are kept; what is compared is
    # for how long CPUs were busy in it.
    trace = us.datasets.load("tcp_rr")[:1000]
    c = us.compare(trace, ["slub"], machine=us.Machine.grid(1, 1, 2))
    result = c.results["slub"]
    assert result.seconds is not None
    assert min(result.repeats) == result.seconds.low > trace.duration - 2 * 50e-6
    assert 0 < c.warm("slub") < result.seconds.low


def test_a_modelled_machine_gives_virtual_times_that_repeat() -> None:
    pair, machine = us.workloads.pair(times=50), us.Machine.grid(1, 1, 1)
    first, again = (us.compare(pair, ["slub", "unified"], machine=machine) for _ in range(2))
    assert first.timed and first.rounds == again.rounds
    assert first.results["slub"].counters["alloc_fast"] > 0


# ---- mallocs --------------------------------------------------------------------------------


def test_a_library_that_is_not_installed_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "find_library", lambda name: None)
    c = us.compare(
        us.workloads.pair(times=50),
        ["slub"],
        baselines=["malloc:jemalloc"],
        rounds=3,
        min_time="3 ms",
    )
    assert list(c.results) == ["slub"]
    assert c.notes == ("malloc:jemalloc is not installed here (Debian: libjemalloc2); left out",)


@pytest.mark.parametrize("name", baseline.BASELINES)
def test_each_malloc_that_is_here_runs_the_same_workload(name: str) -> None:
    if name != "malloc" and "address" in os.environ.get("UNISLAB_SANITIZE", ""):
        pytest.skip("AddressSanitizer's runtime and another malloc both have to be loaded first")
    made_workload = us.Workload("mixed")
    aligned = made_workload.add_cache("aligned", 100, align=256)
    huge = made_workload.add_cache("huge", 5_000_000, kmalloc=True)
    made_workload.add_task(
        us.ops.alloc(aligned, [0, 1]), us.ops.alloc(huge, 2, zero=True), us.ops.free([0, 2])
    )
    try:
        child = baseline.BaselineContestant(made_workload, name, touch="all", pace=None)
    except baseline.Missing as missing:
        pytest.skip(str(missing))
    try:
        assert len(child.passes(3)) == 3
        seconds, counters, _, memory = child.last_pass()
    finally:
        child.close()
    assert seconds > 0 and counters == {} and set(memory) == {"resident"}


def test_errors_of_a_child_are_those_of_the_workload() -> None:
    stuck = us.Workload("stuck")
    stuck.add_task(us.ops.recv(stuck.channel()))
    child = baseline.BaselineContestant(stuck, "malloc", touch="none", pace=None)
    try:
        with pytest.raises(RuntimeError, match="malloc: deadlock"):
            child.passes(1)
    finally:
        child.close()


def test_a_child_that_dies_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "find_library", lambda name: "/no/such/library.so")
    with pytest.raises(RuntimeError, match="was not preloaded"):
        baseline.BaselineContestant(us.workloads.pair(), "malloc:mimalloc", touch="none", pace=None)


def test_rows_of_the_summary_are_plain_json(real: Comparison) -> None:
    json.dumps(real.summary.reset_index().to_dict("records"))
