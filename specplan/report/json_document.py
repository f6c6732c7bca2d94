"""One JSON document per command: strict JSON (no NaN), keys in a stable order, nothing else on stdout."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

SCHEMA_VERSION: Final = 1


def plain(value: Any) -> Any:
    """JSON-ready copy of nested mappings and sequences; NaN and infinities become null, numpy scalars plain numbers.

    >>> plain({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return value
    if isinstance(value, Sequence):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def render(document: Mapping[str, Any]) -> str:
    """`document` as indented JSON text, with its ``schema_version`` first."""
    return text_of(plain({"schema_version": SCHEMA_VERSION, **document}))


def text_of(document: Mapping[str, Any]) -> str:
    """A document that is `plain` already, as indented JSON text."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def whole(value: float) -> float | int:
    """A count of bytes as an integer where it is one (quantised formats and routed experts give fractions).

    >>> whole(327680.0), whole(0.5)
    (327680, 0.5)
    """
    return int(value) if float(value).is_integer() else value
