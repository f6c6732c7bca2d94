"""`specplan import` and `specplan architectures`: what they print, write and refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specplan.specs.catalog import load_model
from specplan.specs.model_yaml import load_model_yaml

DATA = Path(__file__).parents[1] / "data"
ROWS = json.loads((DATA / "published_configs.json").read_text())["models"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(ROWS["llama3.2-1b"]["config"]))
    return path


def test_a_config_is_shown(specplan, config: Path) -> None:
    outcome = specplan("import", str(config))
    assert outcome.code == 0
    assert "1,235,814,400" in outcome.out
    assert "exact" in outcome.out
    assert outcome.err == ""


def test_the_written_spec_is_the_model(specplan, config: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    assert specplan("import", str(config), "-o", str(target), "--name", "mine").code == 0
    written = load_model_yaml(target).model
    assert written.name == "mine"
    assert written.layers == load_model("llama3.2-1b").layers
    assert specplan("models", str(target)).code == 0


def test_a_dash_prints_the_spec_alone(specplan, config: Path) -> None:
    outcome = specplan("import", str(config.parent), "-o", "-")
    assert outcome.out.startswith("name: llama\n")
    assert "order: 16x block" in outcome.out


def test_json_is_one_document(specplan, config: Path) -> None:
    document = json.loads(specplan("import", str(config), "--json").out)
    assert document["schema_version"] == 1
    assert document["inputs"]["source"] == str(config)
    assert document["model"]["streamed_params"] == 1_235_746_816
    assert document["model"]["resident_bytes"] == 2 * 1_235_814_400
    assert document["checkpoint"] is None
    assert {"assumptions", "not_modeled"} <= set(document)


def test_a_draft_says_what_it_shares(specplan, config: Path) -> None:
    head = {**ROWS["llama3-8b"]["config"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
    config.write_text(json.dumps({**head, "architectures": ["LlamaForCausalLMEagle3"]}))
    outcome = specplan("import", str(config))
    assert "eagle3 draft, 1 KV layer; embedding: the target's" in outcome.out
    document = json.loads(specplan("import", str(config), "--json").out)
    assert (document["model"]["own_head"], document["model"]["own_embedding"]) == (True, False)


def test_assumptions_are_printed(specplan, config: Path) -> None:
    config.write_text(json.dumps({k: v for k, v in ROWS["llama3.2-1b"]["config"].items() if k != "torch_dtype"}))
    assert "assumed weights are bfloat16" in " ".join(specplan("import", str(config)).out.split())


@pytest.mark.parametrize(
    ("change", "arguments", "needed"),
    [
        ({"model_type": "zaya"}, [], "cannot be counted"),
        ({"model_type": "llama9"}, [], "is not known"),
        ({"hidden_size": None}, [], "'hidden_size' is null"),
        ({}, ["--assume", "nothing-like-it"], "'nothing-like-it'"),
        ({}, ["-o", "x.txt"], "must end in"),
        ({}, ["-o", "/no/such/folder/x.yaml"], "does not exist"),
    ],
)
def test_one_line_and_exit_2(specplan, config: Path, change: dict, arguments: list[str], needed: str) -> None:
    config.write_text(json.dumps({**ROWS["llama3.2-1b"]["config"], **change}))
    outcome = specplan("import", str(config), *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert needed in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("source", ["/no/such/config.json", "no-such-model"])
def test_sources_that_are_not_there(specplan, source: str) -> None:
    outcome = specplan("import", source)
    assert outcome.code == 2
    assert "no such file or folder" in outcome.err


def test_a_folder_without_config(specplan, tmp_path: Path) -> None:
    assert "without config.json" in specplan("import", str(tmp_path)).err


def test_assume_overrides_the_type(specplan, config: Path) -> None:
    config.write_text(json.dumps({**ROWS["llama3.2-1b"]["config"], "model_type": "llama9"}))
    outcome = specplan("import", str(config), "--assume", "llama")
    assert outcome.code == 0
    assert "counted as llama, though it says llama9" in " ".join(outcome.out.split())


def test_architectures_lists_every_status(specplan) -> None:
    outcome = specplan("architectures")
    assert outcome.code == 0
    for word in ("deepseek_v4", "exact", "refused", "wrapper", "eagle3"):
        assert word in outcome.out
    document = json.loads(specplan("architectures", "--json").out)
    statuses = {row["model_type"]: row["status"] for row in document["architectures"]}
    assert statuses["llama"] == "exact"
    assert statuses["bert"] == "refused"
    assert document["counts"]["exact"] >= 135


def test_importing_never_imports_transformers_or_torch(config: Path) -> None:
    code = (
        "import sys; from specplan.specs.importing import import_source; "
        f"import_source({str(config)!r}); "
        "assert not {'transformers', 'torch'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_hub_id_that_cannot_be_fetched_says_what_to_download() -> None:
    pytest.importorskip("huggingface_hub")
    ran = subprocess.run(
        [sys.executable, "-m", "specplan", "import", "no-such-owner/no-such-model"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert "download config.json from" in ran.stderr
    assert ran.stderr.count("\n") == 1
