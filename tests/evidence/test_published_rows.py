"""Measured rows beside predictions: errors of those that were not fitted, sides of 1, bands, and wrong files."""

import json

import numpy as np
import pytest

from specplan.errors import InputError
from specplan.evidence.published_rows import predicted_rows, read_rows, shipped_rows, summaries
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator


@pytest.fixture(scope="module")
def results():
    return predicted_rows(None, load_model, load_accelerator)


def test_tested_speedups_are_near_and_on_the_right_side_of_one(results):
    tested = [r for r in results if r.kind == "speedup" and r.use == "test"]
    errors = np.array([r.error for r in tested])
    assert np.median(np.abs(errors)) < 0.10
    assert np.mean([r.right for r in tested]) >= 0.9
    assert 0.75 <= np.mean([r.inside for r in tested]) <= 0.90
    for engine in ("sglang", "vllm-0.9"):
        assert abs(np.median([r.error for r in tested if r.engine == engine])) < 0.05


def test_deepseek_on_eight_h200_steps_as_measured(results):
    rows = [r for r in results if r.label.startswith("deepseek-r1")]
    assert len(rows) == 4
    assert all(abs(r.error) < 0.15 for r in rows)


def test_rows_that_served_to_fit_are_marked_and_summed_apart(results):
    assert sum(row.get("use") == "fit" for row in shipped_rows()) == 5
    found = {(s.kind, s.engine, s.use): s for s in summaries(results)}
    assert found["speedup", "all", "fit"].count == 5
    assert found["speedup", "all", "test"].holds
    assert all(r.band.low < 1 < r.band.high for r in results)


def test_the_peers_error_stands_beside_ours_on_the_rows_that_it_can_predict(results):
    asked = [r for r in results if r.peer is not None]
    assert 15 <= len(asked) < len(results)
    for r in asked:
        assert r.peer_error == pytest.approx(r.peer / r.published - 1)
        assert 0.2 < r.peer / r.predicted < 5
    found = {(s.kind, s.engine, s.use): s for s in summaries(results)}
    steps = found["plain_step", "all", "test"]
    assert steps.peer_count == sum(r.kind == "plain_step" for r in asked)
    assert steps.peer_error == pytest.approx(np.median([abs(r.peer_error) for r in asked if r.kind == "plain_step"]))
    assert found["speedup", "vllm", "test"].peer_error is None


GOOD = {
    "kind": "plain_step", "source": "mine", "engine": "vllm", "gpu": "h100-sxm", "target": "llama3.1-8b",
    "batch": 1, "context": 100, "step_ms": 7.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kind": "latency"}, "row 1: kind is 'latency', expected one of speedup, plain_step"),
        ({"step_ms": None}, "row 1: step_ms missing"),
        ({"step_ms": -1.0}, "row 1: step_ms is -1.0, expected a number above 0"),
        ({"batch": float("nan")}, "row 1: batch is nan"),
        (
            {"kind": "speedup", "accept_length": 2, "speedup": 1.5, "draft": "eagle"},
            "draft is 'eagle', expected",
        ),
    ],
)
def test_a_wrong_row_is_one_line(tmp_path, change, expected):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [{**GOOD, **change}]}))
    with pytest.raises(InputError, match=expected):
        read_rows(path)


def test_an_unknown_card_or_model_names_the_row(tmp_path):
    path = tmp_path / "rows.json"
    for field, value in (("gpu", "h1000"), ("target", "no-such-model"), ("engine", "tgi"), ("quantization", "fp3")):
        path.write_text(json.dumps({"rows": [{**GOOD, field: value}]}))
        with pytest.raises(InputError, match="B 1 T 100: "):
            predicted_rows(path, load_model, load_accelerator)
