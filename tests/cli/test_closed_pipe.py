"""A reader that leaves early has what it wanted: no error, and no answer "no"."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", [["hardware"], ["cost", "llama3-70b"]])
def test_a_closed_pipe_is_not_a_no(command: list[str]) -> None:
    run = subprocess.Popen([sys.executable, "-m", "specplan", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    assert (run.wait(), run.stderr.read()) == (0, b"")
