"""Replay of recorded tokens under an n-gram rule, the whole trace in one compiled call."""

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.compiled import load
from specplan.propose.ngram import NgramRule
from specplan.propose.protocol import Tokens, as_tokens
from specplan.propose.steps import Steps, check_trace


def _tables(starts: NDArray[np.int64], rule: NgramRule) -> NDArray[np.int32]:
    """Empty tables for the longest request, at most half full; reused by all requests."""
    longest = int(np.diff(starts).max(initial=1))
    return np.zeros((rule.max_n - rule.min_n + 1, 1 << (2 * max(longest, 8) - 1).bit_length()), np.int32)


def _plain(rule: NgramRule) -> None:
    if rule.stop_ids:
        raise InputError(f"rule {rule.name}: a compiled replay knows no stop ids; leave them out or drive the proposer")


def scan_every_position(stream: Tokens, starts: NDArray[np.int64], rule: NgramRule, k: int) -> tuple[int, int, int]:
    """Totals of a proposal at every position of every request: (positions, drafted, accepted).

    Unlike `replay`, accepted drafts do not skip ahead: each position of a request but its first is asked once, so the
    totals say how often the rule has something and how good it is, whatever the draft length does to the step count.

    Parameters
    ----------
    stream : tokens, shape (N,)
        Requests end to end.
    starts : int64 array, shape (R + 1,)
        Request r is ``stream[starts[r]:starts[r + 1]]``.
    rule : NgramRule
        Its model length is not applied.
    k : int
        Tokens asked for.

    Returns
    -------
    tuple of int
        Positions asked; tokens drafted; leading drafted tokens that equal what follows.

    Notes
    -----
    20 to 40 ns per position, flat in the request's length (an index that grows with the request).

    Examples
    --------
    >>> from specplan.propose.ngram import vllm_v1
    >>> scan_every_position([1, 2, 3, 1, 2, 3, 4], np.array([0, 7]), vllm_v1(2, 3), 2)
    (6, 4, 1)
    """
    _plain(rule)
    text = as_tokens(stream, what="stream")
    starts = np.asarray(starts, np.int64)
    check_trace(text, starts, np.zeros(max(starts.size - 1, 0), np.int64))
    totals = load("ngram_kernels").scan(
        text, starts, _tables(starts, rule), rule.min_n, rule.max_n, k, rule.latest, rule.fill
    )
    return int(totals[0]), int(totals[1]), int(totals[2])


def replay(
    stream: Tokens,
    starts: NDArray[np.int64],
    prompts: NDArray[np.int64],
    rule: NgramRule,
    k: int,
    *,
    max_model_len: int | None = None,
    prefill_emits: int = 1,
) -> Steps:
    """Engine-like steps: draft, accept the leading tokens that the record holds, emit one more, repeat.

    Parameters
    ----------
    stream, starts
        As in `scan_every_position`.
    prompts : int64 array, shape (R,)
        Prompt tokens of each request; the rest is its recorded response.
    rule : NgramRule
    k : int
        Tokens asked for per step.
    max_model_len : int or None
        L; None takes the rule's. A step at T tokens verifies at most L - T - 1 drafts, whatever the matcher offers: the
        scheduler keeps the last position for the bonus token.
    prefill_emits : int
        Response tokens that precede the first step: 1 in an engine, where the prefill pass emits a token; 0 drafts on
        the bare prompt.

    Returns
    -------
    Steps
        Exact for greedy decoding, and at any temperature for one-hot drafts: a rejected position never re-emits the
        drafted token.

    Examples
    --------
    >>> from specplan.propose.ngram import vllm_v1
    >>> steps = replay([1, 2, 3, 1, 2, 3, 1, 2], np.array([0, 8]), np.array([4]), vllm_v1(2, 3), 2)
    >>> steps.context_len.tolist(), steps.drafted.tolist(), steps.accepted.tolist()
    ([5], [2], [2])
    """
    _plain(rule)
    text = as_tokens(stream, what="stream")
    starts, prompts = np.asarray(starts, np.int64), np.asarray(prompts, np.int64)
    check_trace(text, starts, prompts)
    given = np.minimum(prompts + prefill_emits, np.diff(starts))
    rows = np.zeros((int((np.diff(starts) - given).sum()), 6), np.int32)
    length = rule.max_model_len if max_model_len is None else max_model_len
    used = load("ngram_kernels").replay(
        text, starts, given, _tables(starts, rule), rule.min_n, rule.max_n, k, length, rule.latest, rule.fill, rows
    )
    return Steps.from_rows(rows[:used])
