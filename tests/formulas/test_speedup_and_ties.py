"""Speedup, contours and ties: the chapter's and Leviathan's numbers, round trips and laws."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.formulas import indifference as ind
from specplan.formulas.emitted import expected_emitted
from specplan.formulas.speedup import length_step_cost, paired_speedup, speedup, step_cost

C_70B, C_8B = 0.0177801, 0.164664  # Llama-3.2-1B against Llama-3-70B and Llama-3-8B, by streamed bytes

probability = st.floats(0, 1)
kappas = st.integers(1, 40)
costs = st.floats(0, 1)
verify_factors = st.floats(1, 4)
coverages = st.floats(0.05, 1)
overheads = st.floats(0, 0.5)


@pytest.mark.parametrize(("c", "s", "tie"), [(C_70B, 2.4047, 0.6659), (C_8B, 1.6955, 0.4304)])
def test_chapter_pairs(c: float, s: float, tie: float) -> None:
    assert float(speedup(0.7, 3, c)) == pytest.approx(s, abs=5e-5)
    assert float(ind.free_draft_tie(0.7, 3, c)) == pytest.approx(tie, abs=5e-5)


@pytest.mark.parametrize(
    ("c", "kappa", "printed"),
    [
        (C_70B, 3, 0.666),  # from the ratio of streamed bytes; its rounding, 0.0178, gives 0.6605 at kappa 5
        (C_70B, 5, 0.661),
        (C_70B, 7, 0.654),
        (0.165, 1, 0.459),  # from the rounded number that the sentence names; the exact ratio gives 0.460 here
        (0.165, 3, 0.430),
        (0.165, 7, 0.314),
    ],
)
def test_chapter_free_draft_ties(c: float, kappa: int, printed: float) -> None:
    assert float(ind.free_draft_tie(0.7, kappa, c)) == pytest.approx(printed, abs=5e-4)


@pytest.mark.parametrize(
    ("alpha", "gamma", "speed"),
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_leviathan_table_1(alpha: float, gamma: int, speed: float) -> None:
    assert round(float(speedup(alpha, gamma, 0.0)), 2) == speed


@pytest.mark.parametrize(
    ("gamma", "alpha", "c", "printed"),
    [
        (7, 0.75, 0.02, 3.2),
        (7, 0.80, 0.04, 3.3),
        (7, 0.82, 0.11, 2.5),
        (7, 0.62, 0.02, 2.3),
        (5, 0.68, 0.04, 2.4),
        (3, 0.71, 0.11, 2.0),
        (5, 0.65, 0.02, 2.4),
        (5, 0.73, 0.04, 2.6),
        (3, 0.74, 0.11, 2.0),
        (5, 0.53, 0.02, 1.9),
        (3, 0.55, 0.04, 1.8),
        (3, 0.56, 0.11, 1.6),
    ],
)
def test_leviathan_table_4_within_its_rounding(gamma: int, alpha: float, c: float, printed: float) -> None:
    assert float(speedup(alpha, gamma, c)) == pytest.approx(printed, abs=0.07)


@given(probability, kappas, costs, verify_factors, coverages, overheads)
def test_the_general_form_is_tokens_over_time_step_by_step(
    alpha: float, kappa: int, c: float, v: float, g: float, o: float
) -> None:
    tokens = g * float(expected_emitted(alpha, kappa)) + (1 - g)
    time = g * (kappa * c + v) + (1 - g) + o
    assert float(speedup(alpha, kappa, c, v, g, o)) == pytest.approx(tokens / time, rel=1e-12)
    lengths = np.zeros(kappa + 1)
    lengths[0], lengths[kappa] = 1 - g, lengths[kappa] + g
    assert float(length_step_cost(lengths, c, v, o)) == pytest.approx(time, rel=1e-12)


@given(probability, kappas, costs, verify_factors, coverages, overheads)
@example(0.0, 1, 0.0, 2.5, 0.05, 0.5)  # nothing accepted, and little coverage to divide a rounding by
def test_contours_round_trip(alpha: float, kappa: int, c: float, v: float, g: float, o: float) -> None:
    s = float(speedup(alpha, kappa, c, v, g, o))
    # the speedup is a rounded number; what is left of it divided by the slope of the contour bounds the round trip
    assert float(ind.contour_c(alpha, s, kappa, v, g, o)) == pytest.approx(c, abs=1e-12 / g)
    assert float(ind.contour_alpha(c, s, kappa, v, g, o)) == pytest.approx(alpha, abs=1e-12 / g)


@given(st.one_of(probability, st.floats(0, 1e-6).map(lambda x: 1 - x)), st.integers(1, 2000))
def test_emitted_is_inverted_to_the_last_digits(alpha: float, kappa: int) -> None:
    got = ind.alpha_for_emitted(expected_emitted(alpha, kappa), kappa)
    assert float(got) == pytest.approx(alpha, abs=1e-14)


@given(st.integers(1, 400), st.floats(0, 1))
def test_inverse_agrees_with_bisection(kappa: int, share: float) -> None:
    target = 1 + share * kappa
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if float(expected_emitted(middle, kappa)) < target else (low, middle)
    assert float(ind.alpha_for_emitted(target, kappa)) == pytest.approx(high, abs=1e-12)


def test_arrays_of_kappa_answer_as_each_alone() -> None:
    rng = np.random.default_rng(5)
    kappa = rng.integers(1, 20, 500)
    alpha, c = rng.random(500), rng.random(500) * 0.2
    together = ind.free_draft_tie(alpha, kappa, c)
    alone = [float(ind.free_draft_tie(a, int(k), x)) for a, k, x in zip(alpha, kappa, c, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-14)


@given(probability, kappas, costs)
def test_the_tie_is_on_the_indifference_curve_and_never_above_alpha(alpha: float, kappa: int, c: float) -> None:
    s = float(speedup(alpha, kappa, c))
    tie = float(ind.free_draft_tie(alpha, kappa, c))
    if s < 1 - 1e-12:
        assert np.isnan(tie)  # plain decoding is already better than the draft
    elif s > 1 + 1e-12:
        assert tie <= alpha + 1e-12
        assert float(speedup(tie, kappa, 0.0)) == pytest.approx(s, rel=1e-12)
    assert float(ind.free_draft_tie(alpha, kappa, 0.0)) == pytest.approx(alpha, abs=1e-13)


@given(st.integers(1, 30), st.floats(0, 0.99))
def test_break_even(kappa: int, c: float) -> None:
    at_one = float(ind.break_even_alpha(1, c))
    assert at_one == pytest.approx(c, abs=1e-13)
    alpha = float(ind.break_even_alpha(kappa, c))
    assert alpha >= at_one - 1e-13  # Leviathan, corollary 3.9: alpha > c is necessary
    assert float(speedup(alpha, kappa, c)) == pytest.approx(1.0, rel=1e-12)


@given(probability, probability, kappas, costs, costs)
def test_monotone_in_alpha_and_in_c(a: float, b: float, kappa: int, c: float, d: float) -> None:
    a, b = sorted((a, b))
    c, d = sorted((c, d))
    assert float(speedup(a, kappa, c)) <= float(speedup(b, kappa, c)) * (1 + 1e-14)
    assert float(speedup(a, kappa, d)) <= float(speedup(a, kappa, c)) * (1 + 1e-14)


def test_unreachable_is_nan_in_place() -> None:
    assert np.isnan(ind.alpha_for_emitted([0.9, 1.0, 4.0, 4.1], 3)).tolist() == [True, False, False, True]
    assert np.isnan(ind.contour_alpha([0.0, 10.0], 2.0, 3)).tolist() == [False, True]
    assert np.isnan(ind.contour_c([0.1, 0.7], 2.0, 3)).tolist() == [True, False]
    assert np.isnan(ind.break_even_alpha(3, 1.5))
    assert np.isnan(ind.alpha_for_emitted(1.0, 0))
    assert np.isnan(ind.contour_c(0.7, 1.0, 0))
    assert np.isnan(ind.contour_alpha(0.0, 1.5, 3, coverage=0.0))


def test_a_tie_at_the_very_edge_is_reached_in_spite_of_rounding() -> None:
    c = np.linspace(0, 1, 1001)
    for kappa in (1, 3, 7):
        s = speedup(1.0, kappa, c)
        np.testing.assert_allclose(ind.contour_alpha(c, s, kappa), 1.0, atol=1e-13)
        np.testing.assert_allclose(ind.contour_c(1.0, speedup(1.0, kappa, 0.0), kappa), 0.0, atol=1e-15)


def test_a_sparse_free_source_may_not_reach_the_tie() -> None:
    assert np.isnan(ind.free_draft_tie(0.7, 3, C_70B, free_coverage=0.4))
    tie = float(ind.free_draft_tie(0.7, 3, C_70B, free_coverage=0.6))
    assert float(speedup(tie, 3, 0.0, coverage=0.6)) == pytest.approx(float(speedup(0.7, 3, C_70B)), rel=1e-12)


@given(probability, kappas, costs)
def test_a_plain_step_costs_one(alpha: float, kappa: int, c: float) -> None:
    assert float(step_cost(0, c)) == 1.0
    assert float(speedup(alpha, 0, c)) == 1.0
    assert float(speedup(alpha, kappa, c, coverage=0.0)) == 1.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: speedup(0.7, 3, -0.1), "c must be at least 0, got -0.1"),
        (lambda: speedup(0.7, 3, 0.1, verify=0.0), "verify factor must be at least"),
        (lambda: speedup(0.7, 3, 0.1, coverage=1.5), "coverage must lie in [0, 1], got 1.5"),
        (lambda: speedup(0.7, 3, 0.1, overhead=-1), "overhead must be at least 0, got -1"),
    ],
)
def test_bad_input_is_named(call: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    assert says in str(caught.value)


def test_ties_do_not_import_an_optimizer() -> None:
    program = "import sys, specplan.formulas.indifference; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_paired_speedup_of_equal_runs_is_1_within_its_interval() -> None:
    """Requests differ by a factor of four, and the machine slows down tenfold while they run: pairs share both."""
    rng = np.random.default_rng(0)
    inside = widths = 0
    for _ in range(200):
        machine = np.geomspace(1.0, 10.0, 12) * rng.lognormal(0.0, 0.05, 12)
        tokens = rng.integers(20, 80, 12)
        own, plain = (tokens * machine * rng.lognormal(0.0, 0.05, 12) for _ in range(2))
        _, low, high = paired_speedup(tokens, own, tokens, plain)
        inside += low <= 1.0 <= high
        widths += high - low
    assert 0.91 <= inside / 200 <= 0.99
    assert widths / 200 < 0.15


def test_kinds_of_requests_are_no_noise_where_their_mix_is_given() -> None:
    """Half of the requests gain fourfold, half lose: the interval of a fixed mix is that of the noise in each kind."""
    rng = np.random.default_rng(3)
    gain = np.repeat([4.0, 0.5], 10)
    true = 20 / (1 / gain).sum()  # all tokens over all seconds, the same for plain
    inside, wide, narrow = 0, 0.0, 0.0
    for _ in range(200):
        tokens = np.full(20, 50.0)
        own, plain = tokens / gain * rng.lognormal(0.0, 0.1, 20), tokens * rng.lognormal(0.0, 0.1, 20)
        _, low, high = paired_speedup(tokens, own, tokens, plain, strata=np.repeat(["a", "b"], 10))
        _, below, above = paired_speedup(tokens, own, tokens, plain)
        inside += low <= true <= high
        wide, narrow = wide + above - below, narrow + high - low
    assert 0.91 <= inside / 200 <= 0.99
    assert narrow < wide / 3
    assert np.isnan(paired_speedup([1, 1, 1], [1, 2, 3], [1, 1, 1], [1, 2, 3], strata=["a", "a", "b"])[1])
