"""Each way in which a start-up log was misread, by its smallest log."""

import io

import pytest

from specplan.records.startup import StartupLog
from specplan.telemetry.startup_logs import read_startup_log
from specplan.units import GIB


def _read(*lines: str) -> StartupLog:
    return read_startup_log(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))


def _gib(log: StartupLog, term: str) -> float:
    value = log.value(term)
    assert value is not None
    return round(value / GIB, 2)


LOADS = (
    "[2026-09-01 TP0] Load weight begin. avail mem=92.50 GB",
    "[2026-09-01 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=77.39 GB, mem usage=15.11 GB.",
    "[2026-09-01 TP0] Load weight begin. avail mem=77.39 GB",
    "[2026-09-01 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=75.18 GB, mem usage=2.21 GB.",
)
POOLS = (
    "[2026-09-01 TP0] KV Cache is allocated. dtype: torch.fp8, #tokens: 934000, K size: 28.50 GB, V size: 28.50 GB",
    "[2026-09-01 TP0] KV Cache is allocated. dtype: torch.fp8, #tokens: 934000, K size: 1.78 GB, V size: 1.78 GB",
)


def test_the_second_load_of_sglang_is_the_drafts() -> None:
    for lines in (LOADS + POOLS, POOLS + LOADS[::-1]):
        log = _read(*lines)
        assert (_gib(log, "free_at_start_bytes"), _gib(log, "weights_bytes")) == (92.50, 15.11)
        assert (_gib(log, "draft_weights_bytes"), _gib(log, "free_after_load_bytes")) == (2.21, 75.18)
        assert (_gib(log, "pool_key_bytes"), _gib(log, "draft_pool_key_bytes")) == (28.50, 1.78)
        assert (log.value("pool_tokens"), log.value("draft_pool_tokens")) == (934000, 934000)


def test_a_draft_loaded_after_the_pool_does_not_count_before_it() -> None:
    late = (
        "[2026-01-01 TP0] Memory pool end. avail mem=9.90 GB",
        "[2026-01-01 TP0] Load weight begin. avail mem=8.10 GB",
        "[2026-01-01 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=5.89 GB, mem usage=2.21 GB.",
    )
    log = _read(*LOADS[:2], *late)
    assert (_gib(log, "free_after_load_bytes"), _gib(log, "draft_weights_bytes")) == (77.39, 2.21)


def test_what_was_free_follows_from_a_load_without_its_first_line() -> None:
    log = _read(LOADS[1])
    assert (_gib(log, "free_at_start_bytes"), _gib(log, "free_after_load_bytes")) == (92.50, 77.39)


def test_a_pool_of_no_blocks_serves_the_profile_of_graphs() -> None:
    log = _read(
        "INFO [kv_cache_utils.py:800] Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512",
        "INFO [gpu_worker.py:410] Available KV cache memory: 0.47 GiB",
    )
    assert log.value("num_gpu_blocks") is None
    log = _read("INFO [kv_cache_utils.py:800] Overriding num_gpu_blocks=7891 with num_gpu_blocks_override=512")
    assert log.value("num_gpu_blocks") == 512


def test_the_newest_windowed_pool_of_sglang_is_read() -> None:
    log = _read("[2026-09-01 TP0] SWAKVPool mem usage: 79.94 GB, swa size: 798276, full size: 997846")
    assert log.engine == "sglang"
    assert _gib(log, "whole_pool_bytes") == 79.94
    assert (log.value("swa_pool_tokens"), log.value("full_pool_tokens")) == (798276, 997846)


def test_two_workers_on_one_line_keep_their_ranks() -> None:
    log = _read(
        "(Worker_TP0 pid=11) INFO Model loading took 7.12 GiB and 6.8 seconds"
        "(Worker_TP1 pid=12) INFO Model loading took 7.11 GiB and 6.8 seconds"
    )
    assert log.by_rank("weights_bytes") == {"TP0": pytest.approx(7.12 * GIB), "TP1": pytest.approx(7.11 * GIB)}


def test_the_length_of_the_capacity_line_is_the_one_that_was_served() -> None:
    log = _read(
        "INFO non-default args: {'model': 'm', 'max_model_len': 16384}",
        "INFO # cuda blocks: 14815, # CPU blocks: 2048",
        "INFO Maximum concurrency for 512 tokens per request: 462.97x",
    )
    assert log.settings["max_model_len"] == 512


def test_a_start_that_was_cut_off_leaves_the_one_before_it_to_judge() -> None:
    start = ("INFO vLLM API server version 0.19.0", "INFO Model loading took 7.12 GiB and 6.8 seconds")
    log = _read(*start, "INFO vLLM API server version 0.19.0")
    assert (_gib(log, "weights_bytes"), log.earlier) == (7.12, ())
    again = _read(*start, start[0], start[1].replace("7.12", "9.99"))
    assert (_gib(again, "weights_bytes"), len(again.earlier)) == (9.99, 1)
    assert _gib(again.earlier[0], "weights_bytes") == 7.12


def test_a_figure_that_the_end_of_the_file_cuts_is_not_read() -> None:
    log = read_startup_log(io.BytesIO(b"INFO Model loading took 7.12 GiB and 6 s\nINFO # GPU blocks: 13"))
    assert log.value("num_gpu_blocks") is None
