"""Observations as measured sources, placed on named hardware where one is given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specplan.decide.measured import MeasuredSource, summarise
from specplan.decide.measured_point import MeasuredPoint, Place, place_measured
from specplan.decide.pricing import Pair
from specplan.errors import InputError
from specplan.ingest.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One observation, summarised.

    Attributes
    ----------
    seen : Observation
    measured : MeasuredSource
    point : MeasuredPoint or None
        On the named target and card; None where none is named, or the figures do not suffice (a note says why).
    """

    seen: Observation
    measured: MeasuredSource
    point: MeasuredPoint | None


def ingested(
    observed: Sequence[Observation],
    *,
    pair: Pair | None = None,
    c: float | None = None,
    batch: int | None = None,
    context_len: int = 0,
) -> tuple[Ingested, ...]:
    """Summarise observations and place them.

    Parameters
    ----------
    observed : sequence of Observation
    pair : Pair or None
        Target, card and draft model.
    c : float or None
        Cost ratio, where it is known otherwise.
    batch : int or None
        Requests per step; None takes the engine's mean, rounded, or 1.
    context_len : int
        Cached tokens of each request.
    """
    if batch is not None and batch < 1:
        raise InputError(f"--batch {batch}: must be at least 1")
    if c is not None and not 0 <= c < float("inf"):
        raise InputError(f"--c {c:g}: a cost ratio is at least 0")
    out = []
    for seen in observed:
        measured = summarise(seen.tally, source=seen.source, means=seen.means, tested=seen.tested)
        notes = (*seen.notes, *measured.notes)
        point = None
        if pair is not None:
            n = batch if batch is not None else max(1, round(seen.mean_batch or 1))
            place = Place(pair=pair, batch=n, context_len=context_len, c=c, observed_step_s=seen.step_s)
            if c is None and pair.draft is None:
                notes = (*notes, "no --draft and no --c: the draft's cost c is taken as 0, as of n-gram and suffix")
            try:
                point = place_measured(measured, place)
            except InputError as error:
                notes = (*notes, f"not placed on the plane: {error}")
        out.append(Ingested(seen=seen, measured=replace(measured, notes=notes), point=point))
    return tuple(out)
