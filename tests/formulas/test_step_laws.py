"""Laws of a pass: exact counts where they can be counted, order and scaling where they can be proved."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.formulas import kv_cache, parameters
from specplan.formulas.step import PassRates, all_reduce_s, bound_s, pass_load, pass_shape, pass_terms
from specplan.values.formats import lookup
from specplan.values.model import Attention, DenseMLP, Experts, LatentAttention, Layer, Model, Recurrent, Weight

BF16 = lookup("bfloat16")
GQA = Attention(heads=32, kv_heads=8, head_dim=128)
DENSE = Layer(mixer=GQA, feed_forward=DenseMLP(width=14336))
WINDOWED = Layer(mixer=replace(GQA, window=1024), feed_forward=DenseMLP(width=14336))
ROUTED = Layer(mixer=GQA, feed_forward=Experts(count=8, per_token=2, width=14336))
LATENT = Layer(
    mixer=LatentAttention(heads=16, q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, v_head_dim=128),
    feed_forward=Experts(count=64, per_token=6, width=1408, shared_width=2816),
)
STATE = Layer(
    mixer=Recurrent(
        kind="gated_delta_net",
        weights=(Weight(component="recurrent", name="in_proj", size=4096 * 8192),),
        conv_channels=8192,
        conv_kernel=4,
        state_size=32 * 128 * 128,
        heads=32,
    ),
    feed_forward=DenseMLP(width=14336),
)


def model(*layers: Layer, **more: object) -> Model:
    fields = {"name": "m", "source": "", "hidden_size": 4096, "vocab_size": 128256, "tied_embeddings": False}
    return Model(**{**fields, "layers": layers, "weight_format": BF16, **more})  # type: ignore[arg-type]


MODELS = {
    "dense": model(*[DENSE] * 4),
    "windowed": model(*[DENSE, WINDOWED, WINDOWED] * 2),
    "experts": model(*[ROUTED] * 4),
    "latent": model(*[LATENT] * 4),
    "state": model(*[STATE, STATE, DENSE]),
    "int4": model(*[DENSE] * 4, quantization=lookup("int4-gptq-g128")),
}

RATES = PassRates(
    bandwidth=3.35e12,
    flops=989e12,
    link_bandwidth=450e9,
    weight_fraction=0.88,
    kv_fraction=0.97,
    matmul_fraction=0.65,
    link_fraction=0.5,
    width_fraction=((5.0, 0.74), (8.0, 0.87)),
    layer_s=28e-6,
    layer_request_s=0.1e-6,
    reduce_latency_s=10e-6,
)

models = st.sampled_from(sorted(MODELS))
ranks = st.sampled_from([1, 2, 4, 8])
batches = st.integers(1, 512)
widths = st.integers(1, 64)
contexts = st.integers(0, 131072)


def seconds(name: str, tp: int, batch: float, width: float, context: float, rates: PassRates = RATES) -> float:
    return float(pass_terms(pass_load(pass_shape(MODELS[name], tp), batch, width, context), rates).total_s)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_weight_bytes_are_the_streamed_bytes(name: str, tp: int, tokens: int):
    load = pass_load(pass_shape(MODELS[name], tp), tokens, 1, 0)
    assert float(load.weight_bytes) == pytest.approx(parameters.streamed_bytes(MODELS[name], tokens, tp), rel=1e-12)


@pytest.mark.parametrize("name", ["dense", "windowed", "experts", "latent", "int4"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_cache_bytes_are_those_of_every_request_once(name: str, tp: int):
    load = pass_load(pass_shape(MODELS[name], tp), 5, 3, 4096)
    assert float(load.kv_bytes) == 5 * float(kv_cache.kv_bytes_read(MODELS[name], 4096, BF16, tp))


def test_a_recurrent_state_is_read_once_and_written_per_position():
    state = float(kv_cache.kv_bytes_stored(MODELS["state"], 0))
    shape = pass_shape(MODELS["state"])
    one, four = (float(pass_load(shape, 2, w, 0).kv_bytes) for w in (1, 4))
    assert state > 0
    assert (one, four) == (2 * (state + state), 2 * (state + 4 * state))


@pytest.mark.parametrize("name", MODELS)
def test_matmul_flops_are_two_per_parameter_that_a_token_meets(name: str):
    load = pass_load(pass_shape(MODELS[name]), 3, 5, 0)
    assert float(load.matmul_flops) == pytest.approx(2 * 15 * parameters.streamed_params(MODELS[name]), rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_activation_bytes_are_counted_by_hand(tp: int):
    """Two bytes a value: eight rows of the hidden size, and on each rank its share of the heads and of the widths."""
    layers = {
        "dense": 3 * (32 * 128 + 8 * 256) + 5 * 14336,
        "experts": 3 * (32 * 128 + 8 * 256) + 5 * 2 * 14336,
        "latent": 3 * 16 * (128 + 64 + 128) + 5 * (6 * 1408 + 2816),
    }
    for name, inner in layers.items():
        shape = pass_shape(MODELS[name], tp)
        assert shape.activation_bytes == pytest.approx(4 * 2 * (8 * 4096 + inner / tp)), name
        load = pass_load(shape, 3, 5, 1000)
        assert float(load.activation_bytes) == pytest.approx(15 * shape.activation_bytes)


def test_attention_flops_are_counted_by_hand():
    # Scores and mixtures: 2 FLOP x heads x (key + value size) per pair, per layer; a window limits the pairs.
    dense = 4 * 2 * 32 * 256 * 10_000 * 6
    assert float(pass_load(pass_shape(MODELS["dense"]), 2, 3, 10_000).attention_flops) == dense
    windowed = 2 * 32 * 256 * 6 * (2 * 10_000 + 4 * 1024)
    assert float(pass_load(pass_shape(MODELS["windowed"]), 2, 3, 10_000).attention_flops) == windowed
    latent = 4 * 2 * 16 * (512 + 64 + 512) * 10_000 * 6
    assert float(pass_load(pass_shape(MODELS["latent"]), 2, 3, 10_000).attention_flops) == latent


def test_a_sparse_layer_scores_all_positions_and_attends_to_the_chosen():
    assert isinstance(LATENT.mixer, LatentAttention)
    sparse = replace(LATENT, mixer=replace(LATENT.mixer, index_heads=64, index_dim=128, index_topk=2048))
    load = pass_load(pass_shape(model(sparse), 4), 1, 1, 100_000)
    attended = 2 * 16 / 4 * (512 + 64 + 512) * 2048
    scored = 2 * 64 * 128 * 100_000
    assert float(load.attention_flops) == attended + scored


def test_only_scored_positions_meet_the_head():
    shape = pass_shape(MODELS["dense"])
    all_rows, one_row = pass_load(shape, 2, 6, 0), pass_load(shape, 2, 6, 0, scored=1)
    head = 128256 * 4096
    assert float(all_rows.matmul_flops - one_row.matmul_flops) == 2 * head * 2 * 5
    assert float(one_row.weight_bytes) == float(all_rows.weight_bytes)


def test_a_head_without_an_output_matrix_reads_its_targets():
    bare = model(DENSE, head=False, embedding=False)
    alone, borrowed = pass_shape(bare), pass_shape(bare, head_of=MODELS["dense"])
    assert (alone.head_bytes, borrowed.head_bytes) == (0.0, 128256 * 4096 * 2.0)
    assert pass_shape(bare, 4, head_of=MODELS["dense"]).head_bytes == 128256 * 4096 * 2.0 / 4


def test_experts_read_grow_from_those_of_one_token_to_all():
    read = pass_load(pass_shape(MODELS["experts"]), [1, 2, 8, 10_000], 1, 0).expert_bytes[0][1]
    one_expert = 3 * 14336 * 4096 * 2 * 4
    assert float(read[0]) == pytest.approx(2 * one_expert)
    assert float(read[-1]) == pytest.approx(8 * one_expert)
    assert np.all(np.diff(read) > 0)


@given(models, ranks, batches, widths, contexts)
@settings(max_examples=150, deadline=None)
def test_time_lies_above_the_roofline_and_its_bounds_are_ordered(name: str, tp: int, b: int, w: int, t: int):
    load = pass_load(pass_shape(MODELS[name], tp), b, w, t)
    lower, upper = bound_s(load, RATES.bandwidth, RATES.flops, RATES.link_bandwidth)
    assert 0 < lower <= upper
    assert float(pass_terms(load, RATES).total_s) >= float(lower)


@given(models, ranks, batches, widths, contexts, st.integers(1, 200), st.sampled_from(["batch", "width", "context"]))
@settings(max_examples=200, deadline=None)
def test_time_never_falls_with_batch_width_or_context(
    name: str, tp: int, b: int, w: int, t: int, more: int, which: str
):
    wider = {"batch": (b + more, w, t), "width": (b, w + more, t), "context": (b, w, t + more)}[which]
    assert seconds(name, tp, *wider) >= seconds(name, tp, b, w, t) * (1 - 1e-12)


@given(batches, widths, contexts, ranks, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_time_never_falls_with_layers(b: int, w: int, t: int, tp: int, more: int):
    few, many = (
        float(pass_terms(pass_load(pass_shape(model(*[DENSE] * n), tp), b, w, t), RATES).total_s) for n in (4, 4 + more)
    )
    assert many > few


@given(batches, widths, contexts, ranks)
@settings(max_examples=60, deadline=None)
def test_time_never_falls_with_bytes(b: int, w: int, t: int, tp: int):
    def at(**formats: str) -> float:
        made = model(*[DENSE] * 4, weight_format=lookup(formats.get("weights", "bf16")))
        shape = pass_shape(made, tp, lookup(formats.get("cache", "bf16")))
        return float(pass_terms(pass_load(shape, b, w, t), RATES).total_s)

    assert at(weights="fp8") < at() < at(weights="fp32")
    assert at(cache="fp8") <= at() <= at(cache="fp32")


@given(models, batches, widths, contexts)
@settings(max_examples=60, deadline=None)
def test_one_rank_has_no_collectives(name: str, b: int, w: int, t: int):
    load = pass_load(pass_shape(MODELS[name], 1), b, w, t)
    assert float(pass_terms(load, RATES).collectives_s) == 0
    assert float(load.link_bytes) == 0
    assert seconds(name, 1, b, w, t) == seconds(name, 1, b, w, t, replace(RATES, reduce_latency_s=1.0))


@given(models, ranks, batches, widths, contexts, st.floats(0.1, 10))
@settings(max_examples=80, deadline=None)
def test_faster_memory_arithmetic_and_links_scale_all_but_the_fixed_times(
    name: str, tp: int, b: int, w: int, t: int, x: float
):
    # t(x) = fixed + variable / x: rates times x leave the fixed part and divide the rest.
    fast = replace(
        RATES, bandwidth=RATES.bandwidth * x, flops=RATES.flops * x, link_bandwidth=(RATES.link_bandwidth or 0) * x
    )
    bare = {"layer_s": 0.0, "layer_request_s": 0.0, "reduce_latency_s": 0.0}
    slow_s, fast_s = (seconds(name, tp, b, w, t, replace(r, **bare)) for r in (RATES, fast))
    assert fast_s * x == pytest.approx(slow_s, rel=1e-9)


@given(models, ranks, batches, widths, contexts)
@settings(max_examples=60, deadline=None)
def test_terms_add_up_and_none_is_negative(name: str, tp: int, b: int, w: int, t: int):
    terms = pass_terms(pass_load(pass_shape(MODELS[name], tp), b, w, t), RATES)
    parts = [
        float(x)
        for x in (
            terms.weights_s,
            terms.kv_s,
            terms.matmul_s,
            terms.attention_s,
            terms.activations_s,
            terms.logits_s,
            terms.collectives_s,
            terms.launches_s,
        )
    ]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(float(terms.total_s), rel=1e-12)


def test_reading_and_multiplying_overlap_on_accelerators_and_add_on_cpus():
    load = pass_load(pass_shape(MODELS["dense"]), 128, 1, 0)
    apart = replace(RATES, overlap=False)
    reading = float(pass_terms(load, RATES).weights_s)
    multiplying = float(pass_terms(load, apart).matmul_s)
    together = reading + float(pass_terms(load, RATES).matmul_s)
    assert together == pytest.approx(np.hypot(reading, multiplying))
    assert multiplying == pytest.approx(float(load.matmul_flops) / (989e12 * 0.65))


def test_an_all_reduce_is_latency_plus_twice_its_message():
    assert float(all_reduce_s(8e6, 2, 400e9, 5e-6)) == pytest.approx(5e-6 + 8e6 / 400e9)
    many = [float(all_reduce_s(8e6, n, 400e9, 5e-6)) for n in (1, 2, 4, 8)]
    assert many[0] == 0
    assert many == sorted(many)


def test_weight_only_formats_reach_less_of_the_bandwidth():
    whole = replace(RATES, width_fraction=())
    load = pass_load(pass_shape(MODELS["int4"]), 1, 1, 0)
    (bits, four_bit), (_, head) = load.dense
    assert bits == 4
    slow, fast = (float(pass_terms(load, r).weights_s) for r in (RATES, whole))
    assert slow - fast == pytest.approx(float(four_bit) * (1 / 0.74 - 1) / (3.35e12 * 0.88))
    assert float(head) == 128256 * 4096 * 2.0
