"""Pools with and without a draft: what speculation takes, and laws that hold for any flags."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError, UnsupportedError
from specplan.memory.blocks import SglangFlags, VllmFlags, sglang_blocks, vllm_blocks
from specplan.memory.speculative import Speculation, sglang_speculation
from specplan.memory.vllm import predict_vllm
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.units import GIB, MIB

H100 = load_accelerator("h100-sxm")
LLAMA70, LLAMA1, LLAMA8 = load_model("llama3-70b"), load_model("llama3.2-1b"), load_model("llama3.1-8b")
DRAFT = Speculation(method="draft_model", num_speculative_tokens=5, model="llama3.2-1b")
NGRAM = Speculation(method="ngram", num_speculative_tokens=5, prompt_lookup=(5, 5))


def test_the_draft_takes_memory_first_and_layout_afterwards() -> None:
    report = vllm_blocks(LLAMA70, H100, VllmFlags(tp=4), DRAFT, LLAMA1)
    assert report.plain.plan is not None
    assert report.speculative is not None
    assert report.speculative.plan is not None
    # 320 KiB per token become 352 KiB over four ranks.
    assert report.plain.plan.bytes_per_block == (1310720,)
    assert report.speculative.plan.bytes_per_block == (1441792,)
    price = report.price
    assert price is not None
    assert price.equivalent_bytes == pytest.approx(price.memory_bytes + price.layout_bytes)
    weights = sum(report.speculative.rank.draft_weights.values())
    # 0.575 GiB of the checkpoint's quarter, and the draft's own rotary table (131,072 x 64 x 2 B) on every rank.
    assert weights / GIB == pytest.approx(0.575 + 16 / 1024, abs=0.002)
    assert price.share > 1 - 320 / 352  # the layout alone, then the weights on top
    assert price.tokens == 16 * price.blocks


def test_alternatives_say_what_comes_back() -> None:
    report = vllm_blocks(LLAMA70, H100, VllmFlags(tp=4), DRAFT, LLAMA1)
    back = {a.change: a.tokens_back for a in report.alternatives}
    assert back["--kv-cache-dtype fp8"] > back["n-gram drafts in place of the model"] > 0
    assert back["a draft of 8 of its 16 layers"] > 0


def test_zero_parameter_is_not_zero_memory() -> None:
    # 1024 requests x 131,072 tokens x 4 B on runner V2; nothing on V1.
    v2 = predict_vllm(LLAMA8, H100, VllmFlags(max_model_len=131072), NGRAM)
    assert v2.rank.buffers == {"token ids of every request": 512 * MIB}
    assert predict_vllm(LLAMA8, H100, VllmFlags(version="0.19.0"), NGRAM).rank.buffers == {}
    on_gpu = replace(NGRAM, method="ngram_gpu")
    assert predict_vllm(LLAMA8, H100, VllmFlags(version="0.19.0"), on_gpu).rank.buffers
    suffix = replace(NGRAM, method="suffix", prompt_lookup=None)
    assert predict_vllm(LLAMA8, H100, VllmFlags(), suffix).rank.buffers == {}


def test_probabilistic_drafts_keep_their_logits() -> None:
    # 1024 x 5 x 128,256 x 2 B = 1.22 GiB.
    found = predict_vllm(LLAMA70, H100, VllmFlags(tp=4), replace(DRAFT, probabilistic=True), LLAMA1)
    assert found.rank.buffers["draft logits"] / GIB == pytest.approx(1.223, abs=0.001)


def test_an_fp8_cache_doubles_the_blocks() -> None:
    explicit = VllmFlags(tp=4, kv_cache_memory_bytes=2**35)
    plain = predict_vllm(LLAMA70, H100, explicit)
    half = predict_vllm(LLAMA70, H100, replace(explicit, kv_cache_dtype="fp8"))
    assert plain.blocks is not None
    assert half.blocks is not None
    assert half.blocks.best // 2 == plain.blocks.best


def test_with_pipeline_stages_the_draft_stands_on_the_last_which_decides() -> None:
    flags = VllmFlags(tp=2, pp=2)
    plain = predict_vllm(LLAMA70, H100, flags)
    both = predict_vllm(LLAMA70, H100, flags, DRAFT, LLAMA1)
    assert both.ranks[0].draft_weights == {}
    assert both.ranks[1].draft_weights
    assert both.decisive == 1
    assert both.plan is not None
    assert plain.plan is not None
    assert both.plan.bytes_per_block[0] == plain.plan.bytes_per_block[0]
    assert both.plan.bytes_per_block[1] > plain.plan.bytes_per_block[1]


def test_a_pool_that_does_not_hold_one_request_is_refused_in_the_engines_words() -> None:
    small = VllmFlags(tp=4, max_model_len=8192, kv_cache_memory_bytes=GIB // 4)
    report = vllm_blocks(LLAMA70, H100, small, DRAFT, LLAMA1)
    assert not report.starts
    assert report.decided.refusal is not None
    assert report.decided.refusal.startswith("To serve at least one request with the model's max seq len (8192)")
    longest = report.decided.longest
    assert 0 < longest < 8192
    fits = predict_vllm(LLAMA70, H100, replace(small, max_model_len=longest), DRAFT, LLAMA1)
    assert fits.refusal is None
    over = predict_vllm(LLAMA70, H100, replace(small, max_model_len=longest + 1), DRAFT, LLAMA1)
    assert over.refusal is not None
    assert report.binding.startswith("max_model_len")


def test_an_override_replaces_the_blocks_and_bounds_the_longest_request() -> None:
    found = predict_vllm(LLAMA8, H100, VllmFlags(max_model_len=8192, num_gpu_blocks_override=1000))
    assert found.blocks is not None
    assert found.blocks.best == 1000
    assert found.longest == 999 * 16
    refused = predict_vllm(LLAMA8, H100, VllmFlags(max_model_len=16384, num_gpu_blocks_override=1000))
    assert refused.refusal is not None
    assert "estimated maximum model length is 15984" in refused.refusal


def test_a_length_beyond_the_models_is_noted() -> None:
    found = predict_vllm(LLAMA70, H100, VllmFlags(tp=4, max_model_len=16384))
    assert any("exceeds the model's 8,192" in note for note in found.assumptions)


def test_minus_one_fits_the_longest() -> None:
    found = predict_vllm(LLAMA8, H100, VllmFlags(max_model_len=-1, kv_cache_memory_bytes=10 * GIB))
    assert found.max_model_len == found.longest == 81904


def test_weights_beyond_the_card_are_named() -> None:
    report = vllm_blocks(LLAMA70, H100, VllmFlags(tp=1))
    assert not report.starts
    assert report.decided.refusal is not None
    assert report.decided.refusal.startswith("No available memory for the cache blocks")
    assert report.binding.startswith("weights")


@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        (VllmFlags(version="0.40.0"), UnsupportedError, "0.8 to 0.33"),
        (VllmFlags(version="newest"), UnsupportedError, "is not a vLLM version"),
        (VllmFlags(tp=0), InputError, "--tp must be at least 1"),
        (VllmFlags(pp=-1), InputError, "--pp must be at least 1"),
        (VllmFlags(tp=4, max_num_seqs=0), InputError, "--max-num-seqs must be at least 1"),
        (VllmFlags(tp=4, block_size=17), InputError, "multiples of 16"),
        (VllmFlags(tp=3), InputError, "divided among 3 ranks"),
        (VllmFlags(gpu_memory_utilization=1.5), InputError, "gpu-memory-utilization"),
        (VllmFlags(quantization="compressed-tensors"), InputError, "states how weights are stored"),
        (VllmFlags(max_model_len=0), InputError, "max-model-len"),
        (VllmFlags(tp=4, dcp=3), InputError, "decode context parallel 3"),
    ],
)
def test_flags_that_cannot_be(flags: VllmFlags, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        predict_vllm(LLAMA70, H100, flags)


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    other = replace(LLAMA1, vocab_size=32000)
    with pytest.raises(InputError, match="32000 entries"):
        predict_vllm(LLAMA70, H100, VllmFlags(tp=4), DRAFT, other)
    mixed = replace(DRAFT, heterogeneous_vocab=True)
    assert predict_vllm(LLAMA70, H100, VllmFlags(tp=4), mixed, other).settings["runner"] == "v1"


def test_the_words_follow_the_version() -> None:
    old = predict_vllm(LLAMA8, H100, VllmFlags(version="0.19.0"))
    new = predict_vllm(LLAMA8, H100, VllmFlags(version="0.32.0"))
    assert [line.split(":")[0] for line in old.log_lines] == [
        "GPU KV cache size",
        "Maximum concurrency for 131,072 tokens per request",
    ]
    assert len(new.log_lines) == 1
    assert "tokens, Maximum concurrency for 131,072 tokens per request: " in new.log_lines[0]


vllm_flags = st.builds(
    VllmFlags,
    version=st.sampled_from(["0.10.2", "0.19.0", "0.24.0", "0.32.0"]),
    tp=st.sampled_from([4, 8]),
    kv_cache_dtype=st.sampled_from(["auto", "fp8"]),
    gpu_memory_utilization=st.floats(0.75, 0.95),
    max_model_len=st.sampled_from([2048, 8190]),
    max_num_seqs=st.sampled_from([16, 256, 1024]),
    block_size=st.sampled_from([16, 32]),
)


@settings(max_examples=25, deadline=None)
@given(flags=vllm_flags)
def test_a_draft_never_adds_blocks_and_bounds_enclose(flags: VllmFlags) -> None:
    report = vllm_blocks(LLAMA70, H100, flags, DRAFT, LLAMA1)
    for found in (report.plain, report.speculative):
        assert found is not None
        for span in (found.blocks, found.tokens, found.concurrency):
            if span is not None:
                assert span.low <= span.best <= span.high
        terms = found.rank
        spent = terms.weights.best + terms.activation_peak.best + terms.non_torch.best + terms.cuda_graph.best
        assert terms.available.best == pytest.approx(found.requested.best - spent - sum(terms.buffers.values()))
    assert report.price is not None
    assert report.price.blocks > 0
    assert report.price.tokens > 0


@settings(max_examples=20, deadline=None)
@given(flags=vllm_flags, more=st.floats(0.01, 0.04))
def test_more_utilisation_never_takes_blocks(flags: VllmFlags, more: float) -> None:
    assert flags.gpu_memory_utilization is not None
    less = predict_vllm(LLAMA70, H100, flags)
    bigger = predict_vllm(LLAMA70, H100, replace(flags, gpu_memory_utilization=flags.gpu_memory_utilization + more))
    assert less.blocks is not None
    assert bigger.blocks is not None
    assert bigger.blocks.best >= less.blocks.best


def test_sglang_prices_a_draft_too() -> None:
    report = sglang_blocks(LLAMA70, H100, SglangFlags(tp=4), sglang_speculation("STANDALONE", "x"), LLAMA1)
    assert report.price is not None
    assert report.price.share > 1 / 6
    assert {a.change for a in report.alternatives} == {
        "--kv-cache-dtype fp8_e4m3",
        "a draft of 8 of its 16 layers",
        "--speculative-algorithm NGRAM",
    }


def test_prediction_layers_of_the_target_draft_for_it() -> None:
    model = load_model("qwen3.6-27b")
    mtp = Speculation(method="mtp", num_speculative_tokens=3)
    explicit = VllmFlags(tp=2, version="0.27.1", kv_cache_dtype="fp8", kv_cache_memory_bytes=5 * GIB)
    plain, drafting = predict_vllm(model, H100, explicit), predict_vllm(model, H100, explicit, mtp)
    assert plain.plan is not None
    assert drafting.plan is not None
    # 17 instead of 16 layers per block id, 1600 instead of 1568 tokens, 2 + 3 instead of 2 states in each of 3 groups.
    assert sorted(len(group.layers) for group in drafting.plan.groups) == [16, 16, 16, 17]
    assert (plain.plan.blocks_per_request, drafting.plan.blocks_per_request) == (168 + 6, 164 + 15)
    assert drafting.plan.bytes_per_block == (27852800,)
    with pytest.raises(InputError, match="no multi-token prediction layers"):
        predict_vllm(LLAMA8, H100, VllmFlags(), mtp)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_pool_at_its_largest_leaves_the_weights_their_place(tp: int) -> None:
    for model in (LLAMA8, LLAMA70):
        flags = VllmFlags(tp=tp, max_model_len=8192, gpu_memory_utilization=1.0)
        rank = predict_vllm(model, H100, flags).rank
        pool = rank.available
        assert pool.low <= pool.best <= pool.high
        beside = rank.activation_peak.low + rank.non_torch.low + rank.cuda_graph.low
        assert pool.high + rank.weights.best + beside <= H100.memory_driver_bytes
