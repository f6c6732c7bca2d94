"""The console of every report: each figure is shown at any width, and text from outside stays text."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

import rich.console
from rich.console import ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from specplan.files.text import escaped

FILE_WIDTH: Final = 132
"""Width of wide tables that go to a file or a pipe."""
LEAST_WIDTH: Final = 20
_WHOLE: Final = 10_000
FORM: Final[ContextVar[str]] = ContextVar("form", default="table")
"""How a command writes its tables: one of `specplan.report.forms.FORMS`."""
QUIET: Final[ContextVar[bool]] = ContextVar("quiet", default=False)
"""Whether a command counts its notes in place of listing them."""
_NOTES: Final = ("assumed: ", "not modelled: ", "modelled: ", "not counted: ")
_FIGURE: Final = re.compile(r"(?<!\S)[<>~(]?[+-]?\d[\d.,%x)-]*(?!\S)")


class Console(rich.console.Console):
    """Rich's console with three promises.

    - A table that is wider than the console is stacked, one line per figure, where rich would cut figures off.
    - Control characters and bidi overrides in what is shown are escaped.
    - A width of nothing (``COLUMNS=0``) is no width.

    Tables are written as CSV, Markdown or HTML where `FORM` or `form` says so; beside CSV, words go to stderr.

    Parameters
    ----------
    wide : bool
        Where there is no terminal, take `FILE_WIDTH` columns instead of rich's 80.

    Examples
    --------
    >>> from specplan.report.grid import grid
    >>> table = grid("source", "speedup", "requests that fit", left=("source",))
    >>> table.add_row("ngram", "1.83x", "31")
    >>> Console(columns=20).print(table)
    source: ngram
      speedup: 1.83x
      requests that
    fit: 31
    """

    def __init__(
        self, *, wide: bool = False, columns: int | None = None, form: str | None = None, **options: Any
    ) -> None:
        self.form = FORM.get() if form is None else form
        self.terse = QUIET.get()
        self._tables = 0
        if self.form != "table":
            columns = _WHOLE  # a table in one piece
        told = os.environ.get("COLUMNS", "")
        if columns is None and told.isdigit():
            columns = int(told) or None
            columns = 80 if columns is None else columns
        elif columns is None and wide and not sys.stdout.isatty():
            columns = FILE_WIDTH
        width = None if columns is None else max(columns, LEAST_WIDTH)
        super().__init__(width=width, force_jupyter=False, **options)  # notebooks, too, show tables as text

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of `renderable`, their text escaped."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                lines = segment.text.split("\n")
                yield segment._replace(text="\n".join(escaped(line) for line in lines))

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, tables in their form and so that they fit."""
        if self.terse and objects and _is_note(objects[0]):
            return
        if self.form == "table":
            super().print(*(self._fitting(o) if isinstance(o, Table) else o for o in objects), **options)
            return
        from specplan.report.forms import written

        for o in objects:
            if isinstance(o, Table):
                self.file.write(f"{chr(10) if self._tables else ''}{written(o, self.form)}\n")
                self._tables += 1
            elif text := (_text(o).plain if options.get("markup", True) else str(o)).strip("\n"):
                self._say(text)

    def _say(self, text: str) -> None:
        """A line beside the tables."""
        text = "\n".join(escaped(line) for line in text.split("\n"))
        if self.form == "csv":
            sys.stderr.write(f"{text}\n")
        elif self.form == "html":
            import html

            self.file.write(f"<p>{html.escape(text)}</p>\n")
        else:
            self.file.write(f"\n{text}\n")

    def _fitting(self, table: Table) -> RenderableType:
        if self.measure(table, options=self.options.update(width=_WHOLE)).maximum <= self.width:
            return table
        shown, whole = (self._told(table, width) for width in (self.width, _WHOLE))
        return table if shown == whole else stacked(table)

    def _told(self, table: Table, width: int) -> Counter[str]:
        """The letters and the unbroken figures that a table shows at a width."""
        text = "".join(segment.text for segment in self.render(table, self.options.update(width=width)))
        return Counter(filter(str.isalnum, text)) + Counter(_FIGURE.findall(text))


def stacked(table: Table) -> Group:
    """A table's rows as lines: the first column as a heading, then each other column with its name."""
    names = [_text(column.header) for column in table.columns]
    lines = [_text(table.title)] if table.title else []
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        for i, (name, cell) in enumerate(zip(names, map(_text, cells), strict=True)):
            if i == 0 or cell.plain.strip():
                head = f"{'  ' if i else ''}{name.plain}{': ' if name.plain else ''}"
                lines.append(Text.assemble(head, cell, overflow="fold"))
    return Group(*lines)


def _is_note(shown: Any) -> bool:
    return isinstance(shown, str | Text) and _text(shown).plain.lstrip().startswith(_NOTES)


def _text(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))


_PLAIN: Final = str.maketrans(
    {
        "×": "x", "·": "*", "–": "-", "—": "-", "−": "-", "…": "...", "≤": "<=", "≥": ">=", "≈": "~", "±": "+/-",
        "→": "->", "←": "<-", "α": "alpha", "β": "beta", "γ": "gamma", "κ": "kappa", "λ": "lambda", "ρ": "rho",
        "σ": "sigma", "τ": "tau", "†": "+", "²": "^2", "³": "^3", "µ": "u", "μ": "u", "√": "sqrt", "∞": "inf",
        "‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "°": " deg", "§": "section ", "é": "e", "ö": "o",
    }
)  # fmt: skip


def plain(text: str) -> str:
    r"""`text` for streams that cannot encode it: signs by their names, the rest as escapes.

    >>> plain("1.83×, κ = 3, \u65e5")
    '1.83x, kappa = 3, \\u65e5'
    """
    return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


def replace_in(error: UnicodeError) -> tuple[str, int]:
    """Error handler of streams (see `codecs.register_error`): what cannot be encoded is shown by `plain`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return plain(error.object[error.start : error.end]), error.end
