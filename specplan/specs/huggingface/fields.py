"""Fields of a Hugging Face config: read under any of their spellings, checked, with each assumption noted.

A config that leaves a field out means the default of its class. Those defaults and the spellings are facts recorded in
``config_defaults.json`` (from transformers; nothing here imports it). A top-level config must state its core sizes
itself; a text config nested in a wrapper may leave them out, as published wrappers do.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError

_REQUIRED: Final = object()
_ABSENT: Final = object()

CORE: Final = frozenset(
    {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "ffn_dim",
        "moe_intermediate_size",
        "vocab_size",
    }
)
"""Sizes that a top-level config states itself; nobody means a default of them."""

MAX_SIZE: Final = 2**40
"""No dimension of a model is larger."""

MAX_LAYERS: Final = 10_000


@lru_cache(maxsize=1)
def recorded() -> Mapping[str, Any]:
    """The recorded facts.

    ``types`` (defaults and spellings), ``causal_lm`` (types with a causal language model), ``wrappers`` (multimodal
    type -> type of its text config), ``open_wrappers`` (multimodal types whose text config may be of any type).
    """
    found: dict[str, Any] = json.loads((Path(__file__).parent / "config_defaults.json").read_text("utf-8"))
    return found


@lru_cache(maxsize=1)
def served_classes() -> Mapping[str, str]:
    """Class names of vLLM's text registry -> the ``model_type`` whose row counts or refuses them."""
    found: dict[str, str] = json.loads((Path(__file__).parent / "served_classes.json").read_text("utf-8"))["classes"]
    return found


class Block(dict[str, Any]):
    """A nested block of fields that remembers which of them were asked for."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Value under `name`, or `default`."""
        self.used.add(name)
        return super().get(name, default)


class Fields:
    """Checked access to one config.

    Parameters
    ----------
    config : mapping
        The config, already parsed.
    model_type : str
        Whose defaults and spellings apply.
    where : str
        File (and nested field) named in errors.
    nested : bool
        Whether class defaults may stand in for core sizes.
    defaults : mapping
        Defaults of types that transformers does not know; they win over the recorded ones.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        model_type: str,
        where: str,
        *,
        nested: bool = False,
        defaults: Mapping[str, Any] | None = None,
        like: str | None = None,
    ) -> None:
        facts = recorded()["types"].get(like or model_type, {"defaults": {}, "renamed": {}})
        self.config = config
        self.model_type = model_type
        self.where = where
        self.nested = nested
        self.defaults: dict[str, Any] = {**facts["defaults"], **(defaults or {})}
        self.assumptions: list[str] = []
        self.read: dict[str, Any] = {}  # name -> value, of every field that was asked for and given
        self.blocks: dict[str, Block] = {}  # nested blocks that were asked for
        # Fields of the class against whose modules the row is tested: one that is not read changes no count.
        self.names = frozenset(facts["defaults"]) | frozenset(facts["renamed"])
        self.names_inside: frozenset[str] = frozenset()  # the same for fields of nested blocks
        self._names: dict[str, tuple[str, ...]] = {}
        for alias, name in facts["renamed"].items():
            self._names[name] = (*self._names.get(name, ()), alias)
            self._names[alias] = (*self._names.get(alias, ()), name)

    def _given(self, name: str) -> Any:
        """Value in the config under `name` or another spelling; null counts as given only if no spelling has more."""
        found = _ABSENT
        for spelling in (name, *self._names.get(name, ())):
            value = self.config.get(spelling, _ABSENT)
            if value is not _ABSENT and value is not None:
                self.read[spelling] = value
                return value
            if value is None:
                found = None
        return found

    def _default(self, name: str) -> Any:
        for spelling in (name, *self._names.get(name, ())):
            if spelling in self.defaults:
                return self.defaults[spelling]
        return _ABSENT

    def raw(self, name: str, default: Any = _REQUIRED) -> Any:
        """Value of any type; a null or absent one gives `default`, else the class's default, else an error.

        An explicit null means "derive it": the class's default does not replace it.
        """
        value = self._given(name)
        if value is _ABSENT:
            value = self._default(name)
            if value is _ABSENT or value is None:
                value = default
            elif name in CORE and not self.nested:
                value = _REQUIRED if default is _REQUIRED else default
            elif not isinstance(value, bool) and isinstance(value, int) and value != default:
                self.assume(f"{name} = {value} (not in the config; the default of {self.model_type})")
        elif value is None:
            if default is _REQUIRED:
                raise InputError(f"{self.where}: field {name!r} is null, and the counts need it")
            value = default
        if value is _REQUIRED:
            raise InputError(f"{self.where}: field {name!r} is missing")
        return value

    def assume(self, text: str) -> None:
        """Note something that the config does not say."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    def has(self, name: str) -> bool:
        """Whether the config itself gives `name` a value."""
        return self._given(name) not in (_ABSENT, None)

    def count(self, name: str, default: Any = _REQUIRED, *, least: int = 1) -> Any:
        """Whole number of at least `least`; `default` (of any type) where it is absent or null."""
        value = self.raw(name, default)
        if value is default and not (isinstance(value, int) and not isinstance(value, bool)):
            return value
        return self.whole(value, name, least)

    def whole(self, value: Any, name: str, least: int = 1) -> int:
        """`value` if it is a whole number from `least` to `MAX_SIZE`."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{self.where}: field {name!r} must be a whole number, got {str(value)[:60]!r}")
        if not least <= value <= MAX_SIZE:
            raise InputError(f"{self.where}: field {name!r} must be from {least} to {MAX_SIZE}, got {value}")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        """Finite number above 0."""
        value = self.raw(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise InputError(f"{self.where}: field {name!r} must be a number above 0, got {str(value)[:60]!r}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.raw(name, default)
        if not isinstance(value, bool):
            if value in (0, 1):
                return bool(value)
            raise InputError(f"{self.where}: field {name!r} must be true or false, got {str(value)[:60]!r}")
        return value

    def word(self, name: str, default: Any = _REQUIRED) -> Any:
        """Text."""
        value = self.raw(name, default)
        if value is not default and not isinstance(value, str):
            raise InputError(f"{self.where}: field {name!r} must be text, got {str(value)[:60]!r}")
        return value

    def items(self, name: str, default: Any = None) -> Any:
        """List, or `default`."""
        value = self.raw(name, default)
        if value is default:
            return value
        if not isinstance(value, list):
            raise InputError(f"{self.where}: field {name!r} must be a list, got {str(value)[:60]!r}")
        return value

    def words(self, name: str, length: int | None = None) -> list[str] | None:
        """List of words, or None; `length` where it must have one entry per layer."""
        value = self.items(name)
        if value is None:
            return None
        if not all(isinstance(item, str) for item in value):
            raise InputError(f"{self.where}: field {name!r} must be a list of words")
        return self._sized(value, name, length)

    def counts(self, name: str, length: int | None = None, *, least: int = 0) -> list[int] | None:
        """List of whole numbers, or None."""
        value = self.items(name)
        if value is None:
            return None
        return self._sized([self.whole(item, name, least) for item in value], name, length)

    def _sized(self, value: list[Any], name: str, length: int | None) -> list[Any]:
        if length is not None and len(value) < length:
            raise InputError(f"{self.where}: field {name!r} has {len(value)} entries for {length} layers")
        return value if length is None else value[:length]

    def block(self, name: str) -> Mapping[str, Any] | None:
        """Nested mapping, or None."""
        value = self.raw(name, None)
        if value is not None and not isinstance(value, dict):
            raise InputError(f"{self.where}: field {name!r} must be a block of fields, got {str(value)[:60]!r}")
        return None if value is None else self.blocks.setdefault(name, Block(value))

    # Sizes that nearly every config states.

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return int(self.count("hidden_size"))

    @property
    def n_layers(self) -> int:
        """Decoder layers."""
        n = int(self.count("num_hidden_layers"))
        if n > MAX_LAYERS:
            raise InputError(f"{self.where}: field 'num_hidden_layers' must be at most {MAX_LAYERS}, got {n}")
        return n

    @property
    def heads(self) -> int:
        """Query heads."""
        return int(self.count("num_attention_heads"))

    @property
    def kv_heads(self) -> int:
        """Key-value heads; as many as query heads where the config does not say."""
        return int(self.count("num_key_value_heads", self.heads))

    @property
    def head_dim(self) -> int:
        """Size of a head; the hidden size divided among the heads where the config does not say."""
        given = self.count("head_dim", None)
        return self.hidden // self.heads if given is None else int(given)
