"""What every test shares: settings, the line that says what is being tested, the source tree."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("MPLBACKEND", "Agg")

# No deadlines: a shared machine is slow now and then.  CI draws the same examples every time.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")
)


def pytest_report_header() -> str:
    """Which build of unislab is under test, and in which mode its per-CPU queues work."""
    try:
        import unislab
    except ImportError as error:
        return f"unislab: cannot be imported: {error}"
    return f"unislab: {unislab.build_info()}"


@pytest.fixture(scope="session")
def source_tree() -> Path:
    """The checkout that holds these tests."""
    return Path(__file__).resolve().parents[1]
