"""Documents as sources: what ``replay``, ``ingest`` and ``measure`` measured, each figure with its origin."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from specplan.decide.measured import Alpha, LengthRow, MeasuredSource
from specplan.errors import InputError
from specplan.propose.spelling import read_source
from specplan.records.laws import Law, agreement_law, demand, emitted_laws, ordered_laws, rate_laws, share_laws
from specplan.records.tally import Tally
from specplan.values.source import ALWAYS, Origin, Range, Source

_PRINT: Final = 5e-4
"""Half of the last digit where a document is written by hand with three digits; ours are written in full."""


def measured_source(
    m: MeasuredSource,
    *,
    spelling: str = "",
    c: float | None = None,
    c_origin: Origin = "measured",
    verify: float | None = None,
    overhead: float | None = None,
    widths: Sequence[tuple[int, float]] = (),
    batch: int | None = None,
    kappa: int | None = None,
) -> Source:
    """A measured source: its acceptance by position, draft lengths and coverage, and what is known of its cost.

    Parameters
    ----------
    m : MeasuredSource
    spelling : str
        How the source is spelled in full, where `m` calls it otherwise.
    c, verify, overhead, widths, batch
        As in `Source`, measured with it.
    kappa : int, optional
        Draft length that was asked for, where the drafts themselves do not tell theirs.

    Examples
    --------
    >>> from specplan.decide.measured import summarise
    >>> t = Tally.of_counters(drafts=7, drafted_tokens=21, accepted_tokens=13, accepted_at=[5, 4, 4],
    ...                       steps=22, emitted_tokens=35)
    >>> s = measured_source(summarise(t, source="ngram:min=2,max=5,k=3"))
    >>> s.name, s.alpha.best, [round(h, 3) for h in s.hazard], round(s.coverage.best, 3), s.lengths
    ('ngram', 0.8125, [0.714, 0.8, 1.0], 0.318, (0.0, 0.0, 1.0))
    """
    try:
        base = read_source(spelling or m.source)
    except InputError:  # an engine calls its source as it likes
        base = Source(name=m.source, kind="model")
    label = base.label or ("" if m.source == (spelling or m.source) else m.source)
    if m.tag:
        label = f"{label or base.name} ({m.tag})"
    known = m.alpha.low is not None and m.alpha.high is not None
    alpha = None
    if m.alpha.value is not None:
        low, high = (m.alpha.low, m.alpha.high) if known else (m.alpha.value, m.alpha.value)
        alpha = Range(low=low or 0.0, best=m.alpha.value, high=high or 0.0)
    rates = m.position_rates_unconditional or ()
    emitted = m.tokens_per_step if m.coverage is not None else m.tokens_per_drafted_step
    if emitted is None and m.tokens_per_drafted_step is not None and m.coverage is not None:
        emitted = 1.0 + m.coverage * (m.tokens_per_drafted_step - 1.0)
    drafts = sum(row.drafts for row in m.lengths)
    longest = max((row.drafted for row in m.lengths), default=0)
    counts = {row.drafted: row.drafts for row in m.lengths}
    return replace(
        base,
        text=base.text or m.source,
        label=label,
        alpha=alpha,
        hazard=tuple(b / a if a else 0.0 for a, b in zip((1.0, *rates), rates, strict=False)),
        hit=None,
        continuation=None,
        coverage=ALWAYS if m.coverage is None else Range.at(m.coverage),
        emitted=None if emitted is None else Range.at(emitted),
        drafted=None if counts or rates else m.draft_len,
        lengths=tuple(counts.get(n, 0) / drafts for n in range(1, longest + 1)) if drafts else (),
        kappa=None if rates else kappa if m.draft_len is None else max(1, round(m.draft_len)),
        nodes=_padded_nodes(m.tally),
        c=c,
        verify=verify,
        overhead=overhead,
        widths=tuple(widths),
        batch=batch,
        confidence=m.confidence_explains,
        alpha_origin="measured" if m.alpha.kind == "measured" or m.alpha.value is None else "derived",
        c_origin=c_origin,
        verify_origin="measured",
    )


def shortest_measured(sources: Sequence[Source]) -> int | None:
    """Least mean draft length of sources that were all measured: where a plane that shows them stands.

    >>> shortest_measured([Source(name="a", kind="ngram", lengths=(0.5, 0.5)), Source(name="b", kind="ngram")]) is None
    True
    """
    means = [s.mean_length for s in sources if s.lengths or s.coverage.high == 0]
    if len(means) < len(sources):
        return None
    return min((max(1, round(mean)) for mean in means if mean is not None), default=None)


def _padded_nodes(tally: Tally | None) -> int | None:
    """Nodes of a tree that is verified whole in every step, where more was verified than drafted; else None."""
    if tally is None or not tally.steps or tally.verified_tokens is None or tally.drafted_tokens is None:
        return None
    if tally.verified_tokens <= tally.drafted_tokens:
        return None
    return max(2, 1 + round(tally.verified_tokens / tally.steps))


def sources_of(document: Any, where: str) -> list[Source]:
    """Measured sources of a document that ``replay``, ``measure``, ``ingest`` or ``bench`` printed.

    A row is an object with ``source`` (or ``name``) and ``alpha``; rows are looked for in the document itself, in a
    list, and under ``sources`` and ``points``; the groups of a row (``tags``) follow it.

    Raises
    ------
    InputError
        Where there is no such row, or a value in one is not a number.
    """
    found = [_of_row(row, where) for row in _rows(document)] or _of_bench(document)
    if not found:
        raise InputError(
            f"{where}: no measured source; expected JSON of replay, measure, ingest or bench (rows of source and alpha)"
        )
    return found


def _of_bench(document: Any) -> list[Source]:
    """The c and the verify factors by width that ``bench`` timed, one source for each batch and context."""
    if not isinstance(document, Mapping) or document.get("command") != "bench" or "target" not in document:
        return []
    draft = document.get("draft")
    name = "free" if draft is None else str(draft["name"])
    groups: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in document["target"]["rows"]:
        groups.setdefault((row["batch"], row["context"]), []).append(row)
    return [
        Source(
            name=name,
            kind="free" if draft is None else "model",
            label=f"{name} (batch {batch}, context {context_len})",
            c=0.0 if draft is None else next((row["c"] for row in rows if row["c"] is not None), None),
            widths=tuple(sorted((row["width"], row["v"]) for row in rows if row["v"] is not None)),
            batch=batch,
            c_origin="measured",
            verify_origin="measured",
        )
        for (batch, context_len), rows in groups.items()
    ]


def _rows(node: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        if "alpha" in node and ("source" in node or "name" in node):
            yield node
            for row in node.get("tags") or ():
                yield {**row, "spelling": node.get("spelling")}
            return
        for key in ("sources", "points", "results"):
            inner = node.get(key)
            if isinstance(inner, Mapping):
                yield from (
                    {"name": name, **row} for name, row in inner.items() if isinstance(row, Mapping) and "alpha" in row
                )
            elif inner is not None:
                yield from _rows(inner)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for row in node:
            yield from _rows(row)


def _laws(m: MeasuredSource, number: Callable[[str], float | None]) -> Iterable[Law]:
    """Laws of one row: its shares and rates, its counts, and each figure that it gives beside the counts behind it."""
    longest = max((r.drafted for r in m.lengths), default=None) or (len(m.position_rates_unconditional or ()) or None)
    tested, accepted, steps, drafts = (number(key) for key in ("tested_tokens", "accepted_tokens", "steps", "drafts"))
    drafted, emitted = number("drafted_tokens"), number("emitted_tokens")
    yield from share_laws(
        alpha=m.alpha.value,
        alpha_low=m.alpha.low,
        alpha_high=m.alpha.high,
        coverage=m.coverage,
        hit_rate=number("hit_rate"),
        continuation_rate=number("continuation_rate"),
        accepted_per_drafted=number("accepted_per_drafted"),
    )
    yield from ordered_laws(("alpha_low", m.alpha.low), ("alpha", m.alpha.value), ("alpha_high", m.alpha.high))
    yield from rate_laws(m.position_rates_unconditional or ())
    yield from emitted_laws(m.tokens_per_drafted_step, longest)
    yield from emitted_laws(m.tokens_per_step, longest, "tokens per step")
    yield from ordered_laws(("accepted", accepted), ("tested", tested), ("drafted", drafted))
    yield from ordered_laws(("drafts", drafts), ("steps", steps), ("emitted", emitted))
    yield from ordered_laws(("drafts", drafts), ("drafted", drafted))
    if None not in (emitted, steps, accepted):
        yield from ordered_laws(("emitted", emitted), ("steps + accepted", (steps or 0) + (accepted or 0)))
    for what, printed, above, below, plus in (
        ("alpha", m.alpha.value if m.alpha.kind == "measured" else None, accepted, tested, 0.0),
        ("coverage", m.coverage, drafts, steps, 0.0),
        ("tokens per step", m.tokens_per_step, emitted, steps, 0.0),
        ("tokens per drafted step", m.tokens_per_drafted_step, accepted, drafts, 1.0),
    ):
        if above is not None and below:
            yield from agreement_law(what, printed, plus + above / below, _PRINT)
    for key in ("c", "v", "draft_s", "verify_s", "host_s", "mean_batch"):
        yield from ordered_laws((key, number(key)))


def _of_row(row: Mapping[str, Any], where: str) -> Source:
    name = str(row.get("source", row.get("name")))

    def number(key: str, of: Mapping[str, Any] = row) -> float | None:
        value = of.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InputError(f"{where}: source {name!r}: {key} must be a number, got {value!r}")
        return float(value)

    def count(key: str, of: Mapping[str, Any] = row) -> int | None:
        value = number(key, of)
        return None if value is None else round(value)

    def numbers(key: str) -> tuple[float, ...] | None:
        values = row.get(key)
        if values is None:
            return None
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise InputError(f"{where}: source {name!r}: {key} must be a list of numbers, got {values!r}")
        return tuple(number(key, {key: value}) or 0.0 for value in values)

    drafts, drafted = count("drafts"), count("drafted_tokens")
    mean_length = number("mean_draft_len") or (drafted / drafts if drafts and drafted else None)
    counts: dict[str, Any] = dict.fromkeys(f.name for f in fields(Tally))  # what a document does not tell is unknown
    counts |= {"steps": count("steps"), "drafts": drafts, "drafted_tokens": drafted}
    measured = MeasuredSource(
        source=name,
        tally=Tally(**counts | {"verified_tokens": count("verified_tokens")}),
        tag=str(row.get("tag") or ""),
        alpha=Alpha(
            value=number("alpha"),
            low=number("alpha_low"),
            high=number("alpha_high"),
            basis=str(row.get("alpha_basis", "document")),
            kind="derived" if row.get("provenance") == "derived" else "measured",
        ),
        coverage=number("coverage"),
        tokens_per_step=number("tokens_per_step"),
        tokens_per_drafted_step=number("tokens_per_drafted_step"),
        position_rates_unconditional=numbers("position_rates_unconditional"),
        lengths=tuple(
            LengthRow(
                drafted=count("drafted", r) or 0, drafts=count("drafts", r) or 0, accepted_tokens=0, tested_tokens=0
            )
            for r in row.get("by_draft_len") or ()
        ),
        draft_len=mean_length,
        confidence_explains=number("confidence_explains"),
    )
    demand(_laws(measured, number), f"{where}: figures of source {name!r}")
    if measured.alpha.value is None and measured.tokens_per_drafted_step is None and not measured.coverage == 0:
        raise InputError(f"{where}: source {name!r}: neither alpha nor tokens per drafted step is known")
    cost: dict[str, Any] = {}
    if (v := number("v")) is not None:  # timed apart by measure; a matcher's host time is what every step pays
        c = number("c")
        cost = {"c": c or 0.0, "verify": v, "overhead": None if c is not None else number("draft_over_plain_pass")}
        widths = row.get("v_by_width") or ()
        cost["widths"] = [(count("width", w) or 1, number("v", w) or 1.0) for w in widths]
    elif isinstance(point := row.get("point"), Mapping) and number("c", point):
        cost = {"c": number("c", point), "c_origin": point.get("c_origin", "assumed")}
    batch = number("mean_batch")
    return measured_source(
        measured,
        spelling=str(row.get("spelling") or ""),
        batch=None if batch is None else max(1, round(batch)),
        kappa=count("num_speculative_tokens") or count("kappa"),
        **cost,
    )
