"""The package as a user gets it: one version, all files, and a build that says what it lacks."""

from __future__ import annotations

import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import unislab

pytestmark = pytest.mark.once

BUILT = shutil.ignore_patterns("build", "dist", ".*", "*.egg-info", "*.so", "__pycache__")


@pytest.fixture(scope="module")
def clean_tree(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources without anything that was built."""
    copy = tmp_path_factory.mktemp("clean") / "unislab"
    return Path(shutil.copytree(source_tree, copy, ignore=BUILT))


@pytest.fixture(scope="module")
def sdist(clean_tree: Path) -> Path:
    """The source distribution, made from the clean copy."""
    run_in(clean_tree, "from setuptools.build_meta import build_sdist; build_sdist('dist')")
    (archive,) = (clean_tree / "dist").glob("*.tar.gz")
    return archive


def run_in(folder: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a folder, without what a sanitizer run preloads."""
    kept = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "UNISLAB_SANITIZE")}
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", code],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
    )


def complaint(
    folder: Path, before: str = "", command: str = "build_ext", **environment: str
) -> list[str]:
    """Run a command of setup.py that is expected to fail; return the lines it complains in."""
    code = (
        "import runpy, sys, sysconfig, setuptools\n"
        f"{before}\n"
        f"sys.argv = ['setup.py', {command!r}]\n"
        "runpy.run_path('setup.py', run_name='__main__')\n"
    )
    done = run_in(folder, code, **environment)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()


def test_one_version_everywhere() -> None:
    assert unislab.__version__ == importlib.metadata.version("unislab")
    assert unislab.__version__ == unislab.build_info()["version"]


def test_both_modules_are_of_one_build() -> None:
    from unislab import _model, _native

    native, model = _native.build_info(), _model.build_info()
    assert native["build_id"] == model["build_id"]
    assert native["version"] == model["version"] == unislab.__version__
    assert re.fullmatch(r"[0-9a-f]{12}", native["build_id"])


def test_build_id_follows_sources_and_flags(
    clean_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(clean_tree, tmp_path / "copy"))
    for name in ("UNISLAB_DEBUG", "UNISLAB_WERROR", "UNISLAB_SANITIZE"):
        monkeypatch.delenv(name, raising=False)
    build_id = runpy.run_path(str(copy / "setup.py"))["build_id"]
    first = build_id()
    assert build_id() == first
    monkeypatch.setenv("UNISLAB_DEBUG", "1")
    assert build_id() != first
    monkeypatch.delenv("UNISLAB_DEBUG")
    with (copy / "csrc/include/unislab.h").open("a") as header:
        header.write("/* changed */\n")
    assert build_id() != first


def test_types_and_data_are_installed() -> None:
    installed = Path(unislab.__file__).parent
    assert (installed / "py.typed").is_file()
    assert {p.name for p in installed.glob("*.pyi")} >= {"_native.pyi", "_model.pyi"}
    assert any((installed / "data").iterdir())


def test_command_line_is_installed() -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="unislab")
    assert callable(entry.load())


def test_sdist_holds_every_source(sdist: Path, clean_tree: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    sources = [
        p for top in ("csrc", "python/unislab", "tests") for p in (clean_tree / top).rglob("*")
    ]
    wanted = {str(p.relative_to(clean_tree)) for p in sources if p.is_file()}
    assert wanted <= held, sorted(wanted - held)


@pytest.mark.slow
def test_wheel_is_built_from_the_sdist(sdist: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    done = run_in(unpacked, "from setuptools.build_meta import build_wheel; build_wheel('dist')")
    assert done.returncode == 0, done.stderr
    (wheel,) = (unpacked / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for module in ("_native", "_model"):
        assert any(re.fullmatch(rf"unislab/{module}\..*\.so", name) for name in names)
    assert "unislab/py.typed" in names
    assert not [name for name in names if name.endswith((".c", ".h"))]


def test_missing_compiler_is_one_line(clean_tree: Path) -> None:
    (line,) = complaint(clean_tree, CC="no-such-compiler")
    assert "'no-such-compiler' was not found" in line
    assert "apt-get install" in line


def test_compiler_that_fails_is_one_line(clean_tree: Path) -> None:
    (line,) = complaint(clean_tree, CC="false")
    assert "'false' is older than gcc 11" in line
    assert "apt-get install" in line


def test_missing_python_header_is_one_line(clean_tree: Path, tmp_path: Path) -> None:
    before = f"sysconfig.get_path = lambda *a, **k: {str(tmp_path)!r}"
    (line,) = complaint(clean_tree, before)
    assert f"no Python.h in {tmp_path}" in line
    assert "python3-dev" in line


def test_other_systems_are_refused_in_one_line(clean_tree: Path) -> None:
    (line,) = complaint(clean_tree, "sys.platform = 'darwin'", command="probe")
    assert "needs 64-bit Linux, this is darwin" in line
