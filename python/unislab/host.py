"""This machine as a model: what the system says of its CPUs and caches, and saved costs."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unislab.costs import LINE_BYTES, Caches
from unislab.environment import _cpu_model
from unislab.profiles import server_2026
from unislab.sizes import parse_size
from unislab.topology import Topology

if TYPE_CHECKING:
    from unislab.machine import Machine

__all__ = ["caches", "machine", "saved_path", "shape"]

_CPUS = Path("/sys/devices/system/cpu")


def saved_path() -> Path:
    """Where :meth:`Machine.calibrate <unislab.Machine.calibrate>` keeps what it measured here."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    about = f"{_cpu_model()} {Topology.native().cpus}"
    return Path(home, "unislab", f"machine-{hashlib.sha256(about.encode()).hexdigest()[:12]}.json")


def machine(cls: type[Machine]) -> Machine:
    """The model of this machine, with saved costs where there are some."""
    saved = saved_path()
    topology, smt, numbers = shape()
    note = "Caches from sysfs. " + _numbering(numbers)
    if not saved.is_file():
        return cls(
            topology,
            smt=smt,
            page_size=os.sysconf("SC_PAGE_SIZE"),
            name="host (not calibrated)",
            caches=caches(),
            notes=f"{note}Costs of server_2026: Machine.calibrate() measures those of here.",
        )
    found = cls.from_json(saved)
    kept: dict[str, Any] = json.loads(saved.read_text()).get("calibration", {})
    about = f"Costs of {kept.get('date', 'some time')} in {saved}."
    return found.replace(topology=topology, smt=smt, caches=caches(), notes=note + about)


def _numbering(numbers: list[int]) -> str:
    if numbers == list(range(len(numbers))):
        return ""
    return f"CPUs in the system's numbers: {', '.join(map(str, numbers))}. "


def shape() -> tuple[Topology, int, list[int]]:
    """Topology with a core's threads as neighbours, how many, and the system's CPU numbers."""
    native = Topology.native()
    cores: dict[int, list[int]] = {}
    for cpu in range(native.cpus):
        siblings = _listed(_text(_CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu))
        cores.setdefault(min(siblings, default=cpu), []).append(cpu)
    smt = max(map(len, cores.values()))
    domains = native.cpu_domain
    if any(len(c) != smt or len({domains[cpu] for cpu in c}) > 1 for c in cores.values()):
        smt = 1  # cores of several kinds: each CPU counts as one
        cores = {cpu: [cpu] for cpu in range(native.cpus)}
    numbers = [cpu for core in cores.values() for cpu in core]
    nodes = [native.cpu_node[cpu] for cpu in numbers]
    return Topology(nodes, [domains[cpu] for cpu in numbers]), smt, numbers


def caches() -> Caches:
    """Caches of the first CPU as sysfs has them; what it lacks is as in ``server_2026``."""
    default = server_2026().caches
    levels: dict[int, tuple[int, int]] = {}
    for index in sorted(_CPUS.glob("cpu0/cache/index*")):
        if _text(index / "type") not in ("Data", "Unified"):
            continue
        try:
            level = int(_text(index / "level") or 0)
            size = parse_size(_text(index / "size") or "")
            levels[level] = size, int(_text(index / "ways_of_associativity") or 0)
        except ValueError:
            continue
    l1 = levels.get(1, (default.l1, default.l1_ways))
    last = levels[max(levels)] if max(levels, default=0) > 1 else (default.llc, default.llc_ways)
    # Where the last level is the second, there is no cache between: one as L1 never hits alone.
    l2 = levels[2] if 2 in levels and max(levels) > 2 else l1
    if not levels:
        l2 = (default.l2, default.l2_ways)
    l2 = max(l2, l1)
    last = max(last, l2)
    given: dict[str, int] = {}
    for name, (size, ways) in (("l1", l1), ("l2", l2), ("llc", last)):
        given |= {name: size, f"{name}_ways": _fitting(size, ways)}
    return Caches(**given)


def _fitting(size: int, ways: int) -> int:
    """Ways that divide the size: the system's, where it names any."""
    for guess in (ways, 16, 12, 8, 4, 2):
        if 1 <= guess <= 1024 and size % (guess * LINE_BYTES) == 0:
            return guess
    return 1


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _listed(text: str) -> list[int]:
    """CPUs of a list as the system writes it: ``0,4-6``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
