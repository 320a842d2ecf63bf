"""Wrong arguments of every public call: the error names what was given, in words of the caller.

What is tested is the kind, not the wording: a ``TypeError`` or ``ValueError`` (never an
``OverflowError``, an ``AttributeError`` or a complaint about a private function), which shows the
value, and leaves everything as it was.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import unislab as us
from unislab import ops

pytestmark = pytest.mark.once

NO_INTEGERS = [None, 1.5, math.nan, "5", [], object()]
TOO_LARGE = [2**63, 2**64, 2**70]


@pytest.fixture(scope="module")
def alloc() -> Iterator[us.Allocator]:
    """One for all: nothing here may change it."""
    with us.Allocator(memory="64 MiB") as made:
        made.create_cache("pair", 16)
        yield made
        assert made.validate().ok
        assert made.account()["live"] == 0


Call = Callable[[us.Allocator, Any], object]

#: Calls that take a whole number, and which numbers, beside those that are too large, are wrong.
INTEGERS: dict[str, tuple[Call, list[Any]]] = {
    "Allocator seed": (lambda a, v: us.Allocator(seed=v), [-1]),
    "create_cache align": (lambda a, v: a.create_cache("new", 64, align=v), [-1, 3, 8192]),
    "create_cache size": (lambda a, v: a.create_cache("new", v), [-1, 0, 2**22 + 1]),
    "alloc node": (lambda a, v: a.cache("pair").alloc(node=v), [-1, 1]),
    "alloc_address node": (lambda a, v: a.cache("pair").alloc_address(node=v), [-1, 1]),
    "alloc_bulk": (lambda a, v: a.cache("pair").alloc_bulk(v), [-1]),
    "alloc_bulk node": (lambda a, v: a.cache("pair").alloc_bulk(1, node=v), [-1, 1]),
    "free": (lambda a, v: a.cache("pair").free(v), [-1]),
    "free_bulk": (lambda a, v: a.cache("pair").free_bulk([v]), [-1]),
    "kmalloc": (lambda a, v: a.kmalloc(v), [-1, 0]),
    "kfree": (lambda a, v: a.kfree(v), [-1]),
    "ksize": (lambda a, v: a.ksize(v), [-1]),
    "expire": (lambda a, v: a.expire(v), [-1, 1]),
    "cache expire": (lambda a, v: a.cache("pair").expire(v), [-1, 1]),
    "on_cpu": (lambda a, v: a.on_cpu(v).__enter__(), [-1, 8192]),
    "memory_policy preferred": (lambda a, v: a.memory_policy(preferred=v).__enter__(), [-1, 1]),
    "memory_policy interleave": (lambda a, v: a.memory_policy(interleave=[v]).__enter__(), [-1]),
    "memory_info": (lambda a, v: a.memory_info(v), [-1, 1]),
    "fail nth": (lambda a, v: a.fail("pages", nth=v), [-1, 0]),
    "peek": (lambda a, v: us.raw.peek(v, 8), [-1]),
    "peek n": (lambda a, v: us.raw.peek(4096, v), [-1]),
    "poke": (lambda a, v: us.raw.poke(v, b"x"), [-1]),
    "add_cache align": (lambda a, v: us.Workload("w").add_cache("c", 8, align=v), [-1]),
    "add_cache size": (lambda a, v: us.Workload("w").add_cache("c", v), [-1, 0]),
    "channel": (lambda a, v: us.Workload("w").channel(v), [-1, 0]),
    "add_task cpu": (lambda a, v: us.Workload("w").add_task(ops.work(1), cpu=[v]), [-1]),
    "ops.alloc cache": (lambda a, v: ops.alloc(v, 0), [-1, 2**16]),
    "ops.alloc slot": (lambda a, v: ops.alloc(0, [v]), [-1, 2**32]),
    "ops.alloc node": (lambda a, v: ops.alloc(0, 0, node=v), [-1, 1024]),
    "ops.touch": (lambda a, v: ops.touch(0, v), [-1]),
    "ops.work": (lambda a, v: ops.work(v), [-1]),
    "ops.clock": (lambda a, v: ops.clock(v), [-1]),
    "ops.repeat": (lambda a, v: ops.repeat(v, ops.work(1)), [-1]),
    "run seed": (lambda a, v: us.run(us.workloads.pair(), seed=v), [-1]),
    "compare rounds": (lambda a, v: us.compare(us.workloads.pair(), rounds=v), [-1, 2]),
    "filter cpus": (lambda a, v: us.datasets.load("tcp_rr").filter(cpus=[v]), [-1, 9]),
    "scale cpus": (lambda a, v: us.datasets.load("tcp_rr").scale(v), [-1, 0, 3]),
    "scale seed": (lambda a, v: us.datasets.load("tcp_rr").scale(2, seed=v), [-1]),
    "ops seed": (lambda a, v: us.datasets.load("tcp_rr").ops(seed=v), [-1]),
}

#: None means something else there.
NONE_IS_FINE = (
    "alloc node", "alloc_address node", "alloc_bulk node", "expire", "cache expire", "memory_info",
    "memory_policy preferred", "fail nth", "ops.alloc node", "add_task cpu",
)  # fmt: skip
#: A size or a time may be a text.
TEXT_IS_FINE = ("create_cache size", "add_cache size")
#: 64-bit numbers are what these take.
LARGE_IS_FINE = ("free", "free_bulk", "kfree", "ksize", "peek", "poke", "Allocator seed",
                 "ops.touch", "ops.work", "ops.clock", "ops.repeat", "run seed", "scale seed",
                 "ops seed")  # fmt: skip


def wrong_integers() -> Iterator[Any]:
    """Every call with every value that it must refuse."""
    for name, (call, out_of_range) in INTEGERS.items():
        values = [*out_of_range, *NO_INTEGERS, *TOO_LARGE]
        for i, value in enumerate(values):
            if value is None and name in NONE_IS_FINE:
                continue
            if value == "5" and name in TEXT_IS_FINE:
                continue
            if name in LARGE_IS_FINE and value == 2**63:
                continue
            yield pytest.param(call, value, id=f"{name}-{i}-{value!r:.20}")


@pytest.mark.parametrize(("call", "value"), list(wrong_integers()))
def test_a_wrong_integer_is_shown(alloc: us.Allocator, call: Call, value: Any) -> None:
    kind = ValueError if isinstance(value, int) else TypeError
    with pytest.raises(kind) as error:
        call(alloc, value)
    said = str(error.value)
    assert str(value) in said or f"{value!r:.20}" in said
    assert "_create" not in said
    assert "not supported between" not in said
    assert "C long" not in said


@pytest.mark.parametrize(
    ("call", "good"),
    [
        (lambda a, v: us.Allocator(seed=v).close(), 5),
        (lambda a, v: a.cache("pair").alloc(node=v).free(), 0),
        (lambda a, v: a.cache("pair").free_bulk(a.cache("pair").alloc_bulk(v)), 3),
        (lambda a, v: a.kfree(a.kmalloc(v)), 100),
        (lambda a, v: a.on_cpu(v).__enter__(), 0),
        (lambda a, v: a.memory_policy(preferred=v).__enter__(), 0),
        (lambda a, v: a.memory_policy(interleave=[v]).__enter__(), 0),
        (lambda a, v: us.Workload("w").add_task(ops.work(1), cpu=v), 0),
        (lambda a, v: ops.alloc(v, v), 3),
        (lambda a, v: us.datasets.load("tcp_rr").filter(cpus=v), 1),
        (lambda a, v: us.run(us.workloads.pair(), seed=v, min_time=0), 5),
    ],
)
@pytest.mark.parametrize("kind", [int, np.int64, np.uint8])
def test_any_integer_is_one(
    alloc: us.Allocator, call: Call, good: int, kind: Callable[[int], Any]
) -> None:
    call(alloc, kind(good))


# ---- sizes and times ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 1.5, math.nan, [], b"64", object()])
@pytest.mark.parametrize(
    "call",
    [
        us.parse_size,
        lambda v: us.Workload("w").add_cache("c", v),
        lambda v: us.Allocator(memory=v if v is not None else []),
        lambda v: us.Allocator(address_range=v if v is not None else []),
    ],
)
def test_what_is_no_size(call: Callable[[Any], object], size: Any) -> None:
    with pytest.raises(TypeError, match=r"size cannot be .*expected an integer or text"):
        call(size)


@pytest.mark.parametrize("time", [None, [], b"1 s", object()])
@pytest.mark.parametrize(
    "call",
    [
        us.parse_time,
        lambda v: us.Allocator(purge_delay=v),
        lambda v: us.run(us.workloads.pair(), min_time=v),
        lambda v: us.compare(us.workloads.pair(), min_time=v),
    ],
)
def test_what_is_no_time(call: Callable[[Any], object], time: Any) -> None:
    with pytest.raises(TypeError, match=r"time cannot be .*expected seconds"):
        call(time)


@pytest.mark.parametrize(
    "time", [-1, -0.5, math.nan, math.inf, 1e9, "1000000000 s", "99999999 min"]
)
def test_times_out_of_range(time: Any) -> None:
    with pytest.raises(ValueError, match="time cannot be") as error:
        us.parse_time(time)
    assert str(time) in str(error.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("64 kib", "KiB"), ("64KIB", "KiB"), ("1 mib", "MiB"), ("1 gb", "GB"), ("2 k", "K")],
)
def test_a_unit_in_other_letters_is_suggested(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        us.parse_size(text)


@pytest.mark.parametrize(("text", "meant"), [("1 S", "s"), ("10 MS", "ms"), ("1 MIN", "min")])
def test_a_unit_of_time_in_other_letters_is_suggested(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        us.parse_time(text)


@pytest.mark.parametrize("size", [2**63, 2**64, 2**70])
def test_sizes_beyond_any_machine(alloc: us.Allocator, size: int) -> None:
    for call in (
        lambda: us.Allocator(memory=size),
        lambda: us.Allocator(address_range=size),
        lambda: alloc.create_cache("new", size),
    ):
        with pytest.raises(ValueError, match=str(size)):
            call()


# ---- names, flags, collections -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "\x1b[2J", "\ud800", "tab\there"])
def test_cache_names_are_printable(alloc: us.Allocator, name: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        alloc.create_cache(name, 64)


@pytest.mark.parametrize("flags", [None, 5, b"lowmem"])
def test_flags_are_names(alloc: us.Allocator, flags: Any) -> None:
    for call in (
        lambda: alloc.create_cache("new", 64, flags=flags),
        lambda: us.Workload("w").add_cache("c", 64, flags=flags),
    ):
        with pytest.raises(TypeError, match="flags cannot be"):
            call()


@pytest.mark.parametrize("flag", ["", "x", 5, None, ["lowmem"]])
def test_unknown_flags(alloc: us.Allocator, flag: Any) -> None:
    with pytest.raises(us.UnknownNameError, match="cache flag"):
        alloc.create_cache("new", 64, flags=[flag])


@pytest.mark.parametrize("interleave", [5, "0", b"0"])
def test_nodes_to_interleave_are_a_sequence(alloc: us.Allocator, interleave: Any) -> None:
    with (
        pytest.raises(TypeError, match=r"'0'|cannot be"),
        alloc.memory_policy(interleave=interleave),
    ):
        pass


def test_no_nodes_to_interleave(alloc: us.Allocator) -> None:
    with pytest.raises(ValueError, match="at least one"), alloc.memory_policy(interleave=[]):
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"policies": None},
        {"policies": 5},
        {"baselines": None},
        {"baselines": 7},
        {"tunables": 5},
        {"tunables": {"slub": 5}},
        {"pace": "1"},
        {"rounds": "3"},
    ],
)
def test_options_of_the_wrong_type(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(options))}.*expected"):
        us.compare(us.workloads.pair(), **options)


@pytest.mark.parametrize("option", ["implied", "sizes", "touch"])
@pytest.mark.parametrize("call", [us.run, us.compare])
def test_words_are_checked_for_every_workload(call: Callable[..., object], option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}='x'"):
        call(us.workloads.pair(), **{option: "x"})


def test_policies_may_come_from_an_iterator() -> None:
    names = iter(["slub", "unified"])
    compared = us.compare(us.workloads.pair(), names, rounds=3, min_time=0)
    assert sorted(compared.results) == ["slub", "unified"]


@pytest.mark.parametrize("wrong", [5, "unified", us.Allocator])
def test_an_allocator_to_run_on_is_one(wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected an Allocator"):
        us.run(us.workloads.pair(), allocator=wrong)


# ---- tables and files --------------------------------------------------------------------------

TABLE = {
    "time_ns": [0, 500, 600],
    "cpu": [0, 1, 0],
    "kind": ["alloc", "free", "alloc"],
    "object": [7, 7, 8],
    "cache": "dentry",
    "bytes_req": 192,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"time_ns": [math.nan, 1, 2]}, "row 0: .*time_ns"),
        ({"time_ns": [0, 1, 2.0**70]}, "row 2: time_ns"),
        ({"cpu": [0, -1, 0]}, "row 1: .*cpu"),
        ({"cpu": [0, 1, None]}, "row 2: .*cpu"),
        ({"bytes_req": [8, 8, math.nan]}, "row 2: .*bytes_req"),
        ({"kind": ["alloc", "free", "x"]}, "row 2: kind"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_row_that_is_no_event_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        us.Trace.from_frame(pd.DataFrame(TABLE | change))


def test_a_free_needs_no_size() -> None:
    frame = pd.DataFrame(TABLE | {"bytes_req": [8, math.nan, 8]})
    assert us.Trace.from_frame(frame).counts["frees_matched"] == 1


@pytest.mark.parametrize("table", [None, 5, [], {}, pd.Series([1]), np.zeros(3)])
def test_a_trace_is_made_of_a_data_frame(table: Any) -> None:
    with pytest.raises(TypeError, match="DataFrame"):
        us.Trace.from_frame(table)


def test_a_column_that_is_there_twice() -> None:
    frame = pd.DataFrame(TABLE)
    with pytest.raises(ValueError, match="'cpu' twice"):
        us.Trace.from_frame(pd.concat([frame, frame[["cpu"]]], axis=1))


@pytest.mark.parametrize(("start", "stop"), [("a", 1), (None, 1), (0, "1"), (0, [])])
def test_times_of_a_part_are_numbers(start: Any, stop: Any) -> None:
    with pytest.raises(TypeError, match="part cannot be"):
        us.datasets.load("tcp_rr").between(start, stop)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut", "trace", "half"], ids=repr)
def test_what_is_no_saved_workload(content: bytes | str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.npz"
        if content == "trace":
            us.datasets.load("tcp_rr")[:10].save(path)
        elif content == "half":
            us.workloads.pair().save(path)
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        elif isinstance(content, bytes):
            path.write_bytes(content)
        with pytest.raises(ValueError, match=r"saved\.npz: is no workload"):
            us.Workload.load(path)


def test_a_workload_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        us.Workload.load("no-such-file.npz")
