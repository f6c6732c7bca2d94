"""The plain table that reports of step time share: no frame, bold heads, figures to the right."""

from collections.abc import Collection
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text


class LiteralTable(Table):
    """A table whose cells are words, not markup: names of models and sources may hold brackets.

    >>> table = LiteralTable("name")
    >>> table.add_row("mine [/x]")
    >>> next(iter(table.columns[0].cells)).plain
    'mine [/x]'
    """

    def add_row(self, *renderables: RenderableType | None, **more: Any) -> None:
        """Add a row; strings are taken as they stand."""
        super().add_row(*(Text(r) if isinstance(r, str) else r for r in renderables), **more)


def grid(
    *names: str, left: Collection[str] = (), wrap: Collection[str] = (), literal: bool = False
) -> Table | LiteralTable:
    """Empty table with the columns `names`; those in `left` hold words, those in `wrap` may break.

    With `literal`, cells are no markup.

    >>> len(grid("batch", "source", left=("source",)).columns)
    2
    """
    kind = LiteralTable if literal else Table
    table = kind(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in wrap, overflow="fold")
    return table
