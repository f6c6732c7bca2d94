"""Cautions about a draft are the same in every command that takes the draft."""

import contextlib
import json
from pathlib import Path

import pytest

from specplan.cli.app import main
from specplan.decide.cautions import draft_cautions, source_cautions
from specplan.specs.catalog import load_model
from specplan.values.source import Range, Source

HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-05,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "target_hidden_size": 4096,
    "hidden_act": "silu",
}
CONFIG = '{"method":"draft_model","model":"{h}","num_speculative_tokens":3}'
BEYOND = "states 2048 positions, the context is 8192"


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with contextlib.suppress(SystemExit):
        main(list(args))
    document = json.loads(capsys.readouterr().out)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("blocks", "llama3-8b", "--speculative-config", CONFIG), "model"),
        (("blocks", "llama3-8b", "--engine", "sglang", "--max-model-len", "8192", "--speculative-algorithm", "EAGLE",
          "--speculative-draft-model-path", "{h}", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
          "--speculative-num-draft-tokens", "4"), "eagle"),
        (("compare", "llama3-8b", "-s", "{h}:alpha=.7,k=3", "--context", "8k"), ""),
        (("schedule", "llama3-8b", "-s", "{h}:alpha=.7", "--context", "8k"), ""),
        (("cost", "llama3-8b", "-d", "{h}", "--alpha", ".7", "--context", "8k"), ""),
    ],
)  # fmt: skip
def test_a_head_beyond_its_positions_or_under_another_name_is_said(
    command: tuple[str, ...], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps(HEAD))
    text = said(capsys, *(part.replace("{h}", str(head)) for part in command),
                "--gpu", "h100-sxm", "--json")  # fmt: skip
    assert BEYOND in text
    assert (f"eagle3 head, configured as {name}" in text) == bool(name)


@pytest.mark.parametrize(
    "command",
    [
        ("tune", "qwen3-32b", "-s", "llama3.2-1b:alpha=.7"),
        ("tie", "llama3.2-1b:alpha=.7,k=3", "ngram:alpha=.5,k=3", "--target", "qwen3-32b"),
        ("plane", "qwen3-32b", "-s", "llama3.2-1b:alpha=.7,k=3"),
        ("compare", "qwen3-32b", "-s", "llama3.2-1b:alpha=.7,k=3"),
        ("schedule", "qwen3-32b", "-s", "llama3.2-1b:alpha=.7"),
        ("cost", "qwen3-32b", "-d", "llama3.2-1b", "--alpha", ".7"),
    ],
)
def test_vocabularies_that_differ_are_said(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert "vocabularies differ" in said(capsys, *command, "--gpu", "h100-sxm", "--json")


def test_one_alpha_of_a_head_is_not_carried_far_in_silence() -> None:
    target = load_model("llama3-8b")
    one = Source(name="mtp", kind="mtp", alpha=Range.at(0.7))
    assert source_cautions(target, one, kappa=3) == ()
    assert "one alpha is carried to 6" in source_cautions(target, one, kappa=6)[0]
    each = Source(name="mtp", kind="mtp", hazard=(0.8, 0.7, 0.6, 0.5, 0.4, 0.3))
    assert source_cautions(target, each, kappa=6) == ()


def test_a_fitting_draft_is_passed_in_silence() -> None:
    assert (
        draft_cautions(load_model("llama3-8b"), load_model("llama3.2-1b"), method="draft_model", context_len=8192) == ()
    )
