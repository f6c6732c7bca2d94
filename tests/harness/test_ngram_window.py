"""The data-parallel n-gram form drafts what the engines' matchers draft, in one region without branches on data."""

import json
from pathlib import Path

import ngram_oracle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.harness.ngram_window import NO_DRAFT, NgramWindow
from specplan.propose.ngram import transformers_lookup, vllm_ngram_gpu, vllm_v2

CASES = json.loads((Path(__file__).parents[1] / "data" / "vllm_ngram_cases.json").read_text())["cases"]


def window_of(case, **kind):
    return NgramWindow(
        min_n=case["prompt_lookup_min"], max_n=case["prompt_lookup_max"], k=case["num_speculative_tokens"], **kind
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']} {c['name']}")
def test_engine_outputs(case):
    context = case["context"]
    tokens = torch.tensor([context + [77] * 5])
    length = torch.tensor([len(context)])
    drafts, counts = window_of(case)(tokens, length)
    assert drafts[0].tolist() == case["observed_gpu_v1"]
    assert counts.tolist() == [(*case["observed_gpu_v1"], NO_DRAFT).index(NO_DRAFT)]
    drafts, _ = window_of(case, latest=True, fill=True)(tokens, length)
    assert drafts[0].tolist() == case["observed_gpu_v2"]


rows = st.lists(st.lists(st.integers(0, 2), max_size=24), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(1, 4), st.integers(0, 4), st.integers(1, 6), st.integers(0, 3), st.booleans())
def test_equals_brute_force_in_ragged_batches(contexts, lo, more, k, padding, latest):
    width = max(map(len, contexts)) + padding + 1
    tokens = torch.tensor([c + [1] * (width - len(c)) for c in contexts])
    lengths = torch.tensor([len(c) for c in contexts], dtype=torch.int32)
    window = NgramWindow(min_n=lo, max_n=lo + more, k=k, latest=latest, fill=latest)
    drafts, counts = window(tokens, lengths)
    rule = vllm_v2(lo, lo + more) if latest else vllm_ngram_gpu(lo, lo + more)
    for context, draft, count in zip(contexts, drafts.tolist(), counts.tolist(), strict=True):
        expected = list(ngram_oracle.draft(context, k, rule).tokens)
        assert draft == expected + [NO_DRAFT] * (k - len(expected))
        if not latest:
            assert count == len(expected)


def test_a_row_that_emitted_nothing_is_a_miss():
    tokens = torch.tensor([[1, 2, 3, 1, 2], [1, 2, 3, 1, 2]])
    lengths, sampled = torch.tensor([5, 5]), torch.tensor([True, False])
    drafts, counts = NgramWindow(min_n=1, max_n=3, k=3)(tokens, lengths, sampled)
    assert drafts.tolist() == [[3, 1, 2], [-1, -1, -1]]
    assert counts.tolist() == [3, 0]
    drafts, _ = NgramWindow(min_n=1, max_n=3, k=3, latest=True, fill=True)(tokens, lengths, sampled)
    assert drafts.tolist() == [[3, 1, 2], [2, 2, 2]]


def test_is_one_region_and_reads_nothing_back():
    window = NgramWindow(min_n=2, max_n=4, k=3)
    region = torch.compile(lambda t, n, s: window(t, n, s), backend="eager", fullgraph=True)  # a break would raise
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (4, 50)))
    lengths, sampled = torch.tensor([50, 3, 0, 20]), torch.tensor([True, True, True, False])
    for got, want in zip(region(tokens, lengths, sampled), window(tokens, lengths, sampled), strict=True):
        assert torch.equal(got, want)
    # On tensors without data, anything that depended on data would raise.
    with torch.device("meta"):
        drafts, counts = window(torch.empty((4, 50), dtype=torch.int64), torch.empty(4, dtype=torch.int64))
    assert drafts.shape == (4, 3)
    assert counts.shape == (4,)


def test_prompt_lookup_drafts_as_transformers_does():
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    rng = np.random.default_rng(3)
    for _ in range(150):
        size = int(rng.integers(2, 30))
        context = rng.integers(0, int(rng.integers(2, 5)), size).tolist()
        max_n, k = int(rng.integers(1, 5)), int(rng.integers(1, 6))
        max_length = size + int(rng.integers(1, 8))
        stop = frozenset({0}) if rng.random() < 0.5 else frozenset()
        theirs = PromptLookupCandidateGenerator(
            eos_token_id=torch.tensor(sorted(stop)) if stop else None,
            num_output_tokens=k,
            max_matching_ngram_size=max_n,
            max_length=max_length,
        )
        candidates, _ = theirs.get_candidates(torch.tensor([context]))
        rule = transformers_lookup(max_n, max_length=max_length, stop_ids=stop)
        assert list(ngram_oracle.draft(context, k, rule).tokens) == candidates[0, size:].tolist()


@pytest.mark.parametrize("wrong", [{"min_n": 0, "max_n": 3, "k": 1}, {"min_n": 4, "max_n": 3, "k": 1}])
def test_refuses_lengths_that_are_no_rule(wrong):
    with pytest.raises(InputError, match="1 <= min <= max"):
        NgramWindow(**wrong)
