"""The C unit tests: each program of tests/c, on each machine it names, with and without rseq."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

FOLDER = Path(__file__).resolve().parent / "c"
SANITIZER = os.environ.get("UNISLAB_SANITIZE", "")
SKIPPED = 77  # CHECK_SKIPPED of check.h


def declared(source: Path, word: str, default: str) -> list[str]:
    """What the test file says in its comment line ``// word: ...``."""
    match = re.search(rf"^// {word}: *(.+)$", source.read_text(), re.MULTILINE)
    return (match[1] if match else default).split()


def cases() -> list[object]:
    """One parameter set a program × machine × optimisation level × mode of the per-CPU queues."""
    found = []
    for source in sorted(FOLDER.glob("test_*.c")):
        for machine in ("native", "model"):
            if declared(source, "machines", "both")[0] not in (machine, "both"):
                continue
            if machine == "model" and SANITIZER == "thread":
                continue  # the model's coroutines are one thread; TSan cannot follow their stacks
            modes = ["rseq", "fallback"] if machine == "native" else ["model"]
            if SANITIZER == "thread":
                modes = ["fallback"]  # TSan does not see the order that rseq makes
            for level in declared(source, "levels", "O2"):
                for mode in modes:
                    name = f"{source.stem}-{level}-{mode}"
                    found.append(pytest.param(source.stem, machine, level, mode, id=name))
    return found


@functools.cache
def build(program: str, machine: str, level: str) -> Path:
    """Build one program (the core only once) and return its path; fail with what make printed."""
    flags = declared(FOLDER / f"{program}.c", "flags", "")
    differs = [] if level == "O2" else [level]
    differs += [part for part in SANITIZER.split(",") if part]
    differs += [re.sub(r"\W+", "-", flag).strip("-") for flag in flags]
    folder = FOLDER.parents[1] / "build" / "-".join(["ctest", *differs])
    folder.mkdir(parents=True, exist_ok=True)
    make = ["flock", str(folder / ".lock"), "make", "-s", "-C", str(FOLDER)]
    make += [f"-j{os.environ.get('UNISLAB_JOBS') or os.cpu_count()}", f"BUILD={folder}"]
    make += [f"OPT={level}", f"SAN={SANITIZER}", f"DEFS={' '.join(flags)}"]
    target = folder / machine / program
    done = subprocess.run([*make, str(target)], capture_output=True, text=True, env=environment())
    if done.returncode:
        printed = done.stdout + done.stderr
        pytest.fail(f"{program} for {machine} does not build:\n{printed}", pytrace=False)
    return target


def environment(**more: str) -> dict[str, str]:
    """Ours, without the sanitizer's preload and without make's own variables."""
    ours = {
        k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "MAKEFLAGS", "MAKELEVEL")
    }
    return ours | more


@pytest.mark.parametrize(("program", "machine", "level", "mode"), cases())
def test_c_program(program: str, machine: str, level: str, mode: str) -> None:
    """The program's checks all hold; it says itself which did not."""
    rseq = {"rseq": {"UNISLAB_RSEQ": "1"}, "fallback": {"UNISLAB_RSEQ": "0"}}.get(mode, {})
    done = subprocess.run(
        [build(program, machine, level)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=240,
        env=environment(**rseq),
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    if done.returncode:
        pytest.fail(f"{program} ended with {done.returncode}:\n{done.stdout}", pytrace=False)


def test_there_are_c_programs() -> None:
    """An empty parameter list would pass unseen."""
    assert cases(), f"no test_*.c in {FOLDER}"
