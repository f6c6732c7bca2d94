"""Floor, ridge and verification width: what bandwidth and peak rate allow at best.

Source: chapter, the worked example on four H100s (floor) and "Long wrong drafts burn verification budget" (ridge).
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def decode_floor_s(bytes_per_rank: npt.ArrayLike, bandwidth: npt.ArrayLike) -> FloatArray:
    """Least time of a pass that must read `bytes_per_rank` at peak `bandwidth`, seconds.

    Parameters
    ----------
    bytes_per_rank : array_like
        Bytes that each rank streams: weights, and cached keys and values where counted.
    bandwidth : array_like
        Peak memory bandwidth, bytes/s, above 0.

    Notes
    -----
    A lower bound: no launch, collective, host or sampling time, and bandwidth is never reached in full.
    Source: chapter, "34.75/3350 = 10.37 ms".

    Examples
    --------
    >>> round(float(decode_floor_s(34.75e9, 3350e9)) * 1e3, 2)
    10.37
    """
    return np.asarray(bytes_per_rank, np.float64) / np.asarray(bandwidth, np.float64)


def cost_ratio(draft_floor: npt.ArrayLike, target_floor: npt.ArrayLike) -> FloatArray:
    """Cost c of one draft pass relative to one target pass.

    In the memory-bound regime this is a ratio of streamed bytes; equal tensor parallelism and bandwidth cancel.

    Notes
    -----
    A lower bound on the measured c: small drafts reach less of the bandwidth, and launch, collectives and sampling cost
    the same for both. Source: chapter, the equation for c.

    Examples
    --------
    >>> round(float(cost_ratio(1_235_746_816, 69_501_714_432)), 6)
    0.01778
    """
    return np.asarray(draft_floor, np.float64) / np.asarray(target_floor, np.float64)


def ridge_positions(flops: npt.ArrayLike, bandwidth: npt.ArrayLike, bytes_per_param: npt.ArrayLike) -> FloatArray:
    r"""Positions per pass at which matmuls of streamed weights turn from bandwidth-bound to compute-bound.

    Each streamed parameter costs `bytes_per_param` bytes and 2 FLOP per position:

    .. math:: n^* = \frac{F}{W} \cdot \frac{b}{2}

    Parameters
    ----------
    flops : array_like
        Peak dense matmul rate in the format of the arithmetic, FLOP/s.
    bandwidth : array_like
        Peak memory bandwidth, bytes/s.
    bytes_per_param : array_like
        Stored bytes per streamed parameter.

    Notes
    -----
    Source: chapter, "the roofline ridge of 295" (H100 SXM, bf16).

    Examples
    --------
    >>> round(float(ridge_positions(989e12, 3350e9, 2)))
    295
    """
    f, w, b = (np.asarray(x, np.float64) for x in (flops, bandwidth, bytes_per_param))
    return f / w * b / 2


def verified_positions(batch: npt.ArrayLike, kappa: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Positions B(kappa + 1) that one verify pass of `batch` requests scores.

    Notes
    -----
    Source: chapter, "at batch 16 is already 16 x 25 = 400 positions".

    Examples
    --------
    >>> int(verified_positions(16, 24))
    400
    """
    return np.asarray(batch, np.int64) * (np.asarray(kappa, np.int64) + 1)
