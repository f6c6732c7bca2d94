"""Rows of measured speedups and plain steps, of any card, engine, version and model, beside what is predicted for them.

A file of rows is JSON: ``{"rows": [...]}``; each row has ``kind`` (``speedup`` or ``plain_step``), ``source``,
``engine``, ``engine_version``, ``gpu``, ``tp``, ``target``, ``quantization``, ``batch``, ``context`` and, by kind,
``draft`` with ``accept_length`` and ``speedup``, or ``step_ms``; ``use`` is ``fit`` where a row served to fit, and
``peer`` another program's prediction in the row's own unit. A draft
with ``oracle`` replays recorded outputs: its tokens per step are an upper end and prefills share its time, so such rows
stand apart.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np

from specplan.decide.step_source import Loads, loads, on_engine, step_time
from specplan.errors import InputError, SpecplanError
from specplan.formulas.requantize import requantized
from specplan.timing.step_time import machine
from specplan.timing.trust import Band, band
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import NO_SOURCE, Range, Source

LIMIT: Final = 0.10
"""Largest median error of tested speedups that is accepted."""

KINDS: Final = {"speedup": ("draft", "accept_length", "speedup"), "plain_step": ("step_ms",)}
COMMON: Final = ("source", "engine", "gpu", "target", "batch", "context")
METHODS: Final = {"draft_model": "model", "draft": "model", "ngram_gpu": "ngram-gpu", "nextn": "mtp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One row beside its prediction: speedups as ratios, steps in seconds, with the band that is printed for it.

    ``peer`` is what AISimulate predicts for the row, where somebody asked it (`benchmarks/peer_step_time.py`).
    """

    kind: str
    label: str
    source: str
    engine: str
    use: str
    published: float
    predicted: float
    band: Band
    peer: float | None = None

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted / self.published - 1

    @property
    def peer_error(self) -> float | None:
        """The peer's prediction over what was published, less 1."""
        return None if self.peer is None else self.peer / self.published - 1

    @property
    def inside(self) -> bool:
        """Whether what was measured lies in the band around the prediction."""
        return self.predicted * self.band.low <= self.published <= self.predicted * self.band.high

    @property
    def right(self) -> bool | None:
        """Whether a speedup is predicted on the side of 1 on which it was measured; None for steps."""
        return None if self.kind == "plain_step" else (self.predicted > 1) == (self.published > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSummary:
    """Errors of one kind of row under one engine, fitted and tested rows apart; the peer's on the rows that it has."""

    kind: str
    engine: str
    use: str
    count: int
    median_error: float
    p90_error: float
    median_signed_error: float
    inside: float
    right: float | None
    peer_count: int = 0
    peer_error: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the median of tested speedups, all engines together, lies within the limit."""
        return (self.kind, self.engine, self.use) != ("speedup", "all", "test") or self.median_error <= LIMIT


def shipped_rows() -> tuple[Mapping[str, Any], ...]:
    """The rows that ship with the package; those used to fit constants are marked."""
    text = (resources.files("specplan") / "data" / "published_rows" / "speedups.json").read_text("utf-8")
    rows: list[Mapping[str, Any]] = json.loads(text)["rows"]
    return tuple(rows)


def read_rows(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Rows of a file.

    Raises
    ------
    InputError
        For a file that is not of this form, or a row that lacks a field or holds a number that is not positive.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"no rows of measurements at {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a JSON file of measured rows: {error}") from None
    rows = document.get("rows") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not rows:
        raise InputError(f'{path}: expected {{"rows": [...]}} with at least one row')
    for i, row in enumerate(rows):
        _check(row, f"{path}: row {i + 1}")
    return tuple(rows)


def _check(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object, found {type(row).__name__}")
    kind = row.get("kind")
    if kind not in KINDS:
        raise InputError(f"{where}: kind is {kind!r}, expected one of {', '.join(KINDS)}")
    missing = [name for name in (*COMMON, *KINDS[kind]) if row.get(name) is None]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing")
    if kind == "speedup" and (not isinstance(row["draft"], dict) or "method" not in row["draft"]):
        shape = '{"method": "eagle3", "k": 3}'
        raise InputError(f"{where}: draft is {row['draft']!r}, expected an object with its method, such as {shape}")
    for name in ("batch", "context", "tp", "accept_length", "speedup", "step_ms", "peer"):
        value = row.get(name)
        if value is not None and not (isinstance(value, int | float) and isfinite(value) and value > 0):
            raise InputError(f"{where}: {name} is {value!r}, expected a number above 0")


def predicted_rows(
    path: Path | None, load_model: Callable[[str], Model], load_accelerator: Callable[[str], Accelerator]
) -> tuple[RowResult, ...]:
    """Rows of a file, or the shipped ones, beside their predictions.

    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> found = predicted_rows(None, load_model, load_accelerator)
    >>> len(found), sum(r.use == "fit" for r in found)
    (39, 5)
    """
    predict = Predictor(load_model, load_accelerator)
    return tuple(predict.result(row) for row in (shipped_rows() if path is None else read_rows(path)))


class Predictor:
    """Predictions for rows; models and cards are loaded once."""

    def __init__(self, load_model: Callable[[str], Model], load_accelerator: Callable[[str], Accelerator]) -> None:
        self._load_model, self._load_accelerator = load_model, load_accelerator

    def result(self, row: Mapping[str, Any]) -> RowResult:
        """A row beside its prediction.

        Raises
        ------
        InputError
            For a model, card, engine or method that is not known, with the row's label.
        """
        try:
            return self._result(row)
        except SpecplanError as error:
            raise InputError(f"{label(row)}: {error}") from None

    def _result(self, row: Mapping[str, Any]) -> RowResult:
        target = self._load_model(row["target"])
        if row.get("quantization"):
            target = requantized(target, row["quantization"])
        version = str(row.get("engine_version") or "")
        on = machine(self._load_accelerator(row["gpu"]), f"{row['engine']} {version}".strip(), row.get("tp") or 1)
        plain = Loads(target=loads(target, NO_SOURCE, on.tp).target, draft=None)
        at = (row["batch"], row["context"])
        plain_s = float(step_time(on, NO_SOURCE, plain, *at, 0).step_s)
        drafted = row["kind"] == "speedup"
        predicted, published = plain_s, row["step_ms"] * 1e-3 if not drafted else float(row["speedup"])
        if drafted:
            source = on_engine(self._source(row), target, on.engine.family)
            step = step_time(on, source, loads(target, source, on.tp), *at, source.kappa or 0)
            predicted = plain_s / float(step.per_token_s)
        return RowResult(
            kind="recorded outputs" if drafted and row["draft"].get("oracle") else row["kind"],
            label=label(row),
            source=row["source"],
            engine=on.engine.name,
            use=row.get("use", "test"),
            published=published,
            predicted=predicted,
            band=band(on, None if drafted else target),
            peer=None if row.get("peer") is None else float(row["peer"]) * (1 if drafted else 1e-3),
        )

    def _source(self, row: Mapping[str, Any]) -> Source:
        draft = row["draft"]
        kind = METHODS.get(draft["method"], draft["method"])
        kappa = int(draft["k"]) if draft.get("k") is not None else round(row["accept_length"])
        model = self._load_model(draft["model"]) if draft.get("model") else None
        return replace(
            Source(
                name=draft.get("model") or kind,
                kind=kind,
                text=draft["method"],
                model=model,
                emitted=Range.at(float(row["accept_length"])),
                kappa=kappa,
                nodes=draft.get("nodes") if (draft.get("topk") or 1) > 1 else None,
                topk=draft.get("topk") or 1,
            ),
            kappa=kappa,
        )


def label(row: Mapping[str, Any]) -> str:
    """What a row is about, in the words of its own fields."""
    draft = row.get("draft") or {}
    drafting = " ".join(
        f"{name} {draft[key]}"
        for key, name in (("method", ""), ("k", "k"), ("topk", "topk"), ("nodes", "nodes"))
        if key in draft
    ).strip()
    quantized = f" {row['quantization']}" if row.get("quantization") else ""
    where = f"{row.get('tp') or 1} x {row['gpu']}, {row['engine']} {row.get('engine_version') or ''}".strip()
    parts = (f"{row['target']}{quantized}", drafting, where, f"B {row['batch']} T {row['context']}")
    return ", ".join(p for p in parts if p)


def summaries(results: tuple[RowResult, ...]) -> tuple[RowSummary, ...]:
    """Errors by kind and engine, and of all engines together, fitted and tested rows apart."""
    groups: dict[tuple[str, str, str], list[RowResult]] = {}
    for r in results:
        for engine in (r.engine, "all"):
            groups.setdefault((r.kind, engine, r.use), []).append(r)
    found = []
    for (kind, engine, use), rows in groups.items():
        errors = np.array([r.error for r in rows])
        sides = [r.right for r in rows if r.right is not None]
        peers = [r.peer_error for r in rows if r.peer_error is not None]
        found.append(
            RowSummary(
                kind=kind,
                engine=engine,
                use=use,
                count=len(rows),
                median_error=float(np.median(np.abs(errors))),
                p90_error=float(np.quantile(np.abs(errors), 0.9)),
                median_signed_error=float(np.median(errors)),
                inside=float(np.mean([r.inside for r in rows])),
                right=float(np.mean(sides)) if sides else None,
                peer_count=len(peers),
                peer_error=float(np.median(np.abs(peers))) if peers else None,
            )
        )
    return tuple(sorted(found, key=lambda s: (s.kind, s.engine == "all", s.engine, s.use)))
