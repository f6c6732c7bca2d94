"""Best kappa: Leviathan's pairs, the closed-form condition against brute force, and which curves have one peak."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.formulas import draft_length as dl
from specplan.formulas.speedup import speedup, step_cost, verify_factor

probability = st.floats(0, 1)


@pytest.mark.parametrize(
    ("c", "best"),
    [
        (0.01, [5, 7, 9, 14, 24]),
        (0.02, [4, 6, 8, 11, 19]),
        (0.05, [3, 4, 6, 8, 13]),
        (0.1, [2, 3, 4, 6, 10]),
        (0.165, [2, 2, 3, 4, 7]),
    ],
)
def test_best_gamma_of_leviathan_figure_3(c: float, best: list[int]) -> None:
    assert dl.best_kappa([0.5, 0.6, 0.7, 0.8, 0.9], c, 64).tolist() == best


@given(probability, st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.3))
def test_closed_form_condition_equals_brute_force(alpha: float, c: float, coverage: float, overhead: float) -> None:
    kappa = np.arange(81)
    curve = speedup(alpha, kappa, c, coverage=coverage, overhead=overhead)
    best = int(dl.best_kappa(alpha, c, 80, coverage, overhead))
    assert float(curve[best]) == pytest.approx(float(curve.max()), rel=1e-14)


@given(probability, st.floats(0, 1))
def test_constant_acceptance_has_one_peak(alpha: float, c: float) -> None:
    curve = dl.speedup_by_kappa(alpha, c, 60)
    assert float(curve[dl.first_losing_kappa(curve)]) == pytest.approx(float(curve.max()), rel=1e-13)


@given(probability, st.floats(0.001, 1))
def test_some_kappa_pays_if_and_only_if_alpha_exceeds_c(alpha: float, c: float) -> None:
    assert (int(dl.best_kappa(alpha, c, 50)) > 0) == (alpha > c)  # Leviathan, corollary 3.9
    if alpha > c:
        assert float(dl.speedup_by_kappa(alpha, c, 50).max()) >= (1 + alpha) / (1 + c) - 1e-12


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.5))
def test_longer_drafts_for_better_and_for_cheaper_sources(alpha: float, c: float) -> None:
    best = int(dl.best_kappa(alpha, c, 200))
    assert int(dl.best_kappa(min(1.0, alpha + 0.03), c, 200)) >= best
    assert int(dl.best_kappa(alpha, c * 0.9, 200)) >= best


def test_limits() -> None:
    assert dl.best_kappa([0.0, 1.0, 1.0, np.nan], [0.0, 0.5, 1.0, 0.1], 32).tolist() == [0, 32, 0, 0]
    assert int(dl.best_kappa(0.7, 0.0, 32)) == 32
    assert int(dl.best_kappa(0.7, 0.01, 0)) == 0
    assert dl.best_kappa(np.full((2, 3), 0.7), 0.165, 9).shape == (2, 3)


@given(st.lists(probability, min_size=1, max_size=12), st.floats(0, 0.5), st.floats(5, 200), st.integers(1, 32))
def test_every_hazard_on_a_roofline_has_one_peak(h: list[float], c: float, ridge: float, batch: int) -> None:
    """Also one that rises, as a matcher's does after its first token: survival still falls."""
    verify = verify_factor(batch * np.arange(1, len(h) + 2), batch, ridge)
    emitted = np.cumsum(np.cumprod([1.0, *h]))
    curve = emitted / step_cost(np.arange(len(h) + 1), c, verify)
    assert float(curve[dl.first_losing_kappa(curve)]) == pytest.approx(float(curve.max()), rel=1e-13)


def test_a_tile_of_positions_makes_two_peaks() -> None:
    verify = np.where(np.arange(17) < 2, 1.0, 1.5)  # everything beyond one drafted token costs a second tile
    curve = dl.speedup_by_kappa(0.8, 0.01, 16, verify=verify)
    assert int(dl.first_losing_kappa(curve)) == 1
    assert int(dl.peak_kappa(curve)) > 2


def test_a_step_in_the_verify_factor_moves_the_peak_to_its_edge() -> None:
    verify = np.where(np.arange(17) <= 8, 1.0, 1.6)  # a kernel whose tile holds 8 drafted positions
    curve = dl.speedup_by_kappa(0.9, 0.01, 16, verify=verify)
    assert int(dl.peak_kappa(curve)) == 8
    assert int(dl.peak_kappa(dl.speedup_by_kappa(0.9, 0.01, 16))) == 16


def test_loss_from_a_wrong_kappa() -> None:
    curve = dl.speedup_by_kappa(0.7, 0.165, 10)
    loss = dl.loss_from(curve)
    assert float(loss[3]) == 0.0
    assert float(loss[10]) == pytest.approx(1 - float(speedup(0.7, 10, 0.165) / speedup(0.7, 3, 0.165)), rel=1e-12)
