"""What was measured on a device, and the hardware profile that follows: peaks, achieved fractions, provenance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from specplan.errors import InputError
from specplan.values.hardware import Accelerator, Calibration

NOT_MEASURED: Final = (
    "links between devices (collective latency, share of their bandwidth)",
    "host time of an engine's step",
    "what a clock does under lasting load: each figure is from runs of a few seconds",
)
DIGITS: Final = 4
"""Significant digits that a measured figure keeps in a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthReading:
    """Bytes per second of one access pattern.

    Attributes
    ----------
    kind : str
        ``read`` (reduction over a long vector), ``copy`` (read and write, both counted), ``weights`` (one position
        through matrices that no cache holds, as a decode step does), ``cache`` (one query over long keys and values).
    format : str
        Number format of what was moved.
    moved_bytes : float
        Bytes of one run.
    best_s, median_s : float
        Shortest and median time of a run.
    """

    kind: str
    format: str
    moved_bytes: float
    best_s: float
    median_s: float

    @property
    def rate(self) -> float:
        """Bytes/s of the best run: what others do to a shared machine is no property of it."""
        return self.moved_bytes / self.best_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulReading:
    """Arithmetic of M positions through a weight of (`inner`, `outer`)."""

    format: str
    rows: int
    inner: int
    outer: int
    best_s: float
    median_s: float

    @property
    def rate(self) -> float:
        """FLOP/s of the best run.

        >>> MatmulReading(format="bfloat16", rows=8, inner=1000, outer=1000, best_s=1e-3, median_s=1e-3).rate
        16000000000.0
        """
        return 2.0 * self.rows * self.inner * self.outer / self.best_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReading:
    """Times that no byte or FLOP explains.

    Attributes
    ----------
    kernel_s : float
        One tiny kernel of many, launched one by one.
    graphed_kernel_s : float or None
        The same inside a recorded graph; None where the device has none.
    layer_s : float
        One decoder layer of negligible size, graphed where the device has graphs.
    """

    kernel_s: float
    graphed_kernel_s: float | None
    layer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReadings:
    """Everything measured on one device.

    Attributes
    ----------
    device, torch_version, date : str
        Name as the device gives it; version; day of the run.
    threads : int or None
        CPU threads used; None on an accelerator.
    vendor, family : str
        Of the device.
    memory_driver_bytes, memory_torch_bytes : float or None
        As reported.
    bandwidth, matmul
        Readings, at least one each.
    launch : LaunchReading
    apart : float or None
        How far a repeat of the weights' bandwidth and of the widest matmul differed, the larger; None if none ran.
    """

    device: str
    torch_version: str
    date: str
    threads: int | None
    vendor: str
    family: str
    memory_driver_bytes: float | None
    memory_torch_bytes: float | None
    bandwidth: tuple[BandwidthReading, ...]
    matmul: tuple[MatmulReading, ...]
    launch: LaunchReading
    apart: float | None = None

    @property
    def provenance(self) -> str:
        """Who measured, on what, when."""
        threads = "" if self.threads is None else f", {self.threads} thread{'s' * (self.threads != 1)}"
        apart = "" if self.apart is None else f", a repeat within {self.apart:.0%}"
        return f"specplan calibrate on {self.device}{threads}, torch {self.torch_version}, {self.date}{apart}"

    def best(self, *kinds: str) -> BandwidthReading | None:
        """Fastest reading among some kinds; None where none was taken."""
        return max((r for r in self.bandwidth if r.kind in kinds), key=lambda r: r.rate, default=None)

    def peaks(self) -> Mapping[str, MatmulReading]:
        """Fastest matmul of each format."""
        found: dict[str, MatmulReading] = {}
        for reading in self.matmul:
            if reading.format not in found or reading.rate > found[reading.format].rate:
                found[reading.format] = reading
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """The readings, and the profile that a file of them gives."""

    readings: DeviceReadings
    profile: Accelerator
    inputs: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    not_modeled: tuple[str, ...] = NOT_MEASURED


def rounded(value: float) -> float:
    """`value` with as many digits as a measurement has.

    >>> rounded(28_123_456_789.0)
    28120000000.0
    """
    return float(f"{value:.{DIGITS}g}")


def profile_of(readings: DeviceReadings, name: str, datasheet: Accelerator | None = None) -> Accelerator:
    """A hardware profile from readings, over a datasheet's peaks or over the best that was measured.

    Parameters
    ----------
    readings : DeviceReadings
    name : str
        Of the new profile.
    datasheet : Accelerator, optional
        Shipped profile of the same card: its peaks and memory are kept, and fractions are of its peaks. Without one
        the fastest access and the fastest matmul of each format stand as peaks.

    Raises
    ------
    InputError
        When a reading is above the datasheet's peak, so that the datasheet is another card's.

    Examples
    --------
    >>> one = {"format": "float32", "best_s": 1.0, "median_s": 1.0}
    >>> found = profile_of(DeviceReadings(
    ...     device="cpu", torch_version="2", date="2026-11-30", threads=1, vendor="generic", family="cpu",
    ...     memory_driver_bytes=None, memory_torch_bytes=2.0**34,
    ...     bandwidth=(BandwidthReading(kind="read", moved_bytes=20e9, **one),
    ...                BandwidthReading(kind="weights", moved_bytes=18e9, **one)),
    ...     matmul=(MatmulReading(rows=100, inner=1000, outer=1000, **one),),
    ...     launch=LaunchReading(kernel_s=1e-6, graphed_kernel_s=None, layer_s=2e-5)), "mine")
    >>> found.bandwidth, found.calibration.bandwidth_fraction
    (20000000000.0, 0.9)
    """
    at = readings.provenance
    # a processor's copy counts lines that it never reads; a card's moves both ways over one bus
    kinds = ("read", "weights", "cache") if readings.threads is not None else ("read", "copy", "weights", "cache")
    fastest = readings.best(*kinds)
    peaks = readings.peaks()
    if fastest is None or not peaks:
        raise InputError("a profile needs at least one bandwidth and one matmul reading")
    if datasheet is None:
        card = Accelerator(
            name=name,
            vendor=readings.vendor,
            family=readings.family,
            note="peaks are the best that was measured, not a datasheet's",
            memory_driver_bytes=readings.memory_driver_bytes,
            memory_torch_bytes=readings.memory_torch_bytes,
            bandwidth=rounded(fastest.rate),
            flops=MappingProxyType({f: rounded(r.rate) for f, r in peaks.items()}),
            sources=MappingProxyType(_sources(readings, fastest, peaks)),
        )
    else:
        card = replace(
            datasheet,
            name=name,
            aliases=(),
            note=f"peaks are those of {datasheet.name}; the calibration is this device's own",
        )
        _check_peaks(card, datasheet.name, fastest, peaks)
    weights, cache = readings.best("weights") or fastest, readings.best("cache")
    common = [f for f in peaks if f in card.flops]
    fraction = {f: _last(readings.matmul, f).rate / card.flops[f] for f in common}
    main = weights.format if weights.format in fraction else next(iter(fraction), None)
    figures: dict[str, tuple[float, str]] = {}
    figures["bandwidth_fraction"] = (
        weights.rate / card.bandwidth,
        f"one position through {weights.format} matrices; {at}",
    )
    if cache is not None:
        figures["kv_bandwidth_fraction"] = (
            cache.rate / card.bandwidth,
            f"one query over long {cache.format} keys and values; {at}",
        )
    if main is not None:
        rows = _last(readings.matmul, main).rows
        figures["matmul_fraction"] = (fraction[main], f"{rows} positions through a {main} matrix; {at}")
    figures["launch_s"] = (readings.launch.layer_s, f"a decoder layer of negligible size; {at}")
    values = {k: rounded(min(v, 1.0) if k.endswith("fraction") else v) for k, (v, _) in figures.items()}
    calibration = Calibration(
        card=name,
        date=readings.date,
        source=at,
        sources=MappingProxyType({k: text for k, (_, text) in figures.items()}),
        **values,
    )
    # what this device was measured to do stands, not what another card's kernels do
    return replace(card, calibration=calibration, kernels=MappingProxyType({}))


def _last(readings: Sequence[MatmulReading], number_format: str) -> MatmulReading:
    """Reading of the most positions: where matmuls are what a pass waits for."""
    return max((r for r in readings if r.format == number_format), key=lambda r: r.rows)


def _sources(readings: DeviceReadings, fastest: BandwidthReading, peaks: Mapping[str, MatmulReading]) -> dict[str, str]:
    at = readings.provenance
    memory = "memory of the machine" if readings.threads is not None else "device properties of torch"
    driver = "total by the driver" if readings.memory_driver_bytes is not None else "not reported"
    return {
        "memory.driver": f"{driver}; {at}",
        "memory.torch": f"{memory}; {at}",
        "bandwidth": f"measured: {fastest.kind} of {fastest.format}; {at}",
        **{f"flops.{f}": f"measured: {r.rows} x {r.inner} x {r.outer} matmul; {at}" for f, r in peaks.items()},
    }


def _check_peaks(
    card: Accelerator, datasheet: str, fastest: BandwidthReading, peaks: Mapping[str, MatmulReading]
) -> None:
    if fastest.rate > 1.02 * card.bandwidth:
        raise InputError(
            f"measured {fastest.rate / 1e9:.0f} GB/s, {datasheet} has {card.bandwidth / 1e9:.0f} GB/s: this is another "
            "card; leave --gpu out"
        )
    for name, reading in peaks.items():
        if name in card.flops and reading.rate > 1.02 * card.flops[name]:
            raise InputError(
                f"measured {reading.rate / 1e12:.4g} TFLOP/s in {name}, {datasheet} has {card.flops[name] / 1e12:.4g}: "
                "this is another card; leave --gpu out"
            )
