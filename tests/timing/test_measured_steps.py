"""Measured step times are smoothed by the best law that rises, and say how far they reach."""

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import nnls

from specplan.cli.app import main
from specplan.timing.measured_steps import measured_table


def test_the_smoothing_is_the_best_with_no_coefficient_below_zero() -> None:
    rng = np.random.default_rng(14)
    for _ in range(200):
        n = int(rng.integers(1, 9))
        b, w, t = rng.integers(1, 65, n), rng.integers(1, 9, n), rng.integers(0, 4, n) * 1000
        seconds = rng.lognormal(-4, 1, n)
        found = measured_table(list(zip(b, w, t, seconds, strict=True)), "drawn")
        features = np.stack([np.ones(n), b * w, b, b * t], axis=1) / seconds[:, None]
        scale = np.maximum(features.max(axis=0), 1e-300)
        _, least = nnls(features / scale, np.ones(n))
        assert np.linalg.norm(found.time_s(b, w, t) / seconds - 1) == pytest.approx(least, abs=1e-6)


def test_what_lies_beyond_the_rows_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "steps.json"
    rows = [
        f'{{"batch": {b}, "width": {w}, "context": 2048, "seconds": {0.01 + b * w * 1e-4}}}'
        for b in (1, 8)
        for w in (1, 4)
    ]
    table.write_text(f'{{"whole_steps": true, "rows": [{", ".join(rows)}]}}')
    at = ["llama3-8b", "-s", "ngram:alpha=.8", "--layer", "measured", "--measured", f"llama3-8b={table}"]
    said = "were not measured at"
    for options, expected in (
        (["--max-batch", "8", "--max-k", "3"], None),
        (["--max-batch", "8", "--max-k", "6"], "width 7 (up to 4)"),
        (["--max-batch", "16", "--max-k", "3"], "batch 16 (up to 8)"),
        (["--max-batch", "8", "--max-k", "3", "--context", "4096"], "context 4,096 (up to 2,048)"),
    ):
        with pytest.raises(SystemExit):
            main(["schedule", *at, *options])
        printed = " ".join(capsys.readouterr().out.split())
        assert (expected or said) in printed if expected else said not in printed
    with pytest.raises(SystemExit):
        main(["compare", *at, "-b", "16", "-k", "3"])
    assert "batch 16 (up to 8)" in " ".join(capsys.readouterr().out.split())
