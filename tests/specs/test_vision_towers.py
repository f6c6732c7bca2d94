"""Vision towers counted from configs, against published totals and the weights that vLLM printed."""

import json
from pathlib import Path
from typing import Any

import pytest

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
