"""Decoders that engines serve and transformers has no modules for: counted from the engine's own modules.

Each builder follows the class of vLLM 0.32 named in its docstring.
"""

import dataclasses
from typing import Any

from specplan.errors import InputError
from specplan.specs.huggingface import latent as latents
from specplan.specs.huggingface.fields import MAX_LAYERS, Fields
from specplan.specs.huggingface.mixers import attention, latent, matrix, present, table, vector
from specplan.specs.huggingface.regular import Parts, Routed, dense_first, experts, mtp_layer, regular, window_size
from specplan.values.model import Attention, DenseMLP, LatentAttention, Layer, Shard, Weight


def bailing_moe(f: Fields) -> Parts:
    """Ling and Ring, first and second generation (BailingMoe, BailingMoeV2): fused qkv, dense layers first."""
    n = f.n_layers
    bias = f.flag("use_bias")
    mixer = attention(
        f,
        qkv_bias=bias or f.flag("use_qkv_bias"),
        output_bias=bias,
        qk_norm="head" if f.flag("use_qk_norm") else "none",
    )
    routed = experts(f, Routed(count="num_experts", shared_bias="use_bias", bias="use_bias"))
    each = f.count("moe_shared_expert_intermediate_size", None) or routed.width
    correction = f.count("num_experts") if f.flag("moe_router_enable_expert_bias") else 0
    routed = dataclasses.replace(routed, shared_width=f.count("num_shared_experts", 0, least=0) * each)
    sparse = Layer(mixer=mixer, feed_forward=routed, extra=present(vector("router", "expert_bias", correction)))
    dense = Layer(mixer=mixer, feed_forward=DenseMLP(width=f.count("intermediate_size"), bias=bias))
    layers = tuple(sparse if s else dense for s in dense_first(f, n, 0))
    return Parts(layers=layers, mtp_layers=mtp_layer(f, sparse, f.count("num_nextn_predict_layers", 0, least=0)))


def chatglm(f: Fields) -> Parts:
    """ChatGLM2/3 and GLM-4 in their own spelling (ChatGLMModel): grouped queries, biases on qkv alone."""
    n = f.count("num_layers")
    if n > MAX_LAYERS:
        raise InputError(f"{f.where}: field 'num_layers' must be at most {MAX_LAYERS}, got {n}")
    grouped = f.flag("multi_query_attention")
    bias = f.flag("add_bias_linear")
    mixer = attention(
        f,
        kv_heads=f.count("multi_query_group_num") if grouped else f.heads,
        head_dim=f.count("kv_channels", f.hidden // f.heads),
        qkv_bias=bias or f.flag("add_qkv_bias"),
        output_bias=bias,
    )
    f.flag("rmsnorm", True)
    layer = Layer(mixer=mixer, feed_forward=DenseMLP(width=f.count("ffn_hidden_size"), bias=bias))
    return Parts(
        layers=(layer,) * n,
        final_norm_vectors=1 if f.flag("post_layer_norm", True) else 0,
        vocab_size=f.count("padded_vocab_size"),
        tied=f.flag("tie_word_embeddings"),
    )


def telechat2(f: Fields) -> Parts:
    """TeleChat2: LLaMA's plan with biases on output and down projections alone."""
    n, hidden = f.count("n_layer", None) or f.n_layers, f.hidden
    heads = f.count("n_head", None) or f.heads
    kv_heads = f.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise InputError(f"{f.where}: {heads} attention heads are not a multiple of {kv_heads} key-value heads")
    mixer = Attention(heads=heads, kv_heads=kv_heads, head_dim=hidden // heads, output_bias=True)
    width = f.count("ffn_hidden_size", None) or f.count("intermediate_size")
    layer = Layer(mixer=mixer, feed_forward=DenseMLP(width=width), extra=(vector("mlp", "down_bias", hidden),))
    return Parts(layers=(layer,) * n)


def plamo3(f: Fields) -> Parts:
    """PLaMo 3: norms before and after both halves, norms on heads, windows by the config's list."""
    n = f.n_layers
    listed = f.items("interleaved_sliding_window")
    if listed is None:
        types = f.words("layer_types", n) or ["full_attention"] * n
        listed = [window_size(f, "window_size") or window_size(f) if "sliding" in kind else None for kind in types]
    if len(listed) < n:
        raise InputError(f"{f.where}: field 'interleaved_sliding_window' has {len(listed)} entries for {n} layers")
    f.words("layer_types", n)
    mlp = DenseMLP(width=f.count("intermediate_size"))
    windows = [None if w is None else f.whole(w, "interleaved_sliding_window") for w in listed[:n]]
    return Parts(
        layers=tuple(
            Layer(mixer=attention(f, window=w, qk_norm="head"), feed_forward=mlp, norm_vectors=4) for w in windows
        )
    )


def pangu_embedded(f: Fields) -> Parts:
    """Pangu Embedded: biases on every attention projection where the config says ``bias``."""
    return regular(
        qkv_bias=lambda g: g.flag("bias") or g.flag("attention_bias"),
        output_bias=lambda g: g.flag("bias") or g.flag("attention_bias"),
        mlp_bias="mlp_bias",
    )(f)


def pangu_ultra_moe(f: Fields) -> Parts:
    """Pangu Ultra MoE: DeepSeek's plan with norms before and after both halves."""
    if f.has("attention_kv_lora_dim"):  # the latent's sizes in Pangu's own spelling
        sizes: dict[str, Any] = {
            "heads": f.heads,
            "q_rank": f.count("attention_q_lora_dim", None),
            "kv_rank": f.count("attention_kv_lora_dim"),
            "nope_dim": f.count("attention_qk_dim"),
            "rope_dim": f.count("attention_qk_rope_dim"),
            "v_head_dim": f.count("attention_v_dim"),
        }
        mixer = LatentAttention(**sizes)
    else:
        mixer = latent(f)
    norms = 4 if f.flag("sandwich_norm") else 2
    count = "num_routed_experts" if f.has("num_routed_experts") else "n_routed_experts"
    shared = "num_shared_experts" if f.has("num_shared_experts") else "n_shared_experts"
    routed, mlp = experts(f, Routed(count=count, shared_count=shared)), DenseMLP(width=f.count("intermediate_size"))
    first = f.count("num_dense_layers", None, least=0)
    n = f.n_layers
    sparse = dense_first(f, n, 0) if first is None else [i >= first for i in range(n)]
    layers = tuple(Layer(mixer=mixer, feed_forward=routed if s else mlp, norm_vectors=norms) for s in sparse)
    n_mtp = f.count("num_mtp_layers", None, least=0) or f.count("num_nextn_predict_layers", 0, least=0)
    return Parts(layers=layers, mtp_layers=mtp_layer(f, layers[-1], n_mtp))


def step3(f: Fields) -> Parts:
    """Step-3 text: queries through a shared projection, one key-value head, a shared expert beside the routed ones."""
    n, hidden = f.n_layers, f.hidden
    dim, heads = f.head_dim, f.heads
    inner = f.count("share_q_dim", None) or dim
    mixer = attention(f, kv_heads=1, head_dim=dim)
    own: tuple[Weight, ...] = (
        matrix("attention", "qkv_down", (inner + 2 * dim) * hidden, Shard.REPLICATE),
        vector("norms", "inter_norm", inner),
        matrix("attention", "q_proj", heads * dim * inner),
        matrix("attention", "o_proj", heads * dim * hidden),
        vector("norms", "norms", 2 * hidden),
    )
    stated = f.raw("moe_layers_enum", None)
    if isinstance(stated, str):
        sparse = {f.whole(int(i), "moe_layers_enum", 0) for i in stated.split(",") if i.strip().isdigit()}
    else:
        sparse = set(f.counts("moe_layers_enum") or range(1, n))
    count, chosen, width = f.count("moe_num_experts"), f.count("moe_top_k"), f.count("moe_intermediate_size")
    shared = f.count("share_expert_dim")
    routed = experts(f, Routed(count="moe_num_experts", chosen="moe_top_k"))
    moe = (
        matrix("router", "router", count * hidden, Shard.REPLICATE, quantizable=False),
        matrix("experts", "mlp", 3 * width * hidden, routed=(count, chosen), copies=count),
        matrix("shared_experts", "mlp", 3 * shared * hidden),
    )
    dense = DenseMLP(width=f.count("intermediate_size"))
    mlp = (matrix("mlp", "mlp", 3 * dense.width * hidden),)
    kinds = {
        True: Layer(mixer=mixer, feed_forward=routed, extra=(*own, *moe), only_extra=True),
        False: Layer(mixer=mixer, feed_forward=dense, extra=(*own, *mlp), only_extra=True),
    }
    return Parts(layers=tuple(kinds[i in sparse] for i in range(n)))


def iquest_loop(f: Fields) -> Parts:
    """IQuest-Coder Loop: LLaMA's layers walked twice, the second time over a window beside the first loop's cache."""
    n = f.n_layers
    loops, window = f.count("loop_num", 2), f.count("loop_window_size", 64)
    bias = f.flag("attention_bias")
    mlp = DenseMLP(width=f.count("intermediate_size"), bias=f.flag("mlp_bias"))
    gate = (matrix("attention", "loop_gate", f.heads * f.head_dim), vector("attention", "loop_gate_bias", f.heads))
    first = Layer(mixer=attention(f, qkv_bias=bias, output_bias=bias), feed_forward=mlp, extra=gate)
    again = Layer(mixer=attention(f, window=window), feed_forward=mlp, only_extra=True)
    f.assume(f"the layers' weights are stored once and streamed once per pass, though {loops} loops read them")
    return Parts(layers=((first,) * n) + (again,) * (n * (loops - 1)))


def longcat_ngram(f: Fields) -> Parts:
    """LongCat-Flash-Lite: LongCat-Flash with hashed n-gram tables beside the embedding (LongcatFlashNgram)."""
    parts = latents.longcat(f)
    ratio = f.count("ngram_vocab_size_ratio")
    n = f.count("emb_split_num") * (f.count("emb_neighbor_num", least=2) - 1)
    if n > 1000 or f.hidden % n:
        raise InputError(f"{f.where}: {n} n-gram tables do not divide hidden_size {f.hidden}")
    width = f.hidden // n
    # Each table has two rows more than the one before it, so that their hashes differ.
    rows = sum(ratio * f.count("vocab_size") + 2 * i + 1 for i in range(n))
    tables = (
        table("embedding", "ngram_tables", rows * width),
        matrix("embedding", "ngram_proj", width * f.hidden, Shard.REPLICATE, copies=n, quantizable=False),
    )
    return dataclasses.replace(parts, extra=(*parts.extra, *tables))
