"""Text to token ids, with a tokenizer file and, for chats, its template."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from specplan.errors import InputError, MissingExtraError
from specplan.files.documents import json_object
from specplan.files.reading import MAX_DOCUMENT_BYTES, is_there, read_text
from specplan.traces.requests import TokenArray

Message = dict[str, str]

_MAX_TEMPLATE_BYTES: Final = 2**20


class TextEncoder:
    """A ``tokenizer.json`` and, for chats, a template.

    Parameters
    ----------
    path : Path
        The file, or a folder that holds ``tokenizer.json`` (and, for chats, ``tokenizer_config.json`` or
        ``chat_template.jinja``).
    template : Path or None
        File with a chat template that replaces the folder's.

    Raises
    ------
    InputError
        If the tokenizer cannot be read.
    MissingExtraError
        Without the package tokenizers.
    """

    def __init__(self, path: Path, template: Path | None = None) -> None:
        try:
            import tokenizers
        except ModuleNotFoundError:
            raise MissingExtraError("tokenizers", extra="replay") from None
        file = path / "tokenizer.json" if is_there(path) and path.is_dir() else path
        text = read_text(file, "a tokenizer.json", MAX_DOCUMENT_BYTES)
        json_object(text, str(file))
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # its Rust half panics past Exception
            raise InputError(f"{file} is no tokenizer.json: {error}") from None
        self._tokenizer.no_truncation()  # files saved after training cut or pad every text to one length
        self._tokenizer.no_padding()
        self._path, self._given = path, template
        self._config = _read_config(path)
        self._template_text = self._find_template(template)
        self._template: Any = None

    def __str__(self) -> str:
        return str(self._path) if self._given is None else f"{self._path} with {self._given}"

    def __reduce__(self) -> tuple[Any, tuple[Path, Path | None]]:
        """Another process opens the files itself, once, instead of being sent the tokenizer with every batch."""
        return _opened, (self._path, self._given)

    def prompt(self, text: str) -> TokenArray:
        """Ids of a bare prompt, special tokens added as the tokenizer does."""
        return np.array(self._tokenizer.encode(text).ids, np.int32)

    def response(self, text: str) -> TokenArray:
        """Ids of a response, nothing added."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def chat(self, messages: list[Message]) -> TokenArray:
        """Ids of a chat up to where the assistant answers, by the template."""
        if self._template is None:
            self._template = self._compiled()
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._special_tokens()
            )
        except Exception as error:
            raise InputError(f"the chat template cannot render this chat: {error}") from None
        return self.response(text)

    def _find_template(self, given: Path | None) -> str | None:
        """Text of the template: the given file, the folder's own file, or the one in its config."""
        beside = self._path / "chat_template.jinja" if self._path.is_dir() else None
        for file in (given, beside if beside is not None and beside.exists() else None):
            if file is not None:
                return read_text(file, "a chat template", _MAX_TEMPLATE_BYTES)
        found = self._config.get("chat_template")
        if isinstance(found, list):
            named = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
            found = named.get("default")
        return found if isinstance(found, str) else None

    def _special_tokens(self) -> dict[str, str]:
        out = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = self._config.get(name)
            value = value.get("content") if isinstance(value, Mapping) else value
            out[name] = value if isinstance(value, str) else ""
        return out

    def _compiled(self) -> Any:
        if self._template_text is None:
            raise InputError(
                f"the requests are chats, and {self._path} has no chat template; give --chat-template FILE"
            )
        try:
            from jinja2.exceptions import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ModuleNotFoundError:
            raise MissingExtraError("jinja2", extra="replay") from None

        def fail(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = fail
        try:
            return environment.from_string(self._template_text)
        except TemplateError as error:
            raise InputError(f"the chat template is not valid: {error}") from None


@lru_cache(maxsize=4)
def _opened(path: Path, template: Path | None) -> TextEncoder:
    return TextEncoder(path, template)


def _read_config(path: Path) -> Mapping[str, Any]:
    file = path / "tokenizer_config.json" if path.is_dir() else path.with_name("tokenizer_config.json")
    if not file.exists():
        return {}
    return json_object(read_text(file, "the config of a tokenizer"), str(file))
