"""Pictures as LaTeX code: letters in the fonts of the document, placed without a LaTeX at hand."""

from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from matplotlib.backends import backend_pgf
from matplotlib.figure import Figure

from specplan.report.lettering import measured

_TEX: Final = str.maketrans(
    {"\\": r"\textbackslash{}", **{c: rf"\{c}" for c in "_#&${}"}, "~": r"\textasciitilde{}"}
)  # (the backend itself takes care of % and ^)


class _Renderer(backend_pgf.RendererPgf):
    """Measures letters as the other formats do, instead of asking LaTeX, and writes names as they stand."""

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:  # noqa: ARG002
        return measured(s, prop)

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None
    ) -> None:
        super().draw_text(gc, x, y, s.translate(_TEX), prop, angle, ismath, mtext)  # type: ignore[no-untyped-call]


def write_pgf(figure: Figure, path: Path) -> None:
    r"""Write a figure for ``\input``; its document needs the package pgf, and LuaLaTeX or XeLaTeX for Greek letters."""
    canvas = figure.canvas
    with patch.object(backend_pgf, "RendererPgf", _Renderer), path.open("w", encoding="utf-8") as file:
        try:
            backend_pgf.FigureCanvasPgf(figure).print_pgf(file)  # type: ignore[no-untyped-call]
        finally:
            figure.set_canvas(canvas)
