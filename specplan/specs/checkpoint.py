"""What a checkpoint folder stores, from its headers: bytes by dtype, parameters by role, and whether its config agrees.

Roles follow tensor names: an embedding is gathered, matrices are streamed, vectors are elementwise; scales, zero points
and packing tables of quantised weights are overhead, and a packed matrix counts the numbers it stands for.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from specplan.formulas.parameters import resident_bytes, resident_params
from specplan.specs.safetensors import StoredTensor
from specplan.values.model import Model

# What comes with a quantised weight of the same base name: scales, zero points, group indices, packing tables.
_OVERHEAD: Final = re.compile(
    r"(?:[._](?:weight_)?scales?(?:_inv|_2)?|[._]weight_(?:zero_point|shape|g_idx|global_scale)|\.qzeros|\.g_idx|\.zeros|"
    r"\.SCB|(?:\.weight)?\.(?:nested_)?(?:absmax|quant_map)|(?:\.weight)?\.quant_state\..*|[._](?:input|output)_global_scale|"
    r"[._](?:input|output|activation|k|v)_scale)$"
)
_WEIGHTS: Final = (".weight", ".qweight", ".weight_packed", "_blocks", "_packed", "")
_PACKED: Final = re.compile(r"(?:\.qweight|[._]weight_packed)$")
# Tables that modules keep as buffers: stored, but no parameters.
_BUFFER: Final = re.compile(
    r"(?:inv_freq|masked_bias|tid2eid|(?:^|\.)d2t|(?:^|\.)t2d|layer_scalar|rope_freqs\.weight|(?:^|\.)attn\.bias|"
    r"act_fn\.(?:beta|eps)|slope_rate|(?:query|key|diagonal)_decay|position_ids|embed_scale)$"
)
# A learned number per expert that some architectures keep as a parameter and some as a buffer.
_CORRECTION: Final = re.compile(r"(?:e_score_correction_bias|expert_bias)$")
_OUTSIDE: Final = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|audio_tower|audio_encoder|multi_modal_projector|"
    r"mm_projector|image_newline|embed_vision|embed_audio|vision_embed_tokens|embed_tokens_extend|vit|patch_embed|"
    r"img_processor|merger|connector|aligner)\b"
)
_EMBEDDING: Final = re.compile(
    r"(?:embed_tokens|embed_tokens_per_layer|word_embeddings|tok_embeddings|token_embd|embed_in|embeddings|wte|wpe|"
    r"embed_positions|tokens_embed|positions_embed|ngram_embedding)\.weight$"
)
_HEAD: Final = re.compile(r"(?:lm_head|embed_out|^output|^head)\.(?:weight|qweight|weight_packed)$")
_VECTOR: Final = re.compile(r"(?:norm\w*(?:\.(?:weight|bias|scale))?|bias|A_log|sinks|(?:^|\.)D|time_\w+)$")
_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks|blk)\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """A checkpoint by its headers alone; all figures are exact.

    Attributes
    ----------
    tensors : int
    total_bytes : int
        Every stored byte of every tensor.
    bytes_by_dtype : tuple of (str, int)
        In the files' own words, largest first.
    overhead_bytes : int
        Scales, zero points and tables of quantised weights.
    streamed_params, gathered_params, elementwise_params : int
        Numbers of the decoder that packed and plain tensors stand for; a tied embedding is streamed.
    decoder_params, decoder_bytes : int
        Their total; bytes include the overhead.
    mtp_params, outside_params : int
        Multi-token prediction layers; vision, audio and projectors.
    disagreements : tuple of str
        Where the config and the headers say different things.
    """

    tensors: int
    total_bytes: int
    bytes_by_dtype: tuple[tuple[str, int], ...]
    overhead_bytes: int
    streamed_params: int
    gathered_params: int
    elementwise_params: int
    mtp_params: int
    outside_params: int
    decoder_bytes: int
    disagreements: tuple[str, ...] = ()

    @property
    def decoder_params(self) -> int:
        """Parameters of the decoder."""
        return self.streamed_params + self.gathered_params + self.elementwise_params


def _overhead_names(names: set[str]) -> set[str]:
    """Names of scales and the like; a module's own learned scale is none, for no weight shares its base name."""
    found = set()
    for name in names:
        match = _OVERHEAD.search(name)
        if match and match[0] not in (name, "") and any(name[: match.start()] + end in names for end in _WEIGHTS):
            found.add(name)
    return found


def _packing(tensor: StoredTensor, overhead: set[str], bits: int) -> int:
    """Numbers that one stored number of `tensor` stands for."""
    if tensor.dtype in ("I32", "U32") and _PACKED.search(tensor.name):
        return 32 // bits
    if tensor.dtype == "U8":
        base = re.sub(r"(?:\.weight|_blocks|\.weight_packed)$", "", tensor.name)
        if any(base + suffix in overhead for suffix in _SCALE_NAMES):
            return 2
    return 1


_SCALE_NAMES: Final = (".weight_scale", "_scales", ".scales", ".weight.absmax", ".weight_scale_2", "_scale", ".scale")


def weight_sizes(stored: list[StoredTensor], model: Model) -> Iterator[tuple[StoredTensor, int, int]]:
    """Matrices of the decoder: tensor, numbers it stands for, its bytes with the scales and tables of its base name."""
    overhead = _overhead_names({t.name for t in stored})
    bits = _packed_bits(model)
    n_layers = _decoder_layers(model)
    beside: dict[str, int] = {}
    for tensor in stored:
        if tensor.name in overhead:
            base = _base_name(tensor.name)
            beside[base] = beside.get(base, 0) + tensor.n_bytes
    for tensor in stored:
        if tensor.name in overhead or _BUFFER.search(tensor.name) or _CORRECTION.search(tensor.name):
            continue
        role = _role(tensor, n_layers, model.tied_embeddings)
        if role == "streamed" and not (model.tied_embeddings and _HEAD.search(tensor.name)):
            numbers = tensor.size * _packing(tensor, overhead, bits)
            yield tensor, numbers, tensor.n_bytes + beside.pop(_base_name(tensor.name), 0)


def _packed_bits(model: Model | None) -> int:
    return round(model.quantization.payload_bits) if model is not None and model.quantization is not None else 4


def _base_name(name: str) -> str:
    """What a weight and its scales have in common: the name without the ending that tells them apart."""
    match = _OVERHEAD.search(name)
    if match:
        return name[: match.start()]
    return next(name.removesuffix(end) for end in _WEIGHTS if name.endswith(end))


def summarise(tensors: Iterable[StoredTensor], model: Model | None = None) -> CheckpointSummary:
    """Roles and sizes of stored tensors; with a `model`, compared with what its config implies.

    Examples
    --------
    >>> found = summarise([
    ...     StoredTensor(name="model.embed_tokens.weight", dtype="BF16", shape=(100, 8), n_bytes=1600),
    ...     StoredTensor(name="model.layers.0.mlp.up_proj.weight", dtype="BF16", shape=(32, 8), n_bytes=512),
    ...     StoredTensor(name="model.norm.weight", dtype="BF16", shape=(8,), n_bytes=16),
    ... ])
    >>> found.streamed_params, found.gathered_params, found.elementwise_params  # no head: the embedding is tied
    (1056, 0, 8)
    """
    stored = list(tensors)
    overhead_names = _overhead_names({t.name for t in stored})
    bits = _packed_bits(model)
    n_layers = _decoder_layers(model)
    has_head = any(_HEAD.search(t.name) for t in stored)
    tied = model.tied_embeddings if model is not None else not has_head
    by_dtype: dict[str, int] = {}
    params = dict.fromkeys(("streamed", "gathered", "elementwise", "mtp", "outside"), 0)
    n_overhead = decoder_bytes = 0
    duplicate_head = correction = 0
    for tensor in stored:
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.n_bytes
        role = _role(tensor, n_layers, tied)
        if tensor.name in overhead_names:
            n_overhead += tensor.n_bytes
            decoder_bytes += tensor.n_bytes if role not in ("mtp", "outside") else 0
            continue
        if _BUFFER.search(tensor.name):
            continue
        if _CORRECTION.search(tensor.name):
            correction += tensor.size if role not in ("mtp", "outside") else 0
            continue
        numbers = tensor.size * _packing(tensor, overhead_names, bits)
        if tied and _HEAD.search(tensor.name):
            duplicate_head += numbers
            continue
        params[role] += numbers
        if role not in ("mtp", "outside"):
            decoder_bytes += tensor.n_bytes
    summary = CheckpointSummary(
        tensors=len(stored),
        total_bytes=sum(by_dtype.values()),
        bytes_by_dtype=tuple(sorted(by_dtype.items(), key=lambda item: -item[1])),
        overhead_bytes=n_overhead,
        streamed_params=params["streamed"],
        gathered_params=params["gathered"],
        elementwise_params=params["elementwise"],
        mtp_params=params["mtp"],
        outside_params=params["outside"],
        decoder_bytes=decoder_bytes,
    )
    if model is None:
        return summary
    if summary.decoder_params + correction == resident_params(model):
        summary = replace(summary, elementwise_params=summary.elementwise_params + correction)
    return _compared(summary, model, duplicate_head)


def _decoder_layers(model: Model | None) -> int | None:
    """Decoder layers as checkpoints number them: hybrids that this package writes as pairs are not told apart."""
    if model is None or not model.mtp_layers or model.model_type in ("longcat_flash", "falcon_h1", "zamba", "zamba2"):
        return None
    return len(model.layers)


def _role(tensor: StoredTensor, n_layers: int | None, tied: bool) -> str:
    name = tensor.name
    layer = _LAYER.search(name)
    if re.search(r"(?:^|\.)(?:mtp|nextn)\b", name) or (n_layers is not None and layer and int(layer[1]) >= n_layers):
        return "mtp"
    if _OUTSIDE.search(name):
        return "outside"
    if _EMBEDDING.search(name):
        position = re.search(r"(?:wpe|positions|per_layer|ngram_embedding)", name)
        return "streamed" if tied and not position else "gathered"
    if _HEAD.search(name):
        return "streamed"
    kernel = len(tensor.shape) == 3 and tensor.shape[1] == 1
    thin = len(tensor.shape) <= 1 or all(side == 1 for side in tensor.shape[1:])
    return "elementwise" if thin or kernel or _VECTOR.search(name) else "streamed"


def _compared(summary: CheckpointSummary, model: Model, duplicate_head: int) -> CheckpointSummary:
    notes = []
    expected = resident_params(model)
    if summary.decoder_params != expected:
        difference = summary.decoder_params - expected
        notes.append(
            f"the headers hold {summary.decoder_params:,} decoder parameters, the config implies {expected:,} "
            f"({difference:+,})"
        )
    if duplicate_head:
        notes.append(f"the checkpoint stores an output head of {duplicate_head:,} parameters beside tied embeddings")
    implied = resident_bytes(model)
    if not notes and abs(summary.decoder_bytes - implied) > 0.002 * implied:
        notes.append(
            f"the headers hold {summary.decoder_bytes:,} bytes of decoder weights, the config implies {implied:,.0f} "
            f"(formats differ)"
        )
    return replace(summary, disagreements=tuple(notes))
