"""Allocators: one address range, one policy, one machine, and the caches on them.

As for :class:`~unislab.Cache`, an instance is of a type of an extension module that derives from
the class documented here: ``_native.Allocator`` on this machine, ``_model.Allocator`` on a
scripted one. The parts of that class stand in modules of their own: general allocations in
:mod:`unislab.kmalloc`, CPUs and nodes in :mod:`unislab.cpus`, what is to be seen in
:mod:`unislab.views`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from unislab.arguments import real, whole
from unislab.cache import DEBUG_F
from unislab.cpus import CPU, Cpus
from unislab.creation import byte_count, debug_f, flag_bits, pattern_or_call
from unislab.errors import unknown_name
from unislab.kmalloc import Kmalloc
from unislab.machine import Machine, Topology, core_of
from unislab.reaper import Reaper
from unislab.sizes import format_size, parse_time
from unislab.tunables import texts
from unislab.views import Views

if TYPE_CHECKING:
    from unislab.cache import Cache

__all__ = ["CPU", "Allocator", "Reaper"]

_KINDS = {"pages": 0, "meta": 1}


@functools.cache
def _concrete(cls: type[Allocator], base: type[Allocator]) -> type[Allocator]:
    """The class to instantiate: of the extension module, and below ``cls``."""
    if issubclass(cls, base):
        return cls
    if issubclass(base, cls):
        return base
    return type(cls.__name__, (cls, base), {"__module__": cls.__module__, "__slots__": ()})


class Allocator(Kmalloc, Cpus, Views):
    """A slab allocator under one policy.

    Used as a context manager, it is closed at the end of the block: live objects are an error
    there, unless an exception is on its way, then everything is released.

    Parameters
    ----------
    policy : str
        One of :func:`unislab.policies`.
    memory : int or str, optional
        Budget over all nodes, as ``"1GiB"``; by default the whole address range.
    machine : Machine, optional
        A scripted machine; by default this one.
    topology : Topology, optional
        Nodes and cache domains to lay over the CPUs of this machine.
    debug : str, optional
        ``"F"``: every misuse is found at the call.
    merge : bool
        A cache that would be just like an older one becomes another name for that, by SLUB's
        rules: see :meth:`create_cache`.
    seed : int
        Of all chance.
    address_range : int or str, optional
        Bytes of addresses to reserve; by default 64 GiB, or what the system grants.
    purge_delay : float or str
        Free pages go back to the system after this time.
    rcu_delay : float or str
        What a grace period of :meth:`Cache.free_rcu` takes, on the clock of :meth:`advance`.
    **tunables
        Defaults of the policy's tunables for every cache.

    Attributes
    ----------
    policy : str
    machine : Machine or None
    memory_budget : int
        Bytes.
    cpu : int
        The current CPU.
    closed : bool

    Raises
    ------
    ValueError
        For unknown names, with the nearest known one, and for values out of range.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator("unified", memory="64 MiB", cpu_queue_size=60) as alloc:
    ...     cache = alloc.create_cache("skbuff_head_cache", 232, align=64)
    ...     cache.free_bulk(cache.alloc_bulk(1000))
    ...     alloc.validate().ok
    True
    """

    __slots__ = ()

    def __new__(
        cls,
        policy: str = "unified",
        *,
        memory: int | str | None = None,
        machine: Machine | None = None,
        topology: Topology | None = None,
        debug: str | None = None,
        merge: bool = False,
        seed: int = 0,
        address_range: int | str | None = None,
        purge_delay: float | str = "1 s",
        rcu_delay: float | str = "10 ms",
        **tunables: int | str,
    ) -> Self:
        if not isinstance(policy, str):
            raise TypeError(f"policy cannot be {policy!r}: expected a name, as 'unified'")
        if machine is not None and not isinstance(machine, Machine):
            raise TypeError(f"machine cannot be {machine!r}: expected a unislab.Machine")
        if topology is not None and not isinstance(topology, Topology):
            raise TypeError(f"topology cannot be {topology!r}: expected a unislab.Topology")
        if machine is not None and topology is not None:
            raise ValueError("a machine has its topology: expected machine= or topology=, not both")
        seed = whole("seed", seed, 0, 2**64 - 1, "0 to 2**64 - 1")
        budget = 0 if memory is None else byte_count("memory", memory)
        if memory is not None and budget == 0:
            raise ValueError("memory cannot be 0: expected a budget in bytes, or None")
        core = core_of(machine)
        rows = core._policy_tunables(policy) if tunables else []
        shape = topology if machine is None else machine.topology
        concrete: Any = _concrete(cls, core.Allocator)  # type: ignore[arg-type]
        allocator: Self = concrete._create(
            policy,
            machine,
            None if shape is None else shape.cpu_node,
            None if shape is None else shape.cpu_domain,
            budget,
            0 if address_range is None else byte_count("address_range", address_range),
            parse_time(purge_delay),
            parse_time(rcu_delay),
            0 if machine is None else machine.page_size,
            debug_f(debug),
            seed,
            bool(merge),
            texts(rows, tunables),
            None if machine is None else machine._model(),
        )
        return allocator

    @property
    def debug(self) -> str:
        """Debug flags of every cache: ``"F"`` or nothing."""
        return "F" if self._debug_f else ""

    # ---- life -------------------------------------------------------------------------------

    def close(self, force: bool = False) -> None:
        """Give everything back. Closing twice is fine.

        Parameters
        ----------
        force : bool
            Also with live objects and prefilled sheaves, whose handles are dead from then on.

        Raises
        ------
        LiveObjectsError
            When objects are live or prefilled sheaves out; the text lists how many and where.
        BufferError
            While views of objects exist, even with ``force``.

        Examples
        --------
        >>> import unislab as us
        >>> alloc = us.Allocator()
        >>> alloc.close()
        >>> alloc.closed
        True
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            # Views that frames of the exception still hold keep their memory until they go.
            self.close(force=True, _abandon=True)  # type: ignore[call-arg]

    # ---- caches -----------------------------------------------------------------------------

    def create_cache(
        self,
        name: str,
        size: int | str,
        *,
        align: int = 0,
        flags: str | Iterable[str] = (),
        constructor: bytes | Callable[[memoryview], object] | None = None,
        debug: str | None = None,
        **tunables: int | str,
    ) -> Cache:
        """Make a cache.

        Of an allocator with ``merge=True`` it may be another name for an older cache
        (:attr:`Cache.aliases`). The two then share slabs, queues, tunables, counters and accounts,
        and their objects are as large as the larger of both asks. That is so when the rounded size
        fits the older one's stride with less than 8 bytes to spare, the stride is a multiple of
        the alignment, ``reclaim_account``, ``account``, ``lowmem`` and ``mem_spread`` agree, and
        neither has a constructor, ``debug`` or tunables of its own. The newest such cache serves.

        Parameters
        ----------
        name : str
            1 to 63 bytes of printable characters, unique in the allocator.
        size : int or str
            Bytes of an object, up to the largest block (1024 pages).
        align : int
            Power of two up to the page size; 0 = a machine word.
        flags : str or iterable of str
            ``hwcache_align``, ``lowmem``, ``mem_spread``, ``reclaim_account``, ``account``.
        constructor : bytes or callable, optional
            What every object holds when its slab is made: a pattern, repeated, or what a callable
            writes to the memoryview it gets. If the callable raises, so does the allocation; an
            object whose constructor raised is constructed again before it is handed out.
        debug : str, optional
            ``"F"``: every misuse is found at the call.
        **tunables
            Of the policy, for this cache.

        Returns
        -------
        Cache

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     cache = alloc.create_cache("pair", 16, flags="lowmem", constructor=b"ab")
        ...     with cache.alloc() as obj:
        ...         bytes(obj)
        b'abababababababab'
        """
        if not isinstance(name, str):
            raise TypeError(f"a cache name cannot be {name!r}: expected a string")
        if not name.isprintable():
            raise ValueError(f"a cache name cannot be {name!r}: expected printable characters")
        pattern, function = pattern_or_call(constructor)
        align = whole(f"align of cache {name!r}", align, 0, 2**32 - 1, "a power of two")
        bits = flag_bits(flags) | (DEBUG_F if debug_f(debug) else 0)
        rows = self._core._policy_tunables(self.policy) if tunables else []
        return self._create_cache(
            name,
            byte_count(f"size of cache {name!r}", size),
            align,
            bits,
            pattern,
            function,
            texts(rows, tunables),
        )

    @property
    def caches(self) -> dict[str, Cache]:
        """All caches by name: general ones (``kmalloc-*``) and created ones, oldest first.

        One that has several names (``merge=True``) is here once, by its oldest.
        """
        return {cache.name: cache for cache in self._caches()}

    def cache(self, name: str) -> Cache:
        """The cache of a name.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.cache("kmalloc-64").size
        64
        """
        found = self._named(name) if isinstance(name, str) else None
        if found is None:
            raise unknown_name("cache", name, self.caches)
        return found

    # ---- when -------------------------------------------------------------------------------

    def advance(self, seconds: float | str) -> None:
        """Move the policy's clock on and run what is due then: timers, expiration, purge.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 1)) as alloc:
        ...     alloc.advance("2 s")
        """
        self._advance(parse_time(seconds))

    def reaper(self, period: float | str) -> Reaper:
        """Expire, and run what is due, every ``period`` in a thread of its own.

        An allocator has one reaper: this one ends the one before.

        Returns
        -------
        Reaper
            Stop it, or use it as a context manager.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc, alloc.reaper("10 ms"):
        ...     alloc.kfree(alloc.kmalloc(10))
        """
        nanoseconds = parse_time(period)
        if nanoseconds == 0:
            raise ValueError("a period cannot be 0: expected seconds, or text as '10 ms'")
        return Reaper(self, nanoseconds)

    # ---- giving back ------------------------------------------------------------------------

    def expire(self, node: int | None = None) -> int:
        """Age the queues of every cache; see :meth:`Cache.expire`. Returns bytes of objects moved.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.kfree(alloc.kmalloc(100))
        ...     idle = 0
        ...     while idle < 2:  # the first pass only takes the marks of use away
        ...         idle = 0 if alloc.expire() else idle + 1
        ...     alloc.account()["queued"]
        0
        """
        raise NotImplementedError

    def shrink(self) -> int:
        """Give all that is unused back: queues to slabs, slabs to pages, pages to the system.

        Returns
        -------
        int
            Bytes of slabs given back.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.kfree(alloc.kmalloc(100))
        ...     alloc.shrink() > 0, alloc.account()["reserved"]
        (True, 0)
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Empty every CPU's own stock.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.kfree(alloc.kmalloc(100))
        ...     alloc.flush()
        """
        raise NotImplementedError

    def rcu_barrier(self) -> None:
        """Free all that waits for a grace period: see :meth:`Cache.free_rcu`.

        It does not wait for the clock, only until every call under way in the allocator has ended,
        as an expedited grace period does. :meth:`flush`, :meth:`shrink` and :meth:`close` begin
        with one.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.kfree_rcu(alloc.kmalloc(100))
        ...     before = alloc.account()["live_objects"]
        ...     alloc.rcu_barrier()
        ...     before, alloc.account()["live_objects"]
        (1, 0)
        """
        raise NotImplementedError

    def purge(self) -> int:
        """Give free pages back to the system at once; returns their bytes.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.purge()
        0
        """
        raise NotImplementedError

    # ---- failures ---------------------------------------------------------------------------

    def fail(
        self,
        kind: Literal["pages", "meta"] = "pages",
        *,
        rate: float = 0.0,
        nth: int | None = None,
    ) -> None:
        """Make requests for pages or for metadata fail; without rate and nth, stop that.

        Parameters
        ----------
        kind : {"pages", "meta"}
            Which requests.
        rate : float
            Probability of each to fail, 0 to 1, by the allocator's seed.
        nth : int, optional
            Let the nth from now fail, alone.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.fail("pages", rate=1.0)
        ...     try:
        ...         alloc.kmalloc(100)
        ...     except MemoryError:
        ...         print("no pages")
        no pages
        """
        if not isinstance(kind, str) or kind not in _KINDS:
            raise unknown_name("kind of failure", kind, _KINDS)
        rate = real("rate", rate, "a number, 0 to 1")
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"rate cannot be {rate}: expected 0 to 1")
        count = 0 if nth is None else whole("nth", nth, 1, 2**63 - 1, "1 or more")
        self._fail(_KINDS[kind], rate, count)

    def __repr__(self) -> str:
        if self.closed:
            return "<Allocator: closed>"
        where = "this machine" if self.machine is None else repr(self.machine)[1:-1]
        online = self._online()
        some = "" if all(online) else f", {sum(online)} of {len(online)} CPUs online"
        return (
            f"<Allocator {self.policy}: {len(self._caches())} caches, "
            f"{format_size(self._reserved)} reserved, {where}{some}>"
        )
