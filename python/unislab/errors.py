"""What goes wrong, by name.

================================ ===================================================================
:class:`CorruptionError`         misuse of memory was found: a double free, a foreign address, ...
:class:`LimitExceeded`           an allocation does not fit the budget (a :class:`MemoryError`)
:class:`LiveObjectsError`        something with live objects was to be closed or destroyed
:class:`UnknownNameError`        a tunable, counter or cache that does not exist
================================ ===================================================================

Other errors are Python's own: ``ValueError`` and ``TypeError`` for arguments, ``MemoryError`` where
memory is short without a limit of ours, ``BufferError`` for what a view still needs, and
``RuntimeError`` for the use of something closed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CorruptionError",
    "LimitExceeded",
    "LiveObjectsError",
    "UnknownNameError",
    "unknown_name",
]


class CorruptionError(RuntimeError):
    """Misuse of memory was found; the allocator stays usable.

    Attributes
    ----------
    cache : str or None
        Name of the cache that was called.
    slab : int or None
        Address of the slab that holds the address, None when no slab does.
    address : int or None
        The address that was given.
    found, expected : str or None
        What is there, and what should be.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator() as alloc:
    ...     cache = alloc.create_cache("pair", 16)
    ...     address = cache.alloc_address()
    ...     try:
    ...         cache.free(address + 1)
    ...     except us.CorruptionError as error:
    ...         print(error.found)
    ...     cache.free(address)
    an address at offset 1 of its slab
    """

    cache: str | None = None
    slab: int | None = None
    address: int | None = None
    found: str | None = None
    expected: str | None = None


class LimitExceeded(MemoryError):
    """An allocation does not fit into the budget of the allocator.

    Attributes
    ----------
    requested, limit : int
        Bytes.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator(memory="1 MiB") as alloc:
    ...     try:
    ...         alloc.kmalloc(2 * 2**20)
    ...     except us.LimitExceeded as error:
    ...         print(error.requested, error.limit)
    2097152 1048576
    """

    requested: int = 0
    limit: int = 0


class LiveObjectsError(RuntimeError):
    """An allocator or cache with live objects was to be closed; the text says how many and where.

    Examples
    --------
    >>> import unislab as us
    >>> alloc = us.Allocator()
    >>> address = alloc.kmalloc(100)
    >>> alloc.close()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    unislab.errors.LiveObjectsError: 1 ... live ...
    >>> alloc.close(force=True)
    """


class UnknownNameError(ValueError, AttributeError, KeyError):
    """A name that does not exist; the text suggests the nearest one.

    It is a ``ValueError``, and also what ``hasattr``, ``getattr`` with a default and ``in`` expect.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator() as alloc:
    ...     alloc.create_cache("pair", 16).tunables["cpu_queue_sise"]
    Traceback (most recent call last):
    unislab.errors.UnknownNameError: policy unified has no tunable 'cpu_queue_sise': did you mean
    'cpu_queue_size'?
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def unknown_name(what: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is none of ``known``, with the nearest of them.

    Examples
    --------
    >>> from unislab.errors import unknown_name
    >>> str(unknown_name("cache", "skbuf", ["skbuff", "inode"]))
    "no cache 'skbuf': did you mean 'skbuff'?"
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    if near:
        return UnknownNameError(f"no {what} {name!r}: did you mean {near[0]!r}?")
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return UnknownNameError(f"no {what} {name!r}; there are {listed or 'none'}")
