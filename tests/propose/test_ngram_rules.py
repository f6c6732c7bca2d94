"""Every n-gram engine drafts by its rule: the engines' recorded outputs, and brute force on small alphabets."""

import json
from pathlib import Path

import ngram_oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.propose import ngram_replay
from specplan.propose.compiled import load
from specplan.propose.ngram import (
    NgramIndex,
    NgramProposer,
    NgramRule,
    OneShotBatch,
    latest_lookup,
    propose_once,
    transformers_lookup,
    vllm_ngram_gpu,
    vllm_v1,
    vllm_v2,
)
from specplan.propose.protocol import Proposer

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "vllm_ngram_cases.json").read_text())["cases"]


def by_oracle(context, k, rule):
    return ngram_oracle.draft(context, k, rule)


def by_one_shot(context, k, rule):
    return propose_once(np.array(context, np.int32), k, rule)


def by_border(context, k, rule):
    """The linear fall-back, on its own."""
    text = np.array(context, np.int32)
    n, e = load("ngram_kernels").match_by_border(text, 0, text.size, rule.min_n, rule.max_n, rule.latest)
    exact = by_oracle(context, k, rule)
    limit = rule.limit(text.size, k)
    if limit and not rule.fill and not rule.stop_ids:
        assert (n, tuple(context[e + 1 : e + 1 + limit]) if n else ()) == (exact.match_len, exact.tokens)
    return exact


def by_index(context, k, rule):
    index = NgramIndex(rule, capacity=1)
    for at in range(0, len(context), 3):
        index.extend(context[at : at + 3])
    index.check_integrity()
    return index.draft(k)


def by_proposer(context, k, rule):
    proposer = NgramProposer(rule)
    assert isinstance(proposer, Proposer)
    proposer.start_request("r", context[: len(context) // 2])
    proposer.start_request("other", [1, 2, 3, 1, 2, 3])
    proposer.extend("r", context[len(context) // 2 :])
    return proposer.propose_batch(["other", "r"], [1, k])[1]


def by_batch(context, k, rule):
    width = len(context) + 3
    rows = np.full((3, width), 9, np.int32)
    rows[1, : len(context)] = context
    lengths = np.array([0, len(context), width], np.int32)
    exact = by_oracle(context, k, rule)
    assert tuple(OneShotBatch(rule, k)(rows, lengths)[1]) == exact.tokens
    return exact


ENGINES = [by_oracle, by_one_shot, by_border, by_index, by_proposer, by_batch]
engines = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.__name__)


@engines
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']} {c['name']}")
def test_recorded_outputs(case, engine):
    lo, hi, k = case["prompt_lookup_min"], case["prompt_lookup_max"], case["num_speculative_tokens"]
    v1 = engine(case["context"], k, vllm_v1(lo, hi, max_model_len=case["max_model_len"]))
    assert list(v1.tokens) == case["expected_cpu_v1"]
    v2 = engine(case["context"], k, vllm_v2(lo, hi))
    assert list(v2.tokens) == case["observed_gpu_v2"]
    assert v2.match_len == case["v2_match_n"]
    gpu = list(engine(case["context"], k, vllm_ngram_gpu(lo, hi)).tokens)
    assert gpu + [-1] * (k - len(gpu)) == case["observed_gpu_v1"]
    assert list(engine(case["context"], k, latest_lookup(lo, hi)).tokens) == case["expected_recent_raw"]


@st.composite
def rules(draw):
    lo = draw(st.integers(1, 4))
    return NgramRule(
        name="drawn",
        min_n=lo,
        max_n=lo + draw(st.integers(0, 5)),
        latest=draw(st.booleans()),
        fill=draw(st.booleans()),
        max_model_len=draw(st.sampled_from([12, 20, 2**31 - 1])),
        reserved=draw(st.integers(0, 1)),
        trim=draw(st.booleans()),
        stop_ids=draw(st.sampled_from([frozenset(), frozenset({0})])),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.integers(0, 9), rules())
def test_all_engines_equal_brute_force(context, k, rule):
    expected = by_oracle(context, k, rule)
    for engine in ENGINES[1:]:
        assert engine(context, k, rule) == expected, engine.__name__


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.lists(st.integers(1, 7), max_size=8), st.booleans())
def test_index_holds_after_each_extension(text, cuts, latest):
    rule = NgramRule(name="drawn", min_n=2, max_n=4, latest=latest)
    index, have = NgramIndex(rule, capacity=1), 0
    for cut in [*cuts, len(text)]:
        index.extend(text[have : have + cut])
        have = min(have + cut, len(text))
        index.check_integrity()
        assert index.draft(3) == by_oracle(text[:have], 3, rule)


@pytest.mark.parametrize("latest", [False, True])
def test_long_contexts_cross_the_blocks_of_the_search(latest):
    kernels = load("ngram_kernels")
    rng = np.random.default_rng(7)
    found = set()
    for trial in range(400):
        text = rng.integers(0, [2, 3, 30, 400][trial % 4], int(rng.integers(400, 2600))).astype(np.int32)
        if trial % 3 == 0:  # the suffix stands once more, somewhere
            at, n = int(rng.integers(0, text.size - 60)), int(rng.integers(1, 40))
            text[at : at + n] = text[-n:]
        lo = int(rng.integers(1, 5))
        hi = lo + int(rng.integers(0, 40))
        search = kernels.match_once(text, 0, text.size, lo, hi, latest)
        assert search == kernels.match_by_border(text, 0, text.size, lo, hi, latest)
        found.add(search[0])
    assert len(found) > 20  # short, long and no matches were among them


def test_worst_case_streams_stay_exact():
    for text in (np.zeros(3000, np.int32), np.tile([1, 2], 1500), np.tile([1] * 50 + [2], 60)):
        text = text.astype(np.int32)
        for rule in (vllm_v1(2, 5), vllm_v1(3, 200), vllm_v2(1, 70)):
            assert by_one_shot(text.tolist(), 4, rule) == by_oracle(text.tolist(), 4, rule)


def test_cost_per_token_is_bounded():
    index = NgramIndex(vllm_v1(2, 5), capacity=16)
    rng = np.random.default_rng(0)
    for _ in range(50):
        index.extend(rng.integers(0, 1000, 97))
        # 4 bytes of text, 4 tables of 2 to 4 slots of 4 bytes, for at most twice the tokens there are
        assert index.memory_bytes <= 2 * index.size * (4 + 4 * 4 * 4) + 4096
    proposer = NgramProposer(vllm_v1(2, 5))
    proposer.start_request(1, [1, 2, 3])
    assert proposer.memory_bytes > 0
    proposer.stop_request(1)
    assert proposer.memory_bytes == 0


def drive(stream, starts, prompts, rule, k, length, prefill):
    """Steps by asking the brute force at each."""
    rows = []
    for r in range(len(prompts)):
        text = stream[starts[r] : starts[r + 1]]
        at = min(prompts[r] + prefill, len(text))
        while at < len(text):
            draft = by_oracle(text[:at], max(0, min(k, length - at - 1)), rule)
            good = 0
            while good < len(draft) and at + good < len(text) and draft.tokens[good] == text[at + good]:
                good += 1
            emitted = min(good + 1, len(text) - at)
            rows.append([r, at, len(draft), good, emitted])
            at += emitted
    return rows


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=4),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([9, 10**6]),
    st.integers(0, 1),
    st.data(),
)
def test_replay_is_the_step_by_step_drive(requests, k, latest, length, prefill, data):
    rule = NgramRule(name="drawn", min_n=1, max_n=3, latest=latest, fill=latest)
    starts = np.cumsum([0, *map(len, requests)])
    prompts = np.array([data.draw(st.integers(0, len(r))) for r in requests])
    stream = [t for r in requests for t in r]
    steps = ngram_replay.replay(stream, starts, prompts, rule, k, max_model_len=length, prefill_emits=prefill)
    rows = [list(row) for row in zip(*(c.tolist() for c in _columns(steps)), strict=True)]
    assert rows == drive(stream, starts.tolist(), prompts.tolist(), rule, k, length, prefill)


def _columns(steps):
    return steps.request, steps.context_len, steps.drafted, steps.accepted, steps.emitted


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=15), min_size=1, max_size=4), st.integers(0, 4), st.booleans())
def test_scan_asks_every_position(requests, k, latest):
    rule = NgramRule(name="drawn", min_n=2, max_n=3, latest=latest, fill=latest)
    positions = drafted = accepted = 0
    for text in requests:
        for end in range(1, len(text)):
            draft = by_oracle(text[:end], k, rule)
            positions += 1
            drafted += len(draft)
            for token, truth in zip(draft.tokens, text[end:], strict=False):
                if token != truth:
                    break
                accepted += 1
    stream = np.array([t for r in requests for t in r], np.int32)
    starts = np.cumsum([0, *map(len, requests)])
    assert ngram_replay.scan_every_position(stream, starts, rule, k) == (positions, drafted, accepted)


@pytest.mark.parametrize("trace", ["ngram25_k3_t0", "ngram25_k3_t1"])
def test_replay_gives_the_engine_s_own_steps(trace):
    recorded = json.loads((DATA / "vllm_cpu_traces" / f"{trace}.json").read_text())
    requests = recorded["requests"]
    for i, request in enumerate(requests):
        text = request["prompt_token_ids"] + request["emitted_token_ids"]
        steps = ngram_replay.replay(
            text,
            np.array([0, len(text)]),
            np.array([len(request["prompt_token_ids"])]),
            vllm_v1(2, 5),
            3,
            max_model_len=recorded["max_model_len"],
        )
        want = [(len(s["drafts"]), len(s["gen"]) - 1) for s in request["steps"][1:]]
        assert list(zip(steps.drafted.tolist(), steps.accepted.tolist(), strict=True)) == want, i


def test_transformers_rule_stops_below_the_maximum_length():
    rule = transformers_lookup(2, max_length=6)
    assert propose_once([1, 2, 1], 9, rule).tokens == (2, 1)
    assert propose_once([1, 2, 1, 2, 1], 9, rule).tokens == ()
    assert propose_once([1, 2, 3, 1], 9, transformers_lookup(2, stop_ids=frozenset({3}))).tokens == (2,)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: vllm_v1(3, 2), "min 3, max 2"),
        (lambda: vllm_v1(0, 2), "min 0"),
        (lambda: vllm_v1(1, 2, max_model_len=0), "max_model_len is 0"),
        (lambda: propose_once([[1, 2]], 2, vllm_v1(1, 2)), "context: expected a flat sequence"),
        (lambda: propose_once([1.5], 2, vllm_v1(1, 2)), "dtype float64"),
        (lambda: propose_once([2**31], 2, vllm_v1(1, 2)), "does not fit 32 bits"),
        (lambda: NgramProposer(vllm_v1(1, 2)).propose("x", 2), "'x' is not active"),
        (lambda: ngram_replay.replay([1, 2], np.array([0, 3]), np.array([1]), vllm_v1(1, 2), 2), "within the stream"),
        (lambda: ngram_replay.replay([1, 2], np.array([0, 2]), np.array([3]), vllm_v1(1, 2), 2), "prompt is longer"),
        (
            lambda: ngram_replay.scan_every_position(
                [1], np.array([0, 1]), transformers_lookup(2, stop_ids=frozenset({1})), 2
            ),
            "knows no stop ids",
        ),
    ],
)
def test_says_what_is_wrong(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_a_request_starts_once():
    proposer = NgramProposer(vllm_v1(1, 2))
    proposer.start_request(1, [])
    with pytest.raises(InputError, match="already active"):
        proposer.start_request(1, [])
    with pytest.raises(InputError, match="2 limits for 1 requests"):
        proposer.propose_batch([1], [1, 2])
