"""Signals: handlers that allocate, at any moment; Ctrl-C during a long run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np  # here: a handler cannot import it while it is being imported
import pytest
from rules.books import balance_all

import unislab as us

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
