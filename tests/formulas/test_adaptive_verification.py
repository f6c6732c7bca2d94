"""The budget of a step against brute force, its limits, and the published tables."""

import itertools
from typing import Any

import numpy as np
import pytest

from specplan.errors import InputError
from specplan.formulas.adaptive import WidthCost, adaptive_expectation, class_lengths, confidences, verify_budget
from specplan.formulas.draft_length import speedup_by_kappa

STAIRS = WidthCost.of([1, 2, 4, 8, 16, 32, 64], [1.0, 1.0, 1.05, 1.1, 1.4, 2.2, 3.9], 0.06)


def random_case(rng: np.random.Generator) -> tuple[np.ndarray, WidthCost, float, int]:
    n, k = rng.integers(1, 4), rng.integers(1, 4)
    ties = rng.random() < 0.5  # equal survivals are where an allocation can go wrong
    step = rng.choice([0.0, 0.2, 0.5, 0.9, 1.0], (n, k)) if ties else rng.random((n, k))
    widths = np.unique(rng.integers(1, 16, rng.integers(1, 6)))
    cost = WidthCost.of(widths, rng.random(widths.size) + 0.1, float(rng.choice([0.0, 0.3 * rng.random()])))
    return np.cumprod(step, axis=1), cost, float(rng.random()), int(n + rng.integers(0, 5))


def test_the_budget_is_the_best_of_all_prefixes_of_all_requests() -> None:
    rng = np.random.default_rng(5)
    for _ in range(1000):
        s, cost, draft_s, other = random_case(rng)
        n, k = s.shape
        best = max(
            (n + sum(s[r, :length].sum() for r, length in enumerate(lengths)))
            / (draft_s + float(cost.at(other + sum(lengths))))
            for lengths in itertools.product(range(k + 1), repeat=n)
        )
        found = verify_budget(s, cost, draft_s, other)
        assert found.tokens / found.seconds == pytest.approx(best, rel=1e-12)
        taken = sum(s[r, :length].sum() for r, length in enumerate(found.lengths))
        assert found.tokens == pytest.approx(n + taken, rel=1e-12)
        assert found.lengths.sum() == found.positions


def test_equal_survivals_give_the_best_kappa_of_the_batch_or_a_mix_of_two_neighbours() -> None:
    alpha, positions = 0.75, 7
    survival = np.tile(alpha ** np.arange(1, positions + 1), (16, 1))
    for slope in (0.001, 0.01, 0.03, 0.1):
        cost = WidthCost.of([1], [1.0], slope)
        lengths = verify_budget(survival, cost).lengths
        assert lengths.max() - lengths.min() <= 1
        verify = cost.at(16 * np.arange(1, positions + 2)) / cost.at(16)
        gains = speedup_by_kappa(alpha, 0.0, positions, verify=verify)
        assert abs(lengths.mean() - int(np.argmax(gains))) <= 1


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_knowing_more_never_loses(batch: int) -> None:
    rates = []
    for resolution in (0.0, 0.3, 1.0):
        seen, _ = confidences([0.7] * 5, resolution=resolution, dispersion=0.2)
        step = adaptive_expectation(seen, seen, STAIRS, batch)
        rates.append(step.tokens / step.seconds)
    mean = np.tile(seen.mean(axis=0), (len(seen), 1))
    blind = adaptive_expectation(mean, seen, STAIRS, batch)
    assert blind.tokens / blind.seconds <= rates[0] * (1 + 1e-9) < rates[1] < rates[2]
    for fixed in range(6):
        kept = batch * (1 + seen[:, :fixed].mean(axis=0).sum())
        assert kept / float(STAIRS.at(batch * (1 + fixed))) <= rates[0] * 1.01  # sampling of the population


def test_accepted_length_falls_and_throughput_rises_with_load() -> None:
    seen, _ = confidences([0.8] * 7, resolution=0.2, dispersion=0.1)
    steps = [adaptive_expectation(seen, seen, STAIRS, n) for n in (1, 8, 64, 512)]
    lengths = [s.tokens / n for s, n in zip(steps, (1, 8, 64, 512), strict=True)]
    assert lengths == sorted(lengths, reverse=True)
    rates = [s.tokens / s.seconds for s in steps]
    assert rates == sorted(rates)


@pytest.mark.parametrize("dispersion", [0.0, 0.2, 0.5])
def test_a_population_keeps_the_hazard_it_was_drawn_around(dispersion: float) -> None:
    hazard = [0.7, 0.75, 0.8, 0.8]
    seen, by_request = confidences(hazard, resolution=0.4, dispersion=dispersion, rows=4096)
    expected = np.cumprod(hazard)
    assert np.allclose(seen.mean(axis=0), expected, atol=0.01)
    assert np.allclose(by_request.mean(axis=0), expected, atol=0.01)
    assert (np.diff(seen, axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("survival", "message"),
    [
        ([[0.5, 0.6]], "rises from 0.5 to 0.6 at position 2"),
        ([[0.5, np.nan]], "got nan"),
        ([[1.5]], "got 1.5"),
        ([0.5], "requests by positions"),
        (np.zeros((0, 3)), "at least one token"),
    ],
)
def test_survivals_that_cannot_be_are_refused(survival: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        verify_budget(survival, STAIRS)


@pytest.mark.parametrize(
    ("widths", "seconds", "slope"),
    [([1, 2], [1.0], 0.1), ([2, 1], [1.0, 1.0], 0.1), ([1], [np.nan], 0.1), ([1], [0.0], 0.1), ([1], [1.0], -1.0)],
)
def test_tables_with_holes_are_refused(widths: list[int], seconds: list[float], slope: float) -> None:
    with pytest.raises(InputError, match="step costs"):
        WidthCost.of(widths, seconds, slope)


def test_class_lengths_equal_every_combination_tried() -> None:
    """On linear costs the best lengths by class are those that enumeration finds; on stairs they are not far off."""
    rng = np.random.default_rng(21)
    for case in range(200):
        classes, k, batch = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 64))
        drafted = np.cumprod(rng.uniform(0.3, 1, (classes, k)), axis=1)
        survival = drafted * np.cumprod(rng.uniform(0, 1, (classes, k)), axis=1)
        share = rng.dirichlet(np.ones(classes))
        widths = np.array([1]) if case % 2 else np.array([1, batch + 1, 2 * batch + 2, 4 * batch + 4])
        cost = WidthCost.of(widths, np.linspace(1.0, 1.5, widths.size), float(rng.uniform(0, 0.05)))
        lengths, tokens, seconds = class_lengths(survival, drafted, share, cost, batch, draft_s=0.1)
        rates = {}
        for tried in itertools.product(range(k + 1), repeat=classes):
            sums = [
                sum(w * x[:n].sum() for w, x, n in zip(share, rows, tried, strict=True)) for rows in (survival, drafted)
            ]
            spent = float(cost.at(batch * (1 + sums[1]))) + (0.1 if any(tried) else 0.0)
            rates[tried] = batch * (1 + sums[0]) / spent
        best = max(rates.values())
        assert rates[tuple(lengths.tolist())] == pytest.approx(tokens / seconds, rel=1e-12)
        assert tokens / seconds <= best * (1 + 1e-12)
        assert tokens / seconds == pytest.approx(best, rel=1e-9 if widths.size == 1 else 0.12)


@pytest.mark.parametrize(
    "wrong",
    [
        ([[0.5, 0.6]], [[1, 1]], [1.0]),
        ([[0.5]], [[0.4]], [1.0]),
        ([[0.5]], [[1.0]], [0.9]),
        ([[0.5]], [[1.0, 1.0]], [1.0]),
        ([[float("nan")]], [[1.0]], [1.0]),
    ],
    ids=str,
)
def test_classes_that_cannot_be_are_refused(wrong: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InputError):
        class_lengths(*wrong, WidthCost.of([1], [1.0], 0.1), 4)
