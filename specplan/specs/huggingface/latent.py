"""Decoders with latent attention: DeepSeek-V2 and its relatives."""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.mixers import attention, latent, markov_head, matrix, present, vector
from specplan.specs.huggingface.regular import GROUPED, Builder, Flag, Parts, dense_first, experts, on, window_size
from specplan.values.model import (
    CompressedAttention,
    DenseMLP,
    Experts,
    LatentAttention,
    Layer,
    Shard,
    Weight,
)


def _indexer_shared(f: Fields, n: int) -> list[bool]:
    """Which layers use the choice of an earlier layer's indexer (GLM-5.2's ``indexer_types`` and its shorter forms)."""
    types = f.words("indexer_types", n)
    if types is not None:
        return [kind == "shared" for kind in types]
    pattern = f.raw("index_topk_pattern", None)
    if pattern is not None:
        marks = list(pattern)
        return [str(mark).upper().startswith("S") for mark in marks[:n]]
    freq = max(f.count("index_topk_freq", 1, least=0), 1)
    offset = f.count("index_skip_topk_offset", 2, least=0)
    return [max(i - offset + 1, 0) % freq != 0 for i in range(n)]


def _assemble(
    f: Fields,
    mixers: list[LatentAttention],
    sparse: list[bool],
    routed: Experts | None,
    *,
    mlp_bias: bool = False,
    extra: Callable[[bool], tuple[Weight, ...]] | None = None,
) -> tuple[Layer, ...]:
    width = f.count("intermediate_size") if not all(sparse) else 0
    known: dict[tuple[LatentAttention, bool], Layer] = {}
    for mixer, is_sparse in dict.fromkeys(zip(mixers, sparse, strict=True)):
        known[mixer, is_sparse] = Layer(
            mixer=mixer,
            feed_forward=routed if is_sparse else DenseMLP(width=width, bias=mlp_bias),
            extra=extra(is_sparse) if extra is not None else (),
        )
    return tuple(known[pair] for pair in zip(mixers, sparse, strict=True))


def deepseek(
    *,
    indexer: bool = False,
    dense: int | None = None,
    mlp_bias: Flag = False,
    mtp: Callable[[Fields, Layer], tuple[Layer, ...]] | None = None,
) -> Builder:
    """DeepSeek-V2/V3/V3.2 and decoders of the same plan; `dense`: first dense layers if the config does not say."""
    grouped = dataclasses.replace(GROUPED, shared_bias=mlp_bias)

    def build(f: Fields) -> Parts:
        n = f.n_layers
        bias = f.flag("attention_bias")
        mixer = latent(f, bias=bias, output_bias=bias, indexer=indexer)
        shared = _indexer_shared(f, n) if indexer else [False] * n
        mixers = [
            latent(f, bias=bias, output_bias=bias, indexer=indexer, index_shared=s) if s else mixer for s in shared
        ]
        sparse = dense_first(f, n, dense)
        routed = experts(f, grouped) if any(sparse) else None
        layers = _assemble(f, mixers, sparse, routed, mlp_bias=on(f, mlp_bias))
        return Parts(layers=layers, mtp_layers=mtp(f, layers[-1]) if mtp is not None else ())

    return build


def dense(f: Fields) -> Parts:
    """Latent attention with a dense feed-forward (MiniCPM3, Youtu)."""
    bias = f.flag("attention_bias")
    mixer = latent(f, bias=bias, output_bias=bias)
    mlp = DenseMLP(width=f.count("intermediate_size"), bias=f.flag("mlp_bias"))
    return Parts(layers=(Layer(mixer=mixer, feed_forward=mlp),) * f.n_layers)


def deepseek_ocr(f: Fields) -> Parts:
    """DeepSeek-OCR's decoder: DeepSeek-V2's experts; latent attention only where ``use_mla`` says so."""
    n = f.n_layers
    if f.flag("use_mla"):
        return deepseek(mlp_bias="mlp_bias")(f)
    bias = f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, output_bias=bias)
    sparse = dense_first(f, n)
    routed = experts(f, dataclasses.replace(GROUPED, shared_bias="mlp_bias")) if any(sparse) else None
    mlp = DenseMLP(width=f.count("intermediate_size"), bias=f.flag("mlp_bias")) if not all(sparse) else None
    return Parts(layers=tuple(Layer(mixer=mixer, feed_forward=routed if s else mlp) for s in sparse))


def axk1(f: Fields) -> Parts:
    """A.X-K1: DeepSeek-V3 with a norm after each routed feed-forward."""
    n = f.n_layers
    bias = f.flag("attention_bias")
    sparse = dense_first(f, n, 1)
    after = (vector("norms", "post_mlp_norm", f.hidden),)
    mixers = [latent(f, bias=bias, output_bias=bias)] * n
    return Parts(
        layers=_assemble(f, mixers, sparse, experts(f, GROUPED), extra=lambda is_sparse: after if is_sparse else ())
    )


def axk2(f: Fields) -> Parts:
    """A.X-K2: latent attention with an indexer; queries come with a gate; norms are gated through a low rank."""
    n, rank = f.n_layers, f.count("gated_norm_rank")
    bias = f.flag("attention_bias")
    mixer = latent(f, bias=bias, output_bias=bias, indexer=True)
    # Queries and an output gate (one number per value) come from one projection of twice the query rank.
    q_rank = mixer.q_rank or 0
    plain = mixer.heads * (mixer.nope_dim + mixer.rope_dim) * q_rank
    gate_width = mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.v_head_dim)
    gated = matrix("attention", "q_gate_proj", gate_width * 2 * q_rank - plain)
    sparse = dense_first(f, n, 1)
    gate = matrix("norms", "norm_gate", 2 * rank * f.hidden, Shard.REPLICATE, quantizable=False)

    def extra(is_sparse: bool) -> tuple[Weight, ...]:
        return (gated, gate, gate) if is_sparse else (gated, gate)

    return Parts(layers=_assemble(f, [mixer] * n, sparse, experts(f, GROUPED), extra=extra))


def longcat(f: Fields) -> Parts:
    """LongCat-Flash: per layer two attentions, two dense feed-forwards, and experts of which some do nothing."""
    n = f.count("num_layers")
    bias = f.flag("attention_bias")
    mixer = latent(f, bias=bias, output_bias=bias)
    block = Layer(mixer=mixer, feed_forward=DenseMLP(width=f.count("ffn_hidden_size")))
    count, idle = f.count("n_routed_experts"), f.count("zero_expert_num", 0, least=0)
    # The router scores the idle experts too. A token picks moe_topk of all; how many of those do work is not fixed.
    f.assume("each token's chosen experts all do work (zero-compute experts among them would read less)")
    routed = Experts(count=count, per_token=f.count("moe_topk"), width=f.count("expert_ffn_hidden_size"))
    idle_rows = present(matrix("router", "idle_router", idle * f.hidden, Shard.REPLICATE, quantizable=False))
    if f.flag("router_bias"):
        idle_rows += (vector("router", "router_bias", count + idle),)
    shortcut = Layer(mixer=None, feed_forward=routed, norm_vectors=0, extra=idle_rows)
    return Parts(layers=(block, shortcut, block) * n)


def hyper_connections(f: Fields, rows: int, scales: int) -> tuple[Weight, ...]:
    """Manifold hyper-connections around both halves of a layer: `rows` mixtures of `hc_mult` residual streams."""
    streams = f.count("hc_mult")
    return (
        matrix("hyper", "hc_mix", 2 * rows * streams * f.hidden, Shard.REPLICATE, quantizable=False),
        vector("hyper", "hc_base", 2 * (rows + scales)),
    )


def _hyper_head(f: Fields) -> tuple[Weight, ...]:
    streams = f.count("hc_mult")
    return (
        matrix("hyper", "hc_head", streams * streams * f.hidden, Shard.REPLICATE, quantizable=False),
        vector("hyper", "hc_head_base", streams + 1),
    )


def hy_v4(f: Fields) -> Parts:
    """Hunyuan V4: latent attention with sinks, an output gate and a shared indexer; hyper-connections."""
    n, streams = f.n_layers, f.count("hc_mult")
    bias = f.flag("attention_bias")
    types = f.words("indexer_types", n)
    shared = [kind == "shared" for kind in types] if types else [i != 0 and (i - 1) % 4 != 0 for i in range(n)]
    mixers = [latent(f, bias=bias, output_bias=bias, indexer=True, index_shared=s) for s in shared]
    values = f.heads * f.count("v_head_dim")
    more = (
        vector("attention", "sinks", f.heads, Shard.SPLIT),
        matrix("attention", "gate_proj", values * f.hidden),
        *hyper_connections(f, 2 * streams, 2),
    )
    layers = _assemble(f, mixers, dense_first(f, n, 1), experts(f, GROUPED), extra=lambda _s: more)
    return Parts(layers=layers, extra=_hyper_head(f))


def _overridden(f: Fields, i: int) -> dict[str, Any]:
    """What ``per_layer_config`` says of layer `i`."""
    overrides = f.block("per_layer_config") or {}
    for key in (str(i), f"{i:02d}", f"{i:03d}"):
        if isinstance(overrides.get(key), dict):
            return dict(overrides[key])
    return {}


def dots3_note(f: Fields) -> Parts:
    """dots3-note: latent attention, sliding layers with other ranks and heads, indexers on the full ones."""
    n = f.n_layers
    types = f.words("layer_types", n)
    if types is None:
        types = ["indexed_attention" if i < 2 or i % 4 == 1 else "sliding_attention" for i in range(n)]
    per_layer = {
        "num_attention_heads": 64,
        "q_lora_rank": 1024,
        "kv_lora_rank": 1024,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    bias = f.flag("attention_bias")
    layers = []
    sparse = dense_first(f, n, 1)
    routed = Experts(
        count=f.count("n_routed_experts"),
        per_token=f.count("num_experts_per_tok"),
        width=f.count("moe_intermediate_size"),
        shared_width=f.count("n_shared_experts", 1, least=0) * f.count("shared_experts_intermediate_size", 0, least=0),
    )
    width = f.count("intermediate_size")
    for i, (kind, is_sparse) in enumerate(zip(types, sparse, strict=True)):
        if kind == "sliding_attention":
            own = {name: f.count(f"swa_{name}", default) for name, default in per_layer.items()}
            own |= {name: value for name, value in _overridden(f, i).items() if name in own}
            mixer = LatentAttention(
                heads=f.whole(own["num_attention_heads"], "num_attention_heads"),
                q_rank=f.whole(own["q_lora_rank"], "q_lora_rank"),
                kv_rank=f.whole(own["kv_lora_rank"], "kv_lora_rank"),
                nope_dim=f.whole(own["qk_nope_head_dim"], "qk_nope_head_dim"),
                rope_dim=f.whole(own["qk_rope_head_dim"], "qk_rope_head_dim"),
                v_head_dim=f.whole(own["v_head_dim"], "v_head_dim"),
                bias=bias,
                output_bias=bias,
                window=window_size(f),
            )
        else:
            mixer = latent(f, bias=bias, output_bias=bias, indexer=kind == "indexed_attention")
        extra = (
            vector("norms", "k_rope_norm", mixer.rope_dim),
            matrix("attention", "head_gate", mixer.heads * f.hidden),
        )
        layers.append(Layer(mixer=mixer, feed_forward=routed if is_sparse else DenseMLP(width=width), extra=extra))
    return Parts(layers=tuple(layers))


def deepseek_v4(f: Fields) -> Parts:
    """DeepSeek-V4: one key-value vector per token, compressed beyond the window; hyper-connections; all routed."""
    n, streams = f.n_layers, f.count("hc_mult")
    kinds = _compression(f, n)
    known = {kind: _compressed(f, kind) for kind in set(kinds)}
    routed = experts(f, dataclasses.replace(GROUPED, shared_bias="mlp_bias"))
    more = hyper_connections(f, (2 + streams) * streams, 3)
    hash_layers = _hash_layers(f, n)
    # A hash-routed layer looks its experts up by token id: a table beside the router, which its checkpoint keeps.
    layers = tuple(Layer(mixer=known[kind], feed_forward=routed, extra=more) for kind in kinds)
    if hash_layers:
        f.assume(f"the first {hash_layers} layers route by a token-id table, which is not a parameter and not counted")
    mtp = Layer(mixer=_compressed(f, "sliding_attention"), feed_forward=routed, extra=more)
    return Parts(layers=layers, extra=_hyper_head(f), mtp_layers=_v4_drafts(f, mtp))


def _v4_drafts(f: Fields, layer: Layer) -> tuple[Layer, ...]:
    """DeepSeek-V4's own drafter: multi-token prediction layers, or DSpark's three stages behind one projection."""
    if not f.has("dspark_block_size"):
        n: int = f.count("num_nextn_predict_layers", 0, least=0)
        joined = (
            matrix("attention", "eh_proj", 2 * f.hidden * f.hidden, Shard.REPLICATE, quantizable=False),
            vector("norms", "mtp_norms", 3 * f.hidden),
            *_hyper_head(f),
        )
        return (dataclasses.replace(layer, extra=(*layer.extra, *joined)),) * n
    f.count("dspark_block_size")
    stages = f.count("n_mtp_layers", None) or 3
    ids = f.counts("dspark_target_layer_ids")
    if not ids:
        raise InputError(f"{f.where}: dspark_target_layer_ids says which layers the DSpark stages read; it is missing")
    confident = f.flag("enable_confidence_head", True)
    once = (
        matrix("attention", "main_proj", len(ids) * f.hidden * f.hidden, Shard.REPLICATE),
        vector("norms", "main_norms", 2 * f.hidden),
        *markov_head(f, f.count("dspark_markov_rank"), confident, True),
        *_hyper_head(f),
    )
    return (dataclasses.replace(layer, extra=(*layer.extra, *once)), *(layer,) * (stages - 1))


_RATES: Final = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_KINDS: Final = {rate: kind for kind, rate in _RATES.items()}


def _compression(f: Fields, n: int) -> list[str]:
    """Kind of each layer, from ``layer_types`` or the positions per entry in ``compress_ratios``."""
    kinds = f.words("layer_types", n)
    if kinds is None:
        ratios = f.counts("compress_ratios", n)
        if ratios is None:
            kinds = [_KINDS[128]] * min(n, 2) + [_KINDS[4 if i % 2 else 128] for i in range(max(n - 2, 0))]
        else:
            kinds = [_KINDS.get(ratio, f"compress ratio {ratio}") for ratio in ratios]
    unknown = [kind for kind in kinds if kind not in _RATES]
    if unknown:
        raise UnsupportedError(
            f"{f.where}: layers of kind {unknown[0]!r} cannot be counted; known: {', '.join(_RATES)}"
        )
    return kinds


def _hash_layers(f: Fields, n: int) -> int:
    types = f.words("mlp_layer_types", n)
    if types is not None:
        return sum(kind == "hash_moe" for kind in types)
    return min(n, int(f.count("num_hash_layers", 3, least=0)))


def _compressed(f: Fields, kind: str) -> CompressedAttention:
    hidden, heads, dim = f.hidden, f.heads, f.head_dim
    q_rank, o_rank, groups = f.count("q_lora_rank"), f.count("o_lora_rank"), f.count("o_groups")
    index_heads, index_dim = f.count("index_n_heads"), f.count("index_head_dim")
    stated = f.block("compress_rates") or {}
    rate = f.whole(stated.get(kind, _RATES[kind]), "compress_rates", 0)
    # Sparse compressions overlap: each entry sees its own positions and the ones before, from two halves.
    sparse = kind == "compressed_sparse_attention"
    halves = 2 if sparse else 1
    weights = [
        vector("attention", "sinks", heads, Shard.SPLIT),
        matrix("attention", "q_a_proj", q_rank * hidden, Shard.REPLICATE),
        vector("norms", "q_a_norm", q_rank),
        matrix("attention", "q_b_proj", heads * dim * q_rank),
        matrix("attention", "kv_proj", dim * hidden, Shard.REPLICATE),
        vector("norms", "kv_norm", dim),
        matrix("attention", "o_a_proj", o_rank * heads * dim),
        matrix("attention", "o_b_proj", hidden * groups * o_rank),
    ]
    if rate:
        weights += [
            matrix("attention", "compressor", 2 * halves * dim * hidden, Shard.REPLICATE, quantizable=False),
            vector("attention", "compressor_bias", rate * halves * dim + dim),
        ]
    if sparse:
        weights += [
            matrix(
                "attention",
                "indexer",
                4 * index_dim * hidden + index_heads * index_dim * q_rank + index_heads * hidden,
                Shard.REPLICATE,
            ),
            vector("attention", "indexer_bias", rate * 2 * index_dim + index_dim),
        ]
    return CompressedAttention(
        heads=heads,
        head_dim=dim,
        weights=tuple(weights),
        window=f.count("sliding_window"),
        rate=rate,
        index_dim=index_dim if sparse else 0,
        index_topk=f.count("index_topk") if sparse else 0,
    )
