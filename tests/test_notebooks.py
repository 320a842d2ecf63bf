"""The notebooks: what is committed shows a full run, and each runs from top to bottom today.

They are executed at reduced size (``UNISLAB_QUICK=1``) in a copy; whatever a notebook's text claims
about an output, an ``assert`` in it checks.  ``tools/run_notebooks.py`` makes the outputs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import unislab

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

pytestmark = [
    pytest.mark.once,
    # Of the kernel's client: event loops and sockets that it leaves to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
LARGEST = 1_000_000
QUIET = "this machine offers"  # the warning that CPUs of a trace are folded


def code_cells(notebook: Any) -> list[Any]:
    """Cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> set[str]:
    """What a cell shows, by kind: ``stdout``, ``image/png``, ``text/html``, ..."""
    kinds: set[str] = set()
    for output in cell.outputs:
        kinds |= {output.name} if output.output_type == "stream" else set(output.get("data", {}))
    return kinds


@pytest.fixture(params=NOTEBOOKS)
def name(request: pytest.FixtureRequest) -> str:
    """Each notebook in turn."""
    return str(request.param)


@pytest.fixture
def committed(name: str) -> Any:
    """A notebook as it is in the tree, format checked."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_there_is_a_tour() -> None:
    assert "tour.ipynb" in NOTEBOOKS


def test_outputs_are_those_of_one_full_run(name: str, committed: Any) -> None:
    cells = code_cells(committed)
    # Executed once, in order, from a fresh kernel, to the end.
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output.output_type for cell in cells for output in cell.outputs]
    assert "error" not in kinds
    assert not [cell.source for cell in cells if "stderr" in shown(cell)]
    assert any("image/png" in shown(cell) for cell in cells)


def test_file_is_small_and_names_no_place(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert len(text) <= LARGEST
    for place in ("/home/", "/root/", "/tmp/", "/work/", "site-packages"):
        assert place not in text


def test_runs_from_top_to_bottom(
    name: str, committed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel finds the same unislab from another folder, and leaves no files in a home.
    package = Path(unislab.__file__).resolve().parents[1]
    path = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("UNISLAB_QUICK", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # pictures in the notebook
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    before = [shown(cell) for cell in code_cells(committed)]

    nbclient.NotebookClient(
        committed,
        timeout=240,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()

    for cell, kinds in zip(code_cells(committed), before, strict=True):
        errors = "".join(o.text for o in cell.outputs if o.get("name") == "stderr")
        assert not errors or QUIET in errors
        # Every cell shows what it showed when it was committed.
        assert shown(cell) - {"stderr"} == kinds, cell.source
