"""The child process of a baseline.

``python -m unislab._baseline_child WORKLOAD TOUCH PACE [LIBRARY]`` answers questions, one JSON
object a line: ``{}`` (ready?), ``{"passes": n}``, ``{"last": true}``.
"""

from __future__ import annotations

import json
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from unislab import _native
from unislab.workload import Workload, fold_cpus


def resident_bytes() -> tuple[int, int]:
    """Anonymous resident memory of this process and the peak of all that is resident."""
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()
    now = int(fields["RssAnon"][0]) if "RssAnon" in fields else int(fields["VmRSS"][0])
    return now * 1024, int(fields["VmHWM"][0]) * 1024


def main(path: str, touch: str, pace: str, library: str | None = None) -> None:
    """Serve until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    if library and str(Path(library).resolve()) not in Path("/proc/self/maps").read_text():
        raise SystemExit(f"{library} was not preloaded")
    workload = Workload.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parent's own run warned already
        folded = fold_cpus(workload)
    runner = _native.Runner(
        *workload._program(lambda cpus: tuple(dict.fromkeys(folded[c] for c in cpus))),
        heap="malloc",
        touch=touch,
        pace=float(pace),
        window=workload.window,
    )
    at_start, _ = resident_bytes()
    for line in sys.stdin:
        try:
            answer = _answer(runner, json.loads(line), at_start)
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


def _answer(runner: Any, question: dict[str, Any], at_start: int) -> dict[str, Any]:
    if "passes" in question:
        return {"seconds": runner.passes(question["passes"])}
    if "last" in question:
        seconds = runner.passes(1)
        now, _ = resident_bytes()
        return {"seconds": seconds, "memory": {"resident": max(now - at_start, 0)}}
    return {}


if __name__ == "__main__":
    main(*sys.argv[1:])
