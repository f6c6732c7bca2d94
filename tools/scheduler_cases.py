"""Compare recorded runs of vLLM's scheduler with ours, step by step.

    python tools/scheduler_cases.py FILE...

Each file is a list of cases as `tools/record_scheduler.py` writes them (``.gz`` works). Prints how many are equal and
the first difference of each that is not; exit code 1 if there is one.
"""

import gzip
import json
import sys
from pathlib import Path

from specplan.errors import SpecplanError
from specplan.queueing.cases import first_difference


def main(paths: list[str]) -> int:
    """Compare all cases of all files."""
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    unequal = 0
    for path in map(Path, paths):
        try:
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            cases = json.loads(raw)
        except (OSError, ValueError) as error:
            print(f"scheduler_cases: {path}: {error}", file=sys.stderr)
            return 2
        differing = 0
        for case in cases:
            try:
                found = first_difference(case)
            except SpecplanError as error:
                found = error
            if found is not None:
                differing += 1
                print(f"{path.name} {case.get('id')}: {found}")
        steps = sum(len(case.get("steps", ())) for case in cases)
        print(f"{path.name}: {len(cases) - differing} equal, {differing} unequal, {steps} steps")
        unequal += differing
    return int(unequal > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
