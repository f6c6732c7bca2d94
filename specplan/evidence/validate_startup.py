"""Start-ups that engines printed, against what is predicted for them: the shipped rows, figure by figure.

Three questions are kept apart, because they fail for different reasons:

- ``weights``: from model and flags alone, as "Model loading took" prints;
- ``tokens from flags``: everything from model and flags alone;
- ``tokens from printed bytes``: the pool's bytes are taken from the log, so that only the layout is tested.

A row without printed bytes is tested for whole blocks: its tokens must be a whole number of blocks of the predicted
layout. What could not be predicted stands in the table with the reason.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final

from specplan.errors import SpecplanError
from specplan.memory.prediction import PoolPrediction
from specplan.memory.sglang import SglangFlags, cells, predict_sglang
from specplan.memory.speculative import Speculation, parse_speculative_config
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.memory.vllm_rules import vllm_rules
from specplan.units import GIB
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator
from specplan.values.model import Attention, Layer, Model, Shard, Weight

ReadModel = Callable[[Mapping[str, Any], str], Model]
LoadCard = Callable[[str], Accelerator]

CHECKS: Final = ("weights", "tokens from flags", "tokens from printed bytes", "tokens as whole blocks", "draft delta")
EXPLAIN_BEYOND: Final = 0.05
"""Relative error from which a row must say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupRow:
    """One figure of one start-up.

    Attributes
    ----------
    set_name : str
        ``h100`` (42 start-ups of one machine) or ``public`` (public logs).
    id, source, engine, version, model : str
    check : str
        One of `CHECKS`, or empty when nothing could be checked.
    printed, predicted : float or None
        Bytes for weights, tokens else, ratios for draft deltas.
    error : float or None
        Predicted over printed, minus 1.
    slack : float
        Relative error that the print alone can cause (rounded bytes, one block).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSummary:
    """Errors of one check over one set.

    Attributes
    ----------
    set_name, check : str
    rows : int
    median, p90, largest : float
        Of absolute relative errors.
    worst : str
        Row with the largest.
    """

    set_name: str
    check: str
    rows: int
    median: float
    p90: float
    largest: float
    worst: str


def startup_table(read_model: ReadModel, load_card: LoadCard) -> tuple[StartupRow, ...]:
    """Every shipped row with its checks.

    Parameters
    ----------
    read_model : callable
        (Hugging Face config, name) -> model, a vision tower included.
    load_card : callable
        Name -> hardware profile.

    Returns
    -------
    tuple of StartupRow
        In the order of the data; a start-up yields one row per figure that it prints.
    """
    models = _Models(_data("models.json")["models"], read_model)
    rows: list[StartupRow] = []
    for raw in _data("h100_vllm_0_19.json")["rows"]:
        rows += _h100(raw, models, load_card)
    public = _data("public_logs.json")["rows"]
    for raw in public:
        rows += _public(raw, models, load_card)
    rows += _deltas({raw["id"]: raw for raw in public}, models, load_card)
    return tuple(rows)


def summarise(rows: Iterable[StartupRow]) -> tuple[CheckSummary, ...]:
    """Median, 90th percentile and largest error of each check.

    >>> row = StartupRow(set_name="h100", id="a", source="", engine="vllm", version="", model="", check="weights",
    ...                  printed=100.0, predicted=101.0, error=0.01, slack=0.0, note="")
    >>> summarise([row])[0].median
    0.01
    """
    groups: dict[tuple[str, str], list[StartupRow]] = {}
    for row in rows:
        if row.error is not None:
            groups.setdefault((row.set_name, row.check), []).append(row)
    out = []
    for (set_name, check), found in groups.items():
        ordered = sorted(found, key=lambda r: abs(r.error or 0.0))
        errors = [abs(r.error or 0.0) for r in ordered]
        out.append(
            CheckSummary(
                set_name=set_name,
                check=check,
                rows=len(errors),
                median=statistics.median(errors),
                p90=errors[min(len(errors) - 1, int(0.9 * len(errors)))],
                largest=errors[-1],
                worst=ordered[-1].id,
            )
        )
    return tuple(out)


def _data(name: str) -> dict[str, Any]:
    text = files("specplan").joinpath("data", "startup", name).read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


class _Models:
    """Models of the shipped configs, each read once."""

    def __init__(self, configs: Mapping[str, Any], read_model: ReadModel) -> None:
        self.configs = configs
        self.read = read_model
        self.known: dict[str, Model] = {}

    def get(self, key: str) -> Model:
        if key not in self.known:
            config = self.configs[key]
            plain = {name: value for name, value in config.items() if not name.startswith("_")}
            self.known[key] = self._completed(self.read(plain, key), config)
        return self.known[key]

    def _completed(self, model: Model, config: Mapping[str, Any]) -> Model:
        """What a config does not say: storage that a log names, a draft's missing ends."""
        storage = config.get("_storage")
        if storage is not None:
            model = stored_as(model, storage["quantization"], storage["unquantized"])
        own = config.get("_draft")
        if own is None:
            return model
        layers = model.layers
        if "input_size" in own:
            layers = tuple(_reading(layer, own["input_size"]) for layer in layers)
        extra = model.extra
        if "fused_inputs" in own:  # EAGLE-3 brings features of several target layers to the hidden size
            size = own["fused_inputs"] * model.hidden_size**2
            extra = (*extra, Weight(component="fusion", name="fc", size=size, shard=Shard.REPLICATE))
        return replace(
            model,
            layers=layers,
            extra=extra,
            embedding=own.get("embedding", True),
            head=own.get("head", True),
            head_vocab_size=own.get("head_vocab_size"),
        )

    def with_multimodal(self, flags: VllmFlags, key: str) -> VllmFlags:
        """Flags with what the profile run sends to the model's encoder."""
        found = self.configs[key].get("_multimodal", {})
        return replace(flags, multimodal_tokens=found.get("tokens", 0), multimodal_values=found.get("values", 0))


def _reading(layer: Layer, width: int) -> Layer:
    if isinstance(layer.mixer, Attention):
        return replace(layer, mixer=replace(layer.mixer, input_size=width))
    return layer


def stored_as(model: Model, name: str, unquantized: Iterable[str] = ()) -> Model:
    """The model with its linear weights stored in a format.

    >>> from specplan.values.formats import lookup
    >>> model = Model(name="m", source="", hidden_size=1, vocab_size=1, tied_embeddings=False, layers=(),
    ...               weight_format=lookup("bf16"))
    >>> stored_as(model, "int8").quantization.name
    'int8'
    """
    return replace(model, quantization=lookup(name), unquantized=tuple(unquantized))


def _row(set_name: str, raw: Mapping[str, Any], check: str, **more: Any) -> StartupRow:
    printed, predicted = more.get("printed"), more.get("predicted")
    error = predicted / printed - 1 if printed and predicted is not None else None
    defaults: dict[str, Any] = {"printed": None, "predicted": None, "slack": 0.0, "note": ""}
    return StartupRow(
        set_name=set_name,
        id=raw["id"],
        source=raw.get("source", "llm-d-planner accuracy results v0.19.0"),
        engine=raw["engine"],
        version=str(raw.get("engine_version") or "not printed"),
        model=raw.get("model") or "not named",
        check=check,
        error=error,
        **(defaults | more),
    )


def _h100(raw: Mapping[str, Any], models: _Models, load_card: LoadCard) -> Iterator[StartupRow]:
    seen = raw["observed"]
    try:
        model = models.get(raw["model"])
        card = replace(load_card("h100-sxm"), memory_torch_bytes=seen["device_total_gib"] * GIB)
        flags = VllmFlags(
            version=raw["engine_version"],
            tp=raw["tp"],
            pp=raw["pp"],
            max_model_len=raw["max_model_len"],
            dtype=raw["dtype"],
            quantization=raw["quantization"] if model.quantization is None else None,
            kv_cache_dtype=raw["kv_cache_dtype"],
            gpu_memory_utilization=raw["gpu_memory_utilization"],
            enable_prefix_caching=raw["enable_prefix_caching"],
        )
        flags = models.with_multimodal(flags, raw["model"])
        predicted = predict_vllm(model, card, flags)
        exact = predict_vllm(model, card, _with_printed_terms(flags, predicted, seen))
    except SpecplanError as error:
        yield _row("h100", raw, "", note=f"not predicted: {error}")
        return
    # With several stages the log's line is some rank's; compare with the stage whose weights it holds.
    weights = [r.weights.best for r in predicted.ranks]
    printed = seen["weights_gib"] * GIB
    yield _row(
        "h100", raw, "weights", printed=printed, predicted=min(weights, key=lambda w: abs(w - printed)),
        slack=0.005 * GIB / printed, note="the stage that the line belongs to" if raw["pp"] > 1 else "",
    )  # fmt: skip
    slack = 0.02 / seen["available_kv_gib"]
    for check, found in (("tokens from flags", predicted), ("tokens from printed bytes", exact)):
        if found.tokens is not None:
            yield _row(
                "h100", raw, check, printed=float(seen["kv_tokens"]), predicted=found.tokens.best, slack=slack
            )  # fmt: skip


def _with_printed_terms(flags: VllmFlags, predicted: PoolPrediction, seen: Mapping[str, Any]) -> VllmFlags:
    """The pool's bytes as the log prints them.

    With pipeline stages the log prints one stage's terms, and the last one, which samples and receives, decides. What
    it holds is then taken from the prediction, less the printed non-torch memory.
    """
    printed = seen["available_kv_gib"] * GIB
    if len(predicted.ranks) > 1:
        rank = predicted.rank
        decides = seen["requested_gib"] * GIB - rank.weights.best - rank.activation_peak.best
        printed = min(printed, decides - seen["non_torch_gib"] * GIB)
    return replace(flags, kv_cache_memory_bytes=round(printed))


def _public(raw: Mapping[str, Any], models: _Models, load_card: LoadCard) -> list[StartupRow]:
    check = raw["check"]
    if "unpredicted" in check:
        return [_row("public", raw, "", note=f"not predicted: {check['unpredicted']}")]
    checks = _sglang_checks if raw["engine"].startswith("sglang") else _vllm_checks
    try:
        rows = list(checks(raw, models, load_card))
    except SpecplanError as error:
        return [_row("public", raw, "", note=f"not predicted: {error}")]
    if not rows:
        why = check.get("no_flags", "nothing printed to compare with")
        rows = [_row("public", raw, "", note=f"not predicted: {why}")]
    return rows


def _note(raw: Mapping[str, Any], error: float | None = None) -> str:
    check = raw["check"]
    parts = [f"inferred: {'; '.join(check['inferred'])}"] if check.get("inferred") else []
    if check.get("explain") and (error is None or abs(error) > 0.002):
        parts.append(check["explain"])
    return "; ".join(parts)


def _model_of(raw: Mapping[str, Any], models: _Models) -> Model:
    check = raw["check"]
    if "geometry" in check:
        layers, heads, size = check["geometry"]
        layer = Layer(mixer=Attention(heads=heads, kv_heads=heads, head_dim=size), feed_forward=None)
        return Model(
            name=f"{layers} layers x {heads} heads x {size}",
            source=raw["source"],
            hidden_size=heads * size,
            vocab_size=64,
            tied_embeddings=True,
            layers=(layer,) * layers,
            weight_format=lookup("bfloat16"),
            max_position=131072,
        )
    model = models.get(check["model_key"])
    if "mtp_layers" in check and not model.mtp_layers:
        full = next(layer for layer in model.layers if isinstance(layer.mixer, Attention))
        model = replace(model, mtp_layers=(full,) * check["mtp_layers"])
    if "storage" in check:
        model = stored_as(model, check["storage"])
    return model


def _vllm_flags(raw: Mapping[str, Any], models: _Models) -> VllmFlags:
    check = raw["check"]
    known: dict[str, Any] = {"version": check["version"], "tp": raw.get("tp") or 1, "pp": raw.get("pp") or 1}
    for name in ("dtype", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        if raw.get(name) is not None:
            known[name] = raw[name]
    known["kv_cache_dtype"] = raw.get("kv_cache_dtype") or "auto"
    for name in (
        "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype", "enable_prefix_caching",
        "custom_all_reduce", "expert_parallel", "enforce_eager", "state_dtype", "block_size",
    ):  # fmt: skip
        if name in check:
            known[name] = check[name]
    flags = VllmFlags(**known)
    return models.with_multimodal(flags, check["model_key"]) if check.get("model_key") else flags


def _speculation(raw: Mapping[str, Any], models: _Models) -> tuple[Speculation | None, Model | None]:
    config = raw["check"].get("speculation")
    if config is None or "method" not in config:
        return None, None
    draft = models.get(config["model"]) if "model" in config else None
    return parse_speculative_config(config, tp=raw.get("tp") or 1, mtp_modules=0), draft


def _card(raw: Mapping[str, Any], load_card: LoadCard) -> Accelerator | None:
    check, seen = raw["check"], raw["observed"]
    if "profile" not in check:
        return None
    card = load_card(check["profile"])
    total = check.get("total_gib") or seen.get("total_gpu_gib")
    return card if total is None else replace(card, memory_torch_bytes=total * GIB)


def _vllm_checks(raw: Mapping[str, Any], models: _Models, load_card: LoadCard) -> Iterator[StartupRow]:
    check, seen = raw["check"], raw["observed"]
    model, flags = _model_of(raw, models), _vllm_flags(raw, models)
    speculation, draft = _speculation(raw, models)
    card = _card(raw, load_card)
    some_card = card or replace(load_card("h100-sxm"), link_bandwidth=None)
    printed_bytes = float(seen.get("kv_bytes") or seen.get("kv_gib", 0.0) * GIB)
    tokens = seen.get("kv_tokens")
    if printed_bytes and (tokens or seen.get("max_concurrency")):
        exact = replace(flags, kv_cache_memory_bytes=round(printed_bytes), num_gpu_blocks_override=None)
        found = predict_vllm(model, some_card, exact, speculation, draft)
        yield from _compared(raw, "tokens from printed bytes", found, printed_bytes)
    elif tokens and flags.max_model_len:
        large = replace(flags, kv_cache_memory_bytes=1 << 44)
        yield from _whole_blocks(raw, predict_vllm(model, some_card, large, speculation, draft))
    weights = seen.get("weights_gib")
    if weights and "geometry" not in check and "no_weights" not in check:
        full = predict_vllm(model, some_card, replace(flags, kv_cache_memory_bytes=1 << 44), speculation, draft)
        predicted = full.ranks[0].weights.best
        error = predicted / (weights * GIB) - 1
        yield _row("public", raw, "weights", printed=weights * GIB, predicted=predicted,
                   slack=0.005 / weights, note=_note(raw, error))  # fmt: skip
    if card is not None and "no_flags" not in check and (printed_bytes or tokens):
        found = predict_vllm(model, card, flags, speculation, draft)
        yield from _compared(raw, "tokens from flags", found, printed_bytes)


def _compared(raw: Mapping[str, Any], check: str, found: PoolPrediction, printed_bytes: float) -> Iterator[StartupRow]:
    """Tokens against the log's; concurrency or bytes where it prints no tokens."""
    seen = raw["observed"]
    if found.plan is None or found.tokens is None or found.concurrency is None:
        yield _row("public", raw, "", note=f"predicted to refuse: {(found.refusal or '')[:90]}")
        return
    printed = seen.get("kv_tokens")
    predicted = found.tokens.best
    if printed is None and seen.get("max_concurrency") is not None:
        printed = seen["max_concurrency"] * found.max_model_len
        predicted = found.concurrency.best * found.max_model_len
    elif printed is None:
        printed, predicted = printed_bytes / found.bytes_per_token, found.rank.available.best / found.bytes_per_token
    block = 1 / max(found.plan.num_blocks, 1)
    rounding = 0.0 if seen.get("kv_bytes") else 0.005 * GIB / printed_bytes if printed_bytes else 0.0
    error = predicted / printed - 1
    yield _row("public", raw, check, printed=float(printed), predicted=predicted, slack=max(block, rounding),
               note=_note(raw, error))  # fmt: skip


def _whole_blocks(raw: Mapping[str, Any], found: PoolPrediction) -> Iterator[StartupRow]:
    """Printed tokens as the nearest whole number of blocks of the layout."""
    if found.plan is None or not vllm_rules(raw["check"]["version"]).tokens_by_concurrency:
        return
    printed = raw["observed"]["kv_tokens"]
    per_request, length = found.plan.blocks_per_request, found.max_model_len
    blocks = -(-printed * per_request // length)  # printed = floor(blocks / per_request x length)
    predicted = blocks * length // per_request
    yield _row("public", raw, "tokens as whole blocks", printed=float(printed), predicted=float(predicted),
               slack=1 / printed, note=_note(raw) or f"{blocks:,} blocks, {per_request:,} per request")  # fmt: skip


def _sglang_checks(raw: Mapping[str, Any], models: _Models, load_card: LoadCard) -> Iterator[StartupRow]:
    check, seen = raw["check"], raw["observed"]
    model = _model_of(raw, models)
    dtype = raw.get("kv_cache_dtype") or "auto"
    dtype = "fp8" if dtype.startswith("fp8") else "auto" if dtype in ("bfloat16", "bf16") else dtype
    tp = raw.get("tp") or 1
    cell = cells(model, model.layers, dtype, tp, packed=check.get("packed", True))
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
            yield _row(
                "public", raw, "tokens from printed bytes", printed=float(rows), predicted=predicted,
                slack=0.005 * len(names) / size, note=_note(raw, predicted / rows - 1),
            )  # fmt: skip
    before, after = seen.get("avail_before_load_gb"), seen.get("avail_after_load_gb")
    fraction = raw.get("mem_fraction_static")
    if before and after and fraction and tokens and "no_flags" not in check:
        flags = SglangFlags(
            tp=tp, kv_cache_dtype=dtype, mem_fraction_static=fraction, context_length=raw.get("max_model_len") or 32768,
            free_before_load=before * GIB, weights=(before - after) * GIB,
        )  # fmt: skip
        found = predict_sglang(model, load_card("h100-sxm"), flags)
        if found.tokens is not None:
            yield _row(
                "public", raw, "tokens from printed bytes", printed=float(tokens), predicted=found.tokens.best,
                slack=0.01 / (after - before * (1 - fraction)), note=_note(raw),
            )  # fmt: skip


def _deltas(raws: Mapping[str, Mapping[str, Any]], models: _Models, load_card: LoadCard) -> Iterator[StartupRow]:
    """What a draft changed in a pair of runs, as a ratio, against the predicted ratio."""
    plain, with_mtp = raws["v062"], raws["v063"]
    card = _card(plain, load_card)
    if card is not None:
        a = _predicted(plain, models, card)
        b = _predicted(with_mtp, models, card)
        if a.tokens is not None and b.tokens is not None:
            printed = with_mtp["observed"]["kv_tokens"] / plain["observed"]["kv_tokens"]
            yield _row("public", with_mtp, "draft delta", printed=printed, predicted=b.tokens.best / a.tokens.best,
                       note="MTP beside its plain run (v062): tokens with over without, from flags alone")  # fmt: skip
    eagle = raws["v057"]
    model, (speculation, draft) = _model_of(eagle, models), _speculation(eagle, models)
    flags = replace(_vllm_flags(eagle, models), kv_cache_memory_bytes=1 << 40)
    h100 = load_card("h100-sxm")
    target = predict_vllm(model, h100, flags).rank.weights.best
    both = predict_vllm(model, h100, flags, speculation, draft).rank.weights.best
    alone = 14.9889  # GiB, as the same source prints for the target
    yield _row("public", eagle, "draft delta", printed=eagle["observed"]["weights_gib"] / alone,
               predicted=both / target, note="EAGLE-3: weights with over without")  # fmt: skip
    mtp = raws["s006"]
    seen = mtp["observed"]
    qwen = _model_of(mtp, models)
    own, head = cells(qwen, qwen.layers, "auto", 1), cells(qwen, qwen.mtp_layers, "auto", 1)
    printed = 1 + (seen["draft_k_gb"] + seen["draft_v_gb"]) / (seen["k_gb"] + seen["v_gb"])
    yield _row("public", mtp, "draft delta", printed=printed, predicted=1 + head.full / own.full, slack=0.01 / 10.44,
               note="SGLang, MTP head: bytes per token with over without")  # fmt: skip


def _predicted(raw: Mapping[str, Any], models: _Models, card: Accelerator) -> PoolPrediction:
    speculation, draft = _speculation(raw, models)
    return predict_vllm(_model_of(raw, models), card, _vllm_flags(raw, models), speculation, draft)
