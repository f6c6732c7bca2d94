"""`specplan tune`."""

import typer

from specplan.cli import options


def tune(
    target: str = typer.Argument(None, help="Target; without one, or a --source, a table over alpha and c is printed."),
    draft: list[str] = typer.Option([], "--draft", "-d", help="Draft model (or eagle, mtp) of the target; repeatable."),
    source: list[str] = options.SOURCE,
    alpha: list[str] = typer.Option(
        [], "--alpha", "-a", help="Acceptances, such as .5,.7: of the table, or of --draft."
    ),
    c: list[str] = typer.Option([], "--c", help="Draft costs of the table, such as .02,.1."),
    gpu: str = options.GPU,
    tp: int = options.TP,
    batch: int = options.BATCH,
    context: str = options.CONTEXT_LEN,
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    layer: str = options.LAYER,
    measured: list[str] = options.MEASURED,
    engine: str = options.ENGINE,
    ridge: float = options.RIDGE,
    kappa_max: int = typer.Option(64, "--max", "--max-k", help="Longest draft considered."),
    compare: list[str] = typer.Option(["1,3,5,7"], "--compare", help="Fixed draft lengths to compare with the best."),
    json: bool = options.JSON,
) -> None:
    """Best kappa, and what a wrong one loses: over a table of alpha and c, or for named sources.

    Exits with 1 if every named source has an acceptance and none pays at any draft length.
    """
    from dataclasses import replace

    from specplan import units
    from specplan.cli.source_option import Place, load_sources, scenes
    from specplan.decide import tune as plan
    from specplan.errors import InputError
    from specplan.report import json_document, tune_report
    from specplan.report.console import Console
    from specplan.report.plane_report import print_notes
    from specplan.units import read_numbers, read_whole
    from specplan.values.source import Range

    lengths = [read_whole(k, "--compare") for text in compare for k in text.split(",")]
    console = Console()
    if not draft and not source:
        if target is not None:
            raise InputError(f"{target}: name a --draft or a --source to tune; a table needs no target")
        alphas = read_numbers(alpha or [".5,.6,.7,.8,.9"], "--alpha", 0.0, 1.0)
        costs = read_numbers(c or [".01,.02,.05,.1,.165"], "--c", 0.0)
        kept = [k for k in lengths if k <= kappa_max]
        table = plan.tune_table(alphas, costs, kappa_max=kappa_max, compared=kept)
        document = tune_report.table_document(table)
        if json:
            typer.echo(json_document.render(document))
            return
        tune_report.print_table(table, console)
        print_notes(document, console)
        return
    if c:
        raise InputError("--c belongs to the table; write the cost of a source as --source NAME:c=...")
    place = Place(
        gpu=gpu,
        tp=tp,
        kv_cache_dtype=kv_cache_dtype,
        layer=layer,
        measured=measured or (),
        engine=engine,
        batch=batch,
        context_len=units.parse_count(context),
        ridge=ridge,
        kappa=1,
    )
    many = sum(text.count(",") + 1 for text in alpha) > 1 and not any("=" in text for text in alpha)
    given = [] if many else alpha
    written = load_sources(source, models=False)
    (scene,) = scenes(place, [] if target is None else [target], drafts=draft, sources=written, alphas=given)
    load = {"kappa_max": kappa_max, "batch": batch, "context_len": place.context_len}
    free = [entry for entry in scene.placed if not entry[0].source.has_acceptance]
    known = [entry for entry in scene.placed if entry[0].source.has_acceptance]
    curves = [plan.tune_source(s, setting, **load) for s, setting in known]
    alphas = read_numbers(alpha if many else [".5,.6,.7,.8,.9"], "--alpha", 0.0, 1.0)
    tables = [
        [plan.tune_source(replace(s, source=replace(s.source, alpha=Range.at(a))), setting, **load) for a in alphas]
        for s, setting in free
    ]
    document = tune_report.curves_document(curves, scene, **load)
    if free:
        tune_report.add_free(document, [s for s, _ in free], alphas, tables)
    if json:
        typer.echo(json_document.render(document))
    else:
        if target is not None:
            typer.echo(place.where)
        for curve in curves:
            tune_report.print_curve(curve, console, compared=lengths)
        if free:
            tune_report.print_free([s for s, _ in free], alphas, tables, console, kappa_max=kappa_max)
        print_notes(document, console)
    if curves and not free and all(curve.best == 0 for curve in curves):
        raise typer.Exit(1)
