"""Step time on a card under an engine, in three layers that a user chooses and always sees named.

- ``roofline``: at the card's peaks; a machine can only be slower. Nothing is measured.
- ``modelled``: the additive law of `specplan.formulas.step` with what was measured on the card (or on a card of its
  family, or assumed; the notes say which) and what the engine adds: launches, host time, its own all-reduce.
- ``measured``: a table of step times that the user or ``specplan calibrate`` brings, smoothed by the same law.

Constants were fitted on some published tables and are tested on others; `specplan.evidence.validate` names both.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.formulas.step import PassLoad, PassRates, PassShape, PassTerms, bound_s, pass_load, pass_terms
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.roofline import arithmetic_flops, roofline_s
from specplan.timing.timed_engine import Engine, engine_named
from specplan.values.hardware import Accelerator, Calibration
from specplan.values.model import Model

FloatArray = npt.NDArray[np.float64]

LAYERS: Final = ("roofline", "modelled", "measured")
"""How passes may be timed; every command takes these words."""

DEFAULT_LAYER: Final = "modelled"
"""What every command takes where none is named."""

ASSUMED: Final = Calibration(
    card="none",
    date="2026-11",
    source="assumed: middle of the calibrated cards",
    bandwidth_fraction=0.80,
    kv_bandwidth_fraction=0.85,
    matmul_fraction=0.60,
    launch_s=30e-6,
    collective_latency_s=10e-6,
    ring_latency_s=25e-6,
    link_fraction=0.30,
    host_s=1.2e-3,
)
"""What stands in where neither the card nor its family was measured."""

WIDTH_FRACTION: Final = ((5.0, 0.74), (8.0, 0.87))
"""Share of the 16-bit bandwidth that weight-only kernels reach, by payload bits: unpacking costs time.

Fitted on gpt-fast, Llama-2-7B int8 and int4 on an A100. Formats that the card multiplies natively are exempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A card under an engine with some ranks: everything that passes of any model have in common.

    Attributes
    ----------
    accelerator, engine, tp
        What runs.
    layer : str
        One of `LAYERS`; ``upper`` is the other end of the roofline (`other_bound`).
    calibration : Calibration
        The card's, with what it lacks filled from `ASSUMED`.
    notes : tuple of str
        What was borrowed or assumed.
    """

    accelerator: Accelerator
    engine: Engine
    tp: int
    layer: str
    calibration: Calibration
    notes: tuple[str, ...]

    @property
    def host_s(self) -> float:
        """Time per step outside all passes; 0 at the roofline."""
        if self.layer != "modelled":
            return 0.0
        engine = self.engine.host_s
        return engine if engine is not None else (self.calibration.host_s or 0.0)


def machine(accelerator: Accelerator, engine: str = "vllm", tp: int = 1, layer: str = "modelled") -> Machine:
    """Resolve what is measured, borrowed and assumed for `accelerator`.

    Parameters
    ----------
    accelerator : Accelerator
    engine : str
        A name in `ENGINES`.
    tp : int
        Tensor-parallel ranks, at least 1.
    layer : str
        One of `LAYERS`.

    Examples
    --------
    >>> from specplan.specs.hardware import load_accelerator
    >>> on = machine(load_accelerator("h200"))
    >>> on.calibration.bandwidth_fraction, on.notes
    (0.88, ('calibration of h200 is borrowed from h100-sxm (family hopper)',))
    """
    if tp < 1:
        raise InputError(f"--tensor-parallel-size {tp}: must be at least 1")
    if layer not in LAYERS:
        raise InputError(f"unknown layer {layer!r}; one of {', '.join(LAYERS)}")
    found = accelerator.calibration
    notes: list[str] = []
    if found is None:
        notes.append(f"{accelerator.name} and its family ({accelerator.family}) have no calibration: {ASSUMED.source}")
        found = ASSUMED
    elif found.card != accelerator.name:
        notes.append(f"calibration of {accelerator.name} is borrowed from {found.card} (family {accelerator.family})")
    missing = [name for name in _CALIBRATED if getattr(found, name) is None]
    needed = [
        name for name in missing if tp > 1 or name not in ("collective_latency_s", "ring_latency_s", "link_fraction")
    ]
    if needed:
        notes.append(f"not measured on {found.card}, assumed: {', '.join(needed)}")
    filled = replace(found, **{name: getattr(ASSUMED, name) for name in missing})
    if tp > 1 and accelerator.link_bandwidth is None:
        notes.append(f"{accelerator.name} has no direct links: ranks exchange over PCIe")
    return Machine(
        accelerator=accelerator,
        engine=engine_named(engine),
        tp=tp,
        layer=layer,
        calibration=filled,
        notes=tuple(notes) if layer == "modelled" else (),
    )


def other_bound(on: Machine) -> Machine:
    """The machine whose passes take the sum of the times at its peaks instead of the longest: nothing overlaps."""
    return replace(on, layer="upper")


_CALIBRATED: Final = (
    "bandwidth_fraction",
    "kv_bandwidth_fraction",
    "matmul_fraction",
    "launch_s",
    "collective_latency_s",
    "ring_latency_s",
    "link_fraction",
    "host_s",
)


def link_bandwidth(accelerator: Accelerator) -> float | None:
    """Bytes/s between ranks in one direction: direct links, else PCIe, else unknown."""
    return accelerator.link_bandwidth or accelerator.pcie_bandwidth


def pass_rates(on: Machine, model: Model, *, draft: bool = False) -> PassRates:
    """Rates of the additive law for passes of `model` on a machine.

    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> rates = pass_rates(machine(load_accelerator("h100-sxm")), load_model("llama3.1-8b"), draft=True)
    >>> round(rates.layer_s * 1e6, 1)
    67.2
    """
    c, card = on.calibration, on.accelerator
    flops, arithmetic = arithmetic_flops(model, card, on.engine.native)
    launch = c.launch_s or 0.0
    own_kernel = not on.engine.ring and card.link_bandwidth is not None
    # The vendor's library passes a message around; its latency grows with the steps of a tree over the ranks.
    ring = (c.ring_latency_s or 0.0) * np.log2(max(on.tp, 2)) / 3
    return PassRates(
        bandwidth=card.bandwidth,
        flops=flops,
        link_bandwidth=link_bandwidth(card),
        weight_fraction=c.bandwidth_fraction or 1.0,
        kv_fraction=c.kv_bandwidth_fraction or 1.0,
        matmul_fraction=c.matmul_fraction or 1.0,
        link_fraction=c.link_fraction or 1.0,
        # Numbers of 4 bits are unpacked and scaled even where the card multiplies them.
        width_fraction=WIDTH_FRACTION[:1] if arithmetic in ("fp8", "int8") else WIDTH_FRACTION,
        layer_s=launch * (on.engine.draft_launch_factor if draft else on.engine.launch_factor),
        layer_request_s=launch * on.engine.layer_request_factor * model.hidden_size / 4096,
        overlap=card.family != "cpu",
        reduce_latency_s=(c.collective_latency_s or 0.0) if own_kernel else float(ring),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Time of passes in the chosen layer, with the roofline bounds beside it; arrays over the passes, seconds."""

    layer: str
    total_s: FloatArray
    lower_s: FloatArray
    upper_s: FloatArray
    terms: PassTerms


def pass_time(
    on: Machine,
    shape: PassShape,
    batch: npt.ArrayLike,
    width: npt.ArrayLike = 1,
    context_len: npt.ArrayLike = 0,
    *,
    scored: npt.ArrayLike | None = None,
    draft: bool = False,
    table: MeasuredTable | None = None,
) -> PassTime:
    """Time of a forward pass of `width` positions for each of `batch` requests, host time between passes aside.

    Parameters
    ----------
    on : Machine
    shape : PassShape
        Of the model, for the machine's ranks.
    batch, width, context_len, scored : array_like
        As in `specplan.formulas.step.pass_load`.
    draft : bool
        Whether the engine runs it as a draft pass.
    table : MeasuredTable, optional
        Needed in the ``measured`` layer.

    Raises
    ------
    InputError
        For a shape counted for other ranks, or ``measured`` without a table.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> from specplan.formulas.step import pass_shape
    >>> on, shape = machine(load_accelerator("h100-sxm")), pass_shape(load_model("llama3.1-8b"))
    >>> [round(float(t) * 1e3, 2) for t in pass_time(on, shape, batch=[1, 64], context_len=1000).total_s]
    [6.03, 8.99]
    """
    if shape.tp != on.tp:
        raise InputError(f"the model was counted for {shape.tp} ranks, the machine has {on.tp}")
    load: PassLoad = pass_load(shape, batch, width, context_len, scored)
    rates = pass_rates(on, shape.model, draft=draft)
    lower = roofline_s(shape, on.accelerator, batch, width, context_len, on.engine.native)
    _, upper = bound_s(load, rates.bandwidth, rates.flops, rates.link_bandwidth)
    terms = pass_terms(load, rates)
    match on.layer:
        case "roofline":
            total = lower
        case "upper":
            total = upper
        case "modelled":
            eager = on.engine.draft_eager_layer_s if draft else on.engine.eager_layer_s
            total = np.maximum(terms.total_s, shape.layers * eager)
        case _:
            if table is None:
                raise InputError(f"the measured layer needs a table of step times of {shape.model.name}")
            total = np.broadcast_to(table.time_s(batch, width, context_len), lower.shape)
    return PassTime(layer=on.layer, total_s=np.asarray(total), lower_s=lower, upper_s=upper, terms=terms)


def host_time(on: Machine, batch: npt.ArrayLike, *, drafted: bool = False) -> FloatArray:
    """Time per step outside all passes, seconds; 0 outside the modelled layer (a measured table contains it).

    >>> from specplan.specs.hardware import load_accelerator
    >>> round(float(host_time(machine(load_accelerator("h100-sxm")), 64)) * 1e3, 3)
    2.66
    """
    b = np.asarray(batch, np.float64)
    if on.layer != "modelled":
        return np.zeros_like(b)
    return on.host_s + on.engine.host_request_s * b + (on.engine.speculation_s if drafted else 0.0)
