"""What no count, rate or mean of speculation can break, whoever recorded it.

A broken law is an `InputError` that names it and the two figures. Positions count from the first drafted token; a rate
is over drafts; E is tokens emitted per step, the target's own token included.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from specplan.errors import InputError

if TYPE_CHECKING:
    from specplan.records.means import Means
    from specplan.records.step import StepRecord
    from specplan.records.tally import Tally

Law = tuple[str, bool, str]
"""A law, whether it holds, and the figures that it is about."""

SLACK: Final = 1e-9


def demand(laws: Iterable[Law], of: str) -> None:
    """Raise at the first law that does not hold.

    >>> demand([("accepted <= drafted", False, "accepted 3, drafted 2")], "counts")
    Traceback (most recent call last):
    specplan.errors.InputError: counts contradict one another: accepted <= drafted does not hold (accepted 3, drafted 2)
    """
    for law, holds, figures in laws:
        if not holds:
            raise InputError(f"{of} contradict one another: {law} does not hold ({figures})")


def ordered_laws(*figures: tuple[str, float | None]) -> Iterable[Law]:
    """The laws that each known figure is no larger than the next one that is known, the first no smaller than 0."""
    known = [(name, value) for name, value in figures if value is not None]
    for name, value in known[:1]:
        yield f"0 <= {name}", value >= 0, f"{name} {value:g}"
    for (low, a), (high, b) in pairwise(known):
        yield f"{low} <= {high}", a <= b, f"{low} {a:g}, {high} {b:g}"


def step_laws(row: "StepRecord") -> Iterable[Law]:
    """Laws of one verify step."""
    yield from ordered_laws(("accepted", row.accepted), ("drafted", row.drafted), ("verified", row.n_verified))
    yield from ordered_laws(("accepted", row.accepted), ("tested", row.n_tested), ("drafted", row.drafted))
    yield (
        "tested <= accepted + 1",
        row.n_tested <= row.accepted + 1,
        f"tested {row.n_tested}, accepted {row.accepted}",
    )
    yield (
        "1 <= emitted <= accepted + 1",
        1 <= row.emitted <= row.accepted + 1,
        f"emitted {row.emitted}, accepted {row.accepted}",
    )
    for value in row.overlap or ():
        yield "overlap of p and q in [0, 1]", 0 <= value <= 1 + 1e-6, f"overlap {value:g}"
    if row.confidence is not None:
        said = len(row.confidence)
        yield "one confidence for each drafted token", said == row.drafted, f"confidences {said}, drafted {row.drafted}"
    for value in row.confidence or ():
        yield "confidence in [0, 1]", 0 <= value <= 1 + 1e-6, f"confidence {value:g}"
    for name in ("draft_s", "verify_s", "host_s"):
        seconds = getattr(row, name)
        if seconds is not None:
            yield f"{name} finite and at least 0", 0 <= seconds < math.inf, f"{name} {seconds:g}"


def tally_laws(t: "Tally") -> Iterable[Law]:
    """Laws of the counts of many steps; of what is not known, none."""
    tested = t.tested_tokens
    accepted, drafted = ("accepted", t.accepted_tokens), ("drafted", t.drafted_tokens)
    yield from ordered_laws(accepted, drafted, ("verified", t.verified_tokens))
    yield from ordered_laws(accepted, ("tested", tested), drafted)
    yield from ordered_laws(("drafts", t.drafts), drafted)
    yield from ordered_laws(("drafts", t.drafts), ("steps", t.steps), ("emitted", t.emitted_tokens))
    yield from ordered_laws(("requests", t.requests))
    yield from ordered_laws(("prefills", t.prefills))
    if t.steps is not None and t.emitted_tokens is not None and t.accepted_tokens is not None:
        yield (
            "emitted <= steps + accepted",
            t.emitted_tokens <= t.steps + t.accepted_tokens,
            f"emitted {t.emitted_tokens}, steps {t.steps}, accepted {t.accepted_tokens}",
        )
    if t.drafts == 0:
        yield "no tokens without a draft", not t.drafted_tokens, f"drafts 0, drafted {t.drafted_tokens}"
    yield from _histogram_laws(t)
    if t.length_drafts is not None:
        yield from _length_laws(t, t.length_drafts)
    for name in ("draft_s", "verify_s", "host_s"):
        seconds = getattr(t, name)
        if seconds is not None:
            yield f"{name} finite and at least 0", 0 <= seconds < math.inf, f"{name} {seconds:g}"
    c = t.clusters
    if c is not None and t.requests is not None:
        yield from ordered_laws(("requests with tested positions", c.n), ("requests", t.requests))
        yield from _same("accepted of the requests", c.a, "accepted", t.accepted_tokens)
        yield from _same("tested of the requests", c.t, "tested", tested)
        yield from ordered_laws(
            ("sum of squares of accepted", c.aa), ("of accepted times tested", c.at), ("of tested", c.tt)
        )
        # Cauchy and Schwarz: n numbers that add up to t have squares of at least t*t/n.
        yield from ordered_laws(("square of tested", c.t**2), ("requests times squares of tested", c.n * c.tt))


def _same(one: str, a: int | None, other: str, b: int | None) -> Iterable[Law]:
    if a is not None and b is not None:
        yield f"{one} = {other}", a == b, f"{one} {a}, {other} {b}"


def _histogram_laws(t: "Tally") -> Iterable[Law]:
    for name, histogram, total_name, total in (
        ("accepted", t.accepted_histogram, "accepted", t.accepted_tokens),
        ("tested", t.tested_histogram, "tested", None),
    ):
        if histogram is not None:
            least = min(histogram, default=0)
            yield f"no entry of the {name} histogram below 0", least >= 0, f"entry {least}"
            yield from _same(f"drafts in the {name} histogram", sum(histogram), "drafts", t.drafts)
            tokens = sum(j * n for j, n in enumerate(histogram))
            yield from _same(f"tokens in the {name} histogram", tokens, total_name, total)
    at, reached = t.accepted_at, t.tested_at
    if at is not None and reached is not None:
        longer = (*reached, *(0,) * len(at))
        for i, (a, b) in enumerate(zip(at, longer, strict=False), 1):
            yield f"accepted <= tested at position {i}", a <= b, f"accepted {a}, tested {b}"
        for i, (a, b) in enumerate(zip((*at, *(0,) * len(reached)), reached[1:], strict=False), 1):
            yield f"tested at position {i + 1} <= accepted at {i}", b <= a, f"tested {b}, accepted {a}"


def _length_laws(t: "Tally", lengths: Sequence[int]) -> Iterable[Law]:
    """Drafts by their length: each accepts and tests at most what it holds."""
    yield "no count of a draft length below 0", min(lengths, default=0) >= 0, f"entry {min(lengths, default=0)}"
    yield from _same("drafts by length", sum(lengths[1:]), "drafts", t.drafts)
    yield from _same("tokens by length", sum(d * n for d, n in enumerate(lengths)), "drafted", t.drafted_tokens)
    accepted, tested = t.length_accepted, t.length_tested
    if accepted is not None and tested is not None:
        yield from _same("accepted by length", sum(accepted), "accepted", t.accepted_tokens)
        yield from _same("tested by length", sum(tested), "tested", t.tested_tokens)
        for d, n in enumerate(lengths):
            a, b = (v[d] if d < len(v) else 0 for v in (accepted, tested))
            yield from ordered_laws(
                (f"accepted in drafts of {d}", a), (f"tested in drafts of {d}", b), (f"tokens in drafts of {d}", d * n)
            )
    longest = max((d for d, n in enumerate(lengths) if n), default=0)
    if t.accepted_histogram is not None:
        most = max((j for j, n in enumerate(t.accepted_histogram) if n), default=0)
        yield from ordered_laws(("most accepted in a draft", most), ("longest draft", longest))


def rate_laws(rates: Sequence[float], what: str = "rates by position") -> Iterable[Law]:
    """Laws of unconditional rates by position: in [0, 1], none above the one before it."""
    for i, rate in enumerate(rates, 1):
        yield f"{what} in [0, 1]", 0 <= rate <= 1 + SLACK, f"rate {rate:g} at position {i}"
    for i, (earlier, later) in enumerate(pairwise(rates), 1):
        yield (
            f"{what} do not rise",
            later <= earlier + SLACK,
            f"rate {earlier:g} at position {i}, {later:g} at {i + 1}",
        )


def emitted_laws(emitted: float | None, kappa: float | None, what: str = "tokens per drafted step") -> Iterable[Law]:
    """Laws of E: at least the target's own token, at most one more than was drafted."""
    if emitted is None:
        return
    yield f"{what} at least 1 and finite", 1 - SLACK <= emitted < math.inf, f"{what} {emitted:g}"
    if kappa is not None:
        yield (
            f"{what} <= draft length + 1",
            emitted <= kappa + 1 + SLACK,
            f"{what} {emitted:g}, draft length {kappa:g}",
        )


def share_laws(**shares: float | None) -> Iterable[Law]:
    """Laws of shares and probabilities: each in [0, 1].

    >>> demand(share_laws(coverage=1.5), "figures")
    Traceback (most recent call last):
    specplan.errors.InputError: figures contradict one another: coverage in [0, 1] does not hold (coverage 1.5)
    """
    for name, value in shares.items():
        if value is not None:
            words = name.replace("_", " ")
            yield f"{words} in [0, 1]", 0 <= value <= 1 + SLACK, f"{words} {value:g}"


def agreement_law(what: str, printed: float | None, follows: float | None, half_digit: float) -> Iterable[Law]:
    """The law that a printed figure is the one that follows from others, within half of its last printed digit."""
    if printed is not None and follows is not None:
        slack = half_digit * (1 + 1e-6) + 1e-9 * abs(follows)
        yield (
            f"{what} as its counts give it",
            abs(printed - follows) <= slack,
            f"printed {printed:g}, counts {follows:g}",
        )


def means_laws(m: "Means") -> Iterable[Law]:
    """Laws of means without counts."""
    longest = m.chain_len if m.chain_len is not None else m.draft_len
    yield from emitted_laws(m.tokens_per_step, longest, "tokens per step")
    yield from emitted_laws(m.tokens_per_drafted_step, longest)
    yield from share_laws(accepted_per_drafted=m.accepted_per_drafted)
    yield from rate_laws(m.position_rates or ())
    yield from ordered_laws(("longest chain", m.chain_len), ("positions per step", m.draft_len))
    if m.position_rates and m.tokens_per_drafted_step is not None:
        follows = 1 + sum(m.position_rates)
        yield from agreement_law("tokens per drafted step", m.tokens_per_drafted_step, follows, 0.01)
    a, b = m.tokens_per_step, m.tokens_per_drafted_step
    if a is not None and b is not None:
        yield "tokens per step <= per drafted step", a <= b + SLACK, f"per step {a:g}, per drafted step {b:g}"
