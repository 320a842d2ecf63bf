"""Cut the shipped traces out of whole recordings.

    python tools/cut_datasets.py RECORDINGS [--output python/unislab/data]

RECORDINGS is a folder with ``hackbench.trace.xz`` and the others.  Lines are kept as the kernel
printed them.  The steady ones are one piece between the first and the last quarter: the one that
the fewest life times cross at its two ends.  ``bursts`` keeps its whole length and is thinned by
objects: an object is kept with all its events, and with it those before and after it at its address
between which no free was seen, so that no life time changes.  ``fork.perf-script`` gives a small
piece for the tests.
"""

from __future__ import annotations

import argparse
import lzma
import re
import zlib
from pathlib import Path

import numpy as np

EVENTS = 60_000
PERF_EVENTS = 2_000
STEADY = ("hackbench", "tcp_rr", "fork", "files")
EVENT = re.compile(rb": (k\w+): .* ptr=(\S+)")


def read(path: Path) -> tuple[list[bytes], list[bytes]]:
    """Header lines and event lines."""
    lines = lzma.decompress(path.read_bytes()).splitlines(keepends=True)
    header = [line for line in lines if line.startswith(b"#")]
    return header, [line for line in lines if not line.startswith(b"#")]


def write(path: Path, note: str, header: list[bytes], events: list[bytes]) -> None:
    """The header, a comment that says what this is, the events."""
    text = b"".join([*header[:1], f"# {note}\n".encode(), *header[1:], *events])
    # A checksum of four bytes suffices, and no time stamp: the same input gives the same file.
    path.write_bytes(lzma.compress(text, check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {len(events)} events, {path.stat().st_size} bytes")


def life_times(events: list[bytes]) -> list[int]:
    """For each event the event that began what it belongs to.

    Allocations of one address without a free between them belong together, and the free that ends
    them.  A free of something older, or of NULL, stands alone.
    """
    began: dict[bytes, int] = {}
    first = []
    for number, line in enumerate(events):
        match = EVENT.search(line)
        assert match, line
        if match[1].endswith(b"free"):
            first.append(began.pop(match[2], number))
        else:
            first.append(began.setdefault(match[2], number))
    return first


def steady(events: list[bytes], wanted: int) -> tuple[int, list[bytes]]:
    """The first event and the events of a piece that few life times cross at its ends."""
    first = np.array(life_times(events))
    last = np.arange(len(events))
    np.maximum.at(last, first, np.arange(len(events)))
    starts = np.flatnonzero(first == np.arange(len(events)))
    ends = last[starts]

    def crossing(cut: int) -> int:
        return int(np.count_nonzero((starts < cut) & (ends >= cut)))

    spare = len(events) - wanted
    begin = min(
        range(spare // 4, 3 * spare // 4, 500), key=lambda at: crossing(at) + crossing(at + wanted)
    )
    return begin, events[begin : begin + wanted]


def thin(events: list[bytes], wanted: int) -> list[bytes]:
    """Whole life times, drawn by a checksum, until they make up the wanted share of the events."""
    first = life_times(events)
    limit = wanted * 2**32 // len(events)
    return [
        line
        for line, began in zip(events, first, strict=True)
        if zlib.crc32(began.to_bytes(4, "little")) < limit
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", type=Path, help="folder with the whole recordings")
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--output", type=Path, default=root / "python/unislab/data")
    parser.add_argument("--tests", type=Path, default=root / "tests/data")
    options = parser.parse_args()
    for name in STEADY:
        header, events = read(options.recordings / f"{name}.trace.xz")
        first, piece = steady(events, EVENTS)
        note = (
            f"unislab {name}: events {first} to {first + len(piece) - 1} of {len(events)} recorded"
        )
        write(options.output / f"{name}.trace.xz", note, header, piece)
    header, events = read(options.recordings / "bursts.trace.xz")
    piece = thin(events, EVENTS)
    note = f"unislab bursts: all events of some objects, {len(piece)} of {len(events)} recorded"
    write(options.output / "bursts.trace.xz", note, header, piece)
    header, events = read(options.recordings / "fork.perf-script.xz")
    piece = events[len(events) // 2 :][:PERF_EVENTS]
    (options.tests / "fork.perf-script.xz").write_bytes(
        lzma.compress(b"".join(piece), preset=9 | lzma.PRESET_EXTREME)
    )


if __name__ == "__main__":
    main()
