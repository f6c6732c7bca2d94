"""One verdict under an offered load: it follows from fit, queue, ratio and band, and moves when one of them does."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specplan.decide.compare import Cell, CompareReport, compare
from specplan.decide.offered import _least, verdict
from specplan.formulas.emitted import expected_emitted
from specplan.propose.spelling import read_source
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.values.source import Source

TARGET, DRAFT = load_model("qwen3-32b"), load_model("qwen3-0.6b")
L40S = load_accelerator("l40s")


def draft(text: str) -> Source:
    return replace(read_source(text), model=DRAFT)


def ask(source: Source, load: int, **settings: object) -> CompareReport:
    return compare(TARGET, L40S, [source], tp=2, batches=[load], **settings)  # type: ignore[arg-type]


def of(report: CompareReport) -> tuple[Cell, Cell]:
    plain, other = report.cells
    return plain, other


def test_a_draft_that_seats_fewer_can_lose_the_load_that_its_steps_win() -> None:
    # A little more than its steps need where all that fit are running.
    (least,) = ask(draft("qwen3-0.6b:k=2"), of(ask(draft("qwen3-0.6b:alpha=.5,k=2"), 64))[1].fit).needs
    assert least.alpha is not None
    plain, cell = of(ask(draft(f"qwen3-0.6b:alpha={least.alpha + 0.03},k=2"), 64))
    assert cell.speedup > 1  # each step is worth more ...
    assert cell.batch < plain.batch < 64  # ... but fewer run
    assert cell.ratio < 1
    assert cell.ratio == pytest.approx((cell.batch / cell.per_token_s) / (plain.batch / plain.per_token_s))
    assert cell.waiting == 64 - cell.batch
    assert cell.per_user_s == pytest.approx(64 / (cell.batch / cell.per_token_s))
    assert cell.per_user_s > plain.per_user_s


def test_each_ingredient_flips_the_verdict() -> None:
    source = draft("qwen3-0.6b:alpha=.8,k=2")
    assert of(ask(source, 16))[1].verdict == "pays"
    # Fit: the same question on one card.
    (_, unfit) = compare(TARGET, L40S, [source], tp=1, batches=[16]).cells
    assert (unfit.fit, unfit.verdict, unfit.ratio) == (0, "does not fit", 0.0)
    # Queue: the same source where the load exceeds what it seats.
    (least,) = ask(draft("qwen3-0.6b:k=2"), 4).needs
    low = draft(f"qwen3-0.6b:alpha={least.alpha},k=2")
    calm, full = of(ask(low, 4))[1], of(ask(low, 64))[1]
    assert (calm.waiting, full.waiting > 0) == (0, True)
    assert (calm.verdict, full.verdict) == ("uncertain", "does not pay")
    # Ratio: the same load with another acceptance.
    assert of(ask(draft("qwen3-0.6b:alpha=0,k=8"), 4))[1].verdict == "does not pay"
    # Band: the same best estimate, less sure.
    wide = of(ask(draft("qwen3-0.6b:alpha=.1..0.8..1,k=2"), 16))[1]
    assert wide.speedup == pytest.approx(of(ask(source, 16))[1].speedup)
    assert wide.verdict == "uncertain"


@pytest.mark.parametrize("low", [0.5, 0.999, 1.0, 1.001, 2.0])
@pytest.mark.parametrize("high", [0.8, 0.999, 1.0, 1.5, 3.0])
def test_nothing_is_said_to_pay_that_does_not_fit_or_may_lose(low: float, high: float) -> None:
    if low > high:
        return
    assert verdict(fit=0, low=low, high=high, layer="modelled") == "does not fit"
    said = verdict(fit=1, low=low, high=high, layer="modelled")
    assert (said == "pays") == (low > 1)
    assert (said == "does not pay") == (high < 1)
    assert verdict(fit=1, low=low, high=high, layer="roofline") != "pays"


def test_the_sentence_says_what_the_cells_say() -> None:
    eagle, small = read_source("eagle3:alpha=.7,k=2"), draft("qwen3-0.6b:alpha=.5,k=2")
    report = compare(TARGET, L40S, [small, eagle], tp=2, batches=[64])
    plain, loses, pays = report.cells
    (said,) = report.sentences
    assert said.startswith(f"64 chats of 2k on 2 x l40s: eagle3 k 2, {pays.ratio:.2f}x, {pays.batch} run, ")
    assert f"{pays.waiting} wait" in said
    assert f"{loses.ratio:.2f}x and seats {plain.batch - loses.batch} fewer" in said
    (none,) = compare(TARGET, L40S, [small], tp=1, batches=[64]).sentences
    assert "does not fit (weights: " in none


def test_where_the_load_exceeds_the_pool_length_and_fit_are_chosen_together() -> None:
    free = of(ask(draft("qwen3-0.6b:alpha=.6"), 64))[1]
    every = [of(ask(draft(f"qwen3-0.6b:alpha=.6,k={k}"), 64))[1] for k in range(1, 9)]
    assert free.ratio == pytest.approx(max(c.ratio for c in every))
    best = max(every, key=lambda c: c.ratio)
    assert (free.kappa, free.fit, free.batch) == (best.kappa, best.fit, best.batch)


@pytest.mark.parametrize("load", [4, 64])
@pytest.mark.parametrize("name", ["qwen3-0.6b", "ngram", "suffix", "eagle3"])
def test_without_an_acceptance_the_answer_is_the_one_that_it_needs(name: str, load: int) -> None:
    def source(text: str) -> Source:
        return draft(text) if name == "qwen3-0.6b" else read_source(text)

    (need,) = ask(source(name), load).needs
    assert need.alpha is not None
    assert need.measure.startswith("specplan ")
    reached, missed = (of(ask(source(f"{name}:alpha={need.alpha + d}"), load))[1].ratio for d in (1e-6, -1e-3))
    assert missed < 1 <= reached + 1e-9
    if need.coverage is not None:
        text = f"{name}:alpha=1,k={need.kappa},coverage={need.coverage}"
        assert of(ask(source(text), load))[1].ratio == pytest.approx(1, abs=1e-4)


def test_what_no_acceptance_can_save_is_said() -> None:
    (need,) = compare(DRAFT, L40S, [replace(read_source("qwen3-32b:k=3"), model=TARGET)], tp=2, batches=[1]).needs
    assert need.alpha is None
    assert "cannot pay" in need.words


def test_every_rate_is_that_of_the_requests_that_run() -> None:
    for load in (1, 8, 64):
        for cell in ask(draft("qwen3-0.6b:alpha=.6"), load).cells:
            assert cell.tokens_s_gpu * 2 == pytest.approx(cell.batch * cell.emitted / cell.step_s)
            assert cell.offered == cell.batch + cell.waiting
            assert cell.fits == (cell.waiting == 0) == (cell.fit >= load)
            assert math.isfinite(cell.per_user_s)


def test_the_band_of_a_ratio_is_that_of_its_step() -> None:
    for load in (4, 64):
        cell = of(ask(draft("qwen3-0.6b:alpha=.4..0.5..0.6,k=2"), load))[1]
        assert cell.ratio_low / cell.ratio == pytest.approx(cell.speedup_low / cell.speedup)
        assert cell.ratio_high / cell.ratio == pytest.approx(cell.speedup_high / cell.speedup)
        assert cell.emitted_low == pytest.approx(float(expected_emitted(np.array(0.4), 2)))


@pytest.mark.parametrize("least", [1e-6, 0.3, 0.999, 1.0])
def test_the_least_share_is_where_a_condition_begins_to_hold(least: float):
    found = _least(lambda share: share >= least)
    assert found == pytest.approx(least, abs=1e-3)
    assert found >= least
    assert _least(lambda _: False) is None
