"""Resident bytes after a burst of 1 GiB that was freed, expired and shrunk."""

from __future__ import annotations

import subprocess
import sys

from figure import Figure, figure

ROUNDS = 3
PROGRAM = """
import gc, resource
import numpy as np
import unislab as us

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()

with us.Allocator("unified", memory="4 GiB") as alloc:
    cache = alloc.create_cache("burst", 256)
    cache.free_bulk(cache.alloc_bulk(100))
    gc.collect()
    start = resident()
    count = (1 << 30) // 256 // 64
    held = [cache.alloc_bulk(count) for _ in range(64)]
    for addresses in held:
        cache.free_bulk(addresses)
    del held, addresses
    idle = 0
    while idle < 2:  # a pass that finds queues in use only clears their marks
        idle = 0 if alloc.expire() else idle + 1
    alloc.shrink()
    gc.collect()
    print(resident() - start)
"""


def figures(rounds: int = ROUNDS) -> list[Figure]:
    """Run the burst in a process of its own, a few times."""
    values = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        values.append(float(done.stdout) / 2**20)
    name = "resident above the start after a burst of 1 GiB"
    return [figure(name, values, "MiB", at_most=2)]
