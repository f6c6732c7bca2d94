"""Constants of the laws that kernels follow on one card under one engine, as `benchmarks/fit_kernels.py` writes them.

Shares are of the peaks in the card's profile, so that a card of the same architecture can borrow them; times are
seconds. `specplan.formulas.kernels` holds the laws.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a law was tried, on which version of the engine: rows fitted, rows of shapes held out, their median error."""

    fitted: int
    tested: int
    error: float
    bias: float
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmLaw:
    """A matrix multiplication: floor, shares of bandwidth and arithmetic, time along the inner dimension, power.

    ``positions`` pairs row counts with a factor on everything above the floor (kernels are chosen by rows).
    """

    fixed_s: float
    bandwidth_share: float
    matmul_share: float
    inner_s: float = 0.0
    power: float = 2.0
    positions: tuple[tuple[float, float], ...] = ()
    fit: Fit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLaw:
    """Attention over cached keys and values: floor, per request, per request and key-value number, per cached token.

    ``shares`` pairs bytes read with the share of the bandwidth reached.
    """

    fixed_s: float
    request_s: float
    row_s: float
    token_s: float
    matmul_share: float
    shares: tuple[tuple[float, float], ...]
    fit: Fit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLaw:
    """A latent-attention block with its projections: floor, weights, per request, cache, arithmetic of both kinds.

    Under the key ``core`` it is the attention alone: the projections are multiplications of their own.
    """

    fixed_s: float
    bandwidth_share: float
    request_s: float
    token_s: float
    kv_share: float
    matmul_share: float
    attention_share: float
    fit: Fit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsLaw:
    """Fused routed experts: floor, per touched expert its bytes and a fixed time, arithmetic, per routed row.

    ``spread`` scales how fast more tokens touch more experts: 1 is uniform routing. ``rows`` pairs rows per expert
    (tokens times experts of a token over experts) with a factor on everything above the floor: tiles fill with them.
    ``shapes``, under a key that ends in ``-tuned``, are the (experts, width on a rank) that an engine brings settings
    for; all others run its defaults and the law of the key itself.
    """

    fixed_s: float
    bandwidth_share: float
    expert_s: float
    matmul_share: float
    row_s: float
    spread: float
    rows: tuple[tuple[float, float], ...] = ()
    shapes: tuple[tuple[float, float], ...] = ()
    fit: Fit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLaw:
    """A recurrent mixer's own kernels: floor of all of them, share of the bandwidth on the states."""

    fixed_s: float
    bandwidth_share: float
    fit: Fit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceLaw:
    """One sum over ranks: for each number of ranks, pairs of message bytes and seconds."""

    ranks: Mapping[int, tuple[tuple[float, float], ...]]
    fit: Fit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaws:
    """All laws of one card under one engine; formats are keys (``bfloat16``, ``fp8``, ``fp8-block``, ``int4``, ...).

    Attributes
    ----------
    card, engine, source : str
        What was measured, under which engine and version, and where the tables are published.
    glue_s : float
        Floor of one elementwise kernel (norm, activation).
    qk_norm_s : float
        What norms of queries and keys add to a layer of attention.
    """

    card: str
    engine: str
    source: str
    glue_s: float
    qk_norm_s: float
    gemm: Mapping[str, GemmLaw]
    attention: Mapping[str, AttentionLaw]
    latent: Mapping[str, LatentLaw] = field(default_factory=lambda: MappingProxyType({}))
    experts: Mapping[str, ExpertsLaw] = field(default_factory=lambda: MappingProxyType({}))
    recurrent: Mapping[str, RecurrentLaw] = field(default_factory=lambda: MappingProxyType({}))
    reduce: ReduceLaw | None = None
