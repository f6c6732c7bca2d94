"""Tables of step times that the loops read, from the same step that `compare` prices, or from an engine's log."""

import math
from typing import Final

import numpy as np

from specplan.decide.step_setting import Setting, times
from specplan.decide.step_source import Loads
from specplan.queueing.load import Floats
from specplan.queueing.time_loop import NODES_PER_OCTAVE, Times
from specplan.timing.step_time import host_time, pass_time
from specplan.values.source import Source

_PAIR_WIDTH: Final = 1024
_PAIR_CONTEXTS: Final = (1024, 5120)


def step_table(
    setting: Setting, source: Source, of: Loads, kappa: int, *, seqs: int, tokens: int, longest: int
) -> Times:
    """Tables of one source on one machine.

    A step of decoding requests alone takes exactly what `specplan.decide.step_setting.times` says at its batch and mean
    context. Prompt chunks add their positions to the target's pass and their pairs of query and key to its attention; a
    draft with weights computes the prompt as well.

    Parameters
    ----------
    setting : Setting
    source : Source
        As the engine runs it.
    of : Loads
    kappa : int
        Drafted tokens.
    seqs, tokens, longest : int
        Most requests and positions in a step, and most tokens of a request.
    """
    on = setting.on
    octaves = max(math.ceil(math.log2(longest + 2)), 1)
    nodes = 2.0 ** (np.arange(octaves * NODES_PER_OCTAVE + 1) / NODES_PER_OCTAVE) - 1
    batches = _grid(seqs)
    step = times(setting, source, of, batches[:, None], nodes[None, :], kappa)
    most = max(tokens, seqs * (1 + kappa))
    widths = _grid(most)
    table = setting.table(setting.target.name)

    def target_pass(batch: Floats | float, width: Floats | float, context: Floats | float) -> Floats:
        scored = 1.0 / np.asarray(batch)
        return pass_time(on, of.target, batch, width, context, scored=scored, table=table).total_s

    whole = np.arange(most + 1)
    pass_s = np.interp(whole, np.append(0.0, widths), np.append(0.0, target_pass(widths, 1.0, 0.0)))
    positions = batches * step.positions[:, 0]
    attend = step.verify_s - np.interp(positions, whole, pass_s)[:, None]
    low, high = target_pass(1.0, _PAIR_WIDTH, np.array(_PAIR_CONTEXTS, np.float64))
    pair_s = max(float(high - low), 0.0) / (_PAIR_WIDTH * (_PAIR_CONTEXTS[1] - _PAIR_CONTEXTS[0]))
    prompt_s = np.zeros(tokens + 1)
    draft_pair_s = 0.0
    if of.draft is not None and source.c is None:
        name = setting.table(source.name)
        alone = pass_time(on, of.draft, widths, 1.0, 0.0, scored=1.0 / widths, draft=True, table=name).total_s
        prompt_s = np.interp(np.arange(tokens + 1), np.append(0.0, widths), np.append(0.0, alone - alone[0]))
        ends = pass_time(
            on, of.draft, 1.0, _PAIR_WIDTH, np.array(_PAIR_CONTEXTS, np.float64), scored=1.0, draft=True, table=name
        ).total_s
        draft_pair_s = max(float(ends[1] - ends[0]), 0.0) / (_PAIR_WIDTH * (_PAIR_CONTEXTS[1] - _PAIR_CONTEXTS[0]))
    requests = np.arange(seqs + 1)
    host = np.broadcast_to(host_time(on, requests), requests.shape)
    extra = np.interp(requests, batches, step.host_s[:, 0] - np.interp(batches, requests, host))
    return tables(
        pass_s=pass_s,
        host_s=host,
        drafted_s=extra,
        prompt_s=prompt_s,
        attend=_rows(attend, batches, seqs),
        draft=_rows(np.broadcast_to(step.draft_s, attend.shape), batches, seqs),
        octaves=octaves,
        pair_s=pair_s,
        draft_pair_s=draft_pair_s,
    )


def tables(
    *,
    pass_s: Floats,
    host_s: Floats,
    drafted_s: Floats,
    prompt_s: Floats,
    attend: Floats,
    draft: Floats,
    octaves: int,
    pair_s: float = 0.0,
    chunk_s: float = 0.0,
    draft_pair_s: float = 0.0,
) -> Times:
    """The tables laid end to end."""
    parts = (pass_s, host_s, drafted_s, prompt_s, attend.ravel(), draft.ravel())
    starts = np.cumsum([0, *(p.size for p in parts)])
    return Times(
        table=np.concatenate(parts).astype(np.float64),
        host_at=int(starts[1]),
        drafted_at=int(starts[2]),
        prompt_at=int(starts[3]),
        attend_at=int(starts[4]),
        draft_at=int(starts[5]),
        octaves=octaves,
        pair_s=float(pair_s),
        chunk_s=float(chunk_s),
        draft_pair_s=float(draft_pair_s),
        unit_s=0.0,
    )


def _grid(most: int) -> Floats:
    """Whole numbers from 1 to `most`, all up to 32 and then 16 per octave."""
    far = np.round(2.0 ** np.arange(5, math.log2(max(most, 2)), 1 / 16))
    found = np.unique(np.concatenate([np.arange(1, 33), far, [most]])).astype(np.float64)
    return found[found <= most]


def _rows(at_batches: Floats, batches: Floats, seqs: int) -> Floats:
    """Rows for 0 to `seqs` requests, linear between those of `batches`."""
    i = np.clip(np.searchsorted(batches, np.arange(seqs + 1), side="right") - 1, 0, max(batches.size - 2, 0))
    j = np.minimum(i + 1, batches.size - 1)
    gap = np.where(j > i, batches[j] - batches[i], 1.0)
    part = ((np.arange(seqs + 1) - batches[i]) / gap)[:, None]
    return np.asarray(at_batches[i] + np.where((j > i)[:, None], part, 0.0) * (at_batches[j] - at_batches[i]))
