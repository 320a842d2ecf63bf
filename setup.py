"""The two extension modules; everything else about the package is in pyproject.toml.

One core is compiled twice: ``unislab._native`` runs on this machine, ``unislab._model``
(``-DUS_MODEL``) on a machine that need not exist.  Environment variables read here:

UNISLAB_WERROR=1     many more warnings, each an error (what ``make lint`` builds)
UNISLAB_SANITIZE=... ``address,undefined`` or ``thread``
UNISLAB_DEBUG=1      -O1 -g3, asserts and internal checks (US_CHECK)
UNISLAB_JOBS=N       compilers at a time, by default one a CPU

``python setup.py probe`` only says whether this machine can build unislab, and needs no setuptools.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LAYERS = ["machine", "memory", "slab", "queue", "policy", "cache", "work", "python"]
COMPILER_TOO_OLD = """
#if defined(__clang__) ? __clang_major__ < 13 : __GNUC__ < 11
#error too old
#endif
#include <stdatomic.h>
#include <pthread.h>
int main(void) { return 0; }
"""


def compiler_command() -> list[str]:
    """The C compiler that the build will call, with its own arguments."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def probe() -> None:
    """Leave with one line that says what to install, where unislab cannot be built."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        sys.exit(f"unislab: needs 64-bit Linux, this is {sys.platform} with {sys.maxsize:#x}")
    cc = compiler_command()
    if shutil.which(cc[0]) is None:
        sys.exit(
            f"unislab: no C compiler: {cc[0]!r} was not found; install one "
            "(apt-get install build-essential, or dnf install gcc), or name yours in CC"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        sys.exit(
            f"unislab: no Python.h in {header.parent}; install the headers of this Python "
            "(apt-get install python3-dev, or dnf install python3-devel)"
        )
    test = [*cc, "-std=gnu11", "-fsyntax-only", "-x", "c", "-"]
    if subprocess.run(test, input=COMPILER_TOO_OLD, text=True, capture_output=True).returncode:
        sys.exit(
            f"unislab: {cc[0]!r} is older than gcc 11 or clang 13, or lacks the C library headers; "
            "install both (apt-get install build-essential, or dnf install gcc glibc-devel), or "
            "name another in CC"
        )


def flags() -> tuple[list[str], list[str]]:
    """Compile and link arguments, from the environment variables named at the top."""
    compile_args = ["-std=gnu11", "-O2", "-g", "-pthread", "-Wall", "-Wextra"]
    # Not initial-exec: with it an import fails, "cannot allocate memory in static TLS block".
    compile_args += ["-fvisibility=hidden", "-fno-strict-aliasing", "-ftls-model=global-dynamic"]
    link_args = ["-pthread"]
    if os.environ.get("UNISLAB_DEBUG", "0") != "0":
        compile_args += ["-O1", "-g3", "-UNDEBUG", "-DUS_CHECK"]
    if os.environ.get("UNISLAB_WERROR", "0") != "0":
        # Python's own headers convert freely: -isystem keeps their warnings out.
        compile_args += ["-Wconversion", "-Wno-sign-conversion", "-Werror"]
        compile_args += ["-isystem", sysconfig.get_path("include")]
    if sanitize := os.environ.get("UNISLAB_SANITIZE", ""):
        compile_args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"]
        compile_args += ["-fno-sanitize-recover=all"]
        link_args += [f"-fsanitize={sanitize}"]
    return compile_args, link_args


def version() -> str:
    """The version, read without importing the package."""
    text = (ROOT / "python/unislab/_version.py").read_text()
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        sys.exit('setup.py: python/unislab/_version.py has no line __version__ = "..."')
    return match[1]


def build_id() -> str:
    """A short hash of everything the compiled code depends on: sources, flags, compiler."""
    digest = hashlib.sha256(repr((version(), flags())).encode())
    cc = [*compiler_command(), "--version"]
    digest.update(subprocess.run(cc, capture_output=True, check=True).stdout)
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


if sys.argv[1:] == ["probe"]:
    probe()
    sys.exit()

from setuptools import Extension, setup  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402


def extension(name: str, machine: str, macros: list[tuple[str, str | None]]) -> Extension:
    """One of the two modules: the layers common to both, and its own machine."""
    folders = [*LAYERS, f"machine/{machine}"]
    compile_args, link_args = flags()
    return Extension(
        f"unislab.{name}",
        sources=[str(p) for d in folders for p in sorted(Path("csrc", d).glob("*.c"))],
        depends=[str(p) for p in sorted(Path("csrc").rglob("*.h"))],
        include_dirs=["csrc", "csrc/include"],
        define_macros=macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )


class BuildExt(build_ext):
    """Compile each module's objects apart, side by side, and only those whose inputs changed."""

    def run(self) -> None:
        if self.extensions:
            probe()
        super().run()

    def build_extension(self, ext: Extension) -> None:
        compile_sources, shared_temp = self.compiler.compile, self.build_temp
        flavour = hashlib.sha256(repr((ext.define_macros, flags(), compiler_command())).encode())
        identity = [("US_VERSION", f'"{version()}"'), ("US_BUILD_ID", f'"{build_id()}"')]

        def compile_one(source: str, options: dict) -> list[str]:
            # The build id changes with every edit: only a file that names it gets it.
            named = [m for m in identity if m[0] in Path(source).read_text()]
            objects = self.compiler.object_filenames([source], output_dir=options["output_dir"])
            if not named and is_current(Path(objects[0])):
                return objects
            options = options | {"macros": options["macros"] + named}
            options["extra_postargs"] = [*options["extra_postargs"], "-MMD"]
            return compile_sources([source], **options)

        def compile_all(sources: list[str], **options: object) -> list[str]:
            jobs = int(os.environ.get("UNISLAB_JOBS") or os.cpu_count() or 1)
            with ThreadPoolExecutor(jobs) as pool:
                parts = pool.map(lambda source: compile_one(source, options), sources)
                return [obj for part in parts for obj in part]

        self.force = True  # the question what is current is answered object by object
        self.compiler.compile = compile_all
        self.build_temp = os.path.join(shared_temp, f"{ext.name}-{flavour.hexdigest()[:8]}")
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile, self.build_temp = compile_sources, shared_temp


def is_current(obj: Path) -> bool:
    """True when the object is newer than every file that its dependency file (-MMD) names."""
    names = obj.with_suffix(".d")
    if not obj.is_file() or not names.is_file():
        return False
    inputs = names.read_text().replace("\\\n", " ").split()[1:]
    return all(os.path.exists(i) and os.path.getmtime(i) < obj.stat().st_mtime for i in inputs)


if __name__ == "__main__":
    modules = [
        extension("_native", "native", []),
        extension("_model", "model", [("US_MODEL", None)]),
    ]
    if not list(Path("csrc/python").glob("*.c")):
        print("unislab: csrc/python holds no sources yet, building no extension", file=sys.stderr)
        modules = []
    setup(ext_modules=modules, cmdclass={"build_ext": BuildExt})
