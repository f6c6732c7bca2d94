"""Adaptive verification on named hardware: step costs by width from the one time model, and what the rule does there.

What confidences tell, how requests differ, and what deciding costs are fitted to published tables
(`specplan.evidence.validate_adaptive` shows which, and the errors on the others).
"""

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.formulas.adaptive import AdaptiveStep, WidthCost, adaptive_expectation, confidences
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
_EXACT: Final = 16  # batches up to here are priced one by one, larger ones at a grid and between its points
_POSITIONS: Final = 64


def verify_cost(on: Machine, shape: PassShape, *, batch: int, context_len: float, most: int) -> WidthCost:
    """Seconds of a drafted step's pass and host time by its tokens, for a batch of given size and context.

    Parameters
    ----------
    on : Machine
    shape : PassShape
        Of the target.
    batch, context_len
        Requests per step; cached tokens that each reads.
    most : int
        Tokens of the widest step that is asked for.

    Examples
    --------
    >>> from specplan.formulas.step import pass_shape
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> from specplan.timing.step_time import machine
    >>> on, shape = machine(load_accelerator("h100-sxm"), "vllm", 1), pass_shape(load_model("llama3-8b"), 1)
    >>> cost = verify_cost(on, shape, batch=4, context_len=1024, most=32)
    >>> bool(cost.at(32) >= cost.at(4) > 0)
    True
    """
    sizes = np.unique(on.engine.padded(np.arange(1, _WIDEST + 1))).astype(np.int64)
    widths, last, beyond = sizes[sizes <= max(most, 8)], _WIDEST, 2 * _WIDEST
    tokens = np.append(widths, [last, beyond])
    host_s = host_time(on, batch, drafted=True)
    seconds = pass_time(on, shape, batch, np.maximum(tokens / batch, 1.0), context_len).total_s + host_s
    slope = max(float(seconds[-1] - seconds[-2]) / (beyond - last), 0.0)
    return WidthCost.of(widths, seconds[:-2], slope)


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
    keys = list(zip(context_len.ravel().tolist(), kappa.ravel().tolist(), strict=True))
    for key in dict.fromkeys(keys):
        at = np.array([k == key for k in keys])
        b, d = batch.ravel()[at], draft_s.ravel()[at]
        nodes = np.unique(np.concatenate([b[b <= _EXACT], _grid(b[b > _EXACT])]))
        spent = np.interp(nodes, *_sorted(b, d))
        steps = [_step(on, source, hazard, shape, int(n), *key, float(s)) for n, s in zip(nodes, spent, strict=True)]
        columns = np.array([[s.tokens / n, 1 + s.verified / n, s.seconds] for s, n in zip(steps, nodes, strict=True)])
        columns[:, 2] = columns[:, 2] * (1 + OVERHEAD) - spent
        found[:, at] = [np.interp(b, nodes, column) for column in columns.T]
    tokens, positions, seconds = (row.reshape(batch.shape) for row in found)
    return tokens, positions, seconds


def _grid(batch: FloatArray) -> FloatArray:
    if batch.size < 12:
        return batch
    return np.unique(np.round(np.geomspace(batch.min(), batch.max(), 24)))


def _sorted(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    order = np.argsort(x)
    return x[order], y[order]


def _step(
    on: Machine,
    source: Source,
    hazard: tuple[float, ...],
    shape: PassShape,
    batch: int,
    context_len: float,
    kappa: int,
    draft_s: float,
) -> AdaptiveStep:
    if kappa > len(hazard):
        raise source.wrong(f"its acceptance ends at position {len(hazard)}")
    seen = _population(hazard[:kappa], source.adaptive or 0.0, source.coverage.best)
    cost = verify_cost(on, shape, batch=batch, context_len=context_len, most=batch * (1 + kappa))
    return adaptive_expectation(seen, seen, cost, batch, draft_s)
