"""Speculative flags: what vLLM and SGLang accept, default and refuse."""

from pathlib import Path

import pytest

from specplan.errors import InputError
from specplan.memory.speculative import parse_speculative_config, sglang_speculation
from specplan.memory.startup_check import speculation_of
from specplan.telemetry.startup_logs import read_startup_log


def _k(config: dict[str, object], **more: object) -> int:
    return parse_speculative_config(config, **more).num_speculative_tokens  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"model": "ngram"}, "ngram"),
        ({"model": "[ngram]"}, "ngram"),
        ({"model": "org/draft"}, "draft_model"),
        ({"model": "my_package.proposers.Mine"}, "custom_class"),
        ({"method": "draft_model", "model": "org/eagle-llama"}, "eagle"),
        ({"method": "draft_model", "model": "org/EAGLE3-llama"}, "eagle3"),
        ({"method": "qwen3_next_mtp"}, "mtp"),
        ({"method": "deepseek_mtp"}, "mtp"),
        ({"method": "suffix"}, "suffix"),
        ({"method": "dflash", "model": "org/d"}, "dflash"),
    ],
)
def test_the_method_is_inferred_as_vllm_infers_it(given: dict[str, object], method: str) -> None:
    assert parse_speculative_config({"num_speculative_tokens": 3, **given}).method == method


@pytest.mark.parametrize(
    ("low", "high", "want"), [(None, None, (5, 5)), (2, None, (2, 2)), (None, 4, (4, 4)), (2, 5, (2, 5))]
)
def test_prompt_lookup_defaults(low: int | None, high: int | None, want: tuple[int, int]) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": low, "prompt_lookup_max": high}
    assert parse_speculative_config(config).prompt_lookup == want


def test_token_counts_that_vllm_fills_in() -> None:
    assert _k({"method": "mtp"}, mtp_modules=2) == 2
    assert _k({"method": "mtp", "num_speculative_tokens": 4}, mtp_modules=2) == 4
    assert _k({"method": "suffix"}) == 24
    assert _k({"method": "suffix", "suffix_decoding_max_tree_depth": 32}) == 32


REFUSED = [
    ('{"method": "ngram"', "not JSON"),
    ("[1]", "expected a JSON object"),
    ("{}", "give 'method' or 'model'"),
    ('{"method": "ngram"}', "needs num_speculative_tokens"),
    ('{"method": "magic", "num_speculative_tokens": 1}', "unknown method 'magic'"),
    ('{"method": "ngram", "num_speculative_tokens": 0}', "at least 1"),
    (
        '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 6, "prompt_lookup_max": 2}',
        "must not exceed",
    ),
    ('{"method": "ngram", "num_speculative_tokens": 3, "tokens": 3}', "unknown field tokens"),
    ('{"model": "a/b", "num_speculative_tokens": 3, "tensor_parallel_size": 1}', "use 'draft_tensor_parallel_size'"),
    ('{"model": "a/b", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}', "must be 1 or the target's 4"),
    ('{"model": "a/b", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}', "tensor_parallel_size 4"),
    ('{"method": "draft_model", "num_speculative_tokens": 3}', "needs 'model'"),
    ('{"method": "mtp", "num_speculative_tokens": 5}', "must be a multiple"),
    ('{"method": "ngram", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2}', "rejection_sample_method"),
    (
        '{"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic", '
        '"synthetic_acceptance_rates": [0.5, 0.7]}',
        "never rise",
    ),
    ('{"model": "a/b", "num_speculative_tokens": 3, "max_model_len": 99999}', "exceeds the target's 8192"),
    (
        '{"model": "a/b", "num_speculative_tokens": 3, "use_heterogeneous_vocab": true, '
        '"draft_sample_method": "probabilistic"}',
        "greedy drafts",
    ),
    ('{"method": ["ngram"], "num_speculative_tokens": 3}', "method must be a string"),
    ('{"model": 3, "num_speculative_tokens": 3}', "model must be a string"),
    ('{"model": "a/b", "num_speculative_tokens": 3, "kv_cache_dtype": 3}', "kv_cache_dtype must be a string"),
    ('{"model": "a/b", "num_speculative_tokens": 3, "quantization": 7}', "quantization must be a string"),
    ('{"model": "a/b", "num_speculative_tokens": 3, "parallel_drafting": "yes"}', "true or false"),
    ('{"method": "suffix", "suffix_decoding_min_token_prob": 7}', "in 0..1"),
    ('{"method": "suffix", "suffix_decoding_max_spec_factor": -1}', "at least 0"),
    ('{"method": "suffix", "suffix_decoding_max_cached_requests": -1}', "at least 0"),
    ('{"method": "ngram", "num_speculative_tokens": 99999999999999999999}', "at most 1,000,000,000"),
    ("[" * 100_000, "nested too deeply"),
    ('{"method": "ngram", "num_speculative_tokens": 3, "num_speculative_tokens": 5}', "appears twice"),
    *(
        (
            f'{{"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic", {more}}}',
            words,
        )
        for more, words in (
            ('"synthetic_acceptance_length": "a"', "a number in 1..4"),
            ('"synthetic_acceptance_rates": 5', "3 rates"),
            ('"synthetic_acceptance_rates": ["a", 1, 1]', "3 rates"),
        )
    ),
    *(
        (
            f'{{"method": "ngram", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": {ranges}}}',
            "list of .first, last, k.",
        )
        for ranges in ('"x"', "[]", "[[5, 2, 3]]", "[[2, 4, 3]]", "[[1, 4, 3], [4, 8, 1]]", "[[1, 2, -1]]")
    ),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_what_vllm_refuses(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_speculative_config(text, tp=4, max_model_len=8192, mtp_modules=2)


def test_lengths_by_batch_may_leave_gaps_and_draft_nothing() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3}
    ranges = [[1, 4, 3], [8, 64, 0]]
    assert parse_speculative_config({**config, "num_speculative_tokens_per_batch_size": ranges}) == (
        parse_speculative_config(config)
    )


def test_eagle_may_run_on_one_rank() -> None:
    config = {"method": "eagle", "model": "a/b", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}
    assert parse_speculative_config(config, tp=4).draft_tp == 1


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ({"algorithm": "NGRAM"}, 12),
        ({"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1}, 4),
        ({"algorithm": "NEXTN", "num_draft_tokens": 6}, 6),
        ({"algorithm": "STANDALONE", "draft_model": "x", "num_steps": 4}, 5),
        ({"algorithm": "DFLASH", "draft_model": "x", "num_steps": 4}, 16),
        ({"algorithm": "DSPARK", "draft_model": "x"}, 8),
    ],
)
def test_sglang_counts_verified_positions(arguments: dict[str, object], tokens: int) -> None:
    assert sglang_speculation(**arguments).num_draft_tokens == tokens  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"algorithm": "SUFFIX"}, "one of NGRAM"),
        ({"algorithm": "STANDALONE"}, "needs --speculative-draft-model-path"),
        ({"algorithm": "NGRAM", "draft_model": "x"}, "takes no"),
        ({"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 8}, "num_steps \\+ 1 = 4"),
        ({"algorithm": "NGRAM", "num_draft_tokens": 1}, "at least 2"),
    ],
)
def test_what_sglang_refuses(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sglang_speculation(**arguments)  # type: ignore[arg-type]


FLY = {"model": "org/eagle3-x", "method": "eagle3", "num_speculative_tokens": 5, "rejection_sample_method": "fly"}


def test_settings_and_methods_belong_to_versions() -> None:
    assert parse_speculative_config(FLY, version="0.33.0").num_speculative_tokens == 5
    with pytest.raises(InputError, match="rejection_sample_method must be one of standard, synthetic, block"):
        parse_speculative_config(FLY)
    medusa = {"model": "org/m", "method": "medusa", "num_speculative_tokens": 3}
    assert parse_speculative_config(medusa).method == "medusa"
    with pytest.raises(InputError, match=r"vLLM 0\.33\.0 has no method medusa any more"):
        parse_speculative_config(medusa, version="0.33.0")
    with pytest.raises(InputError, match="unknown field xpress_topc"):
        parse_speculative_config({**medusa, "xpress_topc": 3})


@pytest.mark.parametrize(
    "wrong", [{"num_speculative_tokens": 1}, {"fly_window_size": 5}, {"fly_entropy_threshold": -1}]
)
def test_fly_is_refused_as_vllm_refuses_it(wrong: dict) -> None:
    with pytest.raises(InputError, match="fly"):
        parse_speculative_config({**FLY, **wrong}, version="0.33.0")


@pytest.mark.parametrize(("version", "starts"), [("0.33.0", True), ("0.32.0", False)])
def test_a_log_is_read_by_the_settings_of_its_own_version(tmp_path: Path, version: str, starts: bool) -> None:
    log = tmp_path / "start.log"
    log.write_text(
        f"INFO 01-02 03:04:05 [core.py:1] Initializing a V1 LLM engine (v{version}) with config: x\n"
        f"INFO 01-02 03:04:05 [utils.py:1] non-default args: {{'model': 'm', 'speculative_config': {FLY}}}\n"
    )
    found = read_startup_log(log)
    assert found.version == version
    if starts:
        assert speculation_of(found).method == "eagle3"
        return
    with pytest.raises(InputError, match="rejection_sample_method must be one of"):
        speculation_of(found)
