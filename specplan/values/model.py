"""A decoder-only language model as a sequence of layers, each a token mixer and a feed-forward.

The kinds below are the few shapes into which published architectures fall. What a kind leaves out is added as `extra`
weights, so that totals stay exact. `specplan.formulas.parameters` turns a model into counted weights and
`specplan.formulas.kv_cache` into cached bytes; nothing here counts.
"""

from dataclasses import dataclass
from enum import Enum

from specplan.values.formats import NumberFormat


class Access(Enum):
    """How a decode step touches a weight."""

    MATMUL = "matmul"  # read whole in every pass: streamed
    LOOKUP = "lookup"  # only the rows of the tokens in the pass: gathered
    ELEMENTWISE = "elementwise"  # norms, biases, gates' vectors: resident, not counted as streamed (chapter's rule)
    UNUSED = "unused"  # stored but not read by the decoder's pass (a tensor that the engine loads and never uses)


class Shard(Enum):
    """How tensor parallelism places a weight."""

    SPLIT = "split"  # divided evenly among the ranks
    KV_HEADS = "kv_heads"  # divided by key-value heads; replicated once there are more ranks than heads
    REPLICATE = "replicate"  # whole on every rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One weight, or `copies` equal ones.

    Attributes
    ----------
    component : str
        Where it is shown: attention, recurrent, mlp, experts, shared_experts, router, head, embedding, norms.
    name : str
        Name within its layer, such as ``q_proj``.
    size : int
        Number of parameters of one copy.
    access : Access
        Streamed, gathered or elementwise.
    shard : Shard
        Placement under tensor parallelism.
    kv_heads : int
        For `Shard.KV_HEADS`: heads among which the weight is divided.
    routed : tuple of (int, int) or None
        (experts in the layer, experts per token) when this is one expert of a routed set; `copies` is then the number
        of experts.
    copies : int
        Equal weights of this shape.
    quantizable : bool
        Whether a checkpoint's quantisation applies (linear layers: yes; embedding, head, norms, router: no).
    format : NumberFormat or None
        Format of this weight where it is fixed regardless of the model's; None for the model's rule.
    """

    component: str
    name: str
    size: int
    access: Access = Access.MATMUL
    shard: Shard = Shard.SPLIT
    kv_heads: int = 1
    routed: tuple[int, int] | None = None
    copies: int = 1
    quantizable: bool = True
    format: NumberFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention with grouped key-value heads (MHA, GQA and MQA), full, windowed or chunked.

    Attributes
    ----------
    heads, kv_heads : int
        Query heads; key-value heads.
    head_dim : int
        Size of a query and key head.
    v_head_dim : int or None
        Size of a value head where it differs from `head_dim`.
    window : int or None
        Sliding window: a token sees this many positions, itself included.
    chunk : int or None
        Chunked local attention: a token sees only its own chunk of this many positions.
    qkv_bias, output_bias : bool
        Bias vectors on the projections.
    qk_norm : str
        ``none``; ``head`` (one vector of a head's size for q and one for k); ``all`` (vectors over all heads).
    output_gate : bool
        The query projection also yields a gate of the same size (Qwen3-Next).
    sinks : bool
        One learned logit per query head (gpt-oss).
    shares_kv : bool
        Reads an earlier layer's cache: no key and value projections, nothing cached here.
    key_is_value : bool
        Values are the keys: no value projection (still cached separately by vLLM).
    input_size : int or None
        Width of what the query, key and value projections read, where it is not the hidden size (EAGLE-3, Zamba).
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    window: int | None = None
    chunk: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = "none"
    output_gate: bool = False
    sinks: bool = False
    shares_kv: bool = False
    key_is_value: bool = False
    input_size: int | None = None

    @property
    def value_dim(self) -> int:
        """Size of a value head."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): one compressed vector per token is cached, replicated on every rank.

    Attributes
    ----------
    heads : int
        Query heads.
    q_rank : int or None
        Rank of the query compression; None for a plain query projection.
    kv_rank : int
        Rank of the cached latent.
    nope_dim, rope_dim, v_head_dim : int
        Per head: unrotated and rotated key size, value size.
    bias : bool
        Bias on the down projections.
    window : int or None
        Sliding window, as in `Attention`.
    output_bias : bool
        Bias on the output projection.
    index_heads, index_dim, index_topk : int
        Lightning indexer of sparse attention (DeepSeek-V3.2); 0 where there is none.
    index_shared : bool
        Uses the positions that an earlier layer's indexer chose: no indexer weights, no index keys here.
    input_size : int or None
        Width of what the first projections read, where it is not the hidden size.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    bias: bool = False
    output_bias: bool = False
    window: int | None = None
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0
    index_shared: bool = False
    input_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Attention of DeepSeek-V4: one key-value vector per token in a window, and compressed entries of all before.

    Attributes
    ----------
    heads, head_dim : int
        Query heads; size of a head, and of the one cached vector that is key and value.
    weights : tuple of Weight
        All of its weights.
    window : int
        Positions whose own vectors are kept.
    rate : int
        Positions that one compressed entry stands for; 0 for a layer that keeps only its window.
    index_dim, index_topk : int
        Size of an indexer key kept with each compressed entry, and entries that a token reads; 0 where all are read.
    """

    heads: int
    head_dim: int
    weights: tuple[Weight, ...]
    window: int
    rate: int = 0
    index_dim: int = 0
    index_topk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """A mixer whose state has a fixed size per request: gated delta net, Mamba, short convolution, RWKV.

    Attributes
    ----------
    kind : str
        ``gated_delta_net``, ``mamba1``, ``mamba2``, ``kda``, ``short_conv``, ``rwkv``, ``rglru``.
    weights : tuple of Weight
        All of its weights; the kinds differ too much for common fields.
    conv_channels, conv_kernel : int
        Width and length of the convolution; its state keeps `conv_kernel` - 1 columns.
    state_size : int
        Numbers in the recurrent state per request (heads x key size x value size).
    heads : int
        Heads among which tensor parallelism divides the state.
    state_format : NumberFormat or None
        Format of the recurrent state where the model fixes one; None for the model's own.
    """

    kind: str
    weights: tuple[Weight, ...]
    conv_channels: int = 0
    conv_kernel: int = 0
    state_size: int = 0
    heads: int = 1
    state_format: NumberFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMLP:
    """A feed-forward read whole in every pass. `gated`: three matrices (gate, up, down) instead of two."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A routed mixture of feed-forwards, of which each token reads a few, plus shared ones read always.

    Attributes
    ----------
    count, per_token : int
        Routed experts in the layer; those that one token uses.
    width : int
        Intermediate size of one routed expert.
    gated : bool
        Three matrices per expert instead of two.
    bias : bool
        Bias vectors in the experts.
    shared_width : int
        Intermediate size of all shared experts together; 0 for none.
    shared_bias : bool
        Bias vectors in the shared experts.
    shared_gate : bool
        A vector of the hidden size gates the shared expert (Qwen2-MoE).
    router_bias : bool
        One number per expert beside the router matrix.
    """

    count: int
    per_token: int
    width: int
    gated: bool = True
    bias: bool = False
    shared_width: int = 0
    shared_bias: bool = False
    shared_gate: bool = False
    router_bias: bool = False


Mixer = Attention | LatentAttention | CompressedAttention | Recurrent
FeedForward = DenseMLP | Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer.

    Attributes
    ----------
    mixer : Attention, LatentAttention, CompressedAttention, Recurrent or None
    feed_forward : DenseMLP, Experts or None
    norm_vectors : int
        Norm vectors of the hidden size (2 for pre-norm RMSNorm; 4 for sandwich norms; a LayerNorm with bias counts 2).
    extra : tuple of Weight
        What the kinds do not say (learned scales, residual gates, per-layer embeddings' projections).
    formats : tuple of (str, NumberFormat)
        Formats of this layer's components (``attention``) or single weights (``attention.q_proj``) where they differ
        from the model's.
    only_extra : bool
        The mixer caches and the feed-forward computes as their kinds say, but their weights are counted elsewhere
        (another layer's, that this one applies again) or are listed in `extra`; only `extra` is counted.
    """

    mixer: Mixer | None
    feed_forward: FeedForward | None
    norm_vectors: int = 2
    extra: tuple[Weight, ...] = ()
    formats: tuple[tuple[str, NumberFormat], ...] = ()
    only_extra: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder.

    Attributes
    ----------
    name : str
        How the user or the catalogue calls it.
    source : str
        Where its numbers come from.
    hidden_size, vocab_size : int
        Width of the residual stream; rows of the embedding.
    tied_embeddings : bool
        The head is the embedding's matrix: resident once, streamed by the head.
    layers : tuple of Layer
        In order. Equal layers are equal values.
    final_norm_vectors : int
        Norm vectors of the hidden size after the last layer.
    extra : tuple of Weight
        Weights outside layers (position embeddings, embedding projections).
    head : bool
        False for a draft head that uses its target's output head.
    embedding : bool
        False for a draft head that uses its target's embedding.
    embedding_size : int or None
        Width of embedding and head where it is not the hidden size (OPT-350M); projections are among `extra`.
    head_vocab_size : int or None
        Rows of the head where they differ from the embedding's (EAGLE-3's reduced draft vocabulary).
    max_position : int or None
        Longest context that the model states.
    weight_format : NumberFormat
        Format of weights that are not quantised.
    quantization : NumberFormat or None
        Format of quantised weights; applies to `Weight.quantizable` ones outside `unquantized`.
    unquantized : tuple of str
        Components that the checkpoint leaves in `weight_format`, such as ``attention`` in MXFP4 gpt-oss.
    formats : tuple of (str, NumberFormat)
        Formats of components (``head``) or single weights (``attention.q_proj``) where they differ from `quantization`;
        they apply to weights that are otherwise not quantised, too.
    mtp_layers : tuple of Layer
        Multi-token prediction layers that the checkpoint carries; counted only when they draft.
    published_params : int or None
        Total that the publisher prints, where it does.
    draft_method : str
        For a draft head that runs on its target's hidden states: ``eagle``, ``eagle3``, ``mtp``, ``medusa``,
        ``mlp_speculator``, ``dflash``, ``dspark``; empty for a model that stands alone.
    target_hidden_size : int or None
        For a draft head: width of the target's states that it reads.
    target_layer_ids : tuple of int
        For a draft head: target layers whose states it reads, where its config lists them.
    assumptions : tuple of str
        What the counts rest on beside the config: defaults taken, fields not understood. Empty for exact counts.
    evidence : str
        What the counts and formats were checked against beside the config: ``headers of 291 tensors``, and where those
        differ. Empty for a config or spec alone.
    model_type : str
        The Hugging Face model type where the model was imported from one; empty otherwise.
    """

    name: str
    source: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    layers: tuple[Layer, ...]
    weight_format: NumberFormat
    final_norm_vectors: int = 1
    extra: tuple[Weight, ...] = ()
    head: bool = True
    embedding: bool = True
    embedding_size: int | None = None
    head_vocab_size: int | None = None
    max_position: int | None = None
    quantization: NumberFormat | None = None
    unquantized: tuple[str, ...] = ()
    formats: tuple[tuple[str, NumberFormat], ...] = ()
    mtp_layers: tuple[Layer, ...] = ()
    published_params: int | None = None
    draft_method: str = ""
    target_hidden_size: int | None = None
    target_layer_ids: tuple[int, ...] = ()
    assumptions: tuple[str, ...] = ()
    model_type: str = ""
    evidence: str = ""
