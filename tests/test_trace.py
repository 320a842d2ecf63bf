"""Parts, combinations and tables of a trace, on one that is small enough to follow by eye."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import unislab as us
from unislab.trace import OPS_DTYPE


def line(cpu: int, micros: int, text: str) -> str:
    return f"            bash-1       [{cpu:03d}] ..... {micros / 1e6:.6f}: {text}\n"


# Row, time in us, CPU: what happens.  Object numbers in brackets.
TEXT = "".join(
    [
        line(
            0, 10, "kmem_cache_alloc: call_site=a ptr=0x10 name=filp bytes_req=184 bytes_alloc=192"
        ),
        line(0, 20, "kmalloc: call_site=b ptr=0x20 bytes_req=50 bytes_alloc=64 accounted=true"),
        line(1, 30, "kmem_cache_free: call_site=c ptr=0x10 name=filp"),
        line(1, 35, "kmalloc: call_site=b ptr=0x0 bytes_req=64 bytes_alloc=64"),
        line(
            1, 40, "kmem_cache_alloc: call_site=a ptr=0x10 name=filp bytes_req=184 bytes_alloc=192"
        ),
        line(0, 50, "kmalloc: call_site=b ptr=0x30 bytes_req=64 bytes_alloc=64 accounted=false"),
        line(1, 60, "kmalloc: call_site=d ptr=0x20 bytes_req=100 bytes_alloc=128"),
        line(0, 70, "kfree: call_site=e ptr=0x30"),
        line(0, 80, "kfree: call_site=e ptr=0x99"),
        line(0, 85, "mm_page_free: page=0x1"),
        line(0, 90, "kmem_cache_free: call_site=c ptr=0x77 name=dentry"),
        line(0, 95, "kfree: call_site=e ptr=0x0"),
    ]
)
# Rows: 0 alloc [0], 1 alloc [1], 2 free [0], 3 alloc [2], 4 alloc [3], 5 alloc [4] implies the free
# of [1], 6 free [3], 7 unknown kfree, 8 unknown free of a dentry.


@pytest.fixture
def trace() -> us.Trace:
    return us.Trace.read(io.StringIO(TEXT))


def ids(trace: us.Trace) -> list[tuple[int, int]]:
    return list(zip(trace["object"].tolist(), trace["implied"].tolist(), strict=True))


def test_the_small_trace(trace: us.Trace) -> None:
    assert ids(trace) == [
        (0, -1),
        (1, -1),
        (0, -1),
        (2, -1),
        (3, -1),
        (4, 1),
        (3, -1),
        (-1, -1),
        (-1, -1),
    ]
    assert trace.duration == pytest.approx(80e-6)
    assert trace.cpus == (0, 1)
    assert trace.implied_share == 1 / 5
    assert len(trace) == 9


def test_columns_cannot_be_changed(trace: us.Trace) -> None:
    with pytest.raises(ValueError, match="read-only"):
        trace["cpu"][0] = 7
    with pytest.raises(TypeError):
        trace.counts["allocs"] = 7  # type: ignore[index]
    with pytest.raises(KeyError, match="did you mean 'time_ns'"):
        trace["time_us"]


def test_a_part_by_rows(trace: us.Trace) -> None:
    part = trace[1:7]
    # [1] keeps its allocation; row 2 frees [0], which is outside now.
    assert ids(part) == [(0, -1), (-1, -1), (1, -1), (2, -1), (3, 0), (2, -1)]
    assert part.counts == {
        "events": 6,
        "allocs": 4,
        "allocs_failed": 0,
        "frees": 2,
        "frees_matched": 1,
        "frees_unknown": 1,
        "frees_null": 0,
        "implied_frees": 1,
        "remote_frees": 0,
        "live_at_end": 2,
        "lost_events": 0,
        "other_events": 0,
    }
    # Without the allocation of [1] there is nothing for the last allocation to imply.
    assert ids(trace[4:6]) == [(0, -1), (1, -1)]
    assert trace[4:6].caches == ("kmalloc",)
    assert trace[4:6].call_sites == ("b", "d")
    assert len(trace[5:5]) == 0
    assert trace[-2:].counts["frees_unknown"] == 2


def test_what_is_no_part(trace: us.Trace) -> None:
    with pytest.raises(ValueError, match="step 2 is not 1"):
        trace[::2]
    with pytest.raises(TypeError, match="slice of rows or by a column name"):
        trace[3]  # type: ignore[call-overload]


def test_a_part_by_time(trace: us.Trace) -> None:
    # 20 us up to 50 us after the first event, which is at 10 us.
    assert trace.between(20e-6, 50e-6)["time_ns"].tolist() == [30_000, 40_000, 50_000]
    assert len(trace.between(0, 1)) == 9
    with pytest.raises(ValueError, match="between"):
        trace.between(2, 1)


def test_a_part_by_cache(trace: us.Trace) -> None:
    files = trace.filter(caches="filp")
    assert files.caches == ("filp",)
    assert ids(files) == [(0, -1), (0, -1), (1, -1)]
    # 64 bytes are the stride of [1] and [3]; [4], which implies the end of [1], is of 128.
    small = trace.filter(caches=["kmalloc-64"])
    assert ids(small) == [(0, -1), (1, -1), (1, -1)]
    assert trace.filter(caches="kmalloc").counts["allocs"] == 3
    assert trace.filter(caches=["filp", "kmalloc"]).counts["allocs"] == 5
    with pytest.raises(ValueError, match="no cache of this trace 'fillp': did you mean 'filp'"):
        trace.filter(caches="fillp")


def test_a_part_by_cpu_and_kind(trace: us.Trace) -> None:
    assert trace.filter(cpus=1).counts["frees_unknown"] == 1
    assert trace.filter(cpus=[0, 1]).counts["allocs"] == 5
    assert trace.filter(kinds="alloc").counts["implied_frees"] == 1
    assert trace.filter(kinds=["free"]).counts["frees_unknown"] == 4
    with pytest.raises(ValueError, match=r"no event on CPU 2: this trace has CPUs \[0, 1\]"):
        trace.filter(cpus=2)
    with pytest.raises(ValueError, match="expected 'alloc' or 'free'"):
        trace.filter(kinds="realloc")


def test_operations_with_implied_frees_before(trace: us.Trace) -> None:
    ops = trace.ops()
    assert ops.dtype == OPS_DTYPE
    assert ops[["kind", "object", "implied"]].tolist() == [
        (1, 0, 0),
        (1, 1, 0),
        (2, 0, 0),
        (1, 2, 0),
        (1, 3, 0),
        (2, 1, 1),
        (1, 4, 0),
        (2, 3, 0),
    ]
    implied = ops[5]
    assert implied["cpu"] == 1
    assert implied["time_ns"] == 60_000
    assert trace.caches[implied["cache"]] == "kmalloc"
    assert (implied["bytes_req"], implied["bytes_alloc"]) == (50, 64)


def test_operations_with_implied_frees_spread(trace: us.Trace) -> None:
    places = set()
    for seed in range(200):
        ops = trace.ops("spread", seed)
        at = int(np.flatnonzero(ops["implied"])[0])
        assert ops["cpu"][at] == 1
        assert ops["object"][at] == 1
        places.add(at)
        rest = np.delete(ops, at)
        assert rest["object"].tolist() == [0, 1, 0, 2, 3, 4, 3]
        assert np.all(np.diff(ops["time_ns"]) >= 0)
        assert np.array_equal(ops, trace.ops("spread", seed))
    # After the allocation of [1], which is operation 1, and before that of [4].
    assert places == {2, 3, 4, 5}
    with pytest.raises(ValueError, match="'before' or 'spread'"):
        trace.ops("after")


def test_describe(trace: us.Trace) -> None:
    table = trace.describe()
    assert table["allocs"].to_dict() == {"filp": 2, "kmalloc-64": 2, "kmalloc-128": 1, "dentry": 0}
    assert table["frees"].to_dict() == {"filp": 1, "kmalloc-64": 1, "kmalloc-128": 0, "dentry": 0}
    assert table["implied_frees"].to_dict()["kmalloc-64"] == 1
    assert table["frees_unknown"].to_dict() == {
        "filp": 0,
        "kmalloc-64": 0,
        "kmalloc-128": 0,
        "dentry": 1,
    }
    small = table.loc["kmalloc-64"]
    assert (small["bytes_req_min"], small["bytes_req_median"], small["bytes_req_max"]) == (
        50,
        57,
        64,
    )
    assert (small["live_peak"], small["bytes_peak"]) == (2, 128)
    assert small["lifetime_median_us"] == pytest.approx(20)
    assert small["accounted_share"] == 0.5
    files = table.loc["filp"]
    assert (files["live_peak"], files["bytes_peak"], files["remote_share"]) == (1, 192, 1)
    assert files["lifetime_median_us"] == pytest.approx(20)


def test_scale(trace: us.Trace) -> None:
    wide = trace.scale(cpus=6)
    assert wide.cpus == (0, 1, 2, 3, 4, 5)
    assert wide.counts == {name: 3 * count for name, count in trace.counts.items()}
    for copy in range(3):
        part = wide.filter(cpus=[2 * copy, 2 * copy + 1])
        assert ids(part) == ids(trace)
        assert (part["cpu"] - 2 * copy).tolist() == trace["cpu"].tolist()
        assert part["time_ns"].tolist() == trace["time_ns"].tolist()
    assert np.all(np.diff(wide["time_ns"]) >= 0)
    assert trace.scale(cpus=2).counts == trace.counts


def test_scale_with_copies_that_start_late(trace: us.Trace) -> None:
    wide = trace.scale(cpus=8, spread=1e-3, seed=5)
    late = []
    for copy in range(4):
        part = wide.filter(cpus=[2 * copy, 2 * copy + 1])
        shift = np.unique(part["time_ns"] - trace["time_ns"])
        assert len(shift) == 1
        late.append(int(shift[0]))
    assert late[0] == 0
    assert all(0 < shift < 1_000_000 for shift in late[1:])
    again = trace.scale(cpus=8, spread=1e-3, seed=5)
    assert np.array_equal(wide["time_ns"], again["time_ns"])


def test_scale_refuses(trace: us.Trace) -> None:
    for cpus in (0, 1, 3):
        with pytest.raises(ValueError, match=f"cpus={cpus}: expected a multiple of 2"):
            trace.scale(cpus=cpus)
    with pytest.raises(ValueError, match="spread=-1"):
        trace.scale(cpus=4, spread=-1)


def test_frames(trace: us.Trace) -> None:
    frame = trace.to_frame()
    assert frame["kind"].tolist()[:3] == ["alloc", "alloc", "free"]
    assert frame["cache"].tolist()[:2] == ["filp", "kmalloc"]
    assert frame["call_site"].tolist()[:3] == ["a", "b", "c"]
    again = us.Trace.from_frame(frame)
    assert again.counts == trace.counts
    assert again.other_events_by_name == {"mm_page_free": 1}
    # A part of the table is a part of the trace.
    part = us.Trace.from_frame(frame.iloc[1:7])
    assert part.counts == trace[1:7].counts
    assert ids(part) == ids(trace[1:7])


def frame_of(**changes: object) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "time_ns": [0, 10, 20],
            "cpu": [0, 0, 1],
            "kind": ["alloc", "alloc", "free"],
            "object": [70, 5, 70],
            "cache": ["dentry", "filp", None],
            "bytes_req": [192, 184, 0],
        }
        | changes
    )


def test_a_trace_from_a_table() -> None:
    trace = us.Trace.from_frame(frame_of())
    assert ids(trace) == [(0, -1), (1, -1), (0, -1)]
    assert trace.caches == ("dentry", "filp")
    assert trace["bytes_alloc"].tolist() == [192, 184, 0]
    assert trace["node"].tolist() == [-1, -1, -1]
    assert trace.counts["remote_frees"] == 1
    assert us.Trace.from_frame(frame_of(kind=[1, 1, 2])).counts == trace.counts
    unknown = us.Trace.from_frame(frame_of(object=[70, 5, None]))
    assert unknown.counts["frees_unknown"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": ["alloc", "realloc", "free"]}, "row 1: kind 'realloc'"),
        ({"object": [5, 5, 70]}, "row 1: object 5 is allocated a second time"),
        ({"object": [-1, 5, 70]}, "row 0: an allocation needs an object number"),
        ({"kind": ["free", "alloc", "alloc"], "cache": ["a", "b", "c"]}, "row 0 ends the object"),
        ({"kind": ["alloc", "free", "free"], "object": [5, 5, 5]}, "rows 1 and 2 both end"),
        ({"implied": [-1, 70, -1]}, "rows 2 and 1 both end"),
        ({"cache": ["dentry", None, None]}, "row 1: an allocation needs the name of its cache"),
        ({"cpu": [0, 0.5, 1]}, "row 1: cpu is 0.5"),
        ({"bytes_req": [1, 2**40, 0]}, "row 1: bytes_req is 1099511627776"),
        ({"cpu": ["x", "y", "z"]}, "column 'cpu': expected numbers"),
    ],
)
def test_tables_that_are_no_trace(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        us.Trace.from_frame(frame_of(**changes))


def test_a_table_without_a_column() -> None:
    with pytest.raises(ValueError, match="no column 'object'"):
        us.Trace.from_frame(frame_of().drop(columns="object"))


def test_save_and_load(trace: us.Trace, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    trace.save(path)
    again = us.Trace.load(path)
    assert again.counts == trace.counts
    assert again.caches == trace.caches
    assert again.call_sites == trace.call_sites
    assert again.other_events_by_name == trace.other_events_by_name
    assert (again.format, again.source) == (trace.format, trace.source)
    for name, column in trace.columns.items():
        assert np.array_equal(again[name], column)
        assert again[name].dtype == column.dtype
    with pytest.raises(us.TraceFormatError, match=r"Trace\.load"):
        us.Trace.read(path)


def test_load_refuses_what_was_not_saved(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    other = tmp_path / "other.npz"
    np.savez(other, about=np.arange(3))
    empty = tmp_path / "empty"
    empty.touch()
    for path in (text, other, empty):
        with pytest.raises(us.TraceFormatError, match=r"Trace\.read"):
            us.Trace.load(path)
    with pytest.raises(FileNotFoundError):
        us.Trace.load(tmp_path / "none")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_load_refuses_a_saved_trace_that_was_cut(
    trace: us.Trace, tmp_path: Path, part: float
) -> None:
    """And leaves no file open: warnings are errors here."""
    path = tmp_path / "cut.npz"
    trace.save(path)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    for source in (path, str(path)):
        with pytest.raises(us.TraceFormatError, match=r"Trace\.read"):
            us.Trace.load(source)
    with path.open("rb") as file, pytest.raises(us.TraceFormatError):
        us.Trace.load(file)


def test_how_it_is_shown(trace: us.Trace) -> None:
    assert repr(trace) == (
        "<Trace <StringIO>: 11 events, 2 CPUs, 2 caches and 2 sizes of kmalloc, 8e-05 s, "
        "20.0% implied frees>"
    )
    shown = trace._repr_html_()
    assert "&lt;StringIO&gt;" in shown
    assert "kmalloc-64" in shown
    assert "http" not in shown


def test_traces_can_be_sent_to_workers(trace: us.Trace) -> None:
    again = pickle.loads(pickle.dumps(trace))
    assert again.counts == trace.counts
    assert np.array_equal(again["object"], trace["object"])
