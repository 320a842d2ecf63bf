"""Real kernel traces that come with the package.

Recorded by ftrace on a two-CPU machine; each is text as the kernel printed it, cut as
``tools/cut_datasets.py`` says.

========== =====================================================================================
hackbench  groups of tasks that pass messages over sockets: allocated on one CPU, freed on another
tcp_rr     netperf TCP_RR: request and response over TCP
fork       processes started and ended
files      files made, read and removed
bursts     bursts of work over 39 s with idle time between them; thinned to some of the objects
========== =====================================================================================
"""

from __future__ import annotations

from importlib import resources

from unislab.errors import unknown_name
from unislab.trace import Trace

__all__ = ["load", "names"]

_SUFFIX = ".trace.xz"


def names() -> list[str]:
    """Names of the traces that :func:`load` knows.

    Examples
    --------
    >>> import unislab as us
    >>> "tcp_rr" in us.datasets.names()
    True
    """
    files = (resources.files("unislab") / "data").iterdir()
    return sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX))


def load(name: str) -> Trace:
    """Read one of the shipped traces.

    Raises
    ------
    UnknownNameError
        There is no such trace.  It is a ``ValueError``.

    Examples
    --------
    >>> import unislab as us
    >>> us.datasets.load("hackbench").cpus
    (0, 1)
    """
    known = names()
    if name not in known:
        raise unknown_name("dataset", name, known)
    file = resources.files("unislab") / "data" / (name + _SUFFIX)
    with resources.as_file(file) as path:
        trace = Trace.read(path)
    trace.source = name  # not that of a file: others have files of the same name
    return trace
