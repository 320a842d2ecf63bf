"""The machines of the tests: scripted ones of any shape, and shapes declared over real CPUs."""

from __future__ import annotations

import os

import pytest

import unislab as us

CPUS = sorted(os.sched_getaffinity(0))


def grid(nodes: int = 1, domains: int = 1, cpus: int = 2) -> us.Machine:
    """A scripted machine: nodes × domains per node × CPUs per domain."""
    return us.Machine.grid(nodes=nodes, domains_per_node=domains, cpus_per_domain=cpus)


def declared(cpu_node: list[int], cpu_domain: list[int] | None = None) -> us.Topology:
    """A topology declared over the CPUs at hand."""
    return us.Topology(cpu_node=cpu_node, cpu_domain=cpu_domain or cpu_node)


def place(kind: str, nodes: int = 1, cpus: int = 2) -> dict[str, object]:
    """Keywords for an allocator on a scripted machine or on this one, of the same shape."""
    if kind == "model":
        return {"machine": grid(nodes, 1, cpus)}
    layout = [node for node in range(nodes) for _ in range(cpus)]
    if not set(range(len(layout))) <= set(CPUS):
        pytest.skip(f"needs CPUs 0 to {len(layout) - 1}, this process may use {CPUS}")
    return {"topology": declared(layout)}
