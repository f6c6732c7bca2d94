"""One speculative step of one request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one target pass did for one request.

    Attributes
    ----------
    request : str
        Request id; intervals are clustered by it.
    step : int
        0-based index of the verify pass within the request (the prefill is not a step).
    source : str
        Draft source, as the user spelled it.
    tag : str
        Group of the request (``copy``, ``open``), or empty.
    context_len : int
        Tokens before the step, prompt included.
    drafted : int
        Tokens drafted and verified; 0 when the source had nothing to offer.
    accepted : int
        Drafted tokens accepted, the bonus token excluded; 0 <= accepted <= drafted.
    emitted : int
        Tokens emitted by the step, the bonus or recovered token included: accepted + 1 unless a stop cut it short.
    match_len : int or None
        Length of the match behind a matcher's draft.
    overlap : tuple of float or None
        Sum over the vocabulary of min(p, q) at each reached position, where distributions were at hand.
    confidence : tuple of float or None
        What the source thought of each drafted token: the probability that it is accepted, given those before it.
    draft_s, verify_s, host_s : float or None
        Measured seconds of drafting, of the target pass, and of everything else.
    tested : int or None
        Positions whose verdict is known, up to and including the first rejection. None stands for the ordinary chain:
        accepted + 1 where accepted < drafted, else accepted. It is set where that does not hold: a recording that ends
        inside a draft (tested = accepted, no rejection was seen) or a tree whose accepted path ends in a leaf.
    verified : int or None
        Draft positions that the target pass computed, padding and filler included; None where that is `drafted`.
    """

    request: str
    step: int
    source: str
    context_len: int
    drafted: int
    accepted: int
    emitted: int
    tag: str = ""
    match_len: int | None = None
    overlap: tuple[float, ...] | None = None
    confidence: tuple[float, ...] | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    host_s: float | None = None
    tested: int | None = None
    verified: int | None = None

    @property
    def n_tested(self) -> int:
        """Positions with a known verdict: the denominator of the conditional acceptance alpha.

        >>> StepRecord(request="a", step=0, source="ngram", context_len=9, drafted=3, accepted=1, emitted=2).n_tested
        2
        """
        return self.accepted + (self.accepted < self.drafted) if self.tested is None else self.tested

    @property
    def n_verified(self) -> int:
        """Draft positions that the target pass computed."""
        return self.drafted if self.verified is None else self.verified
