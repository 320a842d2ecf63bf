"""Instructions of each alloc and free fast path, counted by callgrind.

The counts are committed in ``bench/instructions.json`` as upper bounds for the compiler named there
and checked by the suite. ``python bench/instructions.py --write`` counts anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from figure import Figure, figure
from local_paths import ROOT, build

TABLE = ROOT / "bench" / "instructions.json"
# Fast path -> a policy that takes it: unified-v4 and sleb share those of unified, slub-thrash and
# the frees of slub-partial those of slub.
PATHS = {
    "unified alloc": "unified",
    "unified free": "unified",
    "slub alloc": "slub",
    "slub free": "slub",
    "slub_prefetch alloc": "slub-partial",
    "slab alloc": "slab",
    "slab free": "slab",
    "slqb alloc": "slqb",
    "slqb free": "slqb",
    "sheaves alloc": "sheaves",
    "sheaves free": "sheaves",
}
FLAGS = ("-DUS_TESTING", "-DUS_DUMMY_RSEQ")
PAIRS = (1000, 3000)


def compiler() -> str:
    """Name and major version of the compiler, as the table names it."""
    command = [os.environ.get("CC", "cc"), "-E", "-dM", "-x", "c", "/dev/null"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    macros = dict(re.findall(r"#define (\w+) (.*)", done.stdout))
    if "__clang__" in macros:
        return f"clang {macros['__clang_major__']}"
    return f"gcc {macros['__GNUC__']}"


def _collected(program: Path, function: str, policy: str, pairs: int) -> int:
    """Instructions inside `function`, over a whole run."""
    command = [
        "valgrind",
        "--tool=callgrind",
        f"--toggle-collect={function}",
        "--callgrind-out-file=/dev/null",
        str(program),
        policy,
        str(pairs),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return int(found[1])


def count() -> dict[str, float]:
    """Count every fast path; needs valgrind.

    Returns
    -------
    dict of str to float
        ``"unified alloc": instructions`` and so on. ``"slub alloc uncounted"`` is the same path
        without its statistics.
    """
    builds = {
        "": build("count", *FLAGS),
        " uncounted": build("count", *FLAGS, "-DUS_LIST_UNCOUNTED", output="count_uncounted"),
    }
    out: dict[str, float] = {}
    for suffix, program in builds.items():
        for path, policy in PATHS.items():
            if suffix and policy != "slub":
                continue
            few, many = (
                _collected(program, path.replace(" ", "_") + "_rseq", policy, n) for n in PAIRS
            )
            out[path + suffix] = (many - few) / (PAIRS[1] - PAIRS[0])
    return out


def figures() -> list[Figure]:
    """Counts against the committed bounds, and what SLUB's statistics cost."""
    if not shutil.which("valgrind"):
        return []
    counts = count()
    table = json.loads(TABLE.read_text()).get(compiler(), {})
    out = [
        figure(f"instructions of {name}", [value], "", at_most=table.get(name))
        for name, value in counts.items()
    ]
    for verb in ("alloc", "free"):
        cost = counts[f"slub {verb}"] - counts[f"slub {verb} uncounted"]
        out.append(figure(f"statistics of slub {verb}, instructions", [cost], "", at_most=2))
    return out


if __name__ == "__main__":
    result = count()
    print(json.dumps(result, indent=1))
    if "--write" in sys.argv:
        everything = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        everything[compiler()] = result
        TABLE.write_text(json.dumps(everything, indent=1) + "\n")
