"""A draft source: what drafts, how it is accepted, what is known of its cost, and where each figure comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Literal, Self

from specplan.errors import InputError
from specplan.values.draft_methods import named
from specplan.values.model import Model

Origin = Literal["derived", "assumed", "measured"]

MATCHERS: Final = (*named(by="matcher"), "sglang-ngram")
"""Sources that find drafts in token ids; they stream no weights."""
HEADS: Final = named(by="head", one_pass=False, timed=True)
"""Heads on the target's states that pass once per token; made for the target where no checkpoint is named."""
PARALLEL: Final = named(by="head", one_pass=True, timed=True)
"""Heads that draft all their tokens in one pass; they come as checkpoints, named by their path."""
METHODS: Final = (*MATCHERS, *named(by="head"), "draft")
"""Names that are methods, not models."""
FREE: Final = ("free", "lookup")
"""Names of sources that cost nothing at all."""
WEIGHTLESS: Final = (*MATCHERS, *FREE)

CONFIDENCE: Final = 0.2
"""Share of the variance of acceptance that a trained confidence head explains, fitted to published tables; what
``adaptive`` means where it stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A figure with the ends between which it may lie; equal ends where it is exact."""

    low: float
    best: float
    high: float

    @classmethod
    def at(cls, value: float) -> Self:
        """One value, without doubt.

        >>> Range.at(0.7)
        Range(low=0.7, best=0.7, high=0.7)
        """
        return cls(low=value, best=value, high=value)

    @property
    def is_range(self) -> bool:
        """Whether the ends differ."""
        return self.low < self.high


ALWAYS: Final = Range.at(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One draft source, as a user spelled it or as a document measured it. What is not known is None.

    Attributes
    ----------
    name, kind : str
        What drafts: a method, or the name or path of a model. ``none``, one of `METHODS` (``draft`` is the
        target without some of its layers), ``free``, or ``model`` (also a draft of one's own, known by c).
    label, text : str
        What the user calls it (``name=``), if anything; as it was spelled.
    options : mapping of str to str
        Words of its own kind: a matcher's rule, a self-draft's layers.
    model : Model or None
        What makes its forward passes, once loaded.
    alpha : Range or None
        Conditional acceptance per position in [0, 1].
    hazard : tuple of float
        Acceptance of each position given that the one before was accepted, where it is not constant. Of measured drafts
        of several lengths, one that ended counts as not accepted, so that the partial sums are those of the drafts cut.
    hit, continuation : float or None
        Acceptance of the first drafted token and of each later one.
    coverage : Range
        Share of steps with a draft.
    emitted : Range or None
        Measured tokens per step over all steps, bonus included: E of the source as it is.
    drafted : float or None
        Mean drafted tokens per drafted step where they are fewer than kappa.
    lengths : tuple of float
        Measured shares of the drafts with 1, 2, ... tokens.
    kappa : int or None
        Drafted tokens (a tree's depth); None lets the plan choose.
    nodes : int or None
        Positions of a tree that is verified whole in every step, root included.
    topk : int
        Branching of a tree.
    c, verify, overhead : float or None
        Draft step, verify pass, and what every step pays, in plain passes.
    widths : tuple of (int, float)
        Measured verify factors by positions per request, rising.
    batch : int or None
        Requests per step at which it was measured.
    adaptive : float or None
        Verification decides per step how much of each draft to verify, by a confidence that explains this share of the
        variance of acceptance: 1 knows every fate, 0 the request's acceptance alone. None verifies the whole draft.
    confidence : float or None
        The share that its recorded confidences were measured to explain: what ``adaptive`` alone means then.
    alpha_origin, c_origin, verify_origin : {"derived", "assumed", "measured"}
        Where acceptance with coverage, c, and the verify factor come from.
    """

    name: str
    kind: str
    label: str = ""
    text: str = ""
    options: Mapping[str, str] | None = None
    model: Model | None = None
    alpha: Range | None = None
    hazard: tuple[float, ...] = ()
    hit: float | None = None
    continuation: float | None = None
    coverage: Range = ALWAYS
    emitted: Range | None = None
    drafted: float | None = None
    lengths: tuple[float, ...] = ()
    kappa: int | None = None
    nodes: int | None = None
    topk: int = 1
    c: float | None = None
    verify: float | None = None
    overhead: float | None = None
    widths: tuple[tuple[int, float], ...] = ()
    batch: int | None = None
    adaptive: float | None = None
    confidence: float | None = None
    alpha_origin: Origin = "assumed"
    c_origin: Origin = "assumed"
    verify_origin: Origin = "assumed"

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense, whoever states them."""
        for key, figure, low, high in self._bounded():
            if figure is not None and (not low <= figure <= high or figure == inf):  # NaN fails as well
                bounds = f"be at least {low:g}" if high == inf else f"lie in [{low:g}, {high:g}]"
                raise self.wrong(f"{key} {figure:g} must be finite and {bounds}")
        if (self.hit is None) != (self.continuation is None):
            raise self.wrong("hit and cont go together")
        if self.hit is not None and (self.alpha is not None or self.hazard):
            raise self.wrong("its acceptance is given twice, as alpha and as hit")
        if self.verify == 0:
            raise self.wrong("verify 0: a verify pass takes time")
        if self.nodes is not None and self.nodes < (self.kappa or 0) + 1:
            raise self.wrong(f"nodes={self.nodes} cannot hold a root and a path of k={self.kappa or 0}")
        if self.hazard and self.kappa is not None and self.kappa > len(self.hazard):
            raise self.wrong(f"k={self.kappa} needs as many acceptances, alpha gives {len(self.hazard)}")
        if self.emitted is not None and self.emitted.high > 1:
            if self.coverage.high == 0:
                raise self.wrong("a source that never drafts emits one token per step")
            if self.kappa is not None and self.emitted.high > self.kappa + 1:
                most = self.kappa + 1
                raise self.wrong(
                    f"emitted {self.emitted.high:g} is more than the {most} tokens of a step of k={most - 1}"
                )

    def _bounded(self) -> list[tuple[str, float | None, float, float]]:
        found: list[tuple[str, float | None, float, float]] = []
        for key, span, low, high in (
            ("alpha", self.alpha, 0.0, 1.0),
            ("coverage", self.coverage, 0.0, 1.0),
            ("emitted", self.emitted, 1.0, inf),
        ):
            found += [] if span is None else [(key, end, low, high) for end in (span.low, span.best, span.high)]
        found += [("alpha", h, 0.0, 1.0) for h in self.hazard]
        found += [
            ("adaptive", self.adaptive, 0.0, 1.0),
            ("confidence", self.confidence, 0.0, 1.0),
            ("hit", self.hit, 0.0, 1.0),
            ("cont", self.continuation, 0.0, 1.0),
        ]
        found += [("k", self.kappa, 0 if self.kind == "none" else 1, inf), ("topk", self.topk, 1, inf)]
        found += [(key, getattr(self, key), 0.0, inf) for key in ("c", "verify", "overhead", "drafted")]
        return found

    def wrong(self, what: str) -> InputError:
        """An error about this source."""
        return InputError(f"source {self.text or self.name!r}: {what}")

    @property
    def title(self) -> str:
        """What tables call it: its label, else as it was spelled."""
        return self.label or self.text or self.name

    @property
    def is_model(self) -> bool:
        """Whether it makes forward passes."""
        return self.model is not None

    @property
    def own_head(self) -> bool:
        """Whether it is a stand-alone model with an output head of its own."""
        return self.kind == "model"

    @property
    def is_weightless(self) -> bool:
        """Whether its kind streams no weights."""
        return self.kind in WEIGHTLESS

    @property
    def has_acceptance(self) -> bool:
        """Whether its acceptance is known in any form."""
        return bool(self.hazard) or any(x is not None for x in (self.alpha, self.hit, self.emitted))

    @property
    def mean_length(self) -> float | None:
        """Mean drafted tokens per drafted step, where it is known."""
        if self.lengths:
            return sum(n * share for n, share in enumerate(self.lengths, 1))
        return self.drafted

    def ends(self) -> tuple["Source", "Source"]:
        """The source at the low and at the high end of its acceptance and coverage."""

        def at(end: str) -> Source:
            def pick(r: Range | None) -> Range | None:
                return None if r is None else Range.at(getattr(r, end))

            return replace(
                self, alpha=pick(self.alpha), coverage=pick(self.coverage) or ALWAYS, emitted=pick(self.emitted)
            )

        return at("low"), at("high")


NO_SOURCE: Final = Source(text="none", name="none", kind="none", kappa=0)
