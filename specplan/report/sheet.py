"""The page around the axes of every picture: heading, conditions above each panel, the key, all in inches."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specplan.report.drawing import Drawing
from specplan.report.key import Key, Row
from specplan.report.lettering import fitting, wrapped
from specplan.report.picture import MUTED, finish, new_figure

HEADING, CONDITIONS = 12.5, 9.0
UNDER, LEFT, RIGHT, GAP = 0.56, 0.82, 0.28, 0.62
PER_ROW = 3
NATURAL = {1: 9.0, 2: 12.5, 3: 15.5}
"""Inches, by the number of panels side by side."""
NARROW = 6.0
"""Inches of a panel below which texts on it are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """An axes, its size in inches, and whether it is the leftmost of its row."""

    axes: Axes
    width: float
    height: float
    is_leftmost: bool

    @property
    def is_narrow(self) -> bool:
        """Whether texts on it are to be short."""
        return self.width < NARROW


@dataclass(slots=True, kw_only=True)
class Sheet:
    """A page that is laid out; its panels are drawn by whoever asked for it, then `done` gives it its size and style.

    Parameters
    ----------
    drawing : Drawing
    headings : sequence of str
        What is drawn, the longest form first: the first that fits is taken, unless the drawing has a title.
    conditions : sequence of str
        A line above each panel; as many panels as lines.
    rows, columns, notes
        Of the key.
    ratio : sequence of float
        Height over width of a panel: of one panel that is wide, of one of several, of a narrow one.
    tall : float, optional
        Inches of height of a panel, instead of a ratio.
    stacked : bool
        Panels below each other, not side by side.
    """

    drawing: Drawing
    headings: Sequence[str]
    conditions: Sequence[str]
    rows: Sequence[Row]
    columns: Sequence[str]
    notes: Sequence[str] = ()
    ratio: tuple[float, float, float] = (0.60, 0.82, 0.80)
    tall: float | None = None
    stacked: bool = False
    figure: Figure = field(init=False)
    panels: list[Panel] = field(init=False)
    _zoom: float = field(init=False)

    def __post_init__(self) -> None:
        """Find every place in inches."""
        count = len(self.conditions)
        abreast = 1 if self.stacked else min(count, PER_ROW)
        width, self._zoom = self.drawing.layout(NATURAL[abreast])
        abreast = max(1, min(abreast, int((width - LEFT - RIGHT + GAP) / (3.4 + GAP))))
        each = (width - LEFT - RIGHT - GAP * (abreast - 1)) / abreast
        body = self.tall or each * self.ratio[2 if each < 4.5 else min(abreast - 1, 1)]
        edge = LEFT if width >= NARROW else 0.12
        heading = self._heading(width - edge - 0.1)
        key = Key(width=width - edge - 0.1, columns=self.columns, rows=self.rows, notes=self.notes)
        above = [wrapped(text, CONDITIONS, each + 0.1) for text in self.conditions]
        over = 0.1 + 0.165 * max(len(lines) for lines in above)
        lines = -(-count // abreast)
        head = 0.1 + 0.24 * len(heading)
        height = head + lines * (over + body + UNDER) + key.height
        self.figure, self.panels = new_figure(width, height), []
        for i, line in enumerate(heading):
            self.figure.text(
                edge / width, 1 - (0.2 + 0.24 * i) / height, line, fontsize=HEADING, fontweight="bold", va="center"
            )
        for i, texts in enumerate(above):
            row, column = divmod(i, abreast)
            bottom = height - head - (row + 1) * (over + body) - row * UNDER
            x = LEFT + column * (each + GAP)
            axes = self.figure.add_axes((x / width, bottom / height, each / width, body / height))
            self.panels.append(Panel(axes=axes, width=each, height=body, is_leftmost=column == 0))
            for j, text in enumerate(texts):
                y = bottom + body + 0.1 + 0.165 * (len(texts) - 1 - j)
                self.figure.text(x / width, y / height, text, fontsize=CONDITIONS, color=MUTED)
        key.draw(self.figure, edge)

    def _heading(self, width: float) -> list[str]:
        title = self.drawing.title
        if title is None:
            title = fitting(self.headings, HEADING, width, is_bold=True)
        return wrapped(title, HEADING, width, is_bold=True)

    def done(self) -> Figure:
        """The figure at the size and in the style that was asked for."""
        finish(self.figure, self._zoom, self.drawing.style)
        return self.figure


def shown_rows(drawing: Drawing, rows: Sequence[Row], unlabelled: Sequence[str]) -> list[Row]:
    """The rows of a key: all in a table, in line those whose label found no room, else none."""
    if drawing.legend == "table":
        return list(rows)
    return [row for row in rows if row.label in unlabelled] if drawing.legend == "inline" else []
