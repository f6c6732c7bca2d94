"""Measured servers under a closed load beside their simulation."""

import json
from pathlib import Path

import jsonschema
import pytest

from specplan.cli.app import main
from specplan.errors import InputError
from specplan.evidence.validate_serving import serving_rows
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator

ROW = {
    "source": "mine",
    "engine": "vllm",
    "gpu": "h100-sxm",
    "target": "llama3.1-8b",
    "concurrency": 8,
    "input": 500,
    "output": 100,
    "tpot_ms": 8.0,
}


def rows(path: Path, *found: dict) -> list:
    path.write_text(json.dumps({"rows": list(found)}))
    return list(serving_rows(path, load_model, load_accelerator))


def test_deepseek_under_sglang_is_simulated_as_measured_at_every_load() -> None:
    found = [r for r in serving_rows(None, load_model, load_accelerator) if r.label.startswith("deepseek-r1")]
    assert len(found) == 4
    assert all(r.use == "test" for r in found)
    assert max(abs(r.error) for r in found) < 0.15


def test_tokens_per_second_and_time_per_token_are_one_simulation(tmp_path: Path) -> None:
    alone = {**ROW, "concurrency": 1, "input": 1}
    (by_time,) = rows(tmp_path / "a.json", alone)
    (by_rate,) = rows(tmp_path / "b.json", {k: v for k, v in alone.items() if k != "tpot_ms"} | {"tok_s": 100})
    assert by_rate.simulated == pytest.approx(1e3 / by_time.simulated, rel=0.02)


def test_a_shape_is_the_growth_over_its_first_row(tmp_path: Path) -> None:
    shaped = [{**ROW, "concurrency": c, "tpot_ms": 5.0 * c, "shape_of": "mine"} for c in (1, 4)]
    first, second = rows(tmp_path / "a.json", *shaped)
    assert (first.measured, first.simulated, second.measured) == (1, 1, 4)
    plain = rows(tmp_path / "b.json", *({k: v for k, v in row.items() if k != "shape_of"} for row in shaped))
    assert second.simulated == pytest.approx(plain[1].simulated / plain[0].simulated, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tpot_ms": None}, "tpot_ms and tok_s missing"),
        ({"tok_s": 5}, "one of tpot_ms and tok_s"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"tpot_ms": float("nan")}, "NaN is no number"),
        ({"gpu": "h999"}, "h999"),
        ({"engine": "llama.cpp"}, "the schedulers of vllm and sglang"),
        ({"target": None}, "target missing"),
        ({"spelling": "ngram:alpha=2"}, "alpha"),
    ],
)
def test_a_row_that_cannot_be_is_one_line(tmp_path: Path, change: dict, says: str) -> None:
    path = tmp_path / "rows.json"
    with pytest.raises(InputError) as refused:
        rows(path, {**ROW, **change})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_its_document_keeps_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["validate", "serving", "--json"])
    document = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["schema", "validate"])
    jsonschema.validate(document, json.loads(capsys.readouterr().out))
    assert {s["count"] for s in document["summaries"]} == {4, 6}  # of a shape, all but the first
