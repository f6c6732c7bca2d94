"""A start-up log beside its prediction: the layout from its own bytes first, then everything from flags alone.

Flags and log are one path: what the user states outranks the log, what the log states outranks defaults, and model,
tower and encoder budget are found as they are for ``specplan blocks MODEL``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from specplan.errors import InputError, SpecplanError
from specplan.memory.prediction import PoolPrediction
from specplan.memory.sglang import predict_sglang
from specplan.memory.speculative import SglangSpeculation, Speculation
from specplan.memory.startup_check import (
    StartupCheck,
    card_of,
    check_startup,
    nameless_card,
    sglang_flags_of,
    speculation_of,
    stand_in_card,
    vllm_flags_of,
)
from specplan.memory.vllm import VllmFlags, predict_vllm, with_encoder_budget
from specplan.records.startup import StartupLog
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator, memory_facts
from specplan.specs.served import Served, served
from specplan.units import GIB
from specplan.values.hardware import Accelerator
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the user says beside a log; None and empty where nothing is said.

    Attributes
    ----------
    target, draft, gpu : str or None
    memory : float or None
        The card's memory, bytes.
    engine_version : str or None
    vllm, sglang : mapping
        Flags that were given, under the planner's names.
    """

    target: str | None = None
    draft: str | None = None
    gpu: str | None = None
    memory: float | None = None
    engine_version: str | None = None
    vllm: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    sglang: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def check_log(log: StartupLog, source: str, told: Told) -> StartupCheck:
    """A log beside its prediction; what keeps it from being predicted becomes a note, not an end.

    Raises
    ------
    InputError
        Where what the user names is the reason.
    """
    notes: list[str] = []
    log = _with_refused_bytes(log)
    given = predicted = None
    ways: tuple[str, ...] = ()
    try:
        target = _target(log, told)
        notes += target.notes
        start = _Start.of(log, told, target)
        given = start.from_printed_bytes()
        predicted = start.from_flags()
        if log.refusals and predicted is not None:
            ways = start.ways_to_start(predicted, (given or predicted).longest)
    except SpecplanError as error:
        if told.target is not None and given is None and not isinstance(error, InputError):
            raise
        notes.append(f"not predicted: {error}")
    check = check_startup(log, source, predicted, given)
    return replace(check, notes=(*check.notes, *notes), alternatives=ways)


def _with_refused_bytes(log: StartupLog) -> StartupLog:
    """The log with the cache that its refusal counts, where no line of its own prints it."""
    if log.of("kv_available_bytes") or not log.of("refused_bytes"):
        return log
    more = tuple(replace(r, term="kv_available_bytes") for r in log.of("refused_bytes"))
    return replace(log, readings=(*log.readings, *more))


def _target(log: StartupLog, told: Told) -> Served:
    name = told.target if told.target is not None else log.settings.get("model")
    if not isinstance(name, str):
        raise InputError("the log does not name its model; name it: specplan blocks MODEL --from-log ...")
    asked = told.vllm.get("quantization") or log.settings.get("quantization")
    return served(name, asked if isinstance(asked, str) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """One start with everything that is known of it."""

    log: StartupLog
    told: Told
    target: Served
    card: Accelerator | None
    speculation: Speculation | SglangSpeculation | None
    draft: Model | None

    @classmethod
    def of(cls, log: StartupLog, told: Told, target: Served) -> "_Start":
        speculation = speculation_of(log, mtp_modules=len(target.model.mtp_layers))
        wrong = SglangSpeculation if log.engine == "vllm" else Speculation
        if isinstance(speculation, wrong):
            raise InputError(f"another engine's speculation in a log of {log.engine}")
        card = None if told.gpu is None and told.memory is None else card_called(told.gpu, told.memory)
        draft = _draft(log, told, speculation)
        return cls(log=log, told=told, target=target, card=card, speculation=speculation, draft=draft)

    def flags(self, card: Accelerator) -> tuple[Model, VllmFlags]:
        """The model with its tower, and flags of vLLM after the log and the user."""
        told = {**self.told.vllm}
        if self.told.engine_version is not None:
            told["version"] = self.told.engine_version
        flags = replace(vllm_flags_of(self.log), **told)
        tower = self.target.tower
        if tower is None or flags.language_model_only:
            return self.target.model, flags
        if tower.image_tokens is not None:
            flags = with_encoder_budget(flags, card, tower.image_tokens, tower.image_values, tower.peak_numbers)
        return self.target.whole, flags

    def predict(self, card: Accelerator, **more: Any) -> PoolPrediction:
        """The pool on a card."""
        if self.log.engine == "sglang":
            told = {**self.told.sglang}
            if self.told.engine_version is not None:
                told["version"] = self.told.engine_version
            flags = replace(sglang_flags_of(self.log), **told)
            assert not isinstance(self.speculation, Speculation)  # noqa: S101 - refused in `of`, for the type checker
            return predict_sglang(self.target.whole, card, replace(flags, **more), self.speculation, self.draft)
        assert not isinstance(self.speculation, SglangSpeculation)  # noqa: S101 - the same
        model, vllm = self.flags(card)
        return predict_vllm(model, card, replace(vllm, **more), self.speculation, self.draft)

    def from_printed_bytes(self) -> PoolPrediction | None:
        """Layout alone: it needs no card and no total, only what kind of card it is."""
        card = self.card or _with_facts(stand_in_card(self.log))
        printed = self.log.value("kv_available_bytes")
        if self.log.engine == "sglang":
            pools = ("pool_key_bytes", "pool_bytes", "whole_pool_bytes")
            if not any(self.log.of(term) for term in pools):
                return None
            free = self.log.value("free_at_start_bytes") or float(1 << 40)
            return self.predict(card, free_before_load=max(free, float(1 << 40)), mem_fraction_static=0.9)
        return None if printed is None else self.predict(card, kv_cache_memory_bytes=round(printed))

    def from_flags(self) -> PoolPrediction | None:
        """Everything from model and flags."""
        card = _with_facts(card_of(self.log, self.card))
        if card.family == "cpu" and self.log.value("kv_available_bytes") is not None:
            return None  # nothing but the printed bytes sizes a pool in host memory
        return self.predict(card)

    def ways_to_start(self, now: PoolPrediction, longest: int) -> tuple[str, ...]:
        """Single changes after which vLLM is predicted to start, each with the cache it would have.

        The printed cache, where the log has it, moves by what the prediction moves.
        """
        if self.log.engine != "vllm":
            return (
                "a larger --mem-fraction-static, a smaller --context-length or --max-running-requests, or more ranks",
            )
        if self.log.of("oom_bytes"):
            return _after_out_of_memory(self.log, now)
        card = _with_facts(card_of(self.log, self.card))
        printed = self.log.value("kv_available_bytes")
        flags = self.flags(card)[1]
        tries: list[tuple[str, dict[str, Any]]] = []
        longest = min(int(self.log.value("longest_request") or longest), longest)
        if longest:
            tries.append((f"--max-model-len {longest}", {"max_model_len": longest}))
        tries += [
            ("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}),
            ("--gpu-memory-utilization 0.95", {"gpu_memory_utilization": 0.95}),
            ("--max-num-batched-tokens 2048", {"max_num_batched_tokens": 2048}),
            ("--enforce-eager", {"enforce_eager": True}),
            (f"--tensor-parallel-size {2 * flags.tp}", {"tp": 2 * flags.tp}),
        ]
        found = []
        for name, change in tries:
            try:
                new = self.predict(card, **change)
                cache = new.rank.available.best
                if printed is not None:
                    cache += printed - now.rank.available.best
                    new = self.predict(card, **change, kv_cache_memory_bytes=max(int(cache), 1))
            except SpecplanError:
                continue
            if new.refusal is None:
                found.append(f"{name}: {cache / GIB:.2f} GiB of cache (modelled)")
        return tuple(found)


def _after_out_of_memory(log: StartupLog, now: PoolPrediction) -> tuple[str, ...]:
    """What an allocation that failed asks for, by its phase: loading, the profile run, graph capture."""
    rank = now.rank
    if any(log.of(term) for term in ("kv_tokens", "num_gpu_blocks", "max_concurrency")):
        what = f"graph capture, {rank.cuda_graph.best / GIB:.2f} GiB modelled: a smaller --gpu-memory-utilization"
        return (f"less memory in {what}, fewer capture sizes, or --enforce-eager",)
    if log.of("weights_bytes"):
        what = f"{rank.activation_peak.best / GIB:.2f} GiB modelled at its peak"
        return (f"less memory in the profile run, {what}: a smaller --max-num-batched-tokens or --max-num-seqs",)
    return (f"fewer weights on a rank, {rank.weights.best / GIB:.2f} GiB: --tensor-parallel-size, or quantised",)


def card_called(name: str | None, memory: float | None) -> Accelerator:
    """A card by name, by its memory alone, or by both: the memory is then the stated one."""
    if name is None:
        return _with_facts(nameless_card(memory))
    card = load_accelerator(name)
    return card if memory is None else replace(card, memory_driver_bytes=memory, memory_torch_bytes=memory)


def _with_facts(card: Accelerator) -> Accelerator:
    """A card that is known by its family alone, with that family's facts."""
    if card.memory_facts.family or not card.family:
        return card
    return replace(card, memory_facts=memory_facts(card.family, unified=card.family == "unified"))


def _draft(log: StartupLog, told: Told, speculation: Speculation | SglangSpeculation | None) -> Model | None:
    name = told.draft
    if isinstance(speculation, Speculation):
        name = name or (speculation.model if speculation.has_draft_model else None)
        if speculation.method == "mtp" and name == log.settings.get("model"):
            name = None  # the head comes from the target's own checkpoint
    elif speculation is not None:
        name = name or speculation.draft_model
    return None if name is None else load_model(name)
