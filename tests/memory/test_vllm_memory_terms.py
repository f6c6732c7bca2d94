"""Structure of the modelled terms, and what changed between versions."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import UnsupportedError
from specplan.memory.vllm import VllmFlags, default_batch, predict_vllm
from specplan.memory.vllm_fits import FITS
from specplan.memory.vllm_memory import (
    RunShape,
    activation_peak,
    capture_sizes,
    cuda_graphs,
    fit_for,
    non_torch,
    version_number,
)
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.units import GIB
from specplan.values.formats import lookup
from specplan.values.vllm_versions import CHANGES, vllm_rules

LLAMA8, QWEN14, MIXTRAL = load_model("llama3.1-8b"), load_model("qwen3-14b"), load_model("mixtral-8x7b")
RUN = RunShape(max_num_batched_tokens=8192, max_num_seqs=1024)


def _peak(model: object, run: RunShape = RUN, version: str = "0.19.0", stage: int = 0) -> float:
    return activation_peak(model, run, version, stage).best / GIB  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "tp", "printed"),
    [
        ("llama3.1-8b", 1, 1.89), ("llama3.1-70b", 2, 1.96), ("qwen2.5-7b", 1, 2.21), ("qwen2.5-72b", 2, 2.29),
        ("gemma2-2b", 1, 3.62), ("gemma2-9b", 1, 3.65), ("granite3.1-8b", 1, 0.85), ("phi-2", 1, 0.79),
        ("mixtral-8x7b", 2, 1.21), ("qwen1.5-moe-a2.7b", 1, 2.47), ("deepseek-v2-lite", 1, 1.93),
        ("gpt-oss-20b", 2, 2.87),
    ],
)  # fmt: skip
def test_peaks_that_vllm_0_19_printed(name: str, tp: int, printed: float) -> None:
    assert _peak(load_model(name), replace(RUN, tp=tp)) == pytest.approx(printed, abs=0.02)


def test_the_peak_fell_between_0_16_and_0_17() -> None:
    assert _peak(QWEN14, version="0.16.0") == pytest.approx(5.64, abs=0.02)
    assert _peak(QWEN14, version="0.17.0") == pytest.approx(2.23, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(
    seqs=st.integers(1, 1024),
    tokens=st.sampled_from([2048, 8192, 16384]),
    version=st.sampled_from(["0.10.2", "0.19.0"]),
)
def test_sampling_grows_with_sequences_times_vocabulary(seqs: int, tokens: int, version: str) -> None:
    run = RunShape(max_num_batched_tokens=tokens, max_num_seqs=seqs)
    more = replace(run, max_num_seqs=2 * seqs)
    assert _peak(LLAMA8, more, version) >= _peak(LLAMA8, run, version)
    wide = replace(LLAMA8, vocab_size=2 * LLAMA8.vocab_size)
    if 2 * seqs <= tokens:
        assert _peak(wide, run, version) == pytest.approx(_peak(LLAMA8, more, version))


def test_logits_are_gathered_so_ranks_do_not_shrink_them_and_weights_formats_do_not_matter() -> None:
    assert _peak(LLAMA8, replace(RUN, tp=4)) == _peak(LLAMA8)
    assert _peak(replace(LLAMA8, quantization=lookup("fp8"))) == _peak(LLAMA8)


def test_experts_keep_their_workspaces_and_ranks_divide_them() -> None:
    without = _peak(replace(MIXTRAL, quantization=lookup("mxfp4")))
    one, two = _peak(MIXTRAL), _peak(MIXTRAL, replace(RUN, tp=2))
    assert one - without > two - without > 0


def test_only_the_last_stage_samples() -> None:
    run = replace(RUN, pp=2)
    assert _peak(LLAMA8, run, stage=1) > _peak(LLAMA8, run, stage=0)
    # It also holds the two hidden states that it receives: 2 x 8192 x 4096 x 2 B.
    assert _peak(LLAMA8, run, stage=1) - _peak(LLAMA8) == pytest.approx(0.125)


def test_runner_v2_samples_in_chunks() -> None:
    many = replace(RUN, max_num_seqs=8192)
    wide = load_model("gemma2-2b")
    growth = _peak(wide, many, "0.32.0") - _peak(wide, replace(RUN, max_num_seqs=4096), "0.32.0")
    assert growth == pytest.approx(4096 * wide.vocab_size * 2 / GIB)  # logits only; copies stay within a chunk


def test_communication_buffers_appear_with_the_second_rank() -> None:
    one, two, four = (non_torch("0.19.0", tp, 1, 32, custom_all_reduce=True).best / GIB for tp in (1, 2, 4))
    assert (round(one, 2), round(two, 2), round(four, 2)) == (0.25, 2.07, 2.13)
    assert non_torch("0.19.0", 2, 1, 32, custom_all_reduce=False).best < 0.5 * GIB
    assert non_torch("0.19.0", 1, 2, 32, custom_all_reduce=True).best == pytest.approx(0.07 * GIB)


def test_speculation_captures_more_graphs_of_small_batches() -> None:
    assert len(capture_sizes(4)) < len(capture_sizes(4, query_len=4)) <= len(capture_sizes(1024))
    few, many = (cuda_graphs(LLAMA8, replace(RUN, max_num_seqs=n), "0.32.0").best for n in (2, 1024))
    assert few < many
    assert cuda_graphs(LLAMA8, RUN, "0.32.0").best < cuda_graphs(LLAMA8, RUN, "0.19.0").best


def test_data_centre_blackwell_captures_batches_up_to_1024() -> None:
    flags = VllmFlags(max_model_len=8192, max_num_batched_tokens=8192)
    hopper, blackwell, desktop = (
        predict_vllm(LLAMA8, load_accelerator(name), flags).rank.cuda_graph.best
        for name in ("h200", "b200", "rtx-5090")
    )
    assert blackwell > hopper >= desktop
    few = replace(flags, max_num_seqs=16)
    assert predict_vllm(LLAMA8, load_accelerator("b200"), few).rank.cuda_graph.best == (
        predict_vllm(LLAMA8, load_accelerator("h200"), few).rank.cuda_graph.best
    )


def test_rules_and_fits_are_ordered_and_say_where_they_come_from() -> None:
    assert [since for since, _, _ in CHANGES] == sorted(since for since, _, _ in CHANGES)
    assert all(seen for _, _, seen in CHANGES)
    assert [fit.since for fit in FITS] == sorted(fit.since for fit in FITS)
    assert all(fit.date and fit.data and fit.residuals for fit in FITS)
    assert fit_for("0.20.1rc1.dev16").since == (0, 18, 0)
    assert version_number("v0.9") == (0, 9, 0)


@pytest.mark.parametrize("version", ["0.7.3", "0.34.0", "1.0", "latest"])
def test_versions_that_are_not_known(version: str) -> None:
    with pytest.raises(UnsupportedError):
        vllm_rules(version)


def test_graphs_come_off_the_pool_from_0_21_on_unless_none_are_captured() -> None:
    card = load_accelerator("h100-sxm")
    before, after = (
        predict_vllm(LLAMA8, card, VllmFlags(version=v)).rank.cuda_graph.best for v in ("0.20.0", "0.21.0")
    )
    assert before == 0 < after
    assert predict_vllm(LLAMA8, card, VllmFlags(version="0.21.0", enforce_eager=True)).rank.cuda_graph.best == 0
    asked = VllmFlags(version="0.19.0", estimate_graphs=True)
    assert predict_vllm(LLAMA8, card, asked).rank.cuda_graph.best > 0


@pytest.mark.parametrize(
    ("card", "offline", "want"),
    [
        ("h100-sxm", False, (1024, 8192)), ("h100-sxm", True, (1024, 16384)), ("b200", False, (1024, 16384)),
        ("a100-sxm-80gb", False, (256, 2048)), ("rtx-4090", True, (256, 8192)),
    ],
)  # fmt: skip
def test_batch_defaults_follow_the_card(card: str, offline: bool, want: tuple[int, int]) -> None:
    assert default_batch(load_accelerator(card), offline=offline) == want
