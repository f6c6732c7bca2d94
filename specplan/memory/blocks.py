"""What an engine's pool holds without and with speculation, what that costs, and what would give it back.

The draft's memory is subtracted before the pool is sized, and its cached bytes join every token afterwards: the loss
shows as a longer queue, not as a longer step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from specplan.errors import SpecplanError
from specplan.memory.prediction import PoolPrediction
from specplan.memory.sglang import SglangFlags, predict_sglang
from specplan.memory.speculative import SglangSpeculation, Speculation
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.values.hardware import Accelerator
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPrice:
    """What a draft takes from the pool.

    Attributes
    ----------
    blocks, tokens : int
        Lost, against the same start without speculation.
    sequences : float
        Requests of the longest length lost.
    share : float
        Tokens lost over tokens without speculation.
    equivalent_bytes : float
        Memory on the deciding rank that would hold the lost tokens without a draft.
    memory_bytes : float
        Of these, what the pool itself became smaller (weights, activations, buffers).
    layout_bytes : float
        The rest: more bytes per token, padding, further reserved blocks.
    """

    blocks: int
    tokens: int
    sequences: float
    share: float
    equivalent_bytes: float
    memory_bytes: float
    layout_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The same start with one thing changed.

    Attributes
    ----------
    change : str
        What was changed, in the engine's flags where there is one.
    blocks, tokens : int
    concurrency : float
    tokens_back : int
        Against the start with the draft (without one: against the plain start).
    """

    change: str
    blocks: int
    tokens: int
    concurrency: float
    tokens_back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksReport:
    """Predicted pools of one configuration.

    Attributes
    ----------
    target, card : str
    draft : str or None
        The draft or the draft source.
    plain : PoolPrediction
        Without speculation.
    speculative : PoolPrediction or None
    price : DraftPrice or None
        None without a draft, or when either start is refused.
    binding : str
        What limits concurrency.
    alternatives : tuple of Alternative
    slots : int
        That a drafting request owns behind its tokens.
    """

    target: str
    card: str
    draft: str | None
    plain: PoolPrediction
    speculative: PoolPrediction | None
    price: DraftPrice | None
    binding: str
    alternatives: tuple[Alternative, ...]
    slots: int = 0

    @property
    def together(self) -> tuple[int, ...]:
        """Whole requests of full length that decode together, without and with the draft and its slots."""
        return (self.plain.requests(), *(() if self.speculative is None else (self.speculative.requests(self.slots),)))

    @property
    def decided(self) -> PoolPrediction:
        """The configuration that was asked for."""
        return self.speculative or self.plain

    @property
    def starts(self) -> bool:
        """Whether the engine would start as asked."""
        return self.decided.refusal is None


def vllm_blocks(
    model: Model,
    card: Accelerator,
    flags: VllmFlags,
    speculation: Speculation | None = None,
    draft: Model | None = None,
) -> BlocksReport:
    """Pools of vLLM without and with speculation.

    Parameters
    ----------
    model : Model
    card : Accelerator
    flags : VllmFlags
    speculation : Speculation, optional
    draft : Model, optional
        The model that `speculation` names.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import Attention, DenseMLP, Layer
    >>> layer = Layer(mixer=Attention(heads=32, kv_heads=8, head_dim=128), feed_forward=DenseMLP(width=14336))
    >>> model = Model(name="8b", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False,
    ...               layers=(layer,) * 32, weight_format=lookup("bf16"), max_position=131072)
    >>> card = Accelerator(name="h100", vendor="", family="hopper", memory_driver_bytes=None,
    ...                    memory_torch_bytes=81090 * 2**20, bandwidth=1.0, flops={})
    >>> report = vllm_blocks(model, card, VllmFlags(version="0.19.0", gpu_memory_utilization=0.95, max_model_len=8192))
    >>> int(report.plain.tokens.best)
    475952
    """

    def predict(chosen: VllmFlags, spec: Speculation | None, small: Model | None) -> PoolPrediction:
        return predict_vllm(model, card, chosen, spec, small)

    plain = predict(flags, None, None)
    with_draft = None if speculation is None else predict(flags, speculation, draft)
    changes: list[tuple[str, Callable[[], PoolPrediction]]] = []
    if not flags.kv_cache_dtype.startswith(("fp8", "int", "nvfp4")):
        cheaper = replace(flags, kv_cache_dtype="fp8")
        changes.append(("--kv-cache-dtype fp8", lambda: predict(cheaper, speculation, draft)))
    if draft is not None and len(draft.layers) > 1:
        half = halved(draft)
        changes.append(
            (
                f"a draft of {len(half.layers)} of its {len(draft.layers)} layers",
                lambda: predict(flags, speculation, half),
            )
        )
    if speculation is not None and speculation.has_draft_model:
        free = replace(speculation, method="ngram", model=None, prompt_lookup=(5, 5), probabilistic=False)
        changes.append(("n-gram drafts in place of the model", lambda: predict(flags, free, None)))
    label = None if speculation is None else _label(speculation.method, draft)
    return _report(model, card, label, plain, with_draft, changes, 0 if speculation is None else speculation.slots)


def sglang_blocks(
    model: Model,
    card: Accelerator,
    flags: SglangFlags,
    speculation: SglangSpeculation | None = None,
    draft: Model | None = None,
) -> BlocksReport:
    """Pools of SGLang without and with speculation (see `vllm_blocks`)."""

    def predict(chosen: SglangFlags, spec: SglangSpeculation | None, small: Model | None) -> PoolPrediction:
        return predict_sglang(model, card, chosen, spec, small)

    plain = predict(flags, None, None)
    with_draft = None if speculation is None else predict(flags, speculation, draft)
    changes: list[tuple[str, Callable[[], PoolPrediction]]] = []
    if not flags.kv_cache_dtype.startswith("fp8"):
        cheaper = replace(flags, kv_cache_dtype="fp8_e4m3")
        changes.append(("--kv-cache-dtype fp8_e4m3", lambda: predict(cheaper, speculation, draft)))
    if draft is not None and len(draft.layers) > 1:
        half = halved(draft)
        changes.append(
            (
                f"a draft of {len(half.layers)} of its {len(draft.layers)} layers",
                lambda: predict(flags, speculation, half),
            )
        )
    if speculation is not None and speculation.algorithm != "NGRAM":
        free = replace(speculation, algorithm="NGRAM", draft_model=None, num_draft_tokens=12)
        changes.append(("--speculative-algorithm NGRAM", lambda: predict(flags, free, None)))
    label = None if speculation is None else _label(speculation.algorithm, draft)
    return _report(model, card, label, plain, with_draft, changes, 0 if speculation is None else speculation.slots)


def halved(draft: Model) -> Model:
    """The draft with the first half of its layers: what a smaller one of the same width would take."""
    return replace(draft, layers=draft.layers[: max(1, len(draft.layers) // 2)], published_params=None)


_UNLIKE: Final = 0.05
"""By how much blocks of two pools may differ in size and still be counted together; a pool rounds to whole blocks."""


def draft_price(plain: PoolPrediction, speculative: PoolPrediction) -> DraftPrice | None:
    """Pool lost to speculation; None when either start is refused."""
    if not (plain.blocks and plain.tokens and plain.concurrency):
        return None
    if not (speculative.blocks and speculative.tokens and speculative.concurrency):
        return None
    share = 1 - speculative.tokens.best / plain.tokens.best if plain.tokens.best else 0.0
    equivalent = share * plain.rank.available.best
    memory = plain.rank.available.best - speculative.rank.available.best
    # Drafts may raise the size of a block, so that counts are of unlike blocks: then in blocks of the plain pool.
    blocks = plain.blocks.best - speculative.blocks.best
    sizes = [p.rank.available.best / p.blocks.best for p in (plain, speculative) if p.blocks and p.blocks.best]
    if len(sizes) == 2 and abs(sizes[1] / sizes[0] - 1) > _UNLIKE:
        blocks = max(0.0, round(equivalent / sizes[0]))
    return DraftPrice(
        blocks=int(blocks),
        tokens=int(plain.tokens.best - speculative.tokens.best),
        sequences=plain.concurrency.best - speculative.concurrency.best,
        share=share,
        equivalent_bytes=equivalent,
        memory_bytes=memory,
        layout_bytes=equivalent - memory,
    )


def binding_constraint(prediction: PoolPrediction) -> str:
    """What limits the number of requests served at once, in one sentence."""
    rank = prediction.rank
    where = f"stage {prediction.decisive} of the pipeline" if len(prediction.ranks) > 1 else "the rank"
    if prediction.refusal is not None or prediction.concurrency is None:
        if rank.available.best <= 0:
            return f"weights: {where} has nothing left for the cache"
        return f"max_model_len: one request of {prediction.max_model_len:,} tokens does not fit the pool of {where}"
    cap = prediction.settings.get("max_num_seqs") or prediction.settings.get("max_running_requests")
    holds = prediction.concurrency.best
    if cap is not None and holds >= int(cap):
        return f"max_num_seqs {cap:,}: the pool of {where} holds {holds:,.2f} requests of full length"
    of = f", below max_num_seqs {cap:,}" if cap is not None else ""
    return f"the pool of {where}: {holds:,.2f} requests of {prediction.max_model_len:,} tokens{of}"


def _label(method: str, draft: Model | None) -> str:
    return method if draft is None else f"{draft.name} ({method})"


def _report(
    model: Model,
    card: Accelerator,
    label: str | None,
    plain: PoolPrediction,
    with_draft: PoolPrediction | None,
    changes: list[tuple[str, Callable[[], PoolPrediction]]],
    slots: int,
) -> BlocksReport:
    decided = with_draft or plain
    alternatives = []
    for change, predict in changes:
        try:
            other = predict()
        except SpecplanError:
            continue  # a change that the engine would refuse is none
        if other.tokens is None or other.blocks is None or other.concurrency is None:
            continue
        alternatives.append(
            Alternative(
                change=change,
                blocks=int(other.blocks.best),
                tokens=int(other.tokens.best),
                concurrency=other.concurrency.best,
                tokens_back=int(other.tokens.best - (decided.tokens.best if decided.tokens else 0)),
            )
        )
    return BlocksReport(
        target=model.name,
        card=card.name,
        draft=label,
        plain=plain,
        speculative=with_draft,
        price=None if with_draft is None else draft_price(plain, with_draft),
        binding=binding_constraint(decided),
        alternatives=tuple(alternatives),
        slots=slots,
    )
