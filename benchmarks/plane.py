"""Time the solvers and the plane: a million ties, a million-cell plane with 8 contours and its picture, trees.

Run ``OMP_NUM_THREADS=1 python benchmarks/plane.py``. One table, and a last line of JSON. Times are CPU seconds of this
process, medians; the yardsticks are what one would write with scipy: one vectorised bracketing solver, and a loop of
scalar solvers (on a thousandth of the problem, multiplied).
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq, elementwise

from specplan.decide.plane import plane
from specplan.decide.source import placed
from specplan.formulas.draft_length import best_kappa
from specplan.formulas.emitted import expected_emitted
from specplan.formulas.indifference import free_draft_tie
from specplan.formulas.speedup import speedup
from specplan.formulas.tree import best_tree
from specplan.propose.spelling import read_source
from specplan.report.picture import save
from specplan.report.plane_plot import draw_planes

MILLION = 1_000_000
RNG = np.random.default_rng(0)
ALPHA, COST = RNG.random(MILLION), 0.2 * RNG.random(MILLION)
KAPPA = RNG.integers(1, 16, MILLION)


def seconds(run: Callable[[], Any], repeats: int = 5) -> float:
    """Median CPU seconds of a call."""
    run()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def by_bracketing() -> np.ndarray:
    """The same million ties by scipy's vectorised bracketing solver."""
    s = speedup(ALPHA, 3, COST)
    found = elementwise.find_root(
        lambda a, s: expected_emitted(np.clip(a, 0, 1), 3) - s, (0.0 * s, 1.0 + 0.0 * s), args=(s,)
    )
    return np.where(found.success, found.x, np.nan)


def by_scalar_loop(n: int) -> list[float]:
    """Ties one at a time by Brent's method."""
    out = []
    for a, c in zip(ALPHA[:n], COST[:n], strict=True):
        s = float(speedup(a, 3, c))
        out.append(brentq(lambda x, s=s: 1 + x * (1 + x * (1 + x)) - s, 0, 1, xtol=1e-14) if s >= 1 else np.nan)
    return out


def million_cell_plane(path: Path | None) -> None:
    """A plane of 1000 x 1000 cells with 8 contours, drawn if a path is given."""
    sources = [
        placed(read_source("1b:c=.164664,alpha=.7")),
        placed(read_source("ngram:alpha=.5")),
    ]
    drawn = plane(sources, kappa=3, levels=[0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0], cells=1000)
    if len(drawn.contours) != 8 or drawn.grid.size != MILLION:
        raise RuntimeError("not the plane that was asked for")
    if path is not None:
        save(draw_planes([drawn]), path, "benchmark")


def main() -> None:
    """Measure, print the table, then one line of JSON."""
    rows: dict[str, float] = {}
    rows["1M ties, one kappa"] = seconds(lambda: free_draft_tie(ALPHA, 3, COST))
    rows["1M ties, kappa 1 to 15 mixed"] = seconds(lambda: free_draft_tie(ALPHA, KAPPA, COST), 3)
    rows["1M ties, scipy find_root"] = seconds(by_bracketing, 1)
    rows["1M ties, scipy brentq in a loop"] = seconds(lambda: by_scalar_loop(1000), 3) * 1000
    rows["1M best draft lengths up to 64"] = seconds(lambda: best_kappa(ALPHA, COST, 64), 3)
    a, c = np.linspace(0, 1, 3163), np.linspace(0, 1, 3163)
    rows["10M speedups, axes broadcast"] = seconds(lambda: speedup(a[:, None], 3, c[None, :]), 3)
    full_a, full_c = np.meshgrid(a, c)
    rows["10M speedups, full grids"] = seconds(lambda: speedup(full_a, 3, full_c), 3)
    rows["1M-cell plane, 8 contours"] = seconds(lambda: million_cell_plane(None), 3)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("svg", "png", "pdf"):
            path = Path(folder) / f"plane.{suffix}"
            rows[f"1M-cell plane and picture, {suffix}"] = seconds(lambda path=path: million_cell_plane(path), 3)
    ranks = 0.5 * 0.5 ** np.arange(16)
    rows["best tree of 768 nodes"] = seconds(lambda: best_tree(768, ranks), 3)
    rows["best tree of 768 nodes, depth 18"] = seconds(lambda: best_tree(768, ranks, 18), 3)
    error = float(np.nanmax(np.abs(free_draft_tie(ALPHA[:1000], 3, COST[:1000]) - np.array(by_scalar_loop(1000)))))
    width = max(map(len, rows))
    for name, taken in rows.items():
        print(f"{name:<{width}}  {taken:9.4f} s")
    fast = rows["1M ties, one kappa"]
    ratios = {
        "find_root_over_ours": rows["1M ties, scipy find_root"] / fast,
        "brentq_over_ours": rows["1M ties, scipy brentq in a loop"] / fast,
    }
    print(
        f"scipy over ours: find_root {ratios['find_root_over_ours']:.0f}x, "
        f"brentq {ratios['brentq_over_ours']:.0f}x; largest difference {error:.1e}"
    )
    print(json.dumps({"seconds": rows, "ratios": ratios, "largest_difference": error}))


if __name__ == "__main__":
    main()
