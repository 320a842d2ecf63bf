"""Arguments of allocators and caches as the core takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unislab.arguments import several
from unislab.cache import FLAGS
from unislab.errors import unknown_name
from unislab.sizes import parse_size

__all__ = ["byte_count", "debug_f", "flag_bits", "pattern_or_call"]

_MOST_BYTES = 2**62


def debug_f(debug: str | None) -> bool:
    """Read debug flags: only F exists so far."""
    if debug is None:
        return False
    if not isinstance(debug, str):
        raise TypeError(f"debug cannot be {debug!r}: expected None or a string of flags, as 'F'")
    for flag in debug:
        if flag != "F":
            raise ValueError(f"unknown debug flag {flag!r}: expected 'F' or nothing")
    return "F" in debug


def flag_bits(flags: str | Iterable[str]) -> int:
    bits = 0
    for name in several("flags", flags, f"names of {', '.join(FLAGS)}"):
        if not isinstance(name, str) or name not in FLAGS:
            raise unknown_name("cache flag", name, FLAGS)
        bits |= FLAGS[name]
    return bits


def byte_count(what: str, size: int | str) -> int:
    """A number of bytes that the core takes."""
    number = parse_size(size)
    if number > _MOST_BYTES:
        raise ValueError(f"{what} cannot be {size}: expected at most 2**62 bytes")
    return number


def pattern_or_call(
    constructor: bytes | Callable[[memoryview], object] | None,
) -> tuple[bytes, Callable[[memoryview], object] | None]:
    """Pattern and callable; at most one of them is something."""
    if constructor is None:
        return b"", None
    if callable(constructor):
        return b"", constructor
    if not isinstance(constructor, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"constructor cannot be {constructor!r}: expected bytes, which are repeated, "
            "or a callable that takes a memoryview"
        )
    if len(constructor) == 0:
        raise ValueError("an empty constructor pattern: expected at least one byte, or None")
    return bytes(constructor), None
