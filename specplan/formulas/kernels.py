r"""Laws of single kernels: seconds from shapes, with constants that were measured on a card.

Each is a floor that no byte explains plus what reading and multiplying take at the shares of the peaks that were
measured; `specplan.formulas.pass_kernels` adds them up to a pass.

Source: forms fitted to the kernel times that NVIDIA's AISimulate publishes (Apache-2.0); `benchmarks/fit_kernels.py`
fits the constants on half of the shapes and prints the error on the other half.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.formulas.parameters import experts_touched
from specplan.values.kernels import AttentionLaw, ExpertsLaw, GemmLaw, LatentLaw, RecurrentLaw, ReduceLaw

FloatArray = npt.NDArray[np.float64]

ACTIVATION_BYTES: Final = 2.0
"""Hidden states travel in 16 bits, whatever the weights' format."""

HEAD_UNIT: Final = 128
"""Size of a head in which per-head times are stated."""

EXPERT_TILE: Final = 128
"""Numbers to a multiple of which kernels of 4-bit experts pad the width of an expert on a rank."""


def gemm_s(
    law: GemmLaw,
    rows: npt.ArrayLike,
    outer: float,
    inner: float,
    weight_bytes: float,
    bandwidth: float,
    flops: float,
) -> FloatArray:
    r"""Time of multiplying `rows` positions by a weight of (`outer`, `inner`), seconds; 0 without rows.

    .. math:: t_0 + f(m)\Big[\Big(\frac{b}{s_W W}\Big)^p + \Big(\frac{2 m n k}{s_F F}\Big)^p + (k\,\tau)^p\Big]^{1/p}

    Parameters
    ----------
    law : GemmLaw
    rows : array_like
        m: positions.
    outer, inner : float
        n, k: on this rank.
    weight_bytes : float
        Bytes of the weight; the rows' operands in 16 bits are added.
    bandwidth, flops : float
        W, F: peaks.

    Notes
    -----
    The term along the inner dimension is what a block of few outputs takes however few bytes it reads.

    Examples
    --------
    >>> law = GemmLaw(fixed_s=3.2e-6, bandwidth_share=0.9, matmul_share=0.9)
    >>> round(float(gemm_s(law, 1, 4096, 4096, 2 * 4096**2, 3350e9, 989e12)) * 1e6, 1)
    14.3
    """
    m = np.asarray(rows, np.float64)
    moved = weight_bytes + ACTIVATION_BYTES * m * (outer + inner)
    read = moved / (bandwidth * law.bandwidth_share)
    multiplied = 2 * m * outer * inner / (flops * law.matmul_share)
    along = inner * law.inner_s
    p = law.power
    if p == 2.0:
        busy = np.sqrt(read * read + multiplied * multiplied + along * along)
    else:
        busy = (read**p + multiplied**p + along**p) ** (1 / p)
    if law.positions:
        at, factor = np.array(law.positions).T
        busy = busy * np.interp(m, at, factor)
    return np.where(m > 0, law.fixed_s + busy, 0.0)


def attention_s(
    law: AttentionLaw,
    batch: npt.ArrayLike,
    context_len: npt.ArrayLike,
    width: npt.ArrayLike,
    heads: float,
    kv_heads: float,
    row_bytes: float,
    head_dims: float,
    bandwidth: float,
    flops: float,
) -> FloatArray:
    r"""Time of attention of `width` queries for each of `batch` requests over `context_len` cached tokens, seconds.

    .. math:: t_0 + t_B B + t_r B h_{kv} + t_T T + \sqrt{\Big(\frac{b}{s(b) W}\Big)^2 + \Big(\frac{f}{s_F F}\Big)^2}

    Parameters
    ----------
    law : AttentionLaw
    batch, context_len, width : array_like
        B; T, cached tokens that a layer reads; queries per request.
    heads, kv_heads : float
        On this rank.
    row_bytes : float
        Bytes of one token's keys and values in the layer on this rank.
    head_dims : float
        Numbers of a key and of a value head together.
    bandwidth, flops : float
        Peaks.

    Examples
    --------
    >>> law = AttentionLaw(fixed_s=1e-5, request_s=0, row_s=0, token_s=0, matmul_share=0.5, shares=((1e3, 0.9),))
    >>> round(float(attention_s(law, 1, 8192, 1, 32, 8, 4096, 256, 3350e9, 989e12)) * 1e6, 1)
    21.1
    """
    b, t, w = (np.asarray(x, np.float64) for x in (batch, context_len, width))
    moved = b * t * row_bytes
    at, share = np.array(law.shares).T
    reached = np.exp(np.interp(np.log(np.maximum(moved, 1.0)), np.log(at), np.log(share)))
    read = moved / (bandwidth * reached)
    multiplied = 2 * b * w * t * heads * head_dims / (flops * law.matmul_share)
    rows = kv_heads * head_dims / (2 * HEAD_UNIT)
    busy = np.hypot(read, multiplied)
    return np.asarray(law.fixed_s + b * (law.request_s + law.row_s * rows) + law.token_s * t + busy)


def latent_s(
    law: LatentLaw,
    batch: npt.ArrayLike,
    context_len: npt.ArrayLike,
    width: npt.ArrayLike,
    weight_bytes: float,
    params: float,
    row_bytes: float,
    pair_flops: float,
    bandwidth: float,
    flops: float,
) -> FloatArray:
    r"""Time of a latent-attention block with its projections, seconds.

    .. math:: t_0 + t_B B + t_T T + \sqrt{\Big(\frac{b_W}{s_W W}\Big)^2 + \Big(\frac{2 m P}{s_F F}\Big)^2}
        + \sqrt{\Big(\frac{b_K}{s_K W}\Big)^2 + \Big(\frac{f}{s_A F}\Big)^2}

    Parameters
    ----------
    law : LatentLaw
    batch, context_len, width : array_like
        B, T, queries per request.
    weight_bytes, params : float
        Bytes and numbers of the block's projections on this rank.
    row_bytes : float
        Bytes of one cached latent.
    pair_flops : float
        FLOP per (query, key) pair of all heads on this rank.
    bandwidth, flops : float
        Peaks.

    Examples
    --------
    >>> law = LatentLaw(fixed_s=6e-5, bandwidth_share=0.8, request_s=0, token_s=0, kv_share=0.9, matmul_share=0.7,
    ...                 attention_share=0.5)
    >>> round(float(latent_s(law, 16, 2048, 1, 60e6, 30e6, 1152, 35e3, 3350e9, 989e12)) * 1e6, 1)
    95.2
    """
    b, t, w = (np.asarray(x, np.float64) for x in (batch, context_len, width))
    m = b * w
    weights = np.hypot(weight_bytes / (bandwidth * law.bandwidth_share), 2 * m * params / (flops * law.matmul_share))
    cache = np.hypot(b * t * row_bytes / (bandwidth * law.kv_share), m * t * pair_flops / (flops * law.attention_share))
    return law.fixed_s + law.request_s * b + law.token_s * t + weights + cache


def experts_s(
    law: ExpertsLaw,
    tokens: npt.ArrayLike,
    count: float,
    per_token: float,
    expert_bytes: float,
    expert_params: float,
    hidden: float,
    bandwidth: float,
    flops: float,
) -> FloatArray:
    r"""Time of a layer's fused routed experts, seconds; 0 without tokens.

    .. math:: t_0 + f\Big(\frac{m K}{N_0}\Big)\Big[N\Big(\frac{b_e}{s_W W} + t_e\Big) + \frac{2 m K P_e}{s_F F}
        + t_r\, m K \frac{h}{1024}\Big]

    with N of the :math:`N_0` experts touched by :math:`1 + g(m - 1)` tokens.

    Parameters
    ----------
    law : ExpertsLaw
    tokens : array_like
        m.
    count, per_token : float
        Experts of the layer; K of them per token.
    expert_bytes, expert_params : float
        Bytes and numbers of one expert on this rank (0 < fraction of it under tensor parallelism).
    hidden : float
        h.
    bandwidth, flops : float
        Peaks.

    Examples
    --------
    >>> law = ExpertsLaw(fixed_s=4e-5, bandwidth_share=0.9, expert_s=0, matmul_share=0.4, row_s=2e-8, spread=1)
    >>> [round(float(experts_s(law, m, 128, 8, 2.4e6, 1.2e6, 2048, 3350e9, 989e12)) * 1e6) for m in (1, 16, 64)]
    [47, 112, 164]
    """
    m = np.asarray(tokens, np.float64)
    touched = experts_touched(count, per_token, 1 + law.spread * np.maximum(m - 1, 0.0))
    read = touched * (expert_bytes / (bandwidth * law.bandwidth_share) + law.expert_s)
    multiplied = 2 * m * per_token * expert_params / (flops * law.matmul_share)
    busy = read + multiplied + law.row_s * m * per_token * hidden / 1024
    if law.rows:
        at, factor = np.log(np.array(law.rows)).T
        busy = busy * np.exp(np.interp(np.log(np.maximum(m, 1e-9) * per_token / count), at, factor))
    return np.where(m > 0, law.fixed_s + busy, 0.0)


def recurrent_s(law: RecurrentLaw, state_bytes: npt.ArrayLike, bandwidth: float) -> FloatArray:
    """Time of a recurrent mixer's kernels that move `state_bytes` of states in all, seconds.

    >>> round(float(recurrent_s(RecurrentLaw(fixed_s=8e-6, bandwidth_share=0.5), 6.3e6, 3350e9)) * 1e6, 1)
    11.8
    """
    return law.fixed_s + np.asarray(state_bytes, np.float64) / (bandwidth * law.bandwidth_share)


def reduce_s(law: ReduceLaw, message_bytes: npt.ArrayLike, ranks: int) -> FloatArray:
    """Time of one sum over `ranks` devices, seconds, between measured messages and numbers of ranks; 0 for one rank.

    Beyond the largest measured number of ranks, time grows with the logarithm of the ranks.

    >>> law = ReduceLaw(ranks={2: ((8192, 4.4e-6), (1048576, 12.4e-6)), 8: ((8192, 5.3e-6), (1048576, 19.4e-6))})
    >>> [round(float(reduce_s(law, 8192, n)) * 1e6, 2) for n in (1, 2, 4, 8)]
    [0.0, 4.4, 4.83, 5.3]
    """
    m = np.asarray(message_bytes, np.float64)
    if ranks == 1:
        return np.zeros_like(m)
    known = sorted(law.ranks)
    times = []
    for n in known:
        at, seconds = np.log(np.array(law.ranks[n])).T
        x = np.log(np.maximum(m, 1.0))
        # Past the largest message the last slope goes on: there links are what counts.
        slope = (seconds[-1] - seconds[-2]) / (at[-1] - at[-2])
        times.append(np.interp(x, at, seconds) + slope * np.maximum(x - at[-1], 0.0))
    if ranks >= known[-1]:
        return np.asarray(np.exp(times[-1]) * np.log2(ranks) / np.log2(known[-1]))
    above = next(i for i, n in enumerate(known) if n >= ranks)
    if known[above] == ranks or above == 0:
        return np.asarray(np.exp(times[above]))
    part = np.log(ranks / known[above - 1]) / np.log(known[above] / known[above - 1])
    return np.asarray(np.exp((1 - part) * times[above - 1] + part * times[above]))
