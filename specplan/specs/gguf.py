"""Headers of GGUF files: metadata and stored tensors, without reading any weight.

All lengths are checked against the file before anything is read, and arrays of the metadata (a tokenizer's words) are
passed over, not kept.

Source: the GGUF specification, versions 2 and 3.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.files.reading import open_file
from specplan.specs.safetensors import StoredTensor
from specplan.values.formats import lookup

MAX_TENSORS: Final = 1_000_000
MAX_KEYS: Final = 100_000
MAX_STRING: Final = 2**24
MAX_KEPT_ARRAY: Final = 4096
MAX_DIMENSIONS: Final = 8
MAX_ELEMENTS: Final = 2**50

_STRING, _ARRAY = 8, 9
_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}

# ggml type number -> its name; names of block formats are those of `specplan.values.formats`.
TYPES: Final[dict[int, str]] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
_INTEGER_BITS: Final = {"I8": 8, "I16": 16, "I32": 32, "I64": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a GGUF file says before its weights.

    Attributes
    ----------
    metadata : dict
        Scalars, texts and short arrays by key; of long arrays the length (key + ``.length``).
    tensors : tuple of StoredTensor
    places : dict
        First byte of each tensor in the file, by name.
    """

    metadata: dict[str, Any]
    tensors: tuple[StoredTensor, ...]
    places: dict[str, int]


class _Reader:
    """Cursor over the file; every step is checked against its end."""

    def __init__(self, data: Any, where: str) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self.where = where

    def take(self, n: int) -> int:
        """Position before moving on by `n` bytes."""
        if n > self.end - self.at:
            raise InputError(f"{self.where}: truncated GGUF: {n} bytes expected at byte {self.at} of {self.end}")
        before = self.at
        self.at += n
        return before

    def number(self, form: str) -> Any:
        size = struct.calcsize(form)
        at = self.take(size)
        return struct.unpack(form, self.data[at : at + size])[0]

    def text(self, limit: int = MAX_STRING) -> str:
        n = self.number("<Q")
        if n > limit:
            raise InputError(f"{self.where}: a text of {n} bytes in the GGUF header, more than {limit}")
        at = self.take(n)
        return bytes(self.data[at : at + n]).decode("utf-8", "replace")

    def skip_texts(self, count: int) -> None:
        if count > (self.end - self.at) // 8:
            raise InputError(f"{self.where}: an array of {count} texts does not fit into the file")
        for _ in range(count):
            self.take(self.number("<Q"))

    def array(self, depth: int = 0) -> tuple[int, list[Any] | None]:
        """Length of an array, and its values if it is short and flat."""
        kind, count = self.number("<I"), self.number("<Q")
        if kind in _SCALARS:
            size = struct.calcsize(_SCALARS[kind])
            if count > MAX_KEPT_ARRAY:
                if count > (self.end - self.at) // size:
                    raise InputError(f"{self.where}: an array of {count} numbers does not fit into the file")
                self.take(count * size)
                return count, None
            return count, [self.number(_SCALARS[kind]) for _ in range(count)]
        if kind == _STRING:
            self.skip_texts(count)
            return count, None
        if kind == _ARRAY and depth < 2:
            if count > (self.end - self.at) // 12:
                raise InputError(f"{self.where}: an array of {count} arrays does not fit into the file")
            for _ in range(count):
                self.array(depth + 1)
            return count, None
        raise InputError(f"{self.where}: unknown GGUF value type {kind} at byte {self.at}")


def read_gguf(path: Path) -> GgufHeader:
    """Metadata and tensors of a GGUF file.

    Raises
    ------
    InputError
        When the file is not GGUF, is truncated, or claims what cannot be.
    UnsupportedError
        For a version or tensor type that is not known.
    """
    try:
        with open_file(path, "a GGUF file") as file:
            if file.read(4) != b"GGUF":
                raise InputError(f"{path}: not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse_gguf(data, str(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def parse_gguf(data: Any, where: str) -> GgufHeader:
    """Header at the start of `data`, which gives the slices of the whole file and its length."""
    reader = _Reader(data, where)
    if bytes(data[:4]) != b"GGUF":
        raise InputError(f"{where}: not a GGUF file")
    reader.take(4)
    version = reader.number("<I")
    if version not in (2, 3):
        raise UnsupportedError(f"{where}: GGUF version {version} cannot be read (2 and 3 can)")
    n_tensors, n_keys = reader.number("<Q"), reader.number("<Q")
    if n_tensors > MAX_TENSORS or n_keys > MAX_KEYS:
        raise InputError(
            f"{where}: claims {n_tensors} tensors and {n_keys} keys, more than {MAX_TENSORS} and {MAX_KEYS}"
        )
    metadata = _metadata(reader, n_keys)
    tensors: dict[str, StoredTensor] = {}
    spans = []
    for _ in range(n_tensors):
        tensor, offset = _tensor(reader)
        if tensor.name in tensors:
            raise InputError(f"{where}: tensor {tensor.name[:80]!r} appears twice")
        tensors[tensor.name] = tensor
        spans.append((offset, tensor))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
        raise InputError(f"{where}: general.alignment must be a small whole number, got {str(alignment)[:40]!r}")
    data_at = -(-reader.at // alignment) * alignment
    _check_spans(spans, data_at, reader.end, where)
    places = {tensor.name: data_at + offset for offset, tensor in spans}
    return GgufHeader(metadata=metadata, tensors=tuple(tensors.values()), places=places)


def _metadata(reader: _Reader, n_keys: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(n_keys):
        key, kind = reader.text(2**16), reader.number("<I")
        if key in found:
            raise InputError(f"{reader.where}: key {key[:80]!r} appears twice")
        if kind in _SCALARS:
            found[key] = reader.number(_SCALARS[kind])
        elif kind == _STRING:
            found[key] = reader.text()
        elif kind == _ARRAY:
            length, values = reader.array()
            found[f"{key}.length"] = length
            if values is not None:
                found[key] = values
        else:
            raise InputError(f"{reader.where}: unknown GGUF value type {kind} of key {key[:80]!r}")
    return found


def _tensor(reader: _Reader) -> tuple[StoredTensor, int]:
    name = reader.text(2**16)
    n_dims = reader.number("<I")
    if n_dims > MAX_DIMENSIONS:
        raise InputError(f"{reader.where}: tensor {name[:80]!r} has {n_dims} dimensions, more than {MAX_DIMENSIONS}")
    shape = tuple(reader.number("<Q") for _ in range(n_dims))
    kind, offset = reader.number("<I"), reader.number("<Q")
    dtype = TYPES.get(kind)
    if dtype is None:
        raise UnsupportedError(f"{reader.where}: tensor {name[:80]!r} has ggml type {kind}, which is not known")
    size = 1
    for side in shape:
        size *= side
        if size > MAX_ELEMENTS:
            raise InputError(f"{reader.where}: tensor {name[:80]!r} claims more than {MAX_ELEMENTS} numbers")
    bits = _INTEGER_BITS.get(dtype) or lookup(dtype.lower()).bits
    n_bytes = round(size * bits / 8)
    return StoredTensor(name=name, dtype=dtype, shape=shape, n_bytes=n_bytes), offset


def _check_spans(spans: list[tuple[int, StoredTensor]], data_at: int, end: int, where: str) -> None:
    at = 0
    for offset, tensor in sorted(spans, key=lambda span: span[0]):
        if offset < at:
            raise InputError(f"{where}: tensor {tensor.name[:80]!r} overlaps the one before it")
        at = offset + tensor.n_bytes
    if at > max(end - data_at, 0):
        raise InputError(
            f"{where}: truncated: the header describes {at} bytes of weights, {max(end - data_at, 0)} follow"
        )
