"""What one server tells in several places is one source where counts agree; both are named where they do not."""

from dataclasses import replace
from pathlib import Path

from specplan.telemetry.joined import joined
from specplan.telemetry.read import read_origin

SERVER = Path(__file__).parents[1] / "data" / "vllm_cpu_server"


def test_a_page_and_an_answer_of_one_server_are_one_source() -> None:
    (page,), (answer,) = (read_origin(str(SERVER / name)) for name in ("metrics.txt", "response.json"))
    (one,) = joined([page, answer])
    assert (one.tally.drafts, one.tally.accepted_tokens) == (page.tally.drafts, page.tally.accepted_tokens)
    assert (page.tally.requests, one.tally.requests) == (None, answer.tally.requests)  # only the answer tells it
    assert (answer.step_s, one.step_s) == (None, page.step_s)  # only the page tells it
    assert any("joined with" in note for note in one.notes)


def test_counts_that_differ_are_both_named() -> None:
    (page,) = read_origin(str(SERVER / "metrics.txt"))
    other = replace(page, origin="server.log", tally=replace(page.tally, accepted_tokens=12))
    first, second = joined([page, other])
    assert first == page
    assert "accepted_tokens 13 and 12" in second.notes[-1]


def test_servers_of_two_models_stay_apart() -> None:
    (page,) = read_origin(str(SERVER / "metrics.txt"))
    other = replace(page, origin="b.txt", labels={**page.labels, "model_name": "another"})
    assert joined([page, other]) == [page, other]
