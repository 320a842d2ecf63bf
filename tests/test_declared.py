"""What the core declares to a modelled CPU against the memory that it really touches.

``tests/c/test_declared.c`` runs single operations and prints what each declared; valgrind's lackey
traces every access of the same run, and two stores to a marker cut an operation out of the trace.
Lines of 64 bytes are compared, in everything that an allocator keeps; stacks, code, constants and
what the model keeps beside it are left out.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import unislab as us

pytestmark = [pytest.mark.once, pytest.mark.every_policy]

LINE = 64
OP = struct.Struct("=16sQQ")
DECLARATION = struct.Struct("=QII")
READ, PREFETCH = 0, 3  # enum us_access
FOLDER = Path(__file__).resolve().parent / "c"


@dataclass
class Lines:
    """Lines that an operation touched or declared, and those of them that were written."""

    all: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    where: dict[int, str] = field(default_factory=dict)

    def add(self, address: int, size: int, written: bool) -> None:
        lines = range(address // LINE, (address + size - 1) // LINE + 1)
        self.all.update(lines)
        if written:
            self.written.update(lines)


@dataclass
class Op:
    """One operation, as it declared itself."""

    name: str
    instructions: int
    lines: Lines


@dataclass
class Printed:
    """What the program printed."""

    marker: int
    ranges: list[tuple[int, int, str]]  # first line, one past the last, name
    ops: list[Op]

    def within(self, line: int) -> str | None:
        """Name of the range that holds a line."""
        at = bisect_right(self.ranges, (line, 1 << 64, "")) - 1
        return self.ranges[at][2] if at >= 0 and line < self.ranges[at][1] else None


def read_ops(raw: bytes) -> Iterator[Op]:
    """The file that the program wrote: struct op, and struct declaration as often as it says."""
    at = 0
    while at < len(raw):
        name, instructions, n = OP.unpack_from(raw, at)
        op = Op(name.rstrip(b"\0").decode(), instructions, Lines())
        at += OP.size
        for base, size, access in DECLARATION.iter_unpack(raw[at : at + n * DECLARATION.size]):
            if access != PREFETCH:  # no access of its own
                op.lines.add(base, size, access != READ)
        at += n * DECLARATION.size
        yield op


def read_printed(text: str, raw: bytes) -> Printed:
    out = Printed(0, [], list(read_ops(raw)))
    for line in text.splitlines():
        words = line.split()
        if line.startswith("marker "):
            out.marker = int(words[1], 16)
        elif line.startswith("range "):
            base, size = int(words[2], 16), int(words[3], 16)
            out.ranges.append((base // LINE, (base + size - 1) // LINE + 1, words[1]))
    out.ranges.sort()
    return out


def read_trace(trace: Path, marker: int) -> Iterator[Lines]:
    """The accesses between each store to the marker and the next, in turn."""
    store = f" S {marker:08x},4"
    inside: Lines | None = None
    code = ""
    with trace.open() as lines:
        for line in lines:
            if line.startswith(store):
                if inside is not None:
                    yield inside
                inside = Lines() if inside is None else None
            elif inside is None:
                continue
            elif line[0] == "I":
                code = line[3:].split(",")[0]
            elif line[0] == " " and line[1] in "LSM":
                address, size = line[3:].split(",")
                inside.add(int(address, 16), int(size), line[1] != "L")
                if DEV:
                    inside.where.setdefault(int(address, 16) // LINE, code)


DEV = bool(os.environ.get("UNISLAB_DECLARED_WHERE"))


@pytest.fixture(scope="module")
def program() -> Path:
    """The program, built."""
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed: memory cannot be traced")
    if os.environ.get("UNISLAB_SANITIZE"):
        pytest.skip("memory is traced without sanitizers")
    path = FOLDER.parents[1] / "build/ctest/model/test_declared"
    target = os.path.relpath(path, FOLDER)
    done = subprocess.run(["make", "-C", FOLDER, target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def run(program: Path, folder: Path, policy: str, size: int) -> tuple[Printed, list[Lines]]:
    """The operations of a policy, as they declared themselves and as they were traced."""
    trace, file = folder / "trace", folder / "ops"
    command = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]
    command += [f"--log-file={trace}", str(program), policy, str(size), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = read_printed(done.stdout, file.read_bytes())
    traced = list(read_trace(trace, printed.marker))
    trace.unlink()
    return printed, traced


@pytest.mark.parametrize(("policy", "size"), [(p, 256) for p in us.policies()])
def test_what_is_declared_is_what_is_touched(
    program: Path, tmp_path: Path, policy: str, size: int
) -> None:
    printed, traced = run(program, tmp_path, policy, size)
    assert len(printed.ops) == len(traced) > 0
    wrong: list[str] = []
    for number, (op, touched) in enumerate(zip(printed.ops, traced, strict=True)):
        for what, lines in {
            "touched, not declared": touched.all - op.lines.all,
            "written, not declared as written": touched.written - op.lines.written,
            "declared, not touched": op.lines.all - touched.all,
            "declared as written, not written": op.lines.written - touched.written,
        }.items():
            for line in sorted(lines):
                name = printed.within(line)
                if name:
                    wrong.append(
                        f"{number} {op.name}: {what}: {name} {line * LINE:x}"
                        f" {touched.where.get(line, '')}"
                    )
    assert not wrong, f"{len(wrong)} lines:\n" + "\n".join(wrong[:50])
