"""A modelled run is the same to the last counter, wherever the system puts its memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unislab

pytestmark = pytest.mark.once

DIGEST = Path(__file__).resolve().with_name("model_digest.py")


def lines(*policies: str, before: tuple[str, ...] = (), **environment: str) -> list[str]:
    """What a process of its own prints."""
    done = subprocess.run(
        [*before, sys.executable, str(DIGEST), *policies],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_same(first: list[str], second: list[str]) -> None:
    """A run a line: the first that differs is shown alone."""
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert one == other


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return lines()


def test_two_processes_agree(expected: list[str]) -> None:
    check_same(lines(), expected)


def test_the_layout_of_addresses_does_not_matter(expected: list[str]) -> None:
    setarch = shutil.which("setarch")
    if not setarch:
        pytest.skip("setarch, which switches address randomization off, is not here")
    if subprocess.run([setarch, "-R", "true"]).returncode:
        pytest.skip("the system does not let address randomization be switched off")
    check_same(lines(before=(setarch, "-R")), expected)


def test_environment_and_allocator_of_the_process_do_not_matter(expected: list[str]) -> None:
    other = lines(PYTHONHASHSEED="7", PYTHONMALLOC="malloc", UNISLAB_TEST_FILLER="x" * 20_011)
    check_same(other, expected)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["-O0", "-O1", "-O3"])
def test_the_compiler_does_not_matter(
    level: str, expected: list[str], tmp_path: Path, source_tree: Path
) -> None:
    """The package builds at -O2; a compiler that is told something else in the end does not."""
    package = tmp_path / "python"
    ours = Path(unislab.__file__).parent
    shutil.copytree(ours, package / "unislab", ignore=shutil.ignore_patterns("*.so"))
    shutil.copytree(source_tree / "csrc", tmp_path / "csrc")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(source_tree / name, tmp_path)
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" {level}\n')
    compiler.chmod(0o755)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    environment = os.environ | {"CC": str(compiler)}
    done = subprocess.run(build, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    check_same(lines(PYTHONPATH=str(package)), expected)
