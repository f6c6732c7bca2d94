"""Finds models: by spec name or alias, in a YAML file, a Hugging Face ``config.json``, or a folder that holds one."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from specplan.errors import InputError, ModelNote, NotFoundError, UnsupportedError
from specplan.files.text import is_url, near_misses
from specplan.formulas.requantize import requantized
from specplan.specs.model_yaml import ModelFile, load_model_yaml
from specplan.values.model import Model

_PACKAGE: Final = Path(__file__).resolve().parent.parent


def model_folder() -> Path:
    """Folder of the shipped specs: a checkout's own first, so that an editable install never reads a stale copy."""
    checkout = _PACKAGE.parent / "model_specs"
    return (
        checkout
        if (checkout.parent / "pyproject.toml").is_file() and checkout.is_dir()
        else _PACKAGE / "data" / "model_specs"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A shipped spec: its name, the other names that find it, and the model."""

    name: str
    aliases: tuple[str, ...]
    path: Path
    model: Model


def _spec_files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(model_folder().glob("*.yaml"))}


@lru_cache(maxsize=256)
def _read(path: Path) -> ModelFile:
    return load_model_yaml(path)


def list_models() -> tuple[ModelEntry, ...]:
    """Shipped specs, by name."""
    found = []
    for name, path in _spec_files().items():
        file = _read(path)
        found.append(ModelEntry(name=name, aliases=file.aliases, path=path, model=file.model))
    return tuple(found)


def _named(name: str) -> Model | None:
    """Shipped model called `name`, in any case, or with `name` among its aliases."""
    files = _spec_files()
    wanted = name.strip().lower()
    if wanted in files:
        return _read(files[wanted]).model
    for path in files.values():
        # Only a file that mentions the name can hold it as an alias; the others need no parsing.
        if wanted in path.read_text("utf-8").lower() and wanted in (a.lower() for a in _read(path).aliases):
            return _read(path).model
    return None


def is_shipped(name: str) -> bool:
    """Whether a shipped spec answers to `name`.

    >>> is_shipped("llama3-8b"), is_shipped("no such model")
    (True, False)
    """
    return _named(name) is not None


REFUSED: Final[dict[str, str]] = {
    "kimi-k3": "the published extract of its config leaves out the sizes of its delta attention and of its experts' "
    "narrower stream; import the full config.json",
    "minimax-m3": "which of its layers attend through an indexer is not in the published extract of its config; "
    "import the full config.json",
    "nemotron-3-ultra": "the width of its experts' latent is not in the published extract of its config; "
    "import the full config.json",
}
"""Models that are asked for by name and cannot be counted from what is public."""


def _known_names() -> Iterator[str]:
    for entry in list_models():
        yield entry.name
        yield from entry.aliases


def _not_found(name: str) -> NotFoundError:
    hint = near_misses(name, _known_names())
    return NotFoundError(
        f"unknown model {name!r}{hint} (list them: specplan models; or give a YAML spec, a config.json, "
        f"or a folder that holds one)"
    )


def load_model(name_or_path: str | Path, *, endings: bool = True) -> Model:
    """Model by spec name, alias, or path.

    Parameters
    ----------
    name_or_path : str or Path
        In this order: a shipped spec's name or alias (in any case); a folder with a ``config.json``; a ``.yaml`` model
        spec; a Hugging Face ``config.json``; a ``.gguf`` file; an ``owner/name`` of the Hugging Face Hub, if
        ``huggingface_hub`` is installed; the address of a Hub page, a ``config.json`` or a ``.gguf`` file; a published
        name with endings such as ``-Instruct``, ``-FP8`` and ``-AWQ`` (not without `endings`), whose base is counted in
        that format. Write ``./name`` for a file or folder named like a shipped spec.

    Raises
    ------
    NotFoundError
        When nothing answers to the name; near misses are listed.
    InputError
        When the file is not a model spec or config; one line with file and field.
    UnsupportedError
        When a config's layers cannot be counted.

    Examples
    --------
    >>> load_model("llama3-70b").vocab_size
    128256
    """
    model = load_model_and_assumptions(name_or_path, endings=endings)[0]
    for assumed in model.assumptions:
        warnings.warn(f"{model.name}: {assumed}", ModelNote, stacklevel=2)
    if ";" in model.evidence:
        warnings.warn(f"{model.name}: {model.evidence}", ModelNote, stacklevel=2)
    return model


OFFICIAL_DRAFTS: Final[dict[str, dict[str, str]]] = {
    "llama3-8b": {"eagle": "yuhuili/EAGLE-LLaMA3-Instruct-8B"},
    "llama3-70b": {"eagle": "yuhuili/EAGLE-LLaMA3-Instruct-70B"},
    "llama3.1-8b": {
        "eagle": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
        "eagle3": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "dflash": "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
    },
    "llama3.3-70b": {"eagle3": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"},
    "qwen3-4b": {"dflash": "z-lab/Qwen3-4B-DFlash-b16"},
    "qwen3-8b": {"dflash": "z-lab/Qwen3-8B-DFlash-b16", "dspark": "deepseek-ai/dspark_qwen3_8b_block7"},
    "qwen3-32b": {"eagle3": "RedHatAI/Qwen3-32B-speculator.eagle3"},
    "qwen3.8-27b": {"dflash": "z-lab/Qwen3.8-27B-DFlash2"},
    "gpt-oss-20b": {"dflash": "z-lab/gpt-oss-20b-DFlash"},
    "gpt-oss-120b": {"eagle3": "nvidia/gpt-oss-120b-Eagle3"},
}
"""Published drafts of shipped targets, by method, as their publishers or the engines' documentation pair them."""

_HEAD_METHODS: Final = ("eagle", "eagle3", "dflash", "dspark", "medusa", "mlp_speculator")


def load_draft(name_or_path: str | Path, target: Model) -> Model:
    """Draft for `target`: ``mtp`` for the layers it carries itself, else a model as `load_model` finds it.

    Raises
    ------
    NotFoundError, InputError, UnsupportedError
        As `load_model`; the name of a method without a model, with the published drafts for `target`.

    Examples
    --------
    >>> load_draft("mtp", load_model("deepseek-v3")).name
    'deepseek-v3 (MTP)'
    """
    text = str(name_or_path).strip().lower()
    if text in ("mtp", "nextn"):
        from specplan.specs.huggingface.drafts import mtp_draft

        return mtp_draft(target)
    if text in _HEAD_METHODS and not Path(name_or_path).exists():
        known = OFFICIAL_DRAFTS.get(target.name, {})
        own = ", ".join(f"{method}: {place}" for method, place in known.items() if text in (method, "eagle3"))
        hint = f"published for {target.name}: {own}" if own else f"none is known for {target.name}"
        raise InputError(f"{text!r} is a method; give the head's checkpoint, config.json or Hub id ({hint})")
    return load_model(name_or_path)


def load_target(name_or_path: str | Path, quantization: str | None = None) -> Model:
    """`load_model`, in the format `quantization` where one is named (`specplan.formulas.requantize.requantized`).

    >>> load_target("llama3.1-8b", "fp8").quantization.name
    'fp8'
    """
    model = load_model(name_or_path)
    return model if quantization is None else requantized(model, quantization)


def load_model_and_assumptions(name_or_path: str | Path, *, endings: bool = True) -> tuple[Model, tuple[str, ...]]:
    """`load_model`, and what a config does not say and was taken from elsewhere (a spec assumes nothing).

    With `endings`, a checkpoint's published name that is no model itself is counted as its base, stored as it says.
    """
    text = str(name_or_path)
    if not text.strip() or "\x00" in text:
        raise NotFoundError("an empty model name; list the shipped ones: specplan models")
    if not isinstance(name_or_path, Path):
        if is_url(text):
            from specplan.specs.huggingface.hub import hub_id_of

            text = hub_id_of(text)
        found = _named(text)
        if found is not None:
            return found, ()
        for name, reason in REFUSED.items():
            if text.strip().lower().rpartition("/")[2] == name:
                raise UnsupportedError(f"{text}: cannot be counted: {reason}")
        if is_url(text):
            return _load_address(text)
    try:
        return _load_path(Path(text))
    except NotFoundError as error:
        if not endings or isinstance(name_or_path, Path):
            raise
        from specplan.specs.served import through_endings

        base = through_endings(text, None, error)
        return replace(base.model, assumptions=(*base.model.assumptions, *base.notes)), base.notes


def _config_path(path: Path) -> Path:
    """File behind a path: a folder's ``config.json``, a file itself, or a config fetched from the Hub."""
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError:
        raise _not_found(str(path)[:100]) from None
    if is_folder:
        if not (path / "config.json").is_file():
            raise InputError(
                f"{path}: a folder without config.json; give a checkpoint folder, a config.json or a YAML spec"
            )
        return path / "config.json"
    if exists:
        return path
    if path.suffix.lower() in (".yaml", ".yml", ".json", ".gguf", ".safetensors"):
        raise NotFoundError(f"{path}: no such file")
    from specplan.specs.huggingface.hub import download_config, is_hub_id

    if not is_hub_id(str(path)):
        raise _not_found(str(path))
    return download_config(str(path), _not_found(str(path)))


def _with_headers(model: Model, path: Path) -> Model:
    """The model with what the headers of its folder or Hub repository say of its formats; a config alone as it is."""
    from specplan.specs.headers import folder_headers, with_headers
    from specplan.specs.huggingface.hub import hub_headers

    on_hub = not path.exists()
    if on_hub:  # its file lies in a cache, under the name of a revision
        model = replace(model, name=path.name)
    tensors = hub_headers(str(path)) if on_hub else folder_headers(path) if path.is_dir() else None
    return model if tensors is None else with_headers(model, tensors)[0]


def _load_address(url: str) -> tuple[Model, tuple[str, ...]]:
    from specplan.specs.remote import read_address

    found = read_address(url)
    return found.model, found.assumptions


def _load_path(path: Path) -> tuple[Model, tuple[str, ...]]:
    file = _config_path(path)
    # Imported in the branches, so that specs by name start without the table of architectures.
    match file.suffix.lower():
        case ".yaml" | ".yml":
            return load_model_yaml(file).model, ()
        case ".json":
            from specplan.specs.huggingface.config import read_config

            found = read_config(file)
            return _with_headers(found.model, path), found.assumptions
        case ".gguf":
            from specplan.specs.gguf_model import import_gguf

            found = import_gguf(file)
            return found.model, found.assumptions
    raise InputError(
        f"{path}: not a model; expected a YAML spec (.yaml), a config.json, a .gguf file, or a folder with config.json"
    )
