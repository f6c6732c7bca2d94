"""Runs notebooks and keeps what they print: `python tools/notebooks.py notebooks/02_from_logs.ipynb ...`; all without names."""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"


def main() -> None:
    """Execute each from its own folder, at the width of the tests, and store it."""
    os.environ["COLUMNS"] = "132"
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}}).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
