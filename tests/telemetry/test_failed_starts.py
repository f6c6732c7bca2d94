"""Starts that failed, term by term: vLLM's refusal, SGLang's, allocations that failed; each ends with 1."""

from pathlib import Path

import pytest

from specplan.cli.app import main
from specplan.decide.startup_log import Told, check_log
from specplan.telemetry.startup_logs import read_startup_log
from specplan.units import GIB

CONFIG = (
    "INFO 12-01 10:00:01 [core.py:58] Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-30B-A3B', "
    "speculative_config=None, dtype=torch.bfloat16, max_seq_len=262144, tensor_parallel_size=1, kv_cache_dtype=auto\n"
)
REFUSAL = (
    "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated "
    "maximum model length is 34736.\n"
)
LOADED = "INFO 12-01 10:00:30 [gpu_model_runner.py:2007] Model loading took 56.88 GiB and 20.1 seconds\n"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.19 GiB "
    "of which 1.05 GiB is free.\n"
)


def check(text: str, tmp_path: Path, target: str = "qwen3-30b-a3b"):
    path = tmp_path / "start.log"
    path.write_text(text)
    return check_log(read_startup_log(path), "log", Told(target=target, gpu="h100-sxm"))


@pytest.mark.parametrize("loaded", ["", LOADED])
def test_a_refused_length_is_compared_in_three_rows(tmp_path: Path, loaded: str) -> None:
    found = check(CONFIG + loaded + REFUSAL, tmp_path)
    rows = {t.term: t for t in found.terms}
    assert rows["needed_bytes"].printed == rows["needed_bytes"].predicted == 24 * GIB
    assert rows["longest_request"].printed == 34736
    assert rows["longest_request"].verdict == "agrees"
    assert rows["kv_available_bytes"].printed == pytest.approx(3.18 * GIB)
    assert rows["kv_available_bytes"].predicted is not None
    assert any(way.startswith("--max-model-len 347") for way in found.alternatives)
    assert any("--tensor-parallel-size 2" in way for way in found.alternatives)


def test_a_failed_start_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "start.log"
    path.write_text(CONFIG + REFUSAL)
    with pytest.raises(SystemExit) as end:
        main(["blocks", "qwen3-30b-a3b", "--gpu", "h100-sxm", "--from-log", str(path)])
    assert end.value.code == 1
    assert "would start with" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        (CONFIG + OOM, "fewer weights on a rank"),
        (CONFIG + LOADED + OOM, "the profile run"),
        (
            CONFIG
            + LOADED
            + "INFO 12-01 10:00:40 [gpu_worker.py:276] Available KV cache memory: 13.18 GiB\n"
            + "INFO 12-01 10:00:41 [kv_cache_utils.py:864] GPU KV cache size: 143,968 tokens\n"
            + OOM,
            "graph capture",
        ),
    ],
)
def test_a_failed_allocation_names_its_phase(tmp_path: Path, text: str, phase: str) -> None:
    found = check(text, tmp_path)
    rows = {t.term: t for t in found.terms}
    assert rows["oom_bytes"].printed == pytest.approx(2.32 * GIB)
    assert rows["oom_free_bytes"].printed == pytest.approx(1.05 * GIB)
    assert found.refusals
    assert any(phase in way for way in found.alternatives)


def test_sglangs_refusal_is_read(tmp_path: Path) -> None:
    text = (
        "[2025-10-22 10:27:56] server_args=ServerArgs(model_path='meta-llama/Meta-Llama-3-70B', tp_size=1, "
        "mem_fraction_static=0.8)\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "mem_fraction_static=0.8\n"
    )
    found = check(text, tmp_path, "llama3-70b")
    assert found.engine == "sglang"
    assert found.refusals
    assert any("--mem-fraction-static" in way for way in found.alternatives)
