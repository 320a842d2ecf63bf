"""The operations that tasks of a :class:`~unislab.Workload` are made of.

Each function returns an array of :data:`OP_DTYPE`; arrays are put together by :func:`sequence`, by
:func:`repeat`, or simply by giving several to :meth:`Workload.add_task`.  Slots are the task's
variables, numbered from 0; each holds one object.

>>> from unislab import ops
>>> ops.repeat(1000, ops.alloc(0, range(8)), ops.free(range(8))).size  # 16 operations, one REPEAT
17
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unislab import _native
from unislab.arguments import several, whole
from unislab.sizes import parse_time

__all__ = [
    "FLAGS",
    "NO_SLOT",
    "OPS",
    "OP_DTYPE",
    "alloc",
    "barrier",
    "clock",
    "free",
    "mark",
    "recv",
    "repeat",
    "send",
    "sequence",
    "sleep",
    "touch",
    "work",
]

#: One operation, 16 bytes: ``op`` (a code of :data:`OPS`), ``flags`` (of :data:`FLAGS`), ``cache``
#: (or the channel), ``slot``, ``arg``.
OP_DTYPE = np.dtype(
    [("op", "u1"), ("flags", "u1"), ("cache", "<u2"), ("slot", "<u4"), ("arg", "<u8")]
)

#: Codes by name: ALLOC, FREE, TOUCH, WORK, SEND, RECV, BARRIER, REPEAT, CLOCK, PROGRESS, MARK,
#: SLEEP.
OPS: Mapping[str, int] = MappingProxyType(dict(_native.OPS))

#: SHARED (the slot belongs to the workload), ZERO, THISNODE, ACCOUNTED.
FLAGS: Mapping[str, int] = MappingProxyType(dict(_native.OP_FLAGS))

#: In SEND and RECV: the message is empty.
NO_SLOT = 0xFFFFFFFF

Ops: TypeAlias = NDArray[np.void]
Slots: TypeAlias = int | Iterable[int]

_MOST_NS = 10**12


def _slots(name: str, slot: Slots) -> Sequence[int] | NDArray[np.int64]:
    """Slot numbers, checked; of a range, which may be long, its ends are."""
    if isinstance(slot, range):
        for end in slot[:1], slot[-1:]:
            _slots(name, list(end))
        return np.arange(slot.start, slot.stop, slot.step)
    # An array has __index__, too.
    one = hasattr(slot, "__index__") and not getattr(slot, "ndim", 0)
    given = (slot,) if one else several(f"{name}: slot", slot, "numbers")
    return [whole(f"{name}: slot {{}}", value, 0, 2**32 - 1) for value in given]


def _make(name: str, slot: Slots = 0, *, cache: int = 0, arg: int = 0, flags: int = 0) -> Ops:
    slots = _slots(name, slot)
    array: Ops = np.zeros(len(slots), OP_DTYPE)
    array["op"], array["flags"] = OPS[name], flags
    array["cache"] = whole(f"{name}: cache or channel {{}}", cache, 0, 2**16 - 1)
    array["arg"] = np.uint64(whole(f"{name}: argument {{}}", arg, 0, 2**64 - 1))
    array["slot"] = slots
    return array


def alloc(
    cache: int,
    slot: Slots,
    *,
    node: int | None = None,
    zero: bool = False,
    thisnode: bool = False,
    shared: bool = False,
) -> Ops:
    """Allocate from a cache into a slot, or into each of several slots in turn.

    Parameters
    ----------
    cache : int
        What :meth:`Workload.add_cache` returned.
    slot : int or iterable of int
        Must be empty.
    node : int, optional
        Where the memory shall be; by default near the CPU.
    zero, thisnode : bool
        Zero the object; fail rather than use another node.
    shared : bool
        The slot is one of the workload's, which all tasks see: the allocation waits until it is
        empty, and a free by another task waits until it is full.

    Examples
    --------
    >>> from unislab import ops
    >>> ops.alloc(0, range(3))["slot"].tolist()
    [0, 1, 2]
    """
    flags = FLAGS["ZERO"] * zero | FLAGS["THISNODE"] * thisnode | FLAGS["SHARED"] * shared
    where = 0 if node is None else whole("ALLOC: node {}", node, 0, 1023) + 1
    return _make("ALLOC", slot, cache=cache, arg=where, flags=flags)


def free(slot: Slots, *, shared: bool = False) -> Ops:
    """Free the object in a slot, or in each of several.

    Examples
    --------
    >>> from unislab import ops
    >>> len(ops.free([4, 2]))
    2
    """
    return _make("FREE", slot, flags=FLAGS["SHARED"] * shared)


def touch(slot: Slots, size: int = 0, *, shared: bool = False) -> Ops:
    """Write one byte in each cache line of the first ``size`` bytes of an object; 0 is all of it.

    Examples
    --------
    >>> from unislab import ops
    >>> int(ops.touch(0, 128)["arg"][0])
    128
    """
    return _make("TOUCH", slot, arg=size, flags=FLAGS["SHARED"] * shared)


def work(cycles: int) -> Ops:
    """Compute for about this many cycles, touching no memory.

    Examples
    --------
    >>> from unislab import ops
    >>> len(ops.work(1000))
    1
    """
    return _make("WORK", arg=cycles)


def _nanoseconds(what: str, time: int | str) -> int:
    """A time as text, or a number of nanoseconds, of at most 1000 s."""
    ns = parse_time(time) if isinstance(time, str) else time
    return whole(what, ns, 0, _MOST_NS, "0 to 10**12 ns, or text as '10 us'")


def send(channel: int, slot: Slots | None = None, delay: int | str = 0) -> Ops:
    """Send the object in a slot over a channel, or an empty message; waits while it is full.

    Parameters
    ----------
    channel : int
        What :meth:`Workload.channel` returned.
    slot : int or iterable of int, optional
        By default the message is empty.
    delay : int or str
        The message can be received so much later: nanoseconds, or text as ``"10 us"``.  Messages
        never overtake one another: one that was sent with a shorter delay waits for those before.

    Examples
    --------
    >>> from unislab import ops
    >>> len(ops.send(0, 5)), len(ops.send(1)), int(ops.send(0, 5, delay="20 us")["arg"][0])
    (1, 1, 20000)
    """
    ns = _nanoseconds("SEND: delay {}", delay)
    return _make("SEND", NO_SLOT if slot is None else slot, cache=channel, arg=ns)


def recv(channel: int, slot: Slots | None = None) -> Ops:
    """Receive an object into an empty slot, or an empty message; waits while there is none.

    Examples
    --------
    >>> from unislab import ops
    >>> len(ops.recv(0, range(4)))
    4
    """
    return _make("RECV", NO_SLOT if slot is None else slot, cache=channel)


def barrier() -> Ops:
    """Wait until every task that has a barrier has come to it.

    Examples
    --------
    >>> from unislab import ops
    >>> len(ops.barrier())
    1
    """
    return _make("BARRIER")


def mark() -> Ops:
    """One unit of work (a transaction, a message) is done: runs count them and tell their rate.

    Examples
    --------
    >>> import unislab as us
    >>> from unislab import ops
    >>> w = us.Workload("rounds")
    >>> w.add_task(ops.repeat(50, ops.work(100), ops.mark()))
    0
    >>> us.run(w, min_time="1 ms").marks
    50
    """
    return _make("MARK")


def sleep(time: int | str) -> Ops:
    """Do nothing for a time and leave the CPU to others: nanoseconds, or text as ``"1 ms"``.

    Examples
    --------
    >>> from unislab import ops
    >>> int(ops.sleep("1 ms")["arg"][0])
    1000000
    """
    return _make("SLEEP", arg=_nanoseconds("SLEEP: {}", time))


def clock(ns: int) -> Ops:
    """The workload's time is ``ns``: the policy's timers follow it, and a paced run waits for it.

    Examples
    --------
    >>> from unislab import ops
    >>> int(ops.clock(2_000_000)["arg"][0])
    2000000
    """
    return _make("CLOCK", arg=ns)


def repeat(times: int, *parts: Ops) -> Ops:
    """The parts one after the other, ``times`` times in all; may stand within another repeat.

    Examples
    --------
    >>> from unislab import ops
    >>> len(ops.repeat(5, ops.work(10), ops.work(20)))
    3
    """
    body = sequence(*parts)
    times = whole("repeat: {} times", times, 0, 2**64 - 1, "0 or more, below 2**64")
    if times == 0 or len(body) == 0:
        return body[:0]
    return sequence(body, _make("REPEAT", len(body), arg=times))


def sequence(*parts: Ops) -> Ops:
    """Parts one after the other.

    Examples
    --------
    >>> from unislab import ops
    >>> len(ops.sequence(ops.alloc(0, 0), ops.free(0)))
    2
    """
    arrays: list[Any] = []
    for part in parts:
        array = np.asarray(part)
        if array.dtype != OP_DTYPE:
            raise TypeError(
                "expected arrays of OP_DTYPE, as the functions of unislab.ops make, "
                f"not {part!r:.60}"
            )
        arrays.append(array)
    return np.concatenate(arrays) if arrays else np.zeros(0, OP_DTYPE)
