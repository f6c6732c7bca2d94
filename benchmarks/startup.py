"""Start-up time of the command line as ratios to the bare imports that it cannot avoid, medians of interleaved runs.

    python benchmarks/startup.py

Limits: ``specplan --help`` within 3 times ``import typer``; ``specplan cost`` within 2.5 times the import of numpy,
pydantic, typer and rich. The last line is JSON.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

PYTHON = sys.executable
SPECPLAN = str(Path(PYTHON).with_name("specplan"))  # the installed command, as users run it
COST = ["cost", "llama3-70b", "--draft", "llama3.2-1b", "--tp", "4", "--alpha", "0.7"]
PROGRAMS = {
    "import typer": [PYTHON, "-c", "import typer"],
    "specplan --help": [SPECPLAN, "--help"],
    "import numpy, pydantic, typer, rich": [PYTHON, "-c", "import numpy, pydantic, typer, rich"],
    "specplan cost": [SPECPLAN, *COST],
}
RATIOS = {
    "help": ("specplan --help", "import typer", 3.0),
    "cost": ("specplan cost", "import numpy, pydantic, typer, rich", 2.5),
}


def measure(rounds: int = 15) -> dict[str, float]:
    """Median wall seconds of each program; one warm-up, then rounds that interleave the programs."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for i in range(rounds + 1):
        for name, argv in PROGRAMS.items():
            start = time.perf_counter()
            subprocess.run(argv, capture_output=True, check=True)
            if i:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> None:
    """Print the table and the JSON line."""
    seconds = measure()
    for name, median in seconds.items():
        print(f"{name:<38} {median * 1e3:8.1f} ms")
    result = {}
    for name, (ours, base, limit) in RATIOS.items():
        ratio = seconds[ours] / seconds[base]
        result[name] = {"ratio": round(ratio, 3), "limit": limit, "ok": ratio <= limit}
        print(f"{ours} / {base}: {ratio:.2f} (limit {limit:g})")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
