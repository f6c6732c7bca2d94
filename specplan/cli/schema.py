"""`specplan schema`."""

import typer

from specplan.cli import options


def schema(
    command: str = typer.Argument(None, help="Command whose document is described; all are listed without one."),
    json: bool = options.JSON,
) -> None:
    """The JSON Schema of a command's --json document."""
    from importlib.resources import files

    from specplan.errors import NotFoundError
    from specplan.files.text import near_misses
    from specplan.report.json_document import render

    folder = files("specplan") / "data" / "schemas"
    known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
    if command is None:
        typer.echo(render({"command": "schema", "inputs": {}, "commands": known}) if json else "\n".join(known))
        return
    if command not in known:
        raise NotFoundError(
            f"no schema of {command!r}{near_misses(command, known) or ';'} there are {', '.join(known)}"
        )
    typer.echo((folder / f"{command}.json").read_text("utf-8"), nl=False)
