"""What `specplan cost` shows beside the chapter's figures: the same question inside a serving engine."""

from dataclasses import dataclass

from specplan.memory.pool import Drafting, Pool, Serving, pool
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """Figures of an engine.

    Attributes
    ----------
    pool : Pool
        Of the target alone.
    pool_with_draft : Pool or None
        Started for the draft, with its slots.
    """

    pool: Pool
    pool_with_draft: Pool | None

    @property
    def fits(self) -> bool:
        """Whether the engine starts for some length of request, as asked: with the draft where there is one."""
        return (self.pool_with_draft or self.pool).longest > 0


def engine_cost(
    target: Model,
    accelerator: Accelerator,
    *,
    draft: Model | None = None,
    engine: str = "vllm",
    engine_version: str | None = None,
    tp: int = 1,
    kappa: int = 3,
    length: int,
    gpu_memory_utilization: float | None = None,
    kv_format: NumberFormat | None = None,
) -> EngineCost:
    """Ask `memory` what `specplan blocks` says, for requests of `length` tokens.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> found = engine_cost(load_model("llama3-8b"), load_accelerator("l40s"), length=2048)
    >>> found.pool.requests
    96
    """
    serving = Serving(
        engine=engine,
        version=engine_version,
        tp=tp,
        utilization=gpu_memory_utilization,
        kv_cache_dtype="auto" if kv_format is None else kv_format.name,
    )
    with_draft = None
    if draft is not None:
        drafting = Drafting(method=draft.draft_method or "model", kappa=kappa, model=draft)
        with_draft = pool(target, accelerator, serving, length, drafting)
    return EngineCost(pool=pool(target, accelerator, serving, length), pool_with_draft=with_draft)
