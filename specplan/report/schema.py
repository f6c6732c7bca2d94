"""JSON Schemas of documents, read off documents: kinds of values, and the keys that are always there."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


NAMED: Final = frozenset(("components", "weights_by_component_bytes", "flops_per_s", "provenance", "settings", "flags"))
"""Objects whose keys are names of things, not of figures: any may come or lack."""


def schema_of(values: Sequence[Any], *, named: bool = False) -> dict[str, Any]:
    """The schema that all of some values satisfy.

    A key is required where every object has it; more keys may come. What is a number may be null (unknown, or not a
    number); a whole number is a number, as sizes need not be whole.

    >>> schema_of([{"a": 1, "b": "x"}, {"a": 2.5}])["required"]
    ['a']
    >>> schema_of([1, 2.5]), schema_of(["x"]), schema_of([])
    ({'type': ['number', 'null']}, {'type': 'string'}, {})
    """
    kinds = {kind for value in values if (kind := _kind(value)) != "null"}
    if not kinds:
        return {}
    has_null = "number" in kinds or any(value is None for value in values)
    types = sorted(kinds) + (["null"] if has_null else [])
    schema: dict[str, Any] = {"type": types if len(types) > 1 else types[0]}
    objects = [value for value in values if isinstance(value, Mapping)]
    if objects and named:
        schema["additionalProperties"] = schema_of([v for o in objects for v in o.values()], named=True)
    elif objects:
        names = list(dict.fromkeys(name for o in objects for name in o))
        schema["required"] = [name for name in names if all(name in o for o in objects)]
        schema["properties"] = {
            name: schema_of([o[name] for o in objects if name in o], named=name in NAMED) for name in names
        }
    lists = [value for value in values if isinstance(value, list)]
    if lists:
        schema["items"] = schema_of([item for value in lists for item in value])
    return schema


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "number" if isinstance(value, int | float) else "array" if isinstance(value, list) else "object"


def document_schema(command: str, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of a command's document."""
    schema = schema_of(list(documents))
    schema["properties"] |= {"command": {"const": command}, "schema_version": {"type": "integer"}}
    return {"$schema": DIALECT, "title": f"specplan {command} --json", **schema}
