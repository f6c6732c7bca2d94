"""The answer of `specplan simulate`: what one load gets from each source on one machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specplan.decide.step_setting import Setting
from specplan.errors import InfeasibleError, InputError
from specplan.queueing.arrivals import Load, read_lengths
from specplan.queueing.outcome import Interval, Outcome, Target, interval, outcome
from specplan.queueing.replicas import NO_ROUTING, Routing
from specplan.queueing.served_source import Limits, ServedSource, placed
from specplan.queueing.stream import Served
from specplan.queueing.trace import read_trace
from specplan.records.step import StepRecord
from specplan.values.source import Source

NOT_MODELED: Final = (
    "asynchronous scheduling: what a step gave is known when it ends, where a server learns it one step later",
    "HTTP, tokenising and detokenising",
    "stop tokens: every request runs to its output length",
    "pipeline and expert parallelism, LoRA adapters, multimodal inputs",
    "requests of different contexts within a step: attention is timed at their mean context",
    "dependence of acceptance on the request, unless recorded steps are replayed",
)

SCHEDULERS: Final = {
    "vllm": "derived: vLLM 0.32's V1 scheduler, equal step by step to recorded runs of it",
    "sglang": "derived: SGLang 0.5's rules of admission and retraction; no recorded run of its scheduler was at hand",
}
"""What the rules of each engine rest on."""

_SGLANG: Final = (
    "SGLang's chunks mixed with decodes, priorities, longest-prefix order, and slots that drafting takes within a step",
)


def not_modeled(engine: str) -> tuple[str, ...]:
    """What a simulation of an engine leaves out."""
    return NOT_MODELED + (_SGLANG if engine == "sglang" else ())


ASSUMPTIONS: Final = (
    "steps are drawn independently with the source's acceptance",
    "the engine is started with the limits shown",
)


SHIPPED: Final = {"chat": Path(__file__).parents[1] / "data" / "loads" / "chat.csv"}
"""Loads by name. ``chat`` is made, not recorded: 600 requests of lognormal lengths (medians 700 and 220 tokens) in
bursts, 2 requests/s in one minute and 5 in the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAnswer:
    """What one source gave over the seeds.

    Attributes
    ----------
    served : ServedSource
    outcomes : tuple of Outcome
        One per seed.
    reason : str
        Why it cannot be served at all; empty where it can.
    """

    title: str
    served: ServedSource | None
    outcomes: tuple[Outcome, ...] = ()
    reason: str = ""

    def latency(self, name: str, statistic: str) -> Interval:
        """A latency over the seeds."""
        return interval([o.latencies[name][statistic] for o in self.outcomes])

    def figure(self, name: str) -> Interval:
        """Another figure of `Outcome` over the seeds."""
        return interval([float(getattr(o, name)) for o in self.outcomes])

    def holds(self, targets: Sequence[Target]) -> bool:
        """Whether the mean over the seeds holds every target."""
        return bool(self.outcomes) and all(self.latency(t.latency, t.statistic).mean <= t.seconds for t in targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Everything that `specplan simulate` shows.

    Attributes
    ----------
    setting : Setting
    limits : Limits
    load_text : str
    requests : int
        Of each seed.
    seeds : int
    warmup : float
    targets : tuple of Target
    answers : tuple of SourceAnswer
    layer : str
        Where step times come from.
    routing : Routing
        How many engines share the load, and how a request finds one.
    """

    setting: Setting
    limits: Limits
    load_text: str
    requests: int
    seeds: int
    warmup: float
    targets: tuple[Target, ...]
    answers: tuple[SourceAnswer, ...]
    layer: str
    routing: Routing = NO_ROUTING
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @property
    def not_modeled(self) -> tuple[str, ...]:
        """What is left out."""
        return not_modeled(self.setting.on.engine.family)


def read_load(
    *,
    prompts: str | None,
    outputs: str | None,
    requests: int,
    longest: int,
    rate: float | None = None,
    burstiness: float = 1.0,
    concurrency: int | None = None,
    turnaround_s: float = 0.0,
    trace: str | None = None,
    trace_rate: float = 1.0,
    leave_out: bool = False,
) -> tuple[Load, str, tuple[str, ...]]:
    """The load that options describe, in words, and what a reader must know of it.

    Raises
    ------
    InputError
        Where options contradict each other or lack something.
    """
    if trace is not None:
        if rate is not None or concurrency is not None or prompts is not None or outputs is not None:
            raise InputError(
                "--trace brings arrivals and lengths; leave out --rate, --concurrency, --input and --output"
            )
        found = read_trace(SHIPPED.get(trace, Path(trace)), most=longest, leave_out=leave_out, scale=trace_rate)
        span = float(found.requests.arrival[-1])
        text = f"{trace} ({found.form} columns), {len(found.requests) / span:,.2f} requests/s" if span else trace
        notes = (f"{found.left_out:,} requests of the trace were left out: the engine refuses them",)
        return Load(trace=found.requests), text, notes if found.left_out else ()
    load = Load(
        input=None if prompts is None else read_lengths(prompts, "--input"),
        output=None if outputs is None else read_lengths(outputs, "--output"),
        rate=rate,
        burstiness=burstiness,
        concurrency=concurrency,
        turnaround_s=turnaround_s,
        requests=requests,
    )
    came = f"{rate:g} requests/s" if rate is not None else f"{concurrency} requests at a time"
    if rate is not None and burstiness != 1:
        came += f" (burstiness {burstiness:g})"
    return load, f"{came}, {prompts} in, {outputs} out", ()


def placed_sources(
    setting: Setting,
    sources: Sequence[Source],
    limits: Limits,
    load: Load,
    *,
    records: Sequence[StepRecord] = (),
    routing: Routing = NO_ROUTING,
) -> list[tuple[str, ServedSource | str]]:
    """Each source on its machine, or why it cannot be there."""
    found: list[tuple[str, ServedSource | str]] = []
    for source in sources:
        try:
            served = placed(setting, source, limits, context=load.typical_tokens, records=records)
        except InfeasibleError as error:
            found.append((source.title, str(error)))
            continue
        found.append((source.title, replace(served, routing=routing)))
    return found


Keep = Callable[[str, Served], None]
"""Called with the source's title and its first seed's run, for files of single requests."""


def serve_sources(
    sources: Sequence[tuple[str, ServedSource | str]],
    load: Load,
    seeds: Sequence[int],
    targets: Sequence[Target],
    *,
    warmup: float,
    log: bool = False,
    keep: Keep | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[SourceAnswer, ...]:
    """Serve the same load by each source, seed by seed; a source may come as the reason why it cannot be served.

    Raises
    ------
    InfeasibleError
        If none of them can be served.
    """
    found = []
    for title, served in sources:
        if isinstance(served, str):
            found.append(SourceAnswer(title=title, served=None, reason=served))
            continue
        outcomes = []
        for i, seed in enumerate(seeds):

            def step(done: int, total: int, i: int = i, title: str = title) -> None:
                if progress is not None:
                    progress(title, i * total + done, len(seeds) * total)

            run = served.run(load, seed, log=log and i == 0, progress=step)
            if keep is not None and i == 0:
                keep(title, run)
            outcomes.append(outcome(run, targets, warmup=warmup))
        found.append(SourceAnswer(title=title, served=served, outcomes=tuple(outcomes)))
    if all(a.served is None for a in found):
        raise InfeasibleError("; ".join(dict.fromkeys(a.reason for a in found)))
    return tuple(found)
