"""`specplan page`."""

import typer


def page(
    output: str = typer.Option("page.html", "--output", "-o", help="File to write, .html."),
    serve: bool = typer.Option(False, "--serve", help="Show it on 127.0.0.1 instead, until interrupted."),
    port: int = typer.Option(8000, "--port", help="Port to show it at; 0 takes any free one."),
) -> None:
    """Write one self-contained page: any shipped model, draft, card and engine, with sliders, without a network.

    Its figures are computed in the browser by the same formulas; what is asked stands in the address, so that a link
    shows the same thing.
    """
    from specplan.files.writing import write_whole
    from specplan.page.build import page as whole
    from specplan.report.output_file import output_path

    path = output_path(output, (".html", ".htm"))
    text = whole()
    if serve:
        from specplan.page.serving import show

        show(text, port, lambda address: typer.echo(f"specplan: {address} (interrupt to end)", err=True))
        return
    write_whole(path, text)
    typer.echo(f"wrote {path} ({len(text.encode()) / 1e6:.1f} MB)")
