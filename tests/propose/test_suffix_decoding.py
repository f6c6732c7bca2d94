"""Suffix decoding drafts what Arctic Inference drafts: recorded cases, brute force, and a real engine's steps."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_oracle import OracleCache

from specplan.errors import InputError
from specplan.propose import suffix_replay
from specplan.propose.protocol import Proposer
from specplan.propose.steps import join
from specplan.propose.suffix import SuffixCache, SuffixProposer
from specplan.propose.vllm_suffix import BatchRequest, VllmSuffixProposer

DATA = Path(__file__).parents[1] / "data"
ARCTIC = json.loads((DATA / "arctic_suffix_cases.json").read_text())


def carry_out(cache, ops):
    for op in ops:
        if op["op"] == "start":
            cache.start_request(op["req"], op["prompt"])
        elif op["op"] == "add":
            cache.add_active_response(op["req"], op["tokens"])
        elif op["op"] == "stop":
            cache.stop_request(op["req"])
        else:
            cache.evict_cached_response(op["req"])


def asked(cache, query):
    query = dict(query)
    return cache.speculate(query.pop("req"), query.pop("context"), **query)


@pytest.mark.parametrize("kind", [OracleCache, SuffixCache])
@pytest.mark.parametrize("case", ARCTIC["cases"], ids=lambda c: c["name"])
def test_recorded_drafts(case, kind):
    cache = kind(case["max_tree_depth"], case["max_cached_requests"])
    carry_out(cache, case["ops"])
    draft = asked(cache, case["query"])
    assert {
        "token_ids": list(draft.tokens),
        "parents": list(draft.parents),
        "probs": list(draft.scores),
        "score": draft.score,
        "match_len": draft.match_len,
    } == case["expect"]
    if kind is SuffixCache:
        cache.check_integrity()
        assert list(cache.cached_requests) == case["cached_requests"]
        assert list(cache.active_requests) == case["active_requests"]


REFUSALS = {
    "start twice": lambda c: c.start_request(1, [1, 2]),
    "stop inactive": lambda c: c.stop_request(2),
    "add inactive": lambda c: c.add_active_response(2, [1]),
    "speculate inactive": lambda c: c.speculate(2, [1, 2], max_spec_tokens=4),
    "evict uncached": lambda c: c.evict_cached_response(2),
    "int64 array": lambda c: c.add_active_response(1, np.array([1, 2])),
    "2-d array": lambda c: c.add_active_response(1, np.zeros((2, 2), np.int32)),
    "strided array": lambda c: c.add_active_response(1, np.arange(8, dtype=np.int32)[::2]),
    "max_spec_tokens None (the documented default)": lambda c: c.speculate(1, [1, 2]),
    "max_cached_requests 2**31": lambda _: SuffixCache(64, 2**31),
    "reserved token -2**31": lambda c: c.add_active_response(1, [-(2**31)]),
    "negative token -1": lambda c: c.add_active_response(1, [-1]),
    "token 2**31": lambda c: c.add_active_response(1, [2**31]),
}
OURS = {  # where the engine's text names its own internals
    "max_spec_tokens None (the documented default)": "max_spec_tokens is missing",
    "token 2**31": "does not fit 32 bits",
}


@pytest.mark.parametrize("case", ARCTIC["errors"], ids=lambda c: c["name"])
def test_recorded_refusals(case):
    cache = SuffixCache()
    cache.start_request(1, [1, 2, 3])
    call = REFUSALS[case["name"]]
    if case["error"] is None:
        call(cache)
    else:
        with pytest.raises(InputError) as refused:
            call(cache)
        assert str(refused.value).startswith(case["message"]) or OURS[case["name"]] in str(refused.value)
    cache.check_integrity()  # a refused call leaves nothing behind
    assert cache.speculate(1, [1, 2], max_spec_tokens=4).tokens == (3,)


@pytest.mark.parametrize("context", [[1, -(2**31)], [-(2**31), 1, 2], [7, -(2**31) + 1, 3]])
def test_a_reserved_id_is_refused_where_a_match_would_go_on_to_it(context):
    cache = SuffixCache()
    cache.start_request(1, [1, 2, 3, 1, 2])
    looked_up = context[-1] < 0 or (len(context) == 3 and context[1] < 0)
    for as_tree in (False, True):
        if looked_up:
            with pytest.raises(InputError, match="invalid key"):
                cache.speculate(1, context, 4, use_tree_spec=as_tree)
        else:  # the longest match tried is one shorter than the context
            assert cache.speculate(1, context, 4, use_tree_spec=as_tree).match_len == 2


@pytest.mark.parametrize("as_tree", [False, True])
@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e10])
def test_a_factor_that_no_int_holds_drafts_nothing(factor, as_tree):
    cache = SuffixCache()
    cache.start_request(1, [1, 2, 3, 1, 2])
    draft = cache.speculate(1, [3, 1, 2], 4, max_spec_factor=factor, use_tree_spec=as_tree)
    assert (draft.tokens, draft.match_len) == ((), 2)


def test_drafts_longer_than_any_buffer_was():
    cache, oracle, text = SuffixCache(300), OracleCache(300), list(range(290)) * 2
    for c in (cache, oracle):
        c.start_request(1, text)
    for as_tree in (False, True):
        for limit in (3, 300, 2**31 - 1):
            got = cache.speculate(1, text[-3:], limit, 200.0, use_tree_spec=as_tree)
            assert got == oracle.speculate(1, text[-3:], limit, 200.0, use_tree_spec=as_tree)
    assert len(got) > 256
    cache = SuffixCache(100_000)
    cache.start_request(1, text)
    assert len(cache.speculate(1, text[-3:], 1000, 1000)) == 290  # whole numbers do as reals
    with pytest.raises(InputError, match=r"max_spec_tokens is 2\.5"):
        cache.speculate(1, text[-3:], 2.5)


token = st.integers(0, 2)
operation = st.tuples(
    st.sampled_from(["start", "start", "add", "add", "add", "add", "stop", "evict"]),
    st.integers(0, 4),
    st.lists(token, min_size=0, max_size=9),
)
query = st.fixed_dictionaries(
    {
        "max_spec_tokens": st.sampled_from([0, 1, 3, 8]),
        "max_spec_factor": st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.1, 2.0, 4.0]),
        "max_spec_offset": st.sampled_from([0.0, 0.9, 1.0, -1.0]),
        "min_token_prob": st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]),
        "use_tree_spec": st.booleans(),
    }
)


def ranks(tree):
    return {string: (count, [t for t, _ in children]) for string, (count, children) in tree.strings().items()}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(operation, max_size=14),
    st.sampled_from([1, 2, 3, 4, 6, 24]),
    st.sampled_from([-1, 0, 1, 2, 3]),
    st.lists(query, min_size=1, max_size=3),
)
def test_equals_brute_force_whatever_happens(operations, depth, limit, queries):
    ours, oracle = SuffixCache(depth, limit), OracleCache(depth, limit)
    texts = {}
    for name, r, tokens in operations:
        if name == "start" and r not in texts:
            texts[r] = list(tokens)
            ours.start_request(r, tokens)
            oracle.start_request(r, tokens)
        elif name == "add" and r in texts:
            texts[r] += tokens
            ours.add_active_response(r, tokens)
            oracle.add_active_response(r, tokens)
        elif name == "stop" and r in texts:
            del texts[r]
            ours.stop_request(r)
            oracle.stop_request(r)
        elif name == "evict" and r in oracle.cached:
            ours.evict_cached_response(r)
            oracle.evict_cached_response(r)
        else:
            continue
        ours.check_integrity()
        assert list(ours.cached_requests) == oracle.cached
        shared = {s: (n, oracle.shared.children[s]) for s, n in oracle.shared.count.items()}
        assert ranks(ours._shared) == shared
    for r, text in texts.items():
        for options in queries:
            for context in (text, text[-3:], [2, *text[-2:]], []):
                assert ours.speculate(r, context, **options) == oracle.speculate(r, context, **options)


def test_wide_states_rank_and_shrink_as_brute_force():
    """Many different continuations of few strings, so that children are found and ranked through the tables."""
    rng = np.random.default_rng(4)
    ours, oracle = SuffixCache(5, 6), OracleCache(5, 6)
    for r in range(24):
        prompt = rng.integers(0, 60, 30)
        tokens = np.where(rng.random(80) < 0.5, rng.integers(0, 2, 80), rng.integers(0, 60, 80)).astype(np.int32)
        for cache in (ours, oracle):
            cache.start_request(r, prompt.astype(np.int32))
            cache.add_active_response(r, tokens)
            if r % 3:
                cache.stop_request(r)
        if r % 8 == 0:
            ours.check_integrity()
        if r % 4 == 3:
            shared = {s: (n, oracle.shared.children[s]) for s, n in oracle.shared.count.items()}
            assert ranks(ours._shared) == shared
    assert (ours._shared.arrays[0][:, 2] >> 30).sum() > 3  # there were wide states
    for r in list(ours.cached_requests):
        ours.evict_cached_response(r)
        ours.check_integrity()
    assert (ours.cached_tokens, ours._shared.used) == (0, (1, 0))  # the root alone


def text_like(n, seed=0):
    """Tokens with the repetition of text: words of a heavy-tailed vocabulary, phrases that come back."""
    rng = np.random.default_rng(seed)
    words = rng.zipf(1.3, n) % 20_000
    for _ in range(n // 60):
        source, target, length = rng.integers(0, n - 40), rng.integers(0, n - 40), rng.integers(3, 40)
        words[target : target + length] = words[source : source + length]
    return words.astype(np.int32)


@pytest.mark.parametrize("depth", [24, 64])
def test_bytes_per_cached_token(depth):
    cache, text = SuffixCache(depth), text_like(120_000)
    for r in range(60):
        cache.start_request(r, [1])
        cache.add_active_response(r, text[r * 2000 : (r + 1) * 2000])
        cache.stop_request(r)
    assert cache.cached_tokens == text.size
    assert cache.shared_bytes < 150 * text.size
    assert cache.shared_bytes == sum(a.nbytes for a in cache._shared.arrays) + 4 * text.size


def test_steady_eviction_keeps_the_bytes_flat():
    """Ten times the cache flows through: what left is forgotten, and its room is used again."""
    cache, text = SuffixCache(24, 20), text_like(400_000)
    held = []
    for r in range(200):
        cache.start_request(r, [1])
        cache.add_active_response(r, text[r * 2000 : (r + 1) * 2000])
        cache.stop_request(r)
        held.append(cache.shared_bytes)
    assert cache.cached_tokens == 20 * 2000
    assert held[-1] <= 1.6 * held[40]
    assert held[-1] < 150 * cache.cached_tokens


def test_a_bound_in_bytes_holds_at_every_call():
    bound = 450_000
    cache, free, text = SuffixCache(24, max_shared_bytes=bound), SuffixCache(24), text_like(60_000)
    for r in range(30):
        for c in (cache, free):
            c.start_request(r, [1])
        for at in range(r * 2000, (r + 1) * 2000, 100):
            for c in (cache, free):
                c.add_active_response(r, text[at : at + 100])
            assert cache._shared.memory_bytes <= bound
            if len(cache.cached_requests) == r + 1:  # nothing has gone yet
                context = text[max(0, at + 80) : at + 100]
                assert cache.speculate(r, context, 8) == free.speculate(r, context, 8)
        cache.stop_request(r)
    kept = len(cache.cached_requests)
    assert 1 < kept < 30
    assert list(cache.cached_requests) == list(range(30 - kept, 30))
    assert cache._shared.memory_bytes > bound // 2  # the room that is allowed is used
    with pytest.raises(InputError, match="an empty tree takes"):
        SuffixCache(24, max_shared_bytes=100)


def test_one_response_too_large_for_the_bound_stays_out():
    cache = SuffixCache(24, max_shared_bytes=40_000)
    cache.start_request("small", [1])
    cache.add_active_response("small", [1, 2, 3, 4])
    cache.start_request("large", [1])
    cache.add_active_response("large", text_like(3000))
    assert list(cache.cached_requests) == []
    assert cache.cached_tokens == 0
    cache.add_active_response("large", [30_007, 30_008, 30_009, 30_007, 30_008])
    assert cache.speculate("large", [1, 30_007, 30_008], 4).tokens == (30_009, 30_007)
    cache.stop_request("large")
    cache.check_integrity()


def test_proposer_drafts_on_the_request_s_own_text():
    proposer = SuffixProposer(SuffixCache(8), min_token_prob=0.0)
    assert isinstance(proposer, Proposer)
    proposer.start_request("a", [1, 2, 3, 4, 1])
    proposer.extend("a", [2])
    assert proposer.propose("a", 5) == proposer.cache.speculate("a", [1, 2, 3, 4, 1, 2], 5, min_token_prob=0.0)
    assert proposer.propose_batch(["a", "a"], [1, 2])[0].tokens == (3,)
    proposer.check_integrity()
    before = proposer.memory_bytes
    proposer.stop_request("a")
    assert 0 < proposer.memory_bytes < before


# ------------------------------------------------------------------------------------------------------ vLLM's wrapper


def request(request_id, prompt, output, sampled):
    return BatchRequest(request_id=request_id, prompt=prompt, sampled=sampled, context=[*prompt, *output])


def test_vllm_caps_one_below_the_model_length():
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1]
    for length, longest in ((10, 0), (11, 0), (12, 1), (13, 2), (30, 2)):
        proposer = VllmSuffixProposer(k=8, max_model_len=length)
        draft = proposer.step([request(0, prompt, [2], [2])])[0]
        assert len(draft) == longest
        assert (0 in proposer.cache.active_requests) == (length > 10)  # at T = L nothing is even started


def test_vllm_forgets_what_an_unscheduled_request_had_said():
    proposer = VllmSuffixProposer(k=8)
    proposer.step([request("a", [1], [5, 6, 7, 5, 6], [5, 6, 7, 5, 6]), request("b", [2], [5, 6], [5, 6])])
    assert proposer.step([request("b", [2], [5, 6, 7], [7])])[0].tokens  # a's response is still cached
    assert list(proposer.cache.active_requests) == ["b"]
    assert "a" in proposer.cache.cached_requests
    proposer.step([request("a", [1], [5, 6, 7, 5, 6, 9], [9])])
    kept = proposer.cache
    assert list(kept.active_requests) == ["a"]
    # Restarted with the prompt alone: of a's output only what came after the gap is left, in either tree.
    assert kept._active["a"].text[: kept._active["a"].size].tolist() == [1, 9]
    assert kept._active["a"].response().tolist() == [9]
    kept.check_integrity()


def test_vllm_asks_nothing_for_a_prompt_still_being_read():
    proposer = VllmSuffixProposer(k=8)
    assert proposer.step([request("a", [1, 2, 1], [], [])])[0].tokens == ()
    assert not proposer.cache.active_requests


@pytest.mark.parametrize(
    ("settings_", "says"),
    [
        ({"k": 0}, "num_speculative_tokens is 0"),
        ({"k": 1, "max_cached_requests": -1}, "0 or more"),
        ({"k": 1, "max_spec_factor": -0.5}, "0 or more"),
        ({"k": 1, "min_token_prob": 1.5}, "0 to 1"),
        ({"k": 1, "max_tree_depth": 0}, "max_tree_depth is 0"),
    ],
)
def test_vllm_refuses_what_the_engine_refuses(settings_, says):
    with pytest.raises(InputError, match=says):
        VllmSuffixProposer(**settings_)


# -------------------------------------------------------------------------------------------------------------- replay


def drive(requests, k, depth, cached, factor, min_prob, length, slots, prefill):
    """Steps on the brute-force cache; a slot takes the next request in the step after its own is done."""
    cache = OracleCache(depth, cached)
    rows, running, upcoming = [], [None] * slots, 0
    while upcoming < len(requests) or any(running):
        for s in range(slots):
            if running[s] is None:
                if upcoming == len(requests):
                    continue
                r = upcoming
                prompt, response = requests[r]
                upcoming += 1
                cache.start_request(r, prompt)
                at, new = 0, min(prefill, len(response))
                running[s] = [r, at, None]
            else:
                r, at, draft = running[s]
                response = requests[r][1]
                good = 0
                while good < len(draft) and at + good < len(response) and draft.tokens[good] == response[at + good]:
                    good += 1
                new = min(good + 1, len(response) - at)
                rows.append((r, len(requests[r][0]) + at, len(draft), good, new, draft.match_len))
            cache.add_active_response(r, response[at : at + new])
            at += new
            if at == len(response):
                cache.stop_request(r)
                running[s] = None
                continue
            text = [*requests[r][0], *response[:at]]
            limit = max(0, min(k, length - len(text) - 1))
            draft = cache.speculate(r, text[-depth:], limit, factor, 0.0, min_prob)
            running[s] = [r, at, draft]
    return sorted(rows, key=lambda row: row[0])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.lists(token, max_size=8), st.lists(token, min_size=1, max_size=14)), min_size=1, max_size=6),
    st.sampled_from([0, 2, 8]),
    st.sampled_from([1, 2, 3, 6, 24]),
    st.sampled_from([-1, 0, 1, 2]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([10, 10**6]),
    st.integers(1, 3),
    st.integers(0, 1),
)
def test_replay_is_the_step_by_step_drive(requests, k, depth, cached, factor, min_prob, length, slots, prefill):
    stream, starts, prompts = join([p for p, _ in requests], [r for _, r in requests])
    steps = suffix_replay.replay(
        stream,
        starts,
        prompts,
        k,
        max_tree_depth=depth,
        max_cached_requests=cached,
        max_spec_factor=factor,
        min_token_prob=min_prob,
        max_model_len=length,
        concurrency=slots,
        prefill_emits=prefill,
    )
    want = drive(requests, k, depth, cached, factor, min_prob, length, slots, prefill)
    columns = (steps.request, steps.context_len, steps.drafted, steps.accepted, steps.emitted, steps.match_len)
    got = list(zip(*(c.tolist() for c in columns), strict=True))
    assert [row[:5] for row in got] == [row[:5] for row in want]
    assert [row[5] for row in got if row[1] < length] == [row[5] for row in want if row[1] < length]


@pytest.mark.parametrize("trace", ["suffix32_t0", "suffix32_b8_t0"])
def test_replay_gives_the_engine_s_own_steps(trace):
    recorded = json.loads((DATA / "vllm_cpu_traces" / f"{trace}.json").read_text())
    requests = recorded["requests"]
    stream, starts, prompts = join(
        [r["prompt_token_ids"] for r in requests], [r["emitted_token_ids"] for r in requests]
    )
    steps = suffix_replay.replay(
        stream, starts, prompts, 32, max_model_len=recorded["max_model_len"], concurrency=recorded["max_num_seqs"]
    )
    for i, r in enumerate(requests):
        of_request = steps.request == i
        want = [(len(s["drafts"]), len(s["gen"]) - 1) for s in r["steps"][1:]]
        got = zip(steps.drafted[of_request].tolist(), steps.accepted[of_request].tolist(), strict=True)
        assert list(got) == want, r["id"]
    assert int(steps.accepted.sum()) == recorded["metrics"]["accepted_tokens"]
    assert int(steps.drafted.sum()) == recorded["metrics"]["drafted_tokens"]


def test_replay_grows_its_trees_where_the_text_is_unlike_text():
    rng = np.random.default_rng(2)
    stream = rng.integers(0, 30, 30_000).astype(np.int32)  # every string of two has many continuations
    starts = np.arange(0, stream.size + 1, 3000)
    prompts = np.full(starts.size - 1, 1000)
    steps = suffix_replay.replay(stream, starts, prompts, 8, max_cached_requests=3, prefill_emits=0)
    cache, rows = SuffixCache(24, 3), []
    for r, (a, b) in enumerate(pairwise(starts)):
        text, at = stream[a:b], 1000
        cache.start_request(r, text[:at])
        while at < text.size:
            draft = cache.speculate(r, text[at - 24 : at], 8)
            good = 0
            while good < len(draft) and at + good < text.size and draft.tokens[good] == text[at + good]:
                good += 1
            new = min(good + 1, text.size - at)
            cache.add_active_response(r, text[at : at + new])
            rows.append((len(draft), good, draft.match_len))
            at += new
        cache.stop_request(r)
    got = zip(steps.drafted.tolist(), steps.accepted.tolist(), steps.match_len.tolist(), strict=True)
    assert list(got) == rows


def test_replay_says_what_is_wrong():
    stream, starts, prompts = join([[1]], [[2]])
    for wrong in ({"concurrency": 0}, {"prefill_emits": -1}, {"max_tree_depth": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            suffix_replay.replay(stream, starts, prompts, 4, **wrong)
    with pytest.raises(InputError, match="one response per prompt"):
        join([[1]], [])
