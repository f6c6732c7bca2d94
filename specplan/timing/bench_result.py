"""Measured passes of a model at true shapes beside what shapes and a card predict: floor, c, v and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from specplan.errors import InputError
from specplan.formulas import kv_cache, parameters, roofline
from specplan.formulas.step import bound_s, pass_load, pass_shape
from specplan.timing.roofline import arithmetic_flops
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model

ASSUMPTIONS: Final = (
    "random weights at true shapes: times and memory depend on shapes alone",
    "floor, derived c and derived v are roofline bounds at the profile's peaks",
)
NOT_MODELED: Final = (
    "collectives between ranks: one rank is run alone",
    "sampling, scheduling and other host time of an engine's step",
    "paged attention: the cache is one dense block per row",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReading:
    """Median seconds of one pass of `width` positions for each of `batch` rows behind `context_len` cached tokens.

    `spread` is the interquartile range over the median.
    """

    batch: int
    width: int
    context_len: int
    seconds: float
    spread: float

    @property
    def positions(self) -> int:
        """Positions of the pass."""
        return self.batch * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Bytes predicted from shapes, and bytes that the device gave out.

    `what` is ``weights`` or ``cache``; for a cache `batch` and `tokens` say of what size.
    """

    what: str
    predicted_bytes: float
    measured_bytes: float
    batch: int = 0
    tokens: int = 0

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_bytes / self.predicted_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchedModel:
    """One model's readings.

    Attributes
    ----------
    model : Model
        As it was run: in the format of the run, and with as many layers.
    layers_of_model : int
        Layers of the whole model; more than those of `model` where it was truncated.
    tp : int
        Ranks, one of which was run.
    passes : tuple of PassReading
    memory : tuple of MemoryReading
    peak_bytes : float or None
        Most that was allocated at a time; None where the device does not tell.
    skipped : tuple of str
        What was not measured, and why.
    """

    model: Model
    layers_of_model: int
    tp: int
    passes: tuple[PassReading, ...]
    memory: tuple[MemoryReading, ...]
    peak_bytes: float | None = None
    skipped: tuple[str, ...] = ()

    @property
    def is_truncated(self) -> bool:
        """Whether layers were left out."""
        return len(self.model.layers) < self.layers_of_model

    @property
    def title(self) -> str:
        """Name, ranks and what was left out."""
        ranks = "" if self.tp == 1 else f", one of {self.tp} ranks"
        cut = f", {len(self.model.layers)} of {self.layers_of_model} layers" if self.is_truncated else ""
        return f"{self.model.name} in {self.model.weight_format.name}{ranks}{cut}"

    def seconds(self, batch: int, width: int, context_len: int) -> float | None:
        """Time of one pass; None where it was not measured."""
        for p in self.passes:
            if (p.batch, p.width, p.context_len) == (batch, width, context_len):
                return p.seconds
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """A reading beside its predictions.

    Attributes
    ----------
    reading : PassReading
    floor_s : float
        Streamed weights and cached keys and values at peak bandwidth.
    calibrated_s : float or None
        For one position per row: the same at the rates that were measured on this card, and its time per layer; None
        where the profile has no calibration of its own.
    v, v_derived : float or None
        Pass over the pass of one position, measured and by the roofline.
    c, c_derived : float or None
        Draft's pass over the target's, of the same shape.
    """

    reading: PassReading
    floor_s: float
    calibrated_s: float | None
    v: float | None
    v_derived: float
    c: float | None
    c_derived: float | None

    @property
    def floor_fraction(self) -> float:
        """Share of the floor that was reached: floor over measured time."""
        return self.floor_s / self.reading.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """A target, optionally a draft, and the card against which they are held."""

    target: BenchedModel
    draft: BenchedModel | None
    accelerator: Accelerator
    inputs: Mapping[str, Any]
    assumptions: tuple[str, ...] = ASSUMPTIONS
    not_modeled: tuple[str, ...] = NOT_MODELED

    @property
    def rows(self) -> tuple[BenchRow, ...]:
        """The target's readings with their predictions."""
        return bench_rows(self.target, self.accelerator, self.draft)

    @property
    def ridge(self) -> float:
        """Positions at which the card's matmuls turn compute-bound."""
        return ridge_of(self.target.model, self.accelerator)

    @property
    def models(self) -> tuple[BenchedModel, ...]:
        """Target and, where there is one, draft."""
        return (self.target,) if self.draft is None else (self.target, self.draft)


def benched_model(model: Model, number_format: NumberFormat, layers: int | None = None) -> Model:
    """`model` as a pass with dense weights of one format runs it, with its first `layers` layers.

    Raises
    ------
    InputError
        When the model has fewer layers.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> small = benched_model(llama32_1b, lookup("float32"), 2)
    >>> len(small.layers), small.weight_format.name
    (2, 'float32')
    """
    n = len(model.layers)
    if layers is not None and not 1 <= layers <= n:
        raise InputError(f"--layers {layers}: {model.name} has {n}")
    return replace(
        model,
        weight_format=number_format,
        quantization=None,
        unquantized=(),
        formats=(),
        layers=tuple(replace(layer, formats=()) for layer in model.layers[:layers]),
    )


def weight_bytes(model: Model, tp: int) -> float:
    """Bytes of weights that a rank holds."""
    return parameters.resident_bytes(model, tp)


def cache_bytes(model: Model, batch: int, tokens: int, tp: int) -> float:
    """Bytes of `batch` rows of `tokens` cached tokens on a rank, in the format of the weights."""
    return batch * float(kv_cache.kv_bytes_stored(model, tokens, None, tp))


def ridge_of(model: Model, accelerator: Accelerator) -> float:
    """Positions at which weights of the model's format turn a pass compute-bound on a card."""
    flops, _ = arithmetic_flops(model, accelerator)
    return float(roofline.ridge_positions(flops, accelerator.bandwidth, model.weight_format.bytes))


def floor_s(model: Model, tp: int, accelerator: Accelerator, batch: int, width: int, context_len: int) -> float:
    """Least time of a pass: its weights and its cache, read once at peak bandwidth."""
    load = pass_load(pass_shape(model, tp), batch, width, context_len)
    return float(roofline.decode_floor_s(load.weight_bytes + load.kv_bytes, accelerator.bandwidth))


def calibrated_s(model: Model, tp: int, accelerator: Accelerator, batch: int, context_len: int) -> float | None:
    """Time of a pass of one position per row at measured rates; None without a calibration of the card's own.

    >>> from specplan.specs.hardware import load_accelerator
    >>> round(calibrated_s(llama32_1b, 1, load_accelerator("h100-sxm"), 1, 0) * 1e3, 3)
    1.286
    """
    own = accelerator.calibration
    if own is None or own.card != accelerator.name or own.bandwidth_fraction is None:
        return None
    load = pass_load(pass_shape(model, tp), batch, 1, context_len)
    weights = float(load.weight_bytes) / own.bandwidth_fraction
    cache = float(load.kv_bytes) / (own.kv_bandwidth_fraction or own.bandwidth_fraction)
    return (weights + cache) / accelerator.bandwidth + len(model.layers) * (own.launch_s or 0.0)


def _bound_s(model: Model, tp: int, accelerator: Accelerator, batch: int, width: int, context_len: int) -> float:
    load = pass_load(pass_shape(model, tp), batch, width, context_len)
    # One rank is run alone: nothing passes over its links.
    flops, _ = arithmetic_flops(model, accelerator)
    lower, _ = bound_s(replace(load, ranks=1), accelerator.bandwidth, flops)
    return float(lower)


def bench_rows(
    target: BenchedModel, accelerator: Accelerator, draft: BenchedModel | None = None
) -> tuple[BenchRow, ...]:
    """Readings beside floor, c and v.

    Parameters
    ----------
    target : BenchedModel
    accelerator : Accelerator
        Whose peaks bound the passes.
    draft : BenchedModel, optional
        Read at the same shapes.

    Examples
    --------
    >>> from specplan.specs.hardware import load_accelerator
    >>> one = PassReading(batch=1, width=1, context_len=0, seconds=5e-3, spread=0.0)
    >>> found = bench_rows(BenchedModel(model=llama32_1b, layers_of_model=16, tp=1, passes=(one,), memory=()),
    ...                    load_accelerator("h100-sxm"))
    >>> round(found[0].floor_fraction, 4), found[0].v, found[0].c
    (0.1476, 1.0, None)
    """
    rows = []
    for p in target.passes:
        place = (p.batch, p.width, p.context_len)
        plain = target.seconds(p.batch, 1, p.context_len)
        other = None if draft is None else draft.seconds(*place)
        bound = _bound_s(target.model, target.tp, accelerator, *place)
        rows.append(
            BenchRow(
                reading=p,
                floor_s=floor_s(target.model, target.tp, accelerator, *place),
                calibrated_s=calibrated_s(target.model, target.tp, accelerator, p.batch, p.context_len)
                if p.width == 1
                else None,
                v=None if plain is None else p.seconds / plain,
                v_derived=bound / _bound_s(target.model, target.tp, accelerator, p.batch, 1, p.context_len),
                c=None if other is None else other / p.seconds,
                c_derived=None if draft is None else _bound_s(draft.model, draft.tp, accelerator, *place) / bound,
            )
        )
    return tuple(rows)


def measured_rows(passes: Sequence[PassReading]) -> list[dict[str, float]]:
    """Readings as the rows of a table of step times, which the ``measured`` layer reads."""
    return [
        {"batch": p.batch, "width": p.width, "context": p.context_len, "seconds": p.seconds, "spread": p.spread}
        for p in passes
    ]
