# The extension module of this machine.
# The public classes are documented in unislab.allocator, unislab.cache and unislab.objects, which
# these types derive from.

import sys
from collections.abc import Sequence
from typing import Any, Final, final

from typing_extensions import Buffer, disjoint_base

import unislab.allocator
import unislab.cache
import unislab.objects
import unislab.sheaves
from unislab.cache import _TunableRow
from unislab.stats import CounterRow

@disjoint_base
class Allocator(unislab.allocator.Allocator):
    def close(self, force: bool = False, _abandon: bool = False) -> None: ...

@final
class Cache(unislab.cache.Cache):
    def _noop(self, *args: object) -> None: ...

@final
class Object(unislab.objects.Object):
    def __del__(self) -> None: ...
    def __len__(self) -> int: ...

@final
class Sheaf(unislab.sheaves.Sheaf):
    def __del__(self) -> None: ...
    def __len__(self) -> int: ...

@final
class _Words:
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

# What was built, what is here.

def build_info() -> dict[str, str | int]: ...
def _topology() -> tuple[tuple[int, ...], tuple[int, ...]]: ...
def _policies() -> list[tuple[str, str]]: ...
def _policy_tunables(policy: str, /) -> list[_TunableRow]: ...
def _policy_counters(policy: str, /) -> tuple[list[CounterRow], int, list[CounterRow]]: ...
def _peek(address: int, n: int, /) -> bytes | None: ...
def _poke(address: int, data: Buffer, /) -> bool: ...
def _noop(*args: object) -> None: ...

# Costs of this machine.

def _probe(name: str, cpu: int, other: int, bytes: int, repeat: int, /) -> float: ...

# Op programs.

OPS: Final[dict[str, int]]
OP_FLAGS: Final[dict[str, int]]

@final
class Runner:
    def __new__(
        cls,
        caches: Sequence[Any],
        channels: Sequence[int],
        tasks: Sequence[Any],
        *,
        allocator: unislab.allocator.Allocator | None = None,
        handles: Sequence[unislab.cache.Cache | None] = (),
        heap: str = "allocator",
        touch: str = "first",
        pace: float = 0.0,
        window: int = 1000,
        seed: int = 0,
        warmup_ns: int = 0,
        duration_ns: int = 0,
        timeline_ns: int = 0,
    ) -> Runner: ...
    def passes(self, n: int, /) -> list[float]: ...
    def peaks(self) -> dict[str, int]: ...
    def clean(self) -> None: ...
    def close(self) -> None: ...
    def live(self) -> tuple[int, int]: ...
    def task_seconds(self) -> list[float]: ...
    def marks(self) -> list[int]: ...
    def elapsed(self) -> float: ...

def check_program(
    caches: Sequence[Any], channels: Sequence[int], tasks: Sequence[Any], /
) -> dict[str, int]: ...
def compile_events(
    events: Any, ntasks: int, nobjects: int, window: int, clock_ns: int, clock_of_each: bool
) -> list[Any]: ...

# The trace reader.

TRACE_COLUMNS: Final[dict[str, tuple[str, str]]]
TRACE_COUNTS: Final[dict[str, str]]
TRACE_GFP: Final[dict[str, int]]

@final
class Column:
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

@final
class TraceReader:
    def __new__(cls, *, lenient: bool = False, format: str | None = None) -> TraceReader: ...
    @property
    def error(self) -> tuple[int, bytes, str, bool] | None: ...
    def feed(self, data: Buffer, /) -> None: ...
    def finish(self) -> dict[str, Any]: ...
