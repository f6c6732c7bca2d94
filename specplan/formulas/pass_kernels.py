"""A pass as the sum of its kernels: which a model's pass launches on one rank, and how long they take by their laws.

QKV, output, gate-up, down and head multiplications, attention over the cache, latent attention with its projections,
routed experts, recurrent mixers, norms and activations, reductions over ranks. `kernels_of` counts them once per model
and number of ranks; `kernel_times` prices them with the laws of a card.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from specplan.formulas.kernels import (
    ACTIVATION_BYTES,
    EXPERT_TILE,
    attention_s,
    experts_s,
    gemm_s,
    latent_s,
    recurrent_s,
    reduce_s,
)
from specplan.formulas.kv_cache import kv_bytes_read
from specplan.formulas.parameters import (
    _rank_fraction,
    borrowed_head,
    experts_touched,
    format_of,
    is_output_head,
    layer_weights,
    outer_weights,
)
from specplan.values.formats import NumberFormat
from specplan.values.kernels import GemmLaw, KernelLaws, LatentLaw, RecurrentLaw
from specplan.values.model import (
    Access,
    Attention,
    DenseMLP,
    Experts,
    LatentAttention,
    Layer,
    Model,
    Recurrent,
    Weight,
)

FloatArray = npt.NDArray[np.float64]

LOGIT_BYTES: Final = 10.0
"""Traffic per logit: written in 16 bits, read, written and read in 32 bits by the sampler."""

GLUE_PER_LAYER: Final = 3
"""Kernels of a layer that neither multiply nor read the cache: two norms and an activation."""

LATENT_GLUE: Final = 4
"""Kernels of a latent block beside its multiplications and its attention: two norms, a rotation, a write to the cache;
where whole blocks were measured, they are inside."""

GLUE_SHARE: Final = 0.8
"""Share of the bandwidth that elementwise kernels reach, as AISimulate assumes for all cards."""

WIDTH_FRACTION: Final = ((5.0, 0.74), (8.0, 0.87))
"""Share of the 16-bit bandwidth that weight-only kernels reach, by payload bits: unpacking costs time.

Fitted on gpt-fast, Llama-2-7B int8 and int4 on an A100; stands in where a format has no measured law."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """`count` equal multiplications by a weight of (`outer`, `inner`) on this rank."""

    name: str
    count: float
    outer: float
    inner: float
    format: NumberFormat
    scored: bool = False
    hidden_behind: bool = False

    @property
    def weight_bytes(self) -> float:
        """Bytes of one weight."""
        return self.outer * self.inner * self.format.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """Attention of `count` equal layers on this rank; ``limit`` is how far back they look."""

    count: int
    heads: float
    kv_heads: float
    head_dims: float
    limit: float
    row_bytes: float
    normed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentKernel:
    """`count` equal latent-attention blocks with their projections (the same weights stand in `gemms`)."""

    count: int
    gemms: tuple[Gemm, ...]
    format: NumberFormat
    row_numbers: float
    row_bytes: float
    pair_flops: float
    limit: float
    index_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsKernel:
    """Routed experts of `count` equal layers: numbers of one expert on this rank."""

    count: int
    experts: int
    per_token: int
    expert_params: float
    format: NumberFormat
    gated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentKernel:
    """`count` equal recurrent mixers; bytes of one request's state in one of them on this rank."""

    count: int
    kind: str
    state_bytes: float


Kernel = Gemm | AttentionKernel | LatentKernel | ExpertsKernel | RecurrentKernel

_FUSED: Final = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv"}
_INWARD: Final = frozenset({"o_proj", "out_proj", "down_proj", "proj_out"})
"""Weights whose inner dimension is divided among the ranks."""


def kernels_of(
    model: Model, tp: int = 1, kv_format: NumberFormat | None = None, head_of: Model | None = None
) -> tuple[Kernel, ...]:
    """Kernels of a pass of `model` on one of `tp` ranks; equal ones are counted.

    Parameters
    ----------
    model, tp, kv_format, head_of
        As in `specplan.formulas.step.pass_shape`.

    Notes
    -----
    Source: which multiplications engines fuse: vLLM 0.32 and SGLang 0.5 (QKV, gate and up, latent projections).

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> block = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    >>> model = Model(name="8b", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False,
    ...               layers=(block,) * 32, weight_format=lookup("bf16"))
    >>> [(k.name, k.count, k.outer, k.inner) for k in kernels_of(model, tp=2) if isinstance(k, Gemm)][:3]
    [('o_proj', 32, 4096.0, 2048.0), ('gate-up', 32, 14336.0, 4096.0), ('down', 32, 4096.0, 7168.0)]
    """
    kv = kv_format or model.weight_format
    found: Counter[Kernel] = Counter()
    for layer, times in Counter(model.layers).items():
        for kernel in _layer_kernels(layer, model, tp, kv):
            found[replace(kernel, count=0)] += int(kernel.count) * times
    for weight in outer_weights(model):
        if weight.access is Access.MATMUL:
            for gemm in _gemms((weight,), model, tp, scored=is_output_head(weight)):
                found[replace(gemm, count=0)] += int(gemm.count)
    lent = None if head_of is None else borrowed_head(model, head_of)
    if lent is not None and head_of is not None:
        for gemm in _gemms((lent,), head_of, tp, scored=True):
            found[replace(gemm, count=0)] += int(gemm.count)
    return tuple(replace(kernel, count=n) for kernel, n in found.items())


def _layer_kernels(layer: Layer, model: Model, tp: int, kv: NumberFormat) -> Iterator[Kernel]:
    all_weights = [w for w in layer_weights(layer, model.hidden_size) if w.access is Access.MATMUL]
    routed = [w for w in all_weights if w.routed is not None]
    dense = [w for w in all_weights if w.routed is None]
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention) and not layer.only_extra:
        own = [w for w in dense if w.component == "attention" and w.name in _LATENT]
        dense = [w for w in dense if w not in own]
        limit = float(mixer.index_topk) if mixer.index_heads else (mixer.window or np.inf)
        whole = kv_bytes_read(replace(model, layers=(layer,)), 1e9, kv, tp) / 1e9
        row = mixer.kv_rank + mixer.rope_dim
        yield LatentKernel(
            count=1,
            # Engines absorb the up-projection of the latent into queries and outputs, in 16 bits.
            gemms=tuple(
                replace(g, format=model.weight_format) if g.name == "kv_b_proj" else g for g in _gemms(own, model, tp)
            ),
            format=format_of(next(w for w in own if w.name == "o_proj"), model),
            row_numbers=row,
            row_bytes=row * kv.bytes,
            pair_flops=2.0 * mixer.heads / tp * (2 * mixer.kv_rank + mixer.rope_dim),
            limit=limit,
            index_bytes=float(whole) if mixer.index_heads else 0.0,
        )
    hidden_behind = isinstance(layer.feed_forward, Experts)
    for gemm in _gemms(dense, model, tp):
        yield replace(gemm, hidden_behind=hidden_behind and gemm.hidden_behind)
    if isinstance(mixer, Attention):
        yield AttentionKernel(
            count=1,
            heads=mixer.heads / tp,
            kv_heads=mixer.kv_heads / min(tp, mixer.kv_heads),
            head_dims=mixer.head_dim + mixer.value_dim,
            limit=float(min(mixer.window or np.inf, mixer.chunk or np.inf)),
            row_bytes=mixer.kv_heads / min(tp, mixer.kv_heads) * (mixer.head_dim + mixer.value_dim) * kv.bytes,
            normed=mixer.qk_norm != "none",
        )
    elif isinstance(mixer, Recurrent):
        state = float(kv_bytes_read(replace(model, layers=(layer,)), 0, kv, tp))
        yield RecurrentKernel(count=1, kind=mixer.kind, state_bytes=state)
    for w in routed:
        experts, per_token = w.routed or (1, 1)
        yield ExpertsKernel(
            count=1,
            experts=experts,
            per_token=per_token,
            expert_params=w.size * _rank_fraction(w, tp) * _padding(layer.feed_forward, format_of(w, model), tp),
            format=format_of(w, model),
            gated=not isinstance(layer.feed_forward, Experts) or layer.feed_forward.gated,
        )


def _padding(feed_forward: object, stored: NumberFormat, tp: int) -> float:
    """How much wider kernels of 4-bit experts lay out an expert on a rank than it is."""
    if not isinstance(feed_forward, Experts) or stored.payload_bits > 5:
        return 1.0
    width = feed_forward.width / tp
    return float(np.ceil(width / EXPERT_TILE) * EXPERT_TILE / width)


_LATENT: Final = frozenset({"q_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "o_proj"})


def _gemms(
    weights: "tuple[Weight, ...] | list[Weight]", model: Model, tp: int, *, scored: bool = False
) -> Iterator[Gemm]:
    """Multiplications by `weights`: those that engines fuse are one, an MLP is two, all others one each."""
    hidden = float(model.hidden_size)
    fused: dict[tuple[str, NumberFormat], list[float]] = {}
    for w in weights:
        stored, fraction = format_of(w, model), _rank_fraction(w, tp)
        if w.name == "mlp":
            matrices = 3 if w.size % 3 == 0 and _is_gated(w, model) else 2
            width = w.size / matrices / hidden * fraction
            behind = w.component == "shared_experts"
            name = "gate-up" if matrices == 3 else "up"
            shape: dict[str, Any] = {"count": w.copies, "format": stored, "hidden_behind": behind}
            yield Gemm(name=name, outer=(matrices - 1) * width, inner=hidden, **shape)
            yield Gemm(name="down", outer=hidden, inner=width, **shape)
        elif w.name in _FUSED and w.component == "attention":
            fused.setdefault((_FUSED[w.name], stored), []).append(w.size * w.copies * fraction)
        elif w.name in _INWARD:
            yield Gemm(name=w.name, count=w.copies, outer=hidden, inner=w.size / hidden * fraction, format=stored)
        else:
            yield Gemm(
                name=w.name,
                count=w.copies,
                outer=w.size / hidden * fraction,
                inner=hidden,
                format=stored,
                scored=scored,
            )
    for (name, stored), sizes in fused.items():
        yield Gemm(name=name, count=1, outer=sum(sizes) / hidden, inner=hidden, format=stored)


def _is_gated(weight: Weight, model: Model) -> bool:
    """Whether the MLP that a weight stands for has a gate: what the layers of its component say."""
    shared = weight.component == "shared_experts"
    for layer in model.layers:
        match layer.feed_forward:
            case Experts() as f if shared and f.shared_width and weight.size % f.shared_width == 0:
                return f.gated
            case DenseMLP() as f if not shared and weight.size % f.width == 0:
                return f.gated
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """All kernels of one name in a pass: how many, their time and the roofline of it, seconds over the passes."""

    name: str
    count: float
    seconds: FloatArray
    floor_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of a card: bytes/s, FLOP/s by format key, and bytes/s of one rank's links in one direction."""

    bandwidth: float
    flops: Callable[[str], float]
    link_bandwidth: float | None


_GEMM_KEYS: Final = (
    ("bfloat16", "bfloat16"),
    ("float16", "bfloat16"),
    ("float32", "bfloat16"),
    ("fp8-block", "fp8-block"),
    ("fp8", "fp8"),
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("mxfp8", "fp8-block"),
    ("int4", "int4"),
)


def law_key(stored: NumberFormat) -> str:
    """Key of the laws under which a stored format is measured; ``weight-only`` where none is.

    >>> from specplan.values.formats import lookup
    >>> [law_key(lookup(f)) for f in ("bf16", "fp8-block", "awq", "q4_k")]
    ['bfloat16', 'fp8-block', 'int4', 'weight-only']
    """
    return next((key for name, key in _GEMM_KEYS if stored.name.startswith(name)), "weight-only")


def gemm_law(laws: KernelLaws, stored: NumberFormat) -> tuple[GemmLaw, str]:
    """Law of multiplying by weights of a stored format, and the format in which the card multiplies.

    A format without a law of its own is unpacked to 16 bits at the share of the bandwidth that its width reaches.
    """
    key = law_key(stored)
    if key in laws.gemm:
        return laws.gemm[key], "bfloat16" if key == "int4" else key
    share = next((factor for most, factor in WIDTH_FRACTION if stored.payload_bits <= most), 1.0)
    plain = laws.gemm["bfloat16"]
    return replace(plain, bandwidth_share=plain.bandwidth_share * share, fit=None), "bfloat16"


def compact(x: npt.ArrayLike) -> FloatArray:
    """`x` with one entry along each axis along which it does not vary, so that a sweep computes it once.

    >>> compact(np.broadcast_to([1.0, 2.0], (1000, 2))).shape
    (1, 2)
    """
    a = np.asarray(x, np.float64)
    for axis, length in enumerate(a.shape):
        if length > 1:
            first = a[(slice(None),) * axis + (slice(0, 1),)]
            if a.strides[axis] == 0 or np.array_equal(a, np.broadcast_to(first, a.shape)):
                a = first
    return a


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPoint:
    """Passes to price: requests, queries per request, cached tokens; rows multiplied, and those through the head."""

    batch: FloatArray
    width: FloatArray
    context_len: FloatArray
    rows: FloatArray
    head_rows: FloatArray

    @property
    def tokens(self) -> FloatArray:
        """Positions of the pass, without padding."""
        return self.batch * self.width


def pass_point(
    batch: npt.ArrayLike,
    width: npt.ArrayLike,
    context_len: npt.ArrayLike,
    scored: npt.ArrayLike | None,
    padded: Callable[[FloatArray], FloatArray],
) -> PassPoint:
    """Passes of `width` positions for each of `batch` requests, of which `scored` go through the head (all if None).

    `padded` gives the rows that the engine multiplies for some tokens (captured graph sizes).
    """
    b, w = compact(batch), compact(width)
    rows = padded(b * w)
    head_rows = rows if scored is None else np.minimum(b * np.minimum(compact(scored), w), rows)
    return PassPoint(batch=b, width=w, context_len=compact(context_len), rows=rows, head_rows=head_rows)


def kernel_times(
    kernels: tuple[Kernel, ...], laws: KernelLaws, peaks: Peaks, at: PassPoint, hidden: int
) -> tuple[KernelTime, ...]:
    """Times of the kernels of passes.

    Parameters
    ----------
    kernels : tuple
        From `kernels_of`.
    laws, peaks : KernelLaws, Peaks
        Of the card.
    at : PassPoint
    hidden : int
        Width of the hidden state.

    Notes
    -----
    Shared experts run beside the routed ones on a stream of their own and cost only what exceeds them.
    """
    out: list[KernelTime] = []
    behind: list[KernelTime] = []
    for kernel in kernels:
        for time in _times(kernel, laws, peaks, at, hidden):
            (behind if isinstance(kernel, Gemm) and kernel.hidden_behind else out).append(time)
    if behind:
        routed = sum((k.seconds for k in out if k.name == "experts"), np.float64(0.0))
        whole = sum((k.seconds for k in behind), np.float64(0.0))
        floor = sum((k.floor_s for k in behind), np.float64(0.0))
        left = np.maximum(whole - routed, 0.0)
        out.append(KernelTime(name="shared experts", count=len(behind), seconds=left, floor_s=np.asarray(floor)))
    return tuple(out)


def glue_times(
    laws: KernelLaws, peaks: Peaks, at: PassPoint, *, layers: int, activation_bytes: float, logits: float
) -> tuple[KernelTime, KernelTime]:
    """Times of norms and activations of `layers`, and of `logits` per row as the sampler reads them."""
    moved = at.tokens * activation_bytes / peaks.bandwidth
    sampled = at.head_rows * logits * LOGIT_BYTES / peaks.bandwidth
    count = GLUE_PER_LAYER * layers
    return (
        KernelTime(
            name="norms and activations",
            count=count,
            seconds=count * laws.glue_s + moved / GLUE_SHARE,
            floor_s=moved,
        ),
        KernelTime(name="logits", count=1, seconds=sampled / GLUE_SHARE, floor_s=sampled),
    )


def reduction_times(
    laws: KernelLaws, peaks: Peaks, at: PassPoint, *, hidden: int, ranks: int, count: int, logits: float
) -> KernelTime | None:
    """Time of `count` sums of the hidden states over `ranks` and of gathering `logits` per row; None on one rank."""
    if ranks == 1 or laws.reduce is None:
        return None
    message, gathered = at.rows * hidden * ACTIVATION_BYTES, at.head_rows * logits * ACTIVATION_BYTES
    share = (ranks - 1) / ranks
    # Each rank sends its share of the logits: half of what a sum of them would move.
    gather = np.where(gathered > 0, reduce_s(laws.reduce, np.maximum(gathered / 2, 1.0), ranks), 0.0)
    link = peaks.link_bandwidth
    floor = share * (2 * count * message + gathered) / link if link else np.zeros_like(message)
    seconds = count * reduce_s(laws.reduce, message, ranks) + gather
    return KernelTime(name="reductions", count=count + 1, seconds=seconds, floor_s=floor)


def _time(name: str, count: float, seconds: FloatArray, floor_s: npt.ArrayLike) -> KernelTime:
    return KernelTime(name=name, count=count, seconds=count * seconds, floor_s=np.asarray(count * np.asarray(floor_s)))


def _times(kernel: Kernel, laws: KernelLaws, peaks: Peaks, at: PassPoint, hidden: int) -> Iterator[KernelTime]:
    match kernel:
        case Gemm():
            yield _gemm_time(kernel, laws, peaks, at)
        case AttentionKernel():
            yield from _attention_times(kernel, laws, peaks, at)
        case LatentKernel():
            yield from _latent_times(kernel, laws, peaks, at)
        case ExpertsKernel():
            yield _experts_time(kernel, laws, peaks, at, hidden)
        case RecurrentKernel():
            law = laws.recurrent.get(kernel.kind) or laws.recurrent.get("gated_delta_net")
            # Where no mixer was measured on a card, an elementwise kernel stands in.
            law = law or RecurrentLaw(fixed_s=laws.glue_s, bandwidth_share=GLUE_SHARE)
            # A state is read once and written once per position, to roll back to.
            moved = at.batch * (1 + at.width) * kernel.state_bytes
            yield _time(kernel.kind, kernel.count, recurrent_s(law, moved, peaks.bandwidth), moved / peaks.bandwidth)


def _gemm_time(g: Gemm, laws: KernelLaws, peaks: Peaks, at: PassPoint) -> KernelTime:
    law, rate = gemm_law(laws, g.format)
    m, flops = (at.head_rows if g.scored else at.rows), peaks.flops(rate)
    floor = np.maximum(g.weight_bytes / peaks.bandwidth, 2 * m * g.outer * g.inner / flops) * (m > 0)
    seconds = gemm_s(law, m, g.outer, g.inner, g.weight_bytes, peaks.bandwidth, flops)
    return _time(g.name, g.count, seconds, floor)


def _attention_times(a: AttentionKernel, laws: KernelLaws, peaks: Peaks, at: PassPoint) -> Iterator[KernelTime]:
    halved = a.row_bytes < 1.5 * a.kv_heads * a.head_dims
    names = [
        f"{kv}{'-window' * w}"
        for w in ((1, 0) if a.limit < np.inf else (0,))
        for kv in ("fp8", "bfloat16")[1 - halved :]
    ]
    law = next(laws.attention[name] for name in names if name in laws.attention)
    length, flops = np.minimum(at.context_len, a.limit), peaks.flops("bfloat16")
    shape = (a.heads, a.kv_heads, a.row_bytes, a.head_dims)
    seconds = attention_s(law, at.batch, length, at.width, *shape, peaks.bandwidth, flops)
    pairs = 2 * at.tokens * length * a.heads * a.head_dims
    yield _time(
        "attention", a.count, seconds, np.maximum(at.batch * length * a.row_bytes / peaks.bandwidth, pairs / flops)
    )
    if a.normed:
        yield _time("norms of queries and keys", a.count, np.asarray(laws.qk_norm_s), 0.0)


def _latent_law(laws: KernelLaws, key: str, halved: bool) -> tuple[LatentLaw | None, bool]:
    """Law of latent attention, of a cache in 8 bits where one was measured, and whether it holds the projections."""
    for name, whole in ((key, True), ("bfloat16", True), ("core", False)):
        law = (laws.latent.get(f"{name}-kv8") if halved else None) or laws.latent.get(name)
        if law is not None:
            return law, whole
    return None, False


def _latent_times(k: LatentKernel, laws: KernelLaws, peaks: Peaks, at: PassPoint) -> Iterator[KernelTime]:
    """A latent block by its own law where one was measured; else its projections one by one and its core or a cache."""
    bandwidth, flops = peaks.bandwidth, peaks.flops("bfloat16")
    length = np.minimum(at.context_len, k.limit)
    read = at.batch * length * k.row_bytes / bandwidth
    index = at.batch * at.context_len * k.index_bytes / bandwidth
    cache = np.maximum(read, at.tokens * length * k.pair_flops / flops) + index
    halved = k.row_bytes < 1.5 * k.row_numbers
    law, whole = _latent_law(laws, law_key(k.format), halved)
    if law is not None:
        size = sum(g.weight_bytes * g.count for g in k.gemms) if whole else 0.0
        params = sum(g.outer * g.inner * g.count for g in k.gemms) if whole else 0.0
        shape = (size, params, k.row_bytes, k.pair_flops)
        seconds = latent_s(law, at.batch, length, at.width, *shape, bandwidth, flops)
        yield _time("latent attention", k.count, seconds + index / GLUE_SHARE, size / bandwidth + cache)
    if whole:
        return
    for g in k.gemms:
        yield _gemm_time(replace(g, count=k.count * g.count), laws, peaks, at)
    yield _time("norms and rotation of latents", k.count, np.asarray(LATENT_GLUE * laws.glue_s), 0.0)
    if law is not None:
        return
    heads = k.pair_flops / (2 * k.row_bytes)
    shape = (heads, 1.0, k.row_bytes, k.row_bytes)
    seconds = attention_s(laws.attention["bfloat16"], at.batch, length, at.width, *shape, bandwidth, flops)
    yield _time("latent attention", k.count, seconds + index / GLUE_SHARE, cache)


def _experts_time(e: ExpertsKernel, laws: KernelLaws, peaks: Peaks, at: PassPoint, hidden: int) -> KernelTime:
    key = law_key(e.format)
    own = laws.experts.get(f"{key}-tuned" if e.gated else f"{key}-ungated")
    if own is not None and e.gated and (e.experts, e.expert_params / (3 * hidden)) not in own.shapes:
        own = None
    law = own or laws.experts.get(key) or laws.experts["bfloat16"]
    flops = peaks.flops(key if key in laws.experts and key not in ("int4", "mxfp4") else "bfloat16")
    size = e.expert_params * e.format.bytes
    shape = (e.experts, e.per_token, size, e.expert_params, hidden)
    read = experts_touched(e.experts, e.per_token, at.tokens) * size / peaks.bandwidth
    floor = np.maximum(read, 2 * at.tokens * e.per_token * e.expert_params / flops)
    return _time("experts", e.count, experts_s(law, at.tokens, *shape, peaks.bandwidth, flops), floor)


def floors(times: tuple[KernelTime, ...]) -> Mapping[str, tuple[float, FloatArray, FloatArray]]:
    """Kernels by name: how many, seconds, share of the time that the roofline explains."""
    found: dict[str, tuple[float, FloatArray, FloatArray]] = {}
    for k in times:
        count, seconds, floor = found.get(k.name, (0.0, np.float64(0.0), np.float64(0.0)))
        found[k.name] = count + k.count, np.asarray(seconds + k.seconds), np.asarray(floor + k.floor_s)
    return found
