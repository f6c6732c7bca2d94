"""Start-ups that engines printed, against what is predicted for them: the shipped rows, figure by figure.

Rows to which constants were fitted are kept apart from those that judge them, and how many of the latter's printed
figures lie inside the predicted bounds is counted. What could not be predicted stands in the table with the reason.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from specplan.errors import SpecplanError
from specplan.evidence.startup_cases import RENAMED, Case, case_of, read_rows, rows_in
from specplan.evidence.startup_checks import StartupRow, checks_of, row_of, unpredicted
from specplan.memory.prediction import PoolPrediction
from specplan.memory.sglang import cells
from specplan.memory.speculative import Speculation, parse_speculative_config
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.specs.huggingface.vision import vision_tower
from specplan.units import GIB
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator
from specplan.values.model import Access, Attention, Layer, Model, Shard, Weight

ReadModel = Callable[[Mapping[str, Any], str], Model]
LoadCard = Callable[[str], Accelerator]

HAND_SET: Final = (
    "enable_prefix_caching", "custom_all_reduce", "expert_parallel", "enforce_eager", "state_dtype", "block_size",
)  # fmt: skip
"""Settings of a shipped row that a person chose."""

EXPLAIN_BEYOND: Final = 0.05
"""Relative error from which a row must say why."""


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
    fitted : bool
        Whether constants were fitted to these start-ups.
    bounded, enclosed : int
        Rows with bounds, and those whose bounds hold the printed figure.
    hand_set : int
        Rows with a setting that a person chose.
    """

    set_name: str
    check: str
    fitted: bool
    rows: int
    median: float
    p90: float
    largest: float
    worst: str
    bounded: int
    enclosed: int
    hand_set: int


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
    rows += _plain(rows_in(_data("public_rows.json"), "public_rows.json"), "named")
    rows += _deltas({raw["id"]: raw for raw in public}, models, load_card)
    return tuple(rows)


def summarise(rows: Iterable[StartupRow]) -> tuple[CheckSummary, ...]:
    """Median, 90th percentile and largest error of each check.

    >>> row = StartupRow(set_name="h100", id="a", source="", engine="vllm", version="", model="", check="weights",
    ...                  printed=100.0, predicted=101.0, error=0.01, slack=0.0, note="")
    >>> summarise([row])[0].median
    0.01
    """
    groups: dict[tuple[str, str, bool], list[StartupRow]] = {}
    for row in rows:
        if row.error is not None:
            groups.setdefault((row.set_name, row.check, row.fitted), []).append(row)
    out = []
    for (set_name, check, fitted), found in groups.items():
        ordered = sorted(found, key=lambda r: abs(r.error or 0.0))
        errors = [abs(r.error or 0.0) for r in ordered]
        out.append(
            CheckSummary(
                set_name=set_name,
                check=check,
                fitted=fitted,
                rows=len(errors),
                median=statistics.median(errors),
                p90=errors[min(len(errors) - 1, int(0.9 * len(errors)))],
                largest=errors[-1],
                worst=ordered[-1].id,
                bounded=sum(row.enclosed is not None for row in found),
                enclosed=sum(row.enclosed is True for row in found),
                hand_set=sum(bool(row.hand_set) for row in found),
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
            whole = storage.get("whole_head", False)
            model = stored_as(model, storage["quantization"], storage["unquantized"], whole_head=whole)
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

    def with_multimodal(self, flags: VllmFlags, key: str, model: Model) -> VllmFlags:
        """Flags with what the profile run sends to the model's encoder, where the model has one."""
        found = self.configs[key].get("_multimodal", {})
        flags = replace(flags, multimodal_tokens=found.get("tokens", 0), multimodal_values=found.get("values", 0))
        tower = vision_tower(self.configs[key]) if any(w.component == "vision" for w in model.extra) else None
        if tower is None or not tower.image_tokens:
            return flags
        images = max(1, flags.multimodal_tokens // tower.image_tokens)
        whole, split = tower.peak_numbers
        return replace(flags, encoder_whole=images * whole, encoder_split=images * split)


def _reading(layer: Layer, width: int) -> Layer:
    if isinstance(layer.mixer, Attention):
        return replace(layer, mixer=replace(layer.mixer, input_size=width))
    return layer


def stored_as(model: Model, name: str, unquantized: Iterable[str] = (), *, whole_head: bool = False) -> Model:
    """The model with its linear weights stored in a format, with `whole_head` a prediction head's projection too.

    >>> from specplan.values.formats import lookup
    >>> model = Model(name="m", source="", hidden_size=1, vocab_size=1, tied_embeddings=False, layers=(),
    ...               weight_format=lookup("bf16"))
    >>> stored_as(model, "int8").quantization.name
    'int8'
    """
    if whole_head:
        model = replace(model, mtp_layers=tuple(replace(x, extra=_stored(x.extra)) for x in model.mtp_layers))
    return replace(model, quantization=lookup(name), unquantized=tuple(unquantized))


def _stored(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    return tuple(replace(w, quantizable=True) if w.access is Access.MATMUL else w for w in weights)


def _h100(raw: Mapping[str, Any], models: _Models, load_card: LoadCard) -> list[StartupRow]:
    seen = {RENAMED.get(name, name): value for name, value in raw["observed"].items()}
    shown = {"source": "llm-d-planner accuracy results v0.19.0", **raw, "observed": seen}
    try:
        model = models.get(raw["model"])
    except SpecplanError as error:
        return [unpredicted(shown, "h100", str(error))]
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
    card = replace(load_card("h100-sxm"), memory_torch_bytes=seen["total_gpu_gib"] * GIB)
    case = Case(
        raw=shown, model=model, card=card, flags=models.with_multimodal(flags, raw["model"], model), fitted=True,
        check={"form": "h100"},
    )  # fmt: skip
    return checks_of(case, "h100")


def _public(raw: Mapping[str, Any], models: _Models, load_card: LoadCard) -> list[StartupRow]:
    check = raw["check"]
    if "unpredicted" in check:
        return [unpredicted(raw, "public", check["unpredicted"])]
    try:
        return checks_of(_case(raw, models, load_card), "public")
    except SpecplanError as error:
        return [unpredicted(raw, "public", str(error))]


def _case(raw: Mapping[str, Any], models: _Models, load_card: LoadCard) -> Case:
    """A shipped row of a public log, with what a person found out about it."""
    check = raw["check"]
    speculation, draft = _speculation(raw, models)
    model = _model_of(raw, models)
    return Case(
        raw=raw,
        model=model,
        card=_card(raw, load_card),
        flags=None if raw["engine"].startswith("sglang") else _vllm_flags(raw, models, model),
        speculation=speculation,
        draft=draft,
        notes=tuple(check.get("inferred", ())),
        hand_set=tuple(name for name in HAND_SET if name in check),
        fitted=bool(check.get("fitted")),
        check=check,
    )


def file_table(path: Path) -> tuple[StartupRow, ...]:
    """Rows of a file, each with its checks."""
    return tuple(_plain(read_rows(path), path.stem))


def _plain(raws: Iterable[Mapping[str, Any]], set_name: str) -> Iterator[StartupRow]:
    """Rows as their source words them: model, card and version are found by name."""
    for raw in raws:
        try:
            yield from checks_of(case_of(raw), set_name)
        except SpecplanError as error:
            yield unpredicted(raw, set_name, str(error))


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


def _vllm_flags(raw: Mapping[str, Any], models: _Models, model: Model) -> VllmFlags:
    check = raw["check"]
    known: dict[str, Any] = {"version": check["version"], "tp": raw.get("tp") or 1, "pp": raw.get("pp") or 1}
    for name in ("dtype", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        if raw.get(name) is not None:
            known[name] = raw[name]
    known["kv_cache_dtype"] = raw.get("kv_cache_dtype") or "auto"
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype", *HAND_SET):
        if name in check:
            known[name] = check[name]
    flags = VllmFlags(**known)
    return models.with_multimodal(flags, check["model_key"], model) if check.get("model_key") else flags


def _speculation(raw: Mapping[str, Any], models: _Models) -> tuple[Speculation | None, Model | None]:
    config = raw["check"].get("speculation")
    if config is None or "method" not in config:
        return None, None
    draft = models.get(config["model"]) if "model" in config else None
    return parse_speculative_config(config, tp=raw.get("tp") or 1, version=raw["check"]["version"]), draft


def _card(raw: Mapping[str, Any], load_card: LoadCard) -> Accelerator | None:
    check, seen = raw["check"], raw["observed"]
    if "profile" not in check:
        return None
    card = load_card(check["profile"])
    total = check.get("total_gib") or seen.get("total_gpu_gib")
    return card if total is None else replace(card, memory_torch_bytes=total * GIB)


def _deltas(raws: Mapping[str, Mapping[str, Any]], models: _Models, load_card: LoadCard) -> Iterator[StartupRow]:
    """What a draft changed in a pair of runs, as a ratio, against the predicted ratio."""
    plain, with_mtp = (_case(raws[name], models, load_card) for name in ("v062", "v063"))
    a, b = _predicted(plain), _predicted(with_mtp)
    if a.tokens is not None and b.tokens is not None:
        printed = with_mtp.seen["kv_tokens"] / plain.seen["kv_tokens"]
        yield row_of("public", with_mtp, "draft delta", printed=printed, predicted=b.tokens.best / a.tokens.best,
                     note="MTP beside its plain run (v062): tokens with over without, from flags alone")  # fmt: skip
    eagle = replace(_case(raws["v057"], models, load_card), card=load_card("h100-sxm"))
    assert eagle.flags is not None  # noqa: S101 - a row of vLLM
    eagle = replace(eagle, flags=replace(eagle.flags, kv_cache_memory_bytes=1 << 40))
    target = _predicted(replace(eagle, speculation=None, draft=None)).rank.weights.best
    both = _predicted(eagle).rank.weights.best
    alone = 14.9889  # GiB, as the same source prints for the target
    yield row_of("public", eagle, "draft delta", printed=eagle.seen["weights_gib"] / alone, predicted=both / target,
                 note="EAGLE-3: weights with over without")  # fmt: skip
    mtp = _case(raws["s006"], models, load_card)
    qwen, seen = mtp.model, mtp.seen
    own, head = cells(qwen, qwen.layers, "auto", 1), cells(qwen, qwen.mtp_layers, "auto", 1)
    printed = 1 + (seen["draft_k_gb"] + seen["draft_v_gb"]) / (seen["k_gb"] + seen["v_gb"])
    yield row_of("public", mtp, "draft delta", printed=printed, predicted=1 + head.full / own.full, slack=0.01 / 10.44,
                 note="SGLang, MTP head: bytes per token with over without")  # fmt: skip


def _predicted(case: Case) -> PoolPrediction:
    assert case.flags is not None  # noqa: S101 - a row of vLLM
    assert case.card is not None  # noqa: S101 - it names its card
    return predict_vllm(case.model, case.card, case.flags, case.speculation, case.draft)
