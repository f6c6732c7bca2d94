"""Widths of texts before anything is drawn, and what follows from them: lines that fit, and the longest that does."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from matplotlib.font_manager import FontProperties

from specplan.report.picture import new_figure, style

DPI: Final = 100.0


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return new_figure(1, 1).canvas.get_renderer()  # type: ignore[attr-defined]


def measured(text: str, font: FontProperties) -> tuple[float, float, float]:
    """Width, height and descent of a line in pixels of a figure's `DPI`."""
    with style():
        width, height, descent = _renderer().get_text_width_height_descent(text, font, ismath=False)
    return float(width), float(height), float(descent)


@lru_cache(maxsize=4096)
def inches(text: str, size: float, *, is_bold: bool = False) -> float:
    """Width of a line of text of `size` points."""
    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if is_bold else "normal")
    return measured(text, font)[0] / DPI


def wrapped(text: str, size: float, width: float, *, is_bold: bool = False) -> list[str]:
    """The text in lines of at most `width` inches; a word that is wider is cut, so that nothing leaves the page."""
    lines: list[str] = []
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and inches(joined, size, is_bold=is_bold) <= width:
            lines[-1] = joined
            continue
        while len(word) > 1 and inches(word, size, is_bold=is_bold) > width:
            cut = next(n for n in range(len(word) - 1, 0, -1) if n == 1 or inches(word[:n], size) <= 0.94 * width)
            lines.append(word[:cut])
            word = word[cut:]
        lines.append(word)
    return [line.strip() for line in lines if line.strip()]


def fitting(texts: Sequence[str], size: float, width: float, *, is_bold: bool = False) -> str:
    """The first of some texts, the longest first, that is no wider than `width` inches; the last if none is."""
    return next((text for text in texts if inches(text, size, is_bold=is_bold) <= width), texts[-1])
