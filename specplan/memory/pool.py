"""One pool for every command: what the chosen engine keeps for the cache, and how many requests of a length it holds.

Block-exact where the engine's rules are known (vLLM, SGLang), with the slots that drafts own behind each request; for
other engines, and for models whose pool those rules do not cover, the plain subtraction, and the pool says so.
"""

from dataclasses import dataclass, replace
from typing import Final

from specplan.errors import UnsupportedError
from specplan.memory.plain import DEFAULT_UTILIZATION, DEFAULT_WORKSPACE, plain_pool
from specplan.memory.prediction import PoolPrediction
from specplan.memory.speculative import SglangSpeculation, Speculation
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.units import GIB
from specplan.values.draft_methods import draft_method
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator
from specplan.values.model import Model

BLOCK_RULES: Final = ("vllm", "sglang")
"""Engines whose pools are known block by block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What drafts beside a target, as far as memory goes.

    Attributes
    ----------
    method : str
        A name of `specplan.values.draft_methods.METHODS`.
    kappa : int
        Drafted tokens that the engine is started for.
    model : Model or None
        Draft or head; ``mtp`` without one takes the target's own layers.
    nodes : int or None
        Verified positions of a tree, root included; kappa + 1 if None.
    """

    method: str
    kappa: int
    model: Model | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How an engine is started, as far as memory goes; None takes the engine's default.

    Attributes
    ----------
    engine : str
    version : str or None
    tp : int
    utilization : float or None
        vLLM's ``--gpu-memory-utilization``, SGLang's ``--mem-fraction-static``.
    kv_cache_dtype : str
    workspace_bytes : float or None
        Replaces the modelled activation peak, non-torch memory and graphs of vLLM, and the plain subtraction's 2 GiB.
    """

    engine: str = "vllm"
    version: str | None = None
    tp: int = 1
    utilization: float | None = None
    kv_cache_dtype: str = "auto"
    workspace_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What an engine holds of requests of one length.

    Attributes
    ----------
    basis : str
        Whose rules: ``blocks of vllm 0.32.0``, or ``plain subtraction`` with the reason.
    length : int
        Tokens of a request.
    slots : int
        That a drafting request owns behind them.
    tokens : int
        Of the pool.
    requests : int
        Whole requests of the length, with their slots; 0 where none fits or the engine refuses to start.
    bytes_per_rank : float
        For the cache.
    binding : str
        What limits the requests.
    longest : int
        Longest request that the engine would start for.
    prediction : PoolPrediction or None
        Of the engine, term by term.
    """

    basis: str
    length: int
    slots: int
    tokens: int
    requests: int
    bytes_per_rank: float
    binding: str
    longest: int
    prediction: PoolPrediction | None = None


def pool(target: Model, card: Accelerator, serving: Serving, length: int, drafting: Drafting | None = None) -> Pool:
    """Size the pool for requests of `length` tokens, perhaps with what drafts.

    Parameters
    ----------
    target : Model
    card : Accelerator
    serving : Serving
    length : int
        Tokens of a request, at least 1: its context with the token of the current step.
    drafting : Drafting, optional

    Raises
    ------
    InputError
        For flags that the engine refuses, or a card without a memory size.

    Notes
    -----
    A drafting request owns its tokens, the drafts under verification and the slots in which the next drafts are written
    (vLLM: k more for models and heads; SGLang: as many as are verified). The number is that of
    requests which decode together at this length; "Maximum concurrency" in vLLM's log leaves the drafts' slots out.
    SGLang's and vLLM's own limits on running requests are flags, and not counted.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> big, small, card = load_model("llama3-70b"), load_model("llama3.2-1b"), load_accelerator("h100-sxm")
    >>> four = Serving(tp=4)
    >>> plain, drafted = pool(big, card, four, 2048), pool(big, card, four, 2048, Drafting(
    ...     method="model", kappa=3, model=small))
    >>> plain.requests, drafted.requests, drafted.slots, plain.basis
    (233, 207, 6, 'blocks of vllm 0.32.0')
    """
    reason = f"the pool of {serving.engine} is not known"
    if serving.engine in BLOCK_RULES:
        try:
            return _vllm(target, card, serving, length, drafting) if serving.engine == "vllm" else (
                _sglang(target, card, serving, length, drafting)
            )  # fmt: skip
        except UnsupportedError as error:
            reason = str(error)
    return _plain(target, card, serving, length, drafting, reason)


def _vllm(target: Model, card: Accelerator, serving: Serving, length: int, drafting: Drafting | None) -> Pool:
    flags = VllmFlags(
        tp=serving.tp,
        gpu_memory_utilization=serving.utilization,
        kv_cache_dtype=serving.kv_cache_dtype,
        max_model_len=length,
    )
    if serving.version is not None:
        flags = replace(flags, version=serving.version)
    if serving.workspace_bytes is not None:
        flags = replace(flags, activation_peak=serving.workspace_bytes, non_torch=0.0, cuda_graph=0.0)
    speculation, model = (None, None) if drafting is None else vllm_drafting(drafting, target)
    return _pool(predict_vllm(target, card, flags, speculation, model), length, speculation)


def vllm_drafting(drafting: Drafting, target: Model) -> tuple[Speculation, Model | None]:
    """What drafts in vLLM's words, and the model that it loads beside the target.

    Raises
    ------
    UnsupportedError
        If vLLM has no such method.
    """
    method = draft_method(drafting.method)
    if method.vllm is None:
        raise UnsupportedError(f"vLLM has no {method.name}")
    # A head's own layers are cut from the target by the engine.
    model = None if method.name == "mtp" and target.mtp_layers else drafting.model
    speculation = Speculation(
        method=method.vllm,
        num_speculative_tokens=drafting.kappa,
        parallel_drafting=method.one_pass,
        heterogeneous_vocab=method.by == "model" and model is not None and model.vocab_size != target.vocab_size,
        older_runner=method.older_runner,
    )
    return speculation, model


def _sglang(target: Model, card: Accelerator, serving: Serving, length: int, drafting: Drafting | None) -> Pool:
    # Read only where it is asked for: short commands start sooner.
    from specplan.memory.sglang import SglangFlags, predict_sglang

    flags = SglangFlags(
        tp=serving.tp,
        mem_fraction_static=serving.utilization,
        kv_cache_dtype={"fp8": "fp8_e4m3"}.get(serving.kv_cache_dtype, serving.kv_cache_dtype),
        context_length=length,
    )
    if serving.version is not None:
        flags = replace(flags, version=serving.version)
    speculation, model = (None, None) if drafting is None else sglang_drafting(drafting, target)
    return _pool(predict_sglang(target, card, flags, speculation, model), length, speculation)


def sglang_drafting(drafting: Drafting, target: Model) -> tuple[SglangSpeculation, Model | None]:
    """What drafts in SGLang's words, and the model that it loads beside the target.

    Raises
    ------
    UnsupportedError
        If SGLang has no such algorithm.
    """
    method = draft_method(drafting.method)
    if method.sglang is None:
        raise UnsupportedError(f"SGLang has no {method.name}")
    model = None if method.name == "mtp" and target.mtp_layers else drafting.model
    speculation = SglangSpeculation(
        algorithm="EAGLE" if method.sglang == "NEXTN" else method.sglang,
        draft_model=None,
        num_draft_tokens=drafting.nodes or drafting.kappa + 1,
    )
    return speculation, model


def _pool(found: PoolPrediction, length: int, speculation: Speculation | SglangSpeculation | None) -> Pool:
    slots = 0 if speculation is None else speculation.slots
    requests = found.requests(slots)
    left = found.rank.available.best
    behind = f" and {slots} slots of drafts" if slots else ""
    if left <= 0:
        binding = f"weights: {-left / GIB:.2f} GiB per rank more than {found.engine} may use"
    elif requests == 0:
        binding = f"one request of {length:,} tokens{behind} does not fit the pool of {left / GIB:.2f} GiB per rank"
    else:
        binding = f"the pool: {requests:,} requests of {length:,} tokens{behind}"
    return Pool(
        basis=f"blocks of {found.engine} {found.version}",
        length=length,
        slots=slots,
        tokens=0 if found.tokens is None else int(found.tokens.best),
        requests=requests,
        bytes_per_rank=max(left, 0.0),
        binding=binding,
        longest=found.longest,
        prediction=found,
    )


def _plain(
    target: Model, card: Accelerator, serving: Serving, length: int, drafting: Drafting | None, reason: str
) -> Pool:
    memory = card.memory_torch_bytes or card.memory_driver_bytes or 0.0
    share = DEFAULT_UTILIZATION if serving.utilization is None else serving.utilization
    workspace = DEFAULT_WORKSPACE if serving.workspace_bytes is None else serving.workspace_bytes
    models = (target,) if drafting is None or drafting.model is None else (target, drafting.model)
    slots = 0 if drafting is None else draft_method(drafting.method).slots(drafting.kappa)
    kv_format = None if serving.kv_cache_dtype == "auto" else lookup(serving.kv_cache_dtype)
    found = plain_pool(models, memory * share - workspace, length=length + slots, tp=serving.tp, kv_format=kv_format)
    short = found.shortfall_bytes
    return Pool(
        basis=f"plain subtraction: {reason}",
        length=length,
        slots=slots,
        tokens=found.tokens,
        requests=found.sequences,
        bytes_per_rank=found.kv_bytes_per_rank,
        binding=f"weights: {short / GIB:.2f} GiB per rank more than there is" if short else
        f"the pool: {found.sequences:,} requests of {length:,} tokens",
        longest=found.tokens,
    )  # fmt: skip
