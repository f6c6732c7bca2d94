"""Best draft length per batch, as the engines' own configuration, with a command line that can be pasted.

Source of what the engines accept and warn of: vLLM 0.32 fact sheet, sections 0 to 4, 6.3 and 9; SGLang 0.5.23 fact
sheet, section 3.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.plan.compare import MAX_BATCH, Setting, error_band, sequences_left, times
from specplan.plan.step_source import HEADS, NO_SOURCE, Loads, StepSource, loads, most_kappa, on_engine
from specplan.plan.step_time import FloatArray, MeasuredTable, machine
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model

ENGINES: Final = ("vllm", "sglang")

MARGIN: Final = 0.02
"""Relative gain below which a neighbouring batch keeps its draft length, so that a load near a border does not flap."""

HEAD_PATH: Final = "PATH-OF-THE-TRAINED-HEAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class KappaRange:
    """Batches `first` to `last`, both included, that draft `kappa` tokens; the speedup at both ends."""

    first: int
    last: int
    kappa: int
    speedup_first: float
    speedup_last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSchedule:
    """The schedule of one context, with the best single draft length beside it.

    Attributes
    ----------
    ranges : tuple of KappaRange
        Contiguous from batch 1; not necessarily falling, since experts make wide passes cheaper at some batches.
    fixed_kappa : int
        Single length with the best mean logarithm of the speedup over the batches.
    speedup, fixed_speedup : float
        Geometric means over the batches 1, 2, 4, ...
    """

    context_len: int
    ranges: tuple[KappaRange, ...]
    fixed_kappa: int
    speedup: float
    fixed_speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport:
    """Everything that `specplan schedule` shows."""

    target: Model
    accelerator: Accelerator
    source: StepSource
    engine: str
    engine_version: str
    tensor_parallel_size: int
    layer: str
    max_batch: int
    margin: float
    error_band: float | None
    schedules: tuple[ContextSchedule, ...]
    dynamic: bool
    configuration: Mapping[str, Any]
    files: Mapping[str, str]
    environment: Mapping[str, str]
    command: tuple[str, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    not_modeled: tuple[str, ...] = (
        "prefills and requests of other contexts in the batch",
        "the time that the engine takes to switch graphs between draft lengths",
    )

    @property
    def command_line(self) -> str:
        """The command as one line for a POSIX shell."""
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.environment.items()), shlex.join(self.command)])


def schedule(
    target: Model,
    accelerator: Accelerator,
    source: StepSource,
    *,
    engine: str = "vllm",
    tp: int = 1,
    contexts: Sequence[int] = (2048,),
    max_batch: int | None = None,
    max_kappa: int = 8,
    margin: float = MARGIN,
    layer: str = "modelled",
    kv_format: NumberFormat | None = None,
    gpu_memory_utilization: float = 0.92,
    draft_path: str | None = None,
    target_path: str | None = None,
    temperature: float = 0.0,
    tables: Mapping[str, MeasuredTable] | None = None,
) -> ScheduleReport:
    """Find the best draft length at each batch and write it as the engine's configuration.

    Parameters
    ----------
    target, accelerator, source
        As in `specplan.plan.compare.compare`; the source's draft model loaded.
    engine : str
        ``vllm`` or ``sglang``.
    contexts : sequence of int
        One schedule each; the configuration is that of the first.
    max_batch : int, optional
        Largest batch; what fits the pool, at most 1024, if None.
    max_kappa : int
        Longest draft.
    margin : float
        Gain below which a batch keeps its neighbour's length, at least 0.
    draft_path, target_path : str, optional
        Checkpoints for the command line; the specs' own sources if None.
    temperature : float
        Of the requests; only decides which warnings apply.

    Raises
    ------
    InputError
        For an unknown engine or numbers that make no sense.
    """
    if engine not in ENGINES:
        raise InputError(f"--engine {engine!r}: schedules are written for {' and '.join(ENGINES)}")
    if source.kind == "none":
        raise InputError("a schedule needs a draft source; give --draft with --alpha, or --source")
    if not 0 <= margin < 1:
        raise InputError(f"--margin {margin:g}: must be at least 0 and below 1")
    if not 1 <= max_kappa <= 128:
        raise InputError(f"--max-k {max_kappa}: must lie between 1 and 128")
    if max_batch is not None and not 1 <= max_batch <= MAX_BATCH:
        raise InputError(f"--max-batch {max_batch}: must lie between 1 and {MAX_BATCH}")
    if not contexts or min(contexts) < 0:
        raise InputError("--context: contexts must be at least 0")
    setting = Setting(
        target=target,
        on=machine(accelerator, engine, tp, layer),
        kv_format=kv_format,
        max_kappa=max_kappa,
        gpu_memory_utilization=gpu_memory_utilization,
        tables=tables,
    )
    placed = on_engine(source, target, engine)
    of = loads(target, placed, tp, kv_format)
    fitting = sequences_left(setting, placed, contexts[0])
    last = max_batch if max_batch is not None else min(max(fitting, 1), MAX_BATCH)
    dynamic = _is_dynamic(placed, engine)
    schedules = tuple(_schedule(setting, placed, of, context, last, margin, dynamic) for context in contexts)
    written = _vllm if engine == "vllm" else _sglang
    names = _Names(
        target=target_path or checkpoint(target),
        draft=draft_path or _draft_checkpoint(placed),
    )
    configuration, files, environment, command = written(setting, placed, schedules[0], names, last, dynamic)
    warnings = [*_warnings(setting, placed, schedules, temperature, dynamic, names)]
    if last > fitting:
        warnings.append(f"only {fitting} requests of {contexts[0]} tokens fit the pool; larger batches are not served")
    return ScheduleReport(
        target=target,
        accelerator=accelerator,
        source=placed,
        engine=engine,
        engine_version=setting.on.engine.version,
        tensor_parallel_size=tp,
        layer=layer,
        max_batch=last,
        margin=margin,
        error_band=error_band(setting.on, tables),
        schedules=schedules,
        dynamic=dynamic,
        configuration=configuration,
        files=files,
        environment=environment,
        command=command,
        assumptions=(
            f"times: {layer}",
            *setting.on.notes,
            "acceptance and coverage are as given and the same at every batch",
        ),
        warnings=tuple(warnings),
    )


def _is_dynamic(source: StepSource, engine: str) -> bool:
    """Whether the engine can change the draft length of this source with the batch."""
    if source.kappa is not None or source.nodes is not None:
        return False
    if engine == "sglang":
        return source.kind in ("eagle", "eagle3") and source.topk == 1
    return source.kind not in ("suffix", "ngram-gpu", "ngram-host")


def _drafts_always(source: StepSource, engine: str) -> bool:
    """Whether drafting costs its longest length whatever length is scheduled (vLLM's stand-alone draft models)."""
    return engine == "vllm" and source.kind == "model"


def _gains(
    setting: Setting, source: StepSource, of: Loads, batch: FloatArray, context: int, longest: int, held: int | None
) -> FloatArray:
    """Speedup by batch (rows) and draft length 0 ... longest (columns); `held`: passes that are made at any length."""
    k = np.arange(longest + 1)
    plain = times(setting, NO_SOURCE, of, batch, context, 0).step_s
    step = times(setting, source, of, batch[:, None], context, k[None, :])
    total = step.step_s
    if held is not None:
        drafting = times(setting, source, of, batch, context, held).draft_s
        total = total - step.draft_s + drafting[:, None]
    gain = plain[:, None] * step.emitted / total
    if held is None:
        gain[:, 0] = 1.0
    return gain


def _schedule(
    setting: Setting, source: StepSource, of: Loads, context: int, last: int, margin: float, dynamic: bool
) -> ContextSchedule:
    batch = np.arange(1, last + 1, dtype=np.float64)
    longest = most_kappa(source, setting.max_kappa)
    gain = _gains(setting, source, of, batch, context, longest, None)
    spread = np.unique(np.round(np.geomspace(1, last, 16)).astype(int)) - 1
    means = np.log(gain[spread]).mean(axis=0)
    fixed = source.kappa if source.kappa is not None else int(means.argmax())
    if not dynamic:
        chosen = np.full(last, fixed, np.int64)
    else:
        tables = [gain]
        if _drafts_always(source, setting.on.engine.name):
            tables = [_gains(setting, source, of, batch, context, k, k) for k in range(1, longest + 1)]
        gain, chosen = max(
            ((table, _steady(table, margin)) for table in tables),
            key=lambda pair: float(np.log(pair[0][spread, pair[1][spread]]).mean()),
        )
    if chosen.max() == 0:  # nothing is drafted at all, so nothing is paid for
        gain = np.ones_like(gain)
    reached = gain[np.arange(last), chosen]
    borders = np.flatnonzero(np.diff(chosen)) + 1
    ranges = tuple(
        KappaRange(
            first=int(a) + 1,
            last=int(z),
            kappa=int(chosen[a]),
            speedup_first=float(reached[a]),
            speedup_last=float(reached[z - 1]),
        )
        for a, z in zip([0, *borders], [*borders, last], strict=True)
    )
    return ContextSchedule(
        context_len=context,
        ranges=ranges,
        fixed_kappa=fixed,
        speedup=float(np.exp(np.log(reached[spread]).mean())),
        fixed_speedup=float(np.exp(means[fixed])),
    )


def _steady(gain: FloatArray, margin: float) -> npt.NDArray[np.int64]:
    """Best length per batch that changes from one batch to the next only for more than `margin`.

    Invariant: the chosen length is never more than `margin` behind the best one at its batch.
    """
    chosen = np.empty(gain.shape[0], np.int64)
    current = int(gain[0].argmax())
    for i, row in enumerate(gain):
        best = int(row.argmax())
        if row[best] > row[current] * (1 + margin):
            current = best
        chosen[i] = current
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    target: str
    draft: str | None


def checkpoint(model: Model) -> str:
    """Repository of a model on Hugging Face where its source names one, else its name.

    >>> from specplan.values.formats import lookup
    >>> checkpoint(Model(name="x", source="https://huggingface.co/org/repo/blob/main/config.json", hidden_size=1,
    ...     vocab_size=1, tied_embeddings=True, layers=(), weight_format=lookup("bf16")))
    'org/repo'
    """
    found = re.match(r"https://huggingface\.co/([^/]+/[^/]+)", model.source)
    return found[1] if found else model.name


def _draft_checkpoint(source: StepSource) -> str | None:
    if source.kind == "model" and source.model is not None:
        return checkpoint(source.model)
    if source.name in HEADS:
        return None if source.kind == "mtp" else HEAD_PATH
    return source.name if source.is_model else None  # a trained head, named by its path


Written = tuple[Mapping[str, Any], Mapping[str, str], Mapping[str, str], tuple[str, ...]]


def _vllm(
    setting: Setting, source: StepSource, plan: ContextSchedule, names: _Names, last: int, dynamic: bool
) -> Written:
    """Write vLLM 0.32's ``--speculative-config`` and the command around it."""
    longest = max(r.kappa for r in plan.ranges)
    method = {"model": "draft_model", "ngram-host": "ngram", "ngram-gpu": "ngram_gpu"}.get(source.kind, source.kind)
    configuration: dict[str, Any] = {"method": method}
    if names.draft is not None:
        configuration["model"] = names.draft
    configuration["num_speculative_tokens"] = max(longest, 1)
    if source.kind == "model":
        configuration["draft_tensor_parallel_size"] = setting.on.tp
    if dynamic and len(plan.ranges) > 1:
        configuration["num_speculative_tokens_per_batch_size"] = [[r.first, r.last, r.kappa] for r in plan.ranges]
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "0"} if source.kind == "ngram-host" else {}
    command = ["vllm", "serve", names.target]
    if setting.on.tp > 1:
        command += ["--tensor-parallel-size", str(setting.on.tp)]
    command += ["--gpu-memory-utilization", f"{setting.gpu_memory_utilization:g}", "--max-num-seqs", str(last)]
    if setting.kv_format is not None:
        command += ["--kv-cache-dtype", setting.kv_format.name]
    if longest > 0:
        command += ["--speculative-config", json.dumps(configuration)]
    else:
        configuration = {}
    return configuration, {}, environment, tuple(command)


def _sglang(
    setting: Setting, source: StepSource, plan: ContextSchedule, names: _Names, last: int, dynamic: bool
) -> Written:
    """Write SGLang 0.5.23's flags and its adaptive file, whose keys are the batches from which steps apply."""
    longest = max(r.kappa for r in plan.ranges)
    algorithm = {"model": "STANDALONE", "mtp": "NEXTN"}.get(source.kind, source.kind.upper())
    command = ["python", "-m", "sglang.launch_server", "--model-path", names.target, "--tp-size", str(setting.on.tp)]
    command += ["--max-running-requests", str(last)]
    if setting.kv_format is not None:
        command += ["--kv-cache-dtype", setting.kv_format.name]
    if longest == 0:
        return {}, {}, {}, tuple(command)
    nodes = source.nodes or longest + 1
    flags = {"speculative-algorithm": algorithm}
    if source.is_model and names.draft is not None:
        flags["speculative-draft-model-path"] = names.draft
    if source.kind != "ngram":
        flags |= {"speculative-num-steps": str(longest), "speculative-eagle-topk": str(source.topk)}
    flags["speculative-num-draft-tokens"] = str(nodes)
    files: dict[str, str] = {}
    configuration: dict[str, Any] = {}
    if dynamic and len(plan.ranges) > 1:
        configuration = {str(r.first): {"candidate_steps": [r.kappa]} for r in plan.ranges}
        files["adaptive.json"] = json.dumps(configuration, indent=2)
        flags["speculative-adaptive-config"] = "adaptive.json"
    for flag, value in flags.items():
        command += [f"--{flag}", value]
    if files:
        command.append("--speculative-adaptive")
    return configuration or flags, files, {}, tuple(command)


def _warnings(
    setting: Setting,
    source: StepSource,
    schedules: Sequence[ContextSchedule],
    temperature: float,
    dynamic: bool,
    names: _Names,
) -> list[str]:
    found = []
    if len({tuple((r.first, r.last, r.kappa) for r in s.ranges) for s in schedules}) > 1:
        found.append(
            f"the contexts want different schedules; the configuration is that of context {schedules[0].context_len}, "
            "since engines schedule by batch alone"
        )
    if names.draft == HEAD_PATH:
        found.append(f"replace {HEAD_PATH} by the checkpoint of a trained head (--draft-path)")
    if all(r.kappa == 0 for s in schedules for r in s.ranges):
        found.append("no draft length pays at any batch: the command serves without speculation")
    engine = setting.on.engine.name
    rules = _VLLM_WARNINGS if engine == "vllm" else _SGLANG_WARNINGS
    found += [text for applies, text in rules if applies(source, dynamic, temperature)]
    if source.model is not None and source.own_head and source.model.vocab_size != setting.target.vocab_size:
        found.append(
            f"vocabularies differ ({source.model.vocab_size} and {setting.target.vocab_size}): "
            + (
                "vLLM refuses the pair unless use_heterogeneous_vocab is set (older runner, greedy drafts only)"
                if engine == "vllm"
                else "SGLang refuses the pair"
            )
        )
    return found


def _uses_one_hot(source: StepSource, temperature: float) -> bool:
    return temperature > 0 and (source.kind == "model" or source.kind in HEADS)


_VLLM_WARNINGS: Final = (
    (
        lambda s, dynamic, _: s.kind == "model" and dynamic,
        "vLLM 0.32 makes all drafting passes of a stand-alone draft model whatever length is scheduled: a shorter "
        "length saves verification only, and 0 still drafts",
    ),
    (
        lambda s, _, __: s.kind == "model",
        "the default runner drafts without CUDA graphs: small drafts cost more than their bytes (counted here)",
    ),
    (
        lambda s, _, __: s.kind == "ngram",
        "the default runner's n-gram fills every step with the full draft length, matches or not, takes the most "
        "recent match, and keeps max_num_seqs x max_model_len x 4 bytes of token ids on each card",
    ),
    (
        lambda s, _, __: s.kind == "ngram-host",
        "the host matcher needs the older runner (VLLM_USE_V2_MODEL_RUNNER=0) and switches asynchronous scheduling off",
    ),
    (
        lambda s, _, __: s.kind == "suffix",
        "suffix decoding needs the package arctic-inference, runs on the older runner without asynchronous scheduling, "
        "and cannot change its length with the batch",
    ),
    (
        lambda _s, dynamic, _t: dynamic,
        "the schedule counts scheduled requests, prefills included; vLLM ignores it with data parallelism above 1",
    ),
    (
        lambda s, _, t: _uses_one_hot(s, t),
        "at temperature above 0 the default draft_sample_method greedy verifies one-hot drafts: alpha is the target's "
        "mean probability of the draft's argmax, below that of probabilistic",
    ),
    (
        lambda s, _, __: s.kind != "none",
        "vLLM warns below 8192 --max-num-batched-tokens with speculation; a verify step takes 1 + k tokens per request",
    ),
)

_SGLANG_WARNINGS: Final = (
    (
        lambda s, dynamic, _: not dynamic and s.kappa is None,
        "SGLang 0.5.23 adapts steps for EAGLE and EAGLE3 with top-k 1 only: one length serves all batches",
    ),
    (
        lambda s, _, __: s.kind == "ngram",
        "SGLang's NGRAM verifies its full node budget in every step and indexes generated text, not prompts: an alpha "
        "measured with vLLM's n-gram does not transfer",
    ),
    (
        lambda s, _, __: s.kind == "model",
        "SGLang budgets a stand-alone draft's cache by the ratio of layers, not by its own heads, and refuses drafts "
        "whose tokenizer differs",
    ),
    (
        lambda _s, dynamic, _t: dynamic,
        "one candidate per batch slot keeps the schedule as planned; more candidates let SGLang move by acceptance",
    ),
    (
        lambda s, _, t: _uses_one_hot(s, t),
        "at temperature above 0 SGLang accepts a draft with its target probability, whatever the draft's: alpha is the "
        "target's mean probability of the drafted token",
    ),
    (
        lambda s, _, __: s.kind != "none",
        "without --max-running-requests SGLang caps speculation at 48 running requests",
    ),
)
