"""Best draft length per batch, kept steady by a margin, and written as the engine's own configuration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.decide.cautions import source_cautions
from specplan.decide.engine_configuration import (
    ENGINES,
    HEAD_PATH,
    Checkpoints,
    Configuration,
    KappaRange,
    checkpoint,
    configure,
    draft_checkpoint,
    engine_warnings,
    prediction_modules,
)
from specplan.decide.ranks import require_ranks
from specplan.decide.source import most_kappa
from specplan.decide.step_setting import (
    MAX_BATCH,
    MAX_KAPPA,
    Setting,
    band_note,
    beyond_measured,
    error_band,
    pool_of,
    times,
)
from specplan.decide.step_source import Loads, loads, on_engine
from specplan.errors import InputError
from specplan.memory.pool import Pool
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.step_time import FloatArray, machine
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import NO_SOURCE, Source

MARGIN: Final = 0.02
"""Relative gain below which a neighbouring batch keeps its draft length, so that a load near a border does not flap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSchedule:
    """The schedule of one context, with the best single draft length beside it.

    Attributes
    ----------
    ranges : tuple of KappaRange
        Contiguous from batch 1; not necessarily falling, since experts make wide passes cheaper at some batches.
    fixed_kappa : int
        Single length with the best mean logarithm of the speedup over the batches.
    speedup, fixed_speedup : float
        Geometric means over the batches 1, 2, 4, ...
    """

    context_len: int
    ranges: tuple[KappaRange, ...]
    fixed_kappa: int
    speedup: float
    fixed_speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport:
    """Everything that `specplan schedule` shows; no configuration where not one request fits."""

    target: Model
    accelerator: Accelerator
    source: Source
    engine: str
    engine_version: str
    tensor_parallel_size: int
    layer: str
    max_batch: int
    margin: float
    error_band: float | None
    schedules: tuple[ContextSchedule, ...]
    dynamic: bool
    configuration: Configuration | None
    pool: Pool
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    not_modeled: tuple[str, ...] = (
        "prefills and requests of other contexts in the batch",
        "the time that the engine takes to switch graphs between draft lengths",
    )


def schedule(
    target: Model,
    accelerator: Accelerator,
    source: Source,
    *,
    engine: str = "vllm",
    tp: int = 1,
    contexts: Sequence[int] = (2048,),
    max_batch: int | None = None,
    max_kappa: int = MAX_KAPPA,
    margin: float = MARGIN,
    layer: str = "modelled",
    kv_format: NumberFormat | None = None,
    engine_version: str | None = None,
    gpu_memory_utilization: float | None = None,
    draft_path: str | None = None,
    target_path: str | None = None,
    temperature: float = 0.0,
    tables: Mapping[str, MeasuredTable] | None = None,
) -> ScheduleReport:
    """Find the best draft length at each batch and write it as the engine's configuration.

    Parameters
    ----------
    target, accelerator, source
        As in `specplan.decide.compare.compare`; the source's draft model loaded.
    engine : str
        ``vllm`` or ``sglang``.
    contexts : sequence of int
        One schedule each; the configuration is that of the first.
    max_batch : int, optional
        Largest batch; what fits the pool, at most 1024, if None.
    max_kappa : int
        Longest draft.
    margin : float
        Gain below which a batch keeps its neighbour's length, at least 0.
    draft_path, target_path : str, optional
        Checkpoints for the command line; the specs' own sources if None.
    temperature : float
        Of the requests; only decides which warnings apply.

    Raises
    ------
    InputError
        For an unknown engine or numbers that make no sense.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> from specplan.propose.spelling import read_source
    >>> report = schedule(load_model("llama3.1-8b"), load_accelerator("h100-sxm"), read_source("ngram:alpha=.5"))
    >>> [(r.first, r.last, r.kappa) for r in report.schedules[0].ranges][0]
    (1, 18, 7)
    """
    _check(engine, source, contexts, max_batch, max_kappa)
    if not 0 <= margin < 1:
        raise InputError(f"--margin {margin:g}: must be at least 0 and below 1")
    if gpu_memory_utilization is not None and not 0 < gpu_memory_utilization <= 1:
        raise InputError(f"--gpu-memory-utilization {gpu_memory_utilization:g}: must lie in (0, 1]")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"--temperature {temperature:g}: must be finite and at least 0")
    setting = Setting(
        target=target,
        on=machine(accelerator, engine, tp, layer),
        kv_format=kv_format,
        max_kappa=max_kappa,
        engine_version=engine_version,
        gpu_memory_utilization=gpu_memory_utilization,
        tables=tables,
    )
    require_ranks(target, tp)
    placed = on_engine(source, target, engine)
    if placed.model is not None:
        require_ranks(placed.model, tp)
    setting = _whole_turns(setting, placed)
    of = loads(target, placed, tp, kv_format)
    room = pool_of(setting, placed, contexts[0])
    fitting = room.requests
    last = max_batch if max_batch is not None else min(max(fitting, 1), MAX_BATCH)
    if engine == "sglang" and placed.kind == "ngram" and source.kappa is None and source.nodes is None:
        placed = _best_budget(setting, source, of, contexts[0], last)
    dynamic = _is_dynamic(placed, engine)
    schedules = tuple(_schedule(setting, placed, of, context, last, margin, dynamic) for context in contexts)
    names = Checkpoints(target=target_path or checkpoint(target), draft=draft_path or draft_checkpoint(placed))
    warnings = [*_warnings(schedules, names), *engine_warnings(setting, placed, temperature, dynamic)]
    longest = max((r.kappa for s in schedules for r in s.ranges), default=None)
    warnings += source_cautions(target, placed, context_len=max(contexts), kappa=longest)
    warnings += beyond_measured(setting, last, max(contexts), longest or 0)
    beyond = [context for context in contexts if target.max_position is not None and context > target.max_position]
    if beyond:
        warnings.append(f"context {beyond[0]} is beyond the {target.max_position} that {target.name} states")
    if fitting < 1:
        warnings.append(f"does not fit: {room.binding}")
    elif last > fitting:
        warnings.append(f"only {fitting} requests of {contexts[0]} tokens fit the pool; larger batches are not served")
    return ScheduleReport(
        target=target,
        accelerator=accelerator,
        source=placed,
        engine=engine,
        engine_version=setting.on.engine.version,
        tensor_parallel_size=tp,
        layer=layer,
        max_batch=last,
        margin=margin,
        error_band=error_band(setting.on, tables),
        schedules=schedules,
        dynamic=dynamic,
        configuration=None
        if fitting < 1
        else configure(setting, placed, schedules[0].ranges, names, last, dynamic, room.longest),
        pool=room,
        assumptions=(
            f"times: {layer}",
            *setting.on.notes,
            *band_note(setting.on, tables),
            "acceptance and coverage are as given and the same at every batch",
        ),
        warnings=tuple(warnings),
    )


def _check(engine: str, source: Source, contexts: Sequence[int], max_batch: int | None, max_kappa: int) -> None:
    if engine not in ENGINES:
        raise InputError(f"--engine {engine!r}: schedules are written for {' and '.join(ENGINES)}")
    if source.kind == "none":
        raise InputError("a schedule needs a draft source; give --draft with --alpha, or --source")
    if not 1 <= max_kappa <= 128:
        raise InputError(f"--max-k {max_kappa}: must lie between 1 and 128")
    if max_batch is not None and not 1 <= max_batch <= MAX_BATCH:
        raise InputError(f"--max-batch {max_batch}: must lie between 1 and {MAX_BATCH}")
    if not contexts or min(contexts) < 0:
        raise InputError("--context: contexts must be at least 0")


def _whole_turns(setting: Setting, source: Source) -> Setting:
    """The setting with a longest draft that vLLM takes of several prediction modules: their number or multiples."""
    modules = prediction_modules(setting, source)
    longest = most_kappa(source, setting.max_kappa)
    if longest <= modules or longest % modules == 0:
        return setting
    if source.kappa is not None:
        raise source.wrong(
            f"vLLM drafts at most {modules} tokens with the {modules} prediction modules of "
            f"{setting.target.name}, or a multiple of {modules}"
        )
    return replace(setting, max_kappa=longest - longest % modules)


def _best_budget(setting: Setting, source: Source, of: Loads, context: int, last: int) -> Source:
    """SGLang's n-gram with the node budget that serves the batches best: every step verifies all of it."""
    lengths = range(1, most_kappa(source, setting.max_kappa) + 1)
    budgets = [on_engine(replace(source, kappa=k, nodes=k + 1), setting.target, "sglang") for k in lengths]
    return max(budgets, key=lambda s: _schedule(setting, s, of, context, last, 0.0, dynamic=False).fixed_speedup)


def _is_dynamic(source: Source, engine: str) -> bool:
    """Whether the engine can change the draft length of this source with the batch."""
    if source.kappa is not None or source.nodes is not None:
        return False
    if engine == "sglang":
        return source.kind in ("eagle", "eagle3") and source.topk == 1
    return source.kind not in ("suffix", "ngram-gpu", "ngram-host")


def _drafts_always(source: Source, engine: str) -> bool:
    """Whether drafting costs its longest length whatever length is scheduled (vLLM's stand-alone draft models)."""
    return engine == "vllm" and source.kind == "model"


def _gains(
    setting: Setting, source: Source, of: Loads, batch: FloatArray, context: int, longest: int, held: int | None
) -> FloatArray:
    """Speedup by batch (rows) and draft length 0 ... longest (columns); `held`: passes that are made at any length."""
    k = np.arange(longest + 1)
    plain = times(setting, NO_SOURCE, of, batch, context, 0).step_s
    step = times(setting, source, of, batch[:, None], context, k[None, :])
    total = step.step_s
    if held is not None:
        drafting = times(setting, source, of, batch, context, held).draft_s
        total = total - step.draft_s + drafting[:, None]
    gain = plain[:, None] * step.emitted / total
    if held is None:
        gain[:, 0] = 1.0
    return gain


def _schedule(
    setting: Setting, source: Source, of: Loads, context: int, last: int, margin: float, dynamic: bool
) -> ContextSchedule:
    batch = np.arange(1, last + 1, dtype=np.float64)
    longest = most_kappa(source, setting.max_kappa)
    gain = _gains(setting, source, of, batch, context, longest, None)
    spread = np.unique(np.round(np.geomspace(1, last, 16)).astype(int)) - 1
    means = np.log(gain[spread]).mean(axis=0)
    fixed = source.kappa if source.kappa is not None else int(means.argmax())
    if not dynamic:
        chosen = np.full(last, fixed, np.int64)
    else:
        tables = [gain]
        if _drafts_always(source, setting.on.engine.name):
            tables = [_gains(setting, source, of, batch, context, k, k) for k in range(1, longest + 1)]
        gain, chosen = max(
            ((table, _steady(table, margin)) for table in tables),
            key=lambda pair: float(np.log(pair[0][spread, pair[1][spread]]).mean()),
        )
    if chosen.max() == 0:  # nothing is drafted at all, so nothing is paid for
        gain = np.ones_like(gain)
    reached = gain[np.arange(last), chosen]
    borders = np.flatnonzero(np.diff(chosen)) + 1
    ranges = tuple(
        KappaRange(
            first=int(a) + 1,
            last=int(z),
            kappa=int(chosen[a]),
            speedup_first=float(reached[a]),
            speedup_last=float(reached[z - 1]),
        )
        for a, z in zip([0, *borders], [*borders, last], strict=True)
    )
    return ContextSchedule(
        context_len=context,
        ranges=ranges,
        fixed_kappa=fixed,
        speedup=float(np.exp(np.log(reached[spread]).mean())),
        fixed_speedup=float(np.exp(means[fixed])),
    )


def _steady(gain: FloatArray, margin: float) -> npt.NDArray[np.int64]:
    """Best length per batch that changes from one batch to the next only for more than `margin`.

    Invariant: the chosen length is never more than `margin` behind the best one at its batch.
    """
    chosen = np.empty(gain.shape[0], np.int64)
    current = int(gain[0].argmax())
    for i, row in enumerate(gain):
        best = int(row.argmax())
        if row[best] > row[current] * (1 + margin):
            current = best
        chosen[i] = current
    return chosen


def _warnings(schedules: Sequence[ContextSchedule], names: Checkpoints) -> list[str]:
    found = []
    if len({tuple((r.first, r.last, r.kappa) for r in s.ranges) for s in schedules}) > 1:
        found.append(
            f"the contexts want different schedules; the configuration is that of context {schedules[0].context_len}, "
            "since engines schedule by batch alone"
        )
    if names.draft == HEAD_PATH:
        found.append(f"replace {HEAD_PATH} by the checkpoint of a trained head (--draft-path)")
    if any(r.kappa for s in schedules for r in s.ranges) and all(s.speedup < 1 for s in schedules):
        found.append("this length loses against plain decoding over the batches taken together")
    if all(r.kappa == 0 for s in schedules for r in s.ranges):
        found.append("no draft length pays at any batch: the command serves without speculation")
    return found
