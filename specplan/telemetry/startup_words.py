"""Words of vLLM (0.4 to 0.32) and SGLang at start-up: which lines carry a figure, a setting, a version or a refusal.

All sizes that either engine labels "GB" at start-up are GiB (2**30).
"""

import re
from dataclasses import dataclass
from typing import Final

from specplan.units import GIB

_N: Final = r"([\d,]*\.?\d+)"
_GIB: Final = r"(-?[\d,]*\.?\d+)\s*Gi?B"


@dataclass(frozen=True, slots=True)
class Line:
    """A kind of line: bytes that mark it, what it looks like, and the terms of its groups with their unit."""

    anchor: bytes
    pattern: re.Pattern[str]
    terms: tuple[tuple[str, float], ...]


def _line(anchor: str, pattern: str, *terms: tuple[str, float] | str) -> Line:
    named = tuple((t, float(GIB) if t.endswith("_bytes") else 1.0) if isinstance(t, str) else t for t in terms)
    return Line(anchor.encode(), re.compile(pattern), named)


LINES: Final[tuple[Line, ...]] = (
    # vLLM, weights: 0.4 to 0.7, 0.8 to 0.1x, 0.1x on.
    _line("oading model weights took", rf"Loading model weights took {_GIB}", "weights_bytes"),
    _line("odel loading took", rf"Model loading took {_GIB}", "weights_bytes"),
    # V0's two-line balance.
    _line(
        "can use total_gpu_memory",
        rf"total_gpu_memory \({_GIB}\) x gpu_memory_utilization \({_N}\) = {_GIB}",
        "total_bytes", "utilization", "requested_bytes",
    ),
    _line(
        "model weights take",
        rf"model weights take {_GIB}; non_torch_memory takes {_GIB}; PyTorch activation peak memory takes {_GIB}; "
        rf"the rest of the memory reserved for KV Cache is {_GIB}",
        "weights_bytes", "non_torch_bytes", "activation_peak_bytes", "kv_available_bytes",
    ),
    # V1's balance at debug level.
    _line("nitial free memory", rf"Initial free memory:? {_GIB}", "free_at_start_bytes"),
    _line(
        "requested GPU memory", rf"requested GPU memory:? {_GIB}", "requested_bytes"
    ),
    _line("Requested memory", rf"Requested memory:? {_N} \(util\), {_GIB}", "utilization", "requested_bytes"),
    _line("torch peak memory increase", rf"torch peak memory increase:? {_GIB}", "activation_peak_bytes"),
    _line("non-torch forward increase", rf"non-torch forward increase memory:? {_GIB}", "non_torch_bytes"),
    _line("weights memory:", rf"weights memory:? {_GIB}", "weights_bytes"),
    # V1's end-of-start summary, before and after weights and non-torch were merged.
    _line(
        "Free memory on device",
        rf"Free memory on device[^(]*\({_N}/{_GIB}\) on startup",
        ("free_at_start_bytes", GIB), "total_bytes",
    ),
    _line(
        "Desired GPU memory utilization is",
        rf"Desired GPU memory utilization is \({_N}, {_GIB}\)",
        "utilization", "requested_bytes",
    ),
    _line(
        "less than desired GPU memory utilization",
        rf"less than desired GPU memory utilization \({_N}, {_GIB}\)",
        "utilization", "requested_bytes",
    ),
    _line("GiB for weight,", rf"{_GIB} for weight,", "weights_bytes"),
    _line("for consumed memory", rf"{_GIB} for consumed memory", "consumed_bytes"),
    _line("for peak activation", rf"{_GIB} for peak activation", "activation_peak_bytes"),
    _line("for non-torch memory", rf"{_GIB} for non-torch memory", "non_torch_bytes"),
    _line("for CUDAGraph memory", rf"{_GIB} for CUDAGraph memory", "cuda_graph_bytes"),
    _line("urrent kv cache memory in use is", rf"[Cc]urrent kv cache memory in use is {_GIB}", "kv_available_bytes"),
    _line(
        "urrent kv cache memory in use is",
        rf"[Cc]urrent kv cache memory in use is {_N} bytes",
        ("kv_available_bytes", 1.0),
    ),
    # Graphs.
    _line("stimated CUDA graph memory", rf"stimated CUDA graph memory:? {_GIB}", "cuda_graph_estimate_bytes"),
    _line(
        "CUDA graph pool memory",
        rf"CUDA graph pool memory:? {_GIB} \(actual\), {_GIB} \(estimated\)",
        "cuda_graph_bytes", "cuda_graph_estimate_bytes",
    ),
    _line("raph capturing finished", rf"Graph capturing finished in [\d.]+ secs?, took {_GIB}", "cuda_graph_bytes"),
    # Pool.
    _line("vailable KV cache memory:", r"Available KV cache memory: (-?[\d.]+)\s*Gi?B", "kv_available_bytes"),
    _line("xplicitly set (", rf"Explicitly set \({_N}/[\d.]+\) GiB for KV cache", ("kv_available_bytes", GIB)),
    _line("uto set (", rf"Auto set \({_N}/[\d.]+\) GiB for KV cache", ("kv_available_bytes", GIB)),
    _line("emory for KV Cache as specified", rf"reserved {_GIB} memory for KV Cache as", "kv_available_bytes"),
    _line("KV cache size:", r"[CGXT]PU KV cache size: ([\d,]+) tokens", "kv_tokens"),
    _line(
        "aximum concurrency for",
        r"aximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        "concurrency_length", "max_concurrency",
    ),
    _line(" blocks: ", r"# (?:GPU|cuda|CPU|rocm|hpu) blocks: (\d+), # CPU blocks", "num_gpu_blocks"),
    _line("# GPU blocks: ", r"# GPU blocks: (\d+)\s*$", "num_gpu_blocks"),
    _line("num_gpu_blocks", r"num_gpu_blocks(?: is|:|=) ?(\d+)(?! with num_gpu_blocks_override|\d)", "num_gpu_blocks"),
    # A pool of no blocks that is overridden serves the profile of graphs (0.18, 0.19), not requests.
    _line(
        "Overriding num_gpu_blocks",
        r"Overriding num_gpu_blocks=0*[1-9]\d* with num_gpu_blocks_override=(\d+)",
        "num_gpu_blocks",
    ),
    _line("etting attention block size", r"Setting attention block size to (\d+) tokens", "attention_block_size"),
    _line("padding layers", r"Add (\d+) padding layers", "padding_layers"),
    _line("by the dcp_world_size", r"by the dcp_world_size (\d+)", "context_parallel"),
    # SGLang.
    _line("oad weight begin", rf"Load weight begin\. avail mem={_GIB}", "free_at_start_bytes"),
    _line("oad weight end", rf"Load weight end\..*?avail mem={_GIB}", "free_after_load_bytes"),
    _line("oad weight end", rf"Load weight end\..*?mem usage={_GIB}", "weights_bytes"),
    _line(
        "Cache is allocated",
        rf"(?<!SWA )KV Cache is allocated\..*?#tokens: (\d+), K size: {_GIB}, V size: {_GIB}",
        "pool_tokens", "pool_key_bytes", "pool_value_bytes",
    ),
    _line(
        "SWA KV Cache is allocated",
        rf"SWA KV Cache is allocated\..*?#tokens: (\d+), K size: {_GIB}, V size: {_GIB}",
        "swa_pool_tokens", "swa_pool_key_bytes", "swa_pool_value_bytes",
    ),
    _line("Cache is allocated", rf"KV Cache is.*?#tokens: (\d+), KV size: {_GIB}", "pool_tokens", "pool_bytes"),
    _line(
        "amba Cache is allocated",
        rf"max_mamba_cache_size: (\d+), conv_state size: {_GIB},? ssm_state size: {_GIB}",
        "state_slots", "state_bytes", "state_bytes",
    ),
    _line("emory pool end", rf"Memory pool end\. avail mem={_GIB}", "free_after_pool_bytes"),
    _line("apture cuda graph end", rf"Capture cuda graph end\..*?mem usage={_GIB}", "cuda_graph_bytes"),
    _line("max_total_num_tokens=", r"max_total_num_tokens=(\d+),", "kv_tokens"),
    _line(
        "SWAKVPool mem usage",
        rf"SWAKVPool mem usage: {_GIB}, swa size: (\d+), full size: (\d+)",
        "whole_pool_bytes", "swa_pool_tokens", "full_pool_tokens",
    ),
    _line(
        "sliding window memory pool",
        r"full_layer_tokens=(\d+), swa_layer_tokens=(\d+)",
        "full_pool_tokens", "swa_pool_tokens",
    ),
    # What a refused start says of itself.
    _line(
        "KV cache is needed",
        rf"\({_GIB} KV cache is needed.*?available KV cache memory \({_GIB}\)",
        "needed_bytes", "refused_bytes",
    ),
    _line("estimated maximum model length", r"estimated maximum model length is (\d+)", "longest_request"),
    _line("ut of memory. Tried to allocate", rf"out of memory\. Tried to allocate {_GIB}", "oom_bytes"),
    _line("has a total capacity of", rf"has a total capacity of {_GIB} of which {_GIB} is free",
          "total_bytes", "oom_free_bytes"),
)  # fmt: skip

REFUSALS: Final = (
    (b"To serve at least one request", re.compile(r"To serve at least one request.*?(?=\s*$)")),
    (b"No available memory for the cache blocks", re.compile(r"No available memory for the cache blocks.*?(?=\s*$)")),
    (
        b"is less than desired GPU memory",
        re.compile(r"Free memory on device.*?less than desired GPU memory.*?(?=\s*$)"),
    ),
    (
        b"leave no GPU memory for the KV cache",
        re.compile(r"Loaded weights leave no GPU memory for the KV cache.*?(?=\s*$)"),
    ),
    (
        b"Not enough memory. Please try to increase",
        re.compile(r"Not enough memory\. Please try to increase.*?(?=\s*$)"),
    ),
    (
        b"ut of memory. Tried to allocate",
        re.compile(r"(?:CUDA|HIP)? ?out of memory\. Tried to allocate.*?(?=\s*$)"),
    ),
    (b"larger than the maximum number of tokens", re.compile(r"The model's max seq len.*?(?=\s*$)")),
)

SETTINGS: Final = {
    # the name in arguments or in the engine's config: our name (the engines' flag)
    "model": "model", "model_tag": "model", "model_path": "model",
    "tensor_parallel_size": "tp", "tp_size": "tp", "pipeline_parallel_size": "pp", "pp_size": "pp",
    "decode_context_parallel_size": "dcp", "data_parallel_size": "dp", "dp_size": "dp",
    "enable_expert_parallel": "enable_expert_parallel",
    "dtype": "dtype", "quantization": "quantization", "kv_cache_dtype": "kv_cache_dtype",
    "gpu_memory_utilization": "gpu_memory_utilization", "mem_fraction_static": "mem_fraction_static",
    "max_model_len": "max_model_len", "max_seq_len": "max_model_len", "context_length": "max_model_len",
    "max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens", "block_size": "block_size",
    "page_size": "page_size", "enforce_eager": "enforce_eager", "enable_prefix_caching": "enable_prefix_caching",
    "num_gpu_blocks_override": "num_gpu_blocks_override", "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "speculative_config": "speculative_config", "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
    "chunked_prefill_size": "chunked_prefill_size", "max_running_requests": "max_running_requests",
    "max_total_tokens": "max_total_tokens",
    "speculative_algorithm": "speculative_algorithm", "speculative_draft_model_path": "speculative_draft_model_path",
    "speculative_num_steps": "speculative_num_steps", "speculative_eagle_topk": "speculative_eagle_topk",
    "speculative_num_draft_tokens": "speculative_num_draft_tokens", "disable_radix_cache": "disable_radix_cache",
    "disable_custom_all_reduce": "disable_custom_all_reduce",
    "language_model_only": "language_model_only", "mamba_cache_mode": "state_cache",
    "mamba_ssm_cache_dtype": "state_dtype", "async_scheduling": "async_scheduling",
    "disable_cuda_graph": "disable_cuda_graph",
    "swa_full_tokens_ratio": "swa_full_tokens_ratio", "mamba_full_memory_ratio": "mamba_full_memory_ratio",
}  # fmt: skip

ENGINE_LINES: Final = (
    b"LLM engine (v", b"non-default args", b"args: Namespace(", b"server_args=", b"vLLM API server version",
    b"Using max model len", b"max_num_batched_tokens=", b"  version ", b"max_running_requests=",
)  # fmt: skip
VERSION: Final = (
    re.compile(r"LLM engine \(v([^)\s]+)\)"),
    re.compile(r"vLLM API server version (\S+)"),
    re.compile(r"█\s+version (\d\S*)"),
)
OPENERS: Final = (b"vLLM API server version", b"non-default args", b"LLM engine (v", b"server_args=")
"""What an engine prints once, when it starts: printed again after figures, it starts again."""

# Where arguments are listed, and whether they outrank what other lines said (users' arguments do).
ARGUMENTS: Final = (
    ("non-default args:", True),
    ("Namespace(", False),
    ("with config:", False),
    ("server_args=", True),
)
RESOLVED: Final = (
    ("max_model_len", re.compile(r"Using max model len (\d+)")),
    ("max_num_batched_tokens", re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")),
    ("max_num_batched_tokens", re.compile(r"compile_ranges_(?:endpoints|split_points)'?: \[(\d+)\]")),
    ("chunked_prefill_size", re.compile(r"max_total_num_tokens=.*\bchunked_prefill_size=(\d+)")),
    ("max_running_requests", re.compile(r"max_total_num_tokens=.*\bmax_running_requests=(\d+)")),
    ("max_model_len", re.compile(r"max_total_num_tokens=.*\bcontext_len=(\d+)")),
)
