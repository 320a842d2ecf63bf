"""What each published table is modelled by: machine, workload, policies, virtual time, and checks.

Constants of T1's and T2's workloads come from the data file that tools/fit.py writes; X3 and X5
were taken on T2's machines, or their like, and use T2's. All else are the workloads' own defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unislab.reproduction.data import fitted
from unislab.reproduction.differences import Differences
from unislab.reproduction.min_objects import MinObjects
from unislab.reproduction.points import ONE_PASS, Point, Stretches
from unislab.reproduction.policies import Policy
from unislab.reproduction.prefetch import Prefetch
from unislab.reproduction.slow_shares import SlowShares
from unislab.reproduction.table import Table

__all__ = ["NOT_BUILT", "TABLES", "network_point"]

#: Published, but there is nothing yet that it could be run with.
NOT_BUILT = {
    "T5": "accounting to groups is not built yet",
    "X4": "its tests (kernbench, fsmark, sysbench, streams) are not built yet",
}

#: The mails name no card. Those of the time for servers had about eight queues; with one alone,
#: buffers come back in the order that they were allocated in, and few calls of SLUB are slow.
RX_QUEUES = 8

_LONG, _SHORT = Stretches.of("100 ms", "100 ms"), Stretches.of("20 ms", "20 ms")
_QUICK_ROWS = (0, 1, 3, 9)


def network_point(
    streams: int,
    policy: Policy,
    times: Stretches,
    seed: int,
    constants: Mapping[str, Any],
    machine: str = "amd_16core_2010",
    cpus: int = 16,
) -> Point:
    """TCP_RR to another host, with the constants of a fit.

    ``serial_ns`` is the serial part outside this host: what each stream adds to the round trips of
    all, on the wire and at the other end, where the streams' requests arrive in bursts.
    """
    parameters = {
        "streams": int(streams),
        "cpus": cpus,
        "irq_cpus": tuple(range(constants["irq_cpus"])),
        "rx_ring": constants["rx_ring"],
        "rx_queues": RX_QUEUES,
        "round_trip": f"{constants['round_trip_ns'] + constants['serial_ns'] * int(streams)} ns",
        "stack_cycles": constants["stack_cycles"],
        "app_cycles": constants["app_cycles"],
        "transactions": None,
    }
    return Point(machine, "tcp_rr", tuple(parameters.items()), *policy, times, seed)


def _network(table: str) -> Callable[[Mapping[str, Any], Policy, Stretches, int], Point]:
    def point(row: Mapping[str, Any], policy: Policy, times: Stretches, seed: int) -> Point:
        return network_point(row["threads"], policy, times, seed, fitted(table))

    return point


def _localhost(row: Mapping[str, Any], policy: Policy, times: Stretches, seed: int) -> Point:
    parameters = {
        "streams": int(row["threads"]),
        "cpus": 64,
        "remote": False,
        "transactions": None,
    }
    return Point("dell_r910_2010", "tcp_rr", tuple(parameters.items()), *policy, times, seed)


def _hackbench(row: Mapping[str, Any], policy: Policy, times: Stretches, seed: int) -> Point:
    # As many messages a row, whole passes: sockets fill and empty in waves, so that no moment is
    # like the next.
    groups = int(row["groups"])
    loops = (2000 if times == _LONG else 200) // groups
    parameters = (("groups", groups), ("loops", loops))
    return Point("intel_8core_2008", "hackbench", parameters, *policy, ONE_PASS, seed)


_T1 = Differences(
    "T1",
    "threads",
    "SLAB",
    ("SLUB", "SLUB+patchset"),
    _network("T1"),
    _LONG,
    _SHORT,
    _QUICK_ROWS,
    bounds={"SLUB": 5.0, "SLUB+patchset": 2.5},
)

TABLES: dict[str, Table] = {
    "T1": _T1,
    "S1": SlowShares(_T1),
    "T2": Differences(
        "T2",
        "threads",
        "SLAB",
        ("Unified V4",),
        _network("T2"),
        _LONG,
        _SHORT,
        _QUICK_ROWS,
        bounds={"Unified V4": 4.0},
    ),
    "T3": MinObjects(),
    "T4": Prefetch(),
    "X1": Differences(
        "X1",
        "threads",
        "SLAB",
        ("Unified V4", "SLUB"),
        _localhost,
        Stretches.of("10 ms", "10 ms"),
        Stretches.of("2 ms", "2 ms"),
        (0, 11),
    ),
    "X2": Differences(
        "X2",
        "groups",
        "SLAB",
        ("SLUB", "SLUB+Q"),
        _hackbench,
        _LONG,
        _SHORT,
        (2, 3),
        seconds=True,
        notes=(
            "2000 loops divided by the groups, so that every row passes 800 000 messages; rows "
            "that differ in loops alone are the same run",
        ),
    ),
    "X3": Differences(
        "X3",
        "threads",
        "SLAB",
        ("SLUB+Q V2",),
        _network("T2"),
        _LONG,
        _SHORT,
        (0, 2),
        notes=("with the constants fitted to T2, which was taken on these machines",),
    ),
    "X5": Differences(
        "X5",
        "threads",
        "SLUB",
        ("SLAB",),
        _network("T2"),
        _LONG,
        _SHORT,
        (0, 2),
        direct={"SLAB": "SLAB vs SLUB %"},
        notes=("with the constants fitted to T2, on machines of the same class; SLUB of 2.6.32",),
    ),
}
