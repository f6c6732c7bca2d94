"""Estimators against simulation with known truth, and translations against counts of the real engines."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.formulas import acceptance as a
from specplan.formulas.emitted import emitted_over_all_steps, expected_emitted, expected_emitted_hazard, survival
from specplan.records import StepColumns, StepRecord, Tally

pytestmark = pytest.mark.tail

# ---- coverage of the intervals --------------------------------------------------------------------------------------

RUNS, REQUESTS, STEPS, KAPPA = 4000, 40, 15, 4
ALPHA_BETA, COVERAGE_BETA, CONCENTRATION = (7.0, 3.0), (6.0, 4.0), 6.0
RUNS_WITHIN = (0.93, 0.97)  # at 4000 runs the standard error of a coverage of 0.95 is 0.0034


class Run(NamedTuple):
    accepted: np.ndarray
    drafted: np.ndarray
    tested: np.ndarray
    overlap: np.ndarray  # sum over the reached positions of the step
    request: np.ndarray


def beta_moment(shape: tuple[float, float], k: int) -> float:
    """E[X**k] of a Beta variate."""
    x, y = shape
    return float(np.prod([(x + i) / (x + y + i) for i in range(k)]))


@pytest.fixture(scope="module")
def runs():
    """Requests of unlike acceptance and coverage: their steps are far from independent."""
    rng = np.random.default_rng(20240607)
    shape = (RUNS, REQUESTS, STEPS)
    alpha = rng.beta(*ALPHA_BETA, size=(RUNS, REQUESTS, 1, 1))
    overlap = rng.beta(CONCENTRATION * alpha, CONCENTRATION * (1 - alpha), size=(*shape, KAPPA))
    accept = rng.random((*shape, KAPPA)) < overlap
    drafted = np.where(rng.random(shape) < rng.beta(*COVERAGE_BETA, size=(RUNS, REQUESTS, 1)), KAPPA, 0)
    accepted = np.where(drafted > 0, np.cumprod(accept, axis=-1).sum(axis=-1), 0)
    request = np.broadcast_to(np.arange(REQUESTS)[:, None], shape[1:]).ravel()
    tested = a.positions_tested(accepted, drafted)
    reached = np.where(np.arange(KAPPA) < tested[..., None], overlap, 0.0).sum(axis=-1)
    columns = (x.reshape(RUNS, -1) for x in (accepted, drafted, tested, reached))
    return [Run(*row, request) for row in zip(*columns, strict=True)]


def moments(first: int, last: int) -> float:
    return sum(beta_moment(ALPHA_BETA, i) for i in range(first, last + 1))


ESTIMATORS = {
    "alpha": (lambda r: a.alpha_estimate(r.accepted, r.tested, r.request), moments(1, KAPPA) / moments(0, KAPPA - 1)),
    "overlap": (lambda r: a.ratio_estimate(r.overlap, r.tested, r.request), moments(1, KAPPA) / moments(0, KAPPA - 1)),
    "hit": (lambda r: a.hit_estimate(r.accepted, r.tested, r.request), moments(1, 1)),
    "continuation": (
        lambda r: a.continuation_estimate(r.accepted, r.tested, r.request),
        moments(2, KAPPA) / moments(1, KAPPA - 1),
    ),
    "conditional at 2": (
        lambda r: a.conditional_estimates(r.accepted, r.tested, r.request)[2],
        moments(3, 3) / moments(2, 2),
    ),
    "marginal at 2": (lambda r: a.marginal_estimates(r.accepted, r.drafted, r.request)[2], moments(3, 3)),
    "coverage": (lambda r: a.coverage_estimate(r.drafted, r.request), beta_moment(COVERAGE_BETA, 1)),
    "E over all steps": (
        lambda r: a.emitted_estimate(r.accepted + 1, r.request),
        1 + beta_moment(COVERAGE_BETA, 1) * moments(1, KAPPA),
    ),
    "E given a draft": (
        lambda r: a.emitted_given_draft_estimate(r.accepted + 1, r.drafted, r.request),
        1 + moments(1, KAPPA),
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_95_percent_intervals_cover_the_truth_in_93_to_97_percent_of_runs(runs, name):
    estimate, truth = ESTIMATORS[name]
    found = [estimate(run) for run in runs]
    covered = np.mean([e.low <= truth <= e.high for e in found])
    assert RUNS_WITHIN[0] <= covered <= RUNS_WITHIN[1], covered
    bias = np.mean([e.value for e in found]) - truth
    assert abs(bias) <= 0.1 * np.mean([e.standard_error for e in found])  # small beside the noise of one run


def test_intervals_that_take_steps_as_independent_would_cover_too_rarely(runs):
    # The reason why requests are clusters: the same data, each step its own request.
    _, truth = ESTIMATORS["alpha"]
    naive = [a.alpha_estimate(r.accepted, r.tested, np.arange(len(r.accepted))) for r in runs[:300]]
    assert np.mean([e.low <= truth <= e.high for e in naive]) < 0.85


def test_overlap_estimates_alpha_with_less_variance_than_the_count(runs):
    count = [ESTIMATORS["alpha"][0](run) for run in runs[:500]]
    low = [ESTIMATORS["overlap"][0](run) for run in runs[:500]]
    assert np.var([e.value for e in low]) < 0.9 * np.var([e.value for e in count])
    assert np.mean([e.standard_error for e in low]) < np.mean([e.standard_error for e in count])


# ---- laws of the estimators -----------------------------------------------------------------------------------------

STEP_LISTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=40).map(
    lambda rows: [(min(x, d), d, r) for x, d, r in rows]
)


@given(STEP_LISTS)
def test_estimates_agree_with_the_tally_of_the_same_steps(rows):
    records = [
        StepRecord(request=str(r), step=i, source="s", context_len=1, drafted=d, accepted=x, emitted=x + 1)
        for i, (x, d, r) in enumerate(rows)
    ]
    tally, c = Tally.of_steps(records), StepColumns.of(records)
    alpha = a.alpha_estimate(c.accepted, c.tested, c.request)
    assert (alpha.count, alpha.requests) == (tally.tested_tokens, tally.clusters.n)
    if tally.tested_tokens:
        k = tally.clusters
        from_sums = a.ratio_estimate_of_sums(requests=k.n, y=k.a, x=k.t, yy=k.aa, xy=k.at, xx=k.tt)
        assert from_sums.value == alpha.value
        for one, other in ((from_sums.low, alpha.low), (from_sums.high, alpha.high)):
            assert one == pytest.approx(other, abs=1e-6, nan_ok=True)
        conditionals = [e.value for e in a.conditional_estimates(c.accepted, c.tested, c.request)]
        accepted_at = _padded(tally.accepted_at, tally.tested_at)
        assert conditionals == [x / t for x, t in zip(accepted_at, tally.tested_at, strict=True)]
        assert conditionals[0] == a.hit_estimate(c.accepted, c.tested, c.request).value
    coverage = a.coverage_estimate(c.drafted, c.request).value
    all_steps = a.emitted_estimate(c.emitted, c.request).value
    if tally.drafts:
        given_draft = a.emitted_given_draft_estimate(c.emitted, c.drafted, c.request).value
        marginals = [e.value for e in a.marginal_estimates(c.accepted, c.drafted, c.request)]
        assert given_draft == pytest.approx(1 + sum(marginals))
        assert given_draft == pytest.approx(float(a.mean_acceptance_length(tally.accepted_tokens, tally.drafts)))
        assert all_steps == pytest.approx(float(emitted_over_all_steps(coverage, given_draft)))


def _padded(counts, like):
    return [*counts, *([0] * (len(like) - len(counts)))]


@given(STEP_LISTS)
def test_intervals_hold_the_value_and_stay_inside(rows):
    accepted, drafted, request = (np.array(column) for column in zip(*rows, strict=True))
    e = a.alpha_estimate(accepted, a.positions_tested(accepted, drafted), request)
    if e.requests >= 2:
        assert 0 <= e.low <= e.value <= e.high <= 1
        wider = a.alpha_estimate(accepted, a.positions_tested(accepted, drafted), request, confidence=0.99)
        assert wider.low <= e.low
        assert e.high <= wider.high
    else:
        assert np.isnan(e.low)
        assert np.isnan(e.high)


def test_one_request_has_no_interval_and_no_request_no_value():
    one = a.alpha_estimate([1, 2], [2, 2], [7, 7])
    assert (one.value, one.requests) == (0.75, 1)
    assert np.isnan(one.low)
    none = a.alpha_estimate([0], [0], [0])
    assert np.isnan(none.value)


def test_acceptance_of_1_in_every_request_keeps_an_interval():
    e = a.alpha_estimate([3] * 20, [3] * 20, range(20))
    assert (e.value, e.high) == (1.0, 1.0)
    assert e.low == pytest.approx(0.025 ** (1 / 20))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: a.positions_tested([3], [2]), "accepted 3 exceeds drafted 2 at step 0"),
        (lambda: a.alpha_estimate([-1], [1], [0]), "accepted: expected whole numbers"),
        (lambda: a.alpha_estimate([1, 2], [1], [0]), "arrays of one length"),
        (lambda: a.ratio_estimate([np.nan], [1], [0]), "finite"),
        (lambda: a.alpha_estimate([1, 1], [1, 1], [0, 1], confidence=1.0), "confidence"),
        (lambda: a.conditionals_of_marginals([0.5, 0.6]), "must not increase"),
    ],
)
def test_bad_steps_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


# ---- translations ---------------------------------------------------------------------------------------------------

# Counters of vLLM 0.32 on a CPU, SmolLM2-135M, 20 prompts, k = 3 (drafts, drafted, accepted, accepted per position),
# with what the engine reported: mean acceptance length, draft acceptance rate; and tokens per step over target steps.
VLLM_RUNS = {
    "ngram, T=0": (694, 2082, 1292, (502, 419, 371), 2.862, 0.621, 2014, 1.642),
    "draft model, T=0": (1295, 3885, 1997, (887, 628, 482), 2.542, 0.514, 1315, 2.519),
    "draft model, T=1": (1102, 3306, 1245, (644, 382, 219), 2.130, 0.377, 1122, 2.110),
}


@pytest.mark.parametrize("run", VLLM_RUNS)
def test_translations_reproduce_vllm_counters(run):
    drafts, drafted, accepted, at, mal, rate, steps, per_step = VLLM_RUNS[run]
    length = float(a.mean_acceptance_length(accepted, drafts))
    assert round(length, 3) == mal
    assert round(float(a.pooled_rate(accepted, drafted)), 3) == rate
    assert round(float(emitted_over_all_steps(drafts / steps, length)), 3) == per_step
    hazard = a.conditionals_of_marginals(np.array(at) / drafts)
    assert float(expected_emitted_hazard(hazard)) == pytest.approx(length)


def test_coverage_turns_a_reported_length_of_1_62_into_1_078_per_step():
    # vLLM PR 24852, suffix on MT-bench with k = 1: 16993 tokens, 1986 drafts, 1226 accepted.
    steps = 16993 - 1226
    length = float(a.mean_acceptance_length(1226, 1986))
    assert round(length, 2) == 1.62
    assert round(float(emitted_over_all_steps(1986 / steps, length)), 3) == 1.078
    assert round(1986 / steps, 3) == 0.126


@given(st.floats(0.01, 0.99), st.integers(1, 16))
def test_alpha_returns_from_vllms_rate_and_length(alpha, kappa):
    e = expected_emitted(alpha, kappa)
    assert float(a.alpha_of_mean_acceptance_length(e, kappa)) == pytest.approx(alpha, abs=1e-7)
    marginals = survival(np.full(kappa, alpha))[1:]
    assert a.conditionals_of_marginals(marginals) == pytest.approx(np.full(kappa, alpha))


def test_unknown_stays_unknown():
    assert np.isnan(a.mean_acceptance_length(0, 0))
    assert np.isnan(a.conditionals_of_marginals([0.0, 0.0])[1])


# ---- edges ----------------------------------------------------------------------------------------------------------


def test_requests_that_agree_by_chance_do_not_make_an_interval_of_no_width():
    """Two requests with one of two positions each show no spread; alpha is not known to be 0.5 for that."""
    two = a.alpha_estimate([1, 1], [2, 2], [0, 1])
    assert two.low < 0.01 < 0.99 < two.high
    many = a.alpha_estimate([1] * 200, [2] * 200, range(200))
    coin = 1.972 * np.sqrt(0.25 / 400)  # Student's t with 199 degrees of freedom, 400 coins
    assert (many.low, many.high) == (pytest.approx(0.5 - coin, abs=1e-3), pytest.approx(0.5 + coin, abs=1e-3))
    assert a.ratio_estimate_of_sums(requests=2, y=2, x=4, yy=2, xy=4, xx=8) == two


def test_an_interval_needs_two_requests_and_a_value_one_position():
    nothing, one = a.alpha_estimate([0], [0], [0]), a.alpha_estimate([3], [3], [0])
    assert np.isnan(nothing.value)
    assert one.value == 1.0
    assert np.isnan([nothing.low, nothing.high, one.low, one.high]).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: a.alpha_estimate([4], [3], [0]),
        lambda: a.alpha_estimate([1], [0], [0]),
        lambda: a.hit_estimate([2], [1], [0]),
        lambda: a.continuation_estimate([3], [2], [0]),
        lambda: a.conditional_estimates([0, 2], [1, 1], [0, 0]),
        lambda: a.marginal_estimates([0, 4], [3, 3], [0, 0]),
        lambda: a.positions_tested([4], [3]),
        lambda: a.overlap_estimate([(0.5, 1.2)], [0]),
        lambda: a.overlap_estimate([(-0.1,)], [0]),
    ],
)
def test_more_accepted_than_there_were_is_an_error(call):
    with pytest.raises(InputError, match=r"exceeds|lie in"):
        call()
