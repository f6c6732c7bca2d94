"""Where steps of several sources are timed: target, machine, memory and measured tables, and what follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.decide.source import most_kappa
from specplan.decide.step_source import Loads, StepTime, step_time
from specplan.memory.pool import Drafting, Pool, Serving, pool
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.step_time import Machine
from specplan.timing.trust import Band, band
from specplan.values.formats import NumberFormat
from specplan.values.model import Model
from specplan.values.source import MATCHERS, Source

MAX_KAPPA: Final = 8
"""Longest draft that is tried where a source does not fix one."""

MAX_BATCH: Final = 1024
"""Largest batch in which a crossover is sought; vLLM's default of ``max_num_seqs`` on large cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Inputs of a comparison beside the sources."""

    target: Model
    on: Machine
    kv_format: NumberFormat | None = None
    max_kappa: int = MAX_KAPPA
    engine_version: str | None = None
    gpu_memory_utilization: float | None = None
    workspace_bytes: float | None = None
    price_per_hour: float | None = None
    tables: Mapping[str, MeasuredTable] | None = None

    def table(self, name: str) -> MeasuredTable | None:
        """Measured table of the target (its name) or of a source's draft (the source's name)."""
        return None if self.tables is None else self.tables.get(name)


UNTOLD: Final = 0.1
"""Error of speedups from measured tables whose rows leave no residual."""


def speedup_band(on: Machine, tables: Mapping[str, MeasuredTable] | None = None) -> Band | None:
    """Factors to expect around a speedup, and what they rest on; None for the roofline, which has but a direction.

    >>> from specplan.timing.step_time import machine
    >>> from specplan.specs.hardware import load_accelerator
    >>> [speedup_band(machine(load_accelerator(card))).high for card in ("h100-sxm", "mi355x")]
    [1.05, 1.25]
    """
    if on.layer == "roofline":
        return None
    if on.layer == "measured":
        worst = float(np.max([np.nan] if not tables else [t.worst_residual for t in tables.values()]))
        basis = "residuals of the measured tables"
        if np.isnan(worst):
            worst, basis = UNTOLD, "an assumption: a measured table with no more rows than coefficients misses nothing"
        return Band(low=1 / (1 + worst), high=1 + worst, basis=basis)
    return band(on)


def band_note(on: Machine, tables: Mapping[str, MeasuredTable] | None = None) -> tuple[str, ...]:
    """What the error band of a speedup is and rests on, in words; nothing at the roofline.

    >>> from specplan.timing.step_time import machine
    >>> from specplan.specs.hardware import load_accelerator
    >>> band_note(machine(load_accelerator("h100-sxm"), "sglang"))
    ('the error band of a speedup, -14% to +8%, rests on 7 rows, SGLang 0.5, trees of EAGLE-3',)
    """
    found = speedup_band(on, tables)
    if found is None:
        return ()
    return (f"the error band of a speedup, {found.low - 1:+.0%} to {found.high - 1:+.0%}, rests on {found.basis}",)


def beyond_measured(setting: Setting, batch: float, context_len: float, kappa: float) -> tuple[str, ...]:
    """What of a question lies beyond the rows of the target's measured table, in words."""
    table = setting.table(setting.target.name) if setting.on.layer == "measured" else None
    if table is None:
        return ()
    asked = {"batch": batch, "width": kappa + 1, "context": context_len}
    past = [
        f"{name} {x:,g} (up to {most:,g})"
        for (name, x), most in zip(asked.items(), table.most, strict=True)
        if x > most
    ]
    if not past:
        return ()
    return (f"the step times of {setting.target.name} were not measured at {', '.join(past)}: carried on by the law",)


def error_band(on: Machine, tables: Mapping[str, MeasuredTable] | None = None) -> float | None:
    """The larger side of `speedup_band`, as a share of the speedup.

    >>> from specplan.timing.step_time import machine
    >>> from specplan.specs.hardware import load_accelerator
    >>> error_band(machine(load_accelerator("h100-sxm"))), error_band(machine(load_accelerator("mi355x")))
    (0.14, 0.25)
    """
    found = speedup_band(on, tables)
    return None if found is None else found.worst


def times(
    setting: Setting, source: Source, of: Loads, batch: npt.ArrayLike, context_len: npt.ArrayLike, k: npt.ArrayLike
) -> StepTime:
    """`step_time` with the setting's machine and tables."""
    return step_time(
        setting.on,
        source,
        of,
        batch,
        context_len,
        k,
        target_table=setting.table(setting.target.name),
        draft_table=setting.table(source.name),
    )


def best_kappa(
    setting: Setting, source: Source, of: Loads, batch: npt.ArrayLike, context_len: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Draft length with the least time per token at each batch; the source's own where it fixes one."""
    b = np.atleast_1d(np.asarray(batch, np.float64))
    longest = most_kappa(source, setting.max_kappa)
    if source.kind == "none" or source.kappa is not None:
        return np.full(b.shape, longest, np.int64)
    ks = np.arange(1, longest + 1)
    found = times(setting, source, of, b[:, None], context_len, ks[None, :])
    return np.asarray(ks[np.argmin(found.per_token_s, axis=1)], np.int64)


def drafting_of(source: Source, kappa: int, engine: str) -> Drafting:
    """What drafts as far as memory goes; of a source of which only c is known, the slots of its drafts."""
    known = source.is_model or source.kind in MATCHERS or source.kind == "mtp"
    method = source.kind if known else "ngram" if engine == "sglang" else "suffix"
    if source.model is not None and source.model.draft_method:
        method = source.model.draft_method
    elif engine == "sglang" and method == "sglang-ngram":
        method = "ngram"
    return Drafting(method=method, kappa=kappa, model=source.model, nodes=source.nodes)


def pool_of(setting: Setting, source: Source, context_len: int, kappa: int | None = None) -> Pool:
    """The engine's pool for requests of `context_len` tokens while `source` drafts `kappa` tokens, its longest if None.

    One answer with `specplan blocks`: see `specplan.memory.pool.pool`.
    """
    serving = Serving(
        engine=setting.on.engine.name.removesuffix("-cpu"),
        version=setting.engine_version,
        tp=setting.on.tp,
        utilization=setting.gpu_memory_utilization,
        kv_cache_dtype="auto" if setting.kv_format is None else setting.kv_format.name,
        workspace_bytes=setting.workspace_bytes,
    )
    k = most_kappa(source, setting.max_kappa) if kappa is None else kappa
    drafting = drafting_of(source, k, serving.engine) if k else None
    return pool(setting.target, setting.on.accelerator, serving, max(context_len, 1), drafting)
