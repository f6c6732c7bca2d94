"""The notebook runs from its first cell to its last, and its cells hold no logic of their own."""

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from notebook_cells import code_cells, shown

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02_from_logs.ipynb"


@pytest.fixture(scope="module")
def executed() -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute()
    return notebook


def texts(notebook: nbformat.NotebookNode) -> str:
    return "\n".join(
        output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )


def test_it_ends_in_a_decision(executed: nbformat.NotebookNode) -> None:
    said = texts(executed)
    for source in ("ngram:min=2,max=5,k=3", "suffix", "sglang-ngram:budget=8"):
        assert any(source in line and "pay" in line for line in said.splitlines()), source
    kinds = [output.output_type for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    assert "error" not in kinds
    assert "execute_result" in kinds


def test_its_cells_only_call(executed: nbformat.NotebookNode) -> None:
    for cell in executed.cells:
        if cell.cell_type == "code":
            tree = ast.parse(cell.source.removeprefix("%matplotlib inline"))
            assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(tree))


def test_it_is_stored_with_what_it_shows(executed: nbformat.NotebookNode) -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    for before, after in zip(code_cells(stored), code_cells(executed), strict=True):
        assert shown(after) == shown(before), (
            f"run: python tools/notebooks.py notebooks/{NOTEBOOK.name}\n{after.source}"
        )
