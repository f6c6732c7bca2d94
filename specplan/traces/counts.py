"""Counts of replayed steps: per request, per tag, and over a trace in windows of requests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specplan.propose.steps import Steps
from specplan.records.columns import tally_of_arrays
from specplan.records.step import StepRecord
from specplan.records.tally import EMPTY, Tally
from specplan.traces.requests import RecordedRequest

IntArray = NDArray[np.int64]

COLUMNS: Final = ("steps", "emitted", "drafts", "drafted", "accepted", "tested", "verified")
"""Columns of counts per request."""


def tested_of(steps: Steps) -> IntArray:
    """Positions with a verdict: one more than accepted where a rejection was seen.

    Where the record ends inside a draft (emitted = accepted < drafted) no rejection was seen; nor where the accepted
    path of a tree ends in a leaf.
    """
    rejected = (steps.accepted < steps.drafted) & (steps.emitted > steps.accepted)
    if steps.leaf is not None:
        rejected &= ~steps.leaf
    return steps.accepted.astype(np.int64) + rejected


def verified_of(steps: Steps, width: int | None) -> IntArray:
    """Draft positions that each pass computes: a fixed width where the engine pads, else what was drafted."""
    return steps.drafted.astype(np.int64) if width is None else np.full(len(steps), width, np.int64)


def counts_per_request(steps: Steps, n_requests: int, width: int | None) -> IntArray:
    """Counts of each request, shape (n_requests, 7), columns `COLUMNS`."""
    columns = (
        np.ones(len(steps)),
        steps.emitted,
        steps.drafted > 0,
        steps.drafted,
        steps.accepted,
        tested_of(steps),
        verified_of(steps, width),
    )
    return np.stack([np.bincount(steps.request, c, n_requests) for c in columns], axis=1).astype(np.int64)


def tallies_by_tag(steps: Steps, requests: Sequence[RecordedRequest], width: int | None) -> dict[str, Tally]:
    """Tally of each tag; requests without any step are counted as requests."""
    codes: dict[str, int] = {}
    tag_of_request = np.array([codes.setdefault(r.tag, len(codes)) for r in requests], np.int64)
    responded = np.array([r.response.size > 0 for r in requests], np.bool_)
    tested, verified = tested_of(steps), verified_of(steps, width)
    out = {}
    for tag, code in codes.items():
        mask = tag_of_request[steps.request] == code if len(steps) else np.zeros(0, np.bool_)
        tally = tally_of_arrays(
            request=steps.request[mask],
            drafted=steps.drafted[mask],
            accepted=steps.accepted[mask],
            tested=tested[mask],
            emitted=steps.emitted[mask],
            verified=verified[mask],
        )
        mine = tag_of_request == code
        out[tag] = replace(tally, requests=int(mine.sum()), prefills=int((mine & responded).sum()))
    return out


def records_of(
    steps: Steps, requests: Sequence[RecordedRequest], names: Sequence[str], source: str, width: int | None
) -> Iterable[tuple[str, list[StepRecord]]]:
    """Step records of each request, under unique names."""
    tested = tested_of(steps)
    starts = np.searchsorted(steps.request, np.arange(len(requests) + 1))
    for index, (request, name) in enumerate(zip(requests, names, strict=True)):
        rows = []
        for number, i in enumerate(range(starts[index], starts[index + 1])):
            drafted, accepted = int(steps.drafted[i]), int(steps.accepted[i])
            implied = accepted + (accepted < drafted)
            rows.append(
                StepRecord(
                    request=name,
                    step=number,
                    source=source,
                    tag=request.tag,
                    context_len=int(steps.context_len[i]),
                    drafted=drafted,
                    accepted=accepted,
                    emitted=int(steps.emitted[i]),
                    match_len=int(steps.match_len[i]),
                    tested=None if tested[i] == implied else int(tested[i]),
                    verified=None if width is None or width == drafted else width,
                )
            )
        yield name, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Consecutive requests and their counts.

    Attributes
    ----------
    first, requests : int
        Index of the first request, and how many.
    steps, emitted, drafts, drafted, accepted, tested : int
        Counts.
    accepted_var : float
        Squared standard error of accepted / steps, from the spread between the window's requests.
    """

    first: int
    requests: int
    steps: int
    emitted: int
    drafts: int
    drafted: int
    accepted: int
    tested: int
    accepted_var: float

    @property
    def accepted_per_step(self) -> float:
        """Tokens that speculation adds to a step; NaN without steps."""
        return self.accepted / self.steps if self.steps else float("nan")

    @property
    def alpha(self) -> float:
        """Accepted over tested positions; NaN where nothing was tested."""
        return self.accepted / self.tested if self.tested else float("nan")

    @property
    def coverage(self) -> float:
        """Share of steps with a draft; NaN without steps."""
        return self.drafts / self.steps if self.steps else float("nan")


@dataclass(slots=True)
class Series:
    """Counts over the course of a trace, in at most `most` windows of equal numbers of requests.

    Invariant: windows are full but for the last; when there are too many, neighbours are joined and the size doubles,
    so memory does not grow with the trace. Kept per window: sums over requests of the counts, and of
    accepted^2, accepted * steps and steps^2, from which the error of accepted / steps follows.

    >>> series = Series(size=1, most=2)
    >>> series.add(np.array([[2, 3, 1, 3, 1, 2, 3]] * 4))
    >>> [(w.first, w.requests, w.accepted) for w in series.windows()]
    [(0, 2, 2), (2, 2, 2)]
    """

    size: int = 16
    most: int = 64
    rows: list[IntArray] = field(default_factory=list)

    def add(self, counts: IntArray) -> None:
        """Append requests, columns `COLUMNS`."""
        for row in counts:
            if not self.rows or self.rows[-1][0] == self.size:
                if len(self.rows) == self.most:
                    self._join()
                if not self.rows or self.rows[-1][0] == self.size:
                    self.rows.append(np.zeros(11, np.int64))
            steps, accepted = row[0], row[4]
            self.rows[-1] += (1, *row, accepted * accepted, accepted * steps, steps * steps)

    def _join(self) -> None:
        rows = self.rows
        self.rows = [a + b for a, b in zip(rows[::2], rows[1::2], strict=False)] + rows[len(rows) // 2 * 2 :]
        self.size *= 2

    def windows(self) -> tuple[Window, ...]:
        """The windows in order."""
        out, first = [], 0
        for row in self.rows:
            n, steps, emitted, drafts, drafted, accepted, tested, _, aa, at, tt = (int(v) for v in row)
            ratio = accepted / steps if steps else 0.0
            spread = max(0.0, aa - 2 * ratio * at + ratio * ratio * tt)
            out.append(
                Window(
                    first=first,
                    requests=n,
                    steps=steps,
                    emitted=emitted,
                    drafts=drafts,
                    drafted=drafted,
                    accepted=accepted,
                    tested=tested,
                    accepted_var=spread * n / max(n - 1, 1) / steps**2 if steps and n > 1 else float("nan"),
                )
            )
            first += n
        return tuple(out)


def total_of(tags: dict[str, Tally]) -> Tally:
    """Sum over tags."""
    total = EMPTY
    for tally in tags.values():
        total += tally
    return total
