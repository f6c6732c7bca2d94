"""Speed of a draft source inside an engine: its steps are counted, its parts are not timed apart."""

from dataclasses import dataclass
from typing import Final

from specplan.decide.measured import MeasuredSource

NOT_MODELED: Final = (
    "prefill, tokenising and loading",
    "time of drafting, verifying and host work apart: the engine reports whole steps",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """One source on one set of prompts, as an engine ran it.

    Attributes
    ----------
    measured : MeasuredSource
        Acceptance, coverage, E.
    tokens_per_s, plain_tokens_per_s : float
        Emitted tokens over the wall time of decode steps, each step's time shared among its requests; the same of plain
        decoding on the same prompts.
    """

    measured: MeasuredSource
    tokens_per_s: float
    plain_tokens_per_s: float

    @property
    def speedup(self) -> float:
        """Measured tokens per second over plain decoding's."""
        return self.tokens_per_s / self.plain_tokens_per_s

    @property
    def step_cost(self) -> float | None:
        """Measured time of a mean step over a plain one: tokens per step over speedup.

        >>> one = MeasuredSource(source="ngram", tokens_per_step=2.0)
        >>> EngineSpeed(measured=one, tokens_per_s=75.0, plain_tokens_per_s=50.0).step_cost
        1.3333333333333333
        """
        e = self.measured.tokens_per_step
        return None if e is None else e / self.speedup

    @property
    def sentence(self) -> str:
        """What to take from it, in one sentence."""
        m = self.measured
        who = f"{m.source} on {m.tag}" if m.tag else m.source
        if not m.coverage:
            return f"{who}: never drafted, so it gains nothing ({self.speedup:.2f}x measured)."
        alpha = "unknown" if m.alpha.value is None else f"{m.alpha.value:.3f}"
        return (
            f"{who}: {'pays' if self.speedup > 1 else 'does not pay'}, {self.speedup:.2f}x measured, with alpha "
            f"{alpha} at coverage {m.coverage:.0%}, {m.tokens_per_step:.2f} tokens per step and a step of "
            f"{self.step_cost:.2f} plain ones."
        )
