"""What all pictures share: colours that survive greyscale and colour blindness, fonts, and writing by suffix."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from specplan.files.writing import whole
from specplan.report.output_file import PICTURES, output_path

INK: Final = "#1a1a1a"
MUTED: Final = "#5a5a5a"
LOSE: Final = "#e9e5df"
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
        "hatch.color": "#cfc8bd",
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


def save(figure: Figure, path: Path, title: str) -> None:
    """Write a figure in the format of its suffix, without dates.

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
        figure.savefig(fresh, format=suffix[1:], dpi=200, metadata=metadata[suffix], facecolor="white")
