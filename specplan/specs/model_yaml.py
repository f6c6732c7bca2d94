"""Model specs: the YAML form of `specplan.values.model.Model`, readable and writable by hand.

::

    name: gemma3-27b
    source: https://huggingface.co/google/gemma-3-27b-it
    vocab_size: 262208
    hidden_size: 5376
    tied_embeddings: true
    dtype: bfloat16
    layers:
      sliding: {attention: {heads: 32, kv_heads: 16, head_dim: 128, window: 1024}, mlp: {width: 21504}, norm_vectors: 4}
      full: {attention: {heads: 32, kv_heads: 16, head_dim: 128}, mlp: {width: 21504}, norm_vectors: 4}
    order: 10x(5x sliding, full), 2x sliding

Fields of the blocks are those of the value classes (their docstrings say what each means); unknown fields are refused.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from specplan.errors import InputError
from specplan.files.reading import read_text
from specplan.formulas.parameters import resident_bytes, resident_params
from specplan.specs.layer_order import format_order, parse_order
from specplan.specs.yaml_text import parse_yaml
from specplan.values.formats import NumberFormat, lookup
from specplan.values.model import (
    Attention,
    CompressedAttention,
    DenseMLP,
    Experts,
    LatentAttention,
    Layer,
    Model,
    Recurrent,
    Weight,
)

MAX_SIZE: Final = 10**14
"""No weight matrix is larger; a larger number is a slip of the pen."""

Positive = Annotated[int, Field(strict=True, ge=1, le=MAX_SIZE)]
Natural = Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1, max_length=2000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


_MAY_BE_ZERO: Final = frozenset({"rope_dim"})
"""Required sizes that may be 0: latent attention without a rotated part."""


def _field_type(name: str, annotation: Any, default: Any, mirrors: Mapping[Any, Any]) -> Any:
    """Type by which a value class's field is read: sizes are whole and positive, counts that default to 0 may be 0."""
    text = str(annotation)
    if annotation in mirrors:
        return mirrors[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation
    if annotation is bool:
        return Flag
    if annotation is int:
        return Natural if default == 0 or name in _MAY_BE_ZERO else Positive
    if annotation == int | None:
        return Positive | None
    if annotation is str or "NumberFormat" in text:
        return Text if "None" not in text else Text | None
    if annotation == tuple[int, int] | None:
        return tuple[Positive, Positive] | None
    if annotation == tuple[Weight, ...]:
        return tuple[mirrors[Weight], ...]  # type: ignore[valid-type] # made at run time
    if "Format" in text or annotation == tuple[tuple[str, str], ...]:
        return tuple[tuple[Text, Text], ...]
    raise TypeError(f"{name}: no YAML form for {annotation}")  # a new kind of field in values.model


def _mirror(cls: type, mirrors: Mapping[Any, Any]) -> type[BaseModel]:
    """Pydantic class with the fields of the value class `cls`, so that the two cannot drift apart."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING
        default = ... if required else field.default
        fields[field.name] = (_field_type(field.name, field.type, default, mirrors), default)
    return create_model(cls.__name__, __base__=_Strict, **fields)


_MIRRORS: Final[dict[Any, type[BaseModel]]] = {}
for _cls in (Weight, Attention, LatentAttention, CompressedAttention, Recurrent, DenseMLP, Experts):
    _MIRRORS[_cls] = _mirror(_cls, _MIRRORS)

_MIXERS: Final = {
    "attention": Attention,
    "latent_attention": LatentAttention,
    "compressed_attention": CompressedAttention,
    "recurrent": Recurrent,
}
_FEED_FORWARDS: Final = {"mlp": DenseMLP, "experts": Experts}


def _layer_spec() -> Any:
    fields: dict[str, Any] = {key: (_MIRRORS[cls] | None, None) for key, cls in (_MIXERS | _FEED_FORWARDS).items()}
    fields["norm_vectors"] = (Natural, 2)
    fields["extra"] = (tuple[_MIRRORS[Weight], ...], ())  # type: ignore[valid-type] # made at run time
    fields["formats"] = (dict[Text, Text], {})
    fields["only_extra"] = (Flag, False)
    return create_model("LayerSpec", __base__=_Strict, **fields)


_LayerSpec: Final = _layer_spec()


class _ModelSpec(_Strict):
    name: Text
    source: Text
    vocab_size: Positive
    hidden_size: Positive
    tied_embeddings: Flag
    dtype: Text
    layers: dict[Text, _LayerSpec] = {}  # type: ignore[valid-type] # made at run time
    order: Text | None = None
    aliases: tuple[Text, ...] = ()
    model_type: str = ""
    draft_method: str = ""
    target_hidden_size: Positive | None = None
    target_layer_ids: tuple[Natural, ...] = ()
    assumptions: tuple[Text, ...] = ()
    evidence: str = ""
    max_position: Positive | None = None
    quantization: Text | None = None
    unquantized: tuple[Text, ...] = ()
    formats: dict[Text, Text] = {}
    final_norm_vectors: Natural = 1
    head: Flag = True
    embedding: Flag = True
    embedding_size: Positive | None = None
    head_vocab_size: Positive | None = None
    published_params: Positive | None = None
    extra: tuple[_MIRRORS[Weight], ...] = ()  # type: ignore[valid-type] # made at run time
    mtp_layers: Text | None = None
    totals: dict[Text, Annotated[int, Field(strict=True, ge=0)]] = {}  # sums of sizes that are bounded each


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model and the other names under which it is found."""

    model: Model
    aliases: tuple[str, ...] = ()


def _one_line(error: ValidationError, where: str) -> InputError:
    """First problem as one line; an unknown field comes first, for it is often a missing one misspelt."""
    problems = error.errors()
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    field = ".".join(str(part) for part in first["loc"])
    got = "" if first["type"] in ("missing", "extra_forbidden") else f", got {str(first.get('input'))[:60]!r}"
    missing = [str(p["loc"][-1]) for p in problems if p["type"] == "missing" and p["loc"][:-1] == first["loc"][:-1]]
    near = difflib.get_close_matches(str(first["loc"][-1]), missing, n=1)
    hints = {
        "missing": "is missing",
        "extra_forbidden": f"is not a known field{f'; did you mean {near[0]!r}?' if near else ''}",
        "int_type": "must be a whole number",
        "int_parsing": "must be a whole number",
        "greater_than_equal": f"must be at least {first.get('ctx', {}).get('ge')}",
        "less_than_equal": f"must be at most {first.get('ctx', {}).get('le')}",
        "bool_type": "must be true or false",
        "string_type": "must be text",
        "model_type": "must be a block of fields",
        "dict_type": "must be a block of named entries",
        "tuple_type": "must be a list",
    }
    more = len(problems) - 1
    also = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    return InputError(f"{where}: field {field!r} {hints.get(first['type'], first['msg'])}{got}{also}")


def _plain(mirror: Any, cls: type) -> Any:
    """Value of class `cls` from its pydantic mirror."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        value = getattr(mirror, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            value = tuple(_plain(item, Weight) for item in value)
        elif isinstance(value, str) and "NumberFormat" in str(field.type):
            value = lookup(value)
        values[field.name] = value
    return cls(**values)


def _only(spec: Any, kinds: Mapping[str, type], layer: str) -> Any:
    given = [key for key in kinds if getattr(spec, key) is not None]
    if len(given) > 1:
        raise InputError(f"layer {layer!r} has both {' and '.join(given)}; a layer has one of {', '.join(kinds)}")
    return _plain(getattr(spec, given[0]), kinds[given[0]]) if given else None


def _layer(spec: Any, name: str) -> Layer:
    mixer, feed_forward = _only(spec, _MIXERS, name), _only(spec, _FEED_FORWARDS, name)
    if mixer is None and feed_forward is None and not spec.extra:
        raise InputError(f"layer {name!r} has none of {', '.join([*_MIXERS, *_FEED_FORWARDS])}")
    if isinstance(mixer, Attention) and mixer.heads % mixer.kv_heads and not mixer.shares_kv:
        raise InputError(f"layer {name!r}: {mixer.heads} heads are not a multiple of {mixer.kv_heads} kv_heads")
    if isinstance(feed_forward, Experts) and feed_forward.per_token > feed_forward.count:
        raise InputError(f"layer {name!r}: {feed_forward.per_token} experts per token of {feed_forward.count}")
    return Layer(
        mixer=mixer,
        feed_forward=feed_forward,
        norm_vectors=spec.norm_vectors,
        extra=tuple(_plain(weight, Weight) for weight in spec.extra),
        formats=_formats(spec.formats),
        only_extra=spec.only_extra,
    )


def _formats(entries: Mapping[str, str]) -> tuple[tuple[str, NumberFormat], ...]:
    return tuple((component, lookup(name)) for component, name in entries.items())


def _ordered(order: str | None, layers: Mapping[str, Layer]) -> tuple[Layer, ...]:
    if order is None:
        return ()
    names = parse_order(order)
    unknown = [name for name in names if name not in layers]
    if unknown:
        raise InputError(f"order names layer {unknown[0]!r}; layers are {', '.join(layers) or 'none'}")
    return tuple(layers[name] for name in names)


def _model(spec: _ModelSpec) -> Model:
    layers = {name: _layer(layer, name) for name, layer in spec.layers.items()}
    if layers and spec.order is None and spec.mtp_layers is None:
        raise InputError("field 'order' is missing: it says how the layers follow each other, such as '32x block'")
    return Model(
        name=spec.name,
        source=spec.source,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        tied_embeddings=spec.tied_embeddings,
        layers=_ordered(spec.order, layers),
        weight_format=lookup(spec.dtype),
        final_norm_vectors=spec.final_norm_vectors,
        extra=tuple(_plain(weight, Weight) for weight in spec.extra),
        head=spec.head,
        embedding=spec.embedding,
        embedding_size=spec.embedding_size,
        head_vocab_size=spec.head_vocab_size,
        max_position=spec.max_position,
        quantization=None if spec.quantization is None else lookup(spec.quantization),
        unquantized=spec.unquantized,
        formats=_formats(spec.formats),
        mtp_layers=_ordered(spec.mtp_layers, layers),
        published_params=spec.published_params,
        draft_method=spec.draft_method,
        target_hidden_size=spec.target_hidden_size,
        target_layer_ids=spec.target_layer_ids,
        assumptions=spec.assumptions,
        model_type=spec.model_type,
        evidence=spec.evidence,
    )


def model_from_text(text: str, where: str) -> ModelFile:
    """Model that the YAML `text` describes; `where` names it in errors.

    Raises
    ------
    InputError
        One line that names `where`, the field, what it must be and what it is.

    Examples
    --------
    >>> found = model_from_text('''
    ... name: tiny
    ... source: an example
    ... vocab_size: 256
    ... hidden_size: 64
    ... tied_embeddings: true
    ... dtype: bfloat16
    ... layers:
    ...   block: {attention: {heads: 4, kv_heads: 2, head_dim: 16}, mlp: {width: 128}}
    ... order: 2x block
    ... ''', "tiny.yaml")
    >>> len(found.model.layers), found.model.layers[0].mixer.kv_heads
    (2, 2)
    """
    document = parse_yaml(text, where)
    try:
        spec = _ModelSpec.model_validate(document)
    except ValidationError as error:
        raise _one_line(error, where) from None
    try:
        model = _model(spec)
        _check_totals(spec.totals, model)
        return ModelFile(model=model, aliases=spec.aliases)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _totals(model: Model) -> dict[str, int]:
    return {"parameters": resident_params(model), "bytes": round(resident_bytes(model))}


def _check_totals(stated: Mapping[str, int], model: Model) -> None:
    """Refuse a spec whose layers do not add up to the totals it states: one of the two was edited alone."""
    if not stated:
        return
    for name, value in _totals(model).items():
        if stated.get(name, value) != value:
            raise InputError(
                f"field 'totals.{name}' states {stated[name]:,}, the layers add up to {value:,}; correct the layers, "
                f"or state the new total"
            )
    if unknown := stated.keys() - {"parameters", "bytes"}:
        raise InputError(f"field 'totals.{min(unknown)}' is not a known field; totals are parameters and bytes")


def load_model_yaml(path: Path) -> ModelFile:
    """Model spec in the file `path`."""
    return model_from_text(read_text(path, "a model spec (YAML)"), str(path))


def _given(value: Any) -> dict[str, Any]:
    """Fields of a value that differ from their defaults, as YAML spells them."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.default is not dataclasses.MISSING and item == field.default:
            continue
        if isinstance(item, NumberFormat):
            item = item.name
        elif isinstance(item, Enum):
            item = item.value
        elif isinstance(item, tuple):
            item = [_given(entry) if dataclasses.is_dataclass(entry) else entry for entry in item]
        out[field.name] = item
    return out


def _layer_document(layer: Layer) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for kinds, part in ((_MIXERS, layer.mixer), (_FEED_FORWARDS, layer.feed_forward)):
        for key, cls in kinds.items():
            if isinstance(part, cls):
                out[key] = _given(part)
    if layer.norm_vectors != 2:
        out["norm_vectors"] = layer.norm_vectors
    if layer.extra:
        out["extra"] = [_given(weight) for weight in layer.extra]
    if layer.formats:
        out["formats"] = {component: fmt.name for component, fmt in layer.formats}
    if layer.only_extra:
        out["only_extra"] = True
    return out


def _layer_name(layer: Layer) -> str:
    """Short word for what distinguishes a layer."""
    match layer.mixer:
        case Attention(window=int()):
            word = "sliding"
        case Attention(chunk=int()):
            word = "chunked"
        case Attention():
            word = "full"
        case CompressedAttention(rate=rate):
            word = f"compressed{rate}" if rate else "window"
        case LatentAttention():
            word = "latent"
        case Recurrent(kind=kind):
            word = kind
        case None:
            return "moe" if isinstance(layer.feed_forward, Experts) else "mlp"
    return f"{word}_moe" if isinstance(layer.feed_forward, Experts) else word


def _layer_names(model: Model) -> dict[Layer, str]:
    own = set(model.layers)
    distinct = list(dict.fromkeys((*model.layers, *model.mtp_layers)))
    names: dict[Layer, str] = {}
    for layer in distinct:
        base = ("block" if len(own) == 1 else _layer_name(layer)) if layer in own else "mtp"
        taken = sum(name == base or name.startswith(f"{base}_v") for name in names.values())
        names[layer] = base if not taken else f"{base}_v{taken + 1}"
    return names


def model_document(file: ModelFile) -> dict[str, Any]:
    """Plain mapping that `dump_model_yaml` writes and `model_from_text` reads back as an equal model."""
    model = file.model
    names = _layer_names(model)
    out: dict[str, Any] = {"name": model.name}
    if file.aliases:
        out["aliases"] = list(file.aliases)
    out |= {
        "source": model.source,
        "model_type": model.model_type,
        "draft_method": model.draft_method,
        "target_hidden_size": model.target_hidden_size,
        "target_layer_ids": list(model.target_layer_ids),
        "assumptions": list(model.assumptions),
        "evidence": model.evidence,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "tied_embeddings": model.tied_embeddings,
        "dtype": model.weight_format.name,
        "quantization": None if model.quantization is None else model.quantization.name,
        "unquantized": list(model.unquantized),
        "formats": {component: fmt.name for component, fmt in model.formats},
        "max_position": model.max_position,
        "published_params": model.published_params,
        "final_norm_vectors": None if model.final_norm_vectors == 1 else model.final_norm_vectors,
        "head": None if model.head else False,
        "embedding": None if model.embedding else False,
        "embedding_size": model.embedding_size,
        "head_vocab_size": model.head_vocab_size,
        "extra": [_given(weight) for weight in model.extra],
        "layers": {name: _layer_document(layer) for layer, name in names.items()},
        "order": format_order([names[layer] for layer in model.layers]) if model.layers else None,
        "mtp_layers": format_order([names[layer] for layer in model.mtp_layers]) if model.mtp_layers else None,
        "totals": _totals(model),
    }
    return {
        key: value for key, value in out.items() if value is not None and value != [] and value != {} and value != ""
    }


def dump_model_yaml(file: ModelFile) -> str:
    """YAML text of a model spec."""

    class Dumper(yaml.SafeDumper):
        """Blocks of scalars and weights on one line, everything else indented."""

    def represent(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.MappingNode:
        firsts = [v[0] if isinstance(v, list) and v else v for v in value.values()]
        nested = any(isinstance(v, dict) for v in firsts)
        one_line = "size" in value or not (nested or "name" in value)
        return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=one_line)

    Dumper.add_representer(dict, represent)
    return yaml.dump(
        model_document(file), Dumper=Dumper, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True
    )
