"""Fit the laws of `specplan.formulas.kernels` to measured kernel times, on half of the shapes, and try the other half.

    python benchmarks/fit_kernels.py FOLDER [SYSTEM ...] [--write]

FOLDER is ``aisimulate_core/systems/data`` of an unpacked aisimulate wheel (Apache-2.0; no dependency of specplan).
Prints one line per law with the median and signed error on held-out shapes; ``--write`` puts the constants into
``hardware_profiles/kernels/NAME.json``. Which half a shape falls into is drawn from its own numbers, so that a run can
be repeated.
"""

import argparse
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from scipy.optimize import least_squares

from specplan.formulas.kernels import EXPERT_TILE, attention_s, experts_s, gemm_s, latent_s, recurrent_s, reduce_s
from specplan.specs.hardware import load_accelerator, shipped_profiles_folder
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator
from specplan.values.kernels import AttentionLaw, ExpertsLaw, Fit, GemmLaw, LatentLaw, RecurrentLaw, ReduceLaw

FloatArray = npt.NDArray[np.float64]
Table = dict[str, npt.NDArray[Any]]

SYSTEMS: Final = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
    "b60": "arc-pro-b60",
}
ENGINES: Final = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
GEMM_FORMATS: Final = {
    "bfloat16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4",
    "int8_wo": "int8",
}
EXPERT_FORMATS: Final = {**GEMM_FORMATS, "w4a16_mxfp4": "mxfp4"}
STORED: Final = {"fp8-block": "fp8-block128", "int4": "int4-gptq-g128"}
UNGATED: Final = {(2688, 1856, 128), (2048, 5120, 512), (1024, 2688, 512), (4096, 2688, 512), (8192, 5120, 512)}
"""Shapes (hidden, inter, experts) of experts with two matrices instead of three (Nemotron)."""
TUNED: Final = {
    ("a100-sxm-80gb", "vllm", "bfloat16"): ((8, 1792), (8, 2048), (8, 3584), (8, 4096), (8, 7168), (128, 192))
}
"""(experts, width on a rank) that an engine brings settings for: vLLM 0.32's files of its fused experts, by name.

Others run its defaults, which take up to 1.6 times as long for the same bytes (Mixtral at 128 tokens on one rank beside
two). Told apart here after one law for both missed held-out shapes by 18%. Seven shapes of the table are listed, of
which one is held out; with half of them held out the error is 5.1%. That of the defaults depends on which shapes are
held out: 16 to 29% in six draws."""
SHAPE: Final = ("hidden_size", "inter_size", "num_experts")
ROWS: Final = (1, 16, 64, 128, 256, 512, 1024)
EXPERT_ROWS: Final = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 64)
"""Rows per expert between which a factor on the time of experts is drawn out."""
BYTES: Final = tuple(2.0**e for e in (16, 19, 21, 22, 23, 24, 25, 25.6, 26, 26.5, 27, 28, 29, 31, 33))
CURRENT: Final = {"0.24.0", "0.5.14", "1.3.0rc20"}
"""Versions of vLLM, SGLang and TensorRT-LLM whose tables AISimulate predicts from unless asked otherwise."""
MESSAGE_BYTES: Final = 2
"""Bytes of one unit of ``message_size``: numbers of 16 bits, or an A100's links would carry half of what they do."""
MOST_FLOOR_S: Final = 100e-6
"""A matrix multiplication with a longer floor was timed with its launches from Python, which graphs leave out."""
QK_NORM_S: Final = {"vllm": 26.4e-6, "sglang": 6e-6, "trtllm": 26.4e-6}
"""Norms of queries and keys, a layer: AISimulate's sums with and without them differ by 26.4 us on every card, as much
as Qwen3-8B takes longer under vLLM 0.31 on an H100 than its weights explain. SGLang's plain steps of Qwen3-30B-A3B
(SpecForge 339) leave room for two short kernels."""
GLUE_S: Final = 3e-6
"""Floor of an elementwise kernel, as AISimulate assumes it for all of these systems."""
SEED: Final = 20261201


@dataclass(frozen=True, slots=True)
class Source:
    """The tables of one system."""

    folder: Path
    card: Accelerator

    def versions(self, kind: str, engine: str, name: str) -> list[tuple[str, Path]]:
        """Versions that hold a table: the one that AISimulate calls current first, then from new to old."""
        found = [(p.parent.name, p) for p in self.folder.glob(f"{kind}/{engine}/*/{name}_perf.parquet")]
        released = sorted((f for f in found if "dev" not in f[0]), key=_numbers, reverse=True)
        return sorted(released, key=lambda f: f[0] not in CURRENT)

    def flops(self, key: str) -> float:
        """Peak in which a format multiplies on the card."""
        rate = {"fp8-block": "fp8"}.get(key, key)
        return self.card.flops.get(rate, self.card.flops["bfloat16"])


def _numbers(version: tuple[str, Path]) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version[0])]


def read(path: Path) -> Table:
    """Columns of a parquet file; rows without a positive finite time are refused."""
    try:
        table = {name: np.array(column) for name, column in pq.read_table(path).to_pydict().items()}
        latency = table["latency"].astype(float) * 1e-3
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"{path}: not a table of kernel times with a latency column: {error}")
    if not latency.size or not np.all(np.isfinite(latency) & (latency > 0)):
        sys.exit(f"{path}: a latency is not a positive number")
    table["latency"] = latency
    return table


def where(table: Table, chosen: npt.NDArray[np.bool_]) -> Table:
    """Rows of a table."""
    return {name: column[chosen] for name, column in table.items()}


def halves(table: Table, names: tuple[str, ...]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Rows whose shape is fitted, and those whose shape is held out."""
    keys = list(zip(*(table[n].tolist() for n in names), strict=True))
    side = {key: zlib.crc32(f"{SEED}{key}".encode()) % 2 for key in set(keys)}
    first = np.array([side[key] == 0 for key in keys], bool)
    if first.all() or not first.any():
        first = np.arange(len(keys)) % 2 == 0
    return first, ~first


def fitted(
    table: Table,
    shape: tuple[str, ...],
    predict: Callable[[FloatArray, Table], FloatArray],
    start: list[float],
    low: list[float],
    high: list[float],
) -> tuple[FloatArray, Fit]:
    """Constants with the least relative errors on one half of the shapes, and how they do on the other."""
    one, other = halves(table, shape)
    rng = np.random.default_rng(SEED)
    rows = np.flatnonzero(one)
    if rows.size > 6000:
        rows = rng.choice(rows, 6000, replace=False)
    mine, rest = where(table, rows), where(table, other)

    def residual(x: FloatArray) -> FloatArray:
        return np.asarray(np.log(predict(x, mine) / mine["latency"]))

    solved = least_squares(
        residual, np.clip(start, np.array(low) + 1e-12, high), bounds=(low, high), loss="soft_l1", f_scale=0.05
    )
    error = predict(solved.x, rest) / rest["latency"] - 1
    fit = Fit(
        fitted=int(rows.size),
        tested=int(error.size),
        error=round(float(np.median(np.abs(error))), 4),
        bias=round(float(np.median(error)), 4),
    )
    return solved.x, fit


def fit_gemm(source: Source, table: Table, key: str) -> GemmLaw | None:
    """Matrix multiplications of one format with at most 1024 rows."""
    table = where(table, (table["n"] >= 512) & (table["k"] >= 512) & (table["m"] <= 1024))
    if table["m"].size < 200:
        return None
    size = lookup(STORED.get(key, key)).bytes
    m, n, k = (table[c].astype(float) for c in "mnk")
    table = {"m": m, "n": n, "k": k, "latency": table["latency"]}

    def law(x: FloatArray) -> GemmLaw:
        # Factors rise, so that more rows never take less time.
        factors = tuple(zip(ROWS, np.exp(np.cumsum([0.0, *x[5:]])), strict=True))
        return GemmLaw(
            fixed_s=x[0] * 1e-6,
            bandwidth_share=x[1],
            matmul_share=x[2],
            inner_s=x[3] * 1e-9,
            power=x[4],
            positions=factors,
        )

    def predict(x: FloatArray, t: Table) -> FloatArray:
        n, k = t["n"], t["k"]
        return gemm_s(law(x), t["m"], n, k, n * k * size, source.card.bandwidth, source.flops(key))

    knots = len(ROWS) - 1
    x, fit = fitted(
        table,
        ("n", "k"),
        predict,
        [4, 0.8, 0.7, 0.5, 2] + [0.01] * knots,
        [0.1, 0.02, 0.02, 0, 1] + [0.0] * knots,
        [1000, 2, 2, 100, 6] + [0.7] * knots,
    )
    return GemmLaw(**{**_plain(law(x)), "fit": fit})


def fit_attention(source: Source, table: Table, size: float, *, windowed: bool) -> AttentionLaw | None:
    """Attention of one query per request over at least 32 cached tokens: of all of them, or of a window."""
    window = table.get("window_size", np.zeros_like(table["step"]))
    table = where(table, (window > 0) == windowed)
    window = window[(window > 0) == windowed]
    length = table["step"] + 1
    length = np.where(window > 0, np.minimum(length, window), length).astype(float)
    table = {
        "b": table["batch_size"].astype(float),
        "h": table["num_heads"].astype(float),
        "kv": table["num_key_value_heads"].astype(float),
        "d": table["head_dim"].astype(float),
        "t": length,
        "w": window.astype(float),
        "latency": table["latency"],
    }
    table = where(table, (table["b"] <= 512) & (table["t"] >= 32) & (table["d"] <= 256))
    if table["b"].size < 200:
        return None

    def law(x: FloatArray) -> AttentionLaw:
        # Times at the knots rise, so that more bytes never take less time.
        seconds = np.exp(np.cumsum(np.concatenate([x[5:6], x[6:]])))
        shares = np.array(BYTES) / source.card.bandwidth / seconds
        return AttentionLaw(
            fixed_s=x[0] * 1e-6,
            request_s=x[1] * 1e-9,
            row_s=x[2] * 1e-9,
            token_s=x[3] * 1e-9,
            matmul_share=x[4],
            shares=tuple(zip(BYTES, shares, strict=True)),
        )

    def predict(x: FloatArray, t: Table) -> FloatArray:
        b, h, kv, d, length = (t[c] for c in ("b", "h", "kv", "d", "t"))
        peaks = source.card.bandwidth, source.card.flops["bfloat16"]
        return attention_s(law(x), b, length, 1, h, kv, 2 * kv * d * size, 2 * d, *peaks)

    at = np.array(BYTES) / source.card.bandwidth / 0.8
    steps = np.diff(np.log(at))
    x, fit = fitted(
        table,
        ("b", "h", "kv", "d", "w"),
        predict,
        [10, 10, 5, 0.1, 0.5, float(np.log(at[0])) + 1, *steps],
        [0, 0, 0, 0, 0.02, -25, *np.full(len(steps), 0.01)],
        [200, 3000, 300, 100, 2, -5, *np.full(len(steps), 4.0)],
    )
    return AttentionLaw(**{**_plain(law(x)), "fit": fit})


def fit_latent(source: Source, table: Table, key: str) -> LatentLaw | None:
    """A latent-attention block of DeepSeek-V3's shape by heads on the rank, projections included.

    Under ``core`` without them; with ``-kv8`` in the key over a cache in 8 bits.
    """
    cached = "fp8" if key.endswith("-kv8") else "bfloat16"
    key = key.removesuffix("-kv8")
    size = 0.0 if key == "core" else lookup(STORED.get(key, key)).bytes
    table = where(table, table["kv_cache_dtype"] == cached)
    table = {
        "h": table["num_heads"].astype(float),
        "b": table["batch_size"].astype(float),
        "t": table["step"].astype(float),
        "latency": table["latency"],
    }
    table = where(table, (table["b"] <= 512) & (table["t"] >= 32))
    if table["b"].size < 200:
        return None

    def law(x: FloatArray) -> LatentLaw:
        return LatentLaw(
            fixed_s=x[0] * 1e-6,
            bandwidth_share=x[1],
            request_s=x[2] * 1e-9,
            token_s=x[3] * 1e-9,
            kv_share=x[4],
            matmul_share=x[5],
            attention_share=x[6],
        )

    def predict(x: FloatArray, t: Table) -> FloatArray:
        h = t["h"]
        absorbed = h * 512 * 256 * (size > 0)
        params = (7168 * 2112 + h * (192 * 1536 + 128 * 7168)) * (size > 0)
        moved = params * size + 2 * absorbed
        peaks = source.card.bandwidth, source.card.flops["bfloat16"]
        flops = 2 * h * (576 + 512)
        row = 576 * (1.0 if cached == "fp8" else 2.0)
        return latent_s(law(x), t["b"], t["t"], 1, moved, params + absorbed, row, flops, *peaks)

    x, fit = fitted(
        table,
        ("h", "b"),
        predict,
        [50, 0.7, 10, 0.1, 0.8, 0.5, 0.5],
        [1, 0.02, 0, 0, 0.05, 0.02, 0.005],
        [500, 2, 5000, 100, 2, 2, 2],
    )
    return LatentLaw(**{**_plain(law(x)), "fit": fit})


def padded_width(width: FloatArray, key: str) -> FloatArray:
    """Width of an expert on a rank as kernels of 4-bit weights lay it out."""
    return np.ceil(width / EXPERT_TILE) * EXPERT_TILE if key.startswith(("mxfp4", "nvfp4", "int4")) else width


def fit_experts(source: Source, engine: str, table: Table, key: str) -> ExpertsLaw | None:
    """Fused routed experts under even and skewed routing alike, divided by their width, up to 1024 tokens and 16 ranks.

    Of the kernels that an engine chooses among by shape, the one that most gated shapes take; with ``-ungated`` in the
    key the one of two matrices, where that is another, and with ``-tuned`` the shapes of `TUNED`.
    """
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size")
    kernel = np.array([str(k) for k in table["kernel_source"]])
    chosen = (
        (table["num_tokens"] <= 1024)
        & (table["moe_tp_size"] <= 16)
        & (table["moe_ep_size"] == 1)
        # A stand-in of another activation, measured for a single model; a mode that nobody runs unasked.
        & ~np.char.count(kernel, "situ_as_silu").astype(bool)
        & ~np.char.count(kernel, "min_latency").astype(bool)
    )
    two = np.array([shape in UNGATED for shape in zip(*(table[n] for n in SHAPE), strict=True)], bool)
    asked, key = key, key.removesuffix("-ungated").removesuffix("-tuned")
    common = Counter(kernel[chosen & ~two]).most_common(1)
    main = common[0][0] if common else ""
    shapes = TUNED.get((source.card.name, engine, key), ())
    widths = zip(table["num_experts"], table["inter_size"] / table["moe_tp_size"], strict=True)
    listed = np.array([shape in shapes for shape in widths], bool)
    if "-ungated" in asked:
        chosen &= two & (kernel != main)
    elif main:
        chosen &= (kernel == main) & (listed & ~two if "-tuned" in asked else ~listed)
    table = where(table, chosen)
    if table["latency"].size < 100:
        return None
    size = lookup(STORED.get(key, key)).bytes
    table = {
        **{n: table[n].astype(float) for n in names},
        "matrices": 3.0 - two[chosen],
        "latency": table["latency"],
    }

    def law(x: FloatArray) -> ExpertsLaw:
        return ExpertsLaw(
            fixed_s=x[0] * 1e-6,
            bandwidth_share=x[1],
            expert_s=x[2] * 1e-6,
            matmul_share=x[3],
            row_s=x[4] * 1e-9,
            spread=x[5],
            rows=tuple(zip(EXPERT_ROWS, np.exp(np.cumsum([0.0, *x[6:]])), strict=True)),
        )

    def predict(x: FloatArray, t: Table) -> FloatArray:
        m, h, i, k, e, tp = (t[n] for n in names)
        params = t["matrices"] * h * padded_width(i / tp, key)
        return experts_s(law(x), m, e, k, params * size, params, h, source.card.bandwidth, source.flops(key))

    # A factor may fall where more touched experts outweigh it: while most experts have no row.
    low = [-0.4 if rows <= 1 / 4 else -0.1 if rows <= 1 else 0.0 for rows in EXPERT_ROWS[1:]]
    x, fit = fitted(
        table,
        names[1:],
        predict,
        [30, 0.8, 0.1, 0.5, 20, 1] + [0.0] * len(low),
        [0.5, 0.02, 0, 0.01, 0, 0.05, *low],
        [300, 2, 10, 2, 500, 4] + [0.5] * len(low),
    )
    return ExpertsLaw(**{**_plain(law(x)), "shapes": shapes if "-tuned" in asked else (), "fit": fit})


def fit_recurrent(source: Source, table: Table) -> RecurrentLaw | None:
    """Decode kernels of a recurrent mixer, the convolution's and the state's together, by the bytes of the states."""
    table = where(table, (table["phase"] == "generation") & (table["batch_size"] <= 512))
    if table["latency"].size < 20:
        return None
    state = 4.0 * table["num_v_heads"] * table["head_k_dim"] * table["head_v_dim"]
    shape = list(zip(table["num_k_heads"], table["num_v_heads"], table["d_model"], strict=True))
    summed: dict[Any, dict[str, float]] = {}
    moved: dict[Any, float] = {}
    for s, b, kernel, bytes_, seconds in zip(
        shape, table["batch_size"], table["kernel_source"], state, table["latency"], strict=True
    ):
        summed.setdefault((s, b), {})[kernel] = float(seconds)
        moved[s, b] = 2.0 * float(bytes_) * float(b)
    most = max(len(v) for v in summed.values())
    whole = [key for key, v in summed.items() if len(v) == most]
    rows: Table = {
        "shape": np.array([zlib.crc32(str(key[0]).encode()) for key in whole]),
        "moved": np.array([moved[key] for key in whole]),
        "latency": np.array([sum(summed[key].values()) for key in whole]),
    }

    def law(x: FloatArray) -> RecurrentLaw:
        return RecurrentLaw(fixed_s=x[0] * 1e-6, bandwidth_share=x[1])

    x, fit = fitted(
        rows,
        ("shape",),
        lambda x, t: recurrent_s(law(x), t["moved"], source.card.bandwidth),
        [8, 0.6],
        [0.5, 0.02],
        [200, 4],
    )
    return RecurrentLaw(**{**_plain(law(x)), "fit": fit})


def fit_reduce(table: Table) -> ReduceLaw | None:
    """Every other message length of the engine's own reduction in graphs is a knot; those between are tried."""
    graphed = np.array(["graph" in str(s) for s in table["kernel_source"]])
    table = where(table, graphed if graphed.any() else np.ones(len(graphed), bool))
    ranks: dict[int, tuple[tuple[float, float], ...]] = {}
    errors: list[float] = []
    count = 0
    for n in sorted({int(n) for n in table["num_gpus"] if n <= 8}):
        mine = where(table, (table["num_gpus"] == n) & (table["message_size"] >= 1024))
        order = np.argsort(mine["message_size"], kind="stable")
        size, seconds = mine["message_size"][order].astype(float), mine["latency"][order]
        size, first = np.unique(size * MESSAGE_BYTES, return_index=True)
        seconds = np.maximum.accumulate(seconds[first])
        if size.size < 4:
            continue
        ranks[n] = tuple((float(a), float(f"{s:.4g}")) for a, s in zip(size[::2], seconds[::2], strict=True))
        count += len(ranks[n])
        tried = reduce_s(ReduceLaw(ranks={n: ranks[n]}), size[1::2], n)
        errors += list(tried / seconds[1::2] - 1)
    if not ranks:
        return None
    error = np.array(errors)
    fit = Fit(
        fitted=count,
        tested=error.size,
        error=round(float(np.median(np.abs(error))), 4),
        bias=round(float(np.median(error)), 4),
    )
    return ReduceLaw(ranks=ranks, fit=fit)


def _plain(law: Any) -> dict[str, Any]:
    return {name: getattr(law, name) for name in law.__dataclass_fields__}


def laws(source: Source, engine: str, only: list[str]) -> Iterator[tuple[str, str, str, Any]]:
    """(kind, key, version, law) of an engine; each from the first version that measured it."""
    tuned = {f"{k}-tuned": ("moe_dtype", k) for card, runs, k in TUNED if (card, runs) == (source.card.name, engine)}
    kinds: list[tuple[str, str, str, dict[str, Any]]] = [
        ("gemm", "gemm", "gemm", {key: ("gemm_dtype", name) for name, key in GEMM_FORMATS.items()}),
        (
            "attention",
            "attention",
            "generation_attention",
            {f"{kv}{span}": ("kv_cache_dtype", kv) for kv in ("bfloat16", "fp8") for span in ("", "-window")},
        ),
        (
            "latent",
            "mla",
            "mla_generation_module",
            {f"{key}{kv}": ("gemm_type", name) for name, key in GEMM_FORMATS.items() for kv in ("", "-kv8")},
        ),
        ("latent", "mla", "generation_mla", {f"core{kv}": ("mla_dtype", "bfloat16") for kv in ("", "-kv8")}),
        (
            "experts",
            "moe",
            "moe",
            {f"{key}{two}": ("moe_dtype", name) for name, key in EXPERT_FORMATS.items() for two in ("", "-ungated")}
            | tuned,
        ),
        ("recurrent", "linear_attention", "gdn", {"gated_delta_net": ("phase", "generation")}),
        ("recurrent", "kda", "kda", {"kda": ("phase", "generation")}),
        ("reduce", "comm", "custom_allreduce", {"": ("allreduce_dtype", "bfloat16")}),
    ]
    whole = False
    for kind, folder, name, keys in kinds:
        # The attention alone tells nothing more where blocks with their projections were measured.
        if (only and kind not in only) or (name == "generation_mla" and whole):
            continue
        found: set[str] = set()
        for version, path in source.versions(folder, engine, name):
            missing = [key for key in keys if key not in found]
            table = read(path) if missing else {}
            for key in missing:
                column, value = keys[key]
                rows = table if column not in table else where(table, table[column] == value)
                law = fit(source, engine, rows, kind, key) if rows["latency"].size else None
                if law is not None and not (kind == "gemm" and law.fixed_s > MOST_FLOOR_S):
                    found.add(key)
                    whole = whole or kind == "latent"
                    yield kind, key, version, law


def fit(source: Source, engine: str, table: Table, kind: str, key: str) -> Any:
    """The law of one kind on the rows of one format."""
    match kind:
        case "gemm":
            return fit_gemm(source, table, key)
        case "attention":
            return fit_attention(source, table, 1.0 if key.startswith("fp8") else 2.0, windowed=key.endswith("window"))
        case "latent":
            return fit_latent(source, table, key)
        case "experts":
            return fit_experts(source, engine, table, key)
        case "recurrent":
            return fit_recurrent(source, table)
        case _:
            return fit_reduce(table)


def document(source: Source, engine: str, only: list[str], before: dict[str, Any]) -> dict[str, Any] | None:
    """All laws of one engine as they stand in a file, each printed as it is fitted."""
    found: dict[str, dict[str, Any]] = {}
    for kind, key, version, law in laws(source, engine, only):
        fit = law.fit
        print(
            f"{source.card.name:<14}{engine:<8}{kind:<10}{key:<16}{version:<11}{fit.fitted:>6}{fit.tested:>7}"
            f"{fit.error:>8.1%}{fit.bias:>+8.1%}",
            flush=True,
        )
        entry = {k: v for k, v in _rounded(asdict(law)).items() if v not in ((), [], None)}
        entry["fit"]["version"] = version
        found.setdefault(kind, {})[key] = entry
    kept = {k: v for k, v in before.items() if k not in found and k not in ("source", "glue_s", "qk_norm_s")}
    if not {"gemm", "attention"} <= {*found, *kept}:
        return None
    return {
        "source": f"AISimulate 0.13.0 tables ({engine}; Apache-2.0), fitted 2026-12-01 on half "
        "of the shapes, errors on the other half",
        "glue_s": GLUE_S,
        "qk_norm_s": QK_NORM_S[engine],
        **kept,
        **{k: v.get("", v) for k, v in found.items()},
    }


def _rounded(value: Any) -> Any:
    match value:
        case dict():
            return {str(k): _rounded(v) for k, v in value.items()}
        case list() | tuple():
            return [_rounded(v) for v in value]
        case float():
            return float(f"{value:.4g}")
        case _:
            return value


def _text(document: dict[str, Any]) -> str:
    """JSON with one law a line."""
    text = json.dumps(document, indent=1)
    return re.sub(r"\n {5,}\s*|\n {4}(?=[}\]])", " ", text)


def main() -> None:
    """Fit and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("systems", nargs="*")
    parser.add_argument("--engine", choices=list(ENGINES), action="append")
    parser.add_argument("--kind", action="append", help="gemm, attention, latent, experts, recurrent or reduce")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if not options.folder.is_dir():
        sys.exit(f"{options.folder}: no such folder; give aisimulate_core/systems/data of an unpacked wheel")
    header = ("card", "engine", "law", "format", "version", "fitted", "tested", "error", "bias")
    print("{:<14}{:<8}{:<10}{:<16}{:<11}{:>6}{:>7}{:>8}{:>8}".format(*header))
    for system in options.systems or SYSTEMS:
        if system not in SYSTEMS:
            sys.exit(f"unknown system {system!r}; one of {', '.join(SYSTEMS)}")
        source = Source(options.folder / system, load_accelerator(SYSTEMS[system]))
        path = shipped_profiles_folder() / "kernels" / f"{source.card.name}.json"
        engines = json.loads(path.read_text("utf-8"))["engines"] if path.is_file() else {}
        for engine in options.engine or ENGINES:
            made = document(source, engine, options.kind or [], engines.get(ENGINES[engine], {}))
            if made is not None:
                engines[ENGINES[engine]] = made
        if options.write:
            path.parent.mkdir(exist_ok=True)
            whole = {"card": source.card.name, "family": source.card.family, "engines": engines}
            path.write_text(_text(whole) + "\n", "utf-8")


if __name__ == "__main__":
    main()
