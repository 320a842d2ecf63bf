"""Published tables beside their models: the data, the rules of judging, the command."""

from __future__ import annotations

import importlib.util
import json
import types
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

import unislab as us
from unislab import cli
from unislab.reproduction import judge, points, tables
from unislab.reproduction.run import run_tables

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
ALL = ["T1", "S1", "T2", "T3", "T4", "T5", "X1", "X2", "X3", "X4", "X5"]


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


# ---- the data file ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_table_has_its_context(name: str) -> None:
    table = us.published(name)
    assert len(table) > 0
    assert all(table.attrs[key] for key in ("title", "source", "context", "unit"))


def test_published_transactions_are_those_of_the_mail() -> None:
    # published_results.md, S1: T1's SLUB column x 60 s sums to 130 176 420 transactions, and the
    # two caches saw 129 711 826 and 129 591 151 allocations.
    assert us.published("T1")["SLUB"].sum() * 60 == 130_176_420
    calls = us.published("S1").set_index("cache")
    made = calls["ALLOC_FASTPATH"] + calls["ALLOC_SLOWPATH"]
    assert made.to_dict() == {"kmalloc-256": 129_711_826, "kmalloc-2048": 129_591_151}


def test_published_shares_follow_from_the_counts() -> None:
    # The shares that the same page prints beside S1's counts.
    calls = us.published("S1").set_index("cache")
    slow = calls["ALLOC_SLOWPATH"] / (calls["ALLOC_SLOWPATH"] + calls["ALLOC_FASTPATH"]) * 100
    freed = calls["FREE_SLOWPATH"] / (calls["FREE_SLOWPATH"] + calls["FREE_FASTPATH"]) * 100
    assert slow.round(1).to_dict() == {"kmalloc-256": 24.4, "kmalloc-2048": 40.4}
    assert freed.round(2).to_dict() == {"kmalloc-256": 99.87, "kmalloc-2048": 99.93}


def test_printed_differences_follow_from_the_rates() -> None:
    # T2 as printed, its difference column; X1's percent columns of 64 and 768 threads.
    table = us.published("T2")
    change = (table["Unified V4"] / table["SLAB"] - 1) * 100
    printed = [-10.9, -11.9, -12.2, -9.9, -8.3, -3.7, -3.2, -4.8, -9.7, -2.4]
    assert change.round(1).tolist() == printed
    x1 = us.published("X1").set_index("threads")
    for base, printed in (("SLUB", [11.1, 11.0]), ("SLAB", [6.6, 10.4])):
        change = (x1["Unified V4"] / x1[base] - 1) * 100
        assert change.loc[[64, 768]].round(1).tolist() == printed


def test_best_constants_are_those_of_the_rules() -> None:
    # published_results.md: the best constants fitted afterwards have 4.8, 1.8 and 3.2 points.
    t1, t2 = us.published("T1"), us.published("T2")
    for table, column, error in (
        (t1, "SLUB", 4.8),
        (t1, "SLUB+patchset", 1.8),
        (t2, "Unified V4", 3.2),
    ):
        differences = ((table[column] / table["SLAB"] - 1) * 100).tolist()
        assert round(judge.Skill.of(differences, differences).constant_error, 1) == error


def test_names_of_tables() -> None:
    assert us.published("t3.shares")["share"].tolist() == [88, 44, 13, 12]
    with pytest.raises(us.UnknownNameError, match="no published table 'T11': did you mean 'T1'"):
        us.published("T11")
    with pytest.raises(us.UnknownNameError, match="no published table 'X55': did you mean 'X5'"):
        us.reproduce("X55")
    with pytest.raises(ValueError, match=r"seed=-1|seed cannot be -1"):
        us.reproduce("T5", seed=-1)


# ---- how it is judged ---------------------------------------------------------------------------


def test_skill_on_made_up_numbers() -> None:
    published = [-10.0, -6.0, -4.0, 1.0]
    skill = judge.Skill.of(published, [-8.0, -7.0, 2.0, -1.0])
    # errors 2, 1, 6, 2; the median -5 leaves 5, 1, 1, 6
    assert skill.error == pytest.approx(11 / 4)
    assert (skill.constant, skill.constant_error) == (-5.0, pytest.approx(13 / 4))
    # only the third is wrong: the fourth is published as 1 %, which is not judged
    assert (skill.wrong, skill.judged) == ((2,), 3)
    # ranks 1 2 3 4 against 1 2 4 3: 1 - 6 (0 + 0 + 1 + 1) / (4 (16 - 1)) = 0.8
    assert skill.rank == pytest.approx(0.8)
    assert skill.proven


@pytest.mark.parametrize(
    ("modelled", "verdict"),
    [
        # as published
        ([-10.0, -6.0, -4.0], "reproduced"),
        # within the bound of 3, but less skill than the constant (errors 4, 0.5, 3 against 4, 0, 2)
        ([-6.0, -6.5, -7.0], "sign only"),
        # every sign right, 15 points off
        ([-25.0, -21.0, -19.0], "sign only"),
        # two signs wrong
        ([-10.0, 1.0, 1.0], "not reproduced"),
    ],
)
def test_verdicts(modelled: list[float], verdict: str) -> None:
    skill = judge.Skill.of([-10.0, -6.0, -4.0], modelled)
    checks = judge.skill_checks("SLUB", ["16", "32", "48"], skill, bound=3.0)
    assert judge.verdict_of(checks) == verdict


def test_a_constant_prediction_has_no_skill() -> None:
    # Even the best constant is no better than itself, and correlates with nothing.
    skill = judge.Skill.of([-10.0, -6.0, -4.0], [-6.0, -6.0, -6.0])
    assert skill.rank == 0 and not skill.proven


def test_errors_are_in_points() -> None:
    # 100 to 90 is -10 %, 200 to 190 is -5 %: the model is 5 points off.
    was, got = judge.percent_more(90, 100), judge.percent_more(190, 200)
    assert got - was == pytest.approx(5)


# ---- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick() -> dict[str, us.Reproduction]:
    """T1 and S1, which share runs, and a table that is not built."""
    return {one.table: one for one in run_tables(["T1", "S1", "T5"], quick=True)}


def test_rows_hold_published_modelled_and_error(quick: dict[str, us.Reproduction]) -> None:
    rows = quick["T1"].rows
    assert (rows["modelled"] - rows["published"] - rows["error"]).abs().max() < 1e-9
    was = rows[(rows["row"] == "32 threads") & (rows["figure"] == "SLUB vs SLAB")]
    assert was["published"].item() == pytest.approx((95373 / 126490 - 1) * 100)
    for row in rows[rows["unit"] == "%"].to_dict("records"):
        judged = abs(row["published"]) > 3  # percent, as the rules have it
        assert row["sign"] == (row["published"] * row["modelled"] > 0 if judged else None)


def test_a_reproduction_explains_itself(quick: dict[str, us.Reproduction]) -> None:
    t1 = quick["T1"]
    assert t1.verdict in ("reproduced", "sign only", "not reproduced")
    assert t1.ok == (t1.verdict == "reproduced")
    slab = t1.results["32 threads", "SLAB"]
    cost = slab.why(t1.results["32 threads", "SLUB"])
    assert list(cost.columns) == ["view", "what", "SLAB", "SLUB", "difference"]
    # all CPUs, all the time, the measured 20 ms of them
    time = sum(t1.explanations["32 threads", "SLAB"].time.values())
    assert time == pytest.approx(16 * slab.elapsed, rel=1e-3)
    for text in (t1.text, t1._repr_html_()):
        assert t1.verdict in text and "quick" in text and "32 threads" in text


def test_s1_is_summed_over_the_rows_and_shown_against_time(
    quick: dict[str, us.Reproduction],
) -> None:
    s1 = quick["S1"]
    for cache in ("kmalloc-256", "kmalloc-2048"):
        slow = calls = 0
        for result in s1.results.values():
            counted = result.caches[result.caches["cache"] == cache].set_index("counter")["value"]
            slow += counted["alloc_slowpath"]
            calls += counted["alloc_slowpath"] + counted["alloc_fastpath"]
        row = s1.rows[(s1.rows["row"] == cache) & (s1.rows["figure"] == "ALLOC slow share")]
        assert row["modelled"].item() == pytest.approx(slow / calls * 100)
        curve = s1.curves[s1.curves["column"] == f"{cache} ALLOC"]
        assert len(curve) == 8 and curve["x"].is_monotonic_increasing  # 4 to warm up, 4 measured


def test_plots_show_both(quick: dict[str, us.Reproduction]) -> None:
    for one in quick.values():
        ax = one.plot()
        assert one.verdict in ax.get_title()
        plt.close(ax.figure)


def test_points_run_the_same_anywhere() -> None:
    # Plain values, which compare: a point is the same run in any process.
    cells = tables.TABLES["T2"].points(True, 0)
    point = cells["16 threads", "Unified V4"]
    assert point == tables.TABLES["T2"].points(True, 0)["16 threads", "Unified V4"]
    one, two = points.run_point(point), points.run_point(point)
    assert one.rates == two.rates and dict(one.result.counters) == dict(two.result.counters)


def test_cpus_of_a_part_of_a_machine() -> None:
    # Stoakley: two CPUs share an L2; maxcpus=2 leaves one such pair.
    for cpus, domains in ((8, 4), (4, 2), (2, 1)):
        some = tables.TABLES["T3"].points(False, 0)[f"{cpus} CPUs", "8, max_order 1"]
        machine = points._machine(some)
        assert (machine.cpus, len(set(machine.topology.cpu_domain))) == (cpus, domains)


# ---- the command --------------------------------------------------------------------------------


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(
        capsys, "reproduce", "T4", "T5", "X4", "--quick", "--json", "--jobs", "1"
    )
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert [one["table"] for one in told] == ["T4", "T5", "X4"]
    assert all(set(one) == {"table", "rows", "verdict", "ok"} for one in told)
    assert isinstance(told[0]["ok"], bool) and told[0]["rows"]
    assert [(one["verdict"], one["ok"], one["rows"]) for one in told[1:]] == [
        ("not built", None, [])
    ] * 2


def test_text_and_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "x5.png"
    options = ("--quick", "--jobs", "2", "--plot", str(picture))
    code, out, _err = output(capsys, "reproduce", "x5", *options)
    assert code == 0 and out.startswith("X5. ") and "X5: shown" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_name_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(capsys, "reproduce", "T33")
    assert (code, out) == (2, "")
    assert "no published table 'T33': did you mean 'T3'?" in err and err.count("\n") == 1


# ---- the fit ------------------------------------------------------------------------------------


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """tools/fit.py, with no other published figure to be had than those it may read."""
    spec = importlib.util.spec_from_file_location("fit", ROOT / "tools/fit.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def allowed(name: str) -> Any:
        table = us.published(name)
        if name == "S1":
            row = table[table["cache"] == "kmalloc-2048"]
            return row[["cache", "ALLOC_FASTPATH", "ALLOC_SLOWPATH"]]
        assert name in ("T1", "T2")
        return table[["threads", "SLAB"]]

    monkeypatch.setattr(script, "published", allowed)
    return script


def test_the_fit_reads_slab_and_finds_a_network(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is a round trip and a serial part alone: its two constants are found."""

    def ideal(point: points.Point) -> Any:
        given = dict(point.parameters)
        trip = us.parse_time(given["round_trip"]) + given["stack_cycles"] / 2.2
        return types.SimpleNamespace(rate=given["streams"] / trip * 1e9)

    monkeypatch.setattr(fit, "run_point", ideal)
    made = fit.Fit("T1", None)
    made.rates = [n / (200e-6 + 3e-6 * n) for n in made.streams]
    found = made.settle(made.start() | {"irq_cpus": 1, "stack_cycles": 11_000})
    # 200 us are the round trip and 11 000 cycles of 2.2 GHz; each stream more makes 3 us more
    assert found["round_trip_ns"] == pytest.approx(195_000, abs=2)
    assert found["serial_ns"] == pytest.approx(3000, abs=1)
    assert made.error(found) < 1e-4


def test_the_fit_of_the_ring_reads_one_share(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def ideal(point: points.Point) -> Any:
        """A cache whose slow share is that of its ring to 80."""
        slow = dict(point.parameters)["rx_ring"]
        calls = {"alloc_slowpath": slow, "alloc_fastpath": 80 - slow}
        return types.SimpleNamespace(rates=(1.0,), calls=({"kmalloc-2048": calls},))

    monkeypatch.setattr(fit, "run_point", ideal)
    monkeypatch.setattr(fit, "RINGS", (8, 32, 64))
    made = fit.Fit("T1", None)
    ring, share, wanted = fit.fit_ring(made, made.start() | {"irq_cpus": 1}, None)
    # 32 of 80 is 40 %, and S1 says 40.4 %
    assert (ring, share) == (32, 40) and wanted == pytest.approx(40.4, abs=0.05)


def test_fitted_constants_are_what_workloads_take() -> None:
    for table in ("T1", "T2"):
        point = tables.TABLES[table].points(True, 0)["16 threads", "SLAB"]
        made = us.workloads.tcp_rr(**dict(point.parameters) | {"transactions": 1})
        given = dict(point.parameters)
        ahead = given["rx_ring"] * given["rx_queues"] * len(given["irq_cpus"])
        assert made.counts["allocs"] == 16 * 4 + 2 * ahead  # a head and data each
