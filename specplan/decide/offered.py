"""An offered load: what of it each source runs at a time, what waits, and one verdict from all of it.

A server takes as many requests as its pool holds; the rest waits. A draft that makes steps shorter but seats fewer
requests can therefore serve a load more slowly than plain decoding does, which runs at its own fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.decide.source import most_kappa
from specplan.decide.step_setting import Setting, best_kappa, pool_of, times
from specplan.decide.step_source import Loads
from specplan.formulas.emitted import emitted_of_drafted_steps
from specplan.formulas.indifference import alpha_for_emitted
from specplan.memory.pool import Pool
from specplan.timing.step_time import FloatArray
from specplan.values.source import Range, Source

PUBLISHED: Final = {
    "ngram": (0.24, 0.63, "arXiv 2601.11580, Llama-3.1-8B, four datasets, constant alpha of drafts of 3 to 10"),
    "eagle": (0.58, 0.80, "arXiv 2601.11580, Llama-3.1-8B, by position"),
    "eagle3": (0.58, 0.80, "arXiv 2601.11580, EAGLE on Llama-3.1-8B, by position"),
    "mtp": (0.38, 0.92, "arXiv 2601.11580, GLM-4.5-Air, by position"),
    "model": (0.53, 0.89, "arXiv 2211.17192, Table 3, small T5, LaMDA and GPT-like drafts"),
}
"""Ranges of alpha that papers state for a kind of source: on other models and other text than the user's."""

TIE: Final = 0.02
"""Distance from 1 below which a sentence calls an uncertain speedup a tie."""

INNER: Final = 24
"""Halvings of an interval of coverage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One source at one batch and context. Times in seconds; rates in tokens per second.

    Attributes
    ----------
    source, context_len, kappa
        What runs; kappa is the given or the best draft length.
    offered, batch, waiting : int
        Requests that are there at a time; of these the ones that run, in one step, and those that wait.
    fit : int
        Requests that the pool holds at this draft length.
    emitted, emitted_low, emitted_high : float
        Tokens per request and step, over all steps; with the ends of the source's ranges.
    plain_s : float
        The step without speculation, of the requests that run.
    draft_s, verify_s, host_s, step_s : float
        The step's parts and their sum.
    per_token_s, per_token_low_s, per_token_high_s : float
        Time per output token; between the ends of the source's ranges, with the model's error band.
    tokens_s_request, tokens_s_gpu : float
        Rates of one request, and of all requests per card.
    per_user_s : float
        Mean time per output token of an offered request, waiting included; infinite where none runs.
    speedup, speedup_low, speedup_high : float
        Of a step of the requests that run; with the ends of the source's ranges and the model's error band.
    ratio, ratio_low, ratio_high : float
        Tokens per second over those of plain decoding, which runs what *it* can of the load; 0 where nothing runs.
        Where both run the whole load this is the speedup.
    fits : bool
        Whether all offered requests run.
    verdict : str
        ``pays``, ``does not pay``, ``uncertain`` or ``does not fit``; empty for the source ``none``.
    binding : str
        What costs most of the gain: draft cost, verify width, KV read, KV capacity, coverage, acceptance or host.
    cost_per_million : float or None
        Price of a million output tokens, where a price per card and hour is given.
    joules_per_token : float or None
        Upper bound from the cards' board power.
    """

    source: str
    offered: int
    batch: int
    waiting: int
    fit: int
    context_len: int
    kappa: int
    emitted: float
    emitted_low: float
    emitted_high: float
    plain_s: float
    draft_s: float
    verify_s: float
    host_s: float
    step_s: float
    per_token_s: float
    per_token_low_s: float
    per_token_high_s: float
    tokens_s_request: float
    tokens_s_gpu: float
    per_user_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    fits: bool
    verdict: str
    binding: str
    cost_per_million: float | None
    joules_per_token: float | None


class Pools:
    """Pools of a setting's sources by context and draft length, each predicted once."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._known: dict[tuple[str, int, int], Pool] = {}

    def __call__(self, source: Source, context_len: int, kappa: int) -> Pool:
        """The pool of an engine that is started for drafts of `kappa` tokens."""
        key = source.title, context_len, kappa
        if key not in self._known:
            self._known[key] = pool_of(self._setting, source, context_len, kappa)
        return self._known[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Draft length, fit and running requests of one source, arrays over offered loads."""

    kappa: npt.NDArray[np.int64]
    fit: npt.NDArray[np.int64]
    running: npt.NDArray[np.int64]

    @property
    def batch(self) -> FloatArray:
        """Requests per step, at least 1: times of a step of none are those of one."""
        return np.maximum(self.running, 1).astype(np.float64)


def served(
    setting: Setting, source: Source, of: Loads, offered: Sequence[int], context_len: int, pools: Pools
) -> Served:
    """Run min(load, fit) of each load, at the draft length that emits most tokens a second.

    A longer draft holds more slots; where the load exceeds what fits, length and fit are chosen together.
    """
    most = most_kappa(source, setting.max_kappa)
    load = np.asarray(offered, np.int64)
    room = pools(source, context_len, most).requests
    kappa = best_kappa(setting, source, of, np.maximum(load, 1), context_len)
    if source.kappa is None and source.kind != "none":
        ks = np.arange(1, most + 1)
        fits = None
        for i in np.flatnonzero(load > room):
            fits = np.array([pools(source, context_len, int(k)).requests for k in ks]) if fits is None else fits
            runs = np.minimum(fits, load[i])
            rate = runs / times(setting, source, of, np.maximum(runs, 1), context_len, ks).per_token_s
            kappa[i] = ks[int(rate.argmax())]
    fit = np.array([pools(source, context_len, int(k)).requests for k in kappa], np.int64)
    return Served(kappa=kappa, fit=fit, running=np.minimum(fit, load))


def verdict(*, fit: int, low: float, high: float, layer: str) -> str:
    """What a source is worth under an offered load: fit first, then the ratio to plain decoding with its band.

    Parameters
    ----------
    fit : int
        Requests that fit beside it.
    low, high : float
        Ends of its tokens per second over plain decoding's, each running what it can of the load.
    layer : str
        At the roofline nothing is sure to pay: a real draft costs more than its bytes.

    Examples
    --------
    >>> verdict(fit=0, low=3.0, high=3.5, layer="modelled"), verdict(fit=9, low=1.1, high=1.3, layer="modelled")
    ('does not fit', 'pays')
    >>> verdict(fit=9, low=0.9, high=1.1, layer="modelled"), verdict(fit=9, low=0.7, high=0.9, layer="modelled")
    ('uncertain', 'does not pay')
    """
    if fit < 1:
        return "does not fit"
    if high < 1:
        return "does not pay"
    return "pays" if low > 1 and layer != "roofline" else "uncertain"


def sentence(where: str, plain: Cell, cells: Sequence[Cell], needs: Sequence["Need"], binding: str) -> str:
    """The verdict of one load and context in one sentence: the best source, then the others, best first."""
    if plain.fit < 1:
        return f"{where}: does not fit ({binding})"
    bare = [c.source.partition(":")[0] for c in cells]

    def name(c: Cell) -> str:
        short = c.source.partition(":")[0]
        return short if bare.count(short) == 1 else c.source

    def seats(c: Cell) -> str:
        return f" and seats {plain.batch - c.batch} fewer" if c.batch < plain.batch else ""

    def queue(c: Cell) -> str:
        return f"{c.batch} run, {c.waiting} wait" if c.waiting else "all run"

    ranked = sorted(cells, key=lambda c: -c.ratio)
    heads = [c for c in ranked[:1] if c.verdict == "pays"]
    said = [f"{name(c)} k {c.kappa}, {c.ratio:.2f}x, {queue(c)}" for c in heads]
    said = said or [f"plain decoding, {queue(plain)}"]
    words = {"pays": "pays at", "uncertain": "is uncertain at", "does not pay": "loses at"}
    for c in ranked[len(heads) :]:
        word = "ties at" if abs(c.ratio - 1) < TIE else words.get(c.verdict, "")
        said.append(f"{name(c)} {word} {c.ratio:.2f}x{seats(c)}" if c.fit else f"{name(c)} {c.verdict}")
    said += [n.words for n in needs]
    return f"{where}: {'; '.join(said)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a source of unknown acceptance must reach under an offered load.

    Attributes
    ----------
    source, load, context_len
    kappa : int
        Draft length at which the least is needed.
    fit, running : int
    alpha : float or None
        Conditional acceptance at which it serves as many tokens a second as plain decoding at its fit; None where not
        even 1 is enough.
    coverage : float or None
        Share of steps with a draft that is needed even if every drafted token were accepted; of matchers.
    published : tuple of (float, float, str) or None
        What papers state of its kind, and where.
    measure : str
        A command that measures it.
    """

    source: str
    load: int
    context_len: int
    kappa: int
    fit: int
    running: int
    alpha: float | None
    coverage: float | None
    published: tuple[float, float, str] | None
    measure: str

    @property
    def words(self) -> str:
        """The need in a few words."""
        if self.fit < 1:
            return f"{self.source} does not fit"
        if self.alpha is None:
            return f"{self.source} cannot pay, not even with every drafted token accepted"
        return f"{self.source} pays from alpha {self.alpha:.2f} at k {self.kappa}"


def need(
    setting: Setting,
    source: Source,
    of: Loads,
    load: int,
    context_len: int,
    pools: Pools,
    plain_rate: float,
) -> Need:
    """The least alpha (and coverage) at which `source` emits `plain_rate` tokens a second under an offered load."""
    most = most_kappa(source, setting.max_kappa)
    ks = np.array([most] if source.kappa is not None else range(1, most + 1))
    fits = np.array([pools(source, context_len, int(k)).requests for k in ks])
    runs = np.minimum(fits, load)
    probe = replace(source, alpha=Range.at(1.0))
    step = times(setting, probe, of, np.maximum(runs, 1), context_len, ks)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_step = step.step_s * plain_rate / np.maximum(runs, 1)
    drafted = emitted_of_drafted_steps(source.coverage.best, per_step, ks)
    alphas = np.where(runs > 0, [float(alpha_for_emitted(e, k)) for e, k in zip(drafted, ks, strict=True)], np.nan)
    known = not bool(np.isnan(alphas).all())
    at = int(np.nanargmin(alphas)) if known else int(np.argmax(runs * step.emitted / step.step_s))
    k, running = int(ks[at]), int(runs[at])

    def rate(coverage: float) -> float:
        all_accepted = replace(probe, coverage=Range.at(coverage))
        return running / float(times(setting, all_accepted, of, running, context_len, k).per_token_s)

    matches = known and source.is_weightless and source.c is None
    return Need(
        source=source.title,
        load=load,
        context_len=context_len,
        kappa=k,
        fit=int(fits[at]),
        running=running,
        alpha=float(alphas[at]) if known else None,
        coverage=_least(lambda g: rate(g) >= plain_rate) if matches else None,
        published=PUBLISHED.get("ngram" if source.kind.startswith("ngram") else source.kind),
        measure=_measured_by(source),
    )


def _least(holds: Callable[[float], bool]) -> float | None:
    """Least share in (0, 1] at which a condition holds that keeps holding; None where not even 1 is enough."""
    if not holds(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(INNER):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _measured_by(source: Source) -> str:
    if source.is_weightless:
        return f"specplan replay TRACE.jsonl --source {source.text or source.name}"
    return "specplan ingest http://SERVER:8000/metrics, or specplan measure --target FOLDER --source draft:model=FOLDER"
