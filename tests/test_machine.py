"""Machines: what a profile says, what is refused, and what survives a file."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import unislab as us
from unislab import cli
from unislab.costs import COST_NAMES, LINE_BYTES

pytestmark = pytest.mark.once

#: CPUs, nodes, cache domains, threads a core, and GHz: of the machines that the tables name.
SHAPES = {
    "amd_16core_2010": (16, 4, 4, 1, 2.2),  # four quad-core processors, a node each
    "intel_8core_2008": (8, 1, 4, 1, 2.83),  # two quad-cores whose cores share an L2 in pairs
    "intel_16core_2008": (16, 1, 8, 1, 2.93),  # four such
    "dell_r910_2010": (64, 4, 4, 2, 2.26),  # four sockets of eight cores of two threads
    "intel_ht_2004": (8, 1, 4, 2, 3.33),  # four cores of two threads
    "server_2026": (256, 2, 16, 2, 3.7),  # two sockets of eight times eight cores of two threads
}
MACHINES = [*SHAPES, "host"]


@pytest.fixture(autouse=True)
def nothing_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> us.Machine:
    return us.Machine.profile(request.param)


def test_all_profiles_are_named() -> None:
    assert us.Machine.profiles() == list(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name: str) -> None:
    made = getattr(us.Machine, name)()
    cpus, nodes, domains, smt, ghz = SHAPES[name]
    assert (made.cpus, made.nodes, made.domains) == (cpus, nodes, domains)
    assert (made.smt, made.clock_ghz, made.name) == (smt, ghz, name)
    for per in (made.topology.cpu_node, made.topology.cpu_domain):
        assert len(set(Counter(per).values())) == 1  # all alike


def test_sockets_are_nodes() -> None:
    assert us.Machine.server_2026(sockets=4).cpus == 4 * 128
    assert us.Machine.server_2026(sockets=4).nodes == 4
    with pytest.raises(ValueError, match="sockets"):
        us.Machine.server_2026(sockets=0)


@pytest.mark.parametrize("name", SHAPES)
def test_every_number_has_its_source(name: str) -> None:
    made = getattr(us.Machine, name)()
    assert set(made.costs.sources) == set(COST_NAMES)
    for cost, source in made.costs.sources.items():
        assert source not in ("", "given"), cost
        assert source in (getattr(us.Machine, name).__doc__ or ""), cost


def test_near_is_not_dearer_than_far(machine: us.Machine) -> None:
    c = machine.costs
    assert c.instruction > 0
    assert 0 < c.l2_hit <= c.llc_hit < c.memory <= c.memory_far
    assert 0 < c.line_domain <= c.line_node <= c.line_far
    assert c.invalidate_domain <= c.invalidate_node <= c.invalidate_far
    assert c.atomic < c.lock < c.memory
    assert c.wakeup < c.context_switch + c.idle_exit
    assert (c.smt_slowdown > 100) == (machine.smt > 1) or machine.name.startswith("host")


def test_caches_grow(machine: us.Machine) -> None:
    c = machine.caches
    assert 0 < c.l1 <= c.l2 <= c.llc
    for size, ways in ((c.l1, c.l1_ways), (c.l2, c.l2_ways), (c.llc, c.llc_ways)):
        assert size % (ways * LINE_BYTES) == 0


def test_the_core_gets_whole_picoseconds() -> None:
    made = us.Machine.grid(1, 1, 2).replace(clock_ghz=2.5, costs__lock=1.2345, costs__atomic=3)
    ps = made._costs_ps()
    assert ps["lock"] == 1234  # 1234.5 to even
    assert ps["atomic"] == 3000
    assert ps["cycle"] == 400  # 1000 ps / 2.5
    assert ps["smt_slowdown"] == round(made.costs.smt_slowdown)
    assert set(ps) == {*COST_NAMES, "cycle"}
    assert all(type(v) is int for v in (*ps.values(), *made._caches().values()))
    assert set(made._caches()) == {"l1", "l1_ways", "l2", "l2_ways", "llc", "llc_ways"}


def test_grids_have_the_costs_of_a_server_of_today() -> None:
    assert us.Machine.grid(2, 2, 2).costs == us.Machine.server_2026().costs
    assert us.Machine.from_topology(us.Topology([0])).caches == us.Machine.server_2026().caches


@pytest.mark.parametrize("name", COST_NAMES)
@pytest.mark.parametrize("wrong", [-1, -0.001, math.nan, math.inf, "5", None, True, [1], 2e9])
def test_costs_that_are_none(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"costs\.{name} cannot be .*expected"):
        us.Machine.grid(1, 1, 2).replace(**{f"costs__{name}": wrong})


@pytest.mark.parametrize("wrong", [0, -1, math.nan, "3", None, 1000])
def test_clocks_that_are_none(wrong: Any) -> None:
    with pytest.raises(ValueError, match="clock_ghz cannot be"):
        us.Machine.grid(1, 1, 2).replace(clock_ghz=wrong)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("l1", -1),
        ("l1", "32 potatoes"),
        ("l1", None),
        ("l1", 0),
        ("l1", 32 * 1024 + 64),
        ("l1", "64 MiB"),  # larger than L2
        ("l2", 1024),  # smaller than L1
        ("llc", 2**50),
        ("llc_ways", 0),
        ("llc_ways", 1.5),
        ("llc_ways", "8"),
        ("l2_ways", 2**40),
    ],
)
def test_caches_that_are_none(field: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"caches"):
        us.Machine.grid(1, 1, 2).replace(**{f"caches__{field}": wrong})


def test_smt_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="multiple of smt=2"):
        us.Machine.grid(1, 1, 3, smt=2)
    with pytest.raises(ValueError, match="several cache domains"):
        us.Machine.grid(2, 1, 3, smt=2)  # CPUs 2 and 3 would be of one core and of two nodes


@pytest.mark.parametrize("name", ["costs__locks", "caches__l4", "cost__lock", "colour"])
def test_replacing_what_is_not_there(name: str) -> None:
    with pytest.raises(TypeError, match="has no field"):
        us.Machine.grid(1, 1, 2).replace(**{name: 1})


def test_replacing_says_so() -> None:
    before = us.Machine.amd_16core_2010()
    after = before.replace(costs__memory=200, name="slow", smt=2)
    assert (after.costs.memory, after.name, after.smt) == (200, "slow", 2)
    assert after.costs.sources["memory"] == "given"
    assert after.costs.sources["lock"] == before.costs.sources["lock"]
    assert before.costs.memory != 200
    assert after != before


def test_a_file_keeps_all(machine: us.Machine, tmp_path: Path) -> None:
    machine.to_json(tmp_path / "m.json")
    back = us.Machine.from_json(tmp_path / "m.json")
    for field in fields(machine):
        assert getattr(back, field.name) == getattr(machine, field.name), field.name
    assert back.costs.sources == machine.costs.sources


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda r: r.update(format="else"), "expected an object with format"),
        (lambda r: r.pop("smt"), "lacks 'smt'"),
        (lambda r: r["costs"].pop("lock"), "lock"),
        (lambda r: r["costs"].update(lock=-1), r"costs\.lock cannot be -1"),
        (lambda r: r["caches"].update(l1="many"), r"caches\.l1 cannot be"),
        (lambda r: r.update(cpu_node=[0, 2]), "numbered"),
        (lambda r: r.update(costs=5), "wrong kind"),
    ],
)
def test_files_that_are_none(change: Any, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    us.Machine.grid(1, 1, 2).to_json(path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=complaint) as caught:
        us.Machine.from_json(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"3"])
def test_files_that_are_not_even_that(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"m\.json"):
        us.Machine.from_json(path)


def test_copies_are_equal(machine: us.Machine) -> None:
    assert copy.deepcopy(machine) == machine == pickle.loads(pickle.dumps(machine))
    assert hash(pickle.loads(pickle.dumps(machine))) == hash(machine)


def test_what_is_shown(machine: us.Machine) -> None:
    assert "\n" not in repr(machine) + repr(machine.costs) + repr(machine.caches)
    shown = machine._repr_html_()
    assert all(f"<td>{name}</td>" in shown for name in COST_NAMES)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="expected host, amd_16core_2010"):
        us.Machine.profile("pdp_11")


def test_the_host_is_this_machine() -> None:
    host, native = us.Machine.host(), us.Topology.native()
    assert (host.cpus, host.nodes, host.domains) == (native.cpus, native.nodes, native.domains)
    assert host.costs == us.Machine.server_2026().costs
    assert "not calibrated" in host.name
    assert "calibrate()" in host.notes


@pytest.fixture(scope="module")
def measured() -> us.Machine:
    return us.Machine.calibrate(seconds=0.2, save=False)


def test_what_is_measured_is_in_order(measured: us.Machine) -> None:
    """Order only: how fast this machine is, and how busy, is nobody's rule."""
    c = measured.costs
    for name in COST_NAMES:
        assert getattr(c, name) > 0, name
    assert c.l2_hit <= c.llc_hit <= c.memory <= c.memory_far
    assert c.line_domain <= c.line_node <= c.line_far
    assert c.invalidate_domain <= c.invalidate_node <= c.invalidate_far
    assert c.atomic <= c.lock
    assert measured.clock_ghz > 0


def test_what_is_measured_says_so(measured: us.Machine) -> None:
    assert measured.name == "host"
    for name, source in measured.costs.sources.items():
        assert source.startswith(("measured: ", "not measured: ")), name
    for name in ("instruction", "llc_hit", "memory", "lock", "page_fault", "context_switch"):
        assert measured.costs.sources[name].startswith("measured: ")
    assert " rounds, " in measured.notes


def test_not_saving_leaves_nothing(measured: us.Machine) -> None:
    from unislab import host

    assert not host.saved_path().exists()


def test_the_host_has_the_costs_that_were_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    from unislab import calibrate, host

    # One sample a probe: what is tested is the file, not the figures.
    monkeypatch.setattr(calibrate.Probe, "run", lambda probe: float(len(probe.key)))
    monkeypatch.setattr(calibrate, "_provider_ns", lambda: 100.0)
    made = us.Machine.calibrate(seconds=0.001)
    found = us.Machine.host()
    assert found.costs == made.costs != us.Machine.server_2026().costs
    assert found.costs.sources == made.costs.sources
    assert (found.name, found.clock_ghz) == ("host", made.clock_ghz)
    kept = json.loads(host.saved_path().read_text())["calibration"]
    assert {"cpu", "date", "kernel", "rounds", "median_ns", "lower_quartile_ns"} <= set(kept)
    assert kept["median_ns"]["memory"] == len("memory")
    assert str(host.saved_path()) in found.notes


def test_costs_come_out_in_order_whatever_was_measured() -> None:
    from unislab import calibrate

    keys = "cycle instruction atomic lock l1 l2 llc memory line_domain invalidate_domain handover"
    keys += " zero fault switch wake arrive provider"
    samples = {key: [1.0] for key in keys.split()} | {"l1": [9.0], "llc": [3.0], "memory": [2.0]}
    c = calibrate.costs_of(samples, us.Machine.server_2026().caches, 1)
    assert 0 < c.l2_hit <= c.llc_hit <= c.memory <= c.memory_far
    assert all(getattr(c, name) > 0 for name in COST_NAMES)
    assert c.smt_slowdown == 100  # one thread a core


def test_a_lower_quartile_counts() -> None:
    from unislab import calibrate

    keys = "cycle instruction atomic lock l1 l2 memory zero fault switch provider"
    samples = {key: [1.0] for key in keys.split(" ")} | {
        "l1": [1.0],
        "llc": [900.0, 11.0, 500.0, 21.0],
    }
    c = calibrate.costs_of(samples, us.Machine.server_2026().caches, 1)
    assert c.llc_hit == 21 - 1  # the second of four, less an L1 hit


@pytest.mark.parametrize("wrong", [0, -1, "10", None, math.nan])
def test_no_time_to_measure(wrong: Any) -> None:
    with pytest.raises(ValueError, match="seconds cannot be"):
        us.Machine.calibrate(seconds=wrong, save=False)


@pytest.mark.parametrize(
    "wrong",
    [
        ("nothing", 0, 0, 4096, 1),
        ("cycle", 5000, 0, 4096, 1),
        ("chase", 0, 0, 0, 1),
        ("chase", 0, 0, -4096, 1),
        ("chase", 0, 0, 2**40, 1),
        ("cycle", 0, 0, 4096, 0),
    ],
)
def test_probes_that_are_none(wrong: Any) -> None:
    from unislab import _native

    with pytest.raises(ValueError, match="probe"):
        _native._probe(*wrong)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command ``unislab machine`` in this process: exit code, output, complaint."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            cli.main(["machine", *arguments])
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return call


def test_the_command_lists_machines(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = command()
    assert (code, err) == (0, "")
    assert all(name in out for name in (*us.Machine.profiles(), "host"))
    assert [row["machine"] for row in json.loads(command("--json")[1])] == [*SHAPES, "host"]


def test_the_command_shows_one(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    made = us.Machine.dell_r910_2010()
    code, out, _err = command("dell_r910_2010")
    assert code == 0
    assert all(source in out for source in made.costs.sources.values())
    _code, text, _err = command("dell_r910_2010", "--json")
    (tmp_path / "m.json").write_text(text)
    assert us.Machine.from_json(tmp_path / "m.json") == made
    assert command(str(tmp_path / "m.json"))[0] == 0


def test_the_command_complains(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = command("pdp_11")
    assert (code, out) == (2, "")
    assert "pdp_11" in err and "amd_16core_2010" in err and err.count("\n") == 1
    code, _out, err = command("amd_16core_2010", "--calibrate")
    assert code == 2 and "--calibrate" in err


def test_the_command_calibrates(
    command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unislab import calibrate, host

    monkeypatch.setattr(calibrate.Probe, "run", lambda probe: float(len(probe.key)))
    monkeypatch.setattr(calibrate, "_provider_ns", lambda: 100.0)
    code, out, _err = command("--calibrate", "--seconds", "0.01")
    assert code == 0 and "measured: " in out
    assert host.saved_path().is_file()


def test_a_scripted_machine_has_no_probes() -> None:
    from unislab import _model

    with pytest.raises(ValueError, match="no probe"):
        _model._probe("cycle", 0, 0, 4096, 1)


@pytest.mark.parametrize("field", ["name", "notes"])
def test_texts_of_a_machine_are_texts(field: str) -> None:
    with pytest.raises(TypeError, match=f"{field} cannot be 5: expected text"):
        us.Machine.amd_16core_2010().replace(**{field: 5})


def test_writing_says_which_place_is_wrong(tmp_path: Path) -> None:
    machine = us.Machine.amd_16core_2010()
    with pytest.raises(IsADirectoryError, match="is a folder: expected the name of a file"):
        machine.to_json(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no folder .*absent to write m.json in"):
        machine.to_json(tmp_path / "absent" / "m.json")


def test_an_empty_file_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text("")
    with pytest.raises(ValueError, match="expected JSON"):
        us.Machine.from_json(path)


def test_an_endless_workload_wants_a_duration() -> None:
    endless = us.workloads.tcp_rr(streams=2, cpus=2, transactions=None)
    for machine in (None, us.Machine.grid(1, 1, 2)):
        with pytest.raises(ValueError, match="never ends: give a duration"):
            us.run(endless, "slub", machine=machine)
        with pytest.raises(ValueError, match="never ends: give a duration"):
            us.compare(endless, ["slub", "slab"], machine=machine)


def test_a_timeline_wants_a_modelled_machine_and_a_period() -> None:
    with pytest.raises(ValueError, match="only a modelled machine keeps one; give machine="):
        us.run(us.workloads.pair(), "slub", timeline="1 ms")
    with pytest.raises(ValueError, match="timeline=0: expected more than 0"):
        us.run(us.workloads.pair(), "slub", machine=us.Machine.grid(1, 1, 1), timeline=0)


def test_why_wants_a_result() -> None:
    result = us.run(us.workloads.pair(), "slub", machine=us.Machine.grid(1, 1, 1))
    with pytest.raises(TypeError, match="other cannot be 'slab': expected a Result"):
        result.why("slab")  # type: ignore[arg-type]
