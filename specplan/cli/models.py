"""`specplan models`."""

import typer


def models(name: str = typer.Argument(None, help="Show one."), json: bool = typer.Option(False, "--json")) -> None:
    """List the shipped model specs, or show one."""
    typer.echo("x")
