"""The roofline of a pass: the longer of reading and computing at the card's peaks. No machine is faster.

It is the chapter's: weights (of routed experts those that the positions touch) and cache are read once, every position
multiplies the weights of one token, and up to the ridge the computing hides behind the reading.
"""

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.formulas import parameters, roofline
from specplan.formulas.step import FloatArray, PassShape, pass_load
from specplan.values.hardware import Accelerator
from specplan.values.model import Model

NATIVE = ("fp8", "int8", "nvfp4", "mxfp4")
"""Quantised formats that cards multiply as they are stored, where their profile has a rate."""


def arithmetic_flops(model: Model, accelerator: Accelerator, native: tuple[str, ...] = NATIVE) -> tuple[float, str]:
    """Peak rate at which the card multiplies the model's weights, and the format: weight-only ones in 16 bits.

    Raises
    ------
    InputError
        When the profile has no rate that fits.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> arithmetic_flops(load_model("llama3.1-8b"), load_accelerator("h100-sxm"))
    (989000000000000.0, 'bfloat16')
    """
    stored = (model.quantization or model.weight_format).name
    for name in native:
        if stored.startswith(name) and name in accelerator.flops:
            return accelerator.flops[name], name
    for name in (model.weight_format.name, "bfloat16", "float16", "float32"):
        if name in accelerator.flops:
            return accelerator.flops[name], name
    raise InputError(f"{accelerator.name}: the profile has no matmul rate for {model.weight_format.name} weights")


def ridge(model: Model, accelerator: Accelerator, native: tuple[str, ...] = NATIVE) -> float | None:
    """Positions per pass at which the model's matmuls take as long as reading its weights; None without a known rate.

    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> round(ridge(load_model("llama3-70b"), load_accelerator("h100-sxm")), 1)
    295.2
    """
    try:
        flops, _ = arithmetic_flops(model, accelerator, native)
    except InputError:
        return None
    bytes_per_param = parameters.streamed_bytes(model) / parameters.streamed_params(model)
    return float(roofline.ridge_positions(flops, accelerator.bandwidth, bytes_per_param))


def roofline_s(
    shape: PassShape,
    accelerator: Accelerator,
    batch: npt.ArrayLike,
    width: npt.ArrayLike = 1,
    context_len: npt.ArrayLike = 0,
    native: tuple[str, ...] = NATIVE,
) -> FloatArray:
    r"""Seconds of a pass of `width` positions for each of `batch` requests at the card's peaks.

    .. math:: t = \max\Big(\frac{M_w(Bn) + M_{kv}(B)}{W},\ \frac{Bn}{R} \cdot \frac{M_w(1)}{W}\Big)

    with n positions, W the bandwidth and R the ridge; without a known rate only bytes count.

    Examples
    --------
    >>> from specplan.formulas.step import pass_shape
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> shape = pass_shape(load_model("llama3-70b"), 4)
    >>> [round(float(t) * 1e3, 3) for t in roofline_s(shape, load_accelerator("h100-sxm"), 16, [1, 18, 25])]
    [10.373, 10.373, 14.055]
    """
    b, n = np.asarray(batch, np.float64), np.asarray(width, np.float64)
    load = pass_load(shape, b, n, context_len)
    cache = pass_load(shape, b, 1, context_len).kv_bytes
    read_s = (load.weight_bytes + cache) / accelerator.bandwidth
    # A head that borrows its target's output matrix multiplies that one too.
    one_s = pass_load(shape, 1, 1, 0).weight_bytes / accelerator.bandwidth
    border = ridge(shape.model, accelerator, native)
    computed_s = np.zeros_like(b * n) if border is None else b * n / border * one_s
    return np.asarray(np.maximum(read_s, computed_s))
