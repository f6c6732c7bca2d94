"""Headers of safetensors and GGUF files: exact where they are sound, one clear error where they are not."""

import json
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from given_checkpoints import TINY, tiny_tensors, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specplan.errors import InputError, SpecplanError, UnsupportedError
from specplan.formulas.parameters import resident_params
from specplan.specs.checkpoint import summarise
from specplan.specs.gguf import GgufHeader, parse_gguf, read_gguf
from specplan.specs.gguf_model import import_gguf
from specplan.specs.huggingface.config import import_config
from specplan.specs.importing import import_source
from specplan.specs.safetensors import (
    MAX_HEADER_BYTES,
    StoredTensor,
    parse_header,
    read_checkpoint,
    read_safetensors,
)


def test_a_folder_that_agrees_with_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    write(tmp_path / "model.safetensors", tiny_tensors())
    found, summary = import_source(str(tmp_path))
    assert summary is not None
    assert summary.disagreements == ()
    assert summary.decoder_params == resident_params(found.model)
    assert summary.gathered_params == 256 * 64
    assert summary.elementwise_params == 5 * 64
    assert summary.total_bytes == 2 * resident_params(found.model) == summary.decoder_bytes
    assert summary.bytes_by_dtype == (("BF16", summary.total_bytes),)


def test_an_index_of_shards_and_its_faults(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    names = list(tensors)
    weight_map = {name: f"model-{1 + (i % 3):05}-of-00003.safetensors" for i, name in enumerate(names)}
    for shard in set(weight_map.values()):
        write(tmp_path / shard, {n: tensors[n] for n in names if weight_map[n] == shard})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert {t.name for t in read_checkpoint(tmp_path)} == set(names)

    def fails(document: Any, message: str) -> None:
        index.write_text(json.dumps(document))
        with pytest.raises(InputError, match=message):
            read_checkpoint(tmp_path)

    fails({"metadata": {}}, "'weight_map' is missing")
    fails({"weight_map": {**weight_map, "ghost": "model-00001-of-00003.safetensors"}}, "does not hold tensor 'ghost'")
    fails({"weight_map": {"a": "../secrets.safetensors"}}, "not a file beside the index")
    fails({"weight_map": {"a": "/etc/passwd"}}, "not a file beside the index")
    fails({"weight_map": {"a": 7}}, "not a file beside the index")
    fails({"weight_map": {"a": "gone.safetensors"}}, "cannot be read")
    write(tmp_path / "model-00002-of-00003.safetensors", dict(list(tensors.items())[:4]))
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InputError, match=r"does not hold|is in an earlier file too"):
        read_checkpoint(tmp_path)


def test_disagreements_are_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "num_hidden_layers": 3}))
    write(tmp_path / "model.safetensors", tiny_tensors())
    _, summary = import_source(str(tmp_path))
    assert summary is not None
    assert "the config implies" in summary.disagreements[0]
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    write(tmp_path / "model.safetensors", tiny_tensors("F32"))
    _, summary = import_source(str(tmp_path))
    assert summary is not None
    assert "formats differ" in summary.disagreements[0]
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "tie_word_embeddings": True}))
    write(tmp_path / "model.safetensors", tiny_tensors())
    _, summary = import_source(str(tmp_path))
    assert summary is not None
    assert "output head of 16,384 parameters beside tied embeddings" in summary.disagreements[0]


def quantised(kind: str) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]:
    """Config and tensors of the tiny model as quantisers write them (group size 32)."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (dtype, shape) in tiny_tensors().items():
        if not name.endswith("proj.weight"):
            tensors[name] = (dtype, shape)
            continue
        base, (out, inner) = name.removesuffix(".weight"), shape
        match kind:
            case "fp8":
                tensors[f"{base}.weight"] = ("F8_E4M3", (out, inner))
                tensors[f"{base}.weight_scale_inv"] = ("F32", (-(-out // 32), -(-inner // 32)))
            case "awq":
                tensors[f"{base}.qweight"] = ("I32", (inner, out // 8))
                tensors[f"{base}.qzeros"] = ("I32", (inner // 32, out // 8))
                tensors[f"{base}.scales"] = ("F16", (inner // 32, out))
            case "nvfp4":
                tensors[f"{base}.weight"] = ("U8", (out, inner // 2))
                tensors[f"{base}.weight_scale"] = ("F8_E4M3", (out, inner // 16))
            case "packed":
                tensors[f"{base}.weight_packed"] = ("I32", (out, inner // 8))
                tensors[f"{base}.weight_scale"] = ("BF16", (out, inner // 32))
    config = {
        "fp8": {"quant_method": "fp8", "weight_block_size": [32, 32]},
        "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True},
        "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
        "packed": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
                }
            },
        },
    }[kind]
    return {**TINY, "quantization_config": config}, tensors


@pytest.mark.parametrize("kind", ["fp8", "awq", "nvfp4", "packed"])
def test_quantised_checkpoints_agree_to_the_byte(kind: str, tmp_path: Path) -> None:
    config, tensors = quantised(kind)
    (tmp_path / "config.json").write_text(json.dumps(config))
    write(tmp_path / "model.safetensors", tensors)
    found, summary = import_source(str(tmp_path))
    assert summary is not None
    assert summary.disagreements == ()
    assert summary.decoder_params == resident_params(found.model)
    assert summary.overhead_bytes > 0
    from specplan.formulas.parameters import resident_bytes

    assert resident_bytes(found.model) == pytest.approx(summary.decoder_bytes, rel=1e-12)


ONE = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"w": {**ONE, "data_offsets": [0, 14]}}, "takes 12 bytes, but its offsets span 14"),
        ({"w": {**ONE, "data_offsets": [12, 0]}}, "its offsets span -12"),
        ({"w": {**ONE, "data_offsets": ["0", "12"]}}, "each data offset must be a whole number"),
        ({"w": {**ONE, "data_offsets": [0, 12, 24]}}, "data_offsets must be"),
        ({"w": {**ONE, "shape": ["2", 3]}}, "each side of the shape must be a whole number"),
        ({"w": {**ONE, "shape": [2.0, 3]}}, "each side of the shape must be a whole number"),
        ({"w": {**ONE, "shape": [True, 3]}}, "each side of the shape must be a whole number"),
        ({"w": {**ONE, "shape": [-2, -3]}}, "from 0"),
        ({"w": {**ONE, "shape": [2] * 99}}, "at most 16 sizes"),
        ({"w": {**ONE, "shape": [10**12, 10**12]}}, "claims more than 1024 TiB"),
        ({"w": {**ONE, "shape": 6}}, "shape must be a list"),
        ({"w": {**ONE, "dtype": "BF17"}}, "unknown dtype 'BF17'"),
        ({"w": {**ONE, "dtype": 5}}, "unknown dtype"),
        ({"w": 3}, "expected dtype, shape and data_offsets"),
        ({"w": ONE, "v": ONE}, "overlaps the one before it"),
        ({"w": {"dtype": "BF16", "shape": [2000], "data_offsets": [0, 4000]}}, "truncated"),
    ],
)
def test_headers_that_claim_what_cannot_be(header: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_header(json.dumps(header).encode(), 1000, "x.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "only 0 bytes"),
        (b"1234567", "only 7 bytes"),
        (struct.pack("<Q", 2**63) + b"{}", "claims a header of"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", "more than 32 MiB"),
        (struct.pack("<Q", 100) + b"{}", "truncated: claims a header of 100 bytes"),
        (struct.pack("<Q", 2) + b"[]", "does not start with"),
        (struct.pack("<Q", 2) + b"\xff\xff", "not text"),
        (struct.pack("<Q", 40) + b'{"a": 1, "a": 2}'.ljust(40), "'a' appears twice"),
        (struct.pack("<Q", 90000) + (b'{"a":' + b"[" * 89995), "nested too deeply|not JSON"),
        (struct.pack("<Q", 9) + b'{"w": 1e', "not JSON|truncated"),
    ],
)
def test_files_that_are_not_safetensors(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_claim_of_terabytes_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    entries = {
        f"w{i}": {"dtype": "F32", "shape": [2**38], "data_offsets": [i * 2**40, (i + 1) * 2**40]} for i in range(500)
    }
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    tracemalloc.start()
    began = time.perf_counter()
    with pytest.raises(InputError, match="truncated"):
        read_safetensors(path)
    elapsed, peak = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed < 5
    assert peak < 20 * 2**20


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
entry = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["BF16", "F32", "U8", "F4", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 2**66), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 2**66), max_size=3) | json_values,
    },
)


@given(st.dictionaries(st.text(max_size=12), entry | json_values, max_size=4))
@settings(max_examples=300, deadline=None)
def test_fuzzed_headers_parse_or_say_why(header: dict[str, Any]) -> None:
    try:
        tensors = parse_header(json.dumps(header).encode(), 4096, "x")
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is fine, but both are checked
        return
    assert sum(t.n_bytes for t in tensors) <= 4096


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_fuzzed_bytes_parse_or_say_why(raw: bytes) -> None:
    for parse in (
        lambda: parse_header(raw, 100, "x"),
        lambda: parse_gguf(b"GGUF" + raw, "x"),
        lambda: parse_gguf(raw, "x"),
    ):
        try:
            parse()
        except SpecplanError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is fine, but both are checked


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_gguf_headers_parse_or_say_why(data: st.DataObject) -> None:
    raw = bytearray(gguf_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            parse_gguf(damaged, "x")
        except SpecplanError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is fine, but both are checked


# GGUF


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_bytes(
    *,
    kind: int = 2,
    names: tuple[str, ...] = ("token_embd.weight",),
    side: int = 64,
    version: int = 3,
    data: int | None = None,
) -> bytes:
    """GGUF with a few keys, an array of texts, and square tensors of Q4_0."""
    keys = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.block_count") + struct.pack("<II", 4, 0),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("bb") + text(""),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<ff", 1.0, 2.0),
    ]
    n = side * side * 18 // 32
    infos = [text(name) + struct.pack("<IQQIQ", 2, side, side, kind, i * n) for i, name in enumerate(names)]
    head = b"GGUF" + struct.pack("<IQQ", version, len(names), len(keys)) + b"".join(keys) + b"".join(infos)
    head += b"\0" * (-len(head) % 32)
    return head + b"\0" * (len(names) * n if data is None else data)


def test_gguf_metadata_and_tensors() -> None:
    found = parse_gguf(gguf_bytes(), "x")
    assert isinstance(found, GgufHeader)
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["tokenizer.ggml.tokens.length"] == 3
    assert found.metadata["tokenizer.ggml.scores"] == [1.0, 2.0]
    assert found.tensors == (StoredTensor(name="token_embd.weight", dtype="Q4_0", shape=(64, 64), n_bytes=2304),)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (gguf_bytes(version=9), UnsupportedError, "version 9"),
        (gguf_bytes(kind=999), UnsupportedError, "ggml type 999"),
        (gguf_bytes(side=2**40, data=0), InputError, "claims more than"),
        (gguf_bytes(data=10), InputError, "truncated"),
        (gguf_bytes(names=("a", "a")), InputError, "appears twice"),
        (b"GGML" + b"\0" * 60, InputError, "not a GGUF file"),
        (gguf_bytes()[:60], InputError, "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1), InputError, "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**50), InputError, "a text of"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 2**50),
            InputError,
            "does not fit into the file",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 2**50),
            InputError,
            "does not fit into the file",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77), InputError, "value type 77"),
    ],
)
def test_gguf_files_that_claim_what_cannot_be(
    content: bytes, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        read_gguf(path)


def test_an_empty_gguf_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"")
    with pytest.raises(InputError, match="not a GGUF file"):
        read_gguf(tmp_path / "x.gguf")


@pytest.mark.model
def test_a_real_gguf_is_counted_to_the_byte() -> None:
    import gguf

    from specplan.harness.load import smollm2_gguf

    path = smollm2_gguf()  # where it is absent, the error names its install line
    reader = gguf.GGUFReader(path)
    header = read_gguf(path)
    assert {t.name: (tuple(map(int, t.shape)), int(t.n_bytes)) for t in reader.tensors} == {
        t.name: (t.shape, t.n_bytes) for t in header.tensors
    }
    model = import_gguf(path).model
    assert resident_params(model) == 134_515_008
    from specplan.formulas.parameters import resident_bytes

    assert resident_bytes(model) == pytest.approx(sum(t.n_bytes for t in header.tensors), rel=1e-12)


@pytest.mark.model
def test_block_formats_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    from specplan.specs.gguf import TYPES
    from specplan.values.formats import GGUF_FORMATS, lookup

    sizes = {q.name: q for q in gguf.GGML_QUANT_SIZES}
    assert dict(TYPES) == {int(q): q.name for q in gguf.GGML_QUANT_SIZES}
    for fmt in GGUF_FORMATS:
        block, n_bytes = gguf.GGML_QUANT_SIZES[sizes[fmt.aliases[0].upper()]]
        assert lookup(fmt.name).bits == pytest.approx(8 * n_bytes / block, rel=1e-12)


def test_roles_in_a_multimodal_mixture_with_mtp() -> None:
    def stored(name: str, *shape: int) -> StoredTensor:
        n = 2
        for side in shape:
            n *= side
        return StoredTensor(name=name, dtype="BF16", shape=shape, n_bytes=n)

    found = summarise(
        [
            stored("model.language_model.embed_tokens.weight", 100, 8),
            stored("model.language_model.layers.0.mlp.experts.gate_up_proj", 4, 16, 8),
            stored("model.language_model.layers.0.mlp.gate.weight", 4, 8),
            stored("model.language_model.layers.0.mlp.gate.e_score_correction_bias", 4),
            stored("model.language_model.layers.0.linear_attn.conv1d.weight", 24, 1, 4),
            stored("model.language_model.norm.weight", 8),
            stored("lm_head.weight", 100, 8),
            stored("model.visual.blocks.0.attn.qkv.weight", 24, 8),
            stored("mtp.fc.weight", 8, 16),
        ]
    )
    assert found.streamed_params == 4 * 16 * 8 + 4 * 8 + 800
    assert found.gathered_params == 800
    assert found.elementwise_params == 24 * 4 + 8
    assert (found.outside_params, found.mtp_params) == (24 * 8, 8 * 16)


def test_no_code_of_a_model_folder_is_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**TINY, "auto_map": {"AutoConfig": "evil.Config"}, "trust_remote_code": True})
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    import_source(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_config_of_a_draft_head_beside_its_weights(tmp_path: Path) -> None:
    config = {**TINY, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32}
    model = import_config(config, "x").model
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "midlayer.self_attn.q_proj.weight": ("BF16", (64, 128)),
        "midlayer.self_attn.k_proj.weight": ("BF16", (32, 128)),
        "midlayer.self_attn.v_proj.weight": ("BF16", (32, 128)),
        "midlayer.self_attn.o_proj.weight": ("BF16", (64, 64)),
        "midlayer.mlp.gate_proj.weight": ("BF16", (128, 64)),
        "midlayer.mlp.up_proj.weight": ("BF16", (128, 64)),
        "midlayer.mlp.down_proj.weight": ("BF16", (64, 128)),
        "midlayer.hidden_norm.weight": ("BF16", (64,)),
        "midlayer.input_layernorm.weight": ("BF16", (64,)),
        "midlayer.post_attention_layernorm.weight": ("BF16", (64,)),
        "norm.weight": ("BF16", (64,)),
        "fc.weight": ("BF16", (64, 192)),
        "lm_head.weight": ("BF16", (32, 64)),
        "d2t": ("I64", (32,)),
        "t2d": ("BOOL", (256,)),
    }
    write(tmp_path / "model.safetensors", tensors)
    summary = summarise(read_checkpoint(tmp_path), model)
    assert summary.disagreements == ()
    assert summary.decoder_params == resident_params(model)


def test_every_dtype_of_a_written_checkpoint_has_its_size(tmp_path: Path) -> None:
    """A file by the safetensors package itself: each tensor's bytes are those that torch holds."""
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    names = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
    dtypes = [getattr(torch, name) for name in (*names, "float8_e4m3fn", "float8_e5m2")]
    tensors = {str(dtype): torch.zeros(3, 5, dtype=dtype) for dtype in dtypes}
    save_file(tensors, tmp_path / "model.safetensors")
    stored = {t.name: t for t in read_safetensors(tmp_path / "model.safetensors")}
    assert {name: t.n_bytes for name, t in stored.items()} == {
        name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()
    }
    assert stored["torch.bool"].dtype == "BOOL"
