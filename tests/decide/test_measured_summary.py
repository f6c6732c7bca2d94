"""What is said of measured counts: one definition of alpha, whoever measured it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specplan.decide.drift import alert_threshold, drift
from specplan.decide.measured import Alpha, summarise
from specplan.errors import InputError
from specplan.formulas.acceptance import alpha_estimate, conditional_estimates
from specplan.formulas.emitted import expected_emitted
from specplan.records import StepColumns, StepRecord, Tally
from specplan.records.means import Means
from specplan.records.tally import UNKNOWN

pairs = st.tuples(st.integers(0, 5), st.integers(0, 6)).map(lambda t: (min(t), max(t)))
rows = st.lists(st.tuples(st.sampled_from("abcd"), pairs), min_size=1, max_size=60)


def records(steps: list) -> list[StepRecord]:
    return [
        StepRecord(request=r, step=i, source="s", context_len=1, drafted=d, accepted=a, emitted=a + 1)
        for i, (r, (a, d)) in enumerate(steps)
    ]


@given(rows)
@settings(max_examples=150, deadline=None)
def test_a_summary_is_the_estimators_of_its_steps(steps: list) -> None:
    found = records(steps)
    columns, m = StepColumns.of(found), summarise(Tally.of_steps(found), source="s")
    alpha = alpha_estimate(columns.accepted, columns.tested, columns.request)
    if alpha.count == 0:
        assert m.alpha == Alpha()
        return
    assert m.alpha.value == pytest.approx(alpha.value)
    if alpha.requests >= 2:
        assert m.alpha.basis == "requests"
        assert m.alpha.low == pytest.approx(alpha.low)
        assert m.alpha.high == pytest.approx(alpha.high)
    positions = conditional_estimates(columns.accepted, columns.tested, columns.request)
    assert m.position_rates_conditional == pytest.approx([e.value for e in positions])
    assert m.coverage == pytest.approx((columns.drafted > 0).mean())


@given(rows)
@settings(max_examples=150, deadline=None)
def test_identities_between_the_figures(steps: list) -> None:
    m = summarise(Tally.of_steps(records(steps)), source="s")
    assert m.tokens_per_step is not None
    if m.tokens_per_drafted_step is None:
        assert m.coverage == 0
        return
    assert m.coverage is not None
    assert m.position_rates_unconditional is not None
    assert m.tokens_per_step == pytest.approx(1 + m.coverage * (m.tokens_per_drafted_step - 1))
    assert m.tokens_per_drafted_step == pytest.approx(1 + sum(m.position_rates_unconditional))
    assert m.accepted_per_drafted is not None
    assert m.draft_len is not None
    assert m.tokens_per_drafted_step == pytest.approx(1 + m.accepted_per_drafted * m.draft_len)
    assert m.alpha.value is None or m.alpha.value >= m.accepted_per_drafted - 1e-12


@given(rows)
@settings(max_examples=150, deadline=None)
def test_totals_alone_bound_alpha(steps: list) -> None:
    tally = Tally.of_steps(records(steps))
    assume(tally.drafted_tokens)
    assert tally.tested_tokens
    truth = (tally.accepted_tokens or 0) / tally.tested_tokens
    for known in ("drafts", None):
        from dataclasses import replace

        counters = replace(
            UNKNOWN,
            drafts=tally.drafts if known else None,
            drafted_tokens=tally.drafted_tokens,
            accepted_tokens=tally.accepted_tokens,
        )
        alpha = summarise(counters, source="s").alpha
        assert alpha.basis == "bounds"
        assert alpha.kind == "derived"
        assert alpha.low is not None
        assert alpha.high is not None
        assert alpha.low - 1e-12 <= truth <= alpha.high + 1e-12


@given(rows, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_counts_per_position_bound_alpha_more_closely(steps: list, longer: int) -> None:
    """What vLLM's counters say of drafts of unequal lengths: the truth lies within, and a longer k only widens it."""
    tally = Tally.of_steps(records(steps))
    assume(tally.drafted_tokens)
    assert tally.tested_tokens
    assert tally.accepted_at is not None
    assert tally.length_drafts is not None
    truth = (tally.accepted_tokens or 0) / tally.tested_tokens
    k = len(tally.length_drafts) - 1 + longer
    known = {
        "drafts": tally.drafts or 0,
        "drafted_tokens": tally.drafted_tokens or 0,
        "accepted_tokens": tally.accepted_tokens or 0,
    }
    at = [*tally.accepted_at, *[0] * (k - len(tally.accepted_at))]
    close = summarise(Tally.of_counters(**known, accepted_at=at), source="s")
    wide = summarise(Tally.of_counters(**known), source="s").alpha
    alpha = close.alpha
    assert close.hit_rate == pytest.approx((tally.accepted_at or (0,))[0] / (tally.drafts or 1))
    if alpha.basis == "positions":
        assert alpha.value == pytest.approx(truth, abs=0.005 + 1e-12)
        return
    assert alpha.low is not None
    assert alpha.high is not None
    assert wide.low is not None
    assert wide.high is not None
    assert wide.low - 1e-12 <= alpha.low <= truth + 1e-12
    assert truth - 1e-12 <= alpha.high <= wide.high + 1e-12


def test_bounds_are_the_least_and_the_largest_that_any_lengths_allow() -> None:
    """Every multiset of up to 4 drafts of up to 4 tokens, told apart by what their counters say."""
    one_draft = [(length, accepted) for length in range(1, 5) for accepted in range(length + 1)]
    alphas: dict[tuple[tuple[int, ...], int], list[float]] = {}
    for drafts in (d for n in (1, 2, 3, 4) for d in itertools.combinations_with_replacement(one_draft, n)):
        at = tuple(sum(accepted > i for _, accepted in drafts) for i in range(4))
        tested = sum(accepted + (accepted < length) for length, accepted in drafts)
        key = ((len(drafts), *at), sum(length for length, _ in drafts))
        alphas.setdefault(key, []).append(sum(at) / tested)
    bounded = 0
    for ((n, *counts), drafted), values in alphas.items():
        tally = Tally.of_counters(drafts=n, drafted_tokens=drafted, accepted_tokens=sum(counts), accepted_at=counts)
        alpha = summarise(tally, source="s").alpha
        if alpha.basis == "bounds":
            bounded += 1
            assert (alpha.low, alpha.high) == (pytest.approx(min(values)), pytest.approx(max(values)))
        else:
            assert alpha.value == pytest.approx(values[0])
    assert bounded > 200


def test_positions_fewer_than_the_drafts_are_long_bound_less() -> None:
    """10 drafts of 8, 4 of them with 2 tokens accepted: the engine told 2 positions, and those 4 were rejected too."""
    m = summarise(Tally.of_counters(drafts=10, drafted_tokens=80, accepted_tokens=8, accepted_at=[4, 4]), source="s")
    assert m.alpha.low == pytest.approx(8 / 18)  # 10 rejections: the truth
    assert m.alpha.high == pytest.approx(8 / 14)


def test_a_few_short_drafts_leave_alpha_known() -> None:
    """n-gram drafts of a real vLLM at temperature 1: 324 drafts, 2 tokens short of 3 each; 505 positions tested."""
    counters = {"drafts": 324, "drafted_tokens": 970, "accepted_tokens": 229}
    m = summarise(Tally.of_counters(**counters, accepted_at=[113, 69, 47]), source="s")
    assert m.alpha.value == pytest.approx(229 / 505, abs=1e-3)
    assert m.alpha.low is not None
    assert m.alpha.high is not None
    assert m.alpha.low < 0.42 < 0.49 < m.alpha.high  # of 505 coins, not of the lengths that are not told
    assert (m.alpha.basis, m.alpha.kind) == ("positions", "derived")
    assert m.position_rates_conditional == pytest.approx((113 / 324, 69 / 113, 47 / 69))
    assert m.notes
    # suffix drafts of 1 to 12 tokens: each draft without an accepted token was rejected, so alpha is below 0.68
    at = [464, 253, 166, 124, 108, 90, 86, 73, 71, 66, 60, 50, *[0] * 20]
    m = summarise(Tally.of_counters(drafts=1233, drafted_tokens=3103, accepted_tokens=1611, accepted_at=at), source="s")
    assert m.alpha.value is None
    assert m.alpha.low is not None
    assert m.alpha.high is not None
    assert 0.56 < m.alpha.low < 0.638 < m.alpha.high < 0.68
    assert m.position_rates_conditional is None


@given(st.floats(0.05, 0.95), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_means_give_back_the_alpha_behind_them(alpha: float, k: int) -> None:
    emitted = float(expected_emitted(alpha, k))
    m = summarise(None, source="s", means=Means(tokens_per_drafted_step=emitted, chain_len=k, draft_len=k))
    assert m.alpha.value == pytest.approx(alpha, abs=1e-9)
    assert m.alpha.basis == "mean"
    assert (m.alpha.low, m.alpha.high) == (None, None)
    rates = tuple(alpha ** (i + 1) for i in range(k))
    m = summarise(None, source="s", means=Means(position_rates=rates))
    assert m.alpha.value == pytest.approx(alpha)
    assert m.position_rates_conditional == pytest.approx((alpha,) * k)


def test_nothing_measured_is_an_error_and_no_draft_is_not() -> None:
    with pytest.raises(InputError, match="nothing was measured"):
        summarise(None, source="s")
    m = summarise(Tally.of_steps(records([("a", (0, 0))])), source="s")
    assert (m.coverage, m.tokens_per_step, m.alpha.value, m.tokens_per_drafted_step) == (0.0, 1.0, None, None)


def test_every_drafted_position_has_an_unconditional_rate() -> None:
    m = summarise(Tally.of_steps(records([("a", (0, 3)), ("b", (1, 2)), ("c", (0, 0))])), source="s")
    assert m.position_rates_unconditional == (0.5, 0.0, 0.0)
    assert m.position_rates_conditional == (0.5, 0.0)
    m = summarise(Tally.of_steps(records([("a", (0, 3))])), source="s")
    assert m.position_rates_unconditional == (0.0, 0.0, 0.0)


def test_vllms_own_ratio_is_not_alpha() -> None:
    """At alpha 0.7 and three drafted tokens accepted/drafted is 0.511."""
    rng = np.random.default_rng(2)
    steps = [(str(i // 100), (int(np.argmin([*(rng.random(3) < 0.7), False])), 3)) for i in range(40_000)]
    m = summarise(Tally.of_steps(records(steps)), source="s")
    assert m.alpha.value == pytest.approx(0.7, abs=0.01)
    assert m.accepted_per_drafted == pytest.approx(0.511, abs=0.01)
    assert m.tokens_per_drafted_step == pytest.approx(2.533, abs=0.02)


class Win:
    def __init__(self, first: int, steps: int, accepted: int, variance: float) -> None:
        self.first, self.steps, self.accepted, self.accepted_var = first, steps, accepted, variance

    @property
    def accepted_per_step(self) -> float:
        return self.accepted / self.steps if self.steps else math.nan


def test_a_fall_beyond_chance_is_found_and_one_within_is_not() -> None:
    steady = [Win(i, 100, 100, 1e-3) for i in range(8)]
    found = drift(steady)
    assert found is not None
    assert (found.fall, found.at_request) == (0.0, None)
    noisy = drift([*steady, Win(8, 100, 95, 1e-3)])
    assert noisy is not None
    assert noisy.fall == 0.0
    fallen = drift([*steady, Win(8, 100, 40, 1e-3), Win(9, 100, 60, 1e-3)])
    assert fallen is not None
    assert (fallen.fall, fallen.at_request) == (pytest.approx(0.6), 8)
    assert fallen.passes(0.5)
    assert not fallen.passes(0.7)
    assert drift(steady[:1]) is None
    assert drift([Win(0, 0, 0, math.nan), *steady[:1]]) is None


def test_false_alarms_are_rare_and_shifts_are_found() -> None:
    """Over 200 steady traces at most a few alarms; over 50 that lose half their acceptance, all are found."""
    rng = np.random.default_rng(4)

    def windows(alphas: list[float]) -> list[Win]:
        out = []
        for i, p in enumerate(alphas):
            accepted = rng.binomial(60, np.clip(rng.normal(p, 0.05, 16), 0, 1))
            out.append(Win(16 * i, 16 * 60, int(accepted.sum()), float(accepted.var(ddof=1) / 16 / 60**2)))
        return out

    alarms = sum(bool(f and f.passes(0.1)) for f in (drift(windows([0.5] * 16)) for _ in range(200)))
    assert alarms <= 6
    assert all(f is not None and f.passes(0.2) for f in (drift(windows([0.5] * 8 + [0.25] * 8)) for _ in range(50)))


@pytest.mark.parametrize("text", ["0", "1", "-5%", "120%", "much", "nan"])
def test_thresholds_that_are_no_fall_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--alert"):
        alert_threshold(text)
