"""A measurement of a running server: the same requests with and without speculation, in turn, at several loads.

Requests go in rounds of as many as run at a time. Each round is sent to both sides, the one right after the other and
with the first place changing, between two readings of the server's counters; so a change of the machine's speed falls
on both, and what the counters say is of these requests alone. Acceptance, steps and batches are the server's own
figures; seconds per token are taken from outside.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, isnan
from types import MappingProxyType
from typing import Any, Final

from specplan.decide.measured import summarise
from specplan.decide.served_speed import ServedSpeed
from specplan.errors import InputError
from specplan.formulas.speedup import paired_speedup
from specplan.records.means import Means
from specplan.records.prompts import Prompt
from specplan.telemetry.completions import Answer, complete, root_of, served_model
from specplan.telemetry.fetch import TIMEOUT_S, fetch_text
from specplan.telemetry.observation import Observation
from specplan.telemetry.prometheus import Scrape, between, counted, observations, parse_scrape, pooled
from specplan.telemetry.responses import read_responses

ROUNDS: Final = 3
"""Rounds at each concurrency and tag, at least: an interval needs several."""
_WARM_TOKENS: Final = 8
_CHARACTERS: Final = 4
"""Characters per token of a prompt, assumed before it is sent."""
_TOKENS: Final = ("vllm:generation_tokens_total", "sglang:generation_tokens_total", "llamacpp:tokens_predicted_total")
_SETTLE_S: Final = 2.0  # a server counts a token a moment after it sent it

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Requests that run at a time."""

    concurrency: int
    tag: str
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerJob:
    """What ``specplan measure --server`` was asked to do.

    Attributes
    ----------
    server, plain : str or None
        Addresses: of the server that drafts, and of one that does not.
    plain_body : mapping
        Fields of a request by which the first server leaves drafts out, instead of `plain`.
    prompts : tuple of Prompt
    concurrency : tuple of int
        Requests at a time, each at least 1.
    max_tokens, temperature, seed
        Of each request.
    key : str
        Bearer token of the servers.
    timeout_s : float
        Longest silence of a server, seconds.
    """

    server: str
    plain: str | None = None
    plain_body: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    prompts: tuple[Prompt, ...]
    concurrency: tuple[int, ...] = (1,)
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    key: str = ""
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what cannot be sent."""
        root_of(self.server, "--server")
        if self.plain is not None:
            if self.plain_body:
                raise InputError("--server-plain and --plain-body both name plain decoding; give one of them")
            if root_of(self.plain, "--server-plain") == root_of(self.server, "--server"):
                raise InputError(f"--server-plain {self.plain}: is --server itself; give one without speculation")
        for n in self.concurrency:
            if not 1 <= n <= 1024:
                raise InputError(f"--concurrency {n}: must be from 1 to 1024")
        if self.max_tokens < 2:
            raise InputError(f"--max-tokens {self.max_tokens}: must be at least 2, for the first token is no step's")
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"--temperature {self.temperature}: must be a number of at least 0")

    @property
    def sides(self) -> tuple[str, ...]:
        """``drafted``, and ``plain`` where plain decoding can be asked for."""
        return ("drafted", "plain") if self.plain or self.plain_body else ("drafted",)

    def rounds(self) -> tuple[Round, ...]:
        """All rounds in order; tags take turns, and prompts come again where there are too few."""
        by_tag: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            by_tag.setdefault(prompt.tag, []).append(prompt)
        found = []
        for n in dict.fromkeys(self.concurrency):
            counts = {tag: max(ROUNDS, ceil(len(mine) / n)) for tag, mine in by_tag.items()}
            for i in range(max(counts.values())):
                for tag, mine in by_tag.items():
                    if i < counts[tag]:
                        prompts = tuple(mine[(i * n + j) % len(mine)] for j in range(n))
                        found.append(Round(concurrency=n, tag=tag, prompts=prompts))
        return tuple(found)

    def warm_up(self) -> tuple[Round, ...]:
        """One short round at each concurrency."""
        return tuple(
            Round(concurrency=n, tag="warm-up", prompts=tuple(self.prompts[i % len(self.prompts)] for i in range(n)))
            for n in dict.fromkeys(self.concurrency)
        )

    def cost(self) -> dict[str, int]:
        """Requests, tokens of prompts (by four characters each) and tokens of answers at most, over both sides."""
        rounds, warm = self.rounds(), self.warm_up()
        sent = [p for r in (*rounds, *warm) for p in r.prompts]
        timed, short = (sum(r.concurrency for r in rs) for rs in (rounds, warm))
        tokens = timed * self.max_tokens + short * min(self.max_tokens, _WARM_TOKENS)
        count = len(self.sides)
        return {
            "requests": count * len(sent),
            "prompt_tokens": count * sum(len(p.ids) or ceil(len(p.text) / _CHARACTERS) for p in sent),
            "answer_tokens": count * tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """What was measured.

    Attributes
    ----------
    speeds : tuple of ServedSpeed
        By concurrency, all tags together and then one by one.
    observed : tuple of Observation
        Of each concurrency and side, for a step table.
    context_len : int
        Mean cached tokens of a request.
    models : mapping
        Name of the served model by side.
    pages : mapping of str to str
        The counters of each side before the first request and after the last, as the server printed them.
    rows : tuple of dict
        Each answer.
    notes : tuple of str
    """

    speeds: tuple[ServedSpeed, ...]
    observed: tuple[Observation, ...]
    context_len: int
    models: Mapping[str, str]
    pages: Mapping[str, str]
    rows: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Side:
    """One of the two ways in which requests are answered."""

    name: str
    root: str
    model: str
    job: ServerJob
    notes: list[str]
    counts: bool = True  # whether the server has a page of counters
    page: str = ""

    def read(self) -> Scrape:
        self.page = fetch_text(f"{self.root}/metrics", TIMEOUT_S)
        return parse_scrape(self.page, f"{self.root}/metrics")

    def answers(self, sent: Round, max_tokens: int, first: int) -> tuple[Answer, ...]:
        """Answers to a round's requests, all sent at once."""
        bodies = [self._body(prompt, max_tokens, first + i) for i, prompt in enumerate(sent.prompts)]
        with ThreadPoolExecutor(len(bodies)) as pool:
            asked = [
                pool.submit(complete, self.root, *body, key=self.job.key, timeout_s=self.job.timeout_s)
                for body in bodies
            ]
            return tuple(a.result() for a in asked)

    def _body(self, prompt: Prompt, max_tokens: int, number: int) -> tuple[str, dict[str, Any]]:
        chat = [{"role": "user", "content": prompt.text}]
        path, given = (
            ("/v1/completions", {"prompt": list(prompt.ids)})
            if prompt.ids
            else ("/v1/chat/completions", {"messages": chat})
        )
        extra = self.job.plain_body if self.name == "plain" else {}
        settings = {"max_tokens": max_tokens, "temperature": self.job.temperature, "seed": self.job.seed + number}
        return path, {"model": self.model, **given, **settings, **extra}

    def window(self, sent: Round, first: int) -> "_Window":
        before = self.read() if self.counts else None
        answers = self.answers(sent, self.job.max_tokens, first)
        counters = None if before is None else self._settled(before, sum(a.tokens for a in answers))
        return _Window(sent, self.name, answers, counters)

    def _settled(self, before: Scrape, tokens: int) -> Scrape:
        """Counters since `before`, once they hold the tokens of the answers."""
        until = time.monotonic() + _SETTLE_S
        while True:
            window, notes = between(before, self.read())
            self.notes.extend(notes)
            found = sum(counted(window, name) for name in _TOKENS)
            if found == tokens:
                return window
            if time.monotonic() > until:
                self.notes.append(
                    f"{self.root} counted {found:.0f} tokens while its answers held {tokens}: other requests ran beside"
                )
                return window
            time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class _Window:
    """One round on one side."""

    sent: Round
    side: str
    answers: tuple[Answer, ...]
    counters: Scrape | None

    @property
    def tokens(self) -> int:
        return sum(a.tokens - a.first_tokens for a in self.answers)

    @property
    def seconds(self) -> float:
        return sum(a.decode_s for a in self.answers)

    def shared_s(self) -> float:
        """Seconds of each answer times the answers that were under way beside it, itself included."""
        starts = [a.began_s + a.first_s for a in self.answers]
        ends = [start + a.decode_s for start, a in zip(starts, self.answers, strict=True)]
        changes = sorted([(t, 1) for t in starts] + [(t, -1) for t in ends])
        running, total = 0, 0.0
        for (at, sign), (until, _) in pairwise(changes):
            running += sign
            total += running**2 * (until - at)
        return total


def run_server(job: ServerJob, *, progress: Progress = lambda *_: None) -> ServerRun:
    """Send everything, and put together what the servers counted and what the clock says.

    Raises
    ------
    InputError
        If a server does not answer as OpenAI's API does, tells nothing of speculation, or drafts where it should not.
    """
    notes: list[str] = []
    sides = [_side(name, job, notes) for name in job.sides]
    rounds, warm = job.rounds(), job.warm_up()
    if len(job.prompts) < sum(r.concurrency for r in rounds):
        notes.append("prompts came again: a store that outlives a request has seen their answers")
    for done, sent in enumerate(warm):
        progress("warming up", done, len(warm))
        for side in sides:
            side.answers(sent, min(job.max_tokens, _WARM_TOKENS), 0)
    pages = {}
    for side in sides:
        _begin(side)
        pages[f"{side.name}-before"] = side.page
    windows: list[_Window] = []
    rows: list[dict[str, Any]] = []
    number = 0
    for done, sent in enumerate(rounds):
        progress("rounds", done, len(rounds))
        for side in sides[:: 1 if done % 2 == 0 else -1]:
            windows.append(side.window(sent, number))
            rows.extend(_row(windows[-1], p, a) for p, a in zip(sent.prompts, windows[-1].answers, strict=True))
        number += sent.concurrency
    progress("rounds", len(rounds), len(rounds))
    pages |= {f"{side.name}-after": side.page for side in sides}
    names = {side.name: side.model for side in sides}
    speeds, observed = [], []
    for n in dict.fromkeys(job.concurrency):
        mine = [w for w in windows if w.sent.concurrency == n]
        tags = list(dict.fromkeys(w.sent.tag for w in mine))
        for tag in ("", *(tags if len(tags) > 1 else ())):
            part = [w for w in mine if tag in ("", w.sent.tag)]
            speed, seen = _speed(n, tag, part, names)
            speeds.append(speed)
            if not tag:
                observed.extend(seen)
    lengths = [a.prompt_tokens + a.tokens / 2 for w in windows for a in w.answers]
    return ServerRun(
        speeds=tuple(speeds),
        observed=tuple(observed),
        context_len=round(sum(lengths) / len(lengths)),
        models=names,
        pages={name: page for name, page in pages.items() if page},
        rows=tuple(rows),
        notes=tuple(dict.fromkeys(notes)),
    )


def _side(name: str, job: ServerJob, notes: list[str]) -> _Side:
    root = root_of(job.plain, "--server-plain") if name == "plain" and job.plain else root_of(job.server, "--server")
    return _Side(name=name, root=root, model=served_model(root, TIMEOUT_S), job=job, notes=notes)


def _begin(side: _Side) -> None:
    """Read a side's counters once the last ones of the warm-up are there; note a server that has none."""
    try:
        before = side.read()
    except InputError as error:
        side.counts = False
        side.notes.append(f"no counters: {error}; acceptance is that of the answers, steps are timed from outside")
        return
    until = time.monotonic() + _SETTLE_S
    while time.monotonic() < until:
        time.sleep(0.1)
        again = side.read()
        if all(counted(again, name) == counted(before, name) for name in _TOKENS):
            return
        before = again


def _row(window: _Window, prompt: Prompt, answer: Answer) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "tag": prompt.tag,
        "concurrency": window.sent.concurrency,
        "side": window.side,
        "prompt_tokens": answer.prompt_tokens,
        "tokens": answer.tokens,
        "first_s": answer.first_s,
        "decode_s": answer.decode_s,
    }


def _speed(
    n: int, tag: str, windows: Sequence[_Window], names: Mapping[str, str]
) -> tuple[ServedSpeed, list[Observation]]:
    by_side = {side: [w for w in windows if w.side == side] for side in names}
    seen = {side: _observed(side, mine, names[side]) for side, mine in by_side.items()}
    drafted, plain = seen["drafted"], seen.get("plain")
    if plain is not None and plain.tally is not None and plain.tally.drafts:
        raise InputError(f"{plain.origin}: the plain side drafted {plain.tally.drafts} times; give one that does not")
    rates = {side: _over(sum(w.tokens for w in mine), sum(w.seconds for w in mine)) for side, mine in by_side.items()}
    ends: tuple[float, float] = (float("nan"), float("nan"))
    if plain is not None:
        pairs = zip(by_side["drafted"], by_side["plain"], strict=True)
        both = [(a, b) for a, b in pairs if a.seconds > 0 and b.seconds > 0]
        if both:
            sums = zip(*((a.tokens, a.seconds, b.tokens, b.seconds) for a, b in both), strict=True)
            tokens, seconds, plain_tokens, plain_seconds = sums
            ends = paired_speedup(tokens, seconds, plain_tokens, plain_seconds, strata=[a.sent.tag for a, _ in both])[
                1:
            ]
    speed = ServedSpeed(
        concurrency=n,
        measured=summarise(drafted.tally, source=drafted.source, tag=tag, means=drafted.means),
        tokens_per_s=rates["drafted"],
        plain_tokens_per_s=rates.get("plain"),
        step_s=drafted.step_s,
        plain_step_s=None if plain is None else plain.step_s,
        batch=drafted.mean_batch,
        plain_batch=None if plain is None else plain.mean_batch,
        speedup_low=None if isnan(ends[0]) else ends[0],
        speedup_high=None if isnan(ends[1]) else ends[1],
    )
    return speed, [replace(o, origin=f"{o.origin}, {n} at a time") for o in seen.values()]


def _over(tokens: float, seconds: float) -> float | None:
    return tokens / seconds if seconds > 0 else None


def _observed(side: str, windows: Sequence[_Window], model: str) -> Observation:
    """What a side's counters say over some rounds; where it has none, what its answers say and the clock."""
    seen = _by_counters(windows) or _by_answers(windows, model)
    if seen is None and side == "drafted":
        raise InputError(
            f"{model}: neither the metrics page nor the answers tell of speculation; start the server with "
            "it, and with its metrics (--enable-metrics in SGLang, --metrics in llama.cpp)"
        )
    if seen is None:
        seen = Observation(
            engine="server", origin=model, source=model, tally=None, means=Means(tokens_per_step=1.0), translations=()
        )
    tokens, seconds = sum(w.tokens for w in windows), sum(w.seconds for w in windows)
    emitted = seen.means.tokens_per_step if seen.means else None
    steps = seen.tally.steps if seen.tally is not None and seen.tally.steps else tokens / emitted if emitted else None
    return replace(
        seen,
        step_s=seen.step_s or (seconds / steps if steps and seconds else None),
        # a mean over steps of requests counts a step once for each: its batch is the one that a request meets
        mean_batch=_over(sum(w.shared_s() for w in windows), seconds),
    )


def _by_counters(windows: Sequence[_Window]) -> Observation | None:
    counters = [w.counters for w in windows if w.counters is not None]
    if not counters:
        return None
    try:
        return observations(pooled(counters))[0]
    except InputError:  # a page without figures of speculation; the answers may have them
        return None


def _by_answers(windows: Sequence[_Window], model: str) -> Observation | None:
    told = [(f"answer {i}", a.last) for i, a in enumerate(a for w in windows for a in w.answers)]
    try:
        return read_responses(told, model)[0]
    except InputError:
        return None
