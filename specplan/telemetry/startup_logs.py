r"""Read what vLLM (0.4 to 0.32) and SGLang print at start-up: memory terms, pool sizes, settings, refusals.

The reader streams, so that a log may be gigabytes long: whole chunks are searched for the few words that matter, and
only lines that hold one are decoded. Lines may carry container prefixes, timestamps, worker names and colours, come in
any order and from any number of ranks, and the log may end anywhere: every figure stands for itself. Starts
of one file are told apart by what an engine prints once; the last is judged, the earlier ones are kept beside it.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

from specplan.errors import InputError
from specplan.files.reading import open_file
from specplan.records.startup import CUT, Reading, StartupLog
from specplan.telemetry.startup_phases import sglang_phases
from specplan.telemetry.startup_words import (
    ARGUMENTS,
    ENGINE_LINES,
    LINES,
    OPENERS,
    REFUSALS,
    RESOLVED,
    SETTINGS,
    VERSION,
)

_CHUNK: Final = 1 << 20
_LONGEST_LINE: Final = 1 << 18
_MOST: Final = 2.0**60  # bytes or tokens; no engine has so many
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[\d{1,2}(?:;\d{1,2})*m")
# Rank names: "(Worker_TP0 pid=12)", "(VllmWorker rank=1 pid=..)", "(RayWorkerWrapper pid=7)", "[2026-01-01 TP0]".
_RANK: Final = (
    re.compile(r"\((?:Vllm)?Worker_?((?:(?:DP|PP|TP|EP|PCP|DCP)\d+_?)+)\s+pid=\d+\)"),
    re.compile(r"\((?:Vllm)?Worker(?:Process)?(?:-(\d+)| rank=(\d+))\s*pid=\d+\)"),
    re.compile(r"\[[\d\-: .,]*((?:\b(?:DP|PP|TP|EP|CP)\d+ ?)+)\]"),
    re.compile(r"\((?:EngineCore|RayWorkerWrapper|VllmWorkerProcess|Worker)(_DP\d+)?\s*\(?pid=(\d+)"),
)


_KEY_VALUE: Final = re.compile(
    r"""['"]?\b(\w+)['"]?\s*[=:]\s*(SpeculativeConfig\([^)]*\)|\{[^{}]*\}|'[^']*'|"[^"]*"|[^,\s(){}]+)"""
)
_SPECULATIVE: Final = {"num_spec_tokens": "num_speculative_tokens"}

_ANCHORS: Final = tuple(
    sorted({line.anchor for line in LINES} | {anchor for anchor, _ in REFUSALS} | {*ENGINE_LINES, *OPENERS})
)


def read_startup_log(source: str | Path | BinaryIO) -> StartupLog:
    """Read a start-up log.

    Parameters
    ----------
    source : path or binary stream
        A file, or an open stream (standard input).

    Raises
    ------
    InputError
        When the file cannot be read, or holds no line of either engine's start-up.

    Examples
    --------
    >>> import io
    >>> log = read_startup_log(io.BytesIO(b'''
    ... (EngineCore_0 pid=7) INFO 01-02 03:04:05 [gpu_model_runner.py:99] Model loading took 14.99 GiB and 5.1 seconds
    ... (EngineCore_0 pid=7) INFO 01-02 03:04:06 [gpu_worker.py:298] Available KV cache memory: 58.11 GiB
    ... (EngineCore_0 pid=7) INFO 01-02 03:04:06 [kv_cache_utils.py:864] GPU KV cache size: 476,016 tokens
    ... '''))
    >>> log.engine, log.value("kv_tokens"), round(log.value("weights_bytes") / 2**30, 2)
    ('vllm', 476016.0, 14.99)
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        with open_file(path, "an engine's start-up log") as stream:
            return _read(stream, str(path))
    return _read(source, "the log")


def _read(stream: BinaryIO, name: str) -> StartupLog:
    state = _State()
    for number, raw, whole in _marked_lines(stream, state):
        state.line(number, _clean(raw), raw, whole=whole)
    if not any(start.readings or start.settings or start.refusals for start in state.starts):
        raise InputError(
            f"{name}: no start-up line of vLLM or SGLang in {state.n_lines} lines; give the engine's log from its "
            "first line on"
        )
    return state.finish()


def _marked_lines(stream: BinaryIO, state: "_State") -> Iterator[tuple[int, bytes, bool]]:
    """Lines that hold an anchor, their numbers, and whether a newline ends them.

    Memory stays bounded however long the file or its lines are.
    """
    rest, line_number = b"", 1
    while True:
        chunk = stream.read(_CHUNK)
        state.n_bytes += len(chunk)
        block = rest + chunk
        if not chunk:
            rest = b""
        else:
            cut = block.rfind(b"\n") + 1
            if not cut and len(block) > _LONGEST_LINE:
                cut = len(block) - _LONGEST_LINE // 2  # a line without end: search it in overlapping pieces
            rest, block = block[cut:], block[:cut]
        yield from _lines_of(block, line_number)
        line_number += block.count(b"\n")
        if not chunk:
            state.n_lines = line_number - 1 + (1 if block and not block.endswith(b"\n") else 0)
            return


def _lines_of(block: bytes, first: int) -> Iterator[tuple[int, bytes, bool]]:
    starts: set[int] = set()
    for anchor in _ANCHORS:
        at = block.find(anchor)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(anchor, end) if end >= 0 else -1
    counted, number = 0, first
    for start in sorted(starts):
        number += block.count(b"\n", counted, start)
        counted = start
        end = block.find(b"\n", start)
        yield number, block[start : end if end >= 0 else len(block)][:_LONGEST_LINE], end >= 0


def _clean(raw: bytes) -> str:
    return _COLOUR.sub("", raw.decode("utf-8", "replace")).rstrip("\r")


def _rank(text: str, end: int) -> str:
    """Rank that the last prefix before `end` names: two workers' lines may stand on one."""
    for pattern in _RANK:
        for found in reversed(list(pattern.finditer(text, 0, end))):
            return "".join(part for part in found.groups() if part).strip("_ ").replace(" ", "_")
    return ""


class _Start:
    """What one start printed, as far as it was read."""

    def __init__(self, line: int) -> None:
        self.first = self.last = line
        self.readings: list[Reading] = []
        self.settings: dict[str, object] = {}
        self.refusals: list[str] = []
        self.version: str | None = None
        self.opened: set[tuple[bytes, str]] = set()
        self.sglang = self.vllm = 0

    def line(self, number: int, text: str, raw: bytes, *, whole: bool) -> None:
        self.last = number
        if "CPU KV cache size" in text:
            self.settings["device"] = "cpu"
        for kind in LINES:
            if kind.anchor not in raw:
                continue
            for found in kind.pattern.finditer(text):
                if whole or not (found.end() == len(text) and text[-1].isdigit()):
                    rank = _rank(text, found.start())
                    for (term, unit), printed in zip(kind.terms, found.groups(), strict=True):
                        self._add(term, printed, unit, rank, number)
        for anchor, pattern in REFUSALS:
            refused = pattern.search(text) if anchor in raw else None
            if refused and refused[0] not in self.refusals:
                self.refusals.append(refused[0])
        if any(anchor in raw for anchor in ENGINE_LINES):
            self._settings(text, whole=whole)

    def _add(self, term: str, printed: str, unit: float, rank: str, number: int) -> None:
        digits = printed.replace(",", "")
        step = 10.0 ** -len(digits.partition(".")[2]) * unit
        value = float(digits) * unit
        if not value < _MOST:
            raise InputError(f"line {number} of the log: {term} {printed[:20]}... is no size or count of an engine")
        if term == "state_bytes":
            # Convolution and recurrent states are printed side by side on one line; they are one term.
            same = [r for r in self.readings if r.term == term and r.rank == rank and r.line == number]
            if same:
                self.readings.remove(same[0])
                value, step = value + same[0].value, step + same[0].step
        self.readings.append(Reading(term=term, value=value, step=step, rank=rank, line=number))

    def _settings(self, text: str, *, whole: bool) -> None:
        self._versions(text)
        for marker, override in ARGUMENTS:
            at = text.find(marker)
            if at >= 0:
                self._arguments(text[at + len(marker) :], override=override, whole=whole)
        for name, pattern in RESOLVED:
            found = pattern.search(text)
            if found and (whole or not _may_be_cut(text, found.end())):
                self.settings[name] = int(found[1])

    def _versions(self, text: str) -> None:
        for pattern in VERSION:
            found = pattern.search(text)
            if found:
                self.version = found[1].rstrip(".,;")
                self.vllm += 1
        if "server_args=" in text:
            self.sglang += 1

    def _arguments(self, text: str, *, override: bool, whole: bool) -> None:
        literal = _literal_dict(text)
        if literal is not None:
            pairs = list(literal.items())
        else:
            pairs = [(m[1], _value(m[2])) for m in _KEY_VALUE.finditer(text) if whole or not _may_be_cut(text, m.end())]
        seen: set[str] = set()
        for key, value in pairs:
            name = SETTINGS.get(key)
            # The first of two equal names belongs to the engine, later ones to nested configs.
            if name is None or value is None or name in seen:
                continue
            seen.add(name)
            if override or name not in self.settings:
                self.settings[name] = value

    @property
    def engine(self) -> str:
        terms = {r.term for r in self.readings}
        return "sglang" if self.sglang or (terms & _SGLANG_TERMS and not self.vllm) else "vllm"

    def finish(self, **more: Any) -> StartupLog:
        readings = tuple(sglang_phases(self.readings)) if self.engine == "sglang" else tuple(self.readings)
        terms = {r.term for r in readings}
        sized = {"kv_tokens", "num_gpu_blocks", "pool_tokens", "full_pool_tokens"} & terms
        lengths = {int(r.value) for r in readings if r.term == "concurrency_length"}
        if len(lengths) == 1:
            self.settings["max_model_len"] = lengths.pop()  # what the engine ended with, whatever was asked
        notes = () if sized or self.refusals else ("the log ends before the pool is sized",)
        return StartupLog(
            engine=self.engine,
            version=self.version,
            settings=MappingProxyType(self.settings),
            readings=readings,
            refusals=tuple(self.refusals),
            notes=notes,
            first_line=self.first,
            last_line=self.last,
            **more,
        )


_SGLANG_TERMS: Final = frozenset(
    {"free_after_load_bytes", "pool_tokens", "free_after_pool_bytes", "full_pool_tokens", "whole_pool_bytes"}
)


class _State:
    """What has been read so far: one start after the other."""

    def __init__(self) -> None:
        self.starts = [_Start(1)]
        self.cut = False
        self.n_lines = self.n_bytes = 0

    def line(self, number: int, text: str, raw: bytes, *, whole: bool) -> None:
        start = self.starts[-1]
        for opener in OPENERS:
            if opener not in raw:
                continue
            key = (opener, "".join(re.findall(r"EngineCore\w*?(DP\d+)", text)[:1]))
            if key in start.opened and (start.readings or start.refusals):
                start = _Start(number)
                self.starts.append(start)
            start.opened.add(key)
        start.line(number, text, raw, whole=whole)
        self.cut = self.cut or not whole

    def finish(self) -> StartupLog:
        # A start that was opened and cut off says nothing; the one before it is judged.
        told = [start for start in self.starts if start.readings or start.refusals]
        *earlier, judged = [start.finish() for start in told or self.starts if start.settings or told]
        notes = (*judged.notes, CUT) if self.cut else judged.notes
        if earlier:
            notes = (
                *notes,
                f"{len(earlier) + 1} starts in one log; the last one, from line {judged.first_line:,} on, is judged",
            )
        version = judged.version or next((log.version for log in reversed(earlier) if log.version), None)
        return replace(
            judged, version=version, notes=notes, earlier=tuple(earlier), lines=self.n_lines, n_bytes=self.n_bytes
        )


def _may_be_cut(text: str, end: int) -> bool:
    """Whether a match at the end of a line that no newline ends may go on where the log was cut."""
    return end == len(text) and text[-1].isalnum()


def _literal_dict(text: str) -> dict[str, object] | None:
    """The dict literal at the start of `text`, or None where it is none (or holds more than literals)."""
    start = text.find("{")
    if start < 0 or text[:start].strip():
        return None
    try:
        value = ast.literal_eval(text[start : text.rfind("}") + 1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _value(text: str) -> object:
    """A printed argument as a value: number, bool, string, or the fields of a nested config."""
    if text.startswith(("SpeculativeConfig(", "{")):
        inner = {
            _SPECULATIVE.get(k, k): _value(v)
            for k, v in _KEY_VALUE.findall(text[text.find("(" if text[0] == "S" else "{") + 1 :])
        }
        return {k: v for k, v in inner.items() if v is not None}
    bare = text.strip("'\"").removeprefix("torch.")
    words: dict[str, object] = {"None": None, "True": True, "False": False, "null": None, "true": True, "false": False}
    if bare in words:
        return words[bare]
    for kind in (int, float):
        try:
            return kind(bare)
        except ValueError:
            continue
    return bare
