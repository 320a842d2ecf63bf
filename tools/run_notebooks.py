"""Run the notebooks at full size and keep their outputs, for committing.

    python tools/run_notebooks.py [NOTEBOOK ...]

Pictures are reduced to a palette of 64 colours, and what changes from run to run without telling a
reader anything (times of cells, version of the interpreter) is left out.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def smaller(png: str) -> str:
    """The picture with a palette."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    file = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode() + "\n"


def run(path: Path) -> None:
    """Execute one notebook and write it back."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=1200, kernel_name="python3", record_timing=False, coalesce_streams=True
    ).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = smaller(output["data"]["image/png"])
    notebook.metadata["language_info"].pop("version", None)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    """Run those named, or all."""
    os.environ.pop("UNISLAB_QUICK", None)
    os.environ.pop("MPLBACKEND", None)
    for name in sys.argv[1:] or sorted(FOLDER.glob("*.ipynb")):
        run(Path(name))


if __name__ == "__main__":
    main()
