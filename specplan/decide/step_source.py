"""A draft source as a step sees it: how it drafts on an engine, how many positions it has verified, what it emits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.decide.source import elsewhere, emitted, emitted_per_draft, medusa_heads, most_kappa
from specplan.errors import UnsupportedError
from specplan.formulas.emitted import FloatArray
from specplan.formulas.pairing import check_pair
from specplan.formulas.step import PassShape, pass_shape
from specplan.timing.draft_time import card_ngram_s, host_ngram_s, model_draft_s, suffix_s, trie_s
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.step_time import Machine, host_time, pass_time
from specplan.values.formats import NumberFormat
from specplan.values.model import Access, Attention, DenseMLP, Experts, LatentAttention, Layer, Model, Weight
from specplan.values.source import HEADS, METHODS, PARALLEL, Source

SGLANG_NODES: Final = 12
"""Verified positions of SGLang's NGRAM when ``--speculative-num-draft-tokens`` is not given."""


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


EAGLE3_VOCABULARY: Final = 32000
"""Rows of the output head of published EAGLE-3 heads for vocabularies that are larger."""


def eagle3_head(target: Model, vocabulary: int = EAGLE3_VOCABULARY) -> Model:
    """A head like EAGLE-3's: a layer whose attention reads [embedding; hidden], a small head, states joined once.

    Three hidden states of the target are projected to one, once per step. Assumed where no spec of the trained head is
    given.

    >>> from specplan.formulas.parameters import streamed_bytes
    >>> from specplan.specs.catalog import load_model
    >>> round(streamed_bytes(eagle3_head(load_model("llama3.1-8b"))) / 1e9, 2)
    0.85
    """
    plain = eagle_head(target)
    (layer,) = plain.layers
    mixer = layer.mixer
    if isinstance(mixer, (Attention, LatentAttention)):
        mixer = replace(mixer, input_size=2 * target.hidden_size)
    fc = Weight(component="head", name="fc", size=3 * target.hidden_size**2, access=Access.MATMUL, quantizable=False)
    return replace(
        plain,
        name=f"eagle3 head of {target.name}",
        layers=(replace(layer, mixer=mixer),),
        extra=(fc,),
        head=True,
        head_vocab_size=min(vocabulary, target.vocab_size),
        draft_method="eagle3",
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
    "sglang": ("none", "ngram", "eagle", "eagle3", "mtp", "dflash", "model", "free"),
}
"""Sources that an engine offers, where not all."""


def on_engine(source: Source, target: Model, engine: str) -> Source:
    """The source as `engine` runs it for `target`: a checkpoint of a head by its method, a head made from the target.

    Raises
    ------
    InputError
        When the engine has no such source, or its acceptance is not given.
    UnsupportedError
        When the time of such a head is not known.
    """
    source = elsewhere(source)
    method = "" if source.model is None else source.model.draft_method
    if source.kind == "model" and method:
        if method not in (*HEADS, *PARALLEL) and source.c is None:
            raise UnsupportedError(f"source {source.text!r}: the draft passes of {method} are not modelled; give c=...")
        source = replace(source, kind=method)
    if engine == "sglang" and source.kind == "sglang-ngram":
        source = replace(source, kind="ngram")
    kinds = ENGINE_KINDS.get(engine)
    if (kinds is not None and source.kind not in kinds) or source.kind == "sglang-ngram":
        offered = "" if kinds is None else f"; it offers {', '.join(kinds)}"
        raise source.wrong(f"{engine} has no {source.kind}{offered}")
    if source.kind != "none" and not source.has_acceptance:
        emitted_per_draft(source, 1)  # says what is missing
    if source.kappa is None and (source.nodes is not None or _has_emitted_alone(source)):
        raise source.wrong("emitted=... and nodes=... belong to one draft length; give it as k=...")
    heads = medusa_heads(source)
    if heads is not None and source.kappa is not None and source.kappa > heads:
        raise source.wrong(f"{heads} Medusa heads draft at most {heads} tokens")
    if source.kind in HEADS and source.model is None:
        source = replace(source, model=head_for(source, target))
    if source.nodes is None and (grown := with_tree(source, engine)).nodes is not None:
        source = replace(grown, kappa=most_kappa(source, SGLANG_NODES - 1))
    return source


def with_tree(source: Source, engine: str) -> Source:
    """The source with the nodes that an engine verifies of it at its defaults: SGLang's n-gram grows a tree.

    >>> with_tree(Source(name="ngram", kind="ngram"), "sglang").nodes
    12
    """
    if engine != "sglang" or source.nodes is not None or source.kind not in ("ngram", "sglang-ngram"):
        return source
    return replace(source, nodes=max(SGLANG_NODES, most_kappa(source, SGLANG_NODES - 1) + 1))


def _has_emitted_alone(source: Source) -> bool:
    return source.emitted is not None and not source.hazard and source.alpha is None


def head_for(source: Source, target: Model) -> Model:
    """The head that a method's name alone stands for, made from the target.

    Raises
    ------
    UnsupportedError
        Where the method's heads cannot be made from the target's shape alone.
    """
    if source.kind == "mtp":
        return mtp_head(target)
    if source.kind == "eagle3":
        return eagle3_head(target)
    if source.kind in HEADS:
        return eagle_head(target)
    if source.kind in METHODS and source.kind != "draft":
        raise UnsupportedError(f"source {source.text!r}: name the trained {source.kind} head by its path")
    raise source.wrong("its cost is unknown; give c=..., or the name or path of a model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Shapes of target and draft on the ranks of one machine, counted once."""

    target: PassShape
    draft: PassShape | None


def loads(target: Model, source: Source, tp: int, kv_format: NumberFormat | None = None) -> Loads:
    """Count target and draft for `tp` ranks; a draft of another target is refused."""
    if source.model is not None:
        check_pair(source.model, target)
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
    source: Source,
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
    drafted = (k > 0) & (source.kind != "none")
    host = np.where(drafted, host_time(on, b, drafted=True), host_time(on, b))
    verify_s = verify.total_s
    stated = source.c is not None or source.verify is not None or source.overhead is not None
    # What a source states of its cost is in units of the plain step.
    plain_s = pass_time(on, of.target, b, 1, t, table=target_table).total_s + host_time(on, b) if stated else b
    drafting = 1.0 if is_padded(on, source) or source.nodes is not None else source.coverage.best
    if source.c is not None:
        draft = source.c * mean_drafted(source, k) * drafting * plain_s
    elif target_table is not None and target_table.drafted is not None:
        draft = np.zeros_like(b)  # a server's drafted steps are measured whole
    else:
        draft = _draft_s(on, source, of, b, t, k, positions, verify_s, draft_table)
    tokens = np.broadcast_to(emitted(source, k), b.shape) if source.adaptive is None else np.ones(b.shape)
    if source.adaptive is not None and drafted.any():
        from specplan.decide.adaptive import adapted  # most questions have no budget

        if source.verify is not None or source.nodes is not None:
            raise source.wrong(
                "adaptive verification cuts chains and prices its own widths; leave out verify and nodes"
            )
        parts = adapted(on, source, of.target, b[drafted], t[drafted], k[drafted], np.asarray(draft)[drafted])
        tokens, positions, verify_s = np.array(tokens), np.array(positions), np.array(verify_s)
        tokens[drafted], positions[drafted], rest = parts
        verify_s[drafted] = rest - np.asarray(host)[drafted]
    if source.verify is not None:
        verify_s = np.where(drafted, (1 + drafting * (source.verify - 1)) * plain_s - host, verify_s)
    return StepTime(
        emitted=tokens,
        positions=positions,
        draft_s=np.where(drafted, draft, 0.0),
        verify_s=verify_s,
        host_s=host + np.where(drafted, (source.overhead or 0.0) * plain_s, 0.0),
        lower_s=verify.lower_s,
    )


def mean_drafted(source: Source, kappa: npt.ArrayLike) -> FloatArray:
    """Mean drafted tokens of a drafted step, drafts cut to `kappa`.

    >>> mean_drafted(Source(name="suffix", kind="suffix", lengths=(0.5, 0.25, 0.25)), [1, 2, 8]).tolist()
    [1.0, 1.5, 1.75]
    """
    k = np.asarray(kappa, np.float64)
    if source.lengths:
        n = np.arange(1, len(source.lengths) + 1)
        return np.asarray(np.minimum(k[..., None], n) @ np.array(source.lengths))
    return k if source.drafted is None else np.minimum(k, source.drafted)


def verified_positions(on: Machine, source: Source, kappa: npt.ArrayLike) -> FloatArray:
    """Mean positions per request that the target verifies in a step."""
    k = np.asarray(kappa, np.float64)
    if source.kind == "none":
        return np.ones_like(k)
    if source.nodes is not None:
        return np.where(k > 0, float(source.nodes), 1.0)
    if is_padded(on, source):
        return 1 + k
    return 1 + source.coverage.best * mean_drafted(source, k)


def is_padded(on: Machine, source: Source) -> bool:
    """Whether a step without a draft is verified as wide as one with it."""
    if on.engine.draft_order == "sglang":
        return True
    return source.kind in ("ngram", "ngram-gpu") or source.is_model


def _draft_s(
    on: Machine,
    source: Source,
    of: Loads,
    batch: FloatArray,
    context_len: FloatArray,
    kappa: npt.NDArray[np.int64],
    positions: FloatArray,
    verify_s: FloatArray,
    table: MeasuredTable | None,
) -> FloatArray:
    if source.kind == "none" or (on.layer in ("roofline", "upper") and not source.is_model):
        return np.zeros_like(batch)  # matchers are timed, not bounded by peaks
    match source.kind:
        case "free":
            return np.zeros_like(batch)
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
                raise source.wrong("its cost is unknown; give c=..., or the name or path of a model")
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
