"""Allocators: one address range, one policy, one machine, and the caches on them.

As for :class:`~unislab.Cache`, an instance is of a type of an extension module that derives from
the class documented here: ``_native.Allocator`` on this machine, ``_model.Allocator`` on a
scripted one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

from unislab.arguments import real, several, whole
from unislab.cache import DEBUG_F, FLAGS
from unislab.errors import unknown_name
from unislab.machine import Machine, Topology, core_of
from unislab.sizes import format_size, parse_size, parse_time
from unislab.tunables import texts

if TYPE_CHECKING:
    import pandas as pd

    from unislab.cache import Cache
    from unislab.stats import Stats
    from unislab.validation import Validation

__all__ = ["CPU", "Allocator", "Reaper"]

T = TypeVar("T")

_KINDS = {"pages": 0, "meta": 1}
_MOST_BYTES = 2**62


def _debug_f(debug: str | None) -> bool:
    """Read debug flags: only F exists so far."""
    if debug is None:
        return False
    if not isinstance(debug, str):
        raise TypeError(f"debug cannot be {debug!r}: expected None or a string of flags, as 'F'")
    for flag in debug:
        if flag in "ZPU":
            raise ValueError(f"debug flag {flag!r} comes later; expected 'F' or nothing")
        if flag != "F":
            raise ValueError(f"unknown debug flag {flag!r}: expected 'F' or nothing")
    return "F" in debug


def _flag_bits(flags: str | Iterable[str]) -> int:
    bits = 0
    for name in several("flags", flags, f"names of {', '.join(FLAGS)}"):
        if not isinstance(name, str) or name not in FLAGS:
            raise unknown_name("cache flag", name, FLAGS)
        bits |= FLAGS[name]
    return bits


def _bytes(what: str, size: int | str) -> int:
    """A number of bytes that the core takes."""
    number = parse_size(size)
    if number > _MOST_BYTES:
        raise ValueError(f"{what} cannot be {size}: expected at most 2**62 bytes")
    return number


def _constructor(
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


@functools.cache
def _concrete(cls: type[Allocator], base: type[Allocator]) -> type[Allocator]:
    """The class to instantiate: of the extension module, and below ``cls``."""
    if issubclass(cls, base):
        return cls
    if issubclass(base, cls):
        return base
    return type(cls.__name__, (cls, base), {"__module__": cls.__module__, "__slots__": ()})


class CPU(NamedTuple):
    """One CPU of an allocator's machine, as :attr:`Allocator.cpus` lists them.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator(machine=us.Machine.grid(1, 1, 2)) as alloc:
    ...     alloc.cpus[1].online
    True
    """

    number: int
    node: int
    domain: int
    online: bool


class Reaper:
    """A running reaper; ``stop()`` it, or use it as a context manager.

    An allocator has one: starting another ends it. Each handle stops its own reaper only.

    Examples
    --------
    >>> import unislab as us
    >>> with us.Allocator() as alloc, alloc.reaper("100 ms") as reaper:
    ...     reaper
    <Reaper every 0.1 s>
    """

    def __init__(self, allocator: Allocator, period: int) -> None:
        self._allocator: Allocator | None = allocator
        self._period = period
        self._number = allocator._reaper_start(period)

    @property
    def running(self) -> bool:
        """False once it was stopped, or ended by another one or with its allocator.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc, alloc.reaper("1 s") as first:
        ...     second = alloc.reaper("2 s")
        ...     first.running, second.running
        (False, True)
        """
        allocator = self._allocator
        if allocator is None or allocator.closed:
            return False
        return allocator._reaper_number() == self._number

    def stop(self) -> None:
        """Stop it and wait until it has; more than once is fine, and so is one that has ended.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.reaper("1 s").stop()
        """
        allocator, self._allocator = self._allocator, None
        if allocator is not None and not allocator.closed:
            allocator._reaper_stop(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"every {self._period / 1e9:g} s" if self.running else "stopped"
        return f"<Reaper {state}>"


class Allocator:
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
        budget = 0 if memory is None else _bytes("memory", memory)
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
            0 if address_range is None else _bytes("address_range", address_range),
            parse_time(purge_delay),
            0 if machine is None else machine.page_size,
            _debug_f(debug),
            seed,
            bool(merge),
            texts(rows, tunables),
        )
        return allocator

    @property
    def _core(self) -> ModuleType:
        """The extension module."""
        return core_of(self.machine)

    @property
    def topology(self) -> Topology:
        """Nodes and cache domains of its CPUs."""
        return Topology(*self._topology)

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
            Also with live objects, whose handles are dead from then on.

        Raises
        ------
        LiveObjectsError
            When objects are live; the text lists how many and where.
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
        pattern, function = _constructor(constructor)
        align = whole(f"align of cache {name!r}", align, 0, 2**32 - 1, "a power of two")
        bits = _flag_bits(flags) | (DEBUG_F if _debug_f(debug) else 0)
        rows = self._core._policy_tunables(self.policy) if tunables else []
        return self._create_cache(
            name,
            _bytes(f"size of cache {name!r}", size),
            align,
            bits,
            pattern,
            function,
            texts(rows, tunables),
        )

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

    # ---- general allocations ----------------------------------------------------------------

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

    # ---- where and when ---------------------------------------------------------------------

    @contextmanager
    def on_cpu(self, cpu: int) -> Iterator[Self]:
        """Do what is in the block on a CPU: by script on a machine, by pinning the thread here.

        Raises
        ------
        ValueError
            For a CPU that is not on the machine, and for one that is offline.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(2, 1, 2)) as alloc, alloc.on_cpu(3):
        ...     alloc.cpu
        3
        """
        cpu = self._cpu(cpu)
        if not self._online()[cpu]:
            raise ValueError(
                f"CPU {cpu} is offline: expected one of {list(self.online_cpus)}, "
                f"or online_cpu({cpu}) first"
            )
        if self.machine is None:
            affinity = os.sched_getaffinity(0)
            self._on_cpu(cpu)
            try:
                yield self
            finally:
                with suppress(RuntimeError):  # the allocator was closed in the block
                    self._on_cpu(-1)
                os.sched_setaffinity(0, affinity)
            return
        previous = self._on_cpu(cpu)
        try:
            yield self
        finally:
            if not self.closed:
                self._on_cpu(previous)

    def _cpu(self, cpu: int) -> int:
        """A CPU of the machine, online or not."""
        return whole("CPU {} is not on this machine", cpu, 0, len(self._topology[0]) - 1)

    @property
    def cpus(self) -> tuple[CPU, ...]:
        """Every CPU: ``number``, ``node``, ``domain`` and whether it is ``online``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(2, 1, 1)) as alloc:
        ...     alloc.offline_cpu(1)
        ...     alloc.cpus[1]
        CPU(number=1, node=1, domain=1, online=False)
        """
        nodes, domains = self._topology
        rows = zip(nodes, domains, self._online(), strict=True)
        return tuple(CPU(number, *row) for number, row in enumerate(rows))

    @property
    def online_cpus(self) -> tuple[int, ...]:
        """Numbers of the CPUs that are in use: all, but for those taken offline.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 3)) as alloc:
        ...     alloc.offline_cpu(1)
        ...     alloc.online_cpus
        (0, 2)
        """
        return tuple(cpu for cpu, online in enumerate(self._online()) if online)

    def offline_cpu(self, cpu: int) -> None:
        """Take a CPU out of use, as when it is unplugged.

        Its stocks are drained in every cache, and when it was the last one of its node or cache
        domain what the policy keeps there for CPUs is drained too. Timers pass it over. The
        operating system knows nothing of this: a thread that runs there (on a scripted machine: a
        script that stands there) goes on, and its calls are served from the next level.
        :meth:`on_cpu`, and workloads that are placed on the CPU, are refused.

        Parameters
        ----------
        cpu : int

        Raises
        ------
        ValueError
            When it is not on the machine, is offline already, or is the last one online.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 2)) as alloc:
        ...     with alloc.on_cpu(1):
        ...         alloc.kfree(alloc.kmalloc(100))
        ...     alloc.offline_cpu(1)
        ...     alloc.account()["queued"], alloc.online_cpus
        (0, (0,))
        """
        self._offline_cpu(self._cpu(cpu))

    def online_cpu(self, cpu: int) -> None:
        """Take a CPU into use again; its queues start empty.

        Raises
        ------
        ValueError
            When it is not on the machine or is online already.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(1, 1, 2)) as alloc:
        ...     alloc.offline_cpu(0)
        ...     alloc.online_cpu(0)
        ...     alloc.online_cpus
        (0, 1)
        """
        self._online_cpu(self._cpu(cpu))

    @contextmanager
    def memory_policy(
        self, *, preferred: int | None = None, interleave: Sequence[int] | None = None
    ) -> Iterator[Self]:
        """Place the objects that the calling thread takes from ``mem_spread`` caches.

        Parameters
        ----------
        preferred : int
            One node for all.
        interleave : sequence of int
            Nodes in turn. Exactly one of the two is given.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(machine=us.Machine.grid(2, 1, 1)) as alloc:
        ...     cache = alloc.create_cache("pair", 16, flags="mem_spread")
        ...     with alloc.memory_policy(preferred=1):
        ...         obj = cache.alloc()
        ...     cache.slabs()["node"].tolist()
        ...     obj.free()
        [1]
        """
        if (preferred is None) == (interleave is None):
            raise TypeError("expected either preferred= or interleave=")
        last = self.topology.nodes - 1
        given: tuple[object, ...] = (preferred,)
        if interleave is not None:
            given = several("interleave", interleave, "a sequence of nodes")
        nodes = tuple(whole("node {} is not on this machine", node, 0, last) for node in given)
        if not nodes:
            raise ValueError("interleave cannot be empty: expected at least one node")
        old = self._memory_policy(nodes, interleave is not None)
        try:
            yield self
        finally:
            self._memory_policy_restore(old)

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

    # ---- looking inside ---------------------------------------------------------------------

    def stats(self, exact: bool = False) -> Stats:
        """The common counters summed over all caches, and the use of locks by class.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     before = alloc.stats()
        ...     alloc.kfree(alloc.kmalloc(10))
        ...     (alloc.stats() - before).allocs
        1
        """
        from unislab.stats import allocator_stats

        return allocator_stats(self, exact)

    def account(self) -> dict[str, int]:
        """Byte accounts, exact: see :meth:`Cache.account`; ``metadata``, ``resident``,
        ``address_range`` and ``budget`` stand apart, with ``reserved_peak``, ``metadata_peak`` and
        ``resident_peak``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     a = alloc.account()
        >>> a["reserved"] == a["live"] + a["queued"] + a["free_in_slabs"] + a["waste"]
        True
        """
        return self._account()

    def validate(self) -> Validation:
        """Check every cache; ``str()`` of the result has one line for each that has slabs.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     print(alloc.validate())
        Validation: no slabs
        """
        from unislab.validation import allocator_validation

        return allocator_validation(self)

    def slabinfo(self) -> pd.DataFrame:
        """One row a cache, columns as ``/proc/slabinfo`` has them.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.slabinfo().loc[0, "name"]
        'kmalloc-large'
        """
        from unislab.inspect.slabinfo import slabinfo_frame

        return slabinfo_frame(self)

    def slabinfo_text(self) -> str:
        """The same in the format of ``/proc/slabinfo``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     print(alloc.slabinfo_text().splitlines()[0])
        slabinfo - version: 2.1
        """
        from unislab.inspect.slabinfo import slabinfo_text

        return slabinfo_text(self)

    def memory_info(self, node: int = 0) -> dict[str, Any]:
        """The page provider of a node, in pages.

        Returns
        -------
        dict
            ``managed``, ``free``, the watermarks ``min``, ``low`` and ``high``, counts of
            ``allocs``, ``frees``, ``fallbacks`` and ``failures``, and ``free_blocks``, a list by
            order.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(memory="16 MiB") as alloc:
        ...     info = alloc.memory_info()
        >>> 0 < info["min"] <= info["low"] <= info["high"] <= info["free"]
        True
        """
        return self._node_memory(node)

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
