"""`specplan import`."""

import typer


def import_(
    source: str = typer.Argument(
        ...,
        metavar="CONFIG_OR_FOLDER",
        help="A config.json, a checkpoint folder, a .gguf file, a spec, a Hub id, or the address of one.",
    ),
    output: str = typer.Option(None, "--output", "-o", help="Write the model spec here (.yaml); - for stdout."),
    assume: str = typer.Option(None, "--assume", metavar="TYPE", help="Count it as this model_type or draft method."),
    allow_unread: bool = typer.Option(
        False, "--allow-unread", help="Count a config although fields of it are not understood; they are named."
    ),
    name: str = typer.Option(None, "--name", help="Name of the spec; the file's or folder's if not given."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Turn a config, checkpoint folder, GGUF file or address into a model spec, and show what it counts."""
    from specplan.files.writing import write_whole
    from specplan.report import import_report, json_document, output_file
    from specplan.specs import importing
    from specplan.specs.model_yaml import ModelFile, dump_model_yaml

    target = None if output in (None, "-") else output_file.output_path(output, (".yaml", ".yml"))
    found, summary = importing.import_source(source, assume=assume, name=name, allow_unread=allow_unread)
    text = dump_model_yaml(ModelFile(model=found.model))
    if target is not None:
        write_whole(target, text)
    if output == "-":
        typer.echo(text, nl=False)
        return
    if json:
        inputs = {"source": source, "output": output, "assume": assume, "allow_unread": allow_unread, "name": name}
        typer.echo(json_document.render(import_report.import_document(found, summary, inputs)))
        return
    from specplan.report.console import Console

    import_report.print_import(found, summary, Console())
    if target is not None:
        typer.echo(f"wrote {target}")
