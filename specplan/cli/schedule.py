"""`specplan schedule`."""

import typer

from specplan.cli import options


def schedule(
    target: str = options.TARGET,
    draft: str = typer.Option(None, "--draft", "-d", help="Draft model; give its --alpha."),
    alpha: str = typer.Option(None, "--alpha", "-a", help="Its acceptance: .7, .6..0.8, or per position .8/.7/.6."),
    source: str = typer.Option(None, "--source", "-s", help="Any source, as in `compare`, instead of --draft."),
    engine: str = options.ENGINE,
    gpu: str = options.GPU,
    quantization: str = options.QUANTIZATION,
    tp: int = options.TP,
    context: str = options.CONTEXT_LEN,
    max_batch: int = typer.Option(None, "--max-batch", help="Largest batch; what fits the pool if not given."),
    max_kappa: int = options.MAX_KAPPA,
    margin: float = typer.Option(0.02, "--margin", help="Gain below which a batch keeps its neighbour's length."),
    layer: str = options.LAYER,
    measured: list[str] = options.MEASURED,
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    engine_version: str = options.ENGINE_VERSION,
    utilization: float = options.UTILIZATION,
    temperature: float = typer.Option(0.0, "--temperature", help="Of the requests; decides which warnings apply."),
    target_path: str = typer.Option(None, "--target-path", help="Checkpoint of the target for the command line."),
    draft_path: str = typer.Option(None, "--draft-path", help="Checkpoint of the draft or head for the command line."),
    json: bool = options.JSON,
) -> None:
    """Best draft length per batch, as the engine's configuration and a command to paste.

    Exits with 1, without a command, if not one request fits.
    """
    from specplan import units
    from specplan.api.sources import load_tables, one_source
    from specplan.decide.schedule import schedule as plan
    from specplan.errors import InputError
    from specplan.specs.catalog import load_target
    from specplan.specs.hardware import load_accelerator
    from specplan.values import formats

    if (source is None) == (draft is None):
        raise InputError("give either --draft with --alpha, or --source")
    if draft is not None and alpha is None:
        raise InputError(
            "--draft needs its --alpha: acceptance is not assumed (`specplan compare` says which it needs)"
        )
    report = plan(
        load_target(target, quantization),
        load_accelerator(gpu),
        one_source(source if source is not None else f"{draft}:alpha={alpha}"),
        engine=engine,
        tp=tp,
        contexts=[units.parse_count(c) for c in context.split(",")],
        max_batch=max_batch,
        max_kappa=max_kappa,
        margin=margin,
        layer=layer,
        kv_format=None if kv_cache_dtype == "auto" else formats.lookup(kv_cache_dtype),
        engine_version=engine_version,
        gpu_memory_utilization=utilization,
        draft_path=draft_path,
        target_path=target_path,
        temperature=temperature,
        tables=load_tables(measured),
    )
    if json:
        from specplan.report import json_document, schedule_table

        typer.echo(json_document.render(schedule_table.schedule_document(report)))
    else:
        from specplan.report.console import Console
        from specplan.report.schedule_table import print_schedule

        print_schedule(report, Console())
    if report.configuration is None:
        raise typer.Exit(1)
