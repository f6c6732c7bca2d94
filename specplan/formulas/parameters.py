"""N_stream and N_resident: the weights of a model, counted by how a decode step touches them.

Stored is not read is not streamed is not resident. `weights` expands a model into counted weights; the other functions
add them up: `resident_params`, `streamed_params` (matmul weights that a pass of some tokens reads), `gathered_params`
(lookup tables that are not also streamed), `elementwise_params` (norms and biases), and their bytes per rank.

Source: chapter, "Draft sources", the paragraph on N_stream; sharding rules from the vLLM 0.32 fact sheet, section 8.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.values.formats import NumberFormat
from specplan.values.model import (
    Access,
    Attention,
    CompressedAttention,
    DenseMLP,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    Model,
    Recurrent,
    Shard,
    Weight,
)

FloatArray = npt.NDArray[np.float64]

VOCAB_PADDING: Final = 64
"""vLLM pads embedding and head rows to a multiple of this before it divides them among ranks."""


def _vector(component: str, name: str, size: int, shard: Shard = Shard.REPLICATE, **more: Any) -> Weight:
    return Weight(
        component=component,
        name=name,
        size=size,
        access=Access.ELEMENTWISE,
        shard=shard,
        quantizable=False,
        **more,
    )


def _attention_weights(a: Attention, hidden: int) -> Iterator[Weight]:
    q_out = a.heads * a.head_dim
    k_out, v_out = a.kv_heads * a.head_dim, a.kv_heads * a.value_dim
    o_in = a.heads * a.value_dim
    has_v = not a.key_is_value
    read = a.input_size or hidden
    yield Weight(component="attention", name="q_proj", size=q_out * (2 if a.output_gate else 1) * read)
    if not a.shares_kv:
        yield Weight(component="attention", name="k_proj", size=k_out * read, shard=Shard.KV_HEADS, kv_heads=a.kv_heads)
        if has_v:
            yield Weight(
                component="attention", name="v_proj", size=v_out * read, shard=Shard.KV_HEADS, kv_heads=a.kv_heads
            )
    yield Weight(component="attention", name="o_proj", size=o_in * hidden)
    if a.qkv_bias:
        yield _vector("attention", "q_bias", q_out * (2 if a.output_gate else 1), Shard.SPLIT)
        if not a.shares_kv:
            size = k_out + (v_out if has_v else 0)
            yield _vector("attention", "kv_bias", size, Shard.KV_HEADS, kv_heads=a.kv_heads)
    if a.output_bias:
        yield _vector("attention", "o_bias", hidden)
    if a.qk_norm == "head":
        yield _vector("norms", "qk_norm", a.head_dim * (1 if a.shares_kv else 2))
    elif a.qk_norm == "all":
        yield _vector("norms", "qk_norm", q_out + (0 if a.shares_kv else k_out))
    if a.sinks:
        yield _vector("attention", "sinks", a.heads, Shard.SPLIT)


def _latent_weights(a: LatentAttention, hidden: int) -> Iterator[Weight]:
    q_out = a.heads * (a.nope_dim + a.rope_dim)
    read = a.input_size or hidden
    if a.q_rank is None:
        yield Weight(component="attention", name="q_proj", size=q_out * read)
    else:
        yield Weight(component="attention", name="q_a_proj", size=a.q_rank * read, shard=Shard.REPLICATE)
        yield _vector("norms", "q_a_norm", a.q_rank)
        yield Weight(component="attention", name="q_b_proj", size=q_out * a.q_rank)
    kv_down = a.kv_rank + a.rope_dim
    yield Weight(component="attention", name="kv_a_proj", size=kv_down * read, shard=Shard.REPLICATE)
    yield _vector("norms", "kv_a_norm", a.kv_rank)
    yield Weight(component="attention", name="kv_b_proj", size=a.heads * (a.nope_dim + a.v_head_dim) * a.kv_rank)
    yield Weight(component="attention", name="o_proj", size=a.heads * a.v_head_dim * hidden)
    if a.bias:
        yield _vector("attention", "down_bias", kv_down + (a.q_rank or 0))
    if a.output_bias:
        yield _vector("attention", "o_bias", hidden)
    if a.index_heads and not a.index_shared:
        q_in = hidden if a.q_rank is None else a.q_rank
        size = a.index_heads * a.index_dim * q_in + a.index_dim * hidden + a.index_heads * hidden
        yield Weight(component="attention", name="indexer", size=size, shard=Shard.REPLICATE)
        yield _vector("norms", "indexer_norm", 2 * a.index_dim)


def _mixer_weights(mixer: Mixer | None, hidden: int) -> Iterator[Weight]:
    match mixer:
        case Attention():
            yield from _attention_weights(mixer, hidden)
        case LatentAttention():
            yield from _latent_weights(mixer, hidden)
        case Recurrent() | CompressedAttention():
            yield from mixer.weights
        case None:
            return


MLP_PARTS: Final = ("gate_proj", "up_proj", "down_proj")
"""Matrices of a gated feed-forward, of one size each; a plain one has no gate."""


def _mlp(component: str, width: int, gated: bool, hidden: int, **more: Any) -> Weight:
    return Weight(component=component, name="mlp", size=(3 if gated else 2) * width * hidden, **more)


def _feed_forward_weights(ff: FeedForward | None, hidden: int) -> Iterator[Weight]:
    match ff:
        case DenseMLP():
            yield _mlp("mlp", ff.width, ff.gated, hidden)
            if ff.bias:
                yield _vector("mlp", "up_bias", ff.width * (2 if ff.gated else 1), Shard.SPLIT)
                yield _vector("mlp", "down_bias", hidden)
        case Experts():
            yield Weight(
                component="router", name="router", size=ff.count * hidden, shard=Shard.REPLICATE, quantizable=False
            )
            if ff.router_bias:
                yield _vector("router", "router_bias", ff.count)
            routed = (ff.count, ff.per_token)
            yield _mlp("experts", ff.width, ff.gated, hidden, routed=routed, copies=ff.count)
            if ff.bias:
                yield _vector("experts", "up_bias", ff.count * ff.width * (2 if ff.gated else 1), Shard.SPLIT)
                yield _vector("experts", "down_bias", ff.count * hidden)
            if ff.shared_width:
                yield _mlp("shared_experts", ff.shared_width, ff.gated, hidden)
            if ff.shared_bias:
                yield _vector("shared_experts", "up_bias", ff.shared_width * (2 if ff.gated else 1), Shard.SPLIT)
                yield _vector("shared_experts", "down_bias", hidden)
            if ff.shared_gate:
                yield Weight(
                    component="shared_experts",
                    name="shared_gate",
                    size=hidden,
                    shard=Shard.REPLICATE,
                    quantizable=False,
                )
        case None:
            return


def layer_weights(layer: Layer, hidden: int) -> tuple[Weight, ...]:
    """Weights of one layer in a residual stream of width `hidden`."""
    if layer.only_extra:
        return layer.extra
    norms = (_vector("norms", "norms", layer.norm_vectors * hidden),) if layer.norm_vectors else ()
    found = (
        *_mixer_weights(layer.mixer, hidden),
        *_feed_forward_weights(layer.feed_forward, hidden),
        *norms,
        *layer.extra,
    )
    if not layer.formats:
        return found
    named = dict(layer.formats)
    parts = tuple(part for w in found for part in _parts_named(w, named, layer))
    return tuple(replace(w, format=_named_format(w, named) or w.format) for w in parts)


def _parts_named(weight: Weight, named: Mapping[str, NumberFormat], layer: Layer) -> tuple[Weight, ...]:
    """A feed-forward's matrices one by one where formats are given to single ones (``mlp.down_proj``)."""
    if weight.name != "mlp" or not any(f"{weight.component}.{part}" in named for part in MLP_PARTS):
        return (weight,)
    gated = layer.feed_forward is None or layer.feed_forward.gated
    parts = MLP_PARTS if gated else MLP_PARTS[1:]
    return tuple(replace(weight, name=part, size=weight.size // len(parts)) for part in parts)


def _named_format(weight: Weight, named: Mapping[str, NumberFormat]) -> NumberFormat | None:
    """Format given to a single weight (``attention.q_proj``), else to its component (``attention``).

    A component's packed format (with scales) is that of its matrices: biases among them stay plain.
    """
    own = named.get(f"{weight.component}.{weight.name}")
    if own is not None:
        return own
    shared = named.get(weight.component)
    if shared is not None and weight.access is Access.ELEMENTWISE and shared.payload_bits < 16:
        return None
    return shared


def outer_weights(model: Model) -> tuple[Weight, ...]:
    """Weights outside the layers: embedding, head, final norm, and the model's own extras."""
    out: list[Weight] = []
    width = model.embedding_size or model.hidden_size
    table = model.vocab_size * width
    head = (model.head_vocab_size or model.vocab_size) * width
    if model.embedding and not (model.tied_embeddings and model.head):
        out.append(Weight(component="embedding", name="embed", size=table, access=Access.LOOKUP, quantizable=False))
    if model.head:
        out.append(Weight(component="head", name="lm_head", size=head, quantizable=False))
    if model.final_norm_vectors:
        out.append(_vector("norms", "final_norm", model.final_norm_vectors * model.hidden_size))
    return (*out, *model.extra)


OUTPUT_HEADS: Final = frozenset({"lm_head", "heads"})
"""Names of matrices that turn hidden states into logits; ``heads`` are those of Medusa and MLP speculators."""


def is_output_head(weight: Weight) -> bool:
    """Whether a weight turns hidden states into logits (a draft head's other matrices stand in the same component)."""
    return weight.component == "head" and weight.name in OUTPUT_HEADS


def borrowed_head(draft: Model, target: Model) -> Weight | None:
    """The target's output head, where `draft` has none of its own and so reads the target's in every pass.

    >>> borrowed_head(llama32_1b, llama3_70b) is None
    True
    >>> borrowed_head(replace(llama32_1b, head=False), llama3_70b).size
    1050673152
    """
    if any(is_output_head(weight) for weight in outer_weights(draft)):
        return None
    return next((weight for weight in outer_weights(target) if is_output_head(weight)), None)


def weights(model: Model) -> tuple[tuple[Weight, int], ...]:
    """Every weight of `model` with its number of occurrences; equal layers are counted once and multiplied.

    A tied table appears once, as the head that streams it.
    """
    found: Counter[Weight] = Counter(outer_weights(model))
    for layer, times in Counter(model.layers).items():
        for weight in layer_weights(layer, model.hidden_size):
            found[weight] += times
    return tuple(found.items())


def resident_params(model: Model) -> int:
    """N_resident: every stored parameter, a tied table once.

    Source: chapter, "70.55 B-parameter checkpoint" for Llama-3-70B (with its norms 70,553,706,496).

    Examples
    --------
    >>> resident_params(llama3_70b), resident_params(llama32_1b)
    (70553706496, 1235814400)
    """
    return sum(w.size * w.copies * times for w, times in weights(model))


def params_by_component(model: Model) -> dict[str, int]:
    """Resident parameters of each component, in the order in which components first appear."""
    out: dict[str, int] = {}
    for w, times in weights(model):
        out[w.component] = out.get(w.component, 0) + w.size * w.copies * times
    return out


def _params_with(model: Model, access: Access) -> int:
    return sum(w.size * w.copies * times for w, times in weights(model) if w.access is access)


def gathered_params(model: Model) -> int:
    """Parameters of tables from which a pass only looks up rows: resident, never streamed.

    A tied embedding is streamed by the head and not counted here; streamed at full routing + gathered + elementwise +
    unused = resident.

    Source: chapter, "the 1.05 B input embedding table that is resident but gathered rather than streamed".

    Examples
    --------
    >>> gathered_params(llama3_70b), gathered_params(llama32_1b)
    (1050673152, 0)
    """
    return _params_with(model, Access.LOOKUP)


def is_routed(model: Model) -> bool:
    """Whether a token reads only some of the weights: a mixture of experts.

    Examples
    --------
    >>> is_routed(llama3_70b), is_routed(mixtral)
    (False, True)
    """
    return any(w.routed is not None for w, _ in weights(model))


def elementwise_params(model: Model) -> int:
    """Norms, biases and other vectors: resident; the chapter does not count them as streamed.

    Examples
    --------
    >>> elementwise_params(llama3_70b)
    1318912
    """
    return _params_with(model, Access.ELEMENTWISE)


def expert_shares(n_experts: int, per_token: int, skew: float = 0.0) -> FloatArray:
    r"""Probability :math:`\pi_i` that a token uses expert i, when expert i is as popular as :math:`i^{-s}`.

    .. math:: \pi_i = \min(1, c\, i^{-s}), \qquad \sum_i \pi_i = K

    Parameters
    ----------
    n_experts, per_token : int
        E experts, K of them per token.
    skew : float
        s >= 0; 0 is uniform routing (every share K/E).

    Returns
    -------
    ndarray
        E shares, descending, that add up to K.

    Raises
    ------
    InputError
        For a skew that is negative or not finite, or K outside 1 to E.

    Notes
    -----
    Assumes that a token's experts are as good as independent; popularities by rank follow a power law, as traces of
    routed models roughly do.

    Examples
    --------
    >>> expert_shares(4, 2, 1.0).round(4).tolist()
    [0.96, 0.48, 0.32, 0.24]
    """
    if not (math.isfinite(skew) and skew >= 0):
        raise InputError(f"skew must be a number of at least 0, got {skew}")
    if not 1 <= per_token <= n_experts:
        raise InputError(f"experts per token must be from 1 to {n_experts}, got {per_token}")
    popularity = np.arange(1, n_experts + 1, dtype=np.float64) ** -skew
    # Raise the most popular to 1 until no other share exceeds it: shares are those of a capped power law.
    for full in range(per_token + 1):
        rest = popularity[full:]
        if full == per_token or (per_token - full) * rest[0] <= rest.sum():
            break
    shares = np.ones(n_experts)
    shares[full:] = (per_token - full) * rest / rest.sum() if full < n_experts else rest
    return shares


def experts_touched(
    n_experts: npt.ArrayLike, per_token: npt.ArrayLike, tokens: npt.ArrayLike, skew: float = 0.0
) -> FloatArray:
    r"""Distinct experts N(t) that a pass of `t` tokens is expected to read.

    .. math:: N(t) = E \left(1 - (1 - K/E)^t\right), \qquad N_s(t) = \sum_i \left(1 - (1 - \pi_i)^t\right)

    Parameters
    ----------
    n_experts, per_token, tokens : array_like
        E experts, K of them per token, t tokens in the pass; broadcast together. With a `skew`, E and K are scalars.
    skew : float
        Exponent of the experts' popularity (`expert_shares`); 0 is uniform routing.

    Returns
    -------
    ndarray
        Between K (one token) and E.

    Raises
    ------
    InputError
        For a skew that is negative or not finite.

    Notes
    -----
    Source: MoESD (arXiv 2505.19645) for uniform routing. Real routers are skewed and touch fewer.

    Examples
    --------
    >>> float(experts_touched(8, 2, 1)), round(float(experts_touched(8, 2, 4)), 4)
    (2.0, 5.4688)
    >>> round(float(experts_touched(8, 2, 4, skew=1.0)), 4)
    4.6251
    """
    if skew:
        shares = expert_shares(int(np.asarray(n_experts)), int(np.asarray(per_token)), skew)
        t = np.asarray(tokens, dtype=np.float64)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            touched = -np.expm1(t * np.log1p(-shares))
        return np.where(t[..., 0] == 0, 0.0, np.where(t == 0, 0.0, touched).sum(axis=-1))
    e, k, t = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (n_experts, per_token, tokens)))
    # expm1/log1p keep the digits of a small K/E; K = E gives log1p(-1) = -inf, and every expert is read.
    with np.errstate(divide="ignore", invalid="ignore"):
        touched = -e * np.expm1(t * np.log1p(-k / e))
    return np.where(t == 0, 0.0, np.where(t == 1, k, touched))  # one token reads K exactly


def streamed_params(model: Model, tokens: float = 1.0, skew: float = 0.0) -> float:
    """N_stream: matmul parameters that one pass of `tokens` tokens reads, the head included, the embedding not.

    Of routed experts the expected number of distinct ones is counted (`experts_touched`, with its `skew`); at one token
    that is the experts per token. Whole numbers come out exactly.

    Source: chapter, "every matmul weight plus the output head, but not the input embedding table, which is gathered".

    Examples
    --------
    >>> streamed_params(llama3_70b), streamed_params(llama32_1b)
    (69501714432.0, 1235746816.0)
    """
    total = 0.0
    for w, times in weights(model):
        if w.access is Access.MATMUL:
            total += w.size * times * _copies_read(w, tokens, skew)
    return total


def _copies_read(w: Weight, tokens: float, skew: float) -> float:
    if w.routed is None:
        return w.copies
    n_experts, per_token = w.routed
    if tokens == 1:
        return per_token * w.copies / n_experts
    return float(experts_touched(n_experts, per_token, tokens, skew)) * w.copies / n_experts


def format_of(weight: Weight, model: Model) -> NumberFormat:
    """Format in which the checkpoint stores `weight`.

    The first that applies: the weight's own (or its layer's) format; the one that the model names for the weight or its
    component; the quantisation, where the weight is quantizable and its component is not left out; `weight_format`.
    """
    own = weight.format or _named_format(weight, dict(model.formats))
    if own is not None:
        return own
    if model.quantization is not None and weight.quantizable and weight.component not in model.unquantized:
        return model.quantization
    return model.weight_format


def _rank_fraction(weight: Weight, tp: int) -> float:
    match weight.shard:
        case Shard.SPLIT:
            return 1 / tp
        case Shard.KV_HEADS:
            return 1 / min(tp, weight.kv_heads)
        case Shard.REPLICATE:
            return 1.0


def streamed_bytes(model: Model, tokens: float = 1.0, tp: int = 1, skew: float = 0.0) -> float:
    """Bytes that one tensor-parallel rank streams in a pass of `tokens` tokens, experts routed with `skew`.

    Replicated weights (router, latent down-projections, key-value heads beyond their number) count whole on each rank.
    Padding of the vocabulary is not counted.

    Examples
    --------
    >>> streamed_bytes(llama3_70b, tp=4) / 1e9
    34.750857216
    >>> round(streamed_bytes(mixtral, 4) / streamed_bytes(mixtral), 2)  # a wider pass touches more experts
    2.53
    """
    total = 0.0
    for w, times in weights(model):
        if w.access is Access.MATMUL:
            total += w.size * times * _copies_read(w, tokens, skew) * format_of(w, model).bytes * _rank_fraction(w, tp)
    return total


def resident_bytes(model: Model, tp: int = 1) -> float:
    """Bytes of weights that one tensor-parallel rank holds, by the same rules as `streamed_bytes`.

    Examples
    --------
    >>> round(resident_bytes(llama3_70b, tp=4) / 2**30, 2)
    32.86
    """
    return sum(
        w.size * w.copies * times * format_of(w, model).bytes * _rank_fraction(w, tp) for w, times in weights(model)
    )
