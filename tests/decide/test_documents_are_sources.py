"""What a document measured is what its reader decides with: speedup, c, v, coverage, draft lengths."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.documents import measured_source, shortest_measured, sources_of
from specplan.decide.measured import summarise
from specplan.decide.measured_speed import MeasuredSpeed, PassTimes, measured_speed, plane_source
from specplan.decide.plane import plane
from specplan.decide.source import emitted, placed, source_speedup
from specplan.propose.spelling import restated
from specplan.records.step import StepRecord
from specplan.records.tally import Tally
from specplan.report.json_document import render
from specplan.report.measure_report import measure_document
from specplan.report.measured_document import envelope, measured_entry
from specplan.report.plane_report import plane_document

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=40)
NAMES = st.sampled_from(["ngram:min=2,max=5,k=5,rule=vllm-v1", "suffix", "draft:drop=12-15,k=5,sample=greedy"])


def tally(pairs: list[tuple[int, int]]) -> Tally:
    rows = [
        StepRecord(
            request=str(i % 3),
            step=i // 3,
            source="s",
            context_len=10,
            drafted=d,
            accepted=min(a, d),
            emitted=min(a, d) + 1,
            draft_s=0.002,
            verify_s=0.02 + 0.001 * d,
            host_s=0.001,
        )
        for i, (d, a) in enumerate(pairs)
    ]
    return Tally.of_steps(rows)


def speed_of(pairs: list[tuple[int, int]], name: str, tag: str = "") -> MeasuredSpeed:
    passes = PassTimes(
        widths=(1, 2, 4, 6), target_s=(0.02, 0.021, 0.025, 0.03), draft_s=0.01 if "draft" in name else None
    )
    measured = summarise(tally(pairs), source=name, tag=tag)
    return measured_speed(measured, kappa=5, passes=passes, plain_tokens_per_s=45.0, plain_host_s=0.001)


@settings(deadline=None)
@given(PAIRS, NAMES, st.sampled_from(["", "copy"]))
def test_a_measured_document_is_the_source_that_measure_draws(pairs: list, name: str, tag: str) -> None:
    speed = speed_of(pairs, name, tag)
    document = json.loads(render(measure_document({}, [speed], [], {1: 0.02}, 10)))
    (read,) = sources_of(document, "summary.json")
    own, again = plane_source(speed), placed(read)
    assert read == own.source
    assert again == own
    assert (again.c_origin, again.verify_origin, read.alpha_origin) == ("measured",) * 3
    assert float(source_speedup(again)) == float(source_speedup(own))


@settings(deadline=None)
@given(PAIRS, NAMES)
def test_a_replayed_document_keeps_what_was_counted(pairs: list, name: str) -> None:
    counts = tally(pairs)
    document = json.loads(render(envelope("replay", {}, [measured_entry(summarise(counts, source=name))])))
    if not counts.drafts:
        return
    (read,) = sources_of(document, "replay.json")
    assert read == measured_source(summarise(counts, source=name))
    assert read.coverage.best == counts.drafts / counts.steps
    assert read.mean_length == pytest.approx(counts.drafted_tokens / counts.drafts)
    # cut to any length, the source emits what the same drafts cut to that length emit
    for k in range(1, len(read.hazard) + 1):
        tokens = sum(1 + min(a, d, k) for d, a in pairs)
        assert float(emitted(replace(read, emitted=None), k)) == pytest.approx(tokens / len(pairs))
    assert float(source_speedup(placed(read, c=0.0))) == pytest.approx(counts.emitted_tokens / counts.steps)


def test_the_plane_of_a_document_is_measures_own_figure_for_figure() -> None:
    speeds = [
        speed_of([(5, 3), (5, 5), (0, 0), (5, 1)], "ngram:min=2,max=5,k=5,rule=vllm-v1", "copy"),
        speed_of([(5, 3), (5, 2), (5, 0), (5, 1)], "draft:drop=12-15,k=5,sample=greedy", "copy"),
    ]
    own = [plane_source(s) for s in speeds]
    read = [placed(s) for s in sources_of(json.loads(render(measure_document({}, speeds, [], {1: 0.02}, 10))), "x")]
    kappa = shortest_measured([p.source for p in own])
    assert kappa == 5
    ours, measures = (render(plane_document([plane(p, kappa=kappa)], with_grid=True)) for p in (read, own))
    assert ours == measures


def test_what_bench_timed_is_a_source_whose_acceptance_is_free() -> None:
    rows = [
        {"batch": b, "width": w, "context": 128, "v": 1 + (w - 1) * b / 100, "c": 0.1 if w == 1 else None}
        for b in (1, 8)
        for w in (1, 2, 5)
    ]
    document = {"command": "bench", "target": {"name": "big", "rows": rows}, "draft": {"name": "small", "rows": []}}
    one, eight = sources_of(document, "bench.json")
    assert (one.title, eight.batch, one.has_acceptance) == ("small (batch 1, context 128)", 8, False)
    at = placed(restated(eight, "alpha=.7,k=3"))
    assert (at.c, at.c_origin, at.verify, at.verify_origin) == (0.1, "measured", pytest.approx(1.24), "measured")
    assert float(source_speedup(at)) == pytest.approx(2.533 / (1.24 + 3 * 0.1))
    assert at.source.alpha_origin == "assumed"
