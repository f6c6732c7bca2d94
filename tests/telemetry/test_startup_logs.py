"""Logs in the engines' own words: several ranks, colours, prefixes, any order, cut anywhere, of any length."""

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.records.startup import TERMS, StartupLog
from specplan.telemetry.startup_logs import read_startup_log
from specplan.units import GIB

DATA = Path(__file__).parents[1] / "data"

VLLM_019 = """\
(APIServer pid=1) INFO 04-01 10:00:00 [utils.py:253] non-default args: {'model_tag': 'org/m', 'model': 'org/m', 'tensor_parallel_size': 2, 'max_model_len': 8192, 'gpu_memory_utilization': 0.95}
(EngineCore_0 pid=9) INFO 04-01 10:00:05 [core.py:77] Initializing a V1 LLM engine (v0.19.0) with config: model='org/m', speculative_config=None, tokenizer='org/m', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=2, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, enable_prefix_caching=False
\x1b[36m(Worker_TP0 pid=11)\x1b[0;0m INFO 04-01 10:00:20 [gpu_model_runner.py:4120] Model loading took 7.12 GiB and 6.812345 seconds
\x1b[36m(Worker_TP1 pid=12)\x1b[0;0m INFO 04-01 10:00:20 [gpu_model_runner.py:4120] Model loading took 7.11 GiB and 6.812345 seconds
(Worker_TP0 pid=11) INFO 04-01 10:00:30 [gpu_worker.py:401] Estimated CUDA graph memory: 0.61 GiB total
(Worker_TP0 pid=11) INFO 04-01 10:00:30 [gpu_worker.py:410] Available KV cache memory: 63.84 GiB
(Worker_TP1 pid=12) INFO 04-01 10:00:30 [gpu_worker.py:410] Available KV cache memory: 63.90 GiB
(EngineCore_0 pid=9) INFO 04-01 10:00:31 [kv_cache_utils.py:1301] GPU KV cache size: 2,390,592 tokens
(EngineCore_0 pid=9) INFO 04-01 10:00:31 [kv_cache_utils.py:1306] Maximum concurrency for 8,192 tokens per request: 291.82x
(Worker_TP0 pid=11) INFO 04-01 10:00:40 [gpu_model_runner.py:5010] Graph capturing finished in 9 secs, took 0.71 GiB
(Worker_TP0 pid=11) INFO 04-01 10:00:40 [gpu_worker.py:520] Free memory on device (77.66/79.19 GiB) on startup. Desired GPU memory utilization is (0.95, 75.23 GiB). Actual usage is 7.12 GiB for weight, 2.21 GiB for peak activation, 2.06 GiB for non-torch memory, and 0.71 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=67620000000` to fit into requested memory. Current kv cache memory in use is 68550000000 bytes.
"""  # noqa: E501 - lines as the engine prints them

VLLM_V0 = """\
INFO 12-14 04:03:39 worker.py:267] the current vLLM instance can use total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.29GiB
INFO 12-14 04:03:39 worker.py:267] model weights take 14.96GiB; non_torch_memory takes 1.79GiB; PyTorch activation peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is 53.29GiB.
INFO 12-14 04:03:39 executor_base.py:110] # GPU blocks: 27895, # CPU blocks: 2048
INFO 12-14 04:03:39 executor_base.py:115] Maximum concurrency for 4096 tokens per request: 108.96x
"""  # noqa: E501 - the same

VLLM_032 = (
    "(EngineCore pid=5) INFO 11-01 10:00:31 [kv_cache_utils.py:2327] GPU KV cache size: 1,551,920 tokens, "
    "Maximum concurrency for 131,072 tokens per request: 11.84x\n"
    "(Worker pid=6) INFO 11-01 10:00:32 [gpu_worker.py:789] Free memory on device (30.27/31.4 GiB) on startup. Desired "
    "GPU memory utilization is (0.92, 28.88 GiB). Actual usage is 15.03 GiB for consumed memory (weights + non-torch), "
    "1.59 GiB for peak activation, and 0.09 GiB for CUDAGraph memory. Current kv cache memory in use is 12.26 GiB.\n"
)

SGLANG = """\
[2025-03-01 08:00:00] server_args=ServerArgs(model_path='Qwen/QwQ-32B', tokenizer_path='Qwen/QwQ-32B', dtype='bfloat16', kv_cache_dtype='auto', mem_fraction_static=0.85, tp_size=4, chunked_prefill_size=2048, speculative_algorithm='EAGLE', speculative_num_steps=3)
[2025-03-01 08:00:09 TP0] Load weight begin. avail mem=21.63 GB
[2025-03-01 08:00:09 TP1] Load weight begin. avail mem=21.65 GB
[2025-03-01 08:00:50 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=6.09 GB, mem usage=15.54 GB.
[2025-03-01 08:00:51 TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB
[2025-03-01 08:00:51 TP0] KV Cache is allocated. #tokens: 46611, K size: 0.05 GB, V size: 0.05 GB
[2025-03-01 08:00:51 TP0] Memory pool end. avail mem=2.09 GB
[2025-03-01 08:01:09 TP0] Capture cuda graph end. Time elapsed: 12.1 s. mem usage=0.93 GB. avail mem=1.10 GB.
[2025-03-01 08:01:10 TP0] max_total_num_tokens=46611, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072
"""  # noqa: E501 - the same


def _read(text: str) -> StartupLog:
    return read_startup_log(io.BytesIO(text.encode()))


def _gib(log: StartupLog, term: str) -> float:
    value = log.value(term)
    assert value is not None
    return round(value / GIB, 2)


def test_two_ranks_of_vllm_019() -> None:
    log = _read(VLLM_019)
    assert (log.engine, log.version) == ("vllm", "0.19.0")
    assert log.settings["tp"] == 2
    assert log.settings["gpu_memory_utilization"] == 0.95
    assert log.settings["dtype"] == "bfloat16"
    assert log.by_rank("weights_bytes") == {"TP0": pytest.approx(7.12 * GIB), "TP1": pytest.approx(7.11 * GIB)}
    assert (_gib(log, "total_bytes"), _gib(log, "requested_bytes")) == (79.19, 75.23)
    assert (_gib(log, "activation_peak_bytes"), _gib(log, "non_torch_bytes")) == (2.21, 2.06)
    assert (_gib(log, "cuda_graph_estimate_bytes"), _gib(log, "cuda_graph_bytes")) == (0.61, 0.71)
    assert log.value("kv_available_bytes") == 68550000000
    assert log.by_rank("kv_available_bytes")["TP1"] == pytest.approx(63.90 * GIB)
    assert (log.value("kv_tokens"), log.value("max_concurrency")) == (2390592, 291.82)


def test_v0_balance() -> None:
    log = _read(VLLM_V0)
    assert (_gib(log, "weights_bytes"), _gib(log, "non_torch_bytes"), _gib(log, "kv_available_bytes")) == (
        14.96, 1.79, 53.29,
    )  # fmt: skip
    assert (log.value("num_gpu_blocks"), log.value("utilization")) == (27895, 0.9)


def test_one_line_capacity_and_consumed_memory() -> None:
    log = _read(VLLM_032)
    assert (log.value("kv_tokens"), log.value("max_concurrency")) == (1551920, 11.84)
    assert (_gib(log, "consumed_bytes"), _gib(log, "free_at_start_bytes"), _gib(log, "total_bytes")) == (
        15.03, 30.27, 31.4,
    )  # fmt: skip
    assert log.step("total_bytes") == pytest.approx(0.1 * GIB)
    assert log.step("consumed_bytes") == pytest.approx(0.01 * GIB)


def test_sglang() -> None:
    log = _read(SGLANG)
    assert log.engine == "sglang"
    assert log.settings["mem_fraction_static"] == 0.85
    assert log.settings["speculative_algorithm"] == "EAGLE"
    assert log.settings["max_model_len"] == 131072
    assert (_gib(log, "free_at_start_bytes"), _gib(log, "free_after_load_bytes")) == (21.63, 6.09)
    assert (_gib(log, "pool_key_bytes"), _gib(log, "draft_pool_key_bytes")) == (1.42, 0.05)
    assert log.value("kv_tokens") == 46611


def test_window_pools_and_negative_estimates() -> None:
    log = _read(
        "[2026-01-31 TP0] SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 300288, K size: 8.38 GB, "
        "V size: 5.59 GB\n"
        "[2026-01-31 TP0] Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 375360, K size: 1.21 GB, "
        "V size: 0.81 GB\n"
        "INFO CUDA graph pool memory: 0.23 GiB (actual), -0.81 GiB (estimated), difference: 1.04 GiB (456.1%).\n"
    )
    assert (_gib(log, "swa_pool_key_bytes"), _gib(log, "pool_key_bytes")) == (8.38, 1.21)
    assert (log.value("swa_pool_tokens"), log.value("pool_tokens")) == (300288, 375360)
    assert _gib(log, "cuda_graph_estimate_bytes") == -0.81


def test_a_real_cpu_server() -> None:
    log = read_startup_log(DATA / "vllm_cpu_startup.log")
    assert (log.engine, log.version, log.value("kv_tokens")) == ("vllm", "0.32.0", 46592)
    assert log.settings["speculative_config"] == {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 5,
    }  # fmt: skip
    assert log.lines == 173


def test_a_refusal_is_kept_in_the_engines_words() -> None:
    words = (
        "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated maximum "
        "model length is 8176."
    )
    log = _read(f"(EngineCore pid=1) ERROR 11-01 [core.py:900] ValueError: {words}\n")
    assert log.refusals == (words,)
    assert log.notes == ()


def test_a_log_of_something_else_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="no start-up line of vLLM or SGLang in 2 lines"):
        _read("hello\nworld\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_startup_log("/nonexistent/startup.log")


ALL = (VLLM_019, VLLM_V0, VLLM_032, SGLANG)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), text=st.sampled_from(ALL), prefix=st.sampled_from(["", "vllm-1  | ", "2026-01-01T00:00:00Z "]))
def test_order_prefixes_and_colours_change_nothing(data: st.DataObject, text: str, prefix: str) -> None:
    lines = text.splitlines()
    shuffled = data.draw(st.permutations(lines))
    noisy = _read("\r\n".join(f"{prefix}\x1b[32m{line}\x1b[0m" for line in shuffled))
    plain = _read(text)
    assert sorted((r.term, r.value, r.rank) for r in noisy.readings) == sorted(
        (r.term, r.value, r.rank) for r in plain.readings
    )
    assert {r.term for r in plain.readings} <= set(TERMS)


@settings(max_examples=60, deadline=None)
@given(text=st.sampled_from(ALL), share=st.floats(0, 1))
def test_a_cut_log_keeps_what_stood_before_the_cut(text: str, share: float) -> None:
    cut = text[: int(len(text) * share)]
    try:
        got = {(r.term, r.value) for r in _read(cut).readings}
    except InputError:
        return
    want = {(r.term, r.value) for r in _read(text).readings if r.line <= cut.count("\n")}
    assert want <= got


def test_what_stands_at_the_end_of_a_long_log_is_found_in_bounded_memory() -> None:
    class Endless(io.RawIOBase):
        """64 MB of request lines and one line without end, then the start-up."""

        def __init__(self) -> None:
            self.pieces = [
                b"INFO Engine 000: Avg prompt throughput: 4.9 tokens/s, GPU KV cache usage: 0.0%\n" * 12000
            ] * 64
            self.pieces += [b"x" * (1 << 20)] * 4 + [b"\n" + VLLM_019.encode()]
            self.rest = b""
            self.widest = 0

        def read(self, size: int = -1) -> bytes:
            self.widest = max(self.widest, size)
            while len(self.rest) < size and self.pieces:
                self.rest += self.pieces.pop(0)
            out, self.rest = self.rest[:size], self.rest[size:]
            return out

    stream = Endless()
    log = read_startup_log(stream)  # type: ignore[arg-type]
    assert log.value("kv_tokens") == 2390592
    assert log.lines == 64 * 12000 + 1 + VLLM_019.count("\n")
    assert 0 < stream.widest <= 1 << 20


@pytest.mark.parametrize("printed", ["9" * 400, "9" * 30])
def test_a_size_that_no_engine_has_is_refused_by_its_line(tmp_path: Path, printed: str) -> None:
    log = tmp_path / "start.log"
    log.write_text(f"INFO Available KV cache memory: 58.11 GiB\nINFO Available KV cache memory: {printed} GiB\n")
    with pytest.raises(InputError, match="line 2 of the log: kv_available_bytes 999"):
        read_startup_log(log)
