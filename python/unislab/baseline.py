"""The mallocs that policies are measured against, each in a process of its own.

``malloc`` is this system's; ``malloc:jemalloc``, ``malloc:mimalloc`` and ``malloc:tcmalloc`` are
preloaded into the child where they are installed.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unislab.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BASELINES", "BaselineContestant", "Missing", "find_library"]

#: Names of the library files of each baseline, the usual ones first.
_LIBRARIES: dict[str, tuple[str, ...]] = {
    "malloc:jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "malloc:mimalloc": (
        "libmimalloc.so.3",
        "libmimalloc.so.2",
        "libmimalloc.so.2.0",
        "libmimalloc.so",
    ),
    "malloc:tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"),
}
_PACKAGES = {
    "malloc:jemalloc": "libjemalloc2",
    "malloc:mimalloc": "libmimalloc2.0 or libmimalloc3",
    "malloc:tcmalloc": "libtcmalloc-minimal4",
}

#: All that can be asked for.
BASELINES: tuple[str, ...] = ("malloc", *_LIBRARIES)


class Missing(Exception):
    """A baseline is not installed here: a note, not an error."""


def find_library(name: str) -> str | None:
    """Path of the library of a baseline, None when it is not installed.

    Examples
    --------
    >>> from unislab.baseline import find_library
    >>> find_library("malloc:no-such")
    Traceback (most recent call last):
    ValueError: no baseline 'malloc:no-such': expected malloc, malloc:jemalloc, malloc:mimalloc, malloc:tcmalloc
    """  # noqa: E501
    if name not in _LIBRARIES:
        raise ValueError(f"no baseline {name!r}: expected {', '.join(BASELINES)}")
    for folder in _library_folders():
        for file in _LIBRARIES[name]:
            if (folder / file).exists():
                return str(folder / file)
    # The linker's own cache knows folders that we do not.
    short = _LIBRARIES[name][0].removeprefix("lib").partition(".so")[0]
    return ctypes.util.find_library(short)


def _library_folders() -> Iterator[Path]:
    for listed in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if listed:
            yield Path(listed)
    machine = os.uname().machine
    for root in ("/usr/lib", "/lib", "/usr/local/lib", "/usr/lib64", "/opt/lib"):
        yield Path(root, f"{machine}-linux-gnu")
        yield Path(root)


class BaselineContestant:
    """A workload on a malloc, in a child process that runs passes when asked.

    Raises
    ------
    Missing
        The library is not installed.
    ValueError
        No such baseline.
    """

    def __init__(self, workload: Workload, name: str, *, touch: str, pace: float | None) -> None:
        self.name = name
        environment = dict(os.environ)
        library = None
        if name != "malloc":
            library = find_library(name)
            if library is None:
                raise Missing(f"{name} is not installed here (Debian: {_PACKAGES[name]}); left out")
            environment["LD_PRELOAD"] = " ".join(
                filter(None, [library, environment.get("LD_PRELOAD")])
            )
        self._folder = tempfile.TemporaryDirectory(prefix="unislab-")
        path = os.path.join(self._folder.name, "workload.npz")
        workload.save(path)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "unislab._baseline_child", path, touch, str(pace or 0.0)]
            + ([library] if library else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        try:
            self._ask({})
        except BaseException:
            self.close()
            raise

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(
                f"the process of {self.name} ended ({self._child.wait()}): "
                f"{said[-1] if said else 'it said nothing'}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = {"MemoryError": MemoryError, "ValueError": ValueError}.get(
                answer["error"], RuntimeError
            )
            raise kind(f"{self.name}: {answer['text']}")
        return answer

    def passes(self, n: int) -> list[float]:
        """Seconds of n passes."""
        return list(self._ask({"passes": n})["seconds"])

    def last_pass(self) -> tuple[float, dict[str, int], pd.DataFrame, dict[str, int]]:
        """One more pass; a malloc counts nothing, only what became resident is known."""
        import pandas as pd

        answer = self._ask({"last": True})
        frame = pd.DataFrame(columns=["policy", "cache", "counter", "value"])
        return answer["seconds"][0], {}, frame, dict(answer["memory"])

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was not sent is lost
                    pipe.close()
        self._errors.close()
        self._folder.cleanup()
