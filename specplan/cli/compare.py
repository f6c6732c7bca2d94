"""`specplan compare`."""

import typer

from specplan.cli import options


def compare(
    target: str = options.TARGET,
    source: list[str] = options.SOURCE,
    quantization: str = options.QUANTIZATION,
    gpu: str = options.GPU,
    tp: int = options.TP,
    batch: str = typer.Option(
        "1",
        "--batch",
        "--concurrency",
        "-b",
        help="Requests that are offered at a time, comma separated: what fits runs.",
    ),
    context: str = options.CONTEXT_LEN,
    kappa: int = typer.Option(
        None, "--num-speculative-tokens", "-k", help="Drafted tokens of sources that fix none; the best if not given."
    ),
    max_kappa: int = options.MAX_KAPPA,
    engine: str = options.ENGINE,
    layer: str = options.LAYER,
    measured: list[str] = options.MEASURED,
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    engine_version: str = options.ENGINE_VERSION,
    utilization: float = options.UTILIZATION,
    workspace: str = typer.Option(
        None, "--workspace", help="Replaces the modelled activations, graphs and workspace of a rank."
    ),
    price: float = typer.Option(None, "--price", help="Price of one card per hour: adds cost per million tokens."),
    verdict: bool = typer.Option(
        False, "--verdict", help="Exit with 1 unless some source pays at every batch and context."
    ),
    detail: bool = typer.Option(False, "--detail", help="Also the plain pass kernel by kernel, at the first batch."),
    output: str = options.PICTURE,
    title: str = options.TITLE,
    width: float = options.WIDTH,
    legend: str = options.LEGEND,
    dpi: int = options.DPI,
    font_size: float = options.FONT_SIZE,
    style: str = options.STYLE,
    json: bool = options.JSON,
) -> None:
    """Step time and throughput of each draft source under offered loads, against plain decoding at its own fit.

    A source without an acceptance is answered with the one that it needs. Exits with 1 if nothing fits.
    """
    from specplan.api.compare import compare as ask

    picture = options.picture(
        output, title=title, width=width, legend=legend, dpi=dpi, font_size=font_size, style=style
    )
    report = ask(
        target,
        gpu,
        sources=source,
        quantization=quantization,
        tp=tp,
        batch=options.counts(batch),
        context_len=options.counts(context),
        kappa=kappa,
        max_kappa=max_kappa,
        engine=engine,
        engine_version=engine_version,
        layer=layer,
        measured=measured or (),
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory_utilization=utilization,
        workspace=workspace,
        price=price,
        detail=detail,
    )
    if picture is not None:
        picture.draw(report.plot, "throughput against speed per user")
    options.answer(report, json=json, verdict=verdict)
    if picture is not None and not json:
        typer.echo(f"wrote {picture.path}")
    if not report.fits or (verdict and not report.pays):
        raise typer.Exit(1)
