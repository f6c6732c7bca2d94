"""What `specplan blocks` was asked, turned into the planner's arguments; loading by name happens here."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from specplan.decide.cautions import speculation_cautions
from specplan.decide.startup_log import Told, card_called
from specplan.decide.step_setting import drafting_of
from specplan.decide.step_source import head_for
from specplan.errors import InputError
from specplan.memory.blocks import BlocksReport, sglang_blocks, vllm_blocks
from specplan.memory.pool import Drafting, sglang_drafting, vllm_drafting
from specplan.memory.sglang import SglangFlags
from specplan.memory.speculative import (
    SglangSpeculation,
    Speculation,
    parse_speculative_config,
    sglang_speculation,
)
from specplan.memory.vllm import VllmFlags, with_encoder_budget
from specplan.specs.catalog import load_draft
from specplan.specs.served import served
from specplan.values.draft_methods import draft_method
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import HEADS, Source

DEFAULT_TOKENS = 5
"""Drafted tokens assumed with --draft alone; stated among the assumptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRequest:
    """The command line, unit-converted; `common`, `vllm` and `sglang` hold flags under the planner's names."""

    target: str | None
    draft: str | None
    gpu: str | None
    gpu_memory: float | None
    engine: str
    engine_version: str | None
    common: Mapping[str, Any]
    vllm: Mapping[str, Any]
    sglang: Mapping[str, Any]
    speculative_config: str | None
    kappa: int | None
    algorithm: str | None
    algorithm_draft: str | None
    num_steps: int | None
    eagle_topk: int | None
    num_draft_tokens: int | None
    source: Source | None = None


def predict_blocks(request: BlocksRequest) -> BlocksReport:
    """The pools that an engine would size, without and with what drafts."""
    if request.target is None:
        raise InputError("name a target, such as llama3-70b, or give --from-log (list targets: specplan models)")
    card = card_called(request.gpu or (None if request.gpu_memory else "h100-sxm"), request.gpu_memory)
    model = served(request.target, request.common.get("quantization")).model
    spoken = (request.draft, request.speculative_config, request.algorithm, request.algorithm_draft)
    if request.source is not None and any(spoken):
        raise InputError("give either --source or the engine's own words for what drafts")
    if request.engine == "vllm":
        return _vllm(request, model, card)
    if request.engine == "sglang":
        return _sglang(request, model, card)
    raise InputError(f"--engine {request.engine}: one of vllm, sglang")


_VLLM_ALONE: Final = {
    "dcp": "--decode-context-parallel-size",
    "pcp": "--prefill-context-parallel-size",
    "dp": "--data-parallel-size",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "num_gpu_blocks_override": "--num-gpu-blocks-override",
    "enable_prefix_caching": "--enable-prefix-caching",
    "state_dtype": "--mamba-ssm-cache-dtype",
    "state_cache": "--mamba-cache-mode",
    "hybrid_kv_cache_manager": "--disable-hybrid-kv-cache-manager",
    "custom_all_reduce": "--enable-custom-all-reduce",
    "offline": "--offline",
    "multimodal_tokens": "--multimodal-tokens",
    "multimodal_values": "--multimodal-values",
    "extra_weights": "--extra-weights",
    "activation_peak": "--activation-peak",
    "non_torch": "--non-torch",
    "cuda_graph": "--cuda-graphs",
}
"""Flags that the prediction of SGLang does not read, by the planner's names."""


def _sglang_alone(request: BlocksRequest) -> dict[str, Any]:
    """Flags that only SGLang has, as they were given."""
    return {
        "--max-total-tokens": request.sglang.get("max_total_tokens"),
        "--free-before-load": request.sglang.get("free_before_load"),
        "--speculative-draft-model-path": request.algorithm_draft,
        "--speculative-num-steps": request.num_steps,
        "--speculative-eagle-topk": request.eagle_topk,
        "--speculative-num-draft-tokens": request.num_draft_tokens,
    }


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _vllm(request: BlocksRequest, model: Model, card: Accelerator) -> BlocksReport:
    if request.algorithm is not None:
        raise InputError("--speculative-algorithm is SGLang's; vLLM takes --speculative-config")
    if request.sglang.get("mem_fraction_static") is not None:
        raise InputError("--mem-fraction-static is SGLang's; vLLM takes --gpu-memory-utilization")
    for flag, value in _sglang_alone(request).items():
        if value is not None:
            raise InputError(f"{flag} is SGLang's; --engine vllm has none")
    if request.kappa is not None and request.draft is None and request.source is None:
        raise InputError("-k belongs to --draft; other methods state num_speculative_tokens in --speculative-config")
    flags = VllmFlags(**_given({**request.common, **request.vllm, "version": request.engine_version}))
    model, flags, note = _with_tower(request, model, flags, card)
    speculation = _vllm_speculation(request, flags, model)
    draft = None
    if speculation is not None and speculation.model is not None and speculation.has_draft_model:
        draft = load_draft(speculation.model, model)
        if request.draft is not None and draft.draft_method:
            # A checkpoint of a head is no stand-alone draft model, whatever option names it.
            method = draft_method(draft.draft_method)
            speculation = replace(speculation, method=method.vllm or method.name, parallel_drafting=method.one_pass)
    if request.source is not None:
        speculation, draft = vllm_drafting(_drafting(request, request.source, model), model)
    report = vllm_blocks(model, card, flags, speculation, draft)
    report = _cautioned(report, model, draft, speculation)
    return _noted(_with_assumed_tokens(report, request), note)


def _drafting(request: BlocksRequest, source: Source, target: Model) -> Drafting:
    """What drafts, by a source; a head that is named by its method alone is made for the target."""
    if source.kind in HEADS and source.model is None:
        source = replace(source, model=head_for(source, target))
    return drafting_of(source, source.kappa or request.kappa or DEFAULT_TOKENS, request.engine)


def _with_tower(
    request: BlocksRequest, model: Model, flags: VllmFlags, card: Accelerator
) -> tuple[Model, VllmFlags, str]:
    """The model with the vision tower that its config puts beside it, and what the profile run sends there."""
    found = served(request.target or "")
    tower, note = found.tower, "; ".join(found.notes)
    if tower is None or flags.language_model_only:
        return model, flags, note
    if tower.image_tokens is not None:
        flags = with_encoder_budget(flags, card, tower.image_tokens, tower.image_values, tower.peak_numbers)
    else:
        note = "the vision encoder's share of the activation peak is not counted (give --multimodal-tokens)"
    return replace(model, extra=(*model.extra, *tower.weights)), flags, note


def _cautioned(
    report: BlocksReport, model: Model, draft: Model | None, speculation: Speculation | SglangSpeculation | None
) -> BlocksReport:
    """The report with what its user should know of the draft."""
    if report.speculative is None:
        return report
    found = speculation_cautions(model, draft, speculation, report.speculative.max_model_len)
    told = (*report.speculative.assumptions, *(f"caution: {line}" for line in found))
    return replace(report, speculative=replace(report.speculative, assumptions=told))


def _noted(report: BlocksReport, note: str) -> BlocksReport:
    if not note:
        return report
    plain = replace(report.plain, assumptions=(*report.plain.assumptions, note))
    if report.speculative is None:
        return replace(report, plain=plain)
    with_draft = replace(report.speculative, assumptions=(*report.speculative.assumptions, note))
    return replace(report, plain=plain, speculative=with_draft)


def _vllm_speculation(request: BlocksRequest, flags: VllmFlags, model: Model) -> Speculation | None:
    if request.speculative_config is not None and request.draft is not None:
        raise InputError("give either --draft or --speculative-config")
    modules = len(model.mtp_layers)
    if request.speculative_config is not None:
        return parse_speculative_config(
            request.speculative_config,
            tp=flags.tp,
            max_model_len=flags.max_model_len,
            mtp_modules=modules,
            version=flags.version,
        )
    if request.draft is None:
        return None
    tokens = DEFAULT_TOKENS if request.kappa is None else request.kappa
    config = {"method": "draft_model", "model": request.draft, "num_speculative_tokens": tokens}
    # The name of a spec is not a path: a draft called by --draft is a draft model whatever it is called.
    parsed = parse_speculative_config(config, tp=flags.tp, max_model_len=flags.max_model_len)
    return replace(parsed, method="draft_model")


def _with_assumed_tokens(report: BlocksReport, request: BlocksRequest) -> BlocksReport:
    told = request.kappa is not None or (request.source is not None and request.source.kappa is not None)
    if report.speculative is None or told or (request.draft is None and request.source is None):
        return report
    note = f"num_speculative_tokens {DEFAULT_TOKENS} (give -k)"
    return replace(report, speculative=replace(report.speculative, assumptions=(*report.speculative.assumptions, note)))


def _refuse_what_sglang_has_not(request: BlocksRequest) -> None:
    if request.speculative_config is not None:
        raise InputError("--speculative-config is vLLM's; SGLang takes --speculative-algorithm")
    if request.vllm.get("gpu_memory_utilization") is not None:
        raise InputError("--gpu-memory-utilization is vLLM's; SGLang takes --mem-fraction-static")
    defaults = VllmFlags()
    for field, flag in _VLLM_ALONE.items():
        if request.vllm.get(field) not in (None, getattr(defaults, field)):
            raise InputError(f"{flag} is not taken with --engine sglang")
    if request.kappa is not None and not (request.algorithm_draft or request.draft or request.source):
        raise InputError("-k belongs to --draft; SGLang's own flag is --speculative-num-steps")
    if request.algorithm is None and request.algorithm_draft is None and request.draft is None:
        for flag in ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"):
            if _sglang_alone(request)[flag] is not None:
                raise InputError(f"{flag} needs --speculative-algorithm")


def _sglang(request: BlocksRequest, model: Model, card: Accelerator) -> BlocksReport:
    _refuse_what_sglang_has_not(request)
    flags = SglangFlags(**_given({**request.common, **request.sglang, "version": request.engine_version}))
    name = request.algorithm
    path = request.algorithm_draft or request.draft
    draft = None if path is None else load_draft(path, model)
    if name is None and draft is not None:
        name = draft_method(draft.draft_method or "model").sglang
        if name is None:
            raise InputError(f"SGLang drafts with no {draft.draft_method} head")
    speculation = None
    if name is not None:
        steps = request.num_steps if request.num_steps is not None else request.kappa
        speculation = sglang_speculation(
            name, path, num_steps=steps, eagle_topk=request.eagle_topk, num_draft_tokens=request.num_draft_tokens
        )
    if request.source is not None:
        speculation, draft = sglang_drafting(_drafting(request, request.source, model), model)
    report = _cautioned(sglang_blocks(model, card, flags, speculation, draft), model, draft, speculation)
    return _with_assumed_tokens(report, request)


def told_beside(request: BlocksRequest) -> Told:
    """What the user states beside a start-up log."""
    return Told(
        target=request.target,
        draft=request.draft,
        gpu=request.gpu,
        memory=request.gpu_memory,
        engine_version=request.engine_version,
        vllm=_given({**request.common, **request.vllm}),
        sglang=_given({**request.common, **request.sglang}),
    )
