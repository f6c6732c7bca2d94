"""Prompts of a measurement: JSON lines of text or token ids, two sets of which are shipped."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError
from specplan.files.documents import json_object
from specplan.files.lines import BrokenLog, read_lines
from specplan.harness.load import SMOLLM2, from_local, smollm2_gguf
from specplan.harness.loop import Request

SHIPPED: Final = ("copy", "open")


def tokenizer_of(name_or_path: str | Path) -> Any:
    """The tokenizer beside a model's weights, through transformers."""
    from transformers import AutoTokenizer

    path = smollm2_gguf() if str(name_or_path) == SMOLLM2 else Path(name_or_path)
    return from_local(AutoTokenizer, path, "a tokenizer")


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


def _encoded(row: dict[str, Any], tokenizer: Any) -> list[int]:
    """Token ids of one line: its own ids, or its text as a user's turn of the model's chat template."""
    ids = row.get("prompt_token_ids")
    if ids is not None:
        if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise InputError("prompt_token_ids must be a list of token ids")
        return list(ids)
    text = row.get("prompt")
    if not isinstance(text, str) or not text:
        raise InputError("expected a field prompt (text) or prompt_token_ids")
    if getattr(tokenizer, "chat_template", None):
        turn = [{"role": "user", "content": text}]
        encoded = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=True)
        return list(encoded["input_ids"])
    return list(tokenizer(text)["input_ids"])


def read_prompts(path: Path, tokenizer: Any, *, limit: int | None = None) -> list[Request]:
    """Requests of a JSONL file: fields ``prompt`` or ``prompt_token_ids``, and optional ``id`` and ``kind`` or ``tag``.

    Raises
    ------
    InputError
        Naming the file and line that cannot be read, or a file without prompts.
    """
    found: list[Request] = []
    seen: set[str] = set()
    for number, line in read_lines(path, BrokenLog(fatal=True)):
        if limit is not None and len(found) >= limit:
            break
        try:
            row = json_object(line, "prompt")
            ids = _encoded(row, tokenizer)
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from error
        name = str(row.get("id", f"{path.stem}-{number}"))
        if name in seen:
            raise InputError(f"{path}:{number}: id {name!r} stands twice")
        seen.add(name)
        found.append(Request(id=name, prompt=tuple(ids), tag=str(row.get("tag") or row.get("kind") or path.stem)))
    if not found:
        raise InputError(f"{path} holds no prompts")
    return found


def stop_ids_of(tokenizer: Any) -> frozenset[int]:
    """Tokens that end a reply: the tokenizer's end of sequence."""
    end = tokenizer.eos_token_id
    return frozenset() if end is None else frozenset([end] if isinstance(end, int) else end)


def longest(requests: Sequence[Request]) -> int:
    """Longest prompt, tokens."""
    return max(len(r.prompt) for r in requests)
