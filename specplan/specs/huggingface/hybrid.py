"""Decoders with recurrent layers but Mamba: delta nets, short convolutions, linear attention, other recurrences."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import MAX_LAYERS, Fields
from specplan.specs.huggingface.latent import hyper_connections
from specplan.specs.huggingface.mixers import (
    attention,
    gated_delta_net,
    kimi_delta,
    latent,
    matrix,
    present,
    short_conv,
    table,
    vector,
)
from specplan.specs.huggingface.regular import (
    GROUPED,
    Parts,
    Routed,
    by_types,
    dense_first,
    experts,
    mtp_layer,
    sparse_step,
    window_size,
)
from specplan.values.formats import lookup
from specplan.values.model import (
    Attention,
    DenseMLP,
    Experts,
    FeedForward,
    Layer,
    Recurrent,
    Shard,
    Weight,
)

LINEAR: Final = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")
"""Words for recurrent layers."""


def layer_kinds(f: Fields, n: int, fallback: Sequence[str] | None = None, name: str = "layer_types") -> list[str]:
    """Kind of each layer, ``linear_attention`` or else, by the config or `fallback`."""
    kinds = f.words(name, n) or f.words("layers_block_type", n)
    if kinds is None and fallback is None:
        raise InputError(f"{f.where}: field {name!r} is missing; it says which layers are recurrent")
    return list(kinds if kinds is not None else fallback or ())


def every(n: int, period: int, full: str = "full_attention", other: str = "linear_attention") -> list[str]:
    """`full` at each `period`-th of `n` layers, `other` elsewhere."""
    return [full if (i + 1) % period == 0 else other for i in range(n)]


# Qwen3-Next and its relatives: gated delta nets with a gated attention layer in each four.


def _gated_attention(f: Fields, window: int | None = None) -> Attention:
    bias = f.flag("attention_bias")
    gate = f.flag("attn_output_gate", True)
    return attention(f, window=window, qkv_bias=bias, output_bias=bias, qk_norm="head", output_gate=gate)


def _qwen_feed_forward(f: Fields) -> tuple[FeedForward | None, FeedForward | None]:
    """Dense and routed feed-forward of the config, each None where no layer has it."""
    routed = None
    if f.count("num_experts", 0, least=0):
        routed = experts(
            f, Routed(count="num_experts", shared_width="shared_expert_intermediate_size", shared_gate=True)
        )
    width = f.count("intermediate_size", None)
    return (None if width is None else DenseMLP(width=width), routed)


def qwen3_next(f: Fields) -> Parts:
    """Qwen3-Next: fused projections in the delta nets; experts by Qwen's rule."""
    return _qwen_hybrid(f, sparse_step(f, f.n_layers))


def qwen3_5(f: Fields) -> Parts:
    """Qwen3.5, 3.6, 3.8: every layer routed, or none."""
    n = f.n_layers
    return _qwen_hybrid(f, [f.model_type == "qwen3_5_moe_text"] * n)


def _qwen_hybrid(f: Fields, sparse: list[bool]) -> Parts:
    n = f.n_layers
    kinds = layer_kinds(f, n, every(n, f.count("full_attention_interval", 4)))
    delta, full = gated_delta_net(f), _gated_attention(f)
    dense, routed = _qwen_feed_forward(f)
    layers = []
    for kind, is_sparse in zip(kinds, sparse, strict=True):
        feed_forward = routed if is_sparse else dense
        if feed_forward is None:
            raise InputError(f"{f.where}: field {'num_experts' if is_sparse else 'intermediate_size'!r} is missing")
        layers.append(Layer(mixer=delta if kind == "linear_attention" else full, feed_forward=feed_forward))
    n_mtp = f.count("mtp_num_hidden_layers", 0, least=0)
    last = routed if any(sparse) else dense
    return Parts(
        layers=tuple(layers), mtp_layers=mtp_layer(f, Layer(mixer=full, feed_forward=last), n_mtp) if n_mtp else ()
    )


def qwen4_exp(f: Fields) -> Parts:
    """Qwen4-Exp: gated delta nets and attention with an indexer.

    Low-rank hyper-connections stand instead of norms; some layers look up tables of hashed n-grams.
    """
    n, hidden = f.n_layers, f.hidden
    kinds = layer_kinds(f, n, every(n, f.count("full_attention_interval", 4)))
    delta, full = gated_delta_net(f), _gated_attention(f)
    _, routed = _qwen_feed_forward(f)
    streams, rank = f.count("hc_count"), f.count("hc_lowrank")
    wide = streams * hidden
    mix = (
        matrix("hyper", "hc_mix", 2 * wide * (2 * rank + streams), Shard.REPLICATE, quantizable=False),
        vector("norms", "hc_norm", 2 * wide),
    )
    dim = f.count("indexer_head_dim")
    indexer = (
        matrix(
            "attention",
            "indexer",
            (f.count("indexer_n_heads") + f.count("indexer_kv_heads")) * dim * hidden,
            Shard.REPLICATE,
        ),
        vector("norms", "indexer_norm", 2 * dim),
    )
    f.assume("the indexer's own keys are not in the cache's size")
    table_layers = sorted(set(f.counts("ple_layer_ids", least=1) or []))
    layers = []
    for i, kind in enumerate(kinds):
        linear = kind == "linear_attention"
        extra = mix if linear else (*mix, *indexer)
        if i + 1 in table_layers:
            extra = (*extra, *_ngram_tables(f, table_layers.index(i + 1), wide))
        mixer: Recurrent | Attention = delta if linear else full
        layers.append(Layer(mixer=mixer, feed_forward=routed, norm_vectors=0, extra=extra))
    last = (
        matrix("hyper", "hc_last", 2 * wide * rank, Shard.REPLICATE, quantizable=False),
        vector("norms", "hc_last_norm", wide),
    )
    return Parts(layers=tuple(layers), final_norm_vectors=0, extra=last)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def _primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes that are at least `start`."""
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if _is_prime(candidate):
            found.append(candidate)
        candidate += 1
    return found


def _ngram_tables(f: Fields, index: int, wide: int) -> tuple[Weight, ...]:
    """Hashed n-gram features of one layer: a table per head, each of a prime number of rows, and their projections."""
    hidden = f.hidden
    heads = (f.count("ngram_size", least=2) - 1) * f.count("heads_per_ngram")
    if (index + 1) * heads > 1000 or f.count("ngram_vocab_size_base") > 10**9:
        raise UnsupportedError(f"{f.where}: n-gram tables of this size cannot be counted")
    rows = sum(_primes_from(f.count("ngram_vocab_size_base"), (index + 1) * heads)[index * heads :])
    divisor = f.count("make_ngram_vocab_size_divisible_by")
    width = f.count("ple_embed_dim", None) or hidden
    kernel = f.count("ple_conv_kernel_size")
    return (
        table("embedding", "ngram_table", -(-rows // divisor) * divisor * (width // heads)),
        matrix("embedding", "ngram_proj", width * (wide + hidden), Shard.REPLICATE),
        vector("norms", "ngram_norms", 3 * wide),
        vector("embedding", "ngram_conv", wide * kernel),
    )


def lara_mini(f: Fields) -> Parts:
    """Lara-mini: delta nets, sliding and full attention in turn; every layer routed with a shared expert, no gate."""
    n = f.n_layers
    kinds = layer_kinds(f, n)
    bias = f.flag("attention_bias")
    windows = by_types(f, n) or [None] * n
    routed = experts(f, Routed(count="num_experts", shared_width="shared_expert_intermediate_size"))
    layers = []
    for kind, window in zip(kinds, windows, strict=True):
        mixer: Recurrent | Attention = (
            gated_delta_net(f)
            if kind == "linear_attention"
            else attention(f, window=window, qkv_bias=bias, output_bias=bias, qk_norm="head")
        )
        layers.append(Layer(mixer=mixer, feed_forward=routed))
    return Parts(layers=tuple(layers))


def olmo_hybrid(f: Fields) -> Parts:
    """OLMo-Hybrid: gated delta nets and attention with norms over all heads."""
    n = f.n_layers
    bias = f.flag("attention_bias")
    full = attention(f, qkv_bias=bias, output_bias=bias, qk_norm="all")
    mlp = DenseMLP(width=f.count("intermediate_size"))
    kinds = layer_kinds(f, n, every(n, 4))
    delta = gated_delta_net(f)
    return Parts(
        layers=tuple(Layer(mixer=delta if kind == "linear_attention" else full, feed_forward=mlp) for kind in kinds)
    )


# Kimi delta attention with latent attention.


_KIMI_EXPERTS: Final = Routed(
    count="num_experts", chosen="num_experts_per_token", shared_count="num_shared_experts", sparse=dense_first
)


def kimi_linear(f: Fields) -> Parts:
    """Kimi-Linear: Kimi delta attention, and latent attention in the layers that the config names."""
    n = f.n_layers
    stated = f.block("linear_attn_config")
    if f.config.get("model_type") == "kimi_k3" and (stated is None or not f.has("routed_expert_hidden_size")):
        raise UnsupportedError(
            f"{f.where}: model_type 'kimi_k3' cannot be counted from this extract: it leaves out linear_attn_config "
            f"and routed_expert_hidden_size; import the full config.json"
        )
    if stated is not None:
        full_layers = {f.whole(i, "full_attn_layers") - 1 for i in stated.get("full_attn_layers", [])}
        kinds = ["full_attention" if i in full_layers else "linear_attention" for i in range(n)]
        delta_layers = stated.get("kda_layers")
        if isinstance(delta_layers, list) and {f.whole(i, "kda_layers") - 1 for i in delta_layers} & full_layers:
            raise InputError(f"{f.where}: linear_attn_config names a layer in full_attn_layers and in kda_layers")
        heads, dim = f.whole(stated.get("num_heads"), "num_heads"), f.whole(stated.get("head_dim"), "head_dim")
        kernel = f.whole(stated.get("short_conv_kernel_size"), "short_conv_kernel_size")
    else:
        if not f.has("layer_types") and not f.nested:
            raise InputError(
                f"{f.where}: neither 'linear_attn_config' nor 'layer_types' says which layers are recurrent"
            )
        kinds = layer_kinds(f, n, ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(n)])
        heads, dim = f.count("linear_num_heads"), f.count("linear_head_dim")
        kernel = f.count("linear_conv_kernel_dim")
    bias = f.flag("attention_bias")
    full = latent(f, bias=bias, output_bias=bias)
    delta = kimi_delta(f, heads=heads, dim=dim, kernel=kernel, low_rank=True)
    if stated is not None and stated.get("use_full_rank_gate") is True:
        delta = _full_rank_gate(delta, f.hidden, heads * dim, heads)
    width = f.heads * full.v_head_dim if f.flag("mla_use_output_gate") else 0
    gate = present(matrix("attention", "gate_proj", width * f.hidden))
    routed, mlp = experts(f, _KIMI_EXPERTS), DenseMLP(width=f.count("intermediate_size"))
    inside = _latent_experts(f, routed)
    residual = (vector("norms", "attn_res", 4 * f.hidden),) if f.has("attn_res_block_size") else ()
    after = (vector("norms", "attn_res", 2 * f.hidden),) if f.count("attn_res_block_size", None) else ()
    sparse = dense_first(f, n, 1)
    return Parts(
        layers=tuple(
            Layer(
                mixer=delta if kind == "linear_attention" else full,
                feed_forward=(None if inside else routed) if s else mlp,
                extra=(*(() if kind == "linear_attention" else gate), *(inside if s else ()), *residual),
            )
            for kind, s in zip(kinds, sparse, strict=True)
        ),
        extra=after,
        tied=False,
    )


def _full_rank_gate(delta: Recurrent, hidden: int, width: int, heads: int) -> Recurrent:
    """Kimi-K3's output gate as wide as the values.

    Its headers hold 128 decays for 96 heads, the rest zeros: heads are rounded up to 64.
    """
    low = {"g_a_proj", "g_b_proj", "decay"}
    own = (
        matrix("recurrent", "g_proj", width * hidden),
        vector("recurrent", "decay", width + -(-heads // 64) * 64, Shard.SPLIT),
    )
    return replace(delta, weights=(*(w for w in delta.weights if w.name not in low), *own))


def _latent_experts(f: Fields, routed: Experts) -> tuple[Weight, ...]:
    """Kimi-K3's experts in a narrower stream, between two projections and a norm; nothing where it is not stated."""
    inner = f.count("routed_expert_hidden_size", None)
    if inner is None:
        return ()
    pair = (routed.count, routed.per_token)
    return present(
        matrix("router", "router", routed.count * f.hidden, Shard.REPLICATE, quantizable=False),
        matrix("experts", "mlp", 3 * routed.width * inner, routed=pair, copies=routed.count),
        matrix("experts", "latent_proj", 2 * inner * f.hidden, Shard.REPLICATE),
        vector("norms", "latent_norm", inner if f.flag("latent_moe_use_norm") else 0),
        matrix("shared_experts", "mlp", 3 * routed.shared_width * f.hidden),
    )


def glm5_next(f: Fields) -> Parts:
    """GLM-5-Next: Kimi delta attention, latent attention with an indexer over pooled keys, hyper-connections."""
    n, hidden, streams = f.n_layers, f.hidden, f.count("hc_mult")
    kinds = layer_kinds(f, n, every(n, 4, full="indexed_attention"))
    bias = f.flag("attention_bias")
    full = latent(f, bias=bias, output_bias=bias, indexer=True)
    heads, dim = f.count("linear_num_heads"), f.count("linear_head_dim")
    delta = kimi_delta(f, heads=heads, dim=dim, kernel=f.count("linear_conv_kernel_dim"), low_rank=True)
    pooled = f.count("index_kpool")
    pool = (
        matrix("attention", "index_pool", full.index_dim * hidden, Shard.REPLICATE),
        vector("attention", "index_pool_bias", pooled * full.index_dim),
    )
    f.assume(f"index keys are counted per token in the cache, though one stands for {pooled} positions")
    mixes = hyper_connections(f, (2 + streams) * streams, 3)
    routed, mlp = experts(f, GROUPED), DenseMLP(width=f.count("intermediate_size"))
    return Parts(
        layers=tuple(
            Layer(
                mixer=delta if kind == "linear_attention" else full,
                feed_forward=routed if is_sparse else mlp,
                extra=mixes if kind == "linear_attention" else (*mixes, *pool),
            )
            for kind, is_sparse in zip(kinds, dense_first(f, n, 3), strict=True)
        )
    )


def bailing_hybrid(f: Fields) -> Parts:
    """Ling/Ring hybrid: Kimi delta attention with full gates; latent attention with a gate per head."""
    n = f.n_layers
    kinds = layer_kinds(f, n, every(n, f.count("layer_group_size")))
    bias = f.flag("attention_bias")
    full = latent(f, bias=bias, output_bias=bias)
    # The delta layers' head size is the config's head_dim before latent attention's rotated part takes the name.
    dim = f.count("linear_head_dim", None) or f.count("head_dim")
    heads = f.count("linear_num_heads", f.heads)
    kernel = f.count("linear_conv_kernel_dim", None) or f.count("short_conv_kernel_size")
    delta = kimi_delta(f, heads=heads, dim=dim, kernel=kernel, low_rank=False)
    gate = (matrix("attention", "head_gate", f.heads * f.hidden),)
    routed, mlp = experts(f, _KIMI_EXPERTS), DenseMLP(width=f.count("intermediate_size"))
    layers = []
    for kind, is_sparse in zip(kinds, dense_first(f, n, 0), strict=True):
        linear = kind == "linear_attention"
        layers.append(
            Layer(
                mixer=delta if linear else full,
                feed_forward=routed if is_sparse else mlp,
                extra=() if linear else gate,
            )
        )
    n_mtp = f.count("num_nextn_predict_layers", 0, least=0)
    last = Layer(mixer=full, feed_forward=routed, extra=gate)
    return Parts(layers=tuple(layers), mtp_layers=mtp_layer(f, last, n_mtp), tied=False)


# Short convolutions.


def _lfm_layers(f: Fields, feed_forwards: Sequence[FeedForward], norms: int = 2, **traits: Any) -> tuple[Layer, ...]:
    n = f.n_layers
    full_layers = f.counts("full_attn_idxs")
    fallback = None
    if full_layers is not None:
        fallback = ["full_attention" if i in full_layers else "conv" for i in range(n)]
    elif f.model_type == "lfm2":
        fallback = ["full_attention"] * n
    kinds = layer_kinds(f, n, fallback)
    conv = short_conv(f, kernel=f.count("conv_L_cache"), bias=f.flag("conv_bias"))
    gate = (matrix("attention", "head_gate", f.heads * f.hidden),) if f.flag("use_attention_gate") else ()
    layers = []
    for kind, feed_forward in zip(kinds, feed_forwards, strict=True):
        is_conv = kind == "conv"
        window = window_size(f) if "sliding" in kind else None
        layers.append(
            Layer(
                mixer=conv if is_conv else attention(f, window=window, qk_norm="head", **traits),
                feed_forward=feed_forward,
                norm_vectors=norms,
                extra=() if is_conv else gate,
            )
        )
    return tuple(layers)


def lfm2(f: Fields) -> Parts:
    """LFM2: gated short convolutions and attention; the stated feed-forward width is adjusted as LLaMA's first was."""
    width = f.count("block_ff_dim", None) or f.count("intermediate_size")
    if f.flag("block_auto_adjust_ff_dim", True):
        multiple = f.count("block_multiple_of", 256)
        width = 2 * width // 3
        factor = f.raw("block_ffn_dim_multiplier", 1.0)
        if factor is not None:
            width = multiple * -(-int(f.number("block_ffn_dim_multiplier", 1.0) * width) // multiple)
    tied = f.flag("tie_embedding") if f.has("tie_embedding") else None
    return Parts(layers=_lfm_layers(f, [DenseMLP(width=width)] * f.n_layers), tied=tied)


def lfm2_moe(f: Fields) -> Parts:
    """LFM2-MoE: the first layers dense, the others routed."""
    n, first = f.n_layers, f.count("num_dense_layers", least=0)
    mlp = DenseMLP(width=f.count("intermediate_size"))
    routed = Experts(
        count=f.count("num_experts"),
        per_token=f.count("num_experts_per_tok"),
        width=f.count("moe_intermediate_size"),
    )
    tied = f.flag("tie_embedding") if f.has("tie_embedding") else None
    return Parts(layers=_lfm_layers(f, [mlp if i < first else routed for i in range(n)]), tied=tied)


def lfm3(f: Fields) -> Parts:
    """LFM3: as LFM2, with windows, a gate per head and norms after each half."""
    bias = f.flag("attention_bias")
    mlp = DenseMLP(width=f.count("intermediate_size"))
    norms = 4 if f.flag("use_sandwich_norm") else 2
    return Parts(layers=_lfm_layers(f, [mlp] * f.n_layers, norms, qkv_bias=bias, output_bias=bias))


# Linear attention and recurrences of other kinds.


def minimax(f: Fields) -> Parts:
    """MiniMax-01: lightning attention (a matrix of state per head) and full attention; every layer routed."""
    n, hidden = f.n_layers, f.hidden
    kinds = layer_kinds(f, n, ["full_attention" if (i + 1) % 2 else "linear_attention" for i in range(n)])
    heads, dim = f.heads, f.head_dim
    width = heads * dim
    lightning = Recurrent(
        kind="lightning",
        weights=(
            matrix("recurrent", "qkv_proj", 3 * width * hidden),
            matrix("recurrent", "gate_proj", width * hidden),
            vector("recurrent", "norm", width, Shard.SPLIT),
            matrix("recurrent", "out_proj", width * hidden),
        ),
        state_size=heads * dim * dim,
        heads=heads,
        state_format=lookup("float32"),
    )
    full = attention(f, window=window_size(f))
    routed = experts(f, Routed(count="num_local_experts", width="intermediate_size"))
    return Parts(
        layers=tuple(Layer(mixer=lightning if kind in LINEAR else full, feed_forward=routed) for kind in kinds)
    )


def recurrent_gemma(f: Fields) -> Parts:
    """Griffin: gated linear recurrences (RG-LRU) and local attention, two to one."""
    n, hidden = f.n_layers, f.hidden
    width = f.count("lru_width", None) or hidden
    blocks = f.words("block_types") or ["recurrent", "recurrent", "attention"]
    types = f.words("layers_block_type", n) or [blocks[i % len(blocks)] for i in range(n)]
    heads, kernel = f.heads, f.count("conv1d_width")
    per_head = width // heads
    recurrence = Recurrent(
        kind="rglru",
        weights=(
            matrix("recurrent", "in_proj", 2 * width * hidden),
            matrix("recurrent", "out_proj", width * hidden),
            vector("recurrent", "biases", 2 * width + hidden, Shard.SPLIT),
            vector("recurrent", "conv", width * (kernel + 1), Shard.SPLIT),
            matrix("recurrent", "gates", 2 * heads * per_head * per_head),
            vector("recurrent", "gate_biases", 3 * width, Shard.SPLIT),
        ),
        conv_channels=width,
        conv_kernel=kernel,
        state_size=width,
        heads=heads,
        state_format=lookup("float32"),
    )
    local = attention(f, window=f.count("attention_window_size"), qkv_bias=f.flag("attention_bias"), output_bias=True)
    mlp = DenseMLP(width=f.count("intermediate_size") // 2, bias=True)
    return Parts(layers=tuple(Layer(mixer=recurrence if kind in LINEAR else local, feed_forward=mlp) for kind in types))


def rwkv(f: Fields) -> Parts:
    """RWKV-4: time mixing and channel mixing; five vectors of state per layer, three of them in float32."""
    n, hidden = f.n_layers, f.hidden
    width = f.count("attention_hidden_size", None) or hidden
    inner = f.count("intermediate_size", None) or 4 * hidden
    mixer = Recurrent(
        kind="rwkv",
        weights=(
            matrix("recurrent", "time_mix", 4 * width * hidden),
            vector("recurrent", "decay", 2 * width + 3 * hidden, Shard.SPLIT),
            matrix("recurrent", "channel_mix", 2 * inner * hidden + hidden * hidden),
            vector("recurrent", "channel_mix_vectors", 2 * hidden, Shard.SPLIT),
        ),
        state_size=2 * hidden + 3 * width,
        state_format=lookup("float32"),
    )
    layer = Layer(mixer=mixer, feed_forward=None, norm_vectors=4)
    before = (vector("norms", "first_norm", 2 * hidden),)
    return Parts(layers=(layer,) * n, final_norm_vectors=2, extra=before)


def xlstm(f: Fields) -> Parts:
    """xLSTM-7B: matrix memories with exponential gates, a gated feed-forward."""
    hidden, heads = f.hidden, f.count("num_heads")
    n = f.count("num_blocks", f.n_layers)
    if n > MAX_LAYERS:
        raise InputError(f"{f.where}: field 'num_blocks' must be at most {MAX_LAYERS}, got {n}")
    if f.count("embedding_dim", hidden) != hidden:
        raise InputError(f"{f.where}: fields 'embedding_dim' and 'hidden_size' contradict each other")
    keys = int(hidden * f.number("qk_dim_factor"))
    values = int(hidden * f.number("v_dim_factor"))
    biases = 2 * heads + (2 * keys + 3 * values + hidden if f.flag("use_bias") else 0)
    mixer = Recurrent(
        kind="mlstm",
        weights=(
            matrix("recurrent", "qkvo_proj", (2 * keys + 2 * values) * hidden),
            matrix("recurrent", "gates", 2 * heads * hidden),
            vector("recurrent", "biases", 2 * heads, Shard.SPLIT),
            vector("recurrent", "norm", values, Shard.SPLIT),
            matrix("recurrent", "out_proj", values * hidden),
        ),
        state_size=keys * values // heads + keys + heads,
        heads=heads,
        state_format=lookup(f.word("inference_state_dtype", "float32")),
    )
    if biases != 2 * heads:
        raise UnsupportedError(f"{f.where}: xlstm with use_bias cannot be counted")
    multiple = f.count("ffn_round_up_to_multiple_of")
    inner = int(multiple * ((hidden * f.number("ffn_proj_factor") + multiple - 1) // multiple))
    layer = Layer(mixer=mixer, feed_forward=DenseMLP(width=inner))
    return Parts(layers=(layer,) * n, final_norm_vectors=1, tied=False)  # modules neither drop the norm nor tie
