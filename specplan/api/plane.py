"""The (alpha, c) plane, and speedup over one quantity."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specplan import units
from specplan.api.answer import Answer, model_of, question, several
from specplan.api.sources import Place, load_sources, scenes
from specplan.decide.documents import shortest_measured
from specplan.decide.plane import Plane, Scene, planes_of
from specplan.decide.pricing import Setting
from specplan.decide.source import Placed
from specplan.decide.sweep import CONTEXT_END, Sweep, axis_named, default_axis
from specplan.decide.sweep import sweep as swept
from specplan.report import plane_report
from specplan.report.console import Console
from specplan.report.output_file import check_drawing
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Picture(Answer):
    """The answer of `plane`: planes, or one sweep over an axis, and the scenes that they show."""

    planes: tuple[Plane, ...]
    sweep: Sweep | None
    scenes: tuple[Scene, ...]
    where: str
    asked: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The figures as a document; grids only in `arrays`."""
        return self._document(with_grid=False)

    def _document(self, *, with_grid: bool) -> dict[str, Any]:
        if self.sweep is not None:
            return plane_report.sweep_document(self.sweep, self.scenes)
        return plane_report.plane_document(self.planes, with_grid=with_grid)

    def show(self, console: Console) -> None:
        """Print the tables of ``specplan plane``."""
        if self.where:
            console.print(self.where, highlight=False, markup=False, soft_wrap=True)
        if self.sweep is None:
            plane_report.print_planes(self.planes, console)
        else:
            plane_report.print_sweep(self.sweep, console)
            plane_report.print_notes(self.document(), console)

    def headline(self) -> str:
        """What is drawn, and what each source is worth there."""
        if self.sweep is not None:
            best = ", ".join(f"{c.source.label} {c.best_speedup:.2f}x" for c in self.sweep.curves)
            return f"speedup over {self.sweep.kind}: {best}"
        points = ", ".join(f"{p.source.label} {p.speedup:.2f}x" for plane in self.planes for p in plane.points)
        return f"(alpha, c) plane at kappa {self.planes[0].kappa}: {points or 'no point'}"

    def plot(self, **look: Any) -> Any:
        """The picture as a matplotlib figure; `look` as `specplan.report.drawing.Drawing`: width, title, legend, ..."""
        check_drawing()
        if self.sweep is not None:
            from specplan.report.sweep_plot import draw_sweep

            return draw_sweep(self.sweep, **look)
        from specplan.report.plane_plot import draw_planes

        return draw_planes(self.planes, **look)

    def write_arrays(self, path: str | Path) -> None:
        """Write the arrays behind the picture as .csv or .json."""
        rows = plane_report.plane_rows(self.planes) if self.sweep is None else plane_report.sweep_rows(self.sweep)
        plane_report.write_data(Path(path), self._document(with_grid=True), rows)


@question
def plane(
    target: str | Path | Model | Sequence[str | Path | Model] = (),
    accelerator: str | Path | Accelerator = "h100-sxm",
    *,
    sources: str | Source | Sequence[str | Source] = (),
    draft: str | Sequence[str] = (),
    alpha: str | float | Sequence[str] = (),
    c: Sequence[str] = (),
    kappa: int | None = None,
    quantization: str | None = None,
    tp: int = 1,
    batch: int = 1,
    context_len: int | str = "2k",
    kind: str = "plane",
    x_max: int | str | None = None,
    c_max: float | None = None,
    log_c: bool = False,
    levels: Sequence[float] = (),
    cells: int = 101,
    engine: str = "vllm",
    layer: str = "modelled",
    measured: Sequence[str] = (),
    kv_cache_dtype: str = "auto",
    ridge: float | None = None,
) -> Picture:
    """The (alpha, c) plane with contours, ties and sources, or (`kind`) speedup over kappa, batch, coverage or context.

    Parameters
    ----------
    target : str, Path, Model, or several; optional
        What the sources draft for; without one each source states its c.
    accelerator, tp, batch, context_len
        As in `cost`.
    sources : str, Source, or several
        As in `compare`.
    draft, alpha, c
        Draft models, their acceptance and costs by name, as ``--draft``, ``--alpha`` and ``--cost``.
    kappa : int, optional
        The least measured draft length, else 3, by default.
    kind, x_max, c_max, log_c, levels, cells, engine, layer, measured, kv_cache_dtype, ridge
        As the options of ``specplan plane``.
    quantization : str, optional
        Format of the target's linear weights, in place of its own.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> plane("llama3-70b", tp=4, sources=["llama3.2-1b:alpha=.7"], layer="roofline")
    <Picture: (alpha, c) plane at kappa 3: llama3.2-1b → llama3-70b 2.40x>
    """
    axis = None if kind == "plane" else axis_named(kind)
    given = load_sources(several(sources), models=False)
    drafts = several(draft)
    if kappa is None:
        kappa = 3 if drafts else shortest_measured(given) or 3
    place = Place(
        gpu=accelerator,
        tp=tp,
        kv_cache_dtype=kv_cache_dtype,
        layer=layer,
        measured=measured,
        engine=engine,
        batch=batch,
        context_len=units.parse_count(context_len),
        ridge=ridge,
        kappa=kappa,
        stepwise=axis is not None,
    )
    targets = [model_of(t, quantization) for t in several(target)]
    found = scenes(place, targets, drafts=drafts, sources=given, alphas=[str(a) for a in several(alpha)], costs=c)
    planes: tuple[Plane, ...] = ()
    over = None
    if axis is None:
        planes = planes_of(
            found,
            kappa=kappa,
            batch=batch,
            context_len=place.context_len,
            levels=list(levels) or None,
            c_max=c_max,
            scale="log" if log_c else "linear",
            cells=cells,
        )
    else:
        entries = _told_apart([entry for scene in found for entry in scene.placed])
        top = None if x_max is None else units.parse_count(x_max)
        if top is None and axis == "context" and targets:
            top = min(CONTEXT_END, max(t.max_position or CONTEXT_END for t in targets))
        xs = default_axis(axis, top)
        over = swept(axis, entries, xs=xs, batch=batch, context_len=place.context_len)
    return Picture(planes=planes, sweep=over, scenes=tuple(found), where=place.where if targets else "")


def _told_apart(entries: Sequence[tuple[Placed, Setting]]) -> list[tuple[Placed, Setting]]:
    """The entries, those of one name with their draft length, and with the rule that verifies a part of it."""
    names = Counter(p.label for p, _ in entries)
    out = []
    for p, setting in entries:
        length = [f"k={p.kappa}"] if names[p.label] > 1 else []
        words = [p.name, *length, *(["adaptive"] if p.source.adaptive is not None else [])]
        out.append((replace(p, source=replace(p.source, label=" ".join(words))) if len(words) > 1 else p, setting))
    return out
