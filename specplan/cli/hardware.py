"""`specplan hardware`."""

import typer


def hardware(
    name: str = typer.Argument(None, help="Show one: a profile name, alias or YAML file."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """List the shipped hardware profiles, or show one with the source of each number."""
    from specplan.report import catalog_table, json_document
    from specplan.specs.hardware import list_accelerators, load_accelerator

    cards = (load_accelerator(name),) if name else list_accelerators()
    if json:
        summaries = [catalog_table.accelerator_summary(card) for card in cards]
        typer.echo(json_document.render({"command": "hardware", "inputs": {"name": name}, "hardware": summaries}))
        return
    from specplan.report.console import Console

    if name:
        catalog_table.print_accelerator(cards[0], Console())
    else:
        catalog_table.print_accelerators(cards, Console())
