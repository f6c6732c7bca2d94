"""Spellings of sources: what they stand for, and what is said of wrong ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.propose.rules import NgramSource, SglangNgramSource, SuffixSource
from specplan.propose.spelling import grid_of, parse_source, split_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("ngram:min=2,max=5,k=3", NgramSource(min=2, max=5, k=3)),
        ("ngram:rule=vllm-v2", NgramSource(rule="vllm-v2")),
        (" ngram : k = 7 ", NgramSource(k=7)),
        (
            "suffix:k=32,factor=1.0,depth=24,cached=10000,min_prob=0.1",
            SuffixSource(k=32, factor=1.0, depth=24, cached=10_000, min_prob=0.1),
        ),
        ("suffix:cached=10_000", SuffixSource()),
        ("sglang-ngram:budget=8,match=bfs", SglangNgramSource(budget=8, match="bfs")),
        ("sglang-ngram:rule=sane,depth=8", SglangNgramSource(rule="sane", depth=8)),
    ],
)
def test_spellings_stand_for_sources(text: str, source: object) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(("given", "lengths"), [((None, None), (5, 5)), ((3, None), (3, 3)), ((None, 4), (4, 4))])
def test_one_ngram_length_is_both_as_in_vllm(given: tuple, lengths: tuple) -> None:
    assert NgramSource(min=given[0], max=given[1]).lengths == lengths


@given(
    st.builds(NgramSource, min=st.integers(1, 3), max=st.integers(3, 9), k=st.integers(1, 99), len=st.none())
    | st.builds(SuffixSource, k=st.none() | st.integers(1, 99), depth=st.integers(1, 99), factor=st.integers(0, 9))
    | st.builds(SglangNgramSource, budget=st.integers(1, 64), depth=st.integers(2, 30), match=st.just("prob"))
)
def test_a_complete_spelling_reads_back_as_the_same_source(source) -> None:  # type: ignore[no-untyped-def]
    assert parse_source(source.spelling).spelling == source.spelling


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ngrm:k=3", "did you mean ngram"),
        ("", "has no name"),
        ("ngram:n=3", "ngram takes .*min, max, rule, len"),
        ("ngram:k", "not key=value"),
        ("ngram:k=", "not key=value"),
        ("ngram:k=3,k=4", "given twice"),
        ("ngram:k=3.5", "whole number"),
        ("ngram:k=-1", "at least 1"),
        ("ngram:k=99999999999", "whole number"),
        ("ngram:min=6,max=5", "min must not be above max"),
        ("ngram:min=0", "at least 1"),
        ("ngram:rule=v3", "vllm-v1"),
        ("suffix:min_prob=1.5", r"\[0, 1\]"),
        ("suffix:min_prob=nan", "must be finite"),
        ("suffix:factor=-1", "at least 0"),
        ("sglang-ngram:match=dfs", "bfs, prob"),
        ("sglang-ngram:depth=1", "at least 2"),
        ("sglang-ngram:capacity=3", "capacity"),
    ],
)
def test_wrong_spellings_say_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_source(text)


def test_a_grid_is_the_product_of_its_options_without_what_makes_no_sense() -> None:
    found = [(*s.lengths, s.k) for s in grid_of("ngram:min=2..4,max=3|5,k=1|8") if isinstance(s, NgramSource)]
    assert found == [(a, b, k) for a in (2, 3, 4) for b in (3, 5) for k in (1, 8) if a <= b]
    assert [s.spelling for s in grid_of("suffix")] == [SuffixSource().spelling]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ngram:k=5..1", "must rise"),
        ("ngram:min=7|8,max=5", "above max"),
        ("ngram:k=1..999,max=1..999", "combinations"),
    ],
)
def test_wrong_grids_say_why(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        list(grid_of(text))


def test_names_of_other_kinds_are_split_for_those_who_know_them() -> None:
    assert split_source("draft:drop=12-15") == ("draft", {"drop": "12-15"})
