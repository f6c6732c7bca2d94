"""`specplan cost`."""

import typer


def cost(
    target: str = typer.Argument(..., help="Spec name, YAML file, Hugging Face config.json, or a folder with one."),
    draft: str = typer.Option(None, "--draft", "-d", help="Draft model, named like the target."),
    gpu: str = typer.Option("h100-sxm", "--gpu", help="Hardware profile: a name (see `specplan hardware`) or a YAML."),
    tp: int = typer.Option(1, "--tensor-parallel-size", "--tp", help="Ranks that share the model."),
    draft_tp: int = typer.Option(
        None, "--draft-tensor-parallel-size", "--draft-tp", help="Must equal --tp, as in vLLM."
    ),
    kappa: int = typer.Option(3, "--num-speculative-tokens", "-k", help="Drafted tokens per step."),
    alpha: float = typer.Option(None, "--alpha", "-a", help="Conditional acceptance per position, measured elsewhere."),
    batch: int = typer.Option(1, "--batch", "-b", help="Requests per step."),
    context: str = typer.Option("0", "--context", help="Cached tokens each request reads per step (32k works)."),
    max_model_len: str = typer.Option(
        None, "--max-model-len", help="Sequence length to fit; the model's own limit if not given."
    ),
    engine: str = typer.Option("vllm", "--engine", help="Whose pool stands beside the plain subtraction."),
    engine_version: str = typer.Option(None, "--engine-version", help="Such as 0.19.0; the newest known if not given."),
    utilization: float = typer.Option(
        None,
        "--gpu-memory-utilization",
        "--mem-fraction-static",
        help="The engine's own fraction; its default if not given.",
    ),
    memory: str = typer.Option("auto", "--memory", help="Whose total: torch (vLLM multiplies it), driver, or auto."),
    workspace: str = typer.Option("2 GiB", "--workspace", help="Activations and workspace per rank."),
    kv_cache_dtype: str = typer.Option("auto", "--kv-cache-dtype", help="auto, fp8, bfloat16, ..."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """What speculation costs for a target, a draft and a card, before owning any of them.

    Without a draft the target is priced alone. Every figure says whether it is exact, derived, measured or assumed.
    Exits with 1 if the weights leave no room for a cache.
    """
    from specplan import units
    from specplan.decide import cost as plan
    from specplan.specs.catalog import load_model
    from specplan.specs.hardware import load_accelerator
    from specplan.values import formats

    report = plan.cost(
        load_model(target),
        load_accelerator(gpu),
        draft=None if draft is None else load_model(draft),
        engine=engine,
        engine_version=engine_version,
        tp=tp,
        draft_tp=draft_tp,
        kappa=kappa,
        alpha=alpha,
        batch=batch,
        context_len=units.parse_count(context),
        max_model_len=None if max_model_len is None else units.parse_count(max_model_len),
        gpu_memory_utilization=utilization,
        memory_source=memory,
        workspace_bytes=units.parse(workspace, "memory"),
        kv_format=None if kv_cache_dtype == "auto" else formats.lookup(kv_cache_dtype),
    )
    if json:
        from specplan.report import cost_report, json_document

        typer.echo(json_document.render(cost_report.cost_document(report)))
    else:
        from rich.console import Console

        from specplan.report.cost_report import print_cost

        print_cost(report, Console())
    if report.engine is not None and not report.engine.fits:
        raise typer.Exit(1)
