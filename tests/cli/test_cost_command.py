import json

import pytest

COST_70B = (
    "cost",
    "llama3-70b",
    "--draft",
    "llama3.2-1b",
    "--gpu",
    "h100-sxm",
    "--tp",
    "4",
    "--alpha",
    "0.7",
    "-k",
    "3",
)
COST_8B = ("cost", "llama3-8b", "--draft", "llama3.2-1b", "--gpu", "h100-sxm", "--alpha", "0.7", "-k", "3")


def document(run, *argv: str) -> dict:
    outcome = run(*argv, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return json.loads(outcome.out)


def test_70b_with_a_1b_draft_gives_the_chapters_figures(specplan) -> None:
    d = document(specplan, *COST_70B)
    assert d["target"]["streamed_params"] == 69_501_714_432
    assert d["draft"]["streamed_params"] == 1_235_746_816
    assert d["target"]["resident_params"] == 70_553_706_496
    assert d["target"]["gathered_params"] == 128_256 * 8192
    assert d["c"] == pytest.approx(0.017780, abs=5e-7)
    assert d["target"]["decode_floor_s"] == pytest.approx(10.373e-3, abs=5e-7)
    assert d["speedup"] == pytest.approx(2.4047, abs=5e-5)
    assert d["alpha_dagger"] == pytest.approx(0.6659, abs=5e-5)
    assert d["expected_emitted"] == pytest.approx(1 + 0.7 + 0.49 + 0.343, rel=1e-12)
    assert d["target"]["kv_bytes_per_token"] == 320 * 1024
    assert d["draft"]["kv_bytes_per_token"] == 32 * 1024
    assert d["verified_positions"] == 4
    assert d["ridge_positions"] == pytest.approx(295.2, abs=0.1)


def test_8b_with_a_1b_draft_gives_the_chapters_figures(specplan) -> None:
    d = document(specplan, *COST_8B)
    assert d["target"]["streamed_params"] == 7_504_658_432
    assert d["c"] == pytest.approx(0.164664, abs=5e-7)
    assert d["speedup"] == pytest.approx(1.6955, abs=5e-5)
    assert d["alpha_dagger"] == pytest.approx(0.4304, abs=5e-5)


def test_the_drivers_memory_at_0_9_gives_58_sequences_and_52_with_the_draft(specplan) -> None:
    argv = (*COST_70B, "--memory", "driver", "--gpu-memory-utilization", "0.9", "--max-model-len", "8192")
    d = document(specplan, *argv)
    assert (d["pool"]["sequences"], d["pool_with_draft"]["sequences"]) == (58, 52)
    assert d["tokens_lost_fraction"] == pytest.approx(0.105, abs=5e-4)


def test_the_document_has_its_promised_keys_and_nothing_that_needs_what_was_not_given(specplan) -> None:
    d = document(specplan, *COST_70B)
    top = "schema_version inputs target draft c alpha_break_even expected_emitted speedup alpha_dagger pool"
    assert {
        *top.split(),
        "pool_with_draft",
        "verified_positions",
        "ridge_positions",
        "assumptions",
        "not_modeled",
    } <= set(d)
    model = "streamed_params gathered_params resident_params streamed_bytes_per_rank decode_floor_s kv_bytes_per_token"
    assert set(model.split()) <= set(d["target"])
    assert set(model.split()) <= set(d["draft"])
    assert {"kv_bytes_per_rank", "tokens", "sequences"} <= set(d["pool"])
    bare = document(specplan, "cost", "llama3-70b", "--draft", "llama3.2-1b", "--tp", "4")
    assert not {"expected_emitted", "speedup", "alpha_dagger"} & set(bare)
    alone = document(specplan, "cost", "llama3-70b", "--tp", "4")
    assert alone["draft"] is None
    assert alone["pool_with_draft"] is None
    assert alone["c"] is None


def test_break_even_is_where_speedup_is_one(specplan) -> None:
    d = document(specplan, "cost", "llama3-8b", "--draft", "llama3.2-1b", "-k", "5")
    again = document(
        specplan, "cost", "llama3-8b", "--draft", "llama3.2-1b", "-k", "5", "--alpha", repr(d["alpha_break_even"])
    )
    assert again["speedup"] == pytest.approx(1.0, abs=1e-12)


def test_a_model_that_does_not_fit_is_priced_all_the_same_and_says_by_how_much_it_misses(specplan) -> None:
    outcome = specplan("cost", "llama3-70b", "--gpu", "h100-sxm")
    assert outcome.code == 1
    assert "does not fit" in outcome.out
    d = json.loads(specplan("cost", "llama3-70b", "--gpu", "h100-sxm", "--json").out)
    assert d["pool"] | {"tokens": 0, "sequences": 0, "kv_bytes_per_rank": 0} == d["pool"]
    budget = 0.92 * d["inputs"]["memory_bytes"] - d["inputs"]["workspace_bytes"]
    assert d["pool"]["shortfall_bytes"] == pytest.approx(2 * 70_553_706_496 - budget)


def test_another_kv_format_halves_the_cache_of_both_models(specplan) -> None:
    plain = document(specplan, *COST_70B)
    fp8 = document(specplan, *COST_70B, "--kv-cache-dtype", "fp8")
    for model in ("target", "draft"):
        assert fp8[model]["kv_bytes_per_token"] * 2 == plain[model]["kv_bytes_per_token"]
    assert fp8["pool"]["kv_bytes_per_rank"] == plain["pool"]["kv_bytes_per_rank"]
    assert abs(fp8["pool"]["tokens"] - 2 * plain["pool"]["tokens"]) <= 1


def test_past_the_ridge_a_warning_says_that_speedup_is_optimistic(specplan) -> None:
    assert any("ridge" in w for w in document(specplan, *COST_8B, "--batch", "74")["warnings"])
    assert not document(specplan, *COST_8B, "--batch", "73")["warnings"]


def test_a_draft_of_another_vocabulary_is_warned_of(specplan) -> None:
    d = document(specplan, "cost", "llama3-8b", "--draft", "qwen2.5-0.5b")
    assert any("vocabularies differ" in w for w in d["warnings"])


def test_a_mixture_of_experts_pays_for_the_experts_that_verification_touches(specplan) -> None:
    d = document(specplan, "cost", "mixtral-8x7b", "--gpu", "h200", "-k", "3")
    assert d["verify_factor"] > 1.5
    assert document(specplan, "cost", "llama3-8b", "-k", "3")["verify_factor"] == 1


def test_the_table_names_the_origin_of_each_figure(specplan) -> None:
    out = specplan(*COST_70B).out
    for needed in (
        "69.502 B",
        "10.373 ms",
        "0.017780",
        "2.4047x",
        "0.6659",
        "exact",
        "derived",
        "assumed",
        "not modelled",
    ):
        assert needed in out


def test_draft_tensor_parallelism_that_differs_is_an_error_that_says_why(specplan) -> None:
    outcome = specplan(*COST_70B, "--draft-tp", "1")
    assert outcome.code == 2
    assert "vLLM refuses" in outcome.err


def test_a_context_beyond_the_sequences_is_warned_of(specplan) -> None:
    assert any(
        "--context 16384 is beyond the 8192" in w for w in document(specplan, *COST_8B, "--context", "16k")["warnings"]
    )
    assert not document(specplan, *COST_8B, "--context", "8k")["warnings"]


def test_a_head_on_the_targets_states_has_the_targets_length_and_borrows_its_embedding(specplan, tmp_path) -> None:
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 1,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "draft_vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    d = document(specplan, "cost", "llama3.1-8b", "--draft", str(tmp_path), "--max-model-len", "8192")
    assert not d["warnings"]
    assert d["draft"]["gathered_params"] == 0
    assert d["draft"]["kv_bytes_per_token"] == 4096
    attention = (4096 + 2 * 1024) * (2 * 4096) + 4096 * 4096  # q, k and v read embedding and state side by side
    own = attention + 3 * 4096 * 14336 + 3 * 4096 * 4096 + 32000 * 4096
    assert d["draft"]["streamed_params"] == own
    short = document(specplan, "cost", "llama3.1-8b", "--draft", "llama3-8b", "--max-model-len", "16384")
    assert any("stop drafting" in w for w in short["warnings"])
