"""The six shapes of ``slab_test``, the in-kernel test that came with the queueing allocators.

The source printed cycles per operation for 10000 operations each, with sizes of 8 bytes to 16 KiB
on one CPU and to 4 KiB on several.  The last two are those that separate the policies.

========================= ========================================================================
``alloc_touch_free``      CPU 0: N allocations, each object written, then N frees
``pairs``                 CPU 0: N times one allocation and its free
``concurrent_alloc_free`` all CPUs at once: N allocations, then N frees
``concurrent_pairs``      all CPUs at once: N times one allocation and its free
``remote_free``           all CPUs but 0 allocate N objects each, then CPU 0 frees them all
``one_alloc_n_free``      CPU 0 allocates N objects for each other CPU in turn, then those free
                          them
========================= ========================================================================
"""

from __future__ import annotations

from unislab import ops
from unislab.arguments import whole
from unislab.errors import unknown_name
from unislab.sizes import parse_size
from unislab.workload import Workload

__all__ = ["SHAPES", "slab_test"]

#: Names of the shapes, those of one CPU first.
SHAPES = (
    "alloc_touch_free",
    "pairs",
    "concurrent_alloc_free",
    "concurrent_pairs",
    "remote_free",
    "one_alloc_n_free",
)
_SINGLE = SHAPES[:2]
_HANDED_ON = SHAPES[4:]


def slab_test(
    shape: str = "remote_free", size: int | str = 256, *, n: int = 10_000, cpus: int = 2
) -> Workload:
    """One shape of ``slab_test``, on kmalloc of one size.

    Parameters
    ----------
    shape : str
        One of ``alloc_touch_free``, ``pairs`` (CPU 0 alone), ``concurrent_alloc_free``,
        ``concurrent_pairs``, ``remote_free``, ``one_alloc_n_free`` (all CPUs).
    size : int or str
        Bytes of an object: 8 to 16 KiB on one CPU, to 4 KiB on several.
    n : int
        Operations of each CPU; in ``one_alloc_n_free`` objects for each consumer.
    cpus : int
        CPUs of the shapes for several, 2 or more where objects change hands.  Task k runs on CPU k.

    Returns
    -------
    Workload

    Notes
    -----
    The phases of the last two shapes are divided by a barrier, so that in a pass every allocation
    comes before every free.

    Examples
    --------
    >>> import unislab as us
    >>> us.workloads.slab_test("remote_free", 64, n=100, cpus=4).counts["frees"]
    300
    >>> [us.workloads.slab_test(s, n=10).counts["allocs"] for s in us.workloads.SHAPES]
    [10, 10, 20, 20, 10, 10]
    """
    if shape not in SHAPES:
        raise unknown_name("shape", shape, SHAPES)
    n = whole("n={}", n, 1, 10**6)
    least = 2 if shape in _HANDED_ON else 1
    cpus = 1 if shape in _SINGLE else whole(f"cpus={{}} ({shape})", cpus, least, 4096)
    largest = 16_384 if shape in _SINGLE else 4096
    bytes_ = whole(f"size={size!r}", parse_size(size), 8, largest, f"8 to {largest} bytes")
    made = Workload(f"slab_test {shape} {bytes_}")
    cache = made.add_cache("object", bytes_, kmalloc=True)
    for cpu in range(cpus):
        made.add_task(*_task(shape, cache, cpu, cpus, n), cpu=cpu, name=f"{shape} {cpu}")
    return made


def _task(shape: str, cache: int, cpu: int, cpus: int, n: int) -> tuple[ops.Ops, ...]:
    """The program of one CPU."""
    pair = ops.repeat(n, ops.alloc(cache, 0), ops.free(0))
    if shape == "alloc_touch_free":
        return ops.alloc(cache, range(n)), ops.touch(range(n)), ops.free(range(n))
    if shape == "concurrent_alloc_free":
        return ops.barrier(), ops.alloc(cache, range(n)), ops.free(range(n))
    if shape == "pairs":
        return (pair,)
    if shape == "concurrent_pairs":
        return ops.barrier(), pair
    return _handed_on(shape, cache, cpu, cpus, n)


def _handed_on(shape: str, cache: int, cpu: int, cpus: int, n: int) -> tuple[ops.Ops, ...]:
    """CPU k from 1 on has every (cpus - 1)th of the shared slots, CPU 0 has them all."""
    every = range(n * (cpus - 1))
    own = every[cpu - 1 :: cpus - 1] if cpu else every
    alloc = ops.alloc(cache, own, shared=True)
    free = ops.free(own, shared=True)
    begins = (cpu == 0) == (shape == "one_alloc_n_free")
    return (alloc, ops.barrier()) if begins else (ops.barrier(), free)
