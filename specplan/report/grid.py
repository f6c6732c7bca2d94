"""The plain table that reports of step time share: no frame, bold heads, figures to the right."""

from collections.abc import Collection

from rich.table import Table


def grid(*names: str, left: Collection[str] = (), wrap: Collection[str] = ()) -> Table:
    """Empty table with the columns `names`; those in `left` hold words, those in `wrap` may break.

    >>> len(grid("batch", "source", left=("source",)).columns)
    2
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in wrap, overflow="fold")
    return table
