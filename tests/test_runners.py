"""Work survives the death of its worker, up to a limit, and stays in order."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from specplan.errors import InputError, SpecplanError
from specplan.runners import ATTEMPTS, Processes


def dies_at_first(folder: Path, item: int, deaths: int = 1) -> int:
    """Twice the item, from a process that survives it; item 3 first takes `deaths` processes with it."""
    if item == 3 and len(list(folder.iterdir())) < deaths:
        (folder / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * item


def test_work_of_a_killed_process_is_begun_again_and_the_order_stays(tmp_path):
    assert list(Processes(2).map(partial(dies_at_first, tmp_path), range(8))) == [2 * i for i in range(8)]
    assert len(list(tmp_path.iterdir())) == 1


def test_work_that_kills_every_process_ends_the_run_in_one_line(tmp_path):
    results = Processes(1).map(partial(dies_at_first, tmp_path, deaths=99), range(3, 5))
    with pytest.raises(SpecplanError, match=f"{ATTEMPTS} workers died"):
        next(results)
    assert len(list(tmp_path.iterdir())) >= ATTEMPTS


def test_what_the_work_raises_arrives_as_it_is():
    with pytest.raises(InputError, match="jobs 0"):
        next(Processes(1).map(Processes, [0]))
