"""What `specplan cost` shows beside the chapter's figures: the same question inside a serving engine."""

import math
from dataclasses import dataclass, replace

from specplan.decide.pricing import Pair, Setting, priced, prices
from specplan.decide.source import placed, source_speedup
from specplan.decide.step_setting import drafting_of, speedup_band
from specplan.decide.step_source import is_padded
from specplan.formulas.indifference import break_even_alpha
from specplan.formulas.speedup import speedup
from specplan.memory.pool import Pool, Serving, pool
from specplan.timing.step_time import DEFAULT_LAYER, machine
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """Figures of an engine.

    Attributes
    ----------
    pool : Pool
        Of the target alone.
    pool_with_draft : Pool or None
        Started for the draft, with its slots.
    context_len : int
        Cached tokens per request of the times.
    plain_s : float or None
        A plain step of the batch; times are None where the card and its family have no constants.
    c, verify : float or None
        Draft passes per drafted token, and the verify step, over the plain step; None without a draft.
    alpha_break_even, speedup : float or None
        As the chapter's, with these.
    speedup_low, speedup_high : float or None
        With the layer's error band.
    notes : tuple of str
        What was borrowed or assumed.
    """

    pool: Pool
    pool_with_draft: Pool | None
    context_len: int
    plain_s: float | None
    c: float | None
    verify: float | None
    alpha_break_even: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the engine starts for some length of request, as asked: with the draft where there is one."""
        return (self.pool_with_draft or self.pool).longest > 0


def engine_cost(
    target: Model,
    accelerator: Accelerator,
    *,
    draft: Model | None = None,
    source: Source | None = None,
    engine: str = "vllm",
    engine_version: str | None = None,
    tp: int = 1,
    kappa: int = 3,
    alpha: float | None = None,
    batch: int = 1,
    context_len: int = 2048,
    length: int,
    gpu_memory_utilization: float | None = None,
    kv_format: NumberFormat | None = None,
) -> EngineCost:
    """Ask `memory` for requests of `length` tokens, and `timing` for steps of `batch` requests of `context_len`.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> found = engine_cost(load_model("llama3-8b"), load_accelerator("l40s"), length=2048)
    >>> found.pool.requests
    101
    """
    serving = Serving(
        engine=engine,
        version=engine_version,
        tp=tp,
        utilization=gpu_memory_utilization,
        kv_cache_dtype="auto" if kv_format is None else kv_format.name,
    )
    with_draft = None
    if draft is not None or source is not None:
        spoken = Source(name="draft", kind="model") if source is None else source
        drafting = drafting_of(replace(spoken, model=draft, kappa=None), kappa, engine)
        with_draft = pool(target, accelerator, serving, length, drafting)
    found, band = None, None
    notes: tuple[str, ...] = ()
    if accelerator.calibration is not None:
        pair = Pair(
            target=target,
            accelerator=accelerator,
            draft=draft,
            tp=tp,
            kv_format=kv_format,
            engine=engine,
            layer=DEFAULT_LAYER,
        )
        found = prices(pair, positions=kappa + 1, batch=batch, context_len=context_len)
        on = machine(accelerator, engine, tp)
        notes, band = on.notes, speedup_band(on)
    gain, even = None, None
    if source is not None and found is not None:
        at = placed(source, kappa=kappa, c=0.0)
        at = replace(at, kappa=kappa, padded=is_padded(pair.machine, replace(source, model=draft)))
        c, verify = priced(at, Setting(pair=pair), batch=batch, context_len=context_len)
        if source.has_acceptance:
            gain = float(source_speedup(replace(at, c=c, verify=verify)))
        found = replace(found, c=c, verify=verify)
    if found is not None and found.c is not None:
        border = float(break_even_alpha(kappa, found.c, found.verify))
        even = None if math.isnan(border) else border
        if source is None and alpha is not None:
            gain = float(speedup(alpha, kappa, found.c, found.verify))
    return EngineCost(
        pool=pool(target, accelerator, serving, length),
        pool_with_draft=with_draft,
        context_len=context_len,
        plain_s=None if found is None else found.plain_s,
        c=None if found is None else found.c,
        verify=None if found is None or found.c is None else found.verify,
        alpha_break_even=even,
        speedup=gain,
        speedup_low=None if gain is None or band is None else gain * band.low,
        speedup_high=None if gain is None or band is None else gain * band.high,
        notes=notes,
    )
