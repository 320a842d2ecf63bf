"""Random programs on random modelled machines: what any of them keeps, whatever it does.

A program is drawn from a seed: tasks that allocate, free, touch, send, sleep, wait for one another,
in nested loops, on CPUs of their own, on several, or free to move, some of them interrupts; with or
without failures, a small budget, CPUs offline, a duration. It may end, be short of memory or wait
for ever; in every case

- all that it held is freed, allocations and frees are counted alike, the books are right;
- the phases of all CPUs add up to the time of all CPUs, the classes of locks to the time of locks;
- the same seed tells the same again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import unislab as us
from unislab import _model, ops
from unislab.workload import Ops

pytestmark = pytest.mark.once  # no mode of this machine is in it

SIZES = [8, 24, 64, 96, 232, 512, 1024, 4096, 9000, 20_000]
LEVELS = ["fast", "second_level", "slow", "remote"]


@dataclass
class Drawn:
    """A task that is being drawn: what it does so far."""

    interrupt: bool
    ops: list[Ops] = field(default_factory=list)
    slots: int = 0

    def take(self, n: int) -> range:
        """Numbers of slots that it has not used yet."""
        self.slots += n
        return range(self.slots - n, self.slots)


def block(rng: random.Random, task: Drawn, caches: Sequence[int], depth: int = 0) -> list[Ops]:
    """Some operations that leave every slot empty but, at the outermost, perhaps some."""
    made: list[Ops] = []
    live: list[int] = []
    for _ in range(rng.randint(1, 5)):
        kind = rng.choice(["alloc", "alloc", "free", "touch", "work", "sleep", "mark", "repeat"])
        if kind == "alloc":
            slots = task.take(rng.choice([1, 3, 20, 60]))
            node = rng.choice([None, None, 0, 1, 5])
            cache = rng.choice(caches)
            made.append(ops.alloc(cache, slots, node=node, zero=rng.random() < 0.2))
            live += slots
        elif kind == "free" and live:
            rng.shuffle(live)
            made.append(ops.free([live.pop() for _ in range(rng.randint(1, len(live)))]))
        elif kind == "touch" and live:
            made.append(ops.touch(rng.choice(live), rng.choice([0, 1, 8])))
        elif kind == "sleep" and not task.interrupt:
            made.append(ops.sleep(rng.choice([0, 1, 1000, 3_000_000])))
        elif kind == "mark":
            made.append(ops.mark())
        elif kind == "repeat" and depth < 3:
            made.append(ops.repeat(rng.choice([1, 2, 8]), *block(rng, task, caches, depth + 1)))
        else:
            made.append(ops.work(rng.choice([0, 1, 100, 10_000, 5_000_000])))
    if live and (depth or rng.random() < 0.7):
        made.append(ops.free(live))
    return made


def messages(rng: random.Random, made: us.Workload, tasks: list[Drawn], caches: list[int]) -> None:
    """One task sends, one receives; who is both may wait for ever."""
    line = made.channel(rng.choice([1, 2, 64]))
    sender, receiver = rng.choice(tasks), rng.choice(tasks)
    n = rng.choice([1, 3, 30])
    delay = rng.choice([0, 0, 500, 2_000_000])
    if rng.random() < 0.3:
        sender.ops.append(ops.repeat(n, ops.send(line, delay=delay)))
        receiver.ops.append(ops.repeat(n, ops.recv(line)))
        return
    sent, got = sender.take(n), receiver.take(n)
    sender.ops += [ops.alloc(rng.choice(caches), sent), ops.send(line, sent, delay)]
    receiver.ops += [ops.recv(line, got), *([ops.free(got)] if rng.random() < 0.7 else [])]


def program(rng: random.Random, cpus: int) -> us.Workload:
    """A program that is accepted; whether it comes to an end is another matter."""
    made = us.Workload("random")
    caches = []
    for i in range(rng.randint(1, 3)):
        kmalloc = rng.random() < 0.3
        align = 0 if kmalloc else rng.choice([0, 8, 64])
        caches.append(made.add_cache(f"c{i}", rng.choice(SIZES), align=align, kmalloc=kmalloc))
    tasks = [Drawn(rng.random() < 0.15) for _ in range(rng.randint(1, 8))]
    meet = [task for task in tasks if rng.random() < 0.4]
    for _ in range(rng.randint(1, 3)):
        for task in tasks:
            task.ops += block(rng, task, caches)
        if rng.random() < 0.6:
            messages(rng, made, tasks, caches)
        if rng.random() < 0.5:
            slot = rng.randrange(3)
            rng.choice(tasks).ops.append(ops.alloc(rng.choice(caches), slot, shared=True))
            rng.choice(tasks).ops.append(ops.free(slot, shared=True))
        for task in meet:
            task.ops.append(ops.barrier())
        rng.choice(tasks).ops.append(ops.clock(rng.choice([1000, 10**6, 3 * 10**9])))
    for task in tasks:
        one = rng.randrange(cpus)
        some = rng.sample(range(cpus), rng.randint(1, min(cpus, 6)))
        place = one if task.interrupt else rng.choice([one, some, None])
        made.add_task(*task.ops, cpu=place, interrupt=task.interrupt)
    return made


def options(rng: random.Random) -> dict[str, Any]:
    """Of a Runner."""
    made: dict[str, Any] = {
        "touch": rng.choice(["none", "first", "all"]),
        "pace": rng.choice([0.0, 0.5, 1.0, 2.0]),
        "timeline_ns": rng.choice([0, 0, 100, 10_000]),
    }
    if rng.random() < 0.3:
        made["warmup_ns"] = rng.choice([0, 1000])
        made["duration_ns"] = rng.choice([1000, 300_000])
    return made


def check_times(told: dict[str, int], cpus: int, seconds: float, *, whole: bool) -> None:
    """Phases and classes of locks add up."""
    time = sum(ps for name, ps in told.items() if name.startswith("time."))
    locks = sum(ps for name, ps in told.items() if name.startswith("lock."))
    assert locks == told["time.lock"]
    if whole:  # what is due when the tasks have ended may take more; seconds are cut to ns
        assert time >= cpus * (seconds * 1e12 - 1000)


def tell(policy: str, seed: int, debug: str) -> list[Any]:
    """All that a run tells, its books checked."""
    rng = random.Random(seed)
    cpus = rng.choice([1, 2, 4, 8])
    smt = 2 if cpus > 1 and rng.random() < 0.4 else 1
    on = us.Machine.grid(rng.choice([1, 2, 4]), rng.choice([1, 2]), cpus, smt)
    made, chosen = program(rng, on.cpus), options(rng)
    budget = rng.choice([None, None, None, "4 MiB"])
    seen: list[Any] = []
    with us.Allocator(policy, machine=on, memory=budget, debug=debug, seed=seed) as alloc:
        handles = [
            alloc.create_cache(c.name, c.size, align=c.align) for c in made.caches if not c.kmalloc
        ]
        for cpu in range(1, on.cpus):
            if rng.random() < 0.05:
                alloc.offline_cpu(cpu)
        if rng.random() < 0.25:
            alloc.fail(rng.choice(["pages", "meta"]), rate=0.05)
        try:
            runner = _model.Runner(
                *made._program(lambda cpus: cpus), allocator=alloc, handles=handles, **chosen
            )
            stretch(rng, alloc, runner)
            (seconds,) = runner.passes(1)
            told = runner.explain()
            check_times(told, on.cpus, seconds, whole="duration_ns" not in chosen)
            seen += [seconds, told, runner.timeline(), runner.marks(), runner.live()]
            runner.clean()
            assert runner.live() == (0, 0)
        except MemoryError as error:
            seen.append(str(error))
        except RuntimeError as error:
            assert "deadlock" in str(error)
            seen.append(str(error))
        alloc.fail("pages")
        alloc.fail("meta")
        seen += books(alloc)
    return seen


def stretch(rng: random.Random, alloc: us.Allocator, runner: Any) -> None:
    """Parts of a pass; in between anything may be asked of the allocator."""
    for _ in range(rng.choice([0, 0, 3])):
        assert 0 <= runner.run_for(rng.choice([1000, 50_000, 2_000_000])) < 3600
        cpu = rng.choice(alloc.online_cpus)
        if cpu:
            alloc.offline_cpu(cpu)
        alloc.expire()
        if rng.random() < 0.5:
            alloc.shrink()
        alloc.advance(rng.choice([0.001, 3.0]))
        assert alloc.validate().ok
        if cpu:
            alloc.online_cpu(cpu)


def books(alloc: us.Allocator) -> list[Any]:
    """What is counted, when nothing is live any more."""
    assert alloc.account()["live"] == 0
    assert alloc.validate().ok
    seen = []
    for name, cache in alloc.caches.items():
        counted = {key: int(n) for key, n in cache.stats(exact=True).items()}
        made = sum(counted.get(f"alloc_{level}", 0) for level in LEVELS)
        freed = sum(counted.get(f"free_{level}", 0) for level in LEVELS)
        assert made == freed, name
        seen.append((name, counted))
    return seen


@pytest.mark.every_policy
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_keep_the_books(policy: str, seed: int) -> None:
    debug = "F" if seed % 3 == 2 else ""
    assert tell(policy, seed, debug) == tell(policy, seed, debug)
