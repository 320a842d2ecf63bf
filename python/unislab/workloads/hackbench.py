"""hackbench: groups of tasks that pass messages over sockets."""

from __future__ import annotations

from unislab import ops
from unislab.arguments import whole
from unislab.workload import Workload
from unislab.workloads.sockets import SHARED_INFO, PacketQueue, data_size, rounds

__all__ = ["hackbench"]

#: Tasks of a group on each side, as hackbench has them.
TASKS = 20

#: Bytes of ``struct sk_buff`` in 2.6.2x and 2.6.3x on 64 bits.
SK_BUFF = 232

#: Cycles of work that a message costs more on each side when every switch changes address spaces.
PROCESS_CYCLES = 150


def hackbench(
    groups: int = 10,
    loops: int | None = 10,
    *,
    mode: str = "process",
    tasks: int = TASKS,
    size: int = 100,
    socket_buffer: int = 124_928,
    send_cycles: int = 3000,
    recv_cycles: int = 2000,
) -> Workload:
    """Groups of senders and receivers over stream sockets of the Unix domain.

    In each group every sender writes ``loops`` messages to each receiver.  A message is a sk_buff
    head (``skbuff_head_cache``, 232 bytes) and its data (kmalloc of the message in whole cache
    lines and 320 bytes of shared info: ``kmalloc-512`` for 100 bytes), allocated by the sender and
    freed by the receiver, wherever the scheduler put the two.  Each task is free to move.

    Parameters
    ----------
    groups : int
        Each has ``tasks`` senders and as many receivers.
    loops : int or None
        None: without end, for runs with a ``duration``.
    mode : {"process", "thread"}
        Processes pay 150 cycles more a message on each side: their switches change the address
        space (estimated; allocation does not differ).
    tasks : int
        20 in hackbench.
    size : int
        Bytes of a message, 100 in hackbench.
    socket_buffer : int
        Bytes that may wait in one socket: 124 928 was the default of 2.6 on 64 bits, 256 packets of
        ``sizeof(struct sk_buff) + 256`` bytes.  A message counts with its data in whole cache lines
        and its head, so 348 of 100 bytes fit.
    send_cycles, recv_cycles : int
        Work of a message beside allocation, copying and waiting: system call, socket, wake-up.
        Estimated from the SLAB column of the published hackbench runs (algorithms 6.2): 800 million
        messages take 279 s on eight 2.8 GHz CPUs, so 7800 cycles each, of which some 2800 are
        switches, copies and four calls of the allocator.

    Returns
    -------
    Workload
        Every message received is marked.

    Notes
    -----
    The published runs are ``hackbench(100, 2000)`` and alike; natively each task is a thread, so
    100 groups are 4000 of them.

    Examples
    --------
    >>> import unislab as us
    >>> w = us.workloads.hackbench(groups=2, loops=3, tasks=4)
    >>> messages = 2 * 4 * 4 * 3
    >>> dict(w.counts) == {"allocs": 2 * messages, "frees": 2 * messages, "marks": messages}
    True
    """
    groups = whole("groups={}", groups, 1, 1000)
    tasks = whole("tasks={}", tasks, 1, 1000)
    size = whole("size={}", size, 1, 65_536)
    loops = rounds("loops={}", loops)
    if groups * tasks > 30_000:
        raise ValueError(f"groups={groups}, tasks={tasks}: expected at most 30000 of each side")
    if mode not in ("process", "thread"):
        raise ValueError(f"mode={mode!r}: expected 'process' or 'thread'")
    more = PROCESS_CYCLES if mode == "process" else 0
    counted = data_size(size) - SHARED_INFO + SK_BUFF
    buffer = whole("socket_buffer={}", socket_buffer, 1, 2**30)
    capacity = min(-(-buffer // counted), 2**20)
    made = Workload(f"hackbench {groups} {mode}")
    head = made.add_cache("skbuff_head_cache", SK_BUFF, align=64)
    data = made.add_cache("data", data_size(size), kmalloc=True)
    send_work = ops.work(whole("send_cycles={}", send_cycles, 0, 2**40) + more)
    recv_work = ops.work(whole("recv_cycles={}", recv_cycles, 0, 2**40) + more)
    for group in range(groups):
        sockets = [PacketQueue(made, capacity) for _ in range(tasks)]
        packet = ops.sequence(ops.alloc(head, 0), ops.alloc(data, 1), ops.touch(1, size), send_work)
        sender = [ops.sequence(packet, socket.send(0, 1)) for socket in sockets]
        for number in range(tasks):
            made.add_task(ops.repeat(loops, *sender), name=f"sender {group}.{number}")
        for number, socket in enumerate(sockets):
            got = ops.sequence(socket.recv(0, 1), recv_work, ops.touch(1, size))
            made.add_task(
                ops.repeat(loops * tasks, got, ops.free([1, 0]), ops.mark()),
                name=f"receiver {group}.{number}",
            )
    return made
