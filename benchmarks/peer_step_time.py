"""Passes of AISimulate's kernel sums beside ours: the same model, card, ranks, batch and context, host time aside.

    VENV/bin/python benchmarks/peer_step_time.py ask OUT.jsonl      # in a virtual environment that holds aisimulate
    python benchmarks/peer_step_time.py compare OUT.jsonl           # in specplan's own
    VENV/bin/python benchmarks/peer_step_time.py rows ROWS.json     # gives rows of validate the field "peer"

``ask`` writes one line per point as it goes and continues a file that exists; configs come from this repository's test
data. ``compare`` prints median and signed errors by kind and card, and one JSON document as its last line.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

SYSTEMS: Final = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "a100_sxm": "a100-sxm-80gb",
    "l40s": "l40s",
    "b200_sxm": "b200",
    "gb200": "gb200",
}
MODELS: Final = {
    "llama3-8b": ("meta-llama/Meta-Llama-3-8B", (1,)),
    "llama3-70b": ("meta-llama/Llama-3-70B", (4, 8)),
    "llama3.2-1b": ("meta-llama/Llama-3.2-1B", (1,)),
    "qwen3-0.6b": ("Qwen/Qwen3-0.6B", (1,)),
    "qwen3-4b": ("Qwen/Qwen3-4B", (1,)),
    "qwen3-14b": ("Qwen/Qwen3-14B", (1,)),
    "qwen3-32b": ("Qwen/Qwen3-32B", (2,)),
    "qwen3-30b-a3b": (None, (1, 4)),
    "mixtral-8x7b": ("mistralai/Mixtral-8x7B-v0.1", (2,)),
    "qwen3-235b-a22b": ("Qwen/Qwen3-235B-A22B-FP8", (8,)),
    "gpt-oss-120b": (None, (1,)),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", (8,)),
    "kimi-k2": ("moonshotai/Kimi-K2-Instruct", (8,)),
}
FP8: Final = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
STORED: Final = {"deepseek-v3": FP8, "kimi-k2": FP8}
"""Formats in which checkpoints are published, where the configuration at hand leaves them out."""
ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
CONTEXTS: Final = (1024, 8192)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
DATA: Final = Path(__file__).resolve().parent.parent / "tests" / "data"


def config(name: str) -> dict[str, Any]:
    """Hugging Face configuration of a model, with the fields that the peer asks for."""
    label, _ = MODELS[name]
    if label is None:
        found = json.loads((DATA / "published_configs.json").read_text("utf-8"))["models"][name]["config"]
    else:
        found = json.loads((DATA / "model_configs.json").read_text("utf-8"))[label]
    made = dict(found)
    if name in STORED:
        made.setdefault("quantization_config", STORED[name])
    made.setdefault("architectures", [ARCHITECTURES.get(made["model_type"])])
    made.setdefault("num_key_value_heads", made["num_attention_heads"])
    made.setdefault("max_position_embeddings", 32768)
    if made["model_type"] == "llama":
        made.setdefault("head_dim", made["hidden_size"] // made["num_attention_heads"])
    return made


def ask(out: Path, folder: Path) -> None:
    """Ask the peer for every point that `out` lacks."""
    import functools
    import logging

    from aisimulate.legacy_cli import api
    from aisimulate_core.sdk import perf_database

    logging.disable(logging.CRITICAL)
    # It reads all of its YAML files again for every point.
    perf_database.get_supported_databases = functools.cache(perf_database.get_supported_databases)
    done = {tuple(json.loads(line)["key"]) for line in out.read_text("utf-8").splitlines()} if out.is_file() else set()
    with out.open("a", encoding="utf-8") as file:
        for system in SYSTEMS:
            for name, (_, ranks) in MODELS.items():
                path = folder / name
                path.mkdir(parents=True, exist_ok=True)
                (path / "config.json").write_text(json.dumps(config(name)), "utf-8")
                for tp, isl, batch in ((t, c, b) for t in ranks for c in CONTEXTS for b in BATCHES):
                    key = (system, "vllm", name, tp, isl, batch)
                    if key in done:
                        continue
                    routed = {"moe_tp_size": tp, "moe_ep_size": 1} if "expert" in json.dumps(config(name)) else {}
                    try:
                        asked = {"mode": "static_gen", "backend_name": "vllm", "isl": isl, "osl": 2}
                        answer = api.cli_estimate(str(path), system, tp_size=tp, batch_size=batch, **asked, **routed)
                        parts = answer.summary.get_generation_latency_dict()
                        row = {"key": key, "ms": answer.tpot, "kv": answer.raw["kvcache"], "parts": parts}
                    except Exception as error:  # the peer raises whatever its tables lack
                        row = {"key": key, "error": str(error)[:200]}
                    file.write(json.dumps(row) + "\n")
                    file.flush()


ROW_SYSTEMS: Final = {"h100-sxm": "h100_sxm", "h200": "h200_sxm", "rtx-pro-6000": "rtx_pro_6000_server"}


def row_config(name: str) -> dict[str, Any]:
    """Configuration of a target of `specplan validate rows`."""
    if name == "deepseek-r1":
        return config("deepseek-v3")
    if name in MODELS:
        return config(name)
    made = dict(json.loads((DATA / "published_configs.json").read_text("utf-8"))["models"][name]["config"])
    made.setdefault("architectures", [ARCHITECTURES.get(made["model_type"])])
    return made


def speculation(row: dict[str, Any], target: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A row's drafts in the peer's words; heads are a layer of the target, for it knows no trained ones."""
    draft = row["draft"]
    more: dict[str, Any] = {"method": "ngram"}
    if draft["method"] in ("eagle", "eagle3"):
        head = {**target, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        if "moe_intermediate_size" in head:
            head = {k: v for k, v in head.items() if "expert" not in k and "moe" not in k}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(head), "utf-8")
        more = {"method": "eagle3", "draft_model_path": str(folder)}
    elif not draft["method"].startswith("ngram"):
        raise ValueError(f"{draft['method']} is not asked for")
    return {**more, "params": {"num_speculative_tokens": draft["k"]}, "accepted_tokens": row["accept_length"] - 1}


def ask_rows(path: Path, folder: Path) -> None:
    """Write what the peer predicts for each row that it can into the file of rows: ms of a step, or a speedup."""
    from aisimulate.legacy_cli import api

    document = json.loads(path.read_text("utf-8"))
    for row in document["rows"]:
        row.pop("peer", None)
        try:
            target = row_config(row["target"])
            model = folder / row["target"]
            model.mkdir(parents=True, exist_ok=True)
            (model / "config.json").write_text(json.dumps(target), "utf-8")
            tp = row.get("tp") or 1
            asked = {"backend_name": row["engine"], "isl": row["context"], "osl": 2, "batch_size": row["batch"]}
            asked |= {"mode": "static_gen", "tp_size": tp}
            if "expert" in json.dumps(target):
                asked |= {"moe_tp_size": tp, "moe_ep_size": 1}
            system = ROW_SYSTEMS[row["gpu"]]
            plain = api.cli_estimate(str(model), system, **asked).tpot
            if row["kind"] == "plain_step":
                row["peer"] = round(plain, 4)
            else:
                drafts = speculation(row, target, folder / f"{row['target']}-head")
                row["peer"] = round(plain / api.cli_estimate(str(model), system, speculative=drafts, **asked).tpot, 4)
        except Exception as error:  # the peer raises whatever its tables lack
            print(f"{row['target']} on {row['gpu']}: {str(error)[:120]}", file=sys.stderr)
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def kind_of(model: Any) -> str:
    """Which limit of error holds: dense, or mixtures of experts and latent attention."""
    from specplan.formulas.parameters import is_routed
    from specplan.values.model import LatentAttention

    latent = any(isinstance(layer.mixer, LatentAttention) for layer in model.layers)
    return "MLA" if latent else "MoE" if is_routed(model) else "dense"


def compare(out: Path) -> None:
    """Our passes against the peer's."""
    from dataclasses import replace

    import numpy as np

    from specplan.formulas.step import pass_shape
    from specplan.specs.catalog import load_model
    from specplan.specs.hardware import load_accelerator
    from specplan.timing.step_time import machine, pass_time
    from specplan.values.formats import lookup

    errors: dict[tuple[str, str], list[float]] = {}
    shapes: dict[tuple[str, int, str], Any] = {}
    for line in out.read_text("utf-8").splitlines():
        row = json.loads(line)
        if "ms" not in row:
            continue
        system, _, name, tp, isl, batch = row["key"]
        cached = row["kv"]
        if (name, tp, cached) not in shapes:
            model = load_model(name)
            if not config(name).get("quantization_config"):
                model = replace(model, quantization=None)
            shapes[name, tp, cached] = kind_of(model), pass_shape(model, tp, lookup(cached))
        kind, shape = shapes[name, tp, cached]
        on = machine(load_accelerator(SYSTEMS[system]), "vllm", tp)
        # Latent models' sums hold the two reductions of a layer twice: once around the experts, once by themselves.
        once = row["ms"] - (row["parts"].get("generation_tp_allreduce", 0.0) if kind == "MLA" else 0.0)
        ours = float(pass_time(on, shape, batch, 1, isl).total_s) * 1e3
        for group in ((kind, "all"), (kind, SYSTEMS[system]), (f"{kind}: {name}", SYSTEMS[system])):
            errors.setdefault(group, []).append(ours / once - 1)
    print(f"{'passes':<26}{'card':<16}{'n':>5}{'median':>9}{'bias':>9}{'p90':>9}")
    document = {}
    for (kind, card), found in sorted(errors.items()):
        e = np.array(found)
        median, bias, p90 = float(np.median(abs(e))), float(np.median(e)), float(np.quantile(abs(e), 0.9))
        print(f"{kind:<26}{card:<16}{e.size:>5}{median:>9.1%}{bias:>+9.1%}{p90:>9.1%}")
        document[f"{kind}, {card}"] = {"n": e.size, "median": median, "bias": bias, "p90": p90}
    print(json.dumps(document))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask", path, *folder]:
            ask(Path(path), Path(folder[0]) if folder else Path(path).parent / "models")
        case ["rows", path]:
            ask_rows(Path(path), Path(path).resolve().parent / "peer_models")
        case ["compare", path]:
            compare(Path(path))
        case _:
            sys.exit(__doc__)
