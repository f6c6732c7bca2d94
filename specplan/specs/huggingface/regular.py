"""Decoders of one plan: the same mixer and feed-forward in every layer, up to windows and which layers are routed.

`regular` makes a builder from the traits in which such architectures differ; most architectures are one call of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from specplan.errors import InputError
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.mixers import attention, matrix, vector
from specplan.values.model import Attention, DenseMLP, Experts, LatentAttention, Layer, Shard, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a builder finds in a config; the rest of a `Model` is common to all.

    Attributes
    ----------
    layers : tuple of Layer
    final_norm_vectors : int
        Norm vectors after the last layer.
    extra : tuple of Weight
        Weights outside layers.
    mtp_layers : tuple of Layer
        Multi-token prediction layers in the checkpoint.
    tied : bool or None
        Tied embeddings where the architecture fixes them; None for the config's flag.
    embedding_size : int or None
        Width of embedding and head where it is not the hidden size.
    head_vocab_size : int or None
        Rows of the output head where they differ from the embedding's.
    vocab_size : int or None
        Rows of the embedding where they differ from the config's ``vocab_size``.
    """

    layers: tuple[Layer, ...]
    final_norm_vectors: int = 1
    extra: tuple[Weight, ...] = ()
    mtp_layers: tuple[Layer, ...] = ()
    tied: bool | None = None
    embedding_size: int | None = None
    head_vocab_size: int | None = None
    vocab_size: int | None = None


Builder = Callable[[Fields], Parts]
Flag = bool | str | Callable[[Fields], bool]
"""A trait that holds, that the config's flag of this name decides, or that a function decides."""

Windows = Callable[[Fields, int], list[int | None]]


def on(f: Fields, flag: Flag) -> bool:
    """Whether a trait holds for the config."""
    if isinstance(flag, bool):
        return flag
    return f.flag(flag) if isinstance(flag, str) else flag(f)


# Windows: which layers slide.


def window_size(f: Fields, name: str = "sliding_window") -> int | None:
    """Window that the config states; null or 0 for none."""
    return f.count(name, None, least=0) or None


def no_window(_f: Fields, n: int) -> list[int | None]:
    """Every layer sees everything."""
    return [None] * n


def every_layer(f: Fields, n: int) -> list[int | None]:
    """Every layer slides if the config states a window (Mistral).

    A top-level config that leaves the field out is taken to have none: publishers write it where there is one.
    """
    if f.words("layer_types") is None and not f.nested and "sliding_window" not in f.config:
        return [None] * n
    return by_types(f, n) or [window_size(f)] * n


def by_types(f: Fields, n: int, words: tuple[str, ...] = ("sliding",)) -> list[int | None] | None:
    """Windows by the config's ``layer_types``; None where it has none."""
    types = f.words("layer_types", n)
    if types is None:
        return None
    slides = [any(word in kind for word in words) for kind in types]
    return [window_size(f) if sliding else None for sliding in slides] if any(slides) else [None] * n


def periodic(period: int | str, *, full_at: int = -1, default: int = 4) -> Windows:
    """All layers slide but one of each `period` (a number or the config's field): the last, or the one at `full_at`."""

    def windows(f: Fields, n: int) -> list[int | None]:
        given = by_types(f, n)
        if given is not None:
            return given
        every = period
        if isinstance(every, str):
            pattern = f.raw(every, default)
            every = len(pattern) if isinstance(pattern, str) else f.whole(pattern, every)
        size = window_size(f)
        return [None if i % every == full_at % every else size for i in range(n)]

    return windows


def from_layer(f: Fields, n: int) -> list[int | None]:
    """Layers from ``max_window_layers`` on slide where ``use_sliding_window`` says so (Qwen2)."""
    f.raw("max_window_layers", None)  # says nothing where the layers' types are listed, or nothing slides
    given = by_types(f, n)
    if given is not None:
        return given
    size = window_size(f) if f.flag("use_sliding_window") else None
    first = f.count("max_window_layers", 0, least=0)
    return [size if i >= first else None for i in range(n)]


# Experts: which layers are routed, and how many experts of which size.


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Where a config states its experts.

    Attributes
    ----------
    count, chosen, width : str
        Fields with the number of experts, experts per token, and a routed expert's intermediate size.
    shared_count : str
        Field with the number of shared experts, each as wide as a routed one (or as `shared_each`).
    shared_width : str
        Field with the intermediate size of all shared experts together.
    shared_bias : flag
        Biases in the shared experts.
    shared_gate : bool
        A gate on the shared expert.
    router_bias, bias : bool or str
        Bias on the router; biases in the experts.
    correction : bool
        A learned number per expert beside the router that is a parameter of the model (others keep it as a buffer).
    gated : bool
        Gated experts.
    sparse : callable
        Which layers are routed.
    """

    count: str
    chosen: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    shared_count: str = ""
    shared_width: str = ""
    shared_bias: Flag = False
    shared_gate: bool = False
    router_bias: Flag = False
    correction: bool = False
    bias: Flag = False
    gated: bool = True
    sparse: Callable[[Fields, int], list[bool]] | None = None


def all_sparse(_f: Fields, n: int) -> list[bool]:
    """Every layer is routed."""
    return [True] * n


def dense_first(f: Fields, n: int, default: int | None = None) -> list[bool]:
    """Routed after the first dense layers (``mlp_layer_types``, ``moe_layer_freq``, ``first_k_dense_replace``)."""
    types = f.words("mlp_layer_types", n)
    if types is not None:
        return [kind != "dense" for kind in types]
    every = f.raw("moe_layer_freq", 1)
    if isinstance(every, list):
        return [flag != 0 for flag in f.counts("moe_layer_freq", n) or []]
    every = f.whole(every, "moe_layer_freq")
    first = f.count("first_k_dense_replace", default if default is not None else 0, least=0)
    return [i >= first and i % every == 0 for i in range(n)]


def dense_start(default: int) -> Callable[[Fields, int], list[bool]]:
    """`dense_first` for configs that need not say how many layers are dense."""
    return lambda f, n: dense_first(f, n, default)


def sparse_step(f: Fields, n: int) -> list[bool]:
    """Qwen's rule: every ``decoder_sparse_step``-th layer, without ``mlp_only_layers``."""
    types = f.words("mlp_layer_types", n)
    if types is not None:
        return [kind != "dense" for kind in types]
    step = f.count("decoder_sparse_step", 1)
    dense = set(f.counts("mlp_only_layers") or [])
    return [i not in dense and (i + 1) % step == 0 for i in range(n)]


def experts(f: Fields, r: Routed) -> Experts:
    """Experts of one routed layer."""
    count = f.count(r.count)
    width = f.count(r.width)
    per_token = f.count(r.chosen, None)
    if per_token is None:
        f.assume(f"{r.chosen} is not stated: every expert is counted as read in each pass")
        per_token = count
    if per_token > count:
        raise InputError(f"{f.where}: {r.chosen} is {per_token}, more than the {count} experts")
    shared = 0
    if r.shared_width:
        shared = f.count(r.shared_width, 0, least=0)
    elif r.shared_count:
        shared = f.count(r.shared_count, 0, least=0) * width
    return Experts(
        count=count,
        per_token=per_token,
        width=width,
        gated=r.gated,
        bias=on(f, r.bias),
        shared_width=shared,
        shared_bias=shared > 0 and on(f, r.shared_bias),
        shared_gate=r.shared_gate and shared > 0,
        router_bias=on(f, r.router_bias) or r.correction,
    )


GROUPED: Final = Routed(count="n_routed_experts", shared_count="n_shared_experts", sparse=dense_first)
"""DeepSeek's spelling."""


def mlp_width(f: Fields, name: str = "intermediate_size") -> int:
    """Intermediate size; four times the hidden size where GPT-like configs leave it null."""
    return int(f.count(name, None) or 4 * f.hidden)


def regular(
    *,
    qkv_bias: Flag = False,
    output_bias: Flag = False,
    mlp_bias: Flag = False,
    gated: bool = True,
    qk_norm: str | Callable[[Fields], str] = "none",
    norms: int | Callable[[Fields], int] = 2,
    norm_bias: Flag = False,
    final_norms: int | None = None,
    windows: Windows = no_window,
    routed: Routed | None = None,
    width: str = "intermediate_size",
    attention_of: Callable[[Fields, int | None], Any] | None = None,
    extra: Callable[[Fields], tuple[Weight, ...]] | None = None,
    layer_extra: Callable[[Fields], tuple[Weight, ...]] | None = None,
    head_bias: Flag = False,
    mtp: Callable[[Fields, Layer], tuple[Layer, ...]] | None = None,
    **traits: Any,
) -> Builder:
    """Builder of a regular decoder.

    Parameters
    ----------
    qkv_bias, output_bias, mlp_bias, head_bias : flag
        Biases on the projections, in the feed-forward, on the output head.
    gated : bool
        Three matrices per feed-forward instead of two.
    qk_norm : str
        ``none``, ``head`` or ``all``, or a function of the config.
    norms : int
        Norms per layer. `norm_bias`: each is a vector and a bias.
    final_norms : int or None
        Norm vectors after the last layer, where it is not one like the others.
    windows : callable
        Window of each layer.
    routed : Routed or None
        Where the config states experts; None for a dense decoder.
    width : str
        Field with the dense intermediate size.
    attention_of : callable
        Mixer for a window, where it is not common attention.
    extra, layer_extra : callable
        Weights outside layers and in each layer that the traits do not say.
    mtp : callable
        Multi-token prediction layers, given the last layer.
    traits
        Further fields of `Attention`.
    """

    def mixer(f: Fields, window: int | None) -> Any:
        if attention_of is not None:
            return attention_of(f, window)
        return attention(
            f,
            window=window,
            qkv_bias=on(f, qkv_bias),
            output_bias=on(f, output_bias),
            qk_norm=qk_norm if isinstance(qk_norm, str) else qk_norm(f),
            **traits,
        )

    def build(f: Fields) -> Parts:
        n = f.n_layers
        each = norms if isinstance(norms, int) else norms(f)
        vectors = 2 if on(f, norm_bias) else 1
        sparse = (routed.sparse or all_sparse)(f, n) if routed is not None else [False] * n
        more = layer_extra(f) if layer_extra is not None else ()
        known: dict[tuple[int | None, bool], Layer] = {}
        layers = []
        for window, is_sparse in zip(windows(f, n), sparse, strict=True):
            key = (window, is_sparse)
            if key not in known:
                feed_forward = (
                    experts(f, routed)
                    if is_sparse and routed is not None
                    else DenseMLP(width=mlp_width(f, width), gated=gated, bias=on(f, mlp_bias))
                )
                known[key] = Layer(
                    mixer=mixer(f, window), feed_forward=feed_forward, norm_vectors=each * vectors, extra=more
                )
            layers.append(known[key])
        outside = list(extra(f)) if extra is not None else []
        if on(f, head_bias):
            outside.append(vector("head", "lm_head_bias", f.count("vocab_size"), Shard.SPLIT))
        return Parts(
            layers=tuple(layers),
            final_norm_vectors=vectors if final_norms is None else final_norms,
            extra=tuple(outside),
            mtp_layers=mtp(f, layers[-1]) if mtp is not None else (),
        )

    return build


def gate_projection(f: Fields) -> tuple[Weight, ...]:
    """Output gate with its own projection as wide as the queries."""
    return (matrix("attention", "gate_proj", f.heads * f.head_dim * f.hidden),)


def head_gate(f: Fields) -> tuple[Weight, ...]:
    """Output gate with one number per head."""
    return (matrix("attention", "gate_proj", f.heads * f.hidden),)


def mtp_layer(f: Fields, last: Layer, n: int, *, norms: int = 3) -> tuple[Layer, ...]:
    """`n` multi-token prediction layers in DeepSeek-V3's form.

    A layer like the last one, behind a projection of [norm(embedding); norm(hidden)] from twice the hidden size, with a
    norm of its own before the shared head.
    """
    if n == 0:
        return ()
    # Engines and checkpoints leave the joining projection plain.
    joined = matrix("attention", "eh_proj", 2 * f.hidden * f.hidden, Shard.REPLICATE, quantizable=False)
    own = vector("norms", "mtp_norms", norms * f.hidden)
    mixer = last.mixer
    if isinstance(mixer, LatentAttention) and mixer.index_shared:
        mixer = replace(mixer, index_shared=False)  # an indexer of its own: no earlier layer chooses for it
    layer = Layer(
        mixer=mixer,
        feed_forward=last.feed_forward,
        norm_vectors=last.norm_vectors,
        extra=(*last.extra, joined, own),
    )
    return (layer,) * n


def nextn(f: Fields, last: Layer) -> tuple[Layer, ...]:
    """Multi-token prediction layers that ``num_nextn_predict_layers`` states."""
    return mtp_layer(f, last, f.count("num_nextn_predict_layers", 0, least=0))


def plain_attention(f: Fields, window: int | None) -> Attention:
    """Grouped-query attention without biases or norms."""
    return attention(f, window=window)
