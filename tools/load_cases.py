"""Simulate recorded loads of a real server with the server's own step times, and compare.

    python tools/load_cases.py FILE...

Each file is a document with ``runs``: requests' times and the engine's log of every step (``.gz`` works). Prints recorded and simulated figures of
each run; exit code 1 if one lies outside its bound.
"""

import gzip
import json
import sys
from pathlib import Path

from specplan.errors import SpecplanError
from specplan.evidence.server_load import BOUNDS, agreements


def main(paths: list[str]) -> int:
    """Compare all runs of all files."""
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    outside = 0
    for path in map(Path, paths):
        try:
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            found = agreements(json.loads(raw))
        except (OSError, ValueError, SpecplanError) as error:
            print(f"load_cases: {path}: {error}", file=sys.stderr)
            return 2
        for run in found:
            parts = [
                f"{name} {run.figures[name][0]:.4g} / {run.figures[name][1]:.4g} ({run.error(name):+.1%})"
                for name in BOUNDS
            ]
            verdict = "agrees" if run.agrees else "OUTSIDE"
            print(f"{run.name}: {verdict}; {'; '.join(parts)}; batches differ by {run.batch_distance:.1%}")
            outside += not run.agrees
    return int(outside > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
