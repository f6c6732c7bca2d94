"""Measure draft sources on prompts: run the loop, keep every step, time single passes, and put the two together."""

import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import torch

from specplan.decide.engine_speed import EngineSpeed
from specplan.decide.measured import MeasuredSource, confidence_of, summarise
from specplan.decide.measured_speed import MeasuredSpeed, PassTimes, measured_speed
from specplan.errors import InputError
from specplan.files.lines import BrokenLog, read_lines
from specplan.files.writing import Lines, make_folder
from specplan.formulas.speedup import paired_speedup
from specplan.harness.causal_lm import CausalLM
from specplan.harness.loop import Generated, Request, SpeculativeLoop
from specplan.harness.pass_times import PassClock
from specplan.harness.sources import Drafts, ModelSource, NoSource, Source, draft_length, read_source
from specplan.harness.verifiers import Sampling
from specplan.propose.rules import SglangNgramSource
from specplan.propose.vocab_mapping import VocabMapping
from specplan.records.files import StepWriter, differing, read_steps
from specplan.records.step import StepRecord
from specplan.records.tally import Tally

STEPS_FILE: Final = "steps.jsonl"
OUTPUTS_FILE: Final = "outputs.jsonl"
PASSES_FILE: Final = "passes.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a measurement depends on beside target, sources and prompts.

    Attributes
    ----------
    max_tokens : int
        Tokens to emit per request.
    temperature : float
        0 is greedy.
    rule : str
        ``standard`` or ``block``.
    batch : int
        Requests that run at a time.
    seed : int
        Of every draw.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    rule: str = "standard"
    batch: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured: one row per source and tag, the plain run's rows, and where the records are.

    `warm_up_s` is what each source took before the clock ran: kernels compiled, shapes and caches made. `engine` holds
    the rows of a run inside an engine, whose parts are not timed apart; `speeds` is empty then.
    """

    inputs: dict[str, Any]
    speeds: tuple[MeasuredSpeed, ...]
    plain: tuple[MeasuredSource, ...]
    pass_widths: tuple[int, ...]
    pass_s: tuple[float, ...]
    mean_context_len: int
    folder: Path
    engine: tuple[EngineSpeed, ...] = ()
    warm_up_s: dict[str, float] = field(default_factory=dict)

    @property
    def passes(self) -> dict[int, float]:
        """Target's single-pass seconds by width."""
        return dict(zip(self.pass_widths, self.pass_s, strict=True))


Progress = Callable[[str, int, int], None]
"""Called with a source, requests done and requests in all."""


def measure(
    target: CausalLM,
    sources: Sequence[Source],
    requests: Sequence[Request],
    folder: Path,
    *,
    settings: Settings,
    stop_ids: frozenset[int] = frozenset(),
    mappings: Mapping[str, VocabMapping] | None = None,
    names: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    until: float = math.inf,
) -> Measurement:
    """Run every source and plain decoding over all requests, and compare speed with what the parts predict.

    Each source is warmed up before the clock runs. Sources take turns, a request each, and the order of the turns
    changes from round to round, so that a change of the machine's speed falls on all alike. Steps are written to
    `folder` as they come; a killed run goes on where it stopped, with shared stores filled again by what the finished
    requests emitted. A request's draws come from its own generator, by seed, source and id: a run that was killed and
    taken up equals one that was not.

    Parameters
    ----------
    target : CausalLM
    sources : sequence of Source
        Plain decoding is added.
    requests : sequence of Request
    folder : Path
        Receives ``steps.jsonl``, ``outputs.jsonl`` and ``passes.jsonl``.
    settings : Settings
    stop_ids : frozenset of int
        Tokens that end a request.
    mappings : mapping, optional
        Of draft models with another vocabulary, by their spelling.
    names : mapping, optional
        Names of model and prompts, stored with the records.
    progress : callable, optional
    until : float
        Reading of `time.monotonic` after which no round of turns is begun, once each tag had two.

    Raises
    ------
    InputError
        When two sources are spelled alike, or `folder` holds a run with other inputs.
    """
    ordered: list[Source] = [NoSource(), *(s for s in sources if not isinstance(s, NoSource))]
    spellings = [s.spelling for s in ordered]
    if len(set(spellings)) < len(spellings):
        raise InputError(f"a source is given twice: {', '.join(spellings[1:])}")
    if len({r.id for r in requests}) < len(requests):
        raise InputError("two prompts have the same id; ids must differ over all prompt files")
    inputs = {
        **(names or {}),
        "sources": spellings,
        "requests": len(requests),
        **dataclasses.asdict(settings),
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "torch": torch.__version__,
    }
    about = {"threads": torch.get_num_threads()}
    make_folder(folder)
    steps_path = folder / STEPS_FILE
    drafts = Drafts(target, mappings or {})
    if not steps_path.exists():
        with (
            StepWriter(steps_path, inputs, resume=True, about=about) as writer,
            Outputs(folder / OUTPUTS_FILE, writer.done) as out,
            _Clocks(folder / PASSES_FILE, drafts, ordered, requests, settings, resumed=bool(writer.done)) as clocks,
        ):
            done = {s.spelling: sum((s.spelling, r.id) in writer.done for r in requests) for s in ordered}
            runs = [
                (
                    source,
                    _run(drafts, source, requests, settings, stop_ids, out.earlier(source.spelling), clocks.warmed),
                )
                for source in ordered
            ]
            for source, generated in _in_turn(runs, done, until, 2 * len({r.tag for r in requests})):
                writer.write(generated.steps)
                out.write(source.spelling, generated)
                clocks.round(source, len(generated.request.prompt) + len(generated.tokens) // 2)
                writer.finish(source.spelling, generated.request.id)
                if progress is not None:
                    progress(source.spelling, done[source.spelling], len(requests) if math.isinf(until) else 0)
    else:
        check_inputs(steps_path, inputs)
    return _put_together(
        ordered, list(read_steps(steps_path)), _read_lines(folder / PASSES_FILE), inputs | about, folder
    )


def check_inputs(path: Path, inputs: Mapping[str, Any]) -> None:
    """Refuse a finished run's records when they differ in one of `inputs`."""
    with path.open(encoding="utf-8") as file:
        head = json.loads(file.readline())
    known = {name: value for name, value in (head.get("inputs") or {}).items() if name in inputs}
    if other := differing(known, inputs):
        raise InputError(f"{path} holds a run with other inputs ({other}); give another folder, or delete it")


class Outputs:
    """Emitted tokens, one JSON line per source and request; lines of unfinished requests are dropped on resuming."""

    def __init__(self, path: Path, done: set[tuple[str, str]]) -> None:
        rows = _read_lines(path) if path.exists() else []
        self._kept = [row for row in rows if (row["source"], row["id"]) in done]
        self._lines = Lines(path, lambda: map(json.dumps, self._kept))

    def earlier(self, source: str) -> list[dict[str, Any]]:
        """Rows of an interrupted run, in the order in which its requests ended."""
        return [row for row in self._kept if row["source"] == source]

    def write(self, source: str, generated: Generated, **more: float) -> None:
        """Append one request's output, with `more` about it."""
        r = generated.request
        row = {
            "source": source,
            "id": r.id,
            "kind": r.tag,
            "prompt_token_ids": r.prompt,
            "output_token_ids": generated.tokens,
            "emitted_token_ids": generated.emitted,
            **more,
        }
        self._lines.write(row)
        self._lines.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()


def _run(
    drafts: Drafts,
    source: Source,
    requests: Sequence[Request],
    settings: Settings,
    stop_ids: frozenset[int],
    earlier: Sequence[Mapping[str, Any]],
    warmed: Callable[[Source, float], None],
) -> Iterator[Generated]:
    done = {row["id"] for row in earlier}
    left = [r for r in requests if r.id not in done]
    if not left:
        return
    capacity = max(len(r.prompt) for r in requests) + settings.max_tokens + draft_length(source) + 2
    sampling = Sampling(temperature=settings.temperature)
    device = drafts.target.device

    def draws(request: str) -> torch.Generator:
        name = f"{settings.seed}/{source.spelling}/{request}".encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1
        return torch.Generator(device=device).manual_seed(seed)

    def loop(max_tokens: int, remembered: Sequence[Mapping[str, Any]]) -> SpeculativeLoop:
        shared = draws("")
        drafter = drafts.drafter(source, batch=settings.batch, capacity=capacity, sampling=sampling, generator=shared)
        for row in remembered:
            drafter.remember(row["id"], row["prompt_token_ids"], row["emitted_token_ids"])
        return SpeculativeLoop(
            target=drafts.target,
            drafter=drafter,
            source=source.spelling,
            max_tokens=max_tokens,
            capacity=capacity,
            stop_ids=stop_ids,
            sampling=sampling,
            rule=settings.rule,
            batch=settings.batch,
            generator=shared,
            generator_of=draws,
        )

    began = time.perf_counter()
    first = left[0]
    # A prompt that repeats itself drafts with every matcher; what this run emits is forgotten with its store.
    warm = [Request(id=f"warm-up {i}", prompt=first.prompt, tag=first.tag) for i in range(2 * settings.batch)]
    for _ in loop(min(_WARM_TOKENS, settings.max_tokens), ()).run(warm):
        pass
    warmed(source, time.perf_counter() - began)
    yield from loop(settings.max_tokens, earlier).run(left)


_WARM_TOKENS: Final = 8


def _in_turn(
    runs: Sequence[tuple[Source, Iterator[Generated]]], done: dict[str, int], until: float, least: int
) -> Iterator[tuple[Source, Generated]]:
    """What the runs yield, always from one that is furthest behind; the order among equals turns by one each round.

    `done` counts the requests of each that are finished, and is kept. No round begins after the time `until`, once
    each has done `least`.
    """
    left = list(range(len(runs)))
    while left:
        behind, ahead = (of(done[runs[i][0].spelling] for i in left) for of in (min, max))
        if behind == ahead >= least and time.monotonic() > until:
            return
        turn = min((i for i in left if done[runs[i][0].spelling] == behind), key=lambda i: (i - behind) % len(runs))
        source, run = runs[turn]
        generated = next(run, None)
        if generated is None:
            left.remove(turn)
            continue
        done[source.spelling] += 1
        yield source, generated


class _Clocks:
    """Rounds of single passes between requests: the target's by width, and the draft's, as JSON lines.

    Rounds that the file holds already belong to this run only if it is `resumed`.
    """

    def __init__(
        self,
        path: Path,
        drafts: Drafts,
        sources: Sequence[Source],
        requests: Sequence[Request],
        settings: Settings,
        *,
        resumed: bool,
    ) -> None:
        widest = 1 + max(draft_length(s) for s in sources)
        self._capacity = max(len(r.prompt) for r in requests) + settings.max_tokens + widest
        self._drafts, self._batch = drafts, settings.batch
        doubled = {2**i for i in range(widest.bit_length()) if 2**i <= widest}
        self._widths = sorted(doubled | {1 + draft_length(s) for s in sources})
        kept = _read_lines(path) if resumed and path.exists() else []
        self._lines = Lines(path, lambda: map(json.dumps, kept))

    def warmed(self, source: Source, seconds: float) -> None:
        """Note what warming up took."""
        self._lines.write({"source": source.spelling, "warm_up_s": seconds})
        self._lines.flush()

    def round(self, source: Source, context_len: int) -> None:
        """Time one round behind `context_len` tokens, for `source`."""
        clock = PassClock(self._drafts.target, self._widths, capacity=self._capacity, batch=self._batch)
        row: dict[str, Any] = {"source": source.spelling, "context": context_len}
        row["target_s"] = {str(w): t / self._batch for w, t in clock.round(context_len).items()}
        if isinstance(source, ModelSource):
            clock = PassClock(self._drafts.model(source), [1], capacity=self._capacity, batch=self._batch)
            row["draft_s"] = clock.round(context_len)[1] / self._batch
        self._lines.write(row)
        self._lines.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()


def read_measurement(folder: Path) -> Measurement:
    """A finished run, put together from its records alone; ``steps.jsonl`` may be gzipped.

    Raises
    ------
    InputError
        When `folder` holds no finished run of this package's own loop.
    """
    steps = next((p for name in (STEPS_FILE, f"{STEPS_FILE}.gz") if (p := folder / name).is_file()), None)
    if steps is None or not (folder / PASSES_FILE).is_file():
        raise InputError(f"{folder}: expected {STEPS_FILE} and {PASSES_FILE} of a finished `specplan measure`")
    _, head = next(read_lines(steps, BrokenLog(fatal=True)), (0, b"{}"))
    known = json.loads(head)
    inputs = known.get("inputs", {}) | known.get("about", {})
    if "sources" not in inputs:
        raise InputError(f"{steps}: the first line does not name the sources of the run")
    sources = [read_source(text) for text in inputs["sources"]]
    return _put_together(sources, list(read_steps(steps)), _read_lines(folder / PASSES_FILE), inputs, folder)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; the torn last line of a killed run is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _pass_times(rows: Sequence[Mapping[str, Any]]) -> PassTimes:
    """Mean over the rounds of one source: what adds up to the time of a run, slow moments included."""
    widths = sorted(int(w) for w in rows[0]["target_s"])
    drafts = [row["draft_s"] for row in rows if "draft_s" in row]
    return PassTimes(
        widths=tuple(widths),
        target_s=tuple(statistics.mean(row["target_s"][str(w)] for row in rows) for w in widths),
        draft_s=statistics.mean(drafts) if drafts else None,
    )


def by_tag(steps: Sequence[StepRecord], source: str) -> dict[str, list[StepRecord]]:
    """Steps of one source, by the tag of their request."""
    found: dict[str, list[StepRecord]] = {}
    for step in steps:
        if step.source == source:
            found.setdefault(step.tag, []).append(step)
    return found


def _put_together(
    sources: Sequence[Source],
    steps: Sequence[StepRecord],
    rounds: Sequence[Mapping[str, Any]],
    inputs: dict[str, Any],
    folder: Path,
) -> Measurement:
    plain_steps = by_tag(steps, "none")
    plain = {tag: summarise(Tally.of_steps(rows), source="none", tag=tag) for tag, rows in plain_steps.items()}
    warm_up: dict[str, float] = {}
    for row in rounds:
        if "warm_up_s" in row:
            warm_up[row["source"]] = warm_up.get(row["source"], 0.0) + row["warm_up_s"]
    rounds = [row for row in rounds if "target_s" in row]
    speeds = []
    for source in sources[1:]:
        passes = _pass_times([row for row in rounds if row["source"] == source.spelling])
        for tag, rows in by_tag(steps, source.spelling).items():
            base = plain[tag].tally
            if base is None or not base.steps or base.host_s is None:
                continue
            speeds.append(
                measured_speed(
                    replace(
                        summarise(Tally.of_steps(rows), source=source.spelling, tag=tag),
                        confidence_explains=confidence_of(rows),
                    ),
                    kappa=draft_length(source),
                    passes=passes,
                    plain_tokens_per_s=_tokens_per_s(base),
                    plain_host_s=base.host_s / base.steps,
                    nodes=isinstance(source, SglangNgramSource),
                    halves=_halves(rows),
                    paired=paired_speedup(*_per_request(rows, plain_steps[tag])),
                )
            )
    everything = _pass_times(rounds)
    return Measurement(
        inputs=inputs,
        speeds=tuple(speeds),
        warm_up_s=warm_up,
        plain=tuple(plain.values()),
        pass_widths=everything.widths,
        pass_s=everything.target_s,
        mean_context_len=round(statistics.mean(row["context"] for row in rounds)),
        folder=folder,
    )


def _halves(rows: Sequence[StepRecord]) -> tuple[MeasuredSource, MeasuredSource] | None:
    """Summaries of every second request and of the others; None of a single request."""
    names = list(dict.fromkeys(row.request for row in rows))
    if len(names) < 2:
        return None
    even = set(names[::2])
    parts = [r for r in rows if r.request in even], [r for r in rows if r.request not in even]
    first, second = (summarise(Tally.of_steps(part), source=part[0].source) for part in parts)
    return first, second


def _per_request(
    rows: Sequence[StepRecord], plain: Sequence[StepRecord]
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Tokens and seconds of each request that both ran: of the source, then of plain decoding."""
    sums: dict[str, list[float]] = {}
    for offset, part in ((0, rows), (2, plain)):
        for row in part:
            at = sums.setdefault(row.request, [0.0] * 4)
            at[offset] += row.emitted
            at[offset + 1] += (row.draft_s or 0.0) + (row.verify_s or 0.0) + (row.host_s or 0.0)
    both = [s for s in sums.values() if s[1] > 0 and s[3] > 0]
    first, second, third, fourth = ([s[i] for s in both] for i in range(4))
    return first, second, third, fourth


def _tokens_per_s(tally: Tally) -> float:
    seconds = (tally.draft_s or 0.0) + (tally.verify_s or 0.0) + (tally.host_s or 0.0)
    return (tally.emitted_tokens or 0) / seconds
