"""Step records in JSON lines: written as they come, resumable, and in place only when they are whole."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from specplan.errors import InputError
from specplan.files.documents import json_object
from specplan.files.lines import BrokenLog, read_lines
from specplan.files.reading import is_there
from specplan.files.writing import Lines
from specplan.records.laws import demand, step_laws
from specplan.records.step import StepRecord

SCHEMA: Final = "specplan-steps/1"
_KEYS: Final = {f.name: f for f in fields(StepRecord)}
_TEXT: Final = ("request", "source", "tag")
_FLOATS: Final = ("draft_s", "verify_s", "host_s")
_OPTIONAL: Final = ("match_len", "tested", "verified")
_LARGEST: Final = 2**53
"""Above every count of a step, and whole as a double."""


def _encode(record: StepRecord) -> dict[str, Any]:
    return {name: value for name, f in _KEYS.items() if (value := getattr(record, name)) != f.default}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def decode_step(row: Mapping[str, Any]) -> StepRecord:
    """A `StepRecord` of its JSON object, with every type checked.

    Raises
    ------
    InputError
        For a missing or unknown key, a wrong type, a negative count, or a broken law of `specplan.records.laws`.

    Examples
    --------
    >>> decode_step({"request": "a", "step": 0, "source": "s", "context_len": 4, "drafted": 2, "accepted": 1,
    ...              "emitted": 2}).n_tested
    2
    """
    unknown = sorted(set(row) - set(_KEYS))
    if unknown:
        raise InputError(f"unknown key {unknown[0]!r} in a step record")
    values = dict(row)
    for name in _KEYS:
        value = values.get(name)
        if name in _TEXT:
            ok, expected = isinstance(values.get(name, ""), str), "text"
        elif name in _FLOATS:
            ok, expected = value is None or (type(value) in (int, float) and 0 <= value < _LARGEST), "seconds >= 0"
        elif name in ("overlap", "confidence"):
            ok = value is None or (isinstance(value, list) and all(type(v) in (int, float) for v in value))
            expected = "a list of numbers"
            values[name] = tuple(value) if ok and value is not None else None
        else:
            ok = _is_count(value) or (name in _OPTIONAL and value is None)
            expected = "a whole number >= 0"
        if not ok:
            raise InputError(f"{name} of a step record must be {expected}, got {value!r}")
    try:
        record = StepRecord(**values)
    except TypeError as error:
        raise InputError(f"a step record lacks a field: {error}") from None
    demand(step_laws(record), "counts of a step")
    return record


def read_steps(path: Path, broken: BrokenLog | None = None) -> Iterator[StepRecord]:
    """Step records of a finished or partial file, plain or compressed, one at a time.

    Parameters
    ----------
    path : Path
        What `StepWriter` wrote.
    broken : BrokenLog or None
        Receives lines that cannot be used, a step that stands twice among them; None makes the first of them an
        error.
    """
    log = BrokenLog(fatal=True) if broken is None else broken
    steps: dict[tuple[str, str], set[int]] = {}
    for number, line in read_lines(path, log):
        try:
            row = json_object(line, "this line")
            if "schema" in row:
                _check_schema(row, path)
            elif "done" not in row:
                record = decode_step(row)
                seen = steps.setdefault((record.source, record.request), set())
                if record.step in seen:
                    raise InputError(f"step {record.step} of request {record.request!r} stands twice in this file")
                seen.add(record.step)
                yield record
        except InputError as error:
            log.add(path, number, str(error))


def _check_schema(head: Mapping[str, Any], path: Path) -> None:
    if head["schema"] != SCHEMA:
        raise InputError(f"{path} has schema {head['schema']!r}, this version reads {SCHEMA!r}")


def refuse_overwrite(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Raise `InputError` where a file to write is one that is read.

    >>> refuse_overwrite([None, Path("steps.jsonl")], [Path("trace.jsonl")])
    """
    read = [path for path in inputs if is_there(path)]
    for output in outputs:
        if output is not None and is_there(output) and any(output.samefile(path) for path in read):
            raise InputError(f"{output} is read by this command; name another file to write")


def differing(there: object, here: Mapping[str, Any]) -> str:
    """Names and values of the inputs in which two runs differ; empty where they do not.

    >>> differing({"k": 3, "seed": 0}, {"k": 4, "seed": 0})
    'k: 3 there, 4 here'
    """
    known = there if isinstance(there, Mapping) else {}
    mine = json.loads(json.dumps(dict(here)))
    names = [n for n in dict.fromkeys((*known, *mine)) if known.get(n) != mine.get(n)]
    return "; ".join(f"{n}: {json.dumps(known.get(n))} there, {json.dumps(mine.get(n))} here" for n in names)


class StepWriter:
    """Writes step records as they come, into ``PATH.partial``; the file gets its name when it is whole.

    Between requests the partial file can be taken up again: `done` names the (source, request) pairs that were
    finished; steps of unfinished ones are dropped on resuming, so nothing is counted twice.

    Parameters
    ----------
    path : Path
        Where the finished file goes.
    inputs : mapping
        What the records depend on (options, files); stored in the first line. Resuming with other inputs is refused.
    resume : bool
        Take up a partial file if there is one. Without it, one is overwritten.
    about : mapping
        What is told of the run beside its inputs, such as threads; it may differ when the run is taken up again.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "steps.jsonl"
    >>> row = StepRecord(request="a", step=0, source="s", context_len=9, drafted=3, accepted=2, emitted=3)
    >>> with StepWriter(path, {"source": "s"}) as writer:
    ...     writer.write([row])
    ...     writer.finish("s", "a")
    >>> list(read_steps(path)) == [row]
    True
    """

    def __init__(
        self, path: Path, inputs: Mapping[str, Any], *, resume: bool = False, about: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        self.partial = path.with_name(path.name + ".partial")
        self.done: set[tuple[str, str]] = set()
        if is_there(path) and path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder")
        head = {"schema": SCHEMA, "inputs": dict(inputs)} | ({"about": dict(about)} if about else {})
        self._lines = Lines(self.partial, lambda: [json.dumps(head), *(self._take_up(head) if resume else ())])

    def _take_up(self, head: Mapping[str, Any]) -> list[str]:
        """Lines of the partial file that belong to finished requests; a torn last line is no longer there."""
        log = BrokenLog()
        rows: list[tuple[str, dict[str, Any]]] = []
        for number, line in read_lines(self.partial, log):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if number == 1 and (other := differing(row.get("inputs"), head["inputs"])):
                raise InputError(
                    f"{self.partial} was written with other inputs ({other}); finish that run, or delete the file to "
                    "start anew"
                )
            rows.append((line.decode(), row))
        self.done = {(str(row["source"]), str(row["done"])) for _, row in rows if "done" in row}
        return [
            line
            for line, row in rows
            if "schema" not in row and (str(row["source"]), str(row.get("done", row.get("request")))) in self.done
        ]

    def write(self, records: Iterable[StepRecord]) -> None:
        """Append records."""
        self._lines.write(*map(_encode, records))

    def finish(self, source: str, request: str) -> None:
        """Note that all steps of a request are written; from here on a resumed run will not do it again."""
        self._lines.write({"done": request, "source": source})
        self._lines.flush()
        self.done.add((source, request))

    def commit(self) -> None:
        """Give the file its name; it is whole."""
        self._lines.commit(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self._lines.close()
