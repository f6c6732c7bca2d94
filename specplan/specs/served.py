"""A model as an engine serves it, found through the name that a log or a row prints.

A quantised or tuned checkpoint has the shapes of its base: endings such as ``-Instruct``, ``-FP8``, ``-NVFP4`` and
``-AWQ`` are taken off one after the other until a known model answers, and say how weights are stored. Where the base's
own config is shipped, the tower beside the decoder comes with it.
"""

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from specplan.errors import NotFoundError
from specplan.specs.catalog import list_models, load_model
from specplan.specs.huggingface.vision import VisionTower, tower_beside, vision_tower
from specplan.values.formats import lookup
from specplan.values.model import Model, Recurrent

STORAGE: Final = {
    "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "mxfp8": "mxfp8", "fp8": "fp8", "awq": "int4-awq-g128",
    "gptq": "int4-gptq-g128", "autoround": "int4-gptq-g128", "w4a16": "int4-gptq-g128", "int4": "int4-gptq-g128",
    "int8": "int8", "w8a8": "int8", "bnb": "bnb-nf4", "bitsandbytes": "bnb-nf4",
}  # fmt: skip
"""Ending of a checkpoint's name -> format of its linear weights."""

_ENDING: Final = re.compile(
    r"[-_.](instruct|it|chat|hf|base|thinking|preview|qat|unsloth|dynamic|static|pertensor|quantized|quant|kv|modelopt|"
    r"[48]bit|g128|nf4|nvfp4a16|" + "|".join(STORAGE) + r"|2[45]\d\d)$",
    re.IGNORECASE,
)
_SAME_SHAPES: Final = {
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    "qwq-32b": "qwen2.5-32b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-llama-8b": "llama3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama3.3-70b",
}
"""Models published with another's shapes -> that other one."""

_BLOCK_FP8: Final = ("qwen/", "deepseek-ai/", "zai-org/", "minimaxai/", "moonshotai/")
"""Publishers whose own fp8 checkpoints carry a scale per 128 x 128 block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model, what stands beside its decoder, and what was taken for granted.

    Attributes
    ----------
    model : Model
        Without the tower.
    tower : VisionTower or None
    notes : tuple of str
    """

    model: Model
    tower: VisionTower | None
    notes: tuple[str, ...]

    @property
    def whole(self) -> Model:
        """The decoder with the tower's weights beside it."""
        return self.model if self.tower is None else replace(self.model, extra=(*self.model.extra, *self.tower.weights))


def served(name: str, quantization: str | None = None) -> Served:
    """The model that `name` stands for.

    Parameters
    ----------
    name : str
        Spec name, path, or a checkpoint's published name.
    quantization : str, optional
        What the engine says about storage (``--quantization``); outranked by what the name says.

    Raises
    ------
    NotFoundError
        When no ending leaves a model that is known.

    Examples
    --------
    >>> found = served("RedHatAI/Qwen3-8B-FP8-dynamic")
    >>> found.model.quantization.name, found.notes
    ('fp8', ('RedHatAI/Qwen3-8B-FP8-dynamic is counted as qwen3-8b, whose shapes it has, its linear weights as fp8',))
    """
    tower, note = tower_beside(Path(name))
    if tower is not None or note:
        return Served(model=load_model(name), tower=tower, notes=(note,) if note else ())
    try:
        model = load_model(name, endings=False)
    except NotFoundError as error:
        return through_endings(name, quantization, error)
    return Served(model=model, tower=_tower(name), notes=())


def through_endings(name: str, quantization: str | None, error: NotFoundError) -> Served:
    """The base of a published name, stored as its endings or the engine say; `error` where none is known."""
    base, said = name.strip(), []
    while (known := _known(base)) is None:
        ending = _ENDING.search(base)
        if ending is None:
            raise error
        said.append(ending[1].lower().removesuffix("a16"))
        base = base[: ending.start()]
    model, shown = known
    if base == name.strip():
        return Served(model=model, tower=_tower(shown), notes=())
    words = f"{name} is counted as {shown}, whose shapes it has"
    stored = _stored(name, said, quantization) if model.quantization is None else None
    if stored is not None:
        model, plain = _stored_as(model, stored, autoround="autoround" in said or "gptq" in said)
        words += f", its linear weights as {stored}" + (f" ({plain} assumed plain)" if plain else "")
    return Served(model=model, tower=_tower(shown), notes=(words,))


def _stored(name: str, said: list[str], quantization: str | None) -> str | None:
    """Format that the endings name; a method (``awq``) says more than a width (``int4``)."""
    asked = str(quantization or "").lower().replace("-", "_").split("_")[0]
    found = sorted((x for x in (*said, asked) if x in STORAGE), key=lambda x: x in ("int4", "int8"))
    if not found:
        return None
    format_ = STORAGE[found[0]]
    return "fp8-block128" if format_ == "fp8" and name.lower().startswith(_BLOCK_FP8) else format_


_PARTS: Final = ("attention", "recurrent", "mlp", "experts", "shared_experts")


def _stored_as(model: Model, stored: str, *, autoround: bool) -> tuple[Model, str]:
    """The model in a format, less what published recipes leave plain, and that in words.

    Recipes of 4-bit floating point keep linear attention plain; only the publishers' own block fp8 and AutoRound store
    prediction layers like the rest (start-ups of Qwen3.6-35B-A3B-NVFP4 print 1.55 GiB for one, of an AutoRound int4
    checkpoint of Qwen3.8-27B a quarter of its plain size).
    """
    plain = []
    if stored in ("nvfp4", "mxfp4") and any(isinstance(layer.mixer, Recurrent) for layer in model.layers):
        model = replace(model, unquantized=("recurrent",))
        plain.append("linear attention")
    if model.mtp_layers and stored != "fp8-block128" and not autoround:
        kept = tuple((part, model.weight_format) for part in _PARTS)
        model = replace(model, mtp_layers=tuple(replace(x, formats=(*x.formats, *kept)) for x in model.mtp_layers))
        plain.append("prediction layers")
    return replace(model, quantization=lookup(stored)), " and ".join(plain)


def _key(name: str) -> str:
    """A name without publisher, case and separators, so that ``Llama-3.1-8B`` and ``llama3.1-8b`` are one.

    >>> _key("meta-llama/Meta-Llama-3.1-8B"), _key("gemma-3-27b")
    ('llama3.18b', 'gemma327b')
    """
    return re.sub(r"[-_\s]", "", name.strip().rsplit("/", 1)[-1].lower().removeprefix("meta-"))


@cache
def _known_names() -> dict[str, str]:
    """Key of a known name -> the name by which the catalog finds it."""
    out: dict[str, str] = {}
    for entry in list_models():
        for name in (entry.name, *entry.aliases):
            out.setdefault(_key(name), entry.name)
            bare = name
            while (ending := _ENDING.search(bare)) is not None:
                bare = bare[: ending.start()]
            out.setdefault(_key(bare), entry.name)
    for name, base in _SAME_SHAPES.items():
        out.setdefault(_key(name), base)
    return out


def _known(name: str) -> tuple[Model, str] | None:
    found = _known_names().get(_key(name))
    if found is not None:
        return load_model(found), found
    config = shipped_configs().get(_key(name))
    if config is None:
        return None
    from specplan.specs.huggingface.config import import_config

    return import_config(config, name, name=name).model, name


def _tower(name: str) -> VisionTower | None:
    """The tower of a known model: from its own config, or from that of the same model under another name."""
    wanted = _bare(_key(name))
    found = (config for key, config in shipped_configs(stored=True).items() if _bare(key) == wanted)
    return next((tower for config in found if (tower := vision_tower(config)) is not None), None)


def _bare(key: str) -> str:
    """A key without the endings that say how a checkpoint was tuned or stored."""
    return re.sub(r"(?:" + "|".join(STORAGE) + r"|instruct|it|chat)+$", "", key)


@cache
def shipped_configs(*, stored: bool = False) -> dict[str, dict[str, Any]]:
    """Published configs that stand in the package, by `_key`, without what was inferred beside them.

    With `stored` also those whose storage was inferred from a log.
    """
    text = files("specplan").joinpath("data", "startup", "models.json").read_text("utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return {
        _key(name): {field: value for field, value in config.items() if not field.startswith("_")}
        for name, config in models.items()
        if not name.startswith("draft:") and (stored or "_storage" not in config)
    }
