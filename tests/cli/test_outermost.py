"""What the outermost handler and the console promise: one line, the right exit code, text as text, every figure."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMPARE = ("compare", "llama3-8b", "--gpu", "h100-sxm", "-s", "ngram:alpha=.7", "-s", "llama3.2-1b:alpha=.8")
TABLES = {
    "cost": ("cost", "llama3-8b", "--draft", "llama3.2-1b", "--alpha", ".7"),
    "compare": COMPARE,
    "hardware": ("hardware",),
    "engines": ("engines",),
    "tune": ("tune", "llama3-8b", "--draft", "llama3.2-1b", "--alpha", ".7"),
    "plane": ("plane", "llama3-8b", "--draft", "llama3.2-1b"),
    "schedule": ("schedule", *COMPARE[1:]),
    "import": ("models", "mixtral-8x7b"),
    "chapter": ("check-chapter",),
    "architectures": ("architectures",),
}


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "specplan", *argv], capture_output=True, env=os.environ | env, check=False
    )


class Panic(BaseException):
    """As an extension written in Rust raises it."""


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("no\nsuch\x1b[2J case"), Panic("index out of bounds"), RecursionError()]
)
def test_what_nobody_foresaw_is_one_line_and_exit_70(specplan, monkeypatch, error) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("specplan.specs.catalog.load_model", fail)
    code, out, err = specplan("cost", "llama3-8b")
    assert (code, out) == (70, "")
    assert err.startswith(f"specplan: unexpected {type(error).__name__} in specplan.specs.catalog, line ")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert "report" in err
    assert "--debug" in err
    with pytest.raises(type(error)):
        specplan("--debug", "cost", "llama3-8b")


def test_no_memory_is_said_in_one_line(specplan, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("specplan.specs.catalog.load_model", fail)
    code, _, err = specplan("cost", "llama3-8b")
    assert code == 2
    assert "not enough memory" in err


def test_a_full_disk_is_named() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "specplan", *TABLES["cost"]], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert done.stderr.decode() == "specplan: the output: cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    "name", ["llama\x1b]0;owned\x07", "a\u202eb", "x" * 5000, "two\nlines", "\x9b31m", "http://u:secret@h/x"]
)
def test_names_from_outside_are_text_in_errors(specplan, name: str) -> None:
    code, out, err = specplan("cost", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not set(err[:-1]) & set("\x1b\x07\u202e\n\x9b")
    assert "secret" not in err
    assert len(err) < 900


@pytest.mark.parametrize("columns", ["0", "1", "40", "72"])
@pytest.mark.parametrize("command", TABLES)
def test_every_figure_of_a_wide_table_is_in_a_narrow_one(specplan, monkeypatch, command: str, columns: str) -> None:
    def figures() -> set[str]:
        code, out, _ = specplan(*TABLES[command])
        assert code == 0
        # A long figure may break over two lines where hardly a column is left; nothing else may be lost.
        return set(out) - set(" \n") if columns == "1" else set(re.findall(r"(?<![\S])\d+(?:[.,]\d+)*", out))

    monkeypatch.setenv("COLUMNS", "400")
    wide = figures()
    monkeypatch.setenv("COLUMNS", columns)
    assert wide <= figures()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_every_encoding_shows_the_table(encoding: str) -> None:
    done = run(*COMPARE, PYTHONIOENCODING=encoding, COLUMNS="150")
    assert (done.returncode, done.stderr) == (0, b"")
    out = done.stdout.decode(encoding)
    assert "ngram" in out
    assert "\\" not in out
