"""c and the verify factor of a target and a draft on a card, at any batch and context: one time model for all commands.

Passes are timed by `specplan.timing` in the layer that the user names: ``roofline`` (reading and computing at the peaks
of the card), ``modelled`` (measured efficiencies, launches and host time under an engine) or ``measured`` (tables).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from specplan.decide.ranks import require_ranks
from specplan.decide.source import Placed, verify_of
from specplan.decide.step_source import Loads, step_time
from specplan.errors import InputError
from specplan.formulas.emitted import FloatArray
from specplan.formulas.speedup import verify_factor
from specplan.formulas.step import PassShape, pass_shape
from specplan.timing.draft_time import model_draft_s
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.roofline import ridge
from specplan.timing.step_time import Machine, host_time, machine, pass_time
from specplan.values.draft_methods import draft_method
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import NO_SOURCE, Range, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, perhaps a draft model, and what they run on; tables by the models' names, for the measured layer."""

    target: Model
    accelerator: Accelerator
    draft: Model | None = None
    tp: int = 1
    kv_format: NumberFormat | None = None
    layer: str = "roofline"
    engine: str = "vllm"
    tables: Mapping[str, MeasuredTable] | None = None

    @property
    def machine(self) -> Machine:
        """The card under the engine, in the layer."""
        return machine(self.accelerator, self.engine, self.tp, self.layer)

    def table(self, name: str) -> MeasuredTable | None:
        """Measured table of a model."""
        return None if self.tables is None else self.tables.get(name)


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
        The plain step itself, seconds.
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
        return _in_steps(source, setting.pair, batch, context_len)
    if setting.ridge is not None:
        return source.c, float(verify_factor(batch * source.positions, batch, setting.ridge))
    return source.c, verify_of(source.source, source.kappa) if source.source.widths else source.verify


def _in_steps(source: Placed, pair: Pair, batch: int, context_len: int) -> tuple[float, float]:
    """The c and the verify factor with which a placed source costs what its step takes.

    What a matcher takes on the host or the card belongs to its verify factor: its drafted tokens cost nothing.
    """
    on, s = pair.machine, source.source
    if s.adaptive is not None:
        raise s.wrong(
            "adaptive verification has no one verify factor; compare, schedule and plane over batch, context or kappa "
            "price it step by step"
        )
    timed = replace(
        _named(s, pair),
        verify=None if s.verify_origin == "measured" else s.verify,
        alpha=Range.at(0.0), hazard=(), hit=None, continuation=None, emitted=None,
    )  # fmt: skip
    step = step_time(on, timed, _loads(pair), batch, context_len, source.kappa, **_tables(s, pair))
    plain_s = float(plain_step_s(pair, batch, context_len))
    drafting = 1.0 if source.drafts_always else source.coverage
    if drafting == 0.0:
        return source.c, 1.0
    draft, rest = float(step.draft_s) / plain_s, float(step.verify_s + step.host_s) / plain_s - source.overhead
    if pair.draft is None and s.c is None:
        return source.c, 1.0 + (draft + rest - 1.0) / drafting
    c = source.c if s.c is not None else draft / drafting / source.kappa
    return c, 1.0 + (rest - 1.0) / drafting


def adaptive_curve(
    source: Placed, setting: Setting, *, batch: npt.ArrayLike, context_len: npt.ArrayLike, kappa: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Speedup, c and mean verify factor of a source under adaptive verification, at arrays of one shape.

    Raises
    ------
    InputError
        Where no models and card are named: the rule needs the cost of every width.
    """
    s, pair = source.source, setting.pair
    if pair is None:
        raise s.wrong("adaptive verification chooses by the cost of each width: name the target and the card")
    timed = replace(_named(s, pair), kappa=None)
    step = step_time(pair.machine, timed, _loads(pair), batch, context_len, kappa, **_tables(s, pair))
    plain_s = plain_step_s(pair, batch, context_len)
    c = step.draft_s / plain_s / np.maximum(kappa, 1)
    return step.emitted / step.step_s * plain_s, c, (step.verify_s + step.host_s) / plain_s


def _named(source: Source, pair: Pair) -> Source:
    """The source with the model that drafts, under the method that its head names."""
    method = "" if pair.draft is None else pair.draft.draft_method
    return replace(source, kind=method or source.kind, model=pair.draft)


def _loads(pair: Pair) -> Loads:
    return Loads(target=_shape(pair.target, pair), draft=None if pair.draft is None else _shape(pair.draft, pair))


def _tables(source: Source, pair: Pair) -> dict[str, MeasuredTable | None]:
    return {"target_table": pair.table(pair.target.name), "draft_table": pair.table(source.name)}


def plain_step_s(pair: Pair, batch: npt.ArrayLike, context_len: npt.ArrayLike) -> FloatArray:
    """Seconds of a step of `batch` requests without speculation."""
    of = Loads(target=_shape(pair.target, pair), draft=None)
    table = pair.table(pair.target.name)
    return step_time(pair.machine, NO_SOURCE, of, batch, context_len, 0, target_table=table).step_s


def _shape(model: Model, pair: Pair) -> PassShape:
    return _counted(model, pair.tp, pair.kv_format, None if model is pair.target else pair.target)


@lru_cache(maxsize=32)
def _counted(model: Model, tp: int, kv_format: NumberFormat | None, head_of: Model | None) -> PassShape:
    return pass_shape(model, tp, kv_format, head_of=head_of)


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
        For an unknown layer, a measured one without tables, or ranks that a model cannot take.

    Notes
    -----
    A plain step is a pass and the host time between passes; c is the mean over a draft's tokens, as the engine runs its
    passes (at the roofline each token is one pass, or all are). The time is that of `specplan.decide.step_source`.
    """
    if batch < 1:
        raise InputError(f"--batch {batch}: must be at least 1")
    if context_len < 0:
        raise InputError(f"--context {context_len}: must be at least 0")
    require_ranks(pair.target, pair.tp)
    on = pair.machine
    shape = _shape(pair.target, pair)
    table = pair.table(pair.target.name)
    plain_s = float(pass_time(on, shape, batch, 1, context_len, table=table).total_s + host_time(on, batch))
    wide_s = pass_time(on, shape, batch, positions, context_len, table=table).total_s
    verify = float(wide_s + host_time(on, batch, drafted=True)) / plain_s
    c = None
    if pair.draft is not None and table is not None and table.drafted is not None:
        c = 0.0  # a server's drafted steps are measured whole
    elif pair.draft is not None:
        require_ranks(pair.draft, pair.tp)
        one_pass = drafts_in_one_pass(pair.draft)
        # At the roofline every token is the same pass, whatever their number.
        k = 1 if pair.layer == "roofline" and not one_pass else max(positions - 1, 1)
        draft_s = model_draft_s(
            on,
            _shape(pair.draft, pair),
            batch,
            k,
            context_len,
            own_head=not pair.draft.draft_method,
            parallel=one_pass,
            table=pair.table(pair.draft.name),
        )
        c = float(draft_s) / k / plain_s
    # At the roofline no pass costs more than its positions one by one; rounding must not say so.
    verify = min(verify, float(positions)) if pair.layer == "roofline" else verify
    return Prices(c=c, verify=verify, plain_s=plain_s, ridge=ridge(pair.target, pair.accelerator, on.engine.native))


def price_notes(setting: Setting) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the prices of a setting assume, and what they leave out.

    >>> price_notes(Setting(ridge=295.0))[0]
    ('a pass costs the same up to the ridge and rises in proportion beyond',)
    """
    if setting.pair is None:
        if setting.ridge is None:
            return (), ()
        return ("a pass costs the same up to the ridge and rises in proportion beyond",), ()
    if setting.pair.layer != "roofline":
        on = setting.pair.machine
        engine = f"times: {on.layer}, passes as {on.engine.name} {on.engine.version} runs them on {on.accelerator.name}"
        return (engine, "what a matcher takes is part of its verify pass", *on.notes), ()
    return (
        ("times: roofline, a pass takes the longer of reading and computing, at the datasheet's peaks",),
        ("achieved bandwidth below peak, kernel launches, collectives, sampling and host time",),
    )


def drafts_in_one_pass(draft: Model) -> bool:
    """Whether a head drafts all its tokens in one pass instead of one pass each."""
    return bool(draft.draft_method) and draft_method(draft.draft_method).one_pass
