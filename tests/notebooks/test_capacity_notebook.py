"""The notebook runs from its first cell to its last, and its queue is longer with less cache."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "04_capacity.ipynb"


@pytest.fixture(scope="module")
def said() -> str:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any("image/png" in output.get("data", {}) for output in cells[-1].outputs)
    return "\n".join(output.get("text", "") for cell in cells for output in cell.outputs)


def test_a_tenth_of_the_cache_costs_more_the_higher_the_load(said: str) -> None:
    waits = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) s, ([\d.]+) s with a tenth less", said)]
    costs = [less - full for full, less in waits]
    assert len(costs) == 3
    assert costs == sorted(costs)
    assert costs[2] > 10 * max(costs[0], 0.001)


def test_speculation_that_pays_holds_a_higher_rate(said: str) -> None:
    none, ngram = (float(rate) for rate in re.findall(r": ([\d.]+) requests/s \(estimate", said))
    assert ngram > none > 1
