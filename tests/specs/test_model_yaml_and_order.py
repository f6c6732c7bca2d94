"""Model specs: what is written is read back, and what is wrong is said in one line with file and field."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.specs.catalog import list_models
from specplan.specs.layer_order import format_order, parse_order
from specplan.specs.model_yaml import ModelFile, dump_model_yaml, load_model_yaml, model_from_text
from specplan.values.formats import lookup
from specplan.values.model import (
    Access,
    Attention,
    CompressedAttention,
    DenseMLP,
    Experts,
    LatentAttention,
    Layer,
    Model,
    Recurrent,
    Shard,
    Weight,
)

GOOD = """\
name: tiny
source: an example
vocab_size: 256
hidden_size: 64
tied_embeddings: true
dtype: bfloat16
layers:
  block:
    attention: {heads: 4, kv_heads: 2, head_dim: 16}
    mlp: {width: 128}
order: 2x block
"""

names = st.lists(st.sampled_from(["full", "sliding", "moe", "a_v2"]), min_size=1, max_size=120)


@given(names)
@settings(max_examples=200)
def test_a_printed_order_reads_back(layers: list[str]) -> None:
    assert list(parse_order(format_order(layers))) == layers


@given(st.sampled_from(["full", "sliding"]), st.integers(1, 7), st.integers(1, 12))
def test_repeated_patterns_print_short(name: str, period: int, times: int) -> None:
    layers = ([name] * period + ["other"]) * times
    assert len(format_order(layers)) < 45


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "expected a layer name"),
        ("3x", "cannot read"),
        ("0x a", "0 layers"),
        ("20000x a", "layers"),
        ("9999999x a", "9999999 layers"),
        ("2x(a, b", "not closed"),
        ("a b", "unexpected 'b'"),
        ("a,", "expected a layer name"),
        ("a)", "unexpected ')'"),
        ("(" * 40 + "a" + ")" * 40, "too deeply"),
        ("2 * a", "cannot read"),
        ("9000x a, 9000x b", "more than"),
    ],
)
def test_an_order_that_is_none_says_why(text: str, word: str) -> None:
    with pytest.raises(InputError, match="order ") as caught:
        parse_order(text)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_shipped_specs_read_back_equal() -> None:
    entries = list_models()
    assert len(entries) >= 90
    for entry in entries:
        file = load_model_yaml(entry.path)
        assert file.model.name == entry.name == entry.path.stem
        assert model_from_text(dump_model_yaml(file), "again") == file


sizes = st.integers(1, 2**40)
weights = st.builds(
    Weight,
    component=st.sampled_from(["attention", "mlp", "norms"]),
    name=st.sampled_from(["a", "b"]),
    size=sizes,
    access=st.sampled_from(Access),
    shard=st.sampled_from(Shard),
    kv_heads=st.integers(1, 8),
    routed=st.none() | st.just((8, 2)),
    copies=st.integers(1, 8),
    quantizable=st.booleans(),
    format=st.none() | st.just(lookup("fp8")),
)
some_weights = st.lists(weights, max_size=3).map(tuple)
formats = st.just(()) | st.just((("attention", lookup("bf16")),))
mixers = st.one_of(
    st.none(),
    st.builds(
        Attention,
        heads=st.just(8),
        kv_heads=st.sampled_from([1, 2, 8]),
        head_dim=sizes,
        v_head_dim=st.none() | sizes,
        window=st.none() | sizes,
        chunk=st.none() | sizes,
        qkv_bias=st.booleans(),
        qk_norm=st.sampled_from(["none", "head", "all"]),
        sinks=st.booleans(),
        shares_kv=st.booleans(),
        input_size=st.none() | sizes,
    ),
    st.builds(
        LatentAttention,
        heads=sizes,
        q_rank=st.none() | sizes,
        kv_rank=sizes,
        nope_dim=sizes,
        rope_dim=sizes,
        v_head_dim=sizes,
        index_heads=st.integers(0, 64),
        index_shared=st.booleans(),
    ),
    st.builds(
        CompressedAttention, heads=sizes, head_dim=sizes, weights=some_weights, window=sizes, rate=st.integers(0, 128)
    ),
    st.builds(
        Recurrent,
        kind=st.just("mamba2"),
        weights=some_weights,
        conv_channels=st.integers(0, 9),
        state_size=st.integers(0, 9),
        state_format=st.none() | st.just(lookup("float32")),
    ),
)
feed_forwards = st.one_of(
    st.builds(DenseMLP, width=sizes, gated=st.booleans(), bias=st.booleans()),
    st.builds(Experts, count=st.just(8), per_token=st.integers(1, 8), width=sizes, shared_width=st.integers(0, 2**20)),
)
layers = st.builds(
    Layer,
    mixer=mixers,
    feed_forward=feed_forwards,
    norm_vectors=st.integers(0, 8),
    extra=some_weights,
    formats=formats,
    only_extra=st.booleans(),
)


@given(st.lists(layers, min_size=1, max_size=4), st.lists(layers, max_size=2), st.booleans(), some_weights, formats)
@settings(max_examples=60, deadline=None)
def test_any_model_reads_back_equal(
    some: list[Layer], mtp: list[Layer], tied: bool, extra: tuple[Weight, ...], fmt: tuple[tuple[str, object], ...]
) -> None:
    model = Model(
        name="x",
        source="y",
        hidden_size=8,
        vocab_size=9,
        tied_embeddings=tied,
        layers=tuple(some * 2),
        mtp_layers=tuple(mtp),
        weight_format=lookup("float16"),
        extra=extra,
        formats=fmt,  # type: ignore[arg-type] # pairs of name and format
        quantization=lookup("int4-awq-g64"),
        unquantized=("mlp",),
        head_vocab_size=7,
        published_params=5,
        draft_method="eagle3",
        head=False,
    )
    file = ModelFile(model=model, aliases=("a/b", "c"))
    assert model_from_text(dump_model_yaml(file), "x") == file


BAD = [
    ("vocab_size: 256", "vocab_size: -1", "'vocab_size' must be at least 1"),
    ("vocab_size: 256", "vocab_size: 0", "'vocab_size' must be at least 1"),
    ("vocab_size: 256", "vocab_size: .nan", "'vocab_size' must be a whole number"),
    ("vocab_size: 256", "vocab_size: .inf", "'vocab_size' must be a whole number"),
    ("vocab_size: 256", "vocab_size: 2.5", "'vocab_size' must be a whole number"),
    ("vocab_size: 256", "vocab_size: '256'", "'vocab_size' must be a whole number"),
    ("vocab_size: 256", "vocab_size: true", "'vocab_size' must be a whole number"),
    ("vocab_size: 256", "vocab_size: 1000000000000000000", "'vocab_size' must be at most"),
    ("vocab_size: 256\n", "", "'vocab_size' is missing"),
    ("vocab_size", "vocab_sise", "'vocab_sise' is not a known field"),
    ("name: tiny\n", "", "'name' is missing"),
    ("source: an example\n", "", "'source' is missing"),
    ("tied_embeddings: true", "tied_embeddings: 1", "'tied_embeddings' must be true or false"),
    ("tied_embeddings: true", "tied_embeddings: yes please", "'tied_embeddings' must be true or false"),
    ("bfloat16", "bf17", "unknown number format 'bf17'"),
    ("dtype: bfloat16", "dtype: 16", "'dtype' must be text"),
    ("heads: 4", "heads: -4", "'layers.block.attention.heads' must be at least 1"),
    ("heads: 4, ", "", "'layers.block.attention.heads' is missing"),
    ("heads: 4", "heads: 3", "3 heads are not a multiple of 2 kv_heads"),
    ("kv_heads: 2", "kv_head: 2", "is not a known field"),
    ("{width: 128}", "128", "'layers.block.mlp' must be a block of fields"),
    ("mlp: {width: 128}", "experts: {count: 2, per_token: 3, width: 8}", "3 experts per token of 2"),
    (
        "mlp: {width: 128}",
        "mlp: {width: 128}\n    experts: {count: 4, per_token: 1, width: 8}",
        "has both mlp and experts",
    ),
    ("order: 2x block", "order: 2x blok", "order names layer 'blok'"),
    ("order: 2x block", "order: 2x (", "expected a layer name"),
    ("order: 2x block\n", "", "'order' is missing"),
    ("layers:", "layers: [", "broken YAML"),
    ("name: tiny", "name: tiny\nname: again", "'name' appears twice"),
    ("  block:", "  block:\n    norm_vectors: -1", "must be at least 0"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[f"{i}-{row[2][:30]}" for i, row in enumerate(BAD)])
def test_a_broken_spec_names_file_and_field(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GOOD
    path = tmp_path / "broken.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_model_yaml(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_good_spec_is_good() -> None:
    model = model_from_text(GOOD, "good").model
    assert len(model.layers) == 2
    assert dataclasses.asdict(model.layers[0])["mixer"]["kv_heads"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x01\x02\xff", "a binary file"),
        (b"\xff\xfe\xfa", "a binary file"),
        (b"", "expected fields such as"),
        (b"- 1\n- 2\n", "expected fields such as"),
        (b"just words", "expected fields such as"),
        (b"a: *b", "broken YAML"),
        (b"a: !!python/object/apply:os.system ['true']", "broken YAML"),
        (b"[" * 20000, "broken YAML"),
        (
            b"x: &a [1]\ny: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
            + b"".join(b"z%d: &%c [%s]\n" % (i, 99 + i, b",".join([b"*%c" % (98 + i)] * 10)) for i in range(8)),
            "stands for more than",
        ),
    ],
)
def test_files_that_are_no_spec(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_model_yaml(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
