"""unislab: a laboratory for slab allocation.

>>> import unislab as us
>>> with us.Allocator(policy="unified", memory="1GiB") as alloc:
...     skb = alloc.create_cache("skbuff_head_cache", 232, align=64)
...     with skb.alloc() as obj:
...         memoryview(obj)[:4] = b"abcd"
...     addresses = skb.alloc_bulk(1000)
...     skb.free_bulk(addresses)
...     skb.stats().allocs
1001
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unislab._version import __version__

try:
    from unislab import _native
except ImportError as error:
    if "unislab._native" not in str(error) and "_native" not in str(error):
        raise
    raise ImportError(
        "unislab's extension module is not built: install the package with pip, or run "
        f"`make inplace` in its source tree ({error})"
    ) from error

from unislab import _fork as _fork
from unislab import errors, inspect, raw, sizes
from unislab.allocator import Allocator, Reaper
from unislab.cache import Cache
from unislab.costs import Caches, Costs
from unislab.errors import CorruptionError, LimitExceeded, LiveObjectsError, UnknownNameError
from unislab.machine import Machine
from unislab.objects import Object
from unislab.sheaves import Sheaf
from unislab.sizes import parse_size, parse_time
from unislab.stats import Stats
from unislab.topology import Topology
from unislab.tunables import Tunables
from unislab.validation import Validation

if TYPE_CHECKING:
    from unislab import datasets, ops, workloads
    from unislab._compare import compare
    from unislab._run import run
    from unislab._trace_open import TraceFormatError
    from unislab.comparison import Comparison
    from unislab.reproduction import Reproduction, published, reproduce
    from unislab.result import Result
    from unislab.trace import Trace
    from unislab.workload import Workload

__all__ = [
    "Allocator",
    "Cache",
    "Caches",
    "Comparison",
    "CorruptionError",
    "Costs",
    "LimitExceeded",
    "LiveObjectsError",
    "Machine",
    "Object",
    "Reaper",
    "Reproduction",
    "Result",
    "Sheaf",
    "Stats",
    "Topology",
    "Trace",
    "TraceFormatError",
    "Tunables",
    "UnknownNameError",
    "Validation",
    "Workload",
    "__version__",
    "build_info",
    "compare",
    "datasets",
    "errors",
    "inspect",
    "ops",
    "parse_size",
    "parse_time",
    "policies",
    "published",
    "raw",
    "reproduce",
    "run",
    "sizes",
    "workloads",
]

if (_built := _native.build_info()["version"]) != __version__:
    raise ImportError(
        f"unislab {__version__} met an extension module of version {_built}: "
        "install the package again, or run `make inplace` in its source tree"
    )

#: What needs NumPy and pandas is imported when it is first asked for: module, attribute (or None).
_LAZY: dict[str, tuple[str, str | None]] = {
    "Comparison": ("unislab.comparison", "Comparison"),
    "Reproduction": ("unislab.reproduction", "Reproduction"),
    "Result": ("unislab.result", "Result"),
    "Trace": ("unislab.trace", "Trace"),
    "TraceFormatError": ("unislab._trace_open", "TraceFormatError"),
    "Workload": ("unislab.workload", "Workload"),
    "compare": ("unislab._compare", "compare"),
    "datasets": ("unislab.datasets", None),
    "ops": ("unislab.ops", None),
    "published": ("unislab.reproduction", "published"),
    "reproduce": ("unislab.reproduction", "reproduce"),
    "run": ("unislab._run", "run"),
    "workloads": ("unislab.workloads", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    special = [name for name in globals() if name.startswith("__") and name.endswith("__")]
    return sorted({*__all__, *special})


def policies() -> list[str]:
    """Names of the policies, as :class:`Allocator` takes them.

    Examples
    --------
    >>> import unislab as us
    >>> us.policies()[0], "slub" in us.policies()
    ('unified', True)
    """
    return [name for name, _title in _native._policies()]


def build_info() -> dict[str, str | int]:
    """What the extension was built from and what it found on this machine.

    Returns
    -------
    dict
        ``version``, ``build_id``, ``compiler``, ``flags``, ``mode`` (``"rseq"`` or ``"slot"``: how
        per-CPU queues are made exclusive), ``reason`` (why that mode), ``page_size`` and ``cpus``.

    Examples
    --------
    >>> import unislab as us
    >>> us.build_info()["version"] == us.__version__
    True
    """
    return _native.build_info()
