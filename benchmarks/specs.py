"""Time of importing configs, loading specs, and reading the headers of a checkpoint of 200 shards.

    python benchmarks/specs.py

Prints a table, then one line of JSON. Beside each import stands the time that the standard library takes to parse it.
"""

import json
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specplan.formulas.parameters import resident_params, streamed_params
from specplan.specs.catalog import list_models, load_model
from specplan.specs.huggingface.config import read_config
from specplan.specs.model_yaml import load_model_yaml
from specplan.specs.safetensors import header_bytes, read_checkpoint

ROOT = Path(__file__).parents[1]


def best(run: Callable[[], Any], times: int) -> float:
    """Shortest of `times` runs, seconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def shards(folder: Path, n_shards: int, per_shard: int) -> int:
    """Write `n_shards` files of headers and empty data, and their index; returns the number of tensors."""
    weight_map = {}
    for shard in range(n_shards):
        name = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors"
        tensors = {
            f"model.layers.{shard}.mlp.experts.{i}.up_proj.weight": ("BF16", (2048, 7168)) for i in range(per_shard)
        }
        header = header_bytes(tensors)
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + per_shard * 2048 * 7168 * 2)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return len(weight_map)


def main() -> None:
    """Measure and print."""
    configs = json.loads((ROOT / "tests" / "data" / "published_configs.json").read_text())["models"]
    rows: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in ("llama3-8b", "deepseek-v3", "qwen3.6-27b", "deepseek-v4-pro"):
            path = folder / f"{model}.json"
            path.write_text(json.dumps(configs[model]["config"]))

            def count(path: Path = path) -> float:
                found = read_config(path).model
                return resident_params(found) + streamed_params(found)

            count()
            rows[f"import and count {model}"] = best(count, 20)
            rows[f"  json.loads {model}"] = best(lambda path=path: json.loads(path.read_text()), 20)
        spec = next(entry.path for entry in list_models() if entry.name == "llama3-70b")
        rows["load a spec from YAML"] = best(lambda: load_model_yaml(spec), 20)
        rows["find a spec by alias"] = best(lambda: load_model("meta-llama/Llama-3.2-1B"), 20)
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        n = shards(checkpoint, 200, 450)
        rows[f"headers of 200 shards, {n} tensors"] = best(lambda: read_checkpoint(checkpoint), 3)
    width = max(map(len, rows))
    for label, seconds in rows.items():
        print(f"{label:<{width}}  {seconds * 1e3:10.3f} ms")
    print(json.dumps({"schema_version": 1, "benchmark": "specs", "seconds": rows}))


if __name__ == "__main__":
    main()
