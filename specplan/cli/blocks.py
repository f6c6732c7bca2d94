"""`specplan blocks`."""

import sys
from typing import Any

import typer

from specplan.cli import options


def blocks(
    target: str = typer.Argument(None, help="Spec name, YAML file, Hugging Face config.json, or a folder with one."),
    draft: str = typer.Option(None, "--draft", "-d", help="Draft model (method draft_model / STANDALONE)."),
    source: str = typer.Option(None, "--source", "-s", help="What drafts, as in every command, instead of --draft."),
    gpu: str = typer.Option(None, "--gpu", help="Hardware profile: a name (see `specplan hardware`) or a YAML file."),
    gpu_memory: str = typer.Option(
        None,
        "--gpu-memory",
        help="Memory of a card without a profile, such as '16 GiB' (with --gpu: in place of its own).",
    ),
    engine: str = typer.Option("vllm", "--engine", help="vllm or sglang."),
    engine_version: str = typer.Option(None, "--engine-version", help="Such as 0.19.0; the newest known by default."),
    tp: int = options.TP,
    pp: int = typer.Option(None, "--pipeline-parallel-size", "--pp", help="Pipeline stages."),
    dcp: int = typer.Option(
        None, "--decode-context-parallel-size", "--dcp", help="Decode context parallel ranks (vLLM)."
    ),
    pcp: int = typer.Option(
        None, "--prefill-context-parallel-size", "--pcp", help="Prefill context parallel ranks (vLLM)."
    ),
    dp: int = typer.Option(None, "--data-parallel-size", "--dp", help="Data-parallel ranks that share experts (vLLM)."),
    expert_parallel: bool = typer.Option(None, "--enable-expert-parallel", "--ep", help="Whole experts per rank."),
    dtype: str = typer.Option(None, "--dtype", help="auto (the default), bfloat16, float16, float32."),
    quantization: str = typer.Option(None, "--quantization", "-q", help="For checkpoints that do not state their own."),
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    gpu_memory_utilization: float = typer.Option(
        None, "--gpu-memory-utilization", help="Of the device's total (vLLM)."
    ),
    mem_fraction_static: float = typer.Option(None, "--mem-fraction-static", help="Of what is free (SGLang)."),
    max_model_len: str = typer.Option(
        None, "--max-model-len", "--context-length", help="Such as 8192, 32k, -1 to fit."
    ),
    max_num_seqs: int = typer.Option(None, "--max-num-seqs", "--max-running-requests", help="Requests per step."),
    max_num_batched_tokens: int = typer.Option(
        None, "--max-num-batched-tokens", "--chunked-prefill-size", help="Tokens per step."
    ),
    block_size: int = typer.Option(None, "--block-size", "--page-size", help="Tokens per block."),
    kv_cache_memory: str = typer.Option(
        None, "--kv-cache-memory-bytes", "--kv-cache-memory", help="Explicit pool: bytes, or '2 GiB' (vLLM)."
    ),
    language_model_only: bool = typer.Option(
        None, "--language-model-only", help="No towers beside the decoder (vLLM)."
    ),
    num_gpu_blocks_override: int = typer.Option(None, "--num-gpu-blocks-override", help="As in vLLM."),
    prefix_caching: bool = typer.Option(None, "--enable-prefix-caching/--no-enable-prefix-caching", help="As in vLLM."),
    state_dtype: str = typer.Option(None, "--mamba-ssm-cache-dtype", help="As in vLLM."),
    state_cache: str = typer.Option(None, "--mamba-cache-mode", help="none, align or all (vLLM)."),
    enforce_eager: bool = typer.Option(None, "--enforce-eager", help="No CUDA graphs."),
    hybrid_off: bool = typer.Option(False, "--disable-hybrid-kv-cache-manager", help="Windows charged in full (vLLM)."),
    custom_all_reduce: bool = typer.Option(
        None, "--enable-custom-all-reduce/--disable-custom-all-reduce", help="By default where the card has a link."
    ),
    offline: bool = typer.Option(None, "--offline", help="Batch defaults of vLLM's LLM class, not of its server."),
    speculative_config: str = typer.Option(None, "--speculative-config", help="vLLM's JSON."),
    kappa: int = typer.Option(None, "--num-speculative-tokens", "-k", help="Drafted tokens per step, with --draft."),
    speculative_algorithm: str = typer.Option(None, "--speculative-algorithm", help="SGLang's."),
    speculative_draft: str = typer.Option(None, "--speculative-draft-model-path", help="SGLang's."),
    speculative_num_steps: int = typer.Option(None, "--speculative-num-steps", help="SGLang's."),
    speculative_eagle_topk: int = typer.Option(None, "--speculative-eagle-topk", help="SGLang's."),
    speculative_num_draft_tokens: int = typer.Option(None, "--speculative-num-draft-tokens", help="SGLang's."),
    max_total_tokens: int = typer.Option(None, "--max-total-tokens", help="SGLang's."),
    mm_tokens: int = typer.Option(None, "--multimodal-tokens", help="Encoder tokens of the profile run."),
    mm_values: int = typer.Option(None, "--multimodal-values", help="Input numbers of the profile run (pixels x 3)."),
    extra_weights: str = typer.Option(None, "--extra-weights", help="Weights beside the decoder, such as '0.8 GiB'."),
    weights: str = typer.Option(None, "--weights", help="Replaces the derived weights, such as '14.99 GiB'."),
    activation_peak: str = typer.Option(None, "--activation-peak", help="Replaces the modelled peak."),
    non_torch: str = typer.Option(None, "--non-torch", help="Replaces the modelled non-torch memory."),
    cuda_graphs: str = typer.Option(None, "--cuda-graphs", help="Replaces the modelled graph memory."),
    free_before_load: str = typer.Option(
        None, "--free-before-load", help="Replaces the modelled free memory (SGLang)."
    ),
    from_log: str = typer.Option(None, "--from-log", help="Read a start-up log (- for standard input) and compare."),
    json: bool = options.JSON,
) -> None:
    """Predict the KV block count that vLLM or SGLang reports at start-up, with and without a draft.

    Exit code 1 when the engine would refuse to start, or did in the log.
    """
    from specplan.api.blocks import blocks as ask
    from specplan.api.blocks import request_of, size_of

    def pool_bytes(text: str | None) -> int | None:
        # bare digits are bytes, as vLLM takes them
        return (
            int(text)
            if text is not None and text.strip().isdigit()
            else None
            if text is None
            else int(size_of(text) or 0)
        )

    given: dict[str, Any] = {
        "target": target, "accelerator": gpu, "draft": draft, "source": source, "gpu_memory": gpu_memory,
        "engine": engine, "engine_version": engine_version, "tp": tp, "pp": pp, "expert_parallel": expert_parallel,
        "dtype": dtype, "quantization": quantization, "kv_cache_dtype": kv_cache_dtype,
        "gpu_memory_utilization": gpu_memory_utilization, "mem_fraction_static": mem_fraction_static,
        "max_model_len": max_model_len, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens,
        "block_size": block_size, "enforce_eager": enforce_eager, "kappa": kappa,
        "speculative_config": speculative_config, "speculative_algorithm": speculative_algorithm,
        "speculative_draft": speculative_draft, "speculative_num_steps": speculative_num_steps,
        "speculative_eagle_topk": speculative_eagle_topk, "speculative_num_draft_tokens": speculative_num_draft_tokens,
        "weights": weights,
    }  # fmt: skip
    flags = {
        "dcp": dcp, "pcp": pcp, "dp": dp, "kv_cache_memory_bytes": pool_bytes(kv_cache_memory),
        "language_model_only": language_model_only, "num_gpu_blocks_override": num_gpu_blocks_override,
        "enable_prefix_caching": prefix_caching, "state_dtype": state_dtype, "state_cache": state_cache,
        "hybrid_kv_cache_manager": False if hybrid_off else None, "custom_all_reduce": custom_all_reduce,
        "offline": offline, "multimodal_tokens": mm_tokens, "multimodal_values": mm_values,
        "extra_weights": size_of(extra_weights), "activation_peak": size_of(activation_peak),
        "non_torch": size_of(non_torch), "cuda_graph": size_of(cuda_graphs),
        "max_total_tokens": max_total_tokens, "free_before_load": size_of(free_before_load),
    }  # fmt: skip
    given["flags"] = {name: value for name, value in flags.items() if value is not None} or None
    if from_log is not None:
        from specplan.decide.blocks_request import told_beside
        from specplan.decide.startup_log import check_log
        from specplan.report import blocks_table, json_document
        from specplan.report.console import Console
        from specplan.telemetry.startup_logs import read_startup_log

        log = read_startup_log(sys.stdin.buffer if from_log == "-" else from_log)
        check = check_log(log, "standard input" if from_log == "-" else from_log, told_beside(request_of(given)))
        if json:
            typer.echo(json_document.render(blocks_table.check_document(check)))
        else:
            blocks_table.print_check(check, Console())
        if check.refusals:
            raise typer.Exit(1)
        return
    report = ask(**given)
    options.answer(report, json=json)
    if not report.starts:
        raise typer.Exit(1)
