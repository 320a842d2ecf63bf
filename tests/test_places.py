"""Nodes and CPUs as arguments: errors name the parameter, what it may be and what it was."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unislab as us


def enter(block: AbstractContextManager[object]) -> None:
    """Begin what a with statement would, and end it."""
    with block:
        pass


# Every call that takes a node or a CPU of a machine of 2 nodes and 4 CPUs: what it says of one that
# is not there, and what else than an integer it takes.
PLACES: dict[str, tuple[Callable[[us.Allocator, us.Cache, Any], object], str, str]] = {
    "alloc": (lambda _, c, n: c.alloc(node=n), "node", "None or "),
    "alloc_address": (lambda _, c, n: c.alloc_address(node=n), "node", "None or "),
    "alloc_bulk": (lambda _, c, n: c.alloc_bulk(1, node=n), "node", "None or "),
    "kmalloc": (lambda a, _, n: a.kmalloc(8, node=n), "node", "None or "),
    "expire": (lambda a, _, n: a.expire(node=n), "node", "None or "),
    "cache.expire": (lambda _, c, n: c.expire(node=n), "node", "None or "),
    "memory_info": (lambda a, _, n: a.memory_info(n), "node", ""),
    "on_cpu": (lambda a, _, n: enter(a.on_cpu(n)), "CPU", ""),
    "preferred": (lambda a, _, n: enter(a.memory_policy(preferred=n)), "node", ""),
    "interleave": (lambda a, _, n: enter(a.memory_policy(interleave=[0, n])), "node", ""),
}
LAST = {"node": 1, "CPU": 3}


@pytest.mark.parametrize("value", ["0", 0.0, [1], b"1"], ids=repr)
@pytest.mark.parametrize("call", PLACES)
def test_a_place_that_is_no_integer(
    make: Callable[..., us.Allocator], call: str, value: object
) -> None:
    alloc = make(machine=us.Machine.grid(2, 1, 2))
    function, what, other = PLACES[call]
    text = f"{what} {value!r} is not on this machine: expected {other}an integer, 0 to {LAST[what]}"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        function(alloc, alloc.create_cache("placed", 64), value)


@pytest.mark.parametrize("value", [4, -1, 2**31, -(2**31), 2**64, -(2**64)])
@pytest.mark.parametrize("call", PLACES)
def test_a_place_that_is_not_there(
    make: Callable[..., us.Allocator], call: str, value: int
) -> None:
    alloc = make(machine=us.Machine.grid(2, 1, 2))
    function, what, other = PLACES[call]
    text = f"{what} {value} is not on this machine: expected {other}0 to {LAST[what]}"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        function(alloc, alloc.create_cache("placed", 64), value)


@pytest.mark.parametrize("call", ["memory_info", "on_cpu"])
def test_none_is_no_place_here(make: Callable[..., us.Allocator], call: str) -> None:
    alloc = make(machine=us.Machine.grid(2, 1, 2))
    with pytest.raises(TypeError, match="None is not on this machine: expected an integer, 0 to"):
        PLACES[call][0](alloc, alloc.create_cache("placed", 64), None)


@pytest.mark.parametrize("call", PLACES)
def test_a_place_is_any_integer(make: Callable[..., us.Allocator], call: str) -> None:
    alloc = make(machine=us.Machine.grid(2, 1, 2))
    make.leaves(alloc, 1 if "alloc" in call else 0)  # type: ignore[attr-defined]
    kept = PLACES[call][0](alloc, alloc.create_cache("placed", 64), np.int16(1))
    if isinstance(kept, us.Object):
        kept.free()
        make.leaves(alloc, 0)  # type: ignore[attr-defined]


def test_what_an_integer_does_wrong_is_its_own_error(opened: us.Allocator) -> None:
    class Odd:
        def __index__(self) -> int:
            raise OSError("odd")

    with pytest.raises(OSError, match="odd"):
        opened.kmalloc(8, node=Odd())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="odd"), opened.on_cpu(Odd()):  # type: ignore[arg-type]
        pass


@pytest.mark.once
@pytest.mark.parametrize("value", ["4", 4.0, None], ids=repr)
def test_numbers_of_a_machine_that_are_none(value: Any) -> None:
    wrong = f"cannot be {re.escape(repr(value))}: expected an integer"
    for name in ("nodes", "domains_per_node", "cpus_per_domain", "smt", "page_size"):
        shape = {"nodes": 1, "domains_per_node": 1, "cpus_per_domain": 1} | {name: value}
        with pytest.raises(TypeError, match=f"^{name} {wrong}"):
            us.Machine.grid(**shape)
    with pytest.raises(TypeError, match=f"^a number in cpu_node {wrong}"):
        us.Topology([0, value])
    with pytest.raises(TypeError, match=f"^a number in cpu_domain {wrong}"):
        us.Topology([0, 0], cpu_domain=[0, value])


@pytest.mark.once
def test_a_sequence_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"^cpu_node cannot be 3: expected a sequence"):
        us.Topology(3)  # type: ignore[arg-type]
    with us.Allocator() as alloc:
        for value in (0, 0.0):
            with pytest.raises(TypeError, match=f"^interleave cannot be {value}: expected a seq"):
                enter(alloc.memory_policy(interleave=value))  # type: ignore[arg-type]


def test_a_block_on_a_cpu_leaves_nothing_behind() -> None:
    before = os.sched_getaffinity(0)
    cpu = min(before)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    with us.Allocator() as alloc:
        for times in (100, 5000):
            start = resident()
            for _ in range(times):
                with alloc.on_cpu(cpu):
                    pass
        assert resident() - start < 2**22  # 5000 blocks, each less than 1 KiB
        inner = us.Allocator()
        with alloc.on_cpu(cpu):
            with inner.on_cpu(cpu):
                inner.close()
            assert os.sched_getaffinity(0) == {cpu}
    assert os.sched_getaffinity(0) == before
