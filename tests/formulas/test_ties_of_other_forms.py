"""Ties for hazards, matchers, draft-length distributions and coverage: round trips through the forward formulas."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from specplan.formulas import emitted as em
from specplan.formulas import indifference as ind
from specplan.formulas.indifference import Reach
from specplan.formulas.speedup import ridge_batch, speedup, step_cost, verify_factor

probability = st.floats(0, 1)
inner = st.floats(0.01, 0.99)
weights = st.lists(st.floats(0.01, 1), min_size=2, max_size=12).map(lambda raw: np.array(raw) / np.sum(raw))


@given(inner, weights)
def test_alpha_under_a_length_distribution_round_trips(alpha: float, w: np.ndarray) -> None:
    e = em.expected_emitted_lengths(alpha, w)
    assert float(ind.alpha_for_emitted_lengths(e, w)) == pytest.approx(alpha, abs=1e-12)


@given(probability, st.integers(1, 30))
def test_one_length_is_the_constant_solver(alpha: float, kappa: int) -> None:
    w = np.zeros(kappa + 1)
    w[kappa] = 1
    e = em.expected_emitted(alpha, kappa)
    assert float(ind.alpha_for_emitted_lengths(e, w)) == pytest.approx(
        float(ind.alpha_for_emitted(e, kappa)), abs=1e-12
    )


@given(st.lists(inner, min_size=1, max_size=8), inner)
def test_hazard_scale_round_trips(h: list[float], share: float) -> None:
    scale = share / max(h)
    e = em.expected_emitted_hazard(np.array(h) * scale)
    assert float(ind.hazard_scale_for_emitted(e, h)) * max(h) == pytest.approx(share, abs=1e-12)


@given(st.lists(inner, min_size=3, max_size=3), inner, st.lists(st.floats(0.05, 1), min_size=4, max_size=4))
def test_hazard_scale_under_a_length_distribution(h: list[float], share: float, raw: list[float]) -> None:
    w = np.array(raw) / np.sum(raw)
    scale = share / max(h)
    e = em.expected_emitted_lengths(np.array(h) * scale, w)
    assert float(ind.hazard_scale_for_emitted(e, h, w)) * max(h) == pytest.approx(share, abs=1e-12)


def test_hazard_scale_of_a_constant_is_alpha() -> None:
    e = em.expected_emitted(0.7, 5)
    assert float(ind.hazard_scale_for_emitted(e, np.full(5, 0.35))) == pytest.approx(2.0, abs=1e-12)
    assert np.isnan(ind.hazard_scale_for_emitted(6.1, np.full(5, 0.35)))


@given(inner, inner, st.integers(2, 20))
def test_hit_and_continuation_round_trip(hit: float, rate: float, kappa: int) -> None:
    e = em.expected_emitted_hit(hit, rate, kappa)
    assert float(ind.hit_for_emitted(e, rate, kappa)) == pytest.approx(hit, abs=1e-12)
    # what the solver is given, (e - 1) / hit, has lost the digits that e spent on its leading 1
    assert float(ind.continuation_for_emitted(e, hit, kappa)) == pytest.approx(rate, abs=1e-14 / hit + 1e-13)


def test_hit_and_continuation_out_of_reach() -> None:
    assert np.isnan(ind.hit_for_emitted([0.9, 5.5], 0.9, 4)).all()
    assert np.isnan(ind.continuation_for_emitted(4.0, 0.5, 4))  # at most 1 + 0.5 * 4 = 3
    assert np.isnan(ind.hit_for_emitted(1.5, 0.5, 0))


@given(inner, st.integers(1, 20), st.floats(0, 0.05), st.floats(1, 1.2), st.floats(0.05, 1), st.floats(0, 0.02))
@example(0.0625, 15, 0.001953125, 1.0, 1.0, 0.0)  # the tie lies at coverage 1 but for a rounding
def test_coverage_round_trips(alpha: float, kappa: int, c: float, v: float, g: float, o: float) -> None:
    gain = float(em.expected_emitted(alpha, kappa)) - 1
    s = float(speedup(alpha, kappa, c, v, g, o))
    slope = gain - s * (float(step_cost(kappa, c, v)) - 1)
    assume(abs(slope) > 1e-2)  # where every coverage is worth the same there is nothing to solve
    got = float(ind.coverage_for_speedup(s, 1 + gain, kappa, c, v, o))
    assert got == pytest.approx(g, abs=1e-12 / abs(slope))


def test_coverage_at_which_a_sparse_matcher_ties_with_a_dense_draft() -> None:
    dense = float(speedup(0.7, 3, 0.164664))
    emitted = em.expected_emitted_hit(0.8, 0.9, 8)
    g = float(ind.coverage_for_speedup(dense, emitted, 8))
    assert 0 < g < 1
    assert float(em.emitted_over_all_steps(g, emitted)) == pytest.approx(dense, rel=1e-12)
    assert np.isnan(ind.coverage_for_speedup(dense, 1.5, 8))  # not even in every step


@given(st.floats(0, 3), probability, st.integers(1, 12))
def test_status_tells_why_an_acceptance_was_or_was_not_found(s: float, c: float, kappa: int) -> None:
    needed = ind.emitted_for_speedup(s, kappa, c)
    alpha, status = ind.alpha_for_emitted(needed, kappa), ind.reach(needed, 1, kappa + 1)
    assert (status == Reach.SOLVED) == (not np.isnan(alpha))
    if status == Reach.ABOVE:
        assert float(speedup(1.0, kappa, c)) < s
    if status == Reach.BELOW:
        assert float(speedup(0.0, kappa, c)) > s


def test_status_of_nothing_drafted_and_of_unknown() -> None:
    assert ind.reach(ind.emitted_for_speedup(1.0, 0, 0.3), 1, 1) == Reach.ANY
    assert ind.reach(ind.emitted_for_speedup(1.5, 0, 0.3), 1, 1) == Reach.ABOVE
    assert ind.reach(np.nan, 0, 1) == Reach.UNKNOWN


def test_verification_is_hidden_up_to_the_ridge_and_linear_beyond() -> None:
    ridge = 295
    assert float(ridge_batch(24, ridge)) == pytest.approx(11.8)
    below, above = np.floor(ridge_batch(24, ridge)), np.ceil(ridge_batch(24, ridge))
    assert float(verify_factor(below * 25, below, ridge)) == 1.0
    assert float(verify_factor(above * 25, above, ridge)) > 1.0
    assert float(verify_factor(16 * 25, 16, ridge)) == pytest.approx(400 / 295)
    # when even plain decoding is past the ridge every position is paid in full
    assert float(verify_factor(1000 * 4, 1000, ridge)) == pytest.approx(4.0)


@given(st.integers(1, 512), st.integers(1, 32), st.floats(10, 1000))
def test_verify_factor_lies_between_one_and_the_width(batch: int, kappa: int, ridge: float) -> None:
    v = float(verify_factor(batch * (kappa + 1), batch, ridge))
    assert 1.0 <= v <= (kappa + 1) * (1 + 1e-12)
    assert v <= float(verify_factor(batch * (kappa + 2), batch, ridge))
