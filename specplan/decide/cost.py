"""What speculation costs on one card: floors, c, what alpha must reach, and the pool before and after the draft.

One call, `cost`, returns the frozen `CostReport` that the table and the JSON document render.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from specplan.decide.cautions import draft_cautions
from specplan.decide.engine_cost import EngineCost, engine_cost
from specplan.decide.pricing import drafts_in_one_pass
from specplan.decide.ranks import require_ranks
from specplan.decide.source import elsewhere, emitted, placed, source_speedup
from specplan.errors import InputError
from specplan.formulas import kv_cache, parameters, roofline
from specplan.formulas.emitted import expected_emitted
from specplan.formulas.indifference import break_even_alpha, contour_alpha, free_draft_tie
from specplan.formulas.pairing import check_pair
from specplan.formulas.speedup import speedup
from specplan.memory.plain import DEFAULT_UTILIZATION, DEFAULT_WORKSPACE, PlainPool, plain_pool
from specplan.timing.roofline import ridge
from specplan.units import LARGEST_COUNT, format_bytes, format_gib
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source

DEFAULT_CONTEXT: Final = 2048
"""Cached tokens per request where none are given, in every command; the chapter's figures count none."""

NOT_MODELED: Final = (
    "achieved bandwidth below peak, kernel launches, collectives, sampling and host time (see compare)",
    "activation peak, CUDA graphs and the engine's block rounding (see blocks)",
    "look-ahead slots that a step reserves for drafts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """One model on one rank.

    Parameters are counts of one whole model; ``*_per_rank`` are bytes on one tensor-parallel rank. `streamed_params` is
    what one token reads; `streamed_bytes_per_rank` what a pass of the whole batch reads (the same for dense models).
    """

    name: str
    source: str
    weight_format: str
    kv_format: str
    streamed_params: int
    gathered_params: int
    elementwise_params: int
    resident_params: int
    published_params: int | None
    components: dict[str, int]
    streamed_bytes_per_rank: float
    resident_bytes_per_rank: float
    kv_read_bytes_per_rank: float
    decode_floor_s: float
    tokens_per_s: float
    kv_bytes_per_token: float
    kv_bytes_per_token_per_rank: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """Everything that `specplan cost` shows; figures without a draft or an alpha are None."""

    target: ModelCost
    draft: ModelCost | None
    accelerator: Accelerator
    tensor_parallel_size: int
    num_speculative_tokens: int
    batch: int
    context_len: int
    max_model_len: int
    gpu_memory_utilization: float
    memory_source: str
    memory_bytes: float
    workspace_bytes: float
    alpha: float | None
    c: float | None
    verify_factor: float
    alpha_break_even: float | None
    expected_emitted: float | None
    speedup: float | None
    alpha_dagger: float | None
    pool: PlainPool
    pool_with_draft: PlainPool | None
    engine: EngineCost | None
    verified_positions: int
    ridge_positions: float | None
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    not_modeled: tuple[str, ...] = NOT_MODELED

    @property
    def tokens_lost_fraction(self) -> float | None:
        """Share of the pool's tokens that the draft takes; None without a draft or a pool."""
        if self.pool_with_draft is None or not self.pool.tokens:
            return None
        return 1 - self.pool_with_draft.tokens / self.pool.tokens

    @property
    def sequences_lost_fraction(self) -> float | None:
        """Share of whole sequences that the draft takes; None without a draft or where none fits."""
        if self.pool_with_draft is None or not self.pool.sequences:
            return None
        return 1 - self.pool_with_draft.sequences / self.pool.sequences


def cost(
    target: Model,
    accelerator: Accelerator,
    *,
    draft: Model | None = None,
    source: Source | None = None,
    tp: int = 1,
    draft_tp: int | None = None,
    kappa: int = 3,
    alpha: float | None = None,
    batch: int = 1,
    context_len: int = 0,
    max_model_len: int | None = None,
    engine: str | None = None,
    engine_version: str | None = None,
    gpu_memory_utilization: float | None = None,
    memory_source: str = "auto",
    workspace_bytes: float = DEFAULT_WORKSPACE,
    kv_format: NumberFormat | None = None,
) -> CostReport:
    """Price `draft` beside `target` on `accelerator`, derived from shapes and the datasheet alone.

    Parameters
    ----------
    target, draft : Model
        The draft is optional: without one, c and what follows from it are None.
    source : Source, optional
        What drafts, with an acceptance of any form and perhaps a c of its own; `draft` is then its model.
    accelerator : Accelerator
    tp, draft_tp : int
        Tensor-parallel degree; engines demand the same for the draft, which is the default.
    kappa : int
        Drafted tokens per step, at least 1.
    alpha : float, optional
        Conditional acceptance per position in [0, 1], measured elsewhere. There is no default.
    batch : int
        Requests per step.
    context_len : int
        Tokens of cache that each request's step reads; 0 counts weights alone, as the chapter does.
    max_model_len : int, optional
        Length of the sequences that must fit; the model's own limit if None.
    engine, engine_version : str, optional
        Whose own figures to put beside the chapter's, for requests of the given length, else of the context.
    gpu_memory_utilization : float, optional
        Fraction of memory the engine may use, in (0, 1]; the engine's default, and 0.92 in the plain subtraction.
    memory_source : str
        ``torch`` (what vLLM multiplies), ``driver`` (what nvidia-smi prints), or ``auto``: torch's where the profile
        has it, else the driver's with a warning.
    workspace_bytes : float
        Activations and workspace on each rank.
    kv_format : NumberFormat, optional
        Format of the target's and the draft's cache; each model's own if None.

    Raises
    ------
    InputError
        For a value out of range, a tensor-parallel degree that the model cannot take, or one that differs between
        target and draft.

    Notes
    -----
    Source: chapter, "Draft sources"; every number is derived and a lower bound where it is a time.
    """
    share = DEFAULT_UTILIZATION if gpu_memory_utilization is None else gpu_memory_utilization
    _check(kappa=kappa, alpha=alpha, batch=batch, context_len=context_len, utilization=share)
    require_ranks(target, tp)
    if draft is not None:
        check_pair(draft, target)
        _check_draft_tp(draft, tp, draft_tp)
    elif draft_tp is not None:
        raise InputError("--draft-tensor-parallel-size needs a --draft")
    length = _max_model_len(target, max_model_len)
    memory, memory_read = _memory(accelerator, memory_source)
    priced_target = _model_cost(target, accelerator, tp=tp, batch=batch, context_len=context_len, kv_format=kv_format)
    priced_draft, c = None, None
    if draft is not None:
        priced_draft = _model_cost(
            draft, accelerator, tp=tp, batch=batch, context_len=context_len, kv_format=kv_format, lender=target
        )
        c = float(roofline.cost_ratio(priced_draft.decode_floor_s, priced_target.decode_floor_s))
    verify = _verify_factor(target, priced_target, accelerator, tp=tp, batch=batch, kappa=kappa)
    # A head that drafts a block passes once per step, which is kappa-th of a pass per token.
    per_token = c / kappa if c is not None and draft is not None and drafts_in_one_pass(draft) else c
    if source is not None:
        source = elsewhere(source)
        c = per_token = source.c if source.c is not None else 0.0 if source.is_weightless else per_token
    answers = _answers(alpha, kappa, per_token, verify)
    if source is not None and source.has_acceptance and per_token is not None:
        at = replace(placed(source, kappa=kappa, c=per_token), kappa=kappa)
        if source.verify is None:
            at = replace(at, verify=verify)
        gain = float(source_speedup(at))
        dagger = float(contour_alpha(0.0, gain, kappa, verify))
        answers = (answers[0], float(emitted(source, kappa)), gain, None if math.isnan(dagger) else dagger)

    def pool(*models: Model) -> PlainPool:
        available = memory * share - workspace_bytes
        return plain_pool(models, available, length=length, tp=tp, kv_format=kv_format)

    positions = int(roofline.verified_positions(batch, kappa))
    border = ridge(target, accelerator)
    warnings = (*_warnings(target, draft, length, context_len), *_ridge_warning(positions, border))
    if memory_source == "auto" and memory_read == "driver":
        warnings += (f"{accelerator.name}'s memory as torch sees it is unknown: the driver's is used, up to 3% high",)
    beside = None
    if engine is not None:
        beside = engine_cost(
            target,
            accelerator,
            draft=draft,
            source=source,
            engine=engine,
            engine_version=engine_version,
            tp=tp,
            kappa=kappa,
            alpha=alpha,
            batch=batch,
            context_len=context_len or DEFAULT_CONTEXT,
            length=length if max_model_len is not None or not context_len else context_len,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_format=kv_format,
        )
    return CostReport(
        target=priced_target,
        draft=priced_draft,
        accelerator=accelerator,
        tensor_parallel_size=tp,
        num_speculative_tokens=kappa,
        batch=batch,
        context_len=context_len,
        max_model_len=length,
        gpu_memory_utilization=share,
        memory_source=memory_read,
        memory_bytes=memory,
        workspace_bytes=workspace_bytes,
        alpha=source.alpha.best if source is not None and source.alpha is not None else alpha,
        c=c,
        verify_factor=verify,
        alpha_break_even=answers[0],
        expected_emitted=answers[1],
        speedup=answers[2],
        alpha_dagger=answers[3],
        pool=pool(target),
        pool_with_draft=None if draft is None else pool(target, draft),
        engine=beside,
        verified_positions=positions,
        ridge_positions=border,
        assumptions=_assumptions(target, draft, share, memory_read, workspace_bytes, context_len),
        warnings=warnings,
    )


def _check(*, kappa: int, alpha: float | None, batch: int, context_len: int, utilization: float) -> None:
    if kappa < 1:
        raise InputError(f"--num-speculative-tokens {kappa}: the draft length must be at least 1")
    for flag, count in (("--num-speculative-tokens", kappa), ("--batch", batch), ("--context", context_len)):
        if count > LARGEST_COUNT:
            raise InputError(f"{flag}: must be at most {LARGEST_COUNT:,}")
    if alpha is not None and not 0 <= alpha <= 1:  # NaN fails the comparison too
        raise InputError(f"--alpha {alpha}: an acceptance must lie in [0, 1]")
    if batch < 1:
        raise InputError(f"--batch {batch}: must be at least 1")
    if context_len < 0:
        raise InputError(f"--context {context_len}: must be at least 0")
    if not 0 < utilization <= 1:
        raise InputError(f"--gpu-memory-utilization {utilization}: must lie in (0, 1]")


def _check_draft_tp(draft: Model, tp: int, draft_tp: int | None) -> None:
    if draft_tp is not None and draft_tp != tp:
        raise InputError(
            f"--draft-tensor-parallel-size {draft_tp} differs from --tensor-parallel-size {tp}: vLLM refuses it, since "
            "the draft's compiled graphs on rank 0 would collide with the target's; give both the same degree"
        )
    require_ranks(draft, tp)


def _max_model_len(target: Model, max_model_len: int | None) -> int:
    if max_model_len is not None:
        if max_model_len < 1:
            raise InputError(f"--max-model-len {max_model_len}: must be at least 1")
        return max_model_len
    if target.max_position is None:
        raise InputError(f"{target.name} states no longest context; give --max-model-len")
    return target.max_position


def _memory(accelerator: Accelerator, source: str) -> tuple[float, str]:
    """(bytes, whose total it is); ``auto`` prefers what torch sees."""
    known = {"torch": accelerator.memory_torch_bytes, "driver": accelerator.memory_driver_bytes}
    if source not in ("auto", *known):
        raise InputError(f"--memory {source!r}: one of auto, {', '.join(known)}")
    for name in known if source == "auto" else (source,):
        value = known[name]
        if value is not None:
            return value, name
    other = [name for name, value in known.items() if value is not None]
    remedy = f"use --memory {other[0]}" if other else "add it to the hardware profile"
    raise InputError(f"{accelerator.name} has no known {source} memory; {remedy}")


def _model_cost(
    model: Model,
    accelerator: Accelerator,
    *,
    tp: int,
    batch: int,
    context_len: int,
    kv_format: NumberFormat | None,
    lender: Model | None = None,
) -> ModelCost:
    """Price one pass; a draft head without an output head of its own streams its target's (`lender`)."""
    streamed = parameters.streamed_bytes(model, batch, tp)
    streamed_params = parameters.streamed_params(model, 1)
    lent = None if lender is None else parameters.borrowed_head(model, lender)
    if lent is not None and lender is not None:
        streamed += lent.size * parameters.format_of(lent, lender).bytes / tp
        streamed_params += lent.size
    kv_read = batch * float(kv_cache.kv_bytes_read(model, context_len, kv_format, tp)) if context_len else 0.0
    floor = float(roofline.decode_floor_s(streamed + kv_read, accelerator.bandwidth))
    return ModelCost(
        name=model.name,
        source=model.source,
        weight_format=(model.quantization or model.weight_format).name,
        kv_format=(kv_format or model.weight_format).name,
        streamed_params=round(streamed_params),
        gathered_params=parameters.gathered_params(model),
        elementwise_params=parameters.elementwise_params(model),
        resident_params=parameters.resident_params(model),
        published_params=model.published_params,
        components=parameters.params_by_component(model),
        streamed_bytes_per_rank=streamed,
        resident_bytes_per_rank=parameters.resident_bytes(model, tp),
        kv_read_bytes_per_rank=kv_read,
        decode_floor_s=floor,
        tokens_per_s=batch / floor,
        kv_bytes_per_token=kv_cache.kv_bytes_per_token(model, kv_format),
        kv_bytes_per_token_per_rank=kv_cache.kv_bytes_per_token(model, kv_format, tp),
    )


def _verify_factor(
    target: Model, priced: ModelCost, accelerator: Accelerator, *, tp: int, batch: int, kappa: int
) -> float:
    """Verify pass over plain pass in streamed bytes: 1 for dense models, above 1 where more experts are touched."""
    if not parameters.is_routed(target):
        return 1.0
    wide = parameters.streamed_bytes(target, batch * (kappa + 1), tp) + priced.kv_read_bytes_per_rank
    return float(roofline.cost_ratio(wide / accelerator.bandwidth, priced.decode_floor_s))


def _answers(
    alpha: float | None, kappa: int, c: float | None, verify: float
) -> tuple[float | None, float | None, float | None, float | None]:
    """(break-even alpha, E, speedup, alpha-dagger), each None where its inputs are; break-even NaN becomes None."""
    emitted = None if alpha is None else float(expected_emitted(alpha, kappa))
    if c is None:
        return None, emitted, None, None
    even = float(break_even_alpha(kappa, c, verify))
    break_even = None if math.isnan(even) else even
    if alpha is None:
        return break_even, emitted, None, None
    gain = float(speedup(alpha, kappa, c, verify))
    dagger = float(free_draft_tie(alpha, kappa, c, verify, free_verify=verify))
    return break_even, emitted, gain, None if math.isnan(dagger) else dagger


def _ridge_warning(positions: int, ridge: float | None) -> tuple[str, ...]:
    if ridge is None:
        return ("the card's peak rate in this format is unknown: the ridge is not shown",)
    if positions > ridge:
        return (
            f"{positions} verified positions lie past the ridge of {ridge:.0f}: verification is compute-bound there, "
            "so speedup and break-even are optimistic (see compare)",
        )
    return ()


def _warnings(target: Model, draft: Model | None, length: int, context_len: int) -> tuple[str, ...]:
    found: list[str] = []
    if target.max_position is not None and length > target.max_position:
        found.append(
            f"--max-model-len {length} is beyond the {target.max_position} that {target.name} states; engines refuse "
            "it unless told otherwise"
        )
    if context_len > length:
        found.append(f"--context {context_len} is beyond the {length} tokens of a sequence (--max-model-len)")
    if draft is None:
        return tuple(found)
    found += draft_cautions(target, draft, context_len=context_len)
    # vLLM raises the limit of a head that drafts from the target's states to the target's own.
    known = draft.max_position is not None and context_len > draft.max_position  # said already
    if draft.embedding and not known and draft.max_position is not None and draft.max_position < length:
        found.append(
            f"{draft.name} states {draft.max_position} positions, below the {length} served: engines stop drafting "
            "there"
        )
    return tuple(found)


def _assumptions(
    target: Model,
    draft: Model | None,
    utilization: float,
    memory_source: str,
    workspace_bytes: float,
    context_len: int,
) -> tuple[str, ...]:
    lines = [
        "weight bandwidth alone sets the time of a pass, at the datasheet's peak, equal for target and draft",
        f"the engine uses {utilization:g} of the memory that {memory_source} reports",
        f"{format_bytes(workspace_bytes)} per rank of activations and workspace",
    ]
    if context_len == 0:
        lines.append("context 0: no cached keys and values are read (--context counts them)")
    if any(parameters.is_routed(m) for m in (target, draft) if m):
        lines.append("tokens choose experts uniformly and independently (fewer distinct ones are read when skewed)")
    lines += [f"{m.name}: {assumed}" for m in (target, draft) if m for assumed in m.assumptions]
    if draft is not None:
        lines.append("every position is accepted with the same conditional probability alpha")
        if drafts_in_one_pass(draft):
            lines.append(f"{draft.name} drafts all tokens in one pass: each step pays c once, not kappa times")
    return tuple(lines)


def fits_line(pool: PlainPool) -> str | None:
    """One sentence that says by how much the weights miss, or None when they fit."""
    if not pool.shortfall_bytes:
        return None
    return f"does not fit: weights and workspace exceed the budget by {format_gib(pool.shortfall_bytes)} per rank"
