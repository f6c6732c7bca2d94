"""Configs from the Hugging Face Hub, where ``huggingface_hub`` is installed and the network allows.

Only ``config.json`` (and ModelOpt's ``hf_quant_config.json``) and the headers of safetensors files, by byte ranges, are
fetched: no weights, no code.
"""

import contextlib
import re
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from specplan.errors import InputError, NotFoundError
from specplan.specs.safetensors import DTYPE_BITS, MAX_SHARDS, StoredTensor

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_hub_id(source: str) -> bool:
    """Whether ``owner/name`` of the Hub is meant, not a file or folder that is not there.

    >>> is_hub_id("meta-llama/Llama-3.1-8B"), is_hub_id("./llama/8b"), is_hub_id("llama/config.json")
    (True, False, False)
    """
    owner = Path(source.partition("/")[0])
    local = (".json", ".yaml", ".yml", ".gguf", ".safetensors", ".bin", ".txt")
    return _HUB_ID.fullmatch(source) is not None and not owner.exists() and not source.lower().endswith(local)


_PAGE: Final = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.\-]+/[\w.\-]+)(?:/(?:tree|blob|resolve|raw)/(.*))?/?"
)


def hub_id_of(source: str) -> str:
    """``owner/name`` of a page or a ``config.json`` of the Hub, the address of a GGUF file there; else as it is.

    >>> hub_id_of("https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json"), hub_id_of("x/config.json")
    ('Qwen/Qwen3-8B', 'x/config.json')
    >>> hub_id_of("https://huggingface.co/owner/name/blob/main/model.Q4_K_M.gguf")
    'https://huggingface.co/owner/name/resolve/main/model.Q4_K_M.gguf'
    """
    match = _PAGE.fullmatch(source.strip())
    if match is None:
        return source
    if (match[2] or "").lower().endswith(".gguf"):
        return f"https://huggingface.co/{match[1]}/resolve/{match[2]}"
    return match[1]


def _reachable(endpoint: str) -> bool:
    """Whether the hub answers; the client itself would retry for half a minute."""
    parts = urlsplit(endpoint)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 443), timeout=3):
            return True
    except OSError:
        return False


def download_config(model_id: str, otherwise: NotFoundError) -> Path:
    """Path of the ``config.json`` of `model_id`, from the local cache or the hub.

    Parameters
    ----------
    model_id : str
        ``owner/name``.
    otherwise : NotFoundError
        What to say where the hub cannot be asked; extended by what to download by hand.

    Raises
    ------
    NotFoundError, InputError
        When the hub cannot be reached, or holds no such model.
    """
    try:
        from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise NotFoundError(f"{otherwise}; to fetch it from the Hub: pip install huggingface_hub") from None
    cached: Any = try_to_load_from_cache(model_id, "config.json")
    if isinstance(cached, str):
        return Path(cached)
    page = f"{constants.ENDPOINT}/{model_id}"
    if constants.HF_HUB_OFFLINE:
        raise NotFoundError(
            f"{otherwise}; --offline or HF_HUB_OFFLINE forbids to ask the Hub: download config.json from {page} and "
            "give its path"
        )
    if not _reachable(constants.ENDPOINT):
        raise NotFoundError(
            f"{otherwise}; the Hub cannot be reached: download config.json from {page} and give its path"
        )
    try:
        found = Path(hf_hub_download(model_id, "config.json", etag_timeout=5))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(f"{model_id}: cannot be fetched from the Hub: {str(error).splitlines()[0][:120]}") from None
    with contextlib.suppress(HfHubHTTPError, LocalEntryNotFoundError, OSError):  # most models have none
        hf_hub_download(model_id, "hf_quant_config.json", etag_timeout=5)
    return found


def hub_headers(model_id: str) -> tuple[StoredTensor, ...] | None:
    """Tensors of ``owner/name``, by byte ranges of its safetensors files; None where it has none or nobody is asked.

    Raises
    ------
    InputError
        For a header that cannot be.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError

    if constants.HF_HUB_OFFLINE or not _reachable(constants.ENDPOINT):
        return None
    try:
        found = HfApi().get_safetensors_metadata(model_id)
    except (NotASafetensorsRepoError, HfHubHTTPError, OSError):
        return None
    except SafetensorsParsingError as error:
        raise InputError(f"{model_id}: {str(error).splitlines()[0][:200]}") from None
    if len(found.files_metadata) > MAX_SHARDS:
        raise InputError(f"{model_id}: names {len(found.files_metadata)} files, more than {MAX_SHARDS}")
    tensors = {}
    for file in found.files_metadata.values():
        for name, entry in file.tensors.items():
            size = entry.data_offsets[1] - entry.data_offsets[0]
            shape = tuple(entry.shape)
            bits = DTYPE_BITS.get(entry.dtype)
            tensor = StoredTensor(name=name, dtype=entry.dtype, shape=shape, n_bytes=size)
            if bits is None or min(shape, default=0) < 0 or size != -(-bits * tensor.size // 8) or name in tensors:
                raise InputError(f"{model_id}: tensor {name[:80]!r} of {entry.dtype} {shape} in {size} bytes cannot be")
            tensors[name] = tensor
    return tuple(tensors.values())
