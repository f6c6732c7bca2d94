"""What an engine would print at the start that a prediction describes: every line, in the engine's own form."""

from collections.abc import Sequence

from specplan.memory.prediction import PoolPrediction
from specplan.units import GIB
from specplan.values.vllm_versions import version_number


def vllm_lines(p: PoolPrediction, model: str, extra: Sequence[str] = ()) -> list[str]:
    """A start of vLLM on every rank of every stage."""
    s = p.settings
    arguments = {
        "model": model, "tensor_parallel_size": s["tp"], "pipeline_parallel_size": s["pp"],
        "max_model_len": p.max_model_len, "gpu_memory_utilization": s["gpu_memory_utilization"],
        "max_num_seqs": s["max_num_seqs"], "max_num_batched_tokens": s["max_num_batched_tokens"],
        "kv_cache_dtype": s["kv_cache_dtype"],
    }  # fmt: skip
    lines = [
        f"(APIServer pid=1) INFO 04-01 10:00:00 [utils.py:253] non-default args: {arguments!r}",
        f"(EngineCore pid=2) INFO 04-01 10:00:01 [core.py:77] Initializing a V1 LLM engine (v{p.version}) with config: "
        f"model='{model}', dtype=torch.bfloat16, tensor_parallel_size={s['tp']}, {', '.join(extra)}",
    ]
    merged = version_number(p.version) >= (0, 27, 0)
    for rank in p.ranks:
        for tp in range(s["tp"]):
            name = (
                f"(Worker_PP{rank.stage}_TP{tp} pid={10 + tp})"
                if len(p.ranks) > 1
                else f"(Worker_TP{tp} pid={10 + tp})"
            )
            who = f"{name} INFO 04-01 10:00:09 [gpu_worker.py:400]"
            peak, graphs = rank.activation_peak.best, rank.cuda_graph.best
            outside = rank.non_torch.best + sum(rank.buffers.values())
            lines.append(f"{who} Model loading took {rank.weights.best / GIB:.2f} GiB memory and 5.123456 seconds")
            if graphs:
                lines.append(f"{who} Estimated CUDA graph memory: {graphs / GIB:.2f} GiB total")
            lines.append(f"{who} Available KV cache memory: {rank.available.best / GIB:.2f} GiB")
            used = (
                f"{(rank.weights.best + outside) / GIB:.2f} GiB for consumed memory (weights + non-torch), "
                f"{(peak + graphs) / GIB:.2f} GiB for peak activation, and 0.2 GiB for CUDAGraph memory"
                if merged
                else f"{rank.weights.best / GIB:.2f} GiB for weight, {peak / GIB:.2f} GiB for peak activation, "
                f"{outside / GIB:.2f} GiB for non-torch memory, and 0.2 GiB for CUDAGraph memory"
            )
            total = p.total.best / GIB
            lines.append(
                f"{who} Free memory on device ({total - 0.5:.2f}/{total:.2f} GiB) on startup. Desired GPU memory "
                f"utilization is ({s['gpu_memory_utilization']}, {p.requested.best / GIB:.2f} GiB). Actual usage is "
                f"{used}. Current kv cache memory in use is {int(rank.available.best)} bytes."
            )
    return lines + [f"(EngineCore pid=2) INFO 04-01 10:00:10 [kv_cache_utils.py:1301] {line}" for line in p.log_lines]


def sglang_lines(p: PoolPrediction, model: str, speculative: str = "") -> list[str]:
    """A start of SGLang: loads of target and draft, then pools."""
    s, rank = p.settings, p.rank
    free = p.requested.best / s["mem_fraction_static"]
    who = "[2026-09-01 10:00:00 TP0]"
    target = sum(rank.target_weights.values()) + rank.non_torch.best
    own = sum(rank.draft_weights.values())
    lines = [
        f"{who} server_args=ServerArgs(model_path='{model}', tp_size={s['tp']}, "
        f"kv_cache_dtype='{s['kv_cache_dtype']}', mem_fraction_static={s['mem_fraction_static']}, "
        f"context_length={s['context_length']}{speculative})",
        f"{who} Load weight begin. avail mem={free / GIB:.2f} GB",
        f"{who} Load weight end. type=X, dtype=torch.bfloat16, avail mem={(free - target) / GIB:.2f} GB, "
        f"mem usage={target / GIB:.2f} GB.",
    ]
    if own:
        lines += [
            f"{who} Load weight begin. avail mem={(free - target) / GIB:.2f} GB",
            f"{who} Load weight end. type=X, dtype=torch.bfloat16, avail mem={(free - target - own) / GIB:.2f} GB, "
            f"mem usage={own / GIB:.2f} GB.",
        ]
    return lines + [f"{who} {line}" for line in p.log_lines]
