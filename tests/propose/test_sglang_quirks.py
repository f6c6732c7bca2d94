"""Each documented quirk of the engine, and the sane rule beside it."""

import numpy as np
import pytest

from specplan.errors import InputError
from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.sglang_replay import replay
from specplan.propose.sglang_rule import QUIRKS, SglangRule


def both(**options):
    return SglangNgram(SglangRule(**options, quirks=QUIRKS)), SglangNgram(SglangRule(**options))


def paths(ngram, context, request="r", total=None):
    return sorted(ngram.match([request], [context], None if total is None else [total]).paths(0))


def test_padding_is_token_zero_under_the_root_or_nothing():
    engine, sane = both(draft_token_num=4)
    assert engine.match(["r"], [[5]]).tokens.tolist() == [[5, 0, 0, 0]]
    assert sane.match(["r"], [[5]]).tokens.tolist() == [[5, -1, -1, -1]]
    assert engine.match(["r"], [[5]]).links([10]).next_sibling.tolist() == [[-1, 2, 3, -1]]


def test_padding_can_be_accepted():
    text, starts, prompts = [5, 6, 0, 7], np.array([0, 4]), np.array([1])
    engine, sane = both(draft_token_num=4)
    assert replay(text, starts, prompts, engine).accepted.tolist() == [1]
    assert replay(text, starts, prompts, sane).accepted.tolist() == [0, 0]


def test_a_step_is_fed_one_step_late_or_at_once():
    engine, sane = both(draft_token_num=3)
    for ngram in (engine, sane):
        ngram.start_request("r", [1])
        ngram.extend("r", [2])
        ngram.propose("r", 2)
        ngram.extend("r", [3, 1, 2])
    assert sane.propose("r", 2).tokens == (3, 1)
    assert engine.propose("r", 2).tokens == ()
    engine.extend("r", [9])
    engine.start_request("s", [1, 2])
    assert engine.propose("s", 2).tokens == (3, 1)


def test_a_prompt_is_indexed_or_only_its_tail():
    prompt = [1, 2, 3, *range(10, 60), 1, 2]
    engine, sane = both(draft_token_num=3)
    for ngram in (engine, sane):
        ngram.start_request("r", prompt)
        ngram.extend("r", [3])
    assert sane.propose("r", 2).tokens == (10, 11)
    assert engine.propose("r", 2).tokens == ()
    engine.extend("r", [4])
    engine.propose("r", 2)
    # the last 18 tokens of the matched context are in, the prompt's start is not
    assert engine.trie.count([1, 2, 3]) == 1
    assert engine.trie.count([3, 10]) == 0


def test_counts_are_visits_or_occurrences():
    engine, sane = both(draft_token_num=3, match_type="PROB")
    for ngram in (engine, sane):
        ngram.start_request("r", [1, 2])
        for token in (3, 4, 5, 6, 7):
            ngram.extend("r", [token])
            ngram.propose("r", 2)
        ngram.extend("r", [8])
        ngram.synchronize()
    assert [sane.trie.count(path) for path in ([1, 2], [3], [3, 4])] == [1, 1, 1]
    assert [engine.trie.count(path) for path in ([1, 2], [3], [3, 4])] == [5, 5, 4]


def test_an_absent_suffix_stays_absent_or_is_found():
    engine, sane = both(draft_token_num=2)
    for ngram in (engine, sane):
        ngram.trie.insert([2, 90])
        ngram.match(["r"], [[1, 2]])
        for tokens in ([1, 2, 3, 40], [2, 3, 50], [3, 60]):
            ngram.trie.insert(tokens)
    assert paths(sane, [1, 2, 3]) == [(40,)]
    assert paths(engine, [1, 2, 3]) == [(50,)]
    engine.erase(["r"])
    assert paths(engine, [1, 2, 3]) == [(40,)]


def test_room_is_made_for_a_whole_window_or_for_what_is_missing():
    engine, sane = both(max_trie_depth=3, capacity=10)
    for ngram in (engine, sane):
        ngram.trie.insert([1, 2, 3])
        ngram.trie.insert([4, 5])
        assert ngram.trie.n_nodes == 9
        ngram.trie.insert([1, 2, 3])
        ngram.check_integrity()
    assert (sane.trie.n_evicted, sane.trie.count([1, 2, 3])) == (0, 2)
    # all was there, and yet the oldest had to go: the very paths that were asked for
    assert engine.trie.n_evicted > 0
    assert engine.trie.count([1, 2, 3]) == 1


def test_a_lone_token_zero_is_dropped_by_a_merge_or_kept():
    engine, sane = both(draft_token_num=4, external_sam_budget=1)
    for ngram in (engine, sane):
        ngram.trie.insert([1, 0])
        ngram.corpora.add("a", [[1, 0]])
    assert paths(engine, [1]) == []
    assert paths(sane, [1]) == [(0,)]


def test_a_share_without_a_match_is_lost_or_used():
    engine, sane = both(draft_token_num=5, external_sam_budget=3)
    for ngram in (engine, sane):
        ngram.trie.insert([1, 2, 3, 4, 5])
        ngram.corpora.add("a", [[7, 8]])
    assert paths(engine, [1]) == [(2,)]
    assert len(paths(sane, [1])) == 4


def test_what_the_trie_leaves_goes_back_to_the_corpora():
    engine, sane = both(draft_token_num=5, external_sam_budget=2)
    for ngram in (engine, sane):
        ngram.corpora.add("a", [[1, 2, 3, 4, 5, 6]])
    assert len(paths(engine, [1])) == 2
    assert len(paths(sane, [1])) == 4


def test_more_corpora_than_nodes():
    engine, sane = both(draft_token_num=3, external_sam_budget=1)
    for ngram in (engine, sane):
        ngram.corpora.add("a", [[2, 10]])
        ngram.corpora.add("b", [[1, 2, 20]])
        ngram.trie.insert([2, 30])
    assert paths(engine, [1, 2]) == [(30,)]
    # the longer match drafts first
    assert paths(sane, [1, 2]) == [(20,), (30,)]


def test_too_large_a_budget_is_clamped_or_refused():
    SglangRule(draft_token_num=4, external_sam_budget=9, quirks=QUIRKS)
    with pytest.raises(InputError, match="external_sam_budget 9: expected 0 to draft_token_num - 1 = 3"):
        SglangRule(draft_token_num=4, external_sam_budget=9)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"capacity": 18}, "at least max_trie_depth \\+ 1 = 19"),
        ({"draft_token_num": 0}, "draft_token_num 0: expected at least 1"),
        ({"max_trie_depth": 1}, "max_trie_depth 1: expected at least 2"),
        ({"min_bfs_breadth": 0}, "min_bfs_breadth 0: expected at least 1"),
        ({"min_bfs_breadth": 5, "max_bfs_breadth": 4}, "max_bfs_breadth 4"),
        ({"match_type": "DFS"}, "match_type 'DFS': expected BFS or PROB"),
        ({"quirks": "sglang-0.4"}, "expected sglang-0.5.23"),
        ({"external_corpus_max_tokens": 0}, "external_corpus_max_tokens 0"),
        ({"external_sam_budget": -1}, "external_sam_budget -1"),
    ],
)
def test_a_bad_rule_is_refused(options, complaint):
    with pytest.raises(InputError, match=complaint):
        SglangRule(**options)


def test_misuse_of_the_proposer_is_named():
    ngram = SglangNgram(SglangRule())
    ngram.start_request("r", [])
    assert len(ngram.propose("r", 5)) == 0
    with pytest.raises(InputError, match="'r' is active"):
        ngram.start_request("r", [1])
    with pytest.raises(InputError, match="'s' is not active"):
        ngram.extend("s", [1])
    with pytest.raises(InputError, match="limit -1"):
        ngram.propose("r", -1)
    with pytest.raises(InputError, match="context of request 'q' is empty"):
        ngram.match(["q"], [[]])
    with pytest.raises(InputError, match="1 requests, 2 contexts"):
        ngram.match(["q"], [[1], [2]])
    with pytest.raises(InputError, match="widths 13 to 13"):
        ngram.match(["q"], [[1]], widths=[13])
    ngram.stop_request("r")
    with pytest.raises(InputError, match="'r' is not active"):
        ngram.stop_request("r")


def test_memory_is_bounded_by_capacity_and_active_requests():
    rng = np.random.default_rng(1)
    ngram = SglangNgram(SglangRule(max_trie_depth=4, capacity=2000, quirks=QUIRKS))
    peaks = []
    for round_ in range(6):
        for r in range(20):
            ngram.start_request(r, rng.integers(0, 500, 30))
            for _ in range(10):
                ngram.propose(r, 11)
                ngram.extend(r, rng.integers(0, 500, 3))
        for r in range(20):
            ngram.stop_request(r)
        ngram.synchronize()
        peaks.append(ngram.memory_bytes)
        assert ngram.trie.n_nodes < 2000, round_
    ngram.check_integrity()
    assert peaks[2] == peaks[-1]
    assert ngram.trie.nodes.shape == (2000, 12)
    assert 0 < ngram.trie.memory_bytes - 48 * 2000 - ngram.trie.slots.nbytes < 1000


def test_integrity_notices_damage():
    for field, value in (("COUNT", 9), ("PREV", 3), ("NEWER", 0), ("FLAGS", 1), ("PARENT", 2)):
        ngram = SglangNgram(SglangRule(match_type="PROB"))
        ngram.trie.insert([1, 2, 1, 3, 1, 2, 4])
        k = ngram.trie._kernels
        node = ngram.trie._node([1, 3])
        assert node
        ngram.trie.nodes[node, getattr(k, field)] = value
        with pytest.raises(AssertionError):
            ngram.check_integrity()


def test_the_queue_is_first_in_first_out_and_works_itself_off():
    ngram = SglangNgram(SglangRule(draft_token_num=2))
    first = np.array([1, 2], np.int32)
    ngram.put([first, [1, 3]])
    first[1] = 9  # the queue holds copies
    assert ngram.trie.n_nodes == 0
    ngram.synchronize()
    assert ngram.trie.continuations([1]) == [(3, 1), (2, 1)]
    ngram.put([np.arange(70_000) % 50])
    assert ngram.trie.n_nodes > 50
