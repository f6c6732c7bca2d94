"""`specplan tie`."""

import typer

from specplan.cli import options


def tie(
    a: str = typer.Argument(..., help="What is to be equalled: a draft model with --target, or NAME:key=value,..."),
    b: str = typer.Argument(..., help="What must equal it, written likewise; leave out what is to be solved for."),
    target: str = typer.Option(None, "--target", "-t", help="Target: derives c and verify factors."),
    alpha: str = typer.Option(None, "--alpha", "-a", help="Acceptance of A, if it is not written there."),
    gpu: str = options.GPU,
    tp: int = options.TP,
    kappa: int = options.KAPPA,
    batch: int = options.BATCH,
    context: str = options.CONTEXT_LEN,
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    layer: str = options.LAYER,
    measured: list[str] = options.MEASURED,
    engine: str = options.ENGINE,
    ridge: float = options.RIDGE,
    json: bool = options.JSON,
) -> None:
    """What one draft source must reach to equal another: acceptance, coverage, cost or draft length.

    Exits with 1 if no single quantity of B can make up the difference.
    """
    import numpy as np

    from specplan import units
    from specplan.cli.source_option import Place, load_sources
    from specplan.decide import tie as plan
    from specplan.decide.pricing import price_notes
    from specplan.errors import InputError
    from specplan.propose.spelling import with_acceptance
    from specplan.report import json_document, tie_report
    from specplan.report.plane_report import print_notes
    from specplan.specs.catalog import load_model

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
        kappa=kappa,
    )
    model = None if target is None else load_model(target)
    if len(found := load_sources([a, b], models=False)) != 2:
        raise InputError(f"a tie is between two sources, {a} and {b} are {len(found)}; pick one as FILE.json:NAME")
    first, second = found
    if alpha is not None:
        first = with_acceptance(first, alpha, "--alpha")
    incumbent, setting = place.placed(first, model)
    challenger, _ = place.placed(second, model)
    if not first.has_acceptance:
        raise InputError(f"{a}: what it is worth depends on its acceptance; give --alpha, or {first.name}:alpha=...")
    tied = plan.tie(incumbent, challenger)
    coverage = np.array([])
    needed = np.array([])
    if challenger.is_weightless and second.hit is None and not second.hazard:
        coverage = np.linspace(0.1, 1.0, 10)
        needed = plan.coverage_curve(incumbent, challenger, coverage)
    document = tie_report.tie_document(tied, coverage.tolist(), needed.tolist(), price_notes(setting))
    if json:
        typer.echo(json_document.render(document))
    else:
        from specplan.report.console import Console

        if model is not None:
            typer.echo(place.where)
        tie_report.print_tie(tied, coverage.tolist(), needed.tolist(), Console())
        print_notes(document, Console())
    if not tied.is_reachable:
        raise typer.Exit(1)
