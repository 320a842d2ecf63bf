"""What a policy is, what it can be told and what it counts, without a cache at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unislab.tunables import describe_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

__all__ = ["is_reconstructed", "policy_counters", "policy_title", "policy_tunables"]


def policy_title(policy: str) -> str:
    """What a policy is, in a line.

    Examples
    --------
    >>> from unislab.inspect import policy_title
    >>> policy_title("slub")
    'SLUB with page lock and per-node partial lists (Linux 2.6.25 to 2.6.36)'
    """
    from unislab import _native, policies
    from unislab._entries import unknown_policy

    titles = dict(_native._policies())
    if policy not in titles:
        raise unknown_policy(policy, policies())
    return titles[policy]


# Of a policy with modes one may be reconstructed: tunable, its word and its number.
_RECONSTRUCTED_MODE = {"slub-thrash": ("mode", ("ratio", "1"))}


def is_reconstructed(policy: str, tunables: Mapping[str, Any] | None = None) -> bool:
    """True for a policy whose original was never published in full; its title says so.

    Wherever such a policy is shown, "(reconstructed)" stands behind its name.

    Parameters
    ----------
    policy : str
        A name out of :func:`unislab.policies`.
    tunables : mapping, optional
        What it was told, names to values: of ``slub-thrash`` the mode ``ratio``, its default, is
        reconstructed, ``mostfree`` and ``off`` are not.

    Examples
    --------
    >>> from unislab.inspect import is_reconstructed
    >>> is_reconstructed("unified"), is_reconstructed("slub-thrash")
    (False, True)
    >>> is_reconstructed("slub-thrash", {"mode": "mostfree"})
    False
    """
    from unislab import _native

    if "reconstructed" not in dict(_native._policies()).get(policy, "").lower():
        return False
    row, reconstructed = _RECONSTRUCTED_MODE.get(policy, ("", ("",)))
    return str((tunables or {}).get(row, reconstructed[0])) in reconstructed


def policy_tunables(policy: str) -> pd.DataFrame:
    """The tunables of a policy; as :meth:`Tunables.describe <unislab.Tunables.describe>`, less
    values.

    Examples
    --------
    >>> from unislab.inspect import policy_tunables
    >>> table = policy_tunables("slub").set_index("name")
    >>> table.loc["min_partial", "default"], int(table.loc["min_partial", "max"])
    ('computed', 10)
    """
    from unislab import _native

    return describe_rows(_native._policy_tunables(policy)).drop(columns="value")


def policy_counters(policy: str) -> pd.DataFrame:
    """The counters of a policy: the common ones, then its own.

    Returns
    -------
    pandas.DataFrame
        ``name``, ``common`` (True for those that every policy has), ``feeds`` and ``help``.
        ``feeds`` says of a policy's own counter to which common one it adds (empty: to none), and
        of a common one what it is the sum of: counters in brackets are not shown by themselves,
        those behind a minus are taken off.

    Examples
    --------
    >>> from unislab.inspect import policy_counters
    >>> counters = policy_counters("slub").set_index("name")
    >>> counters.loc["alloc_fastpath", "feeds"], counters.loc["free_fast", "feeds"]
    ('alloc_fast', 'free_fastpath')
    """
    import pandas as pd

    from unislab import _native

    rows, common, hidden = _native._policy_counters(policy)
    sums: dict[str, list[str]] = {row[0]: [] for row in rows[:common]}
    for name, _help, feeds, less in [*rows[common:], *hidden]:
        shown = f"({name})" if name in {row[0] for row in hidden} else name
        if feeds:
            sums[feeds].append(("+ " if sums[feeds] else "") + shown)
        if less:
            sums[less].append(f"- {shown}")
    table = [
        (name, i < common, " ".join(sums[name]) if i < common else feeds, help_)
        for i, (name, help_, feeds, _less) in enumerate(rows)
    ]
    return pd.DataFrame(table, columns=["name", "common", "feeds", "help"])
