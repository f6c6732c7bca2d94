"""Sources as they are written and as measured documents state them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.decide.documents import measured_source, sources_of
from specplan.decide.measured import summarise
from specplan.decide.plane import plane
from specplan.decide.source import Placed, placed, source_speedup
from specplan.errors import InputError
from specplan.propose.spelling import read_source, with_acceptance
from specplan.records.step import StepRecord
from specplan.records.tally import Tally
from specplan.values.source import WEIGHTLESS, Range


def read(text: str, kappa: int = 3) -> Placed:
    return placed(read_source(text), kappa=kappa)


def test_every_key_reaches_its_field() -> None:
    s = read("x:alpha=.6..0.7..0.8,coverage=.5,c=.1,k=4,verify=1.1,overhead=.02,nodes=9,topk=2,name=mine")
    assert (s.name, s.source.alpha, s.coverage, s.c) == ("mine", Range(low=0.6, best=0.7, high=0.8), 0.5, 0.1)
    assert (s.kappa, s.verify, s.overhead, s.nodes, s.source.topk) == (4, 1.1, 0.02, 9, 2)
    assert read("x:c=0,alpha=.8/.7/.6").source.hazard == (0.8, 0.7, 0.6)
    matcher = read("ngram:hit=.2,cont=.8", kappa=5)
    assert (matcher.source.hit, matcher.source.continuation, matcher.c, matcher.kappa) == (0.2, 0.8, 0.0, 5)


def test_tokens_over_all_steps_are_turned_into_tokens_per_draft() -> None:
    s = read("ngram:emitted=1.4,coverage=.5,k=3")
    assert float(s.emitted()) == pytest.approx(1.8)
    assert float(source_speedup(s)) == pytest.approx(1.4)


def test_an_interval_of_two_ends_has_its_middle() -> None:
    assert read("x:c=0,alpha=.6..0.8").alpha == pytest.approx(0.7)


@pytest.mark.parametrize("name", WEIGHTLESS)
def test_what_streams_no_weights_is_free(name: str) -> None:
    assert read(name).is_weightless


def test_anything_else_must_say_what_it_costs() -> None:
    with pytest.raises(InputError, match="its cost is unknown; give c="):
        read("llama3.2-1b:alpha=.7")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no name"),
        (":alpha=.5", "has no name"),
        ("x:alpah=.5", "did you mean alpha?"),
        ("x:q=.5", "unknown key 'q'; x takes alpha"),
        ("ngram:alpha", "'alpha' is not key=value"),
        ("x:alpha=", "'alpha=' is not key=value"),
        ("x:alpha=abc", "alpha 'abc' is not a number"),
        ("x:alpha=nan", "alpha nan must be finite and lie in [0, 1]"),
        ("x:alpha=1.2", "alpha 1.2 must be finite and lie in [0, 1]"),
        ("x:alpha=.8..0.6", "low..high, or low..best..high"),
        ("x:alpha=.5,alpha=.6", "alpha is given twice"),
        ("x:alpha=.5,emitted=2,k=3", "given twice, as alpha and as emitted"),
        ("x:k=0", "k '0' must be a whole number of at least 1"),
        ("x:k=2.5", "k '2.5' must be a whole number"),
        ("x:k=-1", "k '-1' must be a whole number"),
        ("x:c=-.1", "c -0.1 must be finite and be at least 0"),
        ("x:c=inf", "c inf must be finite"),
        ("x:coverage=0,emitted=2,c=0", "never drafts"),
        ("x:hit=.5,c=0", "hit and cont go together"),
        ("ngram:min=6,max=5,alpha=.5", "min must not be above max"),
    ],
)
def test_bad_spelling_is_named(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert says in str(caught.value)


def test_an_acceptance_is_written_once() -> None:
    assert with_acceptance(read_source("eagle"), ".6..0.8", "--alpha").alpha == read_source("x:alpha=.6..0.8").alpha
    with pytest.raises(InputError, match="given twice"):
        with_acceptance(read_source("eagle:alpha=.5"), ".6", "--alpha")


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
    (row,) = sources_of(document, "doc.json")
    s = placed(row, kappa=7)
    assert (s.name, s.kappa, s.c, s.coverage) == ("ngram", 3, 0.0, 0.4)
    assert (s.source.alpha, float(s.emitted())) == (Range(low=0.75, best=0.8, high=0.85), 2.5)
    assert s.source.alpha_origin == "measured"
    # the measured yield counts, not the one that alpha would give
    assert float(source_speedup(s)) == pytest.approx(1 + 0.4 * 1.5)


def test_a_padded_tree_is_told_by_what_was_verified() -> None:
    row = {"source": "sglang-ngram:budget=8", "alpha": 0.5, "coverage": 0.7, "tokens_per_drafted_step": 1.7}
    counts = {"steps": 100, "drafts": 70, "drafted_tokens": 483, "verified_tokens": 700}
    s = placed(sources_of(row | counts, "doc")[0])
    assert (s.nodes, s.kappa, s.positions) == (8, 7, 8)
    # at a batch past the ridge its whole budget is paid in every step
    assert float(source_speedup(s, verify=2.0)) == pytest.approx((1 + 0.7 * 0.7) / 2.0)
    chain = placed(sources_of(row | counts | {"verified_tokens": 483}, "doc")[0])
    assert chain.nodes is None


def test_a_measured_draft_model_needs_its_cost() -> None:
    (row,) = sources_of({"source": "1b", "alpha": 0.7, "num_speculative_tokens": 5}, "doc")
    with pytest.raises(InputError, match=r"give c=\.\.\."):
        placed(row)
    s = placed(row, c=0.16)
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
        sources_of(document, "doc")
    assert says in str(caught.value)


def test_a_row_without_acceptance_is_refused() -> None:
    with pytest.raises(InputError, match="neither alpha nor tokens per drafted step"):
        sources_of({"source": "ngram", "alpha": None}, "doc")


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
    (point,) = plane([placed(measured_source(measured))], kappa=3).points
    assert point.speedup == pytest.approx(sum(r.emitted for r in rows) / len(rows), rel=1e-12)
