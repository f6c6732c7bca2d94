"""Decoders with recurrent layers: gated delta nets, Mamba, short convolutions, and their mixtures with attention."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.mixers import (
    attention,
    gated_delta_net,
    kimi_delta,
    latent,
    mamba1,
    mamba2,
    matrix,
    present,
    short_conv,
    table,
    vector,
)
from specplan.specs.huggingface.regular import (
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

_LINEAR: Final = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")


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
    return attention(f, window=window, qkv_bias=bias, output_bias=bias, qk_norm="head", output_gate=True)


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
    if stated is not None:
        full_layers = {f.whole(i, "full_attn_layers") - 1 for i in stated.get("full_attn_layers", [])}
        kinds = ["full_attention" if i in full_layers else "linear_attention" for i in range(n)]
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
    routed, mlp = experts(f, _KIMI_EXPERTS), DenseMLP(width=f.count("intermediate_size"))
    sparse = dense_first(f, n, 1)
    return Parts(
        layers=tuple(
            Layer(mixer=delta if kind == "linear_attention" else full, feed_forward=routed if s else mlp)
            for kind, s in zip(kinds, sparse, strict=True)
        ),
        tied=False,
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


# Mamba.


def mamba(f: Fields) -> Parts:
    """Mamba and Falcon-Mamba: one mixer per layer, no feed-forward."""
    rank = f.raw("time_step_rank", "auto")
    mixer = mamba1(
        f,
        width=f.count("intermediate_size", None) or f.count("expand") * f.hidden,
        state=f.count("state_size"),
        kernel=f.count("conv_kernel"),
        rank=-(-f.hidden // 16) if rank == "auto" else f.whole(rank, "time_step_rank"),
        conv_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias"),
    )
    return Parts(layers=(Layer(mixer=mixer, feed_forward=None, norm_vectors=1),) * f.n_layers)


def mamba2_decoder(f: Fields) -> Parts:
    """Mamba-2."""
    mixer = mamba2(
        f,
        heads=f.count("num_heads"),
        head_dim=f.count("head_dim"),
        state=f.count("state_size"),
        groups=f.count("n_groups"),
        kernel=f.count("conv_kernel"),
        conv_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias"),
    )
    return Parts(layers=(Layer(mixer=mixer, feed_forward=None, norm_vectors=1),) * f.n_layers)


def _mamba_dt(f: Fields, *, norms: bool = False, heads: int = 1) -> Recurrent:
    """Mamba in the spelling of Jamba and Zamba."""
    rank = f.raw("mamba_dt_rank", "auto")
    return mamba1(
        f,
        width=f.count("mamba_expand") * f.hidden,
        state=f.count("mamba_d_state"),
        kernel=f.count("mamba_d_conv"),
        rank=-(-f.hidden // 16) if rank == "auto" else f.whole(rank, "mamba_dt_rank"),
        conv_bias=f.flag("mamba_conv_bias", True),
        bias=f.flag("mamba_proj_bias"),
        norms=norms,
        heads=heads,
    )


def jamba(f: Fields) -> Parts:
    """Jamba: Mamba with an attention layer per period, experts in every other layer."""
    n = f.n_layers
    period, offset = f.count("attn_layer_period"), f.count("attn_layer_offset", least=0)
    kinds = layer_kinds(f, n, ["full_attention" if i % period == offset else "linear_attention" for i in range(n)])
    e_period, e_offset = f.count("expert_layer_period"), f.count("expert_layer_offset", least=0)
    scan = _mamba_dt(f, norms=True)
    width, count = f.count("intermediate_size"), f.count("num_experts")
    mlp = DenseMLP(width=width)
    routed = Experts(count=count, per_token=f.count("num_experts_per_tok"), width=width) if count > 1 else mlp
    full = attention(f)
    return Parts(
        layers=tuple(
            Layer(
                mixer=scan if kind in _LINEAR else full,
                feed_forward=routed if i % e_period == e_offset else mlp,
            )
            for i, kind in enumerate(kinds)
        )
    )


def _mamba_d(f: Fields, *, norm: bool = True, width: int | None = None, out_bias: bool | None = None) -> Recurrent:
    """Mamba-2 in the spelling of Bamba, Granite and Falcon-H1."""
    total = width or f.count("mamba_expand") * f.hidden
    heads = f.count("mamba_n_heads")
    size = f.raw("mamba_d_head", "auto")
    head_dim = total // heads if size == "auto" else f.whole(size, "mamba_d_head")
    if heads * head_dim != total:
        raise InputError(f"{f.where}: {heads} Mamba heads of {head_dim} are not the inner width {total}")
    return mamba2(
        f,
        heads=heads,
        head_dim=head_dim,
        state=f.count("mamba_d_state"),
        groups=f.count("mamba_n_groups"),
        kernel=f.count("mamba_d_conv"),
        conv_bias=f.flag("mamba_conv_bias", True),
        bias=f.flag("mamba_proj_bias"),
        out_bias=out_bias,
        norm=norm,
    )


def bamba(f: Fields) -> Parts:
    """Bamba: Mamba-2 layers, attention at ``attn_layer_indices``."""
    n = f.n_layers
    full_layers = set(f.counts("attn_layer_indices") or [])
    kinds = layer_kinds(f, n, ["full_attention" if i in full_layers else "linear_attention" for i in range(n)])
    bias = f.flag("attention_bias")
    full = attention(f, qkv_bias=bias, output_bias=bias)
    scan, mlp = _mamba_d(f), DenseMLP(width=f.count("intermediate_size"), bias=f.flag("mlp_bias"))
    return Parts(layers=tuple(Layer(mixer=scan if kind in _LINEAR else full, feed_forward=mlp) for kind in kinds))


def falcon_h1(f: Fields) -> Parts:
    """Falcon-H1: attention and Mamba-2 side by side in each layer, written here one after the other."""
    bias = f.flag("attention_bias")
    scan = _mamba_d(
        f,
        width=f.count("mamba_d_ssm", None),
        norm=f.flag("mamba_rms_norm"),
        out_bias=f.flag("projectors_bias"),
    )
    pair = (
        Layer(mixer=scan, feed_forward=None, norm_vectors=1),
        Layer(
            mixer=attention(f, qkv_bias=bias, output_bias=bias),
            feed_forward=DenseMLP(width=f.count("intermediate_size"), bias=f.flag("mlp_bias")),
            norm_vectors=1,
        ),
    )
    return Parts(layers=pair * f.n_layers)


def granite_hybrid(f: Fields) -> Parts:
    """Granite 4: Mamba-2 and attention; a shared feed-forward beside experts, or alone."""
    n = f.n_layers
    kinds = layer_kinds(f, n, ["linear_attention"] * n)
    bias = f.flag("attention_bias")
    full, scan = attention(f, qkv_bias=bias, output_bias=bias), _mamba_d(f)
    shared, count = f.count("shared_intermediate_size"), f.count("num_local_experts", 0, least=0)
    feed_forward: FeedForward = (
        Experts(
            count=count,
            per_token=f.count("num_experts_per_tok"),
            width=f.count("intermediate_size"),
            shared_width=shared,
        )
        if count
        else DenseMLP(width=shared)
    )
    return Parts(
        layers=tuple(Layer(mixer=scan if kind in _LINEAR else full, feed_forward=feed_forward) for kind in kinds)
    )


_PATTERN: Final = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def _nemotron_kinds(f: Fields, name: str, pattern_name: str) -> list[str] | None:
    kinds = f.words(name)
    if kinds is not None:
        return kinds
    pattern = f.word(pattern_name, None)
    if pattern is None:
        return None
    unknown = set(pattern) - set(_PATTERN) - {"|"}
    if unknown:
        raise UnsupportedError(
            f"{f.where}: {pattern_name} holds layers of kind {min(unknown)!r}, which cannot be counted"
        )
    return [_PATTERN[mark] for mark in pattern if mark != "|"]


def nemotron_h(f: Fields) -> Parts:
    """Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention, feed-forward or experts, with one norm."""
    kinds = _nemotron_kinds(f, "layers_block_type", "hybrid_override_pattern")
    if kinds is None:
        raise InputError(
            f"{f.where}: neither 'layers_block_type' nor 'hybrid_override_pattern' says what the layers are"
        )
    layers = tuple(_nemotron_layer(f, kind) for kind in kinds)
    n_mtp = f.count("num_nextn_predict_layers", 0, least=0)
    mtp: tuple[Layer, ...] = ()
    if n_mtp:
        inner = _nemotron_kinds(f, "mtp_layers_block_type", "mtp_hybrid_override_pattern") or ["full_attention", "moe"]
        joined = (
            matrix("attention", "eh_proj", 2 * f.hidden * f.hidden, Shard.REPLICATE),
            vector("norms", "mtp_norms", 3 * f.hidden),
        )
        first = [_nemotron_layer(f, kind) for kind in inner]
        mtp = (dataclasses.replace(first[0], extra=(*first[0].extra, *joined)), *first[1:]) * n_mtp
    return Parts(layers=layers, mtp_layers=mtp, tied=False)


def _nemotron_layer(f: Fields, kind: str) -> Layer:
    match kind:
        case "linear_attention" | "mamba":
            mixer = mamba2(
                f,
                heads=f.count("mamba_num_heads"),
                head_dim=f.count("mamba_head_dim"),
                state=f.count("ssm_state_size"),
                groups=f.count("n_groups"),
                kernel=f.count("conv_kernel"),
                conv_bias=f.flag("use_conv_bias", True),
                bias=f.flag("use_bias"),
                state_format=f.word("mamba_ssm_cache_dtype", None),
            )
            return Layer(mixer=mixer, feed_forward=None, norm_vectors=1)
        case "full_attention" | "attention":
            return Layer(mixer=attention(f), feed_forward=None, norm_vectors=1)
        case "mlp":
            mlp = DenseMLP(width=f.count("intermediate_size"), gated=False, bias=f.flag("mlp_bias"))
            return Layer(mixer=None, feed_forward=mlp, norm_vectors=1)
        case "moe":
            return _nemotron_experts(f)
    raise UnsupportedError(f"{f.where}: layers of kind {kind!r} cannot be counted in {f.model_type}")


def _nemotron_experts(f: Fields) -> Layer:
    """Experts behind an optional projection to a smaller latent; the shared expert reads the full width."""
    hidden, count, width = f.hidden, f.count("n_routed_experts"), f.count("moe_intermediate_size")
    if not f.has("moe_shared_expert_intermediate_size") and not f.nested:
        raise InputError(
            f"{f.where}: field 'moe_shared_expert_intermediate_size' is missing (such extracts of a config leave out "
            f"moe_latent_size too, and the counts need both)"
        )
    shared = f.count("moe_shared_expert_intermediate_size")
    per_token, biased = f.count("num_experts_per_tok"), f.flag("mlp_bias")
    inner = f.count("moe_latent_size", None)
    if inner is None:
        routed = Experts(
            count=count, per_token=per_token, width=width, gated=False, shared_width=shared, shared_bias=biased
        )
        return Layer(mixer=None, feed_forward=routed, norm_vectors=1)
    biases = inner + 2 * hidden + shared if biased else 0
    extra = present(
        matrix("experts", "latent_proj", 2 * inner * hidden, Shard.REPLICATE),
        vector("experts", "latent_bias", biases),
        matrix("router", "router", count * hidden, Shard.REPLICATE, quantizable=False),
        matrix("experts", "mlp", 2 * width * inner, routed=(count, per_token), copies=count),
        matrix("shared_experts", "mlp", 2 * shared * hidden),
    )
    return Layer(mixer=None, feed_forward=None, norm_vectors=1, extra=extra)


# Zamba: one transformer block, applied again and again between Mamba layers.


def zamba(f: Fields) -> Parts:
    """Zamba: Mamba layers; before some of them a shared attention block that reads [hidden; embedding]."""
    n = f.n_layers
    kinds = layer_kinds(f, n, _zamba_kinds(f, n))
    scan = _mamba_dt(f, heads=f.count("n_mamba_heads"))
    mlp = DenseMLP(width=f.count("intermediate_size"))
    block = Layer(mixer=_wide_attention(f), feed_forward=mlp, norm_vectors=3)
    return Parts(layers=_shared_blocks(f, kinds, scan, [block], {}))


def _zamba_kinds(f: Fields, n: int) -> list[str]:
    period, offset = f.count("attn_layer_period"), f.count("attn_layer_offset", least=0)
    kinds = ["linear_attention", "linear_attention", "hybrid"]
    kinds += ["hybrid" if i % period == offset else "linear_attention" for i in range(max(n - 3, 0))]
    return kinds[:n]


def _wide_attention(f: Fields) -> Attention:
    """Attention over twice the hidden size: the residual stream beside the embedding."""
    wide = f.count("attention_hidden_size", 2 * f.hidden)
    dim = f.count("attention_head_dim", wide // f.heads)
    return attention(f, head_dim=dim, input_size=wide)


def _shared_blocks(
    f: Fields, kinds: list[str], scan: Recurrent, blocks: list[Layer], adapters: dict[int, tuple[Weight, ...]]
) -> tuple[Layer, ...]:
    """Mamba layers; a hybrid one is preceded by the next of the shared `blocks` and a projection of its own.

    The first application of a block holds its weights; `adapters` of each application are always its own.
    """
    plain = Layer(mixer=scan, feed_forward=None, norm_vectors=1)
    behind = Layer(
        mixer=scan,
        feed_forward=None,
        norm_vectors=1,
        extra=(matrix("recurrent", "block_proj", f.hidden * f.hidden),),
    )
    layers: list[Layer] = []
    applied = 0
    for kind in kinds:
        if kind == "hybrid":
            block = blocks[applied % len(blocks)]
            layers.append(
                dataclasses.replace(block, extra=adapters.get(applied, ()), only_extra=applied >= len(blocks))
            )
            layers.append(behind)
            applied += 1
        else:
            layers.append(plain)
    if applied > len(blocks):
        f.assume(f"weights of shared blocks are counted once, though {applied} applications read them")
    return tuple(layers)


def zamba2(f: Fields) -> Parts:
    """Zamba2: Mamba-2 layers; shared blocks with low-rank adapters per application."""
    n, hidden = f.n_layers, f.hidden
    standard = ["linear_attention"] + (["linear_attention"] * 5 + ["hybrid"]) * 7 + ["linear_attention"] * 4
    standard += ["hybrid"] + ["linear_attention"] * 3 + ["hybrid"] + ["linear_attention"] * 2
    stated = f.counts("hybrid_layer_ids")
    if stated is not None:
        standard = ["hybrid" if i in set(stated) else "linear_attention" for i in range(n)]
    kinds = layer_kinds(f, n, standard, name="layers_block_type")
    if len(kinds) < n:
        raise InputError(f"{f.where}: field 'layers_block_type' has {len(kinds)} entries for {n} layers")
    kinds = kinds[:n]
    heads, width = f.count("n_mamba_heads"), f.count("mamba_expand") * hidden
    scan = mamba2(
        f,
        heads=heads,
        head_dim=width // heads,
        state=f.count("mamba_d_state"),
        groups=f.count("mamba_ngroups"),
        kernel=f.count("mamba_d_conv"),
        conv_bias=True,
        bias=f.flag("add_bias_linear"),
    )
    inner, rank = f.count("intermediate_size", None) or 4 * hidden, f.count("adapter_rank")
    mlp = DenseMLP(width=inner, bias=f.flag("add_bias_linear"))
    block = Layer(mixer=_wide_attention(f), feed_forward=mlp, norm_vectors=3)
    # Queries, keys and values each pass a low rank at the attention's width.
    wide = 2 * hidden
    on_attention = 3 * 2 * rank * wide if f.flag("use_shared_attention_adapter") else 0
    adapter = present(
        matrix("mlp", "adapter", rank * (hidden + 2 * inner)),
        matrix("attention", "adapter", on_attention),
    )
    n_blocks = f.count("num_mem_blocks")
    applications = kinds.count("hybrid")
    return Parts(layers=_shared_blocks(f, kinds, scan, [block] * n_blocks, dict.fromkeys(range(applications), adapter)))


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
        layers=tuple(Layer(mixer=lightning if kind in _LINEAR else full, feed_forward=routed) for kind in kinds)
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
    return Parts(
        layers=tuple(Layer(mixer=recurrence if kind in _LINEAR else local, feed_forward=mlp) for kind in types)
    )


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
    n, hidden, heads = f.n_layers, f.hidden, f.count("num_heads")
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
    return Parts(layers=(layer,) * n, final_norm_vectors=1 if f.flag("add_out_norm", True) else 0)
