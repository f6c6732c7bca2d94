"""External corpora: added and removed at run time, from memory and from files, within limits, in exact memory."""

import json

import numpy as np
import pytest

from specplan.errors import InputError
from specplan.propose.sglang_corpus import SglangCorpora, read_jsonl
from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.sglang_rule import QUIRKS, SglangRule


def letters(text):
    return [ord(letter) - ord("a") for letter in text]


def corpora_of(limit=100, **options):
    return SglangCorpora(SglangRule(external_sam_budget=4, external_corpus_max_tokens=limit, **options))


def test_jsonl_of_text_and_of_ids(tmp_path):
    text, ids = tmp_path / "text.jsonl", tmp_path / "ids.jsonl"
    text.write_text('"abc"\n\n   \n"de"\n', encoding="utf-8")
    ids.write_text("[0, 1, 2]\n[3, 4]", encoding="utf-8")
    read = [document.tolist() for document in read_jsonl(text, letters)]
    assert read == [document.tolist() for document in read_jsonl(ids)] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("content", "tokenize", "complaint"),
    [
        ('"ab"\n{"text": 1}\n', letters, "line 2: expected a JSON string, got dict"),
        ('"ab"\n\n"c\n', letters, "line 3: expected a JSON string"),
        ('"ab"\n', None, "line 1: expected a JSON array of token ids"),
        ("[1, 2]\n[1, true]\n", None, "line 2: expected a JSON array of token ids"),
        ("[1, 4294967296]\n", None, "line 1: id 4294967296 does not fit"),
        ("[1, 2]\n", letters, "line 1: expected a JSON string, got list"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_added(tmp_path, content, tokenize, complaint):
    path = tmp_path / "corpus.jsonl"
    path.write_text(content, encoding="utf-8")
    corpora = corpora_of()
    with pytest.raises(InputError, match=complaint):
        corpora.add_jsonl(path, tokenize)
    assert corpora.token_counts == {}


def test_a_missing_file_and_bytes_that_are_no_text(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        corpora_of().add_jsonl(tmp_path / "none.jsonl", letters)
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'"ab"\n"\xe4"\n')
    with pytest.raises(InputError, match="expected UTF-8"):
        corpora_of().add_jsonl(path, letters)


def test_a_corpus_from_a_file_is_named_by_its_path(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(text) for text in ("abcd", "abce")), encoding="utf-8")
    corpora = corpora_of()
    load = corpora.add_jsonl(path, letters)
    assert (load.corpus_id, load.loaded_token_count, load.n_documents) == (str(path), 9, 2)
    assert corpora.add_jsonl(path, letters, corpus_id="again").loaded_token_count == 9
    assert list(corpora.token_counts) == [str(path), "again"]


def test_the_limit_is_shared_and_separators_count():
    corpora = corpora_of(limit=10)
    corpora.add("a", [[1, 2], [3, 4]])
    with pytest.raises(InputError, match="6 tokens after document 2, but 5 of 10 are left"):
        corpora.add("b", [[1, 2, 3], [4, 5]])
    assert corpora.token_counts == {"a": 5}
    load = corpora.add("b", [[1, 2, 3], [4, 5]], truncate=True)
    assert (load.loaded_token_count, load.truncated) == (3, True)
    assert "(truncated: exceeded 10 token limit)" in load.message
    assert corpora.add("c", [[1, 2]]).loaded_token_count == 2
    corpora.check_integrity()


def test_a_long_document_cannot_be_truncated_to_nothing():
    with pytest.raises(InputError, match="is empty"):
        corpora_of(limit=2).add("a", [[1, 2, 3]], truncate=True)
    with pytest.raises(InputError, match="is empty"):
        corpora_of().add("a", [])


def test_a_taken_name_is_refused_until_it_is_removed():
    corpora = corpora_of()
    corpora.add("a", [[1, 2]])
    with pytest.raises(InputError, match=r"^External corpus 'a' already exists\. Remove it before"):
        corpora.add("a", [[3, 4]])
    assert corpora.remove("a")
    assert not corpora.remove("a")
    assert corpora.add("a", [[3, 4]]).loaded_token_count == 2


def test_a_corpus_that_no_node_is_kept_for_is_an_error_unless_the_engine_is_asked_for():
    with pytest.raises(InputError, match="could never draft: external_sam_budget is 0"):
        SglangCorpora(SglangRule()).add("a", [[1, 2]])
    assert SglangCorpora(SglangRule(quirks=QUIRKS)).add("a", [[1, 2]]).loaded_token_count == 2


def test_several_corpora_are_joined_and_each_answers_as_alone():
    rng = np.random.default_rng(3)
    texts = {name: rng.integers(0, 9, 300).tolist() for name in "abc"}
    joined = corpora_of(limit=1000)
    for name, text in texts.items():
        joined.add(name, [text])
        joined.check_integrity()
    joined.remove("b")
    joined.check_integrity()
    for name in "ac":
        alone = corpora_of(limit=1000)
        alone.add(name, [texts[name]])
        assert all(np.array_equal(a, b) for a, b in zip(joined[name].arrays, alone[name].arrays, strict=True))


def test_memory_is_what_the_arrays_hold_and_goes_with_the_corpora():
    corpora = corpora_of(limit=10_000)
    empty = corpora.memory_bytes
    sizes = []
    for name in "abc":
        corpora.add(name, [(np.arange(1000) * 7 % 31).tolist()])
        sizes.append(corpora.memory_bytes)
    per_corpus = sizes[0] - empty
    assert sizes == [empty + per_corpus * n for n in (1, 2, 3)]
    for name in "abc":
        corpora.remove(name)
    assert corpora.memory_bytes == empty


def test_corpora_survive_a_reset_of_the_trie():
    ngram = SglangNgram(SglangRule(draft_token_num=4, external_sam_budget=2))
    ngram.corpora.add("a", [[1, 2, 3]])
    ngram.trie.insert([1, 2, 9])
    assert ngram.match(["r"], [[1, 2]]).paths(0) == [(3,), (9,)]
    ngram.reset()
    assert ngram.match(["r"], [[1, 2]]).paths(0) == [(3,)]
    assert ngram.trie.n_nodes == 0
