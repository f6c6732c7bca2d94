"""Ties between sources: what was solved for is put back and must give the speedup to equal."""

from dataclasses import replace

import numpy as np
import pytest
from drawn import changed, drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.source import Placed, source_speedup
from specplan.decide.tie import coverage_curve, tie
from specplan.errors import InputError
from specplan.values.source import Range

DRAFT_8B = drawn(name="1b", kappa=3, c=0.164664, alpha=0.7)


def challengers() -> st.SearchStrategy[Placed]:
    form = st.one_of(
        st.builds(lambda a: {"alpha": a}, st.floats(0.05, 0.95)),
        st.builds(lambda h, r: {"hit": h, "continuation": r}, st.floats(0.05, 0.95), st.floats(0.05, 0.95)),
        st.builds(lambda h: {"hazard": tuple(h)}, st.lists(st.floats(0.05, 0.95), min_size=12, max_size=12)),
    )
    return st.builds(
        lambda acceptance, kappa, c, coverage, verify, overhead, extra: drawn(
            name="b",
            kappa=kappa,
            c=c,
            coverage=coverage,
            verify=verify,
            overhead=overhead,
            nodes=None if extra is None else kappa + 1 + extra,
            **acceptance,
        ),
        form,
        st.integers(2, 12),
        st.floats(0, 0.2),
        st.floats(0.1, 1),
        st.floats(1, 1.3),
        st.floats(0, 0.05),
        st.one_of(st.none(), st.integers(0, 8)),
    )


@settings(max_examples=150)
@given(st.floats(0.1, 0.95), st.floats(0, 0.3), st.integers(1, 8), challengers())
def test_every_answer_put_back_gives_the_speedup(alpha: float, c: float, kappa: int, b: Placed) -> None:
    found = tie(drawn(name="a", kappa=kappa, c=c, alpha=alpha), b)
    for answer in found.answers:
        if np.isnan(answer.value):
            assert answer.why
            continue
        if answer.quantity == "kappa":
            k = int(answer.value)
            assert float(source_speedup(b, kappa=k)) >= found.speedup * (1 - 1e-11)
            if k > 1:
                assert float(source_speedup(b, kappa=k - 1)) < found.speedup
            continue
        if answer.quantity == "hazard scale":
            used = tuple(h * answer.value for h in b.source.hazard[: b.kappa])
            moved = changed(b, hazard=tuple(min(h, 1.0) for h in used))
        elif answer.quantity == "c":
            moved = replace(b, c=answer.value)
        else:
            ranged = answer.quantity in ("alpha", "coverage")
            moved = changed(b, **{answer.quantity: Range.at(answer.value) if ranged else answer.value})
        assert float(source_speedup(moved)) == pytest.approx(found.speedup, rel=1e-9)


@settings(max_examples=60)
@given(st.floats(0.2, 0.95), challengers())
def test_the_needed_yield_is_that_of_the_tie(alpha: float, b: Placed) -> None:
    found = tie(drawn(name="a", kappa=3, c=0.1, alpha=alpha), b)
    if found.needed_emitted >= 1:
        needed = Range.at(1 + b.coverage * (found.needed_emitted - 1))
        moved = changed(b, alpha=None, hazard=(), hit=None, continuation=None, emitted=needed)
        assert float(source_speedup(moved)) == pytest.approx(found.speedup, rel=1e-9)


def test_the_chapters_tie() -> None:
    found = tie(DRAFT_8B, drawn(name="ngram", kappa=3, c=0.0))
    (answer,) = found.answers
    assert answer.quantity == "alpha"
    assert answer.value == pytest.approx(0.4304, abs=5e-5)
    assert answer.given is None
    assert found.challenger_speedup is None
    assert found.is_reachable


def test_a_sparse_matcher_is_told_the_coverage_it_needs() -> None:
    ngram = drawn(name="ngram", kappa=5, c=0.0, alpha=0.8, coverage=0.2)
    found = tie(DRAFT_8B, ngram)
    answers = {a.quantity: a for a in found.answers}
    assert 0.2 < answers["coverage"].value < 0.3
    assert np.isnan(answers["c"].value)
    assert answers["c"].why == "not even as a free draft"


def test_out_of_reach_says_so_for_each_quantity() -> None:
    found = tie(drawn(name="a", kappa=8, c=0.0, alpha=0.95), drawn(name="b", kappa=1, c=0.5))
    assert not found.is_reachable
    assert [a.why for a in found.answers] == ["not even with every drafted token accepted"]
    never = tie(DRAFT_8B, drawn(name="b", kappa=3, c=0.0, coverage=0.0))
    assert never.answers[0].why == "it never drafts"


def test_a_losing_incumbent_is_beaten_without_any_acceptance() -> None:
    found = tie(drawn(name="a", kappa=3, c=0.9, alpha=0.1), drawn(name="free", kappa=3, c=0.0))
    assert "no drafted token accepted" in found.answers[0].why
    assert tie(drawn(name="a", kappa=3, c=0.9, alpha=0.1), changed(DRAFT_8B, alpha=Range.at(0.8))).is_reachable


def test_needed_acceptance_falls_with_coverage() -> None:
    coverage = np.linspace(0.05, 1, 40)
    needed = coverage_curve(DRAFT_8B, drawn(name="ngram", kappa=3, c=0.0), coverage)
    known = ~np.isnan(needed)
    assert np.all(np.diff(needed[known]) < 0)
    assert not known[0]  # even perfect drafts in one step of twenty are not enough
    for g, a in zip(coverage[known], needed[known], strict=True):
        b = drawn(name="ngram", kappa=3, c=0.0, alpha=float(a), coverage=float(g))
        assert float(source_speedup(b)) == pytest.approx(float(source_speedup(DRAFT_8B)), rel=1e-11)


def test_an_incumbent_needs_an_acceptance() -> None:
    with pytest.raises(InputError, match="its acceptance is not given"):
        tie(drawn(name="a", kappa=3, c=0.1), DRAFT_8B)
