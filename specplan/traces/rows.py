"""One line per request and source: counts that a user can join with their own logs."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from specplan.errors import InputError
from specplan.files.reading import is_there
from specplan.files.writing import Lines
from specplan.propose.rules import TokenSource
from specplan.traces.counts import COLUMNS, IntArray


class RequestRows:
    """Writes rows into ``PATH.partial``, which gets its name when it is whole; without a path, nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lines: Lines | None = None

    def write(self, source: TokenSource, ids: Sequence[str], tags: Sequence[str], counts: IntArray) -> None:
        """One row per request: its id, tag and counts, and tokens per step."""
        if self._lines is None:
            return
        for name, tag, row in zip(ids, tags, counts.tolist(), strict=True):
            values = dict(zip(COLUMNS, row, strict=True))
            line = {
                "source": source.spelling,
                "request": name,
                "tag": tag,
                "steps": values["steps"],
                "drafts": values["drafts"],
                "drafted_tokens": values["drafted"],
                "accepted_tokens": values["accepted"],
                "tested_tokens": values["tested"],
                "verified_tokens": values["verified"],
                "emitted_tokens": values["emitted"],
                "tokens_per_step": values["emitted"] / values["steps"] if values["steps"] else None,
            }
            self._lines.write(line)

    def __enter__(self) -> Self:
        if self.path is not None:
            if is_there(self.path) and self.path.is_dir():
                raise InputError(f"cannot write {self.path}: it is a folder")
            self._lines = Lines(self.path.with_name(self.path.name + ".partial"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lines is not None and self.path is not None:
            if kind is None:
                self._lines.commit(self.path)
            else:
                self._lines.close()
