"""YAML that users write: bounded in values and depth, each key once (JSON is read by `specplan.files.documents`)."""

from typing import Any, Final

import yaml

from specplan.errors import InputError

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader where it was built

MAX_NODES: Final = 200_000
"""References (``*name``) let a small YAML file stand for a huge document; more values than this are refused."""


class _Loader(_SafeLoader):  # type: ignore[misc] # the base is chosen at run time
    """Safe loader that refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key.value, str):
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    problem = f"key {key.value!r} appears twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _node_count(document: Any) -> int:
    count, stack = 0, [document]
    while stack and count <= MAX_NODES:
        node = stack.pop()
        count += 1
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return count


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """YAML mapping in `text`.

    >>> parse_yaml("a: 1", "example")
    {'a': 1}
    """
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise InputError(f"{where}: broken YAML: {error.problem}{at}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{where}: broken YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise InputError(f"{where}: broken YAML: nested too deeply") from None
    if _node_count(document) > MAX_NODES:
        raise InputError(f"{where}: broken YAML: stands for more than {MAX_NODES} values")
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected fields such as 'name: ...', got {type(document).__name__}")
    return document
