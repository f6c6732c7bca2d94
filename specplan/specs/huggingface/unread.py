"""Fields of a config that nothing has read and that may change a count.

A count is exact only for a config that was understood. A field that can size something (a whole number above 1, a true
flag, a list, a block) has been read by the family's row, is a field of the transformers class against whose modules the
row is tested, or stands on the list of fields known to change no count; any other is named.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from specplan.specs.huggingface.fields import Fields


@lru_cache(maxsize=1)
def harmless_fields() -> frozenset[str]:
    """Fields known to change no count, from ``harmless_fields.json``.

    >>> "rope_scaling" in harmless_fields(), "emb_split_num" in harmless_fields()
    (True, False)
    """
    listed: dict[str, list[str]] = json.loads((Path(__file__).parent / "harmless_fields.json").read_text("utf-8"))
    return frozenset(name for names in listed.values() for name in names)


_SAME: Final = tuple(
    frozenset(line.split())
    for line in (
        "num_experts n_routed_experts num_local_experts moe_num_experts num_routed_experts",
        "num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_k top_k_experts num_selected_experts",
        "hidden_size d_model n_embd dim model_dim",
        "num_hidden_layers n_layer n_layers num_layers",
        "num_attention_heads n_head n_heads num_heads",
        "num_key_value_heads n_kv_heads num_kv_heads n_head_kv multi_query_group_num",
        "head_dim kv_channels attention_head_dim attn_head_dim qk_head_dim",
        "intermediate_size ffn_hidden_size ffn_dim n_inner moe_intermediate_size expert_ffn_hidden_size ffn_size",
        "sliding_window window_size attention_chunk_size sliding_window_size",
        "vocab_size padded_vocab_size n_vocab",
        "num_nextn_predict_layers num_mtp_layers mtp_num_hidden_layers n_predict num_mtp_modules",
    )
)
"""Spellings of one size: one that was read answers for another of the same value."""

_IN_FAMILY: Final[dict[str, frozenset[str]]] = {
    name: frozenset(words.split())
    for name, words in {
        # the multi-token prediction modules of training are in no published checkpoint
        "minimax_m2": "num_mtp_modules mtp_transformer_layers use_mtp attn_type_list",
        "minimax_m3_vl_text": "first_k_dense_replace",
        "minimax_m3": "first_k_dense_replace",
        **dict.fromkeys(("deepseek_v4", "deepseek_ref"), "qk_rope_head_dim"),  # a part of head_dim
        "zamba2": "kv_channels mamba_headdim num_query_groups",  # derived from the sizes that are read
        "phi": "lm_head_bias",  # always there
        "qwen2": "attention_bias_qkv attention_bias qkv_bias",  # always there
        **dict.fromkeys(("granite", "granite_speech", "granite_speech_plus"), "window_size"),  # of the speech projector
        **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), "num_sliding_attn_layers num_full_attn_layers"),
    }.items()
}
"""Fields that say what the family always is, or that hold nothing in its checkpoints."""

_TOKENS: Final = re.compile(
    r"(?:^|_)(?:token|tokens)_(?:id|ids|index)$|^(?:bos|eos|pad|unk|sep|cls|mask)_?(?:token|idx)"
)
_BESIDE: Final = re.compile(
    r"^(?:image|images|vision|video|audio|visual|mm|projector|speech|frame|patch|pixel|spatial|downsample|multimodal|"
    r"adapter_image|tile|ocr|talker|img|vit|media|sound|qformer|crop|mlp_connector|temporal_patch)(?:_|$)"
)
_COPIES: Final = re.compile(r"_count$")  # counts that catalogues write beside a list of the same name


def _structural(value: Any) -> bool:
    """Whether a value can size something."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value > 1
    return isinstance(value, list | dict) and bool(value)


def _unknown(fields: Mapping[str, Any], known: frozenset[str] | set[str], *, beside: bool) -> Iterator[str]:
    for name, value in fields.items():
        if not _structural(value) or name.startswith("_") or name in known or name in harmless_fields():
            continue
        if _TOKENS.search(name) or (beside and (_BESIDE.match(name) or isinstance(value, dict))):
            continue
        if _COPIES.search(name) and isinstance(fields.get(name.removesuffix("_count")), list):
            continue
        yield name


def _same(f: Fields, fields: Mapping[str, Any]) -> set[str]:
    """Names under which `fields` repeats a size that was read under another."""
    found: set[str] = set()
    for group in _SAME:
        values = {f.read[name] for name in group & f.read.keys() if isinstance(f.read[name], int)}
        found |= {name for name in group & fields.keys() if isinstance(fields[name], int) and fields[name] in values}
    return found


def unread_fields(f: Fields, outer: Mapping[str, Any]) -> tuple[str, ...]:
    """Structural fields that neither the row nor the lists know, sorted; nested ones as ``block.field``.

    Parameters
    ----------
    f : Fields
        The decoder's fields, after its row has read them.
    outer : mapping
        The whole config, which may wrap the decoder's.
    """
    known = {*f.read, *f.names, *_IN_FAMILY.get(f.model_type, ())}
    known |= _same(f, f.config)
    found = set(_unknown(f.config, known, beside=False))
    if f.nested:
        found |= set(_unknown({k: v for k, v in outer.items() if k not in f.config}, known, beside=True))
    for name, block in f.blocks.items():
        if name not in harmless_fields():
            found |= {
                f"{name}.{inner}"
                for inner in _unknown(block, block.used | f.names_inside | _same(f, block), beside=False)
            }
    return tuple(sorted(found))
