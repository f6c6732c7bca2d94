"""The key below a picture: a row per source with its line and marker, figures in columns, and notes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from specplan.report.picture import MUTED, Look

ROW, NOTE = 0.235, 0.185
FONT, SMALLEST = 8.8, 6.0
FULL_WIDTH = 8.2
"""Inches for which the columns of a key are laid out; a narrower figure squeezes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One source: how it is drawn, and a text for each column."""

    look: Look
    texts: tuple[str, ...]
    has_marker: bool = True


def key_height(rows: Sequence[Row], notes: Sequence[str]) -> float:
    """Inches that a key takes."""
    return ROW * (len(rows) + 1) + NOTE * len(notes) + 0.12 if rows else 0.1


def draw_key(
    figure: Figure, columns: Sequence[tuple[str, float]], rows: Sequence[Row], notes: Sequence[str], left: float
) -> None:
    """Draw a key at the foot of a figure.

    Parameters
    ----------
    columns : sequence of (str, float)
        Heading, and inches from `left`; a text is shrunk to end before the next column.
    left : float
        Inches from the left edge of the figure.
    """
    if not rows:
        return
    width, height = figure.get_size_inches()
    squeeze = min(1.0, (width - left) / FULL_WIDTH)
    columns = [(heading, x * squeeze) for heading, x in columns]
    ends = [*(x for _, x in columns[1:]), width - left - 0.05]
    y = key_height(rows, notes) - 0.02
    for heading, x in columns:
        figure.text((left + x) / width, y / height, heading, fontsize=8.5 * squeeze, color=MUTED, va="center")
    for row in rows:
        y -= ROW
        sample = figure.add_axes((left / width, (y - 0.1) / height, 0.38 * squeeze / width, 0.2 / height))
        sample.set_axis_off()
        sample.set_xlim(0, 1)
        sample.set_ylim(-1, 1)
        lk = row.look
        sample.plot([0, 1], [0, 0], color=lk.colour, ls=lk.dash, lw=1.8)
        if row.has_marker:
            sample.plot([0.5], [0], marker=lk.marker, ms=7, color=lk.colour, mec="white", mew=0.7)
        for text, (_, x), end in zip(row.texts, columns, ends, strict=True):
            drawn = figure.text((left + x) / width, y / height, text, fontsize=FONT * squeeze, va="center")
            _fit(figure, drawn, end - x - 0.08)
    y -= 0.05
    for note in notes:
        y -= NOTE
        drawn = figure.text(left / width, y / height, note, fontsize=8.2 * squeeze, color=MUTED, va="center")
        _fit(figure, drawn, width - left - 0.05)


def _fit(figure: Figure, drawn: Any, inches: float) -> None:
    """Shrink a text to a width, and cut it where it would become too small to read."""
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    taken = drawn.get_window_extent(renderer).width / figure.dpi
    if taken <= inches:
        return
    size = drawn.get_fontsize() * inches / taken
    drawn.set_fontsize(max(size, SMALLEST))
    if size < SMALLEST:
        text = drawn.get_text()
        drawn.set_text(text[: max(1, int(len(text) * size / SMALLEST) - 1)] + "…")
