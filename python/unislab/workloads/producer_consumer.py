"""Objects that are allocated on one CPU and freed on another."""

from __future__ import annotations

from unislab import ops
from unislab.arguments import several, whole
from unislab.workload import Workload
from unislab.workloads.sockets import rounds

__all__ = ["producer_consumer"]


def producer_consumer(
    size: int = 256,
    *,
    messages: int | None = 10_000,
    depth: int = 64,
    cpus: tuple[int, int] = (0, 1),
    pairs: int = 1,
) -> Workload:
    """One task allocates and sends, another receives and frees: every free is of another CPU's.

    Parameters
    ----------
    size : int
        Bytes of an object.
    messages : int or None
        Objects of a pair in one pass.  None: without end, for runs with a ``duration``.
    depth : int
        Objects that may be under way between the two.
    cpus : (int, int)
        Of the producer and of the consumer.
    pairs : int
        Pair k runs two CPUs times k further on; all pairs use one cache.

    Returns
    -------
    Workload
        Every object freed is marked.

    Examples
    --------
    >>> import unislab as us
    >>> us.workloads.producer_consumer(messages=100, pairs=2).counts["allocs"]
    200
    """
    given = several("cpus", cpus, "the CPUs of producer and consumer")
    if len(given) != 2:
        raise ValueError(f"cpus={cpus!r:.60}: expected the CPUs of producer and consumer")
    first, second = (whole("cpus: CPU {}", cpu, 0, 2**16) for cpu in given)
    count = rounds("messages={}", messages)
    made = Workload("producer_consumer")
    cache = made.add_cache("message", size)
    for pair in range(whole("pairs={}", pairs, 1, 2**15)):
        line = made.channel(depth)
        made.add_task(
            ops.repeat(count, ops.alloc(cache, 0), ops.send(line, 0)),
            cpu=first + 2 * pair,
            name=f"producer {pair}",
        )
        made.add_task(
            ops.repeat(count, ops.recv(line, 0), ops.free(0), ops.mark()),
            cpu=second + 2 * pair,
            name=f"consumer {pair}",
        )
    return made
