"""Signals: handlers that allocate, at any moment; Ctrl-C during a long run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np  # here: a handler cannot import it while it is being imported
import pytest
from rules.books import balance_all

import unislab as us

pytestmark = pytest.mark.every_policy

Make = Callable[..., us.Allocator]


@contextmanager
def every_millisecond(handler: Callable[[], None]) -> Iterator[list[int]]:
    """Run a handler about a thousand times a second; yields the number of calls so far."""
    calls = [0]
    inside = [False]

    def called(number: int, frame: FrameType | None) -> None:
        if inside[0]:  # Python runs a handler within a handler, too
            return
        inside[0] = True
        calls[0] += 1
        handler()
        inside[0] = False

    before = signal.signal(signal.SIGALRM, called)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        yield calls
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_handler_may_allocate_and_free(make: Make, policy: str, debug: str | None) -> None:
    alloc = make(policy, debug=debug)
    cache = alloc.create_cache("nested", 64)
    kept: list[int] = []

    def handler() -> None:
        if len(kept) > 200:
            cache.free_bulk(kept)
            kept.clear()
        kept.extend(int(a) for a in np.asarray(cache.alloc_bulk(3)))
        kept.append(cache.alloc_address())
        cache.free(kept.pop(0))

    deadline = time.monotonic() + 30
    with every_millisecond(handler) as calls:
        while calls[0] < 150 and time.monotonic() < deadline:
            got = [cache.alloc_address() for _ in range(50)]
            together = cache.alloc_bulk(500)
            for address in got:
                cache.free(address)
            cache.free_bulk(together)
    assert calls[0] >= 150
    assert balance_all(alloc) == len(kept)
    cache.free_bulk(kept)


def test_a_handler_may_look_and_shrink(make: Make, policy: str) -> None:
    alloc = make(policy)
    cache = alloc.create_cache("looked", 64)
    seen: list[bool] = []

    def handler() -> None:
        seen.append(cache.validate().ok)
        if len(seen) % 5 == 0:
            alloc.shrink()

    deadline = time.monotonic() + 30
    with every_millisecond(handler):
        while len(seen) < 50 and time.monotonic() < deadline:
            cache.free_bulk(cache.alloc_bulk(700))
    assert len(seen) >= 50
    assert all(seen)


def interrupt_soon(after: float) -> threading.Timer:
    """Ctrl-C after a while."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


@pytest.mark.filterwarnings("ignore:.*CPU:UserWarning")  # one CPU: the trace folds
def test_ctrl_c_ends_a_long_run_and_leaves_the_allocator_consistent(
    make: Make, policy: str
) -> None:
    alloc = make(policy)
    trace = us.datasets.load("tcp_rr")
    timer = interrupt_soon(0.7)
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            us.run(trace, policy=policy, allocator=alloc, min_time="120 s")
    finally:
        timer.cancel()
    assert time.monotonic() - started < 60  # it did not wait for min_time
    assert balance_all(alloc) == 0
    churned = alloc.create_cache("after", 64)
    churned.free_bulk(churned.alloc_bulk(1000))


def endless() -> us.Workload:
    """One pass of it takes years."""
    workload = us.Workload("endless")
    cache = workload.add_cache("endless", 64)
    workload.add_task(us.ops.repeat(2**40, us.ops.alloc(cache, 0), us.ops.free(0)))
    return workload


@pytest.mark.parametrize("end", ["close", "destroy"])
def test_a_handler_cannot_end_what_the_run_it_interrupts_is_on(
    make: Make, policy: str, end: str
) -> None:
    """It would wait for the run, and the run for it; it is told so, and the run goes on."""
    alloc = make(policy)
    said: list[str] = []

    def handler() -> None:
        if "endless" not in alloc.caches or not alloc.caches["endless"].stats().allocs:
            return  # it has not begun
        if len(said) == 3:
            raise KeyboardInterrupt
        try:
            if end == "close":
                alloc.close(force=True)
            else:
                alloc.caches["endless"].destroy(force=True)
        except RuntimeError as error:
            said.append(str(error))

    with pytest.raises(KeyboardInterrupt), every_millisecond(handler):
        us.run(endless(), allocator=alloc)
    assert len(said) == 3
    assert all(f"cannot {end} the" in text for text in said)
    assert balance_all(alloc) == 0


def test_ctrl_c_is_heard_while_closing_waits_for_a_run_in_another_thread(policy: str) -> None:
    source = f"""
        import os, signal, threading, time
        import unislab as us
        alloc = us.Allocator({policy!r}, address_range="1 GiB")
        workload = us.Workload("endless")
        cache = workload.add_cache("endless", 64)
        workload.add_task(us.ops.repeat(2**40, us.ops.alloc(cache, 0), us.ops.free(0)))
        threading.Thread(target=us.run, args=(workload,), kwargs={{"allocator": alloc}}).start()
        while "endless" not in alloc.caches or not alloc.caches["endless"].stats().allocs:
            time.sleep(0.01)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            alloc.close(force=True)
        except KeyboardInterrupt:
            assert not alloc.closed
            alloc.kfree(alloc.kmalloc(10))
            os.write(1, b"heard")
        os._exit(0)
    """
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "heard"), done.stderr
