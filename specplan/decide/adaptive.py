"""Adaptive verification on named hardware: step costs by width from the one time model."""

import numpy as np

from specplan.decide.pricing import Pair
from specplan.formulas.adaptive import WidthCost
from specplan.formulas.step import pass_shape
from specplan.timing.step_time import host_time, pass_time

SIZES = np.unique(np.concatenate([[1, 2, 4], np.arange(8, 256, 8), np.arange(256, 513, 16)]))
"""Token counts whose graphs vLLM captures by default (0.32): a narrower step is padded to the next."""


def verify_cost(pair: Pair, *, batch: int, context_len: int, most: int) -> WidthCost:
    """Seconds of a drafted step's pass and host time by its tokens, for a batch of given size and context.

    Parameters
    ----------
    pair : Pair
        Target, card, ranks, engine and layer.
    batch, context_len : int
        Requests per step; cached tokens that each reads.
    most : int
        Tokens of the widest step that is asked for.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> pair = Pair(target=load_model("llama3-8b"), accelerator=load_accelerator("h100-sxm"), layer="modelled")
    >>> cost = verify_cost(pair, batch=4, context_len=1024, most=32)
    >>> bool(cost.at(32) > cost.at(4) > 0)
    True
    """
    on, shape = pair.machine, pass_shape(pair.target, pair.tp, pair.kv_format)
    widths = SIZES[max(most, 8) >= SIZES]
    beyond = 2 * int(SIZES[-1])

    tokens = np.append(widths, [int(SIZES[-1]), beyond])
    host_s = host_time(on, batch, drafted=True)
    seconds = pass_time(on, shape, batch, np.maximum(tokens / batch, 1.0), context_len).total_s + host_s
    slope = max(float(seconds[-1] - seconds[-2]) / (beyond - int(SIZES[-1])), 0.0)
    return WidthCost.of(widths, seconds[:-2], slope)
