"""The pool that every command asks: the blocks that the engine's own planner hands out, request by request."""

from dataclasses import replace

import pytest

from specplan.memory.pool import Drafting, Serving, pool, vllm_drafting
from specplan.memory.speculative import Speculation
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.values.draft_methods import METHODS

BIG, SMALL, H100 = load_model("llama3-70b"), load_model("llama3.2-1b"), load_accelerator("h100-sxm")
FOUR = Serving(tp=4)


def held_by_hand(blocks: int, length: int, slots: int, block: int = 16) -> int:
    """Requests admitted one by one, each taking whole blocks for its tokens and slots, until none is left."""
    free, requests = blocks - 1, 0  # one block is vLLM's null block
    while free >= (each := -(-(length + slots) // block)):
        free -= each
        requests += 1
    return requests


@pytest.mark.parametrize("length", [1, 15, 16, 17, 2043, 2048, 8192])
@pytest.mark.parametrize("kappa", [1, 3, 8])
def test_requests_are_those_that_whole_blocks_hold(length: int, kappa: int) -> None:
    flags = VllmFlags(tp=4, max_model_len=length)
    plain = predict_vllm(BIG, H100, flags)
    assert plain.blocks is not None
    assert pool(BIG, H100, FOUR, length).requests == held_by_hand(int(plain.blocks.best), length, 0)
    given = Speculation(method="draft_model", num_speculative_tokens=kappa)
    drafted = predict_vllm(BIG, H100, flags, given, SMALL)
    assert drafted.blocks is not None
    found = pool(BIG, H100, FOUR, length, Drafting(method="model", kappa=kappa, model=SMALL))
    assert found.slots == 2 * kappa  # the drafts under verification, and those that the next drafting writes
    assert found.requests == held_by_hand(int(drafted.blocks.best), length, 2 * kappa)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("method", [m.name for m in METHODS.values() if m.by == "matcher"])
def test_a_matcher_takes_slots_and_no_weights(engine: str, method: str) -> None:
    serving = Serving(engine=engine, tp=4)
    plain = pool(BIG, H100, serving, 2048)
    found = pool(BIG, H100, serving, 2048, Drafting(method=method, kappa=3))
    if METHODS[method].sglang is None and engine == "sglang":
        assert "plain subtraction: SGLang has no" in found.basis
        return
    assert 0 <= plain.requests - found.requests <= 0.03 * plain.requests
    assert 0 < found.slots <= 12


@pytest.mark.parametrize(("vocabulary", "mixed"), [(BIG.vocab_size, False), (32000, True)])
def test_a_draft_of_another_vocabulary_is_said_to_be_one(vocabulary: int, mixed: bool) -> None:
    other = replace(load_model("llama3.2-1b"), vocab_size=vocabulary)
    speculation, model = vllm_drafting(Drafting(method="model", kappa=3, model=other), BIG)
    assert model is other
    assert speculation.heterogeneous_vocab is mixed
    head, _ = vllm_drafting(Drafting(method="eagle", kappa=3, model=other), BIG)
    assert not head.heterogeneous_vocab  # a head draws from a vocabulary that it maps to the target's


def test_a_pool_without_room_says_which_part_is_too_large() -> None:
    heavy = pool(BIG, H100, Serving(), 2048)
    assert (heavy.requests, heavy.longest) == (0, 0)
    assert heavy.binding.startswith("weights: ")
    long = pool(BIG, H100, Serving(tp=4), 1_000_000)
    assert long.requests == 0
    assert long.binding.startswith("one request of 1,000,000 tokens")


def test_what_has_no_block_rules_is_subtracted_plainly_and_says_so() -> None:
    assert pool(BIG, H100, Serving(engine="gpt-fast", tp=4), 2048).basis.startswith("plain subtraction")
    packed = pool(load_model("deepseek-v4-flash"), load_accelerator("b300"), Serving(tp=8), 2048)
    assert "rules that are not known" in packed.basis
    assert packed.requests > 0
