"""A server's page, log and answers as one observation: each tells what the others leave out."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from specplan.errors import InputError
from specplan.records.tally import Tally, checked
from specplan.telemetry.observation import Observation

_COUNTS: Final = ("steps", "emitted_tokens", "drafts", "drafted_tokens", "accepted_tokens", "verified_tokens")
_FIGURES: Final = ("means", "step_s", "window_s", "mean_batch", "tested", "draft_share", "c", "v", "load", "speed")


def joined(observed: Sequence[Observation]) -> list[Observation]:
    """Observations of one server as one: of one engine and model, by several origins, with equal counts.

    A count that two origins give must be the same in both; else both stay, and the second names the two figures. What
    both give beside the counts is the first one's, and is named where it differs.
    """
    out: list[Observation] = []
    for seen in observed:
        for i, first in enumerate(out):
            if first.engine != seen.engine or first.origin == seen.origin or _differ(first.labels, seen.labels):
                continue
            twice = _twice(first, seen)
            apart = [f"{name} {a:,} and {b:,}" for name, a, b in twice if a != b]
            if apart:
                note = f"not joined with {first.origin}, which gives other counts (there and here): {'; '.join(apart)}"
                seen = replace(seen, notes=(*seen.notes, note))
            elif twice:
                out[i] = _one(first, seen)
                break
        else:
            out.append(seen)
    return out


def _differ(a: Any, b: Any) -> bool:
    return any(b.get(name, value) != value for name, value in a.items())


def _twice(a: Observation, b: Observation) -> list[tuple[str, int, int]]:
    """Counts that both give."""
    if a.tally is None or b.tally is None:
        return []
    pairs = ((name, getattr(a.tally, name), getattr(b.tally, name)) for name in _COUNTS)
    return [(name, x, y) for name, x, y in pairs if x is not None and y is not None]


def _one(a: Observation, b: Observation) -> Observation:
    """The first, with what only the second tells."""
    figures = {name: getattr(a, name) if getattr(a, name) is not None else getattr(b, name) for name in _FIGURES}
    notes = [f"joined with {b.origin}, which gives the same counts"]
    for name in ("step_s", "mean_batch", "c", "v"):
        x, y = getattr(a, name), getattr(b, name)
        if x is not None and y is not None and abs(x - y) > 0.01 * abs(x):
            notes.append(f"{name} is {x:.4g} by {a.origin} and {y:.4g} by {b.origin}; the first is used")
    assert a.tally is not None  # noqa: S101 - counts that both give are of two tallies
    known = {f.name: getattr(a.tally, f.name) for f in fields(Tally)}
    more = {name: getattr(b.tally, name) for name, value in known.items() if value is None}
    try:
        tally = checked(replace(a.tally, **more))
    except InputError:  # one of the two is rounded in what the other leaves out
        tally = a.tally
    return replace(
        a,
        **figures,
        tally=tally,
        translations=(*a.translations, *b.translations),
        labels={**b.labels, **a.labels},
        steps=a.steps or b.steps,
        series=a.series or b.series,
        notes=(*a.notes, *b.notes, *notes),
    )
