"""`specplan compare`."""

import typer

from specplan.cli import options


def compare(
    target: str = options.TARGET,
    source: list[str] = options.SOURCE,
    gpu: str = options.GPU,
    quantization: str = options.QUANTIZATION,
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
    json: bool = options.JSON,
) -> None:
    """Step time and throughput of each draft source under offered loads, against plain decoding at its own fit.

    A source without an acceptance is answered with the one that it needs. Exits with 1 if nothing fits.
    """
    from specplan import units
    from specplan.api.sources import load_sources, load_tables
    from specplan.decide.compare import compare as plan
    from specplan.errors import InputError
    from specplan.specs.catalog import load_target
    from specplan.specs.hardware import load_accelerator
    from specplan.values import formats

    if not source:
        raise InputError("name what drafts: --source ngram:alpha=.6, --source llama3.2-1b, ... (repeat for more)")
    report = plan(
        load_target(target, quantization),
        load_accelerator(gpu),
        load_sources(source, kappa),
        engine=engine,
        tp=tp,
        batches=[units.parse_count(b) for b in batch.split(",")],
        contexts=[units.parse_count(c) for c in context.split(",")],
        layer=layer,
        kv_format=None if kv_cache_dtype == "auto" else formats.lookup(kv_cache_dtype),
        max_kappa=max_kappa,
        engine_version=engine_version,
        gpu_memory_utilization=utilization,
        workspace_bytes=None if workspace is None else units.parse(workspace, "memory"),
        price_per_hour=price,
        tables=load_tables(measured),
    )
    kernels = None
    if detail:
        from specplan.decide.pass_detail import pass_detail

        first, cached = (units.parse_count(text.split(",")[0]) for text in (batch, context))
        kernels = pass_detail(report.target, report.accelerator, engine=engine, tp=tp, batch=first, context_len=cached)
    if json:
        from specplan.report import compare_table, json_document, kernels_table

        document = compare_table.compare_document(report)
        if kernels is not None:
            document["kernels"] = kernels_table.kernels_document(kernels)
        typer.echo(json_document.render(document))
    else:
        from specplan.report.compare_table import print_compare
        from specplan.report.console import Console

        print_compare(report, Console(), verdict=verdict)
        if kernels is not None:
            from specplan.report.kernels_table import print_kernels

            print_kernels(kernels, f"a plain pass, batch {first}, context {cached:,}", Console())
    if not report.fits or (verdict and not report.pays):
        raise typer.Exit(1)
