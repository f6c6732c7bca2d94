"""Best draft length, and what a wrong one loses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specplan import units
from specplan.api.answer import Answer, model_of, question, several, told
from specplan.api.sources import Place, load_sources, scenes
from specplan.decide import tune as room
from specplan.decide.plane import Scene
from specplan.decide.source import Placed
from specplan.decide.step_setting import MAX_KAPPA
from specplan.errors import InputError
from specplan.report import tune_report
from specplan.report.console import Console
from specplan.report.plane_report import print_notes
from specplan.units import read_numbers
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Range, Source

ALPHAS = (".5,.6,.7,.8,.9",)
COSTS = (".01,.02,.05,.1,.165",)


_NOWHERE = Scene(title="", verify=1.0, ridge=None, placed=())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tuning(Answer):
    """The answer of `tune`: a table over alpha and c, or the curves of named sources.

    `free` are sources without an acceptance, each tuned at every one of `alphas`.
    """

    table: room.TuneTable | None = None
    curves: tuple[room.TuneCurve, ...] = ()
    free: tuple[Placed, ...] = ()
    alphas: tuple[float, ...] = ()
    free_curves: tuple[tuple[room.TuneCurve, ...], ...] = ()
    scene: Scene = _NOWHERE
    compared: tuple[int, ...] = ()
    where: str = ""
    load: Mapping[str, int] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pays(self) -> bool:
        """Whether some source pays at some draft length, or may."""
        return not self.curves or bool(self.free) or any(curve.best for curve in self.curves)

    def document(self) -> dict[str, Any]:
        """The figures as a document."""
        if self.table is not None:
            return tune_report.table_document(self.table)
        document = tune_report.curves_document(self.curves, self.scene, **self.load)
        if self.free:
            tune_report.add_free(document, self.free, list(self.alphas), [list(curves) for curves in self.free_curves])
        return document

    def show(self, console: Console) -> None:
        """Print the tables of ``specplan tune``."""
        if self.where:
            console.print(self.where, highlight=False, markup=False, soft_wrap=True)
        if self.table is not None:
            tune_report.print_table(self.table, console)
        for curve in self.curves:
            tune_report.print_curve(curve, console, compared=self.compared)
        if self.free:
            tables = [list(curves) for curves in self.free_curves]
            longest = self.load["kappa_max"]
            tune_report.print_free(self.free, list(self.alphas), tables, console, kappa_max=longest)
        print_notes(self.document(), console)

    def headline(self) -> str:
        """The best length of each source, or the size of the table."""
        if self.table is not None:
            return f"best kappa over {len(self.table.alpha)} alphas and {len(self.table.c)} costs"
        best = [f"{c.source.label} kappa {c.best}, {float(c.speedup[c.best]):.2f}x" for c in self.curves]
        return "; ".join([*best, *(f"{s.label} by alpha" for s in self.free)])


@question
def tune(
    target: str | Path | Model | None = None,
    accelerator: str | Path | Accelerator = "h100-sxm",
    *,
    sources: str | Source | Sequence[str | Source] = (),
    draft: str | Sequence[str] = (),
    alpha: str | float | Sequence[str] = (),
    c: str | float | Sequence[str] = (),
    quantization: str | None = None,
    tp: int = 1,
    batch: int = 1,
    context_len: int | str = "2k",
    max_kappa: int | None = None,
    compared: Sequence[int] = (1, 3, 5, 7),
    engine: str = "vllm",
    layer: str = "modelled",
    measured: Sequence[str] = (),
    kv_cache_dtype: str = "auto",
    ridge: float | None = None,
) -> Tuning:
    """Best kappa, and what a wrong one loses: over a table of `alpha` and `c`, or for named sources.

    Parameters
    ----------
    target, accelerator, sources, draft, alpha, tp, batch, context_len
        As in `plane`; several alphas tune each source without an acceptance at each of them.
    c : str or float, or several
        Draft costs of the table.
    max_kappa : int, optional
        Longest draft that is tried: of sources that of `compare` and `schedule` by default, in a table 64.
    compared : sequence of int
        Fixed lengths to compare with the best.
    engine, layer, measured, kv_cache_dtype, ridge
        As the options of ``specplan tune``.
    quantization : str, optional
        Format of the target's linear weights, in place of its own.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> int(tune(alpha=0.7, c=0.165).table.best[0, 0])
    3
    """
    named, drafts = several(sources), several(draft)
    alphas, costs = [str(a) for a in several(alpha)], [str(x) for x in several(c)]
    if not named and not drafts:
        if target is not None:
            raise InputError(f"{told(target)}: name a --draft or a --source to tune; a table needs no target")
        table = room.tune_table(
            read_numbers(alphas or ALPHAS, "--alpha", 0.0, 1.0),
            read_numbers(costs or COSTS, "--c", 0.0),
            kappa_max=room.KAPPA_MAX if max_kappa is None else max_kappa,
            compared=[k for k in compared if max_kappa is None or k <= max_kappa],
        )
        return Tuning(table=table)
    if costs:
        raise InputError("--c belongs to the table; write the cost of a source as --source NAME:c=...")
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
        kappa=1,
    )
    many = sum(text.count(",") + 1 for text in alphas) > 1 and not any("=" in text for text in alphas)
    written = load_sources(named, models=False)
    targets = [] if target is None else [model_of(target, quantization)]
    (scene,) = scenes(place, targets, drafts=drafts, sources=written, alphas=[] if many else alphas)
    load = {
        "kappa_max": MAX_KAPPA if max_kappa is None else max_kappa,
        "batch": batch,
        "context_len": place.context_len,
    }
    free = [entry for entry in scene.placed if not entry[0].source.has_acceptance]
    known = [entry for entry in scene.placed if entry[0].source.has_acceptance]
    tried = read_numbers(alphas if many else ALPHAS, "--alpha", 0.0, 1.0)
    return Tuning(
        curves=tuple(room.tune_source(s, setting, **load) for s, setting in known),
        free=tuple(s for s, _ in free),
        alphas=tuple(tried),
        free_curves=tuple(
            tuple(
                room.tune_source(replace(s, source=replace(s.source, alpha=Range.at(a))), setting, **load)
                for a in tried
            )
            for s, setting in free
        ),
        scene=scene,
        compared=tuple(compared),
        where="" if target is None else place.where,
        load=load,
    )
