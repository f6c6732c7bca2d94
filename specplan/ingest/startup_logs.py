r"""Read what vLLM (0.4 to 0.32) and SGLang print at start-up: memory terms, pool sizes, settings, refusals.

The reader streams, so that a log may be gigabytes long: whole chunks are searched for the few words that matter, and
only lines that hold one are decoded. Lines may carry container prefixes, timestamps, worker names and colours, come in
any order and from any number of ranks, and the log may end anywhere: every figure stands for itself.

All sizes that either engine labels "GB" at start-up are GiB (2**30).
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from specplan.errors import InputError
from specplan.records.startup import Reading, StartupLog
from specplan.units import GIB

_CHUNK: Final = 1 << 20
_LONGEST_LINE: Final = 1 << 18
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[\d{1,2}(?:;\d{1,2})*m")
_N: Final = r"([\d,]*\.?\d+)"
_GIB: Final = r"(-?[\d,]*\.?\d+)\s*Gi?B"

# Rank names: "(Worker_TP0 pid=12)", "(VllmWorker rank=1 pid=..)", "(RayWorkerWrapper pid=7)", "[2026-01-01 TP0]".
_RANK: Final = (
    re.compile(r"\((?:Vllm)?Worker_?((?:(?:DP|PP|TP|EP|PCP|DCP)\d+_?)+)\s+pid=\d+\)"),
    re.compile(r"\((?:Vllm)?Worker(?:Process)?(?:-(\d+)| rank=(\d+))\s*pid=\d+\)"),
    re.compile(r"\[[\d\-: .,]*((?:\b(?:DP|PP|TP|EP|CP)\d+ ?)+)\]"),
    re.compile(r"\((?:EngineCore|RayWorkerWrapper|VllmWorkerProcess|Worker)(_DP\d+)?\s*\(?pid=(\d+)"),
)


@dataclass(frozen=True, slots=True)
class _Line:
    """A kind of line: bytes that mark it, what it looks like, and the terms of its groups with their unit."""

    anchor: bytes
    pattern: re.Pattern[str]
    terms: tuple[tuple[str, float], ...]


def _line(anchor: str, pattern: str, *terms: tuple[str, float] | str) -> _Line:
    named = tuple((t, float(GIB) if t.endswith("_bytes") else 1.0) if isinstance(t, str) else t for t in terms)
    return _Line(anchor.encode(), re.compile(pattern), named)


_LINES: Final = (
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
    _line("aximum concurrency for", r"aximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", "max_concurrency"),
    _line(" blocks: ", r"# (?:GPU|cuda|CPU|rocm|hpu) blocks: (\d+), # CPU blocks", "num_gpu_blocks"),
    _line("# GPU blocks: ", r"# GPU blocks: (\d+)\s*$", "num_gpu_blocks"),
    _line("num_gpu_blocks", r"num_gpu_blocks(?: is|:|=) ?(\d+)", "num_gpu_blocks"),
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
    _line("max_total_num_tokens=", r"max_total_num_tokens=(\d+)", "kv_tokens"),
    _line(
        "sliding window memory pool",
        r"full_layer_tokens=(\d+), swa_layer_tokens=(\d+)",
        "full_pool_tokens", "swa_pool_tokens",
    ),
)  # fmt: skip

_REFUSALS: Final = (
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
    (b"larger than the maximum number of tokens", re.compile(r"The model's max seq len.*?(?=\s*$)")),
)

_SETTINGS: Final = {
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
    "swa_full_tokens_ratio": "swa_full_tokens_ratio", "mamba_full_memory_ratio": "mamba_full_memory_ratio",
}  # fmt: skip

_KEY_VALUE: Final = re.compile(
    r"""['"]?\b(\w+)['"]?\s*[=:]\s*(SpeculativeConfig\([^)]*\)|\{[^{}]*\}|'[^']*'|"[^"]*"|[^,\s(){}]+)"""
)
_SPECULATIVE: Final = {"num_spec_tokens": "num_speculative_tokens"}

_ENGINE_LINES: Final = (
    b"LLM engine (v", b"non-default args", b"args: Namespace(", b"server_args=", b"vLLM API server version",
    b"Using max model len", b"max_num_batched_tokens=", b"  version ", b"max_running_requests=",
)  # fmt: skip
_VERSION: Final = (
    re.compile(r"LLM engine \(v([^)\s]+)\)"),
    re.compile(r"vLLM API server version (\S+)"),
    re.compile(r"█\s+version (\d\S*)"),
)
# Where arguments are listed, and whether they outrank what other lines said (users' arguments do).
_ARGUMENTS: Final = (
    ("non-default args:", True),
    ("Namespace(", False),
    ("with config:", False),
    ("server_args=", True),
)
_RESOLVED: Final = (
    ("max_model_len", re.compile(r"Using max model len (\d+)")),
    ("max_num_batched_tokens", re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")),
    ("chunked_prefill_size", re.compile(r"max_total_num_tokens=.*\bchunked_prefill_size=(\d+)")),
    ("max_running_requests", re.compile(r"max_total_num_tokens=.*\bmax_running_requests=(\d+)")),
    ("max_model_len", re.compile(r"max_total_num_tokens=.*\bcontext_len=(\d+)")),
)
_ANCHORS: Final = tuple(
    sorted({line.anchor for line in _LINES} | {anchor for anchor, _ in _REFUSALS} | set(_ENGINE_LINES))
)


def read_startup_log(source: str | Path | BinaryIO) -> StartupLog:
    """Read a start-up log.

    Parameters
    ----------
    source : path or binary stream
        A file, or an open stream (standard input).

    Raises
    ------
    InputError
        When the file cannot be read, or holds no line of either engine's start-up.

    Examples
    --------
    >>> import io
    >>> log = read_startup_log(io.BytesIO(b'''
    ... (EngineCore_0 pid=7) INFO 01-02 03:04:05 [gpu_model_runner.py:99] Model loading took 14.99 GiB and 5.1 seconds
    ... (EngineCore_0 pid=7) INFO 01-02 03:04:06 [gpu_worker.py:298] Available KV cache memory: 58.11 GiB
    ... (EngineCore_0 pid=7) INFO 01-02 03:04:06 [kv_cache_utils.py:864] GPU KV cache size: 476,016 tokens
    ... '''))
    >>> log.engine, log.value("kv_tokens"), round(log.value("weights_bytes") / 2**30, 2)
    ('vllm', 476016.0, 14.99)
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        try:
            with path.open("rb") as stream:
                return _read(stream, str(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return _read(source, "the log")


def _read(stream: BinaryIO, name: str) -> StartupLog:
    state = _State()
    for number, raw in _marked_lines(stream, state):
        state.line(number, _clean(raw), raw)
    if not state.readings and not state.settings and not state.refusals:
        raise InputError(
            f"{name}: no start-up line of vLLM or SGLang in {state.n_lines} lines; give the engine's log from its "
            "first line on"
        )
    return state.finish()


def _marked_lines(stream: BinaryIO, state: "_State") -> Iterator[tuple[int, bytes]]:
    """Lines that hold an anchor, with their numbers; memory stays bounded however long the file or its lines are."""
    rest, line_number = b"", 1
    while True:
        chunk = stream.read(_CHUNK)
        state.n_bytes += len(chunk)
        block = rest + chunk
        if not chunk:
            rest = b""
        else:
            cut = block.rfind(b"\n") + 1
            if not cut and len(block) > _LONGEST_LINE:
                cut = len(block) - _LONGEST_LINE // 2  # a line without end: search it in overlapping pieces
            rest, block = block[cut:], block[:cut]
        yield from _lines_of(block, line_number)
        line_number += block.count(b"\n")
        if not chunk:
            state.n_lines = line_number - 1 + (1 if block and not block.endswith(b"\n") else 0)
            return


def _lines_of(block: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    starts: set[int] = set()
    for anchor in _ANCHORS:
        at = block.find(anchor)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(anchor, end) if end >= 0 else -1
    counted, number = 0, first
    for start in sorted(starts):
        number += block.count(b"\n", counted, start)
        counted = start
        end = block.find(b"\n", start)
        yield number, block[start : end if end >= 0 else len(block)][:_LONGEST_LINE]


def _clean(raw: bytes) -> str:
    return _COLOUR.sub("", raw.decode("utf-8", "replace")).rstrip("\r")


def _rank(text: str) -> str:
    for pattern in _RANK:
        found = pattern.search(text)
        if found:
            return "".join(part for part in found.groups() if part).strip("_ ").replace(" ", "_")
    return ""


class _State:
    """What has been read so far."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.settings: dict[str, object] = {}
        self.refusals: list[str] = []
        self.version: str | None = None
        self.starts = 0
        self.sglang = self.vllm = 0
        self.n_lines = self.n_bytes = 0

    def line(self, number: int, text: str, raw: bytes) -> None:
        rank = _rank(text)
        if "CPU KV cache size" in text:
            self.settings["device"] = "cpu"
        for kind in _LINES:
            if kind.anchor not in raw:
                continue
            found = kind.pattern.search(text)
            if found:
                for (term, unit), printed in zip(kind.terms, found.groups(), strict=True):
                    self._add(term, printed, unit, rank, number)
        for anchor, pattern in _REFUSALS:
            found = pattern.search(text) if anchor in raw else None
            if found and found[0] not in self.refusals:
                self.refusals.append(found[0])
        if any(anchor in raw for anchor in _ENGINE_LINES):
            self._settings(text)

    def _add(self, term: str, printed: str, unit: float, rank: str, number: int) -> None:
        digits = printed.replace(",", "")
        step = 10.0 ** -len(digits.partition(".")[2]) * unit
        value = float(digits) * unit
        if term in ("state_bytes",):
            # Convolution and recurrent states are printed side by side on one line; they are one term.
            same = [r for r in self.readings if r.term == term and r.rank == rank and r.line == number]
            if same:
                self.readings.remove(same[0])
                value, step = value + same[0].value, step + same[0].step
        self.readings.append(Reading(term=term, value=value, step=step, rank=rank, line=number))

    def _settings(self, text: str) -> None:
        self._versions(text)
        for marker, override in _ARGUMENTS:
            at = text.find(marker)
            if at >= 0:
                self._arguments(text[at + len(marker) :], override=override)
        for name, pattern in _RESOLVED:
            found = pattern.search(text)
            if found:
                self.settings[name] = int(found[1])

    def _versions(self, text: str) -> None:
        for pattern in _VERSION:
            found = pattern.search(text)
            if found:
                self.version = found[1].rstrip(".,;")
                self.vllm += 1
        if "LLM engine (v" in text:
            self.starts += 1
        if "server_args=" in text:
            self.sglang += 1

    def _arguments(self, text: str, *, override: bool) -> None:
        whole = _literal_dict(text)
        pairs = whole.items() if whole is not None else ((k, _value(v)) for k, v in _KEY_VALUE.findall(text))
        seen: set[str] = set()
        for key, value in pairs:
            name = _SETTINGS.get(key)
            # The first of two equal names belongs to the engine, later ones to nested configs.
            if name is None or value is None or name in seen:
                continue
            seen.add(name)
            if override or name not in self.settings:
                self.settings[name] = value

    def _tell_draft_pools(self) -> None:
        """SGLang prints a draft's pool by the same words as the target's; of two pools on a rank the smaller is its."""
        for term in ("pool_key_bytes", "pool_value_bytes", "pool_bytes"):
            for rank in {r.rank for r in self.readings if r.term == term}:
                largest = max(r.value for r in self.readings if r.term == term and r.rank == rank)
                self.readings = [
                    replace(r, term=f"draft_{term}") if r.term == term and r.rank == rank and r.value < largest else r
                    for r in self.readings
                ]

    def finish(self) -> StartupLog:
        self._tell_draft_pools()
        sglang_terms = {"free_after_load_bytes", "pool_tokens", "free_after_pool_bytes", "full_pool_tokens"}
        terms = {r.term for r in self.readings}
        engine = "sglang" if self.sglang or (terms & sglang_terms and not self.vllm) else "vllm"
        notes = []
        sized = "kv_tokens" in terms or "num_gpu_blocks" in terms or "pool_tokens" in terms
        if not sized and not self.refusals:
            notes.append("the log ends before the pool is sized")
        if self.starts > 1 and len(self._distinct("kv_tokens")) > 1:
            notes.append(f"{self.starts} starts in one log; the last values are used")
        return StartupLog(
            engine=engine,
            version=self.version,
            settings=MappingProxyType(self.settings),
            readings=tuple(self.readings),
            refusals=tuple(self.refusals),
            notes=tuple(notes),
            lines=self.n_lines,
            n_bytes=self.n_bytes,
        )

    def _distinct(self, term: str) -> set[float]:
        return {r.value for r in self.readings if r.term == term}


def _literal_dict(text: str) -> dict[str, object] | None:
    """The dict literal at the start of `text`, or None where it is none (or holds more than literals)."""
    start = text.find("{")
    if start < 0 or text[:start].strip():
        return None
    try:
        value = ast.literal_eval(text[start : text.rfind("}") + 1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _value(text: str) -> object:
    """A printed argument as a value: number, bool, string, or the fields of a nested config."""
    if text.startswith(("SpeculativeConfig(", "{")):
        inner = {
            _SPECULATIVE.get(k, k): _value(v)
            for k, v in _KEY_VALUE.findall(text[text.find("(" if text[0] == "S" else "{") + 1 :])
        }
        return {k: v for k, v in inner.items() if v is not None}
    bare = text.strip("'\"").removeprefix("torch.")
    words: dict[str, object] = {"None": None, "True": True, "False": False, "null": None, "true": True, "false": False}
    if bare in words:
        return words[bare]
    for kind in (int, float):
        try:
            return kind(bare)
        except ValueError:
            continue
    return bare
