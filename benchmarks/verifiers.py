"""Cost of the batched verifiers, as multiples of one softmax over the same logits on the same device.

What is compared: the target's logits are the input of both. The softmax writes one float32 distribution per row, as
``torch.softmax(logits, -1)`` does, and, as a second base, into memory that is already there (on a CPU, new memory costs
more than the softmax). The rule goes from logits at temperature 1 to verdicts: distributions, checks, accept or reject,
residual, the last token of each request, and, where it says so, the overlap with q at every drafted position; draft
tokens, q and uniforms are given. All are timed in turn, in one process; the median of each is taken.

    python benchmarks/verifiers.py [--device cuda] [--vocab 128256] [--repeats 9]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplan.harness.verifiers import (
    OutcomeTensors,
    accept_block,
    accept_greedy,
    accept_one_hot,
    accept_sglang_target_only,
    accept_standard,
    accept_tree,
    accept_tree_greedy,
    verify_logits,
)
from specplan.verify.logits import PLAIN

CHAIN_BATCH, KAPPA = 64, 5
TREE_BATCH, TREE_NODES = 8, 64
LIMITS = {
    "standard": 1.5,
    "standard, with overlap": 1.5,
    "tree, chosen siblings": 2.0,
    "tree, siblings drawn from q": 2.0,
}


def complete_tree(nodes: int, branching: int) -> np.ndarray:
    """Parents of a complete tree of `nodes` nodes with `branching` children each, in breadth-first order."""
    return np.array([-1 if j < branching else (j - branching) // branching for j in range(nodes)])


def drawn(q: Tensor, generator: torch.Generator) -> Tensor:
    """One token from each row of q."""
    flat = torch.multinomial(q.reshape(-1, q.shape[-1]), 1, generator=generator)
    return flat.reshape(q.shape[:-1])


def interleaved(calls: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each call, timed in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def chain_rows(device: torch.device, vocab: int, repeats: int) -> list[dict[str, Any]]:
    """Rules for chains."""
    g = torch.Generator(device).manual_seed(0)
    logits = 2.0 * torch.randn(CHAIN_BATCH, KAPPA + 1, vocab, device=device, generator=g)
    q = torch.softmax(logits[:, :-1] + torch.randn(CHAIN_BATCH, KAPPA, vocab, device=device, generator=g), dim=-1)
    draft = drawn(q, g)
    u = torch.rand(CHAIN_BATCH, KAPPA + 1, dtype=torch.float64, device=device, generator=g)
    out = torch.empty_like(logits)
    calls: dict[str, Callable[[], object]] = {
        "softmax": lambda: torch.softmax(logits, dim=-1),
        "in place": lambda: torch.softmax(logits, dim=-1, out=out),
        "standard": lambda: verify_logits(accept_standard, logits, PLAIN, q, draft, u, overlap=False),
        "standard, with overlap": lambda: verify_logits(accept_standard, logits, PLAIN, q, draft, u),
        "block": lambda: verify_logits(accept_block, logits, PLAIN, q, draft, u, overlap=False),
        "one-hot": lambda: verify_logits(accept_one_hot, logits, PLAIN, draft, u),
        "greedy": lambda: accept_greedy(logits, draft),
    }
    return in_softmaxes(interleaved(calls, repeats, device), f"batch {CHAIN_BATCH}, k {KAPPA}")


def tree_rows(branching: int, device: torch.device, vocab: int, repeats: int) -> list[dict[str, Any]]:
    """Rules for complete trees of 64 drafted nodes."""
    g = torch.Generator(device).manual_seed(branching)
    parents = complete_tree(TREE_NODES, branching)
    logits = 2.0 * torch.randn(TREE_BATCH, TREE_NODES + 1, vocab, device=device, generator=g)
    q = torch.softmax(logits + torch.randn(logits.shape, device=device, generator=g), dim=-1)
    draft = drawn(q[:, parents + 1], g)
    u = torch.rand(TREE_BATCH, TREE_NODES + 2, dtype=torch.float64, device=device, generator=g)
    out = torch.empty_like(logits)

    def chosen(p: Tensor, draft: Tensor, u: Tensor, **options: bool) -> OutcomeTensors:
        return accept_tree(p, None, draft, u, parents=parents, **options)

    calls: dict[str, Callable[[], object]] = {
        "softmax": lambda: torch.softmax(logits, dim=-1),
        "in place": lambda: torch.softmax(logits, dim=-1, out=out),
        "tree, chosen siblings": lambda: verify_logits(chosen, logits, PLAIN, draft, u[:, 1:]),
        "tree, siblings drawn from q": lambda: verify_logits(
            accept_tree, logits, PLAIN, q, draft, u[:, 1:], parents=parents
        ),
        "tree, SGLang's target-only": lambda: verify_logits(
            accept_sglang_target_only, logits, PLAIN, draft, u, parents=parents
        ),
        "tree, greedy": lambda: accept_tree_greedy(logits, draft, parents=parents),
    }
    shape = f"batch {TREE_BATCH}, {TREE_NODES} nodes, {branching} per node"
    return in_softmaxes(interleaved(calls, repeats, device), shape)


def in_softmaxes(seconds: dict[str, float], shape: str) -> list[dict[str, Any]]:
    """Rows of a table from the medians of one shape."""
    base, in_place = seconds.pop("softmax"), seconds.pop("in place")
    return [
        {
            "rule": name,
            "shape": shape,
            "softmax_s": base,
            "softmax_in_place_s": in_place,
            "rule_s": s,
            "ratio": s / base,
            "ratio_in_place": s / in_place,
            "limit": LIMITS.get(name),
        }
        for name, s in seconds.items()
    ]


def main() -> None:
    """Print one table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    device = torch.device(args.device)
    rows = chain_rows(device, args.vocab, args.repeats)
    for branching in (1, 4, 8):
        rows += tree_rows(branching, device, args.vocab, args.repeats)
    columns = ("softmax", "in place", "rule", "ratio", "limit", "to in place")
    print(f"{'rule':<28} {'shape':<32}" + "".join(f"{name:>12}" for name in columns))
    for row in rows:
        cells = [f"{1e3 * row[key]:.1f} ms" for key in ("softmax_s", "softmax_in_place_s", "rule_s")]
        cells += [f"{row['ratio']:.2f}", "" if row["limit"] is None else f"{row['limit']:.1f}"]
        cells += [f"{row['ratio_in_place']:.2f}"]
        print(f"{row['rule']:<28} {row['shape']:<32}" + "".join(f"{cell:>12}" for cell in cells))
    document = {
        "benchmark": "verifiers",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "vocab": args.vocab,
        "input": "float32 logits; the rule's time includes its softmax",
        "rows": rows,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
