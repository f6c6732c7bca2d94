"""One start-up against its prediction, figure by figure.

Three questions are kept apart, because they fail for different reasons:

- ``weights``: from model and flags alone, as "Model loading took" prints;
- ``tokens from flags``: everything from model and flags alone;
- ``tokens from printed bytes``: the pool's bytes are taken from the log, so that only the layout is tested.

A row without printed bytes is tested for whole blocks: its tokens must be a whole number of blocks of the predicted
layout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from specplan.decide.startup_log import card_called
from specplan.errors import SpecplanError
from specplan.evidence.startup_cases import Case
from specplan.memory.prediction import PoolPrediction
from specplan.memory.rank_weights import WeightSettings, rank_weight_bytes
from specplan.memory.sglang import SglangFlags, cells, predict_sglang
from specplan.memory.vllm import predict_vllm
from specplan.units import GIB
from specplan.values.vllm_versions import vllm_rules

CHECKS: Final = (
    "weights", "tokens from flags", "tokens from printed bytes", "tokens as whole blocks", "layout", "draft delta",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupRow:
    """One figure of one start-up.

    Attributes
    ----------
    set_name : str
        ``h100`` (42 start-ups of one machine), ``public`` (public logs, prepared by hand), ``named``
        (public logs whose model and card are found by name), or the name of a file.
    id, source, engine, version, model : str
    check : str
        One of `CHECKS`, or empty when nothing could be checked.
    printed, predicted : float or None
        Bytes for weights, tokens else, ratios for draft deltas.
    error : float or None
        Predicted over printed, minus 1.
    slack : float
        Relative error that the print alone can cause (rounded bytes, one block).
    low, high : float or None
        Bounds of the prediction, where it has any.
    fitted : bool
        Whether constants were fitted to this start-up.
    hand_set : tuple of str
        Settings that a person chose for the row.
    note : str
        What was inferred, why it deviates, or why it is not predicted.
    """

    set_name: str
    id: str
    source: str
    engine: str
    version: str
    model: str
    check: str
    printed: float | None
    predicted: float | None
    error: float | None
    slack: float
    note: str
    low: float | None = None
    high: float | None = None
    fitted: bool = False
    hand_set: tuple[str, ...] = ()

    @property
    def enclosed(self) -> bool | None:
        """Whether the bounds hold the printed figure; None where there are none."""
        if self.low is None or self.high is None or self.printed is None or self.low == self.high:
            return None
        slack = self.slack * abs(self.printed)
        return self.low - slack <= self.printed <= self.high + slack


def row_of(set_name: str, case: Case, check: str, **more: Any) -> StartupRow:
    """A row of the table for one figure of a case."""
    raw = case.raw
    printed, predicted = more.get("printed"), more.get("predicted")
    error = predicted / printed - 1 if printed and predicted is not None else None
    defaults: dict[str, Any] = {"printed": None, "predicted": None, "slack": 0.0, "note": ""}
    return StartupRow(
        set_name=set_name,
        id=raw["id"],
        source=raw.get("source", "not stated"),
        engine=raw["engine"],
        version=str(raw.get("engine_version") or "not printed"),
        model=raw.get("model") or "not named",
        check=check,
        error=error,
        fitted=case.fitted,
        hand_set=case.hand_set,
        **(defaults | more),
    )


def checks_of(case: Case, set_name: str) -> list[StartupRow]:
    """Every figure of a case that can be compared; one row that says why where none can."""
    checks = _sglang_checks if case.flags is None else _vllm_checks
    try:
        rows = list(checks(case, set_name))
    except SpecplanError as error:
        return [row_of(set_name, case, "", note=f"not predicted: {error}")]
    if not rows:
        why = case.check.get("no_flags", "nothing printed to compare with")
        rows = [row_of(set_name, case, "", note=f"not predicted: {why}")]
    return rows


def _note(case: Case, error: float | None = None) -> str:
    parts = [f"inferred: {'; '.join(case.notes)}"] if case.notes else []
    if case.check.get("explain") and (error is None or abs(error) > 0.002):
        parts.append(case.check["explain"])
    return "; ".join(parts)


def _vllm_checks(case: Case, set_name: str) -> Iterator[StartupRow]:
    check, seen, model, flags = case.check, case.seen, case.model, case.flags
    assert flags is not None  # noqa: S101 - SGLang's cases go elsewhere
    others = (case.speculation, case.draft)
    some_card = case.card or replace(card_called("h100-sxm", None), link_bandwidth=None)
    printed_bytes = float(seen.get("kv_bytes") or seen.get("kv_gib", 0.0) * GIB)
    figures = [name for name in ("kv_tokens", "blocks", "max_concurrency") if seen.get(name)]
    if printed_bytes and (figures or seen.get("refused")):
        decisive = _decisive_bytes(case, some_card, printed_bytes)
        exact = replace(flags, kv_cache_memory_bytes=round(decisive), num_gpu_blocks_override=None)
        found = predict_vllm(model, some_card, exact, *others)
        yield from _from_bytes(case, set_name, found, printed_bytes)
    elif seen.get("kv_tokens") and flags.max_model_len:
        large = replace(flags, kv_cache_memory_bytes=1 << 44)
        yield from _whole_blocks(case, set_name, predict_vllm(model, some_card, large, *others))
    weights = seen.get("weights_gib")
    full = None
    if "geometry" not in check and (weights or seen.get("attention_block_size") or seen.get("padding_layers")):
        full = predict_vllm(model, some_card, replace(flags, kv_cache_memory_bytes=1 << 44), *others)
    if full is not None and weights and "no_weights" not in check:
        # With several stages the log's line is some rank's: the one whose weights it holds.
        predicted = min((r.weights.best for r in full.ranks), key=lambda w: abs(w - weights * GIB))
        error = predicted / (weights * GIB) - 1
        yield row_of(set_name, case, "weights", printed=weights * GIB, predicted=predicted,
                     slack=0.005 / weights, note=_note(case, error))  # fmt: skip
    if full is not None and full.plan is not None:
        yield from _layout(case, set_name, full)
    explicit = seen.get("kv_bytes") and flags.gpu_memory_utilization is None
    if case.card is not None and "no_flags" not in check and (printed_bytes or figures) and not explicit:
        found = predict_vllm(model, case.card, flags, *others)
        yield from _from_flags(case, set_name, found, printed_bytes)


def _decisive_bytes(case: Case, card: Any, printed: float) -> float:
    """The pool's bytes where it is decided.

    With pipeline stages the log prints one stage's terms, and the last one, which samples and receives, decides. What
    it holds is then taken from the prediction, less the printed non-torch memory.
    """
    flags, seen = case.flags, case.seen
    if flags is None or flags.pp == 1 or not {"budget_gib", "non_torch_gib"} <= seen.keys():
        return printed
    rank = predict_vllm(case.model, card, flags, case.speculation, case.draft).rank
    decides = float(seen["budget_gib"]) * GIB - rank.weights.best - rank.activation_peak.best
    return min(printed, decides - float(seen["non_torch_gib"]) * GIB)


def _layout(case: Case, set_name: str, found: PoolPrediction) -> Iterator[StartupRow]:
    """What the log says of blocks and groups; whole numbers, which agree or do not."""
    assert found.plan is not None  # noqa: S101 - the caller looked
    predicted = {
        "attention_block_size": float(found.settings["block_size"]),
        "padding_layers": float(found.plan.padding_layers),
    }
    for name, value in predicted.items():
        if case.seen.get(name):
            yield row_of(set_name, case, "layout", printed=float(case.seen[name]), predicted=value,
                         note=name.replace("_", " "))  # fmt: skip


def _from_bytes(case: Case, set_name: str, found: PoolPrediction, printed_bytes: float) -> Iterator[StartupRow]:
    """Tokens, concurrency and blocks from the printed bytes."""
    check, seen = "tokens from printed bytes", case.seen
    if seen.get("refused"):
        yield row_of(set_name, case, "layout", printed=1.0, predicted=1.0 + float(found.refusal is None),
                     note="refuses at the printed bytes (1)")  # fmt: skip
        return
    if found.plan is None or found.tokens is None or found.concurrency is None:
        yield row_of(set_name, case, "", note=f"predicted to refuse: {(found.refusal or '')[:90]}")
        return
    block = 1 / max(found.plan.num_blocks, 1)
    rounding = 0.0 if seen.get("kv_bytes") else 0.005 * GIB / printed_bytes
    figures = (
        ("kv_tokens", found.tokens.best, 0.5), ("blocks", float(found.plan.num_blocks), 0.5),
        ("max_concurrency", found.concurrency.best, 0.005),
    )  # fmt: skip
    # Of what is printed, the figure that lies farthest beyond its own last digit.
    excess = {
        name: max(0.0, abs(value / seen[name] - 1) - half / seen[name])
        for name, value, half in figures
        if seen.get(name)
    }
    worst = max(excess, key=lambda name: excess[name])
    name, value, half = next(figure for figure in figures if figure[0] == worst)
    length = found.max_model_len if name == "max_concurrency" else 1
    printed = float(seen[name]) * length
    yield row_of(set_name, case, check, printed=printed, predicted=value * length,
                 slack=max(block, rounding) + half / seen[name],
                 note=_note(case, value * length / printed - 1))  # fmt: skip


def _from_flags(case: Case, set_name: str, found: PoolPrediction, printed_bytes: float) -> Iterator[StartupRow]:
    """Tokens against the log's; bytes where it prints none, or refuses."""
    seen, available = case.seen, found.rank.available
    if found.plan is None or found.tokens is None or seen.get("refused") or not seen.get("kv_tokens"):
        if not printed_bytes:
            yield row_of(set_name, case, "", note=f"predicted to refuse: {(found.refusal or '')[:90]}")
            return
        printed, span = printed_bytes, (available.low, available.best, available.high)
        rounding = 0.005 * GIB / printed_bytes
    else:
        printed, span = float(seen["kv_tokens"]), (found.tokens.low, found.tokens.best, found.tokens.high)
        rounding = 1 / max(found.plan.num_blocks, 1)
    yield row_of(set_name, case, "tokens from flags", printed=printed, predicted=span[1], low=span[0], high=span[2],
                 slack=rounding, note=_note(case, span[1] / printed - 1))  # fmt: skip


def _whole_blocks(case: Case, set_name: str, found: PoolPrediction) -> Iterator[StartupRow]:
    """Printed tokens as the nearest whole number of blocks of the layout."""
    if found.plan is None or not vllm_rules(found.version).tokens_by_concurrency:
        return
    printed = case.seen["kv_tokens"]
    per_request, length = found.plan.blocks_per_request, found.max_model_len
    blocks = -(-printed * per_request // length)  # printed = floor(blocks / per_request x length)
    predicted = blocks * length // per_request
    yield row_of(set_name, case, "tokens as whole blocks", printed=float(printed), predicted=float(predicted),
                 slack=1 / printed,
                 note=_note(case) or f"{blocks:,} blocks, {per_request:,} per request")  # fmt: skip


def _sglang_checks(case: Case, set_name: str) -> Iterator[StartupRow]:
    raw, check, seen, model = case.raw, case.check, case.seen, case.model
    dtype = raw.get("kv_cache_dtype") or "auto"
    dtype = "fp8" if dtype.startswith("fp8") else "auto" if dtype in ("bfloat16", "bf16") else dtype
    tp = raw.get("tp") or 1
    packed = check.get("packed", case.card is None or case.card.memory_facts.packed_sparse_latents)
    cell = cells(model, model.layers, dtype, tp, packed=packed)
    tokens = seen.get("kv_tokens")
    # What the log prints of each pool, and the bytes per row of it.
    full = ("full_k_gb", "full_v_gb") if "full_k_gb" in seen else ("k_gb", "v_gb") if "k_gb" in seen else ("kv_gb",)
    pools = (
        (full, cell.full, tokens),
        (("swa_k_gb",), cell.window_k, seen.get("swa_layer_tokens") or tokens),
        (("swa_v_gb",), cell.window_v, seen.get("swa_layer_tokens") or tokens),
    )
    for names, per_row, rows in pools:
        if rows and per_row and all(name in seen for name in names):
            size = sum(seen[name] for name in names)
            predicted = size * GIB / per_row
            yield row_of(
                set_name, case, "tokens from printed bytes", printed=float(rows), predicted=predicted,
                slack=0.005 * len(names) / size, note=_note(case, predicted / rows - 1),
            )  # fmt: skip
    if {"swa_kv_pool_gb", "swa_layer_tokens", "full_layer_tokens"} <= seen.keys():
        size = seen["swa_layer_tokens"] * cell.windowed + seen["full_layer_tokens"] * cell.full
        printed = seen["swa_kv_pool_gb"] * GIB
        yield row_of(set_name, case, "tokens from printed bytes", printed=printed, predicted=size,
                     slack=0.005 * GIB / printed, note=_note(case, size / printed - 1))  # fmt: skip
    if seen.get("draft_load_gb") and model.mtp_layers:
        # The head comes with an embedding and an output matrix of its own, which are shared after the pool is sized.
        head = replace(model, layers=model.mtp_layers, mtp_layers=(), extra=())
        size = sum(rank_weight_bytes(head, WeightSettings(tp=tp)).values())
        printed = seen["draft_load_gb"] * GIB
        yield row_of(set_name, case, "draft delta", printed=printed, predicted=size, slack=0.005 * GIB / printed,
                     note="bytes that loading the head takes")  # fmt: skip
    yield from _sglang_from_flags(case, set_name, dtype, tp, tokens)


def _sglang_from_flags(case: Case, set_name: str, dtype: str, tp: int, tokens: int | None) -> Iterator[StartupRow]:
    raw, seen = case.raw, case.seen
    before, after = seen.get("avail_before_load_gb"), seen.get("avail_after_load_gb")
    fraction = raw.get("mem_fraction_static")
    if before and after and fraction and tokens and "no_flags" not in case.check:
        flags = SglangFlags(
            tp=tp, kv_cache_dtype=dtype, mem_fraction_static=fraction, context_length=raw.get("max_model_len") or 32768,
            free_before_load=before * GIB, weights=(before - after) * GIB,
        )  # fmt: skip
        found = predict_sglang(case.model, case.card or card_called("h100-sxm", None), flags)
        if found.tokens is not None:
            yield row_of(
                set_name, case, "tokens from printed bytes", printed=float(tokens), predicted=found.tokens.best,
                slack=0.01 / (after - before * (1 - fraction)), note=_note(case),
            )  # fmt: skip


def unpredicted(raw: Mapping[str, Any], set_name: str, why: str) -> StartupRow:
    """The row of a start-up of which nothing is predicted, with the reason."""
    return StartupRow(
        set_name=set_name,
        id=str(raw.get("id")),
        source=raw.get("source", "not stated"),
        engine=str(raw.get("engine")),
        version=str(raw.get("engine_version") or "not printed"),
        model=str(raw.get("model") or "not named"),
        check="",
        printed=None,
        predicted=None,
        error=None,
        slack=0.0,
        note=f"not predicted: {why}",
    )
