"""The speculative loop: draft, verify, record, for a batch of requests that come and go.

Invariant: the target's cache holds every token of a row except its last, which the next pass scores first.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from specplan.errors import InputError
from specplan.harness.causal_lm import Cache, CausalLM
from specplan.harness.drafters import DraftBatch, Drafter, Row
from specplan.harness.verifiers import (
    OutcomeTensors,
    Sampling,
    accept_block,
    accept_greedy,
    accept_one_hot,
    accept_standard,
    accept_tree,
    accept_tree_greedy,
    verify_logits,
)
from specplan.records.step import StepRecord
from specplan.verify.outcome import Outcome

GREEDY: Final = Sampling(temperature=0.0)
RULES: Final = ("standard", "block")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to continue."""

    id: str
    prompt: tuple[int, ...]
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a request got.

    Attributes
    ----------
    request : Request
    tokens : tuple of int
        Its output, which ends at the stop token or at the limit.
    emitted : tuple of int
        What the steps emitted: it can run past the output's end, as in engines.
    steps : tuple of StepRecord
        Its verify passes.
    """

    request: Request
    tokens: tuple[int, ...]
    emitted: tuple[int, ...]
    steps: tuple[StepRecord, ...]


@dataclass(slots=True, kw_only=True)
class _Running:
    request: Request
    row: Row
    new: list[int]
    steps: list[StepRecord] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class SpeculativeLoop:
    """Runs requests through one target and one draft source.

    Attributes
    ----------
    target : CausalLM
    drafter : Drafter
    source : str
        Name of the draft source, for the records.
    max_tokens : int
        Tokens to emit per request at most.
    capacity : int
        Tokens per row of the target's cache; a prompt, its output and one draft must fit.
    stop_ids : frozenset of int
        Tokens that end a request.
    sampling : Sampling
        Temperature and filters, the same for all requests.
    rule : str
        ``standard`` or ``block``, at temperatures above 0.
    batch : int
        Requests that run at a time.
    generator : torch.Generator
        Every draw comes from here, so that a seed repeats a run.
    generator_of : callable, optional
        A request's own generator by its id, in place of `generator`: then a request's draws do not depend on those that
        ran before it or beside it.
    """

    target: CausalLM
    drafter: Drafter
    source: str
    max_tokens: int
    capacity: int
    stop_ids: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    rule: str = "standard"
    batch: int = 1
    generator: torch.Generator
    generator_of: Callable[[str], torch.Generator] | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"rule {self.rule!r}: one of {', '.join(RULES)}")
        if self.batch < 1 or self.max_tokens < 1:
            raise InputError(f"batch {self.batch} and max_tokens {self.max_tokens} must be at least 1")

    def run(self, requests: Iterable[Request]) -> Iterator[Generated]:
        """Continue `requests`, yielding each as it ends."""
        waiting = iter(requests)
        cache = self.target.new_cache(self.batch, self.capacity)
        places: dict[int, _Running] = {}
        while True:
            for place in range(self.batch):
                while place not in places and (request := next(waiting, None)) is not None:
                    running = self._start(request, place, cache)
                    if self._is_done(running):
                        yield self._finish(running)
                    else:
                        places[place] = running
            if not places:
                return
            cache.span = max(len(r.row.tokens) - 1 for r in places.values())
            self._step([places[place] for place in sorted(places)], cache)
            for place in [place for place, r in places.items() if self._is_done(r)]:
                running = places.pop(place)
                yield self._finish(running)

    def _start(self, request: Request, place: int, cache: Cache) -> _Running:
        if not request.prompt:
            raise InputError(f"request {request.id}: the prompt is empty")
        if len(request.prompt) + self.max_tokens > self.capacity:
            raise InputError(
                f"request {request.id}: {len(request.prompt)} prompt tokens and {self.max_tokens} more exceed "
                f"the cache of {self.capacity}"
            )
        part = cache.row(place)
        part.truncate(torch.zeros_like(part.lengths), 0)
        prompt = torch.tensor([request.prompt], device=self.target.device)
        logits = self.target(prompt, part, last_only=True)
        part.commit(torch.tensor([prompt.shape[1]], device=self.target.device), prompt.shape[1])
        no_draft = torch.empty((1, 0), dtype=torch.int64, device=self.target.device)
        row = Row(request=request.id, place=place, tokens=list(request.prompt))
        row.generator = None if self.generator_of is None else self.generator_of(request.id)
        first = self._judge(logits, DraftBatch(tokens=no_draft), [row]).to_host().emitted_tokens()[0]
        row.tokens.extend(first)
        self.drafter.start(row)
        return _Running(request=request, row=row, new=list(first))

    def _step(self, running: Sequence[_Running], cache: Cache) -> None:
        """Draft, score, verify and record one step of every running request."""
        rows = [r.row for r in running]
        began = time.perf_counter()
        drafts = self.drafter.draft(rows, [r.new for r in running])
        self._wait()
        drafted = time.perf_counter()
        places = torch.tensor([row.place for row in rows], device=self.target.device)
        tokens = drafts.tokens.to(self.target.device)
        drafts = replace(drafts, tokens=tokens)
        logits = self._score(rows, places, drafts, cache)
        self._wait()
        scored = time.perf_counter()
        outcome = self._judge(logits, drafts, rows).to_host()
        self._commit(rows, places, outcome, cache)
        for r, emitted in zip(running, outcome.emitted_tokens(), strict=True):
            r.new = emitted
        ended = time.perf_counter()
        share = 1 / len(rows)
        records = outcome.records(
            [r.request.id for r in running],
            [len(r.steps) for r in running],
            self.source,
            [len(row.tokens) for row in rows],
            tags=[r.request.tag for r in running],
            match_lens=drafts.match_lens,
            draft_s=(drafted - began) * share,
            verify_s=(scored - drafted) * share,
            host_s=(ended - scored) * share,
        )
        said = [None] * len(rows) if drafts.confidence is None else drafts.confidence.clamp(max=1).cpu().tolist()
        for r, record, chances in zip(running, records, said, strict=True):
            known = None if chances is None else tuple(chances[: record.drafted])
            r.steps.append(replace(record, confidence=known or None))
            r.row.tokens.extend(r.new)

    def _score(self, rows: Sequence[Row], places: torch.Tensor, drafts: DraftBatch, cache: Cache) -> torch.Tensor:
        """Target logits after each row's last token and each drafted one, shape (rows, K + 1, V)."""
        k = drafts.tokens.shape[1]
        device = self.target.device
        fed = torch.zeros((self.batch, k + 1), dtype=torch.int64, device=device)
        fed[places, 0] = torch.tensor([row.tokens[-1] for row in rows], device=device)
        fed[places, 1:] = drafts.tokens.clamp(min=0)
        if drafts.parents is None:
            return self.target(fed, cache)[places]
        seen, depths = tree_mask(drafts.parents)
        mask = torch.eye(k + 1, dtype=torch.bool, device=device).repeat(self.batch, 1, 1)
        mask[places] = torch.from_numpy(seen).to(device)
        depth = torch.zeros((self.batch, k + 1), dtype=torch.int64, device=device)
        depth[places] = torch.from_numpy(depths).to(device)
        return self.target(fed, cache, depths=depth, tree_mask=mask)[places]

    def _judge(self, logits: torch.Tensor, drafts: DraftBatch, rows: Sequence[Row]) -> OutcomeTensors:
        greedy = self.sampling.temperature == 0
        if drafts.parents is not None:
            if greedy:
                return accept_tree_greedy(logits, drafts.tokens, parents=drafts.parents)
            return verify_logits(
                accept_tree,
                logits,
                self.sampling,
                None,
                drafts.tokens,
                self._uniforms(drafts, rows),
                parents=drafts.parents,
            )
        if greedy:
            return accept_greedy(logits, drafts.tokens)
        u = self._uniforms(drafts, rows)
        if self.rule == "block":
            return verify_logits(accept_block, logits, self.sampling, drafts.q, drafts.tokens, u)
        if drafts.q is None:
            return verify_logits(accept_one_hot, logits, self.sampling, drafts.tokens, u)
        return verify_logits(accept_standard, logits, self.sampling, drafts.q, drafts.tokens, u)

    def _uniforms(self, drafts: DraftBatch, rows: Sequence[Row]) -> torch.Tensor:
        n, k = drafts.tokens.shape
        if self.generator_of is not None:
            draws = [
                torch.rand(k + 1, dtype=torch.float64, device=self.target.device, generator=row.generator)
                for row in rows
            ]
            return torch.stack(draws)
        return torch.rand((n, k + 1), dtype=torch.float64, device=self.target.device, generator=self.generator)

    def _commit(self, rows: Sequence[Row], places: torch.Tensor, outcome: Outcome, cache: Cache) -> None:
        device = self.target.device
        counts = torch.zeros(self.batch, dtype=torch.int64, device=device)
        counts[places] = torch.from_numpy(outcome.emitted).to(device)
        longest = max(len(row.tokens) - 1 + int(n) for row, n in zip(rows, outcome.emitted, strict=True))
        if outcome.nodes is None:
            cache.commit(counts, longest)
            return
        path = torch.zeros((self.batch, outcome.nodes.shape[1] + 1), dtype=torch.int64, device=device)
        path[places, 1:] = torch.from_numpy(np.maximum(outcome.nodes + 1, 0)).to(device)
        cache.commit_path(path, counts, longest)

    def _is_done(self, running: _Running) -> bool:
        output = running.row.tokens[len(running.request.prompt) :]
        return len(output) >= self.max_tokens or not self.stop_ids.isdisjoint(running.new)

    def _finish(self, running: _Running) -> Generated:
        self.drafter.stop(running.row, running.new)
        emitted = tuple(running.row.tokens[len(running.request.prompt) :])
        output = emitted[: self.max_tokens]
        end = next((i + 1 for i, token in enumerate(output) if token in self.stop_ids), len(output))
        return Generated(request=running.request, tokens=output[:end], emitted=emitted, steps=tuple(running.steps))

    def _wait(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)


def tree_mask(parents: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, Any]]:
    """Visibility and depth of a tree behind its root, the row's last token.

    Parameters
    ----------
    parents : ndarray of int, shape (rows, K)
        Index of each node's parent, -1 for the root; parents stand before their children.

    Returns
    -------
    (ndarray of bool, ndarray of int)
        Shapes (rows, K + 1, K + 1) and (rows, K + 1): node i sees its ancestors, the root and itself.

    Examples
    --------
    >>> seen, depth = tree_mask(np.array([[-1, 0, -1]]))
    >>> seen[0].astype(int).tolist(), depth[0].tolist()
    ([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]], [0, 1, 2, 1])
    """
    n, k = parents.shape
    seen = np.zeros((n, k + 1, k + 1), dtype=bool)
    seen[:, 0, 0] = True
    rows = np.arange(n)
    for i in range(k):
        seen[:, i + 1] = seen[rows, parents[:, i] + 1]
        seen[:, i + 1, i + 1] = True
    return seen, seen.sum(axis=2) - 1
