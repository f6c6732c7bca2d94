"""Replay of recorded tokens under suffix decoding, the whole trace in one compiled call."""

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.compiled import load
from specplan.propose.ngram import NO_LIMIT
from specplan.propose.protocol import Tokens, as_tokens
from specplan.propose.steps import Steps, check_trace
from specplan.propose.suffix import check_depth


def replay(
    stream: Tokens,
    starts: NDArray[np.int64],
    prompts: NDArray[np.int64],
    k: int,
    *,
    max_tree_depth: int = 24,
    max_cached_requests: int = 10_000,
    max_spec_factor: float = 1.0,
    max_spec_offset: float = 0.0,
    min_token_prob: float = 0.1,
    max_model_len: int = NO_LIMIT,
    concurrency: int = 1,
    prefill_emits: int = 1,
) -> Steps:
    """Engine-like steps: draft, accept the leading tokens that the record holds, emit one more, repeat.

    Requests start in order, `concurrency` at a time; a slot takes the next request in the step after its own is done.
    Within a step slots go in order, each appending what it emitted before it drafts, so a slot sees what earlier slots
    emitted in the same step. Drafts, trees and evictions are those of `specplan.propose.suffix.SuffixCache`.

    Parameters
    ----------
    stream : tokens, shape (N,)
        Requests end to end, each a prompt and its recorded response.
    starts : int64 array, shape (R + 1,)
        Request r is ``stream[starts[r]:starts[r + 1]]``.
    prompts : int64 array, shape (R,)
        Prompt tokens of each request.
    k : int
        Most tokens drafted in a step.
    max_tree_depth, max_cached_requests, max_spec_factor, max_spec_offset, min_token_prob
        As in `SuffixCache`; the defaults are vLLM's.
    max_model_len : int
        L; a step at T tokens drafts at most min(k, L - T - 1).
    concurrency : int
        Requests that run at a time.
    prefill_emits : int
        Response tokens that precede a request's first step: 1 in an engine, whose prefill pass emits a token; 0 drafts
        on the bare prompt, as Arctic's simulator does.

    Returns
    -------
    Steps
        Sorted by request. `match_len` is that of the winning draft, also where nothing was drafted. Exact for greedy
        decoding, and at any temperature for one-hot drafts: a rejected position never re-emits the drafted token.

    Examples
    --------
    >>> text = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
    >>> steps = replay(text, np.array([0, 10]), np.array([5]), 8)
    >>> steps.context_len.tolist(), steps.drafted.tolist(), steps.accepted.tolist()
    ([6, 9], [2, 4], [2, 1])
    """
    if concurrency < 1 or k < 0 or prefill_emits < 0:
        raise InputError(
            f"concurrency {concurrency}, k {k}, prefill_emits {prefill_emits}: at least 1, 0 and 0 are needed"
        )
    check_depth(max_tree_depth)
    text = as_tokens(stream, what="stream")
    starts, prompts = np.asarray(starts, np.int64), np.asarray(prompts, np.int64)
    check_trace(text, starts, prompts)
    rows = np.zeros((max(int((np.diff(starts) - prompts).sum()), 1), 6), np.int32)
    used = load("suffix_kernels").replay(
        text,
        starts,
        prompts,
        prefill_emits,
        max_tree_depth,
        max_cached_requests,
        max(1, min(concurrency, prompts.size)),
        k,
        float(max_spec_factor),
        float(max_spec_offset),
        float(min_token_prob),
        max_model_len,
        rows,
    )
    rows = rows[:used]
    return Steps.from_rows(rows[np.argsort(rows[:, 0], kind="stable")] if concurrency > 1 else rows)
