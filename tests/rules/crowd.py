"""Threads that work until they are told to stop, and report what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class Crowd:
    """``with Crowd(n, step): ...`` calls step(number) in n threads until the block ends.

    Leaving the block joins all within `limit` seconds; a thread that does not come back is a
    deadlock and fails the test, as does any exception in a thread.
    """

    def __init__(self, n: int, step: Callable[[int], None], *, limit: float = 60) -> None:
        self._stop = threading.Event()
        self._step = step
        self._limit = limit
        self.errors: list[BaseException] = []
        self.rounds = [0] * n
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"crowd-{i}", daemon=True)
            for i in range(n)
        ]

    def _work(self, number: int) -> None:
        try:
            while not self._stop.is_set():
                self._step(number)
                self.rounds[number] += 1
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(self._limit)
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        assert not stuck, f"threads did not come back: {stuck}"
        if error is None:
            assert not self.errors, self.errors
            assert all(self.rounds), f"some thread never finished a round: {self.rounds}"
