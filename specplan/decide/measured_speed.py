"""Measured speed of a draft source beside the speed that its measured parts predict, and where the two part.

The parts are measured apart from the run: times of single passes by width, and of one draft pass; the acceptance comes
from the run's steps. What the formula makes of them is then compared with the run's own clock.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from specplan.decide.documents import measured_source
from specplan.decide.measured import MeasuredSource
from specplan.decide.served_speed import is_impossible, verdict_of
from specplan.decide.source import Placed, placed
from specplan.errors import InputError
from specplan.formulas.emitted import expected_emitted

NOT_MODELED: Final = ("prefill, tokenising and loading", "change of pass times with the context within a run")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Times of single passes, seconds.

    Attributes
    ----------
    widths, target_s : tuple
        Positions per row, rising from 1, and the target's time for a pass of so many.
    draft_s : float or None
        One pass of the draft model; None for a source without one.
    """

    widths: tuple[int, ...]
    target_s: tuple[float, ...]
    draft_s: float | None = None

    def of_width(self, width: float) -> float:
        """Target time of a pass of `width` positions, interpolated between the measured widths.

        >>> PassTimes(widths=(1, 5), target_s=(1.0, 1.4)).of_width(3)
        1.2
        """
        return float(np.interp(width, self.widths, self.target_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """One source on one set of prompts.

    Attributes
    ----------
    measured : MeasuredSource
        Acceptance, coverage, E.
    kappa : int
        Tokens drafted per step at most.
    tokens_per_s, plain_tokens_per_s : float
        Emitted tokens over the time of the steps; the same of plain decoding on the same prompts.
    draft_s, verify_s, host_s : float
        Mean seconds of a step spent drafting, in the target pass, and elsewhere.
    c : float or None
        One draft pass over one plain target pass, timed apart; None without a draft model.
    draft_step_ratio : float
        Mean drafting time of a step over one plain target pass (matchers included).
    widths : tuple of (int, float)
        Target pass of each width that was timed over a plain one.
    v : float
        Target pass of the mean width of a drafted step over a plain one, timed apart.
    predicted_emitted : float
        E over all steps from coverage, draft lengths and the alpha of each, by the formula; the alphas are those of the
        other half of the requests, where there are two.
    predicted_step_s : float
        Time of a step from single-pass times, and of a matcher from the other half of the requests.
    speedup_low, speedup_high : float or None
        Interval (95%) over requests, each paired with itself under plain decoding; None of a single request.
    """

    measured: MeasuredSource
    kappa: int
    tokens_per_s: float
    plain_tokens_per_s: float
    draft_s: float
    verify_s: float
    host_s: float
    c: float | None
    draft_step_ratio: float
    v: float
    widths: tuple[tuple[int, float], ...]
    predicted_emitted: float
    predicted_step_s: float
    speedup_low: float | None = None
    speedup_high: float | None = None

    @property
    def impossible(self) -> bool:
        """Whether the speedup lies above the tokens per step: then a drafted step was faster than a plain one."""
        return is_impossible(self.speedup, self.speedup_low, self.measured.tokens_per_step)

    @property
    def verdict(self) -> str:
        """``pays``, ``does not pay``, ``uncertain`` or ``impossible``, from the interval; uncertain without one."""
        return verdict_of(self.speedup, self.speedup_low, self.speedup_high, self.measured.tokens_per_step)

    @property
    def speedup(self) -> float:
        """Measured tokens per second over plain decoding's."""
        return self.tokens_per_s / self.plain_tokens_per_s

    @property
    def predicted_tokens_per_s(self) -> float:
        """Predicted E over predicted step time."""
        return self.predicted_emitted / self.predicted_step_s

    @property
    def predicted_speedup(self) -> float:
        """Predicted tokens per second over plain decoding's measured ones."""
        return self.predicted_tokens_per_s / self.plain_tokens_per_s

    @property
    def emitted_ratio(self) -> float:
        """Measured E over predicted E: what an alpha that is constant along a draft misses."""
        return (self.measured.tokens_per_step or math.nan) / self.predicted_emitted

    @property
    def time_ratio(self) -> float:
        """Predicted step time over measured: what times of single passes miss."""
        return self.predicted_step_s / (self.draft_s + self.verify_s + self.host_s)

    @property
    def sentence(self) -> str:
        """What to take from it, in one sentence."""
        m = self.measured
        who = f"{m.source} on {m.tag}" if m.tag else m.source
        if not m.coverage:
            return f"{who}: never drafted, so it costs {1 - self.speedup:.1%} and gains nothing."
        alpha = "unknown" if m.alpha.value is None else f"{m.alpha.value:.3f}"
        if self.impossible:
            return (
                f"{who}: {self.speedup:.2f}x at {m.tokens_per_step:.2f} tokens per step is impossible: a drafted step "
                "would be faster than a plain one; the machine's speed changed (other load, clocks), measure again."
            )
        between = "one request" if self.speedup_low is None else f"{self.speedup_low:.2f}-{self.speedup_high:.2f}"
        gap = self.predicted_tokens_per_s / self.tokens_per_s - 1
        return (
            f"{who}: {self.verdict}, {self.speedup:.2f}x ({between}) measured, {self.predicted_speedup:.2f}x predicted "
            f"({gap:+.1%}), "
            f"with alpha {alpha} at coverage {m.coverage:.0%} and {m.tokens_per_step:.2f} tokens per step."
        )


def measured_speed(
    measured: MeasuredSource,
    *,
    kappa: int,
    passes: PassTimes,
    plain_tokens_per_s: float,
    plain_host_s: float,
    nodes: bool = False,
    halves: tuple[MeasuredSource, MeasuredSource] | None = None,
    paired: tuple[float, float, float] | None = None,
) -> MeasuredSpeed:
    """Put a run's steps and the times of single passes together.

    Parameters
    ----------
    measured : MeasuredSource
        With a tally that holds times.
    kappa : int
        Tokens drafted per step at most.
    passes : PassTimes
        Timed apart from the run, at its batch and mean context.
    plain_tokens_per_s, plain_host_s : float
        Plain decoding on the same prompts: tokens per second, and host seconds per step.
    nodes : bool
        Whether drafts are trees: then the E of the other half stands for the formula's, which is for chains.
    halves : pair of MeasuredSource, optional
        Two halves of the requests, each predicted by what the other measured; without them nothing is independent.
    paired : tuple of float, optional
        `specplan.formulas.speedup.paired_speedup` of the requests.

    Raises
    ------
    InputError
        When the run recorded no steps or no times.

    Notes
    -----
    Predicted E sums the formula over the measured draft lengths, each with its own measured alpha (a suffix match that
    drafts more is also accepted more often). Predicted time sums the pass of each width, the drafting (k draft passes,
    or the matcher's time as the other half measured it, for no pass predicts it), and plain decoding's host time.
    """
    t = measured.tally
    if t is None or not t.steps or t.draft_s is None or t.verify_s is None or t.host_s is None:
        raise InputError(f"{measured.source}: no timed steps to compare with")
    if t.drafts is None or t.emitted_tokens is None:
        raise InputError(f"{measured.source}: steps without counts")
    per_step = [t.draft_s / t.steps, t.verify_s / t.steps, t.host_s / t.steps]
    shares = [row.drafts / t.steps for row in measured.lengths]
    plain_share = 1.0 - sum(shares)
    one = passes.of_width(1)
    widths = [row.drafted + 1 for row in measured.lengths]
    verify = plain_share * one + sum(share * passes.of_width(w) for share, w in zip(shares, widths, strict=True))
    crossed = [(measured, measured)] if halves is None else [halves, halves[::-1]]
    weights = np.array([_steps(m) for m, _ in crossed], dtype=np.float64)
    matcher_s = float(np.average([_draft_s(other) for _, other in crossed], weights=weights))
    emitted = float(np.average([_predicted_emitted(m, other, nodes=nodes) for m, other in crossed], weights=weights))
    draft = matcher_s if passes.draft_s is None else kappa * passes.draft_s
    mean_len = measured.draft_len or 0.0
    return MeasuredSpeed(
        measured=measured,
        kappa=kappa,
        tokens_per_s=t.emitted_tokens / (t.draft_s + t.verify_s + t.host_s),
        plain_tokens_per_s=plain_tokens_per_s,
        draft_s=per_step[0],
        verify_s=per_step[1],
        host_s=per_step[2],
        c=None if passes.draft_s is None else passes.draft_s / one,
        draft_step_ratio=per_step[0] / one,
        v=passes.of_width(mean_len + 1) / one,
        widths=tuple((w, t / one) for w, t in zip(passes.widths, passes.target_s, strict=True)),
        predicted_emitted=emitted,
        predicted_step_s=draft + verify + plain_host_s,
        speedup_low=None if paired is None or math.isnan(paired[1]) else paired[1],
        speedup_high=None if paired is None or math.isnan(paired[2]) else paired[2],
    )


def _steps(measured: MeasuredSource) -> int:
    return 0 if measured.tally is None else measured.tally.steps or 0


def _draft_s(measured: MeasuredSource) -> float:
    """Mean drafting time of a step."""
    return 0.0 if measured.tally is None else (measured.tally.draft_s or 0.0) / max(_steps(measured), 1)


def _predicted_emitted(measured: MeasuredSource, other: MeasuredSource, *, nodes: bool) -> float:
    """E of one half's draft lengths at the acceptance of the other, pooled for lengths that the other never drafted."""
    if nodes:
        return other.tokens_per_step or 1.0
    alphas = {row.drafted: row.alpha for row in other.lengths}
    found = [(row.drafts, row.drafted, alphas.get(row.drafted, other.alpha.value)) for row in measured.lengths]
    if any(alpha is None for _, _, alpha in found):
        return other.tokens_per_step or 1.0
    if not found:
        return 1.0
    drafts, lengths, acceptance = (np.array(column) for column in zip(*found, strict=True))
    emitted = expected_emitted(acceptance.astype(np.float64), lengths)
    return 1.0 + float(drafts @ (emitted - 1.0)) / _steps(measured)


def plane_source(speed: MeasuredSpeed) -> Placed:
    """The measured source as a point of the plane.

    A matcher costs no draft pass: c is 0, and its host time is what every step pays.
    """
    source = measured_source(
        speed.measured,
        c=0.0 if speed.c is None else speed.c,
        verify=speed.v,
        overhead=speed.draft_step_ratio if speed.c is None else None,
        widths=speed.widths,
        kappa=speed.kappa,
    )
    return placed(source, kappa=speed.kappa)
