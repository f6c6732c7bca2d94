"""Finished parts of a search, noted as they come, so that a killed one takes up where it ended."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from specplan.errors import InputError
from specplan.files.lines import BrokenLog, read_lines
from specplan.files.reading import is_there
from specplan.files.writing import Lines

SCHEMA: Final = "specplan-capacity/1"


class Notes:
    """Rows by name in JSON lines; without a path, nothing is kept.

    A torn last line is dropped. Notes of other inputs are refused.

    Parameters
    ----------
    path : Path or None
    inputs : mapping
        What the rows depend on.
    """

    def __init__(self, path: Path | None, inputs: Mapping[str, Any]) -> None:
        self.path = path
        self.rows: dict[str, Mapping[str, Any]] = {}
        self._head = {"schema": SCHEMA, "inputs": json.loads(json.dumps(inputs))}
        self._lines: Lines | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self.path is not None:
            self._lines = self._open.enter_context(Lines(self.path, self._kept))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def note(self, name: str, row: Mapping[str, Any]) -> None:
        """Keep a finished row."""
        if self._lines is not None:
            self._lines.write({"name": name, "row": _plain(row)})
            self._lines.flush()

    def _kept(self) -> list[str]:
        assert self.path is not None  # noqa: S101 - only called with a path
        if is_there(self.path) and self.path.stat().st_size:
            for number, line in read_lines(self.path, BrokenLog()):
                self._take(number, line)
        rows = [json.dumps({"name": name, "row": row}) for name, row in self.rows.items()]
        return [json.dumps(self._head), *rows]

    def _take(self, number: int, line: bytes) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if number == 1 and (not isinstance(found, dict) or found.get("schema") != SCHEMA):
            raise InputError(f"{self.path} is no checkpoint of a capacity search; name another file for it")
        if number == 1 and found != self._head:
            raise InputError(
                f"the checkpoint {self.path} belongs to another search (load, targets or limits differ); delete it, or "
                "name another file"
            )
        if number > 1 and isinstance(found, dict) and "row" in found:
            self.rows[found["name"]] = found["row"]


def _plain(value: Any) -> Any:
    """Without NaN, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and value != value else value
