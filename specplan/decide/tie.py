"""What one draft source must reach to equal another: in acceptance, coverage, cost or draft length."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from specplan.decide.source import Placed, longest, source_speedup
from specplan.formulas.emitted import FloatArray, emitted_of_drafted_steps, emitted_over_all_steps
from specplan.formulas.indifference import (
    Reach,
    alpha_for_emitted,
    c_for_emitted,
    continuation_for_emitted,
    coverage_for_speedup,
    hazard_scale_for_emitted,
    hit_for_emitted,
    reach,
)
from specplan.formulas.speedup import step_cost

KAPPA_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One quantity of the challenger, the rest of it as given.

    Attributes
    ----------
    quantity : str
        ``alpha``, ``hazard scale``, ``hit``, ``continuation``, ``coverage``, ``c`` or ``kappa``.
    value : float
        What it must be; NaN where nothing in its range is enough.
    given : float or None
        What it is now, where it was given.
    why : str
        Empty, or why there is no value.
    """

    quantity: str
    value: float
    given: float | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """The incumbent's speedup, the challenger's (if its acceptance is given), and what would make them equal."""

    incumbent: Placed
    challenger: Placed
    speedup: float
    challenger_speedup: float | None
    needed_emitted: float
    answers: tuple[Answer, ...]

    @property
    def is_reachable(self) -> bool:
        """Whether any single quantity of the challenger can make up the difference (or it is ahead already)."""
        ahead = self.challenger_speedup is not None and self.challenger_speedup >= self.speedup
        return ahead or any(not np.isnan(a.value) for a in self.answers)


def tie(incumbent: Placed, challenger: Placed) -> Tie:
    """Solve for each quantity of `challenger` that makes its speedup that of `incumbent`.

    Parameters
    ----------
    incumbent : Placed
        With an acceptance.
    challenger : Placed
        With or without; what is solved for depends on what is given: an acceptance of its own form always, and
        coverage, c and draft length where the acceptance is known.

    Examples
    --------
    >>> from specplan.decide.source import placed
    >>> from specplan.propose.spelling import read_source
    >>> draft = placed(read_source("1b:c=.164664,alpha=.7"))
    >>> found = tie(draft, placed(read_source("ngram")))
    >>> [(a.quantity, round(a.value, 4)) for a in found.answers]
    [('alpha', 0.4304)]
    """
    b = challenger
    s = float(source_speedup(incumbent))
    needed = needed_emitted(b, s)
    answers = [_acceptance(b, needed)] if b.source.hit is None else _matcher(b, needed)
    known = None
    if b.source.has_acceptance:
        known = float(source_speedup(b))
        answers += [_coverage(b, s), _c(b, s), _kappa(b, s)]
    return Tie(
        incumbent=incumbent,
        challenger=b,
        speedup=s,
        challenger_speedup=known,
        needed_emitted=needed,
        answers=tuple(a for a in answers if a is not None),
    )


def needed_emitted(source: Placed, s: float) -> float:
    """E of a drafted step at which `source` has speedup `s`; NaN where it never drafts.

    >>> from specplan.decide.source import placed
    >>> from specplan.propose.spelling import read_source
    >>> round(needed_emitted(placed(read_source("ngram:coverage=.5")), 1.5), 12)
    2.0
    """
    drafting = 1.0 if source.drafts_always else source.coverage
    all_steps = s * step_cost(source.kappa, source.c, source.verify, drafting, source.overhead)
    return float(emitted_of_drafted_steps(source.coverage, all_steps, source.kappa))


def coverage_curve(incumbent: Placed, challenger: Placed, coverage: FloatArray) -> FloatArray:
    """The alpha that a challenger needs at each coverage to tie, its draft length and costs as given.

    >>> from specplan.decide.source import placed
    >>> from specplan.propose.spelling import read_source
    >>> draft, ngram = placed(read_source("1b:c=.164664,alpha=.7")), placed(read_source("ngram"))
    >>> coverage_curve(draft, ngram, np.array([0.2, 0.5, 1.0])).round(3).tolist()
    [nan, 0.662, 0.43]
    """
    s = float(source_speedup(incumbent))
    b = challenger
    drafting = np.ones_like(coverage) if b.drafts_always else coverage
    all_steps = s * step_cost(b.kappa, b.c, b.verify, drafting, b.overhead)
    return alpha_for_emitted(emitted_of_drafted_steps(coverage, all_steps, b.kappa), b.kappa)


def _words(status: int, most: str) -> str:
    if status == Reach.ABOVE:
        return most
    if status == Reach.BELOW:
        return "it ties or wins with no drafted token accepted"
    return "it never drafts" if status == Reach.UNKNOWN else ""


def _acceptance(b: Placed, needed: float) -> Answer:
    if b.source.hazard:
        h = b.source.hazard[: b.kappa]
        top = float(b.emitted()) if max(h) == 0 else _scaled(h)
        return Answer(
            quantity="hazard scale",
            value=float(hazard_scale_for_emitted(needed, h)),
            given=1.0,
            why=_words(int(reach(needed, 1.0, top)), "not even with its best position always accepted"),
        )
    return Answer(
        quantity="alpha",
        value=float(alpha_for_emitted(needed, b.kappa)),
        given=b.alpha,
        why=_words(int(reach(needed, 1.0, b.kappa + 1.0)), "not even with every drafted token accepted"),
    )


def _scaled(h: tuple[float, ...]) -> float:
    """E where the hazard is scaled until its largest entry is 1."""
    return float(1.0 + np.cumprod(np.asarray(h) / max(h)).sum())


def _matcher(b: Placed, needed: float) -> list[Answer | None]:
    hit, rate = b.source.hit or 0.0, b.source.continuation or 0.0
    first = float(hit_for_emitted(needed, rate, b.kappa))
    later = float(continuation_for_emitted(needed, hit, b.kappa))
    return [
        Answer(
            quantity="hit", value=first, given=hit, why="" if first == first else "no first-token hit rate is enough"
        ),
        Answer(
            quantity="continuation", value=later, given=rate, why="" if later == later else "no continuation is enough"
        ),
    ]


def _coverage(b: Placed, s: float) -> Answer:
    emitted = float(b.emitted())
    if b.drafts_always:
        cost = float(step_cost(b.kappa, b.c, b.verify, 1.0, b.overhead))
        share = (s * cost - 1.0) / (emitted - 1.0) if emitted > 1.0 else np.nan
        value = share if 0 <= share <= 1 else np.nan
    else:
        value = float(coverage_for_speedup(s, emitted, b.kappa, b.c, b.verify, b.overhead))
    return Answer(
        quantity="coverage",
        value=value,
        given=b.coverage,
        why="" if value == value else "not even with a draft in every step",
    )


def _c(b: Placed, s: float) -> Answer:
    emitted = float(b.emitted())
    if b.drafts_always:
        all_steps = float(emitted_over_all_steps(b.coverage, emitted))
        found = (all_steps / s - b.verify - b.overhead) / b.kappa
        value = found if found >= 0 else np.nan
    else:
        value = float(c_for_emitted(emitted, s, b.kappa, b.verify, b.coverage, b.overhead))
    return Answer(quantity="c", value=value, given=b.c, why="" if value == value else "not even as a free draft")


def _kappa(b: Placed, s: float) -> Answer | None:
    """Shortest draft length that is enough, the verify factor held at the source's own."""
    if b.nodes is not None or not (b.source.alpha or b.source.hazard or b.source.hit is not None):
        return None
    most = longest(b.source, KAPPA_MAX)
    lengths = np.arange(1, most + 1)
    enough = np.flatnonzero(source_speedup(b, kappa=lengths) >= s * (1 - 1e-12))
    value = float(lengths[enough[0]]) if enough.size else np.nan
    return Answer(
        quantity="kappa",
        value=value,
        given=float(b.kappa),
        why="" if enough.size else f"no draft length up to {most}",
    )
