"""What changed between two readings of one server: alpha, acceptance length, coverage and waste, and alerts on them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specplan.decide.measured import MeasuredSource
from specplan.errors import InputError
from specplan.formulas.acceptance import ratio_estimate_of_sums

_Z: Final = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A value with its 95 % interval; the ends are None where no counts stand behind it."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """Three digits."""
        return f"{self.value:.3f}" if self.low is None else f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity before and after."""

    name: str
    before: Quantity
    after: Quantity

    @property
    def direction(self) -> str:
        """``fell``, ``rose`` or ``held``: by intervals that do not meet, else by more than a tenth."""
        a, b = self.before, self.after
        if None not in (a.low, a.high, b.low, b.high):
            if (b.high or 0) < (a.low or 0):
                return "fell"
            return "rose" if (b.low or 0) > (a.high or 0) else "held"
        ratio = b.value / a.value if a.value else 1.0
        return "fell" if ratio < 0.9 else "rose" if ratio > 1.1 else "held"

    @property
    def sentence(self) -> str:
        """Named, with both values."""
        return f"{self.name} {self.direction} from {self.before.text} to {self.after.text}"


def quantities(m: MeasuredSource) -> dict[str, Quantity]:
    """Alpha, acceptance length, coverage, E and waste of a source, as far as they are known.

    Acceptance length has an interval from the histogram of accepted tokens, coverage from drafts among steps; both take
    steps as independent.
    """
    t, found = m.tally, dict[str, Quantity]()
    if m.alpha.value is not None:
        found["alpha"] = Quantity(value=m.alpha.value, low=m.alpha.low, high=m.alpha.high)
    error = math.nan
    if t is not None and t.accepted_histogram and t.drafts and t.drafts > 1:
        mean = (t.accepted_tokens or 0) / t.drafts
        spread = sum(n * (j - mean) ** 2 for j, n in enumerate(t.accepted_histogram))
        error = _Z * math.sqrt(spread / (t.drafts - 1) / t.drafts)
    if m.tokens_per_drafted_step is not None:
        found["acceptance length"] = _around(m.tokens_per_drafted_step, error)
    if m.coverage is not None:
        low = high = None
        if t is not None and t.drafts is not None and t.steps:
            d, n = float(t.drafts), float(t.steps)
            e = ratio_estimate_of_sums(requests=t.steps, y=d, x=n, yy=d, xy=d, xx=n)
            low, high = e.low, e.high
        found["coverage"] = Quantity(value=m.coverage, low=low, high=high)
    if m.tokens_per_step is not None:
        found["E"] = Quantity(value=m.tokens_per_step)
    if m.accepted_per_drafted is not None:
        k = m.draft_len or math.nan
        found["waste"] = _around(1 - m.accepted_per_drafted, error / k)
    return found


def _around(value: float, error: float) -> Quantity:
    return Quantity(value=value) if math.isnan(error) else Quantity(value=value, low=value - error, high=value + error)


def changes(before: MeasuredSource, after: MeasuredSource) -> tuple[Change, ...]:
    """Every quantity that both readings tell."""
    a, b = quantities(before), quantities(after)
    return tuple(Change(name=name, before=a[name], after=b[name]) for name in a if name in b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a dated series of accepted tokens per draft changes its level.

    Attributes
    ----------
    when : str
        Time of the first line after the change.
    before, after : float
        Accepted tokens per draft on either side.
    sigmas : float
        Their distance in standard errors.
    """

    when: str
    before: float
    after: float
    sigmas: float

    @property
    def sentence(self) -> str:
        """Named, as acceptance lengths."""
        verb = "fell" if self.after < self.before else "rose"
        return f"acceptance length {verb} from {1 + self.before:.2f} to {1 + self.after:.2f} at {self.when}"


_BREAK_SIGMAS: Final = 4.0


def break_in(rows: Sequence[tuple[str, int, int]]) -> Break | None:
    r"""The most significant change of level in rows of (time, drafts, accepted tokens); None where none stands out.

    .. math:: z = \max_j \frac{|x_{<j} - x_{\ge j}|}{s \sqrt{1/n_{<j} + 1/n_{\ge j}}}

    with n drafts and s the spread per draft from the lines around their own side's mean, at least that of independent
    positions. Lines are few and j is chosen, so that z must pass 4.

    Examples
    --------
    >>> rows = [(f"10:{i:02d}", 400, 640 if i < 6 else 180) for i in range(10)]
    >>> break_in(rows).sentence
    'acceptance length fell from 2.60 to 1.45 at 10:06'
    >>> break_in(rows[:6]) is None
    True
    """
    known = [r for r in rows if r[1] > 0]
    best: Break | None = None
    for j in range(1, len(known)):
        sides = known[:j], known[j:]
        n = [sum(r[1] for r in side) for side in sides]
        x = [sum(r[2] for r in side) / total for side, total in zip(sides, n, strict=True)]
        spread = sum(r[1] * (r[2] / r[1] - m) ** 2 for side, m in zip(sides, x, strict=True) for r in side)
        per_draft = max(spread / max(len(known) - 2, 1), max(sum(x) / 2, 0.05))
        sigmas = abs(x[0] - x[1]) / math.sqrt(per_draft * (1 / n[0] + 1 / n[1]))
        if sigmas > _BREAK_SIGMAS and (best is None or sigmas > best.sigmas):
            best = Break(when=known[j][0], before=x[0], after=x[1], sigmas=sigmas)
    return best


_ALERT: Final = re.compile(r"^\s*(alpha|length|coverage|E|waste|fall)\s*([<>])\s*(\d*\.?\d+)(%?)\s*$")
_NAMES: Final = {"length": "acceptance length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A bound on a quantity, or on the fall of alpha or acceptance length against before."""

    text: str
    name: str
    above: bool
    bound: float

    def fires(self, now: MeasuredSource, before: MeasuredSource | None, found: Break | None) -> str | None:
        """What is to be said where the bound is broken; None where it holds.

        Raises
        ------
        InputError
            If the quantity is not known of this reading.
        """
        if self.name == "fall":
            fall = _fall(now, before, found)
            if fall is None:
                raise InputError(f"--alert {self.text}: a fall needs --before, or a log of several dated lines")
            return f"{self.text}: fell by {fall:.1%}" if fall > self.bound else None
        known = quantities(now)
        name = _NAMES.get(self.name, self.name)
        if name not in known:
            raise InputError(f"--alert {self.text}: {name} is not known of {now.source}; known: {', '.join(known)}")
        value = known[name].value
        broken = value > self.bound if self.above else value < self.bound
        return f"{self.text}: {name} is {known[name].text}" if broken else None


def _fall(now: MeasuredSource, before: MeasuredSource | None, found: Break | None) -> float | None:
    """Largest relative fall of alpha or of accepted tokens per draft."""
    falls = []
    if before is not None:
        for c in changes(before, now):
            if c.name == "alpha" and c.before.value:
                falls.append(1 - c.after.value / c.before.value)
            elif c.name == "acceptance length" and c.before.value > 1:
                falls.append(1 - (c.after.value - 1) / (c.before.value - 1))
    if found is not None and found.before:
        falls.append(1 - found.after / found.before)
    return max(falls, default=0.0 if before is None and now.tally is not None else None)


def alert(text: str) -> Alert:
    """An alert from its text; a bare figure is a fall.

    >>> alert("alpha<0.5").bound, alert("20%").name
    (0.5, 'fall')
    """
    m = _ALERT.match(text if any(x in text for x in "<>") else f"fall>{text}")
    if m is None:
        raise InputError(f"--alert {text}: expected alpha<0.5, length<2, coverage<0.3, E<1.2, waste>0.6 or a fall, 20%")
    bound = float(m[3]) / (100 if m[4] else 1)
    return Alert(text=text, name=m[1], above=m[2] == ">", bound=bound)
