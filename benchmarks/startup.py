"""Start-up of the command line as ratios to the bare imports that it cannot avoid: processor time, interleaved runs.

Each program runs as an installed one does, its bytecode cached; the least time of each counts, which a busy machine
moves least.

    python benchmarks/startup.py

Limits: ``specplan --help`` within 3 times ``import typer``; ``specplan cost`` within 2.5 times the import of numpy,
pydantic, typer and rich. The last line is JSON.
"""

import json
import os
import resource
import subprocess
import sys
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
    """Least processor seconds of each program; one warm-up, then rounds that interleave the programs."""
    installed = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for i in range(rounds + 1):
        for name, argv in PROGRAMS.items():
            start = _children()
            subprocess.run(argv, capture_output=True, check=True, env=installed)
            if i:
                times[name].append(_children() - start)
    return {name: min(t) for name, t in times.items()}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the table and the JSON line."""
    seconds = measure()
    for name, least in seconds.items():
        print(f"{name:<38} {least * 1e3:8.1f} ms")
    result = {}
    for name, (ours, base, limit) in RATIOS.items():
        ratio = seconds[ours] / seconds[base]
        result[name] = {"ratio": round(ratio, 3), "limit": limit, "ok": ratio <= limit}
        print(f"{ours} / {base}: {ratio:.2f} (limit {limit:g})")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
