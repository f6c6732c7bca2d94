"""`specplan engines`."""

import typer

from specplan.cli import options


def engines(json: bool = options.JSON) -> None:
    """What is known of which engine version, since when, and how."""
    from specplan.report.engines_table import engines_document, print_engines

    if json:
        from specplan.report.json_document import render

        typer.echo(render(engines_document()))
        return
    from specplan.report.console import Console

    print_engines(Console(wide=True))
