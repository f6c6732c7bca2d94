"""The notebook of the plane runs from top to bottom, and says what its stored outputs say."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_the_plane.ipynb"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def results(cell: Any) -> list[str]:
    """What a cell displays: the text of a value, or that it is a picture."""
    shown = []
    for output in cell.outputs:
        data = output.get("data", {})
        shown.append("picture" if "image/png" in data else data.get("text/plain", output.get("text", "")))
    return shown


@pytest.fixture(scope="module")
def executed() -> Any:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return notebook


def test_every_cell_gives_its_stored_output(executed: Any) -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    for before, after in zip(code_cells(stored), code_cells(executed), strict=True):
        assert results(after) == results(before), before.source


def test_it_shows_the_chapters_numbers(executed: Any) -> None:
    said = " ".join(text for cell in code_cells(executed) for text in results(cell))
    for number in ("0.164664", "0.01778", "2.4047", "0.6659", "1.6955", "0.4304", "[0.666, 0.661, 0.654]"):
        assert number in said
    assert "[0.459, 0.43, 0.314]" in said
    assert said.count("picture") == 3


def test_it_holds_no_logic() -> None:
    for cell in code_cells(nbformat.read(NOTEBOOK, as_version=4)):
        for word in ("def ", "class ", "while ", "lambda", "if ", "assert", "/work", "import numpy"):
            assert word not in cell.source, cell.source
