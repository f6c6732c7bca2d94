"""The text decoder inside multimodal models: counted from the wrapper's config, compared with transformers' modules."""

import json
import os
import warnings
from typing import Any

import pytest

from specplan.errors import UnsupportedError
from specplan.formulas.parameters import resident_params
from specplan.specs.huggingface.config import import_config
from specplan.specs.huggingface.fields import recorded

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

from transformers.models.auto import modeling_auto  # noqa: E402 - after the check that it is installed
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402 - likewise

pytestmark = pytest.mark.transformers
CLASSES = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES | getattr(
    modeling_auto, "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", {}
)
# Its decoder holds the talker and the token decoder too.
SEVERAL_DECODERS = {"qwen2_5_omni"}


def decoder_params(model: Any) -> int:
    """Parameters of the decoder, its embedding and its head, each once."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    parts = [decoder, *([head] if head is not None else [])]
    if not any("embed" in name for name, _ in decoder.named_parameters()):
        parts.append(model.get_input_embeddings())
    return sum({id(p): p.numel() for part in parts for p in part.parameters()}.values())


def test_text_decoders_of_wrappers_are_exact_or_refused() -> None:
    exact, wrong = [], {}
    for wrapper in sorted({*recorded()["wrappers"], *recorded()["open_wrappers"]} & set(CLASSES) - SEVERAL_DECODERS):
        try:
            with warnings.catch_warnings(), torch.device("meta"):
                warnings.simplefilter("ignore")
                name = CLASSES[wrapper]
                model = getattr(transformers, name if isinstance(name, str) else name[0])(CONFIG_MAPPING[wrapper]())
            expected = decoder_params(model)
        except Exception:  # noqa: S112 - some default configs cannot be built by transformers itself
            continue
        try:
            found = import_config(json.loads(model.config.to_json_string(use_diff=False)), wrapper)
        except UnsupportedError:
            continue
        assert found.wrapper or found.model_type == wrapper
        if resident_params(found.model) == expected:
            exact.append(wrapper)
        else:
            wrong[wrapper] = resident_params(found.model) - expected
    assert wrong == {}
    assert len(exact) >= 80
