"""The C unit tests: each program of tests/c, on each machine it names, with and without rseq."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

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


class Case(NamedTuple):
    """A program on a machine, at an optimisation level, in a mode of the per-CPU queues."""

    program: str
    machine: str
    level: str
    mode: str

    @property
    def folder(self) -> Path:
        """Where it is built: one core for all that agree in level and flags."""
        differs = [] if self.level == "O2" else [self.level]
        differs += [part for part in SANITIZER.split(",") if part]
        differs += [re.sub(r"\W+", "-", flag).strip("-") for flag in self.flags]
        return FOLDER.parents[1] / "build" / "-".join(["ctest", *differs])

    @property
    def flags(self) -> list[str]:
        return declared(FOLDER / f"{self.program}.c", "flags", "")

    @property
    def path(self) -> Path:
        return self.folder / self.machine / self.program


class Runs:
    """All programs that were asked for, built together and run as many at a time as there are CPUs.

    One make for each folder compiles on every CPU, where one for each program would leave most of
    them idle.  A program runs while the results of others are awaited.
    """

    def __init__(self, cases: Iterable[Case]) -> None:
        jobs = int(os.environ.get("UNISLAB_JOBS") or os.cpu_count() or 1)
        self._jobs = jobs
        self._pool = ThreadPoolExecutor(jobs)
        self._built: dict[Path, str] = {}
        cases = sorted(cases, key=lambda case: case.folder)
        for folder, group in itertools.groupby(cases, key=lambda case: case.folder):
            self._built[folder] = self._build(folder, list(group))
        self._done = {case: self._pool.submit(self._run, case) for case in cases}

    def _build(self, folder: Path, cases: list[Case]) -> str:
        """Build what a folder holds; returns what make printed when it failed."""
        folder.mkdir(parents=True, exist_ok=True)
        make = ["flock", str(folder / ".lock"), "make", "-s", "-k", "-C", str(FOLDER)]
        make += [f"-j{self._jobs}", f"BUILD={folder}", f"OPT={cases[0].level}", f"SAN={SANITIZER}"]
        make += [f"DEFS={' '.join(cases[0].flags)}", *sorted({str(case.path) for case in cases})]
        done = subprocess.run(make, capture_output=True, text=True, env=environment())
        return done.stdout + done.stderr if done.returncode else ""

    def _run(self, case: Case) -> subprocess.CompletedProcess[str]:
        rseq = {"rseq": {"UNISLAB_RSEQ": "1"}, "fallback": {"UNISLAB_RSEQ": "0"}}
        return subprocess.run(
            [case.path],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=240,
            env=environment(**rseq.get(case.mode, {})),
        )

    def result(self, case: Case) -> subprocess.CompletedProcess[str]:
        """What became of the program; fails with what make printed when it was not built."""
        printed = self._built[case.folder]
        if printed and not up_to_date(case):
            name = f"{case.program} for {case.machine}"
            pytest.fail(f"{name} does not build:\n{printed}", pytrace=False)
        return self._done[case].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def up_to_date(case: Case) -> bool:
    """A build of others failed; was this program made all the same?"""
    make = ["make", "-q", "-C", str(FOLDER), f"BUILD={case.folder}", f"OPT={case.level}"]
    make += [f"SAN={SANITIZER}", f"DEFS={' '.join(case.flags)}", str(case.path)]
    return subprocess.run(make, capture_output=True, env=environment()).returncode == 0


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The programs of the tests that were chosen."""
    wanted = [
        Case(*(item.callspec.params[name] for name in Case._fields))
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    made = Runs(dict.fromkeys(wanted))
    yield made
    made.close()


def environment(**more: str) -> dict[str, str]:
    """Ours, without the sanitizer's preload and without make's own variables."""
    ours = {
        k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "MAKEFLAGS", "MAKELEVEL")
    }
    return ours | more


@pytest.mark.timeout(900)  # the first one waits until all are built
@pytest.mark.parametrize(("program", "machine", "level", "mode"), cases())
def test_c_program(runs: Runs, program: str, machine: str, level: str, mode: str) -> None:
    """The program's checks all hold; it says itself which did not."""
    done = runs.result(Case(program, machine, level, mode))
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    if done.returncode:
        pytest.fail(f"{program} ended with {done.returncode}:\n{done.stdout}", pytrace=False)


def test_there_are_c_programs() -> None:
    """An empty parameter list would pass unseen."""
    assert cases(), f"no test_*.c in {FOLDER}"
