"""specplan's columns for a benchmark that measures draft sources side by side.

``register(registry)`` calls ``registry.add(kind, name, factory)`` for each kind of column; a kind's factory and what it
returns are named in the functions below.
"""

import numpy as np

from specplan.propose.ngram import NgramIndex, OneShotBatch, vllm_v1
from specplan.propose.ngram_replay import scan_every_position
from specplan.propose.suffix import SuffixCache
from specplan.propose.suffix_replay import replay as replay_suffix


def ngram(min_n, max_n, k, max_len):
    """One proposal step of a batch: f(tokens[B, L], lens[B]) -> B lists."""
    return OneShotBatch(vllm_v1(min_n, max_n, max_model_len=max_len), k)


class NgramSequence:
    """One request that grows: start, extend, propose."""

    def __init__(self, min_n, max_n, k, max_len):
        self.k = k
        self.index = NgramIndex(vllm_v1(min_n, max_n), capacity=max_len)
        self.start = self.extend = self.index.extend

    def propose(self):
        """At most k tokens."""
        return self.index.propose(self.k)


def ngram_replay(min_n, max_n, k):
    """A proposal at every position of every request: f(stream, starts) -> (positions, drafted, accepted)."""
    rule = vllm_v1(min_n, max_n)
    return lambda stream, starts: scan_every_position(stream, starts, rule, k)


class SuffixColumn:
    """The calls of Arctic's cache on ours."""

    def __init__(self, depth):
        self.cache = cache = SuffixCache(max_tree_depth=depth)
        self.start_request, self.stop_request = cache.start_request, cache.stop_request
        self.add_active_response = cache.add_active_response
        self.evict_cached_response = cache.evict_cached_response
        self._speculate = cache.speculate

    def speculate(self, request_id, context, max_spec_tokens, max_spec_factor=1.0, min_token_prob=0.1):
        """A draft under the names that the benchmark reads."""
        return SuffixDraft(self._speculate(request_id, context, max_spec_tokens, max_spec_factor, 0.0, min_token_prob))


class SuffixDraft:
    """A draft whose tokens are called `token_ids`."""

    __slots__ = ("token_ids",)

    def __init__(self, draft):
        self.token_ids = draft.tokens


def suffix_replay(depth, factor, min_prob, max_tokens):
    """A whole replay: f([(prompt, response), ...]) -> (steps, drafted, accepted)."""

    def run(requests):
        stream = np.concatenate([part for pair in requests for part in pair]).astype(np.int32, copy=False)
        starts = np.zeros(len(requests) + 1, np.int64)
        np.cumsum([len(p) + len(r) for p, r in requests], out=starts[1:])
        prompts = np.array([len(p) for p, _ in requests], np.int64)
        steps = replay_suffix(
            stream,
            starts,
            prompts,
            max_tokens,
            max_tree_depth=depth,
            max_cached_requests=-1,
            max_spec_factor=factor,
            min_token_prob=min_prob,
            prefill_emits=0,
        )
        return len(steps), int(steps.drafted.sum()), int(steps.accepted.sum())

    return run


def register(registry):
    """Add our columns."""
    registry.add("ngram", "specplan", ngram)
    registry.add("ngram_seq", "specplan", NgramSequence)
    registry.add("replay", "specplan", ngram_replay)
    registry.add("suffix", "specplan", SuffixColumn)
    registry.add("suffix_replay", "specplan", suffix_replay)
