"""Counts of many steps: what a summary needs, in a size that does not grow with the steps, and that adds up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specplan.records.laws import demand, tally_laws
from specplan.records.step import StepRecord

Counts = tuple[int, ...]


def _add(a: Counts | None, b: Counts | None) -> Counts | None:
    """Sum of two count vectors of any lengths; unknown where one is."""
    if a is None or b is None:
        return None
    if len(a) < len(b):
        a, b = b, a
    return tuple(x + (b[i] if i < len(b) else 0) for i, x in enumerate(a))


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _at_least(histogram: Counts) -> Counts:
    """Number of entries above i, for i = 0, 1, ...: the histogram's survival counts."""
    out, above = [], 0
    for count in reversed(histogram[1:]):
        above += count
        out.append(above)
    return tuple(reversed(out))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Sums over requests of accepted a and tested t positions, from which a clustered interval of alpha = a/t follows.

    Attributes
    ----------
    n : int
        Requests with at least one tested position.
    a, t, aa, at, tt : int
        Sums of a, t, a*a, a*t and t*t.
    """

    n: int = 0
    a: int = 0
    t: int = 0
    aa: int = 0
    at: int = 0
    tt: int = 0

    def __add__(self, other: "Clusters") -> "Clusters":
        return Clusters(
            n=self.n + other.n,
            a=self.a + other.a,
            t=self.t + other.t,
            aa=self.aa + other.aa,
            at=self.at + other.at,
            tt=self.tt + other.tt,
        )

    @classmethod
    def of(cls, accepted: int, tested: int) -> "Clusters":
        """One request.

        >>> Clusters.of(3, 4) + Clusters.of(0, 2)
        Clusters(n=2, a=3, t=6, aa=9, at=12, tt=20)
        """
        if tested == 0:
            return cls()
        return cls(n=1, a=accepted, t=tested, aa=accepted**2, at=accepted * tested, tt=tested**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of verify steps of one draft source. What the origin does not tell is None, never guessed.

    Attributes
    ----------
    requests : int or None
        Requests.
    prefills : int or None
        Passes that emitted a first token and verified nothing; not among `steps`.
    steps : int or None
        Verify steps: one target pass of one request, with or without a draft.
    emitted_tokens : int or None
        Tokens that these steps emitted, bonus tokens included.
    drafts : int or None
        Steps with at least one drafted token.
    drafted_tokens, accepted_tokens : int or None
        Tokens drafted and verified; of them accepted, bonus tokens excluded.
    verified_tokens : int or None
        Draft positions that the target passes computed, padding included.
    accepted_histogram : tuple of int or None
        Entry j: drafts of which j tokens were accepted.
    tested_histogram : tuple of int or None
        Entry j: drafts of which j positions have a known verdict (up to and including the first rejection).
    length_drafts, length_accepted, length_tested : tuple of int or None
        Entry d: drafts of d tokens, and the accepted and tested positions of those.
    clusters : Clusters or None
        Sums over requests for the interval of alpha.
    draft_s, verify_s, host_s : float or None
        Measured seconds, summed over the steps.

    Notes
    -----
    `check_integrity` states how the fields hang together.
    """

    requests: int | None = 0
    prefills: int | None = 0
    steps: int | None = 0
    emitted_tokens: int | None = 0
    drafts: int | None = 0
    drafted_tokens: int | None = 0
    accepted_tokens: int | None = 0
    verified_tokens: int | None = 0
    accepted_histogram: Counts | None = ()
    tested_histogram: Counts | None = ()
    length_drafts: Counts | None = ()
    length_accepted: Counts | None = ()
    length_tested: Counts | None = ()
    clusters: Clusters | None = Clusters()
    draft_s: float | None = None
    verify_s: float | None = None
    host_s: float | None = None

    def __add__(self, other: "Tally") -> "Tally":
        """Counts of both; unknown where either is unknown. Addition is exact, so any grouping gives the same sum."""
        return Tally(
            requests=_plus(self.requests, other.requests),
            prefills=_plus(self.prefills, other.prefills),
            steps=_plus(self.steps, other.steps),
            emitted_tokens=_plus(self.emitted_tokens, other.emitted_tokens),
            drafts=_plus(self.drafts, other.drafts),
            drafted_tokens=_plus(self.drafted_tokens, other.drafted_tokens),
            accepted_tokens=_plus(self.accepted_tokens, other.accepted_tokens),
            verified_tokens=_plus(self.verified_tokens, other.verified_tokens),
            accepted_histogram=_add(self.accepted_histogram, other.accepted_histogram),
            tested_histogram=_add(self.tested_histogram, other.tested_histogram),
            length_drafts=_add(self.length_drafts, other.length_drafts),
            length_accepted=_add(self.length_accepted, other.length_accepted),
            length_tested=_add(self.length_tested, other.length_tested),
            clusters=None if self.clusters is None or other.clusters is None else self.clusters + other.clusters,
            draft_s=_seconds(self, self.draft_s, other, other.draft_s),
            verify_s=_seconds(self, self.verify_s, other, other.verify_s),
            host_s=_seconds(self, self.host_s, other, other.host_s),
        )

    @property
    def tested_tokens(self) -> int | None:
        """Positions with a known verdict: the denominator of alpha."""
        h = self.tested_histogram
        return None if h is None else sum(j * n for j, n in enumerate(h))

    @property
    def accepted_at(self) -> Counts | None:
        """Entry i: drafts with more than i tokens accepted (an engine's counter per position)."""
        return None if self.accepted_histogram is None else _at_least(self.accepted_histogram)

    @property
    def tested_at(self) -> Counts | None:
        """Entry i: drafts whose position i has a verdict, that is drafts that reached it."""
        return None if self.tested_histogram is None else _at_least(self.tested_histogram)

    def check_integrity(self) -> None:
        """Raise `InputError` where the counts contradict one another (`specplan.records.laws`)."""
        demand(tally_laws(self), "counts")

    @classmethod
    def of_request(cls, steps: Iterable[StepRecord]) -> "Tally":
        """Tally of one request's verify steps (the prefill is not among them, but counted)."""
        rows = list(steps)
        drafted = [r for r in rows if r.drafted]
        accepted, tested = sum(r.accepted for r in rows), sum(r.n_tested for r in rows)
        return cls(
            requests=1,
            prefills=1,
            steps=len(rows),
            emitted_tokens=sum(r.emitted for r in rows),
            drafts=len(drafted),
            drafted_tokens=sum(r.drafted for r in rows),
            accepted_tokens=accepted,
            verified_tokens=sum(r.n_verified for r in rows),
            accepted_histogram=_histogram((r.accepted, 1) for r in drafted),
            tested_histogram=_histogram((r.n_tested, 1) for r in drafted),
            length_drafts=_histogram((r.drafted, 1) for r in drafted),
            length_accepted=_histogram((r.drafted, r.accepted) for r in drafted),
            length_tested=_histogram((r.drafted, r.n_tested) for r in drafted),
            clusters=Clusters.of(accepted, tested),
            draft_s=_sum_known(r.draft_s for r in rows),
            verify_s=_sum_known(r.verify_s for r in rows),
            host_s=_sum_known(r.host_s for r in rows),
        )

    @classmethod
    def of_steps(cls, steps: Iterable[StepRecord]) -> "Tally":
        """Tally of the steps of any number of requests, in any order.

        >>> rows = [StepRecord(request="a", step=0, source="s", context_len=9, drafted=3, accepted=2, emitted=3),
        ...         StepRecord(request="b", step=0, source="s", context_len=5, drafted=0, accepted=0, emitted=1)]
        >>> t = Tally.of_steps(rows)
        >>> t.steps, t.drafts, t.accepted_at, t.tested_at
        (2, 1, (1, 1), (1, 1, 1))
        """
        by_request: dict[str, list[StepRecord]] = {}
        for row in steps:
            by_request.setdefault(row.request, []).append(row)
        total = cls()
        for rows in by_request.values():
            total += cls.of_request(rows)
        return total

    @classmethod
    def of_counters(
        cls,
        *,
        drafts: int,
        drafted_tokens: int,
        accepted_tokens: int,
        accepted_at: Sequence[int] | None = None,
        steps: int | None = None,
        emitted_tokens: int | None = None,
    ) -> "Tally":
        """Tally of an engine's counters, with what follows from them exactly and nothing else.

        Counts per position give the histogram of accepted tokens. The tested positions follow only where all drafts
        were equally long (drafted = k times drafts, k the number of positions); else they stay unknown.

        Parameters
        ----------
        drafts, drafted_tokens, accepted_tokens : int
            Counters of steps that had a draft.
        accepted_at : sequence of int or None
            Entry i: drafts with more than i tokens accepted.
        steps, emitted_tokens : int or None
            Counters of all verify steps, where the engine has them.

        Raises
        ------
        InputError
            If the counters contradict one another.

        Examples
        --------
        >>> t = Tally.of_counters(drafts=7, drafted_tokens=21, accepted_tokens=13, accepted_at=[5, 4, 4])
        >>> t.accepted_histogram, t.tested_tokens
        ((2, 1, 0, 4), 16)
        """
        if accepted_at is None and 0 < drafts == drafted_tokens:
            accepted_at = (accepted_tokens,)  # each draft has at least one token, so each has one
        histogram = None if accepted_at is None else _histogram_of_survival(drafts, accepted_at)
        tally = checked(
            replace(
                UNKNOWN,
                steps=steps,
                emitted_tokens=emitted_tokens,
                drafts=drafts,
                drafted_tokens=drafted_tokens,
                accepted_tokens=accepted_tokens,
                verified_tokens=drafted_tokens,
                accepted_histogram=histogram,
            )
        )
        k = 0 if accepted_at is None else len(accepted_at)
        if histogram is None or drafted_tokens != k * drafts:
            return tally
        tested = (0, *histogram[: k - 1], histogram[k - 1] + histogram[k]) if k else ()
        n_tested = sum(j * n for j, n in enumerate(tested))
        zeros = (0,) * k
        return replace(
            tally,
            tested_histogram=tested,
            length_drafts=(*zeros, drafts),
            length_accepted=(*zeros, accepted_tokens),
            length_tested=(*zeros, n_tested),
        )


EMPTY: Final = Tally()
"""The tally of nothing: the neutral element of addition."""

UNKNOWN: Final = Tally(**dict.fromkeys(Tally.__dataclass_fields__))
"""The tally of an origin that tells nothing: what `replace` fills in is what it tells."""


def checked(tally: Tally) -> Tally:
    """The tally, once its counts agree with one another; else `InputError`."""
    tally.check_integrity()
    return tally


def _seconds(a: Tally, x: float | None, b: Tally, y: float | None) -> float | None:
    """Sum of measured seconds; a tally without steps has no say, one with unmeasured steps makes the sum unknown."""
    if x is None and a.steps == 0:
        return y
    if y is None and b.steps == 0:
        return x
    return None if x is None or y is None else x + y


def _sum_known(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _histogram(pairs: Iterable[tuple[int, int]]) -> Counts:
    out: list[int] = []
    for index, weight in pairs:
        if index >= len(out):
            out.extend([0] * (index + 1 - len(out)))
        out[index] += weight
    return tuple(out)


def _histogram_of_survival(total: int, survival: Sequence[int]) -> Counts:
    """Entries j from the numbers of entries above 0, 1, ...: the inverse of `_at_least`."""
    levels = (total, *survival, 0)
    return tuple(levels[j] - levels[j + 1] for j in range(len(survival) + 1))
