"""Builders of decoders whose plan the traits of `regular` do not say."""

import dataclasses
from typing import Any

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.mixers import attention, matrix, present, table, vector
from specplan.specs.huggingface.regular import (
    Parts,
    Routed,
    by_types,
    dense_first,
    experts,
    mtp_layer,
    periodic,
    regular,
    window_size,
)
from specplan.values.model import Attention, DenseMLP, Experts, FeedForward, Layer, Shard, Weight

# GPT-like


def gpt_neo_windows(f: Fields, n: int) -> list[int | None]:
    """GPT-Neo: ``attention_layers``, or ``attention_types`` as [[kinds], times] pairs."""
    kinds = f.words("attention_layers", n)
    if kinds is None:
        kinds = []
        for entry in f.items("attention_types", []):
            if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)):
                raise InputError(f"{f.where}: field 'attention_types' must be a list of [kinds, times]")
            kinds += [str(kind) for kind in entry[0]] * min(f.whole(entry[1], "attention_types"), n)
    kinds = (kinds or ["global", "local"] * n)[:n]
    size = f.count("window_size")
    return [size if kind == "local" else None for kind in kinds] + [None] * (n - len(kinds))


def gpt_neox_japanese(f: Fields) -> Parts:
    """GPT-NeoX Japanese: no biases but one on the output projection of the last layer's attention."""
    inner = f.count("intermediate_multiple_size", 4) * f.hidden
    layer = Layer(mixer=attention(f, kv_heads=f.heads), feed_forward=DenseMLP(width=inner, gated=False), norm_vectors=4)
    last = dataclasses.replace(layer, extra=(vector("attention", "o_bias", f.hidden),))
    return Parts(layers=(layer,) * (f.n_layers - 1) + (last,), final_norm_vectors=2)


def opt(f: Fields) -> Parts:
    """OPT: learned positions with two reserved rows; biases and norms optional; OPT-350M's embedding is narrower."""
    hidden, width = f.hidden, f.count("word_embed_proj_dim", None) or f.hidden
    affine = f.flag("layer_norm_elementwise_affine", True)
    biased = f.flag("enable_bias", True)
    final = f.flag("do_layer_norm_before", True) and not f.flag("_remove_final_layer_norm")
    vectors = 2 if affine else 0
    layer = Layer(
        mixer=attention(f, kv_heads=f.heads, qkv_bias=biased, output_bias=biased),
        feed_forward=DenseMLP(width=f.count("ffn_dim", None) or f.count("intermediate_size"), gated=False, bias=biased),
        norm_vectors=2 * vectors,
    )
    extra = [table("embedding", "positions", (f.count("max_position_embeddings") + 2) * hidden)]
    if width != hidden:
        extra.append(matrix("embedding", "projections", 2 * width * hidden, Shard.REPLICATE, quantizable=False))
    return Parts(
        layers=(layer,) * f.n_layers,
        final_norm_vectors=vectors if final else 0,
        extra=tuple(extra),
        embedding_size=None if width == hidden else width,
    )


def mpt(f: Fields) -> Parts:
    """MPT: ALiBi, no biases, norms without bias."""
    stated = f.block("attn_config") or {}
    if stated.get("attn_type", "multihead_attention") != "multihead_attention":
        raise UnsupportedError(f"{f.where}: MPT with attn_type {stated['attn_type']!r} cannot be counted")
    layer = Layer(
        mixer=attention(f, kv_heads=f.heads),
        feed_forward=DenseMLP(width=4 * f.hidden, gated=False),
    )
    return Parts(layers=(layer,) * f.n_layers)


# Mixtures of experts with rules of their own


def after_dense_layers(f: Fields, n: int) -> list[bool]:
    """Routed after the first ``num_dense_layers``."""
    first = f.count("num_dense_layers", 0, least=0)
    return [i >= first for i in range(n)]


def ernie_moe(f: Fields) -> Parts:
    """ERNIE 4.5: routed from ``moe_layer_start_index`` to ``moe_layer_end_index``, one in each interval."""
    n = f.n_layers
    first, interval = f.count("moe_layer_start_index", 0, least=0), f.count("moe_layer_interval", 1)
    last = f.count("moe_layer_end_index", -1, least=-1)
    if last == -1:
        last = n - 1

    def sparse(_f: Fields, _n: int) -> list[bool]:
        return [(i + 1) % interval == 0 and first <= i <= last for i in range(n)]

    routed = Routed(
        count="moe_num_experts",
        chosen="moe_k",
        shared_count="moe_num_shared_experts",
        correction=True,
        shared_bias="use_bias",
        sparse=sparse,
    )
    biased: dict[str, Any] = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "head_bias"), "use_bias")
    return regular(**biased, routed=routed)(f)


def _one(f: Fields, name: str, default: Any = None) -> int:
    """A number that some configs state per layer; it must be the same in all."""
    value = f.raw(name, default)
    if isinstance(value, list):
        if not value or any(item != value[0] for item in value):
            raise UnsupportedError(f"{f.where}: {name} differs between layers, which cannot be counted")
        value = value[0]
    return f.whole(value, name, 0)


def hunyuan_moe(f: Fields) -> Parts:
    """Hunyuan-MoE: every layer routed beside one shared feed-forward."""
    n = f.n_layers
    bias = f.flag("attention_bias")
    width = f.count("intermediate_size")
    routed = Experts(
        count=_one(f, "num_experts"),
        per_token=_one(f, "moe_topk"),
        width=_one(f, "moe_intermediate_size", width),
        shared_width=_one(f, "num_shared_expert", 1) * width,
    )
    mixer = attention(f, qkv_bias=bias, output_bias=bias, qk_norm="head")
    return Parts(layers=(Layer(mixer=mixer, feed_forward=routed),) * n)


def cohere_moe(f: Fields) -> Parts:
    """Command A with experts: a prefix of dense layers of another width and window pattern; one norm per layer."""
    n = f.n_layers
    first = f.count("first_k_dense_replace", 0, least=0)
    size = window_size(f)
    windows = by_types(f, n)
    if windows is None:
        prefix = periodic("prefix_dense_sliding_window_pattern", default=1)(f, min(first, n))
        windows = prefix + periodic("sliding_window_pattern")(f, max(n - first, 0))
        windows = [None if window is None else size for window in windows]
    sparse = dense_first(f, n, 0)
    routed = experts(f, Routed(count="num_experts", width="intermediate_size", shared_count="num_shared_experts"))
    bias = f.flag("attention_bias")
    layers = []
    for window, is_sparse in zip(windows, sparse, strict=True):
        feed_forward: FeedForward = routed if is_sparse else DenseMLP(width=f.count("prefix_dense_intermediate_size"))
        mixer = attention(f, window=window, qkv_bias=bias, output_bias=bias)
        layers.append(Layer(mixer=mixer, feed_forward=feed_forward, norm_vectors=1))
    return Parts(layers=tuple(layers))


def laguna(f: Fields) -> Parts:
    """Laguna: query heads may differ between layers; gates per head or per number; a learned number per expert."""
    n = f.n_layers
    heads = f.counts("num_attention_heads_per_layer", n, least=1) or [f.heads] * n
    windows = by_types(f, n) or [None] * n
    per_head = f.raw("gating", True) in (True, "per-head")
    bias = f.flag("attention_bias")
    routed = experts(f, Routed(count="num_experts", shared_width="shared_expert_intermediate_size", correction=True))
    layers = []
    for count, window, is_sparse in zip(heads, windows, dense_first(f, n, 1), strict=True):
        gate = matrix("attention", "gate_proj", count * (1 if per_head else f.head_dim) * f.hidden)
        layers.append(
            Layer(
                mixer=attention(f, window=window, heads=count, qkv_bias=bias, output_bias=bias, qk_norm="head"),
                feed_forward=routed if is_sparse else DenseMLP(width=f.count("intermediate_size")),
                extra=(gate,),
            )
        )
    return Parts(layers=tuple(layers))


def step(f: Fields) -> Parts:
    """Step-3.5 and 3.7 Flash: sliding layers with more heads, a gate per head; routed but the first layers."""
    n = f.n_layers
    windows = by_types(f, n) or [None] * n
    other = f.block("attention_other_setting") or {}
    sliding_heads = f.count("num_sliding_attention_heads", None) or f.whole(
        other.get("num_attention_heads", f.heads), "attention_other_setting.num_attention_heads"
    )
    listed = f.raw("moe_layers_enum", None)
    if f.words("mlp_layer_types") is not None or f.has("first_k_dense_replace"):
        sparse = dense_first(f, n, 3)
    elif listed is not None:
        entries = listed.split(",") if isinstance(listed, str) else listed
        try:
            routed_layers = {int(i) for i in entries if str(i).strip()}
        except (TypeError, ValueError):
            raise InputError(f"{f.where}: field 'moe_layers_enum' must list layers, got {str(listed)[:60]!r}") from None
        sparse = [i in routed_layers for i in range(n)]
    else:
        sparse = [i >= 3 for i in range(n)]
    routed = Experts(
        count=f.count("num_experts", None) or f.count("n_routed_experts"),
        per_token=f.count("num_experts_per_tok"),
        width=f.count("moe_intermediate_size"),
        shared_width=f.count("share_expert_dim"),
        shared_bias=f.flag("mlp_bias"),
    )
    mlp = DenseMLP(width=f.count("intermediate_size"), bias=f.flag("mlp_bias"))
    bias = f.flag("attention_bias")
    layers = []
    for window, is_sparse in zip(windows, sparse, strict=True):
        heads = f.heads if window is None else sliding_heads
        mixer = attention(f, window=window, heads=heads, qkv_bias=bias, output_bias=bias, qk_norm="head")
        layers.append(
            Layer(
                mixer=mixer,
                feed_forward=routed if is_sparse else mlp,
                extra=(matrix("attention", "head_gate", heads * f.hidden),),
            )
        )
    n_mtp = f.count("num_nextn_predict_layers", 0, least=0)
    if n_mtp:
        heads = sliding_heads
        own = attention(f, window=window_size(f), heads=heads, qkv_bias=bias, output_bias=bias, qk_norm="head")
        gate = (matrix("attention", "head_gate", heads * f.hidden),)
        mtp = mtp_layer(f, Layer(mixer=own, feed_forward=mlp, extra=gate), n_mtp)
        return Parts(layers=tuple(layers), mtp_layers=mtp)
    return Parts(layers=tuple(layers))


def nemotron_nas(f: Fields) -> Parts:
    """Llama-Nemotron found by search: each layer states its own group size and feed-forward, or leaves a half out."""
    blocks = f.items("block_configs", [])
    n = f.n_layers
    if not blocks:
        raise InputError(f"{f.where}: field 'block_configs' is missing; it says what each layer holds")
    if len(blocks) != n:
        raise InputError(f"{f.where}: field 'block_configs' has {len(blocks)} entries for {n} layers")
    layers = []
    for block in blocks:
        inner = block.get("attention") if isinstance(block, dict) else None
        feed = block.get("ffn") if isinstance(block, dict) else None
        if not isinstance(inner, dict) or not isinstance(feed, dict):
            raise InputError(f"{f.where}: each entry of 'block_configs' must hold 'attention' and 'ffn'")
        layers.append(_searched_layer(f, inner, feed))
    return Parts(layers=tuple(layers))


def _searched_layer(f: Fields, inner: dict[str, Any], feed: dict[str, Any]) -> Layer:
    linear = matrix("attention", "linear", f.hidden * f.hidden)
    extra: tuple[Weight, ...] = ()
    mixer, norms = None, 0
    if inner.get("replace_with_linear"):
        extra, norms = (linear,), 1
    elif not inner.get("no_op"):
        group = f.whole(inner.get("n_heads_in_group"), "block_configs.n_heads_in_group")
        mixer, norms = attention(f, kv_heads=max(f.heads // group, 1)), 1
    feed_forward = None
    if feed.get("replace_with_linear"):
        extra, norms = (*extra, dataclasses.replace(linear, component="mlp")), norms + 1
    elif not feed.get("no_op"):
        factor = feed.get("ffn_mult")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
            raise InputError(f"{f.where}: field 'block_configs.ffn_mult' must be a number above 0")
        # As LLaMA's first widths: two thirds of the multiple, rounded up to 256.
        feed_forward, norms = DenseMLP(width=-(-int(2 * factor * f.hidden / 3) // 256) * 256), norms + 1
    return Layer(mixer=mixer, feed_forward=feed_forward, norm_vectors=norms, extra=extra)


def mimo_v2(f: Fields) -> Parts:
    """MiMo-V2: sliding layers with sinks and other key-value heads; values narrower than keys."""
    n = f.n_layers
    pattern = f.counts("hybrid_layer_pattern", n)
    kinds = f.words("layer_types", n)
    if kinds is None:
        slides = [bool(p) for p in pattern] if pattern else [not (i == 0 or (i + 1) % 6 == 0) for i in range(n)]
    else:
        slides = ["sliding" in kind for kind in kinds]
    behind = f.count("sliding_window_size", None)
    window = behind or window_size(f)
    bias = f.flag("attention_bias")
    full = attention(f, v_head_dim=f.count("v_head_dim"), qkv_bias=bias)
    sliding = attention(
        f,
        window=window,
        heads=f.count("swa_num_attention_heads", f.heads),
        kv_heads=f.count("swa_num_key_value_heads", 2 * f.kv_heads),
        head_dim=f.count("swa_head_dim", f.head_dim),
        v_head_dim=f.count("swa_v_head_dim", full.value_dim),
        qkv_bias=bias,
        sinks=True,
    )
    routed = experts(f, Routed(count="n_routed_experts", shared_count="n_shared_experts"))
    mlp = DenseMLP(width=f.count("intermediate_size"))
    n_mtp = f.count("num_nextn_predict_layers", None, least=0)
    if n_mtp is None:
        n_mtp = 3
        f.assume("the checkpoint carries three dense multi-token prediction layers (the config does not count them)")
    return Parts(
        layers=tuple(
            Layer(mixer=sliding if s else full, feed_forward=routed if is_sparse else mlp)
            for s, is_sparse in zip(slides, dense_first(f, n, 1), strict=True)
        ),
        mtp_layers=mtp_layer(f, Layer(mixer=sliding, feed_forward=mlp), n_mtp),
    )


def minimax_m3(f: Fields) -> Parts:
    """MiniMax-M3: experts with a shared one, dense layers of another width, a block indexer on sparse attention."""
    n = f.n_layers
    stated = f.block("sparse_attention_config") or {}
    kinds = f.words("layer_types", n)
    marks = stated.get("sparse_attention_freq")
    if kinds is None and isinstance(marks, list) and len(marks) >= n:
        kinds = ["minimax_m3_sparse" if mark else "full_attention" for mark in marks[:n]]
    if kinds is None:
        f.assume("no layer has a sparse-attention indexer (neither layer_types nor sparse_attention_config is given)")
        kinds = ["full_attention"] * n
    index_heads = f.whole(stated.get("sparse_num_index_heads", f.count("index_n_heads", 4)), "index_n_heads")
    index_dim = f.whole(stated.get("sparse_index_dim", f.count("index_head_dim", 128)), "index_head_dim")
    indexer = (
        matrix("attention", "indexer", (index_heads + 1) * index_dim * f.hidden, Shard.REPLICATE),
        vector("norms", "indexer_norm", 2 * index_dim),
    )
    width = f.count("intermediate_size")
    shared = f.count("shared_intermediate_size", None, least=0)
    routed = Experts(
        count=f.count("num_local_experts"),
        per_token=f.count("num_experts_per_tok"),
        width=width,
        shared_width=f.count("n_shared_experts", 1, least=0) * width if shared is None else shared,
    )
    sparse = dense_first(f, n, 0)
    mixer = attention(f, qk_norm="head")
    layers = tuple(
        Layer(
            mixer=mixer,
            feed_forward=routed if is_sparse else DenseMLP(width=f.count("dense_intermediate_size")),
            extra=indexer if kind == "minimax_m3_sparse" else (),
        )
        for kind, is_sparse in zip(kinds, sparse, strict=True)
    )
    n_mtp = f.count("num_mtp_modules", 0, least=0)
    return Parts(layers=layers, mtp_layers=mtp_layer(f, layers[-1], n_mtp))


def llama4(f: Fields) -> Parts:
    """Llama 4: chunked attention but each fourth layer; routed layers at an interval, with a shared expert."""
    n = f.n_layers
    chunk = f.count("attention_chunk_size", None)
    kinds = f.words("layer_types", n)
    if kinds is None:
        rope = f.counts("no_rope_layers", n) or None
        interval = f.count("no_rope_layer_interval", 4)
        rope = rope if rope else [int((i + 1) % interval != 0) for i in range(n)]
        kinds = ["chunked_attention" if r and chunk is not None else "full_attention" for r in rope]
    step = f.count("interleave_moe_layer_step", 1)
    stated = f.counts("moe_layers")
    routed_layers = set(stated if stated is not None else range(step - 1, n, step))
    bias = f.flag("attention_bias")
    width = f.count("intermediate_size")
    routed = Experts(
        count=f.count("num_local_experts"),
        per_token=f.count("num_experts_per_tok"),
        width=width,
        shared_width=width,
    )
    layers = []
    for i, kind in enumerate(kinds):
        mixer = attention(f, qkv_bias=bias, output_bias=bias, chunk=chunk if kind == "chunked_attention" else None)
        is_sparse = i in routed_layers
        layers.append(
            Layer(
                mixer=mixer,
                feed_forward=routed if is_sparse else DenseMLP(width=f.count("intermediate_size_mlp")),
            )
        )
    return Parts(layers=tuple(layers))


def dbrx(f: Fields) -> Parts:
    """DBRX: sizes in nested blocks; norms without bias."""
    inner, feed = f.block("attn_config") or {}, f.block("ffn_config") or {}
    routed = Experts(
        count=f.whole(feed.get("moe_num_experts", 4), "ffn_config.moe_num_experts"),
        per_token=f.whole(feed.get("moe_top_k", 1), "ffn_config.moe_top_k"),
        width=f.whole(feed.get("ffn_hidden_size", 3584), "ffn_config.ffn_hidden_size"),
    )
    mixer = attention(f, kv_heads=f.whole(inner.get("kv_n_heads", 1), "attn_config.kv_n_heads"))
    return Parts(layers=(Layer(mixer=mixer, feed_forward=routed),) * f.n_layers)


def jetmoe(f: Fields) -> Parts:
    """JetMoE: queries and output projections are routed as the feed-forward is; keys and values are common."""
    hidden, n = f.hidden, f.n_layers
    kv_heads, dim = f.kv_heads, f.count("kv_channels")
    count, per_token = f.count("num_local_experts"), f.count("num_experts_per_tok")
    width, inner = kv_heads * dim, f.count("intermediate_size")
    routed: dict[str, Any] = {"routed": (count, per_token), "copies": count}
    router = matrix("router", "router", 2 * count * hidden, Shard.REPLICATE, quantizable=False)
    extra = (
        matrix("attention", "kv_proj", 2 * width * hidden, Shard.KV_HEADS, kv_heads=kv_heads),
        matrix("attention", "qo_experts", 2 * width * hidden, **routed),
        matrix("experts", "mlp", 3 * inner * hidden, **routed),
        router,
        vector("experts", "bias", 2 * hidden),
        vector("norms", "norms", 2 * hidden),
    )
    mixer = attention(f, heads=kv_heads * per_token, kv_heads=kv_heads, head_dim=dim)
    return Parts(layers=(Layer(mixer=mixer, feed_forward=None, extra=extra, only_extra=True),) * n)


def doge(f: Fields) -> Parts:
    """Doge: a dynamic mask from the values, learned residual scales."""
    if f.flag("is_moe"):
        raise UnsupportedError(f"{f.where}: Doge's cross-domain experts (is_moe) cannot be counted")
    kv_heads, dim = f.kv_heads, f.head_dim
    mask: tuple[Weight, ...] = (
        vector("attention", "mask", kv_heads),
        matrix("attention", "dt_proj", kv_heads * kv_heads * dim, Shard.REPLICATE),
        vector("norms", "residuals", 2 * f.hidden),
    )
    biased = f.flag("attention_bias")
    if biased:
        mask += (vector("attention", "dt_bias", kv_heads),)
    return regular(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        qk_norm="head",
        windows=lambda g, n: [window_size(g)] * n,
        layer_extra=lambda _f: mask,
    )(f)


# Others


def apertus(f: Fields) -> Parts:
    """Apertus: an activation with two learned numbers; Apertus 1.5's head may have other rows than its embedding."""
    parts = regular(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        gated=False,
        qk_norm="head",
        layer_extra=lambda _f: (vector("mlp", "activation", 2),),
    )(f)
    return dataclasses.replace(parts, head_vocab_size=f.count("output_vocab_size", None))


def molmo2(f: Fields) -> Parts:
    """Molmo2: Qwen3 or OLMo layers by the kind of their norms; more embedding rows than the head has."""
    kind = f.word("qk_norm_type", "olmo")
    parts = regular(qkv_bias="attention_bias", qk_norm="head" if kind == "qwen3" else "all")(f)
    rows = f.count("vocab_size")
    return dataclasses.replace(
        parts, vocab_size=rows + f.count("additional_vocab_size", 0, least=0), head_vocab_size=rows
    )


def hrm(f: Fields) -> Parts:
    """HRM-Text: two stacks of layers without norms, applied again and again; each application has its own cache."""
    stated = f.count("num_hidden_layers")
    per_stack = f.count("num_layers_per_stack", None) or stated
    high, low = f.count("H_cycles"), f.count("L_cycles")
    bias = f.flag("attention_bias")
    layer = Layer(
        mixer=attention(f, kv_heads=f.heads, qkv_bias=bias, output_bias=bias),
        feed_forward=DenseMLP(width=f.count("intermediate_size"), bias=f.flag("mlp_bias")),
        norm_vectors=0,
        extra=present(
            matrix("attention", "gate_proj", f.heads * f.head_dim * f.hidden),
            vector("attention", "gate_bias", f.heads * f.head_dim if bias else 0, Shard.SPLIT),
        ),
    )
    again = dataclasses.replace(layer, extra=(), only_extra=True)
    applications = per_stack * high * (low + 1)
    if applications > 10_000:
        raise InputError(f"{f.where}: {applications} applications of layers are more than 10000")
    f.assume(f"weights of {2 * per_stack} layers are counted once, though {applications} applications read them")
    start = (vector("embedding", "initial_state", f.hidden),)
    return Parts(
        layers=(layer,) * (2 * per_stack) + (again,) * (applications - 2 * per_stack),
        final_norm_vectors=0,
        extra=start,
    )


def inkling(f: Fields) -> Parts:
    """Inkling: learned relative positions, short convolutions after keys, values and both halves of a layer."""
    n, hidden = f.n_layers, f.hidden
    kinds = f.words("layer_types", n)
    if kinds is None:
        local = f.counts("local_layer_ids")
        slides = {i for i in range(n) if (i + 1) % 6} if local is None else set(local)
        kinds = ["hybrid_sliding" if i in slides else "hybrid" for i in range(n)]
    kernel, relative = f.count("conv_kernel_size"), f.count("d_rel")
    count, shared = f.count("n_routed_experts"), f.count("n_shared_experts", 0, least=0)
    dense_width = f.count("dense_intermediate_size", None)
    width = f.count("moe_intermediate_size") if dense_width is None else f.count("intermediate_size")
    routed = Experts(count=count, per_token=f.count("num_experts_per_tok"), width=width, shared_width=shared * width)
    routing = present(
        matrix("router", "shared_router", shared * hidden, Shard.REPLICATE, quantizable=False),
        vector("router", "scale", 1),
    )
    first_dense = f.count("dense_mlp_idx", 0, least=0)
    types = f.words("mlp_layer_types", n) or ["dense" if i < first_dense else "sparse" for i in range(n)]
    f.assume("the states of short convolutions (a few columns per layer and request) are not in the cache's size")
    layers = []
    for kind, mlp_kind in zip(kinds, types, strict=True):
        sliding = "sliding" in kind
        window = f.count("sliding_window_size") if sliding else None
        mixer = attention(
            f,
            window=window,
            qk_norm="head",
            **(
                {
                    "heads": f.count("swa_num_attention_heads"),
                    "kv_heads": f.count("swa_num_key_value_heads"),
                    "head_dim": f.count("swa_head_dim"),
                }
                if sliding
                else {}
            ),
        )
        extent = window or f.count("rel_extent")
        extra: tuple[Weight, ...] = (
            matrix("attention", "r_proj", mixer.heads * relative * hidden),
            matrix("attention", "relative_bias", relative * extent, Shard.REPLICATE, quantizable=False),
            vector("attention", "conv", 2 * mixer.kv_heads * mixer.head_dim * kernel, Shard.SPLIT),
            vector("norms", "conv", 2 * hidden * kernel),
        )
        if mlp_kind == "dense":
            feed_forward: FeedForward = DenseMLP(width=dense_width or f.count("intermediate_size"))
        else:
            feed_forward, extra = routed, (*extra, *routing)
        layers.append(Layer(mixer=mixer, feed_forward=feed_forward, extra=extra))
    return Parts(
        layers=tuple(layers),
        extra=(vector("norms", "embedding_norm", hidden),),
        head_vocab_size=f.count("unpadded_vocab_size", None),
    )


def mllama(f: Fields) -> Parts:
    """Llama 3.2 Vision's decoder: some layers attend to the image instead of the text; eight more embedding rows."""
    n, hidden = f.n_layers, f.hidden
    cross = set(f.counts("cross_attention_layers") or [])
    mlp = DenseMLP(width=f.count("intermediate_size"))
    plain = attention(f)
    image = Attention(
        heads=plain.heads, kv_heads=plain.kv_heads, head_dim=plain.head_dim, qk_norm="head", shares_kv=True
    )
    kv = plain.kv_heads * plain.head_dim * hidden
    projections = (
        matrix("attention", "k_proj", kv, Shard.KV_HEADS, kv_heads=plain.kv_heads),
        matrix("attention", "v_proj", kv, Shard.KV_HEADS, kv_heads=plain.kv_heads),
        vector("norms", "k_norm", plain.head_dim),
        vector("attention", "gates", 2),
    )
    if cross:
        f.assume("keys and values of the image, which the cross-attention layers keep, are not in the cache's size")
    layers = tuple(
        Layer(mixer=image, feed_forward=mlp, extra=projections) if i in cross else Layer(mixer=plain, feed_forward=mlp)
        for i in range(n)
    )
    rows = f.count("vocab_size")
    return Parts(layers=layers, vocab_size=rows + 8, head_vocab_size=rows)
