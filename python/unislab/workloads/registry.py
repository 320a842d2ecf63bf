"""Workloads by name, as the command line gives them: ``hackbench:groups=2:mode=thread``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

from unislab.errors import unknown_name
from unislab.workload import Workload
from unislab.workloads.hackbench import hackbench
from unislab.workloads.micro import batch, pair
from unislab.workloads.network import tcp_rr, udp_rr
from unislab.workloads.processes import fork, fork_touch
from unislab.workloads.producer_consumer import producer_consumer
from unislab.workloads.slab_test import slab_test

__all__ = ["make", "names"]

_MAKERS: dict[str, Callable[..., Workload]] = {
    maker.__name__: maker
    for maker in (
        pair,
        batch,
        producer_consumer,
        hackbench,
        tcp_rr,
        udp_rr,
        fork,
        fork_touch,
        slab_test,
    )
}


def names() -> list[str]:
    """Names of the workloads that :func:`make` knows.

    Examples
    --------
    >>> import unislab as us
    >>> "hackbench" in us.workloads.names()
    True
    """
    return list(_MAKERS)


def make(text: str) -> Workload:
    """A workload from its name and, each after a colon, parameters.

    Values are numbers, several numbers with commas between, True, False and None as Python writes
    them, or text.

    Parameters
    ----------
    text : str
        Such as ``"pair"`` or ``"tcp_rr:streams=32:irq_cpus=0,1"``.

    Raises
    ------
    ValueError
        No such workload or parameter, or a value that it refuses.

    Examples
    --------
    >>> import unislab as us
    >>> us.workloads.make("batch:n=8:times=10").counts["allocs"]
    80
    >>> us.workloads.make("batch:m=8")
    Traceback (most recent call last):
    ValueError: batch has no parameter 'm': expected n, size, times, tasks, order
    """
    name, *pairs = (part.strip() for part in text.split(":"))
    if name not in _MAKERS:
        raise unknown_name("workload", name, names())
    known = list(inspect.signature(_MAKERS[name]).parameters)
    given: dict[str, object] = {}
    for pair_ in filter(None, pairs):
        key, equals, value = (part.strip() for part in pair_.partition("="))
        if not equals:
            raise ValueError(f"{text}: cannot read {pair_!r}: expected parameter=value")
        if key not in known:
            raise ValueError(f"{name} has no parameter {key!r}: expected {', '.join(known)}")
        given[key] = _value(value)
    try:
        return _MAKERS[name](**given)
    except TypeError as error:
        raise ValueError(f"{text}: {error}") from error


def _value(text: str) -> object:
    """What a text of the command line stands for.

    >>> _value("12"), _value("None"), _value("10 us"), _value("0,3")
    (12, None, '10 us', (0, 3))
    """
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (int, float, tuple, type(None))) else text
