"""The engine's own drafts, case by case: data/sglang_ngram_cases.json (its origin stands inside)."""

import json
from pathlib import Path

import pytest
from sglang_oracle import OracleCorpus, OracleNgram

from specplan.errors import InputError
from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.sglang_rule import QUIRKS, SglangRule

CASES = json.loads((Path(__file__).parents[1] / "data" / "sglang_ngram_cases.json").read_text())["cases"]


def check_paths(paths, expected):
    """Equal, but for a lone leaf 0 under the root: behind the last other row the data cannot tell it from padding."""
    listed = [tuple(path) for path in expected["node_paths_sorted"]]
    assert len(set(paths)) == len(paths)
    assert sorted(set(paths) - {(0,)}) == [path for path in listed if path != (0,)]
    if (0,) in listed:
        assert (0,) in paths
    n_rows, lone = len(expected["tokens"]) - 1, int((0,) in paths and (0,) not in listed)
    assert n_rows - len(paths) == expected["trailing_pad_like"] - lone


def check_links(trees, expected):
    """One mask row, position and link per path, whatever the order of siblings."""
    links = trees.links([0])
    for mine, theirs in (
        (trees.tokens[0], expected["tokens"]),
        (links.masks[0].sum(axis=1), [row.count("1") for row in expected["mask_rows"]]),
        (links.positions[0], expected["depth"]),
        (links.next_token[0] >= 0, [row >= 0 for row in expected["next_token"]]),
        (links.next_sibling[0] >= 0, [row >= 0 for row in expected["next_sibling"]]),
    ):
        assert sorted(mine.tolist()) == sorted(theirs)


def test_there_are_a_hundred_cases():
    assert len(CASES) == 100
    assert sum(step["op"] == "match" for case in CASES for step in case["steps"]) == 242


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_drafts_equal_the_engine(case):
    """Equal-chance drafts too: the engine's heap order is reproduced, so none of them is skipped."""
    ngram = SglangNgram(SglangRule(**case["params"], quirks=QUIRKS))
    for step in case["steps"]:
        match step["op"]:
            case "insert":
                ngram.put([step["tokens"]])
                ngram.synchronize()
            case "match":
                trees = ngram.match([step["state_id"]], [step["context"]], [step["total_len"]])
                check_paths(trees.paths(0), step["result"])
                check_links(trees, step["result"])
            case "erase":
                ngram.erase([step["state_id"]])
            case "reset":
                ngram.reset()
            case "add_corpus":
                try:
                    ngram.corpora.add(step["corpus_id"], step["documents"])
                    reply = "ok"
                except InputError as error:
                    reply = f"ERR {error}"
                assert reply == step["reply"]
            case "remove_corpus":
                ngram.corpora.remove(step["corpus_id"])
            case "list_corpora":
                counts = " ".join(f"{name}:{count}" for name, count in ngram.corpora.token_counts.items())
                assert f"L {counts}" == step["reply"]
    ngram.check_integrity()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_oracle_equals_the_engine_too(case):
    oracle = OracleNgram(SglangRule(**case["params"], quirks=QUIRKS))
    for step in case["steps"]:
        match step["op"]:
            case "insert":
                oracle.insert(step["tokens"])
            case "match":
                tree = oracle.match(step["state_id"], step["context"], step["total_len"]).tree
                check_paths(list(tree), step["result"])
            case "erase":
                oracle.erase(step["state_id"])
            case "reset":
                oracle.reset()
            case "add_corpus":
                if step["reply"] == "ok":
                    oracle.corpora[step["corpus_id"]] = OracleCorpus(step["documents"])
            case "remove_corpus":
                oracle.corpora.pop(step["corpus_id"], None)
