"""Recorded loads: when requests came and how long they were, from JSONL, CSV or Parquet.

Public forms are known by their columns: Azure's LLM inference traces, BurstGPT, Mooncake. A row that is not understood
stops the reading; nothing is left out silently.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from specplan.errors import InputError, MissingExtraError
from specplan.files.reading import MAX_DOCUMENT_BYTES, read_bytes
from specplan.queueing.load import Lists, Requests

MOONCAKE_BLOCK: Final = 512
"""Tokens per id of Mooncake's ``hash_ids``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Columns of a trace.

    Attributes
    ----------
    name : str
    arrival, prompt, output : tuple of str
        Names of each column, the first that is there.
    per_second : float
        Units of the arrival column in a second.
    shared : str
        Column of shared prefix ids, if any.
    """

    name: str
    arrival: tuple[str, ...]
    prompt: tuple[str, ...]
    output: tuple[str, ...]
    per_second: float = 1.0
    shared: str = ""


FORMS: Final = (
    Form(name="Azure", arrival=("TIMESTAMP",), prompt=("ContextTokens",), output=("GeneratedTokens",)),
    Form(name="BurstGPT", arrival=("Timestamp",), prompt=("Request tokens",), output=("Response tokens",)),
    Form(
        name="Mooncake",
        arrival=("timestamp",),
        prompt=("input_length",),
        output=("output_length",),
        per_second=1000.0,
        shared="hash_ids",
    ),
    Form(
        name="plain",
        arrival=("arrival_s", "arrival", "arrived_at", "arrival_time"),
        prompt=("prompt_tokens", "input_tokens", "num_prefill_tokens", "prompt_len", "input_len"),
        output=("output_tokens", "completion_tokens", "num_decode_tokens", "output_len"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace as it was read.

    Attributes
    ----------
    form : str
        Name of its form.
    requests : Requests
    left_out : int
        Requests that the engine refuses, where leaving them out was asked for.
    """

    form: str
    requests: Requests
    left_out: int = 0


def read_trace(path: Path, *, most: int | None = None, leave_out: bool = False, scale: float = 1.0) -> Trace:
    """Read a trace.

    Parameters
    ----------
    path : Path
        ``.jsonl``, ``.csv`` or ``.parquet``; ``.gz`` behind the first two works.
    most : int, optional
        Tokens of a request, prompt and output, that the engine takes.
    leave_out : bool
        Leave out (and count) what is longer, or has no prompt or output, instead of stopping.
    scale : float
        Factor on the arrival rate: 2 halves all gaps.

    Raises
    ------
    InputError
        For an unknown form, a broken row, arrivals that fall, or an empty trace.
    """
    if not 0 < scale < math.inf:
        raise InputError(f"--trace-rate {scale:g}: must be finite and above 0")
    rows = _rows(path)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path}: the trace holds no request")
    form = _form(first[1], path)
    columns = [next(c for c in names if c in first[1]) for names in (form.arrival, form.prompt, form.output)]
    arrivals: list[float] = []
    lengths: list[tuple[int, int]] = []
    shared: list[list[int]] = []
    left_out = 0
    before = -math.inf
    for number, row in _chain(first, rows):
        where = f"{path}, request {number}"
        came, prompt, output = (_value(row, c, where) for c in columns)
        seconds = _seconds(came, where) / form.per_second
        if seconds < before:
            raise InputError(f"{where}: arrives at {came!r}, before the one above it; sort the trace by {columns[0]}")
        before = seconds
        tokens = (_count(prompt, columns[1], where), _count(output, columns[2], where))
        if min(tokens) < 1 or (most is not None and sum(tokens) > most):
            if not leave_out:
                beyond = f", {sum(tokens)} in all, above the {most} of the model" if min(tokens) > 0 else ""
                raise InputError(
                    f"{where}: {tokens[0]} prompt and {tokens[1]} output tokens{beyond}: the engine refuses it; "
                    "--leave-out-refused leaves such requests out and counts them"
                )
            left_out += 1
            continue
        arrivals.append(seconds)
        lengths.append(tokens)
        shared.append(_ids(row.get(form.shared), where) if form.shared else [])
    if not arrivals:
        raise InputError(f"{path}: the trace holds no request that the engine takes")
    prompts, outputs = np.array(lengths, np.int64).T
    return Trace(
        form=form.name,
        left_out=left_out,
        requests=Requests(
            arrival=(np.array(arrivals) - arrivals[0]) / scale,
            prompt=prompts,
            output=outputs,
            shared=_shared(shared, prompts) if any(shared) else None,
            shared_tokens=MOONCAKE_BLOCK if any(shared) else 0,
        ),
    )


def _chain(first: tuple[int, Any], rest: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    yield first
    yield from rest


def _form(row: Mapping[str, Any], path: Path) -> Form:
    for form in FORMS:
        if all(any(c in row for c in names) for names in (form.arrival, form.prompt, form.output)):
            return form
    known = "; ".join(f"{f.name}: {f.arrival[0]}, {f.prompt[0]}, {f.output[0]}" for f in FORMS)
    raise InputError(f"{path}: unknown columns {', '.join(map(str, list(row)[:8]))}; known forms are {known}")


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Numbered rows of a file."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        yield from _parquet(path)
        return
    raw = read_bytes(path, "a trace of requests", MAX_DOCUMENT_BYTES)
    if name.endswith(".gz"):
        import gzip

        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError) as error:
            raise InputError(f"{path}: not gzip: {error}") from None
    name = name.removesuffix(".gz")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error}") from None
    if name.endswith(".csv"):
        reader = csv.DictReader(io.StringIO(text))
        for number, row in enumerate(reader, 1):
            yield number, row
        return
    if not name.endswith((".jsonl", ".ndjson")):
        raise InputError(f"{path}: a trace ends in .jsonl, .csv or .parquet (.gz works)")
    number = 0
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        number += 1
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {at}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise InputError(f"{path}, line {at}: expected one JSON object per line")
        yield number, found


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ModuleNotFoundError:
        raise MissingExtraError("pyarrow", extra="replay") from None
    if not path.is_file():
        raise InputError(f"no file at {path}")
    try:
        table = read_table(path)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file: {error}") from None
    yield from enumerate(table.to_pylist(), 1)


def _value(row: Mapping[str, Any], column: str, where: str) -> Any:
    value = row.get(column)
    if value is None or value == "":
        raise InputError(f"{where}: no {column}")
    return value


def _seconds(value: Any, where: str) -> float:
    """Seconds of a number, or of a date with its time."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    try:
        number = float(value)
    except (TypeError, ValueError):
        try:
            whole, dot, part = str(value).strip().partition(".")
            moment = datetime.fromisoformat(whole if "+" not in part else str(value).strip())
            fraction = float(f"0.{part}") if dot and part.isdigit() else 0.0
            return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() + fraction
        except ValueError:
            raise InputError(f"{where}: {value!r} is neither a number of seconds nor a date") from None
    if not math.isfinite(number):
        raise InputError(f"{where}: arrives at {value!r}")
    return number


def _count(value: Any, column: str, where: str) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {column} {value!r} is not a number of tokens") from None
    if not number.is_integer() or not 0 <= number <= 2**31:
        raise InputError(f"{where}: {column} {value!r} is not a whole number of tokens")
    return int(number)


def _ids(value: Any, where: str) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list) or any(type(i) is not int or i < 0 for i in value):
        raise InputError(f"{where}: hash_ids must be a list of whole numbers")
    return value


def _shared(ids: Sequence[Sequence[int]], prompts: np.ndarray) -> Lists:
    """Ids of whole blocks, renumbered from 0; the last id of a prompt may stand for a part, which is its own."""
    number: dict[int, int] = {}
    kept = [list(row)[: int(p) // MOONCAKE_BLOCK] for row, p in zip(ids, prompts, strict=True)]
    return Lists.of([[number.setdefault(i, len(number)) for i in row] for row in kept])
