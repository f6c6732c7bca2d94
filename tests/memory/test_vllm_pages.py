"""Cache pages from models: replication, packed formats, recurrent states that grow with the draft."""

from dataclasses import replace

import pytest

from specplan.errors import InputError, UnsupportedError
from specplan.formulas.kv_cache import kv_bytes_stored
from specplan.memory.vllm_kv import CacheKind
from specplan.memory.vllm_pages import (
    PageSettings,
    aligned_block_size,
    cache_layers,
    kv_heads_per_rank,
    state_bytes,
    token_bytes_per_head,
)
from specplan.specs.catalog import load_model
from specplan.values.model import Layer, Recurrent

# Block sizes that vLLM printed ("Setting attention block size to %d tokens"): model, tp, cache, k -> tokens.
PRINTED = [
    ("qwen3.6-27b", 1, "fp8", 0, 1568),
    ("qwen3.6-27b", 1, "fp8", 2, 1600),
    ("qwen3.6-27b", 1, "auto", 0, 784),
    ("qwen3.6-27b", 2, "fp8", 4, 1616),
    ("qwen3.6-27b", 2, "bfloat16", 7, 832),
    ("qwen3.6-27b", 1, "nvfp4", 2, 2832),
    ("qwen3.5-35b-a3b", 2, "fp8", 0, 2096),
]


@pytest.mark.parametrize(("name", "tp", "dtype", "k", "tokens"), PRINTED)
def test_hybrid_blocks_hold_a_state(name: str, tp: int, dtype: str, k: int, tokens: int) -> None:
    pages = PageSettings(tp=tp, block_size=16, kv_cache_dtype=dtype, speculative_tokens=k)
    assert aligned_block_size(cache_layers(load_model(name), pages), 16) == tokens


def test_states_grow_with_the_draft_by_columns_of_the_convolution() -> None:
    model = load_model("qwen3.6-27b")

    def state(k: int) -> int:
        layers = cache_layers(model, PageSettings(tp=2, block_size=16, speculative_tokens=k))
        return next(layer.page_bytes for layer in layers if layer.kind is CacheKind.RECURRENT)

    assert state(0) == 1603584  # bytes per layer and rank, from a public log's layout
    assert [state(k) - state(0) for k in (1, 3, 4)] == [10240, 30720, 40960]


# Shapes of one request's state as vLLM 0.32's own calculators give them: (convolution, recurrent) by ranks and k.
STATES = {
    ("qwen3-next-80b-a3b", 8, 3): (6 * 1024, 4 * 128 * 128),
    ("nemotron-3-nano", 4, 3): (6 * 1536, 16 * 64 * 128),
    ("nemotron-3-nano", 16, 0): (3 * 512, 4 * 64 * 128),  # eight groups on sixteen ranks: each holds one
    ("falcon-mamba-7b", 2, 0): (3 * 4096, 4096 * 16),
    ("falcon-mamba-7b", 2, 3): (3 * 4096, 4096 * 16),  # Mamba-1 keeps no columns for drafts
    ("lfm2-1.2b", 4, 3): (5 * 512, 0),
    ("kimi-linear-48b-a3b", 8, 3): (6 * 1536, 4 * 128 * 128),
}


@pytest.mark.parametrize(("name", "tp", "k"), STATES)
def test_states_have_the_shapes_of_vllms_calculators(name: str, tp: int, k: int) -> None:
    model = load_model(name)
    mixer = next(layer.mixer for layer in model.layers if isinstance(layer.mixer, Recurrent))
    conv, recurrent = STATES[name, tp, k]
    size = (mixer.state_format or model.weight_format).bytes
    found = state_bytes(mixer, model, PageSettings(tp=tp, block_size=16, speculative_tokens=k))
    assert found == 2 * conv + size * recurrent
    if k == 0:
        of_layer = replace(model, layers=(Layer(mixer=mixer, feed_forward=None),))
        assert kv_bytes_stored(of_layer, 0, tp=tp) == found


def test_key_value_heads_are_divided_then_replicated() -> None:
    assert [kv_heads_per_rank(8, tp) for tp in (1, 2, 4, 8, 16)] == [8, 4, 2, 1, 1]
    with pytest.raises(InputError, match="cannot be divided among 3 ranks"):
        kv_heads_per_rank(8, 3)


def test_a_latent_is_whole_on_every_rank() -> None:
    model = load_model("deepseek-v3")
    pages = [cache_layers(model, PageSettings(tp=tp, block_size=64))[0].page_bytes for tp in (1, 8)]
    assert pages == [73728, 73728]


def test_packed_formats_of_sparse_latents_and_their_index_keys() -> None:
    layers = cache_layers(load_model("deepseek-v3.2"), PageSettings(tp=8, block_size=64, kv_cache_dtype="fp8"))
    assert sorted({layer.page_bytes for layer in layers}) == [64 * 132, 64 * 656]
    assert len(layers) == 122


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("auto", 512), ("fp8", 256), ("nvfp4", 144), ("int8_per_token_head", 264), ("int4_per_token_head", 136)],
)
def test_bytes_per_token_and_head(dtype: str, size: int) -> None:
    assert token_bytes_per_head(128, 128, dtype, 2) == size


def test_layers_that_share_a_cache_reserve_nothing_and_windows_are_windows() -> None:
    kinds = [layer.kind for layer in cache_layers(load_model("gemma3-27b"), PageSettings(tp=1, block_size=16))]
    assert (kinds.count(CacheKind.SLIDING), kinds.count(CacheKind.FULL)) == (52, 10)


def test_compressed_attention_is_named_not_guessed() -> None:
    with pytest.raises(UnsupportedError, match="DeepSeek-V4"):
        cache_layers(load_model("deepseek-v4-flash"), PageSettings(tp=8, block_size=64))
