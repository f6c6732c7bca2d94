"""The highest rate that holds the targets, per card, ranks and source: estimated, then decided by simulation."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from specplan.decide.source import emitted as emitted_of
from specplan.decide.step_setting import Setting
from specplan.errors import InfeasibleError, InputError, SpecplanError
from specplan.queueing.arrivals import Load
from specplan.queueing.estimate import estimated_rate
from specplan.queueing.notes import Notes
from specplan.queueing.outcome import Outcome, Target, outcome
from specplan.queueing.served_source import Limits, ServedSource, placed
from specplan.runners import Here, Runner
from specplan.units import read_number
from specplan.values.source import Source

PRECISION: Final = 0.03
"""Relative width within which the highest rate is sought."""

LARGE_GAP: Final = 0.3
"""Relative gap between estimate and simulation beyond which it is named."""

_STEP: Final = 1.25
_MOST_RUNS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One card, ranks and source.

    Attributes
    ----------
    setting : Setting
    source : Source
    """

    setting: Setting
    source: Source

    @property
    def name(self) -> str:
        """How checkpoints call it: in words, and by a digest of everything that its answer depends on."""
        on = self.setting.on
        whole = hashlib.blake2b(repr(self).encode(), digest_size=8).hexdigest()
        return f"{self.setting.target.name} on {on.tp} x {on.accelerator.name}, {self.source.title} [{whole}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every candidate.

    Attributes
    ----------
    load : Load
        Lengths and burstiness; its rate is the asked one.
    targets : tuple of Target
    limits : Limits
    seeds : tuple of int
    warmup : float
    """

    load: Load
    targets: tuple[Target, ...]
    limits: Limits
    seeds: tuple[int, ...] = (0,)
    warmup: float = 0.1

    def __post_init__(self) -> None:
        """Refuse questions without an answer."""
        if self.load.rate is None:
            raise InputError("capacity needs --rate: requests per second that all replicas together take")
        if not self.targets:
            raise InputError("capacity needs a target, such as --ttft p95=500ms or --tpot p95=30ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one candidate reaches.

    Attributes
    ----------
    gpu, tp, source : str, int, str
    kappa, blocks : int
    rate, estimated_rate : float
        Highest rate per replica that holds the targets, simulated and estimated; 0 where none does.
    replicas : int
        For the asked rate; 0 where the targets cannot be held.
    utilisation, running, ttft_p95_s, tpot_p95_s, accepted_length : float
        Of a replica at its share of the asked rate.
    binds : str
        What misses first above the highest rate: prefill, decode, cache or queue.
    runs : int
        Simulations that it took.
    points : tuple of (rate, tokens per second and user, tokens per second and card, p95 TTFT)
        Of all of them, by rate.
    reason : str
        Why nothing is reached; empty otherwise.
    """

    gpu: str
    tp: int
    source: str
    kappa: int = 0
    blocks: int = 0
    rate: float = 0.0
    estimated_rate: float = 0.0
    replicas: int = 0
    utilisation: float = math.nan
    running: float = math.nan
    ttft_p95_s: float = math.nan
    tpot_p95_s: float = math.nan
    accepted_length: float = math.nan
    binds: str = ""
    runs: int = 0
    points: tuple[tuple[float, float, float, float], ...] = ()
    reason: str = ""

    @property
    def cards(self) -> int:
        """Cards of all replicas."""
        return self.replicas * self.tp

    def load(self, asked: float) -> float:
        """Share of what the replicas hold that the asked rate is; NaN where nothing is reached."""
        return asked / (self.replicas * self.rate) if self.replicas else math.nan

    @property
    def gap(self) -> float:
        """Estimate over simulation, less 1; NaN where nothing is reached."""
        return self.estimated_rate / self.rate - 1 if self.rate else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Answers of all candidates, best first.

    Attributes
    ----------
    question : Question
    target : str
    found : tuple of Found
        By cost where every price is known, else by cards; those that reach nothing last.
    prices, powers : mapping of str to float
        Per card and hour, in watts, by card.
    """

    question: Question
    target: str
    found: tuple[Found, ...]
    prices: Mapping[str, float]
    powers: Mapping[str, float]

    @property
    def reaches(self) -> bool:
        """Whether any candidate holds the targets."""
        return any(f.replicas for f in self.found)

    def cost_per_million(self, f: Found) -> float | None:
        """Price of a million output tokens at the asked rate; None without a price or an answer."""
        price = self.prices.get(f.gpu)
        return None if price is None or not f.replicas else price / 3600 * f.cards / self._tokens_per_s * 1e6

    def joules_per_token(self, f: Found) -> float | None:
        """Upper bound of the energy per output token, from the cards' board power."""
        power = self.powers.get(f.gpu)
        return None if power is None or not f.replicas else power * f.cards / self._tokens_per_s

    @property
    def _tokens_per_s(self) -> float:
        return (self.question.load.rate or 0.0) * self.question.load.mean_lengths[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Search of one candidate; sent to where it runs."""

    question: Question

    def __call__(self, candidate: Candidate) -> Found:
        """Answer for one candidate; what cannot be served is an answer with its reason."""
        on = candidate.setting.on
        empty = Found(gpu=on.accelerator.name, tp=on.tp, source=candidate.source.title)
        q = self.question
        try:
            served = placed(candidate.setting, candidate.source, q.limits, context=q.load.typical_tokens)
            return _search(served, q, empty)
        except SpecplanError as error:
            return replace(empty, reason=str(error))


def _search(served: ServedSource, q: Question, empty: Found) -> Found:
    prompt, output = q.load.mean_lengths
    e = float(emitted_of(served.source, served.kappa)) if served.kappa else 1.0
    guess = estimated_rate(served, q.targets, prompt, output, e)
    tried: dict[float, tuple[bool, list[Outcome]]] = {}

    def good(rate: float) -> bool:
        if rate not in tried:
            load = replace(q.load, rate=rate)
            outcomes = [outcome(served.run(load, seed), q.targets, warmup=q.warmup) for seed in q.seeds]
            tried[rate] = (all(_holds(o, q.targets, rate) for o in outcomes), outcomes)
        return tried[rate][0]

    low, high = _bracket(good, guess or 0.1)
    while low and high / low > 1 + PRECISION and len(tried) < _MOST_RUNS:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    found = replace(
        empty,
        kappa=served.kappa,
        blocks=served.rules.num_blocks,
        rate=low,
        estimated_rate=guess,
        binds=_binds(tried[high][1][0], q.targets) if high in tried else "",
    )
    if low:
        asked = q.load.rate or 0.0
        replicas = math.ceil(asked / low - 1e-9)
        share = asked / replicas
        good(share)
        at = tried[share][1][0]
        found = replace(
            found,
            replicas=replicas,
            utilisation=at.utilisation,
            running=at.running,
            ttft_p95_s=at.latencies["ttft"]["p95"],
            tpot_p95_s=at.latencies["tpot"]["p95"],
            accepted_length=at.accepted_length,
        )
    else:
        found = replace(found, reason=f"misses the targets even at {high:.3g} requests/s")
    points = tuple(
        (
            rate,
            1 / max(o[0].latencies["tpot"]["mean"], 1e-12),
            o[0].token_rate / empty.tp,
            o[0].latencies["ttft"]["p95"],
        )
        for rate, (_, o) in sorted(tried.items())
    )
    return replace(found, runs=len(tried) * len(q.seeds), points=points)


def _bracket(good: Any, guess: float) -> tuple[float, float]:
    """A rate that holds and one that does not, close together; 0 and the lowest tried where none holds."""
    rate = guess
    if good(rate):
        while good(rate * _STEP):
            rate *= _STEP
            if rate > guess * 1e4:
                raise InfeasibleError("the targets hold at any rate that was tried; give a target that binds")
        return rate, rate * _STEP
    step = _STEP
    while rate > guess / 300:
        lower = rate / step
        if good(lower):
            return lower, rate
        rate, step = lower, step * 1.3
    return 0.0, rate


def _holds(o: Outcome, targets: Sequence[Target], rate: float) -> bool:
    """Every target, and that the engine keeps up: what waits does not outgrow what runs."""
    keeps_up = o.waiting <= max(o.running, 1.0)
    return keeps_up and all(o.latencies[t.latency][t.statistic] <= t.seconds for t in targets) and rate > 0


def _binds(o: Outcome, targets: Sequence[Target]) -> str:
    """What stands in the way at a rate that misses."""
    if o.preemptions or o.cache_use > 0.9:
        return "cache"
    missed = {t.latency for t in targets if o.latencies[t.latency][t.statistic] > t.seconds}
    if missed & {"tpot", "itl"}:
        return "prefill" if o.prefill_share > 0.6 else "decode"
    return "prefill" if o.prefill_share > 0.6 else "queue"


def capacity(
    candidates: Sequence[Candidate],
    question: Question,
    *,
    runner: Runner | None = None,
    checkpoint: Path | None = None,
) -> Iterator[Found]:
    """Answers as they come, in the order of the candidates; finished ones are taken from the checkpoint.

    Parameters
    ----------
    candidates : sequence of Candidate
    question : Question
    runner : Runner, optional
        Where the searches run; here if None. The answers do not depend on it.
    checkpoint : Path, optional
        File in which finished candidates are noted.
    """
    names = [c.name for c in candidates]
    if len(set(names)) != len(names):
        raise InputError("two candidates are alike; give each card, number of ranks and source once")
    with Notes(checkpoint, inputs(question)) as notes:
        missing = [c for c in candidates if c.name not in notes.rows]
        fresh = (runner or Here()).map(_Search(question=question), missing)
        for candidate in candidates:
            row = notes.rows.get(candidate.name)
            if row is not None:
                yield _found(row)
                continue
            answer = next(fresh)
            notes.note(candidate.name, asdict(answer))
            yield answer


def inputs(q: Question) -> dict[str, Any]:
    """What the answers depend on, beside the candidates."""
    load = q.load
    return {
        "rate": load.rate,
        "burstiness": load.burstiness,
        "input": None if load.input is None else load.input.text,
        "output": None if load.output is None else load.output.text,
        "requests": load.requests,
        "targets": [asdict(t) for t in q.targets],
        "limits": asdict(q.limits),
        "seeds": list(q.seeds),
        "warmup": q.warmup,
    }


def _found(row: Mapping[str, Any]) -> Found:
    values: dict[str, Any] = {k: math.nan if v is None else v for k, v in row.items()}
    return Found(**{**values, "points": tuple(tuple(p) for p in row["points"])})


def ranked(
    found: Sequence[Found], question: Question, target: str, prices: Mapping[str, float], powers: Mapping[str, float]
) -> Capacity:
    """Answers best first: by price of a token where every card has a price, else by cards."""
    answer = Capacity(question=question, target=target, found=tuple(found), prices=prices, powers=powers)
    priced = all(f.gpu in prices for f in found)

    def key(f: Found) -> tuple[bool, float, float]:
        cost = answer.cost_per_million(f) if priced else None
        return (f.replicas == 0, f.cards if cost is None else cost, -f.rate)

    return replace(answer, found=tuple(sorted(found, key=key)))


def read_prices(texts: Sequence[str], cards: set[str]) -> dict[str, float]:
    """Prices per card and hour as an option spells them: ``h100-sxm=2.5``.

    >>> read_prices(["h100-sxm=2.5"], {"h100-sxm"})
    {'h100-sxm': 2.5}
    """
    found = {}
    for text in texts:
        name, equals, amount = text.rpartition("=")
        if not equals or name not in cards:
            raise InputError(f"--price {text}: expected GPU=PRICE with one of {', '.join(sorted(cards))}")
        found[name] = read_number(amount, f"--price {name}=", 0.0)
    return found
