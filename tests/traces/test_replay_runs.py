"""Whole replays: the same numbers in one process or several, resumed or not, and per replica for shared stores."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specplan.errors import InputError, MissingExtraError
from specplan.files.lines import BrokenLog
from specplan.propose.spelling import parse_source
from specplan.records import Tally, read_steps
from specplan.runners import Here, Processes, runner_of
from specplan.traces.read import TraceReader
from specplan.traces.run import ReplayPlan, ReplayResult, run
from specplan.traces.serve import steps_of
from specplan.traces.shapes import Fields
from specplan.traces.shards import BATCH_BYTES, batches
from specplan.traces.summary import best_of, replayed

ROOT = Path(__file__).parents[2]
SPELLINGS = ("ngram:min=1,max=3,k=4", "suffix:k=8,depth=8", "sglang-ngram:budget=6,depth=5", "suffix:cached=0,depth=8")
SOURCES = tuple(parse_source(s) for s in SPELLINGS)


@pytest.fixture
def trace(tmp_path: Path) -> tuple[Path, ...]:
    rng = np.random.default_rng(3)
    paths = []
    for number in range(2):
        path = tmp_path / f"trace{number}.jsonl"
        rows = [
            {
                "id": f"{number}-{i}",
                "kind": ("copy", "open")[i % 2],
                "prompt_token_ids": rng.integers(1, 6, 20).tolist(),
                "output_token_ids": rng.integers(1, 6, int(rng.integers(0, 60))).tolist(),
            }
            for i in range(40)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + ("{broken\n" if number else ""))
        paths.append(path)
    return tuple(paths)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specplan.traces.shards.BATCH_BYTES", 1000)


def numbers(result: ReplayResult) -> dict:
    return {
        s.source.spelling: (s.tags, s.windows, result.requests, result.tokens, result.broken.count)
        for s in result.sources
    }


def test_a_trace_is_cut_into_many_batches(trace: tuple[Path, ...]) -> None:
    assert BATCH_BYTES > 2**20
    assert len(list(batches(TraceReader(), trace))) > 10


def test_several_processes_give_the_same_numbers(trace: tuple[Path, ...]) -> None:
    plan = ReplayPlan(paths=trace, sources=SOURCES[:2], window=4)
    alone = run(plan, TraceReader())
    assert numbers(run(plan, TraceReader(), runner=Processes(2))) == numbers(alone)
    assert alone.requests == 80
    assert alone.broken.count == 1
    assert alone.broken.first[0].path == str(trace[1])
    assert alone.broken.first[0].line == 41


def test_totals_are_those_of_the_whole_trace_at_once(trace: tuple[Path, ...]) -> None:
    requests = list(TraceReader().read(trace))
    result = run(ReplayPlan(paths=trace, sources=SOURCES, concurrency=3), TraceReader())
    for source in result.sources:
        steps = steps_of(source.source, requests, concurrency=3)
        total = source.total
        assert (total.steps, total.drafted_tokens, total.accepted_tokens) == (
            len(steps),
            steps.drafted.sum(),
            steps.accepted.sum(),
        )
        assert sum(w.accepted for w in source.windows) == total.accepted_tokens
        assert sum(w.requests for w in source.windows) == 80


def test_replicas_share_the_requests_in_turn(trace: tuple[Path, ...]) -> None:
    requests = list(TraceReader().read(trace))
    plan = ReplayPlan(paths=trace, sources=SOURCES, replicas=3, concurrency=2)
    result = run(plan, TraceReader())
    for source in result.sources:
        parts = [requests[i::3] for i in range(3)] if source.source.shares_store else [requests]
        steps = [steps_of(source.source, part, concurrency=2) for part in parts]
        assert source.total.accepted_tokens == sum(int(s.accepted.sum()) for s in steps)
        assert source.total.drafted_tokens == sum(int(s.drafted.sum()) for s in steps)


def test_order_matters_to_shared_stores_only(trace: tuple[Path, ...]) -> None:
    arrival = run(ReplayPlan(paths=trace, sources=SOURCES), TraceReader())
    shuffled = run(ReplayPlan(paths=trace, sources=SOURCES, order="shuffle:7"), TraceReader())
    again = run(ReplayPlan(paths=trace, sources=SOURCES, order="shuffle:7"), TraceReader())
    assert numbers(shuffled) == numbers(again)
    for a, b in zip(arrival.sources, shuffled.sources, strict=True):
        assert (a.total == b.total) is not a.source.shares_store
        assert sum(w.steps for w in b.windows) == b.total.steps


class Interrupted(Here):
    """Stops after some results, as a kill does."""

    def __init__(self, after: int) -> None:
        self.left = after

    def map(self, function, items) -> Iterator:  # type: ignore[no-untyped-def]
        for item in items:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield function(item)


@pytest.mark.parametrize("sources", [SOURCES[:1], SOURCES], ids=["alone", "shared"])
def test_a_killed_run_takes_up_where_it_ended(trace: tuple[Path, ...], tmp_path: Path, sources: tuple) -> None:
    plan = ReplayPlan(paths=trace, sources=sources, window=4)
    whole = run(plan, TraceReader(), per_request=tmp_path / "whole.jsonl", records=tmp_path / "steps.jsonl")
    checkpoint, rows = tmp_path / "run.checkpoint", tmp_path / "rows.jsonl"
    for after in (3, 4, 100):
        try:
            result = run(plan, TraceReader(), runner=Interrupted(after), checkpoint=checkpoint, per_request=rows)
        except KeyboardInterrupt:
            assert not rows.exists()
            with checkpoint.open("a") as torn:
                torn.write('{"batch": 99, "ids": [')
    assert numbers(result) == numbers(whole)
    assert rows.read_text() == (tmp_path / "whole.jsonl").read_text()
    steps = list(read_steps(tmp_path / "steps.jsonl"))
    for source in whole.sources:
        mine = Tally.of_steps(s for s in steps if s.source == source.source.spelling)
        assert (mine.steps, mine.accepted_tokens, mine.tested_tokens, mine.verified_tokens) == (
            source.total.steps,
            source.total.accepted_tokens,
            source.total.tested_tokens,
            source.total.verified_tokens,
        )


def test_a_finished_checkpoint_is_not_replayed_again(trace: tuple[Path, ...], tmp_path: Path) -> None:
    plan = ReplayPlan(paths=trace, sources=SOURCES[:1])
    first = run(plan, TraceReader(), checkpoint=tmp_path / "c")
    again = run(plan, TraceReader(), runner=Interrupted(0), checkpoint=tmp_path / "c")
    assert numbers(first) == numbers(again)


def test_a_checkpoint_of_another_replay_is_refused(trace: tuple[Path, ...], tmp_path: Path) -> None:
    run(ReplayPlan(paths=trace, sources=SOURCES[:1]), TraceReader(), checkpoint=tmp_path / "c")
    with pytest.raises(InputError, match="another replay"):
        run(ReplayPlan(paths=trace, sources=SOURCES[:2]), TraceReader(), checkpoint=tmp_path / "c")
    reader = TraceReader(fields=Fields(response="output_token_ids"))
    with pytest.raises(InputError, match="another replay"):
        run(ReplayPlan(paths=trace, sources=SOURCES[:1]), reader, checkpoint=tmp_path / "c")
    trace[0].write_text(trace[0].read_text() + "\n")
    with pytest.raises(InputError, match="another replay"):
        run(ReplayPlan(paths=trace, sources=SOURCES[:1]), TraceReader(), checkpoint=tmp_path / "c")


def test_a_file_that_is_no_checkpoint_is_left_alone(trace: tuple[Path, ...], tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"mine": 1}\n')
    with pytest.raises(InputError, match="no checkpoint of a replay"):
        run(ReplayPlan(paths=trace, sources=SOURCES[:1]), TraceReader(), checkpoint=notes)
    assert notes.read_text() == '{"mine": 1}\n'


@pytest.mark.parametrize("output", ["checkpoint", "per_request", "records"])
def test_neither_the_trace_nor_a_folder_is_written_over(trace: tuple[Path, ...], tmp_path: Path, output: str) -> None:
    plan, before = ReplayPlan(paths=trace, sources=SOURCES[:1]), trace[0].read_text()
    (tmp_path / "link").symlink_to(trace[0])
    for path in (trace[0], tmp_path / "link"):
        with pytest.raises(InputError, match="name another file"):
            run(plan, TraceReader(), **{output: path})
    with pytest.raises(InputError, match=r"folder|directory"):
        run(plan, TraceReader(), **{output: tmp_path})
    assert trace[0].read_text() == before


def test_rows_per_request_add_up(trace: tuple[Path, ...], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    result = run(ReplayPlan(paths=trace, sources=SOURCES), TraceReader(), per_request=path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 80 * len(SOURCES)
    for source in result.sources:
        mine = [r for r in rows if r["source"] == source.source.spelling]
        for key in ("steps", "drafts", "drafted_tokens", "accepted_tokens", "emitted_tokens"):
            assert sum(r[key] for r in mine) == getattr(source.total, key)


def test_a_strict_run_stops_at_the_first_broken_line(trace: tuple[Path, ...]) -> None:
    with pytest.raises(InputError, match=r"trace1\.jsonl:41"):
        run(ReplayPlan(paths=trace, sources=SOURCES[:1]), TraceReader(broken=BrokenLog(fatal=True)))
    with pytest.raises(InputError, match=r"trace1\.jsonl:41"):
        run(
            ReplayPlan(paths=trace, sources=SOURCES[:1]),
            TraceReader(broken=BrokenLog(fatal=True)),
            runner=Processes(2),
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sources": ()}, "no source"),
        ({"concurrency": 0}, "--concurrency 0"),
        ({"replicas": 0}, "--replicas 0"),
        ({"window": 0}, "--window 0"),
        ({"order": "random"}, "shuffle:SEED"),
        ({"order": "shuffle:x"}, "shuffle:SEED"),
        ({"order": "recorded"}, "one file"),
        ({"labels": ("a",)}, "labels"),
    ],
)
def test_plans_that_make_no_sense_say_so(trace: tuple[Path, ...], change: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        ReplayPlan(**({"paths": trace, "sources": SOURCES} | change))


def test_a_trace_without_requests_says_why(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("{}\n")
    with pytest.raises(InputError, match=r"no request .*first problem.*empty\.jsonl:1"):
        run(ReplayPlan(paths=(path,), sources=SOURCES), TraceReader())


def test_runners_are_named() -> None:
    assert isinstance(runner_of("local", 1), Here)
    assert isinstance(runner_of("local", 2), Processes)
    for on, jobs, says in (("moon", 1, "local or ray"), ("local", 0, "--jobs 0")):
        with pytest.raises(InputError, match=says):
            runner_of(on, jobs)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_message_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"specplan\[ray\]"):
        runner_of("ray", 1)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_ray_gives_one_machines_numbers(trace: tuple[Path, ...]) -> None:
    plan = ReplayPlan(paths=trace, sources=SOURCES, replicas=2)
    assert numbers(run(plan, TraceReader(), runner=runner_of("ray", 1))) == numbers(run(plan, TraceReader()))


def test_memory_does_not_grow_with_the_windows(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    path = tmp_path / "many.jsonl"
    with path.open("w") as file:
        for _ in range(2000):
            row = {"prompt_token_ids": [1, 2, 1], "output_token_ids": rng.integers(1, 3, 6).tolist()}
            file.write(json.dumps(row) + "\n")
    (source,) = run(ReplayPlan(paths=(path,), sources=SOURCES[:1], window=1), TraceReader()).sources
    windows = source.windows
    assert 32 <= len(windows) <= 64
    assert [w.first for w in windows] == np.cumsum([0, *(w.requests for w in windows)])[:-1].tolist()
    assert len({w.requests for w in windows[:-1]}) == 1


def test_the_best_of_a_grid(trace: tuple[Path, ...]) -> None:
    from specplan.propose.spelling import grid_of

    plan = ReplayPlan(paths=trace, sources=tuple(grid_of("ngram:min=1..3,max=3,k=1|2|6")))
    found = replayed(run(plan, TraceReader()))
    best = best_of(found)
    assert best is not None
    assert best.by_time is None
    yields = [r.measured.tokens_per_step for r in found]
    assert best.by_tokens_per_step.measured.tokens_per_step == max(y for y in yields if y is not None)


def test_on_ray_json_is_one_document_whatever_its_daemons_print(tmp_path: Path) -> None:
    """A cluster whose start prints, and whose daemons print while and after the work is done."""
    (tmp_path / "ray.py").write_text(
        "import subprocess, sys\n"
        "def is_initialized(): return False\n"
        "def init(**_):\n"
        "    print('started a local cluster', flush=True)\n"
        "    say = 'import time; [print(\"raylet\", i, flush=True) or time.sleep(.1) for i in range(30)]'\n"
        "    subprocess.Popen([sys.executable, '-c', say])\n"
        "class _Remote:\n"
        "    def __init__(self, f): self.remote = f\n"
        "    def options(self, **_): return self\n"
        "remote, put, get = _Remote, lambda x: x, lambda x: x\n"
        "def shutdown(): pass\n"
        "def cluster_resources(): return {'CPU': 2}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "specplan", "replay", "smollm2", "-s", "ngram", "--on", "ray", "--json"],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert json.loads(done.stdout)["command"] == "replay"
    assert "raylet 0" in done.stderr
