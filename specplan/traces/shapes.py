"""Shapes of recorded requests: which objects are prompts and responses, in the logs that people have.

Each JSON object is told by its own keys, so files may mix them:

- token ids under ``prompt_token_ids`` and ``output_token_ids`` (where a trace also has ``emitted_token_ids``, what the
  steps emitted before a stop cut it, under that), or under the names that the user gives;
- vLLM's request outputs (``prompt_token_ids`` with ``outputs[].token_ids``) and OpenAI-style responses with
  ``choices[].token_ids`` (asked for with ``return_token_ids``);
- SGLang's responses and request logs (``input_ids`` and ``output_ids``, also below ``obj`` and ``out``);
- text under ``prompt`` and ``response``, ``completion``, ``output``, ``generated_text``, ``text`` or ``choices[].text``
  (of several, the first);
- chats under ``messages`` (OpenAI) or ``conversations`` (ShareGPT), also below ``request`` and ``response``;
- several requests in one document, under ``requests``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from specplan.errors import InputError
from specplan.traces.requests import TokenArray, token_ids

Json = Mapping[str, Any]
Message = dict[str, str]

_ID_FIELDS: Final = (
    # what the engine's steps emitted runs past a stop, and the engine counts it; where it is recorded it comes first
    ("prompt_token_ids", "emitted_token_ids"),
    ("prompt_token_ids", "output_token_ids"),
    ("input_ids", "output_ids"),
)
_RESPONSE_TEXTS: Final = ("response", "completion", "output", "generated_text", "text")
_ROLES: Final = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}


class Encoder(Protocol):
    """Text to token ids, as `specplan.traces.text` provides it."""

    def prompt(self, text: str) -> TokenArray:
        """Ids of a bare prompt, special tokens added as the tokenizer does."""
        ...

    def response(self, text: str) -> TokenArray:
        """Ids of a response, nothing added."""
        ...

    def chat(self, messages: list[Message]) -> TokenArray:
        """Ids of a chat up to where the assistant answers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Where to look, when the user says so. Names may be paths such as ``response.body.ids``.

    Attributes
    ----------
    prompt, response : str or None
        Given both, only these are looked at; they hold token ids or text.
    tag, id : str or None
        Default: ``kind`` or ``tag``; ``id``, ``request_id``, ``rid`` or ``custom_id``.
    turns : str
        Which assistant messages of a chat are responses: ``last`` or ``all``.
    """

    prompt: str | None = None
    response: str | None = None
    tag: str | None = None
    id: str | None = None
    turns: str = "last"

    def __post_init__(self) -> None:
        if self.turns not in ("last", "all"):
            raise InputError(f"--turns {self.turns}: expected last or all")


class NoTokenizerError(InputError):
    """Text was found, and no tokenizer was given: an error of the call, not of the line."""


def _at(row: Json, path: str) -> Any:
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def tag_of(row: Json, fields: Fields) -> str:
    """Group of a request.

    >>> tag_of({"kind": "copy"}, Fields()), tag_of({"kind": None, "tag": "chat"}, Fields()), tag_of({}, Fields())
    ('copy', 'chat', '')
    """
    names = (fields.tag,) if fields.tag else ("kind", "tag")
    found = next((value for name in names if (value := _at(row, name)) is not None), None)
    return "" if found is None else str(found)


def id_of(row: Json, fields: Fields) -> str | None:
    """Id of a request, if it has one."""
    names = (fields.id,) if fields.id else ("id", "request_id", "rid", "custom_id")
    for name in names:
        if isinstance(value := _at(row, name), str | int) and not isinstance(value, bool):
            return str(value)
    return None


def pairs(row: Json, fields: Fields, encoder: Encoder | None) -> Iterator[tuple[TokenArray, TokenArray]]:
    """Prompt and response of an object; several for several answers or turns.

    Raises
    ------
    NoTokenizerError
        If the object holds text and `encoder` is None.
    InputError
        If no shape fits or a value has the wrong type.

    Examples
    --------
    >>> [(p.tolist(), r.tolist()) for p, r in pairs({"input_ids": [1, 2], "output_ids": [3]}, Fields(), None)]
    [([1, 2], [3])]
    """
    if fields.prompt or fields.response:
        yield _named_fields(row, fields, encoder)
    elif (found := _ids(row)) is not None:
        yield found
    elif isinstance(row.get("outputs"), list):
        prompt = token_ids(row.get("prompt_token_ids"), "prompt_token_ids")
        for output in row["outputs"]:
            yield prompt, token_ids(_key(output, "token_ids", "outputs"), "outputs[].token_ids")
    elif any(c.get("token_ids") is not None for c in _objects(row.get("choices"))):  # null where not asked for
        yield from _choices(row)
    elif (chat := _chat(row)) is not None:
        yield from _turns(chat, fields, encoder)
    else:
        yield _plain_text(row, encoder)


def _named_fields(row: Json, fields: Fields, encoder: Encoder | None) -> tuple[TokenArray, TokenArray]:
    prompt_name, response_name = fields.prompt or "prompt_token_ids", fields.response or "output_token_ids"
    prompt, response = _at(row, prompt_name), _at(row, response_name)
    for name, value in ((prompt_name, prompt), (response_name, response)):
        if value is None:
            raise InputError(f"no field {name!r}; found {_keys(row)}")
    return (
        _needed(encoder).prompt(prompt) if isinstance(prompt, str) else token_ids(prompt, prompt_name),
        _needed(encoder).response(response) if isinstance(response, str) else token_ids(response, response_name),
    )


def _ids(row: Json) -> tuple[TokenArray, TokenArray] | None:
    """Ids at the top, or SGLang's request log with the request under ``obj`` and the answer under ``out``."""
    request, answer = row, row
    if isinstance(row.get("obj"), Mapping) and isinstance(row.get("out"), Mapping):
        request, answer = row["obj"], row["out"]
    for prompt, response in _ID_FIELDS:
        if request.get(prompt) is not None and answer.get(response) is not None:
            return token_ids(request[prompt], prompt), token_ids(answer[response], response)
    return None


def _objects(values: object) -> list[Json]:
    return [v for v in values if isinstance(v, Mapping)] if isinstance(values, list) else []


def _choices(row: Json) -> Iterator[tuple[TokenArray, TokenArray]]:
    for choice in row["choices"]:
        ids = _key(choice, "token_ids", "choices")
        prompt = choice.get("prompt_token_ids") or row.get("prompt_token_ids")
        yield token_ids(prompt, "prompt_token_ids"), token_ids(ids, "choices[].token_ids")


def _key(item: object, key: str, where: str) -> object:
    if not isinstance(item, Mapping):
        raise InputError(f"an entry of {where} is not an object")
    return item.get(key)


def _keys(row: Json) -> str:
    return ", ".join(map(str, list(row)[:8]))[:160] or "nothing"


def _needed(encoder: Encoder | None) -> Encoder:
    if encoder is None:
        raise NoTokenizerError("the requests are text; give --tokenizer (a tokenizer.json or its folder)")
    return encoder


def _plain_text(row: Json, encoder: Encoder | None) -> tuple[TokenArray, TokenArray]:
    prompt = row.get("prompt")
    answers = [row.get(name) for name in _RESPONSE_TEXTS] + [c.get("text") for c in _objects(row.get("choices"))[:1]]
    answer = next((text for text in answers if isinstance(text, str)), None)
    if not isinstance(prompt, str) or answer is None:
        raise InputError(
            "no prompt_token_ids and output_token_ids, no prompt and response text, no messages; found "
            f"{_keys(row)} (name the fields with --prompt-field and --response-field)"
        )
    return _needed(encoder).prompt(prompt), _needed(encoder).response(answer)


def _chat(row: Json) -> list[Message] | None:
    """Messages of a chat, with the answer at the end where it lies beside them."""
    below = row.get("request")
    request = below if isinstance(below, Mapping) else row
    raw = next((request[k] for k in ("messages", "conversations") if isinstance(request.get(k), list)), None)
    if raw is None:
        return None
    messages = [_message(m) for m in raw]
    answer = row.get("response")
    body = answer.get("body", answer) if isinstance(answer, Mapping) else row
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        messages.append(_message(choices[0].get("message")))
    elif isinstance(answer, str):
        messages.append({"role": "assistant", "content": answer})
    return messages


def _message(raw: object) -> Message:
    if not isinstance(raw, Mapping):
        raise InputError("a message is not an object")
    role = raw.get("role", raw.get("from"))
    content = raw.get("content", raw.get("value"))
    if isinstance(content, list):
        parts = [p.get("text") if isinstance(p, Mapping) else None for p in content]
        content = "".join(p for p in parts if p is not None) if all(isinstance(p, str) for p in parts) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise InputError("a message needs a role and a text; other content cannot be replayed")
    return {"role": _ROLES.get(role, role), "content": content}


def _turns(messages: list[Message], fields: Fields, encoder: Encoder | None) -> Iterator[tuple[TokenArray, TokenArray]]:
    places = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0]
    if not places or (fields.turns == "last" and places[-1] != len(messages) - 1):
        raise InputError("the chat does not end with an assistant's answer")
    for i in places if fields.turns == "all" else places[-1:]:
        yield _needed(encoder).chat(messages[:i]), _needed(encoder).response(messages[i]["content"])
