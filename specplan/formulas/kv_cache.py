"""Cached keys, values and states: bytes per token stored, bytes read per step, and what fits in the pool.

Stored and read are two functions: a layer that shares an earlier layer's cache stores nothing and still reads it; a
window stops both at its size; a recurrent state is stored and read whole at any context; sparse attention stores every
latent and reads the chosen ones.

Source: chapter, "The memory the draft takes before it drafts anything"; page sizes from the vLLM 0.32 fact sheet,
section 7.4.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InfeasibleError
from specplan.values.formats import NumberFormat
from specplan.values.model import Attention, CompressedAttention, LatentAttention, Mixer, Model, Recurrent

FloatArray = npt.NDArray[np.float64]

INDEX_BLOCK: Final = 128
"""Numbers per fp32 scale in the lightning indexer's fp8 keys."""


def _index_bytes(index_dim: int) -> float:
    """Bytes of one indexer key (fp8 with an fp32 scale per block)."""
    return index_dim * (1 + 4 / INDEX_BLOCK)


def _latent_bytes(mixer: LatentAttention, kv: NumberFormat) -> float:
    """Bytes of one cached latent; sparse attention's kernels read fp8 ones with scales and a 16-bit rotary part."""
    if mixer.index_heads and kv.name == "fp8":
        return mixer.kv_rank * (1 + 4 / INDEX_BLOCK) + 2 * mixer.rope_dim
    return (mixer.kv_rank + mixer.rope_dim) * kv.bytes


def _heads_bytes(mixer: Attention, kv: NumberFormat, tp: int) -> float:
    """Bytes of one token's keys and values in a layer on one rank."""
    heads = mixer.kv_heads / min(tp, mixer.kv_heads)
    return heads * (mixer.head_dim + mixer.value_dim) * kv.bytes


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a layer's cache: bytes per entry, an entry per `rate` tokens, entries up to `limit`."""

    entry_bytes: float
    limit: float = math.inf
    rate: int = 1

    def bytes(self, length: FloatArray) -> FloatArray:
        """Of `length` tokens."""
        entries = length if self.rate == 1 else np.floor(length / self.rate)
        return np.asarray(self.entry_bytes * np.minimum(entries, self.limit))


def stored_spans(mixer: Mixer | None, kv: NumberFormat, tp: int) -> tuple[Span, ...]:
    """What one layer keeps of keys and values on one rank."""
    match mixer:
        case Attention(shares_kv=False):
            return (Span(_heads_bytes(mixer, kv, tp), _limit(mixer)),)
        case LatentAttention():
            own_index = _index_bytes(mixer.index_dim) if mixer.index_heads and not mixer.index_shared else 0.0
            return (Span(_latent_bytes(mixer, kv) + own_index, mixer.window or math.inf),)
        case CompressedAttention():
            vector = mixer.head_dim * kv.bytes
            window = Span(vector, mixer.window)
            rest = Span(vector + _index_bytes(mixer.index_dim), rate=mixer.rate) if mixer.rate else None
            return (window,) if rest is None else (window, rest)
        case _:
            return ()


def read_spans(mixer: Mixer | None, kv: NumberFormat, tp: int) -> tuple[Span, ...]:
    """What one layer reads of keys and values in a step on one rank."""
    match mixer:
        case Attention():
            return (Span(_heads_bytes(mixer, kv, tp), _limit(mixer)),)
        case LatentAttention(index_heads=indexers) if indexers:
            index = 0.0 if mixer.index_shared else _index_bytes(mixer.index_dim)
            return (Span(_latent_bytes(mixer, kv), mixer.index_topk), Span(index))
        case CompressedAttention(rate=rate) if rate:
            vector = mixer.head_dim * kv.bytes
            chosen = Span(vector, mixer.index_topk or math.inf, rate)
            return (Span(vector, mixer.window), chosen, Span(_index_bytes(mixer.index_dim), rate=rate))
        case _:
            return stored_spans(mixer, kv, tp)


def _bytes(spans: tuple[Span, ...], length: FloatArray) -> FloatArray:
    return sum((span.bytes(length) for span in spans), np.zeros_like(length))


def _limit(mixer: Attention) -> float:
    """Positions of a context that the layer keeps."""
    return min(mixer.window or np.inf, mixer.chunk or np.inf)


def recurrent_state_bytes(mixer: Mixer | None, model: Model, tp: int) -> float:
    """Bytes of one request's recurrent state in one layer on one rank."""
    if not isinstance(mixer, Recurrent):
        return 0.0
    channels = conv_channels_per_rank(mixer, model.hidden_size, tp)
    conv = max(mixer.conv_kernel - 1, 0) * channels * model.weight_format.bytes
    return conv + mixer.state_size * (mixer.state_format or model.weight_format).bytes / tp


def conv_channels_per_rank(mixer: Recurrent, hidden: int, tp: int) -> float:
    r"""Channels of a recurrent layer's convolution on one of `tp` ranks in a residual stream of width `hidden`.

    Divided evenly, except that Mamba-2's groups are repeated where the ranks do not divide them, so that each rank
    holds one:

    .. math:: \frac{w}{tp} + 2 n \max\!\Big(\frac{g}{tp}, 1\Big)

    with w channels of the heads, g groups of n states (twice: B and C).

    Notes
    -----
    Source: state shapes of vLLM 0.32 (`mamba_utils.py`).

    Examples
    --------
    Granite 4 has one group of 128 states beside 4096 channels:

    >>> from specplan.values.model import Weight
    >>> out = Weight(component="recurrent", name="out_proj", size=4096 * 2048)
    >>> mixer = Recurrent(kind="mamba2", weights=(out,), conv_channels=4352, conv_kernel=4, state_size=4096 * 128)
    >>> [conv_channels_per_rank(mixer, 2048, tp) for tp in (1, 2, 8)]
    [4352.0, 2304.0, 768.0]
    """
    even = mixer.conv_channels / tp
    width = next((weight.size // hidden for weight in mixer.weights if weight.name == "out_proj"), 0)
    if mixer.kind != "mamba2" or not width:
        return even
    states = mixer.state_size // width
    groups = (mixer.conv_channels - width) // (2 * states) if states else 0
    return even if groups % tp == 0 else width / tp + 2 * states


def _mixers(model: Model) -> dict[Mixer | None, int]:
    return Counter(layer.mixer for layer in model.layers)


def kv_bytes_per_token(model: Model, kv_format: NumberFormat | None = None, tp: int = 1) -> float:
    """Bytes that one token adds to the cache of one tensor-parallel rank, inside every window.

    Parameters
    ----------
    model : Model
    kv_format : NumberFormat, optional
        Format of cached numbers; the model's own (engines' ``auto``) if None.
    tp : int
        Ranks. Key-value heads are divided until each rank holds one; a latent is replicated on every rank.

    Returns
    -------
    float
        Bytes per token. At ``tp=1`` this is one whole copy: 2 x layers x kv heads x head size x bytes for plain GQA.

    Notes
    -----
    Source: chapter, "Per token the target's KV is 2 x 80 x 8 x 128 x 2 = 320 KiB".

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import Layer
    >>> layer = Layer(mixer=Attention(heads=64, kv_heads=8, head_dim=128), feed_forward=None)
    >>> llama = Model(name="70b", source="", hidden_size=8192, vocab_size=128256, tied_embeddings=False,
    ...               layers=(layer,) * 80, weight_format=lookup("bf16"))
    >>> [kv_bytes_per_token(llama, tp=tp) / 1024 for tp in (1, 4, 16)]
    [320.0, 80.0, 40.0]
    """
    kv = kv_format or model.weight_format
    return sum(n * _token_bytes(mixer, kv, tp) for mixer, n in _mixers(model).items())


def _token_bytes(mixer: Mixer | None, kv: NumberFormat, tp: int) -> float:
    """Bytes that one more token adds to one layer's cache inside its window; compressed entries by their share."""
    if isinstance(mixer, CompressedAttention):
        vector = mixer.head_dim * kv.bytes
        return vector + ((vector + _index_bytes(mixer.index_dim)) / mixer.rate if mixer.rate else 0.0)
    return float(_bytes(stored_spans(mixer, kv, tp), np.asarray(1.0)))


def kv_bytes_stored(
    model: Model, context_len: npt.ArrayLike, kv_format: NumberFormat | None = None, tp: int = 1
) -> FloatArray:
    """Bytes that one request of `context_len` tokens keeps on one rank: windows capped, states included.

    The steady state of a request, without an engine's blocks, look-ahead slots or in-flight reserve (see `blocks`).

    Notes
    -----
    Source: vLLM 0.32 fact sheet, section 7.4.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import Layer
    >>> layer = Layer(mixer=Attention(heads=64, kv_heads=8, head_dim=128, window=1024), feed_forward=None)
    >>> llama = Model(name="x", source="", hidden_size=8192, vocab_size=128256, tied_embeddings=False,
    ...               layers=(layer,) * 80, weight_format=lookup("bf16"))
    >>> (kv_bytes_stored(llama, [1000, 8000]) / kv_bytes_per_token(llama)).tolist()
    [1000.0, 1024.0]
    """
    kv = kv_format or model.weight_format
    length = np.asarray(context_len, dtype=np.float64)
    total = np.zeros_like(length)
    for mixer, n in _mixers(model).items():
        total += n * (_bytes(stored_spans(mixer, kv, tp), length) + recurrent_state_bytes(mixer, model, tp))
    return total


def kv_bytes_read(
    model: Model, context_len: npt.ArrayLike, kv_format: NumberFormat | None = None, tp: int = 1
) -> FloatArray:
    """Bytes of cache that one decode step of one request reads on one rank.

    Unlike `kv_bytes_stored` it counts layers that read a shared cache, and of sparse attention only the chosen latents
    beside the whole index.

    Notes
    -----
    Source: nanochat's distinction of bytes to store and bytes to read; vLLM 0.32 fact sheet, section 7.4.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> from specplan.values.model import Layer
    >>> layer = Layer(mixer=Attention(heads=64, kv_heads=8, head_dim=128, shares_kv=True), feed_forward=None)
    >>> llama = Model(name="x", source="", hidden_size=8192, vocab_size=128256, tied_embeddings=False,
    ...               layers=(layer,) * 80, weight_format=lookup("bf16"))
    >>> float(kv_bytes_stored(llama, 1000)), float(kv_bytes_read(llama, 1000)) / 1024
    (0.0, 320000.0)
    """
    kv = kv_format or model.weight_format
    length = np.asarray(context_len, dtype=np.float64)
    total = np.zeros_like(length)
    for mixer, n in _mixers(model).items():
        total += n * (_bytes(read_spans(mixer, kv, tp), length) + recurrent_state_bytes(mixer, model, tp))
    return total


def kv_pool_bytes(
    memory: npt.ArrayLike, utilization: npt.ArrayLike, weights: npt.ArrayLike, workspace: npt.ArrayLike
) -> FloatArray:
    r"""Bytes left for the cache on one rank; negative when the weights do not fit.

    .. math:: M \cdot u - W - A

    Parameters
    ----------
    memory, utilization : array_like
        Device memory in bytes; the fraction that the engine may use, in (0, 1].
    weights, workspace : array_like
        Resident weights of target (and draft) on this rank; activations, workspaces and graphs. Bytes.

    Notes
    -----
    Source: chapter, "The memory the draft takes"; vLLM 0.32 fact sheet, section 7.1.

    Examples
    --------
    >>> gib = 2**30
    >>> round(float(kv_pool_bytes(79.65 * gib, 0.9, 32.85 * gib, 2 * gib)) / gib, 3)
    36.835
    """
    m, u, w, a = (np.asarray(x, dtype=np.float64) for x in (memory, utilization, weights, workspace))
    return m * u - w - a


def pool_tokens(pool_bytes: npt.ArrayLike, bytes_per_token: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Whole tokens that fit in a pool; 0 for a pool that is not positive.

    Raises
    ------
    InfeasibleError
        When a token takes no bytes.

    Notes
    -----
    Source: chapter, "so the pool holds 482,772 tokens". An engine rounds to whole blocks first.

    Examples
    --------
    >>> int(pool_tokens(1e9, 327680))
    3051
    """
    pool, per_token = np.broadcast_arrays(np.asarray(pool_bytes, np.float64), np.asarray(bytes_per_token, np.float64))
    if np.any(per_token <= 0):
        raise InfeasibleError("a model that caches nothing per token has no token capacity")
    whole: npt.NDArray[np.int64] = np.floor(np.maximum(pool, 0.0) / per_token).astype(np.int64)
    return whole


def pool_sequences(pool_bytes: npt.ArrayLike, bytes_per_sequence: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Whole sequences that fit in a pool, each taking `bytes_per_sequence` (see `kv_bytes_stored`).

    Notes
    -----
    Source: chapter, "or 58 sequences at 8k context".

    Examples
    --------
    >>> int(pool_sequences(482_757 * 327_680, 8192 * 327_680))
    58
    """
    return pool_tokens(pool_bytes, bytes_per_sequence)
