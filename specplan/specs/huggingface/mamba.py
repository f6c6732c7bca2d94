"""Decoders with Mamba layers, alone or among attention and experts."""

import dataclasses
from typing import Final

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.hybrid import LINEAR, layer_kinds
from specplan.specs.huggingface.mixers import (
    attention,
    mamba1,
    mamba2,
    matrix,
    present,
    vector,
)
from specplan.specs.huggingface.regular import (
    Parts,
)
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
                mixer=scan if kind in LINEAR else full,
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
    return Parts(layers=tuple(Layer(mixer=scan if kind in LINEAR else full, feed_forward=mlp) for kind in kinds))


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
        layers=tuple(Layer(mixer=scan if kind in LINEAR else full, feed_forward=feed_forward) for kind in kinds)
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
    stated = f.count("num_hidden_layers", None)
    if kinds is not None and stated not in (None, len(kinds)) and f.has("num_hidden_layers"):
        raise InputError(f"{f.where}: num_hidden_layers is {stated}, the layers' pattern lists {len(kinds)}")
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
