"""`specplan tie`."""

import typer


def tie(
    a: str = typer.Argument(..., help="What is to be equalled: a draft model with --target, or NAME:key=value,..."),
    b: str = typer.Argument(..., help="What must equal it, written likewise; leave out what is to be solved for."),
    target: str = typer.Option(None, "--target", "-t", help="Target: derives c and verify factors."),
    alpha: str = typer.Option(None, "--alpha", "-a", help="Acceptance of A, if it is not written there."),
    gpu: str = typer.Option("h100-sxm", "--gpu", help="Hardware profile: a name or a YAML."),
    tp: int = typer.Option(1, "--tensor-parallel-size", "--tp", help="Ranks that share the model."),
    kappa: int = typer.Option(3, "--num-speculative-tokens", "-k", help="Draft length of both, if not written."),
    batch: int = typer.Option(1, "--batch", "-b", help="Requests per step."),
    context: str = typer.Option("0", "--context", help="Cached tokens each request reads per step (32k works)."),
    kv_cache_dtype: str = typer.Option("auto", "--kv-cache-dtype", help="auto, fp8, bfloat16, ..."),
    layer: str = typer.Option("roofline", "--layer", help="How passes are timed: roofline, or modelled (an engine)."),
    engine: str = typer.Option("vllm", "--engine", help="Engine of the modelled layer."),
    ridge: float = typer.Option(None, "--ridge", help="Ridge in positions, where no target is named."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
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
        from rich.console import Console

        tie_report.print_tie(tied, coverage.tolist(), needed.tolist(), Console())
        print_notes(document, Console())
    if not tied.is_reachable:
        raise typer.Exit(1)
