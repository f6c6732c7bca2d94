"""By hand: random calls give the trees of SGLang's own code.

``PEER_SGLANG=folder pytest -m engine tests/propose/test_sglang_against_installed_engine.py`` needs g++, numba and a
folder into which a wheel of sglang 0.5.23 was unpacked.
"""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.sglang_rule import QUIRKS, SglangRule

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CALLS = int(os.environ.get("ENGINE_CALLS", "100000"))
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def peer():
    spec = importlib.util.spec_from_file_location("sglang_peer", BENCHMARKS / "sglang_peer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.library()
    except RuntimeError as error:
        pytest.skip(str(error))
    return module


def random_rule(rng, match_type):
    depth = int(rng.choice([2, 3, 4, 6, 8, 12, 18]))
    low = int(rng.choice([1, 1, 2, 3]))
    return SglangRule(
        draft_token_num=int(rng.choice([1, 2, 3, 4, 8, 12, 16, 32])),
        match_type=match_type,
        max_trie_depth=depth,
        min_bfs_breadth=low,
        max_bfs_breadth=low + int(rng.choice([0, 1, 3, 7, 9])),
        capacity=int(rng.choice([depth + 1, depth + 8, 40 + depth, 300, 5000])),
        external_sam_budget=int(rng.choice([0, 1, 2, 3, 6, 40])),
        quirks=QUIRKS,
    )


class Pair:
    """Both proposers under one rule, given the same random calls."""

    def __init__(self, rng, peer, match_type):
        self.rng, self.peer = rng, peer
        self.rule = random_rule(rng, match_type)
        self.ours, self.theirs = SglangNgram(self.rule), peer.SglangPeer(self.rule)
        self.vocabulary = int(rng.choice([2, 3, 4, 8, 40]))
        self.texts = {}

    def text(self, least, most):
        return self.rng.integers(0, self.vocabulary, int(self.rng.integers(least, most))).tolist()

    def insert(self):
        tokens = self.text(1, 40)
        self.ours.put([tokens])
        self.ours.synchronize()
        self.theirs.put([tokens])
        return 0

    def match(self):
        """Grow some requests and compare their trees: the paths of all rows, padding included."""
        requests = self.rng.choice(6, int(self.rng.integers(1, 5)), replace=False).tolist()
        for r in requests:
            self.texts[r] = (self.texts.get(r) or self.text(1, 2)) + self.text(0, 4)
        tails = [self.texts[r][-self.rule.max_trie_depth :] for r in requests]
        totals = [len(self.texts[r]) for r in requests]
        trees = self.ours.match(requests, tails, totals)
        tokens, masks = self.theirs.match(requests, tails, totals)
        mine = trees.links(totals).masks
        for row in range(len(requests)):
            assert trees.tokens[row, 0] == tokens[row, 0]
            assert self.peer.paths_of(trees.tokens[row], mine[row]) == self.peer.paths_of(tokens[row], masks[row])
        return len(requests)

    def erase(self):
        gone = self.rng.choice(6, 2).tolist()
        self.ours.erase(gone)
        self.theirs.erase(gone)
        for r in gone:
            self.texts.pop(r, None)
        return 0

    def change_corpora(self):
        name = "abc"[int(self.rng.integers(3))]
        if name in self.ours.corpora.token_counts:
            self.ours.corpora.remove(name)
            self.theirs.remove_corpus(name)
        else:
            documents = [self.text(1, 60) for _ in range(self.rng.integers(1, 4))]
            self.ours.corpora.add(name, documents)
            self.theirs.add_corpus(name, documents, chunk=int(self.rng.choice([1, 7, 4096])))
        return 0

    def reset(self):
        self.ours.reset()
        self.theirs.reset()
        return 0


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
def test_trees_equal_the_engine(peer, match_type):
    rng = np.random.default_rng(17 if match_type == "BFS" else 18)
    calls = 0
    while calls < CALLS // 2:
        pair = Pair(rng, peer, match_type)
        moves = [pair.insert, pair.match, pair.erase, pair.change_corpora, pair.reset]
        for move in rng.choice(len(moves), 80, p=[0.25, 0.6, 0.07, 0.07, 0.01]):
            calls += moves[move]()
        pair.ours.check_integrity()
        pair.theirs.close()
