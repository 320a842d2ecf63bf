"""Modelled machines: events a second of processor time, memory and comparisons by their CPUs.

An event is an op; a TOUCH counts once a line. The mix: half of the CPUs allocate and send, the
others receive, touch and free; every CPU works, marks and allocates for itself in between.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

import unislab as us
from figure import Figure, figure
from unislab import ops

ROUNDS = 3
EVENTS = 1_500_000  # of a measured run, about
LEAST_RATE = {16: 3.0, 4096: 1.0}  # million events a second
MOST_KIB = 256  # a virtual CPU, beside the allocator's own


def mix(cpus: int, rounds: int) -> us.Workload:
    """Pairs of CPUs that pass objects on, with work and objects of their own."""
    made = us.Workload("mix")
    passed, own = made.add_cache("passed", 256), made.add_cache("own", 128)
    alone = ops.sequence(ops.work(400), ops.alloc(own, 1), ops.touch(1), ops.free(1))
    for cpu in range(0, cpus, 2):
        line = made.channel(64)
        made.add_task(ops.repeat(rounds, ops.alloc(passed, 0), ops.send(line, 0), alone), cpu=cpu)
        made.add_task(
            ops.repeat(rounds, ops.recv(line, 0), ops.touch(0), ops.free(0), alone, ops.mark()),
            cpu=cpu + 1,
        )
    return made


def machine(cpus: int) -> us.Machine:
    """Domains of 8 CPUs, nodes of at most 64, an L2 of 1 MiB a CPU."""
    domain = min(8, cpus)
    node = min(64, cpus)
    made = us.Machine.grid(cpus // node, node // domain, domain)
    return made.replace(caches=made.caches.replace(l2="1 MiB", l2_ways=16))


def measure(policy: str, cpus: int) -> dict[str, float]:
    """One pass, in a process of its own: rate, memory, comparisons of an event."""
    made = mix(cpus, max(4, EVENTS // (cpus * 9)))
    before = _resident()
    with us.Allocator(policy, machine=machine(cpus)) as alloc:
        start = time.process_time()
        result = us.run(made, allocator=alloc)
        seconds = time.process_time() - start
        explained = result.explanation
        assert explained is not None
        own = result.memory["resident_peak"] + result.memory["metadata_peak"]
        return {
            "rate": 3 * explained.counts["events"] / seconds / 1e6,
            "kib": (_resident() - before - own) / cpus / 1024,
            "comparisons": explained.counts["comparisons"] / explained.counts["events"],
        }


def _resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status names no VmRSS")


def _apart(policy: str, cpus: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, policy, str(cpus)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def figures(rounds: int = ROUNDS) -> list[Figure]:
    """Rates at 16 and 4096 CPUs, memory, and comparisons against the logarithm of the CPUs."""
    out = []
    policies = ("unified", "slub", "slab")
    for cpus, least in LEAST_RATE.items():
        for policy in policies:
            runs = [_apart(policy, cpus) for _ in range(rounds)]
            name = f"model of {cpus} CPUs, {policy}"
            rates = [r["rate"] for r in runs]
            out.append(figure(f"{name}: million events/s", rates, "M/s", at_least=least))
            per_level = [r["comparisons"] / math.log2(cpus) for r in runs]
            out.append(figure(f"{name}: comparisons of an event / log2", per_level, at_most=2.5))
            if cpus > 1000:
                kib = [r["kib"] for r in runs]
                out.append(figure(f"{name}: memory a CPU", kib, "KiB", at_most=MOST_KIB))
    return out


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
