"""One line per request and source: counts that a user can join with their own logs."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from specplan.errors import InputError
from specplan.propose.spelling import TokenSource
from specplan.records.lines import is_there
from specplan.replay.counts import COLUMNS, IntArray


class RequestRows:
    """Writes rows into ``PATH.partial``, which gets its name when it is whole; without a path, nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def write(self, source: TokenSource, ids: Sequence[str], tags: Sequence[str], counts: IntArray) -> None:
        """One row per request: its id, tag and counts, and tokens per step."""
        if self._file is None:
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
            self._file.write(json.dumps(line) + "\n")

    def _partial(self, path: Path) -> Path:
        return path.with_name(path.name + ".partial")

    def __enter__(self) -> Self:
        if self.path is not None:
            if is_there(self.path) and self.path.is_dir():
                raise InputError(f"cannot write {self.path}: it is a folder")
            try:
                self._file = self._partial(self.path).open("w", encoding="utf-8")
            except OSError as error:
                raise InputError(f"cannot write {self.path}: {error.strerror or error}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self.path is not None:
            try:
                self._file.close()
                if kind is None:
                    self._partial(self.path).replace(self.path)
            except OSError as failure:
                raise InputError(f"cannot write {self.path}: {failure.strerror or failure}") from error
