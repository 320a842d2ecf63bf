"""The traces that come with the package are real, small, and what their description says."""

from __future__ import annotations

import lzma
import re
from importlib import resources
from itertools import pairwise

import pytest

import unislab as us

STEADY = ("hackbench", "tcp_rr", "fork", "files")
DATA = resources.files("unislab") / "data"


def test_names() -> None:
    assert set(us.datasets.names()) >= {*STEADY, "bursts"}


def test_size() -> None:
    assert sum(len(file.read_bytes()) for file in DATA.iterdir()) < 3_000_000


@pytest.mark.parametrize("name", [*STEADY, "bursts"])
def test_each(name: str) -> None:
    """Counts against a search of the text that knows nothing of the reader."""
    text = lzma.decompress((DATA / f"{name}.trace.xz").read_bytes()).decode()
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert header[0] == "# tracer: nop"
    assert header[1].startswith(f"# unislab {name}: ")
    trace = us.datasets.load(name)
    counts = trace.counts
    assert 50_000 <= counts["events"] <= 70_000
    assert counts["events"] == len(text.splitlines()) - len(header)
    assert counts["allocs"] == len(re.findall(r": (?:kmalloc|kmem_cache_alloc): ", text))
    assert counts["frees"] == len(re.findall(r": (?:kfree|kmem_cache_free): ", text))
    assert counts["frees_null"] == len(re.findall(r"free: .* ptr=0000000000000000", text))
    assert counts["lost_events"] == counts["other_events"] == 0
    assert trace.cpus == (0, 1)
    # A replay of it has something to do: most objects are freed within the trace.
    assert counts["frees_matched"] > counts["allocs"] / 2


def test_bursts_span_their_idle_gaps() -> None:
    trace = us.datasets.load("bursts")
    assert 38 < trace.duration < 40
    times = sorted(trace["time_ns"].tolist())
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps) > 1e9


@pytest.mark.parametrize("name", ["tcp-rr", "hackbensh"])
def test_a_wrong_name(name: str) -> None:
    nearest = {"tcp-rr": "tcp_rr", "hackbensh": "hackbench"}[name]
    with pytest.raises(ValueError, match=f"no dataset '{name}': did you mean '{nearest}'"):
        us.datasets.load(name)
