"""Replay of recorded requests through SGLang's n-gram drafting, as the engine serves them, in compiled code."""

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.compiled import load
from specplan.propose.protocol import Tokens, as_tokens
from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.steps import Steps, check_trace


def replay(
    stream: Tokens,
    starts: NDArray[np.int64],
    prompts: NDArray[np.int64],
    ngram: SglangNgram,
    *,
    concurrency: int = 48,
) -> Steps:
    """Serve recorded requests and say, step by step, what was drafted and what the record accepts.

    The prefill of a request emits its first token; every step after it matches the context, verifies the tree against
    the record (longest root path that equals what follows), emits that path and one token more, and feeds the trie.
    At most `concurrency` requests run at once, in order of arrival, and share the trie: all matches of a step come
    before its insertions. `ngram` keeps what the replay inserted.

    Parameters
    ----------
    stream : tokens, shape (T,)
        Requests end to end.
    starts : int64 array, shape (R + 1,)
        Request r is ``stream[starts[r]:starts[r + 1]]``.
    prompts : int64 array, shape (R,)
        Prompt lengths; a prompt may be empty.
    ngram : SglangNgram
        Trie and corpora, empty or warm, and the rule with or without quirks.
    concurrency : int
        Running requests (the engine's default with NGRAM is 48); at least 1.

    Returns
    -------
    Steps
        In order of requests. `drafted` counts real nodes; the engine verifies draft_token_num - 1 rows besides the root
        in every step, padding included. With quirks a padding row may be accepted (it drafts token 0).

    Examples
    --------
    >>> from specplan.propose.sglang_rule import SglangRule
    >>> text = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    >>> steps = replay(text, np.array([0, 10]), np.array([4]), SglangNgram(SglangRule(draft_token_num=4)))
    >>> steps.context_len.tolist(), steps.accepted.tolist(), steps.emitted.tolist()
    ([5, 9], [3, 1], [4, 1])
    """
    text = as_tokens(stream, what="stream")
    starts, prompts = np.asarray(starts, np.int64), np.asarray(prompts, np.int64)
    check_trace(text, starts, prompts)
    if concurrency < 1:
        raise InputError(f"concurrency {concurrency}: expected at least 1 running request")
    ngram.synchronize()
    trie, pool = ngram.trie, ngram.corpora.pool
    # each step emits a token, and the prefill emits one
    most = int(np.maximum(np.diff(starts) - prompts - 1, 0).sum())
    rows = np.empty((most, 7), np.int32)
    trie.nodes, trie.slots, n_steps = load("sglang_tree_kernels").replay(
        trie.nodes, trie.slots, trie.head, trie.params, text, starts, prompts,
        pool.states, pool.edges, pool.slots, pool.bounds,
        min(concurrency, max(1, prompts.size)), ngram.index_prompts, rows,
    )  # fmt: skip
    rows = rows[:n_steps]
    return Steps.from_rows(rows[np.lexsort((rows[:, 1], rows[:, 0]))])
