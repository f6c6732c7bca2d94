"""Adaptive verification on named hardware: step costs by width from the one time model, and what the rule does there.

What confidences tell, how requests differ, and what deciding costs are fitted to published tables
(`specplan.evidence.validate_adaptive` shows which, and the errors on the others).
"""

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.formulas.adaptive import WidthCost, adaptive_expectation, confidences
from specplan.formulas.emitted import FloatArray
from specplan.formulas.step import PassShape
from specplan.timing.step_time import Machine, host_time, pass_time
from specplan.values.source import Source

DISPERSION: Final = 0.1
"""Share of the variance of acceptance that lies between requests."""
OVERHEAD: Final = 0.06
"""What deciding adds to a step, as a share of it."""
_WIDEST: Final = 512
"""Tokens of the widest step that is priced as a staircase; above it lies a straight line."""
_ROWS: Final = 512
_LARGEST: Final = 4096
"""Requests of the largest batch that is drawn; in a larger one each does what it does there, in proportionate time."""
_EXACT: Final = 16  # batches up to here are priced one by one, larger ones at a grid and between its points
_POSITIONS: Final = 64


def verify_costs(on: Machine, shape: PassShape, *, batches: npt.ArrayLike, context_len: float) -> list[WidthCost]:
    """Seconds of a drafted step's pass and host time by its tokens, for each batch of some sizes.

    Parameters
    ----------
    on : Machine
    shape : PassShape
        Of the target.
    batches : array_like of int, shape (n,)
        Requests per step.
    context_len : float
        Cached tokens that each reads.

    Examples
    --------
    >>> from specplan.formulas.step import pass_shape
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> from specplan.timing.step_time import machine
    >>> on, shape = machine(load_accelerator("h100-sxm"), "vllm", 1), pass_shape(load_model("llama3-8b"), 1)
    >>> (cost,) = verify_costs(on, shape, batches=[4], context_len=1024)
    >>> bool(cost.at(32) >= cost.at(4) > 0)
    True
    """
    batch = np.asarray(batches)[:, None]
    sizes = np.unique(on.engine.padded(np.arange(1, _WIDEST + 1))).astype(np.int64)
    tokens = np.append(sizes, 2 * _WIDEST)
    host_s = host_time(on, batch, drafted=True)
    seconds = pass_time(on, shape, batch, np.maximum(tokens / batch, 1.0), context_len).total_s + host_s
    slopes = np.maximum((seconds[:, -1] - seconds[:, -2]) / (2 * _WIDEST - sizes[-1]), 0.0)
    return [WidthCost.of(sizes, row[:-1], float(slope)) for row, slope in zip(seconds, slopes, strict=True)]


@lru_cache(maxsize=64)
def _population(hazard: tuple[float, ...], resolution: float, coverage: float) -> FloatArray:
    seen, _ = confidences(hazard, resolution=resolution, dispersion=DISPERSION, rows=_ROWS)
    # steps without a draft, spread over the population
    without = np.floor(np.arange(1, _ROWS + 1) * (1 - coverage)) > np.floor(np.arange(_ROWS) * (1 - coverage))
    return np.where(without[:, None], 0.0, seen)


def hazard_of(source: Source) -> tuple[float, ...]:
    """Acceptance by position, as far as it is known.

    Raises
    ------
    InputError
        If only the tokens per step are known.
    """
    if source.hazard:
        return source.hazard
    if source.alpha is not None:
        return (source.alpha.best,) * _POSITIONS
    if source.hit is not None and source.continuation is not None:
        return (source.hit, *(source.continuation,) * (_POSITIONS - 1))
    raise source.wrong(
        "adaptive verification needs acceptance by position: alpha=.7, alpha=.8/.7/.6, or hit=.2,cont=.8"
    )


def adapted(
    on: Machine,
    source: Source,
    shape: PassShape,
    batch: FloatArray,
    context_len: FloatArray,
    kappa: npt.NDArray[np.int64],
    draft_s: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Tokens per request, positions per request (one included), and seconds beside drafting, of steps under the rule.

    Parameters
    ----------
    on, source, shape
        Machine, source with `adaptive`, target.
    batch, context_len, kappa, draft_s : ndarray
        Of one shape; kappa is what is drafted, of which the rule verifies a part.
    """
    hazard = hazard_of(source)
    found = np.empty((3, batch.size))
    b, t, k, d = (x.ravel() for x in (batch, context_len, kappa, draft_s))
    sizes = np.minimum(np.asarray(b, np.float64), _LARGEST)
    nodes = np.unique(np.concatenate([sizes[sizes <= _EXACT], _grid(sizes[sizes > _EXACT])])).astype(np.int64)
    for context in dict.fromkeys(t.tolist()):
        costs = verify_costs(on, shape, batches=nodes, context_len=context)
        for length in dict.fromkeys(k[t == context].tolist()):
            at = (t == context) & (k == length)
            mine = sizes[at]
            spent = np.interp(nodes, *_sorted(mine, d[at] * mine / b[at]))
            seen = _seen(source, hazard, length)
            steps = [
                adaptive_expectation(seen, seen, cost, int(n), float(s))
                for n, cost, s in zip(nodes, costs, spent, strict=True)
            ]
            rows = zip(steps, nodes, strict=True)
            columns = np.array([[s.tokens / n, 1 + s.verified / n, s.seconds] for s, n in rows])
            columns[:, 2] = columns[:, 2] * (1 + OVERHEAD) - spent
            found[:, at] = [np.interp(mine, nodes, column) for column in columns.T]
            found[2, at] *= b[at] / mine
    tokens, positions, seconds = (row.reshape(batch.shape) for row in found)
    return tokens, positions, seconds


def _grid(batch: FloatArray) -> FloatArray:
    if batch.size < 12:
        return batch
    return np.unique(np.round(np.geomspace(batch.min(), batch.max(), 24)))


def _sorted(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    order = np.argsort(x)
    return x[order], y[order]


def _seen(source: Source, hazard: tuple[float, ...], kappa: int) -> FloatArray:
    if kappa > len(hazard):
        raise source.wrong(f"its acceptance ends at position {len(hazard)}")
    return _population(hazard[:kappa], source.adaptive or 0.0, source.coverage.best)
