"""A server of known law is measured: its counters come back exactly, its steps and speedups as the law has them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, fates, served

import specplan
from specplan.cli.app import main
from specplan.errors import InputError
from specplan.records.prompts import Prompt
from specplan.telemetry.completions import complete
from specplan.telemetry.read import read_origin
from specplan.telemetry.server_run import ServerJob, run_server
from specplan.timing.measured_steps import load_measured_table

KAPPA = 3
PROMPTS = tuple(Prompt(id=f"{tag}-{i}", tag=tag, text=f"{tag} {i}") for tag in ("easy", "hard") for i in range(4))


def law(batch: float, width: int) -> float:
    """Seconds of a step."""
    return 1e-2 + 4e-4 * batch + 6e-4 * batch * (width - 1) + (2e-3 if width > 1 else 0.0)


def alpha(prompt: str) -> float:
    return 0.9 if prompt.startswith("easy") else 0.2


def drafting(**more: Any) -> FakeServer:
    return FakeServer(kappa=KAPPA, alpha=alpha, law=law, **more)


def counted(server: FakeServer, tokens: int, tag: str = "") -> tuple[int, int]:
    """Steps and accepted tokens of the timed requests, by hand."""
    asked = [b for b in server.asked if b["max_tokens"] == tokens and tag in b["messages"][0]["content"]]
    steps = [s for b in asked for s in fates(b["seed"], tokens, KAPPA, alpha(b["messages"][0]["content"]))]
    return len(steps), sum(a for _, a in steps)


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code, capsys.readouterr().err
    return capsys.readouterr().out


def prompt_file(folder: Path) -> str:
    rows = [{"id": p.id, "kind": p.tag, "prompt": p.text} for p in PROMPTS]
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.parametrize("kappa", [0, KAPPA])
def test_an_answers_chunks_are_those_that_brought_tokens(kappa: int) -> None:
    body = {"prompt": "easy", "max_tokens": 20, "seed": 5}
    server = FakeServer(kappa=kappa, alpha=alpha, law=lambda *_: 5e-2)
    with served(server) as root:
        answer = complete(root, "/v1/completions", body)
    assert answer.tokens == 20
    assert 1 < answer.chunks == server.chunks <= 1 + len(fates(5, 20, kappa, 0.9))


def test_two_servers_are_measured_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafts, plain = drafting(), FakeServer(alpha=alpha, law=law)
    with served(drafts) as first, served(plain) as second:
        out = told(
            ["measure", "--server", first, "--server-plain", f"{second}/v1", "--prompts", prompt_file(tmp_path),
             "--concurrency", "1,4", "--max-tokens", "21", "--yes", "--json", "-o", str(tmp_path / "run")], capsys
        )  # fmt: skip
    document = json.loads(out)
    by = {(s["concurrency"], s["tag"]): s for s in document["sources"]}
    assert set(by) == {(n, t) for n in (1, 4) for t in ("", "easy", "hard")}
    for tag in ("", "easy", "hard"):
        steps, accepted = (sum(by[n, tag][name] for n in (1, 4)) for name in ("steps", "accepted_tokens"))
        assert (steps, accepted) == counted(drafts, 21, tag)
    for (n, _), found in by.items():
        for side, width in (("", KAPPA + 1), ("plain_", 1)):
            batch = found[f"{side}mean_batch"]
            assert found[f"{side}step_s"] == pytest.approx(law(batch, width), rel=0.08)  # of a batch timed from outside
        assert found["plain_mean_batch"] == pytest.approx(n, rel=0.15)
        expected = found["tokens_per_step"] * found["plain_step_s"] / found["step_s"]
        low, high = found["measured_speedup_low"], found["measured_speedup_high"]
        assert low < found["measured_speedup"] < high
        assert low * 0.8 < expected < high / 0.8  # sleeps are longer on a busy machine, on both sides
    assert by[1, "easy"]["measured_speedup"] > 1.5 > by[1, "hard"]["measured_speedup"]
    assert by[1, "hard"]["accepted_per_position"][0] > by[1, "hard"]["accepted_per_position"][1]

    # the two pages of the whole run, read by ingest, hold the same counts
    pages = [str(tmp_path / "run" / f"drafted-{when}.prom") for when in ("before", "after")]
    (seen,) = read_origin(pages[1], before=pages[0])
    assert seen.tally is not None
    assert (seen.tally.steps, seen.tally.accepted_tokens) == counted(drafts, 21)

    table = tmp_path / "run" / "steps.json"
    steps = load_measured_table(table)
    context = document["context"]
    assert float(steps.time_s(1, 1, context)) == pytest.approx(law(1, 1), rel=0.05)
    answer = specplan.compare(
        "llama3-8b", sources=f"mine:c=0,alpha={by[1, '']['alpha']},k={KAPPA}", layer="measured",
        measured=[f"llama3-8b={table}"], batch=1, context_len=context,
    )  # fmt: skip
    (cell,) = (c for c in answer.cells if c.source != "none")
    one = by[1, ""]
    assert cell.speedup == pytest.approx(one["tokens_per_step"] * one["plain_step_s"] / one["step_s"], rel=0.1)


def test_one_server_that_leaves_drafts_out_where_a_request_says_so() -> None:
    drafts = drafting(metrics=False)
    with served(drafts) as root:
        run = run_server(
            ServerJob(server=root, plain_body={"speculative.n_max": 0}, prompts=PROMPTS[:4], max_tokens=17)
        )
    (speed,) = run.speeds
    assert speed.measured.tally is not None
    sent = [b for b in drafts.asked if b["max_tokens"] == 17 and "speculative.n_max" not in b]
    steps = [s for b in sent for s in fates(b["seed"], 17, KAPPA, 0.9)]
    assert (speed.measured.tally.steps, speed.measured.tally.accepted_tokens) == (len(steps), sum(a for _, a in steps))
    for found, width in ((speed.step_s, KAPPA + 1), (speed.plain_step_s, 1)):
        assert found is not None
        assert 0.8 < found / law(1, width) < 2  # slept, and on a busy machine longer
    assert any("no counters" in note for note in run.notes)


def test_nothing_is_sent_before_yes_and_the_cost_is_what_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts = drafting()
    with served(drafts) as root:
        common = ["measure", "--server", root, "--prompts", prompt_file(tmp_path), "--max-tokens", "9", "--json"]
        said = json.loads(told(common, capsys))
        assert not json.loads(told([*common, "--tiny"], capsys))["sent"]  # fewer prompts are no leave to send them
        assert not drafts.asked
        assert not said["sent"]
        told([*common, "--yes", "-o", str(tmp_path / "run")], capsys)
    assert said["cost"]["requests"] == len(drafts.asked)
    assert said["cost"]["answer_tokens"] == sum(b["max_tokens"] for b in drafts.asked)


def test_a_plain_side_that_drafts_is_refused() -> None:
    with served(drafting()) as first, served(drafting()) as second, pytest.raises(InputError, match="plain side"):
        run_server(ServerJob(server=first, plain=second, prompts=PROMPTS[:2], max_tokens=9))


@pytest.mark.parametrize(
    ("job", "needed"),
    [
        ({"quirk": "error"}, "400.*chat template"),
        ({"quirk": "breaks off"}, "stream ended"),
        ({"kappa": 0, "metrics": False}, "tell of speculation"),
    ],
    ids=str,
)
def test_a_server_that_answers_wrongly_is_one_line(job: dict[str, Any], needed: str) -> None:
    with (
        served(FakeServer(**{"kappa": 1, "alpha": alpha, "law": law} | job)) as root,
        pytest.raises(InputError, match=needed),
    ):
        run_server(ServerJob(server=root, prompts=PROMPTS[:1], max_tokens=5))


@pytest.mark.parametrize(
    "wrong",
    [
        {"server": "127.0.0.1:8000"},
        {"server": "http://a/metrics"},
        {"plain": "http://a"},
        {"plain": "http://b", "plain_body": {"x": 1}},
        {"concurrency": (0,)},
        {"max_tokens": 1},
        {"temperature": float("nan")},
    ],
    ids=str,
)
def test_jobs_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ServerJob(**{"server": "http://a", "prompts": PROMPTS} | wrong)


def test_rounds_hold_what_runs_at_a_time_and_every_prompt_comes() -> None:
    make: Callable[..., ServerJob] = lambda *n: ServerJob(server="http://a", prompts=PROMPTS, concurrency=n)  # noqa: E731
    for n in (1, 3, 8):
        rounds = make(n).rounds()
        assert all(len(r.prompts) == r.concurrency == n for r in rounds)
        assert {p.id for r in rounds for p in r.prompts} == {p.id for p in PROMPTS}
        assert {tag: sum(r.tag == tag for r in rounds) >= 3 for tag in ("easy", "hard")} == {"easy": True, "hard": True}
