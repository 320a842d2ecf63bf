"""Prints all that some modelled runs tell, for test_model_determinism.py: one line of JSON a run.

python tests/model_digest.py [policy ...]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import unislab as us

MACHINES = {
    "two nodes": us.Machine.grid(2, 2, 4),
    "siblings": us.Machine.grid(1, 2, 2, smt=2),
}


def workloads(cpus: int) -> list[us.Workload]:
    w = us.workloads
    return [
        w.hackbench(1, 2, tasks=4),
        w.producer_consumer(messages=300, pairs=cpus // 2),
        w.tcp_rr(6, cpus=cpus, rx_ring=16, transactions=20),
    ]


def told(result: us.Result) -> dict[str, Any]:
    """Every number that is not of this machine."""
    explained = result.explanation
    assert explained is not None
    memory = {k: v for k, v in result.memory.items() if not k.startswith("resident")}
    return {
        "run": f"{result.policy}, {result.workload}",
        "seconds": result.repeats,
        "marks": result.marks,
        "explained": explained.to_frame()["value"].tolist(),
        "counters": dict(result.counters),
        "caches": result.caches["value"].tolist(),
        "memory": memory,
        "timeline": result.rows,
    }


def main(policies: list[str]) -> None:
    trace = us.datasets.load("files")[:6000]
    for policy in policies or us.policies():
        for machine in MACHINES.values():
            for made in workloads(machine.topology.cpus):
                result = us.run(made, policy, machine=machine, seed=3, timeline="20 us")
                print(json.dumps(told(result)))
        print(json.dumps(told(us.run(trace, policy, machine=MACHINES["siblings"], seed=5))))


if __name__ == "__main__":
    main(sys.argv[1:])
