"""JSON from outside: bounded in size, depth, number of values and digits, without NaN, each key once."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from specplan.errors import InputError
from specplan.files.reading import MAX_TEXT_BYTES, read_bytes

Nan = Literal["refuse", "unknown", "keep"]

MAX_DEPTH: Final = 100
"""Lists and objects within one another."""
MAX_VALUES: Final = 8_000_000
"""Values of one document: as Python's objects they take up to a gigabyte."""
MAX_DIGITS: Final = 308
"""Digits of a number: every whole number of as many is a finite double."""


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InputError(f"key {twice!r} appears twice")
    return found


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputError(f"a number of {len(digits)} digits")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits) if len(digits) <= MAX_DIGITS else math.inf
    if math.isinf(value):
        raise InputError(f"the number {digits[:40]} is too large")
    return value


def _no_number(name: str) -> Any:
    raise InputError(f"{name} is no number of JSON")


def _unknown(name: str) -> None:  # noqa: ARG001 - the parser's signature
    return None


def parse_json(text: str | bytes, where: str, *, nan: Nan = "refuse") -> Any:
    """JSON value in `text`.

    Parameters
    ----------
    text : str or bytes
        UTF-8, with or without a mark.
    where : str
        File (and line) for messages.
    nan : {"refuse", "unknown", "keep"}
        What to make of NaN and infinities: engines write them for means of nothing, configs for bounds that are none.

    Raises
    ------
    InputError
        If it is not JSON, has a key twice, or passes a bound of this module.

    Examples
    --------
    >>> parse_json('{"a": [1, 2.5]}', "example"), parse_json("[NaN]", "example", nan="unknown")
    ({'a': [1, 2.5]}, [None])
    >>> parse_json('{"a": 1, "a": 2}', "example")
    Traceback (most recent call last):
    specplan.errors.InputError: example: key 'a' appears twice
    """
    constants: dict[Nan, Callable[[str], Any]] = {"refuse": _no_number, "unknown": _unknown, "keep": float}
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        if text.count(",") + text.count("[") + text.count("{") > MAX_VALUES:
            raise InputError(f"more than {MAX_VALUES} values")
        document = json.loads(
            text, object_pairs_hook=_unique_pairs, parse_int=_whole, parse_float=_real, parse_constant=constants[nan]
        )
    except UnicodeDecodeError:
        raise InputError(f"{where}: not JSON: expected UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{where}: JSON nested too deeply") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if _is_deeper(document, MAX_DEPTH):
        raise InputError(f"{where}: JSON nested too deeply, more than {MAX_DEPTH} levels")
    return document


def _is_deeper(document: Any, depth: int) -> bool:
    level = [document]
    for _ in range(depth):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def json_object(text: str | bytes, where: str, *, nan: Nan = "refuse") -> dict[str, Any]:
    """JSON object in `text`, as `parse_json`.

    >>> json_object("[1]", "example")
    Traceback (most recent call last):
    specplan.errors.InputError: example: expected a JSON object with named fields, got list
    """
    document = parse_json(text, where, nan=nan)
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a JSON object with named fields, got {type(document).__name__}")
    return document


def read_json(path: Path, expected: str, max_bytes: int = MAX_TEXT_BYTES, *, nan: Nan = "refuse") -> Any:
    """JSON value of a file (plain, gzip or zstandard); see `parse_json` and `specplan.files.reading.read_bytes`."""
    return parse_json(read_bytes(path, expected, max_bytes), str(path), nan=nan)
