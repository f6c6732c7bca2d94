"""What a user names becomes a model and, where weights lie beside it, a summary of the checkpoint's headers."""

from dataclasses import replace
from pathlib import Path

from specplan.errors import InputError, NotFoundError
from specplan.files.text import is_url
from specplan.specs.catalog import is_shipped, load_model
from specplan.specs.checkpoint import CheckpointSummary
from specplan.specs.gguf_model import import_gguf
from specplan.specs.headers import folder_headers, with_headers
from specplan.specs.huggingface.config import Imported, read_config
from specplan.specs.huggingface.hub import download_config, hub_headers, hub_id_of, is_hub_id
from specplan.specs.remote import read_address


def import_source(
    source: str, *, assume: str | None = None, name: str | None = None, allow_unread: bool = False
) -> tuple[Imported, CheckpointSummary | None]:
    """Model in a ``config.json``, a checkpoint folder, a ``.gguf`` file or a spec, or at a Hub id or an address.

    Parameters
    ----------
    source : str
    assume : str, optional
        Count it as this ``model_type`` or draft method.
    name : str, optional
        Name of the model; the file's or folder's if not given.
    allow_unread : bool
        Count a config with fields that are not understood, and say which.

    Returns
    -------
    Imported, CheckpointSummary or None
        The model, and the headers of the safetensors files beside its config or in the Hub's repository; where they
        differ from the config, the model's formats are theirs.

    Raises
    ------
    InputError, UnsupportedError
        One line that says what is wrong.
    """
    source = hub_id_of(source)
    path = Path(source)
    tensors = None
    if assume is None and (path.suffix.lower() in (".yaml", ".yml") or (not path.exists() and is_shipped(source))):
        model = load_model(source)
        found = Imported(model=model, assumptions=model.assumptions, model_type=model.model_type)
    elif is_url(source):
        found = read_address(source, assume=assume, allow_unread=allow_unread)
    elif path.is_dir():
        config = path / "config.json"
        if not config.is_file():
            raise InputError(
                f"{path}: a folder without config.json; give a checkpoint folder, a config.json or a .gguf file"
            )
        found = read_config(config, assume=assume, allow_unread=allow_unread)
        tensors = folder_headers(path)
    elif path.suffix.lower() == ".gguf":
        if assume is not None:
            raise InputError(f"{path}: --assume applies to configs; a GGUF file states its architecture")
        found = import_gguf(path)
    elif path.is_file():
        found = read_config(path, assume=assume, allow_unread=allow_unread)
    elif is_hub_id(source):
        missing = NotFoundError(f"{source}: no such file or folder")
        found = read_config(download_config(source, missing), assume=assume, allow_unread=allow_unread)
        found = replace(found, model=replace(found.model, name=source.rpartition("/")[2]))
        tensors = hub_headers(source)
    else:
        raise NotFoundError(
            f"{source}: no such file or folder; give a config.json, a checkpoint folder or a .gguf file"
        )
    summary = None
    if tensors is not None:
        model, summary = with_headers(found.model, tensors)
        found = replace(found, model=model)
    if name:
        found = replace(found, model=replace(found.model, name=name))
    return found, summary
