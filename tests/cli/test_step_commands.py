"""`compare`, `schedule` and `validate` on the command line: documents, exit codes, one-line errors."""

import json

import pytest

COMPARE = ("compare", "llama3-70b", "--gpu", "h100-sxm", "--tp", "4", "--batch", "1,8,32,64", "--context", "2k,32k")
SOURCES = ("--source", "ngram:coverage=.4,alpha=.8", "--source", "llama3.2-1b:alpha=.7")


def test_compare_prints_one_document(specplan):
    done = specplan(*COMPARE, *SOURCES, "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["schema_version"] == 1
    assert document["inputs"]["batch"] == [1, 8, 32, 64]
    assert document["inputs"]["context"] == [2048, 32768]
    assert len(document["cells"]) == 3 * 4 * 2
    assert len(document["capacities"]) == 3 * 2
    assert {"provenance", "assumptions", "not_modeled", "sensitivity", "error_band", "layer"} <= set(document)


def test_compare_shows_layer_verdicts_and_marks_what_does_not_fit(specplan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = specplan(*COMPARE, *SOURCES)
    assert done.code == 0
    for expected in ("modelled", "pays", "draft cost", "64*", "what moves the speedup", "not modelled", "coverage"):
        assert expected in done.out


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_tables_fit_the_terminal_without_cut_figures(specplan, monkeypatch, columns: int):
    monkeypatch.setenv("COLUMNS", str(columns))
    done = specplan(*COMPARE, *SOURCES, "--price", "2.5")
    assert all(len(line) <= columns for line in done.out.splitlines())
    assert "…" not in done.out
    assert specplan("validate").out.count("…") == 0


def test_a_verdict_is_an_exit_code(specplan):
    assert specplan("compare", "llama3-8b", "-s", "llama3.2-1b:alpha=.7", "--verdict", "--json").code == 0
    assert specplan("compare", "llama3-8b", "-s", "llama3.2-1b:alpha=.05", "--verdict", "--json").code == 1
    assert specplan("compare", "llama3-8b", "-s", "llama3.2-1b:alpha=.05", "--json").code == 0
    assert "verdict: no, no source is sure to pay at batch 1, context 2,048" in " ".join(
        specplan("compare", "llama3-8b", "-s", "llama3.2-1b:alpha=.05", "--verdict").out.split()
    )


def test_the_bound_shows_both_of_its_ends(specplan):
    done = specplan("compare", "llama3-8b", "-s", "ngram:alpha=.5,k=3", "--layer", "roofline")
    row = next(line.split() for line in done.out.splitlines() if " none " in line and "-" in line)
    low, high = map(float, row[2].split("-"))
    assert 0 < low < high


def test_k_on_the_command_line_is_for_sources_that_fix_none(specplan):
    done = specplan(
        "compare", "llama3-8b", "-s", "ngram:alpha=.5", "-s", "ngram-host:alpha=.5,k=2", "-k", "5", "--json"
    )
    kappas = {c["source"].partition(":")[0]: c["kappa"] for c in json.loads(done.out)["cells"]}
    assert kappas == {"none": 0, "ngram": 5, "ngram-host": 2}


def test_a_measured_table_is_read(specplan, tmp_path):
    table = tmp_path / "steps.json"
    table.write_text(json.dumps({"rows": [{"batch": 1, "width": w, "seconds": 0.01 + 0.001 * w} for w in (1, 4)]}))
    options = ("--layer", "measured", "--measured", f"llama3-8b={table}", "--json")
    done = specplan("compare", "llama3-8b", "-s", "ngram:alpha=.5,k=3", *options)
    assert done.code == 0
    cell = json.loads(done.out)["cells"][1]
    assert cell["verify_s"] == pytest.approx(0.014)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_schedule_prints_one_document_with_a_command(specplan, engine: str):
    done = specplan("schedule", "llama3-8b", "--draft", "llama3.2-1b", "--alpha", ".7", "--engine", engine, "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["schedules"][0]["ranges"][0]["first"] == 1
    assert "meta-llama/Llama-3.2-1B" in document["command_line"]
    assert document["warnings"]


def test_schedule_prints_a_line_to_paste_unbroken(specplan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    done = specplan("schedule", "llama3-8b", "--draft", "llama3.2-1b", "--alpha", ".7")
    line = next(line for line in done.out.splitlines() if line.startswith("vllm serve"))
    assert line.endswith("}'")


def test_validate_prints_medians_and_checks_them(specplan):
    done = specplan("validate", "--json", "--check")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["holds"] is True
    assert {t["name"] for t in document["tables"]} >= {"magicdec", "moesd"}
    assert all({"predicted", "published", "error", "use"} <= set(r) for t in document["tables"] for r in t["rows"])


def test_validate_shows_each_row_of_one_table(specplan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = specplan("validate", "draft-costs")
    assert done.code == 0
    assert "chinchilla" in done.out
    assert "0.128" in done.out


def test_validate_startup_replays_recorded_start_ups(specplan):
    done = specplan("validate", "startup", "--json")
    assert done.code == 0
    assert json.loads(done.out)["summaries"]


BAD = {
    "no source": (("compare", "llama3-8b"), None),
    "unknown target": (("compare", "lama3-8b", "-s", "ngram:alpha=.5"), "llama3-8b"),
    "unknown card": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "--gpu", "h100sxm"), "did you mean h100-sxm"),
    "unknown draft": (("compare", "llama3-8b", "-s", "lama3.2-1b:alpha=.5"), "llama3.2-1b"),
    "no acceptance": (("schedule", "llama3-8b", "-s", "ngram"), "its acceptance is not given"),
    "k of 0": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "-k", "0"), "must be at least 1"),
    "bad batch": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "-b", "1,many"), "whole number of tokens"),
    "bad layer": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "--layer", "x"), "unknown layer"),
    "bad table": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "--measured", "x"), "expected NAME=FILE"),
    "bad workspace": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "--workspace", "2"), "has no unit"),
    "tp": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "--tp", "3"), "does not divide"),
    "tp against kv heads": (("compare", "phi-4", "-s", "ngram:alpha=.5", "--tp", "8"), "10 key-value heads"),
    "huge batch": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "-b", "9" * 400), "at most 1,000,000,000"),
    "huge context": (("compare", "llama3-8b", "-s", "ngram:alpha=.5", "--context", "9" * 400), "1,000,000,000"),
    "schedule: tp": (("schedule", "llama3-8b", "-s", "ngram:alpha=.5", "--tp", "3"), "does not divide"),
    "schedule: tp against kv heads": (("schedule", "phi-4", "-s", "ngram:alpha=.5", "--tp", "8"), "10 key-value heads"),
    "schedule: tp of the draft": (("schedule", "llama3-70b", "-d", "qwen2.5-0.5b", "-a", ".7", "--tp", "8"), "14 att"),
    "schedule: utilisation": (
        ("schedule", "llama3-8b", "-s", "ngram:alpha=.5", "--gpu-memory-utilization", "nan"),
        "(0, 1]",
    ),
    "schedule: temperature": (("schedule", "llama3-8b", "-s", "ngram:alpha=.5", "--temperature", "nan"), "finite"),
    "draft without alpha": (("schedule", "llama3-8b", "--draft", "llama3.2-1b"), "needs its --alpha"),
    "draft and source": (("schedule", "llama3-8b", "--draft", "a", "--source", "ngram:alpha=.5"), "either --draft"),
    "no draft at all": (("schedule", "llama3-8b"), "either --draft"),
    "engine": (("schedule", "llama3-8b", "-s", "ngram:alpha=.5", "--engine", "tgi"), "vllm and sglang"),
    "margin": (("schedule", "llama3-8b", "-s", "ngram:alpha=.5", "--margin", "2"), "--margin 2"),
    "unknown table": (("validate", "nothing"), "no published table 'nothing'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(specplan, case: str):
    argv, expected = BAD[case]
    done = specplan(*argv)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    if expected is not None:  # usage errors are printed by the option parser, with its frame
        assert expected in done.err
        assert done.err.count("\n") == 1


def test_one_spelling_is_one_question_to_every_command(specplan):
    spelled = "llama3.2-1b:alpha=.7,k=3"
    place = ("llama3-70b", "--gpu", "h100-sxm", "--tp", "4")

    def asked(*argv: str) -> dict:
        done = specplan(*argv, "--json")
        assert done.code in (0, 1), done.err
        return json.loads(done.out)

    short, long = asked("cost", *place, "-d", "llama3.2-1b", "-a", "0.7"), asked("cost", *place, "-s", spelled)
    assert short.pop("inputs") != long.pop("inputs")  # each states what was asked
    one, other = short.pop("engine"), long.pop("engine")
    assert other.pop("c") == pytest.approx(one.pop("c"), rel=1e-12)
    assert {k: v for k, v in other.items() if not isinstance(v, float)} == {
        k: v for k, v in one.items() if not isinstance(v, float)
    }
    for key, value in one.items():
        if isinstance(value, float):
            assert other[key] == pytest.approx(value, rel=1e-12)
    assert long == short
    load = ("--batch", "8", "--context", "2048", "--layer", "modelled")
    (cell,) = [c for c in asked("compare", *place, "-s", spelled, *load)["cells"] if c["source"] == spelled]
    (point,) = asked("plane", *place, "-s", spelled, *load)["planes"][0]["points"]
    assert point["speedup"] == pytest.approx(cell["speedup"], rel=1e-9)
    for text in ("ngram:min=2,max=5,k=3,rule=vllm-v1,alpha=.7", "suffix:factor=2,alpha=.5,k=8", "mine:c=.05,alpha=.8"):
        assert asked("compare", *place, "-s", text)["inputs"]["sources"] == [text]
        assert asked("tune", place[0], *place[1:], "-s", text)["sources"]
        assert specplan("blocks", *place, "-s", text).code == 0
        assert specplan("cost", *place, "-s", text).code == 0
