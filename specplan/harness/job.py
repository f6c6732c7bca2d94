"""A whole measurement from names: load the model and the prompts, run, put together."""

import math
import time
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import torch

from specplan.errors import InputError
from specplan.harness.load import DTYPES, load_causal_lm, local_model
from specplan.harness.loop import RULES
from specplan.harness.measure import (
    STEPS_FILE,
    Measurement,
    Progress,
    Settings,
    check_inputs,
    measure,
    read_measurement,
)
from specplan.harness.prompts import read_requests, stop_ids_of, tokenizer_of
from specplan.harness.sources import ModelSource, NoSource, Source, read_source
from specplan.harness.threads import fastest_threads
from specplan.harness.vllm_runner import VllmJob, run_vllm
from specplan.harness.vocabularies import vocabulary_mappings
from specplan.records.prompts import prompt_file

RUNNERS: Final = ("own", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """What ``specplan measure`` was asked to do, checked before anything is loaded."""

    target: str
    sources: tuple[str, ...]
    prompts: tuple[str, ...]
    max_tokens: int = 128
    temperature: float = 0.0
    rule: str = "standard"
    batch: int = 1
    limit: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0
    runner: str = "own"
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, count in (("max-tokens", self.max_tokens), ("batch", self.batch), ("limit", self.limit or 1)):
            if count < 1:
                raise InputError(f"--{name} {count}: must be at least 1")
        if self.seconds is not None and not 1 <= self.seconds < float("inf"):
            raise InputError(f"--seconds {self.seconds:g}: must be at least 1")
        if self.seconds is not None and self.runner != "own":
            raise InputError(
                f"--seconds {self.seconds:g}: budgets the loop of this package; leave out --runner {self.runner}"
            )
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"--temperature {self.temperature}: must be a number of at least 0")
        for name, value, known in (
            ("dtype", self.dtype, tuple(DTYPES)),
            ("rule", self.rule, RULES),
            ("runner", self.runner, RUNNERS),
        ):
            if value not in known:
                raise InputError(f"--{name} {value}: one of {', '.join(known)}")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError(f"--device {self.device}: torch sees no CUDA device")

    def settings(self) -> Settings:
        """What the loop needs of it."""
        return Settings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            rule=self.rule,
            batch=self.batch,
            seed=self.seed,
        )

    def names(self) -> dict[str, Any]:
        """What the records say of model and prompts."""
        seconds = {} if self.seconds is None else {"seconds": self.seconds}
        return {"target": self.target, "prompts": list(self.prompts), "limit": self.limit} | seconds


def run_job(job: MeasureJob, folder: Path, *, progress: Progress | None = None) -> Measurement:
    """Load, run and compare.

    Raises
    ------
    SpecplanError
        When a source, file or model cannot be used.
    """
    until = math.inf if job.seconds is None else time.monotonic() + job.seconds
    tell = progress or (lambda *_: None)
    sources: list[Source] = [read_source(text) for text in job.sources]
    if job.runner == "own" and (folder / STEPS_FILE).is_file():  # finished: its records alone are read
        spellings = ["none", *(s.spelling for s in sources if not isinstance(s, NoSource))]
        settings = {**asdict(job.settings()), "dtype": job.dtype, "device": job.device}
        check_inputs(folder / STEPS_FILE, job.names() | {"sources": spellings} | settings)
        return read_measurement(folder)
    for name in (job.target, *(s.model for s in sources if isinstance(s, ModelSource) and s.model)):
        local_model(name)  # before anything is loaded or timed
    files = [prompt_file(name) for name in job.prompts]
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    tell(f"loading {job.target}", 0, 0)
    tokenizer = tokenizer_of(job.target)
    sets = [read_requests(file, tokenizer, limit=job.limit) for file in files]
    requests = [r for turn in zip_longest(*sets) for r in turn if r is not None]
    if job.runner == "vllm":
        engine = VllmJob(
            target=job.target,
            dtype=job.dtype,
            device=job.device,
            settings=job.settings(),
            stop_ids=stop_ids_of(tokenizer),
            threads=job.threads,
        )
        return run_vllm(engine, sources, requests, folder, names=job.names(), progress=progress)
    mappings, notes = vocabulary_mappings(sources, tokenizer)
    target = load_causal_lm(job.target, dtype=DTYPES[job.dtype], device=job.device)
    if job.threads is None:
        fastest_threads(target)
    return measure(
        target,
        sources,
        requests,
        folder,
        settings=job.settings(),
        stop_ids=stop_ids_of(tokenizer),
        mappings=mappings,
        names=job.names() | {"vocabularies": notes},
        progress=progress,
        until=until,
    )
