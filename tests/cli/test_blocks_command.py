"""`specplan blocks` from the command line: tables, one JSON document, exit codes, logs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
DATA = Path(__file__).parents[1] / "data"
PAIR = ("blocks", "llama3-70b", "--draft", "llama3.2-1b", "--gpu", "h100-sxm", "--tp", "4")
POOL_KEYS = {
    "weights_bytes",
    "activation_peak_bytes",
    "non_torch_bytes",
    "cuda_graph_bytes",
    "kv_available_bytes",
    "num_gpu_blocks",
    "kv_tokens",
    "max_concurrency",
    "log_line",
}


def test_the_table_explains_each_subtraction(specplan: Run) -> None:
    done = specplan(*PAIR, "--engine", "vllm")
    assert done.code == 0
    for words in ("target weights", "draft weights", "activation peak", "non-torch", "CUDA graphs", "the draft costs"):
        assert words in done.out
    assert "GPU KV cache size: " in done.out
    assert "binding:" in done.out
    assert "--kv-cache-dtype fp8:" in done.out


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_one_document_without_and_with_the_draft(specplan: Run, engine: str) -> None:
    done = specplan(*PAIR, "--engine", engine, "--json")
    document = json.loads(done.out)
    assert document["schema_version"] == 1
    for pool in (document["without_draft"], document["with_draft"]):
        assert pool.keys() >= POOL_KEYS
        for term in ("activation_peak_bytes", "non_torch_bytes", "kv_available_bytes"):
            assert pool[term]["low"] <= pool[term]["best"] <= pool[term]["high"]
        assert f"{pool['kv_tokens']:,}" in pool["log_line"] or str(pool["kv_tokens"]) in pool["log_line"]
    assert document["draft_price"]["blocks"] > 0
    assert document["inputs"]["draft"]
    assert document["assumptions"]
    assert document["not_modeled"]


def test_a_draft_that_frees_tokens_is_not_said_to_cost_any(specplan: Run) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 4}'
    done = specplan("blocks", "gemma3-4b", "--gpu", "h200", "--speculative-config", config)
    assert "more tokens fit" in done.out
    assert "the draft costs" not in done.out


def test_a_refused_start_exits_with_one(specplan: Run) -> None:
    done = specplan("blocks", "llama3-70b", "--gpu", "h100-sxm")
    assert done.code == 1
    assert "No available memory for the cache blocks" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("blocks",), "name a target"),
        (("blocks", "llama3-8b", "--engine", "tgi"), "one of vllm, sglang"),
        (("blocks", "llama3-8b", "--engine-version", "0.99"), "0.8 to 0.33"),
        (("blocks", "llama3-8b", "--speculative-config", "{"), "not JSON"),
        (("blocks", "llama3-8b", "--mem-fraction-static", "0.8"), "SGLang's"),
        (("blocks", "llama3-8b", "--engine", "sglang", "--gpu-memory-utilization", "0.8"), "vLLM's"),
        (("blocks", "llama3-8b", "--activation-peak", "1.9"), "has no unit"),
        (("blocks", "llama3-8b", "--from-log", "/nonexistent"), "cannot be read"),
        ((*PAIR, "--speculative-config", '{"method": "suffix"}'), "either --draft or --speculative-config"),
        (("blocks", "llama3-8b", "-k", "5"), "-k belongs to --draft"),
        (("blocks", "llama3-8b", "--speculative-config", '{"method": "suffix"}', "-k", "5"), "-k belongs to --draft"),
        (("blocks", "llama3-8b", "--engine", "sglang", "-k", "5"), "-k belongs to --draft"),
        (("blocks", "llama3-8b", "--max-total-tokens", "5000"), "--max-total-tokens is SGLang's"),
        (("blocks", "llama3-8b", "--speculative-num-steps", "3"), "--speculative-num-steps is SGLang's"),
        (("blocks", "llama3-8b", "--engine", "sglang", "--speculative-num-steps", "3"), "--speculative-algorithm"),
        (("blocks", "llama3-8b", "--engine", "sglang", "--tp", "4", "--dcp", "4"), "--decode-context-parallel-size"),
        (("blocks", "llama3-8b", "--engine", "sglang", "--num-gpu-blocks-override", "5"), "not taken with --engine"),
        (("blocks", "llama3-8b", "--engine", "sglang", "--activation-peak", "1 GiB"), "not taken with --engine"),
        (("blocks", "llama3-8b", "--dtype", "int4-awq-g128"), "--dtype int4-awq-g128: one of auto"),
        (("blocks", "llama3-8b", "--mamba-ssm-cache-dtype", "fp8"), "--mamba-ssm-cache-dtype"),
        (("blocks", "llama3-8b", "--mamba-ssm-cache-dtype", "x"), "unknown number format"),
        (("blocks", "llama3-8b", "--multimodal-tokens", "-5"), "at least 0"),
        (("blocks", "llama3-8b", "--kv-cache-dtype", "fp8_ds_mla"), "packs latents"),
        (("blocks", "llama3-8b", "--max-num-seqs", "9" * 400), "at most 1,000,000,000"),
        (("blocks", "llama3-8b", "--max-model-len", "9" * 5000), "at most 1,000,000,000"),
    ],
)
def test_bad_input_is_one_line(specplan: Run, arguments: tuple[str, ...], words: str) -> None:
    done = specplan(*arguments)
    assert done.code == 2
    assert words in done.err
    assert done.err.strip().count("\n") == 0
    assert done.out == ""


def test_terms_can_be_replaced_by_flags(specplan: Run) -> None:
    terms = ("--weights", "15 GiB", "--activation-peak", "2 GiB", "--non-torch", "1 GiB", "--cuda-graphs", "1 GiB")
    pool = json.loads(specplan("blocks", "llama3.1-8b", "--gpu", "h100-sxm", *terms, "--json").out)["without_draft"]
    left = pool["requested_bytes"]["best"] - 19 * 2**30
    assert pool["kv_available_bytes"] == {
        "low": left, "best": left, "high": left, "source": pool["kv_available_bytes"]["source"],
    }  # fmt: skip
    assert pool["num_gpu_blocks"] == left // (16 * 131072)


def test_speculative_config_is_taken_as_vllm_takes_it(specplan: Run) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 4}'
    done = specplan("blocks", "llama3.1-8b", "--gpu", "h100-sxm", "--speculative-config", config, "--json")
    document = json.loads(done.out)
    assert document["with_draft"]["buffers_bytes"] == {"token ids of every request": 1024 * 131072 * 4}
    assert document["draft_price"]["memory_bytes"] == 512 * 2**20


def test_a_log_beside_its_prediction(specplan: Run) -> None:
    log = str(DATA / "vllm_cpu_startup.log")
    done = specplan("blocks", "smollm2-135m", "--from-log", log, "--json")
    document = json.loads(done.out)
    terms = {term["term"]: term for term in document["terms"]}
    assert document["engine_version"] == "0.32.0"
    assert terms["kv_tokens_from_printed_memory"]["predicted"] == terms["kv_tokens"]["printed"] == 46592
    assert terms["kv_tokens_from_printed_memory"]["verdict"] == "agrees"
    assert "tokens of the pool" in specplan("blocks", "smollm2-135m", "--from-log", log).out


def test_a_log_names_its_model_and_a_tuned_one_counts_as_its_base(specplan: Run) -> None:
    done = specplan("blocks", "--from-log", str(DATA / "vllm_cpu_startup.log"))
    assert done.code == 0
    assert "SmolLM2-135M-Instruct is counted as smollm2-135m" in done.out
    assert "largest difference: none: every printed term agrees within its last digit" in done.out


def test_a_log_of_an_unknown_model_is_still_read(specplan: Run, tmp_path: Path) -> None:
    log = tmp_path / "startup.log"
    log.write_bytes((DATA / "vllm_cpu_startup.log").read_bytes().replace(b"SmolLM2-135M-Instruct", b"NoSuchModel"))
    done = specplan("blocks", "--from-log", str(log))
    assert done.code == 0
    assert "46,592" in done.out
    assert "not predicted: unknown model" in done.out


def test_a_log_of_an_engine_too_old_to_predict_is_still_balanced(specplan: Run, tmp_path: Path) -> None:
    log = tmp_path / "v0.log"
    log.write_text(
        "INFO 12-14 api_server.py:585] vLLM API server version 0.6.5\n"
        "INFO 12-14 api_server.py:586] args: Namespace(model='llama3-8b', tensor_parallel_size=1, max_model_len=8192)\n"
        "INFO 12-14 worker.py:267] the current vLLM instance can use total_gpu_memory (79.22GiB) x "
        "gpu_memory_utilization (0.90) = 71.29GiB\n"
        "INFO 12-14 worker.py:267] model weights take 14.96GiB; non_torch_memory takes 1.79GiB; PyTorch activation "
        "peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is 53.29GiB.\n"
    )
    done = specplan("blocks", "--from-log", str(log), "--json")
    document = json.loads(done.out)
    terms = {term["term"]: term for term in document["terms"]}
    assert terms["balance_bytes"]["verdict"] == "agrees"
    assert any("0.8 to 0.33" in note for note in document["notes"])


def test_a_pool_in_bytes_and_a_card_by_its_memory(specplan: Run) -> None:
    given = ("blocks", "llama3.2-1b", "--gpu-memory", "16GiB", "--max-model-len", "4096", "--json")
    pool = json.loads(specplan(*given, "--kv-cache-memory-bytes", "3221225472").out)["without_draft"]
    assert pool["kv_available_bytes"]["best"] == 3221225472
    assert json.loads(specplan(*given).out)["without_draft"]["requested_bytes"]["best"] == -(-16 * 2**30 * 92 // 100)


def test_rows_of_ones_own_are_validated_in_both_forms(specplan: Run, tmp_path: Path) -> None:
    common = {"engine": "vllm", "engine_version": "0.19.0", "model": "meta-llama/Llama-3.1-8B-Instruct", "tp": 1}
    first = {**common, "id": "a", "gpu": "H100 80GB", "max_model_len": 8192, "observed": {"weights_gib": 14.99}}
    second = {**first, "id": "b", "observed": {"weights_gib": 14.99, "available_kv_gib": 58.11, "kv_tokens": 476016}}
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"cases": [first, second]}))
    document = json.loads(specplan("validate", "startup", "--rows", str(rows), "--json").out)
    assert {(r["id"], r["check"]) for r in document["rows"]} == {
        ("a", "weights"), ("b", "weights"), ("b", "tokens from printed bytes"),
    }  # fmt: skip
    assert all(abs(r["error"]) < 0.002 for r in document["rows"])
    rows.write_text("[{}]")
    assert "row 1 needs at least" in specplan("validate", "startup", "--rows", str(rows)).err
