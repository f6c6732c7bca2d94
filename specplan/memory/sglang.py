r"""What SGLang will print at start-up: the static fraction, bytes per token, the draft's reserve.

.. math:: \text{budget} = \text{free after load} - \text{free before load} \cdot (1 - f) \qquad
    \text{tokens} = \Big\lfloor \frac{\text{budget}}{\text{cell} + \text{draft reserve}} \Big\rfloor_{\text{page}}

The fraction multiplies what is free before loading, not the device's total; draft weights are loaded before the pool is
sized, so they come off it byte for byte; a draft's cache is reserved as the target's bytes times a ratio of layers.

Source: SGLang 0.5.23 (`arg_groups/memory_hook.py`, `mem_cache/kv_cache_configurator.py`,
`model_executor/pool_configurator.py`), public start-up logs.
"""

import math
import re
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Final

from specplan.errors import InputError, UnsupportedError
from specplan.formulas.kv_cache import conv_channels_per_rank
from specplan.formulas.pairing import check_pair
from specplan.formulas.parameters import is_output_head, outer_weights
from specplan.memory.prediction import PoolPrediction, RankTerms, Span
from specplan.memory.rank_weights import WeightSettings, pipeline_stages, rank_weight_bytes
from specplan.memory.speculative import SglangSpeculation
from specplan.memory.vllm import require_counts, with_formats
from specplan.memory.vllm_memory import Estimate
from specplan.memory.vllm_pages import kv_heads_per_rank
from specplan.units import GIB, MIB
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator
from specplan.values.model import Attention, CompressedAttention, LatentAttention, Layer, Model, Recurrent

DEFAULT_VERSION: Final = "0.5.23"
SWA_RATIO: Final = 0.8
"""``--swa-full-tokens-ratio``."""
MAMBA_RATIO: Final = 0.9
"""``--mamba-full-memory-ratio``."""
STATE_SLOTS: Final = 3
"""Recurrent-state slots per running request with the radix cache (1 without)."""
SPECULATIVE_RUNNING: Final = 48
"""``--max-running-requests`` with speculation (STANDALONE excepted) where it is not given."""
MAX_PREFILL_TOKENS: Final = 16384
"""``--max-prefill-tokens``."""
MULTIMODAL_RESERVE: Final = 0.1 * GIB

# Free before loading, below what the driver reports: CUDA context, then NCCL from two ranks on (GiB: low, best, high).
# Data: 21.63 of 22.5 (L4 x4), 22.76 of 24 (RTX 3090), 283.5 of 288 with 3.4 to 3.8 of communication (MI355X x8).
CONTEXT: Final[dict[str, tuple[float, float, float]]] = {"one": (0.4, 0.6, 1.3), "several": (0.8, 1.3, 2.2)}
"""Fitted by hand, 2026-11-30."""
LOADING_EXTRA: Final = (0.0, 0.1, 0.35)
"""GiB by which free memory falls beyond the weights while loading (allocator, workspaces); QwQ-32B on four: 0.28."""

# Batch defaults by memory (GiB): below, chunked prefill size, decode batch at tp < 4, at tp >= 4.
TIERS: Final = (
    (20.0, 2048, 8, 8), (35.0, 4096, 48, 160), (60.0, 4096, 32, 160), (160.0, 8192, 256, 512),
    (math.inf, 16384, 512, 512),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangFlags:
    """SGLang's flags; None takes the default.

    Attributes
    ----------
    version : str
    tp, pp : int
    expert_parallel : bool
    dtype, quantization, kv_cache_dtype : str
    mem_fraction_static : float or None
    context_length : int or None
    max_running_requests, max_total_tokens, chunked_prefill_size : int or None
    page_size : int
    disable_radix_cache, disable_cuda_graph : bool
    swa_full_tokens_ratio, mamba_full_memory_ratio : float
    multimodal : bool
    free_before_load, weights : float or None
        Bytes that replace the modelled terms.
    """

    version: str = DEFAULT_VERSION
    tp: int = 1
    pp: int = 1
    expert_parallel: bool = False
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    mem_fraction_static: float | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int | None = None
    page_size: int = 1
    disable_radix_cache: bool = False
    disable_cuda_graph: bool = False
    swa_full_tokens_ratio: float = SWA_RATIO
    mamba_full_memory_ratio: float = MAMBA_RATIO
    multimodal: bool = False
    free_before_load: float | None = None
    weights: float | None = None


def _tier(memory_bytes: float, tp: int) -> tuple[int, int]:
    for below, chunk, small, large in TIERS:
        if memory_bytes < below * GIB:
            return chunk, small if tp < 4 else large
    raise AssertionError  # the last tier is endless


def chunk_size(card: Accelerator, tp: int = 1) -> int:
    """SGLang's ``chunked_prefill_size`` on a card, unless told otherwise."""
    return _tier(_device_memory(card) or 0.0, tp)[0]


def _device_memory(card: Accelerator) -> float | None:
    """Bytes that the driver reports, else those that torch does (ROCm: 0.02 GiB less)."""
    return card.memory_torch_bytes if card.memory_driver_bytes is None else card.memory_driver_bytes


def _memory_source(card: Accelerator) -> str:
    if card.memory_driver_bytes is not None:
        return f"measured: what the driver reports on {card.name}"
    return f"assumed: the driver reports no less than torch on {card.name}"


def prefill_capture_sizes(chunk: int) -> int:
    """Number of prefill sizes that SGLang captures up to a chunk.

    >>> prefill_capture_sizes(8192), prefill_capture_sizes(4096), prefill_capture_sizes(2048)
    (58, 50, 42)
    """
    grid = (
        *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
        *range(4608, max(chunk, 4608) + 1, 512),
    )  # fmt: skip
    return sum(size <= chunk for size in grid)


def default_mem_fraction(model: Model, card: Accelerator, flags: SglangFlags) -> float:
    r"""``--mem-fraction-static`` when the user gives none.

    .. math:: f = \mathrm{round}\big((M - R)/M, 3\big), \quad
        R = 512 + 1.5 \max(\text{chunk}, 2048) + 128\, tp\, pp + \text{graphs}

    in MiB, with R at least 10240 above 60 GiB.

    Raises
    ------
    InputError
        When the card states no memory.

    Examples
    --------
    >>> from specplan.values.model import DenseMLP
    >>> layer = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    >>> model = Model(name="m", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False,
    ...               layers=(layer,), weight_format=lookup("bf16"))
    >>> card = Accelerator(name="h100", vendor="", family="hopper", memory_driver_bytes=81559 * MIB,
    ...                    memory_torch_bytes=None, bandwidth=1.0, flops={})
    >>> default_mem_fraction(model, card, SglangFlags()), default_mem_fraction(model, card, SglangFlags(tp=4))
    (0.83, 0.819)
    """
    memory = _device_memory(card)
    if memory is None:
        raise InputError(f"{card.name} states no memory size; give --mem-fraction-static")
    chunk, batch = _tier(memory, flags.tp)
    chunk = flags.chunked_prefill_size or chunk
    if flags.max_running_requests is not None:
        batch = min(batch, flags.max_running_requests)
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in model.layers)
    graphs = 0.0
    if not flags.disable_cuda_graph:
        graphs = 2.0 * batch + (1536 if latent else 8 * prefill_capture_sizes(chunk))
    reserve = 512 + 1.5 * max(chunk, 2048) + flags.tp * flags.pp / 8 * 1024 + graphs
    if memory > 60 * GIB:
        reserve = max(reserve, 10240)
    fraction = round((memory / MIB - reserve) / (memory / MIB), 3)
    return fraction * 0.95 if flags.multimodal else fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Bytes that one token, or one request, takes on a rank.

    Attributes
    ----------
    full_k, full_v : float
        Keys and values of layers that keep every token (a latent counts as keys).
    window_k, window_v : float
        Of windowed layers.
    state_conv, state_recurrent : float
        Recurrent states of one request.
    full_layers, window_layers : int
    window : int
        Longest window.
    latent : bool
    """

    full_k: float = 0.0
    full_v: float = 0.0
    window_k: float = 0.0
    window_v: float = 0.0
    state_conv: float = 0.0
    state_recurrent: float = 0.0
    full_layers: int = 0
    window_layers: int = 0
    window: int = 0
    latent: bool = False

    @property
    def full(self) -> float:
        """Bytes per token of layers that keep every token."""
        return self.full_k + self.full_v

    @property
    def windowed(self) -> float:
        """Bytes per token of windowed layers."""
        return self.window_k + self.window_v

    @property
    def state(self) -> float:
        """Bytes per request of recurrent states."""
        return self.state_conv + self.state_recurrent


def cells(model: Model, layers: tuple[Layer, ...], kv_cache_dtype: str, tp: int, *, packed: bool = True) -> Cells:
    """Cell sizes of some layers on one rank.

    `packed`: sparse attention's fp8 latents carry scales and a 16-bit rotary part, as Hopper's kernels read them;
    Blackwell's read plain fp8.

    >>> layer = Layer(mixer=Attention(heads=64, kv_heads=8, head_dim=128), feed_forward=None)
    >>> model = Model(name="m", source="", hidden_size=1, vocab_size=1, tied_embeddings=False, layers=(layer,) * 80,
    ...               weight_format=lookup("bf16"))
    >>> cells(model, model.layers, "auto", 4).full
    81920.0
    """
    size = model.weight_format.bytes if kv_cache_dtype == "auto" else lookup(kv_cache_dtype).bytes
    out = Cells()
    for layer in layers:
        match layer.mixer:
            case Attention() as a:
                # A layer that reads an earlier one's cache has rows of its own all the same (Gemma-4 E4B's pools).
                heads = kv_heads_per_rank(a.kv_heads, tp)
                k, v = heads * a.head_dim * size, heads * a.value_dim * size
                if a.window is not None:
                    out = replace(
                        out, window_k=out.window_k + k, window_v=out.window_v + v,
                        window_layers=out.window_layers + 1, window=max(out.window, a.window),
                    )  # fmt: skip
                else:
                    out = replace(out, full_k=out.full_k + k, full_v=out.full_v + v, full_layers=out.full_layers + 1)
            case LatentAttention() as latent:
                out = replace(
                    out, full_k=out.full_k + _latent_cell(latent, kv_cache_dtype, size, packed),
                    full_layers=out.full_layers + 1, latent=True,
                )  # fmt: skip
            case CompressedAttention():
                raise UnsupportedError(f"{model.name}: SGLang's pools of compressed attention are not known here")
            case Recurrent() as r:
                fmt = r.state_format or model.weight_format
                channels = conv_channels_per_rank(r, model.hidden_size, tp)
                conv = max(r.conv_kernel - 1, 0) * channels * model.weight_format.bytes
                out = replace(
                    out,
                    state_conv=out.state_conv + conv,
                    state_recurrent=out.state_recurrent + r.state_size * fmt.bytes / tp,
                )
    return out


def _latent_cell(a: LatentAttention, kv_cache_dtype: str, size: float, packed: bool) -> float:
    """Latent and index key of a token; SGLang keeps index keys in layers that share an indexer, too (GLM-5.2)."""
    if packed and a.index_heads and kv_cache_dtype.startswith("fp8"):
        latent = a.kv_rank + 4 * a.kv_rank / 128 + 2 * a.rope_dim  # fp8 latent, fp32 scale per 128, bf16 rotary part
    else:
        latent = (a.kv_rank + a.rope_dim) * size
    return latent + (a.index_dim + 4 * math.ceil(a.index_dim / 128) if a.index_heads else 0)


def predict_sglang(
    model: Model,
    card: Accelerator,
    flags: SglangFlags,
    speculation: SglangSpeculation | None = None,
    draft: Model | None = None,
) -> PoolPrediction:
    """Predict SGLang's pool.

    Parameters
    ----------
    model : Model
    card : Accelerator
        `memory_driver_bytes` sizes the default fraction.
    flags : SglangFlags
    speculation : SglangSpeculation, optional
    draft : Model, optional
        The draft of STANDALONE, EAGLE and their kin; EAGLE without one takes the target's own prediction layers.

    Returns
    -------
    PoolPrediction
        `blocks` counts pages; `concurrency` is tokens over the context length (SGLang prints neither).

    Raises
    ------
    InputError
        For flags that contradict each other.
    UnsupportedError
        For a version of another series.
    """
    _check_version(flags.version)
    require_counts(
        tp=flags.tp, pp=flags.pp, page_size=flags.page_size, context_length=flags.context_length,
        max_running_requests=flags.max_running_requests, max_total_tokens=flags.max_total_tokens,
        chunked_prefill_size=flags.chunked_prefill_size,
    )  # fmt: skip
    model = with_formats(model, flags.dtype, flags.quantization)
    draft = _draft(model, speculation, draft)
    length = flags.context_length or model.max_position
    if length is None:
        raise InputError(f"{model.name} states no context length; give --context-length")
    fraction = flags.mem_fraction_static
    if fraction is None:
        fraction = default_mem_fraction(model, card, flags)
    elif not 0 < fraction < 1:
        raise InputError(f"--mem-fraction-static must lie in (0, 1), got {fraction}")
    free = _free_before(card, flags)
    notes = (
        [] if flags.mem_fraction_static is not None else [f"mem_fraction_static {fraction:g}: SGLang's default here"]
    )
    if flags.version != DEFAULT_VERSION:
        notes.append(f"rules of SGLang {DEFAULT_VERSION}; {flags.version} may differ")
    ranks = [_terms(model, draft, flags, stage, free, fraction) for stage in range(flags.pp)]
    pools = []
    for rank, stage in zip(ranks, pipeline_stages(len(model.layers), flags.pp), strict=True):
        layers = tuple(model.layers[i] for i in stage)
        packed = card.memory_facts.packed_sparse_latents
        budgets = (rank.available.low, rank.available.best, rank.available.high)
        pools.append([_pool(model, layers, draft, flags, speculation, a, packed=packed) for a in budgets])
    decisive = min(range(flags.pp), key=lambda i: pools[i][1].tokens)
    low, best, high = (min(p[j].tokens for p in pools) for j in range(3))
    # Whole slots of recurrent states are taken first, so a little more memory can leave a little less for tokens.
    low, high = min(low, best), max(high, best)
    pool = pools[decisive][1]
    refusal = None
    if best <= 0:
        refusal = (
            "Loaded weights leave no GPU memory for the KV cache: "
            f"{ranks[decisive].available.best / GIB:.2f} GiB at mem_fraction_static={fraction:g} (draft weights count)"
        )
    page = flags.page_size
    return PoolPrediction(
        engine="sglang",
        version=flags.version,
        settings=MappingProxyType(
            {key: v for key, v in asdict(flags).items() if v is not None}
            | {"mem_fraction_static": fraction, "context_length": length}
        ),
        total=Estimate.of(_device_memory(card) or 0.0, _memory_source(card)),
        requested=Estimate(
            low=free.low * fraction, best=free.best * fraction, high=free.high * fraction,
            source=f"derived: free before loading x {fraction:g}",
        ),
        ranks=tuple(ranks),
        decisive=decisive,
        blocks=None if refusal else Span(low=low // page, best=best // page, high=high // page),
        tokens=None if refusal else Span(low=low, best=best, high=high),
        concurrency=None if refusal else Span(low=low / length, best=best / length, high=high / length),
        log_lines=() if refusal else _words(model, card, flags, speculation, pool, length, best),
        refusal=refusal,
        max_model_len=length,
        longest=min(best, model.max_position or best),
        bytes_per_token=pool.per_token,
        extra=MappingProxyType(
            {
                "state_bytes": pool.state_bytes,
                "state_slots": float(pool.slots),
                "draft_reserve_per_token_bytes": pool.reserve,
            }
            | ({"state_requests": float(_by_states(flags, pool.slots))} if pool.slots else {})
        ),
        printed=MappingProxyType(_printed(pool, flags)),
        assumptions=tuple(notes),
        not_modeled=("graphs and activations: they live outside the static fraction", "allocator fragmentation"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    tokens: int
    per_token: float
    reserve: float
    state_bytes: float
    slots: int
    window_tokens: int
    target: Cells
    draft: Cells | None


def _check_version(version: str) -> None:
    if not re.match(r"v?0\.[45](\.\d+)?", version):
        raise UnsupportedError(f"SGLang {version} is not known; 0.5.23 is (--engine-version)")


def _draft(model: Model, speculation: SglangSpeculation | None, draft: Model | None) -> Model | None:
    if speculation is None or speculation.algorithm == "NGRAM":
        return None
    if draft is not None:
        check_pair(draft, model)
        if speculation.algorithm == "STANDALONE" and draft.vocab_size != model.vocab_size:
            raise InputError(
                f"the draft's vocabulary has {draft.vocab_size} entries, the target's {model.vocab_size}; SGLang's "
                "STANDALONE needs equal ones"
            )
        draft = replace(draft, weight_format=model.weight_format)
        if speculation.algorithm not in ("EAGLE", "EAGLE3"):
            return draft
        # As below: what a head's checkpoint leaves out is allocated before the pool is sized.
        own = any(is_output_head(weight) for weight in outer_weights(draft))
        return replace(draft, embedding=True, head=draft.head or not own)
    if not model.mtp_layers:
        raise InputError(f"{model.name} carries no prediction layers; {speculation.algorithm} needs a draft model")
    # The head is loaded with its own embedding and output matrices; sharing them comes after the pool is sized.
    return replace(model, layers=model.mtp_layers, mtp_layers=(), extra=())


def _free_before(card: Accelerator, flags: SglangFlags) -> Estimate:
    if flags.free_before_load is not None:
        return Estimate.of(flags.free_before_load, "given")
    memory = _device_memory(card)
    if memory is None:
        raise InputError(f"{card.name} states no memory size; give --free-before-load")
    low, best, high = CONTEXT["one" if flags.tp * flags.pp == 1 else "several"]
    return Estimate(
        low=memory - high * GIB, best=memory - best * GIB, high=memory - low * GIB,
        source="modelled: driver's total less the CUDA context and communication (three logs)",
    )  # fmt: skip


def _terms(model: Model, draft: Model | None, f: SglangFlags, stage: int, free: Estimate, fraction: float) -> RankTerms:
    held = WeightSettings(tp=f.tp, pp=f.pp, expert_parallel=f.expert_parallel)
    target = rank_weight_bytes(model, held, stage)
    own = rank_weight_bytes(draft, replace(held, pp=1)) if draft is not None and stage == f.pp - 1 else {}
    weights = Estimate.of(sum(target.values()) + sum(own.values()), "derived from shapes")
    if f.weights is not None:
        weights = Estimate.of(f.weights, "given")
    low, best, high = (x * GIB for x in (LOADING_EXTRA if f.weights is None else (0.0, 0.0, 0.0)))
    extra = Estimate(low=low, best=best, high=high, source="modelled: allocator and workspaces while loading")
    reserve = MULTIMODAL_RESERVE if f.multimodal else 0.0
    return RankTerms(
        stage=stage,
        weights=weights,
        target_weights=MappingProxyType(target),
        draft_weights=MappingProxyType(own),
        activation_peak=Estimate.of(0.0, "outside the static fraction"),
        non_torch=extra,
        cuda_graph=Estimate.of(0.0, "outside the static fraction"),
        buffers=MappingProxyType({}),
        available=Estimate(
            low=free.low * fraction - weights.best - extra.high - reserve,
            best=free.best * fraction - weights.best - extra.best - reserve,
            high=free.high * fraction - weights.best - extra.low - reserve,
            source="derived: free before loading x fraction - weights",
        ),
    )


def _pool(
    model: Model,
    layers: tuple[Layer, ...],
    draft: Model | None,
    f: SglangFlags,
    spec: SglangSpeculation | None,
    budget: float,
    *,
    packed: bool = True,
) -> _Pool:
    dtype = "fp8" if f.kv_cache_dtype.startswith("fp8") else f.kv_cache_dtype
    target = cells(model, layers, dtype, f.tp, packed=packed)
    own = None
    reserve = 0.0
    if draft is not None and spec is not None:
        own = cells(draft, draft.layers, dtype, f.tp, packed=packed)
        if spec.algorithm in ("DFLASH", "DSPARK"):
            chosen = spec.draft_kv_cache_dtype or dtype
            own = cells(draft, draft.layers, chosen, f.tp, packed=packed)
            reserve = own.full + own.windowed
        else:
            # The reserve takes the draft's layers for layers of the target.
            whole = cells(model, model.layers, dtype, f.tp, packed=packed)
            count = whole.full_layers + whole.window_layers
            reserve = float(int((whole.full + whole.windowed) * len(draft.layers) / max(count, 1)))
    slots, state = _state_slots(target, f, spec, budget)
    left = budget - state
    ratio = f.swa_full_tokens_ratio
    per_token = target.full + (ratio if target.full_layers else 1.0) * target.windowed + reserve
    if per_token == 0:
        raise UnsupportedError("a model without any attention layer caches no tokens; SGLang reports none for it")
    tokens = max(0, int(left // per_token)) // f.page_size * f.page_size
    if f.max_total_tokens is not None:
        tokens = min(tokens, f.max_total_tokens // f.page_size * f.page_size)
    window_tokens = (
        int(tokens * ratio) // f.page_size * f.page_size if target.window_layers and target.full_layers else 0
    )
    if window_tokens and window_tokens <= target.window + f.page_size:
        tokens = 0
    return _Pool(
        tokens=tokens, per_token=per_token, reserve=reserve, state_bytes=state, slots=slots,
        window_tokens=window_tokens, target=target, draft=own,
    )  # fmt: skip


def _state_slots(target: Cells, f: SglangFlags, spec: SglangSpeculation | None, budget: float) -> tuple[int, float]:
    """Slots of recurrent states and the bytes that they and a speculation's intermediate states take."""
    if not target.state or budget <= 0:
        return 0, 0.0
    each, ratio = target.state, f.mamba_full_memory_ratio
    share = budget * ratio / (1 + ratio)
    per_request = 1 if f.disable_radix_cache else STATE_SLOTS
    n = spec.num_draft_tokens if spec is not None else 0
    # Without speculation n is 0, and this is one state per slot and one to spare.
    slots = max(0, int((share - each * (1 + n)) // (each * (1 + n / per_request))))
    asked = _asked_running(f, spec)
    running = slots // per_request if asked is None else min(slots // per_request, asked)
    return slots, (slots + 1) * each + (each * (running + 1) * n if n else 0.0)


def _asked_running(f: SglangFlags, spec: SglangSpeculation | None) -> int | None:
    """``--max-running-requests``, or what speculation sets it to where it is not given."""
    if f.max_running_requests is None and spec is not None and spec.algorithm != "STANDALONE":
        return SPECULATIVE_RUNNING
    return f.max_running_requests


def running_requests(
    f: SglangFlags, speculation: SglangSpeculation | None, tokens: int, length: int, state_slots: int = 0
) -> int:
    r"""Requests that SGLang runs at once, as its start-up line states them.

    .. math:: \min\big(\mathrm{clamp}(512\, n/L, 2048, 4096),\ n/2\big)

    without a flag; with one, or with a speculation's default of 48, that number and n/2 at most; never more than the
    recurrent states serve.

    >>> running_requests(SglangFlags(), None, 470000, 8192)
    4096
    >>> running_requests(SglangFlags(), SglangSpeculation(algorithm="NGRAM", draft_model=None, num_draft_tokens=12),
    ...                  470000, 8192)
    48
    """
    asked = _asked_running(f, speculation)
    running = min(max(int(tokens / length * 512), 2048), 4096) if asked is None else asked
    running = min(running, tokens // 2)
    return min(running, _by_states(f, state_slots)) if state_slots else running


def _by_states(f: SglangFlags, state_slots: int) -> int:
    """Requests that the slots of recurrent states serve."""
    return state_slots // (1 if f.disable_radix_cache else STATE_SLOTS)


def _printed(pool: _Pool, f: SglangFlags) -> dict[str, float]:
    """Pools as the start-up log prints them: rows, bytes, bytes of a row (each pool holds a page beyond its rows)."""
    target, out = pool.target, {"page": float(f.page_size)}

    def rows(prefix: str, held: int, k: float, v: float, *, latent: bool) -> None:
        parts = {"pool_bytes": k + v} if latent else {"pool_key_bytes": k, "pool_value_bytes": v}
        for name, size in parts.items():
            out[f"{prefix}{name}"] = (held + f.page_size) * size
            out[f"{prefix}{name}_per_row"] = size

    if pool.window_tokens:
        rows("", pool.tokens, target.full_k, target.full_v, latent=target.latent)
        rows("swa_", pool.window_tokens, target.window_k, target.window_v, latent=False)
        out |= {
            "full_pool_tokens": float(pool.tokens),
            "swa_pool_tokens": float(pool.window_tokens),
            "full_row_bytes": target.full,
            "swa_row_bytes": target.windowed,
            "whole_pool_bytes": pool.tokens * target.full + pool.window_tokens * target.windowed,
        }
    else:
        k, v = target.full_k + target.window_k, target.full_v + target.window_v
        rows("", pool.tokens, k, v, latent=target.latent)
    if pool.draft is not None:
        own = pool.draft
        rows("draft_", pool.tokens, own.full_k + own.window_k, own.full_v + own.window_v, latent=own.latent)
    if pool.slots:
        out |= {"state_slots": float(pool.slots), "state_bytes": (pool.slots + 1) * target.state}
    return out


def _words(
    model: Model,
    card: Accelerator,
    f: SglangFlags,
    speculation: SglangSpeculation | None,
    pool: _Pool,
    length: int,
    tokens: int,
) -> tuple[str, ...]:
    name = model.weight_format.name if f.kv_cache_dtype == "auto" else f.kv_cache_dtype

    def line(k: float, v: float, latent: bool, prefix: str = "", held: int = tokens) -> str:
        k, v = ((held + f.page_size) * x / GIB for x in (k, v))
        sizes = f"KV size: {k:.2f} GB" if latent else f"K size: {k:.2f} GB, V size: {v:.2f} GB"
        return f"{prefix}KV Cache is allocated. dtype: torch.{name}, #tokens: {held}, {sizes}"

    lines = []
    target, window_tokens = pool.target, pool.window_tokens
    if window_tokens:
        lines.append(f"Use sliding window memory pool. full_layer_tokens={tokens}, swa_layer_tokens={window_tokens}")
        lines.append(line(target.full_k, target.full_v, target.latent, "Full "))
        lines.append(line(target.window_k, target.window_v, latent=False, prefix="SWA ", held=window_tokens))
    else:
        k, v = target.full_k + target.window_k, target.full_v + target.window_v
        lines.append(line(k, v, target.latent))
    if pool.draft is not None:
        own = pool.draft
        lines.append(line(own.full_k + own.window_k, own.full_v + own.window_v, own.latent))
    running = running_requests(f, speculation, tokens, length, pool.slots)
    chunk = f.chunked_prefill_size or chunk_size(card, f.tp)
    lines.append(
        f"max_total_num_tokens={tokens}, chunked_prefill_size={chunk}, max_prefill_tokens={MAX_PREFILL_TOKENS}, "
        f"max_running_requests={running}, context_len={length}"
    )
    return tuple(lines)
