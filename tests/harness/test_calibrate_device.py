"""Calibration: a profile from readings, written whole, read back as it was, and dated; other cards are refused."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from specplan.cli.calibrate import calibrate as command
from specplan.errors import InputError
from specplan.harness.calibrate import CalibrateJob, calibrate
from specplan.specs.hardware import dump_accelerator, list_accelerators, load_accelerator
from specplan.timing.calibration import BandwidthReading, DeviceReadings, LaunchReading, MatmulReading, profile_of
from specplan.timing.step_time import machine

torch.set_num_threads(1)
SMALL = CalibrateJob(
    formats=("float32", "bfloat16"), buffer_bytes=1 << 22, inner=128, rows=(1, 8), repeats=2, threads=1
)


def readings(**more) -> DeviceReadings:
    """What an H100 might read."""

    def access(kind: str, rate: float) -> BandwidthReading:
        return BandwidthReading(kind=kind, format="bfloat16", moved_bytes=rate, best_s=1.0, median_s=1.1)

    def matmul(number_format: str, rows: int, rate: float) -> MatmulReading:
        seconds = 2.0 * rows * 8192 * 8192 / rate
        return MatmulReading(
            format=number_format, rows=rows, inner=8192, outer=8192, best_s=seconds, median_s=1.1 * seconds
        )

    return DeviceReadings(
        **{
            "device": "NVIDIA H100 80GB HBM3",
            "torch_version": "2.13.0",
            "date": "2026-11-30",
            "threads": None,
            "vendor": "NVIDIA",
            "family": "hopper",
            "memory_driver_bytes": 81559 * 2.0**20,
            "memory_torch_bytes": 81090 * 2.0**20,
            "bandwidth": (access("read", 3.0e12), access("copy", 2.9e12), access("weights", 2.7e12)),
            "matmul": (matmul("bfloat16", 64, 1.7e14), matmul("bfloat16", 4096, 7.0e14), matmul("float32", 4096, 5e13)),
            "launch": LaunchReading(kernel_s=4e-6, graphed_kernel_s=1.2e-6, layer_s=2.5e-5),
        }
        | more
    )


def assert_same_fields(found, expected) -> None:
    """Numbers to 11 digits: a unit's factor costs the last ones."""
    for field in dataclasses.fields(expected):
        before, after = getattr(expected, field.name), getattr(found, field.name)
        if isinstance(before, float):
            assert after == pytest.approx(before, rel=1e-11), field.name
        elif field.name not in ("flops", "calibration"):
            assert after == before, field.name


@pytest.mark.parametrize("card", list_accelerators(), ids=lambda card: card.name)
def test_every_shipped_profile_is_written_as_it_is_read(card, tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(dump_accelerator(card), encoding="utf-8")
    again = load_accelerator(path)
    assert again.sources == card.sources
    assert (again.calibration is None) == (card.calibration is None)
    assert dict(again.flops) == pytest.approx(dict(card.flops), rel=1e-11)
    assert_same_fields(again, card)
    if card.calibration is not None and card.calibration.card == card.name:
        assert_same_fields(again.calibration, card.calibration)


def test_a_number_without_a_source_is_not_written() -> None:
    card = dataclasses.replace(load_accelerator("h100-sxm"), sources={})
    with pytest.raises(InputError, match="carries no source"):
        dump_accelerator(card)


def test_without_a_datasheet_the_best_readings_are_the_peaks() -> None:
    card = profile_of(readings(), "mine")
    assert card.bandwidth == 3.0e12
    assert dict(card.flops) == {"bfloat16": 7.0e14, "float32": 5e13}
    own = card.calibration
    assert own is not None
    assert (own.card, own.date) == ("mine", "2026-11-30")
    assert (own.bandwidth_fraction, own.matmul_fraction, own.launch_s) == (0.9, 1.0, 2.5e-5)
    assert own.kv_bandwidth_fraction is None  # nothing read a cache, so nothing is claimed
    assert "NVIDIA H100 80GB HBM3, torch 2.13.0, 2026-11-30" in own.source


def test_over_a_datasheet_the_peaks_stay_and_fractions_are_of_them() -> None:
    sheet = load_accelerator("h100-sxm")
    card = profile_of(readings(), "mine", sheet)
    assert (card.bandwidth, card.flops, card.memory_driver_bytes) == (
        sheet.bandwidth,
        sheet.flops,
        sheet.memory_driver_bytes,
    )
    assert card.calibration is not None
    assert card.calibration.bandwidth_fraction == pytest.approx(2.7 / 3.35, rel=1e-3)
    assert card.calibration.matmul_fraction == pytest.approx(700 / 989, rel=1e-3)
    assert machine(card).notes == ("not measured on mine, assumed: kv_bandwidth_fraction",)


def test_another_cards_datasheet_is_refused() -> None:
    with pytest.raises(InputError, match=r"measured 3000 GB/s, a100-sxm-80gb has .*another card"):
        profile_of(readings(), "mine", load_accelerator("a100-sxm-80gb"))


def test_a_device_gives_a_profile_that_reads_back(tmp_path: Path) -> None:
    report = calibrate(SMALL, "mine")
    path = tmp_path / "mine.yaml"
    path.write_text(dump_accelerator(report.profile), encoding="utf-8")
    card = load_accelerator(path)
    assert card.family == "cpu"
    assert set(card.flops) == {"float32", "bfloat16"}
    assert card.bandwidth == pytest.approx(report.profile.bandwidth)
    assert card.calibration is not None
    assert_same_fields(card.calibration, report.profile.calibration)
    kinds = [b.kind for b in report.readings.bandwidth]
    assert kinds == ["read", "copy", "weights", "cache"]
    assert {(m.format, m.rows) for m in report.readings.matmul} == {
        (f, m) for f in ("float32", "bfloat16") for m in (1, 8)
    }
    for b in report.readings.bandwidth:
        assert 0 < b.best_s <= b.median_s
        assert 1e7 < b.rate < 1e13  # between a floppy drive and any memory that exists
    assert report.readings.launch.graphed_kernel_s is None
    assert "1 thread," in card.calibration.source


def test_every_run_moves_what_it_is_counted_for() -> None:
    report = calibrate(SMALL, "mine")
    moved = {b.kind: b.moved_bytes for b in report.readings.bandwidth}
    assert moved == {"read": 1 << 22, "copy": 2 << 22, "weights": 1 << 22, "cache": 1 << 22}


def test_a_models_width_is_taken(tmp_path: Path) -> None:
    args = [a for a in ARGS if a not in ("--inner", "128")]
    done = run("-o", str(tmp_path / "mine.yaml"), "--json", "--model", "smollm2-135m", *args)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["inputs"]["inner"] == 576


ARGS = ["--buffer", "4 MiB", "--inner", "128", "--repeats", "1", "--threads", "1", "--format", "float32"]


def run(*args: str):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(args))


def test_the_command_writes_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = run("-o", str(path), "--json", *ARGS)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["profile"]["name"] == load_accelerator(path).name == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-o", "mine.txt"], "must end in .yaml"),
        (["-o", "no/such/folder/mine.yaml"], "does not exist"),
        (["-o", "mine.yaml", "--device", "abacus"], "expected cpu, cuda"),
        (["-o", "mine.yaml", "--device", "cuda:99"], "torch sees"),
        (["-o", "mine.yaml", "--format", "fp3"], "one of float32"),
        (["-o", "mine.yaml", "--buffer", "7"], "no unit"),
        (["-o", "mine.yaml", "--model", "smollm2-135m", "--inner", "64"], "either --model or --inner"),
        (["-o", "mine.yaml", "--model", "smollm3"], "smollm3"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(args: list[str], said: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args)
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_noise_is_refused_and_what_agrees_says_how_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readings of one thing, the second slower by a share."""
    from specplan.harness import calibrate as module

    for slower, refused in ((1.1, False), (1.3, True)):
        calls: dict[str, int] = {}

        def read(_: CalibrateJob, calls: dict[str, int] = calls, slower: float = slower) -> BandwidthReading:
            calls["n"] = calls.get("n", 0) + 1
            seconds = slower if calls["n"] > 1 else 1.0
            return BandwidthReading(kind="weights", format="float32", moved_bytes=1e9, best_s=seconds, median_s=seconds)

        def multiplied(job: CalibrateJob, number_format: str) -> list[MatmulReading]:
            return [MatmulReading(format=number_format, rows=r, inner=8, outer=8, best_s=1e-3, median_s=1e-3)
                    for r in job.rows]  # fmt: skip

        monkeypatch.setattr(module, "_weights_reading", read)
        monkeypatch.setattr(module, "matmul_readings", multiplied)
        if refused:
            with pytest.raises(InputError, match="bandwidth of weights differs by 23%"):
                calibrate(SMALL, "mine", repeated=True)
        else:
            report = calibrate(SMALL, "mine", repeated=True)
            assert report.readings.apart == pytest.approx(1 - 1 / 1.1)
            assert "a repeat within 9%" in report.profile.calibration.source
    assert calibrate(SMALL, "mine").readings.apart is None


def test_a_processors_copy_is_no_bandwidth_to_read_with() -> None:
    fast = BandwidthReading(kind="copy", format="float32", moved_bytes=9e12, best_s=1.0, median_s=1.0)
    more = (*readings().bandwidth, fast)
    assert profile_of(readings(bandwidth=more, threads=2), "cpu").bandwidth == 3.0e12
    assert profile_of(readings(bandwidth=more), "card").bandwidth == 9.0e12


def test_a_servers_pages_calibrate_in_place_of_the_device(tmp_path: Path) -> None:
    page = tmp_path / "page.txt"
    counts = {"inter_token_latency_seconds_sum": 8.0, "inter_token_latency_seconds_count": 1000,
              "time_to_first_token_seconds_count": 0, "iteration_tokens_total_count": 250}  # fmt: skip
    page.write_text("".join(f'vllm:{name}{{model_name="m"}} {value}\n' for name, value in counts.items()))
    app = typer.Typer()
    app.command()(command)
    out = tmp_path / "steps.json"
    done = CliRunner().invoke(app, ["--from-metrics", str(page), "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["batch"], row["width"], row["seconds"]) == (4.0, 1.0, 0.008)
