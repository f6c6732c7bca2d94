"""N-gram drafting in data-parallel form, for a device that holds the token ids of the whole batch.

Every position of every context is compared at once; there is no loop over matches, no branch on data and no value read
back, so a step can be one compiled region and one captured graph. The answers equal those of `specplan.propose.ngram`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specplan.errors import InputError

NO_DRAFT = -1
"""What stands in a slot without a drafted token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramWindow:
    """The rule: longest n in [`min_n`, `max_n`], then the earliest occurrence, or the latest.

    For position e of row b let m(b, e) be the number of tokens, at most `max_n`, that agree going left from e and from
    the context's end. The winner maximises (m, -e), or (m, e) for the latest, among e <= T - 2 with m >= `min_n`: one
    reduction over the row, whose cost is `max_n` compares per position.

    Attributes
    ----------
    min_n, max_n : int
        1 <= min_n <= max_n.
    k : int
        Slots per row, at least 1.
    latest : bool
        The most recent occurrence wins (vLLM's V2 runner) instead of the earliest (its `ngram_gpu` on V1).
    fill : bool
        Slots without a token hold the last token (V2) instead of -1 (V1).

    Examples
    --------
    >>> tokens = torch.tensor([[5, 6, 7, 8, 5, 6, 0], [1, 2, 3, 4, 5, 6, 7]])
    >>> drafts, counts = NgramWindow(min_n=2, max_n=4, k=3)(tokens, torch.tensor([6, 7]))
    >>> drafts.tolist(), counts.tolist()
    ([[7, 8, 5], [-1, -1, -1]], [3, 0])
    """

    min_n: int
    max_n: int
    k: int
    latest: bool = False
    fill: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n:
            raise InputError(f"n-gram lengths: got min {self.min_n}, max {self.max_n}; 1 <= min <= max is needed")
        if self.k < 1:
            raise InputError(f"k is {self.k}; at least one slot per row is needed")

    def __call__(self, tokens: Tensor, lengths: Tensor, sampled: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Drafts of all rows.

        Parameters
        ----------
        tokens : integer tensor, shape (B, L)
            Token ids, right-padded; what stands beyond a row's length is not looked at.
        lengths : integer tensor, shape (B,)
            T of each row, 0 <= T <= L.
        sampled : bool tensor, shape (B,), optional
            False for a row that emitted nothing in this step (a prompt still being read): it is treated as a row
            without a match.

        Returns
        -------
        drafts : tensor, shape (B, k)
            Token ids; unused slots as `fill` says.
        counts : int tensor, shape (B,)
            Slots that hold tokens found in the context: those that are no filler, or the leading ones that are not -1.

        Notes
        -----
        No cap by the model's length: the scheduler trims. Scores are 32-bit: (max_n + 1) * L < 2^31. Memory: some
        ten bytes per position of the batch.
        """
        width = tokens.shape[1]
        lengths = lengths.to(torch.int64)
        at = torch.arange(width, device=tokens.device)
        ends = lengths - 1
        agree = at < ends[:, None]  # candidates: the last token of an occurrence, which something follows
        matched = torch.zeros_like(tokens, dtype=torch.int32)
        for back in range(min(self.max_n, width)):
            wanted = tokens.gather(1, (ends - back).clamp(min=0)[:, None])
            same = tokens[:, : width - back] == wanted
            # A match may not begin before the context: nothing agrees `back` tokens left of a position below `back`.
            agree = agree & torch.nn.functional.pad(same, (back, 0), value=False)
            matched = matched + agree
        usable = matched >= self.min_n
        if sampled is not None:
            usable = usable & sampled[:, None]
        order = at if self.latest else width - 1 - at
        score = torch.where(usable, matched * width + order.to(torch.int32), -1)
        best, where = score.max(dim=1)
        slots = where[:, None] + 1 + torch.arange(self.k, device=tokens.device)
        found = (best >= 0)[:, None] & (slots < lengths[:, None])
        drafts = tokens.gather(1, slots.clamp(max=width - 1))
        if self.fill:
            last = torch.where(lengths > 0, tokens.gather(1, ends.clamp(min=0)[:, None])[:, 0], 0)
            drafts = torch.where(found, drafts, last[:, None])
        else:
            drafts = drafts.masked_fill(~found, NO_DRAFT)
            found = (drafts != NO_DRAFT).cumprod(dim=1)
        return drafts, found.sum(dim=1)
