"""Step time on a card under an engine, in three layers that a user chooses and always sees named.

- ``roofline``: at the card's peaks; a machine can only be slower. Nothing is measured.
- ``modelled``: the sum of a pass's kernels (`specplan.formulas.pass_kernels`) by laws fitted to their measured times on
  the card or on one of its family; where nobody measured them, the additive law of `specplan.formulas.step` with the
  card's calibration. The notes say which. The engine adds host time and what a drafted step takes beside its passes.
- ``measured``: a table of step times that the user or ``specplan calibrate`` brings, smoothed by the same law.

Constants were fitted on some published tables and are tested on others; `specplan.evidence.validate` names both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.formulas.pass_kernels import (
    WIDTH_FRACTION,
    KernelTime,
    Peaks,
    glue_times,
    kernel_times,
    pass_point,
    reduction_times,
)
from specplan.formulas.step import PassLoad, PassRates, PassShape, PassTerms, bound_s, pass_load, pass_terms
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.roofline import arithmetic_flops, roofline_s
from specplan.timing.timed_engine import Engine, engine_named
from specplan.values.hardware import Accelerator, Calibration
from specplan.values.kernels import KernelLaws
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
    laws : KernelLaws or None
        Of the kernels that the engine runs on the card; None where nobody measured them or the engine has its own.
    notes : tuple of str
        What was borrowed or assumed.
    kernel_factor : float
        Multiplies the times of measured kernels: what another server may be off.
    """

    accelerator: Accelerator
    engine: Engine
    tp: int
    layer: str
    calibration: Calibration
    notes: tuple[str, ...]
    laws: KernelLaws | None = None
    kernel_factor: float = 1.0

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
    (0.88, ())
    """
    if tp < 1:
        raise InputError(f"--tensor-parallel-size {tp}: must be at least 1")
    if layer not in LAYERS:
        raise InputError(f"unknown layer {layer!r}; one of {', '.join(LAYERS)}")
    runs = engine_named(engine)
    laws = _laws(accelerator, runs)
    found = accelerator.calibration or ASSUMED
    return Machine(
        accelerator=accelerator,
        engine=runs,
        tp=tp,
        layer=layer,
        calibration=replace(found, **{n: getattr(ASSUMED, n) for n in _CALIBRATED if getattr(found, n) is None}),
        notes=tuple(_notes(accelerator, runs, tp, laws)) if layer == "modelled" else (),
        laws=laws,
    )


def _laws(accelerator: Accelerator, engine: Engine) -> KernelLaws | None:
    """Laws of the kernels that an engine runs; another engine's of the same card where its own were not measured."""
    if not engine.kernels:
        return None
    return accelerator.kernels.get(engine.kernels) or next(iter(accelerator.kernels.values()), None)


def _notes(accelerator: Accelerator, engine: Engine, tp: int, laws: KernelLaws | None) -> Iterator[str]:
    found = accelerator.calibration
    lacking = [name for name in _CALIBRATED if found is None or getattr(found, name) is None]
    if laws is not None:
        if laws.card != accelerator.name:
            yield f"kernel times of {accelerator.name} are borrowed from {laws.card} (family {accelerator.family})"
        if laws.engine != engine.kernels:
            yield f"kernel times under {engine.name} were not measured: those under {laws.engine} stand in"
        needed = {"host_s"} if engine.host_s is None else set()
    else:
        if found is None:
            yield f"{accelerator.name} and its family ({accelerator.family}) have no calibration: {ASSUMED.source}"
        elif found.card != accelerator.name:
            yield f"calibration of {accelerator.name} is borrowed from {found.card} (family {accelerator.family})"
        needed = (
            set(_CALIBRATED) - (_LINKED if tp == 1 else set()) - ({"host_s"} if engine.host_s is not None else set())
        )
    assumed = [name for name in lacking if name in needed]
    if assumed and (found is not None or laws is not None):
        yield f"not measured on {accelerator.name if found is None else found.card}, assumed: {', '.join(assumed)}"
    if tp > 1 and accelerator.link_bandwidth is None:
        yield f"{accelerator.name} has no direct links: ranks exchange over PCIe"


def times_from(on: Machine) -> str:
    """What the modelled times of a machine rest on, in words.

    >>> from specplan.specs.hardware import load_accelerator
    >>> times_from(machine(load_accelerator("h100-sxm")))[:78]
    'times are sums of kernels by laws fitted to what was measured on h100-sxm unde'
    """
    if on.laws is None:
        return f"times by the additive law, calibrated ({on.calibration.card}: {on.calibration.source})"
    measured = f"{on.laws.card} under {on.laws.engine} ({on.laws.source})"
    return f"times are sums of kernels by laws fitted to what was measured on {measured}"


def other_bound(on: Machine) -> Machine:
    """The machine whose passes take the sum of the times at its peaks instead of the longest: nothing overlaps."""
    return replace(on, layer="upper")


_LINKED: Final = {"collective_latency_s", "ring_latency_s", "link_fraction"}

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
    """Time of passes in the chosen layer, with the roofline bounds beside it; arrays over the passes, seconds.

    ``kernels`` add up to the modelled time where the card's kernels were measured; else they are empty and ``terms``
    (the additive law) do.
    """

    layer: str
    total_s: FloatArray
    lower_s: FloatArray
    upper_s: FloatArray
    terms: PassTerms
    kernels: tuple[KernelTime, ...] = ()


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
    [6.18, 9.54]
    """
    if shape.tp != on.tp:
        raise InputError(f"the model was counted for {shape.tp} ranks, the machine has {on.tp}")
    load: PassLoad = pass_load(shape, batch, width, context_len, scored)
    rates = pass_rates(on, shape.model, draft=draft)
    lower = roofline_s(shape, on.accelerator, batch, width, context_len, on.engine.native)
    _, upper = bound_s(load, rates.bandwidth, rates.flops, rates.link_bandwidth)
    kernels: tuple[KernelTime, ...] = ()
    if on.laws is not None and on.layer == "modelled":
        kernels = _kernels(on, shape, on.laws, batch, width, context_len, scored)
        terms = _terms(kernels)
    else:
        terms = pass_terms(load, rates)
    whole = np.broadcast_shapes(*(np.shape(x) for x in (batch, width, context_len)))
    match on.layer:
        case "roofline":
            total = lower
        case "upper":
            total = upper
        case "modelled":
            eager = on.engine.draft_eager_layer_s if draft else on.engine.eager_layer_s
            beside = shape.layers * on.engine.draft_layer_s if draft and kernels else 0.0
            # Tables of kernels may hold what a cache kept between runs; a pass finds none of it.
            total = np.maximum(np.maximum(terms.total_s * on.kernel_factor + beside, shape.layers * eager), lower)
        case _:
            if table is None:
                raise InputError(f"the measured layer needs a table of step times of {shape.model.name}")
            total = table.time_s(batch, width, context_len)
    total, lower, upper = (np.broadcast_to(x, whole) for x in (total, lower, upper))
    return PassTime(layer=on.layer, total_s=total, lower_s=lower, upper_s=upper, terms=terms, kernels=kernels)


def _kernels(
    on: Machine,
    shape: PassShape,
    laws: KernelLaws,
    batch: npt.ArrayLike,
    width: npt.ArrayLike,
    context_len: npt.ArrayLike,
    scored: npt.ArrayLike | None,
) -> tuple[KernelTime, ...]:
    card = on.accelerator
    plain, _ = arithmetic_flops(replace(shape.model, quantization=None), card)

    def peak(key: str) -> float:
        # A format that the card multiplies at the rate of another (blocks of FP8, MXFP4 in NVFP4's units).
        return next((card.flops[f] for f in (key, *SAME_RATE.get(key, ())) if f in card.flops), plain)

    peaks = Peaks(bandwidth=card.bandwidth, flops=peak, link_bandwidth=link_bandwidth(card))
    at = pass_point(batch, width, context_len, scored, on.engine.padded)
    hidden, logits = shape.model.hidden_size, shape.logits / shape.tp
    reduced = reduction_times(laws, peaks, at, hidden=hidden, ranks=shape.tp, count=shape.all_reduces, logits=logits)
    return (
        *kernel_times(shape.kernels, laws, peaks, at, hidden),
        *glue_times(laws, peaks, at, layers=shape.layers, activation_bytes=shape.activation_bytes, logits=logits),
        *(() if reduced is None else (reduced,)),
    )


SAME_RATE: Final = {"fp8-block": ("fp8",), "mxfp4": ("nvfp4",)}


def _terms(kernels: tuple[KernelTime, ...]) -> PassTerms:
    """Kernels by what they wait for, under the names of the additive law."""
    zero = np.asarray(0.0)
    parts = dict.fromkeys(("attention", "reductions", "logits", "norms and activations", "rest"), zero)
    for k in kernels:
        name = k.name if k.name in parts else ("attention" if k.name == "latent attention" else "rest")
        parts[name] = np.asarray(parts[name] + k.seconds)
    return PassTerms(
        weights_s=np.asarray(parts["rest"]),
        kv_s=np.asarray(parts["attention"]),
        matmul_s=np.asarray(zero),
        attention_s=np.asarray(zero),
        activations_s=np.asarray(parts["norms and activations"]),
        logits_s=np.asarray(parts["logits"]),
        collectives_s=np.asarray(parts["reductions"]),
        launches_s=np.asarray(zero),
    )


def host_time(on: Machine, batch: npt.ArrayLike, *, drafted: bool = False) -> FloatArray:
    """Time per step outside all passes, seconds; 0 outside the modelled layer (a measured table contains it).

    >>> from specplan.specs.hardware import load_accelerator
    >>> round(float(host_time(machine(load_accelerator("h100-sxm")), 64)) * 1e3, 3)
    2.4
    """
    b = np.asarray(batch, np.float64)
    if on.layer != "modelled":
        return np.zeros_like(b)
    plain = on.host_s + on.engine.host_request_s * b
    if not drafted:
        return plain
    return plain + on.engine.speculation_s + on.engine.speculation_request_s * np.maximum(b - 1, 0.0)
