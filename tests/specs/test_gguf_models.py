"""GGUF files of several architectures, as converters write them: parameters and bytes come out exactly."""

import struct
from pathlib import Path
from typing import Any

import pytest

from specplan.errors import InputError, SpecplanError, UnsupportedError
from specplan.formulas.parameters import resident_bytes, resident_params, streamed_params
from specplan.specs.catalog import load_model
from specplan.specs.gguf import TYPES
from specplan.specs.gguf_model import import_gguf
from specplan.values.formats import lookup

NUMBERS = {name: number for number, name in TYPES.items()}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 4, len(value)) + b"".join(struct.pack("<I", v) for v in value)
    return text(key) + struct.pack("<II", 4, value)


def write(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]) -> int:
    """File with empty data; returns its bytes of weights."""
    infos, at = [], 0
    for name, (kind, shape) in tensors.items():
        infos.append(
            text(name)
            + struct.pack("<I", len(shape))
            + b"".join(struct.pack("<Q", side) for side in shape)
            + struct.pack("<IQ", NUMBERS[kind], at)
        )
        n = 1
        for side in shape:
            n *= side
        at += round(n * lookup(kind.lower()).bits / 8)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(entry(k, v) for k, v in metadata.items()) + b"".join(infos)
    head += b"\0" * (-len(head) % 32)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + at)
    return at


def decoder(arch: str, *, tied: bool = True, heads: Any = 4, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two layers of width 256 with mixed quantisation, as a Q4_K_M conversion."""
    metadata = {
        "general.architecture": arch,
        f"{arch}.block_count": 2,
        f"{arch}.embedding_length": 256,
        f"{arch}.feed_forward_length": 512,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": 2,
        f"{arch}.context_length": 4096,
    } | {f"{arch}.{k}": v for k, v in more.items()}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {"token_embd.weight": ("Q6_K", (256, 1024))}
    for i in range(2):
        tensors |= {
            f"blk.{i}.attn_norm.weight": ("F32", (256,)),
            f"blk.{i}.attn_q.weight": ("Q4_K", (256, 256)),
            f"blk.{i}.attn_k.weight": ("Q4_K", (256, 128)),
            f"blk.{i}.attn_v.weight": ("Q6_K", (256, 128)),
            f"blk.{i}.attn_output.weight": ("Q4_K", (256, 256)),
            f"blk.{i}.ffn_norm.weight": ("F32", (256,)),
            f"blk.{i}.ffn_gate.weight": ("Q4_K", (256, 512)),
            f"blk.{i}.ffn_up.weight": ("Q4_K", (256, 512)),
            f"blk.{i}.ffn_down.weight": ("Q6_K", (512, 256)),
        }
    tensors["output_norm.weight"] = ("F32", (256,))
    if not tied:
        tensors["output.weight"] = ("Q6_K", (256, 1024))
    return metadata, tensors


def check(path: Path, metadata: dict[str, Any], tensors: dict[str, Any]) -> Any:
    n_bytes = write(path, metadata, tensors)
    model = import_gguf(path).model
    assert resident_bytes(model) == pytest.approx(n_bytes, rel=1e-12)
    assert load_model(str(path)) == model
    return model


def test_llama_tied_and_not(tmp_path: Path) -> None:
    tied = check(tmp_path / "a.gguf", *decoder("llama"))
    untied = check(tmp_path / "b.gguf", *decoder("llama", tied=False))
    assert streamed_params(tied) == streamed_params(untied)
    assert resident_params(untied) - resident_params(tied) == 256 * 1024
    assert tied.max_position == 4096


def test_qwen2_has_biases_and_qwen3_norms(tmp_path: Path) -> None:
    metadata, tensors = decoder("qwen2")
    for i in range(2):
        for name, size in (("q", 256), ("k", 128), ("v", 128)):
            tensors[f"blk.{i}.attn_{name}.bias"] = ("F32", (size,))
    assert check(tmp_path / "q2.gguf", metadata, tensors).model_type == "qwen2"
    metadata, tensors = decoder("qwen3", **{"attention.key_length": 64})
    for i in range(2):
        tensors[f"blk.{i}.attn_q_norm.weight"] = tensors[f"blk.{i}.attn_k_norm.weight"] = ("F32", (64,))
    assert check(tmp_path / "q3.gguf", metadata, tensors).model_type == "qwen3"


@pytest.mark.parametrize("arch", ["qwen3moe", "llama"])
def test_experts(arch: str, tmp_path: Path) -> None:
    counts = {"expert_count": 8, "expert_used_count": 2}
    if arch == "qwen3moe":
        counts |= {"expert_feed_forward_length": 512, "attention.key_length": 64}
    metadata, tensors = decoder(arch, **counts)
    for i in range(2):
        for name in ("gate", "up", "down"):
            kind, shape = tensors.pop(f"blk.{i}.ffn_{name}.weight")
            tensors[f"blk.{i}.ffn_{name}_exps.weight"] = (kind, (*shape, 8))
        tensors[f"blk.{i}.ffn_gate_inp.weight"] = ("F32", (256, 8))
        if arch == "qwen3moe":
            tensors[f"blk.{i}.attn_q_norm.weight"] = tensors[f"blk.{i}.attn_k_norm.weight"] = ("F32", (64,))
    model = check(tmp_path / "m.gguf", metadata, tensors)
    assert model.model_type == ("qwen3_moe" if arch == "qwen3moe" else "mixtral")
    assert resident_params(model) - streamed_params(model) == 2 * 6 * 3 * 256 * 512 + resident_norms(model)


def resident_norms(model: Any) -> int:
    from specplan.formulas.parameters import elementwise_params

    return elementwise_params(model)


def test_head_counts_by_layer_are_taken_if_equal(tmp_path: Path) -> None:
    check(tmp_path / "x.gguf", *decoder("llama", heads=[4, 4]))
    write(tmp_path / "y.gguf", *decoder("llama", heads=[4, 2]))
    with pytest.raises(SpecplanError):
        import_gguf(tmp_path / "y.gguf")


def test_tensors_that_do_not_fit_the_metadata_are_refused(tmp_path: Path) -> None:
    metadata, tensors = decoder("llama")
    tensors["blk.0.extra.weight"] = ("F32", (7,))
    write(tmp_path / "x.gguf", metadata, tensors)
    with pytest.raises(UnsupportedError, match="its tensors hold"):
        import_gguf(tmp_path / "x.gguf")
    write(tmp_path / "y.gguf", {**metadata, "general.architecture": "unheard-of"}, tensors)
    with pytest.raises(UnsupportedError, match="'unheard-of' cannot be counted"):
        import_gguf(tmp_path / "y.gguf")
    write(tmp_path / "z.gguf", metadata, {"a": ("F32", (4,))})
    with pytest.raises(InputError, match="no language model"):
        import_gguf(tmp_path / "z.gguf")
