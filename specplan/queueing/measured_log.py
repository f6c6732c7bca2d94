"""Step times out of an engine's log of its steps, for running the same server under another load."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from specplan.errors import InputError
from specplan.queueing.load import Floats
from specplan.queueing.step_table import tables
from specplan.queueing.time_loop import NODES_PER_OCTAVE, Times

FEW: Final = 8
"""Steps of one width that are averaged together; rarer widths are joined with their neighbours."""


def log_table(rows: Sequence[Sequence[float]], *, seqs: int, tokens: int, longest: int, step_s: float = 0.0) -> Times:
    """Table of step times by positions in the step, from logged steps.

    Parameters
    ----------
    rows : sequence of (context requests, context tokens, generation requests, generation tokens, milliseconds)
        As vLLM logs each step with ``--enable-logging-iteration-details``.
    seqs, tokens, longest : int
        Most requests and positions in a step, and most tokens of a request.
    step_s : float
        Time between two steps that the log leaves out.

    Raises
    ------
    InputError
        Without a logged step of both kinds that the load needs.

    Notes
    -----
    The time of a step is taken as that of its positions alone, whatever requests they belong to; within the widths that
    were logged it is the mean of their steps, beyond them it rises in proportion to the widest half.
    """
    found = np.asarray(rows, np.float64)
    if found.ndim != 2 or found.shape[1] != 5 or not np.isfinite(found).all() or found[:, 4].min() <= 0:
        raise InputError(
            "logged steps: expected rows of context requests, context tokens, generation requests, generation tokens "
            "and milliseconds"
        )
    width = found[:, 1] + found[:, 3]
    seconds = found[:, 4] / 1e3 + step_s
    order = np.argsort(width, kind="stable")
    width, seconds = width[order], seconds[order]
    points: list[tuple[float, float]] = []
    begin = 0
    while begin < width.size:
        end = int(np.searchsorted(width, width[begin], side="right"))
        if end - begin < FEW:
            end = min(begin + FEW, width.size)
            end = int(np.searchsorted(width, width[end - 1], side="right")) if end - begin < FEW else end
        points.append((float(width[begin:end].mean()), float(seconds[begin:end].mean())))
        begin = end
    x, y = np.array(points).T
    whole = np.arange(tokens + seqs + 1)
    pass_s = np.interp(whole, x, y)
    slope = _slope(width, seconds)
    beyond = whole > x[-1]
    pass_s[beyond] = y[-1] + slope * (whole[beyond] - x[-1])
    pass_s[0] = pass_s[1]
    octaves = max(int(np.ceil(np.log2(longest + 2))), 1)
    empty = np.zeros((seqs + 1, octaves * NODES_PER_OCTAVE + 1))
    zeros = np.zeros(seqs + 1)
    return tables(
        pass_s=pass_s,
        host_s=zeros,
        drafted_s=zeros,
        prompt_s=np.zeros(tokens + 1),
        attend=empty,
        draft=empty,
        octaves=octaves,
    )


def _slope(width: Floats, seconds: Floats) -> float:
    """Seconds per position over the widest half of the widths."""
    wide = width >= (width.min() + width.max()) / 4
    w, s = width[wide], seconds[wide]
    if np.ptp(w) == 0:
        return float(seconds[wide].mean() / max(width[wide].mean(), 1.0))
    return max(float(np.polyfit(w, s, 1)[0]), 0.0)
