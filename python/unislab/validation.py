"""What a detailed check of caches found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unislab.allocator_base import AllocatorBase
    from unislab.cache import Cache

_COUNTS = (
    "total",
    "available",
    "checked",
    "unchecked",
    "onqueue",
    "errors",
    "slabs",
    "partial_slabs",
)
__all__ = ["Validation", "allocator_validation", "cache_validation"]


@dataclass(frozen=True, repr=False)
class Validation:
    """Result of :meth:`Cache.validate <unislab.Cache.validate>`; ``str()`` is its line for a log.

    Attributes
    ----------
    name : str
        The cache, or ``"allocator"`` for the sum over all of them.
    total, available : int
        Objects in the slabs, and those of them that are free.
    checked, unchecked : int
        Objects known to be in use (``debug="F"``), and those that are in use or queued unnoticed.
    onqueue : int
        Objects in queues.
    errors : int
        What was wrong; ``messages`` says what.
    histogram : dict of int to int
        Partial slabs by objects in use.
    slabs, partial_slabs : int
        How many.
    messages : tuple of str
        One line an error.
    misuse : tuple of (int, int, str)
        Address, slab address and text of misuse that was found late and kept out of circulation.
    caches : mapping of str to Validation
        The parts, for an allocator.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator(machine=us.Machine.grid(1, 1, 1)) as alloc:
    ...     cache = alloc.create_cache("pair", 16)
    ...     address = cache.alloc_address()
    ...     result = cache.validate()
    ...     cache.free(address)
    >>> result.ok, bool(result), result.total
    (True, True, 256)
    """

    name: str
    total: int
    available: int
    checked: int
    unchecked: int
    onqueue: int
    errors: int
    histogram: Mapping[int, int]
    slabs: int
    partial_slabs: int
    messages: tuple[str, ...] = ()
    misuse: tuple[tuple[int, int, str], ...] = ()
    caches: Mapping[str, Validation] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when nothing was wrong."""
        return self.errors == 0

    def __bool__(self) -> bool:
        return self.ok

    def _line(self) -> str:
        parts = [f"total={self.total}", f"available={self.available}", f"checked={self.checked}"]
        optional = {"unchecked": self.unchecked, "onqueue": self.onqueue, "errors": self.errors}
        parts += [f"{name}={count}" for name, count in optional.items() if count]
        parts += [f"p{in_use}={slabs}" for in_use, slabs in sorted(self.histogram.items())]
        return f"Validation of slab {self.name}: " + " ".join(parts)

    def __str__(self) -> str:
        if self.caches:
            used = [part for part in self.caches.values() if part.slabs or part.errors]
            return "\n".join(str(part) for part in used) or "Validation: no slabs"
        return "\n".join([self._line(), *(f"  {message}" for message in self.messages)])

    def __repr__(self) -> str:
        state = "ok" if self.ok else f"{self.errors} errors"
        return (
            f"<Validation of {self.name}: {state}, {self.total} objects in "
            f"{self.slabs} slab{'s' if self.slabs != 1 else ''}>"
        )


def cache_validation(cache: Cache) -> Validation:
    """Check one cache."""
    row = cache._validate()
    slabs, total, available, checked, unchecked, onqueue, errors, partial = row[:8]
    histogram, misuse, text = row[8:]
    return Validation(
        name=cache.name,
        total=total,
        available=available,
        checked=checked,
        unchecked=unchecked,
        onqueue=onqueue,
        errors=errors,
        histogram=histogram,
        slabs=slabs,
        partial_slabs=partial,
        messages=tuple(text.splitlines()),
        misuse=tuple(misuse),
    )


def allocator_validation(allocator: AllocatorBase) -> Validation:
    """Check every cache, one after the other."""
    parts = allocator._each(cache_validation)
    sums = {name: sum(getattr(part, name) for part in parts.values()) for name in _COUNTS}
    return Validation(
        name="allocator",
        histogram={},
        messages=tuple(message for part in parts.values() for message in part.messages),
        misuse=tuple(misuse for part in parts.values() for misuse in part.misuse),
        caches=parts,
        **sums,
    )
