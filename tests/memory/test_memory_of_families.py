"""What a card's family, a version, and a checkpoint's storage decide about the pool."""

from dataclasses import replace

import pytest

from specplan.errors import InputError
from specplan.memory.speculative import parse_speculative_config
from specplan.memory.vllm import VllmFlags, default_batch, predict_vllm
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator, memory_facts
from specplan.specs.served import served, shipped_configs
from specplan.units import GIB
from specplan.values.vllm_versions import vllm_rules


def test_unified_memory_takes_the_batches_of_small_cards() -> None:
    assert default_batch(load_accelerator("gb10")) == default_batch(load_accelerator("thor")) == (256, 2048)
    assert default_batch(load_accelerator("h100-sxm")) == (1024, 8192)


def test_sparse_latents_are_plain_on_blackwell_and_index_only_where_an_indexer_stands() -> None:
    model = served("zai-org/GLM-5.2-FP8").model
    flags = VllmFlags(tp=8, kv_cache_dtype="fp8", max_model_len=8192, kv_cache_memory_bytes=64 * GIB)
    hopper, blackwell = (predict_vllm(model, load_accelerator(card), flags) for card in ("h200", "b200"))
    assert hopper.bytes_per_token == pytest.approx(78 * 656 + 21 * 132)
    assert blackwell.bytes_per_token == pytest.approx(78 * 576 + 21 * 132)


def test_versions_are_full_versions() -> None:
    assert not vllm_rules("0.20.0").tokens_by_concurrency
    assert vllm_rules("0.20.2").tokens_by_concurrency
    assert not vllm_rules("0.17.1").align_states
    assert vllm_rules("0.18.1rc1.dev147").align_states


def test_a_family_without_a_log_says_so_and_its_bounds_are_wide() -> None:
    card = replace(load_accelerator("rtx-4090"), family="unheard-of", memory_facts=memory_facts("unheard-of"))
    flags = VllmFlags(max_model_len=8192)
    known = predict_vllm(load_model("qwen3-0.6b"), load_accelerator("rtx-4090"), flags)
    new = predict_vllm(load_model("qwen3-0.6b"), card, flags)
    assert any("none are known" in note for note in new.assumptions)
    assert new.rank.available.best == known.rank.available.best
    assert new.rank.available.low < known.rank.available.low - 2 * GIB


def test_custom_all_reduce_is_not_copied_to_versions_it_was_not_seen_in() -> None:
    flags = VllmFlags(version="0.10.1", tp=2, max_model_len=8192)
    rank = predict_vllm(load_model("qwen2.5-7b"), load_accelerator("a100-sxm-80gb"), flags).rank
    assert rank.non_torch.best < 0.5 * GIB
    assert rank.non_torch.high > 2 * GIB


@pytest.mark.parametrize(
    ("name", "gib"),
    [("RedHatAI/Qwen3.6-35B-A3B-NVFP4", 1.55), ("nvidia/Qwen3.6-27B-NVFP4", 0.79)],
)
def test_a_prediction_layer_beside_4_bit_weights_is_charged_plain(name: str, gib: float) -> None:
    speculation = parse_speculative_config({"method": "mtp", "num_speculative_tokens": 2})
    flags = VllmFlags(max_model_len=8192, kv_cache_dtype="fp8", kv_cache_memory_bytes=8 * GIB)
    rank = predict_vllm(served(name).model, load_accelerator("gb10"), flags, speculation).rank
    assert sum(rank.draft_weights.values()) == pytest.approx(gib * GIB, rel=0.05)


def test_towers_are_resident_unless_only_the_language_model_is_loaded() -> None:
    found = served("google/gemma-4-26B-A4B-it")
    flags = VllmFlags(version="0.19.0", max_model_len=8192)
    card = load_accelerator("thor")
    both = predict_vllm(found.whole, card, flags).rank.weights.best
    alone = predict_vllm(found.whole, card, replace(flags, language_model_only=True)).rank.weights.best
    assert both == pytest.approx(48.5 * GIB, rel=0.002)  # as a start-up on Thor prints
    assert both - alone == pytest.approx(1.07 * GIB, rel=0.02)


def test_without_its_towers_a_model_prices_no_image() -> None:
    found = served("google/gemma-4-26B-A4B-it")
    text = VllmFlags(version="0.19.0", max_model_len=8192, language_model_only=True)
    images = replace(text, multimodal_tokens=4096, multimodal_values=3 * 896**2, encoder_whole=1e9, encoder_split=1e9)
    card = load_accelerator("thor")
    assert predict_vllm(found.whole, card, images).rank == predict_vllm(found.whole, card, text).rank


def test_an_assistant_of_gemma_4_caches_nothing() -> None:
    config = {"method": "mtp", "model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 3}
    flags = VllmFlags(max_model_len=8192, kv_cache_memory_bytes=8 * GIB)
    model, card = load_model("gemma4-31b"), load_accelerator("h100-sxm")
    plain = predict_vllm(model, card, flags)
    drafting = predict_vllm(model, card, flags, parse_speculative_config(config))
    assert plain.blocks == drafting.blocks


def test_a_cache_of_bare_int8_is_refused() -> None:
    with pytest.raises(InputError, match="int8_per_token_head"):
        predict_vllm(load_model("qwen3-0.6b"), load_accelerator("l4"), VllmFlags(kv_cache_dtype="int8"))


def test_shipped_configs_answer_by_any_spelling_of_their_name() -> None:
    assert "qwen3.627b" in shipped_configs()
    assert served("Qwen/Qwen3.6-27B").tower is not None
    assert served("qwen3-8b").tower is None
