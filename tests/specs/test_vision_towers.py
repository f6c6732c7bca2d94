"""Vision towers counted from configs, against published totals and the weights that vLLM printed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specplan.specs.huggingface.vision import import_served, tower_beside, vision_tower

SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "patch_size": 14,
}  # fmt: skip
QWEN = {"hidden_size": 1152, "depth": 27, "intermediate_size": 4304, "patch_size": 16, "spatial_merge_size": 2}


def _gemma(width: int) -> dict[str, Any]:
    return {
        "model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": {"hidden_size": width},
        "vision_config": {**SIGLIP, "image_size": 896},
    }  # fmt: skip


def test_gemmas_tower_is_the_published_417_million() -> None:
    found = vision_tower(_gemma(5376))
    assert found is not None
    encoder = found.params - (1152 * 5376 + 1152)
    assert encoder == 416_866_032
    assert (found.image_tokens, found.image_values) == (256, 3 * 896**2)


def test_mistrals_tower_and_its_merging_projector() -> None:
    config = {
        "model_type": "mistral3", "spatial_merge_size": 2, "text_config": {"hidden_size": 5120},
        "vision_config": {"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096,
                          "num_hidden_layers": 24, "patch_size": 14, "image_size": 1540},
    }  # fmt: skip
    found = vision_tower(config)
    assert found is not None
    assert found.image_tokens == 55 * 56
    # 24 x (4 x 1024^2 + 3 x 1024 x 4096 + 2 x 1024), a convolution, its norm, and the projector.
    assert found.params == 402_702_336 + 602_112 + 1024 + 1024 + 4 * 1024**2 + 1024 * 5120 + 5120**2


@pytest.mark.parametrize("merge", [1, 2, 3, 4])
def test_a_merger_is_as_wide_as_the_patches_it_joins(merge: int) -> None:
    h, width = 1152, 5120
    with torch.device("meta"):
        merger = torch.nn.Sequential(
            torch.nn.LayerNorm(h), torch.nn.Linear(h * merge**2, h * merge**2), torch.nn.Linear(h * merge**2, width)
        )
        none = torch.nn.Sequential(torch.nn.LayerNorm(h), torch.nn.Linear(h, h), torch.nn.Linear(h, width))
    config = {"model_type": "qwen3_5", "text_config": {"hidden_size": width}}
    found, plain = (vision_tower({**config, "vision_config": {**QWEN, "spatial_merge_size": m}}) for m in (merge, 1))
    assert found is not None
    assert plain is not None
    more = sum(p.numel() for p in merger.parameters()) - sum(p.numel() for p in none.parameters())
    assert found.params - plain.params == more


def test_qwens_tower_with_and_without_deep_stacks() -> None:
    plain = vision_tower({"model_type": "qwen3_5", "text_config": {"hidden_size": 5120}, "vision_config": QWEN})
    deep = vision_tower(
        {"model_type": "qwen3_vl", "text_config": {"hidden_size": 5120},
         "vision_config": {**QWEN, "deepstack_visual_indexes": [8, 16, 24]}}
    )  # fmt: skip
    assert plain is not None
    assert deep is not None
    assert plain.params == pytest.approx(460.7e6, rel=1e-3)
    assert deep.params - plain.params == 3 * (4608 * 4608 + 4608 + 4608 * 5120 + 5120 + 2 * 4608)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "hidden_size": 4096},
        {"model_type": "kimi_k25", "text_config": {"hidden_size": 7168}, "vision_config": {"patch_size": 14}},
        {"model_type": "gemma3", "text_config": {"hidden_size": 2560}, "vision_config": {"hidden_size": 1152}},
        {"model_type": "gemma3", "vision_config": SIGLIP},
    ],
)
def test_what_is_not_known_is_not_guessed(config: dict[str, Any]) -> None:
    assert vision_tower(config) is None


def test_a_folder_with_an_unknown_tower_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "vision_config": {"patch_size": 14}}))
    found, note = tower_beside(tmp_path)
    assert found is None
    assert "not counted" in note
    assert tower_beside(tmp_path / "absent.yaml") == (None, "")


def test_a_served_model_holds_the_tower_beside_the_decoder() -> None:
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "sliding_window": 1024, "max_position_embeddings": 131072,
    }  # fmt: skip
    model = import_served({**_gemma(2560), "text_config": text}, "gemma-3-4b")
    assert sum(w.size * w.copies for w in model.extra if w.component == "vision") == 419_816_304


def _params(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_llama_4s_and_qwen_omnis_towers_against_their_modules() -> None:
    from transformers.models.llama4.configuration_llama4 import Llama4VisionConfig
    from transformers.models.llama4.modeling_llama4 import Llama4VisionModel
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeAudioEncoderConfig
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeAudioEncoder

    llama = Llama4VisionConfig(
        hidden_size=1408, intermediate_size=5632, num_hidden_layers=34, num_attention_heads=16, patch_size=14,
        image_size=336, projector_input_dim=4096, projector_output_dim=4096, vision_output_dim=4096,
    )  # fmt: skip
    audio = Qwen3OmniMoeAudioEncoderConfig()
    with torch.device("meta"):
        sizes = _params(Llama4VisionModel(llama)), _params(Qwen3OmniMoeAudioEncoder(audio))
    found = vision_tower(
        {"model_type": "llama4", "text_config": {"hidden_size": 5120}, "vision_config": llama.to_dict()}
    )
    assert found is not None
    assert found.params == sizes[0] + 4096 * 5120  # and the projection to the decoder
    omni = {"text_config": {"hidden_size": 2048}, "vision_config": QWEN, "audio_config": audio.to_dict()}
    both = vision_tower({"model_type": "qwen3_omni_moe", "thinker_config": omni})
    assert both is not None
    assert sum(w.size * w.copies for w in both.weights if w.component == "audio") == sizes[1]


def test_a_tower_of_unknown_make_is_counted_with_a_bound() -> None:
    vision = {"hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "patch_size": 14}
    found = vision_tower({"model_type": "new_vl", "text_config": {"hidden_size": 6144}, "vision_config": vision})
    assert found is not None
    assert found.params == pytest.approx(0.69e9, rel=0.01)
    assert "1.28 GiB in 16 bits (from 1.15 to 1.77)" in found.guessed
