"""What all pictures share: colours that survive greyscale and colour blindness, fonts, and writing by suffix."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.text import Text

from specplan.files.writing import whole
from specplan.report.output_file import PICTURES, output_path

INK: Final = "#1a1a1a"
MUTED: Final = "#5a5a5a"
GRID: Final = "#e4e4e4"
LOSE: Final = "#e9e5df"
HATCH: Final = "#cfc8bd"
WIN: Final = ("#ffffff", "#eaf2f9", "#d9e8f4", "#c8deef", "#b6d3ea", "#a4c8e4", "#92bdde", "#80b1d8", "#6fa6d2")
"""Bands of rising speedup: lightness falls evenly, so that they order themselves in greyscale too."""


CLEAR: Final = {"boxstyle": "round,pad=0.14", "facecolor": "white", "alpha": 0.78, "linewidth": 0}
"""What lies under a label. (An outline of its letters would turn the text of an SVG into shapes.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one source is told from the others without colour: marker and dash differ too."""

    colour: str
    marker: str
    dash: Any


LOOKS: Final = (
    Look(colour="#B2430B", marker="o", dash="-"),
    Look(colour="#0B4F86", marker="s", dash=(0, (6, 2))),
    Look(colour="#00694D", marker="^", dash=(0, (2, 1.6))),
    Look(colour="#8A2F66", marker="D", dash=(0, (8, 2, 2, 2))),
    Look(colour="#6B4E00", marker="v", dash=(0, (4, 1.5, 1, 1.5, 1, 1.5))),
    Look(colour="#33363B", marker="P", dash=(0, (1, 1))),
    Look(colour="#3B3AA0", marker="X", dash=(0, (10, 3))),
    Look(colour="#7A1F1F", marker="h", dash=(0, (3, 3))),
)


DARK: Final[dict[str, str]] = {
    INK: "#e6e8eb",
    MUTED: "#a9b0b8",
    GRID: "#2c3136",
    LOSE: "#2b2723",
    HATCH: "#3d3831",
    **dict(
        zip(
            WIN,
            ("#14171a", "#162330", "#182c3f", "#1a354e", "#1c3e5c", "#1e476b", "#205079", "#225988", "#246297"),
            strict=True,
        )
    ),
    **dict(
        zip(
            (found.colour.lower() for found in LOOKS),
            ("#ff9a5c", "#7cc4ff", "#5ddcb0", "#f29ad0", "#e8c35a", "#d3d7dc", "#b3b1ff", "#ff9c9c"),
            strict=True,
        )
    ),
}
"""What each colour becomes on black; bands then rise from dark to light."""


def look(index: int) -> Look:
    """Appearance of the source of that index; they repeat after eight."""
    return LOOKS[index % len(LOOKS)]


@contextmanager
def style() -> Iterator[None]:
    """Fonts and sizes of every picture; SVG keeps its text as text, and equal inputs give equal bytes."""
    settings: dict[str, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "axes.titlesize": 11,
        "axes.labelsize": 10,
        "axes.edgecolor": MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
        "text.color": INK,
        "axes.labelcolor": INK,
        "hatch.linewidth": 0.5,
        "text.hinting": "none",  # widths are then in proportion to sizes, and what fits before zooming fits after
        "svg.fonttype": "none",
        "svg.hashsalt": "specplan",
        "pdf.fonttype": 42,
    }
    with mpl.rc_context(settings):  # type: ignore[arg-type]  # the stubs list every key
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches that can measure its own text."""
    figure = Figure(figsize=(width, height), dpi=100)
    FigureCanvasAgg(figure)
    return figure


def finish(figure: Figure, zoom: float, style_name: str) -> None:
    """Enlarge all letters, lines and marks, and give them the colours of a style.

    Places are shares of the page, so that what fits before fits after.

    Parameters
    ----------
    zoom : float
        Size asked for over the size of the layout.
    style_name : str
        One of `specplan.report.drawing.STYLES`.
    """
    dye = DARK if style_name == "dark" else {}
    if zoom == 1 and not dye:
        return
    figure.set_size_inches(*(figure.get_size_inches() * zoom))
    for part in figure.findobj():
        _finish_part(part, zoom, dye)
    for axes in figure.axes:
        axes.tick_params(
            which="both", labelsize=9.5 * zoom, length=3.5 * zoom, width=0.8 * zoom, pad=3.5 * zoom,
            colors=dye.get(INK, INK), grid_linewidth=0.7 * zoom, grid_color=dye.get(GRID, GRID),
        )  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):
            axis.labelpad *= zoom


def _finish_part(part: Any, zoom: float, dye: Mapping[str, str]) -> None:
    def dyed(colour: Any) -> Any:
        kept = to_rgba(colour)
        return to_rgba(dye.get(to_hex(kept), colour), kept[3]) if kept[3] else colour

    if isinstance(part, Text):
        part.set_fontsize(float(part.get_fontsize()) * zoom)
        part.set_color(dyed(part.get_color()))
        under: Any = part.get_bbox_patch()
        if under is not None:
            under.set_facecolor(dyed(under.get_facecolor()))
    elif isinstance(part, Line2D):
        edge, face = part.get_markeredgecolor(), part.get_markerfacecolor()
        part.set(linewidth=part.get_linewidth() * zoom, color=dyed(part.get_color()))
        part.set(markersize=part.get_markersize() * zoom, markeredgewidth=part.get_markeredgewidth() * zoom)
        part.set(markeredgecolor=dyed(edge), markerfacecolor=dyed(face))
    elif isinstance(part, Patch):
        part.set(linewidth=part.get_linewidth() * zoom, edgecolor=dyed(part.get_edgecolor()))
        if part.get_fill():
            part.set_facecolor(dyed(part.get_facecolor()))
        if isinstance(part, FancyArrowPatch):
            part.set_mutation_scale(part.get_mutation_scale() * zoom)
            part.shrinkA, part.shrinkB = part.shrinkA * zoom, part.shrinkB * zoom
    elif isinstance(part, Collection):
        part.set_linewidth((np.atleast_1d(part.get_linewidth()) * zoom).tolist())
        part.set_facecolor([dyed(c) for c in part.get_facecolor()])
        part.set_edgecolor([dyed(c) for c in part.get_edgecolor()])


def save(figure: Figure, path: Path, title: str, dpi: int = 200) -> None:
    """Write a figure in the format of its suffix, without dates.

    Parameters
    ----------
    dpi : int
        Dots per inch of a .png.

    Raises
    ------
    InputError
        For another suffix (see `specplan.report.output_file`), or a path that cannot be written.
    """
    suffix = output_path(str(path), PICTURES).suffix.lower()
    metadata: dict[str, dict[str, Any]] = {
        ".svg": {"Title": title, "Creator": "specplan", "Date": None},
        ".png": {"Title": title, "Software": "specplan"},
        ".pdf": {"Title": title, "Creator": "specplan", "CreationDate": None},
    }
    with style(), whole(path) as fresh:
        if suffix == ".pgf":
            from specplan.report.pgf import write_pgf  # a tenth of a second, for the few who ask

            write_pgf(figure, fresh)
            return
        figure.savefig(fresh, format=suffix[1:], dpi=dpi, metadata=metadata[suffix], facecolor=figure.get_facecolor())
