"""Expiration in a thread of its own, as a handle that can be stopped."""

from __future__ import annotations

from typing import Self

from unislab.allocator_base import AllocatorBase

__all__ = ["Reaper"]


class Reaper:
    """A running reaper; ``stop()`` it, or use it as a context manager.

    An allocator has one: starting another ends it. Each handle stops its own reaper only.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator() as alloc, alloc.reaper("100 ms") as reaper:
    ...     reaper
    <Reaper every 0.1 s>
    """

    def __init__(self, allocator: AllocatorBase, period: int) -> None:
        self._allocator: AllocatorBase | None = allocator
        self._period = period
        self._number = allocator._reaper_start(period)

    @property
    def running(self) -> bool:
        """False once it was stopped, or ended by another one or with its allocator.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc, alloc.reaper("1 s") as first:
        ...     second = alloc.reaper("2 s")
        ...     first.running, second.running
        (False, True)
        """
        allocator = self._allocator
        if allocator is None or allocator.closed:
            return False
        return allocator._reaper_number() == self._number

    def stop(self) -> None:
        """Stop it and wait until it has; more than once is fine, and so is one that has ended.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.reaper("1 s").stop()
        """
        allocator, self._allocator = self._allocator, None
        if allocator is not None and not allocator.closed:
            allocator._reaper_stop(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"every {self._period / 1e9:g} s" if self.running else "stopped"
        return f"<Reaper {state}>"
