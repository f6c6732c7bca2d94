"""Time passes of a model with random weights at true shapes, on one rank, over width, batch and context."""

import gc
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from specplan.errors import InputError
from specplan.harness.calibrate import check_device, quick_profile
from specplan.harness.llama import Llama
from specplan.harness.load import DTYPES, random_llama
from specplan.harness.pass_times import pass_times
from specplan.timing.bench_result import (
    BenchedModel,
    BenchReport,
    MemoryReading,
    PassReading,
    benched_model,
    cache_bytes,
    weight_bytes,
)
from specplan.units import format_gib
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator
from specplan.values.model import Model

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchJob:
    """What to time.

    Attributes
    ----------
    device, dtype : str
        Where and in which format.
    tp : int
        Ranks among which the model is divided; one is run.
    batches, widths, contexts : tuple of int
        Their product is timed; width 1 is always among the widths.
    layers : int or None
        First layers of the model that are run; all if None.
    repeats : int
        Timed runs of each pass.
    threads : int or None
        CPU threads of torch.
    compiled : bool
        Whether layers go through ``torch.compile``.
    seconds : float or None
        After so many, no further batch and context is begun.
    """

    device: str = "cpu"
    dtype: str = "bfloat16"
    tp: int = 1
    batches: tuple[int, ...] = (1, 8)
    widths: tuple[int, ...] = (1, 2, 4, 8)
    contexts: tuple[int, ...] = (128, 2048)
    layers: int | None = None
    repeats: int = 7
    threads: int | None = None
    compiled: bool = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"--dtype {self.dtype}: one of {', '.join(DTYPES)}")
        for name, values, least in (
            ("batch", self.batches, 1),
            ("width", self.widths, 1),
            ("context", self.contexts, 0),
            ("tp", (self.tp,), 1),
            ("repeats", (self.repeats,), 1),
            ("threads", (self.threads or 1,), 1),
        ):
            if not values or min(values) < least:
                raise InputError(f"--{name}: whole numbers of at least {least} are needed, got {list(values)}")
        check_device(self.device)


def bench(
    target: Model,
    job: BenchJob,
    *,
    draft: Model | None = None,
    accelerator: Accelerator | None = None,
    progress: Progress | None = None,
) -> BenchReport:
    """Time a target and, where given, a draft at the same shapes.

    Parameters
    ----------
    target, draft : Model
        Llama-family shapes: equal layers of attention and a gated dense feed-forward.
    job : BenchJob
    accelerator : Accelerator, optional
        For floors and derived figures; short readings of this device stand in where none is given.
    progress : callable, optional

    Raises
    ------
    SpecplanError
        When a model has another shape, or does not fit the device.
    """
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    models = [benched_model(m, lookup(job.dtype), job.layers) for m in (target, draft) if m is not None]
    for model in models:
        _check_memory(model, job)
    card = accelerator or quick_profile(job.device, [job.dtype])
    whole = [m for m in (target, draft) if m is not None]
    found = [
        bench_model(model, job, layers_of_model=len(full.layers), progress=progress)
        for model, full in zip(models, whole, strict=True)
    ]
    inputs = {
        "target": target.name,
        "draft": None if draft is None else draft.name,
        "device": job.device,
        "dtype": job.dtype,
        "tensor_parallel_size": job.tp,
        "batch": list(job.batches),
        "width": sorted({1, *job.widths}),
        "context": list(job.contexts),
        "layers": job.layers,
        "repeats": job.repeats,
        "threads": torch.get_num_threads(),
        "compiled": job.compiled,
        "torch": torch.__version__,
        "profile": card.name,
        "profile_source": "given" if accelerator is not None else "measured here, before the passes",
    }
    return BenchReport(target=found[0], draft=found[1] if len(found) > 1 else None, accelerator=card, inputs=inputs)


def bench_model(model: Model, job: BenchJob, *, layers_of_model: int, progress: Progress | None = None) -> BenchedModel:
    """Time one rank of `model`, which is as `specplan.timing.bench_result.benched_model` makes it.

    Raises
    ------
    SpecplanError
        When its layers are not those of the Llama family, or not even its weights fit.
    """
    device = torch.device(job.device)
    began, before = time.perf_counter(), _allocated(device)
    try:
        running = random_llama(model, tp=job.tp, dtype=DTYPES[job.dtype], device=job.device)
    except torch.OutOfMemoryError as error:
        need = format_gib(weight_bytes(model, job.tp))
        raise InputError(f"{model.name}: {need} of weights do not fit {job.device}; use --tp or --layers") from error
    held = _parameter_bytes(running) if before is None else (_allocated(device) or 0.0) - before
    memory = [MemoryReading(what="weights", predicted_bytes=weight_bytes(model, job.tp), measured_bytes=held)]
    if job.compiled:
        for layer in running.layers:
            layer.compile()
    widths = sorted({1, *job.widths})
    places = list(itertools.product(sorted(set(job.batches)), sorted(set(job.contexts))))
    passes: list[PassReading] = []
    skipped: list[str] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for n, (batch, context_len) in enumerate(places):
        if progress is not None:
            progress(model.name, n, len(places))
        if job.seconds is not None and time.perf_counter() - began > job.seconds:
            skipped.append(f"batch {batch}, context {context_len}: out of time")
            continue
        try:
            memory.append(_cache_reading(model, running, job, batch, context_len + widths[-1]))
            timed = pass_times(running, widths, batch=batch, context_len=context_len, repeats=job.repeats)
        except torch.OutOfMemoryError:
            skipped.append(f"batch {batch}, context {context_len}: out of memory")
        else:
            passes += [
                PassReading(batch=batch, width=t.width, context_len=context_len, seconds=t.seconds, spread=t.spread)
                for t in timed
            ]
        _release(device)
    if progress is not None:
        progress(model.name, len(places), len(places))
    peak = float(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None
    del running
    _release(device)
    if not passes:
        raise InputError(f"{model.name}: nothing was timed ({'; '.join(skipped)})")
    return BenchedModel(
        model=model,
        layers_of_model=layers_of_model,
        tp=job.tp,
        passes=tuple(passes),
        memory=tuple(memory),
        peak_bytes=peak,
        skipped=tuple(skipped),
    )


def _cache_reading(model: Model, running: Llama, job: BenchJob, batch: int, tokens: int) -> MemoryReading:
    """Bytes of one cache, given out and freed."""
    device = torch.device(job.device)
    before = _allocated(device)
    cache = running.new_cache(batch, tokens)
    after = _allocated(device)
    held = float(cache.n_bytes) if before is None or after is None else after - before
    return MemoryReading(
        what="cache",
        predicted_bytes=cache_bytes(model, batch, tokens, job.tp),
        measured_bytes=held,
        batch=batch,
        tokens=tokens,
    )


def _parameter_bytes(model: Llama) -> float:
    """Bytes of the weights; a tied head is its embedding, and counts once."""
    return float(sum(p.nbytes for p in model.parameters()))


def _allocated(device: torch.device) -> float | None:
    """Bytes given out by the device's allocator; None on a CPU, which has no count of its own."""
    return float(torch.cuda.memory_allocated(device)) if device.type == "cuda" else None


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _check_memory(model: Model, job: BenchJob) -> None:
    """Refuse weights that cannot fit before any is made."""
    need = weight_bytes(model, job.tp)
    if job.device.startswith("cuda"):
        room, what = float(torch.cuda.mem_get_info(torch.device(job.device))[0]), "free on the device"
    else:
        room, what = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")), "in this machine"
    if need > room:
        raise InputError(
            f"{model.name}: {format_gib(need)} of {job.dtype} weights a rank, {format_gib(room)} {what}; raise --tp or "
            "give --layers"
        )
