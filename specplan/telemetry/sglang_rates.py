"""SGLang's two means: accept length, which is E, and accept rate, whose rule changed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from specplan.errors import InputError
from specplan.records.means import Means
from specplan.telemetry.observation import Translation, translated

WIDEST: Final = 1024
_FULL_DIGITS: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    r"""One way to read pairs of accept length and accept rate.

    Attributes
    ----------
    rule : str
        ``older``: rate = length / n, the bonus in and the root in; ``newer``: rate = (length - 1) / (n - 1).
    width : int
        n, the positions verified per step, root included.
    """

    rule: str
    width: int

    @property
    def text(self) -> str:
        """The rule in words."""
        formula = "length / num_draft_tokens" if self.rule == "older" else "(length - 1) / (num_draft_tokens - 1)"
        return f"{self.rule} rule, accept rate = {formula} with num_draft_tokens = {self.width}"


_OFFSETS: Final = {"older": 0, "newer": 1}


def readings(
    pairs: Sequence[tuple[float, float]], *, width: int | None = None, digits: int | None = None
) -> tuple[Reading, ...]:
    r"""Every rule and whole width n at which all pairs (length, rate) agree: :math:`r = (L - d)/(n - d)`, d 0 or 1.

    Parameters
    ----------
    pairs : sequence of (float, float)
        Accept length, at least 1, and accept rate.
    width : int or None
        n, where it is known.
    digits : int or None
        Digits after the point of both figures; None for figures in full.

    Examples
    --------
    >>> [(r.rule, r.width) for r in readings([(2.0, 0.5)])]
    [('older', 4), ('newer', 3)]
    >>> [(r.rule, r.width) for r in readings([(1.95, 0.49)], width=4, digits=2)]
    [('older', 4)]
    >>> [(r.rule, r.width) for r in readings([(2.17, 0.39)], width=4, digits=2)]
    [('newer', 4)]
    """
    half = 0.0 if digits is None else 0.5 * 10.0**-digits * (1 + 1e-9)
    return tuple(
        Reading(rule=rule, width=n)
        for rule, d in _OFFSETS.items()
        for n in ((width,) if width is not None else _near(pairs[0], d, half))
        if n > d
        and all(
            abs((length - d) / (n - d) - rate) <= half * (1 + 1 / (n - d)) + _FULL_DIGITS * rate
            for length, rate in pairs
        )
    )


def _near(pair: tuple[float, float], d: int, half: float) -> range:
    """Widths that one pair may have under a rule: (L - d)/r + d with both figures anywhere within their rounding."""
    length, rate = pair
    low = (length - d - half) / (rate + half) + d if rate + half else 2.0
    high = (length - d + half) / (rate - half) + d if rate > half else WIDEST
    return range(max(2, math.floor(low)), min(WIDEST, math.ceil(high)) + 1)


def taken(
    pairs: Sequence[tuple[float, float]], *, width: int | None, digits: int | None, dated: str = ""
) -> tuple[Reading | None, tuple[str, ...]]:
    """The reading to take, with what to tell; None where the pairs leave several.

    Parameters
    ----------
    pairs, width, digits
        As of `readings`.
    dated : str
        A rule that the form of the page or line belongs to, with the reason after a colon; it decides where both fit.

    Raises
    ------
    InputError
        If no rule fits.
    """
    if not pairs:
        return None, ()
    found = readings(pairs, width=width, digits=digits)
    if not found and digits is None and (decimals := max(_decimals(x) for pair in pairs for x in pair)) <= 4:
        digits = decimals  # a page that somebody rounded
        found = readings(pairs, width=width, digits=digits)
    if not found:
        alone = next((p for p in pairs if not readings([p], width=width, digits=digits)), pairs[0])
        what = f"n = {width}" if width is not None else "one whole n"
        raise InputError(
            f"accept length {alone[0]:g} with accept rate {alone[1]:g} fits {what} under neither rule of SGLang "
            "(length / n, or (length - 1) / (n - 1)); figures of several servers or of a changing width: give one's"
        )
    if len(found) == 1:
        return found[0], (f"{found[0].text}: the only one that fits",)
    rule, _, why = dated.partition(": ")
    own = [r for r in found if r.rule == rule]
    if len(own) == 1 and len(found) <= 2:
        other = next(r for r in found if r is not own[0])
        return own[0], (f"{own[0].text}: {why}; the {other.text} would fit too",)
    some = ", ".join(f"n = {r.width} ({r.rule})" for r in found[:4])
    return None, (f"accept rate fits {some}: num_draft_tokens does not follow; give --width or the start-up log",)


def _decimals(value: float) -> int:
    return len(repr(value).partition(".")[2])


def sglang_means(length: float, width: int | None, chain: int | None) -> Means:
    """SGLang verifies num_draft_tokens - 1 drafted positions in every step, so drafted steps are all steps.

    `chain` is num_steps, which bounds the accepted path of a model's drafts; NGRAM sets it too and is not bound by it,
    which shows where a step emits more than num_steps + 1 tokens.
    """
    if chain is not None and length > chain + 1:
        chain = None
    drafted = None if width is None or width < 2 else width - 1
    return Means(
        tokens_per_step=length,
        tokens_per_drafted_step=length,
        accepted_per_drafted=None if drafted is None else (length - 1) / drafted,
        draft_len=drafted,
        chain_len=chain or drafted,
    )


def sglang_translations(
    length: float,
    rate: float | None,
    *,
    names: tuple[str, str],
    reading: Reading | None,
    width: int | None = None,
    calls: int | None = None,
) -> tuple[Translation, ...]:
    """SGLang's definitions of its two means, under the rule that was taken."""
    out = [translated("sglang", names[0], length)]
    if rate is not None and reading is not None:
        out.append(translated("sglang", names[1], rate, versions=_VERSIONS[reading.rule]))
    elif rate is not None:
        out.append(translated("sglang", names[1], rate, ours="shown only: several rules fit"))
    known = width if width is not None else None if reading is None else reading.width
    if known:
        out.append(
            translated("sglang", "sglang:spec_num_draft_tokens", known, kind="derived" if not width else "measured")
        )
    if calls is not None:
        out.append(translated("sglang", "sglang:spec_verify_calls_total", calls))
    return tuple(out)


_VERSIONS: Final = {"older": "before", "newer": "since"}


def mean_step_s(lines: Iterable[tuple[float, float, float]]) -> float | None:
    """Median seconds of a step from lines of (running requests, accept length, tokens per second).

    A batch of n requests emits n times the accept length per step. The first line after a pause spans it, which the
    median leaves aside.
    """
    found = sorted(n * length / rate for n, length, rate in lines if n > 0 and rate > 0)
    return found[len(found) // 2] if found else None
