"""Draft heads: EAGLE, EAGLE-3, DFlash, DSpark, Medusa, MLP speculators, and multi-token prediction layers of a target.

A head shares what its target has: `Model.embedding` and `Model.head` are False where it uses the target's. Only weights
of its own are counted; its layers with attention are the layers it adds to the cache.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.mixers import markov_head, matrix, present, table, vector
from specplan.specs.huggingface.regular import Builder
from specplan.values.formats import lookup
from specplan.values.model import Attention, LatentAttention, Layer, Model, Shard, Weight


def mtp_draft(target: Model) -> Model:
    """Draft made of the multi-token prediction layers that `target` carries; embedding and head are the target's.

    Raises
    ------
    InputError
        When the target carries none.
    """
    if not target.mtp_layers:
        raise InputError(f"{target.name}: carries no multi-token prediction layers, so it has no MTP draft")
    return dataclasses.replace(
        target,
        name=f"{target.name} (MTP)",
        layers=target.mtp_layers,
        mtp_layers=(),
        extra=(),
        final_norm_vectors=0,
        head=False,
        embedding=False,
        published_params=None,
        draft_method="mtp",
        target_hidden_size=target.hidden_size,
    )


def build_draft(f: Fields, method: str, family: Builder) -> Model:
    """Draft head of kind `method`; `family` builds the layers of the decoder type that it states."""
    match method:
        case "eagle":
            return _eagle(f, family)
        case "eagle3":
            return _eagle3(f, family)
        case "dflash" | "dspark":
            return _dflash(f, family, method)
        case "medusa":
            return _medusa(f)
        case "mlp_speculator":
            return _mlp_speculator(f)
    raise UnsupportedError(f"{f.where}: draft method {method!r} cannot be counted")


def _model(f: Fields, method: str, layers: tuple[Layer, ...], extra: tuple[Weight, ...], **more: Any) -> Model:
    fields: dict[str, Any] = {
        "name": method,
        "source": f.where,
        "hidden_size": more.get("hidden_size") or f.hidden,
        "vocab_size": f.count("vocab_size"),
        "tied_embeddings": False,
        "layers": layers,
        "weight_format": lookup("bfloat16"),
        "extra": extra,
        "head": False,
        "embedding": False,
        "draft_method": method,
    }
    return Model(**fields | more)


def _eagle(f: Fields, family: Builder) -> Model:
    """EAGLE: decoder layers behind a projection of [embedding; hidden].

    The first layer has no input norm, and there is no last norm, but in the latent-attention heads. Embedding and head
    are the target's.
    """
    layers = family(f).layers
    latent = isinstance(layers[0].mixer, LatentAttention)
    first = layers[0] if latent else dataclasses.replace(layers[0], norm_vectors=max(layers[0].norm_vectors - 1, 0))
    biased = f.flag("bias") if f.has("bias") else f.flag("eagle_fc_bias") or f.flag("fusion_bias")
    own_norms = f.flag("layernorms")  # speculators' form of HASS: norms on both inputs and on the output
    fc = present(
        matrix("head", "fc", 2 * f.hidden * f.hidden, Shard.REPLICATE, quantizable=False),
        vector("head", "fc_bias", f.hidden if biased else 0),
        vector("norms", "input_norms", (2 if latent or own_norms else 0) * f.hidden),
    )
    return _model(f, "eagle", (first, *layers[1:]), fc, final_norm_vectors=1 if latent or own_norms else 0)


def _layer_ids(f: Fields, *names: str) -> tuple[int, ...]:
    """Target layers whose states a head reads, under any of the names, in the config or a block of it."""
    for block in (f.config, f.block("eagle_config"), f.block("dflash_config")):
        for name in names:
            ids = (block or {}).get(name)
            if isinstance(ids, list) and ids:
                f.read[name] = ids
                return tuple(f.whole(i, name, 0) for i in ids)
    return ()


_EAGLE3_IDS: Final = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")


def _setting(f: Fields, block: str, name: str, default: bool) -> bool:
    """Flag in a block of the config, or in the config itself."""
    inside = (f.block(block) or {}).get(name)
    return inside if isinstance(inside, bool) else f.flag(name, default)


def _eagle3(f: Fields, family: Builder) -> Model:
    """EAGLE-3: one layer whose attention reads [embedding; hidden], and a head of its own over fewer words.

    A projection joins (usually three of) the target's hidden states, with norms before it in some (EAGLE-3.1). The
    embedding is the target's, unless the head is of another width than its target.
    """
    layers = family(f).layers
    hidden, target_hidden = f.hidden, f.count("target_hidden_size", f.hidden)
    first = layers[0]
    if not isinstance(first.mixer, Attention | LatentAttention):
        raise UnsupportedError(f"{f.where}: an EAGLE-3 head whose layer is not attention cannot be counted")
    wide = dataclasses.replace(
        first,
        mixer=dataclasses.replace(first.mixer, input_size=2 * hidden),
        norm_vectors=first.norm_vectors + 1,
    )
    after = tuple(dataclasses.replace(layer, norm_vectors=layer.norm_vectors + 1) for layer in layers[1:])
    ids = _layer_ids(f, *_EAGLE3_IDS)
    joins = _setting(f, "eagle_config", "use_aux_hidden_state", True)
    n_aux = f.count("num_aux_hidden_states", len(ids) or 3) if joins else 0
    norms = _setting(f, "eagle_config", "norm_before_fc", False) + f.flag("fc_norm")
    extra = present(
        matrix("head", "fc", n_aux * target_hidden * hidden, Shard.REPLICATE),
        vector("norms", "fc_norms", norms * n_aux * target_hidden),
    )
    f.flag("norm_before_residual")  # where a norm is applied, and to what, changes no count
    f.flag("norm_output")
    rows = f.count("draft_vocab_size", None)
    if rows is None:
        rows = f.count("vocab_size")
        f.assume("draft_vocab_size is not stated: the head has as many rows as the vocabulary")
    own = target_hidden != hidden
    if own:
        f.assume("the head has an embedding of its own, for its width is not its target's")
    return _model(
        f, "eagle3", (wide, *after), extra, head=True, head_vocab_size=rows, embedding=own,
        target_hidden_size=target_hidden, target_layer_ids=ids,
    )  # fmt: skip


def _dflash(f: Fields, family: Builder, method: str) -> Model:
    """DFlash: decoder layers that fill a block of positions at once; DFlash2, Domino and DSpark correct the block.

    Their context is projected hidden states of several target layers. Embedding and head are the target's.
    """
    stated = f.block("dflash_config") or {}
    layers = tuple(_windowed(layer, f, stated) for layer in family(f).layers)
    ids = _layer_ids(f, "target_layer_ids", "dspark_target_layer_ids", "aux_hidden_state_layer_ids", *_EAGLE3_IDS)
    n_context = len(ids)
    if not ids:
        n_context = len(layers)
        f.assume(f"the context joins {n_context} target layers, one per layer (target_layer_ids is not given)")
    joins = _setting(f, "dflash_config", "use_aux_hidden_state", True)
    target_hidden = f.count("target_hidden_size", f.hidden)
    extra = present(
        matrix("head", "fc", n_context * target_hidden * f.hidden if joins else 0, Shard.REPLICATE),
        vector("norms", "context_norm", f.hidden),
        vector("norms", "context_norms", n_context * target_hidden if f.model_type == "laguna" else 0),
    )
    own = f.flag("has_own_lm_head")
    rows = f.count("draft_vocab_size", None)
    rows = rows if own or rows != f.count("vocab_size") else None
    more = (_grouped_convolutions(f, stated, len(layers)), _selector(f, stated), _domino(f, stated, rows), _markov(f))
    return _model(
        f, method, layers, (*extra, *(w for weights in more for w in weights)),
        head=own or rows is not None, head_vocab_size=rows, target_hidden_size=target_hidden, target_layer_ids=ids,
    )  # fmt: skip


def _windowed(layer: Layer, f: Fields, stated: Mapping[str, Any]) -> Layer:
    """The layer with the window of ``use_swa``, which slides all layers where ``layer_types`` slides none."""
    slides = any("sliding" in word for word in f.words("layer_types") or ())
    if not stated.get("use_swa") or slides or not isinstance(layer.mixer, Attention):
        return layer
    size = stated.get("swa_window_size") or (f.raw("sliding_window") if f.has("sliding_window") else None)
    if size is None:
        raise InputError(f"{f.where}: dflash_config.use_swa needs dflash_config.swa_window_size or sliding_window")
    return dataclasses.replace(layer, mixer=dataclasses.replace(layer.mixer, window=f.whole(size, "swa_window_size")))


def _grouped_convolutions(f: Fields, stated: Mapping[str, Any], n: int) -> tuple[Weight, ...]:
    """DFlash2's dynamic convolutions around attention and feed-forward, into and out of each (vLLM #52816)."""
    if not stated.get("conv_kernel_size"):
        return ()
    taps = f.whole(stated["conv_kernel_size"], "dflash_config.conv_kernel_size")
    group = f.whole(stated.get("conv_group_size"), "dflash_config.conv_group_size")
    if f.hidden % group:
        raise InputError(f"{f.where}: dflash_config.conv_group_size {group} does not divide hidden_size {f.hidden}")
    return (
        vector("mlp", "conv_kernels", 2 * n * 2 * taps * f.hidden),
        matrix("mlp", "conv_proj", f.hidden * 2 * taps * (f.hidden // group), Shard.REPLICATE, copies=2 * n),
    )


def _selector(f: Fields, stated: Mapping[str, Any]) -> tuple[Weight, ...]:
    """DFlash2's selector: two codebooks over the vocabulary, of which a step looks up rows, and a projection."""
    if not stated.get("selector_rank"):
        return ()
    rank = f.whole(stated["selector_rank"], "dflash_config.selector_rank")
    return (
        table("embedding", "selector_codebooks", 2 * f.count("vocab_size") * rank),
        matrix("head", "selector_proj", rank * f.hidden, Shard.REPLICATE),
    )


def _domino(f: Fields, stated: Mapping[str, Any], rows: int | None) -> tuple[Weight, ...]:
    """Domino's causal correction (arXiv 2605.29707): a GRU over the block and a low-rank projection onto the words."""
    if stated.get("projector_type") not in ("domino", "causal_v5"):
        return ()
    state = f.whole(stated.get("gru_hidden_dim"), "dflash_config.gru_hidden_dim")
    rank = f.whole(stated.get("emb_dim"), "dflash_config.emb_dim")
    return (
        matrix("recurrent", "prefix_gru", 3 * state * (f.hidden + state), Shard.REPLICATE),
        matrix("head", "correction_down", rank * (f.hidden + state), Shard.REPLICATE),
        matrix("head", "correction_up", rank * (rows or f.count("vocab_size")), Shard.REPLICATE, quantizable=False),
    )


def _markov(f: Fields) -> tuple[Weight, ...]:
    """DSpark's Markov head (a table of the previous token and a bias on the logits) and its confidence."""
    if not f.has("markov_rank"):
        return ()
    kind = f.word("markov_head_type", "vanilla")
    if kind != "vanilla":
        raise UnsupportedError(f"{f.where}: a DSpark Markov head of type {kind!r} cannot be counted")
    return markov_head(
        f, f.count("markov_rank"), f.flag("enable_confidence_head"), f.flag("confidence_head_with_markov")
    )


def _medusa(f: Fields) -> Model:
    """Medusa: heads of residual blocks, each with an output matrix of its own; nothing is cached."""
    hidden, heads = f.hidden, f.count("medusa_num_heads", None) or f.count("num_heads")
    blocks = f.count("medusa_num_layers", None) or f.count("num_hidden_layers", 1)
    rows = f.count("truncated_vocab_size", None) or f.count("vocab_size")
    if f.has("medusa_fc_bias"):
        biased = f.flag("medusa_fc_bias")
    else:
        biased = True
        f.assume("the residual blocks have biases, as Medusa's reference checkpoints do")
    extra = present(
        matrix("head", "blocks", hidden * hidden, copies=heads * blocks, quantizable=False),
        vector("head", "block_biases", heads * blocks * hidden if biased else 0),
        matrix("head", "heads", rows * hidden, copies=1 if f.flag("original_lm_head") else heads, quantizable=False),
    )
    return _model(f, "medusa", (), extra, final_norm_vectors=0, head_vocab_size=rows)


def _mlp_speculator(f: Fields) -> Model:
    """MLP speculator: per predicted token an embedding, a projection, a norm and a head; tied ones exist once."""
    width = f.count("emb_dim", None) or f.hidden
    inner = f.count("inner_dim", 0, least=0) or width
    steps, rows = f.count("n_predict"), f.count("vocab_size")
    tied = f.flag("tie_weights")
    copies = 1 if tied else steps
    after = (1 if tied else steps - 1) if steps > 1 else 0
    extra = present(
        table("embedding", "emb", copies * rows * inner),
        matrix("mlp", "first_proj", width * inner),
        matrix("mlp", "proj", after * inner * inner),
        vector("norms", "norms", 2 * copies * inner),
        matrix("head", "heads", rows * inner, copies=copies, quantizable=False),
    )
    if tied:
        f.assume(f"tied weights are counted once, though each of {steps} steps reads them")
    return _model(f, "mlp_speculator", (), extra, final_norm_vectors=0, hidden_size=width)
