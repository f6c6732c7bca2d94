"""Replays of what a real vLLM 0.32 served: drafts and accepted tokens of every step equal, at batch 1 and 8."""

import json
from pathlib import Path

import numpy as np
import pytest

from specplan.decide.measured import summarise
from specplan.errors import InputError
from specplan.propose.build import proposer_of
from specplan.propose.protocol import Draft
from specplan.propose.spelling import parse_source
from specplan.traces.read import TraceReader
from specplan.traces.run import ReplayPlan, run
from specplan.traces.serve import Slots, drive, steps_of
from specplan.traces.shapes import Fields

TRACES = Path(__file__).parents[1] / "data" / "vllm_cpu_traces"
NGRAM, SUFFIX = "ngram:min=2,max=5,k=3,len=2048", "suffix:k=32,len=2048"
RUNS = [
    ("ngram25_k3_t0", NGRAM, 1),
    ("ngram25_k3_t1", NGRAM, 1),
    ("suffix32_t0", SUFFIX, 1),
    ("suffix32_b8_t0", SUFFIX, 8),
]

# In these traces the first step of a request is its prefill; what follows are verify steps.


def engine(name: str) -> dict:
    return json.loads((TRACES / f"{name}.json").read_text())


def recorded(name: str) -> list:
    return list(TraceReader(fields=Fields(response="emitted_token_ids")).read([TRACES / f"{name}.json"]))


@pytest.mark.parametrize(("name", "spelling", "batch"), RUNS)
def test_every_step_equals_the_engines(name: str, spelling: str, batch: int) -> None:
    want = [
        (i, len(step["drafts"]), len(step["gen"]) - 1)
        for i, request in enumerate(engine(name)["requests"])
        for step in request["steps"][1:]
    ]
    steps = steps_of(parse_source(spelling), recorded(name), concurrency=batch)
    assert list(zip(steps.request.tolist(), steps.drafted.tolist(), steps.accepted.tolist(), strict=True)) == want


@pytest.mark.parametrize(("name", "spelling", "batch"), RUNS)
def test_totals_equal_the_engines_counters(name: str, spelling: str, batch: int) -> None:
    counted = engine(name)["metrics"]
    plan = ReplayPlan(paths=(TRACES / f"{name}.json",), sources=(parse_source(spelling),), concurrency=batch)
    result = run(plan, TraceReader(fields=Fields(response="emitted_token_ids"))).sources[0]
    total = result.total
    assert (total.drafts, total.drafted_tokens, total.accepted_tokens) == (
        counted["drafts"],
        counted["drafted_tokens"],
        counted["accepted_tokens"],
    )
    assert total.steps is not None
    assert total.prefills is not None
    assert total.steps + total.prefills == counted["steps"]
    assert total.emitted_tokens == counted["emitted_tokens"] - total.prefills
    assert total.accepted_at is not None
    assert list(total.accepted_at) == [n for n in counted["accepted_per_position"] if n]
    assert total.length_drafts is not None
    drafted_at = [sum(total.length_drafts[i + 1 :]) for i in range(len(counted["drafted_per_position"]))]
    assert drafted_at == counted["drafted_per_position"]
    for kind, numbers in counted["by_kind"].items():
        tally = result.tags[kind]
        assert (tally.drafts, tally.drafted_tokens, tally.accepted_tokens) == (
            numbers["drafts"],
            numbers["drafted_tokens"],
            numbers["accepted_tokens"],
        )


@pytest.mark.parametrize(("name", "spelling", "batch"), RUNS)
def test_the_drafts_themselves_are_the_engines(name: str, spelling: str, batch: int) -> None:
    class Listening:
        """Hands every call on and keeps the drafts."""

        def __init__(self, inner) -> None:  # type: ignore[no-untyped-def]
            self.inner = inner
            self.drafts: dict[int, list[list[int]]] = {}

        def propose(self, request: int, limit: int) -> Draft:
            draft = self.inner.propose(request, limit)
            self.drafts.setdefault(request, []).append(list(draft.tokens))
            return draft

        def __getattr__(self, call: str):  # type: ignore[no-untyped-def]
            return getattr(self.inner, call)

    document = engine(name)
    proposer, k, max_model_len = proposer_of(parse_source(spelling))
    listening = Listening(proposer)
    order = document.get("step_order")
    drive(listening, recorded(name), k, concurrency=batch, order=order, max_model_len=max_model_len)  # type: ignore[arg-type]
    for i, request in enumerate(document["requests"]):
        assert listening.drafts.get(i, []) == [step["drafts"] for step in request["steps"][1:]]


def test_the_batch_order_is_the_engines() -> None:
    document = engine("suffix32_b8_t0")
    left = [len(request["steps"]) for request in document["requests"]]
    slots = Slots(width=8, waiting=iter(range(len(left))))
    seen, done = [], set()
    while batch := slots.next_step(done):
        seen.append(batch)
        for i in batch:
            left[i] -= 1
        done = {i for i in batch if left[i] == 0}
    assert seen == document["step_order"]


def test_recorded_order_gives_the_engines_numbers() -> None:
    path = TRACES / "suffix32_b8_t0.json"
    plan = ReplayPlan(paths=(path,), sources=(parse_source(SUFFIX),), order="recorded")
    total = run(plan, TraceReader(fields=Fields(response="emitted_token_ids"))).sources[0].total
    assert (total.drafts, total.drafted_tokens, total.accepted_tokens) == (1233, 3103, 1611)


@pytest.mark.parametrize(
    ("spelling", "order", "noted"), [(SUFFIX, "arrival", True), (SUFFIX, "recorded", False), (NGRAM, "arrival", False)]
)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_trace_with_an_order_of_its_own_says_so(
    spelling: str, order: str, noted: bool, indent: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(engine("suffix32_b8_t0"), indent=indent))
    plan = ReplayPlan(paths=(path,), sources=(parse_source(spelling),), order=order)
    assert bool(run(plan, TraceReader()).notes) == noted


def test_a_recorded_order_needs_every_request(tmp_path: Path) -> None:
    document = engine("suffix32_b8_t0")
    document["requests"][3].pop("prompt_token_ids")
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    plan = ReplayPlan(paths=(path,), sources=(parse_source(SUFFIX),), order="recorded")
    with pytest.raises(InputError, match="needs every request"):
        run(plan, TraceReader())


def test_the_engines_own_means_come_out() -> None:
    (name, spelling, _), counted = RUNS[0], engine("ngram25_k3_t0")["metrics"]
    plan = ReplayPlan(paths=(TRACES / f"{name}.json",), sources=(parse_source(spelling),))
    total = run(plan, TraceReader(fields=Fields(response="emitted_token_ids"))).sources[0].total
    measured = summarise(total, source=spelling)
    assert measured.tokens_per_drafted_step == pytest.approx(2.862, abs=5e-4)  # vLLM's mean acceptance length
    assert measured.accepted_per_drafted == pytest.approx(0.621, abs=5e-4)  # vLLM's draft acceptance rate
    assert measured.alpha.value == pytest.approx(0.800, abs=5e-4)
    assert measured.position_rates_conditional == pytest.approx((0.723, 0.835, 0.885), abs=5e-4)
    assert counted["drafts"] / counted["steps"] == pytest.approx(0.345, abs=5e-4)


def test_a_trace_as_it_is_gives_the_engines_counts() -> None:
    """A trace has both: what the user got and what the steps emitted; the engine counted the latter."""
    counted = engine("ngram25_k3_t0")["metrics"]
    plan = ReplayPlan(paths=(TRACES / "ngram25_k3_t0.json",), sources=(parse_source(NGRAM),))
    total = run(plan, TraceReader()).sources[0].total
    assert (total.drafts, total.drafted_tokens, total.accepted_tokens) == tuple(
        counted[key] for key in ("drafts", "drafted_tokens", "accepted_tokens")
    )
    assert list(total.accepted_at or ()) == counted["accepted_per_position"]


def test_without_the_tokens_past_a_stop_only_last_steps_differ() -> None:
    """The user's output ends at the stop; the engine counted accepted tokens behind it as well."""
    source = parse_source(NGRAM)
    emitted = steps_of(source, recorded("ngram25_k3_t0"))
    output = steps_of(
        source, list(TraceReader(fields=Fields(response="output_token_ids")).read([TRACES / "ngram25_k3_t0.json"]))
    )
    last_emitted = np.append(np.diff(emitted.request) != 0, True)
    last_output = np.append(np.diff(output.request) != 0, True)
    assert np.array_equal(emitted.accepted[~last_emitted], output.accepted[~last_output])
    assert output.accepted.sum() <= emitted.accepted.sum()
