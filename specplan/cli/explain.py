"""`specplan explain`."""

import typer


def explain(
    symbol: str = typer.Argument(None, help="Such as E, c, alpha-dagger, ridge; all symbols are listed without one."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Formula, file and worked example of a symbol."""
    from dataclasses import asdict

    from specplan.report.explain import SYMBOLS, WORDS, explain_symbol
    from specplan.values.engine_words import words_named

    if symbol and (meanings := words_named(symbol)) and symbol not in SYMBOLS:
        if json:
            from specplan.report import json_document

            rows = [asdict(w) for w in meanings]
            typer.echo(json_document.render({"command": "explain", "inputs": {"symbol": symbol}, "words": rows}))
            return
        for w in meanings:
            typer.echo(f"{w.name} ({w.engine} {w.place}, {w.versions}): {w.meaning}\n  here      {w.ours}")
        return
    if symbol and (said := WORDS.get(symbol.strip().lower())):
        if json:
            from specplan.report import json_document

            row = {"name": symbol, "meaning": said}
            typer.echo(json_document.render({"command": "explain", "inputs": {"symbol": symbol}, "words": [row]}))
            return
        typer.echo(f"{symbol}: {said}")
        return
    found = [explain_symbol(symbol)] if symbol else [explain_symbol(name) for name in SYMBOLS]
    if json:
        from specplan.report import json_document

        symbols = [asdict(e) for e in found]
        typer.echo(json_document.render({"command": "explain", "inputs": {"symbol": symbol}, "symbols": symbols}))
        return
    if symbol is None:
        for e in found:
            typer.echo(f"{e.symbol:<20} {e.summary}")
        return
    e = found[0]
    typer.echo(f"{e.symbol}: {e.summary}")
    if e.formula:
        typer.echo(f"  formula   {e.formula}")
    typer.echo(f"  function  {e.function}")
    typer.echo(f"  file      {e.file}:{e.line}")
    if e.source:
        typer.echo(f"  source    {e.source}")
    for statement, printed in e.example:
        typer.echo(f"  >>> {statement}")
        typer.echo(f"  {printed}")
