"""`specplan check-chapter`."""

import typer


def check_chapter(json: bool = typer.Option(False, "--json", help="One JSON document and nothing else.")) -> None:
    """Every number of the source chapter beside specplan's own, with pass or fail. Exits with 1 if one fails."""
    from specplan.evidence.chapter import chapter_rows
    from specplan.specs.catalog import load_model
    from specplan.specs.hardware import load_accelerator

    big, small, draft = (load_model(name) for name in ("llama3-70b", "llama3-8b", "llama3.2-1b"))
    rows = chapter_rows(big, small, draft, load_accelerator("h100-sxm"))
    if json:
        from specplan.report import chapter_table, json_document

        typer.echo(json_document.render(chapter_table.chapter_document(rows)))
    else:
        from specplan.report.chapter_table import print_chapter
        from specplan.report.console import Console

        print_chapter(rows, Console())
    if not all(row.passes for row in rows):
        raise typer.Exit(1)
