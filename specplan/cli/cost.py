"""`specplan cost`."""

import typer

from specplan.cli import options


def cost(
    target: str = options.TARGET,
    draft: str = typer.Option(None, "--draft", "-d", help="Draft model, named like the target."),
    source: str = typer.Option(None, "--source", "-s", help="What drafts, as in every command, instead of --draft."),
    gpu: str = options.GPU,
    quantization: str = options.QUANTIZATION,
    tp: int = options.TP,
    draft_tp: int = typer.Option(
        None, "--draft-tensor-parallel-size", "--draft-tp", help="Must equal --tp, as in vLLM."
    ),
    kappa: int = options.KAPPA,
    alpha: float = typer.Option(None, "--alpha", "-a", help="Conditional acceptance per position, measured elsewhere."),
    batch: int = options.BATCH,
    context: str = typer.Option(
        None,
        "--context",
        help="Cached tokens per request (32k works); 2k, and none in the chapter's figures, if not given.",
    ),
    max_model_len: str = typer.Option(
        None, "--max-model-len", help="Sequence length to fit; the model's own limit if not given."
    ),
    engine: str = options.ENGINE,
    engine_version: str = options.ENGINE_VERSION,
    utilization: float = options.UTILIZATION,
    memory: str = typer.Option("auto", "--memory", help="Whose total: torch (vLLM multiplies it), driver, or auto."),
    workspace: str = typer.Option("2 GiB", "--workspace", help="Activations and workspace per rank."),
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    json: bool = options.JSON,
) -> None:
    """What speculation costs for a target, a draft and a card, before owning any of them.

    Without a draft the target is priced alone. Every figure says whether it is exact, derived, measured or assumed.
    Exits with 1 if the weights leave no room for a cache.
    """
    from specplan.api.cost import cost as ask

    report = ask(
        target,
        gpu,
        draft=draft,
        source=source,
        engine=engine,
        engine_version=engine_version,
        quantization=quantization,
        tp=tp,
        draft_tp=draft_tp,
        kappa=kappa,
        alpha=alpha,
        batch=batch,
        context_len=context or 0,
        max_model_len=max_model_len,
        gpu_memory_utilization=utilization,
        memory_source=memory,
        workspace=workspace,
        kv_cache_dtype=kv_cache_dtype,
    )
    options.answer(report, json=json)
    if report.engine is not None and not report.engine.fits:
        raise typer.Exit(1)
