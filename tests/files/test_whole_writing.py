"""Files are there whole or not at all; one process at a time writes lines; a full disk is named."""

import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from specplan.errors import InputError
from specplan.files.writing import Lines, whole, write_whole


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plane.svg"
    write_whole(path, "old")
    with pytest.raises(ZeroDivisionError), whole(path) as fresh:
        fresh.write_text(f"half {1 / 0}")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["plane.svg"]


def test_a_link_stays_a_link_and_a_pipe_is_written(tmp_path: Path) -> None:
    (tmp_path / "to").write_text("old")
    (tmp_path / "link").symlink_to("to")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "to").read_text() == "new"
    write_whole(Path(os.devnull), b"gone")


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "x", Path("/dev/full")):
        with pytest.raises(InputError, match=rf"^{path}: (cannot be written|is a folder)"):
            write_whole(path, "x")
    with pytest.raises(InputError, match="cannot be written"):
        Lines(tmp_path / "absent" / "x")


def _append(path: Path, n: int, start: Barrier, tried: Barrier) -> None:
    start.wait()
    try:
        with Lines(path, lambda: path.read_text().splitlines()) as lines:
            for i in range(n):
                lines.write({"pid": os.getpid(), "i": i})
                lines.flush()
            tried.wait()
    except InputError as error:
        tried.wait()
        os._exit(3 if "another run is writing" in str(error) else 4)


def test_of_many_writers_at_once_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    context = multiprocessing.get_context("fork")
    barriers = context.Barrier(6), context.Barrier(6)
    runs = [context.Process(target=_append, args=(path, 50, *barriers)) for _ in range(6)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(run.exitcode or 0 for run in runs) == [0, 3, 3, 3, 3, 3]
    assert len(path.read_text().splitlines()) == 50


def test_lines_that_are_kept_begin_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for i in range(3):
        with Lines(path, lambda: path.read_text().splitlines()) as lines:
            lines.write({"i": i})
            with pytest.raises(InputError, match="another run"):
                Lines(path)
    assert path.read_text() == '{"i":0}\n{"i":1}\n{"i":2}\n'
    lines = Lines(path)
    lines.commit(tmp_path / "done.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["done.jsonl"]
