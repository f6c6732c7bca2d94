"""Bench: times stand beside floors, c and v from shapes; memory is the predicted one; tables are read back."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from specplan.cli.bench import bench as command
from specplan.errors import InputError, UnsupportedError
from specplan.harness.bench import BenchJob, bench
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.bench_result import (
    BenchedModel,
    PassReading,
    bench_rows,
    benched_model,
    cache_bytes,
    floor_s,
    ridge_of,
    weight_bytes,
)
from specplan.timing.measured_steps import load_measured_table
from specplan.values.formats import lookup
from specplan.values.model import Attention, DenseMLP, Layer, Model

pytestmark = pytest.mark.tail

torch.set_num_threads(1)
H100 = load_accelerator("h100-sxm")


def small(name: str = "small", layers: int = 3, **more) -> Model:
    block = Layer(mixer=Attention(heads=8, kv_heads=4, head_dim=16), feed_forward=DenseMLP(width=192))
    return Model(
        **{
            "name": name,
            "source": "a test",
            "hidden_size": 128,
            "vocab_size": 512,
            "tied_embeddings": False,
            "layers": (block,) * layers,
            "max_position": 512,
            "weight_format": lookup("bfloat16"),
        }
        | more
    )


JOB = BenchJob(dtype="float32", batches=(1, 2), widths=(2, 4), contexts=(0, 32), repeats=2, threads=1)


@pytest.fixture(scope="module")
def report():
    return bench(small(), JOB, draft=small("half", layers=1), accelerator=load_accelerator("cpu"))


def test_every_shape_is_timed_and_width_1_always(report) -> None:
    shapes = [(p.batch, p.width, p.context_len) for p in report.target.passes]
    assert sorted(shapes) == sorted((b, w, t) for b in (1, 2) for w in (1, 2, 4) for t in (0, 32))
    assert len(set(shapes)) == len(shapes)
    assert all(p.seconds > 0 and p.spread >= 0 for p in report.target.passes)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_memory_is_the_predicted_one(tp: int, tied: bool) -> None:
    job = dataclasses.replace(JOB, tp=tp, batches=(3,), widths=(1,), contexts=(40,), repeats=1)
    found = bench(small(tied_embeddings=tied), job, accelerator=H100).target
    weights, cache = found.memory
    assert cache.measured_bytes == cache.predicted_bytes == cache_bytes(found.model, 3, 41, tp)
    # Norms and biases are whole on each rank on both sides, so that the prediction is exact.
    assert weights.measured_bytes == weights.predicted_bytes == weight_bytes(found.model, tp)


def test_figures_follow_from_readings(report) -> None:
    for row in report.rows:
        p = row.reading
        plain = report.target.seconds(p.batch, 1, p.context_len)
        other = report.draft.seconds(p.batch, p.width, p.context_len)
        assert row.v == p.seconds / plain
        assert row.c == other / p.seconds
        assert row.floor_fraction == row.floor_s / p.seconds
        assert row.v_derived >= 1


def test_a_floor_is_bytes_over_bandwidth() -> None:
    model = benched_model(load_model("llama3-70b"), lookup("bfloat16"))
    assert floor_s(model, 4, H100, 1, 1, 0) == pytest.approx(34.750857216e9 / 3350e9)  # the chapter's 10.37 ms
    longer = floor_s(model, 4, H100, 8, 1, 1000) - floor_s(model, 4, H100, 1, 1, 0)
    assert longer == pytest.approx(8 * 1000 * 327680 / 4 / 3350e9)
    assert ridge_of(model, H100) == pytest.approx(295.2, abs=0.1)


def test_a_calibrated_pass_is_at_the_cards_own_rates_alone() -> None:
    one = (PassReading(batch=2, width=1, context_len=100, seconds=1.0, spread=0.0),)
    wide = (PassReading(batch=2, width=4, context_len=100, seconds=1.0, spread=0.0),)
    model = benched_model(load_model("llama3.1-8b"), lookup("bfloat16"))
    benched = BenchedModel(model=model, layers_of_model=32, tp=1, passes=one + wide, memory=())
    plain, wider = bench_rows(benched, H100)
    own = H100.calibration
    weights, cache = 15_009_316_864.0, 2 * 100 * 131072.0
    expected = (
        weights / 3350e9 / own.bandwidth_fraction + cache / 3350e9 / own.kv_bandwidth_fraction + 32 * own.launch_s
    )
    assert plain.calibrated_s == pytest.approx(expected)
    assert wider.calibrated_s is None
    borrowed = load_accelerator("h200")  # its calibration is the H100's
    assert bench_rows(benched, borrowed)[0].calibrated_s is None


def test_derived_v_rises_past_the_ridge_alone() -> None:
    model = benched_model(load_model("llama3.1-8b"), lookup("bfloat16"))
    widths = (1, 8, 25)
    passes = tuple(
        PassReading(batch=b, width=w, context_len=0, seconds=1.0, spread=0.0) for b in (1, 64) for w in widths
    )
    benched = BenchedModel(model=model, layers_of_model=32, tp=1, passes=passes, memory=())
    v = {(r.reading.batch, r.reading.width): r.v_derived for r in bench_rows(benched, H100)}
    assert v[1, 25] < 1.02  # 25 positions lie below the ridge of 295
    assert v[64, 25] > 4.5  # 1600 lie far above: about 1600/295


def test_derived_c_is_the_ratio_of_streamed_bytes_for_one_position() -> None:
    one = (PassReading(batch=1, width=1, context_len=0, seconds=1.0, spread=0.0),)
    models = [benched_model(load_model(n), lookup("bfloat16")) for n in ("llama3-8b", "llama3.2-1b")]
    target, draft = (BenchedModel(model=m, layers_of_model=len(m.layers), tp=1, passes=one, memory=()) for m in models)
    (row,) = bench_rows(target, H100, draft)
    assert row.c_derived == pytest.approx(0.164664, rel=2e-3)  # the chapter's c; activations are counted here too


def test_a_quantised_spec_is_run_in_one_format() -> None:
    model = benched_model(load_model("gpt-oss-20b"), lookup("float32"), 1)
    assert (model.quantization, model.formats, len(model.layers)) == (None, (), 1)
    with pytest.raises(UnsupportedError, match="equal layers of attention and a dense MLP"):
        bench(load_model("gpt-oss-20b"), dataclasses.replace(JOB, layers=1), accelerator=H100)


def test_time_runs_out_before_a_shape_not_within() -> None:
    found = bench(small(), dataclasses.replace(JOB, seconds=1e9), accelerator=H100).target
    assert not found.skipped
    with pytest.raises(InputError, match=r"nothing was timed .*batch 1, context 0: out of time"):
        bench(small(), dataclasses.replace(JOB, seconds=0.0), accelerator=H100)


def run(*args: str):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(args))


ARGS = ["--dtype", "float32", "-b", "1", "--width", "1,2", "--context", "16", "--layers", "1", "--repeats", "1",
        "--threads", "1", "--gpu", "cpu"]  # fmt: skip


def test_the_tables_are_what_the_measured_layer_reads(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    done = run("smollm2-360m", "--draft", "smollm2-135m", "-o", str(path), "--json", *ARGS)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["steps.json", "steps.smollm2-135m.json"]
    table = load_measured_table(path)
    assert table.source.endswith("(2 rows, batch 1, width 1 to 2)")
    written = json.loads(path.read_text())
    assert (written["model"], written["layers"], written["layers_of_model"]) == ("smollm2-360m", 1, 32)
    assert [r["seconds"] for r in written["rows"]] == [r["seconds"] for r in document["target"]["rows"]]
    assert document["target"]["rows"][0]["c"] is not None


def test_a_truncated_run_says_so() -> None:
    done = run("smollm2-135m", *ARGS)
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())  # lines break where the terminal ends
    assert "1 of 30 layers were run" in text
    assert "ridge is at" in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["smollm2-135m", "--dtype", "int4"], "one of float32, bfloat16, float16"),
        (["smollm2-135m", "--width", "0"], "at least 1"),
        (["smollm2-135m", "--layers", "31"], "has 30"),
        (["smollm2-135m", "--tp", "7"], "7 ranks do not divide"),
        (["llama3.1-405b", "--context", "16"], "raise --tp or give --layers"),
        (["smollm2-135m", "--draft", "smollm2-135m"], "is the target itself"),
        (["smollm2-135m", "-o", "no/such/folder.json"], "does not exist"),
    ],
)
def test_what_cannot_be_timed_is_said_in_one_line(args: list[str], said: str) -> None:
    done = run(*args, *(["--gpu", "cpu"] if "--gpu" not in args else []))
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
