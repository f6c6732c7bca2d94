r"""What vLLM will print at start-up: budget, terms, pages and the planner put together.

.. math:: \text{available} = \lceil \text{total} \cdot u \rceil - \text{weights} - \text{non-torch} -
    \text{activation peak} - \text{graphs} - \text{buffers}

Source: vLLM 0.32.0 (`v1/worker/gpu_worker.py`, `utils/mem_utils.py`, `config/`), older logs for older rules.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from specplan.errors import InfeasibleError, InputError
from specplan.formulas.pairing import check_pair
from specplan.memory.prediction import PoolPrediction, RankTerms, Span
from specplan.memory.rank_weights import WeightSettings, pipeline_stages, rank_weight_bytes
from specplan.memory.speculative import RUNNER_V1, SYNCHRONOUS, Speculation
from specplan.memory.vllm_kv import (
    CacheKind,
    CacheLayer,
    CachePlan,
    CacheSettings,
    StateCache,
    group_layers,
    log_lines,
    longest_request,
    plan_cache,
)
from specplan.memory.vllm_memory import (
    Estimate,
    RunShape,
    activation_peak,
    cuda_graphs,
    non_torch,
    process_memory,
)
from specplan.memory.vllm_pages import STEP, PageSettings, aligned_block_size, cache_layers
from specplan.units import GIB, LARGEST_COUNT
from specplan.values.draft_methods import named
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator, MemoryFacts, Remainder
from specplan.values.model import Attention, LatentAttention, Model, Recurrent
from specplan.values.vllm_versions import DEFAULT_VERSION, VllmRules, version_number, vllm_rules

QUANTIZATIONS: Final = {
    "fp8": "fp8", "awq": "int4-awq-g128", "awq_marlin": "int4-awq-g128", "gptq": "int4-gptq-g128",
    "gptq_marlin": "int4-gptq-g128", "mxfp4": "mxfp4", "modelopt": "fp8", "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4",
    "bitsandbytes": "bnb-nf4", "int8": "int8", "w8a8": "int8", "mxfp8": "mxfp8", "fp8_block": "fp8-block128",
}  # fmt: skip
"""``--quantization`` -> storage format, for checkpoints that do not state their own."""

DTYPES: Final = ("bfloat16", "float16", "float32")
"""Formats of ``--dtype`` beside ``auto``; ``half`` and ``float`` are other names of two of them."""

DRIVER_ONLY: Final = (0.40, 0.50, 0.75)
"""GiB that the driver reports and torch does not see: least, usual, most of nine cards from T4 to H100."""

TOWERS: Final = frozenset({"vision", "audio"})
"""Components beside the decoder."""

CACHE_DTYPES: Final = (
    "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4", "nvfp4_ds_mla",
    "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
)  # fmt: skip
"""What vLLM takes for ``--kv-cache-dtype`` and is known here."""

SHARED_CACHE: Final = ("gemma4",)
"""Families whose assistants (``mtp`` with a model) read the target's cache and keep none."""

HEADS: Final = frozenset({"eagle", "eagle3", "dflash", "dspark"})
"""Methods whose draft is a head on the target's hidden states and shares its embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFlags:
    """vLLM's flags; None takes the version's default.

    Attributes
    ----------
    version : str
    tp, pp, dcp, pcp, dp : int
        Tensor, pipeline, decode context, prefill context and data parallel ranks. The last two hold whole caches of
        their own and share only the experts.
    expert_parallel : bool
    dtype, quantization, kv_cache_dtype : str
        vLLM's names; ``auto`` takes the model's own.
    gpu_memory_utilization : float or None
    max_model_len : int or None
        -1 fits the longest.
    max_num_seqs, max_num_batched_tokens, block_size : int or None
    enable_prefix_caching : bool or None
    enforce_eager : bool
    async_scheduling : bool or None
    hybrid_kv_cache_manager : bool
    num_gpu_blocks_override, kv_cache_memory_bytes : int or None
    state_dtype : str
        ``--mamba-ssm-cache-dtype``.
    state_cache : str or None
        ``--mamba-cache-mode``: ``none``, ``align`` or ``all``; None follows prefix caching.
    custom_all_reduce : bool or None
        None: where the card has a direct link.
    estimate_graphs : bool or None
        ``VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS``; None takes the version's default.
    offline : bool
        Started as the `LLM` class, whose batch defaults differ from the server's.
    multimodal_tokens, multimodal_values : int
        Encoder tokens and input numbers of the profile run.
    encoder_whole, encoder_split : float
        Numbers that the encoder holds at its own peak, whole on each rank and divided among them.
    language_model_only : bool
        Towers beside the decoder are neither loaded nor profiled.
    extra_weights : float
        Bytes of weights beside the decoder on every rank (a vision tower).
    weights, activation_peak, non_torch, cuda_graph : float or None
        Bytes that replace the modelled terms.
    """

    version: str = DEFAULT_VERSION
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    pcp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    enforce_eager: bool = False
    async_scheduling: bool | None = None
    hybrid_kv_cache_manager: bool = True
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    state_dtype: str = "auto"
    state_cache: str | None = None
    custom_all_reduce: bool | None = None
    estimate_graphs: bool | None = None
    offline: bool = False
    multimodal_tokens: int = 0
    multimodal_values: int = 0
    encoder_whole: float = 0.0
    encoder_split: float = 0.0
    language_model_only: bool = False
    extra_weights: float = 0.0
    weights: float | None = None
    activation_peak: float | None = None
    non_torch: float | None = None
    cuda_graph: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolved:
    """Flags after defaults, for one model, card and speculation."""

    flags: VllmFlags
    rules: VllmRules
    utilization: float
    max_model_len: int
    fit: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    state_cache: StateCache
    in_flight_tokens: int
    custom_all_reduce: bool
    graphs_in_budget: bool
    runner_v2: bool
    cpu: bool
    largest_capture: int
    packed_sparse_latents: bool
    facts: MemoryFacts
    assumptions: tuple[str, ...]


def predict_vllm(
    model: Model,
    card: Accelerator,
    flags: VllmFlags,
    speculation: Speculation | None = None,
    draft: Model | None = None,
) -> PoolPrediction:
    """Predict vLLM's pool.

    Parameters
    ----------
    model : Model
        The target as its checkpoint stores it.
    card : Accelerator
        `memory_torch_bytes` is what vLLM multiplies by the utilisation.
    flags : VllmFlags
    speculation : Speculation, optional
    draft : Model, optional
        The draft, where the method loads one; a multi-token prediction head comes from the target itself.

    Returns
    -------
    PoolPrediction
        With `refusal` set where vLLM would not start.

    Raises
    ------
    InputError
        For flags that vLLM refuses, or a card without a memory size.
    UnsupportedError
        For a version or a mixture of layers that is not known.

    Notes
    -----
    Weights are derived; activation peak, non-torch memory and graphs are modelled (`vllm_memory`). Not counted:
    fragmentation, LoRA slots, what other processes hold on the card.
    """
    require_counts(
        tp=flags.tp, pp=flags.pp, dcp=flags.dcp, pcp=flags.pcp, dp=flags.dp, block_size=flags.block_size,
        max_num_seqs=flags.max_num_seqs, max_num_batched_tokens=flags.max_num_batched_tokens,
        num_gpu_blocks_override=flags.num_gpu_blocks_override,
    )  # fmt: skip
    if flags.multimodal_tokens < 0 or flags.multimodal_values < 0:
        raise InputError("--multimodal-tokens and --multimodal-values must be at least 0")
    if flags.state_dtype != "auto" and lookup(flags.state_dtype).name not in DTYPES:
        raise InputError(f"--mamba-ssm-cache-dtype {flags.state_dtype}: one of auto, {', '.join(DTYPES)}")
    model = with_formats(model, flags.dtype, flags.quantization)
    if flags.language_model_only:
        model = replace(model, extra=tuple(w for w in model.extra if w.component not in TOWERS))
        flags = replace(flags, multimodal_tokens=0, multimodal_values=0, encoder_whole=0.0, encoder_split=0.0)
    draft = _draft_model(model, speculation, draft)
    if draft is not None and flags.pp > 1 and not draft.embedding and draft.layers:
        # A head stands on the last stage, the target's embedding on the first: the head keeps a copy.
        draft = replace(draft, embedding=True, tied_embeddings=False)
    s = _resolve(model, card, flags, speculation)
    k = speculation.num_speculative_tokens if speculation is not None else 0
    stages, block_size = _stage_layers(model, draft, speculation, s, k)
    total, requested = _budget(card, s)
    ranks = [_rank_terms(model, draft, speculation, s, stage, requested) for stage in range(flags.pp)]
    cache = CacheSettings(
        max_model_len=s.max_model_len,
        in_flight_tokens=s.in_flight_tokens,
        hybrid=flags.hybrid_kv_cache_manager,
        state_cache=s.state_cache,
        context_parallel=flags.dcp,
        blocks_override=flags.num_gpu_blocks_override,
        lookahead=max(0, k - 1) if speculation and speculation.method == "mtp" and len(model.mtp_layers) > 1 else 0,
        tokens_by_concurrency=s.rules.tokens_by_concurrency,
        fit=s.fit,
    )
    groups = group_layers([(layer, i) for i, layers in enumerate(stages) for layer in layers], cache)
    per_block = [max(group.bytes_per_block(i) for group in groups) for i in range(len(stages))]
    decisive = min(
        (i for i, size in enumerate(per_block) if size), key=lambda i: ranks[i].available.best // per_block[i]
    )
    plan: CachePlan | None = None
    refusal: str | None = None
    try:
        plan = plan_cache(stages, [math.floor(r.available.best) for r in ranks], cache)
    except InfeasibleError as error:
        refusal = str(error)
    held = min(int(r.available.best) // size for r, size in zip(ranks, per_block, strict=True) if size)
    spare = (held if flags.num_gpu_blocks_override is None else flags.num_gpu_blocks_override) - 1  # the null block
    limit = max(s.max_model_len, model.max_position or 0)
    longest = longest_request(groups, spare, replace(cache, max_model_len=limit))
    long = replace(cache, max_model_len=1 << 20)
    per_token = per_block[decisive] * sum(g.blocks_per_request(1 << 20, long) for g in groups) / (1 << 20)
    return PoolPrediction(
        engine="vllm",
        version=s.rules.version,
        settings=MappingProxyType(_shown(s, block_size)),
        total=total,
        requested=requested,
        ranks=tuple(ranks),
        decisive=decisive,
        blocks=_span(stages, ranks, cache, plan, lambda p: p.num_blocks),
        tokens=_span(stages, ranks, cache, plan, lambda p: p.tokens),
        concurrency=_span(stages, ranks, cache, plan, lambda p: p.max_concurrency),
        log_lines=() if plan is None else _words(plan, s),
        refusal=refusal,
        max_model_len=plan.max_model_len if plan else s.max_model_len,
        longest=longest,
        bytes_per_token=per_token,
        plan=plan,
        assumptions=s.assumptions,
        not_modeled=("memory fragmentation", "LoRA slots", "memory that other processes hold on the card"),
    )


def with_formats(model: Model, dtype: str, quantization: str | None) -> Model:
    """The model as the engine loads it: ``--dtype`` replaces the plain format, ``--quantization`` adds one.

    Raises
    ------
    InputError
        For a quantisation whose storage neither the model nor the flag states.
    """
    if dtype not in ("auto", ""):
        plain = lookup(dtype)
        if plain.name not in DTYPES:
            raise InputError(f"--dtype {dtype}: one of auto, {', '.join(DTYPES)} (--quantization states the others)")
        model = replace(model, weight_format=plain)
    if quantization in (None, "", "auto", "none") or model.quantization is not None:
        return model
    name = QUANTIZATIONS.get(str(quantization).lower())
    if name is None:
        raise InputError(
            f"--quantization {quantization}: neither the model nor the flag states how weights are stored; use one of "
            f"{', '.join(QUANTIZATIONS)}"
        )
    return replace(model, quantization=lookup(name))


def _draft_model(model: Model, speculation: Speculation | None, draft: Model | None) -> Model | None:
    """The draft with the target's number format (engines load it so); a prediction head is cut from the target."""
    if speculation is None or not speculation.has_draft_model:
        return None
    if speculation.method == "mtp" and draft is None:
        if speculation.model is not None and model.model_type.startswith(SHARED_CACHE):
            return None
        if not model.mtp_layers:
            raise InputError(
                f"{model.name} carries no multi-token prediction layers; method mtp needs some, or a 'model'"
            )
        return replace(model, layers=model.mtp_layers, mtp_layers=(), embedding=False, head=False, extra=())
    if draft is None:
        raise InputError(f"method {speculation.method} needs a draft model")
    check_pair(draft, model)
    if (
        speculation.method == "draft_model"
        and not speculation.heterogeneous_vocab
        and draft.vocab_size != model.vocab_size
    ):
        raise InputError(
            f"the draft's vocabulary has {draft.vocab_size} entries, the target's {model.vocab_size}; vLLM needs equal "
            "sizes, or use_heterogeneous_vocab"
        )
    limit = min(x for x in (draft.max_position, model.max_position, math.inf) if x is not None)
    if speculation.max_model_len is not None and speculation.max_model_len > limit:
        raise InputError(
            f"--speculative-config: max_model_len {speculation.max_model_len} exceeds the {limit} of the draft or the "
            "target"
        )
    if speculation.quantization:
        draft = with_formats(draft, "auto", speculation.quantization)
    if speculation.method in HEADS and (draft.vocab_size, draft.hidden_size) == (model.vocab_size, model.hidden_size):
        # A drafting head takes the target's embedding; EAGLE-3 keeps an output head of its own.
        own_head = draft.head and speculation.method == "eagle3"
        draft = replace(draft, embedding=False, head=own_head, tied_embeddings=False)
    return replace(draft, weight_format=model.weight_format)


def require_counts(**counts: int | None) -> None:
    """Refuse counts below 1 and slips above `LARGEST_COUNT`, by flag name; None is not given.

    >>> require_counts(tp=4, block_size=None)
    """
    for name, value in counts.items():
        flag = f"--{name.replace('_', '-')}"
        if value is not None and value < 1:
            raise InputError(f"{flag} must be at least 1, got {value}")
        if value is not None and value > LARGEST_COUNT:
            raise InputError(f"{flag} must be at most {LARGEST_COUNT:,}")


def _resolve(model: Model, card: Accelerator, f: VllmFlags, speculation: Speculation | None) -> _Resolved:
    rules = vllm_rules(f.version)
    cpu = card.family == "cpu"
    notes: list[str] = []
    if f.max_model_len in (None, -1):
        if model.max_position is None:
            raise InputError(f"{model.name} states no context length; give --max-model-len")
        length = model.max_position
    else:
        length = int(f.max_model_len or 0)
    if length < 1:
        raise InputError(f"--max-model-len must be at least 1 (or -1 to fit), got {f.max_model_len}")
    if model.max_position is not None and length > model.max_position:
        notes.append(f"max_model_len {length:,} exceeds the model's {model.max_position:,}: vLLM wants that allowed")
    seqs, batched = default_batch(card, offline=f.offline)
    if f.max_num_batched_tokens is None:
        notes.append(f"max_num_batched_tokens {batched:,}: the default on {card.name}")
    if f.max_num_seqs is None:
        notes.append(f"max_num_seqs {seqs:,}: the default on {card.name}")
    seqs = f.max_num_seqs or seqs
    batched = f.max_num_batched_tokens or batched
    method = speculation.method if speculation is not None else None
    runner_v2 = rules.runner_v2 and not cpu and method not in RUNNER_V1
    if speculation is not None and speculation.older_runner:
        runner_v2 = False
    elif speculation is not None and (speculation.heterogeneous_vocab or speculation.parallel_drafting):
        runner_v2 = runner_v2 and method in named(masked=True)
    asynchronous = f.async_scheduling if f.async_scheduling is not None else method not in SYNCHRONOUS
    batches = f.pp
    if asynchronous and rules.batches_in_flight:
        batches = f.pp + 1 if runner_v2 else 2
    utilization = f.gpu_memory_utilization if f.gpu_memory_utilization is not None else rules.utilization
    if not 0 < utilization <= 1:
        raise InputError(f"--gpu-memory-utilization must lie in (0, 1], got {utilization}")
    all_reduce = f.custom_all_reduce if f.custom_all_reduce is not None else card.link_bandwidth is not None
    block, why = default_block_size(model, card, rules) if f.block_size is None else (f.block_size, "")
    if why:
        notes.append(f"block_size {block}: {why}")
    _check_ranks(model, f, block, cpu=cpu)
    notes += _family_notes(card)
    graphs = f.estimate_graphs if f.estimate_graphs is not None else rules.graphs_in_budget
    return _Resolved(
        flags=f,
        rules=rules,
        utilization=utilization,
        max_model_len=length,
        fit=f.max_model_len == -1,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        block_size=block,
        state_cache=_state_cache(model, f, rules),
        in_flight_tokens=batches * batched if rules.batches_in_flight else batched,
        custom_all_reduce=all_reduce,
        graphs_in_budget=graphs and not f.enforce_eager and not cpu,
        runner_v2=runner_v2,
        cpu=cpu,
        largest_capture=card.memory_facts.largest_capture if rules.runner_v2 else 512,
        packed_sparse_latents=card.memory_facts.packed_sparse_latents,
        facts=card.memory_facts,
        assumptions=tuple(notes),
    )


def _family_notes(card: Accelerator) -> list[str]:
    """What a reader must know where the card's family is new."""
    if card.family != "cpu" and not card.memory_facts.family:
        return [f"memory rules of Hopper: of the family of {card.name} none are known, and bounds are wide"]
    if card.memory_facts.lacks:
        return [f"not known for {card.family}, and taken from Hopper: {', '.join(card.memory_facts.lacks)}"]
    return []


def _state_cache(model: Model, f: VllmFlags, rules: VllmRules) -> StateCache:
    if f.state_cache is not None:
        modes = [mode.value for mode in StateCache]
        if f.state_cache not in modes:
            raise InputError(f"--mamba-cache-mode {f.state_cache}: one of {', '.join(modes)}")
        return StateCache(f.state_cache)
    recurrent = [isinstance(layer.mixer, Recurrent) for layer in model.layers if layer.mixer is not None]
    if all(recurrent):
        return StateCache.NONE  # without attention there are no prefixes to cache
    caching = f.enable_prefix_caching
    if caching is None:
        caching = not any(recurrent) or rules.align_states
    return StateCache.ALIGN if caching else StateCache.NONE


def _check_ranks(model: Model, f: VllmFlags, block: int, *, cpu: bool) -> None:
    """Refuse what vLLM refuses about ranks and blocks."""
    if cpu and block % 32:
        raise InputError(f"No common block size for {block}: vLLM's CPU attention takes multiples of 32 (--block-size)")
    if not cpu and block % STEP:
        raise InputError(f"No common block size for {block}: attention kernels take multiples of {STEP} (--block-size)")
    if f.dcp > 1 and f.tp % f.dcp:
        raise InputError(f"decode context parallel {f.dcp} must divide --tp {f.tp}")
    for layer in model.layers:
        if isinstance(layer.mixer, Attention | LatentAttention) and layer.mixer.heads % f.tp:
            raise InputError(f"{layer.mixer.heads} attention heads cannot be divided among {f.tp} ranks (--tp)")


def default_batch(card: Accelerator, *, offline: bool = False) -> tuple[int, int]:
    """Defaults of max_num_seqs and max_num_batched_tokens on a card: (server) or (`LLM` class, `offline`).

    Source: vLLM 0.32.0 `engine/arg_utils.py`: from 70 GiB, A100 excepted, 1024 sequences and 8,192 or 16,384 tokens;
    from 160 GiB 16,384; else 256 and 2,048 or 8,192. Unified memory counts as small (GB10 and Thor logs: 256, 2,048).
    """
    memory = card.memory_torch_bytes or card.memory_driver_bytes or 0.0
    if card.memory_facts.small_batches:
        memory = 0.0
    if memory >= 160 * GIB:
        return 1024, 16384
    if memory >= 70 * GIB and not card.name.startswith("a100") and card.family != "cpu":
        return 1024, 16384 if offline else 8192
    return 256, 8192 if offline else 2048


def with_encoder_budget(
    flags: VllmFlags,
    card: Accelerator,
    image_tokens: int,
    image_values: int,
    peak_numbers: tuple[float, float] = (0.0, 0.0),
) -> VllmFlags:
    """Flags with what the profile run sends to a vision encoder: as many largest images as a step's tokens hold.

    Parameters
    ----------
    flags : VllmFlags
        Left as they are where they state a multimodal budget.
    card : Accelerator
    image_tokens, image_values : int
        Decoder tokens and input numbers of a largest image.
    peak_numbers : tuple of float
        Numbers that the encoder holds for one such image at its own peak, whole on a rank and divided among ranks.

    Source: vLLM 0.19 (42 start-ups: Gemma-3 sends 32 images, Mistral-3 two).
    """
    if flags.multimodal_tokens or flags.multimodal_values:
        return flags
    tokens = flags.max_num_batched_tokens or default_batch(card, offline=flags.offline)[1]
    images = max(1, tokens // image_tokens)
    whole, split = peak_numbers
    return replace(
        flags, multimodal_tokens=images * image_tokens, multimodal_values=images * image_values,
        encoder_whole=images * whole, encoder_split=images * split,
    )  # fmt: skip


def default_block_size(model: Model, card: Accelerator, rules: VllmRules) -> tuple[int, str]:
    """Tokens per block that the attention backends of a model agree on, with the reason where it is not 16."""
    if card.family == "cpu":
        return 128, "the CPU backend's default"
    latent = [layer.mixer for layer in model.layers if isinstance(layer.mixer, LatentAttention)]
    if not latent:
        return 16, ""
    if any(mixer.index_heads for mixer in latent):
        return 64, "sparse latent attention"
    if card.memory_facts.latent_block != 16:
        return card.memory_facts.latent_block, "FlashInfer latent attention"
    if card.family == "hopper" and version_number(rules.version) < (0, 11, 0):
        return 64, "FlashMLA"
    return 16, ""


def _stage_layers(
    model: Model, draft: Model | None, speculation: Speculation | None, s: _Resolved, k: int
) -> tuple[list[list[CacheLayer]], int]:
    """Cache layers of one rank of every stage (the draft on the last), and the block size after alignment."""
    f = s.flags
    pages = PageSettings(
        tp=f.tp,
        block_size=s.block_size,
        kv_cache_dtype=_cache_dtype(f.kv_cache_dtype),
        speculative_tokens=k,
        state_dtype=f.state_dtype,
        packed=s.packed_sparse_latents,
    )
    block = aligned_block_size(cache_layers(model, pages), s.block_size)
    pages = replace(pages, block_size=block)
    stages = [
        list(cache_layers(model, pages, [model.layers[i] for i in stage]))
        for stage in pipeline_stages(len(model.layers), f.pp)
    ]
    if draft is not None and speculation is not None:
        own = speculation.kv_cache_dtype
        draft_pages = replace(
            pages,
            tp=speculation.draft_tp or f.tp,
            kv_cache_dtype=_cache_dtype(own) if own else pages.kv_cache_dtype,
            speculative_tokens=0,
        )
        shared = speculation.method == "mtp" and model.model_type.startswith(SHARED_CACHE)
        layers = () if shared else cache_layers(draft, draft_pages, draft=True)
        if not s.rules.draft_window:
            layers = tuple(
                replace(layer, kind=CacheKind.FULL, window=None) if layer.kind is CacheKind.SLIDING else layer
                for layer in layers
            )
        stages[-1] += [replace(layer, context_sharded=False) if f.dcp > 1 else layer for layer in layers]
    return stages, block


def _cache_dtype(name: str) -> str:
    lowered = name.lower()
    if lowered not in CACHE_DTYPES:
        raise InputError(f"--kv-cache-dtype {name}: vLLM takes {', '.join(CACHE_DTYPES)}")
    return "fp8" if lowered in ("fp8_e4m3", "fp8_e5m2", "fp8_inc") else lowered


def _budget(card: Accelerator, s: _Resolved) -> tuple[Estimate, Estimate]:
    explicit = s.flags.kv_cache_memory_bytes
    if card.memory_torch_bytes is not None:
        total = Estimate.of(card.memory_torch_bytes, f"measured: what torch reports on {card.name}")
    elif card.memory_driver_bytes is not None:
        least, usual, most = (x * GIB for x in DRIVER_ONLY)
        total = Estimate(
            low=card.memory_driver_bytes - most, best=card.memory_driver_bytes - usual,
            high=card.memory_driver_bytes - least,
            source=f"assumed: torch sees {DRIVER_ONLY[1]:g} GiB less than the driver reports on {card.name}",
        )  # fmt: skip
    elif explicit is not None:
        total = Estimate.of(float(explicit), "not needed: --kv-cache-memory-bytes is given")
    else:
        raise InputError(f"{card.name} states no memory size; give --kv-cache-memory-bytes")
    u = s.utilization
    return total, Estimate(
        low=math.ceil(total.low * u), best=math.ceil(total.best * u), high=math.ceil(total.high * u),
        source=f"derived: total x {u:g}",
    )  # fmt: skip


def _rank_terms(
    model: Model, draft: Model | None, speculation: Speculation | None, s: _Resolved, stage: int, requested: Estimate
) -> RankTerms:
    f = s.flags
    held = WeightSettings(
        tp=f.tp,
        pp=f.pp,
        expert_copies=f.dp * f.pcp,
        expert_parallel=f.expert_parallel,
        latent_copies=s.rules.latent_copies,
    )
    target = rank_weight_bytes(model, held, stage)
    if f.extra_weights and stage == 0:
        target["beside the decoder"] = f.extra_weights
    last = stage == f.pp - 1
    own: dict[str, float] = {}
    if draft is not None and last:
        tp = speculation.draft_tp if speculation is not None and speculation.draft_tp else f.tp
        own = rank_weight_bytes(draft, replace(held, tp=tp, pp=1))
        if speculation is not None and speculation.method == "mtp":
            own.pop("rotary", None)  # shares the target's table
    weights = Estimate.of(sum(target.values()) + sum(own.values()), "derived from shapes")
    if f.weights is not None:
        weights = Estimate.of(f.weights, "given")
    run = RunShape(
        max_num_batched_tokens=s.max_num_batched_tokens,
        max_num_seqs=s.max_num_seqs,
        tp=f.tp,
        pp=f.pp,
        multimodal_tokens=f.multimodal_tokens,
        multimodal_values=f.multimodal_values,
        encoder_whole=f.encoder_whole,
        encoder_split=f.encoder_split,
        expert_parallel=f.expert_parallel,
        largest_capture=s.largest_capture,
    )
    peak = _peak(model, draft if last else None, speculation, run, s, stage)
    outside = (
        Estimate.of(f.non_torch, "given")
        if f.non_torch is not None
        else process_memory()
        if s.cpu
        else non_torch(
            s.rules.version,
            f.tp,
            f.pp,
            len(model.layers),
            custom_all_reduce=s.custom_all_reduce,
            facts=s.facts,
            weights=weights.best,
        )
    )
    graphs = Estimate.of(0.0, "not captured" if f.enforce_eager else "captured outside the budget in this version")
    if s.graphs_in_budget:
        k = speculation.num_speculative_tokens if speculation is not None else 0
        graphs = (
            Estimate.of(f.cuda_graph, "given")
            if f.cuda_graph is not None
            else cuda_graphs(model, run, s.rules.version, 1 + k)
        )
    buffers = _buffers(model, draft, speculation, s) if last else {}
    if f.kv_cache_memory_bytes is not None:
        available = Estimate.of(float(f.kv_cache_memory_bytes), "exact: --kv-cache-memory-bytes")
    else:
        fixed = weights.best + sum(buffers.values())
        best = requested.best - fixed - peak.best - outside.best - graphs.best
        short, spare = (0.0, 0.0) if s.cpu or _all_given(f, graphs) else _remainder(s)
        available = Estimate(
            low=min(requested.low - fixed - peak.high - outside.high - graphs.high, best - short),
            best=best,
            high=max(requested.high - fixed - peak.low - outside.low - graphs.low, best + spare),
            source="derived: budget less the terms",
        )
    return RankTerms(
        stage=stage,
        weights=weights,
        target_weights=MappingProxyType(target),
        draft_weights=MappingProxyType(own),
        activation_peak=peak,
        non_torch=outside,
        cuda_graph=graphs,
        buffers=MappingProxyType(buffers),
        available=available,
    )


UNKNOWN_REMAINDER: Final = Remainder(since=(0, 0, 0), short=4.0 * GIB, spare=2.0 * GIB, logs=0)
"""For families of which no log is at hand: about twice what the known ones show."""


def _remainder(s: _Resolved) -> tuple[float, float]:
    """Bytes by which the pool may be smaller and larger, by what logs of the family and version showed."""
    number = version_number(s.rules.version)
    found = [r for r in s.facts.remainder if r.since <= number] or [UNKNOWN_REMAINDER]
    return found[-1].short, found[-1].spare


def _all_given(f: VllmFlags, graphs: Estimate) -> bool:
    """Whether the user replaced every modelled term."""
    return f.activation_peak is not None and f.non_torch is not None and graphs.low == graphs.high


def _peak(
    model: Model, draft: Model | None, speculation: Speculation | None, run: RunShape, s: _Resolved, stage: int
) -> Estimate:
    if s.flags.activation_peak is not None:
        return Estimate.of(s.flags.activation_peak, "given")
    if s.cpu:
        return Estimate.of(0.0, "not subtracted on a CPU")
    if speculation is not None and speculation.method == "draft_model":
        # Each request brings one more token to the draft, so the target's dummy run is that much shorter.
        shorter = max(run.max_num_batched_tokens - run.max_num_seqs, 1)
        run = replace(run, max_num_batched_tokens=shorter)
    peak = activation_peak(model, run, s.rules.version, stage)
    if draft is None:
        return peak
    text = replace(run, pp=1, multimodal_tokens=0, multimodal_values=0, encoder_whole=0.0, encoder_split=0.0)
    of_draft = activation_peak(draft, text, s.rules.version, 0)
    return max(peak, of_draft, key=lambda estimate: estimate.best)


def _buffers(model: Model, draft: Model | None, speculation: Speculation | None, s: _Resolved) -> dict[str, float]:
    """Device buffers that speculation allocates on the last stage, bytes."""
    out: dict[str, float] = {}
    if speculation is None or s.cpu:
        return out
    if speculation.method == "ngram_gpu" or (speculation.method == "ngram" and s.runner_v2):
        out["token ids of every request"] = 4.0 * s.max_num_seqs * s.max_model_len
    if speculation.probabilistic and s.runner_v2 and speculation.has_draft_model:
        vocabulary = (draft.head_vocab_size or draft.vocab_size) if draft is not None else model.vocab_size
        out["draft logits"] = (
            s.max_num_seqs * speculation.num_speculative_tokens * vocabulary * model.weight_format.bytes
        )
    return out


def _span(
    stages: Sequence[Sequence[CacheLayer]],
    ranks: Sequence[RankTerms],
    cache: CacheSettings,
    plan: CachePlan | None,
    figure: Any,
) -> Span | None:
    """A figure of the plan with its bounds; a bound at which vLLM would refuse to start is 0."""
    if plan is None:
        return None

    def at(available: list[float]) -> float:
        try:
            return float(figure(plan_cache(stages, [math.floor(a) for a in available], cache)))
        except InfeasibleError:
            return 0.0

    return Span(
        low=at([r.available.low for r in ranks]),
        best=float(figure(plan)),
        high=at([r.available.high for r in ranks]),
    )


def _words(plan: CachePlan, s: _Resolved) -> tuple[str, ...]:
    return log_lines(
        plan.tokens,
        plan.max_model_len,
        plan.max_concurrency,
        one_line=s.rules.one_line,
        device="CPU" if s.cpu else "GPU",
    )


def _shown(s: _Resolved, block_size: int) -> dict[str, Any]:
    f = s.flags
    shown = {key: value for key, value in asdict(f).items() if value is not None}
    return shown | {
        "gpu_memory_utilization": s.utilization,
        "max_model_len": s.max_model_len,
        "max_num_seqs": s.max_num_seqs,
        "max_num_batched_tokens": s.max_num_batched_tokens,
        "block_size": block_size,
        "state_cache": s.state_cache.value,
        "in_flight_tokens": s.in_flight_tokens,
        "runner": "v2" if s.runner_v2 else "v1",
    }
