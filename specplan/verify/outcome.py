"""What one verification did for a batch of requests, and its rows as step records."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.records.step import StepRecord

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Verdicts on B requests of up to K drafted positions each (for a tree, K is its depth).

    Attributes
    ----------
    tokens : ndarray of int64, shape (B, K + 1)
        Emitted tokens: the accepted drafts, then the recovered or bonus token; -1 beyond.
    accepted : ndarray of int64, shape (B,)
        Drafted tokens accepted, the last token excluded.
    drafted : ndarray of int64, shape (B,)
        Drafted tokens that were verified; for a tree, its nodes.
    reached : ndarray of bool, shape (B, K)
        Positions with a verdict: all up to and including the first rejection.
    overlap : ndarray of float64, shape (B, K), or None
        Probability of acceptance at each reached position before the drafted token is known: the sum of min(p, q); for
        a one-hot q, p of the drafted token; for a tree, that of accepting any of the siblings. NaN where not reached.
        Its mean estimates alpha with less variance than the count of accepted tokens. None for rules without
        distributions.
    nodes : ndarray of int64, shape (B, K), or None
        For a tree: indices of the accepted nodes from the root on, -1 beyond.
    """

    tokens: IntArray
    accepted: IntArray
    drafted: IntArray
    reached: BoolArray
    overlap: FloatArray | None = None
    nodes: IntArray | None = None

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def emitted(self) -> IntArray:
        """Tokens emitted per request: accepted + 1."""
        return self.accepted + 1

    @property
    def tested(self) -> IntArray:
        """Positions with a verdict per request."""
        return np.asarray(self.reached.sum(axis=1, dtype=np.int64))

    @property
    def accepted_at(self) -> IntArray:
        """Entry i: requests with more than i tokens accepted."""
        return np.asarray((self.accepted[:, None] > np.arange(self.reached.shape[1])).sum(axis=0, dtype=np.int64))

    @property
    def reached_at(self) -> IntArray:
        """Entry i: requests that reached position i."""
        return np.asarray(self.reached.sum(axis=0, dtype=np.int64))

    def emitted_tokens(self) -> list[list[int]]:
        """Emitted tokens of each request, without padding."""
        return [row[:n].tolist() for row, n in zip(self.tokens, self.emitted.tolist(), strict=True)]

    def records(
        self,
        requests: Sequence[str],
        steps: Sequence[int],
        source: str,
        context_lens: Sequence[int],
        *,
        tags: Sequence[str] | None = None,
        match_lens: Sequence[int | None] | None = None,
        verified: Sequence[int] | None = None,
        draft_s: float | None = None,
        verify_s: float | None = None,
        host_s: float | None = None,
    ) -> list[StepRecord]:
        """Rows of the batch.

        Parameters
        ----------
        requests, steps, context_lens : sequence, length B
            As in `StepRecord`.
        source : str
            Draft source.
        tags, match_lens, verified : sequence or None
            As in `StepRecord`, one per request; `verified` counts the padding that the target pass computed.
        draft_s, verify_s, host_s : float or None
            Seconds of one request's share; the same for each row.

        Examples
        --------
        >>> out = Outcome(tokens=np.array([[7, 3]]), accepted=np.array([1]), drafted=np.array([1]),
        ...               reached=np.array([[True]]), overlap=np.array([[0.5]]))
        >>> row, = out.records(["a"], [0], "ngram", [12], match_lens=[3])
        >>> row.accepted, row.emitted, row.overlap, row.match_len
        (1, 2, (0.5,), 3)
        """
        for name, column in (("requests", requests), ("steps", steps), ("context_lens", context_lens)):
            if len(column) != len(self):
                raise InputError(f"{name}: expected one per request, {len(self)} in all, got {len(column)}")
        tested = self.tested.tolist()
        rows = []
        for b in range(len(self)):
            drafted, accepted = int(self.drafted[b]), int(self.accepted[b])
            rows.append(
                StepRecord(
                    request=requests[b],
                    step=steps[b],
                    source=source,
                    context_len=context_lens[b],
                    drafted=drafted,
                    accepted=accepted,
                    emitted=accepted + 1,
                    tag="" if tags is None else tags[b],
                    match_len=None if match_lens is None else match_lens[b],
                    overlap=None if self.overlap is None else tuple(self.overlap[b, self.reached[b]].tolist()),
                    draft_s=draft_s,
                    verify_s=verify_s,
                    host_s=host_s,
                    tested=None if tested[b] == accepted + (accepted < drafted) else tested[b],
                    verified=None if verified is None or verified[b] == drafted else verified[b],
                )
            )
        return rows


def chain_outcome(
    draft: IntArray, drafted: IntArray, accepted: IntArray, last: IntArray, overlap: FloatArray | None
) -> Outcome:
    """`Outcome` of chains: `accepted` leading tokens of `draft`, then `last`.

    Parameters
    ----------
    draft : ndarray, shape (B, K)
        Drafted tokens.
    drafted, accepted, last : ndarray, shape (B,)
        Draft lengths, accepted lengths, final tokens.
    overlap : ndarray, shape (B, K), or None
        Acceptance probability at every drafted position; what was not reached is masked here.
    """
    position = np.arange(draft.shape[1])
    tokens = np.full((len(draft), draft.shape[1] + 1), -1, dtype=np.int64)
    tokens[:, :-1] = np.where(position < accepted[:, None], draft, -1)
    tokens[np.arange(len(draft)), accepted] = last
    reached = (position <= accepted[:, None]) & (position < drafted[:, None])
    return Outcome(
        tokens=tokens,
        accepted=accepted,
        drafted=drafted,
        reached=reached,
        overlap=None if overlap is None else np.where(reached, overlap, np.nan),
    )
