"""The part of an allocator that hands out bytes of any size: the general caches.

The extension modules implement these methods; they are documented here.
"""

from __future__ import annotations

from unislab.allocator_base import AllocatorBase

__all__ = ["Kmalloc"]


class Kmalloc(AllocatorBase):
    """Calls by size and address, as the kernel names them."""

    __slots__ = ()

    def kmalloc(
        self,
        size: int,
        /,
        *,
        node: int | None = None,
        zero: bool = False,
        thisnode: bool = False,
    ) -> int:
        """Allocate bytes from a general cache, or whole pages where they are too many for one.

        Parameters
        ----------
        size : int
            Bytes, 1 to the largest block (1024 pages).
        node, zero, thisnode
            As for :meth:`Cache.alloc`.

        Returns
        -------
        int
            The address, for :meth:`kfree`.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     address = alloc.kmalloc(100)
        ...     alloc.ksize(address)
        ...     alloc.kfree(address)
        128
        """
        raise NotImplementedError

    def krealloc(
        self,
        address: int,
        size: int,
        /,
        *,
        node: int | None = None,
        zero: bool = False,
        thisnode: bool = False,
    ) -> int:
        """Give what :meth:`kmalloc` returned another size.

        While :meth:`ksize` suffices the address stays, so what shrinks stays where it is; else
        the usable bytes are copied to a new object and the old one is freed.

        Parameters
        ----------
        address : int
            0 is no object yet: then as :meth:`kmalloc`.
        size : int
            Bytes; 0 frees the object and returns 0.
        node, zero, thisnode
            Of a new object, as for :meth:`Cache.alloc`; ``zero`` clears what is not copied, and
            of an object that stays what lies beyond the new size.

        Returns
        -------
        int
            The address from now on.

        Raises
        ------
        MemoryError
            When there is no memory for the new size; the object then is as it was.
        CorruptionError
            When the address is no object's start (with ``debug="F"``: of none in use).

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     address = alloc.krealloc(0, 100)
        ...     same = alloc.krealloc(address, 120)
        ...     moved = alloc.krealloc(same, 1000)
        ...     kept = alloc.krealloc(moved, 10)
        ...     alloc.ksize(kept), same == address, moved == address, kept == moved
        ...     alloc.krealloc(kept, 0)
        (1024, True, False, True)
        0
        """
        raise NotImplementedError

    def kfree(self, address: int, /) -> None:
        """Free what :meth:`kmalloc` returned; 0 is ignored.

        Raises
        ------
        CorruptionError
            When the address is no object's start.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.kfree(alloc.kmalloc(10))
        """
        raise NotImplementedError

    def kfree_rcu(self, address: int, /) -> None:
        """Free what :meth:`kmalloc` returned, after a grace period; 0 is ignored.

        See :meth:`Cache.free_rcu`.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.kfree_rcu(alloc.kmalloc(10))
        ...     alloc.advance("10 ms")
        ...     alloc.account()["live_objects"]
        0
        """
        raise NotImplementedError

    def ksize(self, address: int, /) -> int:
        """Usable bytes at an address that :meth:`kmalloc` returned.

        Raises
        ------
        CorruptionError
            When the address is no object's start, though it may lie within one.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     address = alloc.kmalloc(10)
        ...     alloc.ksize(address)
        ...     alloc.kfree(address)
        16
        """
        raise NotImplementedError
