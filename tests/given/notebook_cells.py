"""What a notebook shows: its code cells, and each one's output as text."""

import re
from typing import Any


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> str:
    """All that a cell shows, however it came in pieces; a picture is the word, colours are left out."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        parts.append("picture\n" if "image/png" in data else data.get("text/plain", output.get("text", "")))
    return re.sub("\x1b\\[[0-9;]*m", "", "".join(parts))
