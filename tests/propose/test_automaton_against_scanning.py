"""The suffix automaton against scanning the text: counts, last ends, continuations, anchors, and its size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_oracle import OracleCorpus

from specplan.errors import InputError
from specplan.propose import automaton_kernels
from specplan.propose.automaton import SEPARATOR, SuffixAutomaton

pytestmark = pytest.mark.tail


TOKENS = st.integers(0, 2)
DOCUMENTS = st.lists(st.lists(TOKENS, max_size=12), min_size=1, max_size=4)
ORDERS = st.sampled_from(["recency", "frequency"])
LAWS = settings(max_examples=200, deadline=None)


def automaton_of(documents, order="recency"):
    automaton = SuffixAutomaton(order)
    for i, document in enumerate(documents):
        if i:
            automaton.separate()
        automaton.append(document)
    automaton.freeze()
    return automaton


@LAWS
@given(DOCUMENTS, ORDERS)
def test_counts_ends_and_continuations_of_every_substring(documents, order):
    automaton, scan = automaton_of(documents, order), OracleCorpus(documents)
    automaton.check_integrity()
    assert automaton.n_tokens == scan.n_tokens
    substrings = {tuple(d[i:j]) for d in documents for i in range(len(d)) for j in range(i + 1, len(d) + 1)}
    for pattern in substrings:
        ends = scan.ends(pattern)
        assert automaton.count(pattern) == len(ends)
        assert automaton.last_end(pattern) == ends[-1]
        following = scan.after(ends)
        found = automaton.continuations(automaton.locate(pattern).state)
        assert {c.token: (c.count, c.last_end) for c in found} == {t: (len(e), e[-1]) for t, e in following.items()}
        keys = [(-(c.last_end if order == "recency" else c.count), c.token) for c in found]
        assert keys == sorted(keys)


@LAWS
@given(DOCUMENTS, st.lists(st.integers(0, 3), max_size=10), st.integers(1, 12))
def test_anchors_are_the_longest_suffix_of_each_set_of_ends(documents, context, depth):
    automaton, scan = automaton_of(documents), OracleCorpus(documents)
    expected = [(m, ends) for m, ends in scan.anchors(tuple(context[-depth:])) if scan.after(ends)]
    anchors = automaton.match(context, depth)
    assert [anchor.matched for anchor in anchors] == [m for m, _ in expected]
    for anchor, (_, ends) in zip(anchors, expected, strict=True):
        assert {c.token: c.count for c in automaton.continuations(anchor.state)} == {
            token: len(after) for token, after in scan.after(ends).items()
        }


@LAWS
@given(DOCUMENTS, st.lists(st.integers(0, 3), max_size=20), st.integers(1, 6))
def test_stepping_along_a_text_is_locating_its_window(documents, text, depth):
    arrays = automaton_of(documents).arrays
    place = (0, 0)
    for i, token in enumerate(text):
        place = automaton_kernels.advance(*arrays, *place, token, depth)
        window = np.array(text[max(0, i + 1 - depth) : i + 1], np.int32)
        assert place == automaton_kernels.walk(*arrays, window, 0, window.size)


@LAWS
@given(DOCUMENTS)
def test_pieces_make_the_same_automaton(documents):
    whole = automaton_of(documents)
    pieces = SuffixAutomaton()
    for i, document in enumerate(documents):
        if i:
            pieces.separate()
        for token in document:
            pieces.append([token])
    pieces.freeze()
    assert all(np.array_equal(a, b) for a, b in zip(whole.arrays, pieces.arrays, strict=True))


@pytest.mark.parametrize("order", ["recency", "frequency"])
@pytest.mark.parametrize("vocabulary", [2, 50, 5000])
def test_size_stays_linear_and_wide_states_are_found(vocabulary, order):
    rng = np.random.default_rng(vocabulary)
    text = np.minimum(rng.zipf(1.3, 6000), vocabulary).astype(np.int32)
    automaton = automaton_of([text[:4000], text[4000:]], order)
    automaton.check_integrity()
    assert automaton.n_states <= 2 * automaton.n_tokens
    assert automaton.n_edges <= 3 * automaton.n_tokens
    assert automaton.memory_bytes < 70 * automaton.n_tokens
    for start in rng.integers(0, 3900, 20).tolist():
        pattern = text[start : start + 3]
        windows = np.lib.stride_tricks.sliding_window_view(text, 3)
        inside = np.flatnonzero((windows == pattern).all(axis=1))
        inside = inside[(inside <= 3997) | (inside >= 4000)]
        assert automaton.count(pattern) == inside.size


def test_the_worst_text_for_states_is_still_linear():
    automaton = automaton_of([[0] + [1] * 500])
    assert automaton.n_states == 2 * 501 - 1
    automaton.check_integrity()


def test_no_memory_of_growth_is_kept():
    automaton = SuffixAutomaton()
    automaton.append(np.arange(5000, dtype=np.int32) % 70)
    growing = automaton.memory_bytes
    automaton.freeze()
    assert automaton.memory_bytes < growing
    assert automaton.memory_bytes == sum(array.nbytes for array in automaton.arrays) + 40


def test_misuse_says_what_to_do():
    with pytest.raises(InputError, match="expected recency or frequency, got 'newest'"):
        SuffixAutomaton("newest")
    automaton = SuffixAutomaton()
    with pytest.raises(InputError, match=r"call separate\(\) instead"):
        automaton.append([1, SEPARATOR])
    with pytest.raises(InputError, match=r"call freeze\(\)"):
        automaton.count([1])
    automaton.freeze()
    with pytest.raises(InputError, match="frozen"):
        automaton.append([1])
    assert automaton.match([1]) == []
    assert automaton.count([1]) == 0
    assert automaton.last_end([1]) is None


def test_integrity_notices_a_broken_count_and_a_broken_order():
    for column, value in ((2, 40), (3, 0), (1, 0)):
        automaton = automaton_of([[1, 2, 1, 3, 1, 2]])
        automaton.arrays[0][automaton.locate([1]).state, column] = value
        with pytest.raises(AssertionError):
            automaton.check_integrity()
