"""Cache bytes of each layer kind against hand-counted shapes of published models."""

import dataclasses

import numpy as np
import pytest

from specplan.errors import InfeasibleError
from specplan.formulas.kv_cache import (
    kv_bytes_per_token,
    kv_bytes_read,
    kv_bytes_stored,
    kv_pool_bytes,
    pool_sequences,
    pool_tokens,
)
from specplan.formulas.roofline import cost_ratio, decode_floor_s, ridge_positions, verified_positions
from specplan.values.formats import lookup
from specplan.values.model import Attention, CompressedAttention, LatentAttention, Layer, Mixer, Model, Recurrent


def stack(*mixers: Mixer) -> Model:
    return Model(
        name="stack",
        source="test",
        hidden_size=64,
        vocab_size=64,
        tied_embeddings=True,
        layers=tuple(Layer(mixer=m, feed_forward=None) for m in mixers),
        weight_format=lookup("bfloat16"),
    )


FULL = Attention(heads=32, kv_heads=8, head_dim=128)
SLIDING = Attention(heads=32, kv_heads=16, head_dim=256, window=1024)
MLA = LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_head_dim=128)
DSA = LatentAttention(
    heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_head_dim=128, index_heads=64, index_dim=128,
    index_topk=2048,
)  # fmt: skip
GDN = Recurrent(
    kind="gated_delta_net", weights=(), conv_channels=10240, conv_kernel=4, state_size=48 * 128 * 128, heads=48,
    state_format=lookup("float32"),
)  # fmt: skip


def test_plain_gqa_is_two_times_heads_times_size_and_divides_until_heads_run_out() -> None:
    m = stack(*[FULL] * 32)
    assert kv_bytes_per_token(m) == 2 * 32 * 8 * 128 * 2
    assert [kv_bytes_per_token(m, tp=tp) for tp in (2, 8, 16, 64)] == [2**16, 2**14, 2**14, 2**14]
    assert kv_bytes_per_token(m, lookup("fp8")) == 2**16


def test_a_latent_is_cached_once_and_replicated_on_every_rank() -> None:
    m = stack(*[MLA] * 61)
    assert kv_bytes_per_token(m) == kv_bytes_per_token(m, tp=8) == 61 * 576 * 2


def test_sparse_attention_stores_every_latent_and_its_index_but_reads_the_chosen_ones() -> None:
    m = stack(DSA)
    assert kv_bytes_per_token(m) == 576 * 2 + 132
    assert kv_bytes_read(m, 100_000) == 2048 * 576 * 2 + 100_000 * 132
    assert kv_bytes_read(m, 1000) == kv_bytes_stored(m, 1000)


def test_a_window_stops_growing_at_its_size() -> None:
    m = stack(SLIDING, SLIDING, FULL)
    lengths = np.array([512, 1024, 5000])
    sliding = 2 * 2 * 16 * 256 * 2 * np.minimum(lengths, 1024)
    np.testing.assert_array_equal(kv_bytes_stored(m, lengths), sliding + 2 * 8 * 128 * 2 * lengths)


def test_a_recurrent_state_is_stored_and_read_whole_at_any_length() -> None:
    m = stack(GDN)
    state = 3 * 10240 * 2 + 48 * 128 * 128 * 4
    assert kv_bytes_per_token(m) == 0
    assert kv_bytes_stored(m, 0) == kv_bytes_stored(m, 10**6) == kv_bytes_read(m, 5) == state
    assert kv_bytes_stored(m, 7, tp=4) == state / 4


def test_a_layer_that_shares_a_cache_stores_nothing_and_reads_all_of_it() -> None:
    m = stack(Attention(heads=8, kv_heads=2, head_dim=64, shares_kv=True))
    assert kv_bytes_stored(m, 100) == 0
    assert kv_bytes_read(m, 100) == 100 * 2 * 2 * 64 * 2


def test_value_heads_may_be_narrower_than_key_heads() -> None:
    assert kv_bytes_per_token(stack(Attention(heads=64, kv_heads=4, head_dim=192, v_head_dim=128))) == 4 * 320 * 2


def test_pools_are_whole_tokens_and_never_negative() -> None:
    np.testing.assert_array_equal(pool_tokens([-5.0, 0.0, 99.0, 100.0], 10), [0, 0, 9, 10])
    assert pool_sequences(100, 30) == 3
    assert kv_pool_bytes(80, 0.9, 100, 2) == pytest.approx(-30)
    with pytest.raises(InfeasibleError):
        pool_tokens(100, 0)


def test_roofline_formulas_broadcast() -> None:
    np.testing.assert_allclose(decode_floor_s([1e9, 2e9], 1e12), [1e-3, 2e-3])
    np.testing.assert_allclose(cost_ratio(1.0, [2.0, 4.0]), [0.5, 0.25])
    np.testing.assert_array_equal(verified_positions([[1], [16]], [0, 24]), [[1, 25], [16, 400]])
    np.testing.assert_allclose(ridge_positions(1978e12, 3350e9, [1, 2]), [295.22, 590.45], atol=0.01)


def test_compressed_attention_keeps_a_window_and_one_entry_per_so_many_tokens() -> None:
    """DeepSeek-V4's shape: a 512-wide vector per token in a window of 128, an entry per 4 tokens with an index key."""
    mixer = CompressedAttention(heads=64, head_dim=512, weights=(), window=128, rate=4, index_dim=128, index_topk=512)
    m = stack(mixer)
    vector, key = 512 * 2, 132
    assert kv_bytes_per_token(m) == kv_bytes_per_token(m, tp=8) == vector + (vector + key) / 4
    np.testing.assert_array_equal(
        kv_bytes_stored(m, [3, 100, 10_000]),
        [3 * vector, 100 * vector + 25 * (vector + key), 128 * vector + 2500 * (vector + key)],
    )
    assert kv_bytes_read(m, 10_000) == 128 * vector + 512 * vector + 2500 * key
    only_window = stack(CompressedAttention(heads=64, head_dim=512, weights=(), window=128))
    assert kv_bytes_stored(only_window, 10_000) == kv_bytes_read(only_window, 10_000) == 128 * vector


def test_sparse_attentions_fp8_latents_carry_scales_and_a_16_bit_rotary_part() -> None:
    """656 bytes a token, as the engines' kernels read them, beside 132 of the index (fact: 61 layers x 64 x 788)."""
    m, fp8 = stack(DSA), lookup("fp8")
    assert kv_bytes_per_token(m, fp8) == 656 + 132
    assert kv_bytes_read(m, 100_000, fp8) == 656 * 2048 + 132 * 100_000
    assert kv_bytes_per_token(stack(dataclasses.replace(DSA, index_heads=0, index_dim=0)), fp8) == 576


def test_layers_that_share_an_index_keep_no_keys_of_their_own() -> None:
    shared = stack(dataclasses.replace(DSA, index_shared=True))
    assert kv_bytes_per_token(shared) == 576 * 2
    assert kv_bytes_read(shared, 100_000) == 2048 * 576 * 2
