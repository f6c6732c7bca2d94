"""c and the verify factor of a target and a draft on a card, at any batch and context.

Two ways to time a pass: ``roofline`` (what must be read and computed at the card's peaks, with the c of
`specplan.decide.cost`) and ``modelled`` (measured efficiencies, launches and host time under an engine, of
`specplan.timing.step_time`).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from specplan.decide.cost import cost
from specplan.decide.source import Placed
from specplan.errors import InputError
from specplan.formulas import parameters
from specplan.formulas.speedup import verify_factor
from specplan.formulas.step import pass_shape
from specplan.timing.draft_time import model_draft_s
from specplan.timing.step_time import host_time, machine, pass_time
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model

LAYERS: Final = ("roofline", "modelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, perhaps a draft model, and what they run on; `layer` is one of `LAYERS`."""

    target: Model
    accelerator: Accelerator
    draft: Model | None = None
    tp: int = 1
    kv_format: NumberFormat | None = None
    layer: str = "roofline"
    engine: str = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What drafting and verifying cost in units of a plain pass of the same batch and context.

    Attributes
    ----------
    c : float or None
        One draft pass; None without a draft model.
    verify : float
        One target pass over the given positions per request.
    plain_s : float
        The plain pass itself, seconds, at the roofline.
    ridge : float or None
        Positions per pass at which the target's matmuls turn compute-bound; None where the card's rate is unknown (then
        only bytes are counted).
    """

    c: float | None
    verify: float
    plain_s: float
    ridge: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a source runs, as far as it is known.

    Attributes
    ----------
    pair : Pair or None
        Models and card, from which c (of a draft model) and the verify factor are derived at any batch and context.
    ridge : float or None
        Positions at the ridge, where no models are named: the verify factor follows, c stays as given.
    """

    pair: Pair | None = None
    ridge: float | None = None


def priced(source: Placed, setting: Setting, *, batch: int = 1, context_len: int = 0) -> tuple[float, float]:
    """(c, verify factor) of a source at a batch and context: derived where its setting allows, else as given.

    >>> from specplan.values.source import Source
    >>> free = Source(name="suffix", kind="suffix")
    >>> c, verify = priced(Placed(source=free, kappa=24, c=0.0), Setting(ridge=295.0), batch=16)
    >>> c, round(verify, 3)
    (0.0, 1.356)
    """
    if setting.pair is not None:
        found = prices(setting.pair, positions=source.positions, batch=batch, context_len=context_len)
        return (source.c if found.c is None else found.c), found.verify
    if setting.ridge is not None:
        return source.c, float(verify_factor(batch * source.positions, batch, setting.ridge))
    if source.source.widths:
        widths, factors = zip(*source.source.widths, strict=True)
        return source.c, float(np.interp(source.positions, widths, factors))
    return source.c, source.verify


def prices(pair: Pair, *, positions: int, batch: int = 1, context_len: int = 0) -> Prices:
    r"""Price a draft pass and a verify pass of `positions` per request.

    .. math:: c = \frac{t_q(B)}{t_p(B)}, \quad v = \frac{t_p(B \cdot \mathrm{positions})}{t_p(B)}

    Parameters
    ----------
    pair : Pair
    positions : int
        Positions per request that the verify pass computes, at least 1: kappa + 1 of a chain, the nodes of a tree.
    batch, context_len : int
        Requests per step; cached tokens that each reads.

    Raises
    ------
    InputError
        For an unknown layer, or what `specplan.decide.cost.cost` refuses.

    Notes
    -----
    ``roofline``: a pass takes the longer of reading (weights, of routed experts the distinct ones that its positions
    touch, and cache) and computing (positions over the ridge, times the reading of one token's weights). Below the
    ridge c is that of `specplan.decide.cost`. ``modelled``: a plain step is a pass and the host time between passes;
    c is the mean of the draft's passes as the engine runs them.
    """
    if pair.layer not in LAYERS:
        raise InputError(f"unknown layer {pair.layer!r}; one of {', '.join(LAYERS)}")
    report = cost(
        pair.target,
        pair.accelerator,
        draft=pair.draft,
        tp=pair.tp,
        kappa=max(positions - 1, 1),
        batch=batch,
        context_len=context_len,
        max_model_len=max(context_len, 1),
        kv_format=pair.kv_format,
    )
    if pair.layer == "modelled":
        return _modelled(pair, positions, batch, context_len, report.ridge_positions)
    weights_s = _one_token_s(pair.target, pair)
    read_s = report.target.decode_floor_s
    plain_s = max(read_s, _compute_s(batch, report.ridge_positions, weights_s))
    wide_read_s = read_s * (report.verify_factor if positions > 1 else 1.0)
    wide_s = max(wide_read_s, _compute_s(batch * positions, report.ridge_positions, weights_s))
    c = None
    if pair.draft is not None and report.draft is not None:
        ridge = cost(pair.draft, pair.accelerator, tp=pair.tp, kappa=1, max_model_len=1).ridge_positions
        # a head without an output head of its own computes its target's too
        share = report.draft.streamed_params / max(parameters.streamed_params(pair.draft), 1.0)
        compute_s = _compute_s(batch, ridge, share * _one_token_s(pair.draft, pair))
        c = max(report.draft.decode_floor_s, compute_s) / plain_s
    # No pass costs more than its positions one by one; rounding must not say so.
    verify = min(wide_s / plain_s, float(positions))
    return Prices(c=c, verify=verify, plain_s=plain_s, ridge=report.ridge_positions)


def _one_token_s(model: Model, pair: Pair) -> float:
    """Seconds in which one rank reads the weights that one token needs."""
    return parameters.streamed_bytes(model, 1, pair.tp) / pair.accelerator.bandwidth


def _compute_s(positions: int, ridge: float | None, weights_s: float) -> float:
    return 0.0 if ridge is None else positions / ridge * weights_s


def price_notes(setting: Setting) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the prices of a setting assume, and what they leave out.

    >>> price_notes(Setting(ridge=295.0))[0]
    ('a pass costs the same up to the ridge and rises in proportion beyond',)
    """
    if setting.pair is None:
        if setting.ridge is None:
            return (), ()
        return ("a pass costs the same up to the ridge and rises in proportion beyond",), ()
    if setting.pair.layer == "modelled":
        on = machine(setting.pair.accelerator, setting.pair.engine, setting.pair.tp, "modelled")
        engine = f"passes as {on.engine.name} {on.engine.version} runs them on {on.accelerator.name}"
        return (engine, *on.notes), ("what a matcher takes on the host (see compare)",)
    return (
        ("a pass takes the longer of reading and computing, at the datasheet's peaks",),
        ("achieved bandwidth below peak, kernel launches, collectives, sampling and host time",),
    )


def _modelled(pair: Pair, positions: int, batch: int, context_len: int, ridge: float | None) -> Prices:
    on = machine(pair.accelerator, pair.engine, pair.tp, "modelled")
    shape = pass_shape(pair.target, pair.tp, pair.kv_format)
    plain_s = float(pass_time(on, shape, batch, 1, context_len).total_s + host_time(on, batch))
    wide_s = float(pass_time(on, shape, batch, positions, context_len).total_s + host_time(on, batch, drafted=True))
    c = None
    if pair.draft is not None and positions > 1:
        drafted = pass_shape(pair.draft, pair.tp, pair.kv_format, head_of=pair.target)
        own_head = pair.draft.head and pair.draft.embedding
        draft_s = model_draft_s(on, drafted, batch, positions - 1, context_len, own_head=own_head)
        c = float(draft_s) / (positions - 1) / plain_s
    return Prices(c=c, verify=wide_s / plain_s, plain_s=plain_s, ridge=ridge)
