"""Machines as JSON files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unislab.costs import Caches, Costs
from unislab.topology import Topology

if TYPE_CHECKING:
    from unislab.machine import Machine

__all__ = ["from_record", "read", "record", "write"]

_FORMAT = "unislab machine 1"
_PLAIN = ("name", "smt", "page_size", "clock_ghz", "notes")


def record(machine: Machine) -> dict[str, Any]:
    """All of a machine, as JSON holds it."""
    found: dict[str, Any] = {"format": _FORMAT}
    found |= {name: getattr(machine, name) for name in _PLAIN}
    found["cpu_node"] = list(machine.topology.cpu_node)
    found["cpu_domain"] = list(machine.topology.cpu_domain)
    found["caches"] = dataclasses.asdict(machine.caches)
    found["costs"] = dataclasses.asdict(machine.costs)
    return found


def from_record(cls: type[Machine], found: object) -> Machine:
    """The machine of a record."""
    if not isinstance(found, Mapping) or found.get("format") != _FORMAT:
        raise ValueError(f"this is no machine: expected an object with format {_FORMAT!r}")
    try:
        return cls(
            Topology(found["cpu_node"], found["cpu_domain"]),
            caches=Caches(**found["caches"]),
            costs=Costs(**found["costs"]),
            **{name: found[name] for name in _PLAIN},
        )
    except KeyError as error:
        raise ValueError(f"the machine lacks {error}") from error
    except TypeError as error:
        raise ValueError(f"the machine has a field of the wrong kind: {error}") from error


def write(
    machine: Machine, path: str | os.PathLike[str], more: Mapping[str, Any] | None = None
) -> None:
    """Write a machine, and what else is to be kept beside it, whole or not at all."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: expected the name of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {target.parent} to write {target.name} in")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(json.dumps(record(machine) | dict(more or {}), indent=1) + "\n")
    draft.replace(target)


def read(cls: type[Machine], path: str | os.PathLike[str]) -> Machine:
    """The machine in a file."""
    try:
        return from_record(cls, json.loads(Path(path).read_text()))
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)}: {error}: expected JSON") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{os.fspath(path)}: {error}: expected JSON") from error
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error
