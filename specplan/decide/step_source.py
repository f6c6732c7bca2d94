"""A draft source as a step sees it: how it drafts on an engine, how many positions it has verified, what it emits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError, UnsupportedError
from specplan.formulas.emitted import (
    FloatArray,
    emitted_over_all_steps,
    expected_emitted,
    expected_emitted_hit,
    survival,
)
from specplan.formulas.parameters import is_output_head
from specplan.formulas.step import PassShape, pass_shape
from specplan.timing.draft_time import card_ngram_s, host_ngram_s, model_draft_s, suffix_s, trie_s
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.step_time import Machine, host_time, pass_time
from specplan.values.formats import NumberFormat
from specplan.values.model import Access, Attention, DenseMLP, Experts, LatentAttention, Layer, Model, Weight

MATCHERS: Final = ("ngram", "ngram-host", "ngram-gpu", "suffix")
HEADS: Final = ("eagle", "eagle3", "mtp")
PARALLEL: Final = ("dflash", "medusa")
"""Heads that draft all their tokens in one pass; they come as checkpoints, named by their path."""

SUFFIX_LENGTH: Final = 12
"""Longest draft of suffix decoding at vLLM's defaults: half of the tree depth of 24."""

SGLANG_NODES: Final = 12
"""Verified positions of SGLang's NGRAM when ``--speculative-num-draft-tokens`` is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A figure with the ends between which it may lie; equal ends where it is exact."""

    low: float
    best: float
    high: float

    @property
    def is_range(self) -> bool:
        """Whether the ends differ."""
        return self.low < self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSource:
    """One draft source.

    Attributes
    ----------
    text, name, kind : str
        As the user spelled it; its name; ``none``, one of `MATCHERS`, `HEADS` or `PARALLEL`, or ``model``.
    model : Model or None
        What drafts, for models and heads.
    alpha : Range or None
        Conditional acceptance per position.
    hazard : tuple of float
        Conditional acceptance of each position, where it is not constant.
    hit, continuation : float or None
        Acceptance of the first drafted token and of each later one.
    coverage : Range
        Share of request-steps in which the source offers a draft.
    emitted : Range or None
        Measured tokens per step over all steps, instead of an acceptance; valid at `kappa` only.
    drafted : float or None
        Mean drafted tokens per drafted step where they are fewer than kappa (suffix decoding).
    kappa : int or None
        Drafted tokens (a tree's depth); None lets the plan choose.
    nodes, topk : int or None
        A tree's verified positions, root included, and its branching.
    """

    text: str
    name: str
    kind: str
    model: Model | None = None
    alpha: Range | None = None
    hazard: tuple[float, ...] = ()
    hit: float | None = None
    continuation: float | None = None
    coverage: Range = Range(low=1.0, best=1.0, high=1.0)
    emitted: Range | None = None
    drafted: float | None = None
    kappa: int | None = None
    nodes: int | None = None
    topk: int = 1

    @property
    def own_head(self) -> bool:
        """Whether it is a stand-alone model with an output head of its own."""
        return self.kind == "model"

    @property
    def is_model(self) -> bool:
        """Whether it makes forward passes."""
        return self.model is not None

    def ends(self) -> tuple["StepSource", "StepSource"]:
        """The source at the low and at the high end of its acceptance and coverage."""

        def at(end: str) -> StepSource:
            def pick(r: Range) -> Range:
                x = getattr(r, end)
                return Range(low=x, best=x, high=x)

            return replace(
                self,
                alpha=None if self.alpha is None else pick(self.alpha),
                coverage=pick(self.coverage),
                emitted=None if self.emitted is None else pick(self.emitted),
            )

        return at("low"), at("high")


NO_SOURCE: Final = StepSource(text="none", name="none", kind="none", kappa=0)


def eagle_head(target: Model) -> Model:
    """A head like EAGLE's for `target`: one decoder layer of its shape, a projection of two hidden states, its head.

    Assumed where no spec of the trained head is given; a mixture of experts gets a dense layer of the width that one
    token uses.
    """
    template = next((la for la in reversed(target.layers) if isinstance(la.mixer, (Attention, LatentAttention))), None)
    if template is None:
        raise UnsupportedError(
            f"{target.name} has no attention layer to shape an EAGLE head after; give a spec of the head"
        )
    feed_forward = template.feed_forward
    if isinstance(feed_forward, Experts):
        width = feed_forward.width * feed_forward.per_token + feed_forward.shared_width
        feed_forward = DenseMLP(width=width, gated=feed_forward.gated)
    fusion = Weight(component="mlp", name="fusion", size=2 * target.hidden_size**2, access=Access.MATMUL)
    return replace(
        target,
        name=f"eagle head of {target.name}",
        source="assumed: one layer of the target's shape",
        layers=(Layer(mixer=template.mixer, feed_forward=feed_forward),),
        extra=(fusion,),
        head=False,
        embedding=False,
        quantization=None,
        mtp_layers=(),
        published_params=None,
        draft_method="eagle",
    )


def mtp_head(target: Model) -> Model:
    """The multi-token prediction layer of `target` as a draft.

    Raises
    ------
    UnsupportedError
        When the target carries none.
    """
    if not target.mtp_layers:
        raise UnsupportedError(f"{target.name} carries no multi-token prediction layer, so mtp cannot draft for it")
    return replace(
        target,
        name=f"mtp layer of {target.name}",
        layers=target.mtp_layers[:1],
        extra=(),
        head=False,
        embedding=False,
        mtp_layers=(),
        published_params=None,
        draft_method="mtp",
    )


ENGINE_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sglang": ("none", "ngram", "eagle", "eagle3", "mtp", "dflash", "model"),
}
"""Sources that an engine offers, where not all."""


def on_engine(source: StepSource, target: Model, engine: str) -> StepSource:
    """The source as `engine` runs it for `target`: a checkpoint of a head by its method, a head made from the target.

    Raises
    ------
    InputError
        When the engine has no such source.
    UnsupportedError
        When the time of such a head is not known.
    """
    method = "" if source.model is None else source.model.draft_method
    if source.kind == "model" and method:
        if method not in (*HEADS, *PARALLEL):
            raise UnsupportedError(f"source {source.text!r}: the draft passes of {method} are not modelled")
        source = replace(source, kind=method)
    kinds = ENGINE_KINDS.get(engine)
    if kinds is not None and source.kind not in kinds:
        raise InputError(f"source {source.text!r}: {engine} has no {source.kind}; it offers {', '.join(kinds)}")
    heads = medusa_heads(source)
    if heads is not None and source.kappa is not None and source.kappa > heads:
        raise InputError(f"source {source.text!r}: {heads} Medusa heads draft at most {heads} tokens")
    if source.kind in HEADS and source.model is None:
        source = replace(source, model=mtp_head(target) if source.kind == "mtp" else eagle_head(target))
    if engine == "sglang" and source.kind == "ngram" and source.nodes is None:
        deepest = most_kappa(source, SGLANG_NODES - 1)
        source = replace(source, nodes=max(SGLANG_NODES, deepest + 1), kappa=deepest)
    return source


def medusa_heads(source: StepSource) -> int | None:
    """Heads of Medusa, each of which drafts one position; None for other sources, or where they share one matrix."""
    if source.kind != "medusa" or source.model is None:
        return None
    copies = max((weight.copies for weight in source.model.extra if is_output_head(weight)), default=1)
    return copies if copies > 1 else None


def most_kappa(source: StepSource, at_most: int) -> int:
    """Longest draft that the source's acceptance describes, up to `at_most`."""
    if source.kind == "none":
        return 0
    if source.kappa is not None:
        return source.kappa
    if source.kind == "suffix":
        at_most = min(at_most, SUFFIX_LENGTH)
    at_most = min(at_most, medusa_heads(source) or at_most)
    return min(at_most, len(source.hazard)) if source.hazard else at_most


def emitted(source: StepSource, kappa: npt.ArrayLike) -> FloatArray:
    """Tokens per step over all steps, at drafts of `kappa` tokens.

    Suffix decoding drafts `drafted` tokens on average; a fraction is split between the whole lengths around it.

    >>> half = Range(low=0.5, best=0.5, high=0.5)
    >>> float(emitted(StepSource(text="n", name="ngram", kind="ngram", alpha=half, coverage=half), 3))
    1.4375
    """
    k = np.asarray(kappa, np.int64)
    if source.kind == "none":
        return np.ones(k.shape)
    if source.emitted is not None:
        return np.where(k > 0, source.emitted.best, 1.0)
    if source.drafted is not None:
        length = np.minimum(k, source.drafted)
        low = np.floor(length).astype(np.int64)
        part = length - low
        per_draft = (1 - part) * _emitted_per_draft(source, low) + part * _emitted_per_draft(source, low + 1)
    else:
        per_draft = _emitted_per_draft(source, k)
    return emitted_over_all_steps(source.coverage.best, per_draft)


def _emitted_per_draft(source: StepSource, k: npt.NDArray[np.int64]) -> FloatArray:
    if source.alpha is not None:
        return expected_emitted(source.alpha.best, k)
    if source.hit is not None and source.continuation is not None:
        return expected_emitted_hit(source.hit, source.continuation, k)
    sums = np.cumsum(survival(source.hazard))
    return np.asarray(sums[np.minimum(k, len(source.hazard))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Shapes of target and draft on the ranks of one machine, counted once."""

    target: PassShape
    draft: PassShape | None


def loads(target: Model, source: StepSource, tp: int, kv_format: NumberFormat | None = None) -> Loads:
    """Count target and draft for `tp` ranks."""
    draft = None if source.model is None else pass_shape(source.model, tp, kv_format, head_of=target)
    return Loads(target=pass_shape(target, tp, kv_format), draft=draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step of speculation, arrays over batch, context and draft length; seconds.

    Attributes
    ----------
    emitted : ndarray
        Tokens per request and step.
    positions : ndarray
        Positions per request that the target verifies, on average.
    draft_s, verify_s, host_s : ndarray
        They add up to `step_s`.
    lower_s : ndarray
        Roofline bound of the target's pass.
    """

    emitted: FloatArray
    positions: FloatArray
    draft_s: FloatArray
    verify_s: FloatArray
    host_s: FloatArray
    lower_s: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """Time of the step."""
        return self.draft_s + self.verify_s + self.host_s

    @property
    def per_token_s(self) -> FloatArray:
        """Time per output token of one request."""
        return self.step_s / self.emitted


def step_time(
    on: Machine,
    source: StepSource,
    of: Loads,
    batch: npt.ArrayLike,
    context_len: npt.ArrayLike,
    kappa: npt.ArrayLike,
    *,
    target_table: MeasuredTable | None = None,
    draft_table: MeasuredTable | None = None,
) -> StepTime:
    """Time of a step of `source` on a machine; batch, context and kappa broadcast.

    A step with ``kappa`` 0, or of the source ``none``, is a plain step. What an engine pads is verified whether or not
    it holds a draft: vLLM's n-gram of the default runner always fills kappa slots, SGLang's trees all their nodes.
    """
    b, t, k = np.broadcast_arrays(
        np.asarray(batch, np.float64), np.asarray(context_len, np.float64), np.asarray(kappa, np.int64)
    )
    positions = verified_positions(on, source, k)
    verify = pass_time(on, of.target, b, positions, t, table=target_table)
    draft = _draft_s(on, source, of, b, t, k, positions, verify.total_s, draft_table)
    drafted = k > 0 if source.kind != "none" else np.zeros(k.shape, bool)
    host = host_time(on, b) + np.where(drafted, host_time(on, 0, drafted=True) - host_time(on, 0), 0.0)
    return StepTime(
        emitted=np.broadcast_to(emitted(source, k), b.shape),
        positions=positions,
        draft_s=np.where(drafted, draft, 0.0),
        verify_s=verify.total_s,
        host_s=host,
        lower_s=verify.lower_s,
    )


def verified_positions(on: Machine, source: StepSource, kappa: npt.ArrayLike) -> FloatArray:
    """Mean positions per request that the target verifies in a step."""
    k = np.asarray(kappa, np.float64)
    if source.kind == "none":
        return np.ones_like(k)
    if source.nodes is not None:
        return np.where(k > 0, float(source.nodes), 1.0)
    if is_padded(on, source):
        return 1 + k
    drafted = k if source.drafted is None else np.minimum(k, source.drafted)
    return 1 + source.coverage.best * drafted


def is_padded(on: Machine, source: StepSource) -> bool:
    """Whether a step without a draft is verified as wide as one with it."""
    if on.engine.draft_order == "sglang":
        return True
    return source.kind in ("ngram", "ngram-gpu") or source.is_model


def _draft_s(
    on: Machine,
    source: StepSource,
    of: Loads,
    batch: FloatArray,
    context_len: FloatArray,
    kappa: npt.NDArray[np.int64],
    positions: FloatArray,
    verify_s: FloatArray,
    table: MeasuredTable | None,
) -> FloatArray:
    if source.kind == "none" or (on.layer in ("bound", "upper") and not source.is_model):
        return np.zeros_like(batch)  # matchers are timed, not bounded by peaks
    match source.kind:
        case "suffix":
            return suffix_s(batch)
        case "ngram" | "ngram-gpu" if on.engine.draft_order == "sglang":
            return trie_s(batch, verify_s)
        case "ngram" | "ngram-gpu":
            return card_ngram_s(on, batch, context_len)
        case "ngram-host":
            return host_ngram_s(batch, context_len)
        case _:
            if of.draft is None:
                raise InputError(f"source {source.text!r}: its draft model was not loaded")
            return model_draft_s(
                on,
                of.draft,
                batch,
                kappa,
                context_len,
                own_head=source.own_head,
                branching=source.topk,
                verified=positions,
                parallel=source.kind in PARALLEL,
                table=table,
            )
