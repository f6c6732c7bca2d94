"""N_stream and its relatives: they add up, they scale, and experts are touched as enumeration says."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.formulas.parameters import (
    elementwise_params,
    expert_shares,
    experts_touched,
    format_of,
    gathered_params,
    params_by_component,
    resident_bytes,
    resident_params,
    streamed_bytes,
    streamed_params,
    weights,
)
from specplan.specs.catalog import list_models, load_model
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
    Shard,
    Weight,
)

MODELS = [entry.model for entry in list_models()]


def make(layer: Layer, **more: object) -> Model:
    fields: dict[str, object] = {
        "name": "x",
        "source": "y",
        "hidden_size": 64,
        "vocab_size": 100,
        "tied_embeddings": False,
        "layers": (layer,) * 3,
        "weight_format": lookup("bf16"),
    }
    return Model(**fields | more)  # type: ignore[arg-type] # fields of a test


@pytest.mark.parametrize("model", MODELS, ids=[m.name for m in MODELS])
def test_every_parameter_is_streamed_gathered_elementwise_or_unused(model: Model) -> None:
    unused = sum(w.size * w.copies * n for w, n in weights(model) if w.access is Access.UNUSED)
    total = streamed_params(model, 1e12) + gathered_params(model) + elementwise_params(model) + unused
    assert total == pytest.approx(resident_params(model), rel=1e-15)
    assert sum(params_by_component(model).values()) == resident_params(model)
    assert streamed_params(model) <= streamed_params(model, 4) <= streamed_params(model, 1e12)
    assert all(isinstance(w.size, int) and w.size > 0 for w, _ in weights(model))


@pytest.mark.parametrize("model", MODELS, ids=[m.name for m in MODELS])
def test_ranks_together_hold_at_least_the_whole(model: Model) -> None:
    whole = resident_bytes(model)
    for tp in (2, 4, 8):
        assert whole / tp <= resident_bytes(model, tp) <= whole
        assert resident_bytes(model, tp) <= resident_bytes(model, tp // 2)
    assert streamed_bytes(model) <= whole


def test_a_tied_table_is_streamed_once_and_never_gathered() -> None:
    layer = Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=16), feed_forward=DenseMLP(width=128))
    tied, untied = make(layer, tied_embeddings=True), make(layer)
    assert gathered_params(tied) == 0
    assert gathered_params(untied) == 6400
    assert streamed_params(tied) == streamed_params(untied)
    assert resident_params(untied) - resident_params(tied) == 6400


def test_a_draft_head_owns_only_what_is_its_own() -> None:
    layer = Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=16), feed_forward=DenseMLP(width=128))
    whole = make(layer)
    assert resident_params(whole) - resident_params(make(layer, head=False)) == 6400
    assert resident_params(whole) - resident_params(make(layer, embedding=False)) == 6400
    assert resident_params(whole) - resident_params(make(layer, head_vocab_size=10)) == 90 * 64
    assert resident_params(make(layer, embedding_size=32)) == resident_params(whole) - 2 * 3200


def test_attention_in_all_its_forms() -> None:
    def total(mixer: Attention) -> int:
        layer = Layer(mixer=mixer, feed_forward=None, norm_vectors=0)
        return resident_params(make(layer, layers=(layer,), head=False, embedding=False, final_norm_vectors=0))

    plain = Attention(heads=4, kv_heads=2, head_dim=16)
    q, kv, o = 64 * 64, 32 * 64, 64 * 64
    assert total(plain) == q + 2 * kv + o
    assert (
        total(Attention(heads=4, kv_heads=2, head_dim=16, qkv_bias=True, output_bias=True))
        == total(plain) + 64 + 64 + 64
    )
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, qk_norm="head")) == total(plain) + 32
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, qk_norm="all")) == total(plain) + 64 + 32
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, output_gate=True)) == total(plain) + q
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, shares_kv=True)) == q + o
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, key_is_value=True)) == q + kv + o
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, v_head_dim=8)) == q + kv + kv // 2 + o // 2
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, input_size=128)) == 2 * (q + 2 * kv) + o
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, sinks=True)) == total(plain) + 4
    assert total(Attention(heads=4, kv_heads=2, head_dim=16, window=7)) == total(plain)


def test_latent_attention_of_deepseek_v3() -> None:
    mixer = LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_head_dim=128)
    layer = Layer(mixer=mixer, feed_forward=None, norm_vectors=0)
    model = make(layer, hidden_size=7168, layers=(layer,), head=False, embedding=False, final_norm_vectors=0)
    down = (1536 + 576) * 7168
    up = 128 * 192 * 1536 + 128 * 256 * 512 + 128 * 128 * 7168
    assert resident_params(model) == down + up + 1536 + 512
    # The down projections are whole on every rank.
    assert resident_bytes(model, 8) == 2 * (down + up / 8 + 2048)


def test_layers_that_hold_no_weights_of_their_own_count_their_extras() -> None:
    shared = Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=16), feed_forward=DenseMLP(width=128))
    again = Layer(
        mixer=shared.mixer,
        feed_forward=shared.feed_forward,
        only_extra=True,
        extra=(Weight(component="mlp", name="adapter", size=10),),
    )
    assert (
        resident_params(make(shared, layers=(shared, again, again)))
        == resident_params(make(shared, layers=(shared,))) + 20
    )


def test_compressed_attention_counts_its_own_weights() -> None:
    mixer = CompressedAttention(
        heads=4, head_dim=16, window=8, rate=4, weights=(Weight(component="attention", name="all", size=1234),)
    )
    layer = Layer(mixer=mixer, feed_forward=None, norm_vectors=0)
    model = make(layer, layers=(layer,), head=False, embedding=False, final_norm_vectors=0)
    assert streamed_params(model) == 1234


def test_formats_by_weight_layer_model_and_quantisation() -> None:
    layer = Layer(
        mixer=Attention(heads=4, kv_heads=2, head_dim=16),
        feed_forward=DenseMLP(width=128),
        formats=(("attention.q_proj", lookup("float32")), ("attention", lookup("bf16"))),
        extra=(Weight(component="mlp", name="fixed", size=8, format=lookup("fp8")),),
    )
    model = make(layer, quantization=lookup("nvfp4"), formats=(("head", lookup("mxfp4")),))
    found = {w.name: format_of(w, model).name for w, _ in weights(model)}
    assert found == {
        "embed": "bfloat16",
        "lm_head": "mxfp4",
        "final_norm": "bfloat16",
        "q_proj": "float32",
        "k_proj": "bfloat16",
        "v_proj": "bfloat16",
        "o_proj": "bfloat16",
        "mlp": "nvfp4",
        "norms": "bfloat16",
        "fixed": "fp8",
    }


def test_key_value_projections_are_replicated_beyond_their_heads() -> None:
    layer = Layer(mixer=Attention(heads=8, kv_heads=2, head_dim=8), feed_forward=None, norm_vectors=0)
    model = make(layer, layers=(layer,), head=False, embedding=False, final_norm_vectors=0)
    found = {w.name: w.shard for w, _ in weights(model)}
    assert (found["k_proj"], found["q_proj"]) == (Shard.KV_HEADS, Shard.SPLIT)
    qo, kv = 2 * 64 * 64, 2 * 16 * 64
    assert resident_bytes(model, 8) == 2 * (qo / 8 + kv / 2)


# Experts


@pytest.mark.parametrize(("n", "k", "t"), [(3, 1, 2), (4, 2, 2), (4, 2, 3), (5, 3, 2)])
def test_distinct_experts_equal_enumeration(n: int, k: int, t: int) -> None:
    subsets = list(itertools.combinations(range(n), k))
    unions = [len(set().union(*chosen)) for chosen in itertools.product(subsets, repeat=t)]
    assert float(experts_touched(n, k, t)) == pytest.approx(sum(unions) / len(unions), rel=1e-12)


@given(st.integers(1, 512), st.data())
def test_experts_touched_grow_towards_all(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    t = np.array([0, 1, 2, 8, 64, 1e9])
    touched = experts_touched(n, k, t)
    assert touched[0] == 0
    assert touched[1] == k
    assert np.all(np.diff(touched) >= -1e-9)
    assert touched[-1] == pytest.approx(n)


@given(st.integers(1, 300), st.data(), st.floats(0, 5))
@settings(max_examples=200)
def test_shares_are_probabilities_that_add_up(n: int, data: st.DataObject, skew: float) -> None:
    k = data.draw(st.integers(1, n))
    shares = expert_shares(n, k, skew)
    assert shares.shape == (n,)
    assert np.all(shares >= 0)
    assert np.all(shares <= 1 + 1e-12)
    assert np.all(np.diff(shares) <= 1e-12)
    assert shares.sum() == pytest.approx(k, rel=1e-9)


@given(st.integers(2, 256), st.data(), st.floats(0, 3), st.floats(0, 3), st.floats(1, 100))
def test_skew_touches_fewer_experts(n: int, data: st.DataObject, a: float, b: float, t: float) -> None:
    k = data.draw(st.integers(1, n))
    low, high = sorted((a, b))
    assert float(experts_touched(n, k, t, skew=high)) <= float(experts_touched(n, k, t, skew=low)) + 1e-6 * n
    assert float(experts_touched(n, k, 1, skew=high)) == pytest.approx(k)


def test_skewed_experts_equal_independent_sampling() -> None:
    shares = expert_shares(8, 2, 1.2)
    rng = np.random.default_rng(7)
    drawn = rng.random((100_000, 5, 8)) < shares
    assert float(experts_touched(8, 2, 5, skew=1.2)) == pytest.approx(drawn.any(axis=1).sum(axis=1).mean(), rel=0.005)


@pytest.mark.parametrize("skew", [-1.0, math.nan, math.inf])
def test_a_skew_that_is_none_is_refused(skew: float) -> None:
    with pytest.raises(InputError, match="skew"):
        expert_shares(8, 2, skew)


def test_more_tokens_cost_more_of_a_mixture_and_nothing_of_a_dense_model() -> None:
    mixture, dense = load_model("qwen3-30b-a3b"), load_model("llama3-8b")
    assert streamed_params(dense, 4) == streamed_params(dense)
    one, four = streamed_params(mixture), streamed_params(mixture, 4)
    routed = 48 * 3 * 768 * 2048
    assert four - one == pytest.approx(routed * (128 * (1 - (1 - 8 / 128) ** 4) - 8))
    assert one < streamed_params(mixture, 4, skew=1.0) < four
    assert streamed_bytes(mixture, 4, skew=1.0) < streamed_bytes(mixture, 4)


def test_experts_and_what_stands_beside_them() -> None:
    layer = Layer(
        mixer=None,
        feed_forward=Experts(
            count=8,
            per_token=2,
            width=32,
            shared_width=48,
            shared_gate=True,
            shared_bias=True,
            router_bias=True,
            bias=True,
        ),
    )
    counts = params_by_component(make(layer, layers=(layer,)))
    assert counts["router"] == 8 * 64 + 8
    assert counts["experts"] == 8 * 3 * 32 * 64 + 8 * (2 * 32 + 64)
    assert counts["shared_experts"] == 3 * 48 * 64 + (2 * 48 + 64) + 64
