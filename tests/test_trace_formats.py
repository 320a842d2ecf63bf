"""Every form in which the tools print kmem events; expected values were read off the samples."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import unislab as us
from unislab import _native
from unislab.trace import GFP

SAMPLES = Path(__file__).parent / "data" / "traces"


def read(text: str, **options: object) -> us.Trace:
    return us.Trace.read(io.StringIO(text), **options)


def names(trace: us.Trace, column: str = "cache") -> list[str | None]:
    """Names in place of indices."""
    table = trace.caches if column == "cache" else trace.call_sites
    return [table[i] if i >= 0 else None for i in trace[column]]


def gfp(*words: str) -> int:
    return sum(GFP[word] for word in words)


def test_ftrace_of_6_18() -> None:
    trace = us.Trace.read(SAMPLES / "ftrace-6.18.txt")
    assert trace.format == "ftrace"
    assert trace.counts == {
        "events": 11,
        "allocs": 5,
        "allocs_failed": 1,
        "frees": 5,
        "frees_matched": 3,
        "frees_unknown": 1,
        "frees_null": 1,
        "implied_frees": 1,
        "remote_frees": 2,
        "live_at_end": 1,
        "lost_events": 25,
        "other_events": 1,
    }
    assert trace.other_events_by_name == {"sched_switch": 1}
    assert trace.lost_marks == 2
    assert trace["kind"].tolist() == [1, 1, 1, 2, 2, 2, 2, 1, 1]
    assert trace["cpu"].tolist() == [2, 3, 0, 1, 1, 0, 0, 2, 3]
    assert trace["pid"].tolist() == [1234, 77, 7, 0, 0, 33, 33, 1234, 1234]
    assert trace["object"].tolist() == [0, 1, 2, 1, 0, 2, -1, 3, 4]
    assert trace["implied"].tolist() == [-1] * 8 + [3]
    assert names(trace) == [
        "kmalloc",
        "filp",
        "ext4_inode_cache",
        "filp",
        "kmalloc",
        "ext4_inode_cache",
        "lsm_file_cache",
        "names_cache",
        "names_cache",
    ]
    allocs = trace["kind"] == 1
    assert trace["bytes_req"][allocs].tolist() == [28, 184, 1096, 4096, 4096]
    assert trace["bytes_alloc"][allocs].tolist() == [32, 192, 1104, 4096, 4096]
    assert trace["node"][allocs].tolist() == [-1, -1, 1, -1, -1]
    assert trace["accounted"][allocs].tolist() == [0, 1, 1, 0, 0]
    assert trace["gfp"][allocs].tolist() == [0, gfp("ZERO"), gfp("NOFS"), 0, 0]
    assert trace["time_ns"][[0, -1]].tolist() == [512_345_678_000, 512_345_690_000]
    assert names(trace, "call_site")[2] == "ext4_alloc_inode+0x1a/0x1b0 [ext4]"


def test_ftrace_of_4_19_without_names() -> None:
    trace = us.Trace.read(SAMPLES / "ftrace-4.19.txt")
    assert trace["kind"].tolist() == [1, 1, 1, 2]
    assert trace["cpu"].tolist() == [0, 0, 1, 1]
    assert trace["object"].tolist() == [0, 1, 2, 0]
    assert names(trace) == ["unnamed-256", "kmalloc", "unnamed-232", "unnamed-256"]
    assert trace["gfp"].tolist() == [
        gfp("ZERO"),
        gfp("ACCOUNT", "THISNODE"),
        gfp("ATOMIC", "NOWAIT"),
        0,
    ]
    assert trace["node"].tolist() == [-1, 1, -1, -1]
    assert trace["accounted"].tolist() == [-1, -1, -1, -1]
    assert names(trace, "call_site")[0] == "ffffffff811d2c7f"
    assert trace.counts["frees_null"] == 1
    assert trace.counts["remote_frees"] == 1


def test_names_are_learned_from_frees() -> None:
    """5.12 to 6.17 print the name with kmem_cache_free only."""
    trace = us.Trace.read(SAMPLES / "ftrace-5.15.txt")
    assert names(trace) == [
        "dentry",
        "dentry",  # by call site and sizes
        "unnamed-64",  # the same call site, other sizes
        "dentry",
        "unnamed-176",
        "bio-96",
        "bio-96",
    ]


def test_trace_cmd() -> None:
    trace = us.Trace.read(SAMPLES / "trace-cmd.txt")
    assert trace.format == "trace-cmd"
    assert trace["kind"].tolist() == [1, 1, 2, 2]
    assert trace["cpu"].tolist() == [0, 0, 1, 0]
    assert trace["pid"].tolist() == [26011] * 4
    assert trace["object"].tolist() == [0, 1, 0, 1]
    assert names(trace) == ["kmalloc", "names_cache", "kmalloc", "names_cache"]
    # 0xc40 is reclaim and IO without FS; 0x400dc0 is GFP_KERNEL with ZERO and ACCOUNT.
    assert trace["gfp"].tolist() == [gfp("NOFS"), gfp("ZERO", "ACCOUNT"), 0, 0]
    assert trace["node"].tolist() == [-1, 0, -1, -1]
    assert names(trace, "call_site")[0] == "tomoyo_realpath_from_path+0x42"
    assert trace.counts["lost_events"] == 31
    assert trace.lost_marks == 2
    assert trace.counts["frees_null"] == 1
    assert trace.other_events_by_name == {"mm_page_alloc": 1, "kernel_stack": 1}


def test_old_trace_cmd_without_flags_or_padding() -> None:
    trace = us.Trace.read(SAMPLES / "trace-cmd-old.txt")
    assert trace["time_ns"].tolist() == [106_260_693_809_000, 106_260_693_810_123]
    assert trace["object"].tolist() == [0, 0]
    assert trace["gfp"].tolist() == [gfp("ZERO"), 0]
    assert trace["bytes_req"].tolist() == [29, 29]


def test_perf_script_with_call_chains() -> None:
    trace = us.Trace.read(SAMPLES / "perf-script.txt")
    assert trace.format == "perf"
    assert trace["kind"].tolist() == [1, 1, 2, 2]
    assert trace["cpu"].tolist() == [0, 1, 1, 0]
    assert trace["pid"].tolist() == [13688, 13690, 13688, 13688]
    assert trace["object"].tolist() == [0, 1, 0, 1]
    assert names(trace) == ["kmalloc", "dentry", "kmalloc", "dentry"]
    assert trace.counts["lost_events"] == 17 + 5
    assert trace.counts["remote_frees"] == 2
    assert trace.other_events_by_name == {"mm_page_alloc": 2, "sched:sched_switch": 1}


def test_real_perf_recording() -> None:
    """2000 lines of a real recording, all of them kmem events that allocate or free."""
    trace = us.Trace.read(Path(__file__).parent / "data" / "fork.perf-script.xz")
    counts = trace.counts
    assert trace.format == "perf"
    assert counts["events"] == 2000
    assert counts["other_events"] == counts["lost_events"] == 0
    assert counts["allocs"] + counts["allocs_failed"] + counts["frees"] == 2000
    assert trace.cpus == (0, 1)


ALLOC = "kmem:kmem_cache_alloc: call_site=f+0x1 ptr=0xa0 name=filp bytes_req=184 bytes_alloc=192"


@pytest.mark.parametrize(
    "columns",
    [
        "[003]   598.345030:",
        "   [003]   598.345030:",
        "task [003] 598.345030:",
        "a [001] 1.5: b [003] 598.345030:",
        " 13688 [003]   598.345030:",
        "            task 13688/13688 [003]   598.345030:",
        "            task   13688/13688   [003]   598.345030:",
        "            task 13688 [003]   598.345030:          1 ",
        "            task 13688 [003] K     598.345030:",
        "task 13688 [003]   598.345030:",
        "      a-1 [0] 1: 13688 [003]   598.345030:",
        "            :-1    -1 [003]   598.345030:",
        "  0 swapper 0 [003]   598.345030:",
    ],
)
def test_perf_columns(columns: str) -> None:
    """perf script -F with any columns that hold CPU, time and event."""
    trace = read(f"{columns} {ALLOC}\n")
    assert trace["cpu"].tolist() == [3]
    assert trace["time_ns"].tolist() == [598_345_030_000]
    assert names(trace) == ["filp"]


@pytest.mark.parametrize(
    "behind",
    ["", " ", "  ffffffff8129a3c1 kmem_cache_alloc+0x1a1 ([kernel.kallsyms])", "\r"],
)
def test_perf_columns_behind_the_fields(behind: str) -> None:
    head = "            task 13688 [003]   598.345030:"
    trace = read(
        f"{head} {ALLOC} gfp_flags=GFP_KERNEL node=-1 accounted=true{behind}\n"
        f"{head} kmem:kmem_cache_free: call_site=f+0x9 ptr=0xa0 name=filp{behind}\n"
    )
    assert trace.caches == ("filp",)
    assert trace["accounted"].tolist() == [1, 1]
    assert trace["object"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "event",
    ["kmem:kmalloc", "kmalloc", "kmem:kmalloc:k", "kmem:kmalloc/call-graph=no/", "kmalloc_node"],
)
def test_event_names(event: str) -> None:
    trace = read(f"            task 13688 [003]   598.345030: {event}: ptr=0xa0 bytes_req=7\n")
    assert names(trace) == ["kmalloc"]
    assert trace["bytes_alloc"].tolist() == [7]


def test_other_events_that_are_printed_without_a_colon() -> None:
    head = "            bash-1234    [002] d..2.   512.345678: "
    trace = read(
        f"{head}sys_openat(dfd: ffffff9c, filename: 7ffd, flags: 0, mode: 0)\n"
        f"{head}sys_openat -> 0x3\n"
        f"{head}mutex_unlock <-rb_simple_write\n"
        f"{head}<stack trace>\n"
        " => mutex_unlock\n"
        " => rb_simple_write\n"
        f"{head}tracing_mark_write: kmalloc: ptr=0x1 bytes_req=1\n"
    )
    assert trace.other_events_by_name == {
        "sys_openat": 2,
        "function": 1,
        "kernel_stack": 1,
        "tracing_mark_write": 1,
    }
    assert len(trace) == 0


@pytest.mark.parametrize(
    ("printed", "bits"),
    [
        ("GFP_KERNEL", ()),
        ("0xcc0", ()),
        ("GFP_KERNEL|__GFP_ZERO", ("ZERO",)),
        ("0xdc0", ("ZERO",)),
        ("dc0", ("ZERO",)),
        ("GFP_KERNEL|GFP_ZERO", ("ZERO",)),
        ("GFP_KERNEL_ACCOUNT", ("ACCOUNT",)),
        ("0x400cc0", ("ACCOUNT",)),
        ("GFP_NOFS|__GFP_RECLAIMABLE", ("NOFS", "RECLAIMABLE")),
        ("GFP_NOIO", ("NOIO", "NOFS")),
        ("GFP_ATOMIC", ("ATOMIC", "NOWAIT")),
        ("0x820", ("ATOMIC", "NOWAIT")),
        ("GFP_NOWAIT|__GFP_NOWARN", ("NOWAIT", "NOWARN")),
        ("none", ("NOWAIT",)),
        ("__GFP_IO|__GFP_FS|__GFP_DIRECT_RECLAIM|__GFP_THISNODE", ("THISNODE",)),
        ("GFP_WAIT|GFP_IO|GFP_FS", ()),
        ("GFP_KERNEL|__GFP_NEW_IN_9_0|0x100", ("ZERO",)),
    ],
)
def test_gfp_flags(printed: str, bits: tuple[str, ...]) -> None:
    trace = read(f"  t-1 [000] 1.5: kmalloc: ptr=0xa0 bytes_req=7 gfp_flags={printed} node=-1\n")
    assert trace["gfp"].tolist() == [gfp(*bits)]


@pytest.mark.parametrize("pointer", ["(null)", "0x0", "0", "0000000000000000", "(nil)", "  (null)"])
def test_null_pointers(pointer: str) -> None:
    trace = read(
        f"  t-1 [000] 1.5: kmalloc: ptr={pointer} bytes_req=99999999999 bytes_alloc=0\n"
        f"  t-1 [000] 1.5: kfree: call_site=f ptr={pointer}\n"
    )
    assert len(trace) == 0
    assert trace.counts["allocs_failed"] == trace.counts["frees_null"] == 1
    assert trace.counts["events"] == 2


def test_fields_in_any_order_and_unknown_ones() -> None:
    trace = read(
        "  t-1 [000] 1.5: kmem_cache_alloc: accounted=true shiny=1 node=2 bytes_alloc=192 "
        "name=two words gfp_flags=GFP_NOWAIT bytes_req=184 call_site=f+0x1/0x2 [mod] ptr=0xa0\n"
    )
    assert trace.caches == ("two words",)
    assert trace.call_sites == ("f+0x1/0x2 [mod]",)
    row = {name: column[0] for name, column in trace.columns.items()}
    assert (row["node"], row["accounted"], row["bytes_req"], row["bytes_alloc"]) == (2, 1, 184, 192)


def test_a_free_matches_the_latest_live_allocation_whatever_the_event() -> None:
    head = "            bash-1       [000] .....     1.000001: "
    trace = read(
        f"{head}kmem_cache_alloc: ptr=0xa0 name=filp bytes_req=184\n"
        f"{head}kmalloc: ptr=0xb0 bytes_req=8\n"
        f"{head}kfree: ptr=0xa0\n"
        f"{head}kmem_cache_free: ptr=0xb0 name=kmalloc-8\n"
        f"{head}kfree: ptr=0xb0\n"
    )
    assert trace["object"].tolist() == [0, 1, 0, 1, -1]
    assert names(trace) == ["filp", "kmalloc", "filp", "kmalloc", None]
    assert trace.counts["frees_unknown"] == 1


def test_clocks_that_count_and_times_that_step_back() -> None:
    trace = read(
        "            bash-1       [000] .....     1234567: kmalloc: ptr=0xa0 bytes_req=8\n"
        "            bash-1       [001] .....     1234500: kfree: ptr=0xa0\n"
    )
    assert trace["time_ns"].tolist() == [1234567, 1234500]
    assert trace["object"].tolist() == [0, 0]


def test_a_format_can_be_asked_for() -> None:
    dash = "            bash-1       [000] .....     1.000001: kmalloc: ptr=0xa0 bytes_req=8\n"
    perf = "            bash     1 [000]     1.000001: kmem:kmalloc: ptr=0xa0 bytes_req=8\n"
    assert read(dash, format="trace-cmd").format == "trace-cmd"
    assert read(perf, format="perf").format == "perf"
    with pytest.raises(us.TraceFormatError, match="perf script"):
        read(dash, format="perf")
    with pytest.raises(us.TraceFormatError, match="ftrace"):
        read(perf, format="ftrace")
    with pytest.raises(ValueError, match="'ftrace', 'trace-cmd', 'perf'"):
        read(dash, format="dtrace")


def outcome(pieces: list[bytes]) -> tuple[object, ...]:
    reader = _native.TraceReader(lenient=True)
    for piece in pieces:
        reader.feed(piece)
    result = reader.finish()
    columns = {name: bytes(column) for name, column in result.pop("columns").items()}
    return columns, result


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.glob("*.txt")))
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_text_may_be_cut_anywhere(sample: str, line_end: str) -> None:
    text = (SAMPLES / sample).read_text().replace("\n", line_end).encode()
    whole = outcome([text])
    for at in range(len(text) + 1):
        assert outcome([text[:at], text[at:]]) == whole
    assert outcome([text[i : i + 1] for i in range(len(text))]) == whole
    assert outcome([text.rstrip(b"\r\n")]) == whole
    if line_end == "\r\n":
        assert outcome([text.replace(b"\r\n", b"\n")]) == whole


def test_lines_longer_than_a_page() -> None:
    long = "x" * 5000
    head = "            bash-1       [000] .....     1.000001: "
    trace = read(
        f"{head}tracing_mark_write: {long}\n"
        f"{head}kmem_cache_alloc: call_site={long}+0x1 ptr=0xa0 name=filp bytes_req=184\n"
    )
    assert trace.other_events_by_name == {"tracing_mark_write": 1}
    assert trace.call_sites == (f"{long}+0x1",)


def test_many_live_objects() -> None:
    """More than any table of the reader begins with, freed in another order than allocated."""
    rng = np.random.default_rng(7)
    addresses = [0xFFFF888000000000 + 8 * int(i) for i in rng.permutation(20_000)]
    order = rng.permutation(20_000)
    head = "            bash-1       [000] .....     1.000001: "
    trace = read(
        "".join(f"{head}kmalloc: ptr={a:#x} bytes_req=8\n" for a in addresses)
        + "".join(f"{head}kfree: ptr={addresses[i]:#x}\n" for i in order)
    )
    assert trace.counts["frees_matched"] == 20_000
    assert trace["object"][20_000:].tolist() == order.tolist()


@pytest.mark.parametrize(
    "frames",
    [
        "\tffffffff81234567 kmem_cache_alloc+0x1a7 ([kernel.kallsyms])\n",
        "\tffffffff81234567 kmem_cache_alloc+0x1a7\n",
        "\tffffffff81234567\n",
        "        ffffffff81234567 kmem_cache_alloc ([kernel.kallsyms])\n",
        " kmem_cache_alloc+0x1a7 ([kernel.kallsyms])\n",
        " kmem_cache_alloc\n",
        "\t    7f12a0b1c2d3 operator new(unsigned long)+0x18 (/usr/lib/libstdc++.so.6)\n",
        "\t               0 [unknown] ([unknown])\n",
        "\tffffffff81234567 f (inlined)\n  slub.c:1234\n",
    ],
)
def test_call_chains_of_perf(frames: str) -> None:
    event = f"            task 13688 [003]   598.345030: {ALLOC}\n{frames}{frames}\n"
    assert read(event * 2).counts["allocs"] == 2
