"""A command that is killed, or whose disk is full, leaves nothing false: run again it prints the same document."""

import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

LOAD = ("--input", "800", "--output", "50", "-n", "300")
COMMANDS = {
    "replay": ("replay", "trace.jsonl", "-s", "ngram:k=4", "-s", "suffix:k=8", "--checkpoint", "notes",
               "--per-request", "rows.jsonl", "--records", "steps.jsonl"),
    "simulate": ("simulate", "llama3.1-8b", "-s", "ngram:alpha=.7,k=3", "--rate", "4", *LOAD),
    "capacity": ("capacity", "llama3.1-8b", "-s", "ngram:alpha=.7,k=3", "--rate", "9", "--tp", "1,2", *LOAD,
                 "--tpot", "p95=30ms", "--ttft", "p95=1s", "--checkpoint", "notes"),
}  # fmt: skip
WRITTEN = {"replay": ("rows.jsonl", "steps.jsonl")}
SIZES = {"replay": 2**12, "capacity": 0}
"""Bytes that a file may hold: less than the command writes."""


def folder_of(path: Path) -> Path:
    path.mkdir()
    rng = np.random.default_rng(3)
    rows = (
        {"id": str(i), "prompt_token_ids": rng.integers(1, 6, 60).tolist(),
         "output_token_ids": rng.integers(1, 6, 200).tolist()}
        for i in range(200)
    )  # fmt: skip
    (path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def start(name: str, folder: Path, before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "specplan", *COMMANDS[name], "--json"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before)


def results(name: str, folder: Path, out: bytes) -> object:
    document = json.loads(out)
    timed = {"draft_s", "host_s_per_step"} if name == "replay" else set()  # what the clock gave

    def kept(value: object) -> object:
        if isinstance(value, dict):
            return {k: kept(v) for k, v in value.items() if k not in timed}
        return [kept(v) for v in value] if isinstance(value, list) else value

    return kept(document), [sorted((folder / file).read_text().splitlines()) for file in WRITTEN.get(name, ())]


def kill_and_finish(name: str, tmp_path: Path, kills: int) -> None:
    """Kill the command `kills` times, at moments within what it takes, each folder three times at most."""

    def finished(folder: Path) -> tuple[float, object]:
        began = time.monotonic()
        run = start(name, folder)
        out, err = run.communicate(timeout=300)
        assert (run.returncode, err.count(b"Traceback")) == (0, 0), err
        return time.monotonic() - began, results(name, folder, out)

    span, whole = finished(folder_of(tmp_path / "whole"))
    rng = random.Random(7)  # noqa: S311 - moments, not keys
    killed = 0
    for number in range(4 * kills):
        folder = folder_of(tmp_path / f"run-{number}")
        for _ in range(min(3, kills - killed)):
            run = start(name, folder)
            time.sleep(rng.uniform(0.1, 0.9) * span)
            run.kill()
            run.communicate()
            killed += run.returncode == -signal.SIGKILL
            if run.returncode == 0:  # it ended before its moment: the whole run fell on a busier time
                span /= 2
        assert finished(folder)[1] == whole
        if killed == kills:
            return
    assert killed > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_20_random_moments_the_document_is_the_same(name: str, tmp_path: Path) -> None:
    kill_and_finish(name, tmp_path, 20)


def test_killed_at_a_few_moments_the_search_is_the_same(tmp_path: Path) -> None:
    kill_and_finish("capacity", tmp_path, 2)


@pytest.mark.parametrize("name", ["capacity", pytest.param("replay", marks=pytest.mark.slow)])
def test_files_that_may_not_grow_are_named_and_the_run_goes_on_later(name: str, tmp_path: Path) -> None:
    """As on a full disk: one line, nothing under the final names; with room again, the whole document."""

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZES[name], resource.RLIM_INFINITY))

    folder = folder_of(tmp_path / "small")
    run = start(name, folder, full)
    out, err = run.communicate(timeout=120)
    assert (run.returncode, out, err.count(b"\n")) == (2, b"", 1), err
    assert b"cannot be written: File too large" in err
    assert not any((folder / file).exists() for file in WRITTEN.get(name, ()))
    again = start(name, folder)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    whole = start(name, folder_of(tmp_path / "whole"))
    assert results(name, folder, out) == results(name, tmp_path / "whole", whole.communicate(timeout=120)[0])
