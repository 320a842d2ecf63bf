"""T4: what the prefetch of the next free object gains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from unislab.explanation import Explanation
from unislab.reproduction.data import published
from unislab.reproduction.judge import Check, percent_more
from unislab.reproduction.points import Outcome, Point, Stretches
from unislab.reproduction.table import Judged, Key, row_of

__all__ = ["Prefetch"]


@dataclasses.dataclass(frozen=True)
class Prefetch:
    """T4: prefetch of the next free object, off and on, under TCP_RR and UDP_RR.

    The mail names no machine. Its cycles over its task-clock make 2.2 GHz, so the 16-CPU machine of
    that clock is taken. CPU 0 serves interrupts, the others run the clients. These stay where they
    are: which CPUs a balancer gives them changes more, from one run to the next, than a prefetch.
    """

    name: str = "T4"
    axis: str = "figure"

    def points(self, quick: bool, seed: int) -> dict[Key, Point]:
        """See :class:`Table`."""
        times = Stretches.of("100 ms", "400 ms") if not quick else Stretches.of("20 ms", "40 ms")
        parameters = (
            ("streams", 32),
            ("cpus", 16),
            ("irq_cpus", (0,)),
            ("app_cpus", tuple(range(1, 16))),
            ("pinned", True),
            ("transactions", None),
        )
        return {
            (kind, f"prefetch {on}"): Point(
                "amd_16core_2010",
                kind,
                parameters,
                "slub-partial",
                (("epoch", "3.2"), ("prefetch", on)),
                times,
                seed,
            )
            for kind in ("tcp_rr", "udp_rr")
            for on in (0, 1)
        }

    def judge(self, done: Mapping[Key, Outcome]) -> Judged:
        """See :class:`Table`."""
        table = published("T4").set_index("figure")
        changes = {
            kind: (
                percent_more(*(_busy(done[kind, f"prefetch {on}"]) for on in (1, 0))),
                percent_more(*(done[kind, f"prefetch {on}"].rate for on in (0, 1))),
            )
            for kind in ("tcp_rr", "udp_rr")
        }
        cycles, elapsed = changes["tcp_rr"]
        was_cycles, was_elapsed = (
            percent_more(table["after"][name], table["before"][name])
            for name in ("cycles G", "elapsed s")
        )
        spent = _busy(done["tcp_rr", "prefetch 0"]) * 2.2e9
        udp = changes["udp_rr"][0]
        rows = [
            row_of("TCP_RR", "cycles", was_cycles, cycles, "%", cycles < 0),
            row_of("TCP_RR", "elapsed", was_elapsed, elapsed, "%", elapsed < 0),
            row_of("TCP_RR", "cycles a transaction", 83.564e9 / 3.2e6, spent, "cycles"),
        ]
        checks = [
            Check(
                "TCP_RR: change of cycles",
                f"{cycles:+.2f} %",
                "-2.1 within 1 point",
                abs(cycles + 2.1) <= 1,
                cycles < 0,
            ),
            Check(
                "TCP_RR: change of elapsed time",
                f"{elapsed:+.2f} %",
                "-6 to -1",
                -6 <= elapsed <= -1,
                elapsed < 0,
            ),
            Check(
                "UDP_RR gains more cycles than TCP_RR",
                f"{udp:+.2f} % against {cycles:+.2f} %",
                "yes",
                udp < cycles,
                udp < cycles,
            ),
        ]
        curves = [
            {
                "column": row["figure"],
                "x": i,
                "published": row["published"],
                "modelled": row["modelled"],
            }
            for i, row in enumerate(rows[:2])
        ]
        miss = ("tcp_rr", "prefetch 0", "prefetch 1")
        return Judged(rows, checks, curves=curves, misses=[miss])


def _busy(outcome: Outcome) -> float:
    """Seconds of CPU time a MARK."""
    result = outcome.result
    assert isinstance(result.explanation, Explanation) and result.marks
    return sum(s for phase, s in result.explanation.time.items() if phase != "idle") / result.marks
