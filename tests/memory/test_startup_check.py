"""A log beside its prediction: terms, balance, and where the difference lies."""

import io
from dataclasses import replace

import pytest

from specplan.errors import InputError
from specplan.memory.sglang import predict_sglang
from specplan.memory.startup_check import (
    StartupCheck,
    TermCheck,
    card_of,
    check_startup,
    sglang_flags_of,
    speculation_of,
    vllm_flags_of,
)
from specplan.memory.vllm import predict_vllm
from specplan.records.startup import StartupLog
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.telemetry.startup_logs import read_startup_log
from specplan.units import GIB

LLAMA8 = load_model("llama3.1-8b")
VLLM = """\
(APIServer pid=1) INFO [utils.py:253] non-default args: {{'model': 'm', 'max_model_len': 8192, 'gpu_memory_utilization': 0.95}}
(EngineCore_0 pid=9) INFO [core.py:77] Initializing a V1 LLM engine (v0.19.0) with config: model='m', dtype=torch.bfloat16, tensor_parallel_size=1
(EngineCore_0 pid=9) INFO [gpu_worker.py:520] Free memory on device (78.68/79.19 GiB) on startup. Desired GPU memory utilization is (0.95, 75.23 GiB). Actual usage is 14.99 GiB for weight, {peak} GiB for peak activation, 0.25 GiB for non-torch memory, and 0.91 GiB for CUDAGraph memory. Current kv cache memory in use is {kv} GiB.
(EngineCore_0 pid=9) INFO [kv_cache_utils.py:1301] GPU KV cache size: {tokens} tokens
"""  # noqa: E501 - lines as the engine prints them


def _log(text: str) -> StartupLog:
    return read_startup_log(io.BytesIO(text.encode()))


def _check(log: StartupLog) -> StartupCheck:
    return check_startup(log, "log", predict_vllm(LLAMA8, card_of(log), vllm_flags_of(log)))


def _term(check: StartupCheck, name: str) -> TermCheck:
    return next(t for t in check.terms if t.term == name)


def test_a_start_like_the_predicted_one_agrees_in_every_term() -> None:
    check = _check(_log(VLLM.format(peak="1.89", kv="58.11", tokens="476,016")))
    for name in ("total_bytes", "requested_bytes", "weights_bytes", "activation_peak_bytes", "non_torch_bytes"):
        assert _term(check, name).verdict == "agrees", name
    assert _term(check, "balance_bytes").verdict == "agrees"
    assert check.largest.startswith("none")
    assert abs(_term(check, "kv_tokens").difference or 0) < 100


def test_the_term_that_differs_is_named() -> None:
    # A vision encoder raised the peak by 2 GiB: the pool shrinks with it, and that term is to blame.
    check = _check(_log(VLLM.format(peak="3.89", kv="56.11", tokens="459,648")))
    assert check.largest.startswith("activation peak: -2.00 GiB")
    assert _term(check, "activation_peak_bytes").verdict.startswith("below the log")
    assert _term(check, "kv_available_bytes").difference == pytest.approx(2.0 * GIB, abs=0.02 * GIB)
    assert _term(check, "balance_bytes").verdict == "agrees"


def test_printed_memory_alone_gives_the_layout() -> None:
    log = _log(VLLM.format(peak="3.89", kv="56.11", tokens="459,648"))
    printed = log.value("kv_available_bytes")
    assert printed is not None
    flags = replace(vllm_flags_of(log), kv_cache_memory_bytes=round(printed))
    exact = predict_vllm(LLAMA8, card_of(log), flags)
    check = check_startup(log, "log", None, exact)
    assert _term(check, "kv_tokens_from_printed_memory").verdict == "agrees"


def test_consumed_memory_carries_weights_and_the_peak_carries_the_graphs() -> None:
    log = _log(
        "INFO Initializing a V1 LLM engine (v0.27.1) with config: model='m', max_seq_len=8192\n"
        "INFO Free memory on device (78.0/79.19 GiB) on startup. Desired GPU memory utilization is (0.92, 72.85 GiB). "
        "Actual usage is 15.29 GiB for consumed memory (weights + non-torch), 1.24 GiB for peak activation, and "
        "0.20 GiB for CUDAGraph memory. Current kv cache memory in use is 56.32 GiB.\n"
        "INFO Estimated CUDA graph memory: 0.27 GiB total\n"
    )
    check = _check(log)
    consumed, peak = _term(check, "consumed_bytes"), _term(check, "activation_peak_bytes")
    assert consumed.predicted == pytest.approx((14.989 + 0.30) * GIB, abs=0.01 * GIB)
    predicted = predict_vllm(LLAMA8, card_of(log), vllm_flags_of(log)).rank
    assert peak.predicted == pytest.approx(predicted.activation_peak.best + predicted.cuda_graph.best)
    assert _term(check, "balance_bytes").verdict == "agrees"


def test_sglang_logs_give_their_own_free_memory() -> None:
    log = _log(
        "[2025-03-01] server_args=ServerArgs(model_path='Qwen/QwQ-32B', tp_size=4, mem_fraction_static=0.85)\n"
        "[2025-03-01 TP0] Load weight begin. avail mem=21.63 GB\n"
        "[2025-03-01 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=6.09 GB, mem usage=15.54 GB.\n"
        "[2025-03-01 TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB\n"
        "[2025-03-01 TP0] max_total_num_tokens=46611, chunked_prefill_size=2048, context_len=131072\n"
    )
    found = predict_sglang(load_model("qwen2.5-32b"), card_of(log), sglang_flags_of(log))
    check = check_startup(log, "log", found)
    weights = _term(check, "weights_bytes")
    assert weights.predicted == pytest.approx(weights.printed or 0.0, rel=0.03)
    assert _term(check, "kv_tokens").printed == 46611


def test_speculation_is_read_and_validated() -> None:
    log = _log(
        "INFO non-default args: {'model': 'm', 'tensor_parallel_size': 2, 'speculative_config': {'method': 'ngram', "
        "'num_speculative_tokens': 3, 'prompt_lookup_max': 4}}\n"
    )
    found = speculation_of(log)
    assert found is not None
    assert getattr(found, "prompt_lookup", None) == (4, 4)
    wrong = _log("INFO non-default args: {'model': 'm', 'speculative_config': {'method': 'ngram'}}\n")
    with pytest.raises(InputError, match="num_speculative_tokens"):
        speculation_of(wrong)


def test_the_device_is_the_logs_where_it_prints_one() -> None:
    log = _log(VLLM.format(peak="1.89", kv="58.11", tokens="476,016"))
    assert card_of(log, load_accelerator("h100-nvl")).memory_torch_bytes == pytest.approx(79.19 * GIB)
    bare = _log("INFO GPU KV cache size: 476,016 tokens\n")
    with pytest.raises(InputError, match="name the card with --gpu"):
        card_of(bare)
