"""Random events, printed in each form, read back: rows and counts must be those of a model."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import unislab as us

# No '=' and no spaces at the ends: the kernel prints names as they are, so those could not be told.
WORD = st.text("abcxyz_-.:/0189", min_size=1, max_size=12)
TASK = st.text("ab -[]():.01<>#", min_size=1, max_size=15)


@dataclass(frozen=True)
class Event:
    """One event before it is printed."""

    task: str
    pid: int
    cpu: int
    micros: int
    kind: str  # "alloc", "kmalloc", "free", "kfree", "other"
    address: int
    cache: str
    size: int
    node: int
    accounted: bool
    zero: bool

    def payload(self, prefix: str, hexadecimal: bool) -> str:
        if self.kind == "other":
            return f"page={self.address:#x} order=0"
        name = f" name={self.cache}" if self.kind in ("alloc", "free") else ""
        text = f"{prefix}call_site=f+0x1 ptr={self.address:#x}{name}"
        if self.kind in ("free", "kfree"):
            return text
        words = "GFP_KERNEL|__GFP_ZERO" if self.zero else "GFP_KERNEL"
        number = "0xdc0" if self.zero else "0xcc0"
        return (
            f"{text} bytes_req={self.size} bytes_alloc={self.size + 8} "
            f"gfp_flags={number if hexadecimal else words} node={self.node} "
            f"accounted={str(self.accounted).lower()}"
        )

    @property
    def name(self) -> str:
        return {
            "alloc": "kmem_cache_alloc",
            "kmalloc": "kmalloc",
            "free": "kmem_cache_free",
            "kfree": "kfree",
            "other": "mm_page_free",
        }[self.kind]


EVENTS = st.lists(
    st.builds(
        Event,
        task=TASK,
        pid=st.integers(0, 4_194_304),
        cpu=st.integers(0, 300),
        micros=st.integers(0, 10**13),
        kind=st.sampled_from(["alloc", "kmalloc", "free", "kfree", "other"]),
        address=st.sampled_from([0, 0x10, 0xA0, 0xFFFF888100000000, 0xFFFFFFFFFFFFFFF8]),
        cache=WORD,
        size=st.integers(0, 2**32 - 9),
        node=st.integers(-1, 1023),
        accounted=st.booleans(),
        zero=st.booleans(),
    ),
    max_size=60,
)


def seconds(event: Event) -> str:
    return f"{event.micros // 10**6:5d}.{event.micros % 10**6:06d}"


def ftrace(event: Event) -> str:
    return (
        f"{event.task:>16}-{event.pid:<7} [{event.cpu:03d}] d..1. {seconds(event)}: "
        f"{event.name}: {event.payload('', False)}\n"
    )


def trace_cmd(event: Event) -> str:
    return (
        f"{event.task:>16}-{event.pid:<5} [{event.cpu:03d}] ..... {seconds(event)}: "
        f"{event.name + ':':<20} {event.payload('(f+0x1) ', True)}\n"
    )


def perf(event: Event) -> str:
    return (
        f"{event.task:>16} {event.pid:7d} [{event.cpu:03d}] {seconds(event)}: "
        f"{'kmem:' + event.name:>21}: {event.payload('', False)}\n"
        "\tffffffff81234567 kmem_cache_alloc+0x1a7 ([kernel.kallsyms])\n\n"
    )


FORMS: dict[str, Callable[[Event], str]] = {
    "ftrace": ftrace,
    "trace-cmd": trace_cmd,
    "perf": perf,
}


def model(events: list[Event]) -> tuple[list[tuple[object, ...]], Counter[str]]:
    """Rows (object, implied, cache name) and counts by the rules of the reader, one by one."""
    live: dict[int, int] = {}
    made: list[Event] = []
    rows: list[tuple[object, ...]] = []
    counts: Counter[str] = Counter()
    for event in events:
        if event.kind == "other":
            counts["other_events"] += 1
            continue
        counts["events"] += 1
        if event.kind in ("alloc", "kmalloc"):
            if not event.address:
                counts["allocs_failed"] += 1
                continue
            counts["allocs"] += 1
            implied = live.get(event.address, -1)
            counts["implied_frees"] += implied >= 0
            live[event.address] = len(made)
            rows.append((len(made), implied, cache_of(event)))
            made.append(event)
            continue
        counts["frees"] += 1
        if not event.address:
            counts["frees_null"] += 1
            continue
        obj = live.pop(event.address, -1)
        if obj < 0:
            counts["frees_unknown"] += 1
            rows.append((-1, -1, event.cache if event.kind == "free" else None))
            continue
        counts["frees_matched"] += 1
        counts["remote_frees"] += made[obj].cpu != event.cpu
        rows.append((obj, -1, cache_of(made[obj])))
    counts["live_at_end"] = len(live)
    return rows, counts


def cache_of(event: Event) -> str:
    return "kmalloc" if event.kind == "kmalloc" else event.cache


@given(events=EVENTS, form=st.sampled_from(sorted(FORMS)))
def test_read_back(events: list[Event], form: str) -> None:
    text = "# header\n" + "".join(FORMS[form](event) for event in events)
    trace = us.Trace.read(io.StringIO(text))
    rows, counts = model(events)
    assert dict(trace.counts) == {name: counts[name] for name in trace.counts}
    names = [trace.caches[i] if i >= 0 else None for i in trace["cache"]]
    assert (
        list(zip(trace["object"].tolist(), trace["implied"].tolist(), names, strict=True)) == rows
    )

    printed = [e for e in events if e.kind != "other" and e.address]
    allocs = [e for e in printed if e.kind in ("alloc", "kmalloc")]
    assert trace["cpu"].tolist() == [e.cpu for e in printed]
    assert trace["pid"].tolist() == [e.pid for e in printed]
    assert trace["time_ns"].tolist() == [e.micros * 1000 for e in printed]
    assert (trace["kind"] == 1).tolist() == [e.kind in ("alloc", "kmalloc") for e in printed]
    made = trace["kind"] == 1
    assert trace["bytes_req"][made].tolist() == [e.size for e in allocs]
    assert trace["bytes_alloc"][made].tolist() == [e.size + 8 for e in allocs]
    assert trace["node"][made].tolist() == [e.node for e in allocs]
    assert trace["accounted"][made].tolist() == [int(e.accounted) for e in allocs]
    assert (trace["gfp"][made] != 0).tolist() == [e.zero for e in allocs]


@given(events=EVENTS, seed=st.integers(0, 2**32), data=st.data())
def test_parts_and_orders_keep_the_rules(
    events: list[Event], seed: int, data: st.DataObject
) -> None:
    whole = us.Trace.read(io.StringIO("# header\n" + "".join(map(ftrace, events))))
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    for trace in (whole, whole[first:last], whole.scale(cpus=2 * (max(whole.cpus, default=0) + 1))):
        counts = trace.counts
        assert counts["events"] == counts["allocs"] + counts["allocs_failed"] + counts["frees"]
        assert counts["frees"] == (
            counts["frees_matched"] + counts["frees_unknown"] + counts["frees_null"]
        )
        assert counts["allocs"] == (
            counts["frees_matched"] + counts["implied_frees"] + counts["live_at_end"]
        )
        again = us.Trace.from_frame(trace.to_frame())
        assert again.counts == counts
        for name, column in trace.columns.items():
            assert np.array_equal(again[name], column), name
        for implied in ("before", "spread"):
            check_operations(trace, trace.ops(implied, seed))


def check_operations(trace: us.Trace, ops: np.ndarray) -> None:
    """Every object is allocated once, and freed at most once and later."""
    live: set[int] = set()
    seen: set[int] = set()
    for op in ops:
        obj = int(op["object"])
        if op["kind"] == 1:
            assert obj not in seen
            seen.add(obj)
            live.add(obj)
        else:
            live.remove(obj)
    assert len(seen) == trace.counts["allocs"]
    assert len(live) == trace.counts["live_at_end"]
    assert int(ops["implied"].sum()) == trace.counts["implied_frees"]
