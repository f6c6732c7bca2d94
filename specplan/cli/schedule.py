"""`specplan schedule`."""

import typer


def schedule(
    target: str = typer.Argument(..., help="Spec name, YAML file, Hugging Face config.json, or a folder with one."),
    draft: str = typer.Option(None, "--draft", "-d", help="Draft model; give its --alpha."),
    alpha: str = typer.Option(None, "--alpha", "-a", help="Its acceptance: .7, .6..0.8, or per position .8/.7/.6."),
    source: str = typer.Option(None, "--source", "-s", help="Any source, as in `compare`, instead of --draft."),
    engine: str = typer.Option("vllm", "--engine", help="vllm or sglang."),
    gpu: str = typer.Option("h100-sxm", "--gpu", help="Hardware profile: a name or a YAML file."),
    tp: int = typer.Option(1, "--tensor-parallel-size", "--tp", help="Ranks that share the model."),
    context: str = typer.Option("2k", "--context", help="Cached tokens per request, comma separated."),
    max_batch: int = typer.Option(None, "--max-batch", help="Largest batch; what fits the pool if not given."),
    max_kappa: int = typer.Option(8, "--max-k", help="Longest draft."),
    margin: float = typer.Option(0.02, "--margin", help="Gain below which a batch keeps its neighbour's length."),
    layer: str = typer.Option("modelled", "--layer", help="bound, modelled or measured."),
    measured: list[str] = typer.Option(None, "--measured", help="NAME=FILE, as in `compare`."),
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
    temperature: float = typer.Option(0.0, "--temperature", help="Of the requests; decides which warnings apply."),
    target_path: str = typer.Option(None, "--target-path", help="Checkpoint of the target for the command line."),
    draft_path: str = typer.Option(None, "--draft-path", help="Checkpoint of the draft or head for the command line."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Best draft length per batch, as the engine's configuration and a command to paste."""
    from specplan import units
    from specplan.cli.source_option import load_sources, load_tables
    from specplan.decide.schedule import schedule as plan
    from specplan.errors import InputError
    from specplan.specs.catalog import load_model
    from specplan.specs.hardware import load_accelerator
    from specplan.values import formats

    if (source is None) == (draft is None):
        raise InputError("give either --draft with --alpha, or --source")
    if draft is not None and alpha is None:
        raise InputError("--draft needs its --alpha: acceptance is not assumed (`specplan cost` works without)")
    report = plan(
        load_model(target),
        load_accelerator(gpu),
        load_sources([source if source is not None else f"{draft}:alpha={alpha}"])[0],
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
        return
    from rich.console import Console

    from specplan.report.schedule_table import print_schedule

    print_schedule(report, Console())
