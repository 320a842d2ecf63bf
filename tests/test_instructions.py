"""The fast paths keep to their committed instruction counts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.once]


@pytest.fixture(scope="module")
def instructions(source_tree: Path):
    """The counting module of the benchmark."""
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed: instructions cannot be counted")
    if os.environ.get("UNISLAB_SANITIZE"):
        pytest.skip("instructions are counted without sanitizers")
    sys.path.insert(0, str(source_tree / "bench"))
    try:
        import instructions
    finally:
        sys.path.pop(0)
    return instructions


@pytest.fixture(scope="module")
def counts(instructions):
    """Counts of this build."""
    return instructions.count()


def test_fast_paths_keep_their_bounds(instructions, counts):
    """No fast path takes more instructions than the table for this compiler says."""
    table = json.loads(instructions.TABLE.read_text())
    if instructions.compiler() not in table:
        pytest.skip(f"no committed counts for {instructions.compiler()}")
    bounds = table[instructions.compiler()]
    assert set(bounds) == set(counts)
    above = {name: (n, bounds[name]) for name, n in counts.items() if n > bounds[name]}
    assert not above, f"(counted, bound): {above}"


@pytest.mark.parametrize("verb", ["alloc", "free"])
def test_list_statistics_cost_two_instructions(counts, verb):
    """Counting on a list's fast path costs at most two instructions."""
    assert counts[f"slub {verb}"] - counts[f"slub {verb} uncounted"] <= 2
