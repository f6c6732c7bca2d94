"""Token mixers from config fields: attention, latent attention, and the recurrent kinds with their states."""

from typing import Any

from specplan.errors import InputError
from specplan.specs.huggingface.fields import Fields
from specplan.values.formats import lookup
from specplan.values.model import Access, Attention, LatentAttention, Recurrent, Shard, Weight


def matrix(component: str, name: str, size: int, shard: Shard = Shard.SPLIT, **more: Any) -> Weight:
    """Matmul weight."""
    return Weight(component=component, name=name, size=size, shard=shard, **more)


def vector(component: str, name: str, size: int, shard: Shard = Shard.REPLICATE) -> Weight:
    """Elementwise weight: a norm, a bias, a decay, a convolution's kernel."""
    return Weight(component=component, name=name, size=size, access=Access.ELEMENTWISE, shard=shard, quantizable=False)


def table(component: str, name: str, size: int) -> Weight:
    """Lookup table of which a pass reads single rows."""
    return Weight(component=component, name=name, size=size, access=Access.LOOKUP, quantizable=False)


def present(*weights: Weight | None) -> tuple[Weight, ...]:
    """The weights that are there and hold something."""
    return tuple(w for w in weights if w is not None and w.size)


def markov_head(f: Fields, rank: int, confidence: bool, with_markov: bool) -> tuple[Weight, ...]:
    """DSpark's Markov head: rows of one table, the whole of another as a bias on the logits; one linear confidence."""
    rows = f.count("draft_vocab_size", None) or f.count("vocab_size")
    return present(
        table("embedding", "markov_w1", f.count("vocab_size") * rank),
        matrix("head", "markov_w2", rank * rows, Shard.REPLICATE, quantizable=False),
        vector("head", "confidence", (f.hidden + (rank if with_markov else 0) + 1) if confidence else 0),
    )


def _r(name: str, size: int, shard: Shard = Shard.SPLIT) -> Weight:
    return matrix("recurrent", name, size, shard)


def _v(name: str, size: int, shard: Shard = Shard.SPLIT) -> Weight:
    return vector("recurrent", name, size, shard)


def latent(f: Fields, *, indexer: bool = False, **more: Any) -> LatentAttention:
    """Multi-head latent attention in DeepSeek's spelling; `more` are fields of `LatentAttention`."""
    fields: dict[str, Any] = {
        "heads": f.heads,
        "q_rank": f.count("q_lora_rank", None),
        "kv_rank": f.count("kv_lora_rank"),
        "nope_dim": f.count("qk_nope_head_dim"),
        "rope_dim": f.count("qk_rope_head_dim", least=0),
        "v_head_dim": f.count("v_head_dim"),
    }
    f.raw("head_dim", None)  # some configs call the rotated part so; nothing is sized by it
    if f.count("qk_head_dim", None) not in (None, fields["nope_dim"] + fields["rope_dim"]):
        raise InputError(f"{f.where}: field 'qk_head_dim' is not qk_nope_head_dim and qk_rope_head_dim together")
    if indexer:
        fields["index_heads"] = f.count("index_n_heads")
        fields["index_dim"] = f.count("index_head_dim")
        fields["index_topk"] = f.count("index_topk", 0, least=0)
    return LatentAttention(**fields | more)


def attention(f: Fields, *, window: int | None = None, **more: Any) -> Attention:
    """Grouped-query attention in the common spelling; `more` are fields of `Attention`."""
    fields: dict[str, Any] = {"heads": f.heads, "kv_heads": f.kv_heads, "head_dim": f.head_dim, "window": window}
    fields |= more
    heads, kv_heads = fields["heads"], fields["kv_heads"]
    if heads % kv_heads:
        raise InputError(f"{f.where}: {heads} attention heads are not a multiple of {kv_heads} key-value heads")
    return Attention(**fields)


def gated_delta_net(f: Fields, *, fused: bool = True) -> Recurrent:
    """Gated delta net (Qwen3-Next and its relatives): short convolution over q, k, v; a matrix of state per value head.

    The recurrent state is kept in float32 unless the config says otherwise.
    """
    hidden = f.hidden
    k_heads, v_heads = f.count("linear_num_key_heads"), f.count("linear_num_value_heads")
    k_dim, v_dim = f.count("linear_key_head_dim"), f.count("linear_value_head_dim")
    kernel = f.count("linear_conv_kernel_dim")
    keys, values = k_heads * k_dim, v_heads * v_dim
    channels = 2 * keys + values
    return Recurrent(
        kind="gated_delta_net",
        weights=(
            _r("qkvz_proj" if fused else "qkv_gate_proj", (channels + values) * hidden),
            _r("ba_proj", 2 * v_heads * hidden),
            _v("conv", channels * kernel),
            _v("decay", 2 * v_heads),
            _v("norm", v_dim, Shard.REPLICATE),
            _r("out_proj", values * hidden),
        ),
        conv_channels=channels,
        conv_kernel=kernel,
        state_size=v_heads * v_dim * k_dim,
        heads=k_heads,
        state_format=lookup(f.word("mamba_ssm_dtype", "float32")),
    )


def kimi_delta(f: Fields, *, heads: int, dim: int, kernel: int, low_rank: bool) -> Recurrent:
    """Kimi delta attention: a gate per channel of the key, in float32; `low_rank` gates pass through a head's size."""
    hidden, width = f.hidden, heads * dim
    gates: tuple[Weight, ...]
    if low_rank:
        gates = (
            _r("f_a_proj", dim * hidden, Shard.REPLICATE),
            _r("f_b_proj", width * dim),
            _r("g_a_proj", dim * hidden, Shard.REPLICATE),
            _r("g_b_proj", width * dim),
        )
    else:
        gates = (_r("f_proj", width * hidden), _r("g_proj", width * hidden))
    return Recurrent(
        kind="kda",
        weights=(
            _r("qkv_proj", 3 * width * hidden),
            *gates,
            _r("b_proj", heads * hidden),
            _v("conv", 3 * width * kernel),
            _v("decay", width + heads),
            _v("norm", dim, Shard.REPLICATE),
            _r("out_proj", width * hidden),
        ),
        conv_channels=3 * width,
        conv_kernel=kernel,
        state_size=heads * dim * dim,
        heads=heads,
        state_format=lookup("float32"),
    )


def mamba1(
    f: Fields,
    *,
    width: int,
    state: int,
    kernel: int,
    rank: int,
    conv_bias: bool,
    bias: bool,
    norms: bool = False,
    heads: int = 1,
) -> Recurrent:
    """Mamba (selective scan); `norms`: Jamba's norms on dt, B and C; `heads`: Zamba's split into heads."""
    hidden = f.hidden
    return Recurrent(
        kind="mamba1",
        weights=present(
            _r("in_proj", 2 * width * hidden),
            _v("in_bias", 2 * width if bias else 0),
            _v("conv", width * (kernel + conv_bias)),
            _r("x_proj", (rank + 2 * state) * width),
            _r("dt_proj", rank * width),
            _v("dt_bias", width),
            _v("decay", width * (state + 1)),
            _v("norms", rank + 2 * state if norms else 0, Shard.REPLICATE),
            _r("out_proj", width * hidden),
            _v("out_bias", hidden if bias else 0, Shard.REPLICATE),
        ),
        conv_channels=width,
        conv_kernel=kernel,
        state_size=width * state,
        heads=heads,
    )


def mamba2(
    f: Fields,
    *,
    heads: int,
    head_dim: int,
    state: int,
    groups: int,
    kernel: int,
    conv_bias: bool,
    bias: bool,
    out_bias: bool | None = None,
    norm: bool = True,
    state_format: str | None = None,
) -> Recurrent:
    """Mamba-2: `heads` of `head_dim`, `groups` of B and C; `norm`: the gated norm before the output projection."""
    hidden, width = f.hidden, heads * head_dim
    channels = width + 2 * groups * state
    projected = width + channels + heads
    return Recurrent(
        kind="mamba2",
        weights=present(
            _r("in_proj", projected * hidden),
            _v("in_bias", projected if bias else 0),
            _v("conv", channels * (kernel + conv_bias)),
            _v("decay", 3 * heads),
            _v("norm", width if norm else 0),
            _r("out_proj", width * hidden),
            _v("out_bias", hidden if (bias if out_bias is None else out_bias) else 0, Shard.REPLICATE),
        ),
        conv_channels=channels,
        conv_kernel=kernel,
        state_size=width * state,
        heads=heads,
        state_format=None if state_format is None else lookup(state_format),
    )


def short_conv(f: Fields, *, kernel: int, bias: bool) -> Recurrent:
    """Gated short convolution (LFM2): nothing but the last `kernel` - 1 columns is kept."""
    hidden = f.hidden
    return Recurrent(
        kind="short_conv",
        weights=present(
            _r("in_proj", 3 * hidden * hidden),
            _v("in_bias", 3 * hidden if bias else 0),
            _v("conv", hidden * (kernel + bias)),
            _r("out_proj", hidden * hidden),
            _v("out_bias", hidden if bias else 0, Shard.REPLICATE),
        ),
        conv_channels=hidden,
        conv_kernel=kernel,
    )
