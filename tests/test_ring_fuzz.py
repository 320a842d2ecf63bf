"""The fuzz target of the local queues, under the sanitizers, on programs made from a seed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(source_tree: Path, folder: Path, machine: str) -> Path:
    """The target with its own main function and the machine layer of one machine."""
    built = folder / f"fuzz_ring_{machine}"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    core = source_tree / "csrc/machine"
    sources = [source_tree / "tests/fuzz/fuzz_ring.c", *core.glob("*.c")]
    sources += (core / machine).glob("*.c")
    include = [f"-I{source_tree / folder}" for folder in ("csrc", "csrc/include", "tests/c")]
    command = [*compiler, "-std=gnu11", "-O1", "-g", *SANITIZE, "-DUS_FUZZ_MAIN", "-DUS_CHECK"]
    command += [*(["-DUS_MODEL"] if machine == "model" else []), *include]
    subprocess.run([*command, "-o", str(built), *map(str, sources), "-pthread"], check=True)
    return built


@pytest.mark.once
@pytest.mark.parametrize(("machine", "modes"), [("native", ["1", "0"]), ("model", ["1"])])
def test_seeded_programs(machine: str, modes: list[str], source_tree: Path, tmp_path: Path) -> None:
    """Every mode of the queues does what the model of tests/c/ring_model.h does."""
    program = build(source_tree, tmp_path, machine)
    for mode in modes:
        # A preloaded sanitizer, as in `make sanitize`, is the parent's.
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        environment["UNISLAB_RSEQ"] = mode
        done = subprocess.run(
            [str(program), "1", "400"], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
