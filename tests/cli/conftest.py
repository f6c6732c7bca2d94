"""A command line to call in process: exit code, stdout and stderr."""

from typing import NamedTuple

import pytest

from specplan.cli.app import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def specplan(capsys: pytest.CaptureFixture[str]):
    def run(*argv: str) -> Outcome:
        with pytest.raises(SystemExit) as stop:
            main(list(argv))
        captured = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), captured.out, captured.err)

    return run
