"""Decoders that engines serve and transformers does not know: totals that publishers or checkpoints state."""

from collections import Counter
from typing import Any

import pytest

from specplan.errors import UnsupportedError
from specplan.formulas.parameters import params_by_component, resident_params
from specplan.specs.huggingface.config import import_config
from specplan.specs.huggingface.families import FAMILIES, REFUSED
from specplan.specs.huggingface.fields import served_classes
from specplan.specs.huggingface.status import class_statuses

CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    "THUDM/glm-4-9b-chat": (
        9_399_951_360,
        {
            "architectures": ["ChatGLMModel"], "model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True,
            "ffn_hidden_size": 13696, "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True,
            "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 40, "padded_vocab_size": 151552,
            "vocab_size": 151552, "rmsnorm": True, "post_layer_norm": True, "seq_length": 131072,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "original_rope": True,
            "apply_query_key_layer_scaling": True, "fp32_residual_connection": False, "interleaved_qkv": False,
            "attention_softmax_in_fp32": True, "bias_dropout_fusion": True,
        },
    ),
    "deepseek-ai/deepseek-moe-16b-base": (
        16_375_728_128,
        {
            "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "hidden_size": 2048,
            "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64,
            "num_experts_per_tok": 6, "moe_layer_freq": 1, "first_k_dense_replace": 1, "vocab_size": 102400,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        },
    ),
    "meituan-longcat/LongCat-Flash-Lite": (
        68_562_459_648,
        {
            "architectures": ["LongcatFlashNgramForCausalLM"], "model_type": "longcat_flash_ngram",
            "hidden_size": 3072, "num_layers": 14, "vocab_size": 131072, "ffn_hidden_size": 6144,
            "expert_ffn_hidden_size": 1024, "n_routed_experts": 256, "zero_expert_num": 128, "moe_topk": 12,
            "num_attention_heads": 32, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128, "attention_bias": False, "router_bias": False,
            "ngram_vocab_size_ratio": 78, "emb_neighbor_num": 4, "emb_split_num": 4, "torch_dtype": "bfloat16",
            "tie_word_embeddings": False,
        },
    ),
    "moonshotai/Kimi-K3": (
        2_779_484_395_776,
        {
            "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
            "text_config": {
                "model_type": "kimi_linear", "hidden_size": 7168, "num_hidden_layers": 93, "num_attention_heads": 96,
                "num_key_value_heads": 96, "intermediate_size": 33792, "vocab_size": 163840, "num_experts": 896,
                "num_experts_per_token": 16, "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584,
                "latent_moe_use_norm": True, "num_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
                "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                "v_head_dim": 128, "mla_use_nope": True, "mla_use_output_gate": True, "attn_res_block_size": 12,
                "linear_attn_config": {
                    "full_attn_layers": [*range(4, 93, 4), 93], "num_heads": 96, "head_dim": 128,
                    "short_conv_kernel_size": 4, "gate_lower_bound": -5.0, "use_full_rank_gate": True,
                },
                "dtype": "bfloat16", "tie_word_embeddings": False,
            },
            "vision_config": {"patch_size": 14},
        },
    ),
    "inclusionAI/Ling-mini-2.0": (
        16_255_643_392,
        {
            "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "hidden_size": 2048,
            "intermediate_size": 5120, "moe_intermediate_size": 512, "num_hidden_layers": 20, "head_dim": 128,
            "num_attention_heads": 16, "num_key_value_heads": 4, "num_experts": 256, "num_experts_per_tok": 8,
            "num_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True, "use_bias": False,
            "use_qkv_bias": False, "moe_router_enable_expert_bias": True, "vocab_size": 157184,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "n_group": 8, "topk_group": 4,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_totals(name: str) -> None:
    total, config = CONFIGS[name]
    assert resident_params(import_config(config, name).model) == total, params_by_component(
        import_config(config, name).model
    )


def test_at_least_112_of_the_118_text_classes_are_counted_or_refused_by_a_reason() -> None:
    statuses = class_statuses()
    assert len(statuses) == len(served_classes()) == 118
    counts = Counter(s.status for s in statuses)
    assert counts["exact"] + counts["counted"] + counts["wrapper"] >= 112
    assert all(model_type in FAMILIES or model_type in REFUSED for model_type in served_classes().values())


def test_a_class_decides_where_the_type_is_a_name_of_its_own() -> None:
    total, config = CONFIGS["deepseek-ai/deepseek-moe-16b-base"]
    assert resident_params(import_config({**config, "model_type": "my_moe"}, "x").model) == total
    with pytest.raises(UnsupportedError, match="k2_horizon"):
        import_config({**config, "model_type": "k2", "architectures": ["K2HorizonForCausalLM"]}, "x")


def test_mimo_of_the_second_version_is_counted_by_its_row() -> None:
    from tests.specs.test_imported_configs import CONFIGS as FILES

    config = {**FILES["XiaomiMiMo/MiMo-V2-Flash"], "model_type": "mimo_v2", "architectures": ["MiMoV2ForCausalLM"]}
    assert resident_params(import_config(config, "MiMo-V2.5").model) == 308_778_768_832


def test_orion_is_llama_with_biases_on_its_norms() -> None:
    fields = {
        "hidden_size": 5120, "intermediate_size": 15360, "num_hidden_layers": 40, "num_attention_heads": 40,
        "vocab_size": 84608, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    orion, llama = (resident_params(import_config({"model_type": t, **fields}, t).model) for t in ("orion", "llama"))
    assert orion - llama == (2 * 40 + 1) * 5120


def test_telechat_has_biases_on_output_and_down_projections() -> None:
    fields = {
        "hidden_size": 4096, "num_key_value_heads": 32, "vocab_size": 1000, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    own = {"model_type": "telechat", "n_layer": 3, "n_head": 32, "ffn_hidden_size": 12288, **fields}
    plain = {
        "model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 32, "intermediate_size": 12288, **fields
    }  # fmt: skip
    counts = [resident_params(import_config(c, "x").model) for c in (own, plain)]
    assert counts[0] - counts[1] == 3 * 2 * 4096


def test_an_extract_without_the_sizes_of_kimi_k3_is_refused() -> None:
    from tests.specs.test_imported_configs import CONFIGS as FILES

    with pytest.raises(UnsupportedError, match="routed_expert_hidden_size"):
        import_config(FILES["moonshotai/Kimi-K3"], "x")
