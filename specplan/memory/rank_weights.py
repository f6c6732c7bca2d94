"""Weights that one rank holds, as vLLM and SGLang load them.

Beyond dividing matrices among ranks, engines pad the vocabulary, keep the projections of latent attention a second
time, pad quantised experts to what a kernel takes, and hold rotary tables. What a checkpoint stores and what a rank
holds therefore differ by up to several percent.

Source: vLLM 0.32.0 (`vocab_parallel_embedding.py`, `fused_moe/`, `attention/mla_attention.py`,
`rotary_embedding/`), "Model loading took" lines of public logs.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specplan.errors import InputError
from specplan.formulas.parameters import OUTPUT_HEADS, VOCAB_PADDING, format_of, layer_weights, outer_weights
from specplan.units import MIB
from specplan.values.formats import NumberFormat
from specplan.values.model import Attention, Experts, LatentAttention, Layer, Model, Shard, Weight

EXPERT_PADDING: Final = {"mxfp4": (128, 256)}
"""Format -> (multiple to which an expert's intermediate size is rounded on each rank, the same for the hidden size).

Marlin's and TRT-LLM's MXFP4 kernels; CUTLASS rounds both to 128, the emulation to 32.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSettings:
    """What decides how weights lie.

    Attributes
    ----------
    tp, pp : int
        Tensor-parallel ranks; pipeline stages.
    expert_copies : int
        Data-parallel times prefill-context-parallel ranks: experts are divided among tensor ranks times these.
    expert_parallel : bool
        Whole experts on each rank instead of slices of all.
    latent_copies : bool
        Absorbed projections of unquantised latent attention are kept beside the original (always so for quantised).
    rotary_tables : bool
        Cosine and sine tables for every position are held (one per kind of attention).
    """

    tp: int = 1
    pp: int = 1
    expert_copies: int = 1
    expert_parallel: bool = False
    latent_copies: bool = False
    rotary_tables: bool = True


def pipeline_stages(n_layers: int, pp: int) -> tuple[range, ...]:
    """Layers of each pipeline stage: equal shares; what is left over goes to the stages before the last, from the back.

    >>> [len(stage) for stage in pipeline_stages(61, 4)]
    [15, 15, 16, 15]
    """
    if pp > n_layers:
        raise InputError(f"{n_layers} layers cannot be cut into {pp} pipeline stages")
    sizes = [n_layers // pp] * pp
    for i in range(n_layers % pp):
        sizes[-2 - i] += 1
    starts = [sum(sizes[:i]) for i in range(pp)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def rank_weight_bytes(model: Model, settings: WeightSettings, stage: int = 0) -> dict[str, float]:
    """Bytes on one rank of a pipeline stage, by component.

    Parameters
    ----------
    model : Model
    settings : WeightSettings
    stage : int
        Pipeline stage, from 0.

    Returns
    -------
    dict of str to float
        Component -> bytes. ``rotary``, ``latent_copies``, ``vocab_padding`` and ``allocator`` (what the caching
        allocator rounds up) are what the checkpoint does not hold.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> model = Model(name="m", source="", hidden_size=4, vocab_size=65, tied_embeddings=True, layers=(),
    ...               final_norm_vectors=0, weight_format=lookup("bf16"))
    >>> rank_weight_bytes(model, WeightSettings(tp=2))
    {'head': 260.0, 'vocab_padding': 252.0}
    """
    stages = pipeline_stages(len(model.layers), settings.pp) if model.layers else (range(0),) * settings.pp
    out: defaultdict[str, float] = defaultdict(float)
    for weight in _outer_on(model, settings, stage):
        _add_outer(out, weight, model, settings)
    layers = [model.layers[i] for i in stages[stage]]
    for layer, times in Counter(layers).items():
        tensors: defaultdict[str, float] = defaultdict(float)
        for weight in layer_weights(layer, model.hidden_size):
            share = _fraction(weight, layer, model, settings)
            fmt = format_of(weight, model)
            out[weight.component] += times * weight.size * weight.copies * fmt.bytes * share
            for name, part in _tensors(weight, layer):
                tensors[name] += weight.size * weight.copies * part * share * fmt.payload_bits / 8
        out["allocator"] += times * sum(map(allocator_waste, tensors.values()))
        if isinstance(layer.mixer, LatentAttention):
            out["latent_copies"] += times * _latent_copy(layer.mixer, model, settings)
    if settings.rotary_tables:
        out["rotary"] += rotary_bytes(model, layers)
    return {name: size for name, size in out.items() if size}


def allocator_waste(n_bytes: float) -> float:
    """Bytes that torch's caching allocator counts beyond a tensor's own.

    From 10 MiB on a tensor gets whole 2 MiB; a rest of at most 1 MiB stays with it, a larger one is given to others.

    >>> allocator_waste(259 * 2**20) / 2**20, allocator_waste(24.5 * 2**20) / 2**20
    (1.0, 0.0)
    """
    if n_bytes < 10 * MIB:
        return 0.0
    rest = -n_bytes % (2 * MIB)
    return rest if rest <= MIB else 0.0


# Projections that engines load into one tensor.
_FUSED: Final = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "q_a_proj": "qkv_a", "kv_a_proj": "qkv_a",
    "gate_proj": "mlp.up", "up_proj": "mlp.up", "down_proj": "mlp.down",
}  # fmt: skip


def _tensors(weight: Weight, layer: Layer) -> tuple[tuple[str, float], ...]:
    """Tensors in which a weight lies, with the share of it in each: gate and up together, down alone."""
    name = f"{weight.component}.{_FUSED.get(weight.name, weight.name)}"
    if weight.name != "mlp":
        return ((name, 1.0),)
    gated = layer.feed_forward is None or layer.feed_forward.gated
    up = 2 / 3 if gated else 1 / 2
    return ((f"{name}.up", up), (f"{name}.down", 1 - up))


def rotary_bytes(model: Model, layers: Sequence[Layer]) -> float:
    """Cosine and sine of every position, once for each kind of attention (windowed layers rotate by another base)."""
    if model.max_position is None or model.model_type in _NO_ROTARY:
        return 0.0
    tables: dict[tuple[int, bool], float] = {}
    for layer in layers:
        match layer.mixer:
            case Attention() as a:
                local = a.window is not None and model.model_type.startswith(_LOCAL_ROTARY)
                linear = not local and model.max_position > _LINEAR_FROM
                stretched = _LINEAR_ROTARY.get(model.model_type, 1.0) if linear else 1.0
                tables[a.head_dim, local] = a.head_dim * stretched * _PARTIAL_ROTARY.get(model.model_type, 1.0)
            case LatentAttention() as a:
                tables[a.rope_dim, False] = float(a.rope_dim)
    return sum(tables.values()) * model.max_position * model.weight_format.bytes


# Families whose windowed layers have a rotary table of their own; those whose long table is stretched linearly (so many
# times more rows than positions); those that rotate a part of each head; those with learned positions.
_LOCAL_ROTARY: Final = ("gemma3", "gemma4")
_LINEAR_ROTARY: Final = {"gemma3": 8.0, "gemma3_text": 8.0}
_LINEAR_FROM: Final = 32768  # gemma3-1b is not stretched
_PARTIAL_ROTARY: Final = {
    "qwen3_next": 0.25, "qwen3_5_text": 0.25, "qwen3_5_moe_text": 0.25, "phi": 0.4, "glm4": 0.5, "glm4_moe": 0.5,
    "minimax_m2": 0.5, "stablelm": 0.25, "nemotron": 0.5, "gpt_neox": 0.25,
}  # fmt: skip
_NO_ROTARY: Final = ("gpt2", "opt", "gpt_bigcode", "bloom")


def _outer_on(model: Model, s: WeightSettings, stage: int) -> list[Weight]:
    """Weights outside layers that a stage holds: the embedding on the first, head and last norm on the last.

    A tied table that both ends need stands on both.
    """
    if s.pp == 1:
        return list(outer_weights(model))
    first, last = stage == 0, stage == s.pp - 1
    kept = []
    for weight in outer_weights(model):
        tied = weight.component == "head" and model.tied_embeddings
        on_first = weight.component == "embedding" or tied or weight.component not in ("head", "norms")
        on_last = weight.component in ("head", "norms")
        if (first and on_first) or (last and on_last):
            kept.append(weight)
    return kept


# Tables with a row per word, which engines pad and divide by rows; other weights outside layers lie as they say.
_VOCABULARY: Final = (*OUTPUT_HEADS, "embed", "emb", "positions", "per_layer_embedding", "ngram_table")


def _add_outer(out: defaultdict[str, float], weight: Weight, model: Model, s: WeightSettings) -> None:
    size = format_of(weight, model).bytes
    if weight.name not in _VOCABULARY:
        out[weight.component] += (
            weight.size * weight.copies * size * (1 if weight.shard is Shard.REPLICATE else 1 / s.tp)
        )
        return
    width = model.embedding_size or model.hidden_size
    rows = weight.size // width
    step = math.lcm(VOCAB_PADDING, s.tp)
    padding = -(-rows // step) * step - rows
    out[weight.component] += weight.copies * weight.size * size / s.tp
    out["vocab_padding"] += weight.copies * padding * width * size / s.tp
    out["allocator"] += weight.copies * allocator_waste((rows + padding) * width * size / s.tp)


def _fraction(weight: Weight, layer: Layer, model: Model, s: WeightSettings) -> float:
    """Share of a weight on one rank; above the plain share where a kernel pads it."""
    if weight.component == "experts" and isinstance(layer.feed_forward, Experts):
        experts, ranks = layer.feed_forward, s.tp * s.expert_copies
        if s.expert_parallel:
            return -(-experts.count // ranks) / experts.count
        return _expert_padding(experts, format_of(weight, model), model.hidden_size, ranks) / ranks
    match weight.shard:
        case Shard.SPLIT:
            return 1 / s.tp
        case Shard.KV_HEADS:
            return 1 / min(s.tp, weight.kv_heads)
        case Shard.REPLICATE:
            return 1.0


def _expert_padding(experts: Experts, fmt: NumberFormat, hidden: int, ranks: int) -> float:
    """Padded over plain size of an expert's matrices on one rank."""
    if fmt.name not in EXPERT_PADDING:
        return 1.0
    width_step, hidden_step = EXPERT_PADDING[fmt.name]
    width = experts.width / ranks
    return (-(-width // width_step) * width_step / width) * (-(-hidden // hidden_step) * hidden_step / hidden)


def _latent_copy(a: LatentAttention, model: Model, s: WeightSettings) -> float:
    """Up-projections of keys and values kept in the model's format beside the loaded ones."""
    quantized = model.quantization is not None and "attention" not in model.unquantized
    if not (quantized or s.latent_copies):
        return 0.0
    return a.kv_rank * a.heads / s.tp * (a.nope_dim + a.v_head_dim) * model.weight_format.bytes
