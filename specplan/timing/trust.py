"""How far a predicted step or speedup may be off: bands from residuals of published rows that nothing was fitted to.

Each band holds four of five measured figures (measured over predicted). They are taken by engine and by where the
card's times come from; what has too few rows of its own takes the wider band of its neighbours and says so.

They were taken from the rows of `specplan validate rows` marked ``test``, so that how many of these lie inside is no
trial of them. With each speedup left out in turn, the band from the tenth to the ninetieth percentile of its engine's
others holds 11 of 19: so few rows do not bound the tails.
"""

from dataclasses import dataclass
from typing import Final

from specplan.formulas.parameters import is_routed
from specplan.timing.step_time import Machine
from specplan.values.model import LatentAttention, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Factors on a predicted figure between which four of five measurements lie, and what they rest on.

    >>> Band(low=0.9, high=1.05, basis="9 rows").worst
    0.1
    """

    low: float
    high: float
    basis: str

    @property
    def worst(self) -> float:
        """The larger of the two distances from 1."""
        return round(max(1 - self.low, self.high - 1), 10)


SPEEDUPS: Final = {
    "vllm": Band(low=0.86, high=1.05, basis="11 rows, vLLM 0.8 to 0.31, heads"),
    "sglang": Band(low=0.86, high=1.08, basis="7 rows, SGLang 0.5, trees of EAGLE-3"),
}
"""Speedups on cards whose kernels were measured, by engine."""

STEPS: Final = {
    ("vllm", "dense"): Band(low=0.93, high=1.12, basis="5 rows, vLLM, dense"),
    ("vllm", "routed"): Band(low=0.95, high=1.30, basis="6 rows, vLLM, mixtures of experts"),
    ("sglang", "dense"): Band(low=0.92, high=1.10, basis="2 rows, SGLang, dense"),
    ("sglang", "routed"): Band(low=0.88, high=1.11, basis="4 rows, SGLang, latent attention"),
}
"""Plain steps on cards whose kernels were measured, by engine and kind of model."""

BORROWED: Final = 0.08
"""What another card's constants add to either side, of the figure."""

ASSUMED: Final = Band(low=0.75, high=1.25, basis="no rows: constants are mostly assumed")


def band(on: Machine, target: Model | None = None) -> Band:
    """Band of a predicted speedup on a machine, or of a plain step of `target` where one is given.

    A card whose kernels nobody measured, or an engine without rows, never gets the narrow band.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> from specplan.timing.step_time import machine
    >>> [band(machine(load_accelerator(c))).low for c in ("h100-sxm", "h100-pcie", "mi355x")]
    [0.86, 0.78, 0.75]
    >>> band(machine(load_accelerator("h200")), load_model("llama3.1-8b")).basis
    '5 rows, vLLM, dense'
    """
    family = on.engine.kernels or on.engine.family
    if target is None:
        found = SPEEDUPS.get(family)
    else:
        found = STEPS.get((family, "routed" if is_routed(target) or _is_latent(target) else "dense"))
    own = on.accelerator.calibration
    if found is None or (on.laws is None and (own is None or own.bandwidth_fraction is None)):
        return ASSUMED
    if on.laws is not None and on.laws.card == on.accelerator.name:
        return found
    return Band(low=round(found.low - BORROWED, 10), high=found.high + BORROWED, basis=f"{found.basis}; borrowed card")


def _is_latent(model: Model) -> bool:
    return any(isinstance(layer.mixer, LatentAttention) for layer in model.layers)
