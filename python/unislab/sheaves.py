"""One prefilled sheaf: objects set aside where failing to allocate is no choice."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from unislab.cache import Cache
    from unislab.objects import Object

__all__ = ["Sheaf"]


class Sheaf:
    """Objects that were set aside for who holds this: allocating them cannot fail.

    :meth:`Cache.prefill_sheaf <unislab.Cache.prefill_sheaf>` makes them. Used as a context manager,
    a sheaf is returned at the end of the block. One that is dropped unreturned warns
    (``ResourceWarning``), is returned, and is counted in ``cache.dropped``. Until they are handed
    out its objects are queued, not live. It is for one thread at a time.

    Attributes
    ----------
    size : int
        Objects in it, also ``len(sheaf)``; 0 once it is returned.
    capacity : int
        Objects it has room for; 0 once it is returned.
    cache : Cache
        Where it comes from.
    alive : bool
        False once returned, or once its cache is gone.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator("sheaves") as alloc:
    ...     cache = alloc.create_cache("maple_node", 256)
    ...     with cache.prefill_sheaf(5) as sheaf:
    ...         size, capacity = len(sheaf), sheaf.capacity
    ...         address = sheaf.alloc_address()
    ...         sheaf.size == size - 1
    ...     cache.free(address)
    True
    >>> 5 <= size <= capacity, sheaf.alive
    (True, False)
    """

    __slots__ = ()

    if TYPE_CHECKING:
        size: int
        capacity: int
        cache: Cache
        alive: bool

        def __len__(self) -> int: ...

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("sheaves are made by cache.prefill_sheaf()")

    def alloc(self, *, zero: bool = False) -> Object:
        """Take one object out of the sheaf, owned.

        It is freed as any other, and may outlive the sheaf.

        Parameters
        ----------
        zero : bool
            Fill it with zeros.

        Raises
        ------
        MemoryError
            When the sheaf is empty.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator("sheaves") as alloc:
        ...     with alloc.create_cache("pair", 16).prefill_sheaf(1) as sheaf:
        ...         with sheaf.alloc(zero=True) as obj:
        ...             bytes(obj) == bytes(16)
        True
        """
        raise NotImplementedError

    def alloc_address(self, *, zero: bool = False) -> int:
        """Take one object out of the sheaf and return its address, for :meth:`Cache.free`.

        Parameters and errors are those of :meth:`alloc`.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator("sheaves") as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     with cache.prefill_sheaf(3) as sheaf:
        ...         addresses = [sheaf.alloc_address() for _ in range(3)]
        ...     cache.live().tolist() == sorted(addresses)
        ...     cache.free_bulk(addresses)
        True
        """
        raise NotImplementedError

    def refill(self, n: int, /) -> None:
        """Fill it again, so that it holds at least ``n`` objects.

        Parameters
        ----------
        n : int
            1 to 16382. More than :attr:`capacity` gives it another, larger one.

        Raises
        ------
        MemoryError
            When there is no memory; what the sheaf has it keeps.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator("sheaves") as alloc:
        ...     with alloc.create_cache("pair", 16).prefill_sheaf(1) as sheaf:
        ...         sheaf.refill(1000)
        ...         len(sheaf)
        1000
        """
        raise NotImplementedError

    def close(self) -> None:
        """Return it, and what is left in it, to the cache. Closing twice is fine.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator("sheaves") as alloc:
        ...     sheaf = alloc.create_cache("pair", 16).prefill_sheaf(1)
        ...     sheaf.close()
        ...     sheaf.alive
        False
        """
        raise NotImplementedError

    def __enter__(self) -> Sheaf:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self.alive:
            return f"<Sheaf of {self.cache.name!r}: returned>"
        return f"<Sheaf of {self.cache.name!r}: {self.size} of {self.capacity} objects>"
