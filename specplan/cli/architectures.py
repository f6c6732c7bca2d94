"""`specplan architectures`."""

import typer


def architectures(
    classes: bool = typer.Option(False, "--classes", help="List the class names of vLLM's text registry instead."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """List the architectures that can be counted, with their status."""
    from specplan.report import import_report, json_document
    from specplan.specs.huggingface.draft_registry import DRAFT_METHODS
    from specplan.specs.huggingface.status import architecture_statuses, class_statuses

    statuses = class_statuses() if classes else architecture_statuses()
    if json:
        typer.echo(json_document.render(import_report.architectures_document(statuses, DRAFT_METHODS)))
        return
    from specplan.report.console import Console

    import_report.print_architectures(statuses, DRAFT_METHODS, Console())
