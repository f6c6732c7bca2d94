"""The table of architectures: one row per Hugging Face ``model_type``.

To add an architecture, add a row. Most are one call of `regular` with the traits in which it differs; decoders with a
plan of their own have a builder in `latent`, `hybrid`, `mamba`, `gemma` or `unusual`. Leave out what cannot be counted
exactly, or add it to `REFUSED` with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from specplan.specs.huggingface import gemma, hybrid, latent, mamba, served, unusual
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.mixers import matrix, table, vector
from specplan.specs.huggingface.regular import (
    GROUPED,
    Builder,
    Parts,
    Routed,
    all_sparse,
    dense_start,
    every_layer,
    from_layer,
    gate_projection,
    nextn,
    periodic,
    regular,
    sparse_step,
)
from specplan.values.model import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How configs of one ``model_type`` are counted.

    Attributes
    ----------
    build : callable
        Parts of the model from the config's fields.
    like : str or None
        Type whose recorded defaults and spellings apply, where transformers does not know this one.
    defaults : mapping
        Defaults beside the recorded ones.
    """

    build: Builder
    like: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def _row(build: Builder, like: str | None = None, **defaults: Any) -> Family:
    return Family(build=build, like=like, defaults=MappingProxyType(defaults))


def _qk_all_if_used(f: Fields) -> str:
    return "all" if f.flag("use_qk_norm") else "none"


def _qk_head_if_used(f: Fields) -> str:
    return "head" if f.flag("use_qk_norm") else "none"


def _positions(f: Fields, name: str = "max_position_embeddings", offset: int = 0) -> tuple[Weight, ...]:
    return (table("embedding", "positions", (f.count(name) + offset) * f.hidden),)


def _head_norms(f: Fields) -> tuple[Weight, ...]:
    """Norms with bias on each query and key head (Phi, Persimmon)."""
    return (vector("norms", "qk_norm", 4 * f.head_dim),) if f.flag("qk_layernorm") else ()


def _stablelm_norms(f: Fields) -> tuple[Weight, ...]:
    if not f.flag("qk_layernorm"):
        return ()
    return (vector("norms", "qk_norm", (f.heads + f.kv_heads) * f.head_dim),)


def _falcon(f: Fields) -> Parts:
    """Falcon: one key-value head unless grouped; one or two norms before parallel blocks; ALiBi or rotary positions."""
    grouped = f.flag("new_decoder_architecture")
    kv_heads = f.count("num_kv_heads", f.heads) if grouped or not f.flag("multi_query", True) else 1
    two_norms = not f.flag("parallel_attn", True) or (grouped and f.count("num_ln_in_parallel_attn", 2) == 2)
    return regular(
        qkv_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        gated=False,
        norms=2 if two_norms else 1,
        norm_bias=True,
        width="ffn_hidden_size",
        kv_heads=kv_heads,
    )(f)


def _bigcode(f: Fields) -> Parts:
    """GPT-BigCode: one key-value head for all queries, or one each."""
    kv_heads = 1 if f.flag("multi_query", True) else f.heads
    return _gpt2(f, kv_heads=kv_heads, width="n_inner", positions="n_positions")


def _gpt2(f: Fields, *, kv_heads: int | None = None, width: str = "n_inner", positions: str = "n_positions") -> Parts:
    """GPT-2: fused projections with biases, learned positions."""
    more: dict[str, Any] = {} if kv_heads is None else {"kv_heads": kv_heads}
    return regular(
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        gated=False,
        norm_bias=True,
        width=width,
        extra=lambda g: _positions(g, positions),
        **more,
    )(f)


def _gpt1(f: Fields) -> Parts:
    """GPT: norms after each half instead of before, and none after the last layer."""
    return regular(**_GPT, final_norms=0, extra=lambda g: _positions(g, "n_positions"))(f)


_BIASED: Final[dict[str, Any]] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
_LLAMA: Final = regular(**_BIASED, mlp_bias="mlp_bias")
_GPT: Final[dict[str, Any]] = {
    "qkv_bias": True,
    "output_bias": True,
    "mlp_bias": True,
    "gated": False,
    "norm_bias": True,
}
_QWEN_EXPERTS: Final = Routed(
    count="num_experts", shared_width="shared_expert_intermediate_size", shared_gate=True, sparse=sparse_step
)
_GRANITE_EXPERTS: Final = Routed(
    count="num_local_experts", width="intermediate_size", shared_width="shared_intermediate_size", sparse=all_sparse
)
_NAMED_EXPERTS: Final = Routed(count="num_experts", width="intermediate_size", sparse=all_sparse)
_DEEP_EXPERTS: Final = Routed(count="n_routed_experts", shared_count="n_shared_experts", sparse=dense_start(1))
_LOCAL_EXPERTS: Final = Routed(count="num_local_experts", width="intermediate_size", sparse=all_sparse)

FAMILIES: Final[dict[str, Family]] = {
    # dense
    "llama": _row(_LLAMA),
    "exaone": _row(_LLAMA),
    "internlm3": _row(_LLAMA),
    "iquestcoder": _row(_LLAMA),
    "mistral": _row(regular(windows=every_layer)),
    "ministral": _row(regular(windows=every_layer)),
    "ministral3": _row(regular(windows=every_layer)),
    "qwen2": _row(regular(qkv_bias=True, windows=from_layer)),
    "qwen3": _row(regular(**_BIASED, qk_norm="head", windows=from_layer)),
    "gemma": _row(regular(**_BIASED)),
    "gemma2": _row(regular(**_BIASED, norms=4, windows=periodic(2))),
    "gemma3_text": _row(
        regular(**_BIASED, norms=4, qk_norm="head", windows=periodic("sliding_window_pattern", default=6))
    ),
    "vaultgemma": _row(regular(**_BIASED, windows=periodic(2))),
    "granite": _row(_LLAMA),
    "granite_swa": _row(regular(**_BIASED, mlp_bias="mlp_bias", windows=periodic(4, full_at=0), sinks=True)),
    "cohere": _row(regular(**_BIASED, norms=1, qk_norm=_qk_all_if_used)),
    "cohere2": _row(regular(**_BIASED, norms=1, windows=periodic("sliding_window_pattern"))),
    "olmo": _row(regular(**_BIASED, norms=0, final_norms=0)),
    "olmo2": _row(regular(**_BIASED, qk_norm="all")),
    "olmo3": _row(regular(**_BIASED, qk_norm="all", windows=periodic(4))),
    "exaone4": _row(regular(qk_norm="head", windows=periodic("sliding_window_pattern"))),
    "helium": _row(regular(qkv_bias="attention_bias", mlp_bias="mlp_bias")),
    "phi": _row(regular(**_GPT, norms=1, head_bias=True, layer_extra=_head_norms)),
    "phi3": _row(regular(windows=every_layer)),
    "stablelm": _row(
        regular(
            qkv_bias="use_qkv_bias",
            norm_bias=True,
            norms=lambda f: 1 if f.flag("use_parallel_residual") else 2,
            layer_extra=_stablelm_norms,
        )
    ),
    "starcoder2": _row(
        regular(
            qkv_bias="use_bias",
            output_bias="use_bias",
            mlp_bias="use_bias",
            gated=False,
            norm_bias=True,
            windows=every_layer,
        )
    ),
    "nemotron": _row(regular(**_BIASED, mlp_bias="mlp_bias", gated=False, norm_bias=True)),
    "arcee": _row(regular(**_BIASED, mlp_bias="mlp_bias", gated=False)),
    "apertus": _row(unusual.apertus),
    "bitnet": _row(
        regular(
            **_BIASED,
            layer_extra=lambda f: (vector("norms", "sub_norms", f.hidden + f.count("intermediate_size")),),
        )
    ),
    "diffllama": _row(regular(**_BIASED, layer_extra=lambda f: (vector("attention", "lambda", 4 * f.head_dim),))),
    "glm": _row(regular(qkv_bias="attention_bias")),
    "glm4": _row(regular(qkv_bias="attention_bias", norms=4)),
    "seed_oss": _row(regular(qkv_bias="attention_bias", output_bias="attention_out_bias", mlp_bias="mlp_bias")),
    "smollm3": _row(regular(**_BIASED, mlp_bias="mlp_bias", windows=from_layer)),
    "nanochat": _row(regular(**_BIASED, gated=False, norms=0, final_norms=0)),
    "cwm": _row(regular(mlp_bias="mlp_bias", windows=periodic(4, full_at=0))),
    "hyperclovax": _row(regular(**_BIASED, mlp_bias="mlp_bias", norms=lambda f: 4 if f.flag("use_post_norm") else 2)),
    "ernie4_5": _row(regular(qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias")),
    "hunyuan_v1_dense": _row(regular(**_BIASED, qk_norm="head")),
    "persimmon": _row(regular(**_GPT, layer_extra=_head_norms)),
    "jais2": _row(regular(**_BIASED, mlp_bias="mlp_bias", gated=False, norm_bias=True)),
    "emu3_text_model": _row(_LLAMA),
    "internlm2": _row(regular(qkv_bias="bias", output_bias="bias"), like="llama"),
    "baichuan": _row(regular(), like="llama"),
    "minicpm": _row(regular(**_BIASED), like="llama", tie_word_embeddings=True),
    "phi3_v": _row(regular(windows=every_layer), like="phi3"),
    "dots_ocr": _row(regular(qkv_bias=True, windows=from_layer), like="qwen2"),
    "qwen2_vl_text": _row(regular(qkv_bias=True, windows=from_layer)),
    "qwen2_5_vl_text": _row(regular(qkv_bias=True, windows=from_layer)),
    "qwen2_5_omni_text": _row(regular(qkv_bias=True, windows=from_layer)),
    "qwen3_vl_text": _row(regular(**_BIASED, qk_norm="head")),
    "glm4v_text": _row(regular(qkv_bias=True, norms=4)),
    "glm_ocr_text": _row(regular(norms=4)),
    "paddleocr_vl_text": _row(regular(qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias")),
    "hunyuan_vl_text": _row(regular(**_BIASED, qk_norm="head")),
    "granite4_vision_text": _row(_LLAMA),
    "granite_docling_text": _row(_LLAMA),
    "cosmos3_edge_text": _row(regular(**_BIASED, mlp_bias="mlp_bias", gated=False)),
    "muse_glimmer_text": _row(regular(**_BIASED, norms=4, windows=periodic(4), layer_extra=gate_projection)),
    "molmo2_text": _row(unusual.molmo2),
    "voxtral_realtime_text": _row(
        regular(windows=every_layer, layer_extra=lambda f: (matrix("norms", "adaptive", 2 * 32 * f.hidden),))
    ),
    "apertus1p5_text": _row(unusual.apertus),
    "nemotron-nas": _row(unusual.nemotron_nas, like="llama"),
    "mimo": _row(regular(qkv_bias=True, mtp=nextn), like="qwen2"),
    # GPT-like: learned positions, biases, norms with bias
    "gpt2": _row(_gpt2),
    "gpt-sw3": _row(_gpt2),
    "gpt_bigcode": _row(_bigcode),
    "gpt_neo": _row(
        regular(
            output_bias=True,
            mlp_bias=True,
            gated=False,
            norm_bias=True,
            windows=unusual.gpt_neo_windows,
            extra=_positions,
        )
    ),
    "gpt_neox": _row(
        regular(**_BIASED, mlp_bias=True, gated=False, norm_bias=True),
    ),
    "gpt_neox_japanese": _row(unusual.gpt_neox_japanese),
    "openai-gpt": _row(_gpt1),
    "ctrl": _row(regular(**_GPT, width="dff", head_bias=True)),
    "biogpt": _row(regular(**_GPT, extra=lambda f: _positions(f, offset=2))),
    "gptj": _row(regular(mlp_bias=True, gated=False, norms=1, norm_bias=True, width="n_inner", head_bias=True)),
    "codegen": _row(regular(mlp_bias=True, gated=False, norms=1, norm_bias=True, width="n_inner", head_bias=True)),
    "falcon": _row(_falcon),
    "bloom": _row(regular(**_GPT, extra=lambda f: (vector("norms", "embedding_norm", 2 * f.hidden),), width="n_inner")),
    "opt": _row(unusual.opt),
    "xglm": _row(regular(**_GPT, width="ffn_dim")),
    "mpt": _row(unusual.mpt),
    # mixtures of experts
    "mixtral": _row(regular(routed=_LOCAL_EXPERTS, windows=every_layer)),
    "qwen2_moe": _row(regular(qkv_bias="qkv_bias", routed=_QWEN_EXPERTS, windows=from_layer)),
    "qwen3_moe": _row(
        regular(**_BIASED, qk_norm="head", routed=Routed(count="num_experts", sparse=sparse_step), windows=from_layer)
    ),
    "olmoe": _row(regular(**_BIASED, qk_norm="all", routed=_NAMED_EXPERTS)),
    "flex_olmo": _row(regular(**_BIASED, qk_norm="all", routed=_NAMED_EXPERTS)),
    "phimoe": _row(
        regular(**_BIASED, norm_bias=True, routed=_LOCAL_EXPERTS, head_bias="lm_head_bias", windows=every_layer)
    ),
    "dots1": _row(regular(**_BIASED, qk_norm="head", routed=GROUPED, windows=from_layer)),
    "glm4_moe": _row(
        regular(
            qkv_bias="attention_bias",
            qk_norm=_qk_head_if_used,
            routed=_DEEP_EXPERTS,
            mtp=nextn,
        )
    ),
    "sarvam_moe": _row(
        regular(
            qkv_bias="attention_bias",
            qk_norm=_qk_head_if_used,
            routed=_DEEP_EXPERTS,
            mtp=nextn,
        )
    ),
    "solar_open": _row(
        regular(
            qkv_bias="attention_bias",
            routed=Routed(count="n_routed_experts", shared_count="n_shared_experts", sparse=all_sparse),
        )
    ),
    "gpt_oss": _row(
        regular(
            **_BIASED,
            sinks=True,
            windows=periodic(2),
            routed=Routed(
                count="num_local_experts", width="intermediate_size", bias=True, router_bias=True, sparse=all_sparse
            ),
        )
    ),
    "ernie4_5_moe": _row(unusual.ernie_moe),
    "minimax_m2": _row(regular(qk_norm="all", routed=_LOCAL_EXPERTS)),
    "granitemoe": _row(regular(**_BIASED, routed=_LOCAL_EXPERTS)),
    "granitemoeshared": _row(
        regular(
            **_BIASED,
            routed=_GRANITE_EXPERTS,
        )
    ),
    "granitemoe_swa": _row(
        regular(
            **_BIASED,
            sinks=True,
            windows=periodic(4, full_at=0),
            routed=_GRANITE_EXPERTS,
        )
    ),
    "hunyuan_v1_moe": _row(unusual.hunyuan_moe),
    "aria_text": _row(
        regular(
            **_BIASED,
            mlp_bias="mlp_bias",
            routed=Routed(
                count="moe_num_experts",
                chosen="moe_topk",
                width="intermediate_size",
                shared_count="moe_num_shared_experts",
                shared_bias="mlp_bias",
                sparse=all_sparse,
            ),
        )
    ),
    "cohere2_moe": _row(unusual.cohere_moe),
    "exaone_moe": _row(
        regular(
            qk_norm="head",
            windows=periodic("sliding_window_pattern"),
            routed=Routed(count="num_experts", shared_count="num_shared_experts", sparse=dense_start(1)),
        )
    ),
    "hy_v3": _row(
        regular(
            **_BIASED,
            mlp_bias="mlp_bias",
            qk_norm="head",
            routed=Routed(
                count="num_experts", shared_count="num_shared_experts", shared_bias="mlp_bias", sparse=dense_start(1)
            ),
        )
    ),
    "mellum": _row(
        regular(
            **_BIASED,
            qk_norm="head",
            windows=from_layer,
            routed=Routed(count="num_local_experts", sparse=dense_start(0)),
        )
    ),
    "kolibri1": _row(
        regular(
            qk_norm="head",
            norms=4,
            windows=periodic(5),
            routed=Routed(count="num_local_experts", shared_width="shared_expert_intermediate_size", sparse=all_sparse),
        )
    ),
    "flint": _row(
        regular(
            **_BIASED,
            qk_norm="head",
            sinks=True,
            windows=periodic(4, full_at=1),
            routed=Routed(count="num_experts", shared_width="shared_expert_intermediate_size", sparse=sparse_step),
        )
    ),
    "beam": _row(
        regular(
            **_BIASED,
            qk_norm="head",
            norms=4,
            windows=periodic(6),
            routed=Routed(count="num_experts", sparse=dense_start(3)),
            layer_extra=lambda f: (*gate_projection(f), vector("attention", "gate_bias", f.heads)),
        )
    ),
    "afmoe": _row(
        regular(
            **_BIASED,
            qk_norm="head",
            norms=4,
            windows=periodic("global_attn_every_n_layers"),
            routed=Routed(
                count="num_experts",
                shared_count="num_shared_experts",
                correction=True,
                sparse=unusual.after_dense_layers,
            ),
            layer_extra=gate_projection,
        )
    ),
    "laguna": _row(unusual.laguna),
    "mimo_v2_flash": _row(unusual.mimo_v2),
    "minimax_m3_vl_text": _row(unusual.minimax_m3),
    "minimax_m3": _row(unusual.minimax_m3, like="minimax_m3_vl_text"),
    "step3p5": _row(unusual.step),
    "qwen3_vl_moe_text": _row(
        regular(**_BIASED, qk_norm="head", routed=Routed(count="num_experts", sparse=sparse_step))
    ),
    "qwen3_omni_moe_text": _row(
        regular(**_BIASED, qk_norm="head", routed=Routed(count="num_experts", sparse=sparse_step))
    ),
    "glm4v_moe_text": _row(
        regular(
            qkv_bias="attention_bias",
            routed=_DEEP_EXPERTS,
        )
    ),
    "llama4_text": _row(unusual.llama4),
    "dbrx": _row(unusual.dbrx),
    "jetmoe": _row(unusual.jetmoe),
    "doge": _row(unusual.doge),
    # latent attention
    "deepseek_v2": _row(latent.deepseek(mlp_bias="mlp_bias")),
    "deepseek_v3": _row(latent.deepseek(mtp=nextn)),
    "kimi_k2": _row(latent.deepseek(mtp=nextn), like="deepseek_v3"),
    "deepseek_v32": _row(latent.deepseek(indexer=True, mtp=nextn)),
    "glm_moe_dsa": _row(latent.deepseek(indexer=True, mtp=nextn)),
    "glm4_moe_lite": _row(latent.deepseek(dense=1, mtp=nextn)),
    "sarvam_mla": _row(latent.deepseek(mtp=nextn)),
    "axk1": _row(latent.axk1),
    "axk2": _row(latent.axk2),
    "minicpm3": _row(latent.dense),
    "youtu": _row(latent.dense),
    "longcat_flash": _row(latent.longcat),
    "hy_v4": _row(latent.hy_v4),
    "hy_v4_vl_text": _row(latent.hy_v4),
    "dots3_note_text": _row(latent.dots3_note),
    "deepseek_v4": _row(latent.deepseek_v4),
    "deepseek_ref": _row(latent.deepseek_v4, like="deepseek_v4"),
    "deepseek_ocr2_text": _row(latent.deepseek_ocr),
    "unlimited_ocr_text": _row(latent.deepseek_ocr),
    # hybrids and recurrent decoders
    "qwen3_next": _row(hybrid.qwen3_next),
    "qwen3_5_text": _row(hybrid.qwen3_5),
    "qwen3_5_moe_text": _row(hybrid.qwen3_5),
    "qwen4_exp_text": _row(hybrid.qwen4_exp),
    "lara_mini": _row(hybrid.lara_mini),
    "olmo_hybrid": _row(hybrid.olmo_hybrid),
    "kimi_linear": _row(hybrid.kimi_linear),
    "kimi_k3": _row(hybrid.kimi_linear, like="kimi_linear"),
    "bailing_hybrid": _row(hybrid.bailing_hybrid),
    "glm5_next_text": _row(hybrid.glm5_next),
    "jamba": _row(mamba.jamba),
    "bamba": _row(mamba.bamba),
    "falcon_h1": _row(mamba.falcon_h1),
    "granitemoehybrid": _row(mamba.granite_hybrid),
    "nemotron_h": _row(mamba.nemotron_h),
    "zamba": _row(mamba.zamba),
    "zamba2": _row(mamba.zamba2),
    "mamba": _row(mamba.mamba),
    "falcon_mamba": _row(mamba.mamba),
    "mamba2": _row(mamba.mamba2_decoder),
    "lfm2": _row(hybrid.lfm2),
    "lfm2_moe": _row(hybrid.lfm2_moe),
    "lfm3": _row(hybrid.lfm3),
    "minimax": _row(hybrid.minimax),
    "recurrent_gemma": _row(hybrid.recurrent_gemma),
    "rwkv": _row(hybrid.rwkv),
    "xlstm": _row(hybrid.xlstm),
    # served by engines from their own modules
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), _row(served.bailing_moe, like="llama")),
    "chatglm": _row(served.chatglm, like="llama"),
    "deepseek": _row(regular(**_BIASED, routed=GROUPED), like="llama"),
    "iquestloopcoder": _row(served.iquest_loop, like="llama"),
    "longcat_flash_ngram": _row(served.longcat_ngram, like="longcat_flash"),
    "mimo_v2": _row(unusual.mimo_v2, like="mimo_v2_flash"),
    "mistral4": _row(latent.deepseek()),
    "mistral_large_3": _row(latent.deepseek(mtp=nextn), like="deepseek_v3"),
    "orion": _row(regular(norm_bias=True), like="llama"),
    **dict.fromkeys(("PanguEmbedded", "pangu_embedded"), _row(served.pangu_embedded, like="llama")),
    "pangu_ultra_moe": _row(served.pangu_ultra_moe, like="llama"),
    "plamo3": _row(served.plamo3, like="llama", tie_word_embeddings=True),
    "rnj1": _row(
        regular(**_BIASED, norms=4, qk_norm="head", windows=periodic("sliding_window_pattern", default=6)),
        like="gemma3_text",
    ),
    "solar": _row(_LLAMA, like="llama"),
    "step1": _row(regular(), like="llama"),
    "step3_text": _row(served.step3, like="llama"),
    "telechat": _row(served.telechat2, like="llama"),
    "telechat3": _row(_LLAMA, like="llama"),
    "TeleFLM": _row(_LLAMA, like="llama"),
    # others
    "gemma3n_text": _row(gemma.gemma3n),
    "gemma4_text": _row(gemma.gemma4),
    "gemma4_unified_text": _row(gemma.gemma4),
    "hrm_text": _row(unusual.hrm),
    "inkling_text": _row(unusual.inkling),
    "mllama_text_model": _row(unusual.mllama),
    "phi4_multimodal": _row(regular(windows=every_layer)),
}
"""``model_type`` -> how it is counted."""

_ENCODERS: Final = (
    "bart",
    "bert",
    "bert-generation",
    "big_bird",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "git",
    "marian",
    "mbart",
    "megatron-bert",
    "modernbert-decoder",
    "musicgen",
    "musicgen_melody",
    "mvp",
    "pegasus",
    "plbart",
    "prophetnet",
    "reformer",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "trocr",
    "whisper",
    "xlm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xlnet",
    "xmod",
)

REFUSED: Final[dict[str, str]] = {
    **dict.fromkeys(_ENCODERS, "an encoder or encoder-decoder with a language-model head; no engine drafts for it"),
    **dict.fromkeys(
        ("moshi", "cohere_compass_text"),
        "multimodal, and its config does not hold its text decoder's",
    ),
    "nemotron_h_puzzle": "its experts differ from layer to layer by block_configs, which has no counted form yet",
    "bailing_moe_linear": "lightning attention with norms by group beside latent attention has no counted form yet",
    "k2_horizon": "its values are routed through experts of their own, which have no counted form yet",
    "PanguProMoE": "its attention keeps learned sink keys and values, which have no counted form yet",
    "param2moe": "no config of it is public to count against",
    "rwkv7": "its low-rank decays, gates and mixes of values have no counted form yet",
    "phi4flash": "differential attention over a cache that later layers share has no counted form yet, and vLLM's "
    "registry holds no class of it any more",
    "blt": "byte-latent: the decoder runs on patches of bytes, not on tokens",
    "ernie4_5_vl_moe_text": "its image experts are of another size and route apart from its text experts",
    "mistral_large4_text": "latent attention that reads another layer's cache has no counted form yet",
    "muse_spark_text": "its attention has no counted form yet",
    "cpmant": "its segment and position tables have no counted form",
    "dory": "layers run in loops with a cache of their own in each pass",
    "inkling2_text": "attention over blocks of earlier layers has no counted form yet",
    "inkling2_loop_text": "layers run in loops with a cache of their own in each pass",
    "zaya": "convolutional queries and keys have no counted form yet",
    "gemma4_assistant": "a draft that shares its target's cache; its config alone does not describe it",
    "gemma4_unified_assistant": "a draft that shares its target's cache; its config alone does not describe it",
}
"""``model_type`` -> why it is not counted."""
