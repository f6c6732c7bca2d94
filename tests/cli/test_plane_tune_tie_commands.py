"""`specplan plane`, `tune` and `tie`: the commands' documents, files and exit codes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from specplan.formulas.indifference import free_draft_tie
from specplan.formulas.speedup import speedup

CHAPTER = ("--layer", "roofline", "--context", "0")
"""Weights alone at the card's peaks, as the chapter counts."""
FIGURE_1 = ("plane", "llama3-8b", "llama3-70b", "--draft", "llama3.2-1b", "--gpu", "h100-sxm", "-k", "3", *CHAPTER)


def document(specplan, *argv: str, code: int = 0) -> dict:
    outcome = specplan(*argv, "--json")
    assert (outcome.code, outcome.err) == (code, ""), outcome.err
    found = json.loads(outcome.out)
    assert found["schema_version"] == 1
    assert {"inputs", "assumptions", "not_modeled", "provenance"} <= found.keys()
    return found


def test_figure_1_of_the_chapter(specplan, tmp_path: Path) -> None:
    picture = tmp_path / "plane.svg"
    outcome = specplan(*FIGURE_1, "-o", str(picture))
    assert outcome.code == 0
    assert "0.164664 derived" in outcome.out
    assert "0.0177801 derived" in outcome.out
    said = picture.read_text(encoding="utf-8")
    assert "pays above α = 0.340" in said
    assert "pays above α = 0.051" in said


def test_points_and_their_ties(specplan) -> None:
    found = document(specplan, *FIGURE_1, "--alpha", "0.7")
    (plane,) = found["planes"]
    assert plane["verify_factor"] == 1.0
    assert plane["lines"] == []
    by_target = {p["target"]: p for p in plane["points"]}
    assert by_target["llama3-70b"]["speedup"] == pytest.approx(2.4047, abs=5e-5)
    assert by_target["llama3-70b"]["alpha_dagger"] == pytest.approx(0.6659, abs=5e-5)
    assert by_target["llama3-8b"]["speedup"] == pytest.approx(1.6955, abs=5e-5)
    assert by_target["llama3-8b"]["alpha_dagger"] == pytest.approx(0.4304, abs=5e-5)
    assert by_target["llama3-8b"]["c_origin"] == "derived"
    assert by_target["llama3-8b"]["alpha_origin"] == "assumed"


def test_one_alpha_for_each_target(specplan) -> None:
    found = document(specplan, *FIGURE_1, "-a", ".6", "-a", "llama3-70b=.5..0.6..0.7", "-a", "llama3.2-1b/llama3-8b=.8")
    points = {p["target"]: p for p in found["planes"][0]["points"]}
    assert points["llama3-8b"]["alpha"] == 0.8
    assert (points["llama3-70b"]["alpha"], points["llama3-70b"]["alpha_low"]) == (0.6, 0.5)


def test_without_alpha_nothing_is_assumed(specplan) -> None:
    found = document(specplan, *FIGURE_1)
    assert found["planes"][0]["points"] == []
    for line in found["planes"][0]["lines"]:
        assert line["alpha"] is None
        assert float(speedup(line["alpha_break_even"], 3, line["c"])) == pytest.approx(1.0, rel=1e-12)


def test_a_batch_past_the_ridge_moves_the_contours(specplan) -> None:
    found = document(specplan, "plane", "llama3-70b", "--tp", "4", "-k", "24", "--batch", "16", *CHAPTER)
    (plane,) = found["planes"]
    assert plane["verify_factor"] == pytest.approx(400 / plane["ridge_positions"], rel=1e-9)
    assert plane["ridge_batch"] == pytest.approx(plane["ridge_positions"] / 25)
    one = next(c for c in plane["contours"] if c["speedup"] == 1.0)
    assert one["c"][0] == pytest.approx(0.0, abs=1e-12)
    assert one["alpha"][0] > 0.2  # even a free draft must be right that often


def test_different_verify_factors_give_a_plane_each(specplan, tmp_path: Path) -> None:
    argv = ("plane", "llama3-8b", "mixtral-8x7b", "-d", "llama3.2-1b", "-a", ".7", "-s", "ngram:alpha=.6,coverage=.5")
    found = document(specplan, *argv, *CHAPTER, "-o", str(tmp_path / "x.png"))
    assert [p["title"] for p in found["planes"]] == ["llama3-8b", "mixtral-8x7b"]
    for plane in found["planes"]:
        for point in plane["points"]:
            assert point["verify_factor"] == pytest.approx(plane["verify_factor"])
            assert point["verify_origin"] == "derived"


def test_the_modelled_layer_says_what_it_rests_on(specplan) -> None:
    found = document(specplan, *FIGURE_1, "-a", ".7", "--tp", "4", "--layer", "modelled")
    assert any("vllm" in line for line in found["assumptions"])
    cs = [p["c"] for plane in found["planes"] for p in plane["points"]]
    assert min(cs) > 0.05  # a 1B draft of a 70B target costs far more than its bytes


def test_arrays_as_csv_and_as_json(specplan, tmp_path: Path) -> None:
    table, tree = tmp_path / "plane.csv", tmp_path / "plane.json"
    assert specplan(*FIGURE_1, "-a", ".7", "--data", str(table), "--cells", "21").code == 0
    assert specplan(*FIGURE_1, "-a", ".7", "--data", str(tree), "--cells", "21").code == 0
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    grid = [r for r in rows if r["what"] == "grid"]
    assert len(grid) == 21 * 21
    for r in rows:
        if r["what"] in ("contour", "grid", "indifference", "line", "point"):
            got = float(speedup(float(r["alpha"]), 3, float(r["c"])))
            assert got == pytest.approx(float(r["speedup"]), rel=1e-9)
    tie = next(r for r in rows if r["what"] == "alpha-dagger" and "8b" in r["name"])
    assert float(tie["alpha"]) == pytest.approx(float(free_draft_tie(0.7, 3, 0.16466396534860978)), rel=1e-9)
    found = json.loads(tree.read_text(encoding="utf-8"))["planes"][0]["grid"]
    want = speedup(np.array(found["alpha"])[None, :], 3, np.array(found["c"])[:, None])
    np.testing.assert_allclose(found["speedup"], want, rtol=1e-12)


def test_measured_points_from_a_document_and_from_step_records(specplan, tmp_path: Path) -> None:
    report = tmp_path / "replay.json"
    row = {"source": "ngram:k=3", "alpha": 0.8, "alpha_low": 0.7, "alpha_high": 0.9, "coverage": 0.5}
    report.write_text(json.dumps({"sources": [row | {"drafts": 10, "drafted_tokens": 30}]}), encoding="utf-8")
    steps = tmp_path / "steps.jsonl"
    lines = [
        {"request": str(i % 3), "step": i, "source": "suffix", "context_len": 9, "drafted": 4, "accepted": i % 5}
        | {"emitted": i % 5 + 1}
        for i in range(40)
    ]
    steps.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = document(specplan, "plane", "--points", str(report), "--points", str(steps))
    ngram, suffix = found["planes"][0]["points"]
    assert (ngram["source"], ngram["alpha_low"], ngram["coverage"]) == ("ngram", 0.7, 0.5)
    assert suffix["tokens_per_drafted_step"] == pytest.approx(3.0)
    assert suffix["speedup"] == pytest.approx(3.0)
    assert suffix["alpha"] == pytest.approx(80 / (80 + 32))  # 8 of each accepted count; four of five are rejected once
    assert suffix["alpha_low"] < suffix["alpha"] < suffix["alpha_high"]
    assert suffix["alpha_origin"] == "measured"


@pytest.mark.parametrize("kind", ["kappa", "batch", "coverage", "context"])
def test_curves_over_an_axis(specplan, tmp_path: Path, kind: str) -> None:
    picture, table = tmp_path / "x.png", tmp_path / "x.csv"
    argv = ("plane", "llama3-8b", "-d", "llama3.2-1b", "-a", ".7", "-s", "suffix:alpha=.8,coverage=.6,k=16")
    found = document(specplan, *argv, "--kind", kind, "-o", str(picture), "--data", str(table))
    assert picture.stat().st_size > 10_000
    names = ["llama3.2-1b → llama3-8b", "suffix"]
    x = found["axis"]["values"]
    for region in found["best"]:
        inside = [i for i, v in enumerate(x) if region["low"] < v < region["high"]]
        for i in inside:
            speeds = [curve["speedup"][i] for curve in found["curves"]]
            best = None if max(speeds) <= 1 else names[int(np.argmax(speeds))]
            assert best == region["source"]
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    assert len(rows) == 2 * len(x)
    for r in rows:
        runs_to = found["curves"][0]["runs_to"]
        if r["name"].startswith("llama") and (runs_to is None or float(r[kind]) <= runs_to):
            got = float(
                speedup(0.7, int(float(r["kappa"])) if kind == "kappa" else 3, float(r["c"]), float(r["verify_factor"]))
            )
            assert got == pytest.approx(float(r["speedup"]), rel=1e-9)


def test_tune_table_gives_the_published_optima(specplan) -> None:
    found = document(specplan, "tune")
    assert found["best"][2] == [9, 8, 6, 4, 3]
    outcome = specplan("tune", "--alpha", ".5,.7", "--c", ".165")
    assert outcome.code == 0
    assert "3 (1.69x)" in outcome.out


def test_tune_a_named_pair_and_what_a_wrong_kappa_loses(specplan) -> None:
    found = document(specplan, "tune", "llama3-8b", "-d", "llama3.2-1b", "-a", ".7", *CHAPTER)
    (pair,) = found["sources"]
    assert (pair["best"], pair["last_paying"], pair["within_2_percent"]) == (3, 3, [3, 4])
    assert pair["loss"][7] == pytest.approx(1 - pair["speedup"][7] / pair["best_speedup"], rel=1e-12)
    free = document(specplan, "tune", "llama3-8b", "-d", "llama3.2-1b", "-a", ".5,.9", *CHAPTER)
    assert free["sources"][0]["best"] == [2, 7]


def test_tune_exits_with_1_where_nothing_pays(specplan) -> None:
    outcome = specplan("tune", "-s", "draft:c=.5,alpha=.3")
    assert outcome.code == 1
    assert "do not speculate" in outcome.out


def test_tie_of_the_chapter(specplan) -> None:
    found = document(specplan, "tie", "llama3.2-1b", "ngram", "-t", "llama3-8b", "--alpha", "0.7", "-k", "3", *CHAPTER)
    assert found["answers"]["alpha"]["value"] == pytest.approx(0.4304, abs=5e-5)
    assert found["alpha_by_coverage"][-1]["alpha"] == pytest.approx(0.4304, abs=5e-5)
    outcome = specplan("tie", "draft:c=0.165,alpha=.7", "ngram")
    assert outcome.code == 0
    assert "0.4300" in outcome.out


def test_tie_exits_with_1_where_no_quantity_is_enough(specplan) -> None:
    outcome = specplan("tie", "a:c=0,alpha=.95,k=8", "b:c=.5,k=1")
    assert outcome.code == 1
    assert "not even with every drafted token accepted" in " ".join(outcome.out.split())


def test_an_eagle_head_is_made_for_its_target(specplan) -> None:
    found = document(specplan, "plane", "llama3-8b", "-s", "eagle:alpha=.8/.7/.6,k=3")
    (point,) = found["planes"][0]["points"]
    assert 0.05 < point["c"] < 0.16
    assert point["hazard"] == [0.8, 0.7, 0.6]


BAD = {
    "unknown kind": (["plane", "--kind", "width"], "one of plane, kappa, batch, coverage, context"),
    "unknown picture": (["plane", "-o", "x.bmp"], "must end in .svg, .png, .pdf or .pgf"),
    "unknown data": (["plane", "--data", "x.txt"], "must end in .csv or .json"),
    "no such folder": (["plane", "-o", "no/such/x.svg"], "does not exist"),
    "draft without target": (["plane", "-d", "llama3.2-1b"], "name the target"),
    "unknown target": (["plane", "llama3-9b"], "llama3-8b"),
    "unknown source key": (["plane", "-s", "ngram:alpah=.5"], "did you mean alpha"),
    "source without cost": (["plane", "-s", "mine:alpha=.5"], "give its cost (c=...)"),
    "alpha out of range": (["plane", "llama3-8b", "-d", "llama3.2-1b", "-a", "1.5"], "lie in [0, 1]"),
    "alpha not a number": (["plane", "llama3-8b", "-d", "llama3.2-1b", "-a", "nan"], "must be finite"),
    "alpha for nobody": (["plane", "llama3-8b", "-d", "llama3.2-1b", "-a", "x=.5"], "no --draft or target"),
    "alpha without draft": (["plane", "llama3-8b", "-a", ".5"], "--alpha belongs to --draft"),
    "kappa 0": (["plane", "-k", "0"], "must be at least 1"),
    "batch 0": (["plane", "llama3-8b", "-b", "0"], "must be at least 1"),
    "ridge 0": (["plane", "--ridge", "0"], "must be finite and above 0"),
    "c-max 0": (["plane", "--c-max", "0"], "above 0"),
    "c-max too small": (["plane", "-s", "x:c=.3", "--c-max", ".1"], "would cut off"),
    "level 0": (["plane", "--levels", "0"], "contour 0"),
    "level text": (["plane", "--levels", "a"], "'a' is not a number"),
    "width": (["plane", "--width", "1"], "3 to 40 inches"),
    "unknown layer": (["plane", "llama3-8b", "--layer", "guess"], "one of roofline, modelled"),
    "sweep of nothing": (["plane", "--kind", "kappa"], "needs sources"),
    "sweep of free alpha": (["plane", "llama3-8b", "-d", "llama3.2-1b", "--kind", "batch"], "has no acceptance"),
    "points missing": (["plane", "--points", "nowhere.json"], "no such file"),
    "cost spelled wrong": (["plane", "--cost", "x"], "write NAME=0.16"),
    "tune target alone": (["tune", "llama3-8b"], "name a --draft or a --source"),
    "tune alpha": (["tune", "--alpha", "2"], "lie in [0, 1]"),
    "tune max 0": (["tune", "--max", "0"], "at least 1"),
    "tune c with source": (["tune", "-s", "x:c=.1,alpha=.5", "--c", ".1"], "--c belongs to the table"),
    "tie without acceptance": (["tie", "x:c=.1", "ngram"], "depends on its acceptance"),
    "tie draft without target": (["tie", "llama3.2-1b", "ngram", "-a", ".7"], "or the target that it drafts for"),
    "tie alpha twice": (["tie", "x:c=.1,hit=.5,cont=.5", "ngram", "-a", ".7"], "acceptance is given twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(specplan, name: str) -> None:
    argv, says = BAD[name]
    outcome = specplan(*argv)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("specplan: ")
    assert says in outcome.err


@pytest.mark.parametrize("content", ["{", "[1, 2]", '{"sources": []}', "\x00\x01"])
def test_broken_point_files_are_one_line(specplan, tmp_path: Path, content: str) -> None:
    for suffix in (".json", ".jsonl"):
        path = tmp_path / f"x{suffix}"
        path.write_text(content, encoding="utf-8")
        outcome = specplan("plane", "--points", str(path))
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert str(path) in outcome.err
