"""A log beside its prediction: one path for flags and log, and no agreement over a figure that differs."""

import io
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from startup_lines import sglang_lines, vllm_lines

from specplan.decide.startup_log import Told, check_log
from specplan.memory.sglang import SglangFlags, predict_sglang
from specplan.memory.speculative import parse_speculative_config, sglang_speculation
from specplan.memory.startup_check import StartupCheck, TermCheck
from specplan.memory.vllm import VllmFlags, predict_vllm, with_encoder_budget
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.specs.served import served
from specplan.telemetry.startup_logs import read_startup_log
from specplan.units import GIB


def _check(text: str, **told: Any) -> StartupCheck:
    return check_log(read_startup_log(io.BytesIO(text.encode())), "log", Told(**told))


def _terms(check: StartupCheck) -> dict[str, TermCheck]:
    return {t.term: t for t in check.terms}


def _off(check: StartupCheck) -> list[tuple[str, str]]:
    return [(t.term, t.verdict) for t in check.terms if t.verdict not in ("agrees", "read only", "not printed")]


VLLM_STARTS = [
    ("llama3.1-8b", "h100-sxm", {"version": "0.19.0", "max_model_len": 8192}),
    ("llama3.1-8b", "h100-sxm", {"version": "0.19.0", "max_model_len": 8192, "tp": 2}),
    ("llama3.1-8b", "h100-sxm", {"version": "0.32.0", "max_model_len": 16384}),
    ("llama3.1-8b", "gb10", {"version": "0.27.1", "max_model_len": 16384}),
    ("gemma3-27b", "h100-sxm", {"version": "0.20.2", "max_model_len": 32768}),
    ("qwen3-8b", "rtx-5090", {"version": "0.32.0", "max_model_len": 8192, "kv_cache_dtype": "fp8"}),
    ("deepseek-v2-lite", "b200", {"version": "0.32.0", "max_model_len": 8192}),
]


@pytest.mark.parametrize(("model", "card", "flags"), VLLM_STARTS)
def test_a_predictions_own_lines_agree_in_every_term(model: str, card: str, flags: dict[str, Any]) -> None:
    found, profile = served(model), load_accelerator(card)
    asked = VllmFlags(**flags)
    if found.tower is not None:
        tower = found.tower
        asked = with_encoder_budget(asked, profile, tower.image_tokens or 0, tower.image_values, tower.peak_numbers)
    predicted = predict_vllm(found.whole, profile, asked)
    text = "\n".join(vllm_lines(predicted, model)) + "\n"
    check = _check(text, gpu=card)
    assert _off(check) == []
    assert check.largest.startswith("none: every printed term agrees")
    assert {"weights_bytes", "kv_available_bytes", "kv_tokens", "max_concurrency", "balance_bytes"} <= _terms(
        check
    ).keys()


def test_a_draft_is_part_of_the_same_path() -> None:
    config = {"method": "ngram_gpu", "num_speculative_tokens": 4}
    speculation = parse_speculative_config(config)
    flags = VllmFlags(version="0.32.0", max_model_len=8192)
    predicted = predict_vllm(load_model("llama3.1-8b"), load_accelerator("h100-sxm"), flags, speculation)
    words = [f"speculative_config={config!r}"]
    check = _check("\n".join(vllm_lines(predicted, "llama3.1-8b", words)) + "\n", gpu="h100-sxm")
    assert _off(check) == []


SGLANG_STARTS = [
    ("llama3.1-8b", None),
    ("qwen2.5-32b", None),
    ("gemma3-27b", None),
    ("llama3-8b", "STANDALONE"),
    ("qwen3.6-27b", "EAGLE"),
]


@pytest.mark.parametrize(("model", "algorithm"), SGLANG_STARTS)
def test_sglangs_own_lines_agree_in_every_term(model: str, algorithm: str | None) -> None:
    draft = load_model("llama3.2-1b") if algorithm == "STANDALONE" else None
    path = None if draft is None else "llama3.2-1b"
    speculation = None if algorithm is None else sglang_speculation(algorithm, path, num_steps=3, eagle_topk=1)
    flags = SglangFlags(mem_fraction_static=0.85, context_length=8192, free_before_load=128.0 * GIB)
    predicted = predict_sglang(served(model).whole, load_accelerator("h200"), flags, speculation, draft)
    words = (
        ""
        if algorithm is None
        else f", speculative_algorithm='{algorithm}', speculative_num_steps=3, speculative_eagle_topk=1"
    )
    if path is not None:
        words += f", speculative_draft_model_path='{path}'"
    check = _check("\n".join(sglang_lines(predicted, model, words)) + "\n", gpu="h200")
    # Budgets are printed with two decimals, so counts may differ by what the digits leave open.
    share = 0.03 * GIB / predicted.rank.available.best
    for t in check.terms:
        if t.verdict not in ("agrees", "read only", "not printed"):
            assert abs(t.difference or 0.0) <= share * (t.printed or 0.0) + t.step, t


def test_what_the_user_states_outranks_the_log() -> None:
    predicted = predict_vllm(
        load_model("llama3.1-8b"), load_accelerator("h100-sxm"), VllmFlags(version="0.19.0", max_model_len=8192, tp=2)
    )
    text = "\n".join(vllm_lines(predicted, "llama3.1-8b")) + "\n"
    one = _terms(_check(text, gpu="h100-sxm", vllm={"tp": 1}))["weights_bytes"]
    assert one.predicted == pytest.approx(14.99 * GIB, rel=0.001)
    newer = text.replace("(v0.19.0)", "(v0.41.0)")
    assert any("0.41.0 is not known" in note for note in _check(newer, gpu="h100-sxm").notes)
    heard = _check(newer, gpu="h100-sxm", engine_version="0.19.0")
    assert _off(heard) == []


def test_the_layout_needs_no_card_and_no_total() -> None:
    check = _check(
        "INFO non-default args: {'model': 'RedHatAI/Qwen3-8B-FP8-dynamic', 'max_model_len': 8192}\n"
        "INFO Initializing a V1 LLM engine (v0.19.0) with config: model='RedHatAI/Qwen3-8B-FP8-dynamic'\n"
        "INFO Available KV cache memory: 9.00 GiB\n"
        "INFO GPU KV cache size: 65,536 tokens\n"
        "INFO Maximum concurrency for 512 tokens per request: 128.00x\n"
    )
    terms = _terms(check)
    assert terms["kv_tokens_from_printed_memory"].verdict == "agrees"
    # The length that the log counts with is the one that is judged, whatever was asked.
    assert terms["max_concurrency_from_printed_memory"].verdict == "agrees"
    assert any("name the card with --gpu" in note for note in check.notes)
    assert any("linear weights as fp8" in note for note in check.notes)


def test_a_card_without_a_profile_is_stood_in_for_by_its_memory() -> None:
    check = _check(
        "INFO Initializing a V1 LLM engine (v0.19.0) with config: model='llama3.2-1b', max_seq_len=8192\n"
        "INFO Available KV cache memory: 11.00 GiB\n",
        memory=16.0 * GIB,
    )
    assert _terms(check)["beside_cache_bytes"].predicted == pytest.approx(2.9 * GIB, rel=0.2)
    assert any("none are known, and bounds are wide" in note for note in check.assumptions)


def test_restarts_are_told_apart_and_earlier_figures_are_not_forgotten() -> None:
    starts = [
        "\n".join(
            vllm_lines(predict_vllm(load_model("llama3.1-8b"), load_accelerator("h100-sxm"), flags), "llama3.1-8b")
        )
        for flags in (
            VllmFlags(version="0.19.0", max_model_len=8192, gpu_memory_utilization=0.5),
            VllmFlags(version="0.19.0", max_model_len=8192),
        )
    ]
    log = read_startup_log(io.BytesIO("\n".join([*starts, ""]).encode()))
    assert len(log.earlier) == 1
    check = check_log(log, "log", Told(gpu="h100-sxm"))
    assert _off(check) == []
    assert check.largest == "the last start agrees in every printed term; start 1 printed other figures"
    assert any("2 starts in one log" in note for note in check.notes)


A = predict_vllm(
    load_model("llama3.2-1b"), load_accelerator("h100-sxm"), VllmFlags(version="0.19.0", max_model_len=8192)
)
TRUE = vllm_lines(A, "llama3.2-1b")
ALTERED = [
    ("GPU KV cache size: ", f"{int(A.tokens.best if A.tokens else 0):,}", "400,000"),
    ("Available KV cache memory: ", f"{A.rank.available.best / GIB:.2f} GiB", "48.00 GiB"),
    ("Model loading took ", f"{A.rank.weights.best / GIB:.2f} GiB", "17.00 GiB"),
    ("tokens per request: ", f"{A.concurrency.best if A.concurrency else 0:.2f}x", "9.99x"),
]


def _altered(which: int) -> list[str]:
    mark, old, new = ALTERED[which]
    changed = [line.replace(old, new) if mark in line else line for line in TRUE]
    assert changed != TRUE
    return changed


@st.composite
def _mixed(draw: st.DrawFn) -> tuple[str, bool, bool]:
    """Lines of a true start and of one with a figure changed, cut, merged, repeated or mixed.

    With the text: whether a changed figure stands in it, and whether starts stand whole one after the other.
    """
    which = draw(st.integers(0, len(ALTERED) - 1))
    false = _altered(which)
    parts = draw(st.lists(st.sampled_from([TRUE, false]), min_size=1, max_size=4))
    whole = draw(st.booleans())
    if whole:
        lines = list(itertools.chain.from_iterable(parts))
    else:  # interleaved: each part keeps its order
        queues = [list(part) for part in parts]
        lines = []
        while any(queues):
            chosen = draw(st.sampled_from([q for q in queues if q]))
            lines.append(chosen.pop(0))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(lines) - 1))
        lines[at:at] = [lines[at]] * draw(st.integers(1, 3))
    text = "\n".join(lines) + "\n"
    text = text[: draw(st.integers(len(text) // 4, len(text)))]
    return text, ALTERED[which][2] in text, whole


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(_mixed())
def test_no_agreement_is_claimed_over_a_printed_figure_that_differs(mixed: tuple[str, bool, bool]) -> None:
    text, differs, whole = mixed
    check = _check(text, gpu="h100-sxm", target="llama3.2-1b")
    for t in check.terms:
        if t.verdict == "agrees" and t.predicted is not None and t.printed is not None:
            assert abs(t.predicted - t.printed) <= max(t.step, 0.002 * abs(t.printed)), t
    if differs:
        assert not check.largest.startswith("none: every printed term agrees"), (check.largest, text)
    elif whole:
        # A true start stays true however often it is repeated and wherever it ends.
        wrong = [t for t in check.terms if t.verdict not in ("agrees", "read only", "not printed")]
        assert wrong == [], wrong


def test_a_given_pool_in_bytes_is_judged_as_such() -> None:
    flags = VllmFlags(version="0.27.1", max_model_len=8192, kv_cache_memory_bytes=32212254720)
    predicted = predict_vllm(load_model("llama3.2-1b"), load_accelerator("gb10"), flags)
    assert predicted.rank.available.best == 32212254720
    assert replace(flags).kv_cache_memory_bytes == 32212254720


@pytest.mark.parametrize("which", range(len(ALTERED)))
def test_a_figure_agrees_up_to_half_its_last_digit_and_no_further(which: int) -> None:
    """The printed digits are the slack: one more in the last place is another figure."""
    mark, old, _ = ALTERED[which]
    digits = old.split()[0].removesuffix("x").replace(",", "")
    last = 10.0 ** -len(digits.partition(".")[2])
    wrong = f"{float(digits) + (17 if last == 1 else 2) * last:,.{len(digits.partition('.')[2])}f}"
    altered = [
        line.replace(digits if "," not in old else old.split()[0], wrong) if mark in line else line for line in TRUE
    ]
    for lines, agrees in ((TRUE, True), (altered, False)):
        check = _check("\n".join([*lines, ""]), gpu="h100-sxm", target="llama3.2-1b")
        assert check.largest.startswith("none: every printed term agrees") == agrees, (wrong, check.largest)
