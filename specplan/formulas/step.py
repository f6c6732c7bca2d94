r"""Time of one pass: what it moves and computes on each rank, and the roofline and additive laws over that load.

A pass gives `width` positions to each of `batch` requests that have `context_len` cached tokens. `pass_shape` counts,
once per model and tensor-parallel degree, what does not depend on them; `pass_load` turns shape and pass into bytes,
FLOP, messages and layers; `bound_s` and `pass_terms` turn the load into seconds:

- lower bound: the slowest of memory, arithmetic and links at their peaks, all overlapped (roofline);
- upper bound of a perfect machine: their sum, nothing overlapped;
- additive law: each term at the rate that was measured, plus what no byte explains (launches, latencies, host).

.. math:: t = t_{fixed} + t_{token} B w + t_{cached} B T + t_{request} B + t_{host}

Source: additive form and its constants on an H100 from arXiv 2601.11580; depth and collectives as the reason why small
drafts cost more than their bytes from arXiv 2302.01318 and arXiv 2408.11049.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.formulas.kv_cache import kv_bytes_read
from specplan.formulas.parameters import (
    _rank_fraction,
    borrowed_head,
    experts_touched,
    format_of,
    is_output_head,
    weights,
)
from specplan.formulas.pass_kernels import LOGIT_BYTES, Kernel, compact, kernels_of
from specplan.values.formats import NumberFormat
from specplan.values.model import Access, Attention, DenseMLP, Experts, LatentAttention, Layer, Mixer, Model

FloatArray = npt.NDArray[np.float64]

ACTIVATION_BYTES: Final = 2.0
"""Hidden states travel in 16 bits, whatever the weights' format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroup:
    """Routed experts of equal layers: bytes of all of them on one rank, their number, and those that a token uses."""

    payload_bits: float
    bytes_per_rank: float
    count: int
    per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpan:
    """Equal attention layers of one rank: FLOP per (query, key) pair over all of them, and how far back they look."""

    flops_per_pair: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShape:
    """What a pass of `model` costs on one of `tp` ranks, as coefficients.

    Attributes
    ----------
    model, tp, kv_format
        What was counted; the pass reads the cache in `kv_format`.
    layers : int
        Decoder layers: each launches its kernels and, above one rank, reduces its halves.
    dense_bytes : tuple of (float, float)
        (payload bits, bytes) of the weights that every pass reads, head aside, by storage width.
    experts : tuple of ExpertGroup
        Routed experts, read as far as the tokens of the pass touch them.
    head_bits, head_bytes, head_params : float
        The output head.
    token_params : float
        Matmul parameters that one token meets, head aside.
    attention : tuple of AttentionSpan
        Arithmetic of attention.
    state_bytes : float
        Recurrent state of one request.
    activation_bytes : float
        Hidden-state traffic of one token through all layers.
    all_reduces : int
        Reductions over the ranks in one pass (0 on one rank).
    message_bytes : float
        Bytes that one token adds to each of them.
    logits : int
        Rows of the head over all ranks.
    kernels : tuple of Kernel
        The kernels that do all this (`specplan.formulas.pass_kernels`).
    """

    model: Model
    tp: int
    kv_format: NumberFormat
    layers: int
    dense_bytes: tuple[tuple[float, float], ...]
    experts: tuple[ExpertGroup, ...]
    head_bits: float
    head_bytes: float
    head_params: float
    token_params: float
    attention: tuple[AttentionSpan, ...]
    state_bytes: float
    activation_bytes: float
    all_reduces: int
    message_bytes: float
    logits: int
    kernels: tuple[Kernel, ...] = ()


def pass_shape(
    model: Model, tp: int = 1, kv_format: NumberFormat | None = None, head_of: Model | None = None
) -> PassShape:
    """Count what a pass of `model` moves and computes on one of `tp` ranks.

    Parameters
    ----------
    model : Model
    tp : int
        Tensor-parallel ranks, at least 1.
    kv_format : NumberFormat, optional
        Format of cached numbers; the model's own if None.
    head_of : Model, optional
        The target, for a draft head without an output head of its own: its head is read in every draft pass.

    Notes
    -----
    Counts each weight where `specplan.formulas.parameters` places it. Not counted: padding of the vocabulary, norms.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import DenseMLP, Layer, Model
    >>> block = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    >>> model = Model(name="8b", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False,
    ...               layers=(block,) * 32, weight_format=lookup("bf16"))
    >>> shape = pass_shape(model, tp=4)
    >>> shape.all_reduces, shape.message_bytes, shape.head_params
    (64, 8192.0, 131334144.0)
    """
    return _shape(model, tp, kv_format, head_of)


@lru_cache(maxsize=64)
def _shape(model: Model, tp: int, kv_format: NumberFormat | None, head_of: Model | None) -> PassShape:
    kv = kv_format or model.weight_format
    dense: dict[float, float] = {}
    experts: list[ExpertGroup] = []
    token_params = 0.0
    head_bits, head_bytes, head_params = model.weight_format.payload_bits, 0.0, 0.0
    for w, times in weights(model):
        if w.access is not Access.MATMUL:
            continue
        stored = format_of(w, model)
        on_rank = w.size * w.copies * times * _rank_fraction(w, tp)
        if is_output_head(w):
            head_bits = stored.payload_bits
            head_bytes, head_params = head_bytes + on_rank * stored.bytes, head_params + on_rank
        elif w.routed is not None:
            count, per_token = w.routed
            token_params += on_rank * per_token / count
            experts.append(
                ExpertGroup(
                    payload_bits=stored.payload_bits,
                    bytes_per_rank=on_rank * stored.bytes,
                    count=count,
                    per_token=per_token,
                )
            )
        else:
            token_params += on_rank
            dense[stored.payload_bits] = dense.get(stored.payload_bits, 0.0) + on_rank * stored.bytes
    logits = model.head_vocab_size or model.vocab_size
    lent = None if head_of is None else borrowed_head(model, head_of)
    if lent is not None and head_of is not None:
        stored = format_of(lent, head_of)
        logits = head_of.head_vocab_size or head_of.vocab_size
        head_params = lent.size * _rank_fraction(lent, tp)
        head_bits, head_bytes = stored.payload_bits, head_params * stored.bytes
    return PassShape(
        model=model,
        tp=tp,
        kv_format=kv,
        layers=len(model.layers),
        dense_bytes=tuple(sorted(dense.items())),
        experts=tuple(experts),
        head_bits=head_bits,
        head_bytes=head_bytes,
        head_params=head_params,
        token_params=token_params,
        attention=_attention_spans(model, tp),
        state_bytes=float(kv_bytes_read(model, 0, kv, tp)),
        activation_bytes=sum(n * _layer_activation_bytes(la, model, tp) for la, n in Counter(model.layers).items()),
        all_reduces=0
        if tp == 1
        else sum((la.mixer is not None) + (la.feed_forward is not None) for la in model.layers),
        message_bytes=ACTIVATION_BYTES * model.hidden_size,
        logits=logits,
        kernels=kernels_of(model, tp, kv, head_of),
    )


def without(shape: PassShape, name: str) -> PassShape:
    """`shape` less the multiplications by the weights called `name`, for passes that leave them out.

    >>> from specplan.specs.catalog import load_model
    >>> shape = pass_shape(load_model("llama3.2-1b"))
    >>> without(shape, "fc") == shape
    True
    """
    return _without(shape, name)


@lru_cache(maxsize=64)
def _without(shape: PassShape, name: str) -> PassShape:
    model = replace(shape.model, extra=tuple(w for w in shape.model.extra if w.name != name))
    if model == shape.model:
        return shape
    left = pass_shape(model, shape.tp, shape.kv_format)
    # A head that the target lends stays as it was counted.
    return replace(
        left,
        kernels=tuple(k for k in shape.kernels if getattr(k, "name", "") != name),
        logits=shape.logits,
        head_bits=shape.head_bits,
        head_bytes=shape.head_bytes,
        head_params=shape.head_params,
    )


def _attention_spans(model: Model, tp: int) -> tuple[AttentionSpan, ...]:
    found: dict[float, float] = {}
    for mixer, n in Counter(layer.mixer for layer in model.layers).items():
        for flops, limit in _pair_flops(mixer, tp):
            found[limit] = found.get(limit, 0.0) + n * flops
    return tuple(AttentionSpan(flops_per_pair=flops, limit=limit) for limit, flops in found.items())


def _pair_flops(mixer: Mixer | None, tp: int) -> Iterator[tuple[float, float]]:
    """FLOP per (query, key) pair of one layer on one rank, with the span over which pairs are formed."""
    match mixer:
        case Attention():
            limit = min(mixer.window or np.inf, mixer.chunk or np.inf)
            yield 2.0 * mixer.heads / tp * (mixer.head_dim + mixer.value_dim), limit
        case LatentAttention():
            # Absorbed form: queries meet the latent itself, and the output is a mixture of latents.
            limit = float(mixer.index_topk) if mixer.index_heads else np.inf
            yield 2.0 * mixer.heads / tp * (2 * mixer.kv_rank + mixer.rope_dim), limit
            if mixer.index_heads:  # every rank scores the whole context to choose from it
                yield 2.0 * mixer.index_heads * mixer.index_dim, np.inf
        case _:
            return


def _layer_activation_bytes(layer: Layer, model: Model, tp: int) -> float:
    """Hidden-state traffic of one token through one layer on one rank: each kernel reads and writes its operands."""
    h = model.hidden_size
    inner = 0.0
    match layer.mixer:
        case Attention() as a:
            inner += 3 * (a.heads * a.head_dim + a.kv_heads * (a.head_dim + a.value_dim)) / tp
        case LatentAttention() as a:
            inner += 3 * a.heads * (a.nope_dim + a.rope_dim + a.v_head_dim) / tp
        case _:
            pass
    match layer.feed_forward:
        case DenseMLP() as f:
            inner += 5 * f.width / tp
        case Experts() as f:
            inner += 5 * (f.per_token * f.width + f.shared_width) / tp
        case _:
            pass
    return ACTIVATION_BYTES * (8 * h + inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLoad:
    """What one pass moves and computes on one rank; every array broadcasts over the passes.

    ``dense`` and ``expert_bytes`` pair payload bits with bytes, since formats reach different shares of the bandwidth.
    """

    dense: tuple[tuple[float, FloatArray], ...]
    expert_bytes: tuple[tuple[float, FloatArray], ...]
    kv_bytes: FloatArray
    activation_bytes: FloatArray
    logit_bytes: FloatArray
    matmul_flops: FloatArray
    attention_flops: FloatArray
    all_reduces: int
    message_bytes: FloatArray
    gather_bytes: FloatArray
    ranks: int
    layers: int
    batch: FloatArray

    @property
    def weight_bytes(self) -> FloatArray:
        """Bytes of weights that the pass reads."""
        return np.asarray(sum((b for _, b in (*self.dense, *self.expert_bytes)), np.float64(0.0)))

    @property
    def memory_bytes(self) -> FloatArray:
        """All bytes that the pass moves through the rank's memory."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes + self.logit_bytes

    @property
    def flops(self) -> FloatArray:
        """All arithmetic of the pass."""
        return self.matmul_flops + self.attention_flops

    @property
    def link_bytes(self) -> FloatArray:
        """Bytes that the rank sends over its links: each reduction moves 2(n-1)/n of its message."""
        share = (self.ranks - 1) / self.ranks
        return share * (2 * self.all_reduces * self.message_bytes + self.gather_bytes)


def pass_load(
    shape: PassShape,
    batch: npt.ArrayLike,
    width: npt.ArrayLike = 1,
    context_len: npt.ArrayLike = 0,
    scored: npt.ArrayLike | None = None,
) -> PassLoad:
    """Load of a pass of `width` positions for each of `batch` requests with `context_len` cached tokens.

    Parameters
    ----------
    shape : PassShape
    batch, width, context_len : array_like
        Requests; positions per request (fractions are means over requests); cached tokens per request. They broadcast.
    scored : array_like, optional
        Positions per request that go through the output head; all of them if None.

    Notes
    -----
    The cache of a request is read once for all of its positions. A recurrent state is read once and written once per
    position, since engines keep a state per drafted token to roll back to.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import DenseMLP, Layer, Model
    >>> block = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    >>> model = Model(name="8b", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False,
    ...               layers=(block,) * 32, weight_format=lookup("bf16"))
    >>> load = pass_load(pass_shape(model), batch=1, context_len=1000)
    >>> float(load.weight_bytes), float(load.kv_bytes)
    (15009316864.0, 131072000.0)
    """
    b, w, t = compact(batch), compact(width), compact(context_len)
    rows = b * (w if scored is None else np.minimum(np.asarray(scored, dtype=np.float64), w))
    tokens = b * w
    head = ((shape.head_bits, np.where(rows > 0, shape.head_bytes, 0.0)),) if shape.head_bytes else ()
    pairs = sum((s.flops_per_pair * np.minimum(t, s.limit) for s in shape.attention), np.float64(0.0))
    return PassLoad(
        dense=(*((bits, np.asarray(n)) for bits, n in shape.dense_bytes), *head),
        expert_bytes=tuple(
            (g.payload_bits, g.bytes_per_rank * experts_touched(g.count, g.per_token, tokens) / g.count)
            for g in shape.experts
        ),
        kv_bytes=b * (kv_bytes_read(shape.model, t, shape.kv_format, shape.tp) + w * shape.state_bytes),
        activation_bytes=tokens * shape.activation_bytes,
        logit_bytes=rows * shape.logits * LOGIT_BYTES,
        matmul_flops=2 * (tokens * shape.token_params + rows * shape.head_params),
        attention_flops=np.asarray(tokens * pairs),
        all_reduces=shape.all_reduces,
        message_bytes=tokens * shape.message_bytes,
        gather_bytes=rows * shape.logits * ACTIVATION_BYTES,
        ranks=shape.tp,
        layers=shape.layers,
        batch=b,
    )


def bound_s(
    load: PassLoad, bandwidth: npt.ArrayLike, flops: npt.ArrayLike, link_bandwidth: npt.ArrayLike | None = None
) -> tuple[FloatArray, FloatArray]:
    r"""Roofline bounds of a pass on a perfect machine, seconds: everything overlapped, and nothing overlapped.

    .. math:: \max(M/W, F/P, C/L) \le t \le M/W + F/P + C/L

    Parameters
    ----------
    load : PassLoad
    bandwidth, flops : array_like
        Peak memory bandwidth, bytes/s; peak arithmetic, FLOP/s.
    link_bandwidth : array_like, optional
        Bytes/s between ranks in one direction; needed above one rank, else messages count as free.

    Notes
    -----
    The upper bound bounds a machine that reaches its peaks; real ones add launches and latencies and exceed it.
    Source: roofline; lower bound by the maximum and upper bound by the sum as in "How to Scale Your Model" (2025).

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import DenseMLP, Layer, Model
    >>> block = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    >>> model = Model(name="8b", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False,
    ...               layers=(block,) * 32, weight_format=lookup("bf16"))
    >>> lower, upper = bound_s(pass_load(pass_shape(model), 1), 3350e9, 989e12)
    >>> round(float(lower) * 1e3, 3), round(float(upper) * 1e3, 3)
    (4.483, 4.498)
    """
    parts = [load.memory_bytes / np.asarray(bandwidth, np.float64), load.flops / np.asarray(flops, np.float64)]
    if link_bandwidth is not None and load.ranks > 1:
        parts.append(load.link_bytes / np.asarray(link_bandwidth, np.float64))
    stacked = np.stack(np.broadcast_arrays(*parts))
    return np.asarray(stacked.max(axis=0)), np.asarray(stacked.sum(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRates:
    """Measured (or assumed) rates that the additive law divides by, and times that no byte or FLOP explains.

    Attributes
    ----------
    bandwidth, flops : float
        Peaks: bytes/s and FLOP/s.
    link_bandwidth : float or None
        Peak between ranks in one direction, bytes/s; None: one rank only.
    weight_fraction, kv_fraction, matmul_fraction, link_fraction : float
        Achieved over peak, in (0, 1].
    width_fraction : mapping-like tuple of (float, float)
        (payload bits up to, factor): how much of `weight_fraction` a weight-only format of so few bits reaches.
    layer_s : float
        Launches and gaps per layer.
    layer_request_s : float
        What each request adds to a layer beyond its bytes.
    reduce_latency_s : float
        Fixed time of one reduction over all ranks.
    overlap : bool
        Whether kernels read ahead while they multiply (accelerators), or the same cores do both in turn (CPUs).
    """

    bandwidth: float
    flops: float
    link_bandwidth: float | None
    weight_fraction: float
    kv_fraction: float
    matmul_fraction: float
    link_fraction: float
    width_fraction: tuple[tuple[float, float], ...] = ()
    layer_s: float = 0.0
    layer_request_s: float = 0.0
    reduce_latency_s: float = 0.0
    overlap: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTerms:
    """Parts of a pass's time, seconds; they add up to `total_s`.

    ``matmul_s`` and ``attention_s`` are what arithmetic adds beyond reading the weights and the cache.
    """

    weights_s: FloatArray
    kv_s: FloatArray
    matmul_s: FloatArray
    attention_s: FloatArray
    activations_s: FloatArray
    logits_s: FloatArray
    collectives_s: FloatArray
    launches_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Time of the pass."""
        return np.asarray(sum((getattr(self, f.name) for f in fields(self)), np.float64(0.0)))


def _width_factor(bits: float, rates: PassRates) -> float:
    return next((factor for most, factor in rates.width_fraction if bits <= most), 1.0)


def all_reduce_s(message_bytes: npt.ArrayLike, ranks: int, link_bytes_per_s: float, latency_s: float) -> FloatArray:
    r"""Time of one sum over `ranks` devices, seconds; 0 for a single one.

    .. math:: \lambda + 2\tfrac{n-1}{n} \cdot \frac{m}{L}

    Parameters
    ----------
    message_bytes : array_like
        m: bytes that each rank contributes.
    ranks : int
        n.
    link_bytes_per_s : float
        L: achieved rate of one rank's links in one direction.
    latency_s : float
        Fixed time, which includes the launch and the waiting for the slowest rank.

    Examples
    --------
    >>> float(all_reduce_s(1e6, 1, 450e9, 5e-6)), round(float(all_reduce_s(1e6, 8, 450e9, 5e-6)) * 1e6, 2)
    (0.0, 8.89)
    """
    m = np.asarray(message_bytes, np.float64)
    if ranks == 1:
        return np.zeros_like(m)
    return latency_s + 2 * (ranks - 1) / ranks * m / link_bytes_per_s


def _beyond(reading: FloatArray, multiplying: FloatArray, overlap: bool) -> FloatArray:
    """What multiplying adds to reading within kernels that overlap the two: sqrt(r^2 + m^2) - r, without cancellation.

    The root of squares passes smoothly from the slower of the two alone to sqrt(2) of it where they are equal.
    """
    if not overlap:
        return multiplying
    both = np.hypot(reading, multiplying) + reading
    return np.divide(multiplying**2, both, out=np.zeros_like(both), where=both > 0)


def pass_terms(load: PassLoad, rates: PassRates) -> PassTerms:
    r"""Additive law: a pass is one long chain of kernels, each at its own rate, one after the other.

    .. math:: t = \sqrt{t_W^2 + t_F^2} + \sqrt{t_K^2 + t_A^2} + t_{act} + t_{logits} + R\,t_{reduce} + L\,t_{launch}

    Within a matmul (weights W, arithmetic F) and within attention (cache K, arithmetic A) reading and multiplying
    overlap, which the root of squares describes: arithmetic is hidden while positions are few and shows past the ridge.
    Everything else adds up. The time rises with every input and never lies below the roofline. Not counted: host time
    between passes.

    Source: additive form from arXiv 2601.11580 (regression on vLLM's steps); overlap within matmuls from vLLM's example
    table of step times by batch and draft length.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import DenseMLP, Layer, Model
    >>> block = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    >>> model = Model(name="8b", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False,
    ...               layers=(block,) * 32, weight_format=lookup("bf16"))
    >>> rates = PassRates(bandwidth=3350e9, flops=989e12, link_bandwidth=None, weight_fraction=0.88, kv_fraction=0.97,
    ...                   matmul_fraction=0.65, link_fraction=0.5, layer_s=28e-6)
    >>> round(float(pass_terms(pass_load(pass_shape(model), 1), rates).total_s) * 1e3, 3)
    5.991
    """
    bandwidth = rates.bandwidth * rates.weight_fraction
    weights_s = sum(
        (n / (bandwidth * _width_factor(bits, rates)) for bits, n in (*load.dense, *load.expert_bytes)),
        np.float64(0.0),
    )
    collectives = np.zeros_like(load.batch)
    if load.ranks > 1 and rates.link_bandwidth is not None:
        link = rates.link_bandwidth * rates.link_fraction
        one = all_reduce_s(load.message_bytes, load.ranks, link, rates.reduce_latency_s)
        gather = rates.reduce_latency_s + (load.ranks - 1) / load.ranks * load.gather_bytes / link
        collectives = load.all_reduces * one + np.where(load.gather_bytes > 0, gather, 0.0)
    arithmetic = rates.flops * rates.matmul_fraction
    reading = np.asarray(weights_s + np.zeros_like(load.batch))
    cache = load.kv_bytes / (rates.bandwidth * rates.kv_fraction)
    return PassTerms(
        weights_s=reading,
        kv_s=cache,
        matmul_s=_beyond(reading, load.matmul_flops / arithmetic, rates.overlap),
        attention_s=_beyond(cache, load.attention_flops / arithmetic, rates.overlap),
        activations_s=load.activation_bytes / bandwidth,
        logits_s=load.logit_bytes / bandwidth,
        collectives_s=collectives,
        launches_s=load.layers * (rates.layer_s + rates.layer_request_s * load.batch),
    )
