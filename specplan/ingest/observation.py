"""What was read from an engine: its own figures, what each is here, and the counts that follow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from specplan.records.means import Means
from specplan.records.step import StepRecord
from specplan.records.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One figure of the engine and what it is here.

    Attributes
    ----------
    name : str
        As the engine spells it.
    value : float or tuple of float
        As the engine gave it.
    meaning : str
        The engine's definition: over which steps, bonus token included or not, pooled or conditional.
    ours : str
        Field of the measured document that it becomes, or what is made of it.
    kind : str
        ``measured`` (counted by the engine) or ``derived`` (follows from what it counted).
    """

    name: str
    value: float | tuple[float, ...]
    meaning: str
    ours: str
    kind: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Speculation of one model on one engine over one window.

    Attributes
    ----------
    engine : str
        ``vllm``, ``sglang`` or ``llama.cpp``.
    origin : str
        File or URL.
    source : str
        What drafts, as far as the engine says: a method, a model's name, or the engine's name.
    tally : Tally or None
        Counts; None where the engine gives only means.
    means : Means or None
        Means, where the engine keeps no counts.
    steps : tuple of StepRecord
        Single steps, where the engine tells them (those with a draft).
    translations : tuple of Translation
        The engine's figures, one by one.
    labels : mapping
        Labels of the series, such as ``model_name``.
    step_s : float or None
        Mean seconds per step of one request, as the engine measured it.
    window_s : float or None
        Seconds between two scrapes.
    mean_batch : float or None
        Requests per engine iteration.
    notes : tuple of str
        What a reader must know: resets, ambiguity of rounded figures, assumptions.
    """

    engine: str
    origin: str
    source: str
    tally: Tally | None
    translations: tuple[Translation, ...]
    means: Means | None = None
    steps: tuple[StepRecord, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    step_s: float | None = None
    window_s: float | None = None
    mean_batch: float | None = None
    notes: tuple[str, ...] = ()
