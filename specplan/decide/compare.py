"""Step time and throughput of draft sources over batch and context: what pays, until which batch, and what binds it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.decide.cautions import source_cautions
from specplan.decide.offered import Cell as Cell
from specplan.decide.offered import Need, Pools, need, sentence, served, verdict
from specplan.decide.ranks import require_ranks
from specplan.decide.sensitivity import Swing, sensitivity
from specplan.decide.source import emitted
from specplan.decide.step_setting import (
    MAX_BATCH,
    MAX_KAPPA,
    Setting,
    band_note,
    best_kappa,
    beyond_measured,
    error_band,
    speedup_band,
    times,
)
from specplan.decide.step_source import Loads, StepTime, is_padded, loads, on_engine
from specplan.errors import InputError
from specplan.formulas.step import PassShape
from specplan.memory.pool import Pool
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.step_time import FloatArray, machine, other_bound, pass_time, times_from
from specplan.timing.trust import Band
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import ALWAYS, NO_SOURCE, Source

MAX_OFFER: Final = 10**9
"""An offered load that no pool holds."""

NOT_MODELED: Final = (
    "prefills that share the steps of a loaded server",
    "requests of different contexts in one batch: all have the given one",
    "pipeline and expert parallelism, mixed precision of activations",
    "requests that end inside a step",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a source leaves room for at one context.

    Attributes
    ----------
    sequences : int
        Whole requests of the context in the pool.
    sequences_lost : int
        Against no source.
    tokens_s_gpu : float
        Throughput per card at that concurrency; 0 where none fits.
    throughput_ratio : float
        Against no source at its own concurrency; NaN where none fits.
    pays_batches : tuple of (int, int)
        Ranges of batches, up to the concurrency, in which the speedup is above 1.
    crossover_batch : int or None
        First batch at which a source that pays at smaller ones stops paying; None where there is none.
    """

    source: str
    context_len: int
    sequences: int
    sequences_lost: int
    tokens_s_gpu: float
    throughput_ratio: float
    pays_batches: tuple[tuple[int, int], ...]
    crossover_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """Everything that `specplan compare` shows."""

    target: Model
    accelerator: Accelerator
    engine: str
    engine_version: str
    tensor_parallel_size: int
    layer: str
    sources: tuple[Source, ...]
    cells: tuple[Cell, ...]
    capacities: tuple[Capacity, ...]
    needs: tuple[Need, ...]
    sentences: tuple[str, ...]
    sensitivity: tuple[Swing, ...]
    sensitivity_of: str
    error_band: float | None
    pays: bool
    fits: bool
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    not_modeled: tuple[str, ...] = NOT_MODELED


def compare(
    target: Model,
    accelerator: Accelerator,
    sources: Sequence[Source],
    *,
    engine: str = "vllm",
    tp: int = 1,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] = (2048,),
    layer: str = "modelled",
    kv_format: NumberFormat | None = None,
    max_kappa: int = MAX_KAPPA,
    engine_version: str | None = None,
    gpu_memory_utilization: float | None = None,
    workspace_bytes: float | None = None,
    price_per_hour: float | None = None,
    tables: Mapping[str, MeasuredTable] | None = None,
) -> CompareReport:
    """Compare draft sources with plain decoding at every batch and context.

    Parameters
    ----------
    target : Model
    accelerator : Accelerator
        With its own or its family's calibration, as `load_accelerator` returns it.
    sources : sequence of Source
        Draft models loaded; heads are made from the target where they have none. ``none`` is added.
    engine, tp, layer, kv_format
        See `specplan.timing.step_time.machine`.
    batches, contexts : sequence of int
        Requests per step; cached tokens per request.
    max_kappa : int
        Longest draft to try for sources that fix none; the best is taken per cell.
    engine_version, gpu_memory_utilization, workspace_bytes
        Of the pool: see `specplan.memory.pool.Serving`.
    price_per_hour : float, optional
        Of one card, in any currency.
    tables : mapping of str to MeasuredTable, optional
        For the ``measured`` layer: by the target's name and by each source's name.

    Raises
    ------
    InputError
        For a batch, context, price or draft that makes no sense.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> from specplan.propose.spelling import read_source
    >>> source = read_source("ngram:alpha=.5,k=3")
    >>> report = compare(load_model("llama3.1-8b"), load_accelerator("h100-sxm"), [source])
    >>> none, ngram = report.cells
    >>> ngram.emitted, round(ngram.speedup, 2), ngram.verdict
    (1.875, 1.81, 'pays')
    """
    _check(batches, contexts, max_kappa, gpu_memory_utilization, price_per_hour)
    on = machine(accelerator, engine, tp, layer)
    require_ranks(target, tp)
    setting = Setting(
        target=target,
        on=on,
        kv_format=kv_format,
        max_kappa=max_kappa,
        engine_version=engine_version,
        gpu_memory_utilization=gpu_memory_utilization,
        workspace_bytes=workspace_bytes,
        price_per_hour=price_per_hour,
        tables=tables,
    )
    placed, free = _placed(sources, target, engine)
    for source in (*placed, *free):
        if source.model is not None:
            require_ranks(source.model, tp)
    everyone = (NO_SOURCE, *placed)
    counted = {s.title: loads(target, s, tp, kv_format) for s in (*everyone, *free)}
    pools = Pools(setting)
    cells: list[Cell] = []
    capacities: list[Capacity] = []
    needs: list[Need] = []
    sentences: list[str] = []
    for context in contexts:
        at_fit = _Plain.of(setting, counted["none"], [MAX_OFFER], context, pools)
        plain = _Plain.of(setting, counted["none"], batches, context, pools)
        for source in everyone:
            of = counted[source.title]
            cells += _cells(setting, source, of, batches, context, pools, plain)
            capacities.append(_capacity(setting, source, of, context, pools, at_fit))
        for i, load in enumerate(batches):
            wants = [need(setting, s, counted[s.title], load, context, pools, float(plain.tokens_s[i])) for s in free]
            needs += wants
            here = [c for c in cells if (c.offered, c.context_len) == (load, context)]
            chats = f"{context // 1024}k" if context and context % 1024 == 0 else f"{context:,}"
            where = f"{load} chat{'s' if load > 1 else ''} of {chats} on {tp} x {accelerator.name}"
            binding = pools(NO_SOURCE, context, 0).binding
            sentences.append(sentence(where, here[0], here[1:], wants, binding))
    swings, about = _best_at_first(setting, placed, counted, cells)
    return CompareReport(
        target=target,
        accelerator=accelerator,
        engine=engine,
        engine_version=on.engine.version,
        tensor_parallel_size=tp,
        layer=layer,
        sources=placed,
        cells=tuple(cells),
        capacities=tuple(capacities),
        needs=tuple(needs),
        sentences=tuple(sentences),
        sensitivity=swings,
        sensitivity_of=about,
        error_band=error_band(on, tables),
        pays=_pays_everywhere(cells),
        fits=any(c.batch for c in cells),
        assumptions=_assumptions(setting, placed, pools(NO_SOURCE, contexts[0], 0)),
        warnings=_warnings(setting, placed, cells),
    )


def _check(
    batches: Sequence[int], contexts: Sequence[int], max_kappa: int, utilization: float | None, price: float | None
) -> None:
    if not batches or any(b < 1 for b in batches):
        raise InputError(f"--batch {','.join(map(str, batches))}: batches must be whole numbers of at least 1")
    if not contexts or any(t < 0 for t in contexts):
        raise InputError(f"--context {','.join(map(str, contexts))}: contexts must be at least 0")
    if not 1 <= max_kappa <= 128:
        raise InputError(f"--max-k {max_kappa}: must lie between 1 and 128")
    if utilization is not None and not 0 < utilization <= 1:
        raise InputError(f"--gpu-memory-utilization {utilization:g}: must lie above 0 and at most 1")
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise InputError(f"--price {price:g}: must be finite and at least 0")


def _placed(sources: Sequence[Source], target: Model, engine: str) -> tuple[tuple[Source, ...], tuple[Source, ...]]:
    """Sources as the engine runs them: those whose acceptance is known, and those for which it is asked."""
    known, free = [], []
    for source in sources:
        if source.kind == "none":
            continue
        if source.has_acceptance:
            known.append(on_engine(source, target, engine))
        else:
            free.append(replace(on_engine(replace(source, alpha=ALWAYS), target, engine), alpha=None))
    return tuple(known), tuple(free)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    """Plain decoding under each offered load: requests that run, their step, tokens per second."""

    running: npt.NDArray[np.int64]
    step_s: FloatArray
    tokens_s: FloatArray

    @classmethod
    def of(cls, setting: Setting, of: Loads, offered: Sequence[int], context: int, pools: Pools) -> "_Plain":
        found = served(setting, NO_SOURCE, of, offered, context, pools)
        step = times(setting, NO_SOURCE, of, found.batch, context, 0).step_s
        return cls(running=found.running, step_s=step, tokens_s=found.running / step)


def _cells(
    setting: Setting,
    source: Source,
    of: Loads,
    batches: Sequence[int],
    context: int,
    pools: Pools,
    against: _Plain,
) -> list[Cell]:
    runs = served(setting, source, of, batches, context, pools)
    kappa, b = runs.kappa, runs.batch
    step = times(setting, source, of, b, context, kappa)
    plain = times(setting, NO_SOURCE, of, b, context, 0)
    ends = _ends(setting, source, of, b, context, kappa)
    is_none = source.kind == "none"
    binding = _bindings(setting, source, of, b, context, step, plain, kappa, batches, runs.fit)
    # Speedup of a step, times the requests that run, over those of plain decoding and their slower or faster step.
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(against.running > 0, runs.running / b * (b / plain.step_s) / against.tokens_s, 0.0)
    found = []
    for i, load in enumerate(batches):
        per_token, running, layer = float(step.per_token_s[i]), int(runs.running[i]), setting.on.layer
        tokens_s = running / per_token
        per_gpu = tokens_s / setting.on.tp
        gain = float(plain.step_s[i] / per_token)
        low, high = (float(share[i] * end[i]) for end in (ends.speedup_low, ends.speedup_high))
        price, power = setting.price_per_hour, setting.on.accelerator.tdp_w
        served_by = float(running > 0)
        found.append(
            Cell(
                source=source.title,
                offered=load,
                batch=running,
                waiting=load - running,
                fit=int(runs.fit[i]),
                context_len=context,
                kappa=int(kappa[i]),
                emitted=float(step.emitted[i]),
                emitted_low=float(ends.emitted_low[i]),
                emitted_high=float(ends.emitted_high[i]),
                plain_s=float(plain.step_s[i]),
                draft_s=float(step.draft_s[i]),
                verify_s=float(step.verify_s[i]),
                host_s=float(step.host_s[i]),
                step_s=float(step.step_s[i]),
                per_token_s=per_token,
                per_token_low_s=float(ends.per_token_low_s[i]),
                per_token_high_s=float(ends.per_token_high_s[i]),
                tokens_s_request=served_by / per_token,
                tokens_s_gpu=per_gpu,
                per_user_s=load / tokens_s if running else math.inf,
                speedup=gain,
                speedup_low=1.0 if is_none else float(ends.speedup_low[i]),
                speedup_high=1.0 if is_none else float(ends.speedup_high[i]),
                ratio=float(share[i]) * gain,
                ratio_low=served_by if is_none else low,
                ratio_high=served_by if is_none else high,
                fits=running == load,
                verdict="" if is_none else verdict(fit=int(runs.fit[i]), low=low, high=high, layer=layer),
                binding=binding[i],
                cost_per_million=None if price is None or not running else price / 3600 / per_gpu * 1e6,
                joules_per_token=None if power is None or not running else power / per_gpu,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    emitted_low: FloatArray
    emitted_high: FloatArray
    per_token_low_s: FloatArray
    per_token_high_s: FloatArray
    speedup_low: FloatArray
    speedup_high: FloatArray


def _ends(
    setting: Setting,
    source: Source,
    of: Loads,
    batch: FloatArray,
    context: int,
    kappa: npt.NDArray[np.int64],
) -> _Ends:
    """Ends of each figure: of the source's ranges with the error band, or between the two bounds."""
    band = speedup_band(setting.on, setting.tables) or Band(low=1.0, high=1.0, basis="")
    slow = replace(setting, on=other_bound(setting.on)) if setting.on.layer == "roofline" else setting
    low_end, high_end = source.ends()
    worst, best = (times(at, end, of, batch, context, kappa) for at, end in ((slow, low_end), (setting, high_end)))
    fast_plain, slow_plain = (times(at, NO_SOURCE, of, batch, context, 0).step_s for at in (setting, slow))
    return _Ends(
        emitted_low=worst.emitted,
        emitted_high=best.emitted,
        per_token_low_s=best.per_token_s / band.high,
        per_token_high_s=worst.per_token_s / band.low,
        speedup_low=fast_plain / worst.per_token_s * band.low,
        speedup_high=slow_plain / best.per_token_s * band.high,
    )


def _bindings(
    setting: Setting,
    source: Source,
    of: Loads,
    batch: FloatArray,
    context: int,
    step: StepTime,
    plain: StepTime,
    kappa: npt.NDArray[np.int64],
    offered: Sequence[int],
    fit: npt.NDArray[np.int64],
) -> list[str]:
    """What stands most in the way at each batch: of speed for the plain step, of the ideal gain for a source.

    A source's causes are compared by what they take from its gain: coverage by the tokens that steps without a draft do
    not emit, the others by their share of the step's time. Where none takes 2%, acceptance alone limits it.
    """
    cache = _cache_share(setting, of.target, batch, context)
    short = np.asarray(offered) > fit
    if source.kind == "none":
        weights = np.where(plain.host_s > plain.verify_s, "host", "weights read")
        found = np.where(cache > 0.5, "KV read", weights)
        return [str(name) for name in np.where(short, "KV capacity", found)]
    everywhere = replace(source, coverage=ALWAYS)
    drafting = np.zeros_like(batch)
    if of.draft is not None:
        drafting = _cache_share(setting, of.draft, batch, context)
    draft = step.draft_s / step.step_s
    losses = {
        "coverage": 1 - step.emitted / emitted(everywhere, kappa),
        "draft cost": np.where(drafting > 0.5, 0.0, draft),
        "KV read": np.where(drafting > 0.5, draft, 0.0),
        "verify width": np.maximum(step.verify_s - plain.verify_s, 0.0) / step.step_s,
        "host": np.maximum(step.host_s - plain.host_s, 0.0) / step.step_s,
    }
    names = np.array(list(losses))
    stacked = np.stack([np.broadcast_to(x, batch.shape) for x in losses.values()])
    found = np.where(stacked.max(axis=0) > 0.02, names[stacked.argmax(axis=0)], "acceptance")
    return [str(name) for name in np.where(short, "KV capacity", found)]


def _cache_share(setting: Setting, shape: PassShape, batch: FloatArray, context: int) -> FloatArray:
    """Share of a one-position pass that reading the cache takes, by the additive law."""
    terms = pass_time(replace(setting.on, layer="modelled"), shape, batch, 1, context).terms
    return (terms.kv_s + terms.attention_s) / terms.total_s


def _capacity(setting: Setting, source: Source, of: Loads, context: int, pools: Pools, plain: _Plain) -> Capacity:
    runs = served(setting, source, of, [MAX_OFFER], context, pools)
    sequences = int(runs.fit[0])
    tokens_s = float((sequences / times(setting, source, of, runs.batch, context, runs.kappa).per_token_s)[0])
    last = min(sequences, MAX_BATCH)
    ranges = pays_ranges(setting, source, of, context, last)
    return Capacity(
        source=source.title,
        context_len=context,
        sequences=sequences,
        sequences_lost=int(plain.running[0]) - sequences,
        tokens_s_gpu=tokens_s / setting.on.tp,
        throughput_ratio=tokens_s / float(plain.tokens_s[0]) if sequences > 0 and plain.running[0] > 0 else math.nan,
        pays_batches=ranges,
        crossover_batch=ranges[-1][1] + 1 if ranges and ranges[-1][1] < last else None,
    )


def pays_ranges(setting: Setting, source: Source, of: Loads, context: int, last: int) -> tuple[tuple[int, int], ...]:
    """Ranges of batches from 1 to `last` in which the best estimate of the speedup is above 1."""
    if source.kind == "none" or last < 1:
        return ()
    b = np.arange(1, last + 1)
    kappa = best_kappa(setting, source, of, b, context)
    gain = (
        times(setting, NO_SOURCE, of, b, context, 0).step_s / times(setting, source, of, b, context, kappa).per_token_s
    )
    padded = np.concatenate([[False], gain > 1, [False]])
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    return tuple((int(a) + 1, int(z)) for a, z in edges.reshape(-1, 2))


def _pays_everywhere(cells: Sequence[Cell]) -> bool:
    """Whether at every asked batch and context some source pays."""
    paid = {(c.offered, c.context_len): False for c in cells}
    for c in cells:
        paid[c.offered, c.context_len] |= c.verdict == "pays"
    return all(paid.values())


def _best_at_first(
    setting: Setting, sources: Sequence[Source], counted: Mapping[str, Loads], cells: Sequence[Cell]
) -> tuple[tuple[Swing, ...], str]:
    """What moves the speedup of the best source at the first batch and context, and which that is."""
    if not sources or setting.on.layer != "modelled":
        return (), ""
    asked = cells[0].offered, cells[0].context_len
    first = [c for c in cells if (c.offered, c.context_len) == asked and c.verdict and c.batch]
    if not first:
        return (), ""
    cell = max(first, key=lambda c: c.ratio)
    source = next(s for s in sources if s.title == cell.source)
    about = f"{source.title} at batch {cell.batch}, context {cell.context_len}, k {cell.kappa}"
    swings = sensitivity(setting, source, counted[source.title], cell.batch, cell.context_len, cell.kappa)
    return swings, about


def _assumptions(setting: Setting, sources: Sequence[Source], plain: Pool) -> tuple[str, ...]:
    on = setting.on
    layer = {
        "roofline": "times are the roofline of peak rates, everything overlapped; a speedup's ends are between the two "
        "bounds (everything overlapped, nothing overlapped); launches and latencies, which they leave out, weigh most "
        "on small drafts, so the bound never says that a source pays",
        "modelled": times_from(on),
        "measured": "times from the given tables, smoothed by the additive law: "
        + "; ".join(t.source for t in (setting.tables or {}).values()),
    }[on.layer]
    found = [layer, *on.notes]
    if on.layer == "modelled":
        found.append(f"{on.engine.name} {on.engine.version}: {on.engine.source}")
    found += band_note(on, setting.tables)
    found.append("acceptance and coverage are as given; they are not derived")
    found.append(f"concurrency: {plain.basis}; a drafting request holds the slots of its drafts, too")
    found += [f"{s.title}: {s.model.source}" for s in sources if s.kind in ("eagle", "eagle3") and s.model is not None]
    return tuple(found)


def _warnings(setting: Setting, sources: Sequence[Source], cells: Sequence[Cell]) -> tuple[str, ...]:
    found = []
    for s in sources:
        if s.coverage.best < 1 and is_padded(setting.on, s):
            found.append(
                f"{s.title}: {setting.on.engine.name} verifies full drafts whether or not something matched, so misses "
                "cost width" + (" (ngram-host is the runner that skips them)" if s.kind == "ngram" else "")
            )
        longest = max((c.context_len for c in cells), default=0)
        drafted = max((c.kappa for c in cells if c.source == s.title and c.kappa), default=s.kappa)
        found += source_cautions(setting.target, s, context_len=longest, kappa=drafted)
    found += [
        f"{s.title}: without drafted=... every draft is taken as long as k; suffix decoding mostly drafts 1 or 2 tokens"
        for s in sources
        if s.kind == "suffix" and s.mean_length is None
    ]
    if cells:
        most = (max(c.batch for c in cells), max(c.context_len for c in cells), max(c.kappa for c in cells))
        found += beyond_measured(setting, *most)
    limit = setting.target.max_position
    beyond = sorted({c.context_len for c in cells if limit is not None and c.context_len > limit})
    if beyond:
        found.append(f"context {beyond[0]} is beyond the {limit} that {setting.target.name} states")
    too_many = sorted({c.offered for c in cells if not c.fits})
    if too_many:
        found.append(
            f"batches {', '.join(map(str, too_many))} exceed what the cache holds somewhere: what fits runs, the rest "
            "waits"
        )
    return tuple(found)
