"""Runs: counters and accounts that add up, failures and stops that leave nothing, the model."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping

import pandas as pd
import pytest

import unislab as us
from unislab import ops

ALLOCS = ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote")
FREES = ("free_fast", "free_second_level", "free_slow", "free_remote")
SHORT = "5 ms"


def total(counters: Mapping[str, int], names: tuple[str, ...]) -> int:
    return sum(counters[name] for name in names)


@pytest.fixture(params=us.policies())
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def alloc(policy: str) -> Iterator[us.Allocator]:
    """An allocator that must end clean: closing it raises if anything is live."""
    with us.Allocator(policy, memory="64 MiB") as made:
        yield made
        assert made.account()["live"] == 0
        assert made.validate().ok


# ---- what is counted ------------------------------------------------------------------------


@pytest.mark.parametrize("name", us.datasets.names())
@pytest.mark.parametrize("implied", ["before", "spread"])
def test_counters_are_those_of_one_pass_of_the_trace(name: str, implied: str, policy: str) -> None:
    trace = us.datasets.load(name)
    result = us.run(trace, policy, implied=implied, min_time=SHORT)
    assert total(result.counters, ALLOCS) == trace.counts["allocs"] == result.counts["allocs"]
    freed = trace.counts["frees_matched"] + trace.counts["implied_frees"]
    assert total(result.counters, FREES) == freed


def test_counters_by_cache_add_up_to_the_common_ones(policy: str) -> None:
    result = us.run(us.datasets.load("files"), policy, min_time=SHORT)
    by_counter = result.caches.groupby("counter")["value"].sum()
    for name in (*ALLOCS, *FREES, "slab_new", "slab_free"):
        assert by_counter[name] == result.counters[name]
    assert set(result.caches.columns) == {"policy", "cache", "counter", "value"}


def test_counters_by_cache_are_those_of_the_trace(policy: str) -> None:
    trace = us.datasets.load("fork")
    caches = us.run(trace, policy, min_time=SHORT).caches
    made = caches[caches["counter"].isin(ALLOCS)].groupby("cache")["value"].sum()
    told = trace.describe()["allocs"]
    for cache in trace.caches:
        if cache != "kmalloc":
            assert made[cache] == told[cache]


def test_bytes_add_up_and_peaks_are_not_below(policy: str) -> None:
    memory = us.run(us.datasets.load("hackbench"), policy, min_time=SHORT).memory
    parts = ("live", "queued", "free_in_slabs", "waste")
    assert memory["reserved"] == sum(memory[part] for part in parts)
    for name in (*parts, "reserved", "metadata", "resident", "address_range"):
        assert memory[f"{name}_peak"] >= memory[name]


def test_peaks_of_a_pass_that_ends_empty_are_seen(policy: str) -> None:
    made = us.workloads.batch(64, 1024, times=20)
    memory = us.run(made, policy, min_time=SHORT).memory
    assert memory["live"] == 0
    assert 32 * 1024 < memory["live_peak"] <= 64 * 1024


def test_times_and_repeats_of_a_result(policy: str) -> None:
    result = us.run(us.workloads.pair(times=100), policy, min_time=SHORT)
    assert result.seconds is not None and result.harness is not None
    assert result.seconds.low <= result.seconds.warm <= result.seconds.high
    assert len(result.repeats) >= 5
    assert all(second > 0 for second in (*result.repeats, result.seconds.cold, result.harness))
    assert result.environment["build_id"] == us.build_info()["build_id"]
    assert "\n" not in repr(result)
    assert "<table" in result._repr_html_() and "http" not in result._repr_html_()
    frame = result.to_frame()
    units = {"s", "calls", "bytes", "slabs", "objects", "flushes", "acquisitions"}
    assert set(frame["unit"]) == units and not frame["value"].isna().any()


def test_marks_are_counted_and_give_the_rate(policy: str) -> None:
    made = us.Workload("rounds")
    cache = made.add_cache("object", 64)
    made.add_task(ops.repeat(30, ops.alloc(cache, 0), ops.free(0), ops.mark()))
    made.add_task(ops.repeat(12, ops.work(10), ops.mark()))
    result = us.run(made, policy, min_time=SHORT)
    assert result.marks == 30 + 12 == result.counts["marks"]
    assert result.seconds is not None
    assert result.rate == result.marks / result.seconds.warm
    rows = result.to_frame().set_index("quantity")
    assert (rows["value"]["rate"], rows["unit"]["rate"]) == (result.rate, "marks/s")


def test_a_duration_ends_an_endless_workload(policy: str) -> None:
    made = us.Workload("endless")
    cache, line = made.add_cache("object", 64), made.channel(4)
    made.add_task(ops.repeat(2**40, ops.alloc(cache, 0), ops.send(line, 0)))
    made.add_task(ops.repeat(2**40, ops.recv(line, 0), ops.free(0), ops.mark()))
    result = us.run(made, policy, duration="10 ms", warmup="2 ms")
    assert result.seconds is None
    assert result.repeats == ()
    assert result.elapsed is not None
    assert result.elapsed >= 0.010
    assert result.marks
    assert result.rate == result.marks / result.elapsed
    # Each object is marked after its free; at most channel and slots are live at the stop.
    allocs, frees = total(result.counters, ALLOCS), total(result.counters, FREES)
    assert 0 <= allocs - frees <= 4 + 1 + 1
    assert result.marks <= frees


def test_a_duration_needs_programs_that_are_long_enough() -> None:
    made = us.workloads.pair(times=1)
    with pytest.raises(ValueError, match="give it more repetitions"):
        us.run(made, duration="10 s")


def test_results_can_be_sent_to_another_process(policy: str) -> None:
    workload = us.workloads.pair(times=100)
    result = us.run(workload, policy, min_time=SHORT)
    again = pickle.loads(pickle.dumps(result))
    assert repr(again) == repr(result)
    assert dict(again.counts) == dict(result.counts)
    pd.testing.assert_frame_equal(again.caches, result.caches)
    pd.testing.assert_frame_equal(again.to_frame(), result.to_frame())
    compared = us.compare(workload, rounds=3, min_time=SHORT)
    again = copy.deepcopy(compared)
    assert again.verdict == compared.verdict
    assert sorted(again.results) == sorted(compared.results)


def test_tunables_reach_every_cache() -> None:
    with pytest.raises(ValueError, match="min_object"):
        us.run(us.workloads.pair(), "slub", min_object=3, min_time=SHORT)
    many = us.run(us.workloads.batch(64, 64), "unified", min_time=SHORT, cpu_queue_size=200)
    few = us.run(
        us.workloads.batch(64, 64), "unified", min_time=SHORT, cpu_queue_size=8, batch_size=4
    )
    assert few.counters["alloc_fast"] < many.counters["alloc_fast"] == 64 * 200


@pytest.mark.parametrize("touch", ["first", "all", "none"])
@pytest.mark.parametrize("sizes", ["requested", "kernel"])
def test_options_change_what_is_done_but_not_what_is_counted(touch: str, sizes: str) -> None:
    trace = us.datasets.load("tcp_rr")[:5000]
    result = us.run(trace, touch=touch, sizes=sizes, min_time=SHORT)
    assert total(result.counters, ALLOCS) == trace.counts["allocs"]


def test_a_paced_run_keeps_the_gaps_of_the_trace() -> None:
    trace = us.datasets.load("tcp_rr").between(0, 0.02)
    result = us.run(trace, pace=1.0, min_time="1 ms")
    assert result.seconds is not None
    # A lower bound is no timing: sleeping is never shorter than asked for.
    assert result.seconds.warm >= trace.duration - 1e-3


# ---- an allocator of the caller's -----------------------------------------------------------


def test_an_allocator_can_be_watched_meanwhile(alloc: us.Allocator) -> None:
    trace = us.datasets.load("tcp_rr")
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            seen.append(alloc.account()["reserved"])
            alloc.stats()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = us.run(trace, allocator=alloc, min_time="50 ms")
    finally:
        done.set()
        watcher.join()
    assert total(result.counters, ALLOCS) == trace.counts["allocs"]
    assert max(seen, default=1) > 0
    again = us.run(trace, allocator=alloc, min_time=SHORT)  # its caches are there already
    assert total(again.counters, ALLOCS) == trace.counts["allocs"]


def test_an_allocator_comes_with_its_own_settings(alloc: us.Allocator) -> None:
    with pytest.raises(ValueError, match="leave machine=, memory= and tunables out"):
        us.run(us.workloads.pair(), allocator=alloc, memory="1 MiB")


def test_a_cache_of_another_size_is_in_the_way(alloc: us.Allocator) -> None:
    alloc.create_cache("object", 100)
    with pytest.raises(ValueError, match="of 100 bytes, the workload needs 256"):
        us.run(us.workloads.pair(256), allocator=alloc)


def test_constructors_in_python_are_refused(alloc: us.Allocator) -> None:
    alloc.create_cache("object", 256, constructor=lambda view: None)
    with pytest.raises(ValueError, match="constructor is a Python callable"):
        us.run(us.workloads.pair(256), allocator=alloc)


# ---- failures -------------------------------------------------------------------------------


def hoarder(objects: int) -> us.Workload:
    made = us.Workload("hoarder")
    cache = made.add_cache("big", 4096)
    made.add_task(ops.alloc(cache, range(objects)), ops.free(range(objects)))
    return made


def test_memory_that_runs_out_ends_the_run_and_frees_all(policy: str) -> None:
    with us.Allocator(policy, memory="4 MiB") as small:
        with pytest.raises(MemoryError, match=r"task 0, op \d+ \(ALLOC\)"):
            us.run(hoarder(2000), allocator=small, min_time=SHORT)
        assert small.account()["live"] == 0
        assert small.validate().ok
        us.run(hoarder(100), allocator=small, min_time=SHORT)


def test_injected_failures_end_the_run_and_free_all(alloc: us.Allocator) -> None:
    us.run(hoarder(20), allocator=alloc, min_time=SHORT)
    alloc.fail("pages", rate=1.0)
    with pytest.raises(MemoryError):
        us.run(hoarder(500), allocator=alloc, min_time=SHORT)
    alloc.fail("pages")
    us.run(hoarder(500), allocator=alloc, min_time=SHORT)


def test_tasks_that_wait_for_one_another_are_named() -> None:
    made = us.Workload("stuck")
    cache, left, right = made.add_cache("c", 64), made.channel(), made.channel()
    made.add_task(ops.alloc(cache, 0), ops.recv(left, 1))
    made.add_task(ops.recv(right, 0), ops.send(left, 0))
    with pytest.raises(RuntimeError) as error:
        us.run(made)
    assert "deadlock" in str(error.value)
    assert "task 0 at op 1 for a message on channel 0" in str(error.value)
    assert "task 1 at op 0 for a message on channel 1" in str(error.value)


class Interrupted(Exception):
    """What the signal handler of the test raises."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupted


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(us.workloads.pair(times=10**9), id="in a loop"),
        pytest.param(us.workloads.producer_consumer(messages=10**9, depth=1), id="while waiting"),
    ],
)
def test_a_signal_stops_a_run_and_leaves_the_allocator_whole(
    made: us.Workload, alloc: us.Allocator
) -> None:
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Interrupted):
            us.run(made, allocator=alloc)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert alloc.account()["live"] == 0
    us.run(us.workloads.pair(times=10), allocator=alloc, min_time=SHORT)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"touch": "some"}, "'first', 'all' or 'none'"),
        ({"pace": 0}, "above 0"),
        ({"pace": -1.0}, "above 0"),
        ({"min_time": "soon"}, "soon"),
        ({"policy": "unifed"}, "unified"),
        ({"implied": "later"}, "'before' or 'spread'"),
        ({"duration": 0}, "more than 0"),
        ({"duration": "-1 s"}, "-1 s"),
        ({"warmup": "1 ms"}, "give duration= too"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as error:
        us.run(us.datasets.load("tcp_rr")[:100], **options)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_what_is_no_workload_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a Workload or a Trace"):
        us.run("tcp_rr")  # type: ignore[arg-type]


# ---- the model ------------------------------------------------------------------------------


def one_cpu() -> us.Workload:
    """Everything one task can do, with more objects than any queue holds."""
    made = us.Workload("one CPU")
    small, large = made.add_cache("small", 40), made.add_cache("large", 1500, align=64)
    general = made.add_cache("general", 300, kmalloc=True)
    made.add_task(
        ops.repeat(
            3, ops.alloc(small, range(500)), ops.free(range(0, 500, 2)), ops.free(range(1, 500, 2))
        ),
        ops.alloc(large, range(100)),
        ops.repeat(20, ops.alloc(general, range(200, 260), zero=True), ops.free(range(200, 260))),
        ops.free(range(99, -1, -1)),
        ops.alloc(small, range(7)),
        cpu=0,
    )
    return made


def test_the_model_counts_the_same_every_time(policy: str) -> None:
    machine = us.Machine.grid(2, 1, 2)
    first, second = (us.run(one_cpu(), policy, machine=machine) for _ in range(2))
    assert dict(first.counters) == dict(second.counters)
    assert dict(first.memory) == dict(second.memory)
