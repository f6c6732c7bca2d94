"""Which draft a config describes, by the class names that vLLM 0.32 and SGLang 0.5 register, and by its own fields.

A name says nothing by itself: a class that is not registered, without the fields of a draft, is a model of its own.
"""

from collections.abc import Mapping
from typing import Any, Final

from specplan.errors import UnsupportedError

DRAFT_METHODS: Final = ("eagle", "eagle3", "dflash", "dspark", "medusa", "mlp_speculator", "mtp")

_EAGLE: Final = (
    "EagleCohereForCausalLM", "EagleLlamaForCausalLM", "EagleLlama4ForCausalLM", "EagleMiniCPMForCausalLM",
    "EagleMistralForCausalLM", "EagleMistralLarge3ForCausalLM", "EagleDeepSeekMTPModel", "LlamaForCausalLMEagle",
    "Qwen2ForCausalLMEagle", "MistralLarge3ForCausalLMEagle", "LlamaForCausalLMEagle2",
)  # fmt: skip
_EAGLE3: Final = (
    "PEagleDraftModel", "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM", "Eagle3LlamaForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM", "LlamaForCausalLMEagle3", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM",
    "Eagle3Qwen3ForCausalLM", "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM", "GptOssForCausalLMEagle3",
    "Eagle3Speculator", "Qwen3ForCausalLMEagle3", "DeepseekV3ForCausalLMEagle3",
)  # fmt: skip
_DFLASH: Final = (
    "DFlashDraftModel", "DFlash2DraftModel", "MuseGlimmerAssistantModel", "DFlashMuseGlimmerAssistantModel",
    "DFlashLagunaForCausalLM", "Qwen3DFlashDraftModel", "DFlashQwen3ForCausalLM", "DFlashSpeculator",
)  # fmt: skip
_MTP: Final = (
    "MiMoMTPModel", "MiMoV2MTPModel", "MiMoV2OmniMTPModel", "DeepSeekMTPModel", "DeepseekV32MTPModel",
    "Dots3NoteMTPModel", "DeepSeekV4MTPModel", "BailingMoeV3MTPModel", "MiniMaxM3MTP", "BailingMoeV25MTPModel",
    "InklingMTPModel", "Gemma4MTPModel", "ErnieMTPModel", "ExaoneMoeMTP", "Exaone4_5_MTP", "NemotronHMTPModel",
    "LongCatFlashMTPModel", "Glm4MoeMTPModel", "Glm4MoeLiteMTPModel", "GlmOcrMTPModel", "Glm5NextMTPModel",
    "OpenPanguMTPModel", "Qwen3NextMTP", "Qwen4ExpMTP", "Step3p5MTP", "Qwen3_5MTP", "Qwen3_5MoeMTP",
    "InternS2MobiusMTP", "HYV3MTPModel", "HYV4MTPModel", "KimiK3MTPModel", "GlmMoeDsaMTPModel", "DSparkDraftModel",
    "DSparkV41DraftModel", "DeepseekV3ForCausalLMNextN", "DeepseekV32ForCausalLMNextN", "DeepseekV4ForCausalLMNextN",
    "Glm4MoeForCausalLMNextN", "Glm4MoeLiteForCausalLMNextN", "GlmMoeDsaForCausalLMNextN", "BailingMoeForCausalLMNextN",
    "LongcatFlashForCausalLMNextN", "Qwen3NextForCausalLMMTP", "Qwen3_5ForCausalLMMTP", "MiMoMTP", "MiMoV2MTP",
    "Ernie4_5_MoeForCausalLMMTP", "NemotronHForCausalLMMTP", "ExaoneMoEForCausalLMMTP", "Step3p5ForCausalLMMTP",
)  # fmt: skip
_BY_CLASS: Final[dict[str, str]] = {
    **dict.fromkeys(_EAGLE, "eagle"),
    **dict.fromkeys(_EAGLE3, "eagle3"),
    **dict.fromkeys(_DFLASH, "dflash"),
    **dict.fromkeys(("Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel", "DSparkSpeculator"), "dspark"),
    **dict.fromkeys(_MTP, "mtp"),
    "MedusaModel": "medusa",
    "MLPSpeculatorPreTrainedModel": "mlp_speculator",
}
_REFUSED: Final[dict[str, str]] = {
    "LiLiCorrDraftModel": "its corrector's sizes (candidate features, factor heads) stand in no public config; import "
    "the folder with its headers",
    "K3DSparkModel": "its latent context projections are described by vLLM's source alone, no config is public",
    "ExtractHiddenStatesModel": "it holds no weights and drafts nothing",
    "Gemma4AssistantForCausalLM": "it reads its target's cache and is counted with its target's config, which this one "
    "does not hold",
}
_BY_SPECULATORS_TYPE: Final[dict[str, str]] = {
    "eagle": "eagle", "eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dflash2": "dflash",
    "dspark": "dspark", "mtp": "mtp", "medusa": "medusa", "mlp_speculator": "mlp_speculator",
}  # fmt: skip
_BY_MODEL_TYPE: Final[dict[str, str]] = {
    "medusa": "medusa", "mlp_speculator": "mlp_speculator", "eagle": "eagle", "eagle3": "eagle3",
    "llama eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark",
}  # fmt: skip


def registered_drafts() -> Mapping[str, str]:
    """Class name -> method, or the reason why it cannot be counted."""
    return {**_BY_CLASS, **_REFUSED}


def draft_method(config: Mapping[str, Any]) -> str:
    """Method of a draft head by its registered class or its fields; empty for a model that stands alone.

    Raises
    ------
    UnsupportedError
        For a registered kind of draft whose weights cannot be counted.

    Examples
    --------
    >>> draft_method({"architectures": ["LlamaForCausalLMEagle3"]})
    'eagle3'
    >>> draft_method({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "draft_vocab_size": 32000})
    'eagle3'
    >>> draft_method({"architectures": ["EagleEyeForCausalLM"], "model_type": "llama"})
    ''
    """
    stated = config.get("architectures")
    name = str(stated[0]) if isinstance(stated, list) and stated else ""
    if name in _REFUSED:
        raise UnsupportedError(f"draft architecture {name!r} cannot be counted: {_REFUSED[name]}")
    if name in _BY_CLASS:
        return _BY_CLASS[name]
    speculators = config.get("speculators_model_type")
    if isinstance(speculators, str):
        if speculators not in _BY_SPECULATORS_TYPE:
            known = ", ".join(_BY_SPECULATORS_TYPE)
            raise UnsupportedError(f"speculators_model_type {speculators[:40]!r} cannot be counted; known: {known}")
        return _BY_SPECULATORS_TYPE[speculators]
    by_type = _BY_MODEL_TYPE.get(str(config.get("model_type")), "")
    if by_type:
        return by_type
    if config.get("markov_rank") and config.get("target_layer_ids"):
        return "dspark"
    if isinstance(config.get("dflash_config"), dict):
        return "dflash"
    return "eagle3" if config.get("draft_vocab_size") else ""
