"""A package that specplan has never seen offers a proposer; documents keep the shipped schemas."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

GIVEN = Path(__file__).parents[1] / "given" / "own_proposer.py"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch) -> None:
    """What pip leaves of an installed package: its code, and metadata with an entry point."""
    package, metadata = tmp_path / "elsewhere_drafts", tmp_path / "elsewhere_drafts-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    shutil.copy(GIVEN, package / "__init__.py")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere-drafts\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[specplan.proposers]\nlast-token = elsewhere_drafts:LastToken\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("source", ["last-token:k=4", "elsewhere_drafts:LastToken:k=4"])
@pytest.mark.usefixtures("outside")
def test_an_outside_proposer_replays_like_the_rule_that_it_follows(specplan, source: str) -> None:
    def tokens_per_step(spelled: str) -> float:
        outcome = specplan("replay", "smollm2", "--source", spelled, "--json")
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)["sources"][0]["tokens_per_step"]

    assert tokens_per_step(source) == tokens_per_step("ngram:rule=latest,min=1,max=1,k=4") > 1


@pytest.mark.usefixtures("outside")
def test_compare_prices_an_outside_proposer(specplan) -> None:
    outcome = specplan("compare", "llama3-8b", "-s", "last-token:alpha=.6,coverage=.4,k=4,c=.01", "--json")
    assert outcome.code == 0, outcome.err
    assert any("last-token" in c["source"] for c in json.loads(outcome.out)["cells"])


def test_a_name_that_nobody_offers_is_still_an_unknown_model(specplan) -> None:
    outcome = specplan("compare", "llama3-8b", "-s", "last-token:alpha=.6")
    assert outcome.code == 2
    assert "unknown model 'last-token'" in outcome.err


HELD_OUT = [
    "cost qwen3-32b --draft qwen3-0.6b --gpu a100 --tp 2 --alpha .55 --batch 8",
    "cost qwen3-8b --gpu rtx-4090",
    "blocks qwen3-32b --gpu l40s --tp 4 --source ngram:k=4",
    "compare qwen3-8b --gpu l40s -s suffix:coverage=.5,alpha=.6 -s qwen3-0.6b:alpha=.5 --batch 1,16 --context 1k,4k",
    "schedule qwen3-32b --gpu h200 --source qwen3-0.6b:alpha=.6",
    "plane qwen3-8b --draft qwen3-0.6b --gpu l40s",
    "plane -s mine:c=.1,alpha=.5 --kind coverage",
    "tune qwen3-8b --gpu l40s --draft qwen3-0.6b --alpha .6",
    "tie qwen3-0.6b suffix --target qwen3-8b --alpha .6 --gpu l40s",
    "models qwen3-8b",
    "hardware mi300x",
    "explain kappa",
]


@pytest.mark.parametrize("line", HELD_OUT)
def test_documents_satisfy_the_schema_that_is_shipped(specplan, line: str) -> None:
    schema = json.loads(specplan("schema", line.split()[0]).out)
    document = json.loads(specplan(*line.split(), "--json").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    assert {"schema_version", "command", "inputs"} <= set(schema["required"])
    spoilt = document | {"inputs": "none"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoilt, schema, cls=jsonschema.Draft202012Validator)


def test_schemas_are_listed_and_misspelled_ones_get_a_near_miss(specplan) -> None:
    assert "compare" in specplan("schema").out.split()
    outcome = specplan("schema", "comprae")
    assert outcome.code == 2
    assert "did you mean compare?" in outcome.err
