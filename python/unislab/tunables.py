"""Tunables of a cache: attributes and mapping, validated, effective at once."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from unislab.sizes import parse_time

if TYPE_CHECKING:
    import pandas as pd

    from unislab.cache import Cache, _TunableRow

__all__ = ["Tunables", "describe_rows", "texts"]

_TIME_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_NO_LIMIT = 2**63 - 1
_COLUMNS = [
    "name",
    "value",
    "default",
    "min",
    "max",
    "unit",
    "readonly",
    "creation",
    "choices",
    "help",
]


def _text(name: str, value: object, unit: str) -> str:
    """What the core reads: a number, a size, or one of the tunable's words."""
    if isinstance(value, str):
        if unit in _TIME_UNITS and value.strip()[-1:].isalpha():
            try:
                return str(parse_time(value) // _TIME_UNITS[unit])
            except ValueError:
                return value  # the core names what it accepts
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if name == "tunables" and isinstance(value, Mapping):
        given = ", ".join(f"{k}={v!r}" for k, v in value.items()) or "limit=30"
        raise TypeError(f"tunables are keywords themselves: {given}, not tunables={value!r}")
    try:
        return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} cannot be {value!r}: expected an integer or text, not {type(value).__name__}"
        ) from None


def texts(rows: list[_TunableRow], values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Names and texts for the core, from keyword arguments."""
    units = {row[0]: row[6] for row in rows}
    return [(name, _text(name, value, units.get(name, ""))) for name, value in values.items()]


def describe_rows(rows: list[_TunableRow]) -> pd.DataFrame:
    """The table that :meth:`Tunables.describe` shows."""
    import pandas as pd

    table = []
    for name, value, text, default, low, high, unit, readonly, fixed, help_, choices in rows:
        words = {code: word for word, code in choices}
        # A default outside the limits stands for a rule, and what is computed has none.
        ruled = not low <= default <= high
        shown = None if readonly else words.get(default, "computed" if ruled else default)
        table.append(
            (
                name,
                text if text is not None else value,
                shown,
                low,
                None if high == _NO_LIMIT else high,
                unit,
                readonly,
                fixed,
                tuple(words.values()),
                help_,
            )
        )
    frame = pd.DataFrame(table, columns=_COLUMNS)
    return frame.astype({"value": object, "default": object, "max": "Int64"})


class Tunables(MutableMapping[str, "int | str"]):
    """The tunables of one cache, by attribute or by key.

    Reading gives the value in force (a word where the value has one); setting checks it and makes
    it effective on the live cache. Computed rows, such as ``queue_size``, can only be read; rows
    that fix the geometry are given at creation.

    Examples
    --------
    >>> import unislab as us
    >>> alloc = us.Allocator("unified")
    >>> tunables = alloc.create_cache("pair", 16, batch_size=8).tunables
    >>> tunables.batch_size
    8
    >>> tunables.batch_size = 16
    >>> tunables["batch_size"], "batch_size" in tunables
    (16, True)
    >>> tunables.cpu_queue_size = 3
    Traceback (most recent call last):
    ValueError: cpu_queue_size of policy unified is '3'; expected 4 to 10000 (objects)
    >>> alloc.close()
    """

    __slots__ = ("_cache",)

    _cache: Cache

    def __init__(self, cache: Cache) -> None:
        object.__setattr__(self, "_cache", cache)

    # ---- mapping ----------------------------------------------------------------------------

    def __getitem__(self, name: str) -> int | str:
        value, text = self._cache._tunable_get(name)
        return value if text is None else text

    def __setitem__(self, name: str, value: int | str) -> None:
        unit = ""
        if isinstance(value, str):
            unit = next((row[6] for row in self._cache._tunables() if row[0] == name), "")
        self._cache._tunable_set(name, _text(name, value, unit))

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"tunable {name!r} cannot be deleted; set it to its default instead")

    def __iter__(self) -> Iterator[str]:
        return iter([row[0] for row in self._cache._tunables()])

    def __len__(self) -> int:
        return len(self._cache._tunables())

    # ---- attributes -------------------------------------------------------------------------

    def __getattr__(self, name: str) -> int | str:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def describe(self) -> pd.DataFrame:
        """What each tunable is and does.

        Returns
        -------
        pandas.DataFrame
            One row a tunable: ``name``, ``value``, ``default`` (``"computed"`` = by a rule, from
            the size of the objects or the machine; None for what can only be read), ``min``,
            ``max`` (missing = no limit), ``unit``, ``readonly``, ``creation`` (True = fixed once
            the cache exists), ``choices`` (words it takes beside numbers) and ``help``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator("unified") as alloc:
        ...     table = alloc.create_cache("pair", 16).tunables.describe()
        >>> bool(table.set_index("name").loc["queue_size", "readonly"])
        True
        """
        return describe_rows(self._cache._tunables())

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.items())
        return f"<Tunables of {self._cache.name!r}: {values}>"

    def _repr_html_(self) -> str:
        return str(self.describe().to_html(index=False))
