"""What a draft source emits at a draft length, and the source once its cost is known: what the plane draws."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specplan.formulas.emitted import (
    FloatArray,
    checked_kappa,
    emitted_over_all_steps,
    expected_emitted,
    expected_emitted_hit,
    survival,
)
from specplan.formulas.parameters import is_output_head
from specplan.formulas.speedup import step_cost
from specplan.values.source import Origin, Source

SUFFIX_LENGTH = 12
"""Longest draft of suffix decoding at vLLM's defaults: half of the tree depth of 24."""


def emitted_per_draft(source: Source, kappa: npt.ArrayLike | None = None) -> FloatArray:
    """E of a drafted step: of the source as it is (None), or with drafts of `kappa` tokens.

    A source with `drafted` drafts so many tokens on average; a fraction is split between the whole lengths around it.

    Raises
    ------
    InputError
        If the acceptance is free, or not known at such lengths.

    Examples
    --------
    >>> from specplan.values.source import Range
    >>> float(emitted_per_draft(Source(name="1b", kind="model", kappa=3, alpha=Range.at(0.7))))
    2.533
    """
    if source.emitted is not None and (kappa is None or np.isin(kappa, (0, source.kappa or 0)).all()):
        g = source.coverage.best
        known = 1.0 + (source.emitted.best - 1.0) / g if g > 0 else 1.0
        return np.where(np.asarray(1 if kappa is None else kappa) > 0, known, 1.0)
    own = source.kappa if kappa is None else kappa
    if own is None:
        raise source.wrong("its draft length is not known; give it as k=...")
    k = checked_kappa(own)
    if source.kind == "none":
        return np.ones(k.shape)
    if source.drafted is None:
        return _of_length(source, k)
    length = np.minimum(k, source.drafted)
    low = np.floor(length).astype(np.int64)
    part = length - low
    return np.asarray(
        (1 - part) * _of_length(source, low) + part * _of_length(source, np.where(part > 0, low + 1, low))
    )


def _of_length(source: Source, k: npt.NDArray[np.int64]) -> FloatArray:
    if source.hazard:
        if k.size and k.max() > len(source.hazard):
            raise source.wrong(f"its acceptance ends at position {len(source.hazard)}")
        return np.asarray(np.cumsum(survival(source.hazard))[k])
    if source.alpha is not None:
        return expected_emitted(source.alpha.best, k)
    if source.hit is not None and source.continuation is not None:
        return expected_emitted_hit(source.hit, source.continuation, k)
    if source.emitted is not None:
        raise source.wrong("only E at its own draft length is known; give that as k=..., or its alpha")
    raise source.wrong(
        "its acceptance is not given, and nothing is assumed about it: alpha=.7, alpha=.8/.7/.6, hit=.2,cont=.8, or "
        "emitted=2.3"
    )


def emitted(source: Source, kappa: npt.ArrayLike) -> FloatArray:
    """Tokens per step over all steps, at drafts of `kappa` tokens.

    >>> from specplan.values.source import Range
    >>> half = Range.at(0.5)
    >>> float(emitted(Source(name="n", kind="ngram", alpha=half, coverage=half), 3))
    1.4375
    """
    return emitted_over_all_steps(source.coverage.best, emitted_per_draft(source, kappa))


def medusa_heads(source: Source) -> int | None:
    """Heads of Medusa, each of which drafts one position; None for other sources, or where they share one matrix."""
    if source.kind != "medusa" or source.model is None:
        return None
    copies = max((weight.copies for weight in source.model.extra if is_output_head(weight)), default=1)
    return copies if copies > 1 else None


def longest(source: Source, at_most: int) -> int:
    """Longest draft that the source can make and that its acceptance describes, up to `at_most`.

    >>> from specplan.values.source import Range
    >>> longest(Source(name="ngram", kind="ngram", alpha=Range.at(0.7), kappa=3, nodes=8), 64)
    7
    """
    if source.kind == "none":
        return 0
    caps = [
        at_most,
        SUFFIX_LENGTH if source.kind == "suffix" and source.kappa is None and not source.hazard else None,
        medusa_heads(source),
        len(source.hazard) or None,
        None if source.nodes is None else source.nodes - 1,
        source.kappa if source.emitted is not None and not (source.alpha or source.hazard) else None,
    ]
    return min(cap for cap in caps if cap is not None)


def most_kappa(source: Source, at_most: int) -> int:
    """The draft length that the source fixes, else the longest up to `at_most`."""
    return longest(source, at_most) if source.kappa is None else source.kappa


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A source with its draft length and its cost, on a target or on none.

    Attributes
    ----------
    source : Source
    kappa : int
        Drafted tokens per step, at least 1.
    c : float
        Draft step over target step.
    verify : float
        Verify pass over plain pass.
    target : str
        Target it drafts for, where that matters.
    padded : bool
        Whether its engine verifies a step without a draft as wide as one with it.
    c_origin, verify_origin : {"derived", "assumed", "measured"}
    """

    source: Source
    kappa: int
    c: float
    verify: float = 1.0
    target: str = ""
    padded: bool = False
    c_origin: Origin = "assumed"
    verify_origin: Origin = "assumed"

    def __post_init__(self) -> None:
        """Let the source judge the numbers with which it is placed; a measured E is that of its own lengths."""
        kappa = self.kappa if self.source.emitted is None else self.source.kappa
        replace(self.source, c=self.c, verify=self.verify, kappa=kappa)

    @property
    def name(self) -> str:
        """Its label, else the name of what drafts."""
        return self.source.label or self.source.name

    @property
    def label(self) -> str:
        """Name, with the target where one is named."""
        return f"{self.name} → {self.target}" if self.target else self.name

    @property
    def alpha(self) -> float | None:
        """Conditional acceptance per position, where it is constant."""
        return None if self.source.alpha is None else self.source.alpha.best

    @property
    def coverage(self) -> float:
        """Share of steps with a draft."""
        return self.source.coverage.best

    @property
    def overhead(self) -> float:
        """What every step pays, drafted or not, in plain passes."""
        return self.source.overhead or 0.0

    @property
    def nodes(self) -> int | None:
        """Positions of a tree that is verified whole in every step."""
        return self.source.nodes

    @property
    def drafts_always(self) -> bool:
        """Whether a step costs the same whether or not it has a draft: a padded source, or a whole tree."""
        return self.padded or self.nodes is not None

    @property
    def is_weightless(self) -> bool:
        """Whether a drafted token costs nothing: the source lies on the c = 0 axis."""
        return self.c == 0.0

    @property
    def positions(self) -> int:
        """Positions that its verify pass computes per request."""
        return self.kappa + 1 if self.nodes is None else self.nodes

    def emitted(self, kappa: npt.ArrayLike | None = None) -> FloatArray:
        """E of a drafted step, at its own draft length or at others."""
        return emitted_per_draft(self.source, self.kappa if kappa is None and self.source.emitted is None else kappa)


def placed(source: Source, *, kappa: int = 3, c: float | None = None, target: str = "") -> Placed:
    """The source by its own figures, with the draft length and the cost that it does not state itself.

    Raises
    ------
    InputError
        Where c is neither stated, nor passed, nor 0 by the kind of source.

    Examples
    --------
    >>> from specplan.propose.spelling import read_source
    >>> placed(read_source("mine:c=.05,alpha=.8"), kappa=4).c
    0.05
    """
    known: float | None = source.c if source.c is not None else c
    if known is None:
        if not source.is_weightless:
            raise source.wrong("its cost is unknown; give c=..., or the target that it drafts for")
        known = 0.0
    mean = source.mean_length
    length = source.kappa if source.kappa is not None else kappa if mean is None else max(1, round(mean))
    return Placed(
        source=source,
        kappa=length if source.nodes is None else min(length, source.nodes - 1),
        c=known,
        verify=verify_of(source, length) if source.verify is None else source.verify,
        target=target,
        c_origin=source.c_origin if source.c is not None else "derived",
        verify_origin=source.verify_origin,
    )


def elsewhere(source: Source) -> Source:
    """The source on a machine that is named: times that were measured on another give way to what is known of this one.

    A measured c stays where nothing else is known of what drafts.

    >>> from specplan.propose.spelling import read_source
    >>> elsewhere(replace(read_source("ngram"), verify=1.5, verify_origin="measured")).verify is None
    True
    """
    if source.verify_origin == "measured":
        source = replace(source, verify=None, overhead=None, widths=())
    if source.c_origin == "measured" and (source.is_model or source.is_weightless):
        source = replace(source, c=None)
    return source


def verify_of(source: Source, kappa: int) -> float:
    """Verify factor at a draft length, between the widths at which it was measured; 1 where it was not."""
    if not source.widths:
        return 1.0
    widths, factors = zip(*source.widths, strict=True)
    return float(np.interp(source.nodes or kappa + 1, widths, factors))


def source_speedup(
    s: Placed,
    *,
    kappa: npt.ArrayLike | None = None,
    c: npt.ArrayLike | None = None,
    verify: npt.ArrayLike | None = None,
    coverage: npt.ArrayLike | None = None,
) -> FloatArray:
    """Speedup over plain decoding, as the source is or with some of its numbers replaced by arrays.

    What drafts always (a padded tree, say) pays its verify pass in every step; others only in the steps with a draft.

    Examples
    --------
    >>> from specplan.values.source import Range
    >>> draft = Source(name="draft", kind="model", alpha=Range.at(0.7))
    >>> round(float(source_speedup(Placed(source=draft, kappa=3, c=0.0177801))), 4)
    2.4047
    """
    g = s.coverage if coverage is None else coverage
    cost = step_cost(
        s.kappa if kappa is None else kappa,
        s.c if c is None else c,
        s.verify if verify is None else verify,
        1.0 if s.drafts_always else g,
        s.overhead,
    )
    return emitted_over_all_steps(g, s.emitted(kappa)) / cost
