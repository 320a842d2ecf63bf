"""The fuzz target of the trace reader, under the sanitizers, on mutations of the samples.

Without libFuzzer, so that it runs wherever there is a compiler; ``tests/fuzz/fuzz_trace.c`` says
how to let libFuzzer go further.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def program(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with its own main function."""
    built = tmp_path_factory.mktemp("fuzz") / "fuzz_trace"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    sources = [source_tree / "tests/fuzz/fuzz_trace.c"]
    sources += sorted((source_tree / "csrc/work").glob("trace_*.c"))
    command = [*compiler, "-std=gnu11", "-O1", "-g", *SANITIZE, "-DUS_FUZZ_MAIN"]
    command += [f"-I{source_tree / 'csrc'}", "-o", str(built), *map(str, sources)]
    subprocess.run(command, check=True)
    return built


def run(program: Path, seed: int, rounds: int, source_tree: Path) -> None:
    samples = sorted((source_tree / "tests/data/traces").glob("*.txt"))
    command = [str(program), str(seed), str(rounds), *map(str, samples)]
    # A preloaded sanitizer, as in `make sanitize`, is the parent's.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.once
@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_samples(program: Path, seed: int, source_tree: Path) -> None:
    run(program, seed, 1500, source_tree)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 105))
def test_more_mutated_samples(program: Path, seed: int, source_tree: Path) -> None:
    run(program, seed, 30_000, source_tree)
