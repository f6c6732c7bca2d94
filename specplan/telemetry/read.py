"""What an engine left somewhere, told apart by its shape: an address, a metrics page, a log, a result, responses."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError
from specplan.files.documents import json_object, parse_json
from specplan.files.lines import BrokenLog, read_lines
from specplan.files.reading import is_there, peek, read_bytes
from specplan.files.text import is_url
from specplan.records.files import SCHEMA
from specplan.telemetry.bench import is_bench_result, read_bench
from specplan.telemetry.fetch import TIMEOUT_S, fetch_text, looks_like_html
from specplan.telemetry.logs import read_log
from specplan.telemetry.observation import Observation
from specplan.telemetry.prometheus import ENGINE_PREFIXES, between, observations, parse_scrape
from specplan.telemetry.responses import find_metrics, read_responses, read_server_info, read_step_records, server_info
from specplan.telemetry.results import read_result
from specplan.telemetry.traces import is_trace, read_trace

_HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d+(/|$)")
_EXPECTED: Final = "a metrics page, a log, or a JSON result or response of an engine"
_LOG_MARKS: Final = ("SpecDecoding metrics:", "Speculative metrics:", "Decode batch", "draft acceptance", "#gen drafts")


def read_origin(
    origin: str,
    *,
    before: str | None = None,
    interval_s: float | None = None,
    timeout_s: float = TIMEOUT_S,
    width: int | None = None,
) -> list[Observation]:
    """Observations from one origin.

    Parameters
    ----------
    origin : str
        URL of a metrics page, or a file: metrics page, log, benchmark result, response or JSON lines of responses;
        files may be gzip or zstandard.
    before : str or None
        An earlier scrape (URL or file); only what happened since is counted.
    interval_s : float or None
        Scrape the URL twice, this many seconds apart.
    timeout_s : float
        Limit of one HTTP exchange, seconds.
    width : int or None
        SGLang's num_draft_tokens, where the origin does not tell it.

    Raises
    ------
    InputError
        If the origin cannot be read or says nothing of speculation.
    """
    try:
        return _read(origin, before, interval_s, timeout_s, width)
    except OverflowError:  # a page or a line may print a number of hundreds of digits
        raise InputError(f"{origin}: holds a number that is too large to be counted") from None
    except InputError as error:
        if origin in str(error):
            raise
        raise InputError(f"{origin}: {error}") from None


def _read(
    origin: str, before: str | None, interval_s: float | None, timeout_s: float, width: int | None
) -> list[Observation]:
    if is_url(origin):
        return _read_url(origin, before, interval_s, timeout_s, width)
    if not is_there(Path(origin)) and _HOST_AND_PORT.match(origin):
        raise InputError(f"{origin}: no such file; for an engine's address write http://{origin}")
    if interval_s is not None:
        raise InputError(f"{origin} is a file; --interval scrapes an address twice, --before compares two files")
    path = Path(origin)
    kind = _kind(path)
    if before is not None and kind != "metrics":
        earlier = _read(before, None, None, timeout_s, width)
        return [_beside(o, earlier) for o in _read(origin, None, None, timeout_s, width)]
    if kind == "metrics":
        return _read_pages(origin, _text(path), before, timeout_s, width)
    if kind == "log":
        return _read_log(path, origin, width)
    if kind == "stream":
        return read_responses(_streamed(path, origin), origin)
    return _read_json(path, origin, width)


def _streamed(path: Path, origin: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Answers of a stream of ``data:`` lines: of each, what its chunks say last of metrics and usage."""
    answers: dict[str, dict[str, Any]] = {}
    chunks = 0
    for number, line in read_lines(path, BrokenLog()):
        body = line.strip().removeprefix(b"data:").strip()
        if not body or body == b"[DONE]" or not line.lstrip().startswith(b"data:"):
            continue
        chunks += 1
        try:
            chunk = parse_json(body, f"{path}:{number}", nan="unknown")
        except InputError as error:
            raise InputError(f"{error}; expected a chunk of a stream behind 'data:'") from None
        if isinstance(chunk, dict):
            answer = answers.setdefault(str(chunk.get("id") or "the stream"), {})
            if find_metrics(chunk) is not None or chunk.get("usage"):
                answer.update({key: value for key, value in chunk.items() if value is not None})
    if not any(find_metrics(answer) for answer in answers.values()):
        raise InputError(
            f"{origin}: a stream of {chunks} chunks without speculative metrics; vLLM adds them with "
            "--per-request-spec-decode-metrics, SGLang in meta_info, llama.cpp with timings_per_token"
        )
    yield from ((f"{origin}, {name}", answer) for name, answer in answers.items())


def _read_log(path: Path, origin: str, width: int | None) -> list[Observation]:
    """A log; what could not be read of it becomes a note."""
    broken = BrokenLog()
    found = read_log((line.decode("utf-8", "replace") for _, line in read_lines(path, broken)), origin, width=width)
    notes = tuple(str(line) for line in broken.first)
    return [replace(o, notes=(*o.notes, *notes)) for o in found]


def _read_url(
    url: str, before: str | None, interval_s: float | None, timeout_s: float, width: int | None
) -> list[Observation]:
    if interval_s is None:
        return _read_pages(url, fetch_text(url, timeout_s), before, timeout_s, width)
    if before is not None:
        raise InputError("--before and --interval both name a first scrape; give one of them")
    if not 0 < interval_s <= 86_400:
        raise InputError(f"--interval must lie between 0 and 86400 seconds, got {interval_s:g}")
    first = parse_scrape(fetch_text(url, timeout_s), url)
    start = time.monotonic()
    time.sleep(interval_s)
    second = parse_scrape(fetch_text(url, timeout_s), url)
    window, notes = between(first, second)
    return observations(window, window_s=time.monotonic() - start, notes=notes, width=width)


def _read_pages(origin: str, text: str, before: str | None, timeout_s: float, width: int | None) -> list[Observation]:
    scrape = parse_scrape(text, origin)
    if before is None:
        return observations(scrape, width=width)
    first = parse_scrape(fetch_text(before, timeout_s) if is_url(before) else _text(Path(before)), before)
    scrape, notes = between(first, scrape)
    try:
        earlier = observations(first, width=width)
    except InputError:  # nothing was drafted yet
        earlier = []
    return [_beside(o, earlier) for o in observations(scrape, notes=notes, width=width)]


def _beside(seen: Observation, earlier: list[Observation]) -> Observation:
    """The observation with the earlier one of the same engine and model."""
    same = [o for o in earlier if o.engine == seen.engine and o.source == seen.source]
    if not same and len(earlier) == 1 and earlier[0].engine == seen.engine:
        same = earlier
    return replace(seen, earlier=same[0] if same else None)


def _text(path: Path) -> str:
    body = read_bytes(path, "one whole document")
    if looks_like_html(body):
        raise InputError(f"{path} is a page of HTML; expected a metrics page, a log or JSON")
    return body.decode("utf-8", "replace")


def _kind(path: Path) -> str:
    """``metrics``, ``json``, ``stream`` or ``log``, by the first bytes."""
    head = peek(path, expected=_EXPECTED)
    if looks_like_html(head):
        raise InputError(f"{path} is a page of HTML; expected a metrics page, a log or JSON")
    text = head.decode("utf-8", "replace").lstrip()
    if not text:
        raise InputError(f"{path} is empty")
    if text[0] == "{":  # a log may be of JSON lines as well; its messages stand in them as they are
        return "log" if any(mark in text for mark in _LOG_MARKS) else "json"
    if text.startswith("data:"):
        return "stream"
    if text[0] == "[" and _first_json_char(text[1:]) in "{]":
        return "json"
    lines = text.splitlines()
    starts = ("# HELP ", "# TYPE ", *ENGINE_PREFIXES)
    return "metrics" if any(line.startswith(starts) for line in lines[:50]) else "log"


def _first_json_char(text: str) -> str:
    """First character that is not white space; SGLang's log lines, too, begin with a bracket (a date follows)."""
    return text.lstrip()[:1] or " "


def _read_json(path: Path, origin: str, width: int | None) -> list[Observation]:
    head = peek(path).partition(b"\n")[0]
    if SCHEMA.encode() in head:
        return read_step_records(path, origin)
    whole = _whole_document(path)
    if whole is not None:
        if (found := read_result(whole, origin, width=width)) is not None and not is_bench_result(whole):
            return found
        if is_bench_result(whole):
            return [read_bench(whole, origin, width=width)]
        if is_trace(whole):
            return [read_trace(whole, origin)]
        if (info := server_info(whole)) is not None:
            return [read_server_info(info, origin)]
        items = whole if isinstance(whole, list) else [whole]
        return read_responses(_named(origin, items), origin)
    first = _first_row(head)
    rows = _json_lines(path, BrokenLog(fatal=True))
    if is_bench_result(first):
        return [read_bench(row, name, width=width) for name, row in rows]
    if (isinstance(first, dict) and "specDecodingStats" in first) or (
        isinstance(first, dict) and "iterLatencyMS" in first
    ):
        return read_result([row for _, row in rows], origin) or []
    return read_responses(rows, origin)


def _first_row(line: str | bytes) -> object:
    try:
        return parse_json(line, "the first line", nan="unknown")
    except InputError:
        return None


def _whole_document(path: Path) -> Any:
    """The file as one JSON document, or None if it is JSON lines."""
    text = _text(path)
    try:
        return parse_json(text, str(path), nan="unknown")
    except InputError:
        if _first_row(text.strip().partition("\n")[0]) is None:
            raise  # JSON lines have a document in the first line
        return None


def _named(origin: str, items: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise InputError(f"{origin}: entry {number} is not a JSON object; expected responses of an engine")
        yield f"{origin}, entry {number}", item


def _json_lines(path: Path, log: BrokenLog) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in read_lines(path, log):
        try:
            yield f"{path}:{number}", json_object(line, f"{path}:{number}", nan="unknown")
        except InputError as error:
            raise InputError(f"{error}; expected one response per line") from None
