"""What workloads of sockets share: queues of packets, each a sk_buff head and its data."""

from __future__ import annotations

from unislab import ops
from unislab.arguments import several, whole
from unislab.workload import Workload

__all__ = ["ENDLESS", "SHARED_INFO", "PacketQueue", "data_size", "rounds", "several_cpus"]

#: Repetitions of a program that only a ``duration`` ends.
ENDLESS = 2**40

#: Bytes of ``struct skb_shared_info`` behind a packet's data (2.6.3x: 18 fragments of 16 bytes).
SHARED_INFO = 320


class PacketQueue:
    """A queue of packets: two channels, of the data and of the heads.

    The data goes first and comes last, so that who waits for a head is woken once a packet and
    finds its data there.

    Examples
    --------
    >>> import unislab as us
    >>> from unislab.workloads.sockets import PacketQueue
    >>> w = us.Workload("one packet")
    >>> queue = PacketQueue(w, 8)
    >>> queue.send(0, 1).size, queue.recv(2, 3).size
    (2, 2)
    """

    def __init__(self, workload: Workload, capacity: int) -> None:
        self.datas = workload.channel(capacity)
        self.heads = workload.channel(capacity)

    def send(self, head: int, data: int, delay: int | str = 0) -> ops.Ops:
        """Send the packet of two slots."""
        return ops.sequence(
            ops.send(self.datas, data, delay=delay), ops.send(self.heads, head, delay=delay)
        )

    def recv(self, head: int, data: int) -> ops.Ops:
        """Receive a packet into two slots."""
        return ops.sequence(ops.recv(self.heads, head), ops.recv(self.datas, data))


def data_size(payload: int) -> int:
    """Bytes that a packet's data asks of kmalloc: whole cache lines, then the shared info.

    Examples
    --------
    >>> from unislab.workloads.sockets import data_size
    >>> data_size(100), data_size(1)
    (448, 384)
    """
    return -(-payload // 64) * 64 + SHARED_INFO


def rounds(name: str, value: int | None) -> int:
    """A number of repetitions; None is without end."""
    return ENDLESS if value is None else whole(name, value, 1, ENDLESS)


def several_cpus(name: str, values: object, cpus: int) -> tuple[int, ...]:
    """One CPU number below ``cpus``, or several, each once."""
    one = hasattr(values, "__index__")
    given = (values,) if one else several(name, values, "CPU numbers")
    found = tuple(whole(f"{name}: CPU {{}}", value, 0, cpus - 1) for value in given)
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{name}={values!r:.60}: expected at least one CPU, each once")
    return found
