"""The lab runs from its first cell to its last on recorded results, and its cells hold no logic of their own."""

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from notebook_cells import code_cells, shown

from specplan.harness.measure import read_measurement

pytestmark = pytest.mark.tail

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_measure_alpha.ipynb"
RECORDED = NOTEBOOK.parent / "data" / "measured"


@pytest.fixture(scope="module")
def executed() -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute()
    return notebook


def texts(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)


def test_it_ends_in_a_decision_for_every_source(executed: nbformat.NotebookNode) -> None:
    last = [cell for cell in executed.cells if cell.cell_type == "code"][-1]
    said = " ".join(output.get("text", "") for output in last.outputs).replace("\n", " ")
    for speed in read_measurement(RECORDED).speeds:
        assert f"{speed.measured.source} on {speed.measured.tag}: " in said.replace("  ", " ")
    kinds = [output.output_type for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    assert "error" not in kinds


def test_it_draws_the_plane(executed: nbformat.NotebookNode) -> None:
    outputs = [output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1


def test_what_it_shows_is_what_was_recorded(executed: nbformat.NotebookNode) -> None:
    said = texts(executed)
    for speed in read_measurement(RECORDED).speeds:
        assert speed.measured.alpha.value is not None
        assert f"{speed.measured.alpha.value:.3f}" in said
        assert f"{speed.speedup:.2f}x" in said


def test_copying_work_is_where_matchers_speak() -> None:
    found = {
        (s.measured.source.partition(":")[0], s.measured.tag): s.measured for s in read_measurement(RECORDED).speeds
    }
    assert {kind for kind, _ in found} == {"ngram", "suffix", "draft"}
    for kind in ("ngram", "suffix"):
        assert found[kind, "copy"].coverage > found[kind, "open"].coverage
        assert found[kind, "copy"].tokens_per_step > found[kind, "open"].tokens_per_step
    # A draft model drafts in every step, whatever the work.
    assert found["draft", "copy"].coverage == found["draft", "open"].coverage == 1.0


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
