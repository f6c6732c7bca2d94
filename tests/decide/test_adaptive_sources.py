"""Adaptive verification as a source: between its bounds, better at load, refused where it cannot be, and configured."""

import json
from pathlib import Path

import numpy as np
import pytest

import specplan
from specplan.api.sources import load_sources
from specplan.decide.compare import compare
from specplan.decide.pricing import Pair, Setting, adaptive_curve, priced
from specplan.decide.schedule import schedule
from specplan.decide.source import placed
from specplan.errors import InputError
from specplan.propose.spelling import read_source
from specplan.records.files import StepWriter
from specplan.records.step import StepRecord
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator

TARGET, CARD = load_model("llama3-8b"), load_accelerator("h100-sxm")


def ratios(spelling: str, batches: list[int]) -> list[float]:
    report = compare(TARGET, CARD, [read_source(spelling)], batches=batches)
    return [c.ratio for c in report.cells if c.source != "none"]


def test_adaptive_lies_between_no_and_full_knowledge_and_gains_with_load() -> None:
    loads = [1, 32, 192]
    base = "mine:c=.01,alpha=.7,k=7"
    fixed, none, some, perfect = (
        ratios(base + more, loads) for more in ("", ",adaptive=0", ",adaptive", ",adaptive=1")
    )
    assert all(n <= s * 1.005 and s <= p * 1.005 for n, s, p in zip(none, some, perfect, strict=True))
    gains = [s / f for s, f in zip(some, fixed, strict=True)]
    assert gains == sorted(gains)
    assert gains[0] < 1.0 < gains[-1]  # deciding costs, and where positions are free there is nothing to gain


def test_steps_without_a_draft_are_not_verified() -> None:
    full, half = (ratios(f"mine:c=.01,alpha=.7,k=7,coverage={g},adaptive", [64])[0] for g in (1, 0.5))
    assert 1.0 < half < full


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("mine:c=.01,emitted=2.3,k=5,adaptive", "acceptance by position"),
        ("mine:c=.01,alpha=.7,k=5,nodes=8,adaptive", "cuts chains"),
        ("mine:c=.01,alpha=.7,k=5,adaptive=1.5", "adaptive"),
        ("mine:c=.01,alpha=.8/.7,k=2,verify=1.2,adaptive", "leave out verify"),
    ],
)
def test_what_cannot_be_adapted_is_refused(spelling: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ratios(spelling, [4])


def test_only_vllms_dspark_is_told_to_adapt() -> None:
    with_head = schedule(TARGET, CARD, read_source("dspark:c=.01,alpha=.8,k=7,adaptive"), engine="vllm")
    assert json.loads(json.dumps(with_head.configuration.settings))["enable_adaptive_verification"] is True
    other = schedule(TARGET, CARD, read_source("eagle3:alpha=.8,adaptive,k=3"), engine="vllm")
    assert "enable_adaptive_verification" not in other.configuration.settings
    assert any("dspark alone" in w for w in other.warnings)


def test_a_plane_has_no_place_for_a_rule_that_decides_per_step() -> None:
    pair = Pair(target=TARGET, accelerator=CARD, layer="modelled")
    source = placed(read_source("mine:c=.01,alpha=.7,k=7,adaptive"), kappa=7, c=0.01)
    with pytest.raises(InputError, match="compare, schedule and plane over batch"):
        priced(source, Setting(pair=pair), batch=4, context_len=2048)


@pytest.mark.parametrize("kind", ["batch", "context"])
def test_the_plane_draws_adaptive_as_compare_prices_it(kind: str) -> None:
    texts = ["llama3.2-1b:alpha=.7,k=7,adaptive", "llama3.2-1b:alpha=.7,k=7", "ngram:alpha=.6,k=5,adaptive"]
    drawn = specplan.plane("llama3-8b", sources=texts, kind=kind, batch=16, x_max=64 if kind == "batch" else "8k").sweep
    assert drawn is not None
    labels = [c.source.label for c in drawn.curves]
    assert labels == ["llama3.2-1b k=7 adaptive → llama3-8b", "llama3.2-1b k=7 → llama3-8b", "ngram adaptive"]
    for at in (0, drawn.x.size - 1):
        load = {"batch": [int(drawn.x[at])]} if kind == "batch" else {"batch": [16], "context_len": int(drawn.x[at])}
        cells = specplan.compare("llama3-8b", sources=texts, **load).cells
        for text, curve in zip(texts, drawn.curves, strict=True):
            (cell,) = (c for c in cells if c.source == text)
            assert curve.speedup[at] == pytest.approx(cell.speedup, rel=1e-9)


@pytest.mark.parametrize(("target", "kind"), [("llama3-8b", "plane"), ("llama3-8b", "coverage"), ((), "batch")])
def test_adaptive_is_refused_where_no_steps_are_priced(target: str, kind: str) -> None:
    with pytest.raises(InputError, match="adaptive verification"):
        specplan.plane(target, sources="mine:c=.1,alpha=.7,k=4,adaptive", kind=kind, ridge=None if target else 295.0)


def recorded(folder: Path, *, told: bool) -> Path:
    """Steps of a draft model whose confidences are right on average: half of all fates at 0.95, half at 0.25."""
    rng = np.random.default_rng(8)
    path = folder / f"steps-{told}.jsonl"
    with StepWriter(path, {}) as writer:
        for request in range(40):
            for step in range(30):
                confidence = rng.choice([0.95, 0.25], 4)
                accepted = int(np.cumprod(rng.random(4) < confidence).sum())
                row = StepRecord(
                    request=f"r{request}",
                    step=step,
                    source="1b",
                    context_len=9,
                    drafted=4,
                    accepted=accepted,
                    emitted=accepted + 1,
                    confidence=tuple(confidence.tolist()) if told else None,
                )
                writer.write([row])
            writer.finish("1b", f"r{request}")
    return path


def test_recorded_confidences_say_what_adaptive_knows(tmp_path: Path) -> None:
    """Of a coin of mean 0.6, confidences of 0.95 and 0.25 explain 1 - E[c(1-c)] / 0.24."""
    (source,) = load_sources([str(recorded(tmp_path, told=True))], models=False)
    expected = 1 - (0.95 * 0.05 + 0.25 * 0.75) / 2 / 0.24
    assert source.confidence == pytest.approx(expected, abs=0.05)
    told, plain = (
        specplan.compare("llama3-8b", sources=f"{recorded(tmp_path, told=told)}:1b:c=.05,adaptive", batch=256).cells[1]
        for told in (True, False)
    )
    assert told.speedup > plain.speedup * 1.01  # the default knows less
    stated = specplan.compare(
        "llama3-8b", sources=f"{recorded(tmp_path, told=False)}:1b:c=.05,adaptive={source.confidence}", batch=256
    ).cells[1]
    assert told.speedup == pytest.approx(stated.speedup, rel=1e-9)


@pytest.mark.parametrize(
    ("confidence", "needed"),
    [([0.5], "one confidence"), ([0.5, 1.5, 0.1], r"\[0, 1\]"), ([0.5, "x", 0.1], "list of numbers"), (0.5, "list")],
    ids=str,
)
def test_confidences_that_cannot_be_are_one_line(tmp_path: Path, confidence: object, needed: str) -> None:
    row = {"request": "a", "step": 0, "source": "s", "context_len": 9, "drafted": 3, "accepted": 1, "emitted": 2}
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(row | {"confidence": confidence}) + "\n")
    with pytest.raises(InputError, match=needed):
        load_sources([str(path)], models=False)


def test_a_batch_beyond_all_that_is_drawn_takes_proportionate_time() -> None:
    pair = Pair(target=TARGET, accelerator=CARD, layer="modelled")
    for text in ("mine:c=.05,alpha=.7,k=4,adaptive", "ngram:alpha=.6,k=4,adaptive"):
        source, loads = placed(read_source(text), kappa=4), np.array([4096, 10**9])
        speedup, _, _ = adaptive_curve(
            source, Setting(pair=pair), batch=loads, context_len=np.full(2, 64), kappa=np.full(2, 4)
        )
        assert speedup[1] == pytest.approx(speedup[0], rel=0.05)
