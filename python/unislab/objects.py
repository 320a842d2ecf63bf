"""One owned object of a cache."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from unislab.cache import Cache

__all__ = ["Object"]


class Object:
    """One allocated object, owned: freed once, lent to Python as a buffer meanwhile.

    :meth:`Cache.alloc <unislab.Cache.alloc>` makes them. Used as a context manager, an object is
    freed at the end of the block. One that is dropped while live warns (``ResourceWarning``), is
    freed, and is counted in ``cache.dropped``. ``memoryview(obj)`` and ``numpy.frombuffer(obj,
    ...)`` give its bytes.

    Attributes
    ----------
    address : int
        Address of the first byte.
    cache : Cache
        Where it comes from.
    size : int
        Usable bytes, ``cache.size``; also ``len(obj)``.
    alive : bool
        False once freed, or once its cache is gone.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator() as alloc:
    ...     cache = alloc.create_cache("pair", 16)
    ...     with cache.alloc(zero=True) as obj:
    ...         memoryview(obj)[:4] = b"abcd"
    ...         bytes(obj)
    ...     obj.alive
    b'abcd\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    False
    """

    __slots__ = ()

    if TYPE_CHECKING:
        address: int
        cache: Cache
        size: int
        alive: bool

        def __buffer__(self, flags: int, /) -> memoryview: ...
        def __len__(self) -> int: ...

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("objects are made by cache.alloc()")

    def free(self) -> None:
        """Give the object back to its cache.

        Raises
        ------
        CorruptionError
            When it was freed before.
        BufferError
            While a view of it exists.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     obj = alloc.create_cache("pair", 16).alloc()
        ...     view = memoryview(obj)
        ...     try:
        ...         obj.free()
        ...     except BufferError:
        ...         print("still viewed")
        ...     view.release()
        ...     obj.free()
        still viewed
        """
        raise NotImplementedError

    def __enter__(self) -> Object:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.alive:
            return
        try:
            self.free()
        except BufferError:
            if error is None:  # else the first error is the one to see
                raise

    def __repr__(self) -> str:
        state = "live" if self.alive else "freed"
        return f"<Object {self.address:#x} of {self.cache.name!r}: {self.size} bytes, {state}>"
