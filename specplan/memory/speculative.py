"""vLLM's ``--speculative-config`` and SGLang's ``--speculative-*`` flags, validated as the engines validate them.

Source: vLLM 0.32.0 (`config/speculative.py`), SGLang 0.5.23 (`arg_groups/speculative_hook.py`).
"""

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specplan.errors import InputError
from specplan.files.documents import json_object
from specplan.units import LARGEST_COUNT
from specplan.values import draft_methods
from specplan.values.vllm_versions import DEFAULT_VERSION, vllm_rules

METHODS: Final = (
    *dict.fromkeys(m.vllm for m in draft_methods.METHODS.values() if m.vllm), "custom_class", "extract_hidden_states",
)  # fmt: skip
"""vLLM's methods after renaming."""

SYNCHRONOUS: Final = frozenset({"custom_class", *(m.vllm for m in draft_methods.METHODS.values() if m.older_runner)})
"""Methods with which vLLM turns asynchronous scheduling off."""

RUNNER_V1: Final = SYNCHRONOUS - {"ngram"}
"""Methods with which vLLM falls back to model runner V1."""

MODEL_DRAFTS: Final = frozenset(m.vllm for m in draft_methods.METHODS.values() if m.by != "matcher")
"""Methods that load a draft with weights (Medusa and MLP speculators cache nothing)."""

_FIELDS: Final = frozenset({
    "num_speculative_tokens", "model", "method", "revision", "code_revision", "quantization", "draft_load_config",
    "enforce_eager", "draft_tensor_parallel_size", "tensor_parallel_size", "moe_backend", "attention_backend",
    "kv_cache_dtype", "max_model_len", "index_share_for_mtp_iteration", "disable_padded_drafter_batch",
    "disable_eagle_block_drop", "use_local_argmax_reduction", "use_heterogeneous_vocab", "prompt_lookup_max",
    "prompt_lookup_min", "parallel_drafting", "num_speculative_tokens_per_batch_size",
    "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob", "rejection_sample_method", "synthetic_acceptance_rates",
    "synthetic_acceptance_length", "draft_sample_method", "enable_adaptive_verification", "dspark_draft_topk",
    "load_format",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A validated speculative configuration, under vLLM's names whichever engine it came from.

    Attributes
    ----------
    method : str
        One of `METHODS`, or SGLang's ``sglang-ngram``, ``sglang-eagle``, ``sglang-standalone``.
    num_speculative_tokens : int
        k.
    model : str or None
        The draft as the user named it.
    draft_tp : int or None
        None follows the target.
    kv_cache_dtype : str or None
        The draft's cache; None inherits the target's.
    quantization : str or None
    prompt_lookup : tuple of (int, int) or None
        Shortest and longest n-gram.
    probabilistic : bool
        Draft probabilities are kept for verification.
    parallel_drafting, heterogeneous_vocab : bool
    max_model_len : int or None
        The draft's own limit.
    older_runner : bool
        Started on model runner V1 (``VLLM_USE_V2_MODEL_RUNNER=0``), whatever the method needs.
    """

    method: str
    num_speculative_tokens: int
    model: str | None = None
    draft_tp: int | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    prompt_lookup: tuple[int, int] | None = None
    probabilistic: bool = False
    parallel_drafting: bool = False
    heterogeneous_vocab: bool = False
    max_model_len: int | None = None
    older_runner: bool = False

    @property
    def has_draft_model(self) -> bool:
        """Whether a draft with weights is loaded."""
        return self.method in MODEL_DRAFTS

    @property
    def slots(self) -> int:
        """Cache slots that a request owns behind its tokens: the drafts, and where the next ones are written."""
        known = [m for m in draft_methods.METHODS.values() if m.vllm == self.method]
        return known[0].slots(self.num_speculative_tokens) if known else self.num_speculative_tokens


def parse_speculative_config(
    text: str | Mapping[str, Any],
    *,
    tp: int = 1,
    max_model_len: int | None = None,
    mtp_modules: int = 0,
    version: str = DEFAULT_VERSION,
) -> Speculation:
    """Read ``--speculative-config`` as vLLM does.

    Parameters
    ----------
    text : str or mapping
        The JSON, or what it parses to.
    tp : int
        The target's tensor-parallel ranks: a draft takes 1 or as many.
    max_model_len : int, optional
        The target's limit.
    mtp_modules : int
        Multi-token prediction modules in the target's checkpoint (``num_nextn_predict_layers``): the default k of
        ``mtp``, and what a larger k must be a multiple of.
    version : str
        Of vLLM: its fields, methods and rules of rejection.

    Raises
    ------
    InputError
        Where vLLM refuses to start.

    Examples
    --------
    >>> given = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
    >>> parse_speculative_config(given).prompt_lookup
    (4, 4)
    >>> parse_speculative_config('{"model": "org/draft", "num_speculative_tokens": 5}').method
    'draft_model'
    """
    config = _mapping(text)
    rules = vllm_rules(version)
    fields = _FIELDS | rules.settings
    unknown = sorted(config.keys() - fields)
    if unknown:
        raise InputError(
            f"--speculative-config: unknown field {', '.join(unknown)}; vLLM {version} knows "
            f"{', '.join(sorted(fields))}"
        )
    if config.get("tensor_parallel_size") is not None:
        raise InputError(
            "--speculative-config: 'tensor_parallel_size' is not allowed; use 'draft_tensor_parallel_size'"
        )
    _check_types(config)
    method = _method(config)
    if method in rules.dropped:
        raise InputError(f"--speculative-config: vLLM {version} has no method {method} any more; older ones have")
    tokens = _tokens(config, method, mtp_modules)
    draft_tp = _integer(config, "draft_tensor_parallel_size", least=1)
    if draft_tp is None and method == "mlp_speculator":
        draft_tp = 1
    if draft_tp not in (None, 1, tp):
        raise InputError(
            f"--speculative-config: draft_tensor_parallel_size must be 1 or the target's {tp}, got {draft_tp}"
        )
    if method == "draft_model" and draft_tp not in (None, tp):
        raise InputError(
            f"--speculative-config: a draft model runs with the target's tensor_parallel_size {tp}, got "
            f"draft_tensor_parallel_size {draft_tp}"
        )
    draft_len = _integer(config, "max_model_len", least=1)
    if draft_len is not None and max_model_len is not None and draft_len > max_model_len:
        raise InputError(f"--speculative-config: max_model_len {draft_len} exceeds the target's {max_model_len}")
    sampling = _choice(config, "draft_sample_method", ("greedy", "probabilistic"))
    _rejection(config, tokens, rules.rejections)
    _fly(config, tokens)
    heterogeneous = bool(config.get("use_heterogeneous_vocab"))
    if heterogeneous and (method != "draft_model" or sampling == "probabilistic"):
        raise InputError("--speculative-config: use_heterogeneous_vocab needs method draft_model and greedy drafts")
    return Speculation(
        method=method,
        num_speculative_tokens=tokens,
        model=config.get("model"),
        draft_tp=draft_tp,
        kv_cache_dtype=config.get("kv_cache_dtype"),
        quantization=config.get("quantization"),
        prompt_lookup=_prompt_lookup(config) if method in ("ngram", "ngram_gpu") else None,
        probabilistic=sampling == "probabilistic",
        parallel_drafting=bool(config.get("parallel_drafting")) or method in draft_methods.named(masked=True),
        heterogeneous_vocab=heterogeneous,
        max_model_len=draft_len,
    )


def _mapping(text: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(text, str):
        return text
    return json_object(text, f"--speculative-config {text[:80]!r}")


_STRINGS: Final = (
    "method", "model", "revision", "code_revision", "quantization", "moe_backend", "attention_backend",
    "kv_cache_dtype", "rejection_sample_method", "draft_sample_method", "load_format",
)  # fmt: skip
_FLAGS: Final = (
    "enforce_eager", "disable_padded_drafter_batch", "disable_eagle_block_drop", "use_local_argmax_reduction",
    "use_heterogeneous_vocab", "parallel_drafting", "enable_adaptive_verification", "index_share_for_mtp_iteration",
)  # fmt: skip


def _check_types(config: Mapping[str, Any]) -> None:
    """Refuse values of another type than vLLM's fields have, and numbers outside what they may be."""
    for name in _STRINGS:
        if not isinstance(config.get(name, ""), str | None):
            raise InputError(f"--speculative-config: {name} must be a string, got {config[name]!r}")
    for name in _FLAGS:
        if not isinstance(config.get(name), bool | None):
            raise InputError(f"--speculative-config: {name} must be true or false, got {config[name]!r}")
    _integer(config, "suffix_decoding_max_tree_depth", least=1)
    _integer(config, "suffix_decoding_max_cached_requests", least=0)
    _real(config, "suffix_decoding_max_spec_factor", 0, math.inf)
    _real(config, "suffix_decoding_min_token_prob", 0, 1)
    _schedule(config.get("num_speculative_tokens_per_batch_size"))


def _schedule(ranges: Any) -> None:
    """Check the draft lengths by batch: (first, last, k), from batch 1 on, one after the other."""
    if ranges is None:
        return
    wrong = InputError(
        "--speculative-config: num_speculative_tokens_per_batch_size must be a list of [first, last, k], the first "
        f"from batch 1, none overlapping, k at least 0; got {json.dumps(ranges)[:80]}"
    )
    before = 0
    if not isinstance(ranges, list) or not ranges:
        raise wrong
    for i, part in enumerate(ranges):
        if not isinstance(part, list) or len(part) != 3 or any(type(x) is not int for x in part):
            raise wrong
        first, last, k = part
        if first <= before or last < first or k < 0 or (i == 0 and first != 1):
            raise wrong
        before = last


def _real(config: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        bounds = f"at least {least:g}" if most == math.inf else f"in {least:g}..{most:g}"
        raise InputError(f"--speculative-config: {name} must be a number {bounds}, got {value!r}")
    return float(value)


def _method(config: Mapping[str, Any]) -> str:
    method, model = config.get("method"), config.get("model")
    if method is None:
        if model is None:
            raise InputError("--speculative-config: give 'method' or 'model'")
        if model in ("ngram", "[ngram]"):
            return "ngram"
        if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", model) and not model.endswith((".yaml", ".yml", ".json")):
            return "custom_class"
        method = "draft_model"
    if method in (*draft_methods.MTP_NAMES, "mtp"):
        return "mtp"
    if method not in METHODS:
        raise InputError(f"--speculative-config: unknown method {method!r}; one of {', '.join(METHODS)}")
    if method == "draft_model":
        if model is None:
            raise InputError("--speculative-config: method draft_model needs 'model'")
        # vLLM re-decides by the model's name, whatever the method said.
        for mark, decided in (("eagle3", "eagle3"), ("eagle-", "eagle"), ("dflash", "dflash"), ("dspark", "dspark")):
            if mark in model.lower():
                return decided
    return str(method)


def _tokens(config: Mapping[str, Any], method: str, mtp_modules: int) -> int:
    tokens = _integer(config, "num_speculative_tokens", least=1)
    if tokens is None:
        if method == "mtp" and mtp_modules:
            return mtp_modules
        if method == "suffix":
            return _integer(config, "suffix_decoding_max_tree_depth", least=1) or 24
        raise InputError(f"--speculative-config: method {method} needs num_speculative_tokens")
    if method == "mtp" and mtp_modules and tokens > mtp_modules and tokens % mtp_modules:
        raise InputError(
            f"--speculative-config: num_speculative_tokens {tokens} must be a multiple of the checkpoint's "
            f"{mtp_modules} prediction modules"
        )
    return tokens


def _prompt_lookup(config: Mapping[str, Any]) -> tuple[int, int]:
    low = _integer(config, "prompt_lookup_min", least=1)
    high = _integer(config, "prompt_lookup_max", least=1)
    if low is None and high is None:
        return 5, 5
    low, high = (high if low is None else low), (low if high is None else high)
    assert low is not None and high is not None  # noqa: S101, PT018 - one of them was given
    if low > high:
        raise InputError(f"--speculative-config: prompt_lookup_min {low} must not exceed prompt_lookup_max {high}")
    return low, high


def _fly(config: Mapping[str, Any], tokens: int) -> None:
    window = _integer(config, "fly_window_size", least=1)
    _real(config, "fly_entropy_threshold", 0, math.inf)
    _integer(config, "fly_entropy_top_k", least=1)
    _integer(config, "xpress_topc", least=0)
    if config.get("draft_lm_head_quantization") is not None:
        _choice(config, "draft_lm_head_quantization", ("fp8", "nvfp4"))
    if config.get("rejection_sample_method") == "fly" and (tokens < 2 or (window or 1) >= tokens):
        raise InputError(
            f"--speculative-config: fly defers to later drafts: num_speculative_tokens {tokens} must be at least 2, "
            f"and fly_window_size{'' if window is None else f' {window}'} below it"
        )


def _rejection(config: Mapping[str, Any], tokens: int, allowed: tuple[str, ...]) -> None:
    method = _choice(config, "rejection_sample_method", allowed)
    rates, length = config.get("synthetic_acceptance_rates"), config.get("synthetic_acceptance_length")
    if method != "synthetic":
        if rates is not None or length is not None:
            raise InputError("--speculative-config: synthetic acceptance fields need rejection_sample_method synthetic")
        return
    if (rates is None) == (length is None):
        raise InputError(
            "--speculative-config: give exactly one of synthetic_acceptance_rates and synthetic_acceptance_length"
        )
    _real(config, "synthetic_acceptance_length", 1, tokens + 1)
    if rates is None:
        return
    if not (
        isinstance(rates, list)
        and len(rates) == tokens
        and all(isinstance(r, int | float) and 0 <= r <= 1 for r in rates)
        and all(a >= b for a, b in itertools.pairwise(rates))
    ):
        raise InputError(
            f"--speculative-config: synthetic_acceptance_rates must be {tokens} rates in 0..1 that never rise"
        )


def _integer(config: Mapping[str, Any], name: str, *, least: int) -> int | None:
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"--speculative-config: {name} must be a whole number of at least {least}, got {value!r}")
    if value > LARGEST_COUNT:
        raise InputError(f"--speculative-config: {name} must be at most {LARGEST_COUNT:,}")
    return value


def _choice(config: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = config.get(name) or allowed[0]
    if value not in allowed:
        raise InputError(f"--speculative-config: {name} must be one of {', '.join(allowed)}, got {value!r}")
    return str(value)


SGLANG_ALGORITHMS: Final = (*(m.sglang for m in draft_methods.METHODS.values() if m.sglang), "FROZEN_KV_MTP")
"""Values of SGLang's ``--speculative-algorithm`` (NEXTN is EAGLE with the target's own prediction layers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSpeculation:
    """SGLang's ``--speculative-*`` flags after its defaults.

    Attributes
    ----------
    algorithm : str
    draft_model : str or None
    num_draft_tokens : int
        N: positions that every step verifies, root included.
    draft_kv_cache_dtype : str or None
    """

    algorithm: str
    draft_model: str | None
    num_draft_tokens: int
    draft_kv_cache_dtype: str | None = None

    @property
    def slots(self) -> int:
        """Cache slots that a request owns behind its tokens (`mem_cache/allocation_sizing.py`)."""
        return 2 * self.num_draft_tokens


def sglang_speculation(
    algorithm: str,
    draft_model: str | None = None,
    *,
    num_steps: int | None = None,
    eagle_topk: int | None = None,
    num_draft_tokens: int | None = None,
    draft_kv_cache_dtype: str | None = None,
) -> SglangSpeculation:
    """Validate SGLang's speculative flags.

    Raises
    ------
    InputError
        For an unknown algorithm, a missing draft, or flags that contradict each other.

    Examples
    --------
    >>> sglang_speculation("ngram").num_draft_tokens
    12
    >>> sglang_speculation("EAGLE", num_steps=3, eagle_topk=1).num_draft_tokens
    4
    """
    name = algorithm.upper()
    if name not in SGLANG_ALGORITHMS:
        raise InputError(f"--speculative-algorithm {algorithm!r}: one of {', '.join(SGLANG_ALGORITHMS)}")
    if name in ("STANDALONE", "EAGLE3", "DFLASH", "DSPARK") and draft_model is None:
        raise InputError(f"--speculative-algorithm {name} needs --speculative-draft-model-path")
    if name == "NGRAM":
        if draft_model is not None:
            raise InputError("--speculative-algorithm NGRAM takes no --speculative-draft-model-path")
        tokens = 12 if num_draft_tokens is None else num_draft_tokens
    else:
        if eagle_topk == 1 and num_steps is not None and num_draft_tokens not in (None, num_steps + 1):
            raise InputError(
                f"--speculative-eagle-topk 1 verifies num_steps + 1 = {num_steps + 1} tokens, got "
                f"--speculative-num-draft-tokens {num_draft_tokens}"
            )
        blocks = {"DFLASH": 16, "DSPARK": 8}  # a block is drafted in one pass, whatever the steps
        tokens = num_draft_tokens or blocks.get(name) or (num_steps + 1 if num_steps is not None else 4)
    if tokens < 2:
        raise InputError(f"--speculative-num-draft-tokens must be at least 2 (the root counts), got {tokens}")
    return SglangSpeculation(
        algorithm="EAGLE" if name == "NEXTN" else name,
        draft_model=draft_model,
        num_draft_tokens=tokens,
        draft_kv_cache_dtype=draft_kv_cache_dtype,
    )
