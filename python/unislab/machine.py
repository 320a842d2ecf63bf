"""Machines: this one, and machines that need not exist.

A :class:`Topology` says which CPU belongs to which node and cache domain. Given to an
:class:`~unislab.Allocator` as ``topology=``, it lays nodes and domains over the CPUs at hand, so
that their paths run for real on a one-node machine. A :class:`Machine`, given as ``machine=``,
replaces this machine by a scripted one of any size, on which nothing happens but what the script
says, and each thing takes as long as the machine's costs say.
"""

from __future__ import annotations

import dataclasses
import html
import os
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from unislab.arguments import whole
from unislab.costs import COST_NAMES, Caches, Costs, checked_number
from unislab.profiles import PROFILES, Profile, server_2026
from unislab.topology import Topology, check_counts, grid_topology

__all__ = ["Machine", "Topology", "core_of"]

_DEFAULT = server_2026()


@dataclass(frozen=True, repr=False)
class Machine:
    """A machine that need not exist: its CPUs, caches and costs.

    Make one with :meth:`grid`, :meth:`from_topology`, one of the known machines
    (:meth:`amd_16core_2010` and its like), or :meth:`host`. Outside a workload, single operations
    are scripted: the current CPU is what :meth:`Allocator.on_cpu <unislab.Allocator.on_cpu>` says,
    CPU 0 at first; the clock stands still but for :meth:`Allocator.advance
    <unislab.Allocator.advance>`; everything is deterministic.

    Parameters
    ----------
    topology : Topology
        Its CPUs.
    smt : int
        Threads of a core; neighbouring CPUs are siblings.
    page_size : int
        Bytes of a page, a power of two from 4096 on.
    name : str
        For texts and plots.
    clock_ghz : float
        Cycles of a nanosecond.
    caches : Caches
        Sizes and ways; by default those of :meth:`server_2026`, as are the clock and the costs.
    costs : Costs
        Nanoseconds of everything, with their sources.
    notes : str
        What else there is to say, such as where the costs were measured.

    Examples
    --------
    >>> import unislab as us
    >>> machine = us.Machine.grid(nodes=2, domains_per_node=1, cpus_per_domain=2)
    >>> with us.Allocator("unified", machine=machine) as alloc:
    ...     cache = alloc.create_cache("pair", 16)
    ...     with alloc.on_cpu(3):
    ...         address = cache.alloc_address()
    ...     cache.slabs()["node"].tolist()
    ...     cache.free(address)
    [1]
    """

    topology: Topology
    smt: int = 1
    page_size: int = 4096
    name: str = field(default="machine", compare=False)
    clock_ghz: float = _DEFAULT.clock_ghz
    caches: Caches = _DEFAULT.caches
    costs: Costs = _DEFAULT.costs
    notes: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name, kind in (("topology", Topology), ("caches", Caches), ("costs", Costs)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} cannot be {value!r}: expected a unislab.{kind.__name__}")
        for name in ("name", "notes"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} cannot be {getattr(self, name)!r:.60}: expected text")
        check_counts(smt=self.smt)
        whole("page_size", self.page_size, 4096, 65536, "a power of two, 4096 to 65536")
        if self.topology.cpus % self.smt:
            raise ValueError(f"{self.topology.cpus} CPUs are not a multiple of smt={self.smt}")
        domains = self.topology.cpu_domain
        for first in range(0, len(domains), self.smt):
            if len(set(domains[first : first + self.smt])) > 1:
                raise ValueError(
                    f"CPUs {first} to {first + self.smt - 1} are threads of a core but lie in "
                    "several cache domains: expected all of a core in one"
                )
        if self.page_size & (self.page_size - 1):
            raise ValueError(
                f"page_size cannot be {self.page_size}: expected a power of two, 4096 to 65536"
            )
        clock = checked_number("clock_ghz", self.clock_ghz, 0.001, 100, "GHz")
        object.__setattr__(self, "clock_ghz", clock)

    @classmethod
    def grid(
        cls,
        nodes: int,
        domains_per_node: int,
        cpus_per_domain: int,
        smt: int = 1,
        *,
        page_size: int = 4096,
    ) -> Machine:
        """A regular machine: nodes of equal domains of equal CPUs, numbered in that order.

        Parameters
        ----------
        nodes, domains_per_node, cpus_per_domain : int
            How many of each.
        smt : int
            Threads of a core, counted in ``cpus_per_domain``.
        page_size : int
            Bytes of a page.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.grid(nodes=2, domains_per_node=2, cpus_per_domain=4)
        <Machine grid 2x2x4: 2 nodes, 4 domains, 16 CPUs>
        """
        topology = grid_topology(nodes, domains_per_node, cpus_per_domain)
        name = f"grid {nodes}x{domains_per_node}x{cpus_per_domain}"
        return cls(topology, smt=smt, page_size=page_size, name=name)

    @classmethod
    def from_topology(cls, topology: Topology, *, name: str = "machine") -> Machine:
        """A scripted machine with the CPUs of a topology.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.from_topology(us.Topology([0, 1])).cpus
        2
        """
        return cls(topology, name=name)

    @classmethod
    def _from_profile(cls, name: str, profile: Profile) -> Machine:
        shape = profile.shape
        return cls(
            grid_topology(shape.nodes, shape.domains_per_node, shape.cpus_per_domain),
            smt=shape.smt,
            name=name,
            clock_ghz=profile.clock_ghz,
            caches=profile.caches,
            costs=profile.costs,
            notes=f"{profile.title}. {profile.notes}",
        )

    @classmethod
    def profiles(cls) -> list[str]:
        """Names of the known machines, each made by the class method of that name.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.profiles()[0]
        'amd_16core_2010'
        """
        return list(PROFILES)

    @classmethod
    def profile(cls, name: str) -> Machine:
        """A known machine by its name, ``"host"`` for this one.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.profile("dell_r910_2010").cpus
        64
        """
        if name == "host":
            return cls.host()
        if name not in PROFILES:
            raise ValueError(
                f"no machine {name!r:.60}: expected host, {', '.join(PROFILES)}; "
                "Machine.grid makes others, Machine.from_json reads a file"
            )
        return cls._from_profile(name, PROFILES[name]())

    @classmethod
    def amd_16core_2010(cls) -> Machine:
        """Four quad-core Opterons of 2.2 GHz, four nodes: the netperf tables of 2010.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.amd_16core_2010()
        <Machine amd_16core_2010: 4 nodes, 4 domains, 16 CPUs>
        """
        return cls.profile("amd_16core_2010")

    @classmethod
    def intel_8core_2008(cls) -> Machine:
        """Stoakley, two quad-core Xeons on front-side buses: hackbench against ``min_objects``.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.intel_8core_2008()
        <Machine intel_8core_2008: 1 node, 4 domains, 8 CPUs>
        """
        return cls.profile("intel_8core_2008")

    @classmethod
    def intel_16core_2008(cls) -> Machine:
        """Tigerton, four quad-core Xeons: shares of CPU time in slab allocation.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.intel_16core_2008()
        <Machine intel_16core_2008: 1 node, 8 domains, 16 CPUs>
        """
        return cls.profile("intel_16core_2008")

    @classmethod
    def dell_r910_2010(cls) -> Machine:
        """Four 8-core Xeons with two threads a core: 64 CPUs on four nodes.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.dell_r910_2010()
        <Machine dell_r910_2010: 4 nodes, 4 domains, 64 CPUs>
        """
        return cls.profile("dell_r910_2010")

    @classmethod
    def intel_ht_2004(cls) -> Machine:
        """Harwich, four single-core Xeons with two threads: hackbench on 8 logical CPUs.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.intel_ht_2004()
        <Machine intel_ht_2004: 1 node, 4 domains, 8 CPUs>
        """
        return cls.profile("intel_ht_2004")

    @classmethod
    def server_2026(cls, sockets: int = 2) -> Machine:
        """A server of 64-core packages, two threads a core, 8 cores a last-level cache.

        Parameters
        ----------
        sockets : int
            Packages, each a node of 128 CPUs.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.server_2026(sockets=1)
        <Machine server_2026: 1 node, 8 domains, 128 CPUs>
        """
        check_counts(sockets=sockets)
        return cls._from_profile("server_2026", server_2026(sockets))

    @classmethod
    def host(cls) -> Machine:
        """A model of this machine: its CPUs and caches as the system describes them.

        The costs are those that :meth:`calibrate` saved here; before that, those of
        :meth:`server_2026`, and the name says so. Threads of a core are made neighbours.

        Examples
        --------
        >>> import unislab as us
        >>> us.Machine.host().cpus == us.Topology.native().cpus
        True
        """
        from unislab import host

        return host.machine(cls)

    @classmethod
    def calibrate(cls, *, seconds: float = 10, save: bool = True) -> Machine:
        """Measure this machine: caches, lines between CPUs, locks, pages, switches.

        Parameters
        ----------
        seconds : float
            How long to repeat the measurements; one round is made twice at least.
        save : bool
            Keep the result in the user's cache directory, where :meth:`host` finds it: a file as
            of :meth:`to_json` with date, CPU model, medians and lower quartiles beside it.

        Returns
        -------
        Machine
            As :meth:`host`, with the clock and the costs measured; each cost's source says how.

        Examples
        --------
        >>> import unislab as us
        >>> machine = us.Machine.calibrate(seconds=0.01, save=False)
        >>> 0 < machine.costs.l2_hit <= machine.costs.llc_hit <= machine.costs.memory
        True
        """
        from unislab import calibrate

        return calibrate.calibrate(cls, seconds, save)

    def replace(self, **fields: Any) -> Machine:
        """The same but for some fields; ``costs__lock=`` reaches into the costs.

        Parameters
        ----------
        **fields
            Fields of the machine, or of ``costs__`` and ``caches__``.

        Examples
        --------
        >>> import unislab as us
        >>> machine = us.Machine.amd_16core_2010()
        >>> machine.replace(costs__lock=50, caches__llc="6 MiB").costs.lock
        50.0
        """
        changed: dict[str, Any] = {}
        inner: dict[str, dict[str, Any]] = {"costs": {}, "caches": {}}
        names = [f.name for f in dataclasses.fields(self)]
        for name, value in fields.items():
            part, _, rest = name.partition("__")
            if rest and part in inner:
                inner[part][rest] = value
            elif name in names:
                changed[name] = value
            else:
                raise TypeError(
                    f"a machine has no field {name!r}: expected one of {', '.join(names)}, "
                    "costs__NAME or caches__NAME"
                )
        for part, values in inner.items():
            if values:
                changed[part] = changed.get(part, getattr(self, part)).replace(**values)
        return dataclasses.replace(self, **changed)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to a file.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> import unislab as us
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "machine.json"
        ...     us.Machine.amd_16core_2010().to_json(path)
        ...     us.Machine.from_json(path)
        <Machine amd_16core_2010: 4 nodes, 4 domains, 16 CPUs>
        """
        from unislab import _machine_json

        _machine_json.write(self, path)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Machine:
        """Read what :meth:`to_json` or :meth:`calibrate` wrote.

        Raises
        ------
        ValueError
            The file is no such thing; the message says where it is wrong.

        Examples
        --------
        See :meth:`to_json`.

        >>> import unislab as us
        >>> us.Machine.from_json("/nowhere.json")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: '/nowhere.json'
        """
        from unislab import _machine_json

        return _machine_json.read(cls, path)

    @property
    def cpus(self) -> int:
        """Number of CPUs."""
        return self.topology.cpus

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.topology.nodes

    @property
    def domains(self) -> int:
        """Number of cache domains."""
        return self.topology.domains

    def _costs_ps(self) -> dict[str, int]:
        """Costs as the core takes them: whole picoseconds, and percent for ``smt_slowdown``."""
        found = {name: round(getattr(self.costs, name) * 1000) for name in COST_NAMES}
        found["smt_slowdown"] = round(self.costs.smt_slowdown)
        found["cycle"] = round(1000 / self.clock_ghz)
        return found

    def _caches(self) -> dict[str, int]:
        """Caches as the core takes them."""
        return dataclasses.asdict(self.caches)

    def _model(self) -> tuple[dict[str, int], dict[str, int], int]:
        """What the core takes: costs in ps, caches in bytes, threads of a core."""
        return self._costs_ps(), self._caches(), self.smt

    def __repr__(self) -> str:
        return f"<Machine {self.name}: {repr(self.topology)[11:]}"

    def _repr_html_(self) -> str:
        caches = repr(self.caches)[9:-1]
        about = f"{repr(self)[1:-1]}; {self.clock_ghz:g} GHz, smt {self.smt}; {caches}"
        notes = f"<p>{html.escape(self.notes)}</p>" if self.notes else ""
        return f"<p><b>{html.escape(about)}</b></p>{notes}{self.costs._repr_html_()}"


def _document_profiles() -> None:
    """Put each known machine's numbers and their sources into its docstring."""
    for name, make in PROFILES.items():
        profile, method = make(), getattr(Machine, name).__func__
        rows = "\n".join(
            f"        {cost} : {value:.4g} {unit}\n            {source}"
            for cost, value, unit, _text, source in profile.costs.rows()
        )
        notes = f"\n        Notes\n        -----\n        {profile.notes}\n\n{rows}\n"
        method.__doc__ = (method.__doc__ or "") + notes


_document_profiles()


def core_of(machine: Machine | None) -> ModuleType:
    """The extension module that runs a machine: ``_native`` for this one, else ``_model``."""
    if machine is None:
        from unislab import _native

        return _native
    from unislab import _model

    return _model
