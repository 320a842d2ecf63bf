"""Local paths in C: each policy's alloc + free pair against a plain stack and against mallocs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import unislab as us
from figure import Figure, figure, interleave, ratios

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = {
    "glibc": "",
    "jemalloc": "libjemalloc.so.2",
    "mimalloc": "libmimalloc.so.2.0",
    "tcmalloc": "libtcmalloc_minimal.so.4",
}
ROUNDS = 31


def build(name: str, *flags: str, output: str | None = None) -> Path:
    """Compile ``bench/c/NAME.c`` with the whole core; returns the program."""
    out = ROOT / "build" / "bench" / (output or name)
    out.parent.mkdir(parents=True, exist_ok=True)
    layers = ("machine", "machine/native", "memory", "slab", "queue", "policy", "cache", "work")
    core = [str(p) for layer in layers for p in sorted((ROOT / "csrc" / layer).glob("*.c"))]
    command = [
        os.environ.get("CC", "cc"),
        *["-std=gnu11", "-O2", "-g", "-fno-strict-aliasing", "-fvisibility=hidden", "-pthread"],
        '-DUS_VERSION="bench"',
        '-DUS_BUILD_ID="bench"',
        *flags,
        f"-I{ROOT / 'csrc'}",
        f"-I{ROOT / 'csrc' / 'include'}",
        str(ROOT / "bench" / "c" / f"{name}.c"),
        *core,
        "-o",
        str(out),
        "-lm",
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return out


class Child:
    """One contestant in a process of its own, asked for a round at a time."""

    def __init__(self, program: Path, who: str, cpu: int, preload: str = "") -> None:
        env = dict(os.environ)
        if preload:
            env["LD_PRELOAD"] = preload
        self.process = subprocess.Popen(
            [str(program), who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
        )

    def ask(self, verb: str, size: int) -> float:
        """Nanoseconds an object of one round."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{verb} {size}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the contestant ended with {self.process.wait()}")
        return float(line)

    def close(self) -> None:
        """End the child."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def quiet_cpu(program: Path, rounds: int = 31) -> int:
    """The CPU on which the plain stack runs fastest: its neighbours disturb least.

    All contestants of a comparison run on this one.
    """
    times: dict[int, float] = {}
    with ExitStack() as stack:
        for cpu in sorted(os.sched_getaffinity(0)):
            child = Child(program, "plain", cpu)
            stack.callback(child.close)
            times[cpu] = median(child.ask("pair", 64) for _ in range(rounds))
    return min(times, key=lambda cpu: times[cpu])


def _loadable(library: str) -> bool:
    """Whether the library can be preloaded; loaded here, it would take over this process's heap."""
    env = dict(os.environ, LD_PRELOAD=library)
    return not subprocess.run(["true"], env=env, capture_output=True).stderr


@contextmanager
def children(program: Path) -> Iterator[dict[str, Child]]:
    """All contestants; rivals that the machine lacks are left out."""
    with ExitStack() as stack:
        cpu = quiet_cpu(program)
        everyone = {who: Child(program, who, cpu) for who in ("plain", *us.policies())}
        for name, library in LIBRARIES.items():
            if not library or _loadable(library):
                everyone[name] = Child(program, "malloc", cpu, library)
        for child in everyone.values():
            stack.callback(child.close)
        yield everyone


def figures(rounds: int = ROUNDS) -> list[Figure]:
    """Measure pairs and batches of 64, 64 and 256 bytes."""
    out: list[Figure] = []
    with children(build("contest")) as everyone:
        for verb, faster in (("pair", 1.3), ("batch", 1.25)):
            for size in (64, 256):
                times = interleave(
                    {who: partial(child.ask, verb, size) for who, child in everyone.items()}, rounds
                )
                label = f"{verb} of {size} bytes"
                shown = [who for who in times if who not in us.policies()[1:] or who == "slub"]
                out.extend(figure(f"{label}: {who}", times[who], "ns") for who in shown)
                rivals = [who for who in times if who in LIBRARIES]
                fastest = min(rivals, key=lambda who: median(times[who]))
                out.append(
                    figure(
                        f"{label}: {fastest}, the fastest malloc / unified",
                        ratios(times[fastest], times["unified"]),
                        at_least=faster,
                    )
                )
                if verb == "pair" and size == 64:
                    plain = ratios(times["unified"], times["plain"])
                    out.append(figure(f"{label}: unified / plain stack", plain, at_most=2.1))
                    for who in us.policies()[1:]:
                        most = 1.5 if who == "slub" else 2
                        pair = ratios(times[who], times["unified"])
                        out.append(figure(f"{label}: {who} / unified", pair, at_most=most))
        bulk = interleave(
            {who: partial(everyone[who].ask, "bulk", 64) for who in ("unified", "slub")}, rounds
        )
        out.extend(
            figure(f"bulk of 1000, C API: {who}", values, "ns") for who, values in bulk.items()
        )
    return out
