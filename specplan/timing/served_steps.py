"""A user's own server calibrates: what its metrics or a bench result say of steps, as tables for the measured layer.

The mean inter-token latency of a speculating server is the time of its step, since all tokens of a step leave together;
divided by the time per output token it gives the tokens per step. A plain server's two latencies are one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from specplan.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPoint:
    """One load of a server: requests running, mean step times with and without drafts, what the drafts were.

    Attributes
    ----------
    batch : float
        Mean requests per step.
    plain_s, drafted_s : float or None
        Mean inter-token latency without and with speculation, seconds; at least one.
    kappa : float
        Mean drafted tokens per step of the drafted one.
    context_len : float
        Mean cached tokens per request, where known.
    """

    batch: float
    plain_s: float | None = None
    drafted_s: float | None = None
    kappa: float = 0.0
    context_len: float = 0.0


def tokens_per_step(itl_s: float, tpot_s: float) -> float:
    r"""Tokens per step of a speculating server, :math:`E = \mathrm{ITL} / \mathrm{TPOT}`; 1 for a plain one.

    Raises
    ------
    InputError
        For latencies that are not above 0, or a token that takes longer than the step it came from.

    Examples
    --------
    >>> round(tokens_per_step(9.18e-3, 4.37e-3), 2)
    2.1
    """
    if not (isfinite(itl_s) and isfinite(tpot_s) and itl_s > 0 and tpot_s > 0):
        raise InputError(f"inter-token latency {itl_s!r} s and time per output token {tpot_s!r} s: expected above 0")
    if itl_s < tpot_s * 0.98:
        raise InputError(
            f"inter-token latency {itl_s:g} s is below the time per output token {tpot_s:g} s: these are swapped, or "
            "of different requests"
        )
    return max(itl_s / tpot_s, 1.0)


def served_rows(points: Sequence[ServedPoint]) -> tuple[tuple[float, float, float, float], ...]:
    """Rows (batch, positions per request, context, seconds) of the measured layer: plain steps and drafted ones.

    Raises
    ------
    InputError
        Without points, or with a figure that makes no sense.

    Examples
    --------
    >>> served_rows([ServedPoint(batch=8, plain_s=0.0089, drafted_s=0.0121, kappa=3)])
    ((8.0, 1.0, 0.0, 0.0089), (8.0, 4.0, 0.0, 0.0121))
    """
    rows: list[tuple[float, float, float, float]] = []
    for p in points:
        where = f"a server's point at batch {p.batch:g}"
        for name, value in (("batch", p.batch), ("plain step", p.plain_s), ("drafted step", p.drafted_s)):
            if value is not None and not (isfinite(value) and value > 0):
                raise InputError(f"{where}: its {name} is {value!r}, expected a number above 0")
        if p.plain_s is None and p.drafted_s is None:
            raise InputError(f"{where}: it has neither a plain nor a drafted step time")
        if p.drafted_s is not None and not p.kappa > 0:
            raise InputError(f"{where}: a drafted step needs its draft length (kappa {p.kappa:g})")
        if p.plain_s is not None:
            rows.append((float(p.batch), 1.0, float(p.context_len), float(p.plain_s)))
        if p.drafted_s is not None:
            rows.append((float(p.batch), p.kappa + 1.0, float(p.context_len), float(p.drafted_s)))
    if not rows:
        raise InputError("a server's step table needs at least one point of batch and inter-token latency")
    return tuple(rows)
