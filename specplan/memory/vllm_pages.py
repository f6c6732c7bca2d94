"""From a model to the cache layers that one vLLM rank reserves: page bytes, block sizes, states, drafts.

Source: vLLM 0.32.0 (`v1/kv_cache_interface.py`, `platforms/interface.py`, `mamba_utils.py`) and public start-up logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from specplan.errors import InputError, UnsupportedError
from specplan.formulas.kv_cache import conv_channels_per_rank
from specplan.memory.vllm_kv import CacheKind, CacheLayer
from specplan.values.formats import lookup
from specplan.values.model import Attention, CompressedAttention, LatentAttention, Layer, Model, Recurrent

STEP: Final = 16
"""Attention kernels take blocks in multiples of this many tokens."""

LATENT_STEP: Final = 128
"""The same for latent attention beside recurrent layers."""

# Bytes per token of formats that do not store numbers one by one.
_LATENT_PACKED: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_INDEX_SCALE_BLOCK: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """What decides a page.

    Attributes
    ----------
    tp : int
        Tensor-parallel ranks.
    block_size : int
        Tokens per page before alignment.
    kv_cache_dtype : str
        vLLM's name: ``auto``, ``bfloat16``, ``fp8``, ``fp8_ds_mla``, ``nvfp4``, ``int8_per_token_head``, ...
    speculative_tokens : int
        k: recurrent states grow with it.
    state_dtype : str
        ``--mamba-ssm-cache-dtype``: ``auto`` takes the model's own.
    packed : bool
        Whether the card's kernels of sparse latent attention read packed fp8 latents.
    """

    tp: int
    block_size: int
    kv_cache_dtype: str = "auto"
    speculative_tokens: int = 0
    state_dtype: str = "auto"
    packed: bool = True


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    """Key-value heads on one rank: divided, and replicated once there are more ranks than heads.

    >>> kv_heads_per_rank(8, 4), kv_heads_per_rank(4, 8)
    (2, 1)
    """
    if kv_heads % tp and tp % kv_heads:
        raise InputError(f"{kv_heads} key-value heads cannot be divided among {tp} ranks; --tp must divide them")
    return max(1, kv_heads // tp)


def token_bytes_per_head(key_dim: int, value_dim: int, kv_cache_dtype: str, model_dtype_bytes: float) -> float:
    """Bytes that one token takes in one key-value head.

    >>> token_bytes_per_head(128, 128, "auto", 2), token_bytes_per_head(128, 128, "int8_per_token_head", 2)
    (512.0, 264.0)
    >>> token_bytes_per_head(256, 256, "nvfp4", 2)
    288.0
    """
    numbers = key_dim + value_dim
    match kv_cache_dtype:
        case "auto":
            return float(numbers * model_dtype_bytes)
        case "int8_per_token_head" | "fp8_per_token_head":
            return numbers + 8.0  # one fp32 scale for K and one for V
        case "int4_per_token_head":
            return numbers / 2 + 8.0
        case "fp8_ds_mla" | "nvfp4_ds_mla":
            raise InputError(f"--kv-cache-dtype {kv_cache_dtype} packs latents; this model caches keys and values")
        case "nvfp4":
            return numbers * 9 / 16  # half a byte and a byte of scale per 16 numbers
        case _:
            return numbers * lookup(kv_cache_dtype).bytes


def _attention_layer(a: Attention, model: Model, s: PageSettings) -> CacheLayer:
    heads = kv_heads_per_rank(a.kv_heads, s.tp)
    per_head = token_bytes_per_head(a.head_dim, a.value_dim, s.kv_cache_dtype, model.weight_format.bytes)
    kind = CacheKind.FULL
    if a.window is not None:
        kind = CacheKind.SLIDING
    elif a.chunk is not None:
        kind = CacheKind.CHUNKED
    return CacheLayer(
        kind=kind,
        block_size=s.block_size,
        page_bytes=round(s.block_size * heads * per_head),
        shape=(heads, a.head_dim, a.value_dim),
        window=a.window,
        chunk=a.chunk if a.window is None else None,
    )


def _latent_layers(a: LatentAttention, model: Model, s: PageSettings) -> list[CacheLayer]:
    name = s.kv_cache_dtype
    if a.index_heads and name.startswith("fp8") and s.packed:
        name = "fp8_ds_mla"  # what sparse attention's kernels read
    numbers = a.kv_rank + a.rope_dim
    if name in _LATENT_PACKED:
        per_token = float(_LATENT_PACKED[name])
    else:
        per_token = numbers * (model.weight_format.bytes if name == "auto" else lookup(name).bytes)
    layers = [
        CacheLayer(
            kind=CacheKind.LATENT,
            block_size=s.block_size,
            page_bytes=round(s.block_size * per_token),
            shape=(1, numbers),
        )
    ]
    if a.index_heads and not a.index_shared:
        per_key = a.index_dim + 4 * a.index_dim // _INDEX_SCALE_BLOCK
        layers.append(
            CacheLayer(
                kind=CacheKind.LATENT,
                block_size=s.block_size,
                page_bytes=s.block_size * per_key,
                shape=(1, per_key),
            )
        )
    return layers


def state_bytes(r: Recurrent, model: Model, s: PageSettings) -> int:
    r"""Bytes of one request's recurrent state in one layer on one rank.

    .. math:: (c - 1 + k)\, C\, b_{conv} + \frac{S}{tp}\, b_{state}

    with convolution length c, its channels C on a rank, the state's numbers S, k speculative tokens (which Mamba-1's
    convolution does not keep).
    """
    columns = max(r.conv_kernel - 1, 0)
    if r.conv_kernel and r.kind != "mamba1":
        columns += s.speculative_tokens
    fmt = r.state_format or model.weight_format
    if s.state_dtype != "auto":
        fmt = lookup(s.state_dtype)
    channels = conv_channels_per_rank(r, model.hidden_size, s.tp)
    return round(columns * channels * model.weight_format.bytes + r.state_size * fmt.bytes / s.tp)


def cache_layers(
    model: Model, settings: PageSettings, layers: Sequence[Layer] | None = None, *, draft: bool = False
) -> tuple[CacheLayer, ...]:
    """Cache layers of `layers` of a model (all of them by default) on one rank, before hybrid alignment.

    Layers that read an earlier layer's cache, and layers without attention, reserve nothing.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> layer = Layer(mixer=Attention(heads=64, kv_heads=8, head_dim=128), feed_forward=None)
    >>> model = Model(name="m", source="", hidden_size=8192, vocab_size=1, tied_embeddings=False, layers=(layer,) * 80,
    ...               weight_format=lookup("bf16"))
    >>> rank = cache_layers(model, PageSettings(tp=4, block_size=16))
    >>> len(rank), rank[0].page_bytes
    (80, 16384)
    """
    out: list[CacheLayer] = []
    for layer in model.layers if layers is None else layers:
        match layer.mixer:
            case Attention(shares_kv=False):
                out.append(_attention_layer(layer.mixer, model, settings))
            case LatentAttention():
                out += _latent_layers(layer.mixer, model, settings)
            case CompressedAttention():
                raise UnsupportedError(
                    f"{model.name}: vLLM packs the cache of compressed attention (DeepSeek-V4) by rules that are not "
                    "known here"
                )
            case Recurrent():
                size = state_bytes(layer.mixer, model, settings)
                if size:
                    out.append(
                        CacheLayer(
                            kind=CacheKind.RECURRENT,
                            block_size=settings.block_size,
                            page_bytes=size,
                            shape=(size,),
                            state_blocks=settings.speculative_tokens,
                        )
                    )
    return tuple(replace(layer, draft=draft) for layer in out)


def aligned_block_size(target: Sequence[CacheLayer], block_size: int) -> int:
    r"""Attention block that vLLM raises so that an attention page holds a recurrent state.

    .. math:: b = A \left\lceil \frac{\text{state}}{A \cdot \text{bytes per token}} \right\rceil

    with A = max(16, block) tokens (128 for latent attention). The block itself where the model has no recurrent layer,
    or no attention.
    """
    states = [layer.page_bytes for layer in target if layer.kind is CacheKind.RECURRENT]
    attention = [layer for layer in target if layer.kind is not CacheKind.RECURRENT]
    if not states or not attention:
        return block_size
    first = attention[0]
    step = max(LATENT_STEP if first.kind is CacheKind.LATENT else STEP, block_size)
    # Pages are whole bytes per token here, so the quotient stays in integers.
    chunk = step * first.page_bytes // first.block_size
    return max(block_size, step * -(-max(states) // chunk))
