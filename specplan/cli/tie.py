"""`specplan tie`."""

import typer

from specplan.cli import options


def tie(
    a: str = typer.Argument(..., help="What is to be equalled: a draft model with --target, or NAME:key=value,..."),
    b: str = typer.Argument(..., help="What must equal it, written likewise; leave out what is to be solved for."),
    target: str = typer.Option(None, "--target", "-t", help="Target: derives c and verify factors."),
    alpha: str = typer.Option(None, "--alpha", "-a", help="Acceptance of A, if it is not written there."),
    gpu: str = options.GPU,
    quantization: str = options.QUANTIZATION,
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
    from specplan.api.tie import tie as ask

    tied = ask(
        a,
        b,
        target,
        gpu,
        alpha=alpha,
        kappa=kappa,
        quantization=quantization,
        tp=tp,
        batch=batch,
        context_len=context,
        engine=engine,
        layer=layer,
        measured=measured or (),
        kv_cache_dtype=kv_cache_dtype,
        ridge=ridge,
    )
    options.answer(tied, json=json)
    if not tied.is_reachable:
        raise typer.Exit(1)
