"""Who takes part in a comparison: a policy, perhaps under tunables, under a label."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unislab.arguments import several

__all__ = ["Entry", "Policies", "entries_of", "read_entry", "unknown_policy"]

#: What the argument ``policies`` may be.
Policies = (
    str
    | Sequence[str | tuple[str, Mapping[str, Any]]]
    | Mapping[str, str | tuple[str, Mapping[str, Any]]]
)

_EXPECTED = "'all', names, ('unified', {'adapt_period': 0}), or a mapping of labels to those"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A policy under tunables, and what results call it."""

    label: str
    policy: str
    tunables: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def unknown_policy(name: object, known: Iterable[str]) -> ValueError:
    """The error for a policy that does not exist: the nearest one, and all there are."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ValueError(f"no policy {name!r}: {hint}known are {', '.join(names)}")


def read_entry(text: str) -> Entry:
    """A name, perhaps with tunables, as the command line has it.

    >>> read_entry("slub").tunables, read_entry("slub:epoch=2.6.25:min_objects=8").tunables
    ({}, {'epoch': '2.6.25', 'min_objects': '8'})
    """
    name, *pairs = (part.strip() for part in text.split(":"))
    tunables = {}
    for pair in pairs:
        tunable, equals, value = (part.strip() for part in pair.partition("="))
        if not (tunable and equals and value):
            raise ValueError(
                f"cannot read {text!r}: expected a policy, or one with tunables, as "
                "'unified:adapt_period=0'"
            )
        tunables[tunable] = value
    return Entry(_label(name, tunables), name, tunables)


def _label(policy: str, tunables: Mapping[str, Any]) -> str:
    return ":".join([policy, *(f"{name}={value}" for name, value in tunables.items())])


def _entry(given: object, label: str | None = None) -> Entry:
    """One element of what the caller gave."""
    if isinstance(given, str):
        read = read_entry(given)
        return dataclasses.replace(read, label=label) if label else read
    if (
        not isinstance(given, tuple)
        or len(given) != 2
        or not isinstance(given[0], str)
        or not isinstance(given[1], Mapping)
    ):
        raise TypeError(f"policies cannot hold {given!r:.60}: expected {_EXPECTED}")
    policy, tunables = given[0], dict(given[1])
    return Entry(label or _label(policy, tunables), policy, tunables)


def entries_of(policies: Policies, known: Sequence[str], reserved: Iterable[str]) -> list[Entry]:
    """Everything that takes part, each label once.

    Parameters
    ----------
    policies
        ``"all"``, names, pairs of name and tunables, or a mapping of labels to those.
    known : sequence of str
        The policies there are.
    reserved : iterable of str
        Labels that mean something else.
    """
    if isinstance(policies, str) and policies == "all":
        return [Entry(name, name) for name in known]
    if isinstance(policies, Mapping):
        found = [_entry(given, _checked(label, reserved)) for label, given in policies.items()]
    else:
        found = [_entry(given) for given in several("policies", policies, _EXPECTED)]
    by_label: dict[str, Entry] = {}
    for entry in found:
        if entry.policy not in known:
            raise unknown_policy(entry.policy, known)
        if entry.label in known and entry.label != entry.policy:
            raise ValueError(
                f"label {entry.label!r} is the name of a policy, and not of {entry.policy!r}: "
                "expected another label"
            )
        if by_label.setdefault(entry.label, entry) != entry:
            raise ValueError(f"two contestants are called {entry.label!r}: give them labels")
    return list(by_label.values())


def _checked(label: object, reserved: Iterable[str]) -> str:
    if not isinstance(label, str):
        raise TypeError(f"a label cannot be {label!r:.60}: expected text")
    if not label or not label.isprintable() or label in set(reserved):
        raise ValueError(f"a label cannot be {label!r}: expected text that nothing else is called")
    return label
