"""What speculation costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specplan import units
from specplan.api.answer import Answer, accelerator_of, model_of, question
from specplan.decide import cost as room
from specplan.errors import InputError
from specplan.report import cost_report
from specplan.report.console import Console
from specplan.specs.catalog import load_draft
from specplan.values import formats
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cost(Answer, room.CostReport):
    """The answer of `cost`: the fields of `specplan.decide.cost.CostReport`."""

    asked: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The figures as a document."""
        return cost_report.cost_document(self)

    def show(self, console: Console) -> None:
        """Print the tables of ``specplan cost``."""
        cost_report.print_cost(self, console)

    def headline(self) -> str:
        """Models, card and the figures that decide."""
        drafted = "" if self.draft is None else f" with {self.draft.name}"
        figures = [f"{self.tensor_parallel_size} x {self.accelerator.name}", f"kappa {self.num_speculative_tokens}"]
        known = {name: getattr(self, name) for name in ("c", "alpha_break_even", "speedup")}
        figures += [f"{name} {value:.4g}" for name, value in known.items() if value is not None]
        return f"{self.target.name}{drafted}, {', '.join(figures)}"


@question
def cost(
    target: str | Path | Model,
    accelerator: str | Path | Accelerator = "h100-sxm",
    *,
    draft: str | Path | Model | None = None,
    source: str | Source | None = None,
    quantization: str | None = None,
    tp: int = 1,
    draft_tp: int | None = None,
    kappa: int = 3,
    alpha: float | None = None,
    batch: int = 1,
    context_len: int | str = 0,
    max_model_len: int | str | None = None,
    engine: str | None = "vllm",
    engine_version: str | None = None,
    gpu_memory_utilization: float | None = None,
    memory_source: str = "auto",
    workspace: float | str = "2 GiB",
    kv_cache_dtype: str = "auto",
) -> Cost:
    """What speculation costs for a target, a draft and a card: c, break-even, speedup, and the pool.

    Parameters
    ----------
    target, draft : str, Path or Model
        Spec names, files, folders or models.
    accelerator : str, Path or Accelerator
        Profile name, YAML file or card.
    source : str or Source, optional
        What drafts, spelled as ``--source``, in place of `draft` and `alpha`.
    tp, draft_tp : int
        Tensor-parallel ranks; vLLM wants the draft's equal.
    kappa : int
        Drafted tokens per step, at least 1.
    alpha : float, optional
        Conditional acceptance per position, in [0, 1]; none is assumed.
    batch, context_len : int
        Requests per step, cached tokens per request (``"32k"`` works); 0 leaves the cache out of the floors.
    max_model_len : int or str, optional
        Length of a whole sequence; the model's own limit by default.
    engine, engine_version, gpu_memory_utilization, memory_source, workspace, kv_cache_dtype
        As the options of ``specplan cost``.
    quantization : str, optional
        Format of the target's linear weights, in place of its own.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> found = cost("llama3-70b", "h100-sxm", draft="llama3.2-1b", tp=4, alpha=0.7)
    >>> round(found.c, 6), round(found.speedup, 4)
    (0.01778, 2.4047)
    >>> found
    <Cost: llama3-70b with llama3.2-1b, 4 x h100-sxm, kappa 3, c 0.01778, alpha_break_even 0.05065, speedup 2.405>
    """
    model = model_of(target, quantization)
    spoken: Source | None = None
    if source is not None:
        if draft is not None or alpha is not None:
            raise InputError("give either --source, with its alpha in it, or --draft and --alpha")
        from specplan.api.sources import one_source

        spoken = one_source(source, target=model)
        kappa, drafter = spoken.kappa or kappa, spoken.model
    else:
        drafter = load_draft(draft, model) if isinstance(draft, str | Path) else draft
    return Cost.of(
        room.cost(
            model,
            accelerator_of(accelerator),
            draft=drafter,
            source=spoken,
            engine=engine,
            engine_version=engine_version,
            tp=tp,
            draft_tp=draft_tp,
            kappa=kappa,
            alpha=alpha,
            batch=batch,
            context_len=units.parse_count(context_len),
            max_model_len=None if max_model_len is None else units.parse_count(max_model_len),
            gpu_memory_utilization=gpu_memory_utilization,
            memory_source=memory_source,
            workspace_bytes=units.parse(workspace, "memory") if isinstance(workspace, str) else workspace,
            kv_format=None if kv_cache_dtype == "auto" else formats.lookup(kv_cache_dtype),
        )
    )
