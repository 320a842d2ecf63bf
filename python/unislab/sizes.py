"""Sizes and times as people write them.

``"64 KiB"`` is 64 × 2^10 bytes, ``"64 kB"`` is 64 × 10^3; times are ``"10 ms"``, ``"0.5 s"``.
"""

from __future__ import annotations

import math
import operator
import re
from fractions import Fraction
from typing import SupportsIndex

from unislab.arguments import real

__all__ = ["format_size", "parse_size", "parse_time"]

_BYTES = {"": 1, "B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("kMGT", start=1)
    for unit, base in (("B", 1000), ("iB", 1024))
}
_BYTES |= {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "KiB": 1024}
_BYTES_NAMED = "B, kB, MB, GB, TB (of 1000), KiB, MiB, GiB, TiB or K, M, G, T (of 1024)"
_NANOSECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_NANOSECONDS_NAMED = "ns, us, ms, s or min"
_MOST_SECONDS = 10**9
_QUANTITY = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*")


def _quantity(text: str, units: dict[str, int], named: str, example: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read {text!r}: expected a number and a unit, as in {example!r}")
    number, unit = match[1].replace("_", ""), match[2]
    if unit not in units:
        near = [name for name in units if name.lower() == unit.lower() and name != "kiB"]
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(f"unknown unit {unit!r} in {text!r}: {hint}expected {named}")
    return Fraction(number) * units[unit]


def parse_size(size: SupportsIndex | str) -> int:
    """Bytes of a size.

    Parameters
    ----------
    size : int or str
        A number of bytes, or a number with ``B``, ``kB``, ``MB``, ``GB``, ``TB`` (powers of 1000)
        or ``KiB``, ``MiB``, ``GiB``, ``TiB`` (powers of 1024; ``K``, ``M``, ``G``, ``T`` for
        short).

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    ValueError
        When the text is no size, or is not a whole number of bytes.

    Examples
    --------
    >>> from unislab import parse_size
    >>> parse_size("64 KiB"), parse_size("64 kB"), parse_size("1.5GiB"), parse_size(4096)
    (65536, 64000, 1610612736, 4096)
    """
    if not isinstance(size, str):
        try:
            number = operator.index(size)
        except TypeError:
            raise TypeError(
                f"a size cannot be {size!r:.60}: expected an integer or text as '64 KiB'"
            ) from None
        if number < 0:
            raise ValueError(f"a size cannot be {number}: expected 0 or more bytes")
        return number
    value = _quantity(size, _BYTES, _BYTES_NAMED, "64 KiB")
    if value.denominator != 1:
        raise ValueError(f"{size!r} is not a whole number of bytes")
    return int(value)


def parse_time(time: float | str) -> int:
    """Nanoseconds of a time.

    Parameters
    ----------
    time : float or str
        Seconds, or a number with ``ns``, ``us``, ``ms``, ``s`` or ``min``.

    Returns
    -------
    int
        Nanoseconds, rounded.

    Raises
    ------
    TypeError, ValueError
        It is no time, or not within 0 to 1e9 seconds.

    Examples
    --------
    >>> from unislab import parse_time
    >>> parse_time("10 ms"), parse_time("0.5 s"), parse_time(2)
    (10000000, 500000000, 2000000000)
    """
    if isinstance(time, str):
        nanoseconds = _quantity(time, _NANOSECONDS, _NANOSECONDS_NAMED, "10 ms")
    else:
        seconds = real("a time", time, "seconds, or text as '10 ms'")
        nanoseconds = Fraction(seconds) * 10**9 if math.isfinite(seconds) else Fraction(-1)
    if not 0 <= nanoseconds < _MOST_SECONDS * 10**9:
        raise ValueError(
            f"a time cannot be {time}: expected 0 or more seconds, or text as '10 ms', below "
            f"{_MOST_SECONDS} s"
        )
    return round(nanoseconds)


def format_size(size: int) -> str:
    """A size for people.

    Examples
    --------
    >>> from unislab.sizes import format_size
    >>> format_size(512), format_size(65536), format_size(1610612736)
    ('512 B', '64.0 KiB', '1.5 GiB')
    """
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"
