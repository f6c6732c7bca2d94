"""The key below a picture: a row per source with its line and marker, its figures, and notes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure

from specplan.report.lettering import inches, wrapped
from specplan.report.picture import MUTED, Look

ROW, LINE = 0.235, 0.17
FONT, NOTE_FONT = 8.8, 8.2
SAMPLE, BETWEEN = 0.38, 0.26
PLAIN: Final = ("speedup", "best", "at")
"""Columns whose texts say by themselves what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One source: how it is drawn, its label on the picture, and a text for each column, the name first."""

    look: Look
    label: str
    texts: tuple[str, ...]
    has_marker: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key that is laid out for a width in inches.

    Attributes
    ----------
    columns : sequence of str
        Headings.
    """

    width: float
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def _places(self) -> list[float]:
        """Inches from the left end of each column; none where the columns do not fit beside each other."""
        widest = [
            max(inches(heading, FONT), *(inches(row.texts[i], FONT) for row in self.rows)) + BETWEEN
            for i, heading in enumerate(self.columns)
        ]
        places = [SAMPLE + 0.08 + sum(widest[:i]) for i in range(len(widest) + 1)]
        return places[:-1] if places[-1] - BETWEEN <= self.width else []

    def _under(self, row: Row) -> list[str]:
        """The figures of a source below its name, where there is no room beside it."""
        parts = [
            text if heading in PLAIN else f"{heading} {text}"
            for text, heading in zip(row.texts[1:], self.columns[1:], strict=True)
            if text
        ]
        return wrapped("  ·  ".join(parts), NOTE_FONT, self.width - SAMPLE - 0.08)

    def _names(self, row: Row) -> list[str]:
        return wrapped(row.texts[0], FONT, self.width - SAMPLE - 0.08)

    def _notes(self) -> list[str]:
        return [line for note in self.notes for line in wrapped(note, NOTE_FONT, self.width)]

    @property
    def height(self) -> float:
        """Inches that it takes."""
        if not self.rows:
            return 0.1
        notes = LINE * len(self._notes()) + 0.12
        if self._places():
            return ROW * (len(self.rows) + 1) + notes
        return sum(ROW * len(self._names(row)) + LINE * len(self._under(row)) + 0.05 for row in self.rows) + notes

    def draw(self, figure: Figure, left: float) -> None:
        """Draw it at the foot of a figure, `left` inches from its edge."""
        if not self.rows:
            return
        width, height = figure.get_size_inches()

        def write(x: float, y: float, text: str, size: float, colour: str | None = None) -> None:
            style = {} if colour is None else {"color": colour}
            figure.text((left + x) / width, y / height, text, fontsize=size, va="center", **style)  # type: ignore[arg-type]

        y, places = self.height - 0.06, self._places()
        if places:
            for heading, x in zip(self.columns, places, strict=True):
                write(x, y, heading, 8.5, MUTED)
        for row in self.rows:
            y -= ROW if places else 0.05 + ROW / 2
            self._sample(figure, row, left, y)
            if places:
                for text, x in zip(row.texts, places, strict=True):
                    write(x, y, text, FONT)
                continue
            for i, name in enumerate(self._names(row)):
                y -= ROW if i else 0
                write(SAMPLE + 0.08, y, name, FONT)
            y -= ROW / 2
            for line in self._under(row):
                y -= LINE / 2
                write(SAMPLE + 0.08, y, line, NOTE_FONT, MUTED)
                y -= LINE / 2
        y -= ROW / 2 if places else 0.05
        for line in self._notes():
            y -= LINE / 2
            write(0, y, line, NOTE_FONT, MUTED)
            y -= LINE / 2

    def _sample(self, figure: Figure, row: Row, left: float, y: float) -> None:
        width, height = figure.get_size_inches()
        sample = figure.add_axes((left / width, (y - 0.1) / height, SAMPLE / width, 0.2 / height))
        sample.set_axis_off()
        sample.set_xlim(0, 1)
        sample.set_ylim(-1, 1)
        lk = row.look
        sample.plot([0, 1], [0, 0], color=lk.colour, ls=lk.dash, lw=1.8)
        if row.has_marker:
            sample.plot([0.5], [0], marker=lk.marker, ms=7, color=lk.colour, mec="white", mew=0.7)
