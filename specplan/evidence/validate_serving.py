"""Servers under a closed load, as others measured them, beside the simulation of the same load.

A file of rows is JSON: ``{"rows": [...]}``; each row has ``source``, ``engine``, ``gpu``, ``target``, ``concurrency``,
``input``, ``output`` and ``tpot_ms`` or ``tok_s``; beside them ``engine_version``, ``tp``, ``spelling`` of a draft
source, ``use`` (``fit`` or ``test``), ``note``, and ``shape_of``, under which rows are compared by their growth over
the first of the same name alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any, Final

from specplan.decide.step_setting import Setting
from specplan.errors import InputError, SpecplanError
from specplan.files.documents import parse_json
from specplan.files.reading import read_text
from specplan.propose.spelling import read_source
from specplan.queueing.arrivals import Load, read_lengths
from specplan.queueing.outcome import outcome
from specplan.queueing.served_source import Limits, placed
from specplan.timing.step_time import machine
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import NO_SOURCE

FIELDS: Final = ("source", "engine", "gpu", "target", "concurrency", "input", "output")
MEASURES: Final = ("tpot_ms", "tok_s")
TURNS: Final = 8
"""Requests per place of the closed load: the first eighth is left out, and the rest is steady."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """A measured figure of a server beside the simulated one: time per token (ms), tokens/s, or growth of a shape."""

    label: str
    source: str
    measure: str
    use: str
    measured: float
    simulated: float
    note: str

    @property
    def error(self) -> float:
        """Simulated over measured, less 1."""
        return self.simulated / self.measured - 1


def _checked(rows: Any, where: str) -> list[Mapping[str, Any]]:
    found = rows.get("rows") if isinstance(rows, dict) else rows
    if not isinstance(found, list) or not found:
        raise InputError(f'{where}: expected {{"rows": [...]}} with at least one row')
    for i, row in enumerate(found):
        at = f"{where}: row {i + 1}"
        if not isinstance(row, dict):
            raise InputError(f"{at}: expected an object, found {type(row).__name__}")
        missing = [name for name in FIELDS if row.get(name) is None]
        if missing or sum(row.get(name) is not None for name in MEASURES) != 1:
            lacks = ", ".join(missing) or "one of " + " and ".join(MEASURES)
            raise InputError(f"{at}: {lacks} missing")
        for name in ("concurrency", "input", "output", "tp", *MEASURES):
            value = row.get(name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and isfinite(value) and 0 < value <= 1e7):
                raise InputError(f"{at}: {name} is {value!r}, expected a number above 0")
    return found


def serving_rows(
    path: Path | None, load_model: Callable[[str], Model], load_accelerator: Callable[[str], Accelerator]
) -> Iterator[ServingRow]:
    """Rows of a file, or the shipped ones, each simulated when it is asked for.

    Raises
    ------
    InputError
        For a file of another form, a number that is not positive, or a model, card, engine or source that is unknown.
    """
    if path is None:
        text = (resources.files("specplan") / "data" / "published_rows" / "serving.json").read_text("utf-8")
        rows = _checked(json.loads(text), "the shipped rows")
    else:
        rows = _checked(parse_json(read_text(path, "rows of servers under load"), str(path)), str(path))
    first: dict[str, tuple[float, float]] = {}
    for row in rows:
        measure = next(name for name in MEASURES if row.get(name) is not None)
        measured, simulated = float(row[measure]), _simulated(row, measure, load_model, load_accelerator)
        shape = row.get("shape_of")
        if shape is not None:
            if shape not in first:
                first[shape] = (measured, simulated)
            measured, simulated = (x / x0 for x, x0 in zip((measured, simulated), first[shape], strict=True))
            measure = f"growth of {measure}"
        yield ServingRow(
            label=_label(row),
            source=str(row["source"]),
            measure=measure,
            use=str(row.get("use", "test")),
            measured=measured,
            simulated=simulated,
            note=str(row.get("note", "")),
        )


def _label(row: Mapping[str, Any]) -> str:
    engine = f"{row['engine']} {row.get('engine_version') or ''}".strip()
    drafts = f", {row['spelling']}" if row.get("spelling") else ""
    where = f"{row.get('tp') or 1} x {row['gpu']}, {engine}"
    return f"{row['target']}{drafts}, {where}, {row['concurrency']} at a time, {row['input']} in, {row['output']} out"


def _simulated(
    row: Mapping[str, Any],
    measure: str,
    load_model: Callable[[str], Model],
    load_accelerator: Callable[[str], Accelerator],
) -> float:
    try:
        on = machine(
            load_accelerator(row["gpu"]),
            f"{row['engine']} {row.get('engine_version') or ''}".strip(),
            row.get("tp") or 1,
        )
        setting = Setting(target=load_model(row["target"]), on=on)
        source = read_source(row["spelling"]) if row.get("spelling") else NO_SOURCE
        longest = 2 * (int(row["input"]) + int(row["output"]))
        served = placed(
            setting, source, Limits(max_model_len=max(longest, 4096)), context=longest // 2, batch=row["concurrency"]
        )
        load = Load(
            requests=TURNS * int(row["concurrency"]),
            concurrency=int(row["concurrency"]),
            input=read_lengths(str(int(row["input"])), "input"),
            output=read_lengths(str(int(row["output"])), "output"),
        )
        found = outcome(served.run(load, 0), (), warmup=1 / TURNS)
    except SpecplanError as error:
        raise InputError(f"{_label(row)}: {error}") from None
    return found.latencies["tpot"]["mean"] * 1e3 if measure == "tpot_ms" else found.token_rate
