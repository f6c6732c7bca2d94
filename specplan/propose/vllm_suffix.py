"""How vLLM 0.32.0 drives suffix decoding: pattern length, caps, and what happens to requests that are not scheduled."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from specplan.errors import InputError
from specplan.propose.ngram import NO_LIMIT
from specplan.propose.protocol import EMPTY, Draft, Tokens, as_tokens
from specplan.propose.suffix import SuffixCache


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """One request of the batch that the engine ran in this step.

    Attributes
    ----------
    request_id : hashable
    prompt : tokens
        Its prompt; read when the request is first seen, or seen again after a gap.
    sampled : tokens
        Emitted in this step: accepted drafts and the bonus token; empty while the prompt is still being read.
    context : tokens
        Prompt and output so far, `sampled` included.
    """

    request_id: Hashable
    prompt: Tokens
    sampled: Tokens
    context: Tokens


class VllmSuffixProposer:
    """vLLM's `suffix` method, step by step.

    A request with new tokens and T < L is started when it is not active (with its prompt only; an old cached response
    of its id goes first), gets its new tokens, and is asked with its last min(T, D) tokens for at most
    min(k, L - T - 1) tokens: one fewer than n-gram's cap. After the batch, each active request that was not in it is
    stopped, preempted and merely unscheduled ones included: when such a request returns, it restarts from its prompt,
    and what it had emitted before the gap is in neither tree.

    Parameters
    ----------
    k : int
        `num_speculative_tokens`; vLLM takes D where it is not given.
    max_model_len : int
        L.
    max_tree_depth, max_cached_requests, max_spec_factor, min_token_prob
        vLLM's `suffix_decoding_*` settings, with its defaults and bounds.

    Raises
    ------
    InputError
        For settings that vLLM refuses.

    Examples
    --------
    >>> proposer = VllmSuffixProposer(k=8, max_model_len=64)
    >>> request = BatchRequest(request_id=0, prompt=[1, 2, 3, 1], sampled=[2], context=[1, 2, 3, 1, 2])
    >>> proposer.step([request])[0].tokens
    (3, 1)
    >>> proposer.step([]), list(proposer.cache.active_requests)
    ([], [])
    """

    def __init__(
        self,
        *,
        k: int,
        max_model_len: int = NO_LIMIT,
        max_tree_depth: int = 24,
        max_cached_requests: int = 10_000,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
    ) -> None:
        if k < 1:
            raise InputError(f"num_speculative_tokens is {k}; it must be at least 1")
        if max_cached_requests < 0:
            raise InputError(f"suffix_decoding_max_cached_requests is {max_cached_requests}; vLLM takes 0 or more")
        if max_spec_factor < 0:
            raise InputError(f"suffix_decoding_max_spec_factor is {max_spec_factor}; vLLM takes 0 or more")
        if not 0 <= min_token_prob <= 1:
            raise InputError(f"suffix_decoding_min_token_prob is {min_token_prob}; vLLM takes 0 to 1")
        self.k, self.max_model_len = k, max_model_len
        self.max_spec_factor, self.min_token_prob = max_spec_factor, min_token_prob
        self.cache = SuffixCache(max_tree_depth, max_cached_requests)

    def step(self, batch: Sequence[BatchRequest]) -> list[Draft]:
        """Drafts for the requests of one engine step, in batch order; empty where vLLM asks for none."""
        drafts = [self._draft(request) for request in batch]
        scheduled = {request.request_id for request in batch}
        for request_id in [r for r in self.cache.active_requests if r not in scheduled]:
            self.cache.stop_request(request_id)
        return drafts

    def _draft(self, request: BatchRequest) -> Draft:
        cache, context = self.cache, as_tokens(request.context, what="context")
        if len(request.sampled) == 0 or context.size >= self.max_model_len:
            return EMPTY
        if request.request_id not in cache.active_requests:
            if request.request_id in cache.cached_requests:
                cache.evict_cached_response(request.request_id)
            cache.start_request(request.request_id, as_tokens(request.prompt, what="prompt"))
        cache.add_active_response(request.request_id, as_tokens(request.sampled, what="sampled"))
        return cache.speculate(
            request.request_id,
            context[-cache.max_tree_depth :],
            max_spec_tokens=min(self.k, self.max_model_len - context.size - 1),
            max_spec_factor=self.max_spec_factor,
            min_token_prob=self.min_token_prob,
        )
