"""Help at any width, its examples, near misses, completion, and tables in every form."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specplan.cli.app import COMMANDS, load
from specplan.cli.help import EXAMPLES

ROOT = Path(__file__).parents[2]
HEAVY = ("measure", "bench", "calibrate")


@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_name_in_full(specplan, monkeypatch, command: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = specplan(command, "--help").out
    assert "…" not in shown
    said = set(re.findall(r"(?<![\w-])--?[\w-]+", shown))
    for param in load(command).params:
        if param.param_type_name == "option":
            assert {*param.opts, *param.secondary_opts} - said <= {o for o in param.opts if not o.startswith("--")}
    above_examples = shown.partition("examples\n")[0]
    assert max(map(len, above_examples.splitlines())) <= columns
    assert len(shown.splitlines()) <= 60
    assert "examples" in shown


def test_help_all_folds_nothing(monkeypatch, specplan) -> None:
    monkeypatch.setattr(sys, "argv", ["specplan", "blocks", "--help-all"])
    assert "--help-all tells them" not in specplan("blocks", "--help-all").out


@pytest.mark.parametrize("line", [line for name, lines in EXAMPLES.items() if name not in HEAVY for line in lines])
def test_every_example_of_the_help_runs(specplan, monkeypatch, tmp_path: Path, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    configs = json.loads((ROOT / "tests/data/model_configs.json").read_text())
    entry = next(iter(configs.values())) if isinstance(configs, dict) else configs[0]
    (tmp_path / "config.json").write_text(json.dumps(entry.get("config", entry)))
    (tmp_path / "metrics.txt").write_text(
        "vllm:spec_decode_num_drafts_total 100\nvllm:spec_decode_num_draft_tokens_total 300\n"
        "vllm:spec_decode_num_accepted_tokens_total 150\nvllm:generation_tokens_total 400\n"
    )
    outcome = specplan(*shlex.split(line)[1:])
    assert outcome.code == 0, outcome.err
    assert outcome.out


def test_every_command_has_two_examples() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    assert all(line.startswith(f"specplan {name} ") or line == f"specplan {name}"
               for name, lines in EXAMPLES.items() for line in lines)  # fmt: skip


def test_a_misspelled_command_gets_its_near_miss(specplan) -> None:
    outcome = specplan("comprae", "llama3-8b")
    assert outcome.code == 2
    assert "did you mean compare?" in outcome.err


def test_without_anything_the_commands_are_shown(specplan) -> None:
    outcome = specplan()
    assert outcome.code == 0
    assert "compare" in outcome.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("words", "offers"), [("specplan com", "compare"), ("specplan cost --gpu-mem", "--gpu-mem")])
def test_bash_completes_commands_and_options(words: str, offers: str) -> None:
    env = os.environ | {
        "_SPECPLAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)
    }  # fmt: skip
    code = "from specplan.cli.app import main; main()"
    shell = ["bash", "-c", f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"]
    done = subprocess.run(shell, env=env, capture_output=True, text=True, check=False)
    assert any(word.startswith(offers) for word in done.stdout.split()), done


LINE = ("compare", "llama3-8b", "-s", "ngram:coverage=.4,alpha=.6", "-s", "llama3.2-1b:alpha=.7", "--batch", "1,512")


def figures(text: str) -> list[str]:
    return sorted(re.findall(r"\d+\.\d+", text))


def test_csv_and_markdown_show_the_figures_of_the_table(specplan, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    table = specplan(*LINE, "--quiet").out
    written = specplan(*LINE, "--format", "csv", "--quiet").out
    first = list(csv.DictReader(io.StringIO(written.partition("\n\n")[0])))
    cells = json.loads(specplan(*LINE, "--format", "json").out)
    assert len(first) > 2
    for row in first:
        assert None not in row
        assert all(value in table for key, value in row.items() if key in ("source", "step", "ms/token", "speedup"))
        assert re.fullmatch(r"\d+", row["tok/s GPU"]), "a number, without commas"
    assert cells["command"] == "compare"
    markdown = specplan(*LINE, "--format", "md", "--quiet").out
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    in_csv = [line for line in written.splitlines() if line]
    rules = [line for line in tables if re.fullmatch(r"\|(:?-+:?\|)+", line)]
    assert len(tables) - len(rules) == len(in_csv)
    assert figures("\n".join(tables)) == figures(written)


def test_quiet_leaves_out_what_is_assumed(specplan) -> None:
    loud, quiet = specplan(*LINE).out, specplan(*LINE, "--quiet").out
    assert "assumed: " in loud
    assert "assumed: " not in quiet
    assert "not modelled: " not in quiet


def test_an_unknown_form_is_refused(specplan) -> None:
    outcome = specplan(*LINE, "--format", "xml")
    assert outcome.code == 2
    assert "expected table, csv, md or json" in outcome.err


@pytest.mark.parametrize("source", ["n-gram", "prompt-lookup", "eagle-3", "EAGLE3", "suffix-decoding"])
def test_methods_answer_to_the_names_that_people_type(specplan, source: str) -> None:
    assert specplan("compare", "llama3-8b", "-s", f"{source}:alpha=.6", "--json").code == 0


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B-FP8", "Qwen/Qwen2.5-7B-Instruct-AWQ", "meta-llama/Llama-3.1-8B-Instruct"]
)
def test_published_names_are_models(specplan, name: str) -> None:
    assert specplan("cost", name, "--gpu", "l40s", "--json").code == 0


HEADED = [
    "compare llama3-70b --tp 4 -s ngram:alpha=.6 -s suffix --price 2",
    "plane llama3-8b -s ngram:alpha=.6",
    "schedule llama3-8b -s ngram:alpha=.6",
    "hardware",
]


@pytest.mark.parametrize("line", HEADED)
def test_explain_knows_every_column(specplan, line: str) -> None:
    first = specplan(*line.split(), "--format", "csv").out.partition("\n\n")[0]
    heads = next(csv.reader(io.StringIO(first)))
    assert len(heads) > 3
    for head in filter(lambda h: h and h != "name" and not re.fullmatch(r"[\d.]+x", h), heads):
        assert specplan("explain", head).code == 0, head


@pytest.mark.parametrize("letter", ["α", "κ", "α†", "τ"])
def test_explain_reads_greek(specplan, letter: str) -> None:
    assert specplan("explain", letter).code == 0
