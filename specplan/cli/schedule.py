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
    from specplan.api.schedule import schedule as ask
    from specplan.errors import InputError

    if (source is None) == (draft is None):
        raise InputError("give either --draft with --alpha, or --source")
    if draft is not None and alpha is None:
        raise InputError(
            "--draft needs its --alpha: acceptance is not assumed (`specplan compare` says which it needs)"
        )
    report = ask(
        target,
        gpu,
        source=source if source is not None else f"{draft}:alpha={alpha}",
        quantization=quantization,
        tp=tp,
        context_len=options.counts(context),
        max_batch=max_batch,
        max_kappa=max_kappa,
        margin=margin,
        engine=engine,
        engine_version=engine_version,
        layer=layer,
        measured=measured or (),
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory_utilization=utilization,
        temperature=temperature,
        target_path=target_path,
        draft_path=draft_path,
    )
    options.answer(report, json=json)
    if report.configuration is None:
        raise typer.Exit(1)
