"""The one command for a card: every section gives figures on the CPU, and a failing one does not lose the others."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytestmark = pytest.mark.tail

torch.set_num_threads(1)
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def document(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("gpu") / "check.json"
    assert script.main(["--device", "cpu", "--small", "-o", str(path)]) == 0
    return json.loads(path.read_text())


def test_every_section_gives_figures(document: dict) -> None:
    sections = document["sections"]
    assert list(sections) == ["device", "passes", "alpha", "ngram", "verifiers"]
    assert not any(found.get("failed") or found.get("skipped") for found in sections.values())
    assert {key for key, value in document["environment"].items() if value is None} <= {"driver", "capability", "cuda"}
    assert sections["device"]["bandwidth_bytes_per_s"] > 0
    assert all(row["ratio"] > 0 for row in sections["verifiers"]["rows"])


def test_passes_carry_floor_v_c_and_memory(document: dict) -> None:
    target, draft = document["sections"]["passes"]["models"]
    assert (target["draft"], draft["draft"]) == ("smollm2-135m", None)
    for entry in (target, draft):
        assert [(r["batch"], r["width"]) for r in entry["rows"]] == [(1, 1), (1, 3), (2, 1), (2, 3)]
        assert all(r["floor_fraction"] > 0 and r["v"] > 0 and r["v_derived"] >= 1 for r in entry["rows"])
        assert all(m["ratio"] == 1 for m in entry["memory"])
    (decode,) = target["decode"]
    # One layer of each, and heads of 49152 x 960 against 49152 x 576.
    assert decode["c_derived"] == pytest.approx(0.58, abs=0.03)
    assert decode["c"] == pytest.approx(draft["rows"][0]["seconds"] / target["rows"][0]["seconds"])


def test_every_source_is_run_at_both_temperatures(document: dict, script: ModuleType) -> None:
    rows = document["sections"]["alpha"]["rows"]
    assert {(r["source"], r["temperature"]) for r in rows} == {
        (s, t) for s in ("none", *script.SMALL_SOURCES) for t in (0.0, 1.0)
    }
    for row in rows:
        if row["source"] == "none":
            assert (row["alpha"], row["tokens_per_step"]) == (None, 1.0)
        else:
            assert row["tokens_per_step"] >= 1


def test_host_and_device_matchers_are_compared(document: dict) -> None:
    rows = document["sections"]["ngram"]["rows"]
    assert [(r["batch"], r["context"]) for r in rows] == [(1, 256), (4, 256)]
    assert all(r["device_s"] > 0 and r["host_s"] > 0 and r["graph_s"] is None for r in rows)


def check(script: ModuleType, path: Path, seconds: float = 100.0):
    return script.Check(
        device=torch.device("cpu"),
        dtype="float32",
        small=True,
        card=None,
        seconds=seconds,
        output=path,
        document={"sections": {}},
    )


def test_a_failing_section_is_reported_and_the_rest_goes_on(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    run = check(script, path)
    run.section("passes", 0.5, script.passes_section)  # without peaks to hold passes against
    run.section("ngram", 0.5, script.ngram_section)
    found = json.loads(path.read_text())["sections"]
    assert "no peaks to hold passes against" in found["passes"]["failed"]
    assert found["ngram"]["rows"]


def test_what_time_does_not_allow_is_named(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    run = check(script, path, seconds=1e-9)
    run.section("ngram", 0.5, script.ngram_section)
    assert json.loads(path.read_text())["sections"]["ngram"]["skipped"] == "out of time"
    assert script.ngram_section(run, 0.0)["skipped"] == ["batch 1, context 256", "batch 4, context 256"]


@pytest.mark.parametrize(
    ("name", "gib", "profile"),
    [
        ("NVIDIA H100 80GB HBM3", 79.2, "h100-sxm"),
        ("NVIDIA H100 PCIe", 79.2, "h100-pcie"),
        ("NVIDIA H100 NVL", 93.1, "h100-nvl"),
        ("NVIDIA H200", 139.8, "h200"),
        ("NVIDIA A100-SXM4-40GB", 39.5, "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", 39.5, None),
        ("NVIDIA L4", 22.1, "l4"),
        ("NVIDIA GeForce RTX 4090", 23.5, "rtx-4090"),
        ("Tesla V100-SXM2-16GB", 15.8, "v100-sxm2-16gb"),
        ("Tesla T4", 14.6, "t4"),
        ("NVIDIA B200", 178.4, "b200"),
        ("NVIDIA X1000", 80.0, None),
    ],
)
def test_a_card_is_found_by_its_name_and_memory(script: ModuleType, name: str, gib: float, profile: str | None) -> None:
    found = script.datasheet(name, gib * 2**30)
    assert (found and found.name) == profile


def test_the_document_is_named_by_card_and_day(script: ModuleType) -> None:
    path = script.default_output({"card": "NVIDIA H100 80GB HBM3", "date": "2026-11-30T01:02:03+00:00"})
    assert path.parent.name == "measurements"
    assert path.name == "gpu-check-nvidia-h100-80gb-hbm3-2026-11-30.json"


def test_each_limit_is_judged_and_a_missed_one_counts(
    document: dict, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = {one["what"]: one for one in document["limits"]}
    assert sum("bandwidth floor" in what for what in judged) == 2
    assert sum("over a softmax" in what for what in judged) > 2
    for one in judged.values():
        assert one["holds"] == (one["value"] >= one["limit"] if one["at_least"] else one["value"] <= one["limit"])
    decode = {"layers": "as they are", "decode_floor_fraction": 0.5}
    slow = {"models": [{"model": "m", "tensor_parallel_size": 1, "decode": [decode], "memory": []}]}
    fast = {"models": [{**slow["models"][0], "decode": [decode, decode | {"decode_floor_fraction": 0.9}]}]}
    for passes, strict, code in ((slow, True, 1), (slow, False, 0), (fast, True, 0)):
        monkeypatch.setattr(script, "SECTIONS", (("passes", 0.5, lambda *_, p=passes: dict(p)),))
        arguments = ["--device", "cpu", "--small", "-o", str(tmp_path / "out.json"), *(["--strict"] if strict else [])]
        assert script.main(arguments) == code
