"""Speed of a draft source on a running server at one concurrency, beside plain decoding."""

import math
from dataclasses import dataclass
from typing import Final

from specplan.decide.measured import MeasuredSource

NOT_MODELED: Final = (
    "prefill, queueing and the network before the first token",
    "time of drafting, verifying and host work apart: a server tells whole steps",
    "answers at another concurrency, context or draft length than were sent",
)


def is_impossible(speedup: float, low: float | None, most: float | None) -> bool:
    """Whether a speedup lies above the tokens per step: then a drafted step was faster than a plain one.

    >>> is_impossible(2.0, None, 1.5), is_impossible(2.0, 1.4, 1.5)
    (True, False)
    """
    return (speedup / 1.05 if low is None else low) > (most or math.inf)


def verdict_of(speedup: float, low: float | None, high: float | None, most: float | None) -> str:
    """``pays``, ``does not pay``, ``uncertain`` or ``impossible``, from the interval; uncertain without one.

    >>> verdict_of(1.3, 1.1, 1.5, 2.0), verdict_of(1.3, 0.9, 1.9, 2.0), verdict_of(1.3, None, None, 2.0)
    ('pays', 'uncertain', 'uncertain')
    """
    if is_impossible(speedup, low, most):
        return "impossible"
    if low is None or high is None:
        return "uncertain"
    return "pays" if low > 1 else "does not pay" if high < 1 else "uncertain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSpeed:
    """What a server with speculation did at one concurrency, beside plain decoding where that was asked too.

    Attributes
    ----------
    concurrency : int
        Requests in flight.
    measured : MeasuredSource
        Acceptance, coverage, E, by the server's counters.
    tokens_per_s, plain_tokens_per_s : float or None
        Of one request: tokens behind its first over the seconds they took, over all requests.
    step_s, plain_step_s : float or None
        Mean seconds of a step.
    batch, plain_batch : float or None
        Mean requests in flight, as the steps of each request meet them.
    speedup_low, speedup_high : float or None
        Interval (95%) over rounds, each paired with the same requests under plain decoding.
    """

    concurrency: int
    measured: MeasuredSource
    tokens_per_s: float | None
    plain_tokens_per_s: float | None = None
    step_s: float | None = None
    plain_step_s: float | None = None
    batch: float | None = None
    plain_batch: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None

    @property
    def speedup(self) -> float | None:
        """Tokens per second over plain decoding's; None where that was not asked."""
        if self.tokens_per_s is None or not self.plain_tokens_per_s:
            return None
        return self.tokens_per_s / self.plain_tokens_per_s

    @property
    def verdict(self) -> str | None:
        """As `verdict_of`; None without a speedup."""
        if self.speedup is None:
            return None
        return verdict_of(self.speedup, self.speedup_low, self.speedup_high, self.measured.tokens_per_step)

    @property
    def step_ratio(self) -> float | None:
        """A mean step of the drafting server over a plain one."""
        return self.step_s / self.plain_step_s if self.step_s and self.plain_step_s else None

    @property
    def sentence(self) -> str:
        """What to take from it, in one sentence."""
        m = self.measured
        where = f"{m.source}{f' on {m.tag}' if m.tag else ''}, {self.concurrency} at a time"
        emitted = "unknown" if m.tokens_per_step is None else f"{m.tokens_per_step:.2f}"
        alpha = "unknown" if m.alpha.value is None else f"{m.alpha.value:.3f}"
        if self.speedup is None:
            return f"{where}: alpha {alpha}, {emitted} tokens per step; no plain decoding beside it, so no speedup."
        if self.verdict == "impossible":
            return (
                f"{where}: {self.speedup:.2f}x at {emitted} tokens per step is impossible: a drafted step would be "
                "faster than a plain one; the two servers differ in more than the drafts, or other requests ran."
            )
        low, high = self.speedup_low, self.speedup_high
        between = "one round" if low is None or high is None else f"{low:.2f}-{high:.2f}"
        return (
            f"{where}: {self.verdict}, {self.speedup:.2f}x ({between}) measured, with alpha {alpha} and "
            f"{emitted} tokens per step."
        )
