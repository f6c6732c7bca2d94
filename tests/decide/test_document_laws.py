"""A document that contradicts itself is refused by the law that it breaks, whichever figure is changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from specplan.decide.documents import sources_of
from specplan.decide.measured import summarise
from specplan.errors import InputError
from specplan.records.step import StepRecord
from specplan.records.tally import Tally
from specplan.report.measured_document import measured_entry


def entry() -> dict[str, Any]:
    rows = [
        StepRecord(request=r, step=i, source="s", context_len=9, drafted=3 if i % 3 else 0, accepted=a, emitted=a + 1)
        for r in "ab"
        for i, a in enumerate((0, 3, 1, 0, 2, 0))
    ]
    found: dict[str, Any] = json.loads(json.dumps(measured_entry(summarise(Tally.of_steps(rows), source="ngram"))))
    return found


def test_a_document_as_it_was_written_is_a_source() -> None:
    (source,) = sources_of({"sources": [entry()]}, "x")
    assert source.alpha is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"alpha": 3.0, "alpha_high": 3.0}, "alpha in"),
        ({"alpha": 0.9, "alpha_high": 0.95}, "alpha as its counts give it .* .printed 0.9, counts 0.6"),
        ({"alpha_low": 0.99}, "alpha_low <= alpha"),
        ({"coverage": 1.5}, "coverage in"),
        ({"coverage": 0.9}, "coverage as its counts give it"),
        ({"tokens_per_step": 500}, "tokens per step"),
        ({"tokens_per_drafted_step": 500}, "draft length 3"),
        ({"tokens_per_drafted_step": 0.5}, "at least 1"),
        ({"tokens_per_drafted_step": 3.0}, "as its counts give it"),
        ({"accepted_tokens": 10**6}, "accepted <= tested"),
        ({"steps": 3}, "drafts <= steps"),
        ({"emitted_tokens": 10**6}, "emitted <= steps . accepted"),
        ({"position_rates_unconditional": [0.5, 0.6, 0.7]}, "do not rise"),
        ({"position_rates_unconditional": [1.4, 0.6, 0.7]}, "in .0, 1."),
        ({"accepted_per_drafted": 2}, "accepted per drafted"),
        ({"verify_s": -1}, "0 <= verify_s"),
        ({"c": -0.5}, "0 <= c"),
    ],
)
def test_each_contradiction_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        sources_of({"sources": [entry() | change]}, "run.json")
    assert str(caught.value).startswith("run.json: figures of source 'ngram' contradict")


def test_a_file_with_a_figure_twice_is_refused(specplan_in_process, tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    path.write_text(json.dumps({"sources": [entry()]}).replace('"alpha":', '"alpha": 0.1, "alpha":', 1))
    code, out, err = specplan_in_process("plane", "llama3-8b", "--points", str(path))
    assert (code, out) == (2, "")
    assert "appears twice" in err


@pytest.fixture
def specplan_in_process(capsys: pytest.CaptureFixture[str]):
    from specplan.cli.app import main

    def run(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(argv))
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return run
