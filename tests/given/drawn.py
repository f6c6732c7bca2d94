"""A placed source from plain numbers, for tests that state each of them."""

from dataclasses import replace
from typing import Any

from specplan.decide.source import Placed
from specplan.values.source import Range, Source

PLACED = ("kappa", "c", "verify", "target", "c_origin", "verify_origin")


def drawn(
    *,
    name: str,
    alpha: float | None = None,
    alpha_low: float | None = None,
    alpha_high: float | None = None,
    coverage: float = 1.0,
    emitted: float | None = None,
    **given: Any,
) -> Placed:
    """`emitted` is E of a drafted step."""
    low, high = (alpha, alpha) if alpha_low is None or alpha_high is None else (alpha_low, alpha_high)
    source = Source(
        name=name,
        kind="free" if given["c"] == 0 else "model",
        alpha=None if alpha is None else Range(low=low or 0.0, best=alpha, high=high or 0.0),
        coverage=Range.at(coverage),
        emitted=None if emitted is None else Range.at(1 + coverage * (emitted - 1)),
        **{key: value for key, value in given.items() if key not in PLACED},
    )
    return Placed(source=source, **{key: value for key, value in given.items() if key in PLACED})


def changed(s: Placed, **fields: Any) -> Placed:
    """The same with other acceptance."""
    return replace(s, source=replace(s.source, **fields))


def all_texts(figure: Any) -> list[Any]:
    """Every text of a picture that is shown: on its page, on its axes, and along them."""
    found = list(figure.texts)
    for axes in figure.axes:
        found += axes.texts
        if axes.axison:
            inside = [axes.xaxis.label, axes.yaxis.label]
            for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
                inside += [t.label1 for t in axis.get_major_ticks() if limits[0] <= t.get_loc() <= limits[1]]
            found += inside
    return [t for t in found if t.get_text().strip()]
