"""Traces of a real engine, step by step: its counters follow from what each step drafted and emitted."""

import json
from pathlib import Path

import pytest

from specplan.decide.measured import summarise
from specplan.errors import InputError
from specplan.telemetry.read import read_origin

TRACES = Path(__file__).parents[1] / "data" / "vllm_cpu_traces"


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json")), ids=lambda p: p.stem)
def test_steps_add_up_to_the_engines_counters(path: Path) -> None:
    document = json.loads(path.read_text())
    counted = document["metrics"]
    (seen,) = read_origin(str(path))
    tally = seen.tally
    assert tally is not None
    assert (tally.drafts, tally.drafted_tokens, tally.accepted_tokens) == tuple(
        counted[key] for key in ("drafts", "drafted_tokens", "accepted_tokens")
    )
    assert (tally.steps or 0) + (tally.prefills or 0) == counted["steps"]
    assert (tally.emitted_tokens or 0) + (tally.prefills or 0) == counted["emitted_tokens"]
    assert list(tally.accepted_at or ()) == counted["accepted_per_position"]
    assert seen.source == document["speculative_config"]["method"]
    assert {row.tag for row in seen.steps} == {"copy", "open"}


def test_alpha_of_a_draft_model_by_position() -> None:
    (seen,) = read_origin(str(TRACES / "draft26_k3_t0.json"))
    m = summarise(seen.tally, source=seen.source)
    assert m.position_rates_conditional == pytest.approx((0.68, 0.71, 0.77), abs=0.006)
    assert m.alpha.value == pytest.approx(0.711, abs=5e-4)
    assert m.alpha.basis == "requests"
    assert m.tokens_per_drafted_step == pytest.approx(2.542, abs=5e-4)


PREFILL = {"drafts": [], "gen": [5]}


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([PREFILL, {"drafts": [1, 2], "gen": [2, 3]}], "request 0, step 1"),
        ([PREFILL, {"drafts": [], "gen": [2, 3]}], "expected accepted tokens and one more"),
        ([{"drafts": [5], "gen": [5, 6]}], "no draft in the first step"),
        ([PREFILL, {"drafts": [1], "gen": "x"}], "gen must be a list"),
        ([PREFILL, {"drafts": [-1], "gen": [1]}], "drafts must be a list"),
        ([PREFILL, 7], "step 1 is not a JSON object"),
    ],
)
def test_steps_that_no_engine_ran_are_refused(steps: list, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"requests": [{"prompt_token_ids": [1], "steps": steps}]}))
    with pytest.raises(InputError, match=says):
        read_origin(str(path))
