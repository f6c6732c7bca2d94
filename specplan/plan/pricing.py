"""c and the verify factor of a target and a draft on a card, at any batch and context, from the roofline of a pass."""

from dataclasses import dataclass

from specplan.formulas import parameters
from specplan.formulas.speedup import verify_factor
from specplan.plan.cost import CostReport, cost
from specplan.plan.source import DraftSource
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, perhaps a draft model, and the card they run on."""

    target: Model
    accelerator: Accelerator
    draft: Model | None = None
    tp: int = 1
    kv_format: NumberFormat | None = None


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


def priced(source: DraftSource, setting: Setting, *, batch: int = 1, context_len: int = 0) -> tuple[float, float]:
    """(c, verify factor) of a source at a batch and context: derived where its setting allows, else as given.

    >>> free = DraftSource(name="suffix", kappa=24, c=0.0)
    >>> c, verify = priced(free, Setting(ridge=295.0), batch=16)
    >>> c, round(verify, 3)
    (0.0, 1.356)
    """
    if setting.pair is not None:
        found = prices(setting.pair, positions=source.positions, batch=batch, context_len=context_len)
        return (source.c if found.c is None else found.c), found.verify
    if setting.ridge is not None:
        return source.c, float(verify_factor(batch * source.positions, batch, setting.ridge))
    return source.c, source.verify


def prices(pair: Pair, *, positions: int, batch: int = 1, context_len: int = 0) -> Prices:
    r"""Price a draft pass and a verify pass of `positions` per request.

    .. math:: t(n) = \max\Bigl(t_{\mathrm{read}}(n),\ \frac{n}{R}\,t_{\mathrm{weights}}\Bigr), \quad
              c = \frac{t_q(B)}{t_p(B)}, \quad v = \frac{t_p(B \cdot \mathrm{positions})}{t_p(B)}

    A pass reads its weights (of routed experts the distinct ones that its positions touch) and its cache; at the ridge
    R computing takes as long as reading the weights of one token.

    Parameters
    ----------
    pair : Pair
    positions : int
        Positions per request that the verify pass computes, at least 1: kappa + 1 of a chain, the nodes of a tree.
    batch, context_len : int
        Requests per step; cached tokens that each reads.

    Notes
    -----
    Below the ridge and at context 0 c is that of `specplan.plan.cost`. Not counted: attention arithmetic, launches,
    collectives, host time.
    """
    report = _report(pair, batch, context_len, max(positions - 1, 1))
    weights_s = _one_token_s(pair.target, pair)
    read_s = report.target.decode_floor_s
    plain_s = max(read_s, _compute_s(batch, report.ridge_positions, weights_s))
    wide_read_s = read_s * (report.verify_factor if positions > 1 else 1.0)
    wide_s = max(wide_read_s, _compute_s(batch * positions, report.ridge_positions, weights_s))
    c = None
    if pair.draft is not None and report.draft is not None:
        ridge = cost(pair.draft, pair.accelerator, tp=pair.tp, kappa=1, max_model_len=1).ridge_positions
        share = report.draft.streamed_params / max(
            parameters.streamed_params(pair.draft), 1.0
        )  # a borrowed head counts
        draft_s = max(report.draft.decode_floor_s, _compute_s(batch, ridge, share * _one_token_s(pair.draft, pair)))
        c = draft_s / plain_s
    return Prices(c=c, verify=wide_s / plain_s, plain_s=plain_s, ridge=report.ridge_positions)


def _report(pair: Pair, batch: int, context_len: int, kappa: int) -> CostReport:
    return cost(
        pair.target,
        pair.accelerator,
        draft=pair.draft,
        tp=pair.tp,
        kappa=kappa,
        batch=batch,
        context_len=context_len,
        max_model_len=max(context_len, 1),
        kv_format=pair.kv_format,
    )


def _one_token_s(model: Model, pair: Pair) -> float:
    """Seconds in which one rank reads the weights that one token needs."""
    return parameters.streamed_bytes(model, 1, pair.tp) / pair.accelerator.bandwidth


def _compute_s(positions: int, ridge: float | None, weights_s: float) -> float:
    return 0.0 if ridge is None else positions / ridge * weights_s
