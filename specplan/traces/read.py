"""Recorded requests from files: JSON lines (plain, gzip, zstandard), JSON documents, Parquet and vLLM's request log.

Files are read as streams, in the order in which they are named; a broken line is reported with its place and skipped,
or fatal where the caller asks for that.
"""

import ast
import glob
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError, MissingExtraError
from specplan.files.documents import read_json
from specplan.files.lines import MAX_LINE_BYTES, BrokenLog, read_lines
from specplan.files.reading import DECODE_ERRORS, is_there, open_binary, peek
from specplan.traces.requests import RecordedRequest, TokenArray, token_ids
from specplan.traces.shapes import Encoder, Fields, Json, NoTokenizerError, id_of, pairs, tag_of

SHIPPED: Final = {"smollm2": Path(__file__).parents[1] / "data" / "traces" / "smollm2.jsonl"}
"""Traces that come with the package, by name."""

_PARQUET_MAGIC: Final = b"PAR1"
_PICKLE_ENDS: Final = (".pkl", ".pickle")
_LOG_MARKS: Final = (b"Received request", b"Generated response", b"prompt_token_ids:")
_BATCH_ROWS: Final = 512
_MAX_PENDING: Final = 100_000

_LOG_PROMPT: Final = re.compile(
    r"(?:Received request|Request) (\S+?)(?: details)?: prompt: .*?prompt_token_ids: (\[[\d, ]*\]|\([\d, ]*\))"
)
_LOG_RESPONSE: Final = re.compile(
    r"Generated response (\S+?)(?: \(streaming complete\))?: output: .*output_token_ids: (\[[\d, ]*\]|\([\d, ]*\))"
)


@dataclass(slots=True)
class TraceReader:
    """How files are read, and what was found on the way.

    Attributes
    ----------
    fields : Fields
        Names of the fields, where they are not the usual ones.
    encoder : Encoder or None
        For text and chats.
    broken : BrokenLog
        What could not be used.
    max_line_bytes : int
        Longest line that is read.
    step_orders : int
        Documents so far that tell in which order their engine ran the requests.
    """

    fields: Fields = field(default_factory=Fields)
    encoder: Encoder | None = None
    broken: BrokenLog = field(default_factory=BrokenLog)
    max_line_bytes: int = MAX_LINE_BYTES
    step_orders: int = 0

    def inputs(self) -> dict[str, Any]:
        """What the requests depend on besides the files."""
        return {"fields": asdict(self.fields), "encoder": None if self.encoder is None else str(self.encoder)}

    def read(self, paths: Iterable[Path]) -> Iterator[RecordedRequest]:
        """Requests of the files, one at a time.

        Raises
        ------
        InputError
            If a file cannot be opened, or holds text and there is no tokenizer.
        """
        for path in paths:
            yield from self.read_file(path)

    def read_file(self, path: Path) -> Iterator[RecordedRequest]:
        """Requests of one file."""
        match _kind(path):
            case "parquet":
                yield from self._read_parquet(path)
            case "log":
                yield from self._read_log(path)
            case "document":
                yield from self._read_document(path)
            case _:
                yield from self.parse(path, read_lines(path, self.broken, self.max_line_bytes))

    def chunks(
        self, path: Path, n_bytes: int, n_requests: int
    ) -> Iterator[tuple[list[tuple[int, bytes]], list[RecordedRequest]]]:
        """The file in parts: lines of JSON not yet parsed, or requests where only this reader can take them apart."""
        if _kind(path) == "lines":
            lines: list[tuple[int, bytes]] = []
            size = 0
            for number, line in read_lines(path, self.broken, self.max_line_bytes):
                lines.append((number, line))
                size += len(line)
                if size >= n_bytes:
                    yield lines, []
                    lines, size = [], 0
            if lines:
                yield lines, []
            return
        requests: list[RecordedRequest] = []
        for request in self.read_file(path):
            requests.append(request)
            if len(requests) >= n_requests:
                yield [], requests
                requests = []
        if requests:
            yield [], requests

    def parse(self, path: Path, lines: Iterable[tuple[int, bytes]]) -> Iterator[RecordedRequest]:
        """Requests of numbered lines of JSON."""
        loads = _json_loads()
        for number, line in lines:
            try:
                row = loads(line)
            except (ValueError, RecursionError) as error:
                self.broken.add(path, number, f"not JSON: {error}")
                continue
            yield from self._from_row(row, path, number, unsure=b"true" in line or b"false" in line)

    def _read_document(self, path: Path) -> Iterator[RecordedRequest]:
        """One JSON document over many lines; it is held whole, so it is bounded as a line is."""
        with open_binary(path) as stream:
            try:
                text = stream.read(self.max_line_bytes + 1)
            except DECODE_ERRORS as error:
                self.broken.add(path, 0, f"ends too early ({error})")
                return
        if len(text) > self.max_line_bytes:
            raise InputError(f"{path} is one JSON document of more than {self.max_line_bytes} bytes; write JSON lines")
        try:
            document = _json_loads()(text)
        except (ValueError, RecursionError) as error:
            self.broken.add(path, 0, f"not JSON: {error}")
            return
        yield from self._from_row(document, path, 0, unsure=True)

    def _from_row(self, row: Any, path: Path, number: int, *, unsure: bool) -> Iterator[RecordedRequest]:
        """Requests of a parsed value: an object, a list of them, or an object with ``requests``."""
        items = row.get("requests") if isinstance(row, Mapping) and isinstance(row.get("requests"), list) else row
        self.step_orders += items is not row and isinstance(row.get("step_order"), list)
        if isinstance(items, list):
            for place, item in enumerate(items, 1):
                yield from self._from_object(item, path, number, f"{path}:{number}.{place}", unsure=unsure)
        else:
            yield from self._from_object(items, path, number, f"{path}:{number}", unsure=unsure)

    def _from_object(
        self, row: Any, path: Path, number: int, default_id: str, *, unsure: bool
    ) -> Iterator[RecordedRequest]:
        """Requests of one object, all or none: a broken one adds nothing."""
        try:
            if not isinstance(row, Mapping):
                raise InputError("expected a JSON object")
            if unsure:
                _refuse_truth_values(row)
            found = list(pairs(row, self.fields, self.encoder))
        except NoTokenizerError as error:
            raise InputError(f"{path}:{number}: {error}") from None
        except InputError as error:
            self.broken.add(path, number, str(error))
            return
        name, tag = id_of(row, self.fields) or default_id, tag_of(row, self.fields)
        for place, (prompt, response) in enumerate(found):
            yield RecordedRequest(
                id=name if len(found) == 1 else f"{name}#{place}", tag=tag, prompt=prompt, response=response
            )

    def _read_log(self, path: Path) -> Iterator[RecordedRequest]:
        """VLLM's log with --enable-log-requests, --enable-log-outputs and, in newer versions, debug level."""
        prompts: dict[str, TokenArray] = {}
        for number, raw in read_lines(path, self.broken, self.max_line_bytes):
            line = raw.decode("utf-8", "replace")
            try:
                if (m := _LOG_PROMPT.search(line)) is not None:
                    if len(prompts) >= _MAX_PENDING:
                        prompts.pop(next(iter(prompts)))
                    prompts[m[1]] = token_ids(list(ast.literal_eval(m[2])), "prompt_token_ids")
                elif (m := _LOG_RESPONSE.search(line)) is not None:
                    prompt = prompts.pop(m[1], None)
                    if prompt is None:
                        raise InputError(
                            f"no prompt_token_ids were logged for {m[1]}; vLLM logs them with --enable-log-requests "
                            "and VLLM_LOGGING_LEVEL=DEBUG"
                        )
                    response = token_ids(list(ast.literal_eval(m[2])), "output_token_ids")
                    yield RecordedRequest(id=m[1], tag="", prompt=prompt, response=response)
            except (InputError, ValueError, SyntaxError) as error:
                self.broken.add(path, number, str(error))

    def _read_parquet(self, path: Path) -> Iterator[RecordedRequest]:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ModuleNotFoundError:
            raise MissingExtraError("pyarrow", extra="replay") from None
        try:
            file = pq.ParquetFile(path)
            row_number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in _rows(batch):
                    row_number += 1
                    yield from self._from_row(row, path, row_number, unsure=False)
        except (pa.ArrowException, OSError) as error:
            self.broken.add(path, 0, f"not readable as Parquet: {error}")


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Rows of an Arrow batch; lists of whole numbers stay arrays, which is what makes ids cheap."""
    import pyarrow as pa

    columns: dict[str, Sequence[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        is_ids = (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_integer(kind.value_type)
        if is_ids and column.null_count == 0 and column.values.null_count == 0:
            values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
            columns[name] = [values[a:b] for a, b in pairwise(offsets)]
        else:
            columns[name] = column.to_pylist()
    for i in range(batch.num_rows):
        yield {name: values[i] for name, values in columns.items()}


def _json_loads() -> Any:
    """The fastest JSON parser at hand; both refuse the same texts, but for NaN."""
    try:
        import orjson
    except ModuleNotFoundError:
        return json.loads
    return orjson.loads


def _refuse_truth_values(row: Json) -> None:
    """A truth value among ids would pass as 0 or 1; looked for only where the line has the words."""
    for name, value in row.items():
        if isinstance(value, list) and any(type(v) is bool for v in value):
            raise InputError(f"{name} holds a truth value; expected token ids")


def _kind(path: Path) -> str:
    """``parquet``, ``log``, ``document`` (one JSON value over several lines) or ``lines`` (of JSON), by its content."""
    if path.name.lower().endswith(_PICKLE_ENDS):
        raise InputError(
            f"{path} is a pickle, which can run code when it is read; write it as JSON lines with "
            "prompt_token_ids and output_token_ids"
        )
    head = peek(path)
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    if any(mark in head for mark in _LOG_MARKS) and not head.lstrip().startswith((b"{", b"[{")):
        return "log"
    return "document" if _is_spread_document(head) else "lines"


def _is_spread_document(head: bytes) -> bool:
    """Whether the text is one JSON value over several lines: its first line alone is not one."""
    line, newline, _ = head.lstrip().partition(b"\n")
    if not newline:
        return False
    try:
        json.loads(line)
    except ValueError:
        return line.rstrip() in (b"{", b"[") or line.rstrip().endswith((b",", b"{", b"["))
    except RecursionError:
        return False
    return False


def find_files(patterns: Iterable[str]) -> list[Path]:
    """Files that names and globs stand for, in the order given, globs sorted, each once.

    Raises
    ------
    InputError
        For a name that is no file, or a pattern that matches none.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern) if is_there(Path(pattern)) else SHIPPED.get(pattern, Path(pattern))
        if is_there(path) and path.is_file():
            found[path] = None
            continue
        if is_there(path) and path.is_dir():
            raise InputError(f"{pattern} is a folder; name its files, for example '{pattern}/*.jsonl'")
        matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - absolute patterns, which Path.glob refuses
        files = [Path(m) for m in matches if Path(m).is_file()]
        if not files:
            raise InputError(f"no file matches {pattern}")
        found.update(dict.fromkeys(files))
    return list(found)


def read_step_order(path: Path) -> list[list[int]]:
    """The order in which an engine served a trace: per step, the indices of its requests in batch order.

    Parameters
    ----------
    path : Path
        A JSON document with ``step_order`` beside ``requests``.

    Raises
    ------
    InputError
        If there is none, or it is not a list of lists of indices.
    """
    document = read_json(path, "a trace with step_order", MAX_LINE_BYTES)
    order = document.get("step_order") if isinstance(document, dict) else None
    if not isinstance(order, list) or not all(
        isinstance(step, list) and all(type(i) is int and i >= 0 for i in step) for step in order
    ):
        raise InputError(f"{path} has no step_order, a list of the request indices of each step")
    return order
