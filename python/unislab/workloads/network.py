"""Request and response over a network, as netperf's TCP_RR and UDP_RR.

A transaction on this machine, seen from the allocator:

- the stream's task sends a request: a head and data, allocated where the task runs;
- what was sent is freed when the interrupt of the response is served (TCP: the response
  acknowledges the request; UDP: drivers reap what they have sent in the next interrupt's poll);
- that interrupt takes the oldest buffer of the receive ring, allocates another one in its place,
  and queues the packet to the stream's socket;
- the stream's task wakes up, copies, and frees the packet, mostly on another CPU than the
  interrupt's.

The ring is first in, first out: a buffer is used ``rx_ring`` packets after its allocation.  Each
stream has an interrupt task of its own on its interrupt CPU, because a program is a fixed sequence;
they are served one after the other there.  The ring is filled by one more task before the first
request is sent, and emptied at the end, as by ``ifup`` and ``ifdown``.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable

from unislab import ops
from unislab.arguments import whole
from unislab.sizes import parse_time
from unislab.workload import Workload
from unislab.workloads.sockets import PacketQueue, data_size, rounds, several_cpus

__all__ = ["tcp_rr", "udp_rr"]

#: Bytes of ``struct sk_buff`` in 2.6.3x; with the cache lines that a head is aligned to, 256.
SK_BUFF = 232
#: Two heads and a reference count: what TCP sends from.
FCLONE = 2 * SK_BUFF

#: A receive buffer asks for a frame of 1522 bytes, its alignment and the shared info.
RX_DATA = data_size(1522 + 14)
#: Room for headers before what is sent (MAX_TCP_HEADER, with alignment).
TX_HEADERS = 128

MOST_CYCLES = 2**40


@dataclasses.dataclass(frozen=True)
class _Network:
    """Parameters, checked."""

    streams: int
    cpus: int
    irq_cpus: tuple[int, ...]
    app_cpus: tuple[int, ...]
    pinned: bool
    rx_ring: int
    rx_queues: int
    delay_ns: int
    size: int
    interrupt_cycles: int
    task_cycles: int
    transactions: int

    @classmethod
    def of(
        cls,
        streams: int,
        cpus: int,
        irq_cpus: int | Iterable[int],
        app_cpus: int | Iterable[int] | None,
        pinned: bool,
        rx_ring: int,
        rx_queues: int,
        round_trip: float | str,
        size: int,
        stack_cycles: int,
        app_cycles: int,
        transactions: int | None,
    ) -> _Network:
        cpus = whole("cpus={}", cpus, 1, 2**16)
        stack = whole("stack_cycles={}", stack_cycles, 0, MOST_CYCLES)
        own = range(cpus) if app_cpus is None else app_cpus
        return cls(
            streams=whole("streams={}", streams, 1, 10_000),
            cpus=cpus,
            irq_cpus=several_cpus("irq_cpus", irq_cpus, cpus),
            app_cpus=several_cpus("app_cpus", own, cpus),
            pinned=pinned,
            rx_ring=whole("rx_ring={}", rx_ring, 1, 2**16),
            rx_queues=whole("rx_queues={}", rx_queues, 1, 1024),
            delay_ns=parse_time(round_trip),
            size=whole("size={}", size, 1, 1400),
            interrupt_cycles=stack // 2,
            task_cycles=stack - stack // 2 + whole("app_cycles={}", app_cycles, 0, MOST_CYCLES),
            transactions=rounds("transactions={}", transactions),
        )

    def queue(self, number: int) -> tuple[int, int]:
        """Interrupt CPU (its position) and receive queue of a stream: a hash's choice."""
        return number % len(self.irq_cpus), random.Random(number).randrange(self.rx_queues)

    def placed(self, number: int) -> tuple[int, ...]:
        """CPUs of a stream's task: its own in turn, or all."""
        return (self.app_cpus[number % len(self.app_cpus)],) if self.pinned else self.app_cpus


def tcp_rr(
    streams: int = 160,
    *,
    cpus: int = 16,
    irq_cpus: int | Iterable[int] = (0,),
    app_cpus: int | Iterable[int] | None = None,
    pinned: bool = False,
    rx_ring: int = 256,
    rx_queues: int = 1,
    remote: bool = True,
    round_trip: float | str = "60 us",
    size: int = 1,
    stack_cycles: int = 12_000,
    app_cycles: int = 4_000,
    transactions: int | None = 100,
) -> Workload:
    """netperf TCP_RR: each stream sends a request and waits for the response, over and over.

    Sent are a ``skbuff_fclone_cache`` head (464 bytes, 512 with its alignment) and data from
    ``kmalloc-512``; received a head and data from ``kmalloc-2048``.  The received head is taken by
    ``kmalloc(232)``: SLUB merges ``skbuff_head_cache`` into ``kmalloc-256`` and its published
    statistics count it there, one a transaction as of ``kmalloc-2048`` (published_results S1);
    under all policies it comes from a cache of that shape.

    Parameters
    ----------
    streams : int
        Processes of netperf.
    cpus : int
        CPUs of the machine.
    irq_cpus : int or iterable of int
        Stream n is served by the n-th of them, modulo their number.
    app_cpus : int or iterable of int, optional
        CPUs of the streams' tasks; by default all.
    pinned : bool
        Stream n stays on the n-th of these CPUs, modulo their number; by default all are free to
        move between them.
    rx_ring : int
        Buffers allocated ahead in each receive queue; 256 is a usual default of drivers.
    rx_queues : int
        Receive queues of each interrupt CPU, each with a ring of its own. A card with several
        hashes streams to queues; how many fall on one is chance, so rings turn at different speeds
        and buffers come back in another order than they were allocated in.
    remote : bool
        The other end is another host.  False: netperf to localhost, both ends are tasks here and
        each frees what the other sent; there is no ring, no interrupt and no round trip then.
    round_trip : float or str
        From a request sent to the interrupt of its response, the other host's work included.
    size : int
        Bytes of a request and of a response.
    stack_cycles : int
        Work of the network stack a transaction without allocation, one half in the interrupt, one
        half in the task.
    app_cycles : int
        Work of the task a transaction in netperf and system calls.
    transactions : int or None
        Of each stream.  None: without end, for runs with a ``duration``.

    Returns
    -------
    Workload
        Every transaction is marked.

    Notes
    -----
    The defaults follow the SLAB column of T2 at 2.2 GHz: 16 streams make 207 thousand transactions
    a second, 77 us each, of which some 10 us are work and 60 us the network; and no more than 330
    thousand are reached, 6700 cycles of one interrupt CPU each, of which 6000 are stack.  Without a
    measurement of its own, the task's half is taken to be as long.

    Examples
    --------
    >>> import unislab as us
    >>> w = us.workloads.tcp_rr(streams=2, cpus=2, rx_ring=8, transactions=5)
    >>> dict(w.counts) == {"allocs": 2 * 5 * 4 + 2 * 8, "frees": 2 * 5 * 4 + 2 * 8, "marks": 10}
    True
    """
    net = _Network.of(
        streams,
        cpus,
        irq_cpus,
        app_cpus,
        pinned,
        rx_ring,
        rx_queues,
        round_trip,
        size,
        stack_cycles,
        app_cycles,
        transactions,
    )
    made = Workload(f"tcp_rr of {net.streams}" + ("" if remote else " to localhost"))
    head = made.add_cache("skbuff_fclone_cache", FCLONE, align=64)
    return _to_host(made, net, head) if remote else _to_localhost(made, net, head)


def udp_rr(
    streams: int = 160,
    *,
    cpus: int = 16,
    irq_cpus: int | Iterable[int] = (0,),
    app_cpus: int | Iterable[int] | None = None,
    pinned: bool = False,
    rx_ring: int = 256,
    rx_queues: int = 1,
    remote: bool = True,
    round_trip: float | str = "60 us",
    size: int = 1,
    stack_cycles: int = 8_000,
    app_cycles: int = 4_000,
    transactions: int | None = 100,
) -> Workload:
    """netperf UDP_RR: as :func:`tcp_rr`, with less work for the stack and plain heads.

    What is sent has a head of 232 bytes (``kmalloc-256``, as what is received), and there is no
    acknowledgement: it is freed by the driver.

    Parameters
    ----------
    streams, cpus, irq_cpus, app_cpus, pinned, rx_ring, rx_queues, remote, round_trip, size, \
app_cycles, transactions
        As for :func:`tcp_rr`.
    stack_cycles : int
        Two thirds of TCP's, estimated: no sequence numbers, timers and acknowledgements.

    Returns
    -------
    Workload

    Examples
    --------
    >>> import unislab as us
    >>> us.workloads.udp_rr(streams=3, cpus=2, transactions=5).counts["marks"]
    15
    """
    net = _Network.of(
        streams,
        cpus,
        irq_cpus,
        app_cpus,
        pinned,
        rx_ring,
        rx_queues,
        round_trip,
        size,
        stack_cycles,
        app_cycles,
        transactions,
    )
    made = Workload(f"udp_rr of {net.streams}" + ("" if remote else " to localhost"))
    head = made.add_cache("sk_buff", SK_BUFF, kmalloc=True)
    return _to_host(made, net, head) if remote else _to_localhost(made, net, head)


def _request(net: _Network, head: int, data: int) -> ops.Ops:
    """Make a packet in slots 0 and 1: headers and payload are written."""
    return ops.sequence(ops.alloc(head, 0), ops.alloc(data, 1), ops.touch(1, TX_HEADERS + net.size))


def _to_host(made: Workload, net: _Network, tx_head: int) -> Workload:
    tx_data = made.add_cache("tx data", data_size(TX_HEADERS + net.size), kmalloc=True)
    rx_head = made.add_cache("rx sk_buff", SK_BUFF, kmalloc=True)
    rx_data = made.add_cache("rx data", RX_DATA, kmalloc=True)
    refill = ops.sequence(ops.alloc(rx_head, 0), ops.alloc(rx_data, 1))
    queues = list(itertools.product(range(len(net.irq_cpus)), range(net.rx_queues)))
    rings = {queue: PacketQueue(made, net.rx_ring) for queue in queues}
    done = {queue: made.channel(64) for queue in queues}
    served = dict.fromkeys(queues, 0)
    for number in range(net.streams):
        queue = net.queue(number)
        served[queue] += 1
        ring, wire, socket = rings[queue], PacketQueue(made, 1), PacketQueue(made, 1)
        made.add_task(
            ops.barrier(),
            ops.repeat(
                net.transactions,
                _request(net, tx_head, tx_data),
                ops.work(net.task_cycles),
                wire.send(0, 1, delay=net.delay_ns),
                socket.recv(2, 3),
                ops.touch(3, net.size),  # copied to the user
                ops.free([3, 2]),
                ops.mark(),
            ),
            cpu=net.placed(number),
            name=f"netperf {number}",
        )
        made.add_task(
            ops.repeat(
                net.transactions,
                wire.recv(2, 3),
                ring.recv(4, 5),
                refill,
                ring.send(0, 1),
                ops.touch(4),  # the head is filled in
                ops.touch(5, TX_HEADERS),
                ops.work(net.interrupt_cycles),
                ops.free([3, 2]),
                socket.send(4, 5),
            ),
            ops.send(done[queue]),
            cpu=net.irq_cpus[queue[0]],
            name=f"rx {number}",
            interrupt=True,
        )
    for queue in queues:
        cpu = net.irq_cpus[queue[0]]
        made.add_task(
            ops.repeat(net.rx_ring, refill, rings[queue].send(0, 1)),
            ops.barrier(),  # an interrupt leaves this task no time once requests are under way
            ops.repeat(served[queue], ops.recv(done[queue])) if served[queue] else ops.sequence(),
            ops.repeat(net.rx_ring, rings[queue].recv(0, 1), ops.free([1, 0])),
            cpu=cpu,
            name=f"ring {cpu}" + (f".{queue[1]}" if net.rx_queues > 1 else ""),
        )
    return made


def _to_localhost(made: Workload, net: _Network, head: int) -> Workload:
    """The interrupt's half of the stack runs where the sender does, as the loopback device does."""
    data = made.add_cache("data", data_size(TX_HEADERS + net.size), kmalloc=True)
    packet = _request(net, head, data)
    got = ops.sequence(ops.touch(3, net.size), ops.free([3, 2]))
    work = ops.work(net.interrupt_cycles + net.task_cycles)
    for number in range(net.streams):
        request, response = PacketQueue(made, 1), PacketQueue(made, 1)
        made.add_task(
            ops.repeat(
                net.transactions,
                packet,
                work,
                request.send(0, 1),
                response.recv(2, 3),
                got,
                ops.mark(),
            ),
            cpu=net.placed(number),
            name=f"netperf {number}",
        )
        made.add_task(
            ops.repeat(
                net.transactions, request.recv(2, 3), got, packet, work, response.send(0, 1)
            ),
            cpu=net.placed(number),
            name=f"netserver {number}",
        )
    return made
