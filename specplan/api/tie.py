"""What one draft source must reach to equal another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specplan import units
from specplan.api.answer import Answer, model_of, question, told
from specplan.api.sources import Place, cautions_of, load_sources
from specplan.decide import tie as room
from specplan.decide.pricing import price_notes
from specplan.errors import InputError
from specplan.propose.spelling import with_acceptance
from specplan.report import tie_report
from specplan.report.console import Console
from specplan.report.plane_report import print_notes
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tied(Answer, room.Tie):
    """The answer of `tie`: the fields of `specplan.decide.tie.Tie`, and the acceptance needed by coverage."""

    coverage: tuple[float, ...] = ()
    alpha_by_coverage: tuple[float, ...] = ()
    prices: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    where: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The figures as a document."""
        return tie_report.tie_document(self, self.coverage, self.alpha_by_coverage, self.prices)

    def show(self, console: Console) -> None:
        """Print the tables of ``specplan tie``."""
        if self.where:
            console.print(self.where, highlight=False, markup=False, soft_wrap=True)
        tie_report.print_tie(self, self.coverage, self.alpha_by_coverage, console)
        print_notes(self.document(), console)

    def headline(self) -> str:
        """Both sources, and what would make them equal."""
        ways = ", ".join(f"{a.quantity} {a.value:.4g}" for a in self.answers if a.value == a.value)
        return f"{self.challenger.label} equals {self.incumbent.label} ({self.speedup:.4g}x) at {ways or 'no price'}"


@question
def tie(
    a: str | Source,
    b: str | Source,
    target: str | Path | Model | None = None,
    accelerator: str | Path | Accelerator = "h100-sxm",
    *,
    alpha: str | float | None = None,
    kappa: int = 3,
    quantization: str | None = None,
    tp: int = 1,
    batch: int = 1,
    context_len: int | str = "2k",
    engine: str = "vllm",
    layer: str = "modelled",
    measured: Sequence[str] = (),
    kv_cache_dtype: str = "auto",
    ridge: float | None = None,
) -> Tied:
    """What source `b` must reach to equal source `a`: acceptance, coverage, cost or draft length.

    Parameters
    ----------
    a, b : str or Source
        What is to be equalled, and what must equal it; what is solved for is left out of `b`.
    target : str, Path or Model, optional
        Derives costs and verify factors.
    alpha : str or float, optional
        Acceptance of `a`, if it is not written there.
    accelerator, kappa, tp, batch, context_len, engine, layer, measured, kv_cache_dtype, ridge
        As in `plane`.
    quantization : str, optional
        Format of the target's linear weights, in place of its own.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> tie("mine:c=.165,alpha=.7", "ngram").is_reachable
    True
    """
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
    )
    model = None if target is None else model_of(target, quantization)
    if len(found := load_sources([a, b], models=False)) != 2:
        raise InputError(
            f"a tie is between two sources, {told(a)} and {told(b)} are {len(found)}; pick one as FILE.json:NAME"
        )
    first, second = found
    if alpha is not None:
        first = with_acceptance(first, str(alpha), "--alpha")
    incumbent, setting = place.placed(first, model)
    challenger, other = place.placed(second, model)
    if not first.has_acceptance:
        raise InputError(
            f"{told(a)}: what it is worth depends on its acceptance; give --alpha, or {first.name}:alpha=..."
        )
    tied = room.tie(incumbent, challenger)
    coverage = np.array([])
    needed = np.array([])
    if challenger.is_weightless and second.hit is None and not second.hazard:
        coverage = np.linspace(0.1, 1.0, 10)
        needed = room.coverage_curve(incumbent, challenger, coverage)
    assumed, left_out = price_notes(setting)
    cautions = cautions_of([(incumbent, setting), (challenger, other)], model, place.context_len)
    return Tied(
        incumbent=tied.incumbent,
        challenger=tied.challenger,
        speedup=tied.speedup,
        challenger_speedup=tied.challenger_speedup,
        needed_emitted=tied.needed_emitted,
        answers=tied.answers,
        coverage=tuple(coverage.tolist()),
        alpha_by_coverage=tuple(needed.tolist()),
        prices=((*cautions, *assumed), left_out),
        where="" if model is None else place.where,
    )
