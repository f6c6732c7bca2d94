"""One question to every command that can answer it: one pool, one count of requests, one speedup, one best length."""

import json

import pytest

PLACE = ("--gpu", "h100-sxm", "--tp", "4")
LENGTH = 2048


def answer(specplan, *argv: str) -> dict:
    done = specplan(*argv, *PLACE, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("load", [1, 64])
@pytest.mark.parametrize("layer", ["roofline", "modelled"])
def test_every_command_gives_one_answer(specplan, load: int, layer: str) -> None:
    at = ("--context", str(LENGTH), "--layer", layer)
    draft = ("--draft", "llama3.2-1b", "--alpha", "0.7")
    batch = ("--batch", str(load))
    free, fixed = "llama3.2-1b:alpha=.7", "llama3.2-1b:alpha=.7,k=3"
    cost = answer(
        specplan, "cost", "llama3-70b", *draft, "-k", "3", *batch, "--context", str(LENGTH), "--max-model-len", "2048"
    )
    blocks = answer(specplan, "blocks", "llama3-70b", "-d", "llama3.2-1b", "-k", "3", "--max-model-len", str(LENGTH))
    compare = answer(specplan, "compare", "llama3-70b", "-s", fixed, *batch, *at)
    best = answer(specplan, "compare", "llama3-70b", "-s", free, *batch, *at)
    tune = answer(specplan, "tune", "llama3-70b", *draft, "--max-k", "8", *batch, *at)
    plane = answer(specplan, "plane", "llama3-70b", *draft, "-k", "3", *batch, *at)
    schedule = answer(specplan, "schedule", "llama3-70b", "-s", fixed, *at)

    # The pool, and the requests that it holds.
    alone, drafted = cost["engine"]["pool"], cost["engine"]["pool_with_draft"]
    together = blocks["requests_together"]
    assert (alone["requests"], drafted["requests"]) == (together["without_draft"], together["with_draft"])
    assert drafted["tokens"] == blocks["with_draft"]["kv_tokens"]
    by_source = {c["source"]: c["sequences"] for c in compare["capacities"]}
    assert by_source == {"none": alone["requests"], fixed: drafted["requests"]}
    assert schedule["pool"]["requests"] == drafted["requests"]
    assert schedule["pool"]["tokens"] == drafted["tokens"]

    # The speedup at three tokens, and the best length.
    cell = next(c for c in compare["cells"] if c["source"] == fixed)
    (point,) = plane["planes"][0]["points"]
    (curve,) = tune["sources"]
    assert point["speedup"] == pytest.approx(cell["speedup"], rel=1e-9)
    assert curve["speedup"][3] == pytest.approx(cell["speedup"], rel=1e-9)
    assert cell["ratio"] == pytest.approx(cell["speedup"], rel=1e-12)
    assert next(c for c in best["cells"] if c["source"] == free)["kappa"] == curve["best"]
    if layer == "modelled":
        assert cost["engine"]["speedup"] == pytest.approx(cell["speedup"], rel=1e-9)
        assert cost["engine"]["c"] == pytest.approx(point["c"], rel=1e-9)
        (context,) = schedule["schedules"]
        assert context["ranges"][0]["kappa"] == 3


@pytest.mark.parametrize(
    "source", ["ngram:alpha=.5,coverage=.4,k=3", "suffix:alpha=.6,coverage=.7,k=3", "eagle:alpha=.7,k=3"]
)
def test_matchers_and_heads_are_priced_alike_on_the_plane_and_in_comparison(specplan, source: str) -> None:
    compare = answer(specplan, "compare", "llama3-70b", "-s", source, "--batch", "32")
    plane = answer(specplan, "plane", "llama3-70b", "-s", source, "--batch", "32")
    (point,) = plane["planes"][0]["points"]
    assert point["speedup"] == pytest.approx(compare["cells"][1]["speedup"], rel=1e-9)


def test_what_does_not_fit_is_a_no_everywhere_and_no_command_is_written(specplan) -> None:
    for argv in (
        ("compare", "llama3-70b", "-s", "ngram:alpha=.7", "--verdict"),
        ("schedule", "llama3-70b", "-s", "ngram:alpha=.7"),
        ("cost", "llama3-70b"),
        ("blocks", "llama3-70b"),
    ):
        done = specplan(*argv, "--gpu", "h100-sxm", "--tp", "1")
        assert done.code == 1, argv
        assert "vllm serve" not in done.out
        assert "not fit" in done.out or "refused" in done.out


def test_without_an_acceptance_the_comparison_says_what_is_needed(specplan) -> None:
    found = answer(specplan, "compare", "llama3-70b", "-s", "llama3.2-1b", "-s", "ngram", "--batch", "1,64")
    assert [(n["source"], n["load"]) for n in found["needs"]] == [
        ("llama3.2-1b", 1), ("ngram", 1), ("llama3.2-1b", 64), ("ngram", 64),
    ]  # fmt: skip
    assert all(0 < n["alpha"] < 1 and n["published"] and n["measure"] for n in found["needs"])
    assert len(found["answers"]) == 2


def test_the_tree_of_an_engines_matcher_is_one_in_every_command(specplan) -> None:
    asked = ("llama3-70b", "-s", "ngram:alpha=.7,coverage=.6", "--engine", "sglang", "--batch", "16")
    compare, tune = answer(specplan, "compare", *asked), answer(specplan, "tune", *asked)
    (curve,), cell = tune["sources"], compare["cells"][1]
    assert (curve["nodes"], curve["best"]) == (12, cell["kappa"])
    assert curve["speedup"][curve["best"]] == pytest.approx(cell["speedup"], rel=1e-9)
    plane = answer(specplan, "plane", *asked, "-k", str(cell["kappa"]))
    (point,) = plane["planes"][0]["points"]
    assert (point["nodes"], point["speedup"]) == (12, pytest.approx(cell["speedup"], rel=1e-9))


def test_the_longest_length_tried_is_one_by_default(specplan) -> None:
    asked = ("llama3-70b", "-s", "mine:c=.001,alpha=.9", "--batch", "1")
    (curve,) = answer(specplan, "tune", *asked)["sources"]
    cell = answer(specplan, "compare", *asked)["cells"][1]
    assert (curve["best"], curve["is_capped"]) == (cell["kappa"], True)


def test_the_plane_over_batch_runs_what_compare_runs(specplan) -> None:
    source, loads = "llama3.2-1b:alpha=.7,k=3", (1, 64, 200, 230, 256)
    at = ("llama3-70b", "-s", source, "--context", str(LENGTH))
    batches = [word for load in loads for word in ("--batch", str(load))]
    cells = [c for c in answer(specplan, "compare", *at, *batches)["cells"] if c["source"] == source]
    swept = answer(specplan, "plane", *at, "--kind", "batch")
    (curve,), x = swept["curves"], swept["axis"]["values"]
    assert curve["runs_to"] == cells[0]["fit"] < curve["plain_runs_to"]
    known = dict(zip(x, curve["speedup"], strict=True))
    tried = [c for c in cells if c["offered"] in known]
    assert tried[-1]["waiting"] > 0
    for cell in tried:
        assert known[cell["offered"]] == pytest.approx(cell["ratio"], rel=1e-9)
    best = [r["source"] for r in swept["best"] if r["low"] <= 256 <= r["high"]]
    assert (best == [None]) == (cells[-1]["ratio"] <= 1)
