"""Sources as they are written and as measured documents state them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.decide.measured import summarise
from specplan.decide.plane import plane
from specplan.decide.source import WEIGHTLESS, source_speedup
from specplan.decide.source_text import measured_rows, measured_source, read_acceptances, read_source
from specplan.errors import InputError
from specplan.records.step import StepRecord
from specplan.records.tally import Tally


def test_every_key_reaches_its_field() -> None:
    text = "x:alpha=.6..0.7..0.8,coverage=.5,c=.1,k=4,verify=1.1,overhead=.02,nodes=9"
    s = read_source(text).source(kappa=3)
    assert (s.name, s.alpha, s.alpha_low, s.alpha_high, s.coverage, s.c) == ("x", 0.7, 0.6, 0.8, 0.5, 0.1)
    assert (s.kappa, s.verify, s.overhead, s.nodes) == (4, 1.1, 0.02, 9)
    assert read_source("x:c=0,alpha=.8/.7/.6").source(kappa=2).hazard == (0.8, 0.7, 0.6)
    matcher = read_source("ngram:hit=.2,cont=.8").source(kappa=5)
    assert (matcher.hit, matcher.continuation, matcher.c, matcher.kappa) == (0.2, 0.8, 0.0, 5)


def test_tokens_over_all_steps_are_turned_into_tokens_per_draft() -> None:
    s = read_source("ngram:emitted=1.4,coverage=.5,k=3").source(kappa=1)
    assert s.emitted == pytest.approx(1.8)
    assert float(source_speedup(s)) == pytest.approx(1.4)


def test_an_interval_of_two_ends_has_its_middle() -> None:
    assert read_source("x:c=0,alpha=.6..0.8").source(kappa=1).alpha == pytest.approx(0.7)


@pytest.mark.parametrize("name", WEIGHTLESS)
def test_what_streams_no_weights_is_free(name: str) -> None:
    assert read_source(name).source(kappa=3).is_weightless


def test_anything_else_must_say_what_it_costs() -> None:
    with pytest.raises(InputError, match="its cost is unknown; give c="):
        read_source("llama3.2-1b:alpha=.7").source(kappa=3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no name"),
        (":alpha=.5", "has no name"),
        ("x:alpah=.5", "did you mean alpha?"),
        ("x:q=.5", "unknown key 'q'; one of alpha"),
        ("x:alpha,c=0", "alpha needs a value"),
        ("x:alpha=", "alpha needs a value"),
        ("x:alpha=abc", "alpha 'abc' is not a number"),
        ("x:alpha=nan", "alpha nan must be finite and lie in [0, 1]"),
        ("x:alpha=1.2", "alpha 1.2 must be finite and lie in [0, 1]"),
        ("x:alpha=.8..0.6", "low..high, or low..best..high"),
        ("x:alpha=.5,alpha=.6", "alpha is given twice"),
        ("x:k=0", "k '0' must be a whole number of at least 1"),
        ("x:k=2.5", "k '2.5' must be a whole number"),
        ("x:k=-1", "k '-1' must be a whole number"),
        ("x:c=-.1", "c -.1 must be finite and be at least 0"),
        ("x:c=inf", "c inf must be finite"),
        ("x:coverage=0,emitted=2,c=0", "never drafts"),
        ("x:hit=.5,c=0", "hit and continuation go together"),
    ],
)
def test_bad_spelling_is_named(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_source(text).source(kappa=3)
    assert says in str(caught.value)


def test_acceptances_by_name() -> None:
    assert read_acceptances([".7", "a/b=.6..0.8"]) == {
        "": {"alpha": 0.7},
        "a/b": {"alpha": pytest.approx(0.7), "alpha_low": 0.6, "alpha_high": 0.8},
    }
    with pytest.raises(InputError, match="given twice for a"):
        read_acceptances(["a=.5", "a=.6"])


ROW = {
    "source": "ngram:min=2,max=5,k=3",
    "alpha": 0.8,
    "alpha_low": 0.75,
    "alpha_high": 0.85,
    "coverage": 0.4,
    "tokens_per_drafted_step": 2.5,
    "drafts": 10,
    "drafted_tokens": 27,
}


@pytest.mark.parametrize(
    "document",
    [
        ROW,
        [ROW],
        {"sources": [ROW]},
        {"sources": {ROW["source"]: {k: v for k, v in ROW.items() if k != "source"}}},
        {"points": [{"sources": [ROW]}], "command": "replay"},
    ],
)
def test_measured_rows_are_found_wherever_a_document_keeps_them(document: object) -> None:
    (row,) = measured_rows(document, "doc.json")
    s = measured_source(row, kappa=7, costs={})
    assert (s.name, s.kappa, s.c, s.coverage) == ("ngram", 3, 0.0, 0.4)
    assert (s.alpha, s.alpha_low, s.alpha_high, s.emitted) == (0.8, 0.75, 0.85, 2.5)
    assert s.alpha_origin == "measured"
    # the measured yield counts, not the one that alpha would give
    assert float(source_speedup(s)) == pytest.approx(1 + 0.4 * 1.5)


def test_a_padded_tree_is_told_by_what_was_verified() -> None:
    row = {"source": "sglang-ngram:budget=8", "alpha": 0.5, "coverage": 0.7, "tokens_per_drafted_step": 1.7}
    counts = {"steps": 100, "drafts": 70, "drafted_tokens": 483, "verified_tokens": 700}
    s = measured_source(measured_rows(row | counts, "doc")[0], kappa=3, costs={})
    assert (s.nodes, s.kappa, s.positions) == (8, 7, 8)
    # at a batch past the ridge its whole budget is paid in every step
    assert float(source_speedup(s, verify=2.0)) == pytest.approx((1 + 0.7 * 0.7) / 2.0)
    chain = measured_source(measured_rows(row | counts | {"verified_tokens": 483}, "doc")[0], kappa=3, costs={})
    assert chain.nodes is None


def test_a_measured_draft_model_needs_its_cost() -> None:
    (row,) = measured_rows({"source": "1b", "alpha": 0.7, "num_speculative_tokens": 5}, "doc")
    with pytest.raises(InputError, match=r"give --cost 1b=\.\.\."):
        measured_source(row, kappa=3, costs={})
    s = measured_source(row, kappa=3, costs={"1b": 0.16})
    assert (s.c, s.kappa, s.coverage) == (0.16, 5, 1.0)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "no measured source"),
        ([], "no measured source"),
        ("text", "no measured source"),
        ({"source": "x", "alpha": "high"}, "alpha must be a number, got 'high'"),
        ({"source": "x", "alpha": True}, "alpha must be a number, got True"),
        ({"source": "x", "alpha": float("nan")}, "alpha must be a number"),
    ],
)
def test_bad_documents_are_named(document: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        measured_rows(document, "doc")
    assert says in str(caught.value)


def test_a_row_without_acceptance_is_refused() -> None:
    (row,) = measured_rows({"source": "ngram", "alpha": None}, "doc")
    with pytest.raises(InputError, match="neither alpha nor tokens per drafted step"):
        measured_source(row, kappa=3, costs={})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_step_records_stand_where_their_tokens_per_step_say(steps: list[tuple[int, int]]) -> None:
    rows = [
        StepRecord(
            request=str(i % 3),
            step=i // 3,
            source="ngram",
            context_len=10,
            drafted=d,
            accepted=min(a, d),
            emitted=min(a, d) + 1,
        )
        for i, (d, a) in enumerate(steps)
    ]
    measured = summarise(Tally.of_steps(rows), source="ngram")
    if measured.tokens_per_drafted_step is None:
        return
    (point,) = plane([measured_source(measured, kappa=3, costs={})], kappa=3).points
    assert point.speedup == pytest.approx(sum(r.emitted for r in rows) / len(rows), rel=1e-12)
