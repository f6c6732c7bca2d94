"""Which input moves a speedup most: acceptance over its range, machine figures over what they may be off."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from specplan.decide.step_setting import Setting, times
from specplan.decide.step_source import Loads
from specplan.timing.step_time import Machine
from specplan.values.source import NO_SOURCE, Range, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """How far one input moves the speedup of one cell."""

    name: str
    low: float
    best: float
    high: float
    speedup_low: float
    speedup_high: float

    @property
    def width(self) -> float:
        """Distance between the two speedups."""
        return abs(self.speedup_high - self.speedup_low)


Gain = Callable[[Machine, Source, float], float]
"""Speedup on a machine, of a source, at a context."""


def sensitivity(
    setting: Setting, source: Source, of: Loads, batch: int, context_len: int, kappa: int
) -> tuple[Swing, ...]:
    """Inputs by how far they move the speedup of `source` at one batch, context and draft length; the widest first."""

    def gain(on: Machine, chosen: Source, context: float) -> float:
        at = replace(setting, on=on)
        plain = times(at, NO_SOURCE, of, batch, context, 0).step_s
        return float(plain / times(at, chosen, of, batch, context, kappa).per_token_s)

    on = setting.on
    low, high = (gain(on, source, context_len * x) for x in (0.5, 2.0))
    context = Swing(
        name="context",
        low=context_len / 2,
        best=context_len,
        high=context_len * 2,
        speedup_low=low,
        speedup_high=high,
    )
    swings = [*_acceptance_swings(on, source, context_len, gain), *_machine_swings(on, source, context_len, gain)]
    return tuple(sorted([*swings, context], key=lambda s: -s.width))


def _acceptance_swings(on: Machine, source: Source, context_len: int, gain: Gain) -> list[Swing]:
    """Acceptance and coverage over their given ranges, or 0.05 to either side where they are single numbers."""
    found = []
    given: dict[str, tuple[Range | None, Callable[[Range], Source]]] = {
        "alpha": (source.alpha, lambda r: replace(source, alpha=r)),
        "coverage": (source.coverage, lambda r: replace(source, coverage=r)),
        "emitted": (source.emitted, lambda r: replace(source, emitted=r)),
    }
    for name, (r, changed) in given.items():
        if r is None or (name == "coverage" and r.best == 1 and not r.is_range):
            continue
        if not r.is_range:
            most = math.inf if name == "emitted" else 1.0
            r = Range(low=max(r.best - 0.05, 0.0), best=r.best, high=min(r.best + 0.05, most))
        low, high = (gain(on, changed(Range.at(x)), context_len) for x in (r.low, r.high))
        found.append(Swing(name=name, low=r.low, best=r.best, high=r.high, speedup_low=low, speedup_high=high))
    return found


_DOUBTS: Final[Mapping[str, tuple[float, float]]] = {
    "bandwidth_fraction": (0.9, 1.1),
    "kv_bandwidth_fraction": (0.9, 1.1),
    "matmul_fraction": (0.75, 1.25),
    "launch_s": (0.67, 1.5),
    "collective_latency_s": (0.5, 2.0),
    "host_s": (0.5, 2.0),
}
"""How far a calibrated figure may be off on another server, as factors; fractions stay at most 1."""


def _machine_swings(on: Machine, source: Source, context_len: int, gain: Gain) -> list[Swing]:
    found = []
    if on.laws is not None:
        at_low, at_high = (gain(replace(on, kernel_factor=x), source, context_len) for x in (0.9, 1.1))
        found.append(Swing(name="kernel times", low=0.9, best=1.0, high=1.1, speedup_low=at_low, speedup_high=at_high))
    for name, (less, more) in _DOUBTS.items():
        if on.laws is not None and name != "host_s":
            continue  # its passes are sums of kernels
        if (name == "collective_latency_s" and on.tp == 1) or (name == "host_s" and on.engine.host_s is not None):
            continue
        best: float = getattr(on.calibration, name)
        low, high = best * less, best * more
        if name.endswith("fraction"):
            high = min(high, 1.0)
        at_low, at_high = (gain(_changed(on, name, x), source, context_len) for x in (low, high))
        found.append(Swing(name=name, low=low, best=best, high=high, speedup_low=at_low, speedup_high=at_high))
    return found


def _changed(on: Machine, name: str, value: float) -> Machine:
    """The machine with one calibrated figure replaced."""
    changes: dict[str, Any] = {name: value}
    return replace(on, calibration=replace(on.calibration, **changes))
