"""Models at addresses: the text of a config, or a GGUF file's header by byte ranges; no weights, no code."""

from typing import Final
from urllib.parse import urlsplit

from specplan.errors import InputError
from specplan.files.documents import json_object
from specplan.files.ranges import fetch_bytes
from specplan.specs.gguf_model import import_gguf
from specplan.specs.huggingface.config import Imported, import_config

_MAX_CONFIG: Final = 8 * 2**20


def read_address(url: str, *, assume: str | None = None, allow_unread: bool = False) -> Imported:
    """Model in the ``config.json`` (any ``.json``) or ``.gguf`` at `url`.

    Raises
    ------
    InputError, UnsupportedError
        One line that says what is wrong.
    """
    folder, _, file = urlsplit(url).path.rpartition("/")
    if file.lower().endswith(".gguf"):
        if assume is not None:
            raise InputError(f"{url}: --assume applies to configs; a GGUF file states its architecture")
        return import_gguf(url)
    if not file.lower().endswith(".json"):
        raise InputError(f"{url}: the address of no model; expected a Hub page, a config.json or a .gguf file")
    name = folder.rpartition("/")[2] if file == "config.json" else file.removesuffix(".json")
    try:
        text = fetch_bytes(url, _MAX_CONFIG).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{url}: a binary file, expected a Hugging Face config (JSON)") from None
    config = json_object(text, url, nan="keep")
    return import_config(config, url, name=name, assume=assume, allow_unread=allow_unread)
