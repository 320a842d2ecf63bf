"""What files that are no trace get, and what lenient reading makes of them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

import unislab as us
from unislab import _native

GOOD = b"            bash-1       [000] .....     1.000001: kmalloc: ptr=0xa0 bytes_req=8\n"
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": lambda text: zstandard.ZstdCompressor().compress(text),
    "bzip2": bz2.compress,
}


def read(text: bytes, **options: object) -> us.Trace:
    return us.Trace.read(io.BytesIO(text), **options)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"hello", "'<task>-<pid> [<cpu>] <time>: <event>: ...'"),
        (b"  bash-1 [000] ..... kmalloc: ptr=0xa0 bytes_req=8", "a time and a colon after the CPU"),
        (b"  bash 1 1.000001: kmem:kmalloc: ptr=0xa0", "a CPU in brackets before the time"),
        (b"  bash 1 [000] 1.000001: kmem", "an event name and a colon after the time"),
        (b"  bash 1 [99999] 1.000001: kfree: ptr=0xa0", "a time and a colon after the CPU"),
        (b"  bash-1 [000] 1.5: kmalloc: bytes_req=8", "ptr=<hexadecimal address> or ptr=(null)"),
        (b"  bash-1 [000] 1.5: kmalloc: ptr=0xg0 bytes_req=8", "ptr=<hexadecimal address>"),
        (b"  bash-1 [000] 1.5: kmalloc: ptr=0xa00000000000000000 bytes_req=8", "ptr=<hexadecimal"),
        (b"  bash-1 [000] 1.5: kmalloc: ptr=(____ptrval____) bytes_req=8", "pointer hash was not"),
        (b"  bash-1 [000] 1.5: kmalloc: ptr=0xa0", "bytes_req=<number>"),
        (
            b"  bash-1 [000] 1.5: kmalloc: ptr=0xa0 bytes_req=8x",
            "a decimal number of at most 4 GiB",
        ),
        (b"  bash-1 [000] 1.5: kmalloc: ptr=0xa0 bytes_req=4294967296", "at most 4 GiB"),
        (b"  bash-1 [000] 1.5: kmalloc: ptr=0xa0 bytes_req=8 node=-2", "a node number"),
        (b"  bash-1 [000] 1.5: kmalloc: ptr=0xa0 bytes_req=8 node=x", "a node number"),
        (b"  bash-1 [000] 1.5: kmalloc: ptr=0xa0 bytes_req=8 accounted=maybe", "true or false"),
        (b"  bash 1 [000] 1.5: kmem:kfree:", "perf script -F +trace"),
    ],
)
def test_a_line_that_is_no_event(line: bytes, expected: str) -> None:
    with pytest.raises(us.TraceFormatError) as caught:
        read(GOOD + line + b"\n" + GOOD)
    error = caught.value
    assert isinstance(error, ValueError)
    assert expected in error.problem
    assert error.line_number == 2
    assert error.line == line.decode()
    assert error.path == "<BytesIO>"
    assert str(error).startswith("<BytesIO>, line 2: found ")

    trace = read(GOOD + line + b"\n" + GOOD, lenient=True)
    assert trace.skipped == 1
    assert trace.first_skipped is not None
    assert trace.first_skipped.line_number == 2
    assert expected in trace.first_skipped.problem
    assert trace.counts["allocs"] == 2


def test_long_and_odd_lines_are_shown_short() -> None:
    with pytest.raises(us.TraceFormatError) as caught:
        read(b"\x1b[31m\xff" + b"y" * 5000 + b"\n")
    assert caught.value.line is not None
    assert len(caught.value.line) <= 120
    assert caught.value.line.startswith("\\x1b[31m\\xff")


def test_a_frame_without_an_event_above_it() -> None:
    frame = b"\tffffffff81234567 kmem_cache_alloc+0x1a7 ([kernel.kallsyms])\n"
    with pytest.raises(us.TraceFormatError):
        read(b"# captured on: today\n" + frame)
    perf = GOOD.replace(b"-1      ", b"     1 ")
    assert read(perf + frame).counts["allocs"] == 1
    # ftrace prints "=> symbol" below an event, and nothing else.
    assert read(GOOD + b" => kmem_cache_alloc\n").counts["allocs"] == 1
    for line in (frame, b"   hello\n"):
        with pytest.raises(us.TraceFormatError):
            read(GOOD + line)


def test_a_line_cut_by_the_end_of_the_file() -> None:
    with pytest.raises(us.TraceFormatError, match="may have been cut") as caught:
        read(GOOD + GOOD[:60])
    assert caught.value.line_number == 2


def test_a_line_without_end() -> None:
    text = GOOD + b"z" * (3 << 20)
    with pytest.raises(us.TraceFormatError, match="at most 1 MiB"):
        read(text)
    trace = read(text + b"\n" + GOOD, lenient=True)
    assert (trace.skipped, trace.counts["allocs"]) == (1, 2)


@pytest.mark.parametrize("text", [b"", b"\n", b"  \r\n\n"])
def test_empty(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(text)
    with pytest.raises(us.TraceFormatError, match="is empty") as caught:
        us.Trace.read(path, lenient=True)
    assert caught.value.line_number is None
    assert str(caught.value).startswith(str(path))


def test_a_header_alone_is_a_trace_without_events() -> None:
    trace = read(b"# tracer: nop\n#\n")
    assert len(trace) == 0
    assert trace.counts["events"] == 0
    assert trace.describe().empty
    assert trace.duration == 0
    assert trace.implied_share == 0
    assert trace.format is None


@pytest.mark.parametrize(
    ("magic", "hint"),
    [
        (b"PERFILE2", "perf script -i rec.dat"),
        (b"2ELIFREP", "perf script -i rec.dat"),
        (b"\x17\x08Dtracing6\0", "trace-cmd report -i rec.dat"),
        (b"PK\x03\x04", "Trace.load('rec.dat')"),
        (b"\x7fELF\x02\x01\0", "is binary data"),
    ],
)
def test_binary_files(
    magic: bytes, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rec.dat").write_bytes(magic + bytes(200))
    Path("rec.dat.gz").write_bytes(gzip.compress(magic + bytes(200)))
    with pytest.raises(us.TraceFormatError) as caught:
        us.Trace.read("rec.dat", lenient=True)
    assert hint in caught.value.problem
    with pytest.raises(us.TraceFormatError):
        us.Trace.read("rec.dat.gz")


def test_lenient_reading_of_prose() -> None:
    with pytest.raises(us.TraceFormatError, match="holds no event"):
        read(b"Dear reader,\nthis is a letter.\n", lenient=True)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        us.Trace.read(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        us.Trace.read(tmp_path)
    with pytest.raises(TypeError, match="path, '-' or a file object"):
        us.Trace.read(42)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", PACK)
def test_packed_files(kind: str, tmp_path: Path) -> None:
    """The kind is told by content: the name says nothing."""
    path = tmp_path / "trace.txt"
    path.write_bytes(PACK[kind](GOOD * 30_000))
    assert us.Trace.read(path).counts["allocs"] == 30_000
    assert us.Trace.read(str(path)).counts["allocs"] == 30_000
    with path.open("rb") as file:
        assert us.Trace.read(file).counts["allocs"] == 30_000
    path.write_bytes(PACK[kind](GOOD * 2) + PACK[kind](GOOD * 3))
    assert us.Trace.read(path).counts["allocs"] == 5


@pytest.mark.parametrize("kind", PACK)
def test_packed_files_that_end_early(kind: str) -> None:
    packed = PACK[kind](GOOD + os.urandom(4096).hex().encode())
    for keep in (len(packed) // 2, len(packed) - 1, 17):
        with pytest.raises(us.TraceFormatError, match=f"the {kind} data end early"):
            read(packed[:keep])


@pytest.mark.parametrize("kind", ["gzip", "xz", "bzip2"])
def test_packed_files_that_are_damaged(kind: str) -> None:
    packed = bytearray(PACK[kind](GOOD + os.urandom(4096).hex().encode()))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(us.TraceFormatError, match=f"damaged {kind} data|end early"):
        read(bytes(packed))


def test_text_files_and_pipes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(GOOD)
    with path.open() as file:
        assert us.Trace.read(file).counts["allocs"] == 1

    class Drip(io.RawIOBase):
        """A pipe that gives a byte at a time."""

        def __init__(self, text: bytes) -> None:
            self.text = io.BytesIO(text)

        def read(self, size: int = -1) -> bytes:
            return self.text.read(1)

    for text in (GOOD, gzip.compress(GOOD), lzma.compress(GOOD)):
        assert us.Trace.read(Drip(text)).counts["allocs"] == 1


def test_standard_input() -> None:
    program = "import unislab as us; print(us.Trace.read('-').counts['allocs'])"
    for text in (GOOD * 3, lzma.compress(GOOD * 3)):
        done = subprocess.run(
            [sys.executable, "-c", program], input=text, capture_output=True, check=True
        )
        assert done.stdout.strip() == b"3"


def test_errors_travel_between_processes() -> None:
    with pytest.raises(us.TraceFormatError) as caught:
        read(GOOD + b"hello\n")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.line_number == 2


def test_reader_after_its_end() -> None:
    reader = _native.TraceReader()
    assert reader.error is None
    reader.feed(memoryview(GOOD))
    reader.feed(b"")
    columns = reader.finish()["columns"]
    assert len(columns["kind"]) == 1
    for call in (lambda: reader.feed(GOOD), reader.finish, lambda: reader.error):
        with pytest.raises(ValueError, match="finished"):
            call()
    with pytest.raises(TypeError):
        _native.TraceReader().feed("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        type(columns["kind"])()


def test_a_refused_reader_stays_refused() -> None:
    reader = _native.TraceReader()
    with pytest.raises(ValueError, match="line 1: expected"):
        reader.feed(b"hello\n")
    with pytest.raises(ValueError, match="line 1: expected"):
        reader.feed(GOOD)
    with pytest.raises(ValueError, match="line 1: expected"):
        reader.finish()
    assert reader.error[:2] == (1, b"hello")
