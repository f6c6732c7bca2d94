"""A finished replay as measured sources: totals and tags, drift, places on named hardware, and the best of a grid."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specplan.decide.drift import Drift, drift
from specplan.decide.measured import MeasuredSource, summarise
from specplan.decide.measured_point import MeasuredPoint, Place, place_measured
from specplan.decide.pricing import Pair
from specplan.traces.counts import Window
from specplan.traces.run import ReplayResult
from specplan.traces.serve import verified_width


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One source of a replay.

    Attributes
    ----------
    spelling : str
        Every option of the source.
    measured : MeasuredSource
        Over all requests.
    tags : tuple of MeasuredSource
        Per tag, where requests have any.
    point : MeasuredPoint or None
        On the named target and card.
    windows : tuple of Window
        Over the course of the trace.
    drift : Drift or None
    host_s_per_step : float
        Seconds of this matcher (specplan's own, compiled) per step; not the engine's.
    """

    spelling: str
    measured: MeasuredSource
    tags: tuple[MeasuredSource, ...]
    point: MeasuredPoint | None
    windows: tuple[Window, ...]
    drift: Drift | None
    host_s_per_step: float


def replayed(
    result: ReplayResult, *, pair: Pair | None = None, batch: int = 1, context_len: int = 0, confidence: float = 0.95
) -> tuple[Replayed, ...]:
    """Every source of a replay, summarised and, with a pair, placed."""
    prices: dict[int | None, Place] = {}
    out = []
    for source in result.sources:
        name, total = result.plan.label(source.source), source.total
        tags = {tag: t for tag, t in source.tags.items() if tag or len(source.tags) > 1}
        measured = summarise(replace(total, draft_s=source.seconds), source=name, confidence=confidence)
        width = verified_width(source.source)
        if pair is not None and width not in prices:
            prices[width] = Place(pair=pair, batch=batch, context_len=context_len, width=width)
        windows = source.windows
        out.append(
            Replayed(
                spelling=source.source.spelling,
                measured=measured,
                tags=tuple(summarise(t, source=name, tag=tag, confidence=confidence) for tag, t in tags.items()),
                point=None if pair is None or not total.steps else place_measured(measured, prices[width]),
                windows=windows,
                drift=drift(windows),
                host_s_per_step=source.seconds / total.steps if total.steps else 0.0,
            )
        )
    return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best of several sources: by tokens per step, and by modelled time where a target is named."""

    by_tokens_per_step: Replayed
    by_time: Replayed | None


def best_of(sources: Sequence[Replayed]) -> Best | None:
    """The best sources; of equal ones the first, and of equal tokens per step the one that drafts less.

    None where no source made a step.
    """
    stepped = [r for r in sources if r.measured.tokens_per_step is not None]
    if not stepped:
        return None

    def yield_of(r: Replayed) -> tuple[float, int]:
        drafted = r.measured.tally.drafted_tokens if r.measured.tally is not None else 0
        return (r.measured.tokens_per_step or 0.0, -(drafted or 0))

    placed = [r for r in stepped if r.point is not None]
    return Best(
        by_tokens_per_step=max(stepped, key=yield_of),
        by_time=max(placed, key=lambda r: r.point.speedup if r.point else 0.0) if placed else None,
    )
