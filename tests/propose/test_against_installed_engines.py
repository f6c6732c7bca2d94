"""By hand: random calls give the drafts of the engines themselves.

``pytest -m engine tests/propose/test_against_installed_engines.py`` needs arctic-inference and numba; the n-gram kernel
is read from the folder that holds an unpacked ``vllm/``, named by PEER_VLLM.
"""

import os
import runpy
from pathlib import Path

import numpy as np
import pytest

from specplan.propose.ngram import NgramIndex, propose_once, vllm_v1
from specplan.propose.suffix import SuffixCache

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CALLS = int(os.environ.get("ENGINE_CALLS", "100000"))


@pytest.mark.parametrize("evicting", [False, True])
@pytest.mark.parametrize("as_tree", [False, True])
def test_suffix_drafts_equal_arctic(as_tree, evicting):
    arctic = pytest.importorskip("arctic_inference.suffix_decoding")
    rng = np.random.default_rng(11 + as_tree + 2 * evicting)
    calls = 0
    while calls < CALLS // 4:
        depth = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 24, 64]))
        limit = int(rng.choice([1, 2, 3, 5])) if evicting else int(rng.choice([-1, 0, 7]))
        vocabulary = int(rng.choice([2, 3, 4, 8, 40]))
        ours = SuffixCache(depth, limit)
        theirs = arctic.SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=limit)
        texts: dict[int, list[int]] = {}
        for _ in range(60):
            move = rng.random()
            if move < 0.2 or not texts:
                r = int(rng.integers(0, 12))
                if r in texts:
                    continue
                prompt = rng.integers(0, vocabulary, rng.integers(0, 20)).tolist()
                for cache in (ours, theirs):
                    cache.start_request(r, np.array(prompt, np.int32))
                texts[r] = prompt
            elif move < 0.28:
                r = int(rng.choice(list(texts)))
                for cache in (ours, theirs):
                    cache.stop_request(r)
                del texts[r]
            elif move < 0.32 and ours.cached_requests:
                r = list(ours.cached_requests)[int(rng.integers(len(ours.cached_requests)))]
                for cache in (ours, theirs):
                    cache.evict_cached_response(r)
            else:
                r = int(rng.choice(list(texts)))
                new = rng.integers(0, vocabulary, rng.integers(1, 12)).tolist()
                for cache in (ours, theirs):
                    cache.add_active_response(r, new)
                texts[r] += new
            assert list(ours.cached_requests) == list(theirs.cached_requests)
            assert list(ours.active_requests) == list(theirs.active_requests)
            for r in list(texts)[:2]:
                context = texts[r] if rng.random() < 0.8 else rng.integers(0, vocabulary, 6).tolist()
                options = {
                    "max_spec_tokens": int(rng.choice([1, 3, 8, 32])),
                    "max_spec_factor": float(rng.choice([0.1, 0.3, 0.5, 0.7, 1.0, 1.1, 1.3, 2.0, 4.0])),
                    "max_spec_offset": float(rng.choice([0.0, 0.0, 0.9, 1.0, -1.0, -0.3])),
                    "min_token_prob": float(rng.choice([0.0, 0.05, 0.1, 0.25, 0.3, 0.5])),
                    "use_tree_spec": as_tree,
                }
                got = ours.speculate(r, context, **options)
                want = theirs.speculate(r, context, **options)
                assert list(got.tokens) == want.token_ids, (context, options)
                assert list(got.parents) == want.parents
                assert list(got.scores) == want.probs
                assert (got.score, got.match_len) == (want.score, want.match_len)
                calls += 1


def test_ngram_drafts_equal_vllm():
    peers = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "peers.py"))
    module = peers["vllm_ngram"]()
    if module is None:
        pytest.skip("PEER_VLLM names no folder with vllm/")
    kernel = module._find_longest_matched_ngram_and_propose_tokens
    rng = np.random.default_rng(5)
    for call in range(CALLS):
        size = int(rng.integers(0, 80)) if call % 50 else int(rng.integers(500, 3000))
        vocabulary = int(rng.integers(1, 6)) if call % 50 else 40
        text = rng.integers(0, vocabulary, size).astype(np.int32)
        lo = int(rng.integers(1, 6))
        hi = lo + int(rng.integers(0, 6))
        k = int(rng.integers(1, 12))
        length = size + int(rng.integers(0, 12)) if rng.random() < 0.3 else 10**6
        if length < 1:
            continue
        rule = vllm_v1(lo, hi, max_model_len=length)
        want = kernel(text, lo, hi, length, k).tolist()
        assert list(propose_once(text, k, rule).tokens) == want, (text, rule, k)
        if call % 10 == 0:
            index = NgramIndex(rule, capacity=16)
            for at in range(0, size, 7):
                index.extend(text[at : at + 7])
            assert list(index.draft(k).tokens) == want, (text, rule, k)
