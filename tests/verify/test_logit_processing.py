"""Sampling parameters act in one place: against a naive reading of their definitions, on every form."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.verify import Sampling, probabilities


def naive(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, *, min_p_first: bool):
    """One row, by loops over tokens."""
    if temperature == 0:
        best = max(range(len(logits)), key=lambda v: (logits[v], -v))
        return [1.0 if v == best else 0.0 for v in range(len(logits))]
    top = max(logits)
    p = {v: math.exp((z - top) / temperature) for v, z in enumerate(logits) if z > -math.inf}

    def renormalised(kept):
        total = math.fsum(p[v] for v in kept)
        return {v: p[v] / total for v in kept}

    def apply_min_p():
        return renormalised([v for v in p if p[v] >= min_p * max(p.values())])

    def apply_top_k():
        if top_k <= 0 or top_k >= len(p):
            return p
        kth = sorted(p.values(), reverse=True)[top_k - 1]
        return renormalised([v for v in p if p[v] >= kth])

    def apply_top_p():
        if top_p >= 1:
            return p
        kept, total = [], 0.0
        for v in sorted(p, key=lambda v: (-p[v], v)):
            if total >= top_p:
                break
            kept.append(v)
            total += p[v]
        return renormalised(kept)

    p = renormalised(list(p))
    for step in (apply_min_p, apply_top_k, apply_top_p) if min_p_first else (apply_top_k, apply_top_p, apply_min_p):
        p = step()
    return [p.get(v, 0.0) for v in range(len(logits))]


CASES = [
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(temperature=3.0),
    Sampling(top_k=3),
    Sampling(top_k=1),
    Sampling(top_k=-1),
    Sampling(top_k=10_000),
    Sampling(top_p=0.613),
    Sampling(top_p=1e-9),
    Sampling(min_p=0.2171),
    Sampling(min_p=1.0),
    Sampling(temperature=0.6, top_k=7, top_p=0.831, min_p=0.0523),
    Sampling(temperature=0.6, top_k=7, top_p=0.831, min_p=0.0523, min_p_first=True),
    Sampling(temperature=0.0, top_k=5, top_p=0.5),
]


@pytest.mark.parametrize("sampling", CASES, ids=repr)
def test_filters_follow_their_definitions(form, sampling):
    rng = np.random.default_rng(5)
    logits = 2.0 * rng.normal(size=(4, 3, 40))
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    found = form.probabilities(logits, sampling)
    one = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    expected = [[naive(row, *one, min_p_first=sampling.min_p_first) for row in rows] for rows in logits.tolist()]
    assert found == pytest.approx(np.array(expected), abs=form.exact)
    assert ((found > 0) == (np.array(expected) > 0)).all()


def test_each_request_has_its_own_parameters(form):
    rng = np.random.default_rng(6)
    logits = rng.normal(size=(4, 2, 25))
    columns = {
        "temperature": (0.0, 0.5, 1.0, 2.0),
        "top_k": (0, 4, -1, 9),
        "top_p": (1.0, 0.9, 0.37, 1.0),
        "min_p": (0.0, 0.1, 0.0, 0.3),
    }
    together = form.probabilities(logits, Sampling(**columns))
    for b in range(4):
        alone = Sampling(**{name: values[b] for name, values in columns.items()})
        assert together[b] == pytest.approx(form.probabilities(logits[b : b + 1], alone)[0], abs=form.exact)
        assert Sampling(**columns).rows(b, b + 1) == Sampling(**{n: (v[b],) for n, v in columns.items()})


def test_min_p_before_top_p_leaves_fewer_tokens(form):
    # vLLM 0.32 masks by min-p first, so its top-p counts within what is left; transformers masks by min-p last.
    logits = np.log([[0.5, 0.3, 0.1, 0.1]])
    last = form.probabilities(logits, Sampling(top_p=0.82, min_p=0.3))
    first = form.probabilities(logits, Sampling(top_p=0.62, min_p=0.3, min_p_first=True))
    assert (last[0] > 0).tolist() == [True, True, False, False]
    assert (first[0] > 0).tolist() == [True, False, False, False]  # 0.5 / 0.8 reaches 0.62


def test_equals_of_the_kth_logit_are_kept(form):
    assert (form.probabilities([[3.0, 2.0, 2.0, 1.0]], Sampling(top_k=2)) > 0).tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 1e30])
def test_extreme_temperatures_and_logits_stay_distributions(form, temperature):
    logits = [[1e4, 9e3, -1e4, -np.inf]]
    p = form.probabilities(logits, Sampling(temperature=temperature))
    assert p.sum() == pytest.approx(1.0)
    if temperature < 1:
        assert p[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    else:
        assert p[0, :3] == pytest.approx([1 / 3] * 3, abs=1e-4)


@pytest.mark.parametrize(("bad", "name"), [(np.nan, "NaN"), (np.inf, r"\+inf"), (-np.inf, "nothing but -inf")])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.5, top_p=0.9)], ids=repr
)
def test_a_bad_row_of_logits_is_named_by_the_reference(bad, name, sampling):
    logits = np.zeros((3, 2, 4))
    logits[2, 1] = bad
    with pytest.raises(InputError, match=rf"logits of request 2, position 1: {name}"):
        probabilities(logits, sampling)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.5, top_p=0.9), Sampling(top_k=2, min_p=0.1)],
    ids=repr,
)
def test_a_bad_row_of_logits_is_named_by_the_torch_form(bad, sampling):
    torch = pytest.importorskip("torch")
    from specplan.harness import verifiers

    logits = torch.zeros(3, 2, 4)
    logits[2, 1, :] = bad
    if bad == np.nan:
        logits[2, 1, 1:] = 0.0
    outcome = verifiers.verify_logits(
        verifiers.accept_one_hot, logits, sampling, torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 2)
    )
    with pytest.raises(InputError, match="target probabilities of request 2, position 1: NaN"):
        outcome.to_host()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, r"top_p: expected \(0, 1\]"),
        ({"top_p": (0.5, 1.5)}, "top_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"top_k": -2}, "top_k"),
    ],
)
def test_parameters_out_of_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Sampling(**options)


def test_parameters_of_another_batch_size_are_named(form):
    with pytest.raises(InputError, match="top_p: 2 values for 3 requests"):
        form.probabilities(np.zeros((3, 4)), Sampling(top_p=(0.5, 0.6)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=2, max_size=12), st.floats(0.05, 5), st.floats(-50, 50))
def test_a_shift_of_all_logits_changes_nothing(row, temperature, shift):
    sampling = Sampling(temperature=temperature)
    moved = probabilities([[z + shift for z in row]], sampling)
    assert moved == pytest.approx(probabilities([row], sampling), abs=1e-10)
