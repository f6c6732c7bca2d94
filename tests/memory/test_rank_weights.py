"""Weights per rank: what is divided, replicated, padded, kept twice; and what "Model loading took" printed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.formulas.parameters import resident_bytes, resident_params
from specplan.memory.rank_weights import (
    WeightSettings,
    allocator_waste,
    pipeline_stages,
    rank_weight_bytes,
    rotary_bytes,
)
from specplan.specs.catalog import load_model
from specplan.units import GIB, MIB
from specplan.values.formats import lookup
from specplan.values.model import Attention, DenseMLP, Experts, LatentAttention, Layer, Model

NOT_STORED = ("rotary", "vocab_padding", "allocator", "latent_copies")


def _model(**more: object) -> Model:
    layer = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    given: dict[str, object] = {
        "name": "m", "source": "", "hidden_size": 4096, "vocab_size": 128256, "tied_embeddings": False,
        "layers": (layer,) * 32, "weight_format": lookup("bf16"), "max_position": 131072,
    }  # fmt: skip
    return Model(**(given | more))  # type: ignore[arg-type]


def _stored(model: Model, settings_: WeightSettings, stage: int = 0) -> float:
    return sum(size for name, size in rank_weight_bytes(model, settings_, stage).items() if name not in NOT_STORED)


# (spec, tp, GiB that vLLM printed with four digits)
PRINTED = [("llama3.1-8b", 1, 14.9889), ("qwen2.5-7b", 1, 14.2488), ("qwen2.5-7b", 2, 7.1217), ("qwen3-4b", 1, 7.5552)]


@pytest.mark.parametrize(("name", "tp", "printed"), PRINTED)
def test_printed_to_four_digits(name: str, tp: int, printed: float) -> None:
    total = sum(rank_weight_bytes(load_model(name), WeightSettings(tp=tp)).values())
    assert total / GIB == pytest.approx(printed, abs=0.0008)


def test_one_rank_holds_the_checkpoint() -> None:
    model = _model()
    assert _stored(model, WeightSettings()) == resident_bytes(model) == 2 * resident_params(model)


@settings(max_examples=30, deadline=None)
@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32]), tied=st.booleans())
def test_ranks_together_hold_at_least_the_checkpoint(tp: int, tied: bool) -> None:
    model = _model(tied_embeddings=tied)
    one = _stored(model, WeightSettings(tp=tp))
    assert one * tp >= resident_bytes(model) * (1 - 1e-12)
    # Beyond the number of key-value heads their projections are replicated.
    replicated = 32 * 2 * 8 * 128 * 4096 * 2 * max(0, tp / 8 - 1)
    norms = (32 * 2 + 1) * 4096 * 2 * (tp - 1)
    assert one * tp == pytest.approx(resident_bytes(model) + replicated + norms, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(layers=st.integers(1, 80), pp=st.integers(1, 8))
def test_stages_cover_every_layer_once(layers: int, pp: int) -> None:
    if pp > layers:
        with pytest.raises(InputError):
            pipeline_stages(layers, pp)
        return
    stages = pipeline_stages(layers, pp)
    assert [i for stage in stages for i in stage] == list(range(layers))
    sizes = [len(stage) for stage in stages]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)  # the last stage also holds the head


@pytest.mark.parametrize("tied", [False, True])
def test_stages_together_hold_the_model_and_a_tied_table_twice(tied: bool) -> None:
    model = _model(tied_embeddings=tied)
    stages = [_stored(model, WeightSettings(pp=4), i) for i in range(4)]
    table = 128256 * 4096 * 2
    assert sum(stages) == resident_bytes(model) + (table if tied else 0)
    assert stages[0] - stages[1] == table
    assert stages[3] - stages[1] == table + 4096 * 2


def test_vocabulary_is_padded_to_64_and_to_the_ranks() -> None:
    model = _model(vocab_size=49155, tied_embeddings=True)
    assert rank_weight_bytes(model, WeightSettings())["vocab_padding"] == (49216 - 49155) * 4096 * 2
    three = rank_weight_bytes(model, WeightSettings(tp=3))
    assert (three["head"] + three["vocab_padding"]) * 3 / (4096 * 2) % (64 * 3) == 0


def test_absorbed_latent_projections_are_kept_beside_quantised_ones() -> None:
    # DeepSeek-V3 in fp8 at TP8: 512 x 16 x 256 x 2 B x 61 layers = 0.24 GiB per rank.
    mixer = LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_head_dim=128)
    layer = Layer(mixer=mixer, feed_forward=None)
    model = _model(layers=(layer,) * 61, hidden_size=7168, quantization=lookup("fp8-block128"))
    copies = rank_weight_bytes(model, WeightSettings(tp=8))["latent_copies"]
    assert copies == 512 * 16 * 256 * 2 * 61
    assert "latent_copies" not in rank_weight_bytes(replace(model, quantization=None), WeightSettings(tp=8))
    plain = rank_weight_bytes(replace(model, quantization=None), WeightSettings(tp=8, latent_copies=True))
    assert plain["latent_copies"] == copies


def test_mxfp4_experts_are_padded_on_each_rank() -> None:
    experts = Experts(count=32, per_token=4, width=2880)
    model = _model(layers=(Layer(mixer=None, feed_forward=experts),), hidden_size=2880, quantization=lookup("mxfp4"))
    two = rank_weight_bytes(model, WeightSettings(tp=2))["experts"]
    assert two == pytest.approx(32 * 3 * 1536 * 3072 * 4.25 / 8)
    whole = rank_weight_bytes(model, WeightSettings(tp=2, expert_parallel=True))["experts"]
    assert whole == pytest.approx(16 * 3 * 2880 * 2880 * 4.25 / 8)


def test_rotary_tables_once_per_kind_of_attention() -> None:
    assert rotary_bytes(_model(), _model().layers) == 32 * MIB
    gemma = load_model("gemma3-4b")
    # A local table, and a long one stretched eight times.
    assert rotary_bytes(gemma, gemma.layers) == 131072 * 256 * 2 * (1 + 8)


@pytest.mark.parametrize(
    ("model_type", "head_dim", "rotated"),
    [  # as the published configs say: partial_rotary_factor or rotary_pct of the head's width
        ("qwen3_next", 256, 64),  # Qwen3-Next-80B-A3B: 0.25
        ("phi", 80, 32),  # phi-2: 0.4
        ("glm4", 128, 64),  # GLM-4-9B-0414: 0.5
        ("glm4_moe", 128, 64),  # GLM-4.5: 0.5
        ("minimax_m2", 128, 64),  # rotary_dim 64
        ("stablelm", 80, 20),  # stablelm-3b-4e1t: 0.25
        ("nemotron", 128, 64),  # Nemotron-4: 0.5
        ("gpt_neox", 64, 16),  # pythia-1b is 256 wide; 0.25 of any
        ("llama", 128, 128),
        ("gpt2", 64, 0),  # learned positions
    ],
)
def test_a_head_that_rotates_in_part_has_a_narrower_table(model_type: str, head_dim: int, rotated: int) -> None:
    layer = Layer(mixer=Attention(heads=8, kv_heads=8, head_dim=head_dim), feed_forward=DenseMLP(width=64))
    model = _model(model_type=model_type, layers=(layer,) * 2, max_position=4096)
    assert rotary_bytes(model, model.layers) == pytest.approx(4096 * rotated * 2)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 2**32))
def test_the_allocator_never_adds_more_than_a_mebibyte(n: int) -> None:
    waste = allocator_waste(n)
    assert 0 <= waste <= MIB
    assert waste == 0 or (n + waste) % (2 * MIB) == 0
