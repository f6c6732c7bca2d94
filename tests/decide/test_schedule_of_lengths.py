"""Schedules: optimal within the margin at every batch, and written as the engines accept them."""

import json
import shlex
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.engine_configuration import HEAD_PATH, checkpoint
from specplan.decide.schedule import ScheduleReport, _steady, schedule
from specplan.decide.step_setting import Setting, times
from specplan.decide.step_source import loads
from specplan.errors import InputError
from specplan.memory.speculative import parse_speculative_config
from specplan.propose.spelling import read_source
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.step_time import machine
from specplan.values.formats import lookup
from specplan.values.source import NO_SOURCE, Source

TARGET, DRAFT = load_model("llama3.1-8b"), load_model("llama3.2-1b")
H100 = load_accelerator("h100-sxm")
EAGLE = read_source("eagle:alpha=.7")
NGRAM = read_source("ngram:coverage=.4,alpha=.6")


def draft(text: str = "llama3.2-1b:alpha=.7") -> Source:
    return replace(read_source(text), model=DRAFT)


def kappas(report: ScheduleReport) -> list[int]:
    return [r.kappa for r in report.schedules[0].ranges for _ in range(r.first, r.last + 1)]


@pytest.mark.parametrize("source", [EAGLE, NGRAM], ids=lambda s: s.text)
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.1])
def test_no_batch_is_more_than_the_margin_behind_its_best_length(source: Source, margin: float):
    report = schedule(TARGET, H100, source, max_batch=128, margin=margin)
    setting = Setting(target=TARGET, on=machine(H100))
    of, batch = loads(TARGET, report.source, 1), np.arange(1, 129)
    plain = times(setting, NO_SOURCE, of, batch, 2048, 0).step_s
    gain = plain[:, None] / times(setting, report.source, of, batch[:, None], 2048, np.arange(9)[None, :]).per_token_s
    gain[:, 0] = 1
    chosen = gain[np.arange(128), kappas(report)]
    assert np.all(chosen * (1 + margin) >= gain.max(axis=1) * (1 - 1e-12))


@given(
    st.lists(st.lists(st.floats(0.5, 3), min_size=4, max_size=4), min_size=1, max_size=60),
    st.floats(0, 0.2),
)
@settings(max_examples=100, deadline=None)
def test_the_margin_bounds_the_loss_and_never_adds_changes(rows: list[list[float]], margin: float):
    gain = np.array(rows)
    steady, eager = _steady(gain, margin), _steady(gain, 0.0)
    at = np.arange(len(gain))
    assert np.all(gain[at, steady] * (1 + margin) >= gain.max(axis=1) * (1 - 1e-12))
    assert np.all(gain[at, eager] == gain.max(axis=1))


def test_optima_that_rise_again_are_kept():
    # The best length by batch is 3, 1, 3: what experts do between few and all of them being read.
    gain = np.array([[1.0, 1.2, 1.3, 1.5], [1.0, 1.4, 1.2, 1.1], [1.0, 1.2, 1.3, 1.5]])
    assert _steady(gain, 0.02).tolist() == [3, 1, 3]


def test_experts_draft_again_at_larger_batches():
    experts = load_model("mixtral-8x7b")
    found = kappas(schedule(experts, H100, read_source("ngram:alpha=.45"), tp=2, max_batch=64, margin=0.0))
    steps = np.diff(found)
    assert (steps > 0).any(), "experts: wide passes are dear while few experts are read, cheap once all are"


def test_ranges_are_contiguous_from_one_and_merged():
    report = schedule(TARGET, H100, EAGLE, max_batch=200, margin=0.0)
    ranges = report.schedules[0].ranges
    assert ranges[0].first == 1
    assert ranges[-1].last == 200
    assert all(a.last + 1 == b.first and a.kappa != b.kappa for a, b in pairwise(ranges))


def vllm_configuration(report: ScheduleReport) -> dict:
    words = shlex.split(report.configuration.line)
    return json.loads(words[words.index("--speculative-config") + 1])


@pytest.mark.parametrize("source", [EAGLE, NGRAM, draft()], ids=lambda s: s.text)
def test_vllms_configuration_is_one_that_it_accepts(source: Source):
    report = schedule(TARGET, H100, source, max_batch=256, margin=0.0)
    config = vllm_configuration(report)
    assert config == report.configuration.settings
    k = config["num_speculative_tokens"]
    table = config.get("num_speculative_tokens_per_batch_size", [[1, 256, k]])
    assert table[0][0] == 1
    assert all(first <= last for first, last, _ in table)
    assert all(a[1] + 1 == b[0] for a, b in pairwise(table))
    assert max(row[2] for row in table) == k
    assert min(row[2] for row in table) >= 0
    known = {"method", "model", "num_speculative_tokens", "draft_tensor_parallel_size"}
    assert set(config) <= known | {"num_speculative_tokens_per_batch_size"}
    assert config["method"] in ("eagle", "ngram", "draft_model")


def test_a_stand_alone_draft_names_its_checkpoint_and_the_targets_ranks():
    report = schedule(load_model("llama3-70b"), H100, draft(), tp=4)
    config = vllm_configuration(report)
    assert config["model"] == "meta-llama/Llama-3.2-1B"
    assert config["draft_tensor_parallel_size"] == 4
    words = shlex.split(report.configuration.line)
    assert words[:3] == ["vllm", "serve", "meta-llama/Meta-Llama-3-70B"]
    assert words[words.index("--tensor-parallel-size") + 1] == "4"


def test_vllm_pays_for_all_passes_of_a_stand_alone_draft_at_any_length():
    # At a low acceptance and high batch a length of 0 would be best if it cost nothing; here it still drafts.
    report = schedule(TARGET, H100, draft("llama3.2-1b:alpha=.2"), max_batch=200, margin=0.0)
    assert any("makes all drafting passes" in w for w in report.warnings)
    eagle = schedule(TARGET, H100, read_source("eagle:alpha=.2"), max_batch=200, margin=0.0)
    assert not any("makes all drafting passes" in w for w in eagle.warnings)


def test_a_source_that_never_pays_is_not_configured():
    report = schedule(TARGET, H100, draft("llama3.2-1b:alpha=.01"), max_batch=64)
    assert set(kappas(report)) <= {0, 1}
    nothing = schedule(TARGET, H100, read_source("eagle:alpha=.01"), max_batch=64)
    assert set(kappas(nothing)) == {0}
    assert "--speculative-config" not in nothing.configuration.command
    assert nothing.configuration.settings == {}
    assert any("no draft length pays" in w for w in nothing.warnings)


def test_suffix_decoding_keeps_one_length_and_names_its_package():
    report = schedule(TARGET, H100, read_source("suffix:alpha=.6,coverage=.7,drafted=2.5"), max_batch=200)
    assert not report.dynamic
    assert len(report.schedules[0].ranges) == 1
    assert "num_speculative_tokens_per_batch_size" not in vllm_configuration(report)
    assert any("arctic-inference" in w for w in report.warnings)


def test_the_host_matcher_selects_the_older_runner():
    report = schedule(TARGET, H100, read_source("ngram-host:alpha=.6"))
    assert report.configuration.line.startswith("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve ")
    assert vllm_configuration(report)["method"] == "ngram"


def test_sglangs_adaptive_file_maps_batches_to_one_candidate_each():
    report = schedule(TARGET, H100, EAGLE, engine="sglang", max_batch=200, margin=0.0, draft_path="org/head")
    adaptive = json.loads(report.configuration.files["adaptive.json"])
    ranges = report.schedules[0].ranges
    assert adaptive == {str(r.first): {"candidate_steps": [r.kappa]} for r in ranges}
    words = list(report.configuration.command)
    assert "--speculative-adaptive" in words
    assert words[words.index("--speculative-adaptive-config") + 1] == "adaptive.json"
    steps = int(words[words.index("--speculative-num-steps") + 1])
    assert steps == max(r.kappa for r in ranges)
    assert words[words.index("--speculative-num-draft-tokens") + 1] == str(steps + 1)
    assert words[words.index("--speculative-draft-model-path") + 1] == "org/head"
    assert words[words.index("--max-running-requests") + 1] == "200"


def test_sglang_adapts_only_eagle_and_ngram_verifies_its_node_budget():
    model = schedule(TARGET, H100, draft(), engine="sglang")
    assert (model.dynamic, model.configuration.files) == (False, {})
    assert "STANDALONE" in model.configuration.command
    ngram = schedule(TARGET, H100, NGRAM, engine="sglang")
    words = list(ngram.configuration.command)
    assert words[words.index("--speculative-num-draft-tokens") + 1] == str(kappas(ngram)[0] + 1)
    assert "--speculative-num-steps" not in words
    assert any("full node budget" in w for w in ngram.warnings)


@pytest.mark.parametrize("max_kappa", [1, 3, 8])
@pytest.mark.parametrize("max_batch", [1, 200])
def test_sglangs_node_budget_is_the_best_within_the_longest_draft(max_kappa: int, max_batch: int):
    found = schedule(TARGET, H100, NGRAM, engine="sglang", max_kappa=max_kappa, max_batch=max_batch)
    every = [
        schedule(TARGET, H100, read_source(f"{NGRAM.text},k={k},nodes={k + 1}"), engine="sglang",
                 max_batch=max_batch).schedules[0].speedup
        for k in range(1, max_kappa + 1)
    ]  # fmt: skip
    assert found.schedules[0].speedup == max(every)
    assert kappas(found)[0] == 1 + every.index(max(every))
    given = schedule(TARGET, H100, read_source(f"{NGRAM.text},k=3"), engine="sglang", max_batch=max_batch)
    words = list(given.configuration.command)
    assert words[words.index("--speculative-num-draft-tokens") + 1] == "12"


def test_a_trained_heads_path_must_be_filled_in():
    report = schedule(TARGET, H100, EAGLE)
    assert HEAD_PATH in report.configuration.line
    assert any(HEAD_PATH in w for w in report.warnings)
    assert HEAD_PATH not in schedule(TARGET, H100, EAGLE, draft_path="org/head").configuration.line


@pytest.mark.parametrize("alpha", [".3", ".6", ".9"])
@pytest.mark.parametrize("max_kappa", [2, 4, 8])
def test_several_prediction_modules_draft_in_whole_turns(alpha: str, max_kappa: int):
    """vLLM refuses 8 tokens of 3 modules."""
    target = load_model("step-3.7-flash")
    source = read_source(f"mtp:alpha={alpha}")
    report = schedule(target, load_accelerator("h200"), source, tp=8, max_kappa=max_kappa, max_batch=256)
    longest = max(kappas(report))
    assert longest <= max_kappa
    if longest:
        parsed = parse_speculative_config(report.configuration.settings, tp=8, mtp_modules=3)
        assert parsed.num_speculative_tokens >= longest
    with pytest.raises(InputError, match="a multiple of 3"):
        schedule(target, load_accelerator("h200"), read_source(f"mtp:alpha={alpha},k=5"), tp=8)


def test_sglang_names_fp8_by_its_bits():
    report = schedule(TARGET, H100, EAGLE, engine="sglang", kv_format=lookup("fp8"), max_batch=8)
    words = list(report.configuration.command)
    assert words[words.index("--kv-cache-dtype") + 1] == "fp8_e4m3"


def test_sampling_warns_that_alpha_is_another_quantity():
    cold, warm = (schedule(TARGET, H100, draft(), temperature=t).warnings for t in (0.0, 0.7))
    assert not any("temperature above 0" in w for w in cold)
    assert any("one-hot drafts" in w for w in warm)


def test_contexts_that_disagree_are_named():
    report = schedule(TARGET, H100, EAGLE, contexts=[512, 65536], max_batch=64, margin=0.0)
    assert len(report.schedules) == 2
    assert any("contexts want different schedules" in w for w in report.warnings)


def test_contexts_beyond_the_models_limit_are_named():
    report = schedule(TARGET, H100, NGRAM, contexts=(2048, 200_000), max_batch=4)
    assert any("context 200000 is beyond the 131072" in w for w in report.warnings)


def test_batches_beyond_the_pool_are_named():
    report = schedule(TARGET, H100, EAGLE, contexts=[65536], max_batch=64)
    assert any("fit the pool" in w for w in report.warnings)
    assert schedule(TARGET, H100, EAGLE, contexts=[65536]).max_batch < 64


def test_a_schedule_is_at_least_as_good_as_its_best_single_length():
    report = schedule(TARGET, H100, EAGLE, max_batch=256, margin=0.0)
    found = report.schedules[0]
    assert found.speedup >= found.fixed_speedup * (1 - 1e-12)


def test_a_checkpoint_is_a_repository_or_the_models_name():
    assert checkpoint(load_model("llama3-70b")) == "meta-llama/Meta-Llama-3-70B"
    assert checkpoint(replace(TARGET, source="my notes")) == TARGET.name


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"engine": "tgi"}, "schedules are written for vllm and sglang"),
        ({"margin": -0.1}, "--margin -0.1"),
        ({"margin": 1.0}, "--margin 1"),
        ({"max_kappa": 0}, "--max-k 0"),
        ({"max_batch": 0}, "--max-batch 0"),
        ({"max_batch": 5000}, "--max-batch 5000"),
        ({"contexts": []}, "--context"),
    ],
)
def test_bad_settings_of_a_schedule_are_one_line(wrong: dict, expected: str):
    with pytest.raises(InputError, match=expected):
        schedule(TARGET, H100, EAGLE, **wrong)
    with pytest.raises(InputError, match="needs a draft source"):
        schedule(TARGET, H100, NO_SOURCE)


@pytest.mark.parametrize("longest", [1, 4, 8])
def test_a_draft_that_is_always_taken_and_costs_nothing_is_as_long_as_it_may_be(longest: int):
    report = schedule(TARGET, H100, read_source("ngram:alpha=.999"), max_batch=4, max_kappa=longest)
    assert set(kappas(report)) == {longest}
