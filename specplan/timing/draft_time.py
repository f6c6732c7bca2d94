"""Time that drafting takes in a step, as engines run it: model drafts, heads, trees, and matchers on host or card.

Source: vLLM 0.32 and SGLang 0.5.23 fact sheets (order of draft passes); matchers' laws from timing vLLM's and Arctic's
own proposers on one core.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.formulas.step import PassShape, without
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.step_time import FloatArray, Machine, pass_time
from specplan.values.draft_methods import named

NGRAM_CALL_S: Final = 7.3e-6
NGRAM_REQUEST_S: Final = 1.1e-6
NGRAM_TOKEN_S: Final = 0.9e-9
"""vLLM's host n-gram matcher: dispatch, per request, and per cached token of each request, one thread in series."""

SUFFIX_REQUEST_S: Final = 13.7e-6
"""Suffix decoding (Arctic, depth 24): extend by the step's tokens and speculate, per request, in series."""

TRIE_MATCH_S: Final = 2.2e-6
TRIE_INSERT_S: Final = 35e-6
"""SGLang's trie: a match waits for the insertions of the step before, which overlap the pass; per request."""

HOST_SYNC_S: Final = 50e-6
"""Handing sampled tokens to the host and drafts back, which a matcher on the host cannot overlap. Assumed."""

CARD_MATCH_LAUNCH_S: Final = 20e-6
TOKEN_ID_BYTES: Final = 4
"""A matcher on the card reads the ids of every request once per n-gram length; its launch time is assumed."""

WALK_S: Final = 8e-6
"""Gather, sum and argmax of a position of a Markov head, in a captured graph; assumed."""

_WALKED: Final = "markov_w2"
_MASKED: Final = named(masked=True)


def model_draft_s(
    on: Machine,
    shape: PassShape,
    batch: npt.ArrayLike,
    kappa: npt.ArrayLike,
    context_len: npt.ArrayLike,
    *,
    own_head: bool = True,
    branching: npt.ArrayLike = 1,
    verified: npt.ArrayLike | None = None,
    parallel: bool = False,
    table: MeasuredTable | None = None,
) -> FloatArray:
    r"""Time of drafting `kappa` tokens for each of `batch` requests with a model or a head.

    vLLM re-feeds the verified positions in its first pass (k + 2 for a stand-alone draft, k + 1 for a head) and then
    makes k - 1 passes of one position; SGLang makes k - 1 passes and afterwards one over the whole verified width.

    Parameters
    ----------
    on : Machine
    shape : PassShape
        Of the draft (with its target's head counted where it has none).
    batch, kappa, context_len : array_like
        Requests; drafted tokens (0: nothing is drafted); cached tokens per request in the draft's cache.
    own_head : bool
        A stand-alone model, not a head on the target's hidden states.
    branching : array_like
        Positions per request in the passes after the first (a tree's top-k).
    verified : array_like, optional
        Positions that the target verifies; kappa + 1 if None.
    parallel : bool
        All tokens come from one pass over the verified width; DSpark's Markov head is then walked over them, its table
        read anew for each.
    table : MeasuredTable, optional
        Of the draft, in the ``measured`` layer.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> from specplan.formulas.step import pass_shape
    >>> from specplan.timing.step_time import machine
    >>> on, shape = machine(load_accelerator("h100-sxm")), pass_shape(load_model("llama3.2-1b"))
    >>> round(float(model_draft_s(on, shape, batch=1, kappa=3, context_len=1000)) * 1e3, 2)
    4.34
    """
    k = np.asarray(kappa, np.float64)
    if any(w.name == _WALKED for w in shape.model.extra):
        bare = without(shape, _WALKED)
        backbone = model_draft_s(
            on, bare, batch, kappa, context_len, own_head=own_head, branching=branching, verified=verified,
            parallel=parallel, table=table,
        )  # fmt: skip
        return backbone + k * _walked_s(on, shape, bare, batch)
    if on.layer == "roofline":  # one pass for each token, or one for all
        one = pass_time(on, shape, batch, branching, context_len).total_s
        return np.asarray(np.minimum(k, 1) * one if parallel else k * one)
    wide = k + 1 if verified is None else np.asarray(verified, np.float64)
    if on.engine.draft_order == "chain":
        first_width = np.ones_like(k) * np.asarray(branching, np.float64)
    elif on.engine.draft_order == "vllm" and own_head:
        first_width = wide + 1
    else:
        first_width = wide
    # Only the last position of the first pass is sampled from, of mask tokens each.
    scored = np.maximum(k, 1) if shape.model.draft_method in _MASKED else 1
    first = pass_time(on, shape, batch, first_width, context_len, scored=scored, draft=True, table=table).total_s
    # The target's states are joined once per step; passes after the first take the draft's own.
    rest = without(shape, "fc") if shape.model.draft_method == "eagle3" else shape
    later = pass_time(on, rest, batch, branching, context_len, draft=True, table=table).total_s
    mapped = on.engine.vocabulary_s if shape.model.head_vocab_size is not None else 0.0
    outside = on.engine.draft_pass_s + mapped if on.layer == "modelled" else 0.0
    passes = np.minimum(k, 1) if parallel else k
    return np.asarray(np.where(k > 0, first + np.maximum(passes - 1, 0) * later + passes * outside, 0.0))


def host_ngram_s(batch: npt.ArrayLike, context_len: npt.ArrayLike) -> FloatArray:
    """Time of vLLM's host n-gram matcher: all requests in series on one thread, each linear in its context.

    Measured on one core of a server; the same law holds at every load, since the thread count cannot exceed one.

    Examples
    --------
    >>> round(float(host_ngram_s(64, 8192)) * 1e3, 2)
    0.6
    """
    b, t = np.asarray(batch, np.float64), np.asarray(context_len, np.float64)
    return HOST_SYNC_S + NGRAM_CALL_S + b * (NGRAM_REQUEST_S + NGRAM_TOKEN_S * t)


def _walked_s(on: Machine, shape: PassShape, bare: PassShape, batch: npt.ArrayLike) -> FloatArray:
    """Of one drafted token: the bias on its logits, from a table that is read whole."""
    if on.layer == "measured":
        return np.zeros_like(np.asarray(batch, np.float64))  # a table of passes has it
    whole, less = (pass_time(on, s, batch, 1, 0, scored=1, draft=True).total_s for s in (shape, bare))
    return np.asarray(whole - less + (WALK_S if on.layer == "modelled" else 0.0))


def card_ngram_s(on: Machine, batch: npt.ArrayLike, context_len: npt.ArrayLike, lengths: int = 1) -> FloatArray:
    """Time of the n-gram matcher on the card: it reads each request's ids once per n-gram length.

    >>> from specplan.timing.step_time import machine
    >>> from specplan.specs.hardware import load_accelerator
    >>> round(float(card_ngram_s(machine(load_accelerator("h100-sxm")), 64, 131072)) * 1e6, 1)
    30.0
    """
    b, t = np.asarray(batch, np.float64), np.asarray(context_len, np.float64)
    return CARD_MATCH_LAUNCH_S + b * t * TOKEN_ID_BYTES * lengths / on.accelerator.bandwidth


def suffix_s(batch: npt.ArrayLike) -> FloatArray:
    """Time of suffix decoding on the host, all requests in series; hardly depends on the context.

    >>> round(float(suffix_s(64)) * 1e3, 3)
    0.927
    """
    return HOST_SYNC_S + SUFFIX_REQUEST_S * np.asarray(batch, np.float64)


def trie_s(batch: npt.ArrayLike, pass_s: npt.ArrayLike) -> FloatArray:
    """Time that SGLang's n-gram corpus adds to a step: matches, and insertions beyond the pass that hides them.

    >>> round(float(trie_s(48, 10e-3)) * 1e6, 1)
    155.6
    """
    b = np.asarray(batch, np.float64)
    return HOST_SYNC_S + TRIE_MATCH_S * b + np.maximum(TRIE_INSERT_S * b - np.asarray(pass_s, np.float64), 0.0)
