"""What every part of an allocator stands on: what the extension modules give it.

:class:`~unislab.Allocator` is put together from parts that derive from the class here, one a
subject: :mod:`unislab.kmalloc`, :mod:`unislab.cpus` and :mod:`unislab.views`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from unislab.machine import Machine, Topology, core_of

if TYPE_CHECKING:
    from unislab.cache import Cache

__all__ = ["AllocatorBase"]

T = TypeVar("T")


class AllocatorBase:
    """Attributes and calls of the extension's type, for the parts of an allocator."""

    __slots__ = ()

    if TYPE_CHECKING:
        policy: str
        machine: Machine | None
        memory_budget: int
        cpu: int
        closed: bool
        _debug_f: bool
        _topology: tuple[tuple[int, ...], tuple[int, ...]]
        _reserved: int

        @classmethod
        def _create(cls, *args: Any) -> Self: ...
        def _create_cache(self, *args: Any) -> Cache: ...
        def _caches(self) -> list[Cache]: ...
        def _named(self, name: str, /) -> Cache | None: ...
        def _advance(self, nanoseconds: int, /) -> int: ...
        def _reaper_start(self, nanoseconds: int, /) -> int: ...
        def _reaper_stop(self, number: int, /) -> int: ...
        def _reaper_number(self) -> int: ...
        def _on_cpu(self, cpu: int, /) -> int: ...
        def _offline_cpu(self, cpu: int, /) -> None: ...
        def _online_cpu(self, cpu: int, /) -> None: ...
        def _online(self) -> tuple[bool, ...]: ...
        def _memory_policy(self, nodes: tuple[int, ...], interleave: bool, /) -> bytes: ...
        def _memory_policy_restore(self, old: bytes, /) -> None: ...
        def _fail(self, kind: int, rate: float, nth: int, /) -> None: ...
        def _account(self) -> dict[str, int]: ...
        def _locks(self) -> list[tuple[str, int, int]]: ...
        def _node_memory(self, node: int, /) -> dict[str, Any]: ...

    @property
    def _core(self) -> ModuleType:
        """The extension module."""
        return core_of(self.machine)

    @property
    def topology(self) -> Topology:
        """Nodes and cache domains of its CPUs."""
        return Topology(*self._topology)

    def _each(self, look: Callable[[Cache], T]) -> dict[str, T]:
        """What ``look`` says of every cache; one that another thread destroys is left out."""
        found = {}
        for cache in self._caches():
            try:
                found[cache.name] = look(cache)
            except RuntimeError:
                if cache.alive or self.closed:
                    raise
        return found
