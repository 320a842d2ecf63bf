"""Arguments checked one way: what was given, what was expected."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from numbers import Real

__all__ = ["real", "several", "whole"]


def whole(what: str, value: object, least: int, most: int, expected: str = "") -> int:
    """An integer within limits; anything that counts as one, as NumPy's do.

    Parameters
    ----------
    what : str
        What it is, for the text of the error; ``{}`` in it stands for the value.
    expected : str, optional
        What to say of the limits; by default the two.

    Raises
    ------
    TypeError, ValueError
        It is no integer, or not within the limits.

    Examples
    --------
    >>> from unislab.arguments import whole
    >>> whole("seed", 11, 3, 100)
    11
    >>> whole("seed", "11", 3, 100)
    Traceback (most recent call last):
    TypeError: seed cannot be '11': expected an integer, 3 to 100
    >>> whole("slot {}", -1, 0, 100)
    Traceback (most recent call last):
    ValueError: slot -1: expected 0 to 100
    """
    text = what if "{}" in what else what + " cannot be {}"
    expected = expected or f"{least} to {most}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        shown = text.replace("{}", f"{value!r:.60}")
        raise TypeError(f"{shown}: expected an integer, {expected}") from None
    if not least <= number <= most:
        raise ValueError(f"{text.replace('{}', str(number))}: expected {expected}")
    return number


def real(what: str, value: object, expected: str) -> float:
    """A number, as a float; ``{}`` in ``what`` stands for the value.

    Examples
    --------
    >>> from unislab.arguments import real
    >>> real("rate", 1, "0 to 1")
    1.0
    >>> real("pace={}", "1", "a number above 0")
    Traceback (most recent call last):
    TypeError: pace='1': expected a number above 0
    """
    if isinstance(value, Real):
        return float(value)
    text = what if "{}" in what else what + " cannot be {}"
    raise TypeError(f"{text.replace('{}', f'{value!r:.60}')}: expected {expected}")


def several(what: str, values: object, expected: str) -> tuple[object, ...]:
    """One text, or what an iterable holds, as a tuple.

    Examples
    --------
    >>> from unislab.arguments import several
    >>> several("flags", "lowmem", "names"), several("flags", ["lowmem", "account"], "names")
    (('lowmem',), ('lowmem', 'account'))
    >>> several("flags", None, "names")
    Traceback (most recent call last):
    TypeError: flags cannot be None: expected names
    """
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Iterable) or isinstance(values, (bytes, bytearray)):
        raise TypeError(f"{what} cannot be {values!r:.60}: expected {expected}")
    return tuple(values)
