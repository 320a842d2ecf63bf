"""Slabs and queues of a cache as plain rows.

The same that ``cache.slabs()`` and ``cache.queues()`` show (test_behaviour.py compares them),
without the cost of a table: the books are checked thousands of times.
"""

from __future__ import annotations

from typing import NamedTuple

import unislab as us


class Slab(NamedTuple):
    """One slab."""

    address: int
    node: int
    order: int
    objects: int
    in_use: int
    free: int
    queued: int
    cpu: int | None
    place: str
    position: int | None


class Queue(NamedTuple):
    """One stock of objects, oldest first."""

    kind: str
    name: str
    cpu: int | None
    domain: int | None
    node: int | None
    objects: int
    capacity: int
    touched: bool
    addresses: list[int]


def look(cache: us.Cache) -> tuple[list[Slab], list[Queue]]:
    """Slabs and queues at one moment."""
    slabs, queues = cache._snapshot()
    return [Slab(*row) for row in slabs], [Queue(*row) for row in queues]


def slabs_of(cache: us.Cache, **wanted: object) -> list[Slab]:
    """Slabs whose fields have the given values."""
    return [row for row in look(cache)[0] if matches(row, wanted)]


def queues_of(cache: us.Cache, **wanted: object) -> list[Queue]:
    """Queues whose fields have the given values."""
    return [row for row in look(cache)[1] if matches(row, wanted)]


def listed(cache: us.Cache, **wanted: object) -> list[Slab]:
    """The slabs on partial lists, by node, head first."""
    found = [row for row in slabs_of(cache, **wanted) if row.place == "partial"]
    return sorted(found, key=lambda row: (row.node, row.position))


def queued(cache: us.Cache) -> int:
    """Objects in all queues."""
    return sum(row.objects for row in look(cache)[1])


def matches(row: Slab | Queue, wanted: dict[str, object]) -> bool:
    """All given fields have the given values."""
    return all(getattr(row, name) == value for name, value in wanted.items())
