import json

import numpy as np
import pytest

from specplan.decide.source import emitted
from specplan.errors import InputError
from specplan.queueing.acceptance import drafting_of, recorded_drafting
from specplan.queueing.arrivals import Load, read_lengths
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Requests
from specplan.queueing.outcome import read_target
from specplan.queueing.stream import UNIT_STEPS, serve
from specplan.queueing.trace import read_trace
from specplan.records.step import StepRecord
from specplan.values.source import Range, Source

SOURCES = [
    Source(name="a", kind="ngram", alpha=Range.at(0.7), coverage=Range.at(0.4)),
    Source(name="b", kind="ngram", hazard=(0.3, 0.8, 0.9, 0.9)),
    Source(name="c", kind="ngram", hit=0.2, continuation=0.9, coverage=Range.at(0.8)),
    Source(name="d", kind="suffix", alpha=Range.at(0.6), drafted=2.5),
    Source(name="e", kind="model", emitted=Range.at(2.4), kappa=4),
    Source(
        name="f", kind="suffix", hazard=(0.4, 0.7, 0.8, 0.9), lengths=(0.25, 0.25, 0.2, 0.3), coverage=Range.at(0.7)
    ),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_drawn_steps_emit_what_the_source_emits(source):
    draws = drafting_of(source, 4, 10, seed=2)
    drafted, accepted = draws.drafted.values, draws.accepted.values
    assert (accepted <= drafted).all()
    assert 1 + accepted.mean() == pytest.approx(float(emitted(source, 4)), rel=3e-3)
    assert (drafted > 0).mean() == pytest.approx(source.coverage.best, abs=1e-3)


def test_recorded_steps_are_replayed_in_order():
    rows = [(0, 0), (3, 2), (0, 0), (3, 3)]
    steps = [
        StepRecord(request="r", step=i, source="s", context_len=5, drafted=d, accepted=a, emitted=1 + a)
        for i, (d, a) in enumerate(rows)
    ]
    drafting, kappa = recorded_drafting(steps, 1)
    load = Requests(arrival=np.zeros(1), prompt=np.array([5]), output=np.array([9]))
    served = serve(load, EngineRules(num_blocks=9, method="ngram", kappa=kappa), UNIT_STEPS, drafting, log=True)
    assert served.steps[:, 9].tolist() == [1, 3, 1, 4]


FORMS = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [46, 47, 48]}\n'
    '{"timestamp": 27482, "input_length": 1030, "output_length": 6, "hash_ids": [46, 47, 99]}\n',
    "plain.jsonl": '{"arrival_s": 1.5, "prompt_tokens": 3, "output_tokens": 4}\n',
}


def test_public_forms_are_known_by_their_columns(tmp_path):
    found = {}
    for name, text in FORMS.items():
        (tmp_path / name).write_text(text)
        found[name] = read_trace(tmp_path / name)
    assert [t.form for t in found.values()] == ["Azure", "BurstGPT", "Mooncake", "plain"]
    assert found["azure.csv"].requests.arrival.tolist() == pytest.approx([0, 4.314579], abs=1e-5)
    assert found["burst.csv"].requests.output.tolist() == [18, 230]
    mooncake = found["mooncake.jsonl"].requests
    assert mooncake.arrival.tolist() == [0, 27.482]
    assert mooncake.shared.values.tolist() == [0, 1, 0, 1]
    served = serve(mooncake, EngineRules(num_blocks=1000), UNIT_STEPS)
    assert served.counts["hits"] == 1024


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.jsonl", "", "holds no request"),
        ("head.csv", "arrival_s,prompt_tokens,output_tokens\n", "holds no request"),
        ("columns.csv", "when,what\n1,2\n", "unknown columns when, what"),
        ("unsorted.csv", "arrival_s,prompt_tokens,output_tokens\n5,1,1\n2,1,1\n", "request 2: arrives at '2'"),
        ("long.csv", "arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,5000,1\n", "request 2: 5000 prompt"),
        ("none.csv", "arrival_s,prompt_tokens,output_tokens\n0,10,0\n", "request 1: 10 prompt and 0 output"),
        ("nan.csv", "arrival_s,prompt_tokens,output_tokens\nnan,10,1\n", "request 1: arrives at 'nan'"),
        ("part.csv", "arrival_s,prompt_tokens,output_tokens\n0,1.5,1\n", "not a whole number"),
        ("torn.jsonl", '{"arrival_s": 1', "line 1: not JSON"),
        ("x.txt", "1", "ends in .jsonl"),
    ],
)
def test_a_trace_that_is_not_understood_stops_the_reading(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=says):
        read_trace(tmp_path / name, most=4096)


def test_refused_requests_are_left_out_only_when_asked_and_counted(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,5000,1\n2,10,1\n")
    found = read_trace(path, most=4096, leave_out=True)
    assert (len(found.requests), found.left_out) == (2, 1)


def test_parquet_and_csv_give_one_load(tmp_path):
    import pyarrow as pa
    from pyarrow.parquet import write_table

    rows = {"arrival_s": [0.0, 1.0], "prompt_tokens": [5, 6], "output_tokens": [7, 8]}
    write_table(pa.table(rows), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({k: v[i] for k, v in rows.items()}) + "\n" for i in range(2)))
    one, other = (read_trace(tmp_path / f"t.{kind}").requests for kind in ("parquet", "jsonl"))
    assert one.prompt.tolist() == other.prompt.tolist()
    assert one.arrival.tolist() == other.arrival.tolist()


def test_gamma_gaps_have_the_rate_and_the_burstiness():
    for burstiness in (0.25, 1.0, 4.0):
        load = Load(rate=8.0, burstiness=burstiness, input=read_lengths("9", ""), output=read_lengths("9", ""),
                    requests=40_000)  # fmt: skip
        gaps = np.diff(load.draw(1, 100).arrival)
        assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
        assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.06)


def test_lognormal_lengths_have_their_percentiles(tmp_path):
    drawn = read_lengths("p50=800,p95=4000", "").draw(100_000, np.random.default_rng(0), 10**6)
    assert np.quantile(drawn, [0.5, 0.95]) == pytest.approx([800, 4000], rel=0.03)
    path = tmp_path / "h.csv"
    path.write_text("tokens,count\n100,3\n200,1\n")
    assert read_lengths(str(path), "--input").mean == 125


@pytest.mark.parametrize("text", ["0", "p50=800", "p50=9,p95=3", "x", "p50=nan,p95=3", "missing.csv"])
def test_lengths_that_make_no_sense_are_one_line(text):
    with pytest.raises(InputError, match=r"--input|missing\.csv|whole number"):
        read_lengths(text, "--input")


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_finite_and_above_0(rate):
    with pytest.raises(InputError, match="--rate"):
        Load(rate=rate, input=read_lengths("9", ""), output=read_lengths("9", ""))


@pytest.mark.parametrize("text", ["500", "p95=500", "p97=5ms", "p95=0ms", "p95=fast"])
def test_a_target_needs_a_unit_and_a_known_statistic(text):
    with pytest.raises(InputError, match="--ttft"):
        read_target(text, "ttft")


def test_a_request_that_can_never_fit_is_named():
    load = Requests(arrival=np.zeros(2), prompt=np.array([10, 900]), output=np.array([5, 5]))
    with pytest.raises(InputError, match="request 2: 900 prompt and 5 output tokens need 57 blocks"):
        serve(load, EngineRules(num_blocks=50), UNIT_STEPS)
    with pytest.raises(InputError, match=r"request 2: 900 prompt.*exceed the model's length of 512"):
        serve(load, EngineRules(num_blocks=500, max_model_len=512), UNIT_STEPS)


def test_a_load_is_given_once():
    with pytest.raises(InputError, match="one of --rate, --concurrency and --trace"):
        Load(rate=1.0, concurrency=2, input=read_lengths("9", ""), output=read_lengths("9", ""))
