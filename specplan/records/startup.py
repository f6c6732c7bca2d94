"""What an engine printed at start-up: memory terms, pool sizes, settings, refusals. One shape for vLLM and SGLang."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One figure of a log.

    Attributes
    ----------
    term : str
        What it is, such as ``weights_bytes``; see `TERMS`.
    value : float
        Bytes, tokens, blocks or a ratio.
    step : float
        Distance between two printed values (bytes of the last printed digit): the print cannot say more.
    rank : str
        As the line names it; empty where it does not.
    line : int
        Line number, from 1.
    """

    term: str
    value: float
    step: float
    rank: str
    line: int


CUT: Final = "the log ends within a line; a figure that stands there is not judged"
"""Among the notes of such a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupLog:
    """What a start-up log says.

    Attributes
    ----------
    engine : str
        ``vllm`` or ``sglang``.
    version : str or None
    settings : mapping of str to object
        Arguments and resolved settings under the engines' own flag names (``max_model_len``, ``tp``).
    readings : tuple of Reading
        In the order of the file.
    refusals : tuple of str
        Errors about memory, in the engine's words.
    notes : tuple of str
        What the reader noticed: several starts in one file, a log that ends before the pool is sized.
    lines, n_bytes : int
        Length of what was read.
    first_line, last_line : int
        Where this start stands in the file.
    earlier : tuple of StartupLog
        Starts before this one in the same file, oldest first.
    """

    engine: str
    version: str | None
    settings: Mapping[str, object]
    readings: tuple[Reading, ...]
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lines: int = 0
    n_bytes: int = 0
    first_line: int = 1
    last_line: int = 0
    earlier: tuple["StartupLog", ...] = ()

    def of(self, term: str) -> tuple[Reading, ...]:
        """Every reading of `term`, in the order of the file."""
        return tuple(r for r in self.readings if r.term == term)

    def by_rank(self, term: str) -> dict[str, float]:
        """Last value of `term` on each rank."""
        return {r.rank: r.value for r in self.readings if r.term == term}

    def value(self, term: str) -> float | None:
        """Value of `term` that decides: the least over ranks for what is left, the largest for what is used."""
        values = self.by_rank(term).values()
        return (min if term in _LEAST else max)(values) if values else None

    def step(self, term: str) -> float:
        """Distance between two printed values of `term` (0 where it is not in the log)."""
        return max((r.step for r in self.readings if r.term == term), default=0.0)


TERMS: Final = MappingProxyType(
    {
        "total_bytes": "memory of the device",
        "free_at_start_bytes": "free before loading",
        "requested_bytes": "budget: total x utilisation",
        "utilization": "gpu_memory_utilization",
        "weights_bytes": "weights",
        "consumed_bytes": "weights and non-torch memory together",
        "activation_peak_bytes": "activation peak",
        "non_torch_bytes": "non-torch memory",
        "cuda_graph_estimate_bytes": "CUDA graphs, estimated",
        "cuda_graph_bytes": "CUDA graphs, captured",
        "kv_available_bytes": "available for the cache",
        "num_gpu_blocks": "blocks",
        "kv_tokens": "tokens of the pool",
        "max_concurrency": "requests of the longest length",
        "concurrency_length": "length that the requests were counted for",
        "attention_block_size": "attention block raised for recurrent states",
        "padding_layers": "padding layers",
        "context_parallel": "decode context parallel ranks",
        "draft_weights_bytes": "weights of the draft",
        "free_after_load_bytes": "free after loading, before the pool",
        "pool_key_bytes": "keys of the pool",
        "pool_value_bytes": "values of the pool",
        "pool_bytes": "latents of the pool",
        "swa_pool_key_bytes": "keys of the sliding-window pool",
        "swa_pool_value_bytes": "values of the sliding-window pool",
        "draft_pool_key_bytes": "keys of the draft's pool",
        "draft_pool_value_bytes": "values of the draft's pool",
        "draft_pool_bytes": "latents of the draft's pool",
        "pool_tokens": "rows of the pool, as each pool prints them",
        "draft_pool_tokens": "rows of the draft's pool",
        "whole_pool_bytes": "full-attention and sliding-window pools together",
        "state_slots": "slots of recurrent states",
        "state_bytes": "recurrent states",
        "free_after_pool_bytes": "free after the pool",
        "full_pool_tokens": "tokens of the full-attention pool",
        "swa_pool_tokens": "tokens of the sliding-window pool",
        "needed_bytes": "cache of one request of the longest length",
        "refused_bytes": "cache that the refusal counts",
        "longest_request": "longest request that would fit",
        "oom_bytes": "allocation that failed",
        "oom_free_bytes": "free when an allocation failed",
    }
)
"""Every term that a log can carry, in words."""

_LEAST: Final = {
    "total_bytes", "free_at_start_bytes", "requested_bytes", "kv_available_bytes", "num_gpu_blocks", "kv_tokens",
    "max_concurrency", "concurrency_length", "free_after_load_bytes", "free_after_pool_bytes", "full_pool_tokens",
    "swa_pool_tokens",
}  # fmt: skip
