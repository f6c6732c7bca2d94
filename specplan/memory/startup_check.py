"""A start-up log beside its prediction: which terms were read, what was predicted, where the difference lies."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from specplan.errors import InputError
from specplan.memory.prediction import PoolPrediction, RankTerms
from specplan.memory.sglang import SglangFlags
from specplan.memory.speculative import (
    SglangSpeculation,
    Speculation,
    parse_speculative_config,
    sglang_speculation,
)
from specplan.memory.vllm import VllmFlags
from specplan.records.startup import CUT, TERMS, StartupLog
from specplan.units import GIB
from specplan.values.hardware import Accelerator
from specplan.values.vllm_versions import DEFAULT_VERSION, GRAPHS_IN_BUDGET, known_version, version_number


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCheck:
    """One term.

    Attributes
    ----------
    term, what : str
        Key and words.
    printed : float or None
        What the log says (the value that decides over ranks).
    step : float
        Distance between two printed values.
    predicted : float or None
    difference : float or None
        Predicted - printed.
    by_rank : mapping of str to float
    verdict : str
        ``agrees``, by how much it does not, or ``read only`` where nothing is predicted.
    """

    term: str
    what: str
    printed: float | None
    step: float
    predicted: float | None
    difference: float | None
    by_rank: Mapping[str, float]
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupCheck:
    """A log and its prediction, term by term.

    Attributes
    ----------
    source, engine : str
    version : str or None
    settings : mapping
        As the log states them.
    terms : tuple of TermCheck
    largest : str
        Where most of the difference lies; empty where nothing was predicted.
    refusals, notes, assumptions, not_modeled : tuple of str
    lines : int
    alternatives : tuple of str
        Single changes after which the engine is predicted to start, where the log refuses.
    """

    source: str
    engine: str
    version: str | None
    settings: Mapping[str, object]
    terms: tuple[TermCheck, ...]
    largest: str
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    assumptions: tuple[str, ...]
    not_modeled: tuple[str, ...]
    lines: int
    alternatives: tuple[str, ...] = ()


def card_of(log: StartupLog, card: Accelerator | None = None) -> Accelerator:
    """The device of a log: the named card with the memory that the log prints, else one known by its memory alone.

    Raises
    ------
    InputError
        When neither says how much memory there is.
    """
    if log.settings.get("device") == "cpu":
        return nameless_card(None, "cpu")
    total = log.value("total_bytes")
    requested, utilization = log.value("requested_bytes"), log.value("utilization")
    if total is None and card is None and requested is not None and utilization:
        total = requested / utilization
    if card is not None:
        known = card.memory_torch_bytes
        same = total is None or (known is not None and abs(known - total) <= log.step("total_bytes"))
        return card if same else replace(card, memory_torch_bytes=total)
    if log.engine == "sglang":
        total = log.value("free_at_start_bytes")
    if total is None:
        raise InputError("the log does not print the device's memory; name the card with --gpu, or --gpu-memory 24GiB")
    return replace(stand_in_card(log), memory_driver_bytes=total, memory_torch_bytes=total)


def stand_in_card(log: StartupLog) -> Accelerator:
    """A card for what only needs the layout: the family that its memory gives away, if any."""
    if log.settings.get("device") == "cpu":
        return nameless_card(None, "cpu")
    total = (log.value("total_bytes") or 0.0) / GIB
    # Sizes that torch reports on cards of one family only.
    family = next((name for low, high, name in _SIZES if low <= total <= high), "")
    return nameless_card(None, family, link=family in ("hopper", "blackwell"))


_SIZES: Final = (
    (79.16, 79.22, "hopper"), (139.0, 140.5, "hopper"), (94.9, 95.05, "blackwell-consumer"),
    (31.3, 31.9, "blackwell-consumer"), (119.0, 122.5, "unified"), (177.0, 185.0, "blackwell"),
)  # fmt: skip


def nameless_card(memory: float | None, family: str = "", *, link: bool = False) -> Accelerator:
    """A card of which only the memory is known."""
    return Accelerator(
        name="the log's device" if family != "cpu" else "cpu",
        vendor="",
        family=family,
        memory_driver_bytes=memory,
        memory_torch_bytes=memory,
        bandwidth=1.0,
        flops=MappingProxyType({}),
        link_bandwidth=1.0 if link else None,
    )


def vllm_flags_of(log: StartupLog) -> VllmFlags:
    """Flags of vLLM as a log states them; what it does not say keeps the version's default."""
    s = log.settings
    known: dict[str, Any] = {
        name: s[name]
        for name in (
            "tp", "pp", "dcp", "dtype", "quantization", "kv_cache_dtype", "gpu_memory_utilization", "max_model_len",
            "max_num_seqs", "max_num_batched_tokens", "block_size", "enable_prefix_caching", "enforce_eager",
            "num_gpu_blocks_override", "kv_cache_memory_bytes", "state_cache", "state_dtype", "language_model_only",
            "async_scheduling",
        )
        if s.get(name) is not None
    }  # fmt: skip
    if "gpu_memory_utilization" not in known and log.value("utilization") is not None:
        known["gpu_memory_utilization"] = log.value("utilization")
    if s.get("enable_expert_parallel"):
        known["expert_parallel"] = True
    if s.get("disable_hybrid_kv_cache_manager"):
        known["hybrid_kv_cache_manager"] = False
    if s.get("disable_custom_all_reduce"):
        known["custom_all_reduce"] = False
    if log.version is not None:
        known["version"] = log.version
    return VllmFlags(**known)


def sglang_flags_of(log: StartupLog) -> SglangFlags:
    """Flags of SGLang as a log states them; free memory and weights come from the log where it prints them."""
    s = log.settings
    known: dict[str, Any] = {
        name: s[name]
        for name in (
            "tp", "pp", "dtype", "quantization", "kv_cache_dtype", "mem_fraction_static", "max_running_requests",
            "max_total_tokens", "chunked_prefill_size", "page_size", "disable_radix_cache", "swa_full_tokens_ratio",
            "mamba_full_memory_ratio",
        )
        if s.get(name) is not None
    }  # fmt: skip
    if s.get("max_model_len") is not None:
        known["context_length"] = s["max_model_len"]
    if s.get("kv_cache_dtype") == "bf16":
        known["kv_cache_dtype"] = "bfloat16"
    free = log.value("free_at_start_bytes")
    if free is not None:
        known["free_before_load"] = free
    return SglangFlags(**known)


def speculation_of(log: StartupLog, *, mtp_modules: int = 0) -> Speculation | SglangSpeculation | None:
    """The speculation that a log states, validated as its engine does."""
    s = log.settings
    if log.engine == "sglang":
        name = s.get("speculative_algorithm")
        if not isinstance(name, str):
            return None
        return sglang_speculation(
            name,
            _text(s.get("speculative_draft_model_path")),
            num_steps=_whole(s.get("speculative_num_steps")),
            eagle_topk=_whole(s.get("speculative_eagle_topk")),
            num_draft_tokens=_whole(s.get("speculative_num_draft_tokens")),
        )
    config = s.get("speculative_config")
    if not isinstance(config, Mapping) or not config:
        return None
    tp = _whole(s.get("tp")) or 1
    return parse_speculative_config(config, tp=tp, mtp_modules=mtp_modules, version=known_version(log.version))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def check_startup(
    log: StartupLog,
    source: str,
    predicted: PoolPrediction | None = None,
    given: PoolPrediction | None = None,
) -> StartupCheck:
    """Put a prediction beside a log.

    Parameters
    ----------
    log : StartupLog
    source : str
        What to call it.
    predicted : PoolPrediction, optional
        From model and flags alone.
    given : PoolPrediction, optional
        From the bytes that the log prints for the cache: what remains is pure layout.

    Returns
    -------
    StartupCheck
        Terms that were read or predicted, in the order in which they are subtracted.
    """
    terms = [] if given is None else _given(log, given)
    expected = {} if predicted is None else _predicted_terms(log, predicted)
    shown = {t.term for t in terms}
    for term, what in TERMS.items():
        if term in shown or (term == "refused_bytes" and log.of("kv_available_bytes")):
            continue
        if log.of(term) or term in expected:
            terms.append(_compared(log, term, what, expected.get(term, {})))
    balance = _balance(log)
    if balance is not None:
        terms.append(balance)
    if predicted is not None:
        terms += _remainder(log, predicted)
        terms += _start(log, predicted)
    return StartupCheck(
        source=source,
        engine=log.engine,
        version=log.version,
        settings=log.settings,
        terms=tuple(terms),
        largest=_largest(terms, log),
        refusals=log.refusals,
        notes=log.notes,
        assumptions=() if predicted is None else tuple(f"assumed: {note}" for note in predicted.assumptions),
        not_modeled=() if predicted is None else predicted.not_modeled,
        lines=log.lines,
    )


AGREES: Final = "agrees"


def _compared(log: StartupLog, term: str, what: str, expected: Mapping[str, float], slack: float = 0.0) -> TermCheck:
    """A term against every figure that the log prints for it: it agrees where all do.

    `expected` maps a rank's name to its prediction; the empty name stands for ranks that are not listed.
    """
    printed, readings, by_rank = log.value(term), log.of(term), log.by_rank(term)
    deciding = next((r for r in reversed(readings) if r.value == printed), None)
    predicted = expected.get(deciding.rank if deciding else "", expected.get(""))
    check = _check(term, what, printed, max(deciding.step if deciding else 0.0, slack), predicted, by_rank)
    if check.verdict != AGREES:
        return check
    off = [
        r
        for r in readings
        if abs(expected.get(r.rank, expected.get("", r.value)) - r.value) > max(r.step, slack * (r.value != printed))
    ]
    if not off:
        return check
    shown = f"{min(r.value for r in off) / _unit(term):,.2f} to {max(r.value for r in off) / _unit(term):,.2f}"
    same = deciding is not None and any(r.rank == deciding.rank for r in off)
    words = f"printed otherwise, too: {shown}" if same else f"agrees on the rank that decides; others print {shown}"
    return replace(check, verdict=words)


def _unit(term: str) -> float:
    return float(GIB) if term.endswith("_bytes") else 1.0


def _check(
    term: str, what: str, printed: float | None, step: float, predicted: float | None, by_rank: Mapping[str, float]
) -> TermCheck:
    difference = None if printed is None or predicted is None else predicted - printed
    if difference is None:
        verdict = "read only" if predicted is None else "not printed"
    elif abs(difference) <= step:
        verdict = AGREES
    else:
        share = f" ({difference / printed:+.2%})" if printed else ""
        verdict = f"{'above' if difference > 0 else 'below'} the log{share}"
    return TermCheck(
        term=term,
        what=what,
        printed=printed,
        step=step,
        predicted=predicted,
        difference=difference,
        by_rank=MappingProxyType(dict(by_rank)),
        verdict=verdict,
    )


_STAGE: Final = re.compile(r"PP(\d+)")


def _predicted_terms(log: StartupLog, p: PoolPrediction) -> dict[str, dict[str, float]]:
    """Term -> rank as the log names it -> prediction; the empty name stands for the stage that decides."""
    names = {r.rank for r in log.readings}
    stages = {name: int(found[1]) for name in names if (found := _STAGE.search(name)) and int(found[1]) < len(p.ranks)}
    out: dict[str, dict[str, float]] = {}
    for name, rank in {"": p.rank, **{name: p.ranks[stage] for name, stage in stages.items()}}.items():
        for term, value in _of_rank(log, p, rank).items():
            out.setdefault(term, {})[name] = value
    shown = {"weights_bytes", "kv_available_bytes", "kv_tokens", "num_gpu_blocks"}
    return {term: values for term, values in out.items() if log.of(term) or (term in shown and p.engine == "vllm")}


def _of_rank(log: StartupLog, p: PoolPrediction, rank: RankTerms) -> dict[str, float]:
    out = {"weights_bytes": rank.weights.best}
    if p.engine == "vllm":
        peak, graphs = rank.activation_peak.best, rank.cuda_graph.best
        # Where weights and non-torch memory are printed together, the printed peak includes the graph estimate.
        consumed = log.value("consumed_bytes") is not None
        out |= {
            "total_bytes": p.total.best,
            "requested_bytes": p.requested.best,
            "activation_peak_bytes": peak + graphs if consumed else peak,
            "kv_available_bytes": rank.available.best,
        }
        if consumed:
            out["consumed_bytes"] = rank.weights.best + rank.non_torch.best + sum(rank.buffers.values())
        else:
            out["non_torch_bytes"] = rank.non_torch.best
        if graphs:
            out["cuda_graph_estimate_bytes"] = graphs
        if p.settings.get("kv_cache_memory_bytes") is not None or log.settings.get("device") == "cpu":
            out = {"kv_available_bytes": rank.available.best}
        if p.plan is not None:
            out["padding_layers"] = float(p.plan.padding_layers)
        if p.settings.get("block_size") != 16:
            out["attention_block_size"] = float(p.settings["block_size"])
        out["concurrency_length"] = float(p.max_model_len)
    else:
        out["weights_bytes"] = sum(rank.target_weights.values()) + rank.non_torch.best
        out["draft_weights_bytes"] = sum(rank.draft_weights.values())
        free = log.value("free_at_start_bytes")
        if free is not None:
            out["free_after_load_bytes"] = free - rank.weights.best - rank.non_torch.best
        out |= {name: value for name, value in p.printed.items() if name in TERMS}
        if p.tokens is not None:
            out |= {"pool_tokens": p.tokens.best, "draft_pool_tokens": p.tokens.best}
    for term, span in (("num_gpu_blocks", p.blocks), ("kv_tokens", p.tokens), ("max_concurrency", p.concurrency)):
        if span is not None and (p.engine == "vllm" or term == "kv_tokens"):
            out[term] = span.best
    return out


def _remainder(log: StartupLog, p: PoolPrediction) -> list[TermCheck]:
    """Everything beside the cache, where the log prints budget and cache but not what lies between."""
    available = log.value("kv_available_bytes")
    if p.engine != "vllm" or available is None or log.of("activation_peak_bytes"):
        return []
    requested = log.value("requested_bytes") or p.requested.best
    if p.settings.get("kv_cache_memory_bytes") is not None or log.settings.get("device") == "cpu":
        return []
    step = log.step("requested_bytes") + log.step("kv_available_bytes")
    predicted = p.requested.best - p.rank.available.best
    return [_check("beside_cache_bytes", "everything beside the cache", requested - available, step, predicted, {})]


def _start(log: StartupLog, p: PoolPrediction) -> list[TermCheck]:
    """Whether the engine starts, where the log or the prediction says that it does not."""
    sized = any(log.of(term) for term in ("kv_tokens", "num_gpu_blocks", "pool_tokens", "max_concurrency"))
    if not (log.refusals or p.refusal) or not (log.refusals or sized):
        return []
    return [
        _check("starts", "starts (1) or refuses (0)", 0.0 if log.refusals else 1.0, 0.0, float(p.refusal is None), {})
    ]


def _balance(log: StartupLog) -> TermCheck | None:
    """Budget less the printed terms, against what the log prints for the cache: the log checked against itself."""
    requested, available = log.value("requested_bytes"), log.value("kv_available_bytes")
    peak = log.value("activation_peak_bytes")
    if log.engine != "vllm" or requested is None or available is None or peak is None:
        return None
    consumed, weights = log.value("consumed_bytes"), log.value("weights_bytes")
    graphs = 0.0
    if consumed is None:
        outside = log.value("non_torch_bytes")
        if weights is None or outside is None:
            return None
        consumed = weights + outside
        if version_number(log.version or DEFAULT_VERSION) >= GRAPHS_IN_BUDGET:
            graphs = log.value("cuda_graph_estimate_bytes") or 0.0
    derived = requested - consumed - peak - graphs
    step = sum(log.step(t) for t in ("requested_bytes", "weights_bytes", "activation_peak_bytes", "non_torch_bytes"))
    return _check("balance_bytes", "for the cache, from the printed terms", available, step, derived, {})


def _given(log: StartupLog, given: PoolPrediction) -> list[TermCheck]:
    """Blocks, tokens and concurrency from the printed bytes; they may differ by what the print rounds away."""
    if log.engine == "sglang":
        return _given_pools(log, given)
    rounding = log.step("kv_available_bytes") / max(given.rank.available.best, 1.0)
    out = []
    figures = (("num_gpu_blocks", given.blocks), ("kv_tokens", given.tokens), ("max_concurrency", given.concurrency))
    for term, span in figures:
        printed = log.value(term)
        if span is not None and printed is not None:
            block = 1 / max(given.plan.num_blocks, 1) if given.plan is not None else 0.0
            slack = max(log.step(term), abs(printed) * max(rounding, block))
            found = _compared(log, term, f"{TERMS[term]}, from the printed bytes", {"": span.best}, slack)
            out.append(replace(found, term=f"{term}_from_printed_memory"))
    if log.of("concurrency_length"):
        length = {"": float(given.max_model_len)}
        found = _compared(log, "concurrency_length", TERMS["concurrency_length"], length)
        out.append(replace(found, term="concurrency_length_from_printed_memory"))
    return [*out, *_refused(log, given)]


_NEEDED: Final = re.compile(r"\(([\d.]+) GiB KV cache is needed")


def _refused(log: StartupLog, given: PoolPrediction) -> list[TermCheck]:
    """What a refusal says of the cache of one request and of the longest that fits, from the printed bytes.

    A prediction refuses in the engine's words, so that the needed bytes are read from them. A length that fits is known
    to what the printed bytes round away.
    """
    m = None if given.refusal is None else _NEEDED.search(given.refusal)
    available = max(given.rank.available.best, 1.0)
    rounding = log.step("kv_available_bytes") / available * (log.value("longest_request") or 0.0)
    figures = (
        ("needed_bytes", None if m is None else float(m[1]) * GIB, 0.01 * GIB),
        (
            "longest_request",
            float(given.longest) or None,
            2.0 * float(given.settings.get("block_size") or 16) + rounding,
        ),
    )
    return [
        _check(term, TERMS[term], log.value(term), max(log.step(term), slack), value, log.by_rank(term))
        for term, value, slack in figures
        if value is not None and log.of(term)
    ]


def _given_pools(log: StartupLog, given: PoolPrediction) -> list[TermCheck]:
    """Rows of every pool from its printed bytes and the predicted bytes of a row."""
    out = []
    for rows, names in _POOLS.items():
        printed = log.value(rows) or (log.value("kv_tokens") if rows == "pool_tokens" else None)
        sizes = [name for name in names if log.of(name) and given.printed.get(f"{name}_per_row")]
        if printed is None or not sizes:
            continue
        size = sum(log.value(name) or 0.0 for name in sizes)
        row = sum(given.printed[f"{name}_per_row"] for name in sizes)
        slack = printed * sum(log.step(name) for name in sizes) / max(size, 1.0) + 1.0 + given.printed.get("page", 1.0)
        found = _check(rows, f"{TERMS[rows]}, from the printed bytes", printed, slack, size / row, log.by_rank(rows))
        if found.verdict == AGREES and len({r.value for r in log.of(rows)}) > 1:
            found = replace(found, verdict="printed with several values")
        out.append(replace(found, term=f"{rows}_from_printed_memory"))
    full, swa, whole = (log.value(x) for x in ("full_pool_tokens", "swa_pool_tokens", "whole_pool_bytes"))
    per = [given.printed.get(x, 0.0) for x in ("full_row_bytes", "swa_row_bytes")]
    if full is not None and swa is not None and whole is not None and all(per):
        predicted = full * per[0] + swa * per[1]
        page = given.printed.get("page", 1.0) * sum(per)
        out.append(_check("whole_pool_bytes_from_printed_rows", f"{TERMS['whole_pool_bytes']}, from the printed rows",
                          whole, log.step("whole_pool_bytes") + page, predicted, {}))  # fmt: skip
    return out


_POOLS: Final = {
    "pool_tokens": ("pool_key_bytes", "pool_value_bytes", "pool_bytes"),
    "swa_pool_tokens": ("swa_pool_key_bytes", "swa_pool_value_bytes"),
    "draft_pool_tokens": ("draft_pool_key_bytes", "draft_pool_value_bytes", "draft_pool_bytes"),
}
"""Rows of a pool -> its bytes as SGLang prints them."""


def _largest(terms: list[TermCheck], log: StartupLog) -> str:
    """The term that explains most of the pool's difference, in words."""
    compared = [t for t in terms if t.difference is not None and t.term != "balance_bytes"]
    if not compared:
        return ""
    off = [t for t in compared if t.verdict != AGREES]
    if not off:
        others = [i for i, start in enumerate(log.earlier, 1) if _differ(start, log)]
        if others:
            which = ", ".join(map(str, others))
            return f"the last start agrees in every printed term; start {which} printed other figures"
        unread = sum(t.verdict == "read only" for t in terms)
        also = f" ({unread} printed figures are not predicted)" if unread else ""
        if CUT in log.notes:
            return f"every printed term of the whole lines agrees within its last digit{also}; {CUT}"
        return f"none: every printed term agrees within its last digit{also}"
    causes = [t for t in off if t.term in {"requested_bytes", *_CAUSES} and abs(t.difference or 0.0) > t.step]
    if causes:
        worst = max(causes, key=lambda t: abs(t.difference or 0.0))
        return f"{worst.what}: {(worst.difference or 0.0) / GIB:+.2f} GiB against the log"
    words = "; ".join(f"{t.what}: {t.verdict}" for t in off[:3])
    available = log.value("kv_available_bytes")
    if available and all(t.term in _COUNTS for t in off):
        # What the last digits of budget and terms leave open, as a share of the pool.
        open_ = sum(log.step(t) for t in ("requested_bytes", *_CAUSES)) / available
        if all(abs(t.difference or 0.0) <= open_ * (t.printed or 0.0) for t in off):
            return f"none among the memory terms, which agree within their last digits ({words})"
    return words


_COUNTS: Final = frozenset({"kv_available_bytes", "kv_tokens", "num_gpu_blocks", "max_concurrency"})

_CAUSES: Final = frozenset({
    "weights_bytes", "consumed_bytes", "activation_peak_bytes", "non_torch_bytes",
    "free_after_load_bytes", "draft_weights_bytes", "beside_cache_bytes", "cuda_graph_estimate_bytes",
})  # fmt: skip


def _differ(a: StartupLog, b: StartupLog) -> bool:
    """Whether `a` prints a figure that `b` does not print, too."""
    return any(all(abs(x.value - y.value) > max(x.step, y.step) for y in b.of(x.term)) for x in a.readings)
