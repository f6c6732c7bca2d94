"""vLLM's key-value planner: cache layers and free bytes in; blocks, tokens, concurrency and vLLM's own words out.

A cache layer reserves pages; layers that can share block ids form a group; one block id is a page in every layer of a
group; all groups draw their ids from one pool. Everything here is integer arithmetic and exact.

Source: behaviour of vLLM 0.32.0 (`v1/core/kv_cache_utils.py`, `v1/kv_cache_interface.py`) and of the older printing
rule (0.10 to 0.20); re-implemented from its observed inputs and outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from specplan.errors import InfeasibleError, InputError, UnsupportedError
from specplan.units import GIB

_DOCS: Final = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
_NO_MEMORY: Final = (
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine "
    f"(this flag also controls CPU memory reservation on the CPU backend, despite its name). {_DOCS}"
)

_NO_FIT: Final = (
    "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try increasing "
    "`gpu_memory_utilization`."
)


class CacheKind(Enum):
    """What a layer keeps of a request."""

    FULL = "full attention"
    LATENT = "latent attention"
    SLIDING = "sliding window"
    CHUNKED = "chunked local attention"
    RECURRENT = "recurrent state"
    CROSS = "cross attention"

    @property
    def is_full(self) -> bool:
        """Whether every position of the request stays cached (vLLM lets these share one group)."""
        return self in (CacheKind.FULL, CacheKind.LATENT)


class StateCache(Enum):
    """How vLLM keeps recurrent states (`mamba_cache_mode`)."""

    NONE = "none"  # one live state per request: prefix caching off
    ALIGN = "align"  # plus the state at the last block boundary: prefix caching on
    ALL = "all"  # a state per block, of which the plan still reserves one


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayer:
    """What one layer, on one rank, asks of the pool.

    Attributes
    ----------
    kind : CacheKind
    block_size : int
        Tokens per page.
    page_bytes : int
        Bytes of one page on this rank.
    shape : tuple of int
        Heads and head sizes; layers of equal bytes but different shape are different layers to vLLM.
    window, chunk : int or None
        Sliding window; attention chunk (tokens).
    encoder_tokens : int
        For cross attention: the longest encoder input, cached whole for each request.
    state_blocks : int
        Pages that drafts add to each request's recurrent state (number of speculative tokens).
    context_sharded : bool
        Whether decode context parallelism divides this layer's tokens among its ranks.
    draft : bool
        Whether the layer belongs to a draft (shown in tables; the planner treats all layers alike).
    """

    kind: CacheKind
    block_size: int
    page_bytes: int
    shape: tuple[int, ...] = ()
    window: int | None = None
    chunk: int | None = None
    encoder_tokens: int = 0
    state_blocks: int = 0
    context_sharded: bool = True
    draft: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.page_bytes < 1:
            raise InputError(
                f"a cache layer needs positive block and page sizes, got {self.block_size}, {self.page_bytes}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Settings of the engine that change the plan.

    Attributes
    ----------
    max_model_len : int
        Longest request (tokens).
    in_flight_tokens : int
        F: tokens that can be in flight at once (batches in flight x max_num_batched_tokens).
    hybrid : bool
        False with ``--disable-hybrid-kv-cache-manager``: windows and chunks are charged as full attention.
    state_cache : StateCache
        How recurrent states are kept.
    context_parallel : int
        Decode context parallel ranks.
    blocks_override : int or None
        ``--num-gpu-blocks-override``.
    lookahead : int
        Extra window positions (multi-module MTP: speculative tokens - 1).
    tokens_by_concurrency : bool
        True from vLLM 0.21: printed tokens are int(concurrency x max_model_len). False before: blocks // groups x the
        smallest block.
    chunk_in_flight : bool
        Whether chunked layers also reserve the tokens in flight.
    fit : bool
        ``--max-model-len -1``: shrink `max_model_len` to the longest that fits instead of refusing.
    """

    max_model_len: int
    in_flight_tokens: int
    hybrid: bool = True
    state_cache: StateCache = StateCache.NONE
    context_parallel: int = 1
    blocks_override: int | None = None
    lookahead: int = 0
    tokens_by_concurrency: bool = True
    chunk_in_flight: bool = True
    fit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share block ids.

    Attributes
    ----------
    layers : tuple of CacheLayer
        After page unification. Several shapes only when all keep the same tokens.
    stages : tuple of int
        Pipeline stage of each layer.
    """

    layers: tuple[CacheLayer, ...]
    stages: tuple[int, ...]

    def bytes_per_block(self, stage: int) -> int:
        """Bytes of one block id on a stage."""
        return sum(layer.page_bytes for layer, s in zip(self.layers, self.stages, strict=True) if s == stage)

    def blocks_per_request(self, length: int, settings: CacheSettings) -> int:
        """Block ids that one request of `length` tokens reserves."""
        return max(pages_per_request(layer, length, settings) for layer in set(self.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What vLLM decides and prints.

    Attributes
    ----------
    num_blocks : int
        The same on every rank: the minimum over them.
    tokens : int
        As printed after "KV cache size".
    max_concurrency : float
        Requests of `max_model_len` tokens that fit.
    max_model_len : int
        After fitting, where that was asked.
    log_lines : tuple of str
        In the version's words.
    groups : tuple of CacheGroup
    bytes_per_block : tuple of int
        Per stage.
    blocks_per_request : int
        For `max_model_len` tokens.
    padding_layers : int
        Empty layer slots: group size x groups - layers.
    settings : CacheSettings
        That it was planned for.
    """

    num_blocks: int
    tokens: int
    max_concurrency: float
    max_model_len: int
    log_lines: tuple[str, ...]
    groups: tuple[CacheGroup, ...]
    bytes_per_block: tuple[int, ...]
    blocks_per_request: int
    padding_layers: int
    settings: CacheSettings

    def requests(self, length: int) -> int:
        """Whole requests that own `length` slots each, beside the permanent null block."""
        each = sum(group.blocks_per_request(length, self.settings) for group in self.groups)
        return (self.num_blocks - 1) // each


def pages_per_request(layer: CacheLayer, length: int, settings: CacheSettings) -> int:
    r"""Pages that one request of `length` tokens reserves in `layer`.

    .. math::
        \text{full: } \lceil \lceil L/dcp \rceil / b \rceil \quad
        \text{window: } \lceil \min(w - 1 + e + F,\, L)/b \rceil + 1 \quad
        \text{chunk: } \lceil \min(c + F,\, L)/b \rceil \quad
        \text{state: } 1 + k \text{ or } 2 + k

    Examples
    --------
    >>> window = CacheLayer(kind=CacheKind.SLIDING, block_size=16, page_bytes=32768, window=128)
    >>> pages_per_request(window, 131072, CacheSettings(max_model_len=131072, in_flight_tokens=16384))
    1033
    """
    block, flight = layer.block_size, settings.in_flight_tokens
    match layer.kind:
        case CacheKind.SLIDING:
            assert layer.window is not None  # noqa: S101 - an invariant of the kind, for the type checker
            if settings.context_parallel > 1:
                raise UnsupportedError("vLLM does not divide sliding windows among decode context parallel ranks")
            return _ceil(min(layer.window - 1 + settings.lookahead + flight, length), block) + 1
        case CacheKind.CHUNKED:
            assert layer.chunk is not None  # noqa: S101 - the same
            return _ceil(min(layer.chunk + (flight if settings.chunk_in_flight else 0), length), block)
        case CacheKind.RECURRENT:
            return (2 if settings.state_cache is StateCache.ALIGN else 1) + layer.state_blocks
        case CacheKind.CROSS:
            return _ceil(layer.encoder_tokens, block)
        case _:
            ranks = settings.context_parallel if layer.context_sharded else 1
            return _ceil(_ceil(length, ranks), block)


def plan_cache(
    stages: Sequence[Sequence[CacheLayer]], available_bytes: Sequence[int], settings: CacheSettings
) -> CachePlan:
    """Plan the pool.

    Parameters
    ----------
    stages : sequence of sequence of CacheLayer
        Cache layers of one rank of each pipeline stage, in order; a draft's layers stand after its stage's.
    available_bytes : sequence of int
        Bytes for the cache on each stage (on the rank that has least).
    settings : CacheSettings

    Returns
    -------
    CachePlan

    Raises
    ------
    InfeasibleError
        In vLLM's words, when nothing is left for the cache or one request of `max_model_len` does not fit.
    UnsupportedError
        For mixed layers whose pages vLLM cannot unify.

    Notes
    -----
    One block is the permanent null block: the minimum check leaves it out, the printed concurrency does not.

    Examples
    --------
    Llama-3-70B on one rank of four, 36.83 GiB left:

    >>> layer = CacheLayer(kind=CacheKind.FULL, block_size=16, page_bytes=16384, shape=(2, 128, 128))
    >>> plan = plan_cache([[layer] * 80], [39545911377], CacheSettings(max_model_len=8192, in_flight_tokens=16384))
    >>> plan.num_blocks, plan.tokens, round(plan.max_concurrency, 2)
    (30171, 482736, 58.93)
    """
    if len(stages) != len(available_bytes) or not any(stages):
        raise InputError("a plan needs at least one cache layer and the free bytes of every stage")
    groups = group_layers([(layer, s) for s, layers in enumerate(stages) for layer in layers], settings)
    per_block = tuple(max(group.bytes_per_block(s) for group in groups) for s in range(len(stages)))
    available = [
        settings.blocks_override * size if settings.blocks_override is not None else int(free)
        for free, size in zip(available_bytes, per_block, strict=True)
    ]

    def blocks_per_request(length: int) -> int:
        return sum(group.blocks_per_request(length, settings) for group in groups)

    # A stage whose layers all sit elsewhere holds nothing and limits nothing.
    holders = [(free, size) for free, size in zip(available, per_block, strict=True) if size]
    length = settings.max_model_len
    if settings.fit:
        length = min(longest_request(groups, free // size - 1, settings) for free, size in holders)
        if length == 0:
            raise InfeasibleError(_NO_FIT)
    for free, size in holders:  # vLLM asks the stages in turn, and the first that refuses speaks
        spare = free - size  # all but the null block
        if spare <= 0:
            raise InfeasibleError(_NO_MEMORY)
        needed = size * blocks_per_request(length)
        if needed > spare:
            raise InfeasibleError(_too_long(length, needed, spare, longest_request(groups, spare // size, settings)))
    num_blocks = min(free // size for free, size in holders)
    per_request = blocks_per_request(length)
    concurrency = num_blocks / per_request
    if settings.tokens_by_concurrency:
        tokens = int(concurrency * length)
    else:
        smallest = min(layer.block_size for group in groups for layer in group.layers)
        tokens = num_blocks // len(groups) * smallest * settings.context_parallel
    slots = max(len(group.layers) for group in groups) * len(groups)
    return CachePlan(
        num_blocks=num_blocks,
        tokens=tokens,
        max_concurrency=concurrency,
        max_model_len=length,
        log_lines=log_lines(tokens, length, concurrency, one_line=settings.tokens_by_concurrency),
        groups=groups,
        bytes_per_block=per_block,
        blocks_per_request=per_request,
        padding_layers=slots - sum(len(group.layers) for group in groups),
        settings=replace(settings, max_model_len=length),
    )


def log_lines(
    tokens: int, max_model_len: int, concurrency: float, *, one_line: bool = True, device: str = "GPU"
) -> tuple[str, ...]:
    """The capacity message, as vLLM prints it since 0.21 (one line) or before (two).

    >>> log_lines(482736, 8192, 58.927734375)[0]
    'GPU KV cache size: 482,736 tokens, Maximum concurrency for 8,192 tokens per request: 58.93x'
    """
    size = f"{device} KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {max_model_len:,} tokens per request: {concurrency:.2f}x"
    return (f"{size}, {most}",) if one_line else (size, most)


def longest_request(groups: Sequence[CacheGroup], blocks: int, settings: CacheSettings) -> int:
    """Longest request (tokens, at most `max_model_len`) that `blocks` block ids hold; 0 when none does.

    Pages never shrink as a request grows, so bisection finds it.
    """
    low, high = 0, settings.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if sum(group.blocks_per_request(middle, settings) for group in groups) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def group_layers(layers: Sequence[tuple[CacheLayer, int]], settings: CacheSettings) -> tuple[CacheGroup, ...]:
    """Form groups of (layer, stage) pairs: one when all layers keep the same tokens, else equal pages and equal sizes.

    Mixed layers: pages are brought to the largest (`unify_pages`), layers of one shape form a bucket, and every bucket
    is cut into groups of the smallest bucket's size, or of the largest's when that is below 1.5 times the smallest.
    """
    plain = [layer for layer, _ in layers]
    if not settings.hybrid:
        plain = _unified_by_force(plain)
    if keeps_same_tokens(plain):
        return (CacheGroup(layers=tuple(plain), stages=tuple(s for _, s in layers)),)
    try:
        pages = unify_pages(plain)
    except UnsupportedError:
        # vLLM's way out: windows kept in full, which then may share one group at any page size.
        plain = _promoted(plain)
        if not keeps_same_tokens(plain):
            raise
        return (CacheGroup(layers=tuple(plain), stages=tuple(s for _, s in layers)),)
    buckets: dict[CacheLayer, list[tuple[CacheLayer, int]]] = {}
    for page, (_, stage) in zip(pages, layers, strict=True):
        buckets.setdefault(page, []).append((page, stage))
    sizes = [len(bucket) for bucket in buckets.values()]
    group_size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    groups: list[CacheGroup] = []
    for bucket in buckets.values():
        count = _ceil(len(bucket), group_size)
        # Layer i goes to group i mod count, so that pipeline stages share each group evenly.
        for i in range(count):
            part = bucket[i::count]
            groups.append(CacheGroup(layers=tuple(x for x, _ in part), stages=tuple(s for _, s in part)))
    return tuple(groups)


def keeps_same_tokens(layers: Sequence[CacheLayer]) -> bool:
    """Whether all layers keep the same positions in blocks of one size: then they share a group at any page size."""
    first = layers[0]
    if any(layer.block_size != first.block_size for layer in layers):
        return False
    if first.kind.is_full:
        return all(layer.kind.is_full and layer.context_sharded == first.context_sharded for layer in layers)
    return all(
        (layer.kind, layer.window, layer.chunk, layer.state_blocks)
        == (first.kind, first.window, first.chunk, first.state_blocks)
        for layer in layers
    )


def unify_pages(layers: Sequence[CacheLayer]) -> tuple[CacheLayer, ...]:
    """Bring every page to the largest one: by more tokens per block where that divides, else by padding.

    Raises
    ------
    UnsupportedError
        For a latent layer whose page does not divide the largest (vLLM refuses it too).
    """
    largest = max(layer.page_bytes for layer in layers)

    def unified(layer: CacheLayer) -> CacheLayer:
        if layer.page_bytes == largest:
            return layer
        ratio, rest = divmod(largest, layer.page_bytes)
        if layer.kind is CacheKind.RECURRENT:
            return replace(layer, page_bytes=largest)
        if rest == 0:
            return replace(layer, page_bytes=largest, block_size=layer.block_size * ratio)
        if layer.kind is CacheKind.LATENT:
            raise UnsupportedError(
                f"vLLM cannot unify a latent page of {layer.page_bytes} bytes with one of {largest}; give the layers "
                "page sizes that divide each other (--block-size)"
            )
        return replace(layer, page_bytes=largest)

    return tuple(map(unified, layers))


def _unified_by_force(layers: Sequence[CacheLayer]) -> list[CacheLayer]:
    """Layers without the hybrid manager: those divided among context-parallel ranks alike must become of one type."""
    out = list(layers)
    for sharded in (True, False):
        part = [layer for layer in layers if layer.context_sharded is sharded]
        if not part or keeps_same_tokens(part):
            continue
        for spans in ({layer.window for layer in part}, {layer.chunk for layer in part}):
            if len(spans - {None}) > 1 and part[0].kind is not CacheKind.LATENT:
                raise UnsupportedError(
                    "All attention layers in the same KV cache group must have the same window size."
                )
        part = _promoted(part)
        if not keeps_same_tokens(part):
            raise UnsupportedError("Failed to promote local KV cache specs to one unified type.")
        promoted = iter(part)
        out = [next(promoted) if layer.context_sharded is sharded else layer for layer in out]
    return out


def _promoted(layers: Sequence[CacheLayer]) -> list[CacheLayer]:
    """Windows and chunks charged as full attention, in its blocks, where there is full attention beside them."""
    blocks = {layer.block_size for layer in layers if layer.kind.is_full}
    if not blocks:
        return list(layers)

    def promoted(layer: CacheLayer) -> CacheLayer:
        if layer.kind not in (CacheKind.SLIDING, CacheKind.CHUNKED):
            return layer
        block = next(iter(blocks)) if len(blocks) == 1 else layer.block_size
        page = layer.page_bytes * block // layer.block_size
        return replace(layer, kind=CacheKind.FULL, window=None, chunk=None, block_size=block, page_bytes=page)

    return [promoted(layer) for layer in layers]


def _too_long(length: int, needed: int, have: int, longest: int) -> str:
    estimate = f"Based on the available memory, the estimated maximum model length is {longest}. " if longest else ""
    # vLLM's own words, its unbalanced parenthesis included.
    return (
        f"To serve at least one request with the model's max seq len ({length}), "
        f"({round(needed / GIB, 2)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({round(have / GIB, 2)} GiB). {estimate}Try increasing `gpu_memory_utilization` (which also controls CPU "
        f"memory on the CPU backend) or decreasing `max_model_len` when initializing the engine. {_DOCS}"
    )


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
