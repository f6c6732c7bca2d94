"""Read small text files that users name: bounded, decoded, parsed, each failure one clear line."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import yaml

from specplan.errors import InputError

MAX_TEXT_BYTES: Final = 32 * 2**20
"""A spec or config is a few kilobytes; far larger files are something else."""


def read_text(path: Path, what: str) -> str:
    """Text of a file of at most `MAX_TEXT_BYTES`.

    Raises
    ------
    InputError
        When the file is missing, unreadable, too large, or not UTF-8 text.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder, expected {what}")
        with path.open("rb") as file:
            raw = file.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected {what}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_TEXT_BYTES:
        raise InputError(f"{path}: larger than {MAX_TEXT_BYTES >> 20} MiB, expected {what}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: a binary file, expected {what}") from None
    if "\x00" in text:
        raise InputError(f"{path}: a binary file, expected {what}")
    return text


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InputError(f"key {twice!r} appears twice")
    return found


def parse_json(text: str, where: str) -> dict[str, Any]:
    """JSON object in `text`; duplicate keys, endless numbers and deep nesting are refused.

    >>> parse_json('{"a": 1}', "example")
    {'a': 1}
    """
    try:
        document = json.loads(text, object_pairs_hook=_unique_pairs)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{where}: not a config: nested too deeply") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except ValueError:  # Python refuses numbers of more than some thousand digits, which take quadratic time
        raise InputError(f"{where}: not JSON: a number of thousands of digits") from None
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a JSON object with named fields, got {type(document).__name__}")
    return document


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader where it was built

MAX_NODES: Final = 200_000
"""References (``*name``) let a small YAML file stand for a huge document; more values than this are refused."""


class _Loader(_SafeLoader):  # type: ignore[misc] # the base is chosen at run time
    """Safe loader that refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key.value, str):
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    problem = f"key {key.value!r} appears twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _node_count(document: Any) -> int:
    count, stack = 0, [document]
    while stack and count <= MAX_NODES:
        node = stack.pop()
        count += 1
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return count


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """YAML mapping in `text`.

    >>> parse_yaml("a: 1", "example")
    {'a': 1}
    """
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise InputError(f"{where}: broken YAML: {error.problem}{at}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{where}: broken YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise InputError(f"{where}: broken YAML: nested too deeply") from None
    if _node_count(document) > MAX_NODES:
        raise InputError(f"{where}: broken YAML: stands for more than {MAX_NODES} values")
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected fields such as 'name: ...', got {type(document).__name__}")
    return document
