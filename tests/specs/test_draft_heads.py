"""Draft heads: what they hold, what they add to the cache, what they share with their target."""

import json
from pathlib import Path
from typing import Any

import pytest

from specplan.errors import InputError, UnsupportedError
from specplan.formulas.kv_cache import kv_bytes_per_token
from specplan.formulas.parameters import gathered_params, resident_bytes, resident_params, streamed_params
from specplan.specs.catalog import load_model
from specplan.specs.huggingface.config import import_config
from specplan.specs.huggingface.drafts import draft_method, mtp_draft
from specplan.specs.model_yaml import ModelFile, dump_model_yaml, model_from_text

DATA = Path(__file__).parents[1] / "data"
CONFIGS: dict[str, dict[str, Any]] = json.loads((DATA / "model_configs.json").read_text())
NAMES: list[str] = json.loads((DATA / "served_architectures.json").read_text())["draft_architectures"]

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}


def named(architecture: str, **fields: Any) -> Any:
    return import_config({**LLAMA, "architectures": [architecture], **fields}, "x")


def test_eagle3_of_llama_3_1_8b() -> None:
    for architecture in ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"):
        found = named(architecture, draft_vocab_size=32000)
        model = found.model
        h, kv, width = 4096, 1024, 14336
        matrices = (h + 2 * kv) * 2 * h + h * h + 3 * width * h + 3 * h * h + 32000 * h
        assert streamed_params(model) == matrices
        assert resident_params(model) == matrices + 4 * h
        assert gathered_params(model) == 0  # the embedding is the target's
        assert (model.head, model.embedding, model.draft_method) == (True, False, "eagle3")
        # The start-up log of such a head: 0.796 GiB, one cache layer of 4,096 bytes per token.
        assert resident_bytes(model) / 2**30 == pytest.approx(0.796, abs=0.006)
        assert kv_bytes_per_token(model) == 4096


def test_eagle3_reads_the_target_width_and_says_what_it_assumes() -> None:
    wide = named("LlamaForCausalLMEagle3", draft_vocab_size=32000, target_hidden_size=8192).model
    plain = named("LlamaForCausalLMEagle3", draft_vocab_size=32000).model
    assert resident_params(wide) - resident_params(plain) == 3 * 4096 * 4096
    assert any("draft_vocab_size" in a for a in named("LlamaForCausalLMEagle3").assumptions)


def test_eagle_1() -> None:
    model = named("EagleLlamaForCausalLM").model
    h, kv, width = 4096, 1024, 14336
    assert resident_params(model) == 2 * h * h + (2 * h + 2 * kv) * h + 3 * width * h + h
    assert (model.head, model.embedding) == (False, False)
    assert kv_bytes_per_token(model) == 4096
    assert resident_params(named("EagleLlamaForCausalLM", bias=True).model) == resident_params(model) + h


def test_eagle3_over_latent_attention() -> None:
    config = {
        **CONFIGS["deepseek-ai/DeepSeek-V3"],
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "num_hidden_layers": 1,
        "first_k_dense_replace": 1,
        "draft_vocab_size": 32000,
    }
    model = import_config(config, "x").model
    assert model.draft_method == "eagle3"
    assert kv_bytes_per_token(model) == 576 * 2


def test_medusa_caches_nothing() -> None:
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": 4096,
        "vocab_size": 32000,
        "medusa_num_heads": 5,
        "medusa_num_layers": 1,
        "torch_dtype": "float16",
    }
    model = import_config(config, "x").model
    assert resident_params(model) == 5 * (4096 * 4096 + 4096 + 32000 * 4096)
    assert kv_bytes_per_token(model) == 0
    assert model.layers == ()


def test_mlp_speculator_tied_and_untied() -> None:
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "emb_dim": 4096,
        "inner_dim": 3072,
        "n_predict": 4,
        "tie_weights": True,
        "scale_input": True,
        "vocab_size": 128256,
    }
    tied = import_config(config, "x").model
    assert resident_params(tied) == 2 * 128256 * 3072 + 4096 * 3072 + 3072 * 3072 + 2 * 3072
    untied = import_config({**config, "tie_weights": False}, "x").model
    assert resident_params(untied) == 4 * (2 * 128256 * 3072 + 2 * 3072) + 4096 * 3072 + 3 * 3072 * 3072
    assert gathered_params(untied) == 4 * 128256 * 3072


def test_dflash() -> None:
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "block_size": 16,
        "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]},
    }
    model = import_config(config, "x").model
    layer = (2 * 4096 + 2 * 1024) * 4096 + 3 * 12288 * 4096
    assert streamed_params(model) == 5 * layer + 5 * 4096 * 4096
    assert (model.head, model.embedding, len(model.layers)) == (False, False, 5)
    assert kv_bytes_per_token(model) == 5 * 4096
    assert import_config(CONFIGS["draft: DFlash for gemma-4-31B"], "x").model.draft_method == "dflash"


# Multi-token prediction layers of real configs: architecture of the head -> config of its target.
MTP = {
    "DeepSeekMTPModel": "deepseek-ai/DeepSeek-V3",
    "DeepseekV32MTPModel": "deepseek-ai/DeepSeek-V3.2",
    "DeepSeekV4MTPModel": "deepseek-ai/DeepSeek-V4-Flash",
    "MiMoMTPModel": "XiaomiMiMo/MiMo-7B-Base",
    "Qwen3_5MTP": "Qwen/Qwen3.6-27B",
    "Qwen3_5MoeMTP": "Qwen/Qwen3.5-35B-A3B",
    "MiniMaxM3MTP": "MiniMaxAI/MiniMax-M3",
    "Step3p5MTP": "stepfun-ai/Step-3.7-Flash",
    "GlmMoeDsaMTPModel": "zai-org/GLM-5",
}


@pytest.mark.parametrize("architecture", sorted(MTP))
def test_mtp_heads_share_embedding_and_head(architecture: str) -> None:
    config = CONFIGS[MTP[architecture]]
    target = import_config(config, "x").model
    draft = import_config({**config, "architectures": [architecture]}, "x").model
    assert (draft.head, draft.embedding, draft.draft_method) == (False, False, "mtp")
    assert len(draft.layers) == len(target.mtp_layers) > 0
    assert 0 < streamed_params(draft) < streamed_params(target)
    projection = 2 * target.hidden_size**2
    assert any(w.size == projection for layer in draft.layers for w in layer.extra)


def test_mtp_of_deepseek_v3_is_what_the_publisher_states() -> None:
    target = load_model("deepseek-v3")
    draft = mtp_draft(target)
    shared = 2 * target.vocab_size * target.hidden_size
    assert round((resident_params(draft) + shared) / 1e9) == 13  # "14B of the MTP module", embedding and head included
    assert draft.quantization == target.quantization
    with pytest.raises(InputError, match="no multi-token prediction layers"):
        mtp_draft(load_model("llama3-8b"))


def test_a_draft_spec_reads_back() -> None:
    model = named("LlamaForCausalLMEagle3", draft_vocab_size=32000).model
    file = ModelFile(model=model)
    assert model_from_text(dump_model_yaml(file), "x") == file


def test_every_named_architecture_has_a_method_or_a_reason() -> None:
    counted, refused = {}, []
    for name in NAMES:
        try:
            counted[name] = draft_method({"architectures": [name]})
        except UnsupportedError as error:
            refused.append(name)
            assert name in str(error)  # noqa: PT017 - either outcome is fine, but both are checked
    assert "" not in counted.values(), [n for n, m in counted.items() if not m]
    assert len(counted) >= 45
    assert {"eagle", "eagle3", "dflash", "medusa", "mlp_speculator", "mtp"} == set(counted.values())


def test_plain_models_are_no_drafts() -> None:
    for config in CONFIGS.values():
        if "draft" not in str(config.get("_source", "")) and config.get("architectures"):
            assert draft_method(config) == ""
