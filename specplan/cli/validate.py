"""`specplan validate`."""

from pathlib import Path

import typer

from specplan.errors import InputError


def validate(
    table: str = typer.Argument(
        None, help="One published table, or startup (recorded start-up logs); all if not given."
    ),
    rows: Path = typer.Option(None, "--rows", help="startup: rows of your own (JSON) in place of the shipped ones."),
    figures: bool = typer.Option(
        False, "--figures", help="Every figure, not only the medians (always with one table)."
    ),
    check: bool = typer.Option(False, "--check", help="Exit with 1 if a median error exceeds its limit."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Published tables against specplan's predictions: how far each kind of figure can be trusted."""
    from specplan.evidence.validate import validate as plan
    from specplan.specs.hardware import load_accelerator

    if table == "startup":
        _startup(rows, json=json)
        return
    if rows is not None:
        raise InputError("--rows belongs to specplan validate startup")
    reports = plan(load_accelerator, (table,) if table else None)
    from specplan.report import validate_table

    if json:
        from specplan.report import json_document

        typer.echo(json_document.render(validate_table.validate_document(reports)))
    else:
        from specplan.report.console import Console

        validate_table.print_validate(reports, Console(), rows=figures or table is not None)
    if check and not validate_table.holds(reports):
        raise typer.Exit(1)


def _startup(rows: Path | None, *, json: bool) -> None:
    """Recorded start-ups of engines against predicted pools."""
    from specplan.evidence.validate_startup import file_table, startup_table, summarise
    from specplan.report import startup_table as report
    from specplan.specs.hardware import load_accelerator
    from specplan.specs.huggingface.vision import import_served

    found = startup_table(import_served, load_accelerator) if rows is None else file_table(rows)
    if json:
        from specplan.report import json_document

        typer.echo(
            json_document.render(
                report.startup_document(found, summarise(found), "shipped" if rows is None else str(rows))
            )
        )
        return
    from specplan.report.console import Console

    report.print_startup(found, summarise(found), Console())
