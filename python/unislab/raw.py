"""Bytes at an address, within the memory of an open allocator: for tests of misuse and for
teaching.

Addresses are checked, so a wrong one raises instead of crashing. What is written may well break the
allocator that owns the memory: that is what these two are for.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from unislab.arguments import whole

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["peek", "poke"]


def _modules() -> Iterator[ModuleType]:
    """The extension modules that are loaded: only those can own an address."""
    for name in ("unislab._native", "unislab._model"):
        if name in sys.modules:
            yield sys.modules[name]


def _check(address: int) -> int:
    try:
        address = operator.index(address)
    except TypeError:
        raise TypeError(f"{address!r:.60} is no address: expected an integer") from None
    if not 0 <= address < 2**64:
        raise ValueError(f"{address} is no address: expected 0 to 2**64 - 1")
    return address


def peek(address: int, n: int) -> bytes:
    """Bytes at an address.

    Parameters
    ----------
    address : int
        Within a slab of an open allocator; the object there may be in use or free.
    n : int
        How many.

    Raises
    ------
    ValueError
        When not all of them lie within slabs.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator() as alloc:
    ...     address = alloc.kmalloc(16, zero=True)
    ...     us.raw.poke(address, b"abc")
    ...     us.raw.peek(address, 4)
    ...     alloc.kfree(address)
    b'abc\\x00'
    """
    address = _check(address)
    n = whole("number of bytes", n, 0, 2**30, "0 or more, up to 2**30")
    for module in _modules():
        data: bytes | None = module._peek(address, n)
        if data is not None:
            return data
    raise ValueError(f"no open allocator owns the address {address:#x}")


def poke(address: int, data: Buffer) -> None:
    """Write bytes at an address; as :func:`peek`.

    Examples
    --------
    >>> import unislab as us
    >>> us.raw.poke(8, b"x")
    Traceback (most recent call last):
    ValueError: no open allocator owns the address 0x8
    """
    address = _check(address)
    if not any(module._poke(address, data) for module in _modules()):
        raise ValueError(f"no open allocator owns the address {address:#x}")
