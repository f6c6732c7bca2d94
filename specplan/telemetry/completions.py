"""One request to an OpenAI-compatible server, its stream timed from outside."""

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from specplan.errors import InputError
from specplan.files.documents import parse_json
from specplan.telemetry.fetch import fetch_text

_LONGEST: Final = 2**20
"""Bytes of one line of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One streamed answer.

    Attributes
    ----------
    prompt_tokens, tokens : int
        Of the prompt and of the answer, as the server counts them.
    first_tokens : int
        Tokens that the first chunk brought: 1, the prefill's, unless the server says otherwise.
    chunks : int
        Pieces in which the answer's tokens came: steps of the engine that emitted, while the reader keeps up.
    began_s, first_s, decode_s : float
        Clock at sending; seconds from then to the first chunk, and from the first to the last.
    last : mapping
        What the chunks say last beside their text: usage, and metrics of speculation where the server tells them.
    """

    prompt_tokens: int
    tokens: int
    first_tokens: int
    chunks: int
    began_s: float
    first_s: float
    decode_s: float
    last: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def root_of(url: str, option: str) -> str:
    """Scheme, host and port of a server's address; a path ``/v1`` is left out, another one is refused.

    >>> root_of("http://127.0.0.1:8000/v1/", "--server")
    'http://127.0.0.1:8000'
    """
    try:
        parts = urlsplit(url)
        named, _ = parts.hostname, parts.port
    except ValueError:
        named, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not named or parts.path.strip("/") not in ("", "v1") or parts.query:
        raise InputError(f"{option} {url}: expected the address of a server, such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}"


def served_model(root: str, timeout_s: float) -> str:
    """Name of the first model that a server lists."""
    text = fetch_text(f"{root}/v1/models", timeout_s)
    listed = parse_json(text, f"{root}/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict) or "id" not in models[0]:
        raise InputError(f"{root}/v1/models: expected a list of models; is this an OpenAI-compatible server?")
    return str(models[0]["id"])


def complete(root: str, path: str, body: Mapping[str, Any], *, key: str = "", timeout_s: float = 600.0) -> Answer:
    """Send one request and read its stream to the end.

    Parameters
    ----------
    root : str
        As `root_of` gives it.
    path : str
        ``/v1/completions`` or ``/v1/chat/completions``.
    body : mapping
        Of the request; ``stream`` and its options are added.
    key : str
        Sent as a bearer token where it is given.
    timeout_s : float
        Longest silence of the server, seconds.

    Raises
    ------
    InputError
        If nobody answers, the answer is an error, or the stream ends before it says how many tokens it had.
    """
    parts = urlsplit(root)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    assert parts.hostname is not None  # noqa: S101 - `root_of` saw to it
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    options = {"include_usage": True, "continuous_usage_stats": True}
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    sent = json.dumps({**body, "stream": True, "stream_options": options})
    began = time.perf_counter()
    try:
        connection.request("POST", path, sent, headers)
        response = connection.getresponse()
        if response.status != 200:
            said = " ".join(response.read(2000).decode("utf-8", "replace").split())[:300]
            raise InputError(f"{root}{path} answered {response.status} {response.reason}: {said}")
        return _timed(response, began, f"{root}{path}")
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{root}{path}: {error or type(error).__name__}") from None
    finally:
        connection.close()


def _timed(response: http.client.HTTPResponse, began: float, place: str) -> Answer:
    first = last = 0.0
    first_tokens = 1
    emitted = chunks = 0
    told: dict[str, Any] = {}
    while line := response.readline(_LONGEST):
        now = time.perf_counter()
        if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
            continue
        chunk = parse_json(data, f"{place}: a chunk of the stream", nan="unknown")
        if not isinstance(chunk, dict) or "error" in chunk:
            raise InputError(f"{place} broke off: {' '.join(str(chunk).split())[:300]}")
        usage = chunk.get("usage")
        so_far = int(usage.get("completion_tokens") or 0) if isinstance(usage, dict) else emitted + _text_of(chunk)
        if so_far > emitted:
            emitted, chunks = so_far, chunks + 1
        if _text_of(chunk):
            if not first:
                first, first_tokens = now, max(so_far, 1)
            last = now
        elif first and chunk.get("choices"):
            last = now  # a token whose text is held back, or the end
        told.update({name: value for name, value in chunk.items() if name != "choices" and value is not None})
    usage = told.get("usage")
    counts = [usage.get(n) if isinstance(usage, dict) else None for n in ("prompt_tokens", "completion_tokens")]
    if not first or not all(type(n) is int and n >= 0 for n in counts):
        raise InputError(f"{place}: the stream ended without text or without usage; expected an OpenAI-compatible one")
    return Answer(
        prompt_tokens=int(counts[0] or 0),
        tokens=int(counts[1] or 0),
        first_tokens=first_tokens,
        chunks=chunks,
        began_s=began,
        first_s=first - began,
        decode_s=last - first,
        last=MappingProxyType(told),
    )


def _text_of(chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk brings text: of a completion, or of a message or its reasoning."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return False
    delta = choices[0].get("delta")
    told = {name: v for name, v in delta.items() if name != "role"} if isinstance(delta, Mapping) else {}
    return any(isinstance(text, str) and text for text in (choices[0].get("text"), *told.values()))
