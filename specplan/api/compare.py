"""Draft sources beside each other, over batch and context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specplan import units
from specplan.api.answer import Answer, accelerator_of, model_of, question, several
from specplan.api.sources import load_sources, load_tables
from specplan.decide import compare as room
from specplan.decide.pass_detail import KernelRow, pass_detail
from specplan.errors import InputError
from specplan.report import compare_table, kernels_table
from specplan.report.console import Console
from specplan.report.output_file import check_drawing
from specplan.values import formats
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Answer, room.CompareReport):
    """The answer of `compare`: the fields of `specplan.decide.compare.CompareReport`."""

    kernels: tuple[KernelRow, ...] | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The figures as a document."""
        document = compare_table.compare_document(self)
        if self.kernels is not None:
            document["kernels"] = kernels_table.kernels_document(self.kernels)
        return document

    def show(self, console: Console, *, verdict: bool = False) -> None:
        """Print the tables of ``specplan compare``."""
        compare_table.print_compare(self, console, verdict=verdict)
        if self.kernels is not None:
            first, cached = (units.parse_count(several(self.asked[name])[0]) for name in ("batch", "context_len"))
            kernels_table.print_kernels(self.kernels, f"a plain pass, batch {first}, context {cached:,}", console)

    def plot(self, **look: Any) -> Any:
        """Throughput against speed per user, as a matplotlib figure; `look` as `specplan.report.drawing.Drawing`."""
        check_drawing()
        from specplan.report.compare_plot import draw_throughput

        return draw_throughput(self, **look)

    def headline(self) -> str:
        """The target, the card, and each source's first speedup."""
        first = {cell.source: cell.speedup for cell in reversed(self.cells) if cell.verdict}
        speedups = ", ".join(f"{name} {speedup:.2f}x" for name, speedup in reversed(first.items()))
        return f"{self.target.name} on {self.tensor_parallel_size} x {self.accelerator.name}: {speedups}"


@question
def compare(
    target: str | Path | Model,
    accelerator: str | Path | Accelerator = "h100-sxm",
    *,
    sources: str | Source | Sequence[str | Source],
    quantization: str | None = None,
    tp: int = 1,
    batch: int | Sequence[int] = 1,
    context_len: int | str | Sequence[int | str] = "2k",
    kappa: int | None = None,
    max_kappa: int = 8,
    engine: str = "vllm",
    engine_version: str | None = None,
    layer: str = "modelled",
    measured: Sequence[str] = (),
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float | None = None,
    workspace: float | str | None = None,
    price: float | None = None,
    detail: bool = False,
) -> Comparison:
    """Step time, throughput and verdict of each draft source over batch and context, against no speculation.

    Parameters
    ----------
    target : str, Path or Model
    accelerator : str, Path or Accelerator
    sources : str, Source, or several
        What drafts, spelled as ``--source``: ``"ngram:coverage=.4,alpha=.8"``, ``"llama3.2-1b:alpha=.7"``, a document.
    tp : int
        Tensor-parallel ranks.
    batch, context_len : int, or several
        Requests that are offered at a time; cached tokens per request (``"32k"`` works).
    kappa, max_kappa : int
        Draft length of sources that fix none, the best up to `max_kappa` by default.
    engine, engine_version, layer, measured, kv_cache_dtype, gpu_memory_utilization, workspace, price, detail
        As the options of ``specplan compare``.
    quantization : str, optional
        Format of the target's linear weights, in place of its own.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> found = compare("llama3-70b", sources="ngram:coverage=.4,alpha=.8", tp=4, batch=[1, 64])
    >>> [cell.verdict for cell in found.cells if cell.source != "none" and cell.batch == 1]
    ['pays']
    """
    if not (named := several(sources)):
        raise InputError("name what drafts: --source ngram:alpha=.6, --source llama3.2-1b, ... (repeat for more)")
    found = Comparison.of(
        room.compare(
            model_of(target, quantization),
            accelerator_of(accelerator),
            load_sources(named, kappa),
            engine=engine,
            tp=tp,
            batches=[units.parse_count(b) for b in several(batch)],
            contexts=[units.parse_count(c) for c in several(context_len)],
            layer=layer,
            kv_format=None if kv_cache_dtype == "auto" else formats.lookup(kv_cache_dtype),
            max_kappa=max_kappa,
            engine_version=engine_version,
            gpu_memory_utilization=gpu_memory_utilization,
            workspace_bytes=units.parse(workspace, "memory") if isinstance(workspace, str) else workspace,
            price_per_hour=price,
            tables=load_tables(measured),
        )
    )
    if not detail:
        return found
    first, cached = (units.parse_count(several(given)[0]) for given in (batch, context_len))
    kernels = pass_detail(found.target, found.accelerator, engine=engine, tp=tp, batch=first, context_len=cached)
    return replace(found, kernels=kernels)
