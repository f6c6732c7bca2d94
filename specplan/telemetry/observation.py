"""What was read from an engine: its own figures, what each is here, and the counts that follow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from specplan.records.means import Means
from specplan.records.step import StepRecord
from specplan.records.tally import Tally
from specplan.values.engine_words import word


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One figure of the engine and what it is here.

    Attributes
    ----------
    name : str
        As the engine spells it.
    value : float or tuple of float
        As the engine gave it.
    meaning : str
        The engine's definition: over which steps, bonus token included or not, pooled or conditional.
    ours : str
        Field of the measured document that it becomes, or what is made of it.
    kind : str
        ``measured`` (counted by the engine) or ``derived`` (follows from what it counted).
    """

    name: str
    value: float | tuple[float, ...]
    meaning: str
    ours: str
    kind: str = "measured"


def translated(
    engine: str,
    name: str,
    value: float | tuple[float, ...],
    *,
    spelt: str = "",
    ours: str = "",
    kind: str = "measured",
    versions: str = "",
) -> Translation:
    """A figure under its name of the table of words; `spelt` and `ours` say how it stands here where that differs."""
    w = word(engine, name, versions=versions)
    return Translation(name=spelt or name, value=value, meaning=w.meaning, ours=ours or w.ours, kind=kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the engine was at a scrape or over the lines of a log; None where it does not say.

    Attributes
    ----------
    running, waiting : float or None
        Requests in the batch, and those that wait.
    cache_use : float or None
        Share of the cache in use.
    preemptions : int or None
        Requests thrown out of the batch to be computed again.
    """

    running: float | None = None
    waiting: float | None = None
    cache_use: float | None = None
    preemptions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a benchmark measured from outside, for comparison.

    Attributes
    ----------
    tokens_per_s : float or None
        Output tokens per second of all requests.
    token_s, chunk_s : float or None
        Mean seconds per output token after the first of a request (TPOT), and between two answers of a stream (ITL).
    first_s : float or None
        Mean seconds to the first token.
    concurrency : float or None
        Requests in flight.
    """

    tokens_per_s: float | None = None
    token_s: float | None = None
    chunk_s: float | None = None
    first_s: float | None = None
    concurrency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One dated line of a log: drafts and accepted tokens since the one before."""

    when: str
    drafts: int
    drafted: int
    accepted: int
    tokens_per_s: float | None = None
    running: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Speculation of one model on one engine over one window.

    Attributes
    ----------
    engine : str
        ``vllm``, ``sglang``, ``tensorrt-llm``, ``llama.cpp``, or the tool that measured from outside.
    origin : str
        File or URL.
    source : str
        What drafts, as far as the engine says: a method, a model's name, or the engine's name.
    tally : Tally or None
        Counts; None where the engine gives only means.
    means : Means or None
        Means, where the engine keeps no counts.
    steps : tuple of StepRecord
        Single steps, where the engine tells them (those with a draft).
    translations : tuple of Translation
        The engine's figures, one by one.
    labels : mapping
        Labels of the series, such as ``model_name``.
    step_s : float or None
        Mean seconds per step of one request, as the engine measured it.
    window_s : float or None
        Seconds between two scrapes.
    mean_batch : float or None
        Requests per engine iteration.
    tested : tuple of int or None
        Least and most positions that were tested, where rounded or missing rates leave it open.
    draft_share : float or None
        Share of a step's time that drafting takes, where the engine tells it.
    c, v : float or None
        Draft pass, and verifying pass, over a plain pass, from the engine's own times.
    load : Load or None
        How busy the engine was.
    speed : Speed or None
        Throughput and latencies of a benchmark.
    series : tuple of Interval
        Dated lines, in the order of the log.
    earlier : Observation or None
        What an earlier page or file said, where two are compared.
    notes : tuple of str
        What a reader must know: resets, ambiguity of rounded figures, assumptions.
    """

    engine: str
    origin: str
    source: str
    tally: Tally | None
    translations: tuple[Translation, ...]
    means: Means | None = None
    steps: tuple[StepRecord, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    step_s: float | None = None
    window_s: float | None = None
    mean_batch: float | None = None
    tested: tuple[int, int] | None = None
    draft_share: float | None = None
    c: float | None = None
    v: float | None = None
    load: Load | None = None
    speed: Speed | None = None
    series: tuple[Interval, ...] = ()
    earlier: "Observation | None" = None
    notes: tuple[str, ...] = ()
