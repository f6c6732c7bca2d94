"""Gemma 3n and 4: per-layer embeddings, shared caches, heads of several sizes."""

from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.mixers import attention, matrix, table, vector
from specplan.specs.huggingface.regular import (
    Parts,
    periodic,
)
from specplan.values.model import DenseMLP, Experts, FeedForward, Layer, Shard, Weight


def _per_layer_embedding(f: Fields, n: int, width: int) -> tuple[Weight, ...]:
    rows = f.count("vocab_size_per_layer_input")
    return (
        table("embedding", "per_layer_embedding", rows * n * width),
        matrix("embedding", "per_layer_projection", n * width * f.hidden, Shard.REPLICATE),
        vector("norms", "per_layer_norm", width),
    )


def _per_layer_input(f: Fields, width: int) -> tuple[Weight, ...]:
    return (
        matrix("mlp", "per_layer_input", 2 * width * f.hidden, Shard.REPLICATE),
        vector("norms", "per_layer_input_norm", f.hidden),
    )


def gemma3n(f: Fields) -> Parts:
    """Gemma 3n: four residual streams (AltUp), low-rank side paths (LAuReL), per-layer embeddings, shared caches."""
    n, hidden = f.n_layers, f.hidden
    streams, rank = f.count("altup_num_inputs"), f.count("laurel_rank")
    stated = f.raw("intermediate_size")
    widths = (
        f.counts("intermediate_size", n, least=1) if isinstance(stated, list) else [f.count("intermediate_size")] * n
    )
    per_layer = f.count("hidden_size_per_layer_input")
    first_shared = n - f.count("num_kv_shared_layers", 0, least=0)
    windows = periodic(5)(f, n)
    side = (
        matrix("altup", "coefficients", streams * streams * (1 + streams) + streams * hidden, Shard.REPLICATE),
        vector("altup", "scale_and_norm", 2 * hidden),
        matrix("laurel", "laurel", 2 * rank * hidden, Shard.REPLICATE),
        vector("norms", "laurel_norm", hidden),
        *_per_layer_input(f, per_layer),
    )
    bias = f.flag("attention_bias")
    layers = tuple(
        Layer(
            mixer=attention(
                f, window=window, qkv_bias=bias, output_bias=bias, qk_norm="head", shares_kv=i >= first_shared
            ),
            feed_forward=DenseMLP(width=width),
            norm_vectors=4,
            extra=side,
        )
        for i, (window, width) in enumerate(zip(windows, widths or [], strict=True))
    )
    projections = matrix("altup", "projections", 2 * (streams - 1) * hidden * hidden, Shard.REPLICATE)
    return Parts(layers=layers, extra=(*_per_layer_embedding(f, n, per_layer), projections))


def gemma4(f: Fields) -> Parts:
    """Gemma 4: full layers with wider heads whose keys may be their values; shared caches.

    Optional: experts beside the dense feed-forward, and per-layer embeddings.
    """
    n = f.n_layers
    windows = _gemma4_windows(f, n)
    k_is_v = f.flag("attention_k_eq_v")
    global_dim = f.count("global_head_dim", 512)
    global_kv = f.count("num_global_key_value_heads", None) if k_is_v or not f.has("attention_k_eq_v") else None
    overrides = f.block("per_layer_config") or {}
    first_shared = n - f.count("num_kv_shared_layers", 0, least=0)
    width, wide = f.count("intermediate_size"), f.flag("use_double_wide_mlp")
    per_layer = f.count("hidden_size_per_layer_input", 0, least=0)
    bias = f.flag("attention_bias")
    routed, beside = _gemma4_experts(f, width)
    layers = []
    for i, window in enumerate(windows):
        dims = {"head_dim": f.head_dim, "kv_heads": f.kv_heads}
        if window is None:
            dims = {"head_dim": global_dim, "kv_heads": global_kv or f.kv_heads}
        own = overrides.get(str(i)) or overrides.get(f"{i:02d}") or {}
        dims["head_dim"] = f.whole(own.get("head_dim", dims["head_dim"]), "per_layer_config.head_dim")
        dims["kv_heads"] = f.whole(own.get("num_key_value_heads", dims["kv_heads"]), "per_layer_config")
        shared = i >= first_shared
        mixer = attention(
            f,
            window=window,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm="head",
            shares_kv=shared,
            key_is_value=k_is_v and window is None,
            **dims,
        )
        feed_forward: FeedForward = routed or DenseMLP(width=width * (2 if wide and shared else 1))
        extra = (*beside, *(_per_layer_input(f, per_layer) if per_layer else ()))
        layers.append(Layer(mixer=mixer, feed_forward=feed_forward, norm_vectors=7 if routed else 4, extra=extra))
    outside = _per_layer_embedding(f, n, per_layer) if per_layer else ()
    return Parts(layers=tuple(layers), extra=outside)


def _gemma4_windows(f: Fields, n: int) -> list[int | None]:
    n_full = f.count("num_full_attn_layers", None)
    if f.words("layer_types") is None and n_full is not None and n % n_full == 0:
        windows = periodic(n // n_full)(f, n)
    else:
        windows = periodic(6)(f, n)
    return [*windows[:-1], None]  # the last layer is always full


def _gemma4_experts(f: Fields, width: int) -> tuple[Experts | None, tuple[Weight, ...]]:
    """Experts beside the dense feed-forward, which is counted as their shared expert; and the router's vectors."""
    if not f.flag("enable_moe_block"):
        return None, ()
    count = f.count("num_experts")
    routed = Experts(
        count=count, per_token=f.count("top_k_experts"), width=f.count("moe_intermediate_size"), shared_width=width
    )
    return routed, (vector("router", "scales", f.hidden + count),)
