"""`specplan validate`."""

from pathlib import Path

import typer

from specplan.errors import InputError


def validate(
    table: str = typer.Argument(
        None,
        help="One published table, rows (measured speedups), adaptive (verification by load), startup (recorded "
        "logs), or serving (servers under load); all but the last two if not given.",
    ),
    rows: Path = typer.Option(
        None,
        "--rows",
        help="Measured rows of your own (JSON) in place of the shipped ones; of startup or adaptive, too.",
    ),
    figures: bool = typer.Option(
        False, "--figures", help="Every figure, not only the medians (always with one table)."
    ),
    check: bool = typer.Option(False, "--check", help="Exit with 1 if a median error exceeds its limit."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Published tables against specplan's predictions: how far each kind of figure can be trusted."""
    from specplan.evidence.validate import validate as plan
    from specplan.specs.hardware import load_accelerator

    if table in ("startup", "serving"):
        (_startup if table == "startup" else _serving)(rows, json=json)
        return
    if rows is not None and table not in (None, "rows", "adaptive"):
        raise InputError("--rows belongs to specplan validate, validate rows, validate adaptive, startup and serving")
    from specplan.evidence.published_rows import predicted_rows, summaries
    from specplan.specs.catalog import load_model

    results = predicted_rows(rows, load_model, load_accelerator) if table in (None, "rows") else ()
    alone = table == "rows" or rows is not None
    if table == "adaptive":
        from specplan.evidence.validate_adaptive import adaptive_tables

        reports = adaptive_tables(rows)
    else:
        reports = () if alone else plan(load_accelerator, (table,) if table else None)
    from specplan.report import rows_table, validate_table

    found = summaries(results)
    if json:
        from specplan.report import json_document

        document = validate_table.validate_document(reports)
        if results:
            document["measured_rows"] = rows_table.rows_document(results, found)
        typer.echo(json_document.render(document))
    else:
        from specplan.report.console import Console

        if reports:
            validate_table.print_validate(reports, Console(), rows=figures or table is not None)
        if results:
            rows_table.print_rows(results, found, Console(), figures=figures or alone)
    if check and not (validate_table.holds(reports) and all(s.holds for s in found)):
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


def _serving(rows: Path | None, *, json: bool) -> None:
    """Measured servers under load against their simulation."""
    from specplan.evidence.validate_serving import serving_rows
    from specplan.report import serving_table
    from specplan.specs.catalog import load_model
    from specplan.specs.hardware import load_accelerator

    found = list(serving_rows(rows, load_model, load_accelerator))
    if json:
        from specplan.report import json_document

        document = serving_table.serving_document(found, "shipped" if rows is None else str(rows))
        typer.echo(json_document.render(document))
        return
    from specplan.report.console import Console

    serving_table.print_serving(found, Console())
