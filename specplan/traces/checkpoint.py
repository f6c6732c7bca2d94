"""Finished parts of a replay, noted as they come, so that a killed run takes up where it ended."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from specplan.errors import InputError
from specplan.files.lines import BrokenLine, BrokenLog, read_lines
from specplan.files.writing import Lines
from specplan.records.tally import Clusters, Tally
from specplan.traces.counts import COLUMNS
from specplan.traces.shards import BatchResult, Counted

SCHEMA: Final = "specplan-replay/2"
_VECTORS: Final = ("accepted_histogram", "tested_histogram", "length_drafts", "length_accepted", "length_tested")


def _tally(row: Mapping[str, Any]) -> Tally:
    values: dict[str, Any] = {k: tuple(v) if k in _VECTORS and v is not None else v for k, v in row.items()}
    values["clusters"] = None if row["clusters"] is None else Clusters(**row["clusters"])
    return Tally(**values)


def _counted(row: Mapping[str, Any]) -> Counted:
    return Counted(
        tags={tag: _tally(t) for tag, t in row["tags"].items()},
        counts=np.array(row["counts"], np.int64).reshape(-1, len(COLUMNS)),
        seconds=row["seconds"],
    )


def _plain(counted: Counted) -> dict[str, Any]:
    return {
        "tags": {tag: asdict(t) for tag, t in counted.tags.items()},
        "counts": counted.counts.tolist(),
        "seconds": counted.seconds,
    }


class Checkpoint:
    """Notes of finished batches and replicas in JSON lines; without a path, nothing is kept.

    A torn last line is dropped. Notes of other inputs (options, or files of another size or time) are refused.

    Parameters
    ----------
    path : Path or None
    inputs : mapping
        What the results depend on.
    files : sequence of Path
        The trace; size and time of change are part of the inputs.
    """

    def __init__(self, path: Path | None, inputs: Mapping[str, Any], files: Sequence[Path]) -> None:
        self.path = path
        self._lines: Lines | None = None
        self._batches: dict[int, dict[str, Any]] = {}
        self._replicas: dict[tuple[str, int], dict[str, Any]] = {}
        stats = [f.stat() for f in files] if path is not None else []
        self._head = {"schema": SCHEMA, "inputs": {**inputs, "stats": [[s.st_size, s.st_mtime_ns] for s in stats]}}

    def __enter__(self) -> Self:
        if self.path is None:
            return self
        path = self.path
        self._lines = Lines(path, lambda: [json.dumps(self._head), *self._take_up(path)])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lines is not None:
            self._lines.close()

    def _take_up(self, path: Path) -> list[str]:
        kept = []
        for number, line in read_lines(path, BrokenLog()):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if number == 1:
                if not isinstance(row, dict) or row.get("schema") != SCHEMA:
                    raise InputError(f"{path} is no checkpoint of a replay; name another file for it")
                if row != self._head:
                    raise InputError(
                        f"the checkpoint {path} belongs to another replay (options or files differ); "
                        "delete it, or name another file"
                    )
                continue
            if not isinstance(row, dict):
                continue
            kept.append(line.decode())
            if "batch" in row:
                self._batches[row["batch"]] = row
            else:
                self._replicas[row["source"], row["replica"]] = row
        return kept

    def batch(self, index: int) -> BatchResult | None:
        """A finished batch, if it is noted."""
        row = self._batches.get(index)
        if row is None:
            return None
        return BatchResult(
            index=index,
            ids=tuple(row["ids"]),
            tags=tuple(row["tags"]),
            tokens=row["tokens"],
            broken=row["broken"],
            first_broken=tuple(BrokenLine(**b) for b in row["first_broken"]),
            counted=tuple(_counted(c) for c in row["counted"]),
            requests=(),
        )

    def note_batch(self, result: BatchResult) -> None:
        """Note a finished batch."""
        if result.index not in self._batches:
            self._write(
                {
                    "batch": result.index,
                    "ids": result.ids,
                    "tags": result.tags,
                    "tokens": result.tokens,
                    "broken": result.broken,
                    "first_broken": [asdict(b) for b in result.first_broken],
                    "counted": [_plain(c) for c in result.counted],
                }
            )

    def replica(self, source: str, replica: int) -> Counted | None:
        """A finished replica of a source, if it is noted."""
        row = self._replicas.get((source, replica))
        return None if row is None else _counted(row["counted"])

    def note_replica(self, source: str, replica: int, counted: Counted) -> None:
        """Note a finished replica."""
        self._write({"source": source, "replica": replica, "counted": _plain(counted)})

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._lines is not None:
            self._lines.write(row)
            self._lines.flush()
