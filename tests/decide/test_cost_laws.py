"""Laws that the priced cost must obey whatever the model and the card."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.cost import cost
from specplan.formulas import kv_cache, parameters
from specplan.specs.hardware import load_accelerator
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator
from specplan.values.model import Attention, DenseMLP, Experts, LatentAttention, Layer, Model

H100 = load_accelerator("h100-sxm")


@st.composite
def models(draw: st.DrawFn) -> Model:
    heads = draw(st.sampled_from((4, 8, 16)))
    mixer = draw(
        st.one_of(
            st.builds(
                Attention,
                heads=st.just(heads),
                kv_heads=st.sampled_from((1, 2, 4)),
                head_dim=st.sampled_from((16, 64)),
                window=st.sampled_from((None, 128)),
            ),
            st.builds(
                LatentAttention,
                heads=st.just(heads),
                q_rank=st.sampled_from((None, 24)),
                kv_rank=st.just(32),
                nope_dim=st.just(16),
                rope_dim=st.just(8),
                v_head_dim=st.just(16),
            ),
        )
    )
    feed_forward = draw(
        st.one_of(
            st.builds(DenseMLP, width=st.sampled_from((64, 256)), gated=st.booleans()),
            st.builds(Experts, count=st.just(8), per_token=st.integers(1, 8), width=st.just(32)),
        )
    )
    layer = Layer(mixer=mixer, feed_forward=feed_forward)
    return Model(
        name="drawn",
        source="drawn",
        hidden_size=draw(st.sampled_from((32, 128))),
        vocab_size=draw(st.sampled_from((128, 1024))),
        tied_embeddings=draw(st.booleans()),
        layers=(layer,) * draw(st.integers(1, 4)),
        weight_format=lookup(draw(st.sampled_from(("bfloat16", "float32")))),
        max_position=draw(st.sampled_from((64, 1024))),
    )


@settings(max_examples=60, deadline=None)
@given(target=models(), draft=models(), x=st.sampled_from((0.5, 3.0)))
def test_bytes_and_bandwidth_times_x_leave_times_unchanged(target: Model, draft: Model, x: float) -> None:
    def scaled(m: Model) -> Model:
        f = m.weight_format
        return dataclasses.replace(m, weight_format=dataclasses.replace(f, payload_bits=f.payload_bits * x))

    faster: Accelerator = dataclasses.replace(H100, bandwidth=H100.bandwidth * x)
    a = cost(target, H100, draft=draft, alpha=0.6, context_len=100)
    b = cost(scaled(target), faster, draft=scaled(draft), alpha=0.6, context_len=100)
    assert b.target.decode_floor_s == pytest.approx(a.target.decode_floor_s, rel=1e-12)
    assert b.c == pytest.approx(a.c, rel=1e-12)
    assert b.speedup == pytest.approx(a.speedup, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(target=models(), tp=st.sampled_from((1, 2, 4)))
def test_ranks_hold_at_least_their_share_and_at_most_everything(target: Model, tp: int) -> None:
    one, ranked = (cost(target, H100, tp=t) for t in (1, tp))
    assert one.target.resident_bytes_per_rank / tp <= ranked.target.resident_bytes_per_rank * (1 + 1e-12)
    assert ranked.target.resident_bytes_per_rank <= one.target.resident_bytes_per_rank
    assert ranked.target.decode_floor_s <= one.target.decode_floor_s
    assert ranked.target.kv_bytes_per_token == one.target.kv_bytes_per_token


@settings(max_examples=60, deadline=None)
@given(target=models(), draft=models())
def test_the_draft_takes_its_weights_and_its_cache_and_nothing_else(target: Model, draft: Model) -> None:
    r = cost(target, H100, draft=draft)
    assert r.pool_with_draft is not None
    taken = r.pool.kv_bytes_per_rank - r.pool_with_draft.kv_bytes_per_rank
    assert taken == pytest.approx(parameters.resident_bytes(draft), rel=1e-6)
    per_sequence = r.pool_with_draft.bytes_per_sequence_per_rank - r.pool.bytes_per_sequence_per_rank
    assert per_sequence == pytest.approx(float(kv_cache.kv_bytes_stored(draft, r.max_model_len)))
    assert r.pool_with_draft.tokens <= r.pool.tokens
    assert r.pool_with_draft.sequences <= r.pool.sequences


@settings(max_examples=60, deadline=None)
@given(target=models(), batch=st.integers(1, 64), kappa=st.integers(1, 8))
def test_verification_costs_a_plain_pass_at_least_and_exactly_that_for_dense_models(
    target: Model, batch: int, kappa: int
) -> None:
    factor = cost(target, H100, batch=batch, kappa=kappa).verify_factor
    assert factor >= 1 - 1e-12
    if isinstance(target.layers[0].feed_forward, DenseMLP):
        assert factor == 1


@settings(max_examples=60, deadline=None)
@given(target=models())
def test_streamed_gathered_and_elementwise_parameters_make_up_the_resident_ones(target: Model) -> None:
    every_token = 1e9  # so many tokens touch every expert
    parts = parameters.streamed_params(target, every_token) + parameters.gathered_params(target)
    assert parts + parameters.elementwise_params(target) == pytest.approx(parameters.resident_params(target), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(target=models(), length=st.integers(1, 4000))
def test_stored_and_read_cache_agree_for_plain_layers_and_never_shrink_with_length(target: Model, length: int) -> None:
    stored = kv_cache.kv_bytes_stored(target, [length, length + 1])
    assert stored[1] >= stored[0]
    assert kv_cache.kv_bytes_read(target, length) == pytest.approx(float(stored[0]))
    assert stored[0] <= length * kv_cache.kv_bytes_per_token(target)
