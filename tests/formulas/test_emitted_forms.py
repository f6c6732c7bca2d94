"""E in all its forms, against exact rational arithmetic and against simulation by enumeration."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.formulas import emitted as em

probability = st.floats(0, 1)
near_one = st.floats(0, 1e-3).map(lambda x: 1.0 - x)
kappas = st.integers(0, 80)


def exact_emitted(alpha: float, kappa: int) -> Fraction:
    a = Fraction(alpha)
    return sum((a**i for i in range(kappa + 1)), Fraction(0))


@given(st.one_of(probability, near_one), kappas)
def test_every_digit_survives_also_next_to_one(alpha: float, kappa: int) -> None:
    want = exact_emitted(alpha, kappa)
    got = float(em.expected_emitted(alpha, kappa))
    assert abs(Fraction(got) - want) <= want * Fraction(1, 10**14)


@given(st.one_of(probability, near_one), st.lists(kappas, min_size=2, max_size=5))
def test_an_array_of_kappas_answers_as_each_alone(alpha: float, many: list[int]) -> None:
    together = em.expected_emitted(alpha, many)
    alone = [float(em.expected_emitted(alpha, k)) for k in many]
    np.testing.assert_allclose(together, alone, rtol=1e-14)


def test_chapter_value() -> None:
    assert float(em.expected_emitted(0.7, 3)) == pytest.approx(2.533, abs=1e-12)


@given(probability, kappas)
def test_limits_and_monotonicity(alpha: float, kappa: int) -> None:
    value = float(em.expected_emitted(alpha, kappa))
    assert 1 <= value <= kappa + 1
    assert float(em.expected_emitted(alpha, kappa + 1)) >= value * (1 - 1e-15)
    assert float(em.expected_emitted(0.0, kappa)) == 1
    assert float(em.expected_emitted(1.0, kappa)) == kappa + 1
    assert float(em.expected_emitted(alpha, 0)) == 1


def test_large_kappa_tends_to_the_oracle_length() -> None:
    assert float(em.expected_emitted(0.9, 100_000)) == pytest.approx(10.0, rel=1e-13)
    assert float(em.expected_emitted(1.0, 1_000_000)) == 1_000_001


@given(st.floats(0.01, 1), st.integers(1, 60))
def test_slope_is_the_exact_derivative(alpha: float, kappa: int) -> None:
    a = Fraction(alpha)
    want = sum((i * a ** (i - 1) for i in range(1, kappa + 1)), Fraction(0))
    for k in (kappa, np.array([kappa, 0])):  # both evaluation schemes
        got = float(np.atleast_1d(em.emitted_and_slope(alpha, k)[1])[0])
        assert got == pytest.approx(float(want), rel=1e-13)


@given(probability, st.integers(0, 30))
def test_hazard_reduces_to_constant(alpha: float, kappa: int) -> None:
    assert float(em.expected_emitted_hazard(np.full(kappa, alpha))) == pytest.approx(
        float(em.expected_emitted(alpha, kappa)), rel=1e-14
    )


@given(st.lists(probability, min_size=1, max_size=6))
def test_hazard_equals_enumeration_of_accepted_prefixes(h: list[float]) -> None:
    mean = 0.0
    for accepted in product((True, False), repeat=len(h)):
        weight = float(np.prod([p if yes else 1 - p for p, yes in zip(h, accepted, strict=True)]))
        prefix = next((i for i, yes in enumerate(accepted) if not yes), len(h))
        mean += weight * (prefix + 1)
    assert float(em.expected_emitted_hazard(h)) == pytest.approx(mean, rel=1e-12)
    assert float(em.survival(h).sum()) == pytest.approx(mean, rel=1e-12)


@given(probability, probability, st.integers(1, 40))
def test_hit_then_continue_is_a_hazard(hit: float, rate: float, kappa: int) -> None:
    want = float(em.expected_emitted_hazard([hit, *[rate] * (kappa - 1)]))
    assert float(em.expected_emitted_hit(hit, rate, kappa)) == pytest.approx(want, rel=1e-13)
    assert float(em.expected_emitted_hit(hit, rate, 0)) == 1


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.lists(probability, min_size=7, max_size=7))
def test_length_distribution_is_the_mean_over_lengths(raw: list[float], h: list[float]) -> None:
    w = np.array(raw) / np.sum(raw)
    h = h[: len(raw) - 1]
    want = sum(wk * float(em.expected_emitted_hazard(h[:k])) for k, wk in enumerate(w))
    assert float(em.expected_emitted_lengths(h, w)) == pytest.approx(want, rel=1e-12)


@given(probability, probability, st.integers(1, 10))
def test_coverage_is_a_length_distribution(coverage: float, alpha: float, kappa: int) -> None:
    w = np.zeros(kappa + 1)
    w[0], w[kappa] = 1 - coverage, coverage
    want = float(em.mixture_yield(coverage, alpha, kappa))
    assert float(em.expected_emitted_lengths(alpha, w)) == pytest.approx(want, rel=1e-12)


def test_mixture_yields_of_the_chapters_code_block() -> None:
    rare, common = float(em.mixture_yield(0.1, 0.99, 3)), float(em.mixture_yield(0.9, 0.7, 3))
    assert rare == pytest.approx(1 + 0.1 * (0.99 + 0.99**2 + 0.99**3), abs=1e-12)
    assert common == pytest.approx(1 + 0.9 * 1.533, abs=1e-12)
    assert rare < common
    assert float(em.mixture_yield(0, 1, 3)) == pytest.approx(1, abs=1e-12)
    assert float(em.mixture_yield(1, 1, 3)) == pytest.approx(4, abs=1e-12)


def test_coverage_reconciles_an_engines_mean_acceptance_length_with_tokens_per_step() -> None:
    # vLLM pull request 24852: 16993 tokens, 1986 drafts of 1 token, 1226 accepted; each step emits 1 + accepted.
    steps = 16993 - 1226
    per_draft = 1 + 1226 / 1986
    assert float(em.emitted_over_all_steps(1986 / steps, per_draft)) == pytest.approx(16993 / steps, rel=1e-12)


def test_suffix_lengths_follow_the_engines_floor_in_tenths() -> None:
    # floor(m * 0.1 + 1e-6): ten matched tokens draft exactly one
    w = np.zeros(21)
    w[[9, 10, 20]] = 0.25, 0.25, 0.5
    assert em.factor_lengths(w, cap=8, factor=0.1).tolist() == [0.25, 0.25, 0.5, 0, 0, 0, 0, 0, 0]


def test_suffix_lengths_are_capped() -> None:
    w = np.zeros(13)
    w[12] = 1
    assert em.factor_lengths(w, cap=32, factor=2.0)[24] == 1  # "a 12-token match asks for 24 draft tokens"
    assert em.factor_lengths(w, cap=16, factor=2.0)[16] == 1


def test_unknown_stays_unknown() -> None:
    assert np.isnan(em.expected_emitted(np.nan, 3))
    assert np.isnan(em.expected_emitted([0.5, np.nan], 0)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: em.expected_emitted(1.1, 3), "alpha must lie in [0, 1], got 1.1"),
        (lambda: em.expected_emitted([0.5, -0.1], 3), "got -0.1"),
        (lambda: em.expected_emitted(0.5, -1), "kappa must be whole numbers of at least 0, got -1"),
        (lambda: em.expected_emitted(0.5, np.nan), "kappa must be whole"),
        (lambda: em.expected_emitted_hazard([0.5, 2.0]), "conditional acceptance must lie in [0, 1], got 2"),
        (lambda: em.expected_emitted_lengths([0.5, 0.5], [0.5, 0.5]), "need 1 conditional"),
        (lambda: em.expected_emitted_lengths(0.5, [0.5, 0.6]), "sum to 1"),
        (lambda: em.emitted_over_all_steps(0.5, 0.9), "emitted tokens must be at least 1, got 0.9"),
        (lambda: em.factor_lengths([1.0], cap=-1), "cap and factor must be at least 0"),
        (lambda: em.factor_lengths([[1.0]], cap=1), "one distribution"),
    ],
)
def test_bad_input_is_named(call: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    assert says in str(caught.value)
