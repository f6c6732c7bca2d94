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
    quantization: str = options.QUANTIZATION,
    tp: int = options.TP,
    batch: int = options.BATCH,
    context: str = options.CONTEXT_LEN,
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    layer: str = options.LAYER,
    measured: list[str] = options.MEASURED,
    engine: str = options.ENGINE,
    ridge: float = options.RIDGE,
    kappa_max: int = typer.Option(
        None, "--max", "--max-k", help="Longest draft considered. [default: as in compare; 64 in the table]"
    ),
    compare: list[str] = typer.Option(["1,3,5,7"], "--compare", help="Fixed draft lengths to compare with the best."),
    json: bool = options.JSON,
) -> None:
    """Best kappa, and what a wrong one loses: over a table of alpha and c, or for named sources.

    Exits with 1 if every named source has an acceptance and none pays at any draft length.
    """
    from specplan.api.tune import tune as ask
    from specplan.units import read_whole

    found = ask(
        target,
        gpu,
        sources=source,
        draft=draft,
        alpha=alpha,
        c=c,
        quantization=quantization,
        tp=tp,
        batch=batch,
        context_len=context,
        max_kappa=kappa_max,
        compared=[read_whole(k, "--compare") for text in compare for k in text.split(",")],
        engine=engine,
        layer=layer,
        measured=measured or (),
        kv_cache_dtype=kv_cache_dtype,
        ridge=ridge,
    )
    options.answer(found, json=json)
    if not found.pays:
        raise typer.Exit(1)
