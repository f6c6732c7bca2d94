"""Headers of safetensors files: names, dtypes and shapes of stored tensors, without reading any weight.

A file starts with the header's length (8 bytes, little-endian) and the header (JSON: name -> dtype, shape, offsets).
Everything is checked before it is believed: the length against the file and a limit, every offset against the size that
dtype and shape imply, overlaps, duplicate names. Nothing but this JSON is interpreted.
"""

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError
from specplan.files.documents import json_object
from specplan.files.reading import open_file, read_text

MAX_HEADER_BYTES: Final = 32 * 2**20
"""A hundred thousand tensors need a third of this."""

MAX_TENSOR_BYTES: Final = 2**50
MAX_DIMENSIONS: Final = 16
MAX_SHARDS: Final = 10_000

# Bits per stored number. F4 and the scales of microscaling formats are packed or single bytes.
DTYPE_BITS: Final[dict[str, int]] = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "C64": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor as a checkpoint stores it.

    Attributes
    ----------
    name : str
    dtype : str
        The file's own word for it (``BF16``, ``Q4_K``).
    shape : tuple of int
    n_bytes : int
        Stored bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def size(self) -> int:
        """Stored numbers."""
        return math.prod(self.shape)


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_TENSOR_BYTES


def _problem(entry: Any) -> str:
    """What is wrong with an entry that `_tensor` could not take."""
    if not isinstance(entry, dict):
        return f"expected dtype, shape and data_offsets, got {str(entry)[:40]!r}"
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    whole = f"must be a whole number from 0 to {MAX_TENSOR_BYTES}"
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return f"unknown dtype {str(dtype)[:40]!r}; one of {', '.join(DTYPE_BITS)}"
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        return f"shape must be a list of at most {MAX_DIMENSIONS} sizes, got {str(shape)[:40]!r}"
    if (side := next((x for x in shape if not _is_whole(x)), None)) is not None or None in shape:
        return f"each side of the shape {whole}, got {str(side)[:40]!r}"
    if not isinstance(offsets, list) or len(offsets) != 2:
        return f"data_offsets must be [begin, end], got {str(offsets)[:40]!r}"
    if not all(map(_is_whole, offsets)):
        return f"each data offset {whole}, got {str(offsets)[:60]!r}"
    bits = DTYPE_BITS[dtype] * math.prod(shape)
    if bits > 8 * MAX_TENSOR_BYTES:
        return f"claims more than {MAX_TENSOR_BYTES >> 40} TiB"
    return f"{dtype} {shape} takes {-(-bits // 8)} bytes, but its offsets span {offsets[1] - offsets[0]}"


def _tensor(name: str, entry: Any) -> tuple[StoredTensor, int, int] | None:
    """Entry of a header with its offsets; None if anything about it is wrong."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        bits = DTYPE_BITS[dtype]
    except (TypeError, KeyError, ValueError):
        return None
    if not (_is_whole(begin) and _is_whole(end) and type(shape) is list and len(shape) <= MAX_DIMENSIONS):
        return None
    if not all(map(_is_whole, shape)):
        return None
    n_bytes = -(-bits * math.prod(shape) // 8)
    if end - begin != n_bytes:
        return None
    return StoredTensor(name=name, dtype=dtype, shape=tuple(shape), n_bytes=n_bytes), begin, end


def _check_layout(spans: list[tuple[int, int, str]], data_bytes: int, where: str) -> None:
    """Tensors lie one behind the other without overlap, and inside the file."""
    at = 0
    for begin, end, name in sorted(spans):
        if begin < at:
            raise InputError(f"{where}: tensor {name[:80]!r} overlaps the one before it (at byte {begin} of the data)")
        at = max(at, end)
    if at > data_bytes:
        raise InputError(f"{where}: truncated: the header describes {at} bytes of data, the file holds {data_bytes}")


def read_safetensors(path: Path) -> tuple[StoredTensor, ...]:
    """Tensors of one safetensors file, from its header.

    Raises
    ------
    InputError
        When the file is not safetensors, is truncated, or claims what cannot be.
    """
    where = str(path)
    try:
        with open_file(path, "a safetensors file") as file:
            n_file = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                raise InputError(f"{where}: not a safetensors file: only {len(prefix)} bytes")
            (length,) = struct.unpack("<Q", prefix)
            if length > MAX_HEADER_BYTES:
                raise InputError(f"{where}: claims a header of {length} bytes, more than {MAX_HEADER_BYTES >> 20} MiB")
            if length > n_file - 8:
                raise InputError(f"{where}: truncated: claims a header of {length} bytes, the file has {n_file}")
            raw = file.read(length)
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror or error}") from None
    return parse_header(raw, n_file - 8 - length, where)


def parse_header(raw: bytes, data_bytes: int, where: str) -> tuple[StoredTensor, ...]:
    """Tensors that a header describes; `data_bytes` follow it in the file.

    Examples
    --------
    >>> parse_header(b'{"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}', 12, "x")[0].n_bytes
    12
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{where}: not a safetensors file: its header is not text") from None
    if not text.startswith("{"):
        raise InputError(f"{where}: not a safetensors file: its header does not start with '{{'")
    header = json_object(text, where)
    header.pop("__metadata__", None)
    found = []
    spans = []
    for name, entry in header.items():
        checked = _tensor(name, entry)
        if checked is None:
            raise InputError(f"{where}: tensor {name[:80]!r}: {_problem(entry)}")
        tensor, begin, end = checked
        found.append(tensor)
        spans.append((begin, end, name))
    _check_layout(spans, data_bytes, where)
    return tuple(found)


def _shard_names(index: Mapping[str, Any], where: str) -> dict[str, list[str]]:
    """File name -> tensors that the index expects in it."""
    weights = index.get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise InputError(f"{where}: field 'weight_map' is missing; an index maps tensors to files")
    shards: dict[str, list[str]] = {}
    for tensor, file in weights.items():
        if not isinstance(file, str) or not file or "/" in file or "\\" in file or file.startswith("."):
            raise InputError(
                f"{where}: tensor {tensor[:80]!r} is mapped to {str(file)[:60]!r}, not a file beside the index"
            )
        shards.setdefault(file, []).append(tensor)
    if len(shards) > MAX_SHARDS:
        raise InputError(f"{where}: names {len(shards)} files, more than {MAX_SHARDS}")
    return shards


def read_checkpoint(folder: Path) -> tuple[StoredTensor, ...]:
    """Tensors of the safetensors files of a checkpoint folder: those of its index, or of its only file.

    Raises
    ------
    InputError
        When there is none, a file is missing or broken, or a tensor is in two files or not in the one the index says.
    """
    index_path = folder / "model.safetensors.index.json"
    if index_path.is_file():
        shards = _shard_names(
            json_object(read_text(index_path, "a checkpoint index (JSON)"), str(index_path)), str(index_path)
        )
        return _collect((folder / name, expected) for name, expected in sorted(shards.items()))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder}: no safetensors file in this folder")
    if (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    if len(files) > MAX_SHARDS:
        raise InputError(f"{folder}: {len(files)} safetensors files, more than {MAX_SHARDS}")
    return _collect((path, []) for path in files)


def _collect(shards: Iterable[tuple[Path, list[str]]]) -> tuple[StoredTensor, ...]:
    found: dict[str, StoredTensor] = {}
    for path, expected in shards:
        here = {tensor.name: tensor for tensor in read_safetensors(path)}
        missing = next((name for name in expected if name not in here), None)
        if missing is not None:
            raise InputError(f"{path}: does not hold tensor {missing[:80]!r}, which the index expects in it")
        twice = next((name for name in here if name in found), None)
        if twice is not None:
            raise InputError(f"{path}: tensor {twice[:80]!r} is in an earlier file too")
        found |= here
    return tuple(found.values())


def header_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Header of a file that would hold `tensors` (name -> dtype, shape), for tests and shape-only checkpoints.

    >>> header_bytes({"w": ("BF16", (2,))})
    b'{"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}'
    """
    entries = {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        n = DTYPE_BITS[dtype]
        for side in shape:
            n *= side
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + -(-n // 8)]}
        at += -(-n // 8)
    return json.dumps(entries).encode()
