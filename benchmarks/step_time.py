"""A sweep of 100,000 configurations (batch x context x draft length x source x ranks), timed.

Prints one table and, as its last line, one JSON document. Times are of this machine; the sweep is also given as a
ratio to importing numpy, which any Python program of this kind pays.
"""

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np

from specplan.decide.step_source import loads, on_engine, step_time
from specplan.propose.spelling import read_source
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.step_time import machine

BATCHES = np.arange(1, 126)
CONTEXTS = np.linspace(512, 65536, 10).astype(int)
KAPPAS = np.arange(1, 11)
RANKS = (2, 8)
LIMIT_S = 0.2
SOURCES = (
    "ngram:coverage=.4,alpha=.8",
    "suffix:coverage=.7,alpha=.6,drafted=2.5",
    "llama3.2-1b:alpha=.7",
    "eagle:alpha=.7",
)


def sweep() -> tuple[int, float]:
    """Configurations swept and the best speedup found over a plain step, so that nothing is left out as unused."""
    target, draft, card = load_model("llama3-70b"), load_model("llama3.2-1b"), load_accelerator("h100-sxm")
    count, best = 0, 0.0
    for tp in RANKS:
        on = machine(card, "vllm", tp)
        for text in SOURCES:
            source = read_source(text)
            source = on_engine(replace(source, model=draft) if source.kind == "model" else source, target, "vllm")
            of = loads(target, source, tp)
            batch, context, kappa = BATCHES[:, None, None], CONTEXTS[None, :, None], KAPPAS[None, None, :]
            drafted = step_time(on, source, of, batch, context, kappa)
            plain = step_time(on, source, of, batch, context, 0)
            gain = plain.step_s / drafted.per_token_s
            count += gain.size
            best = max(best, float(gain.max()))
    return count, best


def main() -> None:
    """Time the sweep three times and numpy's import once; keep the fastest sweep."""
    sweep()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        count, best = sweep()
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    numpy_s = time.perf_counter() - start
    fastest = min(seconds)
    print(f"{'configurations':>16} {'seconds':>9} {'us each':>9} {'of importing numpy':>19} {'best speedup':>13}")
    print(f"{count:>16,} {fastest:>9.3f} {fastest / count * 1e6:>9.3f} {fastest / numpy_s:>19.2f} {best:>13.2f}")
    result = {
        "configurations": count,
        "seconds": fastest,
        "numpy_import_s": numpy_s,
        "limit_s": LIMIT_S,
        "within_limit": fastest < LIMIT_S,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
