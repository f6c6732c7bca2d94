"""What an engine is predicted to do with a rank's memory: terms, pool, words. The same shape for vLLM and SGLang."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specplan.memory.vllm_kv import CachePlan
from specplan.memory.vllm_memory import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A predicted figure with its bounds.

    Attributes
    ----------
    low, best, high : float
    """

    low: float
    best: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTerms:
    """Memory of one rank of a pipeline stage.

    Attributes
    ----------
    stage : int
    weights : Estimate
        As "Model loading took" prints: target and draft.
    target_weights, draft_weights : mapping of str to float
        Component -> bytes.
    activation_peak, non_torch, cuda_graph : Estimate
        Bytes. `cuda_graph` is what comes off the pool: 0 where graphs lie outside the budget.
    buffers : mapping of str to float
        Device buffers of the speculation, by name, bytes.
    available : Estimate
        Bytes for the cache.
    """

    stage: int
    weights: Estimate
    target_weights: Mapping[str, float]
    draft_weights: Mapping[str, float]
    activation_peak: Estimate
    non_torch: Estimate
    cuda_graph: Estimate
    buffers: Mapping[str, float]
    available: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPrediction:
    """What the engine will report at start-up.

    Attributes
    ----------
    engine, version : str
    settings : mapping of str to object
        Every setting after defaults.
    total : Estimate
        Device memory, bytes.
    requested : Estimate
        Budget on a rank, bytes.
    ranks : tuple of RankTerms
        One per pipeline stage.
    decisive : int
        Stage that decides the number of blocks.
    blocks, tokens, concurrency : Span or None
        None when the engine refuses to start.
    log_lines : tuple of str
        In the engine's words.
    refusal : str or None
        The engine's error, when it refuses.
    max_model_len : int
        After fitting.
    longest : int
        Largest `max_model_len` that would start (0: none).
    bytes_per_token : float
        Pool bytes per token of a long request on the decisive rank.
    plan : CachePlan or None
        vLLM's layout.
    extra : mapping of str to float
        Further amounts, such as SGLang's recurrent states.
    printed : mapping of str to float
        Further figures under the terms of a start-up log, as the engine prints them, and bytes of one row of each pool.
    assumptions, not_modeled : tuple of str
    """

    engine: str
    version: str
    settings: Mapping[str, Any]
    total: Estimate
    requested: Estimate
    ranks: tuple[RankTerms, ...]
    decisive: int
    blocks: Span | None
    tokens: Span | None
    concurrency: Span | None
    log_lines: tuple[str, ...]
    refusal: str | None
    max_model_len: int
    longest: int
    bytes_per_token: float
    plan: CachePlan | None = None
    extra: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    printed: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    assumptions: tuple[str, ...] = ()
    not_modeled: tuple[str, ...] = ()

    @property
    def rank(self) -> RankTerms:
        """The rank that decides."""
        return self.ranks[self.decisive]

    def requests(self, slots: int = 0) -> int:
        """Whole requests of `max_model_len` tokens that own `slots` more each: what decodes together at that length."""
        if self.plan is not None:
            return self.plan.requests(self.max_model_len + slots)
        if self.tokens is None:
            return 0
        page = int(self.settings.get("page_size", 1))
        held = int(self.tokens.best) // (-(-(self.max_model_len + slots) // page) * page)
        return int(min(held, self.extra.get("state_requests", held)))
