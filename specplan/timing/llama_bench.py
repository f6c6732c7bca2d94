"""Tables of llama.cpp's ``llama-bench`` (csv, json, jsonl or markdown) as rows of step times.

A test ``tgN`` decodes N tokens one by one: a pass of one position takes 1 / (tokens per second). A test ``ppN``
processes N tokens in one pass: N / (tokens per second). ``@ dD`` puts D cached tokens before. Long prompts are
prefills, not verifying passes, and are left out.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from specplan.errors import InputError

WIDEST: Final = 64
"""Longest pass over several positions that is taken for a verifying one."""

_TEST: Final = re.compile(r"^(pp|tg)(\d+)(?: *@ *d(\d+))?$")
_SPEED: Final = re.compile(r"^\s*([\d.]+)")

Row = tuple[float, float, float, float]


def llama_bench_rows(text: str, source: str) -> list[Row] | None:
    r"""Rows of (batch, width, context, seconds); None where the text is no table of llama-bench.

    Raises
    ------
    InputError
        If it is one, and has no test of decoding or of a short pass.

    Examples
    --------
    >>> llama_bench_rows("| model | test | t/s |\n| --- | --- | --- |\n| x | tg128 | 50.00 ± 0.1 |", "here")
    [(1.0, 1.0, 64.0, 0.02)]
    """
    found = _tests(text)
    if found is None:
        return None
    rows = []
    for prompt, generated, depth, speed in found:
        if speed <= 0 or (prompt and generated) or prompt > WIDEST:
            continue
        # Decoding goes through contexts from the depth on; its mean stands for the time.
        rows.append((1.0, float(prompt or 1), depth + generated / 2, (prompt or 1) / speed))
    if not rows:
        raise InputError(
            f"{source}: a llama-bench table without a test tgN, or ppN with N up to {WIDEST}; run it with "
            "-p 1,2,4,8 -n 128"
        )
    return rows


def _tests(text: str) -> list[tuple[int, int, int, float]] | None:
    """(prompt tokens, generated tokens, cached tokens, tokens per second) of each test."""
    head = text.lstrip()[:1]
    if head in ("[", "{"):
        documents = _documents(text)
        return None if documents is None else [_of_fields(d) for d in documents]
    if head == "|":
        return _of_markdown(text)
    lines = text.splitlines()
    if lines and "n_prompt" in lines[0] and "avg_ts" in lines[0]:
        return [_of_fields(row) for row in csv.DictReader(io.StringIO(text))]
    return None


def _documents(text: str) -> list[Mapping[str, Any]] | None:
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            return None
    items = found if isinstance(found, list) else [found]
    whole = bool(items) and all(isinstance(i, dict) and {"n_prompt", "n_gen", "avg_ts"} <= i.keys() for i in items)
    return items if whole else None


def _of_fields(fields: Mapping[str, Any]) -> tuple[int, int, int, float]:
    try:
        return (
            int(fields["n_prompt"]),
            int(fields["n_gen"]),
            int(fields.get("n_depth") or 0),
            float(fields["avg_ts"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a row of llama-bench needs n_prompt, n_gen and avg_ts as numbers: {error!r}") from None


def _of_markdown(text: str) -> list[tuple[int, int, int, float]] | None:
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if "|" in line]
    if not lines or "test" not in lines[0] or "t/s" not in lines[0]:
        return None
    return list(_cells(lines))


def _cells(lines: list[list[str]]) -> Iterator[tuple[int, int, int, float]]:
    test, speed = lines[0].index("test"), lines[0].index("t/s")
    for cells in lines[1:]:
        if len(cells) != len(lines[0]):
            continue
        m, s = _TEST.match(cells[test]), _SPEED.match(cells[speed])
        if m is not None and s is not None:
            n = int(m[2])
            yield (n if m[1] == "pp" else 0, n if m[1] == "tg" else 0, int(m[3] or 0), float(s[1]))
