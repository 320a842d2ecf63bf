"""Known machines: their shape, clock, caches and costs, each number with where it is from.

The sources, by the names used below:

AnandTech 2143, 2978, 3648, 14694
    Server reviews of 2006 (Xeon 5345), 2010 (Opteron 6174), 2010 (Xeon X7560) and 2019 (EPYC 7742),
    with tables of load latencies.
AMD 57647, AMD 40546
    AMD's software optimization guides for Zen 4 and for family 10h.
David 2013
    T. David, R. Guerraoui, V. Trigonakis: Everything you always wanted to know about
    synchronization but were afraid to ask, SOSP 2013, table 2: cycles of loads, stores and
    compare-and-swap by the state of the line and the distance, on four Opteron 6172 (2.1 GHz) and
    eight Xeon E7-8867L (2.13 GHz).
Peng 2008
    L. Peng et al.: Memory hierarchy performance measurement of commercial dual-core desktop
    processors, Journal of Systems Architecture 54 (2008).
Giesen 2014
    F. Giesen: atomic_ops_test, cycles of locked operations on a line in L1, with results sent in.
Marr 2002
    D. Marr et al.: Hyper-Threading technology architecture and microarchitecture, Intel Technology
    Journal 6 (2002): up to 30 % more work of two threads.
tsuna 2010
    B. Sigoure: How long does it take to make a context switch?, 2010: ns of a pinned process
    switch by futex, which is a wake-up and a switch.
TechReport 13176, X-bit QX9650
    Reviews of the Opteron 2350 (2007) and of the Core 2 Extreme QX9650 (2007).

The figures of David 2013, Peng 2008, Marr 2002, tsuna 2010 and AMD 57647 were written down from
memory and wait to be compared with the texts; those of the reviews and of Giesen 2014 were read
there.

A source in cycles was divided by the clock that it was measured at; latencies of lines are less an
L1 hit.  What says *estimated* has no published measurement that we know of.  The machines of 2004
to 2010 stand for a kernel, whose memory is mapped for good: a first use of a page costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unislab.costs import WAITER, Caches, Costs

__all__ = ["PROFILES", "Profile", "Shape", "server_2026"]

Row = tuple[float, str]

_FROM_MEMORY = (
    "Boyd-Wickizer 2012",
    "David 2013",
    "Peng 2008",
    "Marr 2002",
    "tsuna 2010",
    "AMD 57647",
)


@dataclass(frozen=True)
class Shape:
    """Nodes of equal domains of equal CPUs, with how many threads a core."""

    nodes: int
    domains_per_node: int
    cpus_per_domain: int
    smt: int = 1


@dataclass(frozen=True)
class Profile:
    """A known machine, but for its topology object."""

    title: str
    shape: Shape
    clock_ghz: float
    caches: Caches
    costs: Costs
    notes: str = ""


def _costs(rows: Mapping[str, Row]) -> Costs:
    values = {name: round(value, 3) for name, (value, _source) in rows.items()}
    return Costs(**values, sources={name: _told(source) for name, (_value, source) in rows.items()})


def _told(source: str) -> str:
    """A source, and whether the text was at hand."""
    unread = any(name in source for name in _FROM_MEMORY)
    return f"{source} [from memory]" if unread else source


def _software(ghz: float, cycles: float, switch: Row, wakeup: Row, zero_gbs: Row) -> dict[str, Row]:
    """What depends on instructions, the kernel and the width of memory more than on distances."""
    one = cycles / ghz
    zero, why = zero_gbs
    return {
        "instruction": (one, f"estimated: {cycles} cycles, code of few misses"),
        "page_alloc": (150 * one, "estimated: 150 instructions"),
        "page_free": (120 * one, "estimated: 120 instructions"),
        "page_zero": (4096 / zero, f"4096 bytes at {zero:g} GB/s: {why}"),
        "page_fault": (0, "a kernel's memory is mapped for good"),
        "interrupt": (1500 / ghz, "estimated: 1500 cycles for entry, soft interrupt and exit"),
        "context_switch": switch,
        "wakeup": wakeup,
        "idle_exit": (2000, "estimated: inter-processor interrupt, exit of C1 and a switch"),
    }


def _lock(atomic: float, one: float) -> Row:
    return atomic + 4 * one, "estimated: an atomic operation and four instructions"


def _handover(near: float, other: float, share: float) -> dict[str, Row]:
    text = f"estimated: mean line transfer, {share:.0%} of other CPUs being in the same domain"
    mean = share * near + (1 - share) * other
    return {"lock_handover": (mean, text), "lock_waiter": (mean / 2, f"estimated: {WAITER}")}


_HARDLY = "not used: a node is one domain"
_ONE_NODE = "not used: one node"
_NO_SMT = (100.0, "one thread a core")
_TWO_THREADS = (154.0, "estimated: two threads do 30 % more than one (Marr 2002), 200 / 1.3")


def _amd_16core_2010() -> Profile:
    ghz, at, l1 = 2.2, 2.1, 3
    one = 0.8 / ghz
    atomic = (18 - l1) / ghz
    near, far = (81 - l1) / at, ((172 + 172 + 252) / 3 - l1) / at
    hops = "David 2013, Opteron, mean of one, one and two hops"
    rows = _software(
        ghz,
        0.8,
        (900, "tsuna 2010: 1400 ns (E5520, 2.27 GHz, the nearest clock), less the wake-up"),
        (500, "estimated: a third of tsuna 2010's 1400 ns (E5520)"),
        (8, "one core of an Opteron 2435 with DDR2-800, AnandTech 3648"),
    ) | {
        "l2_hit": ((16 - l1) / ghz, "16 cycles: AnandTech 2978 (Opteron 6174, 2.2 GHz)"),
        "llc_hit": (23 - l1 / ghz, "23 ns: TechReport 13176 (Opteron 2350, L3 at 1.8 GHz)"),
        "memory": (113 - l1 / ghz, "113 ns: AnandTech 2978 (Opteron 2435, the same DDR2)"),
        "memory_far": (
            113 - l1 / ghz + ((247 + 247 + 327) / 3 - 136) / at,
            f"113 ns and 138 cycles more: {hops}",
        ),
        "line_domain": (near, "81 cycles: David 2013, Opteron, load modified, same die"),
        "line_node": (near, _HARDLY),
        "line_far": (far, f"199 cycles: {hops}, load modified"),
        "invalidate_domain": ((246 - l1) / at, "246 cycles: David 2013, Opteron, store shared"),
        "invalidate_node": ((246 - l1) / at, _HARDLY),
        "invalidate_far": (
            ((286 + 286 + 296) / 3 - l1) / at,
            f"289 cycles: {hops}, store shared",
        ),
        "atomic": (atomic, "18 cycles: Giesen 2014 (Phenom II 925, the same family), locked add"),
        "lock": _lock(atomic, one),
        **_handover(near, far, 3 / 15),
        "smt_slowdown": _NO_SMT,
    }
    return Profile(
        "four quad-core Opterons, 2.2 GHz",
        Shape(4, 1, 4),
        ghz,
        Caches(l1="64 KiB", l1_ways=2, l2="512 KiB", l2_ways=16, llc="2 MiB", llc_ways=32),
        _costs(rows),
        "Caches of the Opteron 8354 (AMD 40546); nodes in a square: two neighbours one hop away, "
        "the third two hops.",
    )


def _front_side_bus(
    ghz: float, cycles: float, l2_cycles: int, memory: Row, line: Row, share: float, l2_source: str
) -> dict[str, Row]:
    """Two cores share an L2, all the rest goes over front-side buses: one node."""
    one, l1 = cycles / ghz, 3
    last = ((l2_cycles - l1) / ghz, l2_source)
    atomic = 20 / ghz
    bus = (line[0] / 2, "estimated: a bus transaction without data, half a line's transfer")
    near = (33.0, "33 ns: Peng 2008, cache to cache of a Core 2 Duo")
    return {
        "l2_hit": (last[0], "as llc_hit: the last level is the L2"),
        "llc_hit": last,
        "memory": memory,
        "memory_far": (memory[0], _ONE_NODE),
        "line_domain": near,
        "line_node": line,
        "line_far": (line[0], _ONE_NODE),
        "invalidate_domain": (near[0], "estimated: as the transfer between the two cores"),
        "invalidate_node": bus,
        "invalidate_far": (bus[0], _ONE_NODE),
        "atomic": (atomic, "estimated: about 20 cycles of a locked operation of Core 2"),
        "lock": _lock(atomic, one),
        **_handover(near[0], line[0], share),
        "smt_slowdown": _NO_SMT,
    }


def _intel_8core_2008() -> Profile:
    ghz = 2.83
    rows = _software(
        ghz,
        0.65,
        (800, "tsuna 2010: 1300 ns (E5440, 2.83 GHz), less the wake-up"),
        (500, "estimated: two fifths of tsuna 2010's 1300 ns (E5440)"),
        (4, "estimated for a front-side bus of 1333 MHz and FB-DIMM"),
    ) | _front_side_bus(
        ghz,
        0.65,
        15,
        (120 - 3 / ghz, "120 ns: AnandTech 2143 (Xeon E5345, same bus and FB-DIMM)"),
        (120, "estimated: a write-back over the bus takes as long as a read of memory"),
        1 / 7,
        "15 cycles: X-bit QX9650 (Penryn)",
    )
    return Profile(
        "Stoakley: two quad-core Xeons E5440, 2.83 GHz",
        Shape(1, 4, 2),
        ghz,
        Caches(l1="32 KiB", l1_ways=8, l2="32 KiB", l2_ways=8, llc="6 MiB", llc_ways=24),
        _costs(rows),
        "Two cores share an L2, which is the last level; one node behind the front-side buses.",
    )


def _intel_16core_2008() -> Profile:
    ghz = 2.93
    rows = _software(
        ghz,
        0.65,
        (800, "tsuna 2010: 1300 ns (E5440, like core), less the wake-up"),
        (500, "estimated: two fifths of tsuna 2010's 1300 ns (E5440)"),
        (3.5, "estimated for a front-side bus of 1066 MHz and FB-DIMM"),
    ) | _front_side_bus(
        ghz,
        0.65,
        14,
        (140, "estimated: 120 ns of AnandTech 2143 (E5345), a slower bus and the snoop filter"),
        (
            (2 * 120 + 12 * 180) / 14,
            "estimated: 120 ns within a package, 180 ns over two buses and the snoop filter",
        ),
        1 / 15,
        "14 cycles: AnandTech 2143 (Xeon E5345)",
    )
    return Profile(
        "Tigerton: four quad-core Xeons X7350, 2.93 GHz",
        Shape(1, 8, 2),
        ghz,
        Caches(l1="32 KiB", l1_ways=8, l2="32 KiB", l2_ways=8, llc="4 MiB", llc_ways=16),
        _costs(rows),
        "Two cores share an L2, which is the last level; four buses, one node.",
    )


def _dell_r910_2010() -> Profile:
    ghz, at, l1 = 2.26, 2.13, 4
    one = 0.55 / ghz
    atomic = (20 - l1) / ghz
    near, far = (109 - 5) / at, (289 - 5) / at
    rows = _software(
        ghz,
        0.55,
        (900, "tsuna 2010: 1400 ns (E5520, 2.27 GHz, same core), less the wake-up"),
        (500, "estimated: a third of tsuna 2010's 1400 ns (E5520)"),
        (5, "one core of an X7560, AnandTech 3648"),
    ) | {
        "l2_hit": ((9 - l1) / ghz, "9 cycles: AnandTech 3648 (X7560)"),
        "llc_hit": ((63 - l1) / ghz, "63 cycles: AnandTech 3648 (X7560)"),
        "memory": (160 - l1 / ghz, "160 ns: AnandTech 3648 (X7560)"),
        "memory_far": (
            160 - l1 / ghz + (492 - 355) / at,
            "160 ns and 137 cycles more: David 2013, Xeon, one hop",
        ),
        "line_domain": (near, "109 cycles: David 2013, Xeon, load modified, same die"),
        "line_node": (near, _HARDLY),
        "line_far": (far, "289 cycles: David 2013, Xeon, load modified, one hop"),
        "invalidate_domain": ((116 - 5) / at, "116 cycles: David 2013, Xeon, store shared"),
        "invalidate_node": ((116 - 5) / at, _HARDLY),
        "invalidate_far": ((318 - 5) / at, "318 cycles: David 2013, Xeon, store shared, one hop"),
        "atomic": (atomic, "estimated: 20 cycles, of Giesen 2014 (i7-3930K, two cores later)"),
        "lock": _lock(atomic, one),
        **_handover(near, far, 15 / 63),
        "smt_slowdown": _TWO_THREADS,
    }
    return Profile(
        "Dell R910: four 8-core Xeons X7560 with two threads a core, 2.26 GHz",
        Shape(4, 1, 16, smt=2),
        ghz,
        Caches(l1="32 KiB", l1_ways=8, l2="256 KiB", l2_ways=8, llc="24 MiB", llc_ways=24),
        _costs(rows),
        "Four sockets, each linked to each.",
    )


def _intel_ht_2004() -> Profile:
    ghz, at, l1 = 3.33, 3.2, 4
    one = 1.2 / ghz
    atomic, bus = 120 / ghz, 195.0
    rows = _software(
        ghz,
        1.2,
        (1200, "estimated: tsuna 2010's 1900 ns (Xeon 5150), less the wake-up"),
        (700, "estimated: a third of tsuna 2010's 1900 ns (Xeon 5150)"),
        (2.5, "estimated for a front-side bus of 667 MHz shared by two"),
    ) | {
        "l2_hit": ((29 - l1) / at, "29 cycles: AnandTech 2143 (Xeon 7130M, 3.2 GHz)"),
        "llc_hit": ((109 - l1) / at, "109 cycles: AnandTech 2143 (Xeon 7130M, 3.2 GHz)"),
        "memory": (195 - l1 / at, "195 ns: AnandTech 2143 (four Xeon 7130M, same chipset family)"),
        "memory_far": (195 - l1 / at, _ONE_NODE),
        "line_domain": ((109 - l1) / at, "not used: a domain is one core, which shares its L1"),
        "line_node": (bus, "estimated: a write-back over the bus takes as long as memory"),
        "line_far": (bus, _ONE_NODE),
        "invalidate_domain": (0, "not used: a domain is one core, which shares its L1"),
        "invalidate_node": (bus / 2, "estimated: a bus transaction without data"),
        "invalidate_far": (bus / 2, _ONE_NODE),
        "atomic": (atomic, "estimated: about 120 cycles of a locked operation of Netburst"),
        "lock": _lock(atomic, one),
        **_handover(0, bus, 1 / 7),
        "smt_slowdown": _TWO_THREADS,
    }
    return Profile(
        "Harwich: four Xeons MP with two threads a core, 3.33 GHz",
        Shape(1, 4, 2, smt=2),
        ghz,
        Caches(l1="16 KiB", l1_ways=8, l2="1 MiB", l2_ways=8, llc="8 MiB", llc_ways=16),
        _costs(rows),
        "One core a package, its own L3; ways of the L3 are estimated; one node.",
    )


def server_2026(sockets: int = 2) -> Profile:
    """A server of 64-core packages, 8 cores with two threads to a last-level cache."""
    ghz, l1 = 3.7, 4
    one = 0.4 / ghz
    cpus = 128 * sockets
    near, node, far = 24.0, 95.0, 200.0
    rows = _software(
        ghz,
        0.4,
        (900, "estimated: with mitigations a switch is hardly shorter than in 2010"),
        (500, "estimated: as in 2010"),
        (20, "estimated for one core"),
    ) | {
        "page_fault": (500, "estimated: an anonymous page, its zeroing by the system included"),
        "l2_hit": ((14 - l1) / ghz, "14 cycles: AMD 57647"),
        "llc_hit": ((50 - l1) / ghz, "50 cycles: AMD 57647"),
        "memory": (122 - l1 / ghz, "122 ns: AnandTech 14694 (EPYC 7742, one node a socket)"),
        "memory_far": (202 - l1 / ghz, "estimated: 80 ns more for the link between sockets"),
        "line_domain": (near, "estimated from core-to-core tests of Zen 3 and Zen 4, one way"),
        "line_node": (node, "estimated from core-to-core tests of Zen 3 and Zen 4, one way"),
        "line_far": (far, "estimated from core-to-core tests of Zen 3 and Zen 4, one way"),
        "invalidate_domain": (near, "estimated: as line_domain"),
        "invalidate_node": (node, "estimated: as line_node"),
        "invalidate_far": (far, "estimated: as line_far"),
        "atomic": (8 / ghz, "estimated: about 8 cycles of a locked operation of Zen 4"),
        "lock": _lock(8 / ghz, one),
        **_handover(near, node, 15 / 127),
        "smt_slowdown": _TWO_THREADS,
    }
    return Profile(
        f"{sockets} x 64 cores with two threads, 8 cores a last-level cache, 3.7 GHz",
        Shape(sockets, 8, 16, smt=2),
        ghz,
        Caches(l1="32 KiB", l1_ways=8, l2="1 MiB", l2_ways=8, llc="32 MiB", llc_ways=16),
        _costs(rows),
        f"{cpus} CPUs, a node a socket; caches of Zen 4 (AMD 57647).",
    )


#: By name; each is made when it is asked for.
PROFILES: dict[str, Callable[[], Profile]] = {
    "amd_16core_2010": _amd_16core_2010,
    "intel_8core_2008": _intel_8core_2008,
    "intel_16core_2008": _intel_16core_2008,
    "dell_r910_2010": _dell_r910_2010,
    "intel_ht_2004": _intel_ht_2004,
    "server_2026": server_2026,
}
