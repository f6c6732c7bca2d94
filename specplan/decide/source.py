"""A draft source as the plane sees it: what it costs, how it is accepted, and where both numbers come from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.formulas.emitted import (
    FloatArray,
    IntArray,
    checked_kappa,
    emitted_over_all_steps,
    expected_emitted,
    expected_emitted_hit,
    survival,
)
from specplan.formulas.speedup import step_cost

Origin = Literal["derived", "assumed", "measured"]

WEIGHTLESS: Final = ("ngram", "ngram_gpu", "suffix", "sglang-ngram", "lookup", "free")
"""Names of sources that stream no weights: their c is 0 unless another one is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSource:
    """One draft source.

    Acceptance is described in at most one way: `alpha`, `hazard`, `hit` with `continuation`, or `emitted` (a measured E
    per drafted step, with which a measured `alpha` may stand for the drawing). With none of them it is left free.

    Attributes
    ----------
    name : str
        As the user calls it.
    kappa : int
        Drafted tokens per step, at least 1.
    c : float
        Draft step over target step, at least 0.
    alpha, alpha_low, alpha_high : float or None
        Conditional acceptance per position in [0, 1], with the ends of its interval.
    hazard : tuple of float or None
        Conditional acceptance of each position.
    hit, continuation : float or None
        First-token acceptance given a match, and the acceptance of each later token.
    emitted : float or None
        Measured tokens per drafted step, bonus included.
    coverage : float
        Share of steps with a draft, in [0, 1].
    verify : float
        Cost of the verify pass over that of a plain pass, at least 0.
    overhead : float
        Cost that every step pays, drafted or not, in plain passes.
    nodes : int or None
        Node budget (root included) of a source that verifies a whole padded tree in every step, matched or not.
    target : str
        Target it drafts for, where that matters.
    c_origin, alpha_origin, verify_origin : {"derived", "assumed", "measured"}
        Where the numbers come from.
    """

    name: str
    kappa: int
    c: float
    alpha: float | None = None
    alpha_low: float | None = None
    alpha_high: float | None = None
    hazard: tuple[float, ...] | None = None
    hit: float | None = None
    continuation: float | None = None
    emitted: float | None = None
    coverage: float = 1.0
    verify: float = 1.0
    overhead: float = 0.0
    nodes: int | None = None
    target: str = ""
    c_origin: Origin = "assumed"
    alpha_origin: Origin = "assumed"
    verify_origin: Origin = "assumed"

    @property
    def is_weightless(self) -> bool:
        """Whether a drafted token costs nothing: the source lies on the c = 0 axis."""
        return self.c == 0.0

    @property
    def has_acceptance(self) -> bool:
        """Whether its acceptance is known in any form."""
        return any(x is not None for x in (self.alpha, self.hazard, self.hit, self.emitted))

    @property
    def label(self) -> str:
        """Name, with the target where one is named."""
        return f"{self.name} → {self.target}" if self.target else self.name

    @property
    def positions(self) -> int:
        """Positions that its verify pass computes per request."""
        return self.kappa + 1 if self.nodes is None else self.nodes


def check_source(source: DraftSource) -> DraftSource:
    """The source itself, if its numbers make sense.

    Raises
    ------
    InputError
        Naming the source, the field and what it must be.
    """

    def fail(what: str) -> InputError:
        return InputError(f"source {source.name!r}: {what}")

    _check_ranges(source, fail)
    if (source.hit is None) != (source.continuation is None):
        raise fail("hit and continuation go together")
    if source.nodes is not None and source.nodes < source.kappa + 1:
        raise fail(f"nodes {source.nodes} cannot hold a root and a path of {source.kappa} drafted tokens")
    given = [name for name in ("alpha", "hazard", "hit") if getattr(source, name) is not None]
    if len(given) > 1:
        raise fail(f"acceptance is given twice, as {' and as '.join(given)}")
    if source.hazard is not None and len(source.hazard) < source.kappa:
        raise fail(f"hazard has {len(source.hazard)} positions, kappa {source.kappa} needs as many")
    return source


def _check_ranges(source: DraftSource, fail: Callable[[str], InputError]) -> None:
    if source.kappa < 1:
        raise fail(f"kappa {source.kappa}: the draft length must be at least 1")
    for field in ("alpha", "alpha_low", "alpha_high", "hit", "continuation", "coverage"):
        value = getattr(source, field)
        if value is not None and not 0 <= value <= 1:
            raise fail(f"{field} {value:g} must lie in [0, 1]")
    if source.hazard is not None and not (source.hazard and all(0 <= h <= 1 for h in source.hazard)):
        raise fail("hazard must be one or more conditional acceptances in [0, 1]")
    for field in ("c", "overhead"):
        value = getattr(source, field)
        if not 0 <= value < np.inf:
            raise fail(f"{field} {value:g} must be finite and at least 0")
    if not 0 < source.verify < np.inf:
        raise fail(f"verify {source.verify:g} must be finite and above 0")
    if source.emitted is not None and not 1 <= source.emitted < np.inf:
        raise fail(f"emitted {source.emitted:g} tokens per drafted step must be at least 1")


def emitted_per_draft(source: DraftSource, kappa: npt.ArrayLike | None = None) -> FloatArray:
    """E of a drafted step, at the source's own draft length or at others.

    Raises
    ------
    InputError
        If the acceptance is free, or if other draft lengths are asked of a source of which only E is known (or of a
        hazard that is too short).

    Examples
    --------
    >>> float(emitted_per_draft(DraftSource(name="draft", kappa=3, c=0.1, alpha=0.7)))
    2.533
    """
    own = kappa is None
    k: IntArray = checked_kappa(source.kappa if kappa is None else kappa)
    if source.emitted is not None and own:
        return np.asarray(source.emitted)
    if source.alpha is not None:
        return expected_emitted(source.alpha, k)
    if source.hit is not None and source.continuation is not None:
        return expected_emitted_hit(source.hit, source.continuation, k)
    if source.hazard is not None:
        if k.size and k.max() > len(source.hazard):
            raise InputError(f"source {source.name!r}: its hazard ends at position {len(source.hazard)}")
        return np.asarray(np.cumsum(survival(source.hazard))[k])
    if source.emitted is not None:
        raise InputError(f"source {source.name!r}: only E at its own draft length is known; give its alpha")
    raise InputError(f"source {source.name!r}: its acceptance is not given; give alpha, hazard, or hit and continue")


def source_speedup(
    source: DraftSource,
    *,
    kappa: npt.ArrayLike | None = None,
    c: npt.ArrayLike | None = None,
    verify: npt.ArrayLike | None = None,
    coverage: npt.ArrayLike | None = None,
) -> FloatArray:
    """Speedup over plain decoding, as the source is or with some of its numbers replaced by arrays.

    A padded tree (`nodes`) pays its verify pass in every step; any other source only in the steps with a draft.

    Examples
    --------
    >>> round(float(source_speedup(DraftSource(name="draft", kappa=3, c=0.0177801, alpha=0.7))), 4)
    2.4047
    """
    g = source.coverage if coverage is None else coverage
    k = source.kappa if kappa is None else kappa
    emitted = emitted_over_all_steps(g, emitted_per_draft(source, kappa))
    drafting = 1.0 if source.nodes is not None else g
    cost = step_cost(
        k,
        source.c if c is None else c,
        source.verify if verify is None else verify,
        drafting,
        source.overhead,
    )
    return emitted / cost
