"""Seconds of one step, from tables of what its passes take; see `specplan.queueing.step_table`."""

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from specplan.queueing.compiled import loop

Floats = npt.NDArray[np.float64]

NODES_PER_OCTAVE: Final = 4
_PER_E: Final = NODES_PER_OCTAVE / math.log(2)


class Times(NamedTuple):
    """Tables of one source on one machine, in seconds, laid end to end in `table`; each `_at` is where one begins.

    Attributes
    ----------
    table : ndarray
        - at 0: the target's pass by positions in it, attention left out
        - `host_at`: time outside the passes by requests in the step
        - `drafted_at`: what a drafted step adds to it, by requests
        - `prompt_at`: the draft's pass over prompt tokens, by tokens
        - `attend_at`: attention of decoding requests, by requests and node of their mean context
        - `draft_at`: drafting, by requests that draft and node of their mean context
    octaves : int
        Nodes are contexts ``2**(i / NODES_PER_OCTAVE) - 1`` for i up to this times `NODES_PER_OCTAVE`.
    pair_s, chunk_s, draft_pair_s : float
        Attention of prompt chunks: per pair of query and key; per chunk; the draft's per pair.
    unit_s : float
        Above 0: every step takes as long, and no table is read.
    """

    table: Floats
    host_at: int
    drafted_at: int
    prompt_at: int
    attend_at: int
    draft_at: int
    octaves: int
    pair_s: float
    chunk_s: float
    draft_pair_s: float
    unit_s: float


@loop
def _at_context(table: Floats, begin: int, octaves: int, requests: int, context: float) -> float:
    """Row of `requests`, linear between the nodes around `context`."""
    count = octaves * NODES_PER_OCTAVE + 1
    i = min(int(math.log(context + 1.0) * _PER_E), count - 2)
    low = 2.0 ** (i / NODES_PER_OCTAVE) - 1.0
    high = 2.0 ** ((i + 1) / NODES_PER_OCTAVE) - 1.0
    at = begin + requests * count + i
    seconds: float = table[at] + (context - low) / (high - low) * (table[at + 1] - table[at])
    return seconds


@loop
def target_s(t: Times, positions: int, decodes: int, context_sum: int, pairs: float, chunks: int) -> float:
    """The target's pass: its positions, attention of `decodes` requests, attention of prompt chunks."""
    total: float = t.table[positions] + pairs * t.pair_s + chunks * t.chunk_s
    if decodes > 0:
        total += _at_context(t.table, t.attend_at, t.octaves, decodes, context_sum / decodes)
    return total


@loop
def drafting_s(t: Times, drafting: int, context_sum: int, prompt_tokens: int, pairs: float) -> float:
    """Drafting for `drafting` requests, and the draft's pass over prompt tokens."""
    total: float = t.table[t.prompt_at + prompt_tokens] + pairs * t.draft_pair_s
    if drafting > 0:
        total += _at_context(t.table, t.draft_at, t.octaves, drafting, context_sum / drafting)
    return total
