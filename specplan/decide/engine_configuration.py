"""A schedule written as vLLM and SGLang read it, with the command around it and the warnings that apply.

Source of what the engines accept and warn of: vLLM 0.32 fact sheet, sections 0 to 4, 6.3 and 9; SGLang 0.5.23 fact
sheet, section 3.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from specplan.decide.step_setting import Setting
from specplan.values.draft_methods import draft_method
from specplan.values.model import Model
from specplan.values.source import HEADS, Source

ENGINES: Final = ("vllm", "sglang")

HEAD_PATH: Final = "PATH-OF-THE-TRAINED-HEAD"
"""Stands where only the user knows the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KappaRange:
    """Batches `first` to `last`, both included, that draft `kappa` tokens; the speedup at both ends."""

    first: int
    last: int
    kappa: int
    speedup_first: float
    speedup_last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What the command loads: the target and, where there is one, the draft."""

    target: str
    draft: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """An engine's settings, the files that it reads, and the command that starts it.

    Attributes
    ----------
    settings : mapping
        vLLM's speculative configuration, or SGLang's adaptive file or flags; empty without speculation.
    files : mapping of str to str
        Name -> content of files that the command names.
    environment : mapping of str to str
        Variables that the command needs.
    command : tuple of str
        Words of the command.
    """

    command: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The command as one line for a POSIX shell."""
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.environment.items()), shlex.join(self.command)])


def checkpoint(model: Model) -> str:
    """Repository of a model on Hugging Face where its source names one, else its name.

    >>> from specplan.values.formats import lookup
    >>> checkpoint(Model(name="x", source="https://huggingface.co/org/repo/blob/main/config.json", hidden_size=1,
    ...     vocab_size=1, tied_embeddings=True, layers=(), weight_format=lookup("bf16")))
    'org/repo'
    """
    found = re.match(r"https://huggingface\.co/([^/]+/[^/]+)", model.source)
    return found[1] if found else model.name


def draft_checkpoint(source: Source) -> str | None:
    """Checkpoint of what drafts; None where nothing has to be loaded."""
    if source.kind == "model" and source.model is not None:
        return checkpoint(source.model)
    if source.name in HEADS:
        return None if source.kind == "mtp" else HEAD_PATH
    return source.name if source.is_model else None  # a trained head, named by its path


def prediction_modules(setting: Setting, source: Source) -> int:
    """Prediction modules that vLLM takes turns with: beyond their number it drafts only multiples of it."""
    cut_from_target = source.kind == "mtp" and setting.on.engine.name == "vllm"
    return max(len(setting.target.mtp_layers), 1) if cut_from_target else 1


def configure(
    setting: Setting,
    source: Source,
    ranges: Sequence[KappaRange],
    names: Checkpoints,
    last: int,
    dynamic: bool,
    longest: int,
) -> Configuration:
    """Write the ranges for the setting's engine, for up to `last` requests.

    `dynamic` says whether the engine can follow the ranges; otherwise they are one. `longest` is the longest request
    for which it starts: vLLM refuses a model whose own limit is longer, unless it is told.
    """
    if setting.on.engine.name != "vllm":
        return _sglang(setting, source, ranges, names, last, dynamic)
    found = _vllm(setting, source, ranges, names, last, dynamic)
    limit = setting.target.max_position
    if limit is None or longest >= limit:
        return found
    return replace(found, command=(*found.command, "--max-model-len", str(longest)))


def _vllm(
    setting: Setting, source: Source, ranges: Sequence[KappaRange], names: Checkpoints, last: int, dynamic: bool
) -> Configuration:
    """Write vLLM 0.32's ``--speculative-config`` and the command around it."""
    longest = max(r.kappa for r in ranges)
    configuration: dict[str, Any] = {"method": draft_method(source.kind).vllm}
    if names.draft is not None:
        configuration["model"] = names.draft
    modules = prediction_modules(setting, source)
    configured = longest if longest <= modules else -(-longest // modules) * modules
    configuration["num_speculative_tokens"] = max(configured, 1)
    if source.kind == "model":
        configuration["draft_tensor_parallel_size"] = setting.on.tp
    if source.adaptive is not None and source.kind == ADAPTIVE:
        configuration["enable_adaptive_verification"] = True
    elif dynamic and (len(ranges) > 1 or configured > longest):
        configuration["num_speculative_tokens_per_batch_size"] = [[r.first, r.last, r.kappa] for r in ranges]
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "0"} if source.kind == "ngram-host" else {}
    command = ["vllm", "serve", names.target]
    if setting.on.tp > 1:
        command += ["--tensor-parallel-size", str(setting.on.tp)]
    if setting.gpu_memory_utilization is not None:
        command += ["--gpu-memory-utilization", f"{setting.gpu_memory_utilization:g}"]
    command += ["--max-num-seqs", str(last)]
    if setting.kv_format is not None:
        command += ["--kv-cache-dtype", setting.kv_format.name]
    if longest > 0:
        command += ["--speculative-config", json.dumps(configuration)]
    else:
        configuration = {}
    return Configuration(settings=configuration, environment=environment, command=tuple(command))


def _sglang(
    setting: Setting, source: Source, ranges: Sequence[KappaRange], names: Checkpoints, last: int, dynamic: bool
) -> Configuration:
    """Write SGLang 0.5.23's flags and its adaptive file, whose keys are the batches from which steps apply."""
    longest = max(r.kappa for r in ranges)
    algorithm = draft_method(source.kind).sglang or source.kind.upper()
    command = ["python", "-m", "sglang.launch_server", "--model-path", names.target, "--tp-size", str(setting.on.tp)]
    if setting.gpu_memory_utilization is not None:
        command += ["--mem-fraction-static", f"{setting.gpu_memory_utilization:g}"]
    command += ["--max-running-requests", str(last)]
    if setting.kv_format is not None:
        # SGLang knows fp8 by its layout of bits only.
        command += ["--kv-cache-dtype", {"fp8": "fp8_e4m3"}.get(setting.kv_format.name, setting.kv_format.name)]
    if longest == 0:
        return Configuration(command=tuple(command))
    nodes = source.nodes or longest + 1
    flags = {"speculative-algorithm": algorithm}
    if source.is_model and names.draft is not None:
        flags["speculative-draft-model-path"] = names.draft
    if source.kind != "ngram":
        flags |= {"speculative-num-steps": str(longest), "speculative-eagle-topk": str(source.topk)}
    flags["speculative-num-draft-tokens"] = str(nodes)
    files: dict[str, str] = {}
    configuration: dict[str, Any] = {}
    if dynamic and len(ranges) > 1:
        configuration = {str(r.first): {"candidate_steps": [r.kappa]} for r in ranges}
        files["adaptive.json"] = json.dumps(configuration, indent=2)
        flags["speculative-adaptive-config"] = "adaptive.json"
    for flag, value in flags.items():
        command += [f"--{flag}", value]
    if files:
        command.append("--speculative-adaptive")
    return Configuration(settings=configuration or flags, files=files, command=tuple(command))


def engine_warnings(setting: Setting, source: Source, temperature: float, dynamic: bool) -> list[str]:
    """What the engine does with the source that its user should know, at requests of `temperature`."""
    found = []
    engine = setting.on.engine.name
    rules = _VLLM_WARNINGS if engine == "vllm" else _SGLANG_WARNINGS
    found += [text for applies, text in rules if applies(source, dynamic, temperature)]
    return found


def _uses_one_hot(source: Source, temperature: float) -> bool:
    return temperature > 0 and (source.kind == "model" or source.kind in HEADS)


ADAPTIVE: Final = "dspark"
"""The method for which vLLM 0.32 decides per step how much to verify; it needs a confidence head."""

_VLLM_WARNINGS: Final = (
    (
        lambda s, _, __: s.adaptive is not None and s.kind == ADAPTIVE,
        "adaptive verification needs full CUDA graphs of varied lengths (attention backends differ), the default "
        "runner, no LoRA and no pipeline parallelism; a length below the checkpoint's block is refused",
    ),
    (
        lambda s, _, __: s.adaptive is not None and s.kind != ADAPTIVE,
        "vLLM 0.32 decides per step for dspark alone: for this source the lengths by batch are what it offers",
    ),
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
        lambda s, _, __: s.adaptive is not None,
        "SGLang 0.5.23 verifies the whole draft in every step (a rule for DFlash2 is proposed in #36136): the lengths "
        "by batch are what it offers",
    ),
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
