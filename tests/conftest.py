"""What every test shares: settings, and allocators whose books are checked when the test ends.

Fixtures
--------
make
    ``make(policy, **keywords)`` opens an allocator.  When the test ends each one is checked:
    nothing live unless ``make.leaves(alloc, n)`` said so, counters that balance, accounts that add
    up, a clean validation unless ``make.misused(alloc)`` said otherwise.
policy, kind, debug
    Every registered policy, ``native`` and ``model``, without and with ``debug="F"``.
opened
    An allocator for each of those combinations.
scene
    ``scene(size, nodes=..., ...)`` sets a cache of Unified on a scripted machine (rules/scene.py);
    what was done and where everything is gets printed when the test fails.

Policies
--------
Every test that takes a policy runs over ``unified`` and ``slub`` in all its combinations. For every
other policy `make test` runs those marked ``every_policy``, each in one of its combinations of
machine and debug, which the names of test and policy choose; the rest of the product is marked
``slow`` and left to `make test-all`.  ``pytest -m '' -k NAME`` is the whole product of one policy.
"""

from __future__ import annotations

import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from rules.scene import Scene

    import unislab as us

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for `rules`
os.environ.setdefault("MPLBACKEND", "Agg")

# No deadlines: a shared machine is slow now and then.  CI draws the same examples every time.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")
)

SCENES = pytest.StashKey[list[Any]]()


def pytest_sessionstart() -> None:
    """The suite sends itself and its children ^C, which a shell's background job ignores."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Which build of unislab is under test, and in which mode its per-CPU queues work."""
    try:
        import unislab
    except ImportError as error:
        return f"unislab: cannot be imported: {error}"
    return f"unislab: {unislab.build_info()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test prints the scenes it had set."""
    report = yield
    if report.when == "call" and report.failed:
        for scene in item.stash.get(SCENES, []):
            try:
                report.sections.append(("scene", str(scene)))
            except Exception as error:  # the scene may be closed by now
                report.sections.append(("scene", f"cannot be printed: {error!r}"))
    return report


@pytest.fixture(scope="session")
def source_tree() -> Path:
    """The checkout that holds these tests."""
    return Path(__file__).resolve().parents[1]


class Maker:
    """Opens allocators and checks their books at the end."""

    def __init__(self) -> None:
        self.opened: list[us.Allocator] = []
        self._leaves: dict[int, int] = {}
        self._misused: set[int] = set()

    def __call__(self, policy: str = "unified", **keywords: Any) -> us.Allocator:
        """Open one; the address range is small, so that many may be open."""
        import unislab

        keywords.setdefault("address_range", "1 GiB")
        self.opened.append(unislab.Allocator(policy, **keywords))
        return self.opened[-1]

    def leaves(self, alloc: us.Allocator, n: int) -> None:
        """The test ends with n live objects in this allocator."""
        self._leaves[id(alloc)] = n

    def misused(self, alloc: us.Allocator) -> None:
        """The test makes mistakes that validate() names."""
        self._misused.add(id(alloc))

    def finish(self, *, check: bool) -> None:
        """Check and close all."""
        from rules.books import balance_all

        problems = []
        for alloc in self.opened:
            if alloc.closed:
                continue
            try:
                if check:
                    live = balance_all(alloc, misused=id(alloc) in self._misused)
                    expected = self._leaves.get(id(alloc), 0)
                    assert live == expected or id(alloc) in self._misused, (
                        f"{live} objects live at the end of the test, {expected} were declared"
                    )
            except AssertionError as error:
                problems.append(error)
            finally:
                alloc.close(force=True)
        if problems:
            raise problems[0]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Opens allocators that are checked and closed when the test ends."""
    maker = Maker()
    failed_before = request.session.testsfailed
    yield maker
    # After a failure in the test itself the books say nothing new.
    maker.finish(check=request.session.testsfailed == failed_before)


def registered() -> list[str]:
    """The policies of this build."""
    try:
        import unislab

        return list(unislab.policies())
    except (ImportError, AttributeError):
        return ["unified", "slub"]


#: What every combination of every test runs over.
WHOLE = ("unified", "slub")
#: Values of the fixtures of these names, among which the core of the other policies chooses.
MODES = {"kind": ["native", "model"], "debug": [None, "F"]}


def in_core(item: pytest.Item, params: dict[str, Any]) -> bool:
    """Is this the combination in which the test is run for a policy that is not of WHOLE?"""
    if item.get_closest_marker("every_policy") is None:
        return False
    drawn = zlib.crc32(f"{item.name.partition('[')[0]} {params['policy']}".encode())
    for name, values in MODES.items():
        if name in params and params[name] != values[drawn % len(values)]:
            return False
        drawn //= len(values)
    return True


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of the product of policies and tests to `make test-all`."""
    others = set(registered()) - set(WHOLE)
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if params.get("policy") in others and not in_core(item, params):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=registered())
def policy(request: pytest.FixtureRequest) -> str:
    """Every policy."""
    return request.param


@pytest.fixture(params=["native", "model"])
def kind(request: pytest.FixtureRequest) -> str:
    """This machine, and a scripted one."""
    return request.param


@pytest.fixture(params=[None, "F"], ids=["plain", "F"])
def debug(request: pytest.FixtureRequest) -> str | None:
    """Without and with consistency checks."""
    return request.param


@pytest.fixture
def opened(make: Maker, policy: str, kind: str, debug: str | None) -> us.Allocator:
    """An allocator of one node and two CPUs for each policy, machine and debug setting."""
    from rules.machines import place

    return make(policy, debug=debug, **place(kind))


@pytest.fixture
def scene(make: Maker, request: pytest.FixtureRequest) -> Callable[..., Scene]:
    """Sets a cache of Unified on a scripted machine; takes all objects back at the end."""
    from rules.machines import grid
    from rules.scene import Scene

    def set_scene(
        size: int = 64,
        *,
        nodes: int = 1,
        domains: int = 1,
        cpus: int = 2,
        debug: str | None = None,
        flags: tuple[str, ...] = (),
        policy: str = "unified",
        **tunables: Any,
    ) -> Scene:
        alloc = make(policy, machine=grid(nodes, domains, cpus), debug=debug)
        made = Scene(alloc, alloc.create_cache("scene", size, flags=flags, **tunables))
        request.node.stash.setdefault(SCENES, []).append(made)
        return made

    def take_back() -> None:
        for made in request.node.stash.get(SCENES, []):
            if not made.allocator.closed:
                with made.allocator.on_cpu(0):
                    made.cache.free_bulk(made.cache.live())

    request.addfinalizer(take_back)
    return set_scene
