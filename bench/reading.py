"""Reading a trace: decompressed text on one core."""

from __future__ import annotations

import io
import lzma
import time
from importlib import resources

import unislab as us
from figure import Figure, figure

ROUNDS = 9


def figures(rounds: int = ROUNDS) -> list[Figure]:
    """Read each shipped trace, decompressed beforehand, from memory."""
    out = []
    for name in us.datasets.names():
        path = resources.files("unislab").joinpath(f"data/{name}.trace.xz")
        text = lzma.decompress(path.read_bytes())
        text *= max(1, 30_000_000 // len(text))
        speeds = []
        for _ in range(rounds):
            start = time.process_time()
            us.Trace.read(io.BytesIO(text))
            speeds.append(len(text) / (time.process_time() - start) / 1e6)
        out.append(figure(f"reading {name}", speeds, "MB/s", at_least=200))
    return out
