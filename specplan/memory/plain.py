"""The chapter's plain subtraction: memory times utilisation, less weights and a workspace, divided by bytes per token.

What an engine really reserves is in `specplan.memory.pool`; this is a bound by hand for what has no block rules.
"""

from dataclasses import dataclass
from typing import Final

from specplan.formulas import kv_cache, parameters
from specplan.units import GIB
from specplan.values.formats import NumberFormat
from specplan.values.model import Model

DEFAULT_UTILIZATION: Final = 0.92
"""vLLM 0.32's default of ``--gpu-memory-utilization`` (0.9 before)."""

DEFAULT_WORKSPACE: Final = 2 * GIB
"""The chapter's round figure for activations and workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPool:
    """KV cache of one rank and what it holds. `shortfall_bytes` is above 0 when the weights do not fit."""

    weights_bytes_per_rank: float
    kv_bytes_per_rank: float
    shortfall_bytes: float
    bytes_per_sequence_per_rank: float
    tokens: int
    sequences: int


def plain_pool(
    models: tuple[Model, ...], available: float, *, length: int, tp: int = 1, kv_format: NumberFormat | None = None
) -> PlainPool:
    """Subtract the weights of `models` from the bytes `available` on a rank and fill the rest with cache.

    >>> from specplan.specs.catalog import load_model
    >>> pair = load_model("llama3-70b"), load_model("llama3.2-1b")
    >>> [plain_pool(pair[:n], (79.19 * 0.92 - 2) * GIB, length=8192, tp=4).sequences for n in (1, 2)]
    [60, 54]
    """
    resident = sum(parameters.resident_bytes(m, tp) for m in models)
    left = available - resident
    per_sequence = sum(float(kv_cache.kv_bytes_stored(m, length, kv_format, tp)) for m in models)
    pool = max(left, 0.0)
    return PlainPool(
        weights_bytes_per_rank=resident,
        kv_bytes_per_rank=pool,
        shortfall_bytes=max(-left, 0.0),
        bytes_per_sequence_per_rank=per_sequence,
        tokens=int(kv_cache.pool_tokens(pool, per_sequence / length)),
        sequences=int(kv_cache.pool_sequences(pool, per_sequence)),
    )
