"""What one tenant's requests teach never reaches another's, and the bytes are bounded and counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.propose.ngram import NgramProposer, vllm_v1
from specplan.propose.protocol import as_tokens
from specplan.propose.stores import StoreKey, Stores
from specplan.propose.suffix import SuffixCache, SuffixProposer


def key(tenant, model="m", tokenizer="t"):
    return StoreKey(tenant=tenant, model=model, tokenizer=tokenizer)


def suffix_stores(**bounds):
    return Stores(lambda _: SuffixProposer(SuffixCache(8, max_cached_requests=3)), **bounds)


@pytest.mark.parametrize("other", [key("b"), key("a", model="n"), key("a", tokenizer="u")])
def test_nothing_crosses_a_key(other):
    stores = suffix_stores()
    stores.start_request(key("a"), "r", [9])
    stores.extend(key("a"), "r", [1, 2, 3, 4, 5])
    for k in (key("a"), other):
        stores.start_request(k, "asks", [8, 1, 2])
    drafts = stores.propose_batch([(key("a"), "asks", 8), (other, "asks", 8)])
    assert [d.tokens for d in drafts] == [(3, 4), ()]
    with pytest.raises(InputError, match="'r' is not active"):
        stores.propose(other, "r", 8)
    stores.check_integrity()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=6)),
        max_size=25,
    )
)
def test_each_key_is_as_if_it_were_alone(calls):
    stores, alone = suffix_stores(), {}
    for tenant, r, tokens in calls:
        k = key(str(tenant))
        mine = alone.setdefault(k, SuffixProposer(SuffixCache(8, max_cached_requests=3)))
        if r in mine.cache.active_requests:
            assert stores.propose(k, r, 4) == mine.propose(r, 4)
            stores.extend(k, r, tokens)
            mine.extend(r, tokens)
            if len(tokens) == 1:
                stores.stop_request(k, r)
                mine.stop_request(r)
        else:
            stores.start_request(k, r, tokens)
            mine.start_request(r, tokens)
    stores.check_integrity()
    assert stores.memory_bytes == sum(p.memory_bytes for p in alone.values())


def test_the_bound_drops_idle_stores_unused_for_longest():
    one = SuffixProposer(SuffixCache(8, max_cached_requests=3)).memory_bytes
    stores = suffix_stores(max_bytes=4 * one)
    for tenant in "abcdefgh":
        stores.start_request(key(tenant), 1, [1, 2, 3])
        if tenant != "b":
            stores.stop_request(key(tenant), 1)
            assert stores.memory_bytes <= 4 * one
    assert key("b") in stores.keys  # active, so never dropped
    assert key("h") in stores.keys
    assert key("a") not in stores.keys
    with pytest.raises(InputError, match="no store for"):
        stores.extend(key("a"), 1, [1])


def test_drop_forgets_everything_under_a_key():
    stores = suffix_stores()
    stores.start_request(key("a"), 1, [9])
    stores.extend(key("a"), 1, [1, 2, 3, 4])
    held = stores.memory_bytes
    assert stores.drop(key("a")) == held > 0
    assert stores.memory_bytes == 0
    stores.start_request(key("a"), 2, [9, 1, 2])
    assert stores.propose(key("a"), 2, 4).tokens == ()
    with pytest.raises(InputError, match="no store for"):
        stores.drop(key("z"))


def test_any_proposer_can_be_a_store_and_keys_name_everything():
    stores = Stores(lambda _: NgramProposer(vllm_v1(1, 2)))
    stores.start_request(key("a"), 1, [1, 2, 1])
    assert stores.propose(key("a"), 1, 1).tokens == (2,)
    for missing in ("tenant", "model", "tokenizer"):
        with pytest.raises(InputError, match=f"store's {missing} is empty"):
            StoreKey(**({"tenant": "a", "model": "m", "tokenizer": "t"} | {missing: ""}))


def test_token_vectors_are_taken_as_they_are_and_anything_else_is_copied():
    ready = np.array([1, 2], np.int32)
    assert as_tokens(ready) is ready
    frozen = np.array([1, 2], np.int32)
    frozen.setflags(write=False)
    for other in (frozen, np.arange(4, dtype=np.int32)[::2], np.array([0, 2], np.uint8), [0, 2]):
        taken = as_tokens(other)
        assert taken.flags.carray
        assert taken.dtype == np.int32
        assert taken.tolist() == list(other)
    assert as_tokens([]).dtype == np.int32
    for wrong in ([[1]], [1.0], ["a"], np.zeros((2, 2), np.int32), [[1], [1, 2]]):
        with pytest.raises(InputError, match="flat sequence of token ids"):
            as_tokens(wrong)
