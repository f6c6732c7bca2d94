"""`specplan compare`."""

import typer


def compare(
    target: str = typer.Argument(..., help="Spec name, YAML file, Hugging Face config.json, or a folder with one."),
    source: list[str] = typer.Option(
        ...,
        "--source",
        "-s",
        help="ngram:coverage=.4,alpha=.8; llama3.2-1b:alpha=.7; eagle:alpha=.8/.7/.6; suffix:alpha=.6,drafted=2.5; "
        "alpha=.6..0.8 gives a range. Repeat for more.",
    ),
    gpu: str = typer.Option("h100-sxm", "--gpu", help="Hardware profile: a name or a YAML file."),
    tp: int = typer.Option(1, "--tensor-parallel-size", "--tp", help="Ranks that share the model."),
    batch: str = typer.Option("1", "--batch", "-b", help="Requests per step, comma separated."),
    context: str = typer.Option("2k", "--context", help="Cached tokens per request, comma separated (32k works)."),
    kappa: int = typer.Option(
        None, "--num-speculative-tokens", "-k", help="Drafted tokens of sources that fix none; the best if not given."
    ),
    max_kappa: int = typer.Option(8, "--max-k", help="Longest draft that is tried for the best."),
    engine: str = typer.Option("vllm", "--engine", help="vllm, sglang, or another that `validate` replays."),
    layer: str = typer.Option("modelled", "--layer", help="bound, modelled or measured."),
    measured: list[str] = typer.Option(
        None, "--measured", help="NAME=FILE: measured step times of the target or of a source, for --layer measured."
    ),
    kv_cache_dtype: str = typer.Option("auto", "--kv-cache-dtype", help="auto, fp8, bfloat16, ..."),
    engine_version: str = typer.Option(
        None, "--engine-version", help="Of the pool, such as 0.19.0; the newest if not given."
    ),
    utilization: float = typer.Option(
        None,
        "--gpu-memory-utilization",
        "--mem-fraction-static",
        help="The engine's own fraction; its default if not given.",
    ),
    workspace: str = typer.Option(
        None, "--workspace", help="Replaces the modelled activations, graphs and workspace of a rank."
    ),
    price: float = typer.Option(None, "--price", help="Price of one card per hour: adds cost per million tokens."),
    verdict: bool = typer.Option(
        False, "--verdict", help="Exit with 1 unless some source pays at every batch and context."
    ),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Step time and throughput of each draft source over batch and context, against no speculation."""
    from specplan import units
    from specplan.cli.source_option import load_sources, load_tables
    from specplan.decide.compare import compare as plan
    from specplan.specs.catalog import load_model
    from specplan.specs.hardware import load_accelerator
    from specplan.values import formats

    report = plan(
        load_model(target),
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
    if json:
        from specplan.report import compare_table, json_document

        typer.echo(json_document.render(compare_table.compare_document(report)))
    else:
        from rich.console import Console

        from specplan.report.compare_table import print_compare

        print_compare(report, Console(), verdict=verdict)
    if verdict and not report.pays:
        raise typer.Exit(1)
