"""Draft heads: what they hold, what they add to the cache, what they share with their target."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specplan.decide.cost import cost
from specplan.decide.source import Source
from specplan.decide.step_source import loads
from specplan.errors import InputError, UnsupportedError
from specplan.formulas.kv_cache import kv_bytes_per_token
from specplan.formulas.pairing import check_pair, mismatches
from specplan.formulas.parameters import (
    gathered_params,
    layer_weights,
    resident_bytes,
    resident_params,
    streamed_params,
)
from specplan.specs.catalog import load_draft, load_model
from specplan.specs.hardware import load_accelerator
from specplan.specs.huggingface.config import import_config
from specplan.specs.huggingface.draft_registry import draft_method
from specplan.specs.huggingface.drafts import mtp_draft
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
    own_embedding = 128256 * 4096  # the target's is of another width
    assert resident_params(wide) - resident_params(plain) == 3 * 4096 * 4096 + own_embedding
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
    assert {"eagle", "eagle3", "dflash", "dspark", "medusa", "mlp_speculator", "mtp"} == set(counted.values())


def test_plain_models_are_no_drafts() -> None:
    for config in CONFIGS.values():
        if "draft" not in str(config.get("_source", "")) and config.get("architectures"):
            assert draft_method(config) == ""


QWEN38_DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 17408,
    "vocab_size": 248320,
    "sliding_window": 2048,
    "layer_types": ["sliding_attention"] * 5,
    "torch_dtype": "bfloat16",
    "block_size": 8,
    "dflash_config": {
        "target_layer_ids": [1, 16, 31, 46, 61],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}


def test_dflash2_is_its_backbone_its_convolutions_and_its_selector() -> None:
    """Figures of the published Qwen3.8-27B drafter (3.85 GB in bfloat16)."""
    model = import_config(QWEN38_DFLASH2, "x").model
    backbone = {**QWEN38_DFLASH2, "architectures": ["DFlashDraftModel"]}
    backbone["dflash_config"] = {"target_layer_ids": [1, 16, 31, 46, 61]}
    plain = import_config(backbone, "x").model
    assert resident_params(plain) == 1_730_213_120
    by_name = {w.name: w.size * w.copies for w in model.extra}
    assert by_name["conv_kernels"] + by_name["conv_proj"] == 65_740_800
    assert by_name["selector_codebooks"] + by_name["selector_proj"] == 128_450_560
    assert resident_params(model) == 1_730_213_120 + 65_740_800 + 128_450_560
    assert {layer.mixer.window for layer in model.layers} == {2048}  # type: ignore[union-attr]
    assert gathered_params(model) == 2 * 248320 * 256


def test_domino_adds_a_gru_and_a_low_rank_correction() -> None:
    base = {**QWEN38_DFLASH2, "architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [1, 2, 3]}}
    plain = import_config(base, "x").model
    head = {"projector_type": "domino", "gru_hidden_dim": 1024, "emb_dim": 256}
    domino = import_config({**base, "dflash_config": {"target_layer_ids": [1, 2, 3], **head}}, "x").model
    added = 3 * 1024 * (5120 + 1024) + 256 * (5120 + 1024) + 256 * 248320
    assert resident_params(domino) - resident_params(plain) == added


def test_dspark_adds_a_markov_head_and_a_confidence() -> None:
    base = {**QWEN38_DFLASH2, "architectures": ["Qwen3DSparkModel"], "dflash_config": None}
    base |= {"target_layer_ids": [1, 2, 3, 4, 5], "markov_rank": 256, "markov_head_type": "vanilla", "block_size": 7}
    bare = import_config(base, "x").model
    assert (bare.draft_method, bare.head, bare.embedding) == ("dspark", False, False)
    assert resident_params(bare) == 1_730_213_120 + 2 * 248320 * 256
    sure = import_config({**base, "enable_confidence_head": True, "confidence_head_with_markov": True}, "x").model
    assert resident_params(sure) - resident_params(bare) == 5120 + 256 + 1


def test_a_window_over_all_layers_and_a_head_of_its_own() -> None:
    base = {**QWEN38_DFLASH2, "architectures": ["DFlashDraftModel"]}
    base = {k: v for k, v in base.items() if k not in ("layer_types", "sliding_window")}
    config = {**base, "dflash_config": {"target_layer_ids": [1], "use_swa": True, "swa_window_size": 512}}
    assert {layer.mixer.window for layer in import_config(config, "x").model.layers} == {512}  # type: ignore[union-attr]
    own = import_config({**config, "has_own_lm_head": True}, "x").model
    assert own.head
    assert streamed_params(own) - streamed_params(import_config(config, "x").model) == 248320 * 5120
    config["dflash_config"] = {"target_layer_ids": [1], "use_swa": True}
    with pytest.raises(InputError, match="swa_window_size"):
        import_config(config, "x")


def test_eagle3_variants() -> None:
    base = named("LlamaForCausalLMEagle3", draft_vocab_size=32000).model
    h = 4096
    alone = named("LlamaForCausalLMEagle3", draft_vocab_size=32000, eagle_config={"use_aux_hidden_state": False}).model
    assert resident_params(base) - resident_params(alone) == 3 * h * h
    four = named("LlamaForCausalLMEagle3", draft_vocab_size=32000, num_aux_hidden_states=4).model
    assert resident_params(four) - resident_params(base) == h * h
    normed = named("LlamaForCausalLMEagle3", draft_vocab_size=32000, norm_before_fc=True, fc_norm=True).model
    assert resident_params(normed) - resident_params(base) == 2 * 3 * h  # EAGLE-3.1
    other = named("LlamaForCausalLMEagle3", draft_vocab_size=32000, target_hidden_size=5120).model
    assert (other.embedding, other.target_hidden_size) == (True, 5120)
    assert gathered_params(other) == 128256 * h
    by_field = named("LlamaForCausalLM", draft_vocab_size=32000).model
    assert by_field.draft_method == "eagle3"
    assert resident_params(by_field) == resident_params(base)
    assert resident_params(named("PEagleDraftModel", draft_vocab_size=32000).model) == resident_params(base)


def test_a_speculators_file() -> None:
    layer = {k: v for k, v in LLAMA.items() if k != "torch_dtype"}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 32000,
        "norm_before_residual": True,
        "transformer_layer_config": layer,
        "torch_dtype": "bfloat16",
    }
    found = import_config(config, "x").model
    assert resident_params(found) == resident_params(named("LlamaForCausalLMEagle3", draft_vocab_size=32000).model)
    with pytest.raises(UnsupportedError, match="speculators_model_type 'owl'"):
        import_config({**config, "architectures": ["X"], "speculators_model_type": "owl"}, "x")


def test_a_name_alone_makes_no_draft() -> None:
    for name in ("EagleEyeForCausalLM", "MedusaXForCausalLM", "DFlashyModel", "XMTPForCausalLM"):
        assert draft_method({"architectures": [name], "model_type": "llama"}) == "", name


def test_a_prediction_layer_has_an_indexer_of_its_own() -> None:
    """GLM-5.2: later layers use an earlier layer's choice, the MTP layer has none before it (9,371,904 parameters)."""
    config = {**CONFIGS["zai-org/GLM-5"], "num_nextn_predict_layers": 1}
    n = config["num_hidden_layers"]
    shared = {**config, "indexer_types": ["full"] * 3 + ["shared"] * (n - 3)}
    target, plain = import_config(shared, "x").model, import_config(config, "x").model
    last, mtp = target.layers[-1], target.mtp_layers[0]
    assert last.mixer.index_shared  # type: ignore[union-attr]
    assert resident_params(mtp_draft(target)) == resident_params(mtp_draft(plain))
    alone = {w.name: w.size for w in layer_weights(mtp, 6144)}
    assert alone["indexer"] + alone["indexer_norm"] == 9_371_904


def test_mimo_carries_three_dense_sliding_layers() -> None:
    target = import_config(CONFIGS["XiaomiMiMo/MiMo-V2-Flash"], "x").model
    assert resident_params(target) == 308_778_768_832
    assert len(target.mtp_layers) == 3
    assert {layer.mixer.window for layer in target.mtp_layers} == {128}  # type: ignore[union-attr]
    h, width = 4096, 16384
    attention = 64 * 192 * h + 8 * 192 * h + 8 * 128 * h + 64 * 128 * h
    each = attention + 3 * h * width + 2 * h * h
    assert streamed_params(mtp_draft(target)) == 3 * each


def test_deepseek_v4_drafts_with_three_dspark_stages() -> None:
    config = CONFIGS["deepseek-ai/DeepSeek-V4-Flash"]
    dspark = {"dspark_block_size": 5, "dspark_target_layer_ids": [1, 20, 40], "dspark_markov_rank": 256}
    target = import_config({**config, **dspark}, "x").model
    draft = mtp_draft(target)
    assert len(draft.layers) == 3
    plain = mtp_draft(import_config({**config, "num_nextn_predict_layers": 1}, "x").model)
    h, vocab = config["hidden_size"], config["vocab_size"]
    # Against one prediction layer: two more bare stages, three states to join instead of two, and a Markov head.
    bare = sum(w.size * w.copies for w in layer_weights(draft.layers[1], h))
    added = 2 * bare + h * h + 2 * vocab * 256 + (h + 256 + 1) - h
    assert resident_params(draft) - resident_params(plain) == added


def test_a_draft_belongs_to_its_target() -> None:
    """Each refused pair, with the two sizes."""
    head = named("LlamaForCausalLMEagle3", draft_vocab_size=32000).model
    refused: list[tuple[Any, str, str]] = [
        (head, "qwen3-32b", "reads hidden states of 4096, the target has 5120"),
        (head, "qwen3-8b", "has a vocabulary of 128256, the target of 151936"),
        (named("EagleLlamaForCausalLM").model, "llama3-70b", "reads hidden states of 4096, the target has 8192"),
        (
            named("LlamaForCausalLMEagle3", draft_vocab_size=32000, eagle_aux_hidden_state_layer_ids=[2, 16, 40]).model,
            "llama3.1-8b",
            "reads layer 40, the target has 32",
        ),
        (import_config(QWEN38_DFLASH2, "x").model, "qwen3-32b", "has a vocabulary of 248320, the target of 151936"),
    ]
    for draft, name, message in refused:
        target = load_model(name)
        with pytest.raises(InputError, match=message):
            check_pair(draft, target)
        with pytest.raises(InputError, match=message):
            cost(target, load_accelerator("h100-sxm"), draft=draft, tp=4)
        with pytest.raises(InputError, match=message):
            loads(target, Source(name="x", kind="model", model=draft), 4)
    check_pair(head, load_model("llama3.1-8b"))
    check_pair(import_config(QWEN38_DFLASH2, "x").model, load_model("qwen3.8-27b"))
    wide = named("LlamaForCausalLMEagle3", draft_vocab_size=32000, target_hidden_size=8192).model
    check_pair(wide, load_model("llama3.3-70b"))


def test_a_cache_that_is_shared_has_the_targets_heads() -> None:
    target = load_model("llama3.1-8b")
    reading = replace(target.layers[0].mixer, shares_kv=True)  # type: ignore[type-var]
    draft = replace(target, name="assistant", draft_method="mtp", layers=(replace(target.layers[0], mixer=reading),))
    assert mismatches(draft, target) == ()
    other = replace(draft, layers=(replace(target.layers[0], mixer=replace(reading, kv_heads=4)),))
    assert mismatches(other, target) == ("reads a cache of 4 heads of 128, no layer of the target keeps one",)


def test_a_method_without_a_model_offers_the_published_pairs() -> None:
    with pytest.raises(InputError, match=r"yuhuili/EAGLE3-LLaMA3\.1-Instruct-8B"):
        load_draft("eagle3", load_model("llama3.1-8b"))
    assert load_draft("mtp", load_model("deepseek-v3")).draft_method == "mtp"
    with pytest.raises(InputError, match="no multi-token prediction layers"):
        load_draft("mtp", load_model("llama3.1-8b"))
