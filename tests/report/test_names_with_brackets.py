"""Names that look like console markup are printed as they stand by every table."""

import json
from pathlib import Path

import pytest

from specplan.cli.app import main

NAME = "mine [/x] [bold]"


@pytest.fixture
def spec(tmp_path: Path) -> str:
    text = (
        f'name: "{NAME}"\nsource: "a [/place]"\nvocab_size: 100\nhidden_size: 8\ntied_embeddings: false\n'
        "dtype: bfloat16\nmax_position: 64\nlayers:\n"
        "  block: {attention: {heads: 2, kv_heads: 1, head_dim: 4}, mlp: {width: 16}}\norder: 2x block\n"
    )
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(argv))
    out = capsys.readouterr()
    assert stop.value.code in (0, 1), out.err
    return " ".join(out.out.split())


@pytest.mark.parametrize(
    "argv",
    [
        ("cost", "SPEC", "--draft", "SPEC", "--alpha", ".5"),
        ("models", "SPEC"),
        ("tune", "SPEC", "--draft", "SPEC", "--alpha", ".5"),
        ("tie", "SPEC", "ngram", "--target", "SPEC", "--alpha", ".5"),
        ("plane", "SPEC", "--draft", "SPEC", "--alpha", ".5"),
        ("plane", "SPEC", "--draft", "SPEC", "--alpha", ".5", "--kind", "kappa"),
    ],
    ids=lambda argv: " ".join(argv[:1] + argv[-2:]),
)
def test_every_table_prints_the_name(
    spec: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "[/x]" in printed(capsys, *(spec if a == "SPEC" else a for a in argv))


def test_tags_and_sources_of_a_replay_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    row = {"id": "a", "kind": "tag [/x]", "prompt_token_ids": [1, 2, 3, 1, 2], "output_token_ids": [3, 1, 2, 3, 1]}
    (tmp_path / "trace.jsonl").write_text(json.dumps(row) + "\n")
    argv = ("replay", str(tmp_path / "trace.jsonl"), "-s", "ngram:min=1,max=2,k=2")
    assert "tag [/x]" in printed(capsys, *argv)
