"""The workloads that come with the package: what they allocate, who frees it, what they refuse."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import unislab as us
from unislab import ops
from unislab.contestant import PolicyContestant
from unislab.workloads import processes
from unislab.workloads.sockets import data_size

pytestmark = pytest.mark.once

ALLOCS = ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote")
FREES = ("free_fast", "free_second_level", "free_slow", "free_remote")
PACKET = 2  # objects of a message: its head and its data


def counts(allocs: int, marks: int) -> dict[str, int]:
    """Everything that a workload allocates it frees."""
    return {"allocs": allocs, "frees": allocs} | ({"marks": marks} if marks else {})


# Small sizes: workload, allocations, marks; each number from what the docstring says happens.
SMALL = {
    "hackbench": (
        us.workloads.hackbench(2, 3, tasks=5),
        # groups x senders x receivers x loops messages
        *(lambda messages: (messages * PACKET, messages))(2 * 5 * 5 * 3),
    ),
    "tcp_rr": (
        us.workloads.tcp_rr(3, cpus=2, irq_cpus=(0, 1), rx_ring=16, transactions=20),
        # a request and a receive buffer a transaction, and two rings
        3 * 20 * 2 * PACKET + 2 * 16 * PACKET,
        3 * 20,
    ),
    "tcp_rr to localhost": (
        us.workloads.tcp_rr(3, cpus=2, remote=False, transactions=20),
        3 * 20 * 2 * PACKET,  # a request and a response
        3 * 20,
    ),
    "udp_rr": (
        us.workloads.udp_rr(2, cpus=2, rx_ring=8, transactions=20, pinned=True),
        2 * 20 * 2 * PACKET + 8 * PACKET,
        2 * 20,
    ),
    "fork": (
        us.workloads.fork(4, parents=2),
        2
        * 4
        * sum(
            sum(table.values())
            for table in (processes.PARENT, processes.CHILD, processes.TRANSIENT)
        ),
        2 * 4,
    ),
    "fork_touch": (
        us.workloads.fork_touch(4, parents=2, memory="64 KiB"),
        2 * (4 * sum(processes.PARENT.values()) + 1),  # and each child's user memory
        2 * 4,
    ),
    "producer_consumer": (us.workloads.producer_consumer(messages=500, pairs=2), 1000, 1000),
    "alloc_touch_free": (us.workloads.slab_test("alloc_touch_free", n=300, cpus=9), 300, 0),
    "pairs": (us.workloads.slab_test("pairs", n=300, cpus=9), 300, 0),
    "concurrent_alloc_free": (us.workloads.slab_test("concurrent_alloc_free", n=300), 600, 0),
    "concurrent_pairs": (us.workloads.slab_test("concurrent_pairs", n=300), 600, 0),
    "remote_free": (us.workloads.slab_test("remote_free", n=300, cpus=3), 600, 0),
    "one_alloc_n_free": (us.workloads.slab_test("one_alloc_n_free", n=300, cpus=3), 600, 0),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_pass_allocates_what_the_docstring_says_and_frees_it(name: str) -> None:
    workload, allocs, marks = SMALL[name]
    assert dict(workload.counts) == counts(allocs, marks)


def run_and_count(name: str, policy: str) -> us.Result:
    workload, allocs, marks = SMALL[name]
    result = us.run(workload, policy, min_time="1 ms")
    assert sum(result.counters[row] for row in ALLOCS) == allocs
    assert sum(result.counters[row] for row in FREES) == allocs
    assert result.memory["live"] == 0
    assert result.marks == (marks or None)
    return result


@pytest.mark.filterwarnings("ignore:.*but this machine offers")
@pytest.mark.parametrize("name", SMALL)
def test_it_runs_natively_and_leaves_nothing(name: str) -> None:
    run_and_count(name, "unified")


@pytest.mark.filterwarnings("ignore:.*but this machine offers")
@pytest.mark.parametrize("policy", us.policies())
@pytest.mark.parametrize("name", ["hackbench", "tcp_rr"])
def test_it_runs_under_every_policy(name: str, policy: str) -> None:
    run_and_count(name, policy)


@pytest.mark.parametrize("name", SMALL)
def test_a_modelled_machine_does_the_same(name: str) -> None:
    workload, allocs, marks = SMALL[name]
    contestant = PolicyContestant(workload, "unified", machine=us.Machine.grid(2, 1, 2))
    try:
        seconds, counters, _, memory = contestant.last_pass()
    finally:
        contestant.close()
    assert sum(counters[row] for row in ALLOCS) == sum(counters[row] for row in FREES) == allocs
    assert (memory["live"], contestant.marks) == (0, marks)
    assert seconds > 0


@pytest.mark.parametrize(
    "text",
    [
        "hackbench:groups=1:tasks=2:loops=None",
        "tcp_rr:streams=2:cpus=1:transactions=None",
        "tcp_rr:streams=2:cpus=1:transactions=None:remote=False",
        "udp_rr:streams=2:cpus=1:transactions=None",
        "fork:processes=None",
        "fork_touch:processes=None:memory=8 KiB",
        "producer_consumer:messages=None:cpus=0,0",
    ],
)
def test_what_has_no_end_runs_for_a_duration(text: str) -> None:
    result = us.run(us.workloads.make(text), duration="20 ms")
    assert result.marks is not None
    assert result.marks > 0


# ---- the network ----------------------------------------------------------------------------


def test_a_transaction_takes_one_object_of_each_size_as_s1_counts() -> None:
    # published_results S1: one kmalloc-256 and one kmalloc-2048 a transaction; and what is sent.
    result = us.run(
        us.workloads.tcp_rr(2, cpus=1, rx_ring=4, transactions=50), "slub", min_time="1 ms"
    )
    rows = result.caches[result.caches["counter"].isin(ALLOCS)]
    made = rows.groupby("cache")["value"].sum()
    assert {cache: number for cache, number in made.items() if number} == {
        "skbuff_fclone_cache": 100,
        "kmalloc-512": 100,
        "kmalloc-256": 100 + 4,
        "kmalloc-2048": 100 + 4,
    }


def test_streams_take_turns_at_the_interrupt_cpus() -> None:
    made = us.workloads.tcp_rr(5, cpus=8, irq_cpus=(2, 7), app_cpus=(0, 1), pinned=True)
    irqs = [task for task in made.tasks if task.interrupt]
    assert [task.cpus for task in irqs] == [(2,), (7,), (2,), (7,), (2,)]
    own = [task.cpus for task in made.tasks if task.name.startswith("netperf")]
    assert own == [(0,), (1,), (0,), (1,), (0,)]
    free = us.workloads.tcp_rr(5, cpus=4)
    assert {t.cpus for t in free.tasks if t.name.startswith("netperf")} == {(0, 1, 2, 3)}


def test_only_the_wire_has_a_delay() -> None:
    made = us.workloads.udp_rr(1, cpus=1, round_trip="20 us")
    sent = np.concatenate([task.ops for task in made.tasks])
    sent = sent[(sent["op"] == ops.OPS["SEND"])]
    assert Counter(sent["arg"].tolist())[20_000] == PACKET  # the request, head and data
    assert set(sent["arg"].tolist()) == {0, 20_000}


def test_sizes_lead_to_the_general_caches_of_the_era() -> None:
    # A frame of 1522 bytes and its shared info fit 2048, a small packet's 512; a head fits 256.
    sizes = {c.name: c.size for c in us.workloads.tcp_rr(1, cpus=1).caches}
    assert 1024 < sizes["rx data"] <= 2048
    assert 256 < sizes["tx data"] <= 512
    assert 192 < sizes["rx sk_buff"] <= 256
    assert 256 < data_size(100) <= 512  # hackbench


# ---- processes ------------------------------------------------------------------------------


def test_objects_of_a_process_are_those_of_the_trace() -> None:
    frame = us.datasets.load("fork").to_frame()
    made = frame[frame["kind"] == "alloc"]
    started = made["cache"] == "task_struct"
    parents = set(made.loc[started, "pid"])
    by_parent = made["pid"].isin(parents)

    def each(rows: object) -> dict[tuple[str, int], int]:
        number = made[rows].groupby(["cache", "bytes_req"]).size() / started.sum()
        return {key: round(n) for key, n in number.items() if round(n)}

    assert each(by_parent) == processes.PARENT
    assert each(~by_parent) == processes.CHILD | processes.TRANSIENT


def test_momentary_objects_are_those_that_live_shortest_in_the_trace() -> None:
    # By the trace's own median life times, so that "freed at once" is no opinion.
    frame = us.datasets.load("fork").to_frame()
    ended = frame[(frame["kind"] == "free") & (frame["object"] >= 0)].set_index("object")["time_ns"]
    made = frame[frame["kind"] == "alloc"].set_index("object")
    lives = (ended - made["time_ns"]).groupby([made["cache"], made["bytes_req"]]).median()
    longest = max(lives[key] for key in processes.TRANSIENT)
    assert longest < min(lives[key] for key in processes.CHILD)


# ---- slab_test ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["remote_free", "one_alloc_n_free"])
def test_objects_change_hands(shape: str) -> None:
    made = us.workloads.slab_test(shape, n=10, cpus=4)
    does = [set(task.ops["op"].tolist()) - {ops.OPS["BARRIER"]} for task in made.tasks]
    one, others = ("FREE", "ALLOC") if shape == "remote_free" else ("ALLOC", "FREE")
    assert does == [{ops.OPS[one]}] + [{ops.OPS[others]}] * 3
    slots = [task.ops["slot"][task.ops["op"] != ops.OPS["BARRIER"]].tolist() for task in made.tasks]
    # CPU 0 goes round the others; each has as many.
    assert slots[0] == [slot for turn in zip(*slots[1:], strict=True) for slot in turn]
    assert [len(own) for own in slots] == [30, 10, 10, 10]


# ---- names and values -----------------------------------------------------------------------


@pytest.mark.parametrize("name", us.workloads.names())
def test_every_name_makes_a_workload_that_marks_or_frees_all(name: str) -> None:
    made = us.workloads.make(name)
    assert made.counts["allocs"] == made.counts["frees"] > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hackbench:groups=0", "groups=0"),
        ("hackbench:groups=999:tasks=999", "at most 30000"),
        ("hackbench:mode=fiber", "'process' or 'thread'"),
        ("hackbench:loops=0", "loops=0"),
        ("hackbench:socket_buffer=0", "socket_buffer=0"),
        ("hackbench:size=x", "size='x'"),
        ("hackbanch", "did you mean 'hackbench'"),
        ("hackbench:group=3", "no parameter 'group'"),
        ("hackbench:groups", "expected parameter=value"),
        ("tcp_rr:streams=0", "streams=0"),
        ("tcp_rr:cpus=4:irq_cpus=4", "irq_cpus: CPU 4"),
        ("tcp_rr:irq_cpus=1,1", "each once"),
        ("tcp_rr:app_cpus=()", "at least one"),
        ("tcp_rr:rx_ring=0", "rx_ring=0"),
        ("tcp_rr:round_trip=soon", "soon"),
        ("udp_rr:stack_cycles=-1", "stack_cycles=-1"),
        ("fork:parents=0", "parents=0"),
        ("fork_touch:memory=0", "0 pages"),
        ("slab_test:shape=pears", "did you mean 'pairs'"),
        ("slab_test:size=8 KiB", "8 to 4096 bytes"),
        ("slab_test:shape=pairs:size=4", "8 to 16384 bytes"),
        ("slab_test:cpus=1", "cpus=1 (remote_free)"),
        ("producer_consumer:cpus=0", "producer and consumer"),
        ("producer_consumer:pairs=0", "pairs=0"),
    ],
)
def test_wrong_parameters_are_named(text: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        us.workloads.make(text)
    assert said in str(error.value)


def test_the_receive_ring_is_full_before_the_first_request() -> None:
    # Interrupts may leave no time to any task of their CPU: a ring that is filled beside them
    # stays half empty for ever, and with it the number of objects that are under way.
    ring = 512
    many = us.workloads.tcp_rr(160, rx_ring=ring, round_trip="1 us", transactions=None)
    on = us.Machine.amd_16core_2010()
    result = us.run(many, "slub", machine=on, duration="2 ms", warmup="3 ms")
    assert result.marks
    # A packet of the ring is a head of 232 bytes and data of 1.5 KiB, both of a slab's stride:
    # kmalloc-256 and kmalloc-2048 (the workload's docstring).
    assert result.memory["live"] >= (ring - 1) * (256 + 2048)
