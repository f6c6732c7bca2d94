"""A tiny Llama checkpoint: its config and what its safetensors headers say."""

import json
import struct
from pathlib import Path

from specplan.specs.safetensors import header_bytes

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def tiny_tensors(dtype: str = "BF16", layers: int = 2) -> dict[str, tuple[str, tuple[int, ...]]]:
    found: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": (dtype, (256, 64))}
    for i in range(layers):
        for name, shape in (
            ("self_attn.q_proj", (64, 64)),
            ("self_attn.k_proj", (32, 64)),
            ("self_attn.v_proj", (32, 64)),
            ("self_attn.o_proj", (64, 64)),
            ("mlp.gate_proj", (128, 64)),
            ("mlp.up_proj", (128, 64)),
            ("mlp.down_proj", (64, 128)),
        ):
            found[f"model.layers.{i}.{name}.weight"] = (dtype, shape)
        found[f"model.layers.{i}.input_layernorm.weight"] = (dtype, (64,))
        found[f"model.layers.{i}.post_attention_layernorm.weight"] = (dtype, (64,))
    return found | {"model.norm.weight": (dtype, (64,)), "lm_head.weight": (dtype, (256, 64))}


def write(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """File with a true header and data of zeros that take no disk."""
    header = header_bytes(tensors)
    end = max((e["data_offsets"][1] for e in json.loads(header).values()), default=0)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
