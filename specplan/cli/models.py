"""`specplan models`."""

import typer


def models(
    name: str = typer.Argument(None, help="Show one: a spec name, alias, YAML file, config.json or folder."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """List the shipped model specs, or show one with its parameters by component."""
    from specplan.report import catalog_table, json_document
    from specplan.specs.catalog import list_models, load_model

    found = [(load_model(name), ())] if name else [(entry.model, entry.aliases) for entry in list_models()]
    if json:
        summaries = [catalog_table.model_summary(model, aliases) for model, aliases in found]
        typer.echo(json_document.render({"command": "models", "inputs": {"name": name}, "models": summaries}))
        return
    from specplan.report.console import Console

    if name:
        catalog_table.print_model(*found[0], Console())
    else:
        catalog_table.print_models(found, Console())
