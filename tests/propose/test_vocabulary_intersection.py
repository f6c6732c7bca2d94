"""A heterogeneous pair drafts only what both vocabularies can say, and hears the rest as unknown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.propose.vocab_mapping import ANY_MARK, intersect, space_marks

WORDS = [f"w{i}" for i in range(150)]


def test_marks_for_a_leading_space_are_one_space():
    target = {f"Ġ{w}": i for i, w in enumerate(WORDS)}
    draft = {f"▁{w}": 149 - i for i, w in enumerate(WORDS)}
    mapping = intersect(target, draft, target_size=150, draft_size=150, draft_unk=0)
    assert mapping.shared == 150
    assert mapping.draft_to_target([149, 0]).tolist() == [0, 149]
    assert mapping.target_to_draft([0, 149]).tolist() == [149, 0]
    one_sided = {"target_marks": ("Ġ",), "draft_marks": ("Ġ",)}
    with pytest.warns(UserWarning, match="share only 0 tokens"):
        assert intersect(target, draft, target_size=150, draft_size=150, draft_unk=0, **one_sided).shared == 0


def test_a_mark_inside_a_token_is_a_letter():
    words = {w: i for i, w in enumerate(WORDS)}
    mapping = intersect(words | {"aĠb": 150}, words | {"a b": 150}, target_size=151, draft_size=151, draft_unk=0)
    assert mapping.shared == 150


def test_the_first_of_equal_strings_wins():
    words = {w: i for i, w in enumerate(WORDS)}
    draft = words | {"Ġx": 150, " x": 151, "▁x": 152}
    mapping = intersect(words | {" x": 150}, draft, target_size=151, draft_size=153, draft_unk=0)
    assert mapping.draft_to_target([150]).tolist() == [150]
    assert mapping.target_to_draft([150]).tolist() == [150]
    assert mapping.draft_mask[150:].tolist() == [True, False, False]
    with pytest.raises(InputError, match="draft token 151 is not shared"):
        mapping.draft_to_target([150, 151])


def test_ids_beyond_the_output_heads_are_left_out():
    words = {w: i for i, w in enumerate(WORDS)}
    mapping = intersect(words, words, target_size=120, draft_size=130, draft_unk=5)
    assert mapping.shared == 120
    assert mapping.to_target[120:].tolist() == [-1] * 10
    with pytest.raises(InputError, match="outside its vocabulary of 120"):
        mapping.target_to_draft([120])


def test_what_is_not_shared_is_heard_as_unknown_or_else_as_end():
    words = {w: i for i, w in enumerate(WORDS)}
    target = words | {"only here": 150}
    heard = intersect(target, words, target_size=151, draft_size=150, draft_unk=7, draft_eos=9)
    assert heard.target_to_draft([3, 150]).tolist() == [3, 7]
    ended = intersect(target, words, target_size=151, draft_size=150, draft_eos=9)
    assert ended.target_to_draft([150]).tolist() == [9]
    zero = intersect(target, words, target_size=151, draft_size=150, draft_unk=0, draft_eos=9)
    assert zero.target_to_draft([150]).tolist() == [0]  # id 0 is an id
    with pytest.raises(InputError, match="neither an unknown nor an end-of-sequence"):
        intersect(target, words, target_size=151, draft_size=150)


@pytest.mark.parametrize(("shared", "warned"), [(99, True), (100, False)])
def test_few_shared_tokens_draw_a_warning(shared, warned, recwarn):
    words = {w: i for i, w in enumerate(WORDS)}
    mapping = intersect(words, words, target_size=shared, draft_size=150, draft_unk=0)
    assert mapping.shared == shared
    assert len(recwarn) == warned
    assert str(mapping) == (
        f"VocabMapping initialized: target_vocab={shared}, draft_vocab=150, intersection={shared} "
        f"({100 * shared / 150:.1f}% of draft, 100.0% of target)"
    )


@pytest.mark.filterwarnings("ignore:draft and target share only")
@given(
    st.dictionaries(st.text("ab Ġ▁", min_size=1, max_size=3), st.integers(0, 30), max_size=20),
    st.dictionaries(st.text("ab Ġ▁", min_size=1, max_size=3), st.integers(0, 30), max_size=20),
    st.integers(1, 32),
    st.integers(1, 32),
)
def test_there_and_back_is_the_identity_on_what_is_shared(target, draft, target_size, draft_size):
    target = {t: i for i, t in enumerate(target)}
    draft = {t: i for i, t in enumerate(draft)}
    mapping = intersect(target, draft, target_size=target_size, draft_size=draft_size, draft_unk=0)
    shared = np.flatnonzero(mapping.draft_mask)
    assert mapping.target_to_draft(mapping.draft_to_target(shared)).tolist() == shared.tolist()
    assert (mapping.to_draft >= 0).sum() == mapping.shared
    spelled = {i: t for t, i in draft.items()}
    of_target = {i: t for t, i in target.items()}
    for d in shared.tolist():
        t = of_target[int(mapping.to_target[d])]
        assert _plain(spelled[d]) == _plain(t)


def _plain(token):
    return " " + token[1:] if token[0] in ANY_MARK else token


def test_marks_are_read_off_the_tokenizer_s_spelling():
    assert space_marks("Ġa") == ("Ġ",)
    for untold in (None, "", "a", " a", "\ta", "▁", "Ġb"):
        assert space_marks(untold) == ANY_MARK
