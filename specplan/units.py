"""Parse and format quantities with units: ``"79.65 GiB"``, ``"3350 GB/s"``, ``"989 TFLOP/s"``.

SI prefixes are decimal (kB, MB, GB, TB), binary prefixes are binary (KiB, MiB, GiB, TiB). Inside specplan a quantity is
a float in the base unit: bytes, bytes per second, FLOP per second, seconds, watts.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

from specplan.errors import InputError

_DECIMAL: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIME: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

UNITS: Final[dict[str, dict[str, float]]] = {
    "memory": {p + "B": f for p, f in (_DECIMAL | _BINARY).items()},
    "bandwidth": {p + "B/s": f for p, f in (_DECIMAL | _BINARY).items()},
    "compute": {p + "FLOP/s": f for p, f in _DECIMAL.items()} | {p + "OP/s": f for p, f in _DECIMAL.items()},
    "time": dict(_TIME),
    "power": {"W": 1.0, "kW": 1e3},
}
"""Dimension -> unit -> factor to the base unit."""

_EXAMPLE: Final = {
    "memory": "79.65 GiB",
    "bandwidth": "3350 GB/s",
    "compute": "989 TFLOP/s",
    "time": "4.5 us",
    "power": "700 W",
}
_QUANTITY: Final = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*")

LARGEST_COUNT: Final = 10**9
"""Counts of tokens, requests or drafted tokens beyond this are refused as slips; products of two stay exact."""

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30


def parse(text: object, dimension: str) -> float:
    """Value of a quantity with a unit, in the base unit of its dimension.

    Parameters
    ----------
    text : str
        A number and a unit, such as ``"79.65 GiB"``.
    dimension : str
        One of ``memory`` (bytes), ``bandwidth`` (bytes/s), ``compute`` (FLOP/s), ``time`` (s), ``power`` (W).

    Raises
    ------
    InputError
        For a bare number, an unknown unit, or a value that is not finite and at least 0.

    Examples
    --------
    >>> parse("3350 GB/s", "bandwidth")
    3350000000000.0
    >>> parse("2GiB", "memory") / 2**30
    2.0
    >>> parse(80, "memory")
    Traceback (most recent call last):
    specplan.errors.InputError: 80 has no unit; write a memory quantity such as "79.65 GiB"
    """
    units = UNITS[dimension]
    example = _EXAMPLE[dimension]
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise InputError(f'expected a {dimension} quantity such as "{example}", got {text!r}')
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or not match[2]:
        is_number = match is not None or isinstance(text, (int, float))
        problem = f"{text} has no unit" if is_number else f"{text!r} is not a number with a unit"
        raise InputError(f'{problem}; write a {dimension} quantity such as "{example}"')
    unit = match[2]
    if unit not in units:
        raise InputError(f"{text!r}: unknown {dimension} unit {unit!r}; one of {', '.join(units)}")
    value = float(match[1].replace("_", "")) * units[unit]
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{text!r}: a {dimension} must be finite and at least 0")
    return value


def parse_count(text: object) -> int:
    """Whole number with an optional binary suffix as engines write context lengths: ``8192``, ``32k`` (32768), ``1M``.

    Raises
    ------
    InputError
        For what is not a whole number, or is above `LARGEST_COUNT`.

    >>> parse_count("32k"), parse_count("8192"), parse_count("1M")
    (32768, 8192, 1048576)
    """
    match = re.fullmatch(r"\s*(\d[\d_]*)\s*([kKmM]?)\s*", str(text))
    if match is None:
        raise InputError(f"{text!r} is not a whole number of tokens, such as 8192 or 32k")
    digits = match[1].replace("_", "").lstrip("0") or "0"
    factor = {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]
    if len(digits) > len(str(LARGEST_COUNT)) or int(digits) * factor > LARGEST_COUNT:
        raise InputError(f"{str(text).strip()[:24]!r} is too large a count; at most {LARGEST_COUNT:,}")
    return int(digits) * factor


def read_number(text: str, where: str, low: float = -math.inf, high: float = math.inf) -> float:
    """One finite number within bounds.

    >>> read_number("0.7", "--alpha", 0, 1)
    0.7
    """
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{where} {text.strip()!r} is not a number") from None
    if not math.isfinite(number) or not low <= number <= high:
        bounds = f"be at least {low:g}" if high == math.inf else f"lie in [{low:g}, {high:g}]"
        raise InputError(f"{where} {text.strip()} must be finite and {bounds}")
    return number


def read_whole(text: str, where: str) -> int:
    """One whole number of at least 1.

    >>> read_whole("3", "k")
    3
    """
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > 6 or int(digits) < 1:
        raise InputError(f"{where} {digits!r} must be a whole number of at least 1")
    return int(digits)


def read_numbers(texts: Iterable[str], where: str, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """Numbers of repeated or comma-separated values of an option.

    >>> read_numbers(["0.5,0.7", "0.9"], "--alpha", 0, 1)
    [0.5, 0.7, 0.9]
    """
    return [read_number(part, where, low, high) for text in texts for part in text.split(",")]


def format_gib(n_bytes: float, digits: int = 2) -> str:
    """Bytes as GiB.

    >>> format_gib(2**31)
    '2.00 GiB'
    """
    return f"{n_bytes / GIB:,.{digits}f} GiB"


def format_bytes(n_bytes: float) -> str:
    """Bytes in the binary unit that keeps the number between 1 and 1024.

    >>> format_bytes(327680), format_bytes(512), format_bytes(3 * 2**30)
    ('320 KiB', '512 B', '3 GiB')
    """
    value, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"


def format_seconds(seconds: float) -> str:
    """Time in the unit that keeps the number between 1 and 1000.

    >>> format_seconds(0.010373), format_seconds(3e-6)
    ('10.373 ms', '3.000 us')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3f} {unit}"
    return f"{seconds / 1e-9:.3f} ns"


def format_count(n: float) -> str:
    """Count with a decimal suffix.

    >>> format_count(69_501_714_432), format_count(1_235_746_816), format_count(135e6)
    ('69.502 B', '1.236 B', '135.0 M')
    """
    if abs(n) >= 1e9:
        return f"{n / 1e9:,.3f} B"
    if abs(n) >= 1e6:
        return f"{n / 1e6:.1f} M"
    return f"{n:,.0f}"
