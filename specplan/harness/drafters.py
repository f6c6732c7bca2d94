"""Draft sources as the loop drives them: matchers behind the proposer protocol, and draft models.

A drafter is told of requests and of what they emitted, and is asked once per step for a batch of drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from specplan.harness.causal_lm import CausalLM
from specplan.harness.verifiers import Sampling, probabilities
from specplan.propose.protocol import Proposer
from specplan.propose.vocab_mapping import VocabMapping


@dataclass(slots=True)
class Row:
    """One running request: its place in the batch, its tokens with the prompt, and where its draws come from."""

    request: str
    place: int
    tokens: list[int]
    generator: torch.Generator | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBatch:
    """Drafts of the running rows, in their order.

    Attributes
    ----------
    tokens : Tensor of int64, shape (rows, K)
        -1 where there is none; K is the longest draft (number of nodes, for trees).
    parents : ndarray of int, shape (rows, K), or None
        For trees: index of each node's parent, -1 for the context.
    q : Tensor, shape (rows, K, V), or None
        Distributions from which the tokens were drawn; None for one-hot drafts.
    match_lens : tuple of (int or None)
        Length of the match behind each draft.
    confidence : Tensor, shape (rows, K), or None
        Probability that the source gave each drafted token.
    """

    tokens: torch.Tensor
    parents: np.ndarray[Any, np.dtype[np.int64]] | None = None
    q: torch.Tensor | None = None
    match_lens: tuple[int | None, ...] = ()
    confidence: torch.Tensor | None = None


class Drafter(Protocol):
    """A draft source for the loop."""

    def start(self, row: Row) -> None:
        """A request begins: its prompt and its first token are in `row.tokens`."""
        ...

    def stop(self, row: Row, new: Sequence[int]) -> None:
        """A request has ended; `new` is what its last step emitted, past a stop token included, as engines store it."""
        ...

    def draft(self, rows: Sequence[Row], new: Sequence[Sequence[int]]) -> DraftBatch:
        """Drafts for `rows`; `new` holds what each emitted since it was last asked."""
        ...

    def remember(self, request: str, prompt: Sequence[int], emitted: Sequence[int]) -> None:
        """Take into a shared store, if there is one, what a request of an earlier, interrupted run emitted."""
        ...


class NoDrafter:
    """Plain decoding."""

    def start(self, row: Row) -> None:
        """Nothing to prepare."""

    def stop(self, row: Row, new: Sequence[int]) -> None:
        """Nothing to drop."""

    def remember(self, request: str, prompt: Sequence[int], emitted: Sequence[int]) -> None:
        """There is no store."""

    def draft(self, rows: Sequence[Row], new: Sequence[Sequence[int]]) -> DraftBatch:  # noqa: ARG002 - the protocol's
        """No tokens."""
        return DraftBatch(tokens=torch.empty((len(rows), 0), dtype=torch.int64), match_lens=(None,) * len(rows))


@dataclass(slots=True, kw_only=True)
class MatcherDrafter:
    """A proposer that needs token ids alone, run on the host as engines run it.

    Attributes
    ----------
    proposer : Proposer
    k : int
        Tokens asked for per step.
    max_model_len : int
        L: a request of T tokens drafts at most L - T - 1.
    """

    proposer: Proposer
    k: int
    max_model_len: int

    def start(self, row: Row) -> None:
        """Hand over the prompt; the first token comes with the first draft."""
        self.proposer.start_request(row.request, row.tokens[:-1])

    def stop(self, row: Row, new: Sequence[int]) -> None:
        """Append the last tokens, which a shared store may keep, and drop the request's state."""
        self.proposer.extend(row.request, list(new))
        self.proposer.stop_request(row.request)

    def remember(self, request: str, prompt: Sequence[int], emitted: Sequence[int]) -> None:
        """Run the request through the proposer without drafting."""
        self.proposer.start_request(request, list(prompt))
        self.proposer.extend(request, list(emitted))
        self.proposer.stop_request(request)

    def draft(self, rows: Sequence[Row], new: Sequence[Sequence[int]]) -> DraftBatch:
        """Append what was emitted, then ask for drafts."""
        for row, tokens in zip(rows, new, strict=True):
            self.proposer.extend(row.request, list(tokens))
        limits = [max(0, min(self.k, self.max_model_len - len(row.tokens) - 1)) for row in rows]
        drafts = self.proposer.propose_batch([row.request for row in rows], limits)
        width = max((len(d) for d in drafts), default=0)
        drafted = np.full((len(rows), width), -1, dtype=np.int64)
        parents = np.full((len(rows), width), -1, dtype=np.int64)
        for i, draft in enumerate(drafts):
            drafted[i, : len(draft)] = draft.tokens
            parents[i, : len(draft)] = range(-1, len(draft) - 1) if draft.parents is None else draft.parents
        is_tree = any(not draft.is_chain for draft in drafts)
        return DraftBatch(
            tokens=torch.from_numpy(drafted),
            parents=parents if is_tree else None,
            match_lens=tuple(draft.match_len for draft in drafts),
        )


@dataclass(slots=True)
class ModelDrafter:
    """A draft model: k passes per step, the first of which feeds what its cache lacks.

    Attributes
    ----------
    model : CausalLM
    k : int
        Tokens drafted per step.
    batch, capacity : int
        Rows and tokens per row of its cache.
    sampling : Sampling or None
        None drafts the argmax (one-hot, the engines' default); else tokens are drawn and q is kept.
    generator : torch.Generator or None
        Source of the draws of rows that have none of their own.
    mapping : VocabMapping or None
        For a draft of another vocabulary: only shared tokens are drafted, greedily.
    max_model_len : int
        L: a request of T tokens drafts at most L - T - 1.
    """

    model: CausalLM
    k: int
    batch: int
    capacity: int
    max_model_len: int
    sampling: Sampling | None = None
    generator: torch.Generator | None = None
    mapping: VocabMapping | None = None
    _cache: Any = field(init=False)
    _held: list[int] = field(init=False)  # per place: tokens of the row that the cache holds

    def __post_init__(self) -> None:
        self._cache = self.model.new_cache(self.batch, self.capacity)
        self._held = [0] * self.batch

    def start(self, row: Row) -> None:
        """Prefill the prompt; the first token comes with the first draft."""
        part = self._cache.row(row.place)
        part.lengths.zero_()
        part.span = 0
        prompt = self._ids([row.tokens[:-1]])
        self.model(prompt, part, last_only=True)
        count = prompt.shape[1]
        part.commit(torch.tensor([count], device=self.model.device), count)
        self._held[row.place] = count
        self._cache.span = max(self._held)

    def stop(self, row: Row, new: Sequence[int]) -> None:  # noqa: ARG002 - the protocol's
        """Free the row."""
        self._held[row.place] = 0
        self._cache.lengths[row.place] = 0

    def remember(self, request: str, prompt: Sequence[int], emitted: Sequence[int]) -> None:
        """There is no store."""

    def draft(self, rows: Sequence[Row], new: Sequence[Sequence[int]]) -> DraftBatch:  # noqa: ARG002 - the protocol's
        """Roll back to the accepted text, then draft k tokens."""
        device = self.model.device
        kept = [min(self._held[row.place], len(row.tokens) - 1) for row in rows]
        lacking = [row.tokens[n:] for row, n in zip(rows, kept, strict=True)]
        places = [row.place for row in rows]
        counts = torch.zeros(self.batch, dtype=torch.int64)
        width = max(map(len, lacking))
        fed = torch.zeros((self.batch, width), dtype=torch.int64)
        for place, unfed in zip(places, lacking, strict=True):
            counts[place] = len(unfed)
            fed[place, : len(unfed)] = torch.tensor(self._mapped(unfed))
        lengths = torch.zeros(self.batch, dtype=torch.int64)
        lengths[places] = torch.tensor(kept)
        self._cache.truncate(lengths.to(device), max(kept))
        counts_d, fed = counts.to(device), fed.to(device)
        logits = self.model(fed, self._cache)
        longest = max(n + len(t) for n, t in zip(kept, lacking, strict=True))
        self._cache.commit(counts_d, longest)
        last = logits[torch.arange(self.batch, device=device), (counts_d - 1).clamp(min=0)]
        active = (counts_d > 0).to(torch.int64)
        drafted, dists, chances = [], [], []
        for i in range(self.k):
            token, q = self._choose(last, rows)
            drafted.append(token)
            held = torch.softmax(last.float(), dim=-1) if q is None else q
            chances.append(held.gather(-1, token[:, None])[:, 0])
            if q is not None:
                dists.append(q)
            if i + 1 < self.k:
                last = self.model(token[:, None], self._cache)[:, 0]
                longest += 1
                self._cache.commit(active, longest)
        for row in rows:
            self._held[row.place] = len(row.tokens) + self.k - 1
        index = torch.tensor(places, device=device)
        tokens = torch.stack(drafted, dim=1)[index]
        room = torch.tensor([self.max_model_len - len(row.tokens) - 1 for row in rows], device=device)
        tokens = torch.where(torch.arange(self.k, device=device) < room[:, None], tokens, -1)
        return DraftBatch(
            tokens=self._target_ids(tokens),
            q=torch.stack(dists, dim=1)[index] if dists else None,
            match_lens=(None,) * len(rows),
            confidence=torch.stack(chances, dim=1)[index],
        )

    def _choose(self, logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.mapping is not None:
            shared = torch.from_numpy(self.mapping.draft_mask).to(logits.device)
            logits = logits.masked_fill(~shared, -torch.inf)
        if self.sampling is None:
            return logits.argmax(dim=-1), None
        q = probabilities(logits, self.sampling)
        if all(row.generator is None for row in rows):
            return torch.multinomial(q, 1, generator=self.generator)[:, 0], q
        token = logits.argmax(dim=-1)  # places without a request draft what nobody reads
        for row in rows:
            token[row.place] = torch.multinomial(q[row.place], 1, generator=row.generator)[0]
        return token, q

    def _mapped(self, tokens: Sequence[int]) -> list[int]:
        return list(tokens) if self.mapping is None else self.mapping.target_to_draft(tokens).tolist()

    def _target_ids(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.mapping is None:
            return tokens
        flat = self.mapping.draft_to_target(tokens.clamp(min=0).flatten().cpu().numpy())
        named = torch.from_numpy(flat.astype(np.int64)).reshape(tokens.shape).to(tokens.device)
        return torch.where(tokens >= 0, named, -1)

    def _ids(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor([self._mapped(row) for row in rows], device=self.model.device)
