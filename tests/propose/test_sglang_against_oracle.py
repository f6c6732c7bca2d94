"""The compiled proposer against the brute-force oracle on tiny alphabets, where everything repeats and ties."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_oracle import OracleCorpus, OracleNgram
from sglang_oracle import replay as oracle_replay

from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.sglang_replay import replay
from specplan.propose.sglang_rule import QUIRKS, SglangRule
from specplan.propose.steps import COLUMNS, join

pytestmark = pytest.mark.tail


TOKENS = st.integers(0, 2)
TEXT = st.lists(TOKENS, min_size=1, max_size=14)
SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def rules(draw):
    depth = draw(st.integers(2, 5))
    low = draw(st.integers(1, 3))
    width = draw(st.integers(1, 9))
    return SglangRule(
        draft_token_num=width,
        match_type=draw(st.sampled_from(["BFS", "PROB"])),
        max_trie_depth=depth,
        min_bfs_breadth=low,
        max_bfs_breadth=draw(st.integers(low, 4)),
        # small enough that eviction is common, large enough that it is not constant
        capacity=draw(st.sampled_from([depth + 1, depth + 4, 12, 20, 40, 1000])) if depth < 5 else 40,
        external_sam_budget=draw(st.integers(0, width - 1)),
        quirks=draw(st.sampled_from([None, QUIRKS])),
    )


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), TEXT, st.none() | st.integers(1, 14)),
        st.tuples(st.just("grow"), st.integers(0, 2), st.lists(TOKENS, max_size=4)),
        st.tuples(st.just("grow"), st.integers(0, 2), st.lists(TOKENS, max_size=4)),
        st.tuples(st.just("match"), st.integers(0, 2), TEXT),
        st.tuples(st.just("erase"), st.integers(0, 2)),
        st.tuples(st.just("corpus"), st.sampled_from("abc"), st.lists(TEXT, min_size=1, max_size=3)),
        st.tuples(st.just("drop"), st.sampled_from("abc")),
        st.tuples(st.just("reset")),
    ),
    min_size=1,
    max_size=25,
)


def same_trie(ngram, oracle):
    assert ngram.trie.n_nodes == len(oracle.nodes)
    for path, node in oracle.nodes.items():
        assert ngram.trie.count(path) == node.count
    for path in {path[:-1] for path in oracle.nodes} - {()}:
        ranked = ngram.rule.max_bfs_breadth if ngram.rule.match_type == "PROB" else None
        mine, theirs = ngram.trie.continuations(path), oracle.children(path)
        assert mine[:ranked] == theirs[:ranked]
        assert sorted(mine) == sorted(theirs)


def same_draft(ngram, oracle, request, context, total):
    found = oracle.match(request, context, total)
    trees = ngram.match([request], [context], [total])
    paths = trees.paths(0)
    assert sorted(paths) == sorted(found.tree)
    assert trees.match_lens[0] == found.match_len
    chances = dict(zip(paths, trees.chances[0, 1 : len(paths) + 1].tolist(), strict=True))
    assert chances == found.tree
    # levels stand together, a parent before its children
    assert [len(path) for path in paths] == sorted(len(path) for path in paths)


@SLOW
@given(rules(), OPERATIONS)
def test_any_sequence_of_calls_gives_the_oracles_trie_and_drafts(rule, operations):
    ngram, oracle = SglangNgram(rule), OracleNgram(rule)
    texts = {}
    for operation, *arguments in operations:
        match operation:
            case "insert":
                tokens, new = arguments
                ngram.trie.insert(tokens, new=new)
                oracle.insert(tokens, new=new)
                ngram.check_integrity()
                same_trie(ngram, oracle)
            case "grow":
                request, more = arguments
                text = texts.setdefault(request, [0]) + more
                texts[request] = text
                same_draft(ngram, oracle, request, text[-rule.max_trie_depth :], len(text))
            case "match":
                request, context = arguments
                if rule.quirks is None:  # a text that does not continue the request's own is a new request's
                    request = "once"
                    ngram.erase([request])
                    oracle.erase(request)
                same_draft(ngram, oracle, request, context, len(context))
            case "erase":
                ngram.erase(arguments)
                oracle.erase(arguments[0])
                texts.pop(arguments[0], None)
            case "corpus":
                name, documents = arguments
                if name not in oracle.corpora and (rule.external_sam_budget or rule.quirks):
                    ngram.corpora.add(name, documents)
                    oracle.corpora[name] = OracleCorpus(documents)
            case "drop":
                ngram.corpora.remove(arguments[0])
                oracle.corpora.pop(arguments[0], None)
            case "reset":
                ngram.reset()
                oracle.reset()
                same_trie(ngram, oracle)
    ngram.check_integrity()


REQUESTS = st.lists(st.tuples(st.lists(TOKENS, max_size=8), st.lists(TOKENS, max_size=16)), min_size=1, max_size=4)


@SLOW
@given(rules(), REQUESTS, st.integers(1, 3), st.booleans(), st.none() | st.lists(TEXT, min_size=1, max_size=3))
def test_a_replay_takes_the_oracles_steps(rule, requests, concurrency, index_prompts, documents):
    ngram, oracle = SglangNgram(rule, index_prompts=index_prompts), OracleNgram(rule)
    if documents and (rule.external_sam_budget or rule.quirks):
        ngram.corpora.add("c", documents)
        oracle.corpora["c"] = OracleCorpus(documents)
    stream = join([prompt for prompt, _ in requests], [response for _, response in requests])
    steps = replay(*stream, ngram, concurrency=concurrency)
    rows = oracle_replay(
        [(p, r) for p, r in requests if p or r], oracle, concurrency=concurrency, index_prompts=index_prompts
    )
    keep = [i for i, (p, r) in enumerate(requests) if p or r]
    mine = [tuple(int(getattr(steps, name)[s]) for name in COLUMNS) for s in range(len(steps))]
    assert mine == [(keep[r], *rest) for r, *rest in rows]
    ngram.check_integrity()
    same_trie(ngram, oracle)


@SLOW
@given(rules(), REQUESTS, st.booleans())
def test_the_protocol_takes_the_replays_steps(rule, requests, index_prompts):
    """Driven call by call, one request after the other, the proposer drafts what the replay says."""
    stream, starts, prompts = join([p for p, _ in requests], [r for _, r in requests])
    steps = replay(stream, starts, prompts, SglangNgram(rule, index_prompts=index_prompts), concurrency=1)
    driven = SglangNgram(rule, index_prompts=index_prompts)
    done = 0
    for r in range(len(requests)):
        text = stream[starts[r] : starts[r + 1]].tolist()
        at = int(prompts[r]) + 1
        driven.start_request(r, text[: at - 1])
        driven.extend(r, text[at - 1 : at])
        while at < len(text):
            draft = driven.propose(r, rule.draft_token_num)
            assert (len(draft), steps.request[done], steps.context_len[done]) == (steps.drafted[done], r, at)
            driven.extend(r, text[at : at + int(steps.emitted[done])])
            at += int(steps.emitted[done])
            done += 1
        driven.stop_request(r)
        driven.check_integrity()
    assert done == len(steps)


@SLOW
@given(rules(), st.lists(TEXT, min_size=1, max_size=4), st.lists(TEXT, min_size=1, max_size=5), st.data())
def test_a_batch_drafts_what_single_calls_draft(rule, inserted, prompts, data):
    limits = data.draw(st.lists(st.integers(0, 10), min_size=len(prompts), max_size=len(prompts)))
    ngram = SglangNgram(rule)
    for tokens in inserted:
        ngram.trie.insert(tokens)
    for r, prompt in enumerate(prompts):
        ngram.start_request(r, prompt)
    batch = ngram.propose_batch(range(len(prompts)), limits)
    assert batch == [ngram.propose(r, limit) for r, limit in enumerate(limits)]
    for draft, limit in zip(batch, limits, strict=True):
        assert len(draft) <= min(limit, rule.draft_token_num - 1)
        assert draft.parents is None or all(parent < i for i, parent in enumerate(draft.parents))


@SLOW
@given(st.lists(TEXT, max_size=8), st.integers(2, 5), st.sampled_from([6, 9, 14, 30]), TEXT)
def test_suffixes_outlive_the_paths_they_end(texts, depth, capacity, context):
    """The lengths that match are 1..m: a fresh match may stop at the first that does not."""
    ngram = SglangNgram(SglangRule(max_trie_depth=depth, capacity=capacity, quirks=QUIRKS))
    for text in texts:
        ngram.trie.insert(text)
        ngram.check_integrity()
    found = [ngram.trie.count(context[-n:]) > 0 for n in range(1, min(len(context), depth) + 1)]
    assert found == sorted(found, reverse=True)


def test_a_long_random_run_stays_whole_and_bounded():
    """Wide nodes, index growth and thousands of evictions, in both orders."""
    rng = np.random.default_rng(5)
    for match_type in ("BFS", "PROB"):
        rule = SglangRule(match_type=match_type, max_trie_depth=6, capacity=1500, quirks=QUIRKS)
        ngram, oracle = SglangNgram(rule), OracleNgram(rule)
        for _ in range(60):
            text = np.minimum(rng.geometric(0.04, 20), 90).tolist()
            ngram.trie.insert(text)
            oracle.insert(text)
        assert ngram.trie.n_nodes <= 1499 < ngram.trie.n_nodes + ngram.trie.n_evicted
        ngram.check_integrity()
        same_trie(ngram, oracle)
        for r in range(30):
            same_draft(ngram, oracle, r, np.minimum(rng.geometric(0.04, 6), 90).tolist(), 6)
