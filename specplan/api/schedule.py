"""Draft length by batch, as an engine takes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specplan import units
from specplan.api.answer import Answer, accelerator_of, model_of, question, several
from specplan.api.sources import load_tables, one_source
from specplan.decide import schedule as room
from specplan.report import schedule_table
from specplan.report.console import Console
from specplan.values import formats
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schedule(Answer, room.ScheduleReport):
    """The answer of `schedule`: the fields of `specplan.decide.schedule.ScheduleReport`."""

    asked: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The figures as a document."""
        return schedule_table.schedule_document(self)

    def show(self, console: Console) -> None:
        """Print the tables of ``specplan schedule``."""
        schedule_table.print_schedule(self, console)

    def headline(self) -> str:
        """The source, and its lengths by batch in the first context."""
        ranges = self.schedules[0].ranges if self.schedules else ()
        lengths = ", ".join(f"kappa {r.kappa} at {r.first}-{r.last}" for r in ranges)
        return f"{self.source.title} for {self.target.name} on {self.accelerator.name}: {lengths}"


@question
def schedule(
    target: str | Path | Model,
    accelerator: str | Path | Accelerator = "h100-sxm",
    *,
    source: str | Source,
    quantization: str | None = None,
    tp: int = 1,
    context_len: int | str | Sequence[int | str] = "2k",
    max_batch: int | None = None,
    max_kappa: int = 8,
    margin: float = 0.02,
    engine: str = "vllm",
    engine_version: str | None = None,
    layer: str = "modelled",
    measured: Sequence[str] = (),
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float | None = None,
    temperature: float = 0.0,
    target_path: str | None = None,
    draft_path: str | None = None,
) -> Schedule:
    """Best draft length per batch, as the engine's configuration and a command line.

    Parameters
    ----------
    target, accelerator, tp, context_len, max_kappa
        As in `compare`.
    source : str or Source
        The one that drafts, with its acceptance.
    max_batch : int, optional
        What fits the pool by default.
    margin : float
        Gain below which a batch keeps its neighbour's length.
    engine, engine_version, layer, measured, kv_cache_dtype, gpu_memory_utilization, temperature
        As the options of ``specplan schedule``.
    target_path, draft_path
        As the options of ``specplan schedule``.
    quantization : str, optional
        Format of the target's linear weights, in place of its own.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> schedule("llama3-8b", source="llama3.2-1b:alpha=.7").engine
    'vllm'
    """
    return Schedule.of(
        room.schedule(
            model_of(target, quantization),
            accelerator_of(accelerator),
            one_source(source),
            engine=engine,
            tp=tp,
            contexts=[units.parse_count(c) for c in several(context_len)],
            max_batch=max_batch,
            max_kappa=max_kappa,
            margin=margin,
            layer=layer,
            kv_format=None if kv_cache_dtype == "auto" else formats.lookup(kv_cache_dtype),
            engine_version=engine_version,
            gpu_memory_utilization=gpu_memory_utilization,
            draft_path=draft_path,
            target_path=target_path,
            temperature=temperature,
            tables=load_tables(measured),
        )
    )
