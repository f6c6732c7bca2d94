"""Bad input: one clear line on stderr, exit code 2, nothing on stdout, no traceback."""

from pathlib import Path

import pytest

GOOD_MODEL = """\
name: tiny
source: made for this test
vocab_size: 100
hidden_size: 8
tied_embeddings: false
dtype: bfloat16
max_position: 64
layers:
  block: {attention: {heads: 2, kv_heads: 1, head_dim: 4}, mlp: {width: 16}}
order: 2x block
"""
GOOD_CARD = """\
name: mine
vendor: someone
family: new
memory:
  driver: {value: 24 GiB, source: label}
  torch: {value: 23.5 GiB, source: label}
bandwidth: {value: 900 GB/s, source: label}
flops:
  bfloat16: {value: 100 TFLOP/s, source: label}
"""


def model_with(old: str, new: str) -> str:
    assert old in GOOD_MODEL
    return GOOD_MODEL.replace(old, new)


def card_with(old: str, new: str) -> str:
    assert old in GOOD_CARD
    return GOOD_CARD.replace(old, new)


OPTIONS = {
    "unknown model": (["llama3-71b"], "llama3-70b"),
    "unknown draft": (["llama3-8b", "--draft", "llama3.2-2b"], "llama3.2-1b"),
    "unknown card": (["llama3-8b", "--gpu", "h100-smx"], "h100-sxm"),
    "empty model name": ([""], ""),
    "alpha above 1": (["llama3-8b", "--draft", "llama3.2-1b", "--alpha", "1.01"], "[0, 1]"),
    "alpha below 0": (["llama3-8b", "--draft", "llama3.2-1b", "--alpha", "-0.1"], "[0, 1]"),
    "alpha NaN": (["llama3-8b", "--draft", "llama3.2-1b", "--alpha", "nan"], "[0, 1]"),
    "alpha infinite": (["llama3-8b", "--draft", "llama3.2-1b", "--alpha", "inf"], "[0, 1]"),
    "alpha a word": (["llama3-8b", "--alpha", "high"], "high"),
    "alpha out of range without a draft": (["llama3-8b", "--alpha", "2"], "[0, 1]"),
    "k 0": (["llama3-8b", "-k", "0"], "at least 1"),
    "k negative": (["llama3-8b", "-k", "-3"], "at least 1"),
    "k fractional": (["llama3-8b", "-k", "2.5"], "2.5"),
    "tp 0": (["llama3-8b", "--tp", "0"], "at least 1"),
    "tp that does not divide the heads": (["llama3-8b", "--tp", "3"], "does not divide"),
    "tp that the draft cannot take": (["llama3-70b", "--draft", "qwen2.5-0.5b", "--tp", "4"], "does not divide"),
    "draft tp differs": (["llama3-70b", "--draft", "llama3.2-1b", "--tp", "4", "--draft-tp", "1"], "4"),
    "utilisation 0": (["llama3-8b", "--gpu-memory-utilization", "0"], "(0, 1]"),
    "utilisation above 1": (["llama3-8b", "--gpu-memory-utilization", "1.1"], "(0, 1]"),
    "utilisation NaN": (["llama3-8b", "--gpu-memory-utilization", "nan"], "(0, 1]"),
    "batch 0": (["llama3-8b", "--batch", "0"], "at least 1"),
    "context negative": (["llama3-8b", "--context", "-5"], "-5"),
    "context a word": (["llama3-8b", "--context", "long"], "long"),
    "max length 0": (["llama3-8b", "--max-model-len", "0"], "at least 1"),
    "max length a word": (["llama3-8b", "--max-model-len", "all"], "all"),
    "workspace without a unit": (["llama3-8b", "--workspace", "2"], "2 has no unit"),
    "workspace negative": (["llama3-8b", "--workspace", "-2 GiB"], "at least 0"),
    "workspace in a wrong unit": (["llama3-8b", "--workspace", "2 GB/s"], "unknown memory unit"),
    "unknown kv format": (["llama3-8b", "--kv-cache-dtype", "fp7"], "fp7"),
    "unknown memory source": (["llama3-8b", "--memory", "guess"], "driver"),
    "unknown option": (["llama3-8b", "--speed", "9"], "--speed"),
    "no model": ([], "target"),
    "draft tp without a draft": (["llama3-8b", "--draft-tp", "1"], "needs a --draft"),
    "k beyond every use": (["llama3-8b", "-k", "9" * 400], "at most 1,000,000,000"),
    "batch beyond every use": (["llama3-8b", "--batch", "1" + "0" * 21], "at most 1,000,000,000"),
    "context beyond every use": (["llama3-8b", "--context", "9" * 400], "at most 1,000,000,000"),
    "context of more digits than Python reads": (["llama3-8b", "--context", "9" * 5000], "at most 1,000,000,000"),
    "max length beyond every use": (["llama3-8b", "--max-model-len", "9" * 400], "at most 1,000,000,000"),
}

MODEL_FILES = {
    "broken YAML": (b"name: [unclosed", "spec.yaml"),
    "empty file": (b"", "spec.yaml"),
    "a list": (b"- 1\n- 2\n", "spec.yaml"),
    "a bare word": (b"llama", "spec.yaml"),
    "binary file": (bytes(range(256)) * 8, "spec.yaml"),
    "truncated UTF-8": (b"name: caf\xc3", "spec.yaml"),
    "missing field": (model_with("hidden_size: 8\n", "").encode(), "hidden_size"),
    "unknown field": ((GOOD_MODEL + "colour: red\n").encode(), "colour"),
    "negative size": (model_with("hidden_size: 8", "hidden_size: -8").encode(), "hidden_size"),
    "zero heads": (model_with("heads: 2", "heads: 0").encode(), "heads"),
    "NaN size": (model_with("vocab_size: 100", "vocab_size: .nan").encode(), "vocab_size"),
    "size as text": (model_with("vocab_size: 100", "vocab_size: many").encode(), "vocab_size"),
    "fractional size": (model_with("vocab_size: 100", "vocab_size: 100.5").encode(), "vocab_size"),
    "unknown format": (model_with("dtype: bfloat16", "dtype: bfloat17").encode(), "bfloat17"),
    "order names no layer": (model_with("order: 2x block", "order: 2x brick").encode(), "brick"),
    "order does not parse": (model_with("order: 2x block", "order: 2x (block").encode(), "order"),
    "kv heads that do not divide heads": (model_with("kv_heads: 1", "kv_heads: 3").encode(), "kv_heads"),
    "a tag that would run code": (b"!!python/object/apply:os.system ['true']\n", "spec.yaml"),
}

CARD_FILES = {
    "bare number": (card_with("900 GB/s", "900"), "900 has no unit"),
    "bare quantity without source": (card_with("{value: 900 GB/s, source: label}", "900 GB/s"), "source"),
    "negative bandwidth": (card_with("900 GB/s", "-900 GB/s"), "at least 0"),
    "wrong unit": (card_with("900 GB/s", "900 GiB"), "bandwidth"),
    "missing bandwidth": (card_with("bandwidth: {value: 900 GB/s, source: label}\n", ""), "bandwidth"),
    "unknown field": (GOOD_CARD + "price: 3\n", "price"),
    "NaN": (card_with("900 GB/s", ".nan"), "bandwidth"),
    "memory not finite": (card_with("24 GiB", "1e999 GiB"), "finite"),
    "broken YAML": ("name: {", "card.yaml"),
    "binary": ("\x00\x01\x02", "card.yaml"),
}


def check(outcome, needed: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1, outcome.err
    assert outcome.err.startswith("specplan: ")
    assert needed in outcome.err, outcome.err


@pytest.mark.parametrize(("argv", "needed"), OPTIONS.values(), ids=OPTIONS)
def test_options(specplan, argv: list[str], needed: str) -> None:
    check(specplan("cost", *argv), needed)


@pytest.mark.parametrize(("content", "needed"), MODEL_FILES.values(), ids=MODEL_FILES)
def test_model_files(specplan, tmp_path: Path, content: bytes, needed: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    check(specplan("cost", str(path)), needed)


@pytest.mark.parametrize(("content", "needed"), CARD_FILES.values(), ids=CARD_FILES)
def test_hardware_files(specplan, tmp_path: Path, content: str, needed: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(content)
    check(specplan("cost", "llama3-8b", "--gpu", str(path)), needed)


def test_the_good_files_behind_the_bad_ones_are_good(specplan, tmp_path: Path) -> None:
    model, card = tmp_path / "spec.yaml", tmp_path / "card.yaml"
    model.write_text(GOOD_MODEL)
    card.write_text(GOOD_CARD)
    assert specplan("cost", str(model), "--gpu", str(card)).code == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: folder / "absent.yaml",
        lambda folder: folder,
        lambda folder: (folder / "config.json").write_text("{not json") and folder,
        lambda folder: (folder / "config.json").write_text('{"model_type": "no-such-type"}') and folder,
        lambda folder: (folder / "config.json").write_text("[1, 2]") and folder / "config.json",
        lambda folder: (folder / "config.json").write_bytes(b"\x00" * 64) and folder / "config.json",
        lambda folder: (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": "big"}') and folder,
    ],
    ids=["absent", "folder without config", "broken JSON", "unknown type", "a list", "zeros", "wrong type"],
)
def test_paths(specplan, tmp_path: Path, make) -> None:
    check(specplan("cost", str(make(tmp_path))), "")


@pytest.mark.parametrize("command", ["models", "hardware"])
def test_unknown_names_in_lists(specplan, command: str) -> None:
    check(specplan(command, "no-such-thing"), "no-such-thing")


def test_unknown_symbol(specplan) -> None:
    check(specplan("explain", "zeta"), "alpha-dagger")


def test_unknown_command(specplan) -> None:
    check(specplan("price"), "price")


def test_debug_shows_the_traceback() -> None:
    from specplan.cli.app import main
    from specplan.errors import NotFoundError

    with pytest.raises(NotFoundError):
        main(["cost", "llama3-71b", "--debug"])
