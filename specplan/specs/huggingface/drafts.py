"""Draft heads: EAGLE, EAGLE-3, DFlash, Medusa, MLP speculators, and multi-token prediction layers of a target.

A head shares what its target has: `Model.embedding` and `Model.head` are False where it uses the target's. Only weights
of its own are counted; its layers with attention are the layers it adds to the cache.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.mixers import matrix, present, table, vector
from specplan.specs.huggingface.regular import Builder
from specplan.values.formats import lookup
from specplan.values.model import Attention, LatentAttention, Layer, Model, Shard, Weight

DRAFT_METHODS: Final = ("eagle", "eagle3", "dflash", "medusa", "mlp_speculator", "mtp")

_BY_TYPE: Final = {name: name for name in ("medusa", "mlp_speculator", "eagle", "eagle3", "dflash")}

_UNREAD: Final = {
    "dspark": "its confidence and pointer heads have no public config to count them from",
    "peagle": "its parallel mask states have no public config to count them from",
    "lilicorr": "its corrector has no public config to count it from",
    "extracthiddenstates": "it holds no weights and drafts nothing",
    "assistant": "it is counted with its target's config, which this one does not hold",
}


def draft_method(config: Mapping[str, Any]) -> str:
    """Method of a draft head by its architecture's name or type; empty for a model that stands alone.

    Raises
    ------
    UnsupportedError
        For a known kind of head whose weights cannot be counted.

    Examples
    --------
    >>> draft_method({"architectures": ["LlamaForCausalLMEagle3"]})
    'eagle3'
    """
    stated = config.get("architectures")
    name = str(stated[0]) if isinstance(stated, list) and stated else ""
    lower = name.lower().replace("_", "")
    for word, reason in _UNREAD.items():
        if word in lower:
            raise UnsupportedError(f"draft architecture {name!r} cannot be counted: {reason}")
    if "eagle3" in lower or config.get("model_type") == "llama eagle3":
        return "eagle3"
    if "dflash" in lower:
        return "dflash"
    if "mtp" in lower:
        return "mtp"
    if lower.startswith("eagle") and not lower.startswith("eagle2"):
        return "eagle"
    if "medusa" in lower:
        return "medusa"
    if "mlpspeculator" in lower:
        return "mlp_speculator"
    stated_method = config.get("speculators_model_type") or config.get("model_type")
    return _BY_TYPE.get(str(stated_method), "")


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
    )


def build_draft(f: Fields, method: str, family: Builder) -> Model:
    """Draft head of kind `method`; `family` builds the layers of the decoder type that it states."""
    match method:
        case "eagle":
            return _eagle(f, family)
        case "eagle3":
            return _eagle3(f, family)
        case "dflash":
            return _dflash(f, family)
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

    The first layer has no input norm, and there is no last norm. Embedding and head are the target's.
    """
    layers = family(f).layers
    first = dataclasses.replace(layers[0], norm_vectors=max(layers[0].norm_vectors - 1, 0))
    biased = f.flag("bias") if f.has("bias") else f.flag("eagle_fc_bias")
    fc = present(
        matrix("head", "fc", 2 * f.hidden * f.hidden, Shard.REPLICATE),
        vector("head", "fc_bias", f.hidden if biased else 0),
    )
    return _model(f, "eagle", (first, *layers[1:]), fc, final_norm_vectors=0)


def _aux_layers(f: Fields) -> int:
    """Target layers whose hidden states an EAGLE-3 head joins."""
    stated = f.counts("eagle_aux_hidden_state_layer_ids")
    nested = (f.block("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if stated is None and isinstance(nested, list):
        stated = nested
    return len(stated) if stated else 3


def _eagle3(f: Fields, family: Builder) -> Model:
    """EAGLE-3: one layer whose attention reads [embedding; hidden], and a head of its own over fewer words.

    A projection joins (usually three of) the target's hidden states. The embedding is the target's.
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
    n_aux = _aux_layers(f)
    fc = matrix("head", "fc", n_aux * target_hidden * hidden, Shard.REPLICATE)
    rows = f.count("draft_vocab_size", None)
    if rows is None:
        rows = f.count("vocab_size")
        f.assume("draft_vocab_size is not stated: the head has as many rows as the vocabulary")
    return _model(f, "eagle3", (wide, *layers[1:]), (fc,), head=True, head_vocab_size=rows)


def _dflash(f: Fields, family: Builder) -> Model:
    """DFlash: decoder layers that fill a block of positions at once.

    Their context is projected hidden states of several target layers. Embedding and head are the target's.
    """
    layers = family(f).layers
    stated = f.block("dflash_config") or {}
    ids = stated.get("target_layer_ids") or f.counts("target_layer_ids")
    if isinstance(ids, list) and ids:
        n_context = len(ids)
    else:
        n_context = len(layers)
        f.assume(f"the context joins {n_context} target layers, one per layer (target_layer_ids is not given)")
    fc = (
        matrix("head", "fc", n_context * f.count("target_hidden_size", f.hidden) * f.hidden, Shard.REPLICATE),
        vector("norms", "context_norm", f.hidden),
    )
    return _model(f, "dflash", layers, fc)


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
        matrix("head", "blocks", hidden * hidden, copies=heads * blocks),
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
