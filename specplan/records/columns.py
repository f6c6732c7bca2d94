"""Steps as columns: one array per field, for millions of rows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.records.step import StepRecord
from specplan.records.tally import Clusters, Tally

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_UNKNOWN: Final = -1
_COUNTS: Final = ("step", "context_len", "drafted", "accepted", "emitted", "tested", "verified")
_SECONDS: Final = ("draft_s", "verify_s", "host_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Columns of `StepRecord`; names are coded as indices into `requests`, `sources` and `tags`.

    Attributes
    ----------
    requests, sources, tags : tuple of str
        The distinct names.
    request, source, tag : ndarray of int64, shape (n,)
        Indices into them.
    step, context_len, drafted, accepted, emitted, tested, verified : ndarray of int64, shape (n,)
        As in `StepRecord`; `tested` and `verified` are resolved, never unknown.
    match_len : ndarray of int64, shape (n,)
        -1 where it is unknown.
    draft_s, verify_s, host_s : ndarray of float64, shape (n,)
        NaN where it was not measured.
    overlap, confidence : tuple of (tuple of float or None)
        One entry per row.
    """

    requests: tuple[str, ...]
    sources: tuple[str, ...]
    tags: tuple[str, ...]
    request: IntArray
    source: IntArray
    tag: IntArray
    step: IntArray
    context_len: IntArray
    drafted: IntArray
    accepted: IntArray
    emitted: IntArray
    tested: IntArray
    verified: IntArray
    match_len: IntArray
    draft_s: FloatArray
    verify_s: FloatArray
    host_s: FloatArray
    overlap: tuple[tuple[float, ...] | None, ...]
    confidence: tuple[tuple[float, ...] | None, ...]

    def __len__(self) -> int:
        return len(self.step)

    @classmethod
    def of(cls, records: Iterable[StepRecord]) -> "StepColumns":
        """Columns of the records, in their order.

        >>> row = StepRecord(request="a", step=0, source="suffix", context_len=9, drafted=3, accepted=2, emitted=3)
        >>> c = StepColumns.of([row])
        >>> c.requests, c.accepted.tolist(), next(iter(c)) == row
        (('a',), [2], True)
        """
        rows = list(records)
        names: dict[str, dict[str, int]] = {"request": {}, "source": {}, "tag": {}}
        coded = {
            key: np.array([table.setdefault(getattr(r, key), len(table)) for r in rows], np.int64)
            for key, table in names.items()
        }
        return cls(
            requests=tuple(names["request"]),
            sources=tuple(names["source"]),
            tags=tuple(names["tag"]),
            **coded,
            step=_ints(r.step for r in rows),
            context_len=_ints(r.context_len for r in rows),
            drafted=_ints(r.drafted for r in rows),
            accepted=_ints(r.accepted for r in rows),
            emitted=_ints(r.emitted for r in rows),
            tested=_ints(r.n_tested for r in rows),
            verified=_ints(r.n_verified for r in rows),
            match_len=_ints(_UNKNOWN if r.match_len is None else r.match_len for r in rows),
            draft_s=_floats(r.draft_s for r in rows),
            verify_s=_floats(r.verify_s for r in rows),
            host_s=_floats(r.host_s for r in rows),
            overlap=tuple(r.overlap for r in rows),
            confidence=tuple(r.confidence for r in rows),
        )

    def __iter__(self) -> Iterator[StepRecord]:
        """Rows again; `tested` and `verified` are None where the other fields imply them."""
        counts = {name: getattr(self, name).tolist() for name in (*_COUNTS, "request", "source", "tag", "match_len")}
        seconds = {name: getattr(self, name).tolist() for name in _SECONDS}
        for i in range(len(self)):
            c = {name: values[i] for name, values in counts.items()}
            implied = c["accepted"] + (c["accepted"] < c["drafted"])
            yield StepRecord(
                request=self.requests[c["request"]],
                step=c["step"],
                source=self.sources[c["source"]],
                context_len=c["context_len"],
                drafted=c["drafted"],
                accepted=c["accepted"],
                emitted=c["emitted"],
                tag=self.tags[c["tag"]],
                match_len=None if c["match_len"] == _UNKNOWN else c["match_len"],
                overlap=self.overlap[i],
                confidence=self.confidence[i],
                **{name: None if values[i] != values[i] else values[i] for name, values in seconds.items()},
                tested=None if c["tested"] == implied else c["tested"],
                verified=None if c["verified"] == c["drafted"] else c["verified"],
            )

    def where(self, mask: npt.NDArray[np.bool_]) -> "StepColumns":
        """The rows at which `mask` is true; the tables of names stay."""
        arrays = {
            name: getattr(self, name)[mask] for name in ("request", "source", "tag", "match_len", *_COUNTS, *_SECONDS)
        }
        kept = np.flatnonzero(mask).tolist()
        return StepColumns(
            requests=self.requests,
            sources=self.sources,
            tags=self.tags,
            overlap=tuple(self.overlap[i] for i in kept),
            confidence=tuple(self.confidence[i] for i in kept),
            **arrays,
        )

    def check_integrity(self) -> None:
        """Raise `InputError` at the first row whose counts contradict one another."""
        laws = {
            "0 <= accepted <= tested": (("accepted", self.accepted), ("tested", self.tested)),
            "tested <= drafted": (("tested", self.tested), ("drafted", self.drafted)),
            "tested <= accepted + 1": (("tested", self.tested), ("accepted + 1", self.accepted + 1)),
            "drafted <= verified": (("drafted", self.drafted), ("verified", self.verified)),
            "1 <= emitted": (("1", np.ones_like(self.emitted)), ("emitted", self.emitted)),
            "emitted <= accepted + 1": (("emitted", self.emitted), ("accepted + 1", self.accepted + 1)),
        }
        for law, ((low, a), (high, b)) in laws.items():
            broken = np.flatnonzero((a > b) | (a < 0))
            if broken.size:
                row = int(broken[0])
                raise InputError(f"row {row} of the step records breaks {law}: {low} {a[row]}, {high} {b[row]}")
        order = np.lexsort((self.step, self.request, self.source))
        keys = np.stack((self.source, self.request, self.step))[:, order]
        twice = np.flatnonzero(np.all(keys[:, 1:] == keys[:, :-1], axis=0))
        if twice.size:
            source, request, step = (int(n) for n in keys[:, twice[0]])
            raise InputError(
                f"the step records have step {step} of request {self.requests[request]!r} twice "
                f"({self.sources[source]})"
            )

    def tally(self) -> Tally:
        """The rows' `Tally`, by array sums; equal to `Tally.of_steps` of the rows."""
        counted = tally_of_arrays(
            request=self.request,
            drafted=self.drafted,
            accepted=self.accepted,
            tested=self.tested,
            emitted=self.emitted,
            verified=self.verified,
        )
        return replace(
            counted,
            draft_s=_known_sum(self.draft_s),
            verify_s=_known_sum(self.verify_s),
            host_s=_known_sum(self.host_s),
        )


def tally_of_arrays(
    *,
    request: npt.NDArray[np.integer],
    drafted: npt.NDArray[np.integer],
    accepted: npt.NDArray[np.integer],
    tested: npt.NDArray[np.integer],
    emitted: npt.NDArray[np.integer],
    verified: npt.NDArray[np.integer],
) -> Tally:
    """Tally of steps given as arrays, all of shape (n,); `request` holds small indices.

    >>> a = np.array([2, 0])
    >>> tally_of_arrays(request=np.array([0, 0]), drafted=np.array([3, 3]), accepted=a, tested=a + 1, emitted=a + 1,
    ...                 verified=np.array([3, 3])).accepted_histogram
    (1, 0, 1)
    """
    has_draft = drafted > 0
    short_accepted, short_tested, length = accepted[has_draft], tested[has_draft], drafted[has_draft]
    present = np.bincount(request) > 0
    a = np.bincount(request, accepted)[present].astype(np.int64)
    t = np.bincount(request, tested)[present].astype(np.int64)
    a, t = a[t > 0], t[t > 0]
    return Tally(
        requests=int(present.sum()),
        prefills=int(present.sum()),
        steps=len(request),
        emitted_tokens=int(emitted.sum()),
        drafts=int(has_draft.sum()),
        drafted_tokens=int(drafted.sum()),
        accepted_tokens=int(accepted.sum()),
        verified_tokens=int(verified.sum()),
        accepted_histogram=_bins(short_accepted),
        tested_histogram=_bins(short_tested),
        length_drafts=_bins(length),
        length_accepted=_bins(length, short_accepted),
        length_tested=_bins(length, short_tested),
        clusters=Clusters(
            n=len(t),
            a=int(a.sum()),
            t=int(t.sum()),
            aa=int((a * a).sum()),
            at=int((a * t).sum()),
            tt=int((t * t).sum()),
        ),
    )


def _ints(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, np.int64)


def _floats(values: Iterable[float | None]) -> FloatArray:
    return np.fromiter((np.nan if v is None else v for v in values), np.float64)


def _bins(index: npt.NDArray[np.integer], weights: npt.NDArray[np.integer] | None = None) -> tuple[int, ...]:
    return tuple(int(n) for n in np.bincount(index, weights))


def _known_sum(seconds: FloatArray) -> float | None:
    total = float(seconds.sum())
    return None if total != total or not len(seconds) else total
