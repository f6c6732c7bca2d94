"""Weights of Llama-family GGUF files under their Hugging Face names, in seconds."""

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from specplan.errors import InputError, UnsupportedError
from specplan.specs.gguf import GgufHeader, read_gguf
from specplan.specs.gguf_model import gguf_config

_OUTSIDE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE: Final = {
    **{f"attn_{p}": f"self_attn.{p}_proj" for p in "qkv"},
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"ffn_{p}": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
}
_BLOCK: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_INTERLEAVED: Final = {"llama": ("attn_q", "attn_k")}
"""Projections whose rows llama.cpp's converter reorders, by architecture: halves of a head become neighbours."""
_NEEDED: Final = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}
_FAMILY: Final = ("llama", "qwen2", "qwen3")


def gguf_state(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]] | None:
    """Config and float32 weights of a GGUF file; None where transformers has to read it.

    Blocks are expanded by the ``gguf`` package. Names and the order of rows: llama.cpp's ``convert_hf_to_gguf.py``,
    undone.

    Raises
    ------
    InputError
        When the file is broken.
    """
    header = read_gguf(path)
    arch, where = str(header.metadata.get("general.architecture")), str(path)
    scaled = any(f"{arch}.rope.scaling" in key for key in header.metadata)
    names = {t.name: _name(t.name) for t in header.tensors}
    if arch not in _FAMILY or scaled or None in names.values():
        return None
    try:
        config = gguf_config(header, where)
    except UnsupportedError:
        return None
    epsilon = header.metadata.get(f"{arch}.attention.layer_norm_rms_epsilon")
    if epsilon is None or not config.keys() >= _NEEDED:
        return None
    config |= {"rms_norm_eps": epsilon, "rope_theta": header.metadata.get(f"{arch}.rope.freq_base", 10_000.0)}
    heads = {"attn_q": int(config["num_attention_heads"])}
    heads["attn_k"] = int(config.get("num_key_value_heads") or heads["attn_q"])
    return config, {
        str(names[name]): tensor for name, tensor in _tensors(path, header, _INTERLEAVED.get(arch, ()), heads)
    }


def _name(stored: str) -> str | None:
    found = _BLOCK.fullmatch(stored)
    if found is None:
        return _OUTSIDE.get(stored)
    inside = _INSIDE.get(found[2])
    return None if inside is None else f"model.layers.{found[1]}.{inside}.{found[3]}"


def _tensors(path: Path, header: GgufHeader, interleaved: tuple[str, ...], heads: dict[str, int]) -> Any:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    data = np.memmap(path, np.uint8, "r")
    for t in header.tensors:
        at = header.places[t.name]
        rows = t.shape[:0:-1]  # the fastest dimension stands first
        raw = data[at : at + t.n_bytes].reshape(*rows, -1)
        try:
            values = dequantize(raw, GGMLQuantizationType[t.dtype]).reshape(*rows, t.shape[0])
        except (NotImplementedError, KeyError, ValueError) as error:
            raise InputError(f"{path}: tensor {t.name} of type {t.dtype} cannot be expanded: {error}") from None
        part = t.name.split(".")[2] if t.name.startswith("blk.") else ""
        if part in interleaved:
            n = heads[part]
            values = values.reshape(n, values.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        yield t.name, torch.from_numpy(np.array(values, np.float32))
