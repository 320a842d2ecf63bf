"""Published figures and fitted constants, as the package's data files hold them."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any

from unislab.errors import unknown_name

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["fitted", "published", "table_name"]


@functools.cache
def _load(name: str) -> dict[str, Any]:
    text = resources.files("unislab").joinpath("data", name).read_text("utf-8")
    return tomllib.loads(text)


def table_name(name: object) -> str:
    """The name of a published table, in whichever case it was given."""
    known = _load("published.toml")
    if isinstance(name, str) and name.strip().upper() in known:
        return name.strip().upper()
    raise unknown_name("published table", name, known)


def published(name: str) -> pd.DataFrame:
    """A published table, as its authors printed it.

    Parameters
    ----------
    name : str
        ``"T1"`` to ``"T5"``, ``"S1"``, ``"X1"`` to ``"X5"``; ``"T3.shares"`` and ``"X5.shares"``
        are the second parts of those.

    Returns
    -------
    DataFrame
        ``attrs`` has ``title``, ``source``, ``context`` and ``unit``.

    Raises
    ------
    UnknownNameError
        There is no such table.

    Examples
    --------
    >>> import unislab as us
    >>> table = us.published("T1")
    >>> list(table.columns), int(table["SLUB"].sum()) * 60
    (['threads', 'SLAB', 'SLUB', 'SLUB+patchset'], 130176420)
    """
    import pandas as pd

    head, _, part = str(name).partition(".")
    whole = _load("published.toml")[table_name(head)]
    if part and part.lower() not in {k for k, v in whole.items() if isinstance(v, dict)}:
        raise unknown_name(f"part of table {head}", part, [k for k in whole if k == "shares"])
    table = whole[part.lower()] if part else whole
    frame = pd.DataFrame(table["data"], columns=table["columns"])
    frame.attrs = {key: whole.get(key, "") for key in ("title", "source", "unit")}
    frame.attrs["context"] = table["context"]
    return frame


def fitted(table: str) -> dict[str, Any]:
    """Constants of a table's workload as tools/fit.py left them.

    Examples
    --------
    >>> from unislab.reproduction.data import fitted
    >>> sorted(fitted("T1"))
    ['app_cycles', 'irq_cpus', 'round_trip_ns', 'rx_ring', 'serial_ns', 'stack_cycles']
    """
    return dict(_load("fitted.toml")[table]["constants"])
