"""Observations as measured sources, placed on named hardware where one is given."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from specplan.decide.change import Break, break_in
from specplan.decide.measured import MeasuredSource, summarise
from specplan.decide.measured_point import MeasuredPoint, Place, place_measured
from specplan.decide.pricing import Pair
from specplan.errors import InputError
from specplan.telemetry.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One observation, summarised.

    Attributes
    ----------
    seen : Observation
    measured : MeasuredSource
    point : MeasuredPoint or None
        On the named target and card; None where none is named, or the figures do not suffice (a note says why).
    earlier : MeasuredSource or None
        The same of an earlier page or file.
    found_break : Break or None
        Where the acceptance of a dated log changes its level.
    """

    seen: Observation
    measured: MeasuredSource
    point: MeasuredPoint | None
    earlier: MeasuredSource | None = None
    found_break: Break | None = None


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
        notes = (*seen.notes, *measured.notes, *_contradictions(seen, pair, batch))
        point = None
        if pair is not None:
            n = batch if batch is not None else max(1, round(seen.mean_batch or (seen.load and seen.load.running) or 1))
            cost = c if c is not None else seen.c
            place = Place(pair=pair, batch=n, context_len=context_len, c=cost, observed_step_s=seen.step_s)
            if cost is None and pair.draft is None:
                notes = (*notes, "no --draft and no --c: the draft's cost c is taken as 0, as of n-gram and suffix")
            try:
                point = place_measured(measured, place)
            except InputError as error:
                notes = (*notes, f"not placed on the plane: {error}")
        first = seen.earlier
        out.append(
            Ingested(
                seen=seen,
                measured=replace(measured, notes=notes),
                point=point,
                earlier=None
                if first is None
                else summarise(first.tally, source=first.source, means=first.means, tested=first.tested),
                found_break=break_in([(x.when, x.drafts, x.accepted) for x in seen.series]),
            )
        )
    return tuple(out)


_SIZE: Final = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z])")


def _sizes(name: str) -> list[float]:
    return [float(n) * (1e9 if unit == "b" else 1e6) for n, unit in _SIZE.findall(name.lower())]


def _contradictions(seen: Observation, pair: Pair | None, batch: int | None) -> tuple[str, ...]:
    """What the page says of its model and load that the question contradicts."""
    if pair is None:
        return ()
    found = []
    served, target = seen.labels.get("model_name", ""), pair.target.name
    sizes, own = _sizes(served), _sizes(target)
    another = bool(sizes and own) and not any(0.8 < a / b < 1.25 for a in sizes for b in own)
    family = re.match(r"[a-z]+", target.lower())
    if served and (another or (sizes and family and family[0] not in served.lower())):
        found.append(f"caution: the engine serves {served!r}, the price below is of {target}: not of what runs")
    known = seen.mean_batch or (None if seen.load is None else seen.load.running)
    if batch is not None and known and not 0.5 <= batch / known <= 2:
        found.append(f"caution: --batch {batch} is priced, the engine ran {known:.1f} requests at a time")
    return tuple(found)
