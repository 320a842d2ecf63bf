"""Caches: equal-sized objects, by owned handle or by address.

The methods documented here are implemented by the extension modules: an instance is a
``_native.Cache`` on this machine, a ``_model.Cache`` on a scripted one. Those types derive from
this class, so ``isinstance(cache, unislab.Cache)`` holds for both, and a call meets no wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from unislab.addresses import as_array

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from unislab.allocator import Allocator
    from unislab.objects import Object
    from unislab.sheaves import Sheaf
    from unislab.stats import Stats
    from unislab.tunables import Tunables
    from unislab.validation import Validation

    #: Rows of ``Cache._snapshot``: slabs, then queues.
    _SlabRow = tuple[int, int, int, int, int, int, int, int | None, str, int | None]
    _QueueRow = tuple[str, str, int | None, int | None, int | None, int, int, bool, list[int]]
    _TunableRow = tuple[
        str,
        int | None,
        str | None,
        int,
        int,
        int,
        str,
        bool,
        bool,
        str,
        tuple[tuple[str, int], ...],
    ]
    _ValidationRow = tuple[
        int, int, int, int, int, int, int, int, dict[int, int], list[tuple[int, int, str]], str
    ]

__all__ = ["FLAGS", "Cache"]

#: Flags of a cache by name (enum us_cache_flags).
FLAGS: Mapping[str, int] = {
    "hwcache_align": 1,
    "lowmem": 2,
    "mem_spread": 4,
    "reclaim_account": 8,
    "account": 16,
}
DEBUG_F = 32


class Cache:
    """A cache of equal-sized objects; :meth:`Allocator.create_cache` makes it.

    Attributes
    ----------
    name : str
        Its name, unique in the allocator.
    size, stride, align : int
        Bytes of an object as asked for, from one object to the next, and alignment.
    order, objects_per_slab : int
        A slab has ``2**order`` pages and holds so many objects.
    general : bool
        True for the caches behind :meth:`Allocator.kmalloc`.
    allocator : Allocator
        Where it belongs.
    alive : bool
        False once destroyed, or once the allocator is closed; calls then raise ``RuntimeError``.
    dropped : int
        Owned objects and prefilled sheaves that were dropped while live, and given back.
    constructor : callable or None
        The callable given as constructor.

    Examples
    --------
    >>> import unislab as us
    >>> alloc = us.Allocator()
    >>> cache = alloc.create_cache("skbuff_head_cache", 232, align=64)
    >>> cache.stride, cache.objects_per_slab > 0
    (256, True)
    >>> addresses = cache.alloc_bulk(1000)
    >>> len(cache.live())
    1000
    >>> cache.free_bulk(addresses)
    >>> alloc.close()
    """

    __slots__ = ()

    if TYPE_CHECKING:
        name: str
        size: int
        stride: int
        align: int
        order: int
        objects_per_slab: int
        general: bool
        allocator: Allocator
        alive: bool
        dropped: int
        constructor: Callable[[memoryview], object] | None
        _flags: int

        def _stats(self, exact: bool, /) -> Any: ...
        def _account(self) -> dict[str, int]: ...
        def _snapshot(self) -> tuple[list[_SlabRow], list[_QueueRow]]: ...
        def _validate(self) -> _ValidationRow: ...
        def _live(self) -> Any: ...
        def _names(self) -> list[str]: ...
        def _tunables(self) -> list[_TunableRow]: ...
        def _tunable_get(self, name: str, /) -> tuple[int, str | None]: ...
        def _tunable_set(self, name: str, text: str, /) -> None: ...

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("caches are made by allocator.create_cache()")

    # ---- objects ----------------------------------------------------------------------------

    def alloc(
        self, *, node: int | None = None, zero: bool = False, thisnode: bool = False
    ) -> Object:
        """Allocate one object, owned.

        Parameters
        ----------
        node : int, optional
            Node to take it from; by default near the current CPU.
        zero : bool
            Fill it with zeros.
        thisnode : bool
            Fail rather than take it from another node.

        Returns
        -------
        Object
            Frees itself at the end of a ``with`` block, or by ``free()``.

        Raises
        ------
        MemoryError
            When there is no memory; :class:`LimitExceeded` when the budget is the reason.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     with alloc.create_cache("pair", 16).alloc(zero=True) as obj:
        ...         bytes(obj) == bytes(16)
        True
        """
        raise NotImplementedError

    def alloc_address(
        self, *, node: int | None = None, zero: bool = False, thisnode: bool = False
    ) -> int:
        """Allocate one object and return its address, for :meth:`free`.

        Parameters are those of :meth:`alloc`. Nothing owns the object: what is not freed stays
        live, and :meth:`Allocator.close` says so.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     address = cache.alloc_address()
        ...     cache.live().tolist() == [address]
        ...     cache.free(address)
        True
        """
        raise NotImplementedError

    def free(self, address: int, /) -> None:
        """Free the object at an address. Address 0 is ignored, as ``kfree(NULL)`` is.

        Raises
        ------
        CorruptionError
            When the address is not the start of an object of this cache; the call then changes
            nothing. An object freed twice is found at once only with ``debug="F"``, else when it
            reaches its slab, by :meth:`validate`.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(debug="F") as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     address = cache.alloc_address()
        ...     cache.free(address)
        ...     try:
        ...         cache.free(address)
        ...     except us.CorruptionError as error:
        ...         print(error.found)
        an object that is free already
        """
        raise NotImplementedError

    def free_rcu(self, what: int | Object, /) -> None:
        """Free an object after a grace period, as the kernel's ``kfree_rcu`` does.

        Until then it keeps its contents and counts as live. The allocator does not see who reads
        objects, so a grace period is a time, ``Allocator(rcu_delay=...)``, on the clock of
        :meth:`Allocator.advance`, and the end of every call that was under way: the object is freed
        by the first ``advance`` (or turn of the reaper) after that, or by
        :meth:`Allocator.rcu_barrier`, with which ``flush``, ``shrink``, ``destroy`` and ``close``
        begin. It is counted as a free then. Policy ``sheaves`` keeps objects of the CPU's own node
        in a sheaf of their own, which goes to the barn once it was full.

        Parameters
        ----------
        what : int or Object
            An address, 0 being ignored, or an owned object of this cache, which is dead from then
            on.

        Raises
        ------
        CorruptionError
            As for :meth:`free`; with ``debug="F"`` also for what was given to free before.
        BufferError
            While a view of the object exists.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 1), rcu_delay="1 ms") as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     cache.free_rcu(cache.alloc())
        ...     waiting = len(cache.live())
        ...     alloc.advance("1 ms")
        ...     waiting, len(cache.live()), cache.stats().frees
        (1, 0, 1)
        """
        raise NotImplementedError

    def alloc_bulk(
        self, n: int, /, *, node: int | None = None, zero: bool = False, thisnode: bool = False
    ) -> NDArray[np.uint64]:
        """Allocate ``n`` objects in one call; all or none.

        Counters and queues are left as by ``n`` single calls. The GIL is released for larger
        numbers.

        Returns
        -------
        numpy.ndarray of uint64
            Their addresses.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     addresses = cache.alloc_bulk(3)
        ...     cache.free_bulk(addresses)
        >>> addresses.dtype, addresses.shape
        (dtype('uint64'), (3,))
        """
        raise NotImplementedError

    def free_bulk(self, addresses: ArrayLike, /) -> None:
        """Free many objects in one call.

        Parameters
        ----------
        addresses : array of 8-byte integers, or sequence of int
            A contiguous array is used as it is.

        Raises
        ------
        CorruptionError
            When an address lies outside the allocator (with ``debug="F"``: is no object in use);
            then none is freed. Other misuse is found when it reaches a slab, by :meth:`validate`.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     cache.free_bulk([cache.alloc_address(), cache.alloc_address()])
        ...     cache.free_bulk(cache.alloc_bulk(100)[::-1])
        """
        raise NotImplementedError

    def prefill_sheaf(self, n: int, /) -> Sheaf:
        """Set objects aside, so that allocating them later cannot fail.

        Linux's ``kmem_cache_prefill_sheaf``. Policies without sheaves refuse: there
        :meth:`alloc_bulk` takes the objects themselves. Under ``debug="F"``, where caches have no
        sheaves otherwise, it is a sheaf of exactly ``n`` objects, filled from slabs.

        Parameters
        ----------
        n : int
            1 to 16382: the next ``n`` allocations from the sheaf cannot fail. One of up to
            ``tunables.sheaf_capacity`` objects is filled to that capacity.

        Returns
        -------
        Sheaf
            Returns itself at the end of a ``with`` block, or by ``close()``.

        Raises
        ------
        ValueError
            For a policy without sheaves, or a number out of range.
        MemoryError
            When there is no memory for so many objects.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator("sheaves") as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     with cache.prefill_sheaf(8) as sheaf:
        ...         alloc.fail("pages", rate=1.0)
        ...         objects = [sheaf.alloc_address() for _ in range(8)]
        ...     alloc.fail("pages")
        ...     cache.free_bulk(objects)
        """
        raise NotImplementedError

    def live(self) -> NDArray[np.uint64]:
        """Addresses of all objects in use.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     obj = cache.alloc()
        ...     cache.live().tolist() == [obj.address]
        ...     obj.free()
        True
        """
        return as_array(self._live())

    # ---- the cache as a whole ---------------------------------------------------------------

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of the cache, oldest first: empty without ``Allocator(merge=True)``.

        Each name has a handle of its own. :meth:`destroy` gives up the handle's name, and the cache
        ends with the last one. Until then objects may be freed by any of them.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(merge=True) as alloc:
        ...     pair, point = alloc.create_cache("pair", 216), alloc.create_cache("point", 210)
        ...     pair.aliases, point.aliases, point.size
        ...     pair.destroy()
        ...     alloc.cache("point").aliases
        (('point',), ('pair',), 216)
        ()
        """
        return tuple(name for name in self._names() if name != self.name)

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self.allocator.policy

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the flags it was created with."""
        return tuple(name for name, bit in FLAGS.items() if self._flags & bit)

    @property
    def debug(self) -> str:
        """Debug flags: ``"F"`` or nothing."""
        return "F" if self._flags & DEBUG_F else ""

    @property
    def tunables(self) -> Tunables:
        """The tunables: attributes and mapping, live and validated.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     cache.tunables.cpu_queue_size = 60
        ...     cache.tunables["cpu_queue_size"] >= 60
        True
        """
        from unislab.tunables import Tunables

        return Tunables(self)

    def stats(self, exact: bool = False) -> Stats:
        """A frozen snapshot of the counters: the common ones, then the policy's own.

        Caches that were merged (:attr:`aliases`) share one set of counters.

        Parameters
        ----------
        exact : bool
            Stop everything for a moment and read exactly. Otherwise a reading is exact when
            nothing is in flight, never goes back, and is within one batch a CPU.

        Returns
        -------
        Stats
            Mapping and attributes; two of them can be subtracted.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     before = cache.stats()
        ...     cache.alloc().free()
        ...     change = cache.stats() - before
        >>> change.allocs, change.frees
        (1, 1)
        """
        from unislab.stats import cache_stats

        return cache_stats(self, exact)

    def account(self) -> dict[str, int]:
        """Byte accounts and counts, exact.

        ``reserved`` = ``live`` + ``queued`` + ``free_in_slabs`` + ``waste``, in bytes; beside them
        ``live_objects``, ``queued_objects``, ``free_objects``, ``slabs``, ``objects`` (their
        capacity), ``partial`` and ``cpu_slabs``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     with cache.alloc():
        ...         cache.account()["live"]
        16
        """
        return self._account()

    def validate(self) -> Validation:
        """Check every slab and every queue.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     cache.alloc().free()
        ...     cache.validate().ok
        True
        """
        from unislab.validation import cache_validation

        return cache_validation(self)

    def queues(self) -> pd.DataFrame:
        """Every stock of objects outside slabs, one a row.

        Returns
        -------
        pandas.DataFrame
            ``kind`` (cpu, shared, alien, prefilled), ``name``, ``cpu``, ``domain``, ``node`` (of
            the objects), ``objects``, ``capacity``, ``touched`` (since the last ageing),
            ``addresses`` (list, oldest first). What does not apply is missing (``<NA>``).

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 2)) as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     cache.alloc().free()
        ...     queues = cache.queues()
        ...     queues["kind"].tolist(), queues["cpu"].tolist()[:1]
        (['cpu', 'shared'], [0])
        """
        from unislab.inspect.tables import queues_frame

        return queues_frame(self._snapshot()[1])

    def slabs(self) -> pd.DataFrame:
        """Every slab, one a row.

        Returns
        -------
        pandas.DataFrame
            ``address``, ``node``, ``order``, ``objects``, ``in_use``, ``free``, ``queued``,
            ``cpu`` (that owns it), ``place`` (full, partial, cpu, large, free), ``position``
            (in its list).

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     with cache.alloc():
        ...         cache.slabs()["in_use"].tolist()
        [1]
        """
        from unislab.inspect.tables import slabs_frame

        return slabs_frame(self._snapshot()[0])

    def expire(self, node: int | None = None) -> int:
        """Age queued objects on a node, or on all, and move what is old to the slabs.

        A queue in use since the last pass only loses its mark of use; one that was not gives up
        a batch. So a pass may move nothing and the next one much: to move all there is, repeat
        until two passes in a row return 0 and ``account()["reserved"]`` stands still.

        Returns
        -------
        int
            Bytes of the objects moved.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     cache.free_bulk(cache.alloc_bulk(100))
        ...     first, idle = cache.expire(), 0
        ...     while idle < 2:
        ...         idle = 0 if cache.expire() else idle + 1
        ...     first, cache.account()["queued"]
        (0, 0)
        """
        raise NotImplementedError

    def shrink(self) -> int:
        """Move all queued objects to their slabs and give empty slabs back.

        Returns
        -------
        int
            Bytes of slabs given back.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     cache.alloc().free()
        ...     cache.shrink() > 0, cache.account()["reserved"]
        (True, 0)
        """
        raise NotImplementedError

    def destroy(self, force: bool = False) -> None:
        """End the cache.

        One of several names of a cache (:attr:`aliases`) is only given up, whatever is live; its
        owned objects and sheaves can no longer be used and stay in the cache.

        Parameters
        ----------
        force : bool
            Also with live objects and sheaves, whose handles are dead from then on.

        Raises
        ------
        LiveObjectsError
            When objects are live or prefilled sheaves out; the text says how many and where.
        BufferError
            While views of its objects exist, even with ``force``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16)
        ...     obj = cache.alloc()
        ...     cache.destroy(force=True)
        ...     cache.alive, obj.alive
        (False, False)
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        if not self.alive:
            return f"<Cache {self.name!r}: destroyed>"
        return (
            f"<Cache {self.name!r}: {self.size} bytes, {self.objects_per_slab} objects a slab "
            f"of order {self.order}, {self.policy}>"
        )
