"""What a result was measured on."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """This machine, this Python and this build of unislab.

    Returns
    -------
    dict
        ``kernel``, ``cpu`` (model), ``cpus`` (that this process may use), ``governor`` (of CPU 0,
        None where it cannot be read), ``python``, ``numpy``, ``unislab`` (version), ``build_id``,
        ``compiler``, ``mode`` (how per-CPU stocks are made exclusive) and ``page_size``.

    Examples
    --------
    >>> from unislab.environment import environment
    >>> environment()["cpus"] >= 1
    True
    """
    import numpy as np

    from unislab import build_info

    build = build_info()
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "unislab": build.get("version"),
        "build_id": build.get("build_id"),
        "compiler": build.get("compiler"),
        "mode": build.get("mode"),
        "page_size": os.sysconf("SC_PAGE_SIZE"),
    }


@cache
def _cpu_model() -> str:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Hardware", "CPU part"):
            return value.strip()
    return platform.processor() or "unknown"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
