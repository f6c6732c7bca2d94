"""Speed of `simulate` and `capacity`: request-steps per second, a million requests, a search, and a peer.

    python benchmarks/simulate.py [--requests 1000000] [--peer AISIMULATE] [--skip-capacity]

The peer is AISimulate's command in a virtual environment of its own; it replays the same closed load (20,000 requests
of 1,024 and 128 tokens, 64 at a time, Llama-3-8B on an H100), and what 64 requests take it is counted as its start. The
last line is one JSON document. Times of loops and ratios are processor time, so that a busy machine does not count; of
commands, wall time is printed beside it.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from specplan.queueing.compiled import IS_COMPILED
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Requests
from specplan.queueing.stream import UNIT_STEPS, serve

LOAD = ["llama3-8b", "--input", "1024", "--output", "128", "--concurrency", "64", "-n", "20000"]
SEARCH = [
    "llama3.1-8b", "--gpu", "h100-sxm,h200,l40s", "--tp", "1,2,4,8", "--rate", "50", "--input", "1500", "--output",
    "300", "--ttft", "p95=500ms", "--tpot", "p95=30ms", "-s", "none", "-s", "ngram:alpha=.6,coverage=.5,k=3", "-s",
    "llama3.2-1b:alpha=.7,k=3", "--jobs", "2",
]  # fmt: skip


def closed(n: int) -> Requests:
    """`n` requests of 1,024 and 128 tokens, 64 at a time."""
    arrival = np.full(n, np.nan)
    arrival[:64] = 0
    return Requests(arrival=arrival, prompt=np.full(n, 1024), output=np.full(n, 128), closed=64)


def loop_speed(n: int, prefix: bool) -> tuple[float, float]:
    """Request-steps per second of processor time, and the seconds of the run."""
    rules = EngineRules(num_blocks=30_000, max_num_seqs=256, prefix_caching=prefix)
    serve(closed(64), rules, UNIT_STEPS)
    start = time.process_time()
    served = serve(closed(n), rules, UNIT_STEPS)
    seconds = time.process_time() - start
    return served.counts["request_steps"] / seconds, seconds


def child(args: list[str], folder: str | None = None) -> tuple[float, float, str]:
    """Wall time and processor time of a command that ends with 0 or 1, and what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(args, capture_output=True, text=True, check=False, cwd=folder)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def command(*args: str) -> tuple[float, float]:
    """Wall and processor time of a command of specplan, the second of two runs."""
    for _ in range(2):
        wall, used, _ = child([sys.executable, "-m", "specplan", *args])
    return wall, used


def peer(program: str, requests: int) -> tuple[float, float]:
    """Wall and processor time of AISimulate's replay of the same load."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
            "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
            "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "hidden_act": "silu",
        }))  # fmt: skip
        config = Path(folder) / "load.yaml"
        config.write_text(
            "traffic:\n  source: {type: synthetic, input_tokens: 1024, output_tokens: 128}\n"
            f"  load: {{type: concurrency, concurrency: 64}}\n  stop: {{requests: {requests}}}\n"
            f"engine: {{model: {model}, hardware: h100_sxm, backend: vllm, workers: {{aggregated: {{}}}}}}\n"
        )
        wall, used, printed = child([program, "predict", "-c", str(config), "--format", "json"], folder)
        if json.loads(printed[printed.index("{") :])["completed_requests"] != requests:
            raise SystemExit(f"the peer did not complete {requests} requests")
        return wall, used


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--peer", help="path of the aisimulate command")
    parser.add_argument("--skip-capacity", action="store_true")
    args = parser.parse_args()
    found: dict[str, object] = {"compiled": IS_COMPILED}
    for name, prefix in (("without", False), ("with prefix caching", True)):
        rate, loop = loop_speed(20_000, prefix)
        found[f"request_steps_per_s {name}"] = rate
        print(f"{rate / 1e6:8.1f} million request-steps/s, {name}")
    rate, seconds = loop_speed(args.requests, True)
    found["million_s"] = seconds
    print(f"{seconds:8.1f} s for {args.requests:,} requests of 128 tokens at concurrency 64 ({rate / 1e6:.1f} M/s)")
    wall, whole = command("simulate", *LOAD)
    found |= {"command_s": wall, "command_cpu_s": whole}
    print(f"{wall:8.2f} s for `specplan simulate` of 20,000 requests, start-up included ({whole:.2f} s of processor)")
    if not args.skip_capacity:
        wall, used = command("capacity", *SEARCH)
        found |= {"capacity_s": wall, "capacity_cpu_s": used}
        print(f"{wall:8.1f} s for `specplan capacity` over 3 cards x 4 TP x 3 sources, two processes ({used:.1f} s)")
    if args.peer:
        start = peer(args.peer, 64)[1]
        wall, used = peer(args.peer, 20_000)
        found |= {"peer_command_s": wall, "peer_command_cpu_s": used, "peer_start_cpu_s": start}
        found |= {"command_ratio": used / whole, "replay_ratio": (used - start) / loop}
        print(f"{wall:8.2f} s for the peer's command ({used:.2f} s of processor): {used / whole:.1f} times ours")
        print(
            f"{used - start:8.2f} s of it beyond its start: {(used - start) / loop:.1f} times our loop of {loop:.2f} s"
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
