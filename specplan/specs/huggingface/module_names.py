"""Module names under which checkpoints keep the weights of a layer, and the parts of which a weight is made.

Families name the same matrix differently; a weight is found under any of the names. A weight that stands for several
modules (gate, up and down; an indexer's three projections) is taken apart, so that each part has its own format.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from specplan.formulas.parameters import MLP_PARTS, layer_weights
from specplan.values.model import Access, Attention, LatentAttention, Layer, Recurrent, Weight


@dataclass(frozen=True, slots=True)
class Part:
    """A module, or as many equal ones as there are experts.

    Attributes
    ----------
    key : str
        ``component.weight`` that a layer's ``formats`` names.
    size : int
        Numbers in one module.
    inputs : int
        Columns of its matrix: what one row's scale is shared by; 0 where the layer does not say.
    paths : tuple of str
        Its possible names inside the layer; ``{e}`` stands for an expert's number.
    experts : int
        Experts that share the key; 0 for a module of its own.
    linear : bool
        A quantiser's default reaches it (router and tables: no).
    """

    key: str
    size: int
    inputs: int
    paths: tuple[str, ...]
    experts: int = 0
    linear: bool = True


_QKV: Final = ("qkv_proj", "query_key_value", "qkv", "Wqkv", "W_pack", "c_attn", "wqkv", "attention.query_key_value")
_ATTENTION: Final[dict[str, tuple[str, ...]]] = {
    "q_proj": ("q_proj", "query", "wq", "to_q", *_QKV),
    "k_proj": ("k_proj", "key", "wk", *_QKV, "key_value", "kv_proj"),
    "v_proj": ("v_proj", "value", "wv", *_QKV, "key_value", "kv_proj"),
    "o_proj": ("o_proj", "out_proj", "dense", "c_proj", "wo", "out", "linear_proj"),
    "kv_a_proj": ("kv_a_proj_with_mqa",),
    "gate_proj": ("g_proj", "gate_proj"),
    "head_gate": ("g_proj", "gate_proj", "head_gate"),
}
_RECURRENT: Final[dict[str, tuple[str, ...]]] = {
    "ba_proj": ("in_proj_ba", "in_proj_b", "in_proj_a"),
    "out_proj": ("out_proj", "linear_out"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj", "qkv_proj", "in_proj"),
    "in_proj": ("in_proj", "linear_x", "linear_y"),
}
_FEED_FORWARD: Final[dict[str, tuple[str, ...]]] = {
    "gate_proj": ("gate_proj", "w1", "gate_up_proj", "input_linear"),
    "up_proj": ("up_proj", "w3", "gate_up_proj", "c_fc", "fc1", "dense_h_to_4h", "fc_in", "input_linear", "wi"),
    "down_proj": ("down_proj", "w2", "c_proj", "fc2", "dense_4h_to_h", "fc_out", "output_linear", "wo"),
}
# Families whose matrices have other names than the common ones; the names of every other family are tried in turn.
_Style = dict[str, tuple[str, ...]]
_PHI: Final[_Style] = {"o_proj": ("dense",), "up_proj": ("fc1",), "down_proj": ("fc2",)}
_NEOX: Final[_Style] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), ("query_key_value",)),
    "o_proj": ("dense",),
    "up_proj": ("dense_h_to_4h",),
    "down_proj": ("dense_4h_to_h",),
}
_COMMON: Final[_Style] = {name: (name,) for name in ("q_proj", "k_proj", "v_proj", "o_proj", *MLP_PARTS)}
_STYLES: Final[dict[str, _Style]] = {
    "phi": _PHI,
    "opt": {**_PHI, "o_proj": ("out_proj",)},
    "starcoder2": {"up_proj": ("c_fc",), "down_proj": ("c_proj",), "o_proj": ("o_proj",)},
    **dict.fromkeys(("gpt_neox", "falcon", "bloom"), _NEOX),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "qwen3_moe", "qwen2_moe",
                     "deepseek_v2", "deepseek_v3", "glm4_moe", "qwen3_next", "qwen3_5_text", "gpt_oss"), _COMMON),
}  # fmt: skip
_RECURRENT_UNDER: Final = {
    "gated_delta_net": ("linear_attn",), "kda": ("self_attn", "linear_attn"), "short_conv": ("conv",),
    "lightning": ("self_attn",), "rglru": ("temporal_block",), "mamba1": ("mamba", "mixer"),
    "mamba2": ("mamba", "mixer"),
}  # fmt: skip
_BLOCKS: Final = ("mlp", "block_sparse_moe", "feed_forward", "ffn", "mixer")
_LATENT_STREAM: Final = ("routed_expert_down_proj", "routed_expert_up_proj", "fc1_latent_proj", "fc2_latent_proj")
_UNDER: Final[dict[str, tuple[str, ...]]] = {
    "attention": ("self_attn", "attention", "attn", "self_attention", "mixer", "temporal_block"),
    "recurrent": ("linear_attn", "mamba", "mixer", "conv", "self_attn", "temporal_block", "recurrent"),
    "mlp": ("mlp", "feed_forward", "ffn", "mixer", "mlp_block", "shared_mlp"),
    "experts": ("experts", *(f"{p}.experts" for p in (*_BLOCKS, "moe"))),
    "shared_experts": (
        *(f"{p}.{s}" for p in _BLOCKS for s in ("shared_experts", "shared_expert", "shared_mlp")),
        "shared_mlp",
        "share_expert",
    ),
    "router": _BLOCKS,
}


def _paths(component: str, leaves: tuple[str, ...], under: tuple[str, ...] = ()) -> tuple[str, ...]:
    found = tuple(f"{p}.{leaf}" for p in under or _UNDER.get(component, (component,)) for leaf in leaves)
    return found if component != "mlp" else (*found, *leaves)


def _mlp_parts(weight: Weight, gated: bool, hidden: int, style: _Style) -> Iterator[Part]:
    names = MLP_PARTS if gated else MLP_PARTS[1:]
    size = weight.size // len(names)
    for name in names:
        leaves = style.get(name, _FEED_FORWARD[name])
        if weight.routed is None:
            paths = _paths(weight.component, leaves)
        else:
            fused = ("gate_up_proj",) if name != "down_proj" else ()
            paths = tuple(f"{p}.{{e}}.{leaf}" for p in _UNDER["experts"] for leaf in leaves)
            paths += tuple(f"{p}.{leaf}" for p in _UNDER["experts"] for leaf in (*leaves, *fused))
        yield Part(
            f"{weight.component}.{name}",
            size,
            size // hidden if name == "down_proj" else hidden,
            paths,
            experts=weight.copies if weight.routed is not None else 0,
        )


def _inputs(weight: Weight, layer: Layer, hidden: int) -> int:
    """Columns of a mixer's matrix."""
    match layer.mixer:
        case Attention() as a:
            read = a.input_size or hidden
            known = {"q_proj": read, "k_proj": read, "v_proj": read, "o_proj": a.heads * a.value_dim,
                     "gate_proj": hidden, "head_gate": hidden}  # fmt: skip
        case LatentAttention() as a:
            read = a.input_size or hidden
            known = {"q_proj": read, "q_a_proj": read, "q_b_proj": a.q_rank or 0, "kv_a_proj": read,
                     "kv_b_proj": a.kv_rank, "o_proj": a.heads * a.v_head_dim}  # fmt: skip
        case Recurrent():
            return weight.size // hidden if weight.name == "out_proj" else hidden
        case _:
            return 0
    return known.get(weight.name, 0)


def layer_parts(layer: Layer, hidden: int, model_type: str = "") -> tuple[Part, ...]:
    """Matrices of a layer with the module names that a family (by its ``model_type``) may give them."""
    found: list[Part] = []
    style = _STYLES.get(model_type, {})
    gated = layer.feed_forward is None or layer.feed_forward.gated
    for w in layer_weights(layer, hidden):
        if w.access is Access.ELEMENTWISE:
            continue
        key = f"{w.component}.{w.name}"
        if w.name == "mlp":
            found.extend(_mlp_parts(w, gated, hidden, style))
            continue
        leaves: tuple[str, ...]
        under: tuple[str, ...] = ()
        if w.name == "indexer" and isinstance(layer.mixer, LatentAttention):
            leaves, under = ("wq_b", "wk", "weights_proj"), ("self_attn.indexer",)
        elif w.name == "qkvz_proj":
            leaves, under = ("in_proj_qkvz", "in_proj_qkv", "in_proj_z"), _RECURRENT_UNDER["gated_delta_net"]
        elif w.component == "router":
            leaves = ("gate", "router")
        elif w.name == "latent_proj":
            leaves, under = _LATENT_STREAM, _BLOCKS
        elif w.component == "recurrent" and isinstance(layer.mixer, Recurrent):
            leaves = _RECURRENT.get(w.name, (w.name,))
            if layer.mixer.kind in ("kda", "lightning"):
                leaves = ("o_proj", "out_proj") if w.name == "out_proj" else leaves
            under = _RECURRENT_UNDER.get(layer.mixer.kind, ())
        else:
            leaves = style.get(w.name) or _ATTENTION.get(w.name, (w.name,))
        found.append(
            Part(
                key,
                w.size * w.copies,
                _inputs(w, layer, hidden),
                _paths(w.component, leaves, under),
                linear=w.quantizable,
            )
        )
    return tuple(found)
