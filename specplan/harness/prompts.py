"""Prompts in a model's tokens."""

from pathlib import Path
from typing import Any

from specplan.harness.load import SMOLLM2, from_local, smollm2_gguf
from specplan.harness.loop import Request
from specplan.records.prompts import Prompt, read_prompts


def tokenizer_of(name_or_path: str | Path) -> Any:
    """The tokenizer beside a model's weights, through transformers."""
    from transformers import AutoTokenizer

    path = smollm2_gguf() if str(name_or_path) == SMOLLM2 else Path(name_or_path)
    return from_local(AutoTokenizer, path, "a tokenizer")


def _encoded(prompt: Prompt, tokenizer: Any) -> tuple[int, ...]:
    """Token ids of a prompt: its own ids, or its text as a user's turn of the model's chat template."""
    if prompt.ids:
        return prompt.ids
    if getattr(tokenizer, "chat_template", None):
        turn = [{"role": "user", "content": prompt.text}]
        encoded = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=True)
        return tuple(encoded["input_ids"])
    return tuple(tokenizer(prompt.text)["input_ids"])


def read_requests(path: Path, tokenizer: Any, *, limit: int | None = None) -> list[Request]:
    """Requests of a file of prompts (`specplan.records.prompts.read_prompts`)."""
    return [Request(id=p.id, prompt=_encoded(p, tokenizer), tag=p.tag) for p in read_prompts(path, limit=limit)]


def stop_ids_of(tokenizer: Any) -> frozenset[int]:
    """Tokens that end a reply: the tokenizer's end of sequence."""
    end = tokenizer.eos_token_id
    return frozenset() if end is None else frozenset([end] if isinstance(end, int) else end)
