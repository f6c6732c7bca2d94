"""vLLM as runner: its counts per request become the steps that the engine took; what it lacks is refused by name."""

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.engine_speed import EngineSpeed
from specplan.decide.measured import summarise
from specplan.errors import InputError, SpecplanError, UnsupportedError
from specplan.harness.job import MeasureJob, run_job
from specplan.harness.loop import Request
from specplan.harness.measure import Settings
from specplan.harness.sources import read_source
from specplan.harness.vllm_runner import (
    VllmJob,
    engine_source,
    request_records,
    run_vllm,
    verify_steps,
)
from specplan.records.tally import Tally
from specplan.report.measure_report import measure_document

TRACES = Path(__file__).parents[1] / "data" / "vllm_cpu_traces"
NAMES = ("ngram25_k3_t0", "suffix32_t0", "suffix32_b8_t0", "draft26_k3_t0", "ngram25_k3_t1")


def lines_of(name: str) -> list[tuple[dict, Request, list]]:
    """What the engine's process would say of each request of a trace."""
    found = []
    for i, request in enumerate(json.loads((TRACES / f"{name}.json").read_text())["requests"]):
        left = len(request["output_token_ids"])
        given = []
        for step in request["steps"]:
            given.append(min(len(step["gen"]), left))
            left -= given[-1]
        drafted = [step for step in request["steps"] if step["drafts"]]
        row = {
            "id": str(i),
            "tokens": request["output_token_ids"],
            "step_tokens": given,
            "step_s": [0.5] * len(given),
            "drafted": [len(step["drafts"]) for step in drafted],
            "accepted": [len(step["gen"]) - 1 for step in drafted],
        }
        tag = str(request.get("kind", ""))
        found.append((row, Request(id=str(i), prompt=tuple(request["prompt_token_ids"]), tag=tag), request["steps"]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_real_runs_come_back(name: str) -> None:
    for row, request, steps in lines_of(name):
        generated, seconds = request_records(row, request, "source")
        verified = steps[1:]  # the first is the prefill
        assert [r.emitted for r in generated.steps] == [len(s["gen"]) for s in verified]
        # Where a step without a draft and one whose draft was rejected whole stand side by side, their order is not
        # told; every count is.
        assert sorted((r.drafted, r.accepted) for r in generated.steps) == sorted(
            (len(s["drafts"]), len(s["gen"]) - 1) for s in verified
        )
        assert generated.steps[0].context_len == len(request.prompt) + 1
        assert seconds == 0.5 * len(verified)
        assert generated.tokens == tuple(row["tokens"])


@pytest.mark.parametrize("name", NAMES)
def test_totals_are_the_engines_own_counters(name: str) -> None:
    counted = json.loads((TRACES / f"{name}.json").read_text())["metrics"]
    steps = [r for row, request, _ in lines_of(name) for r in request_records(row, request, "s")[0].steps]
    tally = Tally.of_steps(steps)
    assert (tally.drafts, tally.drafted_tokens, tally.accepted_tokens) == (
        counted["drafts"],
        counted["drafted_tokens"],
        counted["accepted_tokens"],
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int]:
    """(drafted, accepted) of each step, and how many tokens of the last step a stop cuts."""
    steps = draw(
        st.lists(st.integers(0, 4).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), min_size=1, max_size=12)
    )
    return steps, draw(st.integers(0, steps[-1][1]))


@settings(max_examples=300, deadline=None)
@given(runs())
def test_no_count_is_lost(run: tuple[list[tuple[int, int]], int]) -> None:
    steps, cut = run
    given_tokens = [a + 1 for _, a in steps]
    given_tokens[-1] -= cut
    drafted = [(d, a) for d, a in steps if d]
    found = verify_steps(given_tokens, [d for d, _ in drafted], [a for _, a in drafted])
    assert len(found) == len(steps)
    assert [(d, a) for d, a, _ in found if d] == drafted
    assert all(e == a + 1 for _, a, e in found)
    assert [e for _, _, e in found[:-1]] == given_tokens[:-1]


def test_a_stop_may_have_cut_the_last_step() -> None:
    assert verify_steps([1, 2], [3], [2]) == [(0, 0, 1), (3, 2, 3)]


@pytest.mark.parametrize(
    ("given_tokens", "drafted", "accepted"), [([3], [], []), ([1], [3, 3], [0, 0]), ([4, 1], [3], [1])]
)
def test_counts_that_do_not_fit_are_refused(given_tokens: list[int], drafted: list[int], accepted: list[int]) -> None:
    with pytest.raises(SpecplanError, match="do not fit together"):
        verify_steps(given_tokens, drafted, accepted)


def config(text: str, rule: str = "standard"):
    return engine_source(read_source(text), lambda source: Path("/models") / (source.model or "self"), rule)


def test_sources_in_vllms_words() -> None:
    found = config("ngram:min=2,max=5,k=3")
    assert found.config == {
        "method": "ngram",
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
        "num_speculative_tokens": 3,
    }
    assert found.environment == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert config("ngram:rule=vllm-v2").environment == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert config("ngram:rule=vllm-ngram-gpu").config["method"] == "ngram_gpu"
    assert config("suffix:factor=2,depth=30").config == {
        "method": "suffix",
        "num_speculative_tokens": 30,
        "suffix_decoding_max_tree_depth": 30,
        "suffix_decoding_max_cached_requests": 10000,
        "suffix_decoding_max_spec_factor": 2.0,
        "suffix_decoding_min_token_prob": 0.1,
    }
    draft = config("draft:model=small,k=5,sample=probabilistic", rule="block").config
    assert draft == {
        "method": "draft_model",
        "model": "/models/small",
        "draft_sample_method": "probabilistic",
        "num_speculative_tokens": 5,
        "rejection_sample_method": "block",
    }
    assert config("none").config is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sglang-ngram:budget=8", "vLLM does not draft in this way"),
        ("ngram:rule=transformers,max=3", "vLLM has no rule 'transformers'"),
        ("suffix:len=2048", "leave len out"),
    ],
)
def test_what_vllm_lacks_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        config(text)


def test_sampling_on_its_cpu_backend_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="issue 55005"):
        VllmJob(
            target="smollm2-135m",
            dtype="float32",
            device="cpu",
            settings=Settings(temperature=1.0),
            stop_ids=frozenset(),
        )


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed")
def test_an_absent_vllm_is_named_with_its_install_line(tmp_path: Path) -> None:
    job = VllmJob(target="x", dtype="float32", device="cpu", settings=Settings(), stop_ids=frozenset())
    with pytest.raises(SpecplanError, match=r"vllm, which is not installed here; run: pip install vllm"):
        run_vllm(job, [], [Request(id="a", prompt=(1,))], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_runner_is_refused() -> None:
    with pytest.raises(InputError, match="--runner trt: one of own, vllm"):
        MeasureJob(target="x", sources=(), prompts=(), runner="trt")


def test_the_document_holds_what_the_engine_did() -> None:
    steps = [
        r for row, request, _ in lines_of("ngram25_k3_t0") for r in request_records(row, request, "ngram")[0].steps
    ]
    speed = EngineSpeed(
        measured=summarise(Tally.of_steps(steps), source="ngram"), tokens_per_s=60.0, plain_tokens_per_s=40.0
    )
    (entry,) = measure_document({}, (), (), {}, 0, (speed,))["sources"]
    assert entry["measured_speedup"] == 1.5
    assert entry["step_over_plain_step"] == entry["tokens_per_step"] / 1.5
    assert "1.50x measured" in entry["sentence"]


@pytest.mark.engine
@pytest.mark.model
@pytest.mark.parametrize("source", ["ngram:min=2,max=5,k=3", "draft:drop=12-15,k=3", "suffix"])
def test_the_engine_and_the_loop_take_the_same_steps(source: str, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    if source == "suffix":
        pytest.importorskip("arctic_inference")

    def measured(runner: str):
        job = MeasureJob(
            target="smollm2-135m",
            sources=(source,),
            prompts=("copy", "open"),
            limit=3,
            max_tokens=32,
            threads=1,
            runner=runner,
        )
        return run_job(job, tmp_path / runner)

    own, engine = measured("own"), measured("vllm")
    outputs = []
    for folder in (own.folder, engine.folder):
        rows = [json.loads(line) for line in (folder / "outputs.jsonl").read_text().splitlines()]
        outputs.append({(r["source"], r["id"]): r["output_token_ids"] for r in rows})
    assert outputs[0] == outputs[1]
    for ours, theirs in zip(own.speeds, engine.engine, strict=True):
        for count in ("steps", "drafts", "drafted_tokens", "accepted_tokens", "accepted_histogram", "emitted_tokens"):
            assert getattr(ours.measured.tally, count) == getattr(theirs.measured.tally, count), count
    assert all(s.tokens_per_s > 0 for s in engine.engine)
