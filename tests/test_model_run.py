"""Runs on modelled machines: the virtual times of small programs, derived from the costs.

On the machine of these tests the allocator costs nothing: what takes time are cycles of WORK (1 ns
each), wake-ups (100 ns for who makes them, 500 ns until an idle CPU runs), switches (1 us) and
interrupts (2 us).
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import unislab as us
from unislab import _model, _native, ops
from unislab.costs import COST_NAMES

pytestmark = pytest.mark.once  # no mode of this machine is in it

WAKEUP, IDLE_EXIT, SWITCH, INTERRUPT = 100, 500, 1000, 2000
TURN = 3_000_000  # of a task while others wait for its CPU


def machine(nodes: int = 1, domains: int = 1, cpus: int = 2, **more: Any) -> us.Machine:
    """Nothing costs anything but what the scheduler does."""
    free = dict.fromkeys(COST_NAMES, 0.0) | {
        "wakeup": WAKEUP,
        "idle_exit": IDLE_EXIT,
        "context_switch": SWITCH,
        "interrupt": INTERRUPT,
        "smt_slowdown": 100,
    }
    made = us.Machine.grid(nodes, domains, cpus).replace(costs=us.Costs(**free), clock_ghz=1.0)
    return made.replace(**more)


class Ran(NamedTuple):
    """What a pass took, in ns."""

    ns: int
    ends: list[int]
    told: Mapping[str, int]
    marks: list[int]


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def run(
    made: us.Workload, on: us.Machine | None = None, policy: str = "slub", **options: Any
) -> Ran:
    """One pass on an allocator of its own, whose books must be right afterwards."""
    with us.Allocator(policy, machine=on or machine()) as alloc:
        handles = [alloc.create_cache(c.name, c.size) for c in made.caches if not c.kmalloc]
        runner = _model.Runner(
            *made._program(lambda cpus: cpus),
            allocator=alloc,
            handles=handles,
            touch="none",
            **options,
        )
        (seconds,) = runner.passes(1)
        ran = Ran(
            nanoseconds(seconds),
            [nanoseconds(s) for s in runner.task_seconds()],
            runner.explain(),
            runner.marks(),
        )
        runner.close()
        assert alloc.account()["live"] == 0
        assert alloc.validate().ok
    return ran


def phases(told: Mapping[str, int]) -> dict[str, int]:
    """Nanoseconds by phase, of those that took any."""
    found = {k.removeprefix("time."): ps for k, ps in told.items() if k.startswith("time.")}
    assert not any(ps % 1000 for ps in found.values())
    return {phase: ps // 1000 for phase, ps in found.items() if ps}


# ---- exact times ----------------------------------------------------------------------------


def test_cycles_take_their_time_on_each_cpu() -> None:
    made = us.Workload("two tasks")
    made.add_task(ops.work(700), cpu=0)
    made.add_task(ops.work(100), ops.work(200), cpu=1)
    ran = run(made)
    assert (ran.ns, ran.ends) == (700, [700, 300])
    assert phases(ran.told) == {"work": 1000, "idle": 400}
    assert ran.told["op.events"] == 3


def test_a_message_wakes_who_waits() -> None:
    made = us.Workload("message")
    line = made.channel()
    made.add_task(ops.work(1000), ops.send(line), cpu=0)
    made.add_task(ops.recv(line), ops.work(50), cpu=1)
    ran = run(made)
    sent = 1000 + WAKEUP
    assert ran.ends == [sent, sent + IDLE_EXIT + 50]
    assert ran.told["op.wakeups"] == 1
    assert phases(ran.told) == {
        "work": 1050,
        "switch": WAKEUP,
        "idle": (sent + IDLE_EXIT) + (IDLE_EXIT + 50),  # CPU 1 until it runs, CPU 0 at the end
    }


def test_a_message_that_is_there_costs_no_wake_up() -> None:
    made = us.Workload("message")
    line = made.channel()
    made.add_task(ops.work(100), ops.send(line), cpu=0)
    made.add_task(ops.work(5000), ops.recv(line), ops.work(50), cpu=1)
    ran = run(made)
    assert ran.ends == [100, 5050]
    assert ran.told["op.wakeups"] == 0


def test_a_delay_passes_before_a_message_arrives() -> None:
    made = us.Workload("delay")
    line = made.channel(4)
    made.add_task(ops.work(1000), ops.send(line, delay="10 us"), cpu=0)
    made.add_task(ops.recv(line), ops.work(50), cpu=1)
    ran = run(made)
    assert ran.ends == [1000, 1000 + 10_000 + IDLE_EXIT + 50]  # nobody pays for the wake-up


def test_messages_of_a_channel_do_not_overtake() -> None:
    made = us.Workload("two delays")
    line = made.channel(4)
    made.add_task(ops.send(line, delay="10 us"), ops.send(line, delay="1 us"), cpu=0)
    made.add_task(ops.recv(line), ops.work(50), ops.recv(line), cpu=1)
    ran = run(made)
    assert ran.ends == [0, 10_000 + IDLE_EXIT + 50]  # the second had arrived at 10 us, too


def test_a_message_on_its_way_is_waited_for() -> None:
    made = us.Workload("on its way")
    line = made.channel(4)
    made.add_task(ops.send(line, delay="10 us"), cpu=0)
    made.add_task(ops.work(4000), ops.recv(line), cpu=1)
    assert run(made).ends == [0, 10_000 + IDLE_EXIT]


def test_a_full_channel_holds_the_sender_back() -> None:
    made = us.Workload("full")
    line = made.channel(1)
    made.add_task(ops.send(line), ops.send(line), ops.work(10), cpu=0)
    made.add_task(ops.work(1000), ops.recv(line), ops.recv(line), cpu=1)
    ran = run(made)
    taken = 1000 + WAKEUP  # who takes the first wakes the sender
    assert ran.ends == [taken + IDLE_EXIT + 10, taken]


def test_the_last_at_a_barrier_wakes_the_others() -> None:
    made = us.Workload("barrier")
    for cpu in range(3):
        made.add_task(ops.work(100 * (cpu + 1)), ops.barrier(), ops.work(7), cpu=cpu)
    ran = run(made, machine(cpus=3))
    first, second = 300 + WAKEUP, 300 + 2 * WAKEUP  # in the order in which they came
    assert ran.ends == [first + IDLE_EXIT + 7, second + IDLE_EXIT + 7, second + 7]


def test_a_sleeper_leaves_its_cpu_to_others() -> None:
    made = us.Workload("sleep")
    made.add_task(ops.sleep("5 us"), ops.work(10), cpu=0)
    made.add_task(ops.work(2000), cpu=0)
    ran = run(made)
    # The other is a switch away; then the CPU is idle until the sleeper wakes, a switch again.
    assert ran.ends == [5000 + IDLE_EXIT + SWITCH + 10, SWITCH + 2000]
    assert ran.told["op.switches"] == 2


def test_tasks_of_a_cpu_take_turns() -> None:
    made = us.Workload("turns")
    third = TURN // 3
    made.add_task(ops.repeat(5, ops.work(third)), cpu=0)
    made.add_task(ops.work(third), cpu=0)
    ran = run(made)
    other = 3 * third + SWITCH + third
    assert ran.ends == [other + SWITCH + 2 * third, other]
    assert ran.told["op.switches"] == 2


def test_an_interrupt_stops_the_task_at_its_next_op() -> None:
    made = us.Workload("interrupt")
    line = made.channel()
    made.add_task(ops.recv(line), ops.work(100), cpu=0, interrupt=True)
    made.add_task(ops.repeat(10, ops.work(1000)), cpu=0)
    made.add_task(ops.work(2500), ops.send(line), cpu=1)
    ran = run(made)
    # The handler runs first, until it waits. The message of 2500 ns comes in the task's first op,
    # which ends at 3000.
    served = INTERRUPT + 1000 + INTERRUPT + 100
    assert ran.ends == [served, served + 9 * 1000, 2500 + WAKEUP]
    assert (ran.told["op.interrupts"], ran.told["op.switches"]) == (2, 0)
    assert phases(ran.told)["interrupt"] == 2 * INTERRUPT


def test_an_idle_cpu_takes_a_task_that_waits_elsewhere() -> None:
    made = us.Workload("stealing")
    made.add_task(ops.work(10_000))
    made.add_task(ops.work(1000))
    made.add_task(ops.work(1000))  # on the CPU of the first, until that of the second is free
    ran = run(made)
    assert ran.ends == [10_000, 1000, 1000 + SWITCH + 1000]
    assert ran.told["op.steals"] == 1


def test_a_task_stays_on_its_cpus() -> None:
    made = us.Workload("affinity")
    made.add_task(ops.work(10_000), cpu=0)
    made.add_task(ops.work(1000), cpu=1)
    made.add_task(ops.work(1000), cpu=0)
    ran = run(made)
    assert ran.ends == [10_000, 1000, 10_000 + SWITCH + 1000]
    assert ran.told["op.steals"] == 0


def test_shared_slots_are_waited_for() -> None:
    made = us.Workload("shared")
    cache = made.add_cache("object", 64)
    slot = {"shared": True}
    made.add_task(ops.alloc(cache, 0, **slot), ops.alloc(cache, 0, **slot), ops.work(10), cpu=0)
    made.add_task(ops.work(1000), ops.free(0, **slot), ops.work(1), ops.free(0, **slot), cpu=1)
    ran = run(made)
    # The slot is emptied at 1000 ns and filled at once: such waits cost nobody anything.
    assert ran.ends == [1010, 1001]
    assert ran.told["op.wakeups"] == 0


def test_touching_costs_its_lines() -> None:
    made = us.Workload("touch")
    cache = made.add_cache("object", 256)
    made.add_task(
        ops.alloc(cache, 0), ops.touch(0), ops.touch(0), ops.touch(0, 64), ops.free(0), cpu=0
    )
    on = machine(costs__memory=80)
    told = run(made, on, "unified").told  # which touches no free object
    assert told["op.events"] == 2 + 4 + 4 + 1
    # The first touch finds four lines in memory, the others have them in L1.
    assert phases(told)["touch"] == 4 * 80
    assert phases(told)["touch"] * 1000 <= told["lines.memory"]


def test_siblings_share_a_core() -> None:
    made = us.Workload("siblings")
    made.add_task(ops.work(1000), cpu=0)
    made.add_task(ops.work(1000), cpu=1)
    assert run(made, machine(costs__smt_slowdown=150)).ends == [1000, 1000]
    assert run(made, machine(costs__smt_slowdown=150, smt=2)).ends == [1500, 1500]


def test_a_duration_counts_the_marks_of_its_time() -> None:
    made = us.Workload("marks")
    made.add_task(ops.repeat(10**9, ops.work(1000), ops.mark()), cpu=0)
    made.add_task(ops.repeat(10**9, ops.work(2000), ops.mark()), cpu=1)
    ran = run(made, warmup_ns=10_000, duration_ns=50_000)
    # Stopped at 10 us before the mark of that moment, and at 60 us.
    assert (ran.ns, ran.marks) == (50_000, [50, 25])
    assert phases(ran.told) == {"work": 2 * 50_000}


def test_a_paced_trace_waits_for_its_clock() -> None:
    made = us.Workload("clock")
    made.add_task(ops.clock(5000), ops.work(10), ops.clock(9000), ops.work(10), cpu=0)
    assert run(made, pace=1.0).ns == 9000 + IDLE_EXIT + 10
    assert run(made, pace=2.0).ns == 4500 + IDLE_EXIT + 10
    assert run(made).ns == 20


def test_every_cpu_ages_its_own_queues() -> None:
    """SLAB's timer: every 2 s on each CPU, staggered; a fifth of a queue that was not touched."""
    made = us.Workload("idle queues")
    cache = made.add_cache("object", 64)
    for cpu in range(4):
        made.add_task(ops.alloc(cache, range(50)), ops.free(range(50)), ops.sleep("7 s"), cpu=cpu)
    with us.Allocator("slab", machine=machine(cpus=4), purge_delay=100) as alloc:
        result = us.run(made, allocator=alloc, duration="6.5 s", warmup=0)
        assert result.explanation is not None
        # At 2, 4 and 6 s; what else is due is done with the last of them.
        assert result.explanation.counts["interrupts"] == 3 * 4
        expired = alloc.caches["object"].stats().per_cpu["expire_objects"]
        assert expired.min() == expired.max() > 0
        assert alloc.validate().ok


# ---- what any run keeps ---------------------------------------------------------------------

SHAPES = [(1, 1, 2), (2, 1, 2), (2, 2, 4)]


def small_workloads(cpus: int) -> list[us.Workload]:
    w = us.workloads
    return [
        w.hackbench(1, 2, tasks=3),
        w.producer_consumer(messages=200, depth=8, pairs=cpus // 2),
        w.tcp_rr(4, cpus=cpus, rx_ring=8, transactions=8),
        w.udp_rr(3, cpus=cpus, rx_ring=8, transactions=8, remote=False),
        w.slab_test("remote_free", n=60, cpus=cpus),
    ]


@pytest.mark.every_policy
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_books_are_right_after_any_run(policy: str, shape: tuple[int, int, int]) -> None:
    on = us.Machine.grid(*shape)
    with us.Allocator(policy, machine=on) as alloc:
        for made in small_workloads(on.topology.cpus):
            result = us.run(made, allocator=alloc)
            assert alloc.validate().ok
            assert alloc.account()["live"] == 0
            counted = [
                result.counters[f"{what}_{level}"]
                for what in ("alloc", "free")
                for level in ("fast", "second_level", "slow", "remote")
            ]
            assert sum(counted[:4]) == made.counts["allocs"]
            assert sum(counted[4:]) == made.counts["frees"]


@pytest.mark.every_policy
def test_all_time_of_all_cpus_is_told(policy: str) -> None:
    on = us.Machine.grid(2, 2, 2)
    for made in (
        us.workloads.hackbench(1, None, tasks=3),
        us.workloads.tcp_rr(12, cpus=8, transactions=None),
    ):
        result = us.run(made, policy, machine=on, duration="300 us", warmup="100 us")
        assert result.explanation is not None and result.elapsed is not None
        told = result.explanation
        assert sum(told.time.values()) == pytest.approx(8 * result.elapsed, abs=8e-9)
        assert sum(told.locks.values()) == pytest.approx(told.time["lock"], rel=1e-9)
        assert told.locks["gate"] >= 0
        assert sum(told.lines.values()) <= sum(told.time.values())


def test_results_can_be_sent_to_another_process() -> None:
    made = us.workloads.producer_consumer(messages=50)
    result = us.run(made, machine=us.Machine.grid(1, 1, 2), timeline="1 us")
    again = pickle.loads(pickle.dumps(result))
    assert again.explanation == result.explanation
    assert again.timeline is not None
    pd.testing.assert_frame_equal(again.timeline, result.timeline)
    assert repr(again) == repr(result)


PASSES = 3


def totals(alloc: us.Allocator, module: Any, made: us.Workload) -> dict[str, int]:
    """What all caches counted in a few passes."""
    handles = [
        alloc.create_cache(c.name, c.size, align=c.align) for c in made.caches if not c.kmalloc
    ]
    runner = module.Runner(*made._program(lambda cpus: cpus), allocator=alloc, handles=handles)
    runner.passes(PASSES)
    runner.close()
    found: dict[str, int] = {}
    for cache in alloc.caches.values():
        for counter, number in cache.stats(exact=True).items():
            found[counter] = found.get(counter, 0) + int(number)
    return found


@pytest.mark.every_policy
@pytest.mark.parametrize("name", ["batch", "trace", "general"])
def test_counters_are_those_of_this_machine(policy: str, name: str) -> None:
    """One CPU, one task: the code is the same, so is what it does."""
    if name == "batch":
        made = us.workloads.batch(200, 96, times=20)
    elif name == "general":
        made = us.Workload("general caches")
        sizes = [made.add_cache(f"{n}", n, kmalloc=True) for n in (24, 300, 1500)]
        held = ops.sequence(*(ops.alloc(c, range(100 * c, 100 * c + 100)) for c in sizes))
        made.add_task(ops.repeat(8, held, ops.free(range(0, 300, 2)), ops.free(range(1, 300, 2))))
    else:
        made = one_task(us.Workload.from_trace(us.datasets.load("fork")[:6000], paced=False))
    topology = us.Topology.native()
    with us.Allocator(policy) as here:
        counted = totals(here, _native, made)
    with us.Allocator(policy, machine=us.Machine.from_topology(topology)) as there:
        assert totals(there, _model, made) == counted
    assert counted


def one_task(made: us.Workload) -> us.Workload:
    """The allocations and frees that each task keeps to itself, one task after the other."""
    alone = us.Workload(f"{made.name} on one CPU")
    for cache in made.caches:
        alone.add_cache(cache.name, cache.size, align=cache.align, kmalloc=cache.kmalloc)
    first, parts = 0, []
    for task in made.tasks:
        calls = np.isin(task.ops["op"], [ops.OPS["ALLOC"], ops.OPS["FREE"]])
        kept = task.ops[calls & (task.ops["flags"] & 1 == 0)].copy()  # no shared slots
        kept["slot"] += first
        first = int(kept["slot"].max(initial=first)) + 1
        parts.append(kept)
    alone.add_task(*parts, cpu=0)
    return alone


# ---- failures -------------------------------------------------------------------------------


def test_who_waits_for_what_is_told_in_a_deadlock() -> None:
    made = us.Workload("stuck")
    cache, line = made.add_cache("c", 64), made.channel()
    full, empty = made.channel(1), made.channel()
    made.add_task(ops.alloc(cache, 0), ops.recv(line, 1), cpu=0)
    made.add_task(ops.send(full), ops.send(full), cpu=1)
    made.add_task(ops.barrier(), cpu=0)
    made.add_task(ops.recv(empty), ops.barrier(), cpu=1)
    made.add_task(ops.recv(empty), ops.send(empty), ops.recv(full), cpu=1)
    made.add_task(ops.recv(empty), ops.alloc(cache, 0), ops.send(line, 0), cpu=1)
    with us.Allocator("slab", machine=us.Machine.grid(1, 1, 2)) as alloc:
        with pytest.raises(RuntimeError, match="deadlock") as error:
            us.run(made, allocator=alloc)
        for told in (
            "task 0 at op 1 for a message on channel 0",
            "task 1 at op 1 for room in channel 1",
            "task 2 at op 0 for the other tasks at a BARRIER",
            "task 3 at op 0 for a message on channel 2",
            "and others",
        ):
            assert told in str(error.value)
        assert alloc.account()["live"] == 0
        us.run(us.workloads.pair(times=3), allocator=alloc)


def test_a_deadlock_over_shared_slots_names_them() -> None:
    made = us.Workload("stuck")
    cache = made.add_cache("c", 64)
    made.add_task(ops.free(0, shared=True), ops.alloc(cache, 1, shared=True), cpu=0)
    made.add_task(ops.free(1, shared=True), ops.alloc(cache, 0, shared=True), cpu=1)
    with pytest.raises(RuntimeError, match="task 0 at op 0 for the allocation of shared slot 0"):
        us.run(made, machine=us.Machine.grid(1, 1, 2))


@pytest.mark.parametrize(
    ("op", "slot", "said"),
    [(99, 0, r"task 0, op 1.*99"), (ops.OPS["FREE"], 7, "task 0, op 1.*7")],
)
def test_ops_that_make_no_sense_are_refused(op: int, slot: int, said: str) -> None:
    program = ops.sequence(ops.alloc(0, 0), ops.free(0))
    program[1]["op"], program[1]["slot"] = op, slot
    with us.Allocator("slub", machine=machine()) as alloc:
        handle = alloc.create_cache("c", 64)
        with pytest.raises(ValueError, match=said):
            _model.Runner(
                [("c", 64, 0)], [], [(program, (0,), 0)], allocator=alloc, handles=[handle]
            )


def test_a_slot_freed_twice_is_refused() -> None:
    made = us.Workload("twice")
    cache = made.add_cache("c", 64)
    made.add_task(ops.alloc(cache, 0), ops.free(0), ops.free(0))
    with pytest.raises(ValueError, match="task 0, op 2"):
        us.run(made, machine=machine())


class Interrupted(Exception):
    """What the signal handler of the test raises."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupted


@pytest.mark.parametrize("cpus", [2, 64])
def test_a_signal_stops_a_run_and_nothing_stays(cpus: int) -> None:
    made = us.workloads.producer_consumer(messages=None, depth=4, pairs=cpus // 2)
    with us.Allocator("unified", machine=us.Machine.grid(1, 1, cpus)) as alloc:
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with pytest.raises(Interrupted):
                us.run(made, allocator=alloc)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert alloc.account()["live"] == 0
        assert alloc.validate().ok
        us.run(us.workloads.pair(times=3), allocator=alloc)


@pytest.mark.every_policy
def test_memory_that_runs_away_ends_the_run(policy: str) -> None:
    made = us.Workload("hoarder")
    cache = made.add_cache("big", 4096)
    made.add_task(ops.alloc(cache, range(4000)), cpu=0)
    made.add_task(ops.repeat(10**9, ops.work(1000)), cpu=1)
    with us.Allocator(policy, machine=us.Machine.grid(1, 1, 2), memory="4 MiB") as alloc:
        with pytest.raises(MemoryError, match=r"task 0, op \d+ \(ALLOC\)"):
            us.run(made, allocator=alloc)
        assert alloc.account()["live"] == 0
        assert alloc.validate().ok
        us.run(us.workloads.pair(times=3), allocator=alloc)


def test_time_that_runs_away_ends_the_run() -> None:
    made = us.Workload("for ever")
    made.add_task(ops.repeat(2**40, ops.work(10**9)), cpu=0)
    with pytest.raises(ValueError, match="more than an hour of virtual time"):
        us.run(made, machine=machine())


def runner_of(alloc: us.Allocator, made: us.Workload) -> Any:
    handles = [
        alloc.caches.get(c.name) or alloc.create_cache(c.name, c.size)
        for c in made.caches
        if not c.kmalloc
    ]
    return _model.Runner(*made._program(lambda cpus: cpus), allocator=alloc, handles=handles)


@pytest.mark.parametrize(
    "made_of",
    [
        ops.work(2**63),
        ops.repeat(10**5, ops.sleep(10**12)),  # 3 years
        ops.clock(2**64 - 1),
    ],
    ids=["work", "sleep", "clock"],
)
def test_clocks_do_not_wrap(made_of: Any) -> None:
    made = us.Workload("for ever")
    made.add_task(made_of, cpu=0)
    with pytest.raises(ValueError, match="more than an hour of virtual time"):
        us.run(made, machine=machine())


@pytest.mark.parametrize("cpus", [2, 64])
def test_a_signal_handler_may_use_the_allocator_that_runs(cpus: int) -> None:
    """No CPU is inside the allocator then, however many are at work."""
    made = us.workloads.producer_consumer(messages=None, depth=4, pairs=cpus // 2)
    rounds = 0
    with us.Allocator("slab", machine=us.Machine.grid(1, 1, cpus)) as alloc:

        def look(number: int, frame: object) -> None:
            nonlocal rounds
            rounds += 1
            alloc.kfree(alloc.kmalloc(100))
            assert alloc.validate().ok
            alloc.shrink()
            child = os.fork()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            if rounds == 2:
                raise Interrupted
            signal.setitimer(signal.ITIMER_REAL, 0.05)

        before = signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(Interrupted):
                us.run(made, allocator=alloc)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert rounds == 2
        assert alloc.account()["live"] == 0


def test_a_pass_that_has_ended_takes_no_more_time() -> None:
    made = us.Workload("short")
    made.add_task(ops.work(700), cpu=0)
    with us.Allocator("slub", machine=machine()) as alloc:
        runner = runner_of(alloc, made)
        assert [runner.run_for(10_000) for _ in range(3)] == [pytest.approx(700e-9), 0.0, 0.0]
        runner.clean()
        assert runner.run_for(10_000) == pytest.approx(700e-9)  # a new pass
        runner.close()


def test_a_message_that_waited_for_room_is_not_live_twice() -> None:
    made = us.Workload("room")
    cache, line = made.add_cache("c", 64), made.channel(1)
    made.add_task(ops.alloc(cache, range(3)), ops.send(line, range(3)), ops.work(5), cpu=0)
    made.add_task(ops.work(1000), ops.repeat(3, ops.recv(line, 0), ops.free(0)), cpu=1)
    with us.Allocator("slub", machine=machine()) as alloc:
        runner = runner_of(alloc, made)
        runner.passes(1)
        assert runner.live() == (0, 0)
        runner.close()


def test_what_a_pass_told_outlives_its_machine() -> None:
    made = us.workloads.producer_consumer(messages=50)
    other = us.workloads.producer_consumer(messages=20)
    alloc = us.Allocator("slub", machine=machine())
    runner, second = runner_of(alloc, made), runner_of(alloc, other)
    runner.passes(1)
    told = runner.explain()
    second.passes(1)
    assert runner.explain() == told != second.explain()
    second.close()
    alloc.close(force=True)
    assert runner.explain() == told


def test_a_runner_frees_what_is_left_of_its_caches() -> None:
    made = us.Workload("two caches")
    gone, kept = made.add_cache("gone", 64), made.add_cache("kept", 128)
    made.add_task(ops.alloc(gone, range(5)), ops.alloc(kept, range(5, 10)))
    with us.Allocator("slub", machine=machine()) as alloc:
        first = runner_of(alloc, made)
        first.run_for(1000)
        alloc.caches["gone"].destroy(force=True)
        with pytest.raises(RuntimeError, match="destroyed"):
            first.run_for(1000)
        first.close()
        assert alloc.account()["live"] == 0
        second = runner_of(alloc, us.workloads.pair(times=3))
        second.run_for(1000)
        second.close()


def test_an_allocator_that_was_closed_is_missed() -> None:
    alloc = us.Allocator("unified", machine=machine())
    runner = runner_of(alloc, us.workloads.producer_consumer(messages=20))
    runner.passes(1)
    alloc.close(force=True)
    with pytest.raises(RuntimeError, match="closed"):
        runner.passes(1)
    runner.close()


def test_two_runners_take_turns_on_one_allocator() -> None:
    made = us.workloads.producer_consumer(messages=100)
    with us.Allocator("slab", machine=machine()) as alloc:
        first, second = runner_of(alloc, made), runner_of(alloc, made)
        for _ in range(2):
            assert first.passes(1)[0] > 0
            assert second.passes(1)[0] > 0
        first.close()
        assert second.passes(1)[0] > 0
        second.close()
        assert alloc.validate().ok


def test_a_run_under_way_is_in_the_way_of_another() -> None:
    made = us.workloads.producer_consumer(messages=None)
    with us.Allocator("slab", machine=machine()) as alloc:
        first, second = runner_of(alloc, made), runner_of(alloc, made)
        first.run_for(20_000)
        with pytest.raises(RuntimeError, match="another Runner"):
            second.run_for(20_000)
        assert first.run_for(20_000) == pytest.approx(20e-6, abs=1e-6)
        first.clean()
        second.run_for(20_000)
        second.close()
        first.run_for(20_000)
        first.close()
        assert alloc.account()["live"] == 0
        assert alloc.validate().ok


def test_runs_on_two_machines_do_not_meet() -> None:
    made = us.workloads.producer_consumer(messages=None)
    with (
        us.Allocator("slab", machine=machine()) as one,
        us.Allocator("slab", machine=machine()) as two,
    ):
        first, second = runner_of(one, made), runner_of(two, made)
        for _ in range(3):
            first.run_for(20_000)
            second.run_for(20_000)
            assert first.explain() == second.explain()
        first.close()
        second.close()


@pytest.mark.parametrize(
    "shape", [{"nodes": 0}, {"domains_per_node": 0}, {"cpus_per_domain": -1}, {"smt": 3}]
)
def test_machines_that_cannot_be_are_refused(shape: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        us.Machine.grid(**({"nodes": 1, "domains_per_node": 1, "cpus_per_domain": 4} | shape))


@pytest.mark.parametrize("every", ["20 ns", "1 us"])
def test_accounts_are_looked_at_while_nobody_has_stopped_the_others(every: str) -> None:
    """Resizing shuts the gate and waits for its turn on each CPU; a look must not come between."""
    machine = us.Machine.grid(1, 1, 8)
    load = us.workloads.hackbench(groups=2, loops=20)
    result = us.run(load, "unified", machine=machine, timeline=every, adapt_period=1)
    assert result.timeline is not None
    assert (result.timeline["live"] <= result.timeline["reserved"]).all()
