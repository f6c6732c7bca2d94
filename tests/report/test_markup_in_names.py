"""Names, paths and sources may hold square brackets; once `[/x]` in a name ended a table with a traceback."""

import json
from pathlib import Path

import pytest

from specplan.cli.app import main

NAME = "a[/x][bold]b"
MODEL = """\
name: '{name}'
source: 'made for this test [/red]'
vocab_size: 128256
hidden_size: 512
tied_embeddings: true
dtype: bfloat16
max_position: 8192
layers:
  block: {{attention: {{heads: 8, kv_heads: 2, head_dim: 64}}, mlp: {{width: 2048}}}}
order: 4x block
"""
CARD = """\
name: '{name}'
vendor: '[/v]'
family: new
memory:
  driver: {{value: 24 GiB, source: 'label [/a]'}}
  torch: {{value: 23.5 GiB, source: 'label [/b]'}}
bandwidth: {{value: 900 GB/s, source: 'label [/c]'}}
flops:
  bfloat16: {{value: 100 TFLOP/s, source: 'label [/d]'}}
note: 'note [/e]'
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    folder = tmp_path / "[odd]"  # brackets alone are fine in a path, a closing tag would need a slash
    folder.mkdir()
    model, card = folder / "m.yaml", folder / "c.yaml"
    model.write_text(MODEL.format(name=NAME))
    card.write_text(CARD.format(name=NAME))
    return str(model), str(card)


@pytest.mark.parametrize(
    "command",
    [
        ("cost", "{m}", "--gpu", "{c}", "--draft", "{m}", "--alpha", ".7"),
        ("cost", "{m}", "--gpu", "{c}", "--draft", "{m}", "--workspace", "900 GiB"),
        ("blocks", "{m}", "--gpu", "{c}", "--draft", "{m}"),
        ("blocks", "{m}", "--gpu", "{c}", "--engine", "sglang", "--draft", "{m}"),
        ("blocks", "{m}", "--gpu", "{c}", "--weights", "900 GiB"),
        ("compare", "{m}", "--gpu", "{c}", "--source", "{m}:alpha=.7"),
        ("schedule", "{m}", "--gpu", "{c}", "--source", "{m}:alpha=.7"),
        ("models", "{m}"),
        ("hardware", "{c}"),
    ],
    ids=" ".join,
)
def test_brackets_are_printed_as_they_are(
    command: tuple[str, ...],
    files: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model, card = files
    argv = [word.replace("{m}", model).replace("{c}", card) for word in command]
    with pytest.raises(SystemExit) as stop:
        main(argv)
    shown = capsys.readouterr()
    assert (stop.value.code or 0) in (0, 1), shown.err
    assert NAME in shown.out
    assert "[green]" not in shown.out
    with pytest.raises(SystemExit):
        main([*argv, "--json"])
    json.loads(capsys.readouterr().out)
