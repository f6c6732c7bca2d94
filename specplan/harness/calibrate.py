"""Measure a device: bandwidth, matmul rate by positions and format, and what a launch costs.

Runs of one kind follow one another and the best counts: a shared machine only ever slows a run down. Buffers are
larger than the caches, so that memory is what is measured.
"""

import datetime as dt
import os
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch.nn import functional

from specplan.errors import InputError
from specplan.harness.llama import Llama, LlamaShape
from specplan.harness.load import DTYPES
from specplan.harness.pass_times import GraphedPass, timed
from specplan.timing.calibration import (
    BandwidthReading,
    CalibrationReport,
    DeviceReadings,
    LaunchReading,
    MatmulReading,
    profile_of,
)
from specplan.values.hardware import Accelerator

Progress = Callable[[str, int, int], None]

FAMILIES: Final = {
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 6): "ampere",
    (8, 9): "ada",
    (9, 0): "hopper",
}
"""NVIDIA's architectures by compute capability; 10 is Blackwell, 12 its consumer form."""

APART: Final = 0.2
"""How far two readings of one thing may differ, as a share of the slower one, before they are noise."""

SLOWEST_S: Final = 0.5
"""A matmul that takes longer ends the sweep over positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateJob:
    """What to measure.

    Attributes
    ----------
    device : str
        ``cpu``, ``cuda``, ``cuda:1``, ...
    formats : tuple of str
        Of matmuls; the first is also that of weights and cache.
    buffer_bytes : int
        Size of what is read, larger than every cache.
    inner : int
        Side of the square weight of the matmuls.
    rows : tuple of int
        Positions M of the matmuls.
    repeats : int
        Runs of each kind.
    threads : int or None
        CPU threads of torch; None leaves them.
    """

    device: str = "cpu"
    formats: tuple[str, ...] = ()
    buffer_bytes: int = 0
    inner: int = 0
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    repeats: int = 7
    threads: int | None = None

    def __post_init__(self) -> None:
        unknown = [f for f in self.formats if f not in DTYPES]
        if unknown:
            raise InputError(f"--format {unknown[0]}: one of {', '.join(DTYPES)}")
        if self.repeats < 1 or (self.threads is not None and self.threads < 1):
            raise InputError("repeats and threads must be at least 1")
        check_device(self.device)

    def complete(self) -> "CalibrateJob":
        """With what was left open filled in for the device."""
        cuda = self.device.startswith("cuda")
        return replace(
            self,
            formats=self.formats or (("bfloat16", "float16", "float32") if cuda else ("float32", "bfloat16")),
            buffer_bytes=self.buffer_bytes or (2 << 30 if cuda else 256 << 20),
            inner=self.inner or (8192 if cuda else 2048),
        )


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or that is not there.

    Raises
    ------
    InputError
    """
    try:
        kind = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"--device {device}: expected cpu, cuda or cuda:N") from error
    if kind.type not in ("cpu", "cuda"):
        raise InputError(f"--device {device}: expected cpu, cuda or cuda:N")
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device {device}: torch sees {torch.cuda.device_count()} CUDA devices")


def calibrate(
    job: CalibrateJob,
    name: str,
    *,
    datasheet: Accelerator | None = None,
    progress: Progress | None = None,
    repeated: bool = False,
) -> CalibrationReport:
    """Measure and put a profile together.

    Parameters
    ----------
    job : CalibrateJob
    name : str
        Of the profile.
    datasheet : Accelerator, optional
        Shipped profile of the same card, over whose peaks fractions are taken.
    progress : callable, optional
        Called with what is measured, readings done and readings in all.
    repeated : bool
        Read again what the profile rests on, and note how far the two lie apart.

    Raises
    ------
    InputError
        When the device is not there, or is not the datasheet's card; or where a repeat differs by more than `APART`.
    """
    full = job.complete()
    if full.threads is not None:
        torch.set_num_threads(full.threads)
    readings = measure_device(full, progress)
    if repeated:
        readings = replace(readings, apart=_apart(full, readings))
    inputs = {
        "device": full.device,
        "name": name,
        "datasheet": None if datasheet is None else datasheet.name,
        "formats": list(full.formats),
        "buffer_bytes": full.buffer_bytes,
        "inner": full.inner,
        "repeats": full.repeats,
        "threads": readings.threads,
    }
    return CalibrationReport(readings=readings, profile=profile_of(readings, name, datasheet), inputs=inputs)


def _apart(job: CalibrateJob, readings: DeviceReadings) -> float:
    """How far repeats of the weights' bandwidth and of the widest matmul lie from their readings, the larger share."""
    widest = max((m for m in readings.matmul if m.format == job.formats[0]), key=lambda m: m.rows)
    (again,) = matmul_readings(replace(job, rows=(widest.rows,)), job.formats[0])
    weights = readings.best("weights")
    pairs = [("matmul", widest.rate, again.rate)]
    if weights is not None:
        pairs.append(("bandwidth of weights", weights.rate, _weights_reading(job).rate))
    found = {what: 1 - min(a, b) / max(a, b) for what, a, b in pairs}
    what = max(found, key=lambda name: found[name])
    if found[what] > APART:
        raise InputError(
            f"calibrate: a repeat of the {what} differs by {found[what]:.0%}: other work runs on this machine, and its "
            "constants would be noise; nothing is written. Wait for a quiet one, or take more --repeats"
        )
    return found[what]


def measure_device(job: CalibrateJob, progress: Progress | None = None) -> DeviceReadings:
    """All readings of a device."""
    device = torch.device(job.device)
    report = progress or (lambda *_: None)
    steps = 2 + len(job.formats)
    report("calibrate", 0, steps)
    bandwidth = bandwidth_readings(job)
    report("calibrate", 1, steps)
    matmul: list[MatmulReading] = []
    for n, number_format in enumerate(job.formats, 2):
        matmul += matmul_readings(job, number_format)
        report("calibrate", n, steps)
    launch = launch_reading(device, job.repeats)
    report("calibrate", steps, steps)
    driver, visible = _memory(device)
    return DeviceReadings(
        device=device_name(device),
        torch_version=torch.__version__,
        date=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        threads=torch.get_num_threads() if device.type == "cpu" else None,
        vendor=_vendor(device),
        family=_family(device),
        memory_driver_bytes=driver,
        memory_torch_bytes=visible,
        bandwidth=bandwidth,
        matmul=tuple(matmul),
        launch=launch,
    )


def _times(run: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float]:
    """Shortest and median seconds of a run, after one that warms up."""
    run()
    seconds = [timed(run, device) for _ in range(repeats)]
    return min(seconds), statistics.median(seconds)


def bandwidth_readings(job: CalibrateJob) -> tuple[BandwidthReading, ...]:
    """Read, copy, weights and cache.

    Each run moves the whole buffer, so that nothing of it is left in a cache from the run before.
    """
    return (*_vector_readings(job), _weights_reading(job), _cache_reading(job))


def _reading(job: CalibrateJob, kind: str, of: str, moved: float, run: Callable[[], object]) -> BandwidthReading:
    best, median = _times(run, torch.device(job.device), job.repeats)
    return BandwidthReading(kind=kind, format=of, moved_bytes=moved, best_s=best, median_s=median)


def _vector_readings(job: CalibrateJob) -> tuple[BandwidthReading, BandwidthReading]:
    source = torch.ones(job.buffer_bytes // 4, dtype=torch.float32, device=job.device)
    target = torch.empty_like(source)
    read = _reading(job, "read", "float32", source.nbytes, source.sum)
    return read, _reading(job, "copy", "float32", 2 * source.nbytes, lambda: target.copy_(source))


def _weights_reading(job: CalibrateJob) -> BandwidthReading:
    dtype, side = DTYPES[job.formats[0]], min(4096, job.inner)
    count = max(1, job.buffer_bytes // (side * side * dtype.itemsize))
    weights = torch.randn(count, side, side, dtype=dtype, device=job.device)
    one = torch.randn(1, side, dtype=dtype, device=job.device)

    def one_position() -> None:
        for weight in weights:
            functional.linear(one, weight)

    return _reading(job, "weights", job.formats[0], weights.nbytes, one_position)


def _cache_reading(job: CalibrateJob, heads: int = 8, size: int = 128) -> BandwidthReading:
    dtype = DTYPES[job.formats[0]]
    span = job.buffer_bytes // (2 * heads * size * dtype.itemsize)
    keys, values = (torch.randn(1, heads, span, size, dtype=dtype, device=job.device) for _ in range(2))
    query = torch.randn(1, heads, 1, size, dtype=dtype, device=job.device)
    return _reading(
        job,
        "cache",
        job.formats[0],
        keys.nbytes + values.nbytes,
        lambda: functional.scaled_dot_product_attention(query, keys, values),
    )


def matmul_readings(job: CalibrateJob, number_format: str) -> list[MatmulReading]:
    """Rate of M positions through one square weight, M rising until a run takes too long."""
    device, dtype = torch.device(job.device), DTYPES[number_format]
    weight = torch.randn(job.inner, job.inner, dtype=dtype, device=device)
    found: list[MatmulReading] = []
    for rows in job.rows:
        x = torch.randn(rows, job.inner, dtype=dtype, device=device)
        best, median = _times(lambda x=x: functional.linear(x, weight), device, job.repeats)  # type: ignore[misc]
        found.append(
            MatmulReading(
                format=number_format, rows=rows, inner=job.inner, outer=job.inner, best_s=best, median_s=median
            )
        )
        if best > SLOWEST_S:
            break
    return found


def launch_reading(device: torch.device, repeats: int, kernels: int = 200) -> LaunchReading:
    """What a kernel and a decoder layer cost when they move and compute next to nothing."""
    x = torch.zeros(8, device=device)

    def many() -> None:
        for _ in range(kernels):
            x.add_(1.0)

    kernel = _times(many, device, repeats)[0] / kernels
    graphed = None
    if device.type == "cuda":
        with torch.cuda.device(device):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                many()
            graphed = _times(graph.replay, device, repeats)[0] / kernels
    return LaunchReading(kernel_s=kernel, graphed_kernel_s=graphed, layer_s=_layer_s(device, repeats))


def _layer_s(device: torch.device, repeats: int) -> float:
    """Slope over the layers of a model whose weights fit any cache."""
    shallow, deep = 2, 18
    best = {}
    for layers in (shallow, deep):
        shape = LlamaShape(
            vocab_size=64,
            hidden_size=64,
            layers=layers,
            heads=4,
            kv_heads=2,
            head_dim=16,
            ffn_size=64,
            tied=True,
        )
        model = Llama(shape).to(device).eval()
        best[layers] = _times(GraphedPass(model, width=1, batch=1, context_len=16), device, 3 * repeats)[0]
    return max(0.0, (best[deep] - best[shallow]) / (deep - shallow))


def device_name(device: torch.device) -> str:
    """Name of the card, or of the processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "a CPU"


def driver_version() -> str | None:
    """NVIDIA driver; None where there is none to ask."""
    return _nvidia_smi("driver_version", 0)


def _nvidia_smi(query: str, index: int) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--id={index}"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _memory(device: torch.device) -> tuple[float | None, float | None]:
    """Bytes by the driver and by torch."""
    if device.type == "cuda":
        mib = _nvidia_smi("memory.total", device.index or 0)
        driver = float(mib) * 2**20 if mib is not None and mib.isdecimal() else None
        return driver, float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return None, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError) as error:
        raise InputError("this system does not tell its memory; calibrate on Linux or macOS") from error


def _vendor(device: torch.device) -> str:
    if device.type == "cpu":
        return "generic"
    return "NVIDIA" if torch.version.cuda else "AMD"


def _family(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    if torch.version.cuda is None:
        return str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", "amd")).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    wide = {10: "blackwell", 12: "blackwell-consumer"}
    return FAMILIES.get((major, minor)) or wide.get(major, f"sm{major}{minor}")


def quick_profile(device: str, formats: Sequence[str], *, threads: int | None = None) -> Accelerator:
    """A profile of the device from short runs, for floors where no profile is given."""
    job = CalibrateJob(device=device, formats=tuple(formats), rows=(1, 64, 1024), repeats=5, threads=threads)
    return calibrate(job, "this-device").profile
