"""What a modelled machine charges policies for, on machines where one thing alone costs something.

Where only ``lock`` costs 1 ns, the time of an operation in ns is the number of locks it takes; and
so on. A free's share is the difference between two programs of which one frees one object more.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import unislab as us
from unislab import ops
from unislab.costs import COST_NAMES

pytestmark = [pytest.mark.once, pytest.mark.every_policy]

#: Policy -> rows of bench/instructions.json: those whose compiled fast paths it takes.
PATHS = {
    "unified": ("unified alloc", "unified free"),
    "unified-v4": ("unified alloc", "unified free"),
    "sleb": ("unified alloc", "unified free"),
    "slab": ("slab alloc", "slab free"),
    "slub": ("slub alloc", "slub free"),
    "slub-thrash": ("slub alloc", "slub free"),
    "slub-partial": ("slub_prefetch alloc", "slub free"),
    "slqb": ("slqb alloc", "slqb free"),
    "sheaves": ("sheaves alloc", "sheaves free"),
}
#: Objects of 64 bytes, a line each, in a slab of one page: what all slabs here have.
SIZE, IN_SLAB = 64, 64
#: Objects that one CPU allocates and another may free.
SENT = 128


def machine(nodes: int = 1, cpus: int = 1, **costs: float) -> us.Machine:
    """One where everything is free of charge but for what is named, in ns."""
    free = dict.fromkeys((name for name in COST_NAMES if name != "smt_slowdown"), 0.0)
    fields = {f"costs__{name}": ns for name, ns in (free | costs).items()}
    return us.Machine.grid(nodes, 1, cpus).replace(**fields)


def near(frees: int) -> us.Workload:
    """Fills three slabs; then some frees of objects of the second, which is no CPU's."""
    made = us.Workload("near")
    cache = made.add_cache("object", SIZE)
    freed = (ops.free(range(IN_SLAB, IN_SLAB + frees)),) if frees else ()
    made.add_task(ops.alloc(cache, range(3 * IN_SLAB)), *freed, cpu=0)
    return made


def far(frees: int) -> us.Workload:
    """CPU 0 allocates and sends, CPU 1 takes all in and then frees some of the first slab's."""
    made = us.Workload("far")
    cache = made.add_cache("object", SIZE)
    channel = made.channel(SENT)
    sent = [ops.sequence(ops.alloc(cache, i), ops.send(channel, i)) for i in range(SENT)]
    freed = (ops.free(range(frees)),) if frees else ()
    made.add_task(*sent, cpu=0)
    made.add_task(ops.recv(channel, range(SENT)), *freed, cpu=1)
    return made


def of_frees(
    program: Callable[[int], us.Workload],
    policy: str,
    what: str,
    frees: int,
    **tunables: int,
) -> list[int]:
    """How often each free is charged for `what`, the first one first."""
    place = machine(nodes=2 if program is far else 1, **{what: 1.0})
    times = []
    for n in range(frees + 1):
        seconds = us.run(program(n), policy, machine=place, **tunables).seconds
        assert seconds is not None
        times.append(round(seconds.cold * 1e9))
    return [after - before for before, after in itertools.pairwise(times)]


# ---- instructions ------------------------------------------------------------------------------


def pairs(times: int) -> us.Workload:
    """An object that is allocated and freed again and again."""
    made = us.Workload("pairs")
    cache = made.add_cache("object", SIZE)
    made.add_task(ops.repeat(times, ops.alloc(cache, 0), ops.free(0)), cpu=0)
    return made


def test_a_fast_pair_runs_its_instructions(policy: str, source_tree: Path) -> None:
    # The committed count is that of the compiled paths; gcc 12 is what the core's constants name.
    # Counts are whole numbers, and slqb's is an average: a pop in 1023 goes the slow way.
    table = json.loads((source_tree / "bench" / "instructions.json").read_text())["gcc 12"]
    expected = sum(table[path] for path in PATHS[policy])
    result = us.run(pairs(1000), policy, machine=machine(instruction=1))
    assert result.explanation is not None
    assert result.explanation.time["fast"] * 1e9 / 1000 == pytest.approx(expected, abs=0.5)


def test_fast_pairs_lock_nothing_and_move_no_line(policy: str) -> None:
    # DESIGN 4: one sequence, no lock, no atomic; and whose lines are there, they stay. (Once in a
    # while a count of pops is full, and a pop goes the slow way: after 1023 of slqb's.)
    what = ("lock", "atomic", "memory", "line_far", "invalidate_far", "l2_hit", "llc_hit")
    result = us.run(pairs(1500), policy, machine=machine(**dict.fromkeys(what, 1.0)))
    assert result.explanation is not None and result.explanation.time["fast"] == 0


def test_nothing_costs_nothing(policy: str) -> None:
    result = us.run(far(SENT), policy, machine=machine(nodes=2, cpus=2))
    assert result.seconds is not None and result.explanation is not None
    assert (result.seconds.cold, result.seconds.warm) == (0, 0)
    assert set(result.explanation.time.values()) == {0}


# ---- locks and locked operations -----------------------------------------------------------------

# What a slow path does beside its policy's own: it counts itself in flight and out again.
FLIGHT = 2


@pytest.mark.parametrize("policy", ["slub", "slub-thrash"])
def test_a_slow_free_of_slub_takes_the_page_lock(policy: str) -> None:
    # slub_facts 1.1.4: lock page, push; only a full slab, which joins the partial list, takes
    # list_lock too. So does one of another CPU: algorithms 5.1, same as any other slow free.
    assert of_frees(near, policy, "lock", 5) == [2, 1, 1, 1, 1]
    assert of_frees(far, policy, "lock", 5) == [2, 1, 1, 1, 1]
    # A lock is one locked operation, a counter another: FREE_SLOWPATH, and that it is of another
    # node. The first one joins a list (its length is the lock's, its state is changed by a locked
    # operation of its own) and counts FREE_ADD_PARTIAL.
    assert of_frees(near, policy, "atomic", 3)[1:] == [FLIGHT + 1 + 1] * 2
    assert of_frees(far, policy, "atomic", 3)[1:] == [FLIGHT + 1 + 2] * 2


def test_a_slow_free_of_slub_partial_takes_no_lock() -> None:
    # slub_facts 1.2: one exchange; who frees into a full slab adopts it, without list_lock.
    assert of_frees(near, "slub-partial", "lock", 5) == [0, 0, 0, 0, 0]
    assert of_frees(far, "slub-partial", "lock", 5)[1:] == [0, 0, 0, 0]
    # An exchange is one locked operation; FREE_SLOWPATH, FREE_FROZEN and which node's it is: 3.
    assert of_frees(far, "slub-partial", "atomic", 3)[1:] == [FLIGHT + 1 + 3] * 2


def test_a_far_free_of_slab_takes_the_alien_arrays_lock() -> None:
    # algorithms 3: an alien array has 12 entries; the 13th free finds it full and drains it, under
    # the list_lock of the objects' node.
    assert of_frees(far, "slab", "lock", 14) == [1] * 12 + [2] + [1]
    # REMOTEFREES is counted.
    assert of_frees(far, "slab", "atomic", 3) == [FLIGHT + 1 + 1] * 3


def test_far_frees_of_slqb_lock_once_a_batch() -> None:
    # algorithms 4: the rlist is the CPU's own; with a freebatch it goes home, under the lock of
    # the owner's remote_free.
    assert of_frees(far, "slqb", "lock", 12, freebatch=4)[1:] == [0, 0, 1] + [0, 0, 0, 1] * 2


def test_far_frees_of_sheaves_go_to_slabs_without_a_lock() -> None:
    # slub_facts 1.3: objects of other nodes go straight to their slabs, by one exchange.
    assert of_frees(far, "sheaves", "lock", 5)[1:] == [0, 0, 0, 0]
    # FREE_SLOWPATH is counted, and that it is of another node.
    assert of_frees(far, "sheaves", "atomic", 3)[1:] == [FLIGHT + 1 + 2] * 2


# ---- lines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["slub", "slub-thrash", "slub-partial", "slqb", "sheaves"])
def test_far_frees_move_objects_that_lists_go_through(policy: str) -> None:
    # A list goes through the objects, whose links are written where they are freed: the line of
    # each moves, and with the first the descriptor's.
    moved = of_frees(far, policy, "line_far", 8)
    assert moved[1:] == [1] * 7
    assert moved[0] >= 2


@pytest.mark.parametrize("policy", ["unified", "slab"])
def test_far_frees_leave_objects_alone(policy: str) -> None:
    # DESIGN 3: free objects of bitmap and index slabs are never touched; a far free puts an address
    # into an alien queue of the freeing CPU's node.
    assert of_frees(far, policy, "line_far", 8)[1:] == [0] * 7


def filled(policy: str, prefetch: int) -> us.Result:
    """Fills sixteen slabs and leaves an object in each; then allocations with 200 ns between
    them, of objects whose links are in no cache any more. Caches have one set: all lines are as
    good as others."""
    made = us.Workload("filled")
    cache = made.add_cache("object", 1024)
    freed = [i for i in range(512) if i % 32]
    made.add_task(
        ops.alloc(cache, range(512)),
        *[ops.free(i) for i in freed],
        *[ops.sequence(ops.alloc(cache, i), ops.work(200)) for i in freed],
        cpu=0,
    )
    place = machine(memory=100.0).replace(
        clock_ghz=1.0,
        caches=us.Caches(l1="4 KiB", l1_ways=64, l2="4 KiB", l2_ways=64, llc="4 KiB", llc_ways=64),
    )
    return us.run(made, policy, machine=place, prefetch=prefetch, min_objects=32)


@pytest.mark.parametrize("policy", ["slub", "slub-partial"])
def test_a_prefetched_link_is_there_when_it_is_needed(policy: str) -> None:
    # The link of the next object is asked for 200 ns before it is read, and memory takes 100. Of
    # each of the 16 slabs' 31 objects the first two are the slow path's to look at, and 3 caches of
    # 64 lines may hold others that were written just now: the rest is waited for without.
    # (A new slab's links are no case of it: making it writes them all.)
    without, with_it = (filled(policy, prefetch).explanation for prefetch in (0, 1))
    assert without is not None and with_it is not None
    saved = without.time["fast"] - with_it.time["fast"]
    assert saved > (16 * 29 - 3 * 64) * 100e-9


# ---- phases ----------------------------------------------------------------------------------

SECOND_LEVEL = {"unified", "unified-v4", "slab", "slqb", "sheaves", "slub-partial"}


def to_and_fro() -> us.Workload:
    """Objects that are freed on another CPU of their node, many more than a CPU's queue holds."""
    made = us.Workload("to and fro")
    cache = made.add_cache("object", SIZE)
    channel = made.channel(64)
    made.add_task(ops.repeat(3000, ops.alloc(cache, 0), ops.send(channel, 0)), cpu=0)
    made.add_task(ops.repeat(3000, ops.recv(channel, 0), ops.free(0)), cpu=1)
    return made


@pytest.mark.parametrize("policy", sorted(PATHS))
def test_time_goes_to_the_levels_that_a_policy_has(policy: str) -> None:
    # DESIGN 5: slub has a CPU slab and partial lists of nodes, and no level between.
    result = us.run(to_and_fro(), policy, machine=us.Machine.grid(1, 1, 2))
    assert result.explanation is not None
    time = result.explanation.time
    assert time["fast"] > 0
    if policy in SECOND_LEVEL:
        assert time["second"] > 0
    if policy in ("slub", "slub-thrash"):
        assert time["second"] == 0 and time["slow"] > 0


def test_charges_are_the_same_every_time(policy: str) -> None:
    # Of addresses only the place in the allocator's memory counts, and that is the same.
    place = us.Machine.grid(2, 1, 2)
    first = us.run(far(SENT), policy, machine=place)
    with us.Allocator("slab") as other:
        cache = other.create_cache("in the way", 200)
        addresses = cache.alloc_bulk(1000)
        second = us.run(far(SENT), policy, machine=place)
        cache.free_bulk(addresses)
    assert first.explanation == second.explanation and first.seconds == second.seconds


def test_books_balance_after_a_charged_run(policy: str) -> None:
    with us.Allocator(policy, machine=us.Machine.grid(2, 1, 2)) as alloc:
        us.run(to_and_fro(), allocator=alloc)
        us.run(far(SENT), allocator=alloc)
        assert alloc.validate().ok
