"""What a policy can be told and what it counts, without a cache at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unislab.tunables import describe_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["policy_counters", "policy_tunables"]


def policy_tunables(policy: str) -> pd.DataFrame:
    """The tunables of a policy; as :meth:`Tunables.describe <unislab.Tunables.describe>`, less
    values.

    Examples
    --------
    >>> from unislab.inspect import policy_tunables
    >>> "min_partial" in set(policy_tunables("slub")["name"])
    True
    """
    from unislab import _native

    return describe_rows(_native._policy_tunables(policy)).drop(columns="value")


def policy_counters(policy: str) -> pd.DataFrame:
    """The counters of a policy: the common ones, then its own.

    Returns
    -------
    pandas.DataFrame
        ``name``, ``common`` (True for those that every policy has) and ``help``.

    Examples
    --------
    >>> from unislab.inspect import policy_counters
    >>> policy_counters("slub")["name"].tolist()[:2]
    ['alloc_fast', 'alloc_second_level']
    """
    import pandas as pd

    from unislab import _native

    rows, common = _native._policy_counters(policy)
    table = [(name, i < common, help_) for i, (name, help_) in enumerate(rows)]
    return pd.DataFrame(table, columns=["name", "common", "help"])
