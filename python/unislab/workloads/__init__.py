"""Workloads that come with the package: each function returns a :class:`unislab.Workload`.

========================= ========================================================================
:func:`pair`              allocate and free one object, over and over
:func:`batch`             allocate many, then free them, in the same or the reverse order
:func:`producer_consumer` allocate on one CPU, free on another
:func:`slab_test`         the six shapes of the in-kernel test (:data:`SHAPES`)
:func:`hackbench`         groups of tasks that pass messages over sockets
:func:`tcp_rr`            netperf TCP_RR, to another host or to localhost
:func:`udp_rr`            netperf UDP_RR
:func:`fork`              processes that start, execute a program and end
:func:`fork_touch`        the same with user memory
========================= ========================================================================

:func:`names` lists them; :func:`make` builds one from a text, such as
``"hackbench:groups=2:loops=5"``.
"""

from __future__ import annotations

from unislab.workloads.hackbench import hackbench
from unislab.workloads.micro import batch, pair
from unislab.workloads.network import tcp_rr, udp_rr
from unislab.workloads.processes import fork, fork_touch
from unislab.workloads.producer_consumer import producer_consumer
from unislab.workloads.registry import make, names
from unislab.workloads.slab_test import SHAPES, slab_test

__all__ = [
    "SHAPES",
    "batch",
    "fork",
    "fork_touch",
    "hackbench",
    "make",
    "names",
    "pair",
    "producer_consumer",
    "slab_test",
    "tcp_rr",
    "udp_rr",
]
