"""Published measurements of adaptive verification and of block drafters beside what the rule predicts.

A table over concurrency prices itself: its plain and fixed columns are measured step times at known widths, and from
these the adaptive column is predicted. What a confidence tells (`CONFIDENCE`), how requests differ (`DISPERSION`), what
deciding costs (`OVERHEAD`) and the share of a step that drafts (`DRAFT_SHARE`) are fitted to the tables marked ``fit``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from math import isnan
from pathlib import Path
from typing import Any, Final

import numpy as np

from specplan.decide.adaptive import DISPERSION, OVERHEAD
from specplan.errors import InputError
from specplan.evidence.validate import Comparison, TableReport, summaries
from specplan.files.documents import read_json
from specplan.formulas.acceptance import alpha_of_mean_acceptance_length
from specplan.formulas.adaptive import AdaptiveStep, WidthCost, adaptive_expectation, confidences
from specplan.formulas.emitted import FloatArray
from specplan.values.source import CONFIDENCE

CALIBRATION: Final[Mapping[str, float]] = {"dflash2": 0.25}
"""Exponent of the survivals that a step sees, 1 for a trained confidence head. A drafter without one ranks by its own
scores, which promise too much: it verifies more than pays. Fitted to the table of SGLang #36136."""

DRAFT_SHARE: Final = 0.15
BLOCK_COST: Final = 2.92
"""Plain steps that drafting and verifying a block of 8 costs in llama.cpp at batch 1, fitted to its DSpark rows."""

UNPRINTED: Final[Mapping[int, float]] = {7: 3.54}
"""E by draft length where a table prints no accepted length: the positions that the table of GLM-5.2 prints, cut."""


def adaptive_tables(path: Path | None = None) -> tuple[TableReport, ...]:
    """Each table beside its prediction.

    Parameters
    ----------
    path : Path, optional
        A JSON document of the shipped form, with ``tables``; the shipped one if None.

    Raises
    ------
    InputError
        Naming the table and what it lacks.

    Examples
    --------
    >>> [r.name for r in adaptive_tables()]
    ['vllm-52362', 'vllm-52992', 'sglang-36136-humaneval', 'llamacpp-25173-q4km']
    """
    text = (resources.files("specplan") / "data" / "adaptive_verification.json").read_text("utf-8")
    shipped = json.loads(text)
    document = shipped if path is None else read_json(path, "tables of adaptive verification")
    if not isinstance(document, Mapping) or not isinstance(tables := document.get("tables"), list):
        raise InputError(f"{path}: expected a JSON object with a list `tables`")
    if not all(isinstance(t, Mapping) for t in tables):
        raise InputError(f"{path}: every table must be a JSON object")
    fitted = {t["id"]: {"use": t["use"]} for t in shipped["tables"]}  # a table that was fitted to stays so in any file
    known = [{**fitted.get(str(t.get("id")), {}), **t} for t in tables]
    found = tuple(report for table in known if (report := _report(table)) is not None)
    if not found:
        forms = "columns with concurrency, columns with task, or baseline and adaptive"
        raise InputError(f"{path}: no table of a known form ({forms})")
    return found


def _report(table: Mapping[str, Any]) -> TableReport | None:
    name = str(table.get("id", "table"))
    notes: list[str] = []
    columns = [str(c) for c in table.get("columns", ())]
    if "concurrency" in columns:
        found = tuple(_over_concurrency(name, table, columns, notes))
    elif "baseline" in table and "adaptive" in table:
        found = tuple(_positions(name, table, notes))
    elif "task" in columns:
        found = tuple(_by_task(name, table, columns, notes))
    else:
        return None
    title = ", ".join(str(table[k]) for k in ("model", "cards", "method") if k in table) or name
    return TableReport(
        name=name,
        title=title,
        source=str(table.get("source", "")),
        note=None,
        comparisons=found,
        summaries=summaries(found),
        notes=tuple(notes),
    )


def _column(name: str, table: Mapping[str, Any], columns: Sequence[str], start: str) -> FloatArray | None:
    """The column whose name begins so, if there is one; each of its figures above 0."""
    at = next((i for i, c in enumerate(columns) if c.startswith(start)), None)
    if at is None:
        return None
    try:
        values = np.array([row[at] for row in table["rows"]], dtype=np.float64)
    except (KeyError, IndexError, TypeError, ValueError):
        raise InputError(f"table {name}: column {columns[at]!r} has holes, or holds what is no number") from None
    if not (values.size and np.all(np.isfinite(values)) and values.min() > 0):
        raise InputError(f"table {name}: every figure of column {columns[at]!r} must be finite and above 0")
    return values


def _kappa(name: str, table: Mapping[str, Any], notes: list[str]) -> int:
    kappa = table.get("k", 7)
    if type(kappa) is not int or not 1 <= kappa <= 64:
        raise InputError(f"table {name}: k {kappa!r} must be a whole number from 1 to 64")
    if "k" not in table:
        notes.append(f"draft length not printed: {kappa}, a block of {kappa + 1}, is assumed")
    return kappa


def step_costs(widths: FloatArray, seconds: FloatArray) -> WidthCost:
    """A table of step times from measured points, forced to rise; linear between them and above.

    Examples
    --------
    >>> step_costs(np.array([4.0, 8.0]), np.array([1.0, 2.0])).at([6, 10]).tolist()
    [1.5, 2.5]
    """
    w = np.unique(widths)
    s = np.maximum.accumulate([seconds[widths == x].mean() for x in w])
    grid = np.arange(1, int(w[-1]) + 1)
    slope = (s[-1] - s[-2]) / (w[-1] - w[-2]) if w.size > 1 else 0.0
    return WidthCost.of(grid, np.interp(grid, w, s), float(slope))


def _over_concurrency(
    name: str, table: Mapping[str, Any], columns: Sequence[str], notes: list[str]
) -> Iterator[Comparison]:
    load, fixed = _column(name, table, columns, "concurrency"), _column(name, table, columns, "tok_s_fixed")
    plain = _column(name, table, columns, "tok_s_none")
    adaptive = _column(name, table, columns, "tok_s_adaptive")
    if adaptive is None:
        adaptive = _column(name, table, columns, "tok_s_confidence")
    if load is None or fixed is None or adaptive is None:
        raise InputError(
            f"table {name}: needs columns concurrency, tok_s_fixed... and tok_s_adaptive or tok_s_confidence"
        )
    kappa = _kappa(name, table, notes)
    printed = _column(name, table, columns, "accepted_length_fixed")
    kept = _column(name, table, columns, "accepted_length_confidence")
    if printed is None:
        if kappa not in UNPRINTED:
            raise InputError(
                f"table {name}: prints no accepted length of its fixed column, and none is known at k {kappa}"
            )
        notes.append(
            f"accepted length not printed: {UNPRINTED[kappa]} at k {kappa} is assumed (the positions of vllm-52992)"
        )
    emitted = np.full(load.size, UNPRINTED[kappa]) if printed is None else printed
    order = np.argsort(load)
    load, fixed, adaptive, emitted = load[order], fixed[order], adaptive[order], emitted[order]
    drafted_s = load * emitted / fixed
    draft_s = DRAFT_SHARE * float(drafted_s[0])
    widths, seconds = load * (kappa + 1), drafted_s - draft_s
    if plain is not None:
        widths, seconds = np.append(widths, load), np.append(seconds, load / plain[order])
    cost = step_costs(widths, seconds)
    calibration = CALIBRATION.get(str(table.get("method", "")).lower(), 1.0)
    steps = [
        _adaptive_step(cost, int(n), kappa, float(e), draft_s, calibration) for n, e in zip(load, emitted, strict=True)
    ]
    gain = np.array([s.tokens / s.seconds / (1 + OVERHEAD) for s in steps]) / fixed
    use = str(table.get("use", "test"))
    for n, p, m in zip(load, gain, adaptive / fixed, strict=True):
        yield _compared("adaptive / fixed", f"concurrency {n:g}", use, float(p), float(m))
    crossing = [_overtakes(load, x) for x in (gain, adaptive / fixed)]
    yield _compared("overtakes fixed, concurrency", f"k {kappa}", use, *crossing)
    if kept is not None:
        for n, s, m in zip(load, steps, kept[order], strict=True):
            yield _compared("accepted length, adaptive", f"concurrency {n:g}", use, s.tokens / n, float(m))


def _adaptive_step(
    cost: WidthCost, batch: int, kappa: int, emitted: float, draft_s: float, calibration: float
) -> AdaptiveStep:
    alpha = float(alpha_of_mean_acceptance_length(emitted, kappa))
    if isnan(alpha):
        raise InputError(f"an accepted length of {emitted:g} is no mean of 1 to {kappa + 1} tokens")
    true, _ = confidences([alpha] * kappa, resolution=CONFIDENCE, dispersion=DISPERSION)
    return adaptive_expectation(true**calibration, true, cost, batch, draft_s)


def _overtakes(load: FloatArray, gain: FloatArray) -> float:
    """The load from which the ratio stays at 1 or more, by its logarithm; the ends where it always or never is."""
    above = gain >= 1
    if above.all() or not above[-1]:
        return float(load[0] if above.all() else load[-1])
    i = int(np.flatnonzero(~above)[-1])
    share = (1 - gain[i]) / (gain[i + 1] - gain[i])
    return float(np.exp(np.interp(share, [0, 1], np.log(load[i : i + 2]))))


def _positions(name: str, table: Mapping[str, Any], notes: list[str]) -> Iterator[Comparison]:
    """One load, rates by position: how the accepted length falls along the positions that the rule keeps."""
    try:
        fixed, kept = (np.array(table[x]["per_position"], dtype=np.float64) for x in ("baseline", "adaptive"))
        length = float(table["adaptive"]["accepted_length"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"table {name}: baseline and adaptive need per_position and accepted_length") from None
    hazard = np.concatenate([fixed[:1], fixed[1:] / fixed[:-1]])
    seen, _ = confidences(hazard, resolution=CONFIDENCE, dispersion=DISPERSION, rows=4096)
    best = np.sort(seen, axis=None)[::-1]
    budget = int(np.searchsorted(np.cumsum(best) / len(seen), length - 1)) + 1
    least = best[min(budget, best.size) - 1]
    predicted = (seen * (seen >= least)).mean(axis=0)
    notes.append("one load gives no step table: given the accepted length, the rates by position are predicted")
    for i in sorted({0, 1, 3, 7, len(fixed) - 1} & set(range(len(fixed)))):
        yield _compared(
            "rate kept by position", f"position {i + 1}", table.get("use", "fit"), predicted[i], float(kept[i])
        )


def _by_task(name: str, table: Mapping[str, Any], columns: Sequence[str], notes: list[str]) -> Iterator[Comparison]:
    """One request: speedups of block drafters from the share of the block that was accepted."""
    base = _column(name, table, columns, "baseline_tok_s")
    if base is None:
        raise InputError(f"table {name}: needs a column baseline_tok_s")
    kappa = _kappa(name, table, notes)
    for method in [c.removesuffix("_accept") for c in columns if c.endswith("_accept")]:
        speed, share = (
            _column(name, table, columns, f"{method}_tok_s"),
            _column(name, table, columns, f"{method}_accept"),
        )
        if speed is None or share is None:
            raise InputError(f"table {name}: {method} needs {method}_tok_s beside {method}_accept")
        for row, b, v, a in zip(table["rows"], base, speed, share, strict=True):
            use = "fit" if method == "dspark" and table.get("use") == "fit" else "test"
            yield _compared(
                f"speedup of {method}", str(row[columns.index("task")]), use, (1 + a * kappa) / BLOCK_COST, v / b
            )


def _compared(quantity: str, label: str, use: str, predicted: float, published: float) -> Comparison:
    return Comparison(
        quantity=quantity, label=label, use=use, unit="", predicted=float(predicted), published=float(published)
    )
