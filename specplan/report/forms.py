"""Tables in other forms than a terminal's: comma-separated values, Markdown and HTML, of the cells that are shown."""

import csv
import html
import io
import re
from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

FORMS: Final = ("table", "csv", "md", "html")
_GROUPED: Final = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def text_of(cell: object) -> str:
    """What a cell says, without markup."""
    return (cell if isinstance(cell, Text) else Text.from_markup(str(cell))).plain


def cells_of(table: Table) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and the rows."""
    names = [text_of(column.header) for column in table.columns]
    columns = [[text_of(cell) for cell in column.cells] for column in table.columns]
    return names, [list(row) for row in zip(*columns, strict=True)]


def written(table: Table, form: str) -> str:
    r"""A table as text in a form.

    Numbers lose the commas between their digits in CSV, so that a spreadsheet reads them as numbers.

    >>> from specplan.report.grid import grid
    >>> table = grid("source", "fit | max", left=("source",))
    >>> table.add_row("ngram:min=2,max=5", "1,273")
    >>> print(written(table, "csv"))
    source,fit | max
    "ngram:min=2,max=5",1273
    >>> print(written(table, "md"))
    | source | fit \| max |
    |:--|--:|
    | ngram:min=2,max=5 | 1,273 |
    """
    names, rows = cells_of(table)
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_ungrouped(cell) for cell in row] for row in rows])
        return out.getvalue().rstrip("\n")
    right = [column.justify == "right" for column in table.columns]
    return _html(names, rows, right) if form == "html" else _markdown(names, rows, right)


def _ungrouped(cell: str) -> str:
    return cell.replace(",", "") if _GROUPED.fullmatch(cell.strip()) else cell


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"

    rule = f"|{'|'.join('--:' if r else ':--' for r in right)}|"
    return "\n".join([line(names), rule, *map(line, rows)])


def _html(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        aligned = zip(cells, right, strict=True)
        return "".join(
            f'<{tag} style="text-align:{"right" if r else "left"}">{html.escape(c)}</{tag}>' for c, r in aligned
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(names, 'th')}</tr></thead><tbody>{body}</tbody></table>"
