"""A model folder may bring code: no command runs it; a path that is not there is no question to the Hub."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specplan.specs.catalog import load_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": "evil.Tokens"},
}
CODE = "import pathlib\npathlib.Path({marker!r}).write_text('ran')\nclass Config: pass\nModel = Tokens = Config\n"
COMMANDS = {
    "cost": ("cost", "FOLDER"),
    "cost with a draft": ("cost", "llama3-8b", "--draft", "FOLDER"),
    "blocks": ("blocks", "FOLDER", "--gpu", "h100-sxm"),
    "compare": ("compare", "FOLDER", "-s", "ngram:alpha=.5"),
    "schedule": ("schedule", "FOLDER", "-s", "ngram:alpha=.5"),
    "plane": ("plane", "FOLDER", "--draft", "llama3.2-1b"),
    "tune": ("tune", "FOLDER", "--draft", "FOLDER", "--alpha", ".5"),
    "import": ("import", "FOLDER"),
    "models": ("models", "FOLDER"),
    "bench": ("bench", "FOLDER", "--device", "cpu", "--format", "float32"),
    "measure": ("measure", "--target", "FOLDER", "-s", "ngram:k=2", "--prompts", "copy", "--tiny"),
    "measure with a draft": ("measure", "-s", "draft:model=FOLDER,k=2", "--prompts", "copy", "--tiny"),
    "replay": ("replay", "smollm2", "-s", "ngram:k=2", "--tokenizer", "FOLDER"),
    "simulate": ("simulate", "FOLDER", "--rate", "1", "--input", "50", "--output", "9", "-n", "9"),
    "simulate with a draft": (
        *("simulate", "llama3-8b", "-s", "FOLDER:alpha=.5", "--rate", "1", "--input", "50", "--output", "9", "-n", "9"),
    ),
    "capacity": ("capacity", "FOLDER", "--rate", "1", "--input", "50", "--output", "9", "-n", "9"),
    "tie": ("tie", "FOLDER", "-s", "ngram:alpha=.5", "-s", "FOLDER:alpha=.5"),
    "validate": ("validate", "rows", "--rows", "FOLDER"),
    "ingest": ("ingest", "FOLDER"),
    "replay on a target": ("replay", "smollm2", "-s", "ngram:k=2", "--target", "FOLDER"),
    "replay of a folder": ("replay", "FOLDER", "-s", "ngram:k=2"),
    "calibrate": ("calibrate", "--model", "FOLDER", "-o", "OUT.yaml", "--buffer", "1 MiB", "--repeats", "1"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outside") / "model"
    path.mkdir()
    marker = str(path.parent / "marker")
    code = CODE.format(marker=marker)
    for name in ("evil.py", "configuration_llama.py", "modeling_llama.py", "tokenization_llama.py", "conftest.py"):
        (path / name).write_text(code)
    (path / "config.json").write_text(json.dumps(LLAMA))
    (path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.Tokens", None]}}))
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n(S'touch " + marker.encode() + b"'\ntR.")
    return path


def run(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specplan", *argv]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | env,
        input="y\n" * 9,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_code_beside_a_model_is_never_run(folder: Path, tmp_path: Path, name: str) -> None:
    words = [word.replace("FOLDER", str(folder)).replace("OUT", str(tmp_path / "out")) for word in COMMANDS[name]]
    done = run(*words, cwd=tmp_path)
    assert not (folder.parent / "marker").exists()
    assert "[y/N]" not in done.stdout + done.stderr
    assert done.returncode in (0, 1, 2)
    if done.returncode == 2:
        assert done.stderr.count("\n") == 1
    if name.startswith("measure"):
        assert done.returncode == 2
        assert "auto_map names code" in done.stderr


@pytest.fixture
def hub() -> str:
    """An address that stands for the Hub; whoever connects leaves a trace in the backlog."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield f"http://127.0.0.1:{server.getsockname()[1]}", server  # type: ignore[misc]


@pytest.mark.parametrize(
    "what", ["./chekpoints/llama", "checkpoints/llama.gguf", "checkpoints/config.json", "here/llama"]
)
def test_a_mistyped_path_is_no_question_to_the_hub(hub, tmp_path: Path, what: str) -> None:
    address, server = hub
    (tmp_path / "here").mkdir()
    done = run("import", what, cwd=tmp_path, HF_ENDPOINT=address)
    assert done.returncode == 2
    assert "no such file" in done.stderr
    with pytest.raises(TimeoutError):
        server.accept()


def test_offline_asks_nobody(hub, tmp_path: Path) -> None:
    address, server = hub
    for words, env in (
        (("--offline", "import", "meta-llama/Llama-3"), {}),
        (("import", "a/b"), {"HF_HUB_OFFLINE": "1"}),
    ):
        done = run(*words, cwd=tmp_path, HF_ENDPOINT=address, HF_HOME=str(tmp_path), **env)
        assert done.returncode == 2
        assert "forbids to ask the Hub" in done.stderr or "huggingface_hub" in done.stderr
    with pytest.raises(TimeoutError):
        server.accept()


def test_the_config_itself_is_still_read(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "config.json", tmp_path / "config.json")
    assert load_model(str(tmp_path / "config.json")).hidden_size == 64
