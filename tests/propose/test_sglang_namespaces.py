"""Tries and corpora by namespace: what one tenant's requests teach is not drafted for another's."""

import numpy as np

from specplan.propose.protocol import Proposer
from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.sglang_rule import SglangRule
from specplan.propose.stores import StoreKey, Stores

RULE = SglangRule(draft_token_num=4, external_sam_budget=1)
CORPUS_OF = {"a": [[1, 2, 3]], "b": [[1, 2, 4]]}


def build(key):
    ngram = SglangNgram(RULE)
    ngram.corpora.add("manual", CORPUS_OF[key.tenant])
    return ngram


def keys():
    return [StoreKey(tenant=tenant, model="m", tokenizer="t") for tenant in "ab"]


def test_the_proposer_answers_the_protocol():
    assert isinstance(SglangNgram(RULE), Proposer)


def test_neither_text_nor_corpus_crosses_a_key():
    stores = Stores(build)
    ours, theirs = keys()
    for key in (ours, theirs):
        stores.start_request(key, "r", [7])
    stores.extend(ours, "r", [50, 51, 52, 50])
    stores.extend(theirs, "r", [50])
    assert stores.propose(ours, "r", 3).tokens == (51, 52, 50)
    assert stores.propose(theirs, "r", 3).tokens == ()
    for key, follows in ((ours, 3), (theirs, 4)):
        stores.extend(key, "r", [1, 2])
        assert stores.propose(key, "r", 3).tokens == (follows,)
    stores.check_integrity()


def test_a_dropped_key_frees_exactly_its_bytes():
    stores = Stores(build)
    ours, theirs = keys()
    for key in (ours, theirs):
        stores.start_request(key, "r", np.arange(500) % 40)
    before = stores.memory_bytes
    freed = stores.drop(ours)
    assert freed > 0
    assert stores.memory_bytes == before - freed
    assert stores.keys == (theirs,)


def test_idle_stores_go_when_the_bound_is_reached():
    one = build(keys()[0]).memory_bytes
    stores = Stores(build, max_bytes=one + one // 2)
    ours, theirs = keys()
    stores.start_request(ours, "r", [1])
    stores.stop_request(ours, "r")
    stores.start_request(theirs, "r", [1])
    assert stores.keys == (theirs,)
