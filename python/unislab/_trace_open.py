"""Where the text of a trace comes from: files, pipes and file objects, compressed or not."""

from __future__ import annotations

import bz2
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO

import zstandard

TraceSource = str | os.PathLike[str] | BinaryIO | TextIO

PIECE = 1 << 20  # bytes of text handed to the reader at a time
COMPRESSED_PIECE = 1 << 16  # small, because it may unpack to a thousand times its size
SHOWN = 120  # characters of a line that an error repeats

_DECOMPRESSORS: list[tuple[bytes, str, Callable[[], Any]]] = [
    (b"\x1f\x8b", "gzip", lambda: zlib.decompressobj(zlib.MAX_WBITS | 16)),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMADecompressor),
    (b"\x28\xb5\x2f\xfd", "zstd", lambda: zstandard.ZstdDecompressor().decompressobj()),
    (b"BZh", "bzip2", bz2.BZ2Decompressor),
]

_BINARY: list[tuple[bytes, str, str]] = [
    (b"PERFILE2", "a binary perf recording", "print it as text: perf script -i {path} > trace.txt"),
    (b"2ELIFREP", "a binary perf recording", "print it as text: perf script -i {path} > trace.txt"),
    (
        b"\x17\x08\x44tracing",
        "a binary trace-cmd recording",
        "print it as text: trace-cmd report -i {path} > trace.txt",
    ),
    (b"PK\x03\x04", "a zip archive", "a saved trace is read by Trace.load({path!r})"),
]


class TraceFormatError(ValueError):
    """A file that is no printed kernel trace, or a line in it that is no event.

    Attributes
    ----------
    path : str
        Name of the file, ``<stdin>``, or the name of the file object.
    line_number : int or None
        Line from 1; None where the whole file is meant.
    line : str or None
        Beginning of the line.
    problem : str
        What was found and what was expected, and what to do.
    """

    def __init__(self, path: str, line_number: int | None, line: str | None, problem: str) -> None:
        super().__init__(path, line_number, line, problem)
        self.path = path
        self.line_number = line_number
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        if self.line_number is None:
            return f"{self.path}: {self.problem}"
        return f"{self.path}, line {self.line_number}: found {self.line!r}, {self.problem}"


def shorten(line: bytes) -> str:
    """The beginning of a line as text that can be shown anywhere."""
    text = line.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def source_name(source: TraceSource) -> str:
    """What errors call the source."""
    if isinstance(source, str):
        return "<stdin>" if source == "-" else source
    if isinstance(source, os.PathLike):
        return os.fspath(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else f"<{type(source).__name__}>"


@contextmanager
def open_text(source: TraceSource) -> Iterator[Iterator[bytes]]:
    """Open a source and give the pieces of its text; the kind is told by content, not by name.

    Raises
    ------
    TraceFormatError
        It is empty, a binary recording, or compressed data that end early.
    FileNotFoundError, IsADirectoryError, PermissionError
        As ``open`` does.
    """
    name = source_name(source)
    if isinstance(source, str) and source == "-":
        if sys.stdin is None:
            raise TraceFormatError(name, None, None, "is closed; expected the text of a trace")
        yield _text_pieces(_bytes_reader(sys.stdin), name)
    elif isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            yield _text_pieces(file.read, name)
    else:
        yield _text_pieces(_bytes_reader(source), name)


def _bytes_reader(source: BinaryIO | TextIO) -> Callable[[int], bytes]:
    """The ``read`` of a file object, as bytes."""
    if isinstance(source, io.TextIOWrapper):
        source = source.buffer
    if not hasattr(source, "read"):
        raise TypeError(
            f"a trace is read from a path, '-' or a file object, not from {type(source).__name__}"
        )

    give = source.read

    def read(size: int) -> bytes:
        piece = give(size)
        return piece.encode() if isinstance(piece, str) else piece

    return read


def _text_pieces(read: Callable[[int], bytes], name: str) -> Iterator[bytes]:
    head = _read_head(read)
    for magic, kind, make in _DECOMPRESSORS:
        if head.startswith(magic):
            pieces = _unpack(read, head, kind, make, name)
            break
    else:
        pieces = _plain(read, head)
    # A decompressor may give its first text in small pieces: gather enough to see what it is.
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= 4096:
            break
    _check_text(head, name)
    yield head
    yield from pieces


def _read_head(read: Callable[[int], bytes]) -> bytes:
    """At least the length of a magic number, if there is as much; a pipe may give it in pieces."""
    head = b""
    while len(head) < 16 and (piece := read(COMPRESSED_PIECE - len(head))):
        head += piece
    return head


def _plain(read: Callable[[int], bytes], head: bytes) -> Iterator[bytes]:
    yield head
    while piece := read(PIECE):
        yield piece


def _unpack(
    read: Callable[[int], bytes], head: bytes, kind: str, make: Callable[[], Any], name: str
) -> Iterator[bytes]:
    """Unpack all streams of a file, one after the other, and insist that the last one ends."""
    unpacker = make()
    piece = head
    unpacked = 0
    try:
        while piece:
            text = unpacker.decompress(piece)
            unpacked += len(text)
            if text:
                yield text
            piece = b""
            if unpacker.eof:
                piece = unpacker.unused_data.lstrip(b"\0") or read(COMPRESSED_PIECE).lstrip(b"\0")
                if piece:
                    unpacker = make()
            else:
                piece = read(COMPRESSED_PIECE)
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise TraceFormatError(
            name, None, None, f"damaged {kind} data after {unpacked} bytes of text: {error}"
        ) from error
    if not unpacker.eof:
        raise TraceFormatError(
            name,
            None,
            None,
            f"the {kind} data end early, after {unpacked} bytes of text; the file was cut: "
            "copy it again, or unpack what there is and read that with lenient=True (--lenient)",
        )


def _check_text(head: bytes, name: str) -> None:
    """Refuse what is no text before the reader complains of its first line."""
    if not head.strip():
        raise TraceFormatError(
            name,
            None,
            None,
            "is empty; expected the text of ftrace, trace-cmd report or perf script",
        )
    for magic, kind, hint in _BINARY:
        if head.startswith(magic):
            raise TraceFormatError(
                name, None, None, f"is {kind}, expected text; {hint.format(path=name)}"
            )
    if b"\0" in head:
        raise TraceFormatError(
            name,
            None,
            None,
            f"is binary data (it begins with {head[:8]!r}), expected the text of ftrace, "
            "trace-cmd report or perf script, plain or packed by gzip, xz, zstd or bzip2",
        )
