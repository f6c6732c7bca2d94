"""Prompts of a measurement: JSON lines of text or token ids, two sets of which are shipped."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from specplan.errors import InputError
from specplan.files.documents import json_object
from specplan.files.lines import BrokenLog, read_lines

SHIPPED: Final = ("copy", "open")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt as its file gives it.

    Attributes
    ----------
    id, tag : str
        Name, and group of the report.
    text : str
        A user's turn; empty where `ids` are given.
    ids : tuple of int
        The whole prompt in token ids; empty where `text` is given.
    place : str
        ``FILE:LINE``, for messages.
    """

    id: str
    tag: str
    text: str = ""
    ids: tuple[int, ...] = ()
    place: str = ""


def prompt_file(name_or_path: str) -> Path:
    """A shipped set (``copy``, ``open``, with or without ``.jsonl``) or a file.

    Raises
    ------
    InputError
        When neither exists.
    """
    given = Path(name_or_path)
    if given.is_file():
        return given
    name = given.name.removesuffix(".jsonl")
    if name in SHIPPED and given.parent == Path():
        return Path(str(files("specplan"))) / "data" / "prompts" / f"{name}.jsonl"
    raise InputError(f"--prompts {name_or_path}: no such file; give a JSONL file or one of {', '.join(SHIPPED)}")


def read_prompts(path: Path, *, limit: int | None = None) -> Iterator[Prompt]:
    """Prompts of a JSONL file: fields ``prompt`` or ``prompt_token_ids``, and optional ``id`` and ``kind`` or ``tag``.

    Raises
    ------
    InputError
        Naming the file and line that cannot be read, or a file without prompts.
    """
    seen: set[str] = set()
    for number, line in read_lines(path, BrokenLog(fatal=True)):
        if limit is not None and len(seen) >= limit:
            break
        place = f"{path}:{number}"
        try:
            row = json_object(line, "prompt")
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        name, ids, text = str(row.get("id", f"{path.stem}-{number}")), row.get("prompt_token_ids"), row.get("prompt")
        if ids is not None and not (isinstance(ids, list) and all(type(i) is int and i >= 0 for i in ids)):
            raise InputError(f"{place}: prompt_token_ids must be a list of token ids")
        if not ids and not (isinstance(text, str) and text):
            raise InputError(f"{place}: expected a field prompt (text) or prompt_token_ids")
        if name in seen:
            raise InputError(f"{place}: id {name!r} stands twice")
        seen.add(name)
        tag = str(row.get("tag") or row.get("kind") or path.stem)
        yield Prompt(id=name, tag=tag, text="" if ids else str(text), ids=tuple(ids or ()), place=place)
    if not seen:
        raise InputError(f"{path} holds no prompts")
