"""How a picture is to look, said once for every command that draws; nothing of matplotlib."""

from dataclasses import dataclass
from typing import Final

from specplan.errors import InputError

LEGENDS: Final = ("table", "inline", "none")
STYLES: Final = ("paper", "slide", "dark")
BASE: Final = 9.5
"""Points of the text that every picture is laid out with; other sizes enlarge the whole picture."""
NARROWEST: Final = 4.0
"""Inches, at text of `BASE` points, below which axes and labels no longer fit."""
_SLIDE: Final = (13.33, 16.0)
"""A slide of 16 : 9 in inches, and its text in points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The look of a picture.

    Attributes
    ----------
    width : float, optional
        Inches, 3 to 40; by the kind of picture if None.
    title : str, optional
        Heading; says what is drawn if None, and is left out if empty.
    legend : {"table", "inline", "none"}
        A key with figures below the picture; names at their lines alone (a key then holds what found no room); nothing.
    font_size : float, optional
        Points, 5 to 40; by width and style if None, 7 in a column of 3.4 inches, 9.5 from 6.5 on.
    style : {"paper", "slide", "dark"}
        On white, at the size of a slide, or on black.

    Raises
    ------
    InputError
        For a value that is none of these, or text that is too large for the width.

    Examples
    --------
    >>> width, zoom = Drawing(width=3.4).layout(9.0)
    >>> round(width, 2), round(zoom, 2)
    (4.61, 0.74)
    """

    width: float | None = None
    title: str | None = None
    legend: str = "table"
    font_size: float | None = None
    style: str = "paper"

    def __post_init__(self) -> None:
        """Check each value, and that the text fits the width."""
        for option, value, known in (("--legend", self.legend, LEGENDS), ("--style", self.style, STYLES)):
            if value not in known:
                raise InputError(f"{option} {value}: expected {', '.join(known[:-1])} or {known[-1]}")
        if self.width is not None and not 3 <= self.width <= 40:
            raise InputError(f"--width {self.width:g}: a picture is 3 to 40 inches wide")
        if self.font_size is not None and not 5 <= self.font_size <= 40:
            raise InputError(f"--font-size {self.font_size:g}: expected 5 to 40 points")
        width, zoom = self.layout(9.0)
        if width < NARROWEST:
            most = BASE * width * zoom / NARROWEST
            raise InputError(
                f"--font-size {self.font_size:g}: too large for {width * zoom:g} inches; at most {most:.1f}, or widen"
            )

    def layout(self, natural: float) -> tuple[float, float]:
        """Inches to lay the picture out in at text of `BASE` points, and what enlarges that to the width asked for.

        Parameters
        ----------
        natural : float
            Width that the kind of picture takes by itself, inches.
        """
        full, slide = _SLIDE
        size = self.font_size
        if self.style == "slide":
            width = full if self.width is None else self.width
            size = min(max(slide * width / full, 7.0), slide) if size is None else size
        elif self.width is None:
            size = BASE if size is None else size
            width = natural * size / BASE
        else:
            width = self.width
            size = min(max(BASE * width / 6.5, 7.0), BASE) if size is None else size
        return width * BASE / size, size / BASE


def checked_dpi(dpi: int) -> int:
    """Dots per inch of a .png, 50 to 1200.

    Raises
    ------
    InputError
        For another number.
    """
    if not 50 <= dpi <= 1200:
        raise InputError(f"--dpi {dpi}: expected 50 to 1200")
    return dpi
