"""Threads, forks, looking at and changing an allocator under load: no deadlock, nothing lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import warnings
from collections.abc import Callable

import pytest
from rules.books import adds_up, balance_all, live_by_counters
from rules.crowd import Crowd
from rules.inside import queued
from rules.machines import CPUS, declared

import unislab as us

pytestmark = pytest.mark.every_policy

Make = Callable[..., us.Allocator]


def in_child(work: Callable[[], None], limit: float = 60) -> None:
    """Fork; the child works and leaves; it must come back in time and without an error."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # threads are running: that is the point
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    deadline = time.monotonic() + limit
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail("the child did not come back: deadlock after fork")
        time.sleep(0.005)
    assert os.waitstatus_to_exitcode(status) == 0


def churn(cache: us.Cache, n: int = 300) -> None:
    """Allocate and free n objects, singly and together."""
    cache.free_bulk(cache.alloc_bulk(n))
    for address in [cache.alloc_address() for _ in range(20)]:
        cache.free(address)


# ---- fork  ---------------------------------------------------------------------------------------


def test_a_child_goes_on_with_its_own_copy(make: Make, policy: str, debug: str | None) -> None:
    alloc = make(policy, debug=debug)
    cache = alloc.create_cache("forked", 64)
    got = [int(a) for a in cache.alloc_bulk(100)]
    us.raw.poke(got[0], b"before")

    def child() -> None:
        assert us.raw.peek(got[0], 6) == b"before"
        us.raw.poke(got[0], b"child!")
        churn(cache)
        assert balance_all(alloc) == 100
        cache.free_bulk(got)
        made = alloc.create_cache("born", 100)
        churn(made)
        thread = threading.Thread(target=churn, args=(made,))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        alloc.expire()
        alloc.shrink()
        assert balance_all(alloc) == 0
        alloc.close()

    in_child(child)
    assert us.raw.peek(got[0], 6) == b"before"
    assert balance_all(alloc) == 100
    cache.free_bulk(got)


def test_fork_while_threads_allocate(make: Make, policy: str, debug: str | None) -> None:
    alloc = make(policy, debug=debug)
    cache = alloc.create_cache("busy", 64)

    def child() -> None:
        # What the other threads had in hand stays out here; everything else works.
        churn(cache)
        adds_up(alloc.account())
        assert len(cache.live()) == live_by_counters(cache.stats(exact=True))
        alloc.shrink()
        check = cache.validate()
        assert check.ok, f"{check}"
        assert debug is None or check.unchecked == 0  # nothing is between a stock and its user
        # Calls that other threads were in do not hold up the end of a cache or of the allocator.
        cache.destroy(force=True)
        assert alloc.account()["reserved"] == 0
        alloc.close(force=True)

    with Crowd(3, lambda _: churn(cache)):
        for _ in range(6):
            in_child(child)
    assert balance_all(alloc) == 0


def test_a_child_of_a_child(make: Make, policy: str) -> None:
    alloc = make(policy)
    cache = alloc.create_cache("deep", 64)

    def grandchild() -> None:
        churn(cache)
        assert balance_all(alloc) == 0

    def child() -> None:
        churn(cache)
        in_child(grandchild)
        churn(cache)
        assert balance_all(alloc) == 0

    in_child(child)
    churn(cache)


def test_fork_with_a_reaper(make: Make) -> None:
    alloc = make("unified")
    cache = alloc.create_cache("reaped", 64)

    def child() -> None:
        cache.free_bulk(cache.alloc_bulk(200))
        deadline = time.monotonic() + 20
        while queued(cache) and time.monotonic() < deadline:
            time.sleep(0.01)
        # Helper threads are started again in the child.
        assert queued(cache) == 0

    with alloc.reaper("2 ms"):
        in_child(child)
        child()


# ---- threads  ------------------------------------------------------------------------------------


def test_threads_come_and_go(make: Make, policy: str, debug: str | None) -> None:
    alloc = make(policy, debug=debug)
    cache = alloc.create_cache("visited", 128)
    for _ in range(15):
        with_each_other = [threading.Thread(target=churn, args=(cache, 50)) for _ in range(8)]
        for thread in with_each_other:
            thread.start()
        for thread in with_each_other:
            thread.join(30)
            assert not thread.is_alive()
    assert balance_all(alloc) == 0


def test_objects_pass_from_thread_to_thread(make: Make, policy: str, debug: str | None) -> None:
    """Contents arrive as they were written."""
    alloc = make(policy, debug=debug)
    cache = alloc.create_cache("passed", 64)
    box: list[tuple[int, bytes]] = []
    lock = threading.Lock()

    def step(number: int) -> None:
        rng = random.Random()
        address = cache.alloc_address()
        word = rng.randbytes(16)
        us.raw.poke(address, word)
        with lock:
            box.append((address, word))
            taken = box.pop(rng.randrange(len(box)))
        assert us.raw.peek(taken[0], 16) == taken[1]
        cache.free(taken[0])

    with Crowd(4, step):
        time.sleep(0.3)
    assert not box
    assert balance_all(alloc) == 0


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_a_thread_that_changes_its_cpu_at_every_step(
    make: Make, policy: str, debug: str | None
) -> None:
    alloc = make(policy, debug=debug, topology=declared([0, 1]))
    cache = alloc.create_cache("moving", 64)

    def step(number: int) -> None:
        live: list[int] = []
        for i in range(10):
            with alloc.on_cpu(CPUS[(number + i) % 2]):
                live += [int(a) for a in cache.alloc_bulk(33, node=i % 3 - 1 if i % 3 else None)]
                cache.free_bulk(live[: 10 + i])
                live = live[10 + i :]
        cache.free_bulk(live)

    with Crowd(3, step):
        time.sleep(0.3)
    assert balance_all(alloc) == 0


# ---- under load  ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    ["stats", "validate", "account", "queues", "slabs", "live", "slabinfo", "shrink", "expire"],
)
def test_looking_under_load(make: Make, policy: str, debug: str | None, look: str) -> None:
    alloc = make(policy, debug=debug)
    cache = alloc.create_cache("watched", 64)
    kept = [int(a) for a in cache.alloc_bulk(10)]

    with Crowd(2, lambda _: churn(cache)):
        for _ in range(25):
            if look == "stats":
                stats = cache.stats(exact=True)
                assert all(value >= 0 for value in stats.values())
            elif look == "validate":
                report = cache.validate()
                assert report.ok, f"{report}"
                assert debug is None or report.unchecked == 0
            elif look == "account":
                a = cache.account()
                assert a["reserved"] == sum(
                    a[name] for name in ("live", "queued", "free_in_slabs", "waste")
                )
                assert a["live"] >= 10 * 64
            elif look == "live":
                assert set(kept) <= set(cache.live().tolist())
            elif look in ("queues", "slabs", "shrink"):
                getattr(cache, look)()
            else:
                getattr(alloc, look)()
    assert balance_all(alloc) == 10
    cache.free_bulk(kept)


def test_resizing_under_load(make: Make, debug: str | None) -> None:
    alloc = make("unified", debug=debug, topology=declared([0, 1][: len(CPUS)]))
    cache = alloc.create_cache("resized", 64)
    rng = random.Random(1)
    with Crowd(3, lambda _: churn(cache)):
        for _ in range(20):
            cache.tunables.cpu_queue_size = rng.choice([4, 8, 60, 120, 1000])
            cache.tunables.shared_queue_size = rng.choice([0, 600, 1000])
            cache.tunables.batch_size = rng.randrange(4, min(cache.tunables.queue_size, 60) + 1)
            if len(CPUS) > 1:
                cache.tunables.alien_queue_size = rng.choice([0, 10, 126])
    assert balance_all(alloc) == 0


def test_making_and_destroying_caches_under_load(
    make: Make, policy: str, debug: str | None
) -> None:
    alloc = make(policy, debug=debug)
    steady = alloc.create_cache("steady", 64)

    def step(number: int) -> None:
        churn(steady)
        if number == 0:
            mine = alloc.create_cache("mine", 96)
            churn(mine)
            mine.destroy()

    with Crowd(3, step):
        for i in range(15):
            made = alloc.create_cache(f"made-{i}", 200)
            churn(made)
            made.destroy()
    assert balance_all(alloc) == 0
    assert "mine" not in alloc.caches


def test_destroying_a_cache_in_use_is_refused_or_ends_its_calls(make: Make, policy: str) -> None:
    """Others' calls succeed, or say that the cache is gone; nothing crashes, nothing hangs."""
    for _ in range(5):
        alloc = make(policy)
        cache = alloc.create_cache("doomed", 64)
        gone = threading.Event()

        def step(number: int, cache: us.Cache = cache, gone: threading.Event = gone) -> None:
            try:
                churn(cache)
            except RuntimeError as error:
                assert "destroyed" in str(error)
                gone.set()

        with Crowd(2, step):
            time.sleep(0.01)
            cache.destroy(force=True)
            assert gone.wait(30)
        assert balance_all(alloc) == 0


def test_allocators_do_not_meet(make: Make, policy: str) -> None:
    allocs = [make(policy) for _ in range(4)]
    caches = [alloc.create_cache("own", 64) for alloc in allocs]
    with Crowd(4, lambda number: churn(caches[number])):
        for alloc in allocs:
            alloc.shrink()
    spans = []
    for alloc, cache in zip(allocs, caches, strict=True):
        got = cache.alloc_address()
        spans.append((got, alloc))
        with pytest.raises(us.CorruptionError):
            caches[allocs.index(alloc) - 1].free(got)
        cache.free(got)
    assert len({address for address, _ in spans}) == 4


def test_fork_while_another_thread_imports_what_it_needs(policy: str) -> None:
    """NumPy is imported by the first bulk call; a child could not wait for the end of that."""
    source = f"""
        import os, sys, threading, time
        import unislab as us
        alloc = us.Allocator({policy!r}, address_range="1 GiB")
        cache = alloc.create_cache("pair", 16)
        assert "numpy" not in sys.modules
        work = threading.Thread(target=lambda: cache.free_bulk(cache.alloc_bulk(10)))
        work.start()
        while "numpy" not in sys.modules:
            time.sleep(0)
        pid = os.fork()
        if pid == 0:
            cache.free_bulk(cache.alloc_bulk(10))
            os._exit(0)
        work.join()
        deadline = time.monotonic() + 60
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if not done:
            os.kill(pid, 9)
        alloc.close()
        sys.exit(0 if done and status == 0 else "the child did not come back")
    """
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_is_imported_when_needed_brings_no_half_of_a_hook() -> None:
    """os.register_at_fork: the halves before and after a fork run only if registered by then.

    A fork waits for an import under way, so nothing that such an import runs may register a lock
    that is taken before forks and released after them: it would be released without being taken.
    """
    source = """
        import os
        import unislab

        register, late = os.register_at_fork, []
        def registered(**hooks):
            late.extend(hooks.keys() & {"before", "after_in_parent"})
            register(**hooks)
        os.register_at_fork = registered
        import numpy
        import pandas
        assert not late, late
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["numpy", "pandas"])
def test_a_fork_waits_for_an_import_that_logs(name: str) -> None:
    """The import wants the lock of logging, which a fork holds: the wait comes before the lock."""
    source = f"""
        import os, sys, threading, types
        import unislab as us
        import logging, importlib.machinery, importlib.abc

        begun = threading.Event()
        class Slow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
            def find_spec(self, name, path, target=None):
                return importlib.machinery.ModuleSpec(name, self) if name == {name!r} else None
            def create_module(self, spec):
                return None
            def exec_module(self, module):
                begun.set()
                forking.wait()
                for i in range(2000):
                    logging.getLogger(f"made{{i}}")  # takes the lock
        sys.meta_path.insert(0, Slow())
        forking = threading.Event()
        thread = threading.Thread(target=__import__, args=({name!r},), daemon=True)
        thread.start()
        begun.wait()
        os.register_at_fork(before=forking.set)  # the newest runs first
        pid = os.fork()
        if pid == 0:
            __import__({name!r})
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        thread.join()
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
