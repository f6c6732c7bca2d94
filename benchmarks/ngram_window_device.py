"""The data-parallel n-gram form on a device: equal to brute force, no synchronisation, time per step.

Run where the accelerator is: ``PYTHONPATH=tests/oracles python
benchmarks/ngram_window_device.py [--device cuda] [--compile]``. On a CUDA device
the step runs with synchronisation forbidden and is then captured and replayed as one graph. Prints one table and a last
line of JSON.
"""

import argparse
import json
import time

import ngram_oracle
import numpy as np
import torch

from specplan.harness.ngram_window import NgramWindow
from specplan.propose.ngram import vllm_ngram_gpu, vllm_v2


def check(device, step_of):
    """Rows compared with brute force; raises on the first that differs."""
    rng = np.random.default_rng(1)
    rows = 0
    for latest in (False, True):
        step = step_of(NgramWindow(min_n=2, max_n=5, k=4, latest=latest, fill=latest))
        for _ in range(20):
            lengths = rng.integers(0, 200, 16)
            tokens = rng.integers(0, int(rng.integers(2, 12)), (16, 200))
            drafts, _ = step(torch.from_numpy(tokens).to(device), torch.from_numpy(lengths).to(device))
            rule = vllm_v2(2, 5) if latest else vllm_ngram_gpu(2, 5)
            for context, length, draft in zip(tokens.tolist(), lengths.tolist(), drafts.tolist(), strict=True):
                expected = list(ngram_oracle.draft(context[:length], 4, rule).tokens)
                if draft != expected + [-1] * (4 - len(expected)):
                    raise SystemExit(f"differs from brute force: {context[:length]} gives {draft}, not {expected}")
                rows += 1
    return rows


def median_s(run, device, repeats):
    """Median seconds of a call, the device's work included."""
    seconds = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[2:]))


def captured(step, *arguments):
    """The step as one replayable graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(*arguments)
    return graph.replay


def main():
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="compile the step into one region")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.set_num_threads(1)

    def step_of(window):
        return torch.compile(window.__call__, fullgraph=True) if args.compile else window.__call__

    rows = check(device, step_of)
    print(f"{rows} rows equal brute force on {device}")
    step = step_of(NgramWindow(min_n=2, max_n=5, k=3))
    table = []
    print(f"{'batch':>6} {'context':>8} {'eager us':>10} {'graph us':>10}")
    for batch, context in ((1, 2048), (8, 8192), (64, 8192), (64, 32768), (256, 32768)):
        if device.type == "cpu" and batch * context > 1 << 20:
            continue
        tokens = torch.randint(0, 50_000, (batch, context), device=device, dtype=torch.int32)
        lengths = torch.full((batch,), context, device=device)
        step(tokens, lengths)
        graph_s = None
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            step(tokens, lengths)
            torch.cuda.set_sync_debug_mode("default")
            graph_s = median_s(captured(step, tokens, lengths), device, args.repeats)
        eager_s = median_s(lambda t=tokens, n=lengths: step(t, n), device, args.repeats)
        table.append({"batch": batch, "context_len": context, "eager_s": eager_s, "graph_s": graph_s})
        graph = "-" if graph_s is None else f"{graph_s * 1e6:.1f}"
        print(f"{batch:>6} {context:>8} {eager_s * 1e6:>10.1f} {graph:>10}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(json.dumps({"device": name, "torch": torch.__version__, "rows_checked": rows, "rows": table}))


if __name__ == "__main__":
    main()
