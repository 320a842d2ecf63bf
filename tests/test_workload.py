"""Workloads: what is refused before a run, how a trace becomes operations, files, folded CPUs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import unislab as us
from unislab import ops
from unislab.workload import fold_cpus

pytestmark = pytest.mark.once


def workload(*tasks: ops.Ops) -> us.Workload:
    """One cache of 64 bytes, one channel, and the tasks."""
    made = us.Workload("made")
    made.add_cache("object", 64)
    made.channel(4)
    for task in tasks:
        made.add_task(task)
    return made


def made_trace(rows: list[tuple[int, int, str, int]], **columns: object) -> us.Trace:
    """A trace of (time in us, CPU, kind, object) in one cache."""
    frame = pd.DataFrame(rows, columns=["time_us", "cpu", "kind", "object"])
    frame["time_ns"] = frame.pop("time_us") * 1000
    frame["cache"], frame["bytes_req"] = "object", 64
    return us.Trace.from_frame(frame.assign(**columns))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            ops.sequence(ops.alloc(0, 1), ops.free([1, 1])),
            "op 2 (FREE): slot 1 was emptied by op 1",
        ),
        (ops.free(3), "op 0 (FREE): slot 3 was never allocated"),
        (ops.alloc(0, [2, 2]), "op 1 (ALLOC): slot 2 still holds the object of op 0"),
        (ops.alloc(9, 0), "op 0 (ALLOC): cache 9, but the workload has 1"),
        (ops.send(7), "op 0 (SEND): channel 7, but the workload has 1"),
        (
            ops.sequence(ops.alloc(0, 0), ops.touch(0, 65)),
            "op 1 (TOUCH): 65 bytes of an object of 64",
        ),
        (ops.repeat(2, ops.alloc(0, 0)), "op 0 (ALLOC): slot 0 still holds"),
        (np.array([(ops.OPS["SLEEP"], 0, 0, 0, 10**12 + 1)], ops.OP_DTYPE), "expected 0 to 10^12"),
        (np.array([(77, 0, 0, 0, 0)], ops.OP_DTYPE), "op code 77"),
        (np.array([(ops.OPS["REPEAT"], 0, 0, 1, 2)], ops.OP_DTYPE), "repeats 1 ops, but 0 stand"),
    ],
)
def test_a_wrong_program_is_refused_with_task_op_and_value(bad: ops.Ops, said: str) -> None:
    made = workload(ops.work(1), bad)
    with pytest.raises(ValueError, match=r"^task 1") as error:
        made.check()
    assert said in str(error.value)
    with pytest.raises(ValueError, match=r"^task 1"):
        us.run(made)


def test_what_stays_right_for_one_round_only_is_refused_when_repeated() -> None:
    body = ops.sequence(ops.alloc(0, 0), ops.touch(0, 64))
    workload(body).check()
    workload(ops.repeat(1, body)).check()
    workload(ops.repeat(50, body, ops.free(0))).check()
    with pytest.raises(ValueError, match="still holds"):
        workload(ops.repeat(2, body)).check()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: us.Workload("w").add_cache("c", 0), "expected at least 1"),
        (lambda: us.Workload("w").channel(0), "capacity 0"),
        (lambda: us.Workload("w").add_task(ops.work(1), cpu=-1), "cpu=-1"),
        (lambda: ops.alloc(0, -1), "slot -1"),
        (lambda: ops.free(range(3, -2, -1)), "slot -1"),
        (lambda: ops.free(range(2**32 - 1, 2**32 + 3)), f"slot {2**32 + 2}"),
        (lambda: ops.alloc(70_000, 0), "cache or channel 70000"),
        (lambda: ops.repeat(-1, ops.work(1)), "-1 times"),
        (lambda: ops.send(0, delay=-1), "delay -1"),
        (lambda: ops.sleep("2000 s"), "10**12 ns"),
        (lambda: us.Workload("w").add_task(ops.work(1), interrupt=True), "exactly one CPU"),
        (lambda: us.Workload("w").add_task(cpu=[0, 1], interrupt=True), "found cpu=[0, 1]"),
        (lambda: us.Workload("empty").check(), "at least one task"),
        (lambda: us.workloads.batch(order="random"), "'lifo' or 'fifo'"),
    ],
)
def test_wrong_values_are_named(call, said: str) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert said in str(error.value)


def test_a_cache_name_is_taken_once_but_kmalloc_sizes_are_free() -> None:
    made = us.Workload("w")
    made.add_cache("c", 64)
    made.add_cache("c", 64, kmalloc=True)
    with pytest.raises(ValueError, match="has a cache 'c' already"):
        made.add_cache("c", 32)


def test_interrupts_and_marks_survive_a_file(tmp_path: Path) -> None:
    made = us.Workload("irq")
    line = made.channel()
    made.add_task(ops.recv(line), ops.mark(), cpu=0, name="irq", interrupt=True)
    made.add_task(ops.send(line, delay="1 us"))
    made.save(tmp_path / "irq.npz")
    loaded = us.Workload.load(tmp_path / "irq.npz")
    assert [(t.cpus, t.name, t.interrupt) for t in loaded.tasks] == [
        ((0,), "irq", True),
        ((), "", False),
    ]
    assert loaded.counts == made.counts == {"allocs": 0, "frees": 0, "marks": 1}


def test_tasks_take_operations_only() -> None:
    with pytest.raises(TypeError, match="OP_DTYPE"):
        us.Workload("w").add_task([("ALLOC", 0, 0)])  # type: ignore[arg-type]


def test_an_op_is_sixteen_bytes_as_in_c() -> None:
    assert ops.OP_DTYPE.itemsize == 16


def test_counts_multiply_loops_within_loops() -> None:
    inner = ops.repeat(3, ops.alloc(0, 0), ops.free(0))
    made = workload(ops.repeat(10, inner, ops.alloc(0, 1), ops.free(1)), ops.alloc(0, 0))
    assert dict(made.counts) == {"allocs": 10 * (3 + 1) + 1, "frees": 10 * (3 + 1)}


# ---- traces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", us.datasets.names())
@pytest.mark.parametrize("implied", ["before", "spread"])
def test_a_replay_allocates_and_frees_what_the_trace_counts(name: str, implied: str) -> None:
    trace = us.datasets.load(name)
    made = us.Workload.from_trace(trace, implied=implied, seed=3)
    kinds = Counter(int(op) for task in made.tasks for op in task.ops["op"])
    assert kinds[ops.OPS["ALLOC"]] == trace.counts["allocs"]
    freed = trace.counts["frees_matched"] + trace.counts["implied_frees"]
    assert kinds[ops.OPS["FREE"]] == freed
    assert [task.cpus for task in made.tasks] == [(cpu,) for cpu in trace.cpus]
    made.check()


def test_only_objects_freed_elsewhere_are_shared() -> None:
    rows = [(0, 0, "alloc", 1), (1, 0, "alloc", 2), (2, 1, "free", 1), (3, 0, "free", 2)]
    made = us.Workload.from_trace(made_trace(rows))
    first, second = (
        [op for op in task.ops if op["op"] in (ops.OPS["ALLOC"], ops.OPS["FREE"])]
        for task in made.tasks
    )
    assert [int(op["flags"]) & ops.FLAGS["SHARED"] for op in first] == [1, 0, 0]
    assert [int(op["flags"]) & ops.FLAGS["SHARED"] for op in second] == [1]


def test_slots_are_used_again_so_that_few_are_needed() -> None:
    rows = [row for i in range(1000) for row in ((2 * i, 0, "alloc", i), (2 * i + 1, 0, "free", i))]
    made = us.Workload.from_trace(made_trace(rows))
    taken = made.tasks[0].ops
    assert set(taken["slot"][taken["op"] == ops.OPS["ALLOC"]].tolist()) == {0}


def test_every_event_stands_close_behind_a_progress_that_all_can_see() -> None:
    made = us.Workload.from_trace(us.datasets.load("hackbench"))
    for task in made.tasks:
        codes = task.ops["op"]
        # a pass begins with all at 0, which is close enough to the first 64 events
        told = task.ops["arg"][codes == ops.OPS["PROGRESS"]].astype(np.int64)
        assert np.all(np.diff(told) >= 64)
        between = np.diff(np.flatnonzero(codes == ops.OPS["PROGRESS"]), prepend=-1)
        # 64 events, the PROGRESS itself, and now and then a CLOCK
        assert between.max() <= 64 + 2


def test_cpus_of_a_wide_trace_do_not_wait_for_one_another_for_want_of_window() -> None:
    trace = us.datasets.load("hackbench")[:300]
    wide = us.Workload.from_trace(trace.scale(cpus=128), paced=True)
    assert wide.window == 128 * 500  # as many events for each CPU as two CPUs have in 1000
    progress = sum(int((task.ops["op"] == ops.OPS["PROGRESS"]).sum()) for task in wide.tasks)
    assert progress < sum(len(task.ops) for task in wide.tasks) / 20
    idle = {}
    for window in (1000, wide.window, 10**9):
        wide.window = window
        told = us.run(wide, "slub", machine=us.Machine.grid(4, 1, 32)).explanation
        assert told is not None
        idle[window] = told.time["idle"]
    # No CPU has more than 300 events: with 500 for each, none ever waits for the window.
    assert idle[128 * 500] == idle[10**9] < idle[1000]


def test_time_stamps_that_step_back_do_not_turn_the_clock_back() -> None:
    rows = [(t, 0, "alloc", i) for i, t in enumerate((0, 30_000, 10_000, 60_000))]
    told = us.Workload.from_trace(made_trace(rows)).tasks[0].ops
    clocks = told["arg"][told["op"] == ops.OPS["CLOCK"]].tolist()
    assert clocks == sorted(clocks) == [0, 30_000_000, 60_000_000]


def test_sizes_zeroing_and_nodes_come_from_the_trace() -> None:
    trace = made_trace(
        [(0, 0, "alloc", 1), (1, 0, "alloc", 2)],
        cache=["kmalloc", "inode"],
        bytes_req=[100, 600],
        bytes_alloc=[128, 640],
        gfp=[us.trace.GFP["ZERO"], 0],
        node=[-1, 1],
        accounted=[0, 1],
    )
    asked = us.Workload.from_trace(trace)
    assert {(c.name, c.size, c.kmalloc) for c in asked.caches} == {
        ("inode", 600, False),
        ("kmalloc(100)", 100, True),
    }
    assert [c.size for c in us.Workload.from_trace(trace, sizes="kernel").caches if c.kmalloc] == [
        128
    ]
    made = asked.tasks[0].ops[asked.tasks[0].ops["op"] == ops.OPS["ALLOC"]]
    assert made["flags"].tolist() == [ops.FLAGS["ZERO"], ops.FLAGS["ACCOUNTED"]]
    assert made["arg"].tolist() == [0, 2]  # any node; node 1


@pytest.mark.parametrize("option", [{"sizes": "rounded"}, {"implied": "after"}])
def test_unknown_options_of_a_replay_are_refused(option: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        us.Workload.from_trace(us.datasets.load("tcp_rr"), **option)


# ---- files and CPUs -------------------------------------------------------------------------


def test_a_saved_workload_is_the_same(tmp_path: Path) -> None:
    made = us.workloads.producer_consumer(messages=7)
    made.save(tmp_path / "w.npz")
    again = us.Workload.load(tmp_path / "w.npz")
    assert (again.name, again.caches, again.channels) == (made.name, made.caches, made.channels)
    assert [t.cpus for t in again.tasks] == [t.cpus for t in made.tasks]
    assert all(np.array_equal(a.ops, b.ops) for a, b in zip(again.tasks, made.tasks, strict=True))
    assert again.counts == made.counts


def test_cpus_that_the_machine_lacks_fold_with_a_warning() -> None:
    made = us.Workload("wide")
    for cpu in (0, 1, 2, 5):
        made.add_task(ops.work(1), cpu=cpu)
    with pytest.warns(UserWarning, match="CPUs 0 to 5, but this machine offers 2"):
        assert fold_cpus(made, [4, 6]) == {0: 4, 1: 6, 2: 4, 5: 6}
    assert fold_cpus(made, range(8)) == {0: 0, 1: 1, 2: 2, 5: 5}


@pytest.mark.parametrize(
    "times", [(2**63, 2**63), (2**64 - 1, 2**64 - 1), (2**32, 2**31), (2**63,)]
)
def test_more_calls_than_can_be_counted(times: tuple[int, ...]) -> None:
    """Refused, not counted modulo something."""
    w = us.Workload("long")
    cache = w.add_cache("c", 64)
    body = ops.sequence(ops.alloc(cache, 0), ops.free(0))
    for n in times:
        body = ops.repeat(n, body)
    w.add_task(body)
    with pytest.raises(ValueError, match=r"2\^63"):
        w.check()


def test_a_pass_that_works_for_ever_is_no_error() -> None:
    w = us.Workload("long")
    w.add_task(ops.repeat(2**64 - 1, ops.repeat(2**64 - 1, ops.work(1))))
    assert dict(w.counts) == {"allocs": 0, "frees": 0}


def test_slots_may_be_given_as_an_array() -> None:
    order = np.array([2, 0, 1])
    assert np.array_equal(ops.free(order), ops.free([2, 0, 1]))
    assert np.array_equal(ops.free(order[0]), ops.free(2))
