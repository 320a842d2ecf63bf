"""The command line: what it prints, its exit codes, and errors of one line."""

from __future__ import annotations

import io
import json
import lzma
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import unislab as us
from unislab import _tables as cli_tables
from unislab import cli
from unislab.inspect import policy_counters, policy_tunables

pytestmark = pytest.mark.once

QUICK = ("--min-time", "5ms")


class Done:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Runs a command in this process."""

    def call(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        out, err = capsys.readouterr()
        return Done(int(stopped.value.code or 0), out, err)

    return call


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace as text."""
    lines = ["# tracer: nop"]
    for i in range(200):
        cpu, at = i % 2, 5 + i / 1000
        pointer = f"{0x1000 + i * 64:#x}"
        lines.append(
            f" bash-12 [00{cpu}] d..1. {at:.6f}: kmem_cache_alloc: ptr={pointer} name=inode "
            "bytes_req=600 bytes_alloc=640 gfp_flags=GFP_KERNEL node=-1 accounted=false"
        )
        if i % 4:
            lines.append(
                f" bash-12 [00{cpu}] d..1. {at:.6f}: kmem_cache_free: ptr={pointer} name=inode"
            )
    path = tmp_path_factory.mktemp("traces") / "small.trace"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_demo_says_who_wins_by_how_much_and_why(run) -> None:
    done = run("compare", "tcp_rr", "--policies", "unified,slub", "--rounds", "5", *QUICK)
    assert done.code == 0
    assert re.search(r"(\w+ serves tcp_rr [\d.]+ x as fast as \w+|no difference in time)", done.out)
    lines = done.out.splitlines()
    told = lines[1 : next(i for i, line in enumerate(lines) if not line.strip())]
    assert 6 <= len(told) <= 10 and "95 % interval" in told[0]
    heads = ["allocations", "frees", "locks taken", "locks contended", "reserved at its peak"]
    assert [line.partition(":")[0] for line in told[1:6]] == heads
    assert told[6].startswith("skbuff")
    assert len(lines) <= 30


def test_compare_reads_files_plain_and_packed(run, trace_file: Path) -> None:
    packed = trace_file.with_suffix(".xz")
    packed.write_bytes(lzma.compress(trace_file.read_bytes()))
    for path in (trace_file, packed):
        done = run("compare", str(path), "--policies", "slub", "--rounds", "3", *QUICK)
        assert done.code == 0, done.err
        assert f"slub serves {path.name} in" in done.out  # a file, whatever is shipped


def test_compare_as_json(run, trace_file: Path) -> None:
    done = run("compare", str(trace_file), "--json", "--rounds", "3", *QUICK)
    told = json.loads(done.out)
    assert {row["policy"] for row in told["summary"]} == set(us.policies())
    for policy in us.policies():
        assert told["results"][policy]["counts"]["allocs"] == 200
    assert told["verdict"] and done.err == ""


def test_compare_draws(run, trace_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "out.png"
    done = run("compare", str(trace_file), "--plot", str(picture), "--rounds", "3", *QUICK)
    assert done.code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_run_prints_times_counters_and_memory(run) -> None:
    done = run("run", "batch", "--policy", "slub", "--set", "min_objects=8", *QUICK)
    assert done.code == 0
    assert "alloc_fast" in done.out and "reserved_peak" in done.out
    told = json.loads(run("run", "batch", "--policy", "slub", "--json", *QUICK).out)
    made = sum(v for k, v in told["counters"].items() if k.startswith("alloc_"))
    assert made == told["counts"]["allocs"] == 64 * 200


def test_trace_describe(run, trace_file: Path) -> None:
    done = run("trace", "describe", str(trace_file))
    assert done.code == 0
    assert "inode" in done.out and "allocs 200" in done.out
    told = json.loads(run("trace", "describe", str(trace_file), "--json").out)
    assert told["counts"]["live_at_end"] == 50
    assert told["caches"][0]["allocs"] == 200


def test_trace_list_names_what_compare_takes(run) -> None:
    assert run("trace", "list").out.split() == us.datasets.names()


def test_workloads_are_listed_as_run_takes_them(run) -> None:
    # What is printed is each workload at its defaults; the values of one of them are changed here.
    told = run("workloads").out.split("\n")
    assert [line.partition(":")[0] for line in told if line] == us.workloads.names()
    line = next(line for line in told if line.startswith("producer_consumer"))
    small = line.replace("messages=10000", "messages=70").replace("cpus=0,1", "cpus=0,0")
    done = run("run", small, "--json", *QUICK)
    assert done.code == 0
    found = json.loads(done.out)
    assert found["counts"] == {"allocs": 70, "frees": 70, "marks": 70}
    assert found["rate"] == 70 / found["seconds"]["warm"]


def test_a_trace_goes_before_a_workload_of_its_name(run) -> None:
    trace, workload = (
        json.loads(run("run", name, "--json", *QUICK).out)["counts"]
        for name in ("fork", "fork:processes=1")
    )
    assert trace["allocs"] == us.datasets.load("fork").counts["allocs"]
    assert workload["allocs"] == us.workloads.fork(1).counts["allocs"]
    assert run("trace", "describe", "fork:").code == 2


def test_a_duration_ends_a_workload_without_end(run) -> None:
    name = "producer_consumer:messages=None:cpus=0,0"
    done = run("run", name, "--duration", "20ms", "--warmup", "1ms", "--json")
    found = json.loads(done.out)
    assert found["seconds"] is None
    assert found["elapsed"] >= 0.02
    assert found["marks"] > 0


def test_slabinfo_is_that_of_the_kernel_in_form(run) -> None:
    done = run("slabinfo", "fork", "--policy", "slub")
    assert done.code == 0
    assert done.out.startswith("slabinfo - version: 2.1\n# name ")
    line = re.search(r"^task_struct +(\d+) +(\d+) +(\d+) ", done.out, re.MULTILINE)
    assert line is not None
    # The trace leaves as many live as it allocates and does not free.
    row = us.datasets.load("fork").describe().loc["task_struct"]
    assert int(line[1]) == row["allocs"] - row["frees"] - row["implied_frees"]


def test_policies_lists_all_and_explains_one(run) -> None:
    listed = run("policies").out
    assert all(name in listed for name in us.policies())
    told = json.loads(run("policies", "--explain", "slub", "--json").out)
    assert {"min_objects", "max_order"} <= {row["name"] for row in told["tunables"]}
    assert "alloc_fast" in {row["name"] for row in told["counters"]}
    assert "min_objects" in run("policies", "--explain", "slub").out


@pytest.mark.parametrize("policy", us.policies())
def test_explain_says_of_every_counter_and_tunable_what_its_table_does(run, policy: str) -> None:
    told = json.loads(run("policies", "--explain", policy, "--json").out)
    common = {row["name"] for row in told["counters"] if row["common"]}
    for row in told["counters"]:
        assert row["help"]
        assert row["common"] or row["feeds"] in {"", *common}
    fed = {row["name"]: row["feeds"] for row in told["counters"] if row["common"]}
    # Every call is counted by the policy itself: the fast ones must be fed.
    assert fed["alloc_fast"] and fed["free_fast"]
    for row in told["tunables"]:
        assert row["help"] and row["unit"]
        if row["readonly"]:
            assert row["default"] is None
        elif not isinstance(row["default"], str):  # a word: a choice, or "computed"
            assert row["min"] <= row["default"]
            assert row["max"] is None or row["default"] <= row["max"]
    shown = run("policies", "--explain", policy).out
    for name, feeds in fed.items():
        said = re.search(rf"^ {name} +(.*)$", shown, re.MULTILINE)
        assert said is not None
        if not feeds and name.startswith(("alloc_", "free_")):
            assert said[1].startswith("nothing: stays 0")
    for row in told["counters"] + told["tunables"]:
        assert row["name"] in shown


def test_explain_shows_what_is_fixed_and_what_is_computed(run) -> None:
    told = json.loads(run("policies", "--explain", "slub", "--json").out)
    rows = {row["name"]: row for row in told["tunables"]}
    assert rows["epoch"]["creation"] and not rows["min_partial"]["creation"]
    assert rows["epoch"]["default"] == "2.6.32" and rows["epoch"]["choices"] == ["2.6.25", "2.6.32"]
    assert rows["min_partial"]["default"] == "computed"
    counters = {row["name"]: row["feeds"] for row in told["counters"]}
    # Slow frees of another node's slab are counted as slow ones too, and taken off there.
    assert counters["free_remote"] == "(free_off_node)"
    assert counters["free_slow"] == "free_slowpath - (free_off_node)"
    assert counters["free_slowpath"] == "free_slow"


def test_a_policy_against_itself_by_the_command_line(run) -> None:
    done = run(
        *("compare", "pair", "--rounds", "3", "--json", *QUICK),
        *("--policies", "unified,unified:adapt_period=0:batch_size=8"),
    )
    told = json.loads(done.out)["results"]
    assert list(told) == ["unified", "unified:adapt_period=0:batch_size=8"]
    assert told["unified:adapt_period=0:batch_size=8"]["tunables"] == {
        "adapt_period": "0",
        "batch_size": "8",
    }
    assert {result["policy"] for result in told.values()} == {"unified"}


def test_lifetimes_have_one_format_and_shares_are_percent(run, trace_file: Path) -> None:
    told = json.loads(run("trace", "describe", "fork", "--json").out)
    shown = run("trace", "describe", "fork", "--all").out
    assert "e+" not in shown
    for row in told["caches"]:
        if row["lifetime_median_us"] is not None:
            assert f" {row['lifetime_median_us']:,.1f} " in shown
    assert " %" in shown


def test_the_head_counts_the_rows_below_it(run) -> None:
    for name in us.datasets.names():
        rows = us.datasets.load(name).describe().index
        sizes = sum(row.startswith("kmalloc-") for row in rows)
        head = run("trace", "describe", name).out.splitlines()[0]
        said = re.search(r", (\d+) caches? and (\d+) sizes? of kmalloc, ", head)
        assert said is not None and said.groups() == (f"{len(rows) - sizes}", f"{sizes}")
        assert head.startswith(f"Trace {name}: ")  # not as a file of the same trace


def test_version(run) -> None:
    assert run("--version").out == f"unislab {us.__version__}\n"


# ---- what goes wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compare", "tcp_r"), "did you mean tcp_rr?"),
        (("compare", "no/such/file"), "no file 'no/such/file'"),
        (("compare", "tcp_rr", "--policies", "slob"), "did you mean 'slub'? known are unified, "),
        (("compare", "tcp_rr", "--policies", "slub:min_objects"), "cannot read 'slub:min_objects'"),
        (("compare", "tcp_rr", "--baselines", "malloc:foo"), "no baseline 'malloc:foo'"),
        (("compare", "tcp_rr", "--touch", "some"), "'some' is not one of"),
        (("compare", "tcp_rr", "--min-time", "soon"), "'soon' is no time"),
        (("compare", "tcp_rr", "--rounds", "1"), "1 is not in the range"),
        (("compare",), "Missing argument"),
        (("run", "tcp_rr", "--policy", "slub,unified"), "takes one policy"),
        (("run", "tcp_rr", "--set", "min_objects"), "expected NAME=VALUE"),
        (("compare", "tcp_rr", "--policies", "slub,malloc"), "give it by --baselines malloc"),
        (("compare", "tcp_rr", "--memory", "1XB"), "'--memory': unknown unit 'XB'"),
        (("compare", "tcp_rr", "--plot", "no/such/a.png"), "no directory 'no/such'"),
        (("compare", "tcp_rr", "--plot", "a.foo"), "no picture is called .foo"),
        (("compare", "/"), "'/' is a directory"),
        (("run", "pair", "--policy", "slab:limit=9:shared=0"), "--set limit=9 --set shared=0"),
        (("policies", "--explain", "slab:limit=9"), "takes the name, 'slab', alone"),
        (("policies", "--explain", "slob"), "no policy 'slob'"),
        (("trace", "describe", "pair"), "workload of the package, expected a trace"),
        (("frobnicate",), "No such command"),
        (("--no-such-option",), "No such option"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(
    run, arguments: tuple[str, ...], said: str
) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("unislab: ") and said in done.err
    assert done.err.count("\n") == 1


def test_a_file_that_is_no_trace_is_one_line_and_code_1(run, tmp_path: Path) -> None:
    wrong = tmp_path / "notes.txt"
    wrong.write_text("milk\neggs\n")
    done = run("compare", str(wrong))
    assert done.code == 1
    assert f"unislab: {wrong}, line 1" in done.err
    assert done.err.count("\n") == 1


def test_lenient_skips_and_says_how_many(run, trace_file: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.trace"
    mixed.write_text(trace_file.read_text() + "milk\neggs\n")
    assert run("trace", "describe", str(mixed)).code == 1
    done = run("trace", "describe", str(mixed), "--lenient")
    assert done.code == 0
    assert "2 lines that are no events were skipped" in done.err


def test_one_skipped_line_is_one(run, trace_file: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.trace"
    mixed.write_text(trace_file.read_text() + "milk\n")
    done = run("trace", "describe", str(mixed), "--lenient")
    assert "1 line that is no event was skipped" in done.err


def test_what_the_system_refuses_is_said_without_its_number(run, tmp_path: Path) -> None:
    done = run(
        "compare", "pair", "--rounds", "3", "--plot", str(tmp_path / f"{'x' * 300}.png"), *QUICK
    )
    assert done.code == 1
    assert ".png: File name too long" in done.err and "Errno" not in done.err


def test_slabinfo_takes_tunables(run) -> None:
    """SLAB's row shows the limit and the batchcount that were asked for."""
    settings = ("--set", "limit=32", "--set", "batchcount=7")
    rows = run("slabinfo", "pair", "--policy", "slab", *settings).out.splitlines()[2:]
    assert re.search(r"^object .* : tunables +32 +7 ", rows[0])


def test_run_shows_caches_that_were_called(run) -> None:
    caches = run("run", "pair", *QUICK).out.partition(" cache ")[2]
    assert "object" in caches and "kmalloc" not in caches  # pair uses one cache, of that name


def test_brackets_of_counters_are_explained_where_there_are_any(run) -> None:
    for policy in us.policies():
        shown = run("policies", "--explain", policy).out
        told = json.loads(run("policies", "--explain", policy, "--json").out)
        bracketed = any("(" in row["feeds"] for row in told["counters"] if row["common"])
        assert ("in brackets" in shown) == bracketed


def test_explain_shows_words_instead_of_codes(run) -> None:
    shown = run("policies", "--explain", "slub-partial").out
    epoch = next(line for line in shown.splitlines() if line.startswith(" epoch "))
    assert epoch.split()[:3] == ["epoch", "5.16", "kernel"]  # no codes between
    assert "; one of 3.2, 5.16" in " ".join(shown.split())
    assert "; or one of 4*(fls+1), " in " ".join(shown.split())  # min_objects: numbers too


@pytest.mark.parametrize("policy", us.policies())
def test_explain_can_be_read_on_a_narrow_terminal(policy: str) -> None:
    """No word of a text is broken; every name stands whole."""
    tunables, counters = policy_tunables(policy), policy_counters(policy)
    for width in (60, 80, 120, 200):
        file = io.StringIO()
        out = Console(file=file, width=width, force_terminal=True, no_color=True, markup=False)
        cli_tables.show_tunables(tunables, out)
        cli_tables.show_counters(counters, out)
        text = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
        assert all(len(line) <= width for line in text.splitlines())
        words = set(text.replace(",", " ").replace(";", " ").split())
        for table in (tunables, counters):
            assert set(table["name"]) <= words
            for said in table["help"]:
                assert set(said.replace(",", " ").replace(";", " ").split()) <= words


def test_what_a_policy_refuses_is_one_line_and_code_1(run) -> None:
    done = run("run", "pair", "--set", "no_such_tunable=1", *QUICK)
    assert done.code == 1
    assert "no_such_tunable" in done.err and done.err.count("\n") == 1
    done = run("run", "files", "--memory", "1MiB", *QUICK)
    assert done.code == 1
    assert "task " in done.err and done.err.count("\n") == 1
    done = run("compare", "files", "--memory", "1MiB", "--rounds", "3", *QUICK)
    assert done.code == 1
    assert re.match(r"unislab: (\w|-)+: task ", done.err)  # begins with the policy


# ---- as a process ---------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "unislab.cli", *arguments]


def test_standard_input_is_a_trace_too(trace_file: Path) -> None:
    with trace_file.open("rb") as file:
        done = subprocess.run(
            command("trace", "describe", "-"), stdin=file, capture_output=True, text=True
        )
    assert done.returncode == 0 and "inode" in done.stdout


def test_ctrl_c_ends_a_long_run_with_one_line() -> None:
    with subprocess.Popen(
        command("run", "pair", "--min-time", "1000s"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        for _ in range(600):
            names = [t.read_text() for t in Path(f"/proc/{child.pid}/task").glob("*/comm")]
            if "us-task 0\n" in names:
                break
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 130
    assert out == "" and err.strip() == "unislab: interrupted"  # click ends the line of ^C


def test_a_reader_that_has_enough_is_no_error() -> None:
    with subprocess.Popen(
        command("slabinfo", "fork"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        err = child.stderr.read()
        child.wait(timeout=60)
    assert "Traceback" not in err and "BrokenPipe" not in err


@pytest.mark.parametrize("policy", ["", " ", ",", "unified,slub", "unifed"])
def test_explain_takes_one_policy(run, policy: str) -> None:
    done = run("policies", "--explain", policy)
    assert done.code == 2
    assert done.err.startswith("unislab: ") and done.err.count("\n") == 1


def test_standard_input_that_is_closed() -> None:
    command = [sys.executable, "-m", "unislab", "trace", "describe", "-"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == "unislab: <stdin>: is closed; expected the text of a trace\n"


@pytest.fixture(scope="module")
def shown() -> list[Callable[[Console], None]]:
    """What the commands show on a terminal."""
    trace = us.datasets.load("tcp_rr")[:10000]
    compared = us.compare(us.workloads.batch(8, 1024), rounds=3, min_time=0)
    result = us.run(us.workloads.pair(), min_time=0)
    tables = cli_tables
    return [
        lambda out: tables.show_comparison(compared, out),
        lambda out: tables.show_result(result, out),
        lambda out: tables.show_description(trace.describe(), out, rows=None),
    ]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 160])
def test_tables_on_a_narrow_terminal_leave_out_whole_columns(
    shown: list[Callable[[Console], None]], width: int
) -> None:
    """No cell is cut; what is left out is named."""
    for show in shown:
        file = io.StringIO()
        show(Console(file=file, width=width, force_terminal=True, no_color=True, markup=False))
        text = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
        rules = [line for line in text.splitlines() if set(line.strip()) == {"\u2500"}]
        assert rules
        assert all(len(line) <= width for line in rules)
        assert width > 40 or "No room for" in text
        assert width < 160 or "No room for" not in text
