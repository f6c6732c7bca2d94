"""The record, its columns, its counts and its files say the same thing."""

import gzip
import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.files.lines import BrokenLog, read_lines, split_lines
from specplan.records import StepColumns, StepRecord, StepWriter, Tally, read_steps


@st.composite
def steps(draw: st.DrawFn) -> StepRecord:
    drafted = draw(st.integers(0, 6))
    accepted = draw(st.integers(0, drafted))
    return StepRecord(
        request=draw(st.sampled_from("abc")),
        step=draw(st.integers(0, 99)),
        source="ngram",
        tag=draw(st.sampled_from(["", "copy"])),
        context_len=draw(st.integers(0, 5000)),
        drafted=drafted,
        accepted=accepted,
        emitted=draw(st.integers(1, accepted + 1)),
        match_len=draw(st.none() | st.integers(0, 9)),
        overlap=draw(st.none() | st.tuples(st.floats(0, 1))),
        draft_s=draw(st.none() | st.floats(0, 1)),
        tested=draw(st.sampled_from([None, accepted])),
        verified=draw(st.none() | st.integers(drafted, 9)),
    )


rows_of_steps = st.lists(steps(), max_size=30, unique_by=lambda row: (row.request, row.step))


@given(rows_of_steps)
@settings(max_examples=100, deadline=None)
def test_columns_hold_the_rows(rows: list[StepRecord]) -> None:
    columns = StepColumns.of(rows)
    columns.check_integrity()
    back = list(columns)
    assert [(r.n_tested, r.n_verified) for r in back] == [(r.n_tested, r.n_verified) for r in rows]
    for name in ("request", "step", "tag", "context_len", "drafted", "accepted", "emitted", "match_len", "overlap"):
        assert [getattr(r, name) for r in back] == [getattr(r, name) for r in rows]
    assert [r.draft_s for r in back] == [r.draft_s for r in rows]


@given(rows_of_steps)
@settings(max_examples=100, deadline=None)
def test_array_sums_equal_row_sums(rows: list[StepRecord]) -> None:
    by_rows, by_columns = Tally.of_steps(rows), StepColumns.of(rows).tally()
    by_rows.check_integrity()
    for name in Tally.__dataclass_fields__:
        a, b = getattr(by_rows, name), getattr(by_columns, name)
        assert a == pytest.approx(b) if name == "draft_s" else a == b, name


@given(rows_of_steps)
@settings(max_examples=50, deadline=None)
def test_a_tally_adds_up_over_requests_in_any_grouping(rows: list[StepRecord]) -> None:
    parts = [Tally.of_steps(r for r in rows if r.request == name) for name in "cab"]
    total = parts[0] + parts[1] + parts[2]
    whole = Tally.of_steps(rows)
    assert total.clusters == whole.clusters
    assert total.accepted_at == whole.accepted_at
    assert (total.steps, total.drafts, total.tested_tokens) == (whole.steps, whole.drafts, whole.tested_tokens)


@given(rows_of_steps)
@settings(max_examples=100, deadline=None)
def test_survival_counts_are_the_definition(rows: list[StepRecord]) -> None:
    tally = Tally.of_steps(rows)
    longest = max((r.accepted for r in rows if r.drafted), default=0)
    assert tally.accepted_at == tuple(sum(r.accepted > i for r in rows) for i in range(longest))
    assert tally.tested_tokens == sum(r.n_tested for r in rows)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_an_engines_counters_give_the_same_as_its_steps_where_lengths_are_equal(accepted: list[int]) -> None:
    rows = [
        StepRecord(request=str(i), step=0, source="s", context_len=1, drafted=4, accepted=a, emitted=a + 1)
        for i, a in enumerate(accepted)
    ]
    of_steps = Tally.of_steps(rows)
    at = [sum(a > i for a in accepted) for i in range(4)]
    counters = Tally.of_counters(
        drafts=len(rows), drafted_tokens=4 * len(rows), accepted_tokens=sum(accepted), accepted_at=at
    )
    assert counters.tested_tokens == of_steps.tested_tokens
    assert counters.tested_at is not None
    assert of_steps.tested_at is not None
    assert counters.tested_at[: len(of_steps.tested_at)] == of_steps.tested_at
    assert counters.length_tested == of_steps.length_tested


def test_unequal_draft_lengths_leave_the_tested_positions_unknown() -> None:
    counters = Tally.of_counters(drafts=3, drafted_tokens=5, accepted_tokens=2, accepted_at=[1, 1, 0])
    assert counters.accepted_histogram == (2, 0, 1, 0)
    assert counters.tested_histogram is None


@pytest.mark.parametrize(
    "counts",
    [
        {"drafts": 2, "drafted_tokens": 4, "accepted_tokens": 5},
        {"drafts": 5, "drafted_tokens": 4, "accepted_tokens": 1},
        {"drafts": 2, "drafted_tokens": 4, "accepted_tokens": 3, "accepted_at": [1, 2]},
        {"drafts": 2, "drafted_tokens": 4, "accepted_tokens": 3, "accepted_at": [1, 1]},
        {"drafts": 2, "drafted_tokens": 4, "accepted_tokens": 3, "steps": 1},
    ],
)
def test_counters_that_contradict_one_another_are_refused(counts: dict) -> None:
    with pytest.raises(InputError, match="contradict"):
        Tally.of_counters(**counts)


def test_columns_name_the_row_that_is_wrong() -> None:
    row = StepRecord(request="a", step=0, source="s", context_len=1, drafted=2, accepted=3, emitted=4)
    with pytest.raises(InputError, match="row 0"):
        StepColumns.of([row]).check_integrity()


def record(request: str, step: int = 0) -> StepRecord:
    return StepRecord(request=request, step=step, source="s", context_len=7, drafted=3, accepted=1, emitted=2)


@given(rows=rows_of_steps)
@settings(max_examples=30, deadline=None)
def test_a_file_holds_the_rows(rows: list[StepRecord], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    with StepWriter(path, {}) as writer:
        writer.write(rows)
    assert list(read_steps(path)) == rows


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"

    def fails_in_the_second_request() -> None:
        with StepWriter(path, {"k": 3}) as writer:
            writer.write([record("a")])
            writer.finish("s", "a")
            writer.write([record("b")])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails_in_the_second_request()
    assert not path.exists()
    with StepWriter(path, {"k": 3}, resume=True) as writer:
        assert writer.done == {("s", "a")}
        writer.write([record("b"), record("b", 1)])
        writer.finish("s", "b")
    assert list(read_steps(path)) == [record("a"), record("b"), record("b", 1)]
    assert [p.name for p in tmp_path.iterdir()] == ["steps.jsonl"]


def test_a_kill_anywhere_loses_no_finished_request(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    writer = StepWriter(whole, {})
    for name in "abc":
        writer.write([record(name), record(name, 1)])
        writer.finish("s", name)
    writer.write([record("d")])
    writer._lines.flush()
    data = writer.partial.read_bytes()
    path = tmp_path / "cut.jsonl"
    for size in range(len(data.split(b"\n")[0]) + 1, len(data) + 1, 3):
        (tmp_path / "cut.jsonl.partial").write_bytes(data[:size])
        finished = [name for name in "abc" if f'"done":"{name}","source":"s"}}'.encode() in data[:size]]
        with StepWriter(path, {}, resume=True) as resumed:
            assert resumed.done == {("s", name) for name in finished}
        assert list(read_steps(path)) == [record(n, i) for n in finished for i in (0, 1)]


def test_other_inputs_are_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    StepWriter(path, {"k": 3})
    with pytest.raises(InputError, match="other inputs"):
        StepWriter(path, {"k": 4}, resume=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"request": "a"}', "step"),
        ('{"request":"a","step":0,"source":"s","context_len":1,"drafted":1,"accepted":2,"emitted":1}', "accepted 2"),
        ('{"request":"a","step":0,"source":"s","context_len":1,"drafted":-1,"accepted":0,"emitted":1}', "drafted"),
        ('{"request":"a","step":0,"source":"s","context_len":1,"drafted":true,"accepted":0,"emitted":1}', "drafted"),
        ('{"request":1,"step":0,"source":"s","context_len":1,"drafted":1,"accepted":0,"emitted":1}', "request"),
        ('{"request":"a","step":0,"wrong":1}', "wrong"),
        ("[" * 100_000, "nested too deeply"),
        ("not json", "Expecting"),
        ('{"schema": "other/9"}', "other/9"),
    ],
)
def test_broken_rows_are_named_and_counted(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "steps.jsonl"
    with StepWriter(path, {}) as writer:
        writer.write([record("a")])
    path.write_text(path.read_text() + line + "\n")
    log = BrokenLog()
    assert list(read_steps(path, log)) == [record("a")]
    assert log.count == 1
    assert reason in str(log.first[0])
    assert f"{path}:3" in str(log.first[0])
    with pytest.raises(InputError):
        list(read_steps(path))


def compressed(data: bytes, kind: str) -> bytes:
    if kind == "gz":
        return gzip.compress(data)
    if kind == "zst":
        return zstandard.compress(data[: len(data) // 2]) + zstandard.compress(data[len(data) // 2 :])
    return data


@pytest.mark.parametrize("kind", ["plain", "gz", "zst"])
def test_lines_are_the_same_in_every_compression(tmp_path: Path, kind: str) -> None:
    rows = [json.dumps({"n": i}).encode() for i in range(5000)]
    path = tmp_path / "any.name"
    path.write_bytes(compressed(b"\n".join(rows) + b"\n", kind))
    log = BrokenLog()
    assert list(read_lines(path, log)) == list(enumerate(rows, 1))
    assert log.count == 0


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_cut_file_keeps_its_whole_lines_and_says_so(tmp_path: Path, kind: str) -> None:
    rows = [b"%d" % n for n in np.random.default_rng(0).integers(0, 10**9, 100_000)]
    data = compressed(b"\n".join(rows) + b"\n", kind)
    path = tmp_path / "cut"
    path.write_bytes(data[: len(data) * 3 // 4])
    log = BrokenLog()
    got = list(read_lines(path, log))
    assert log.count == 1
    assert "ends too early" in str(log.first[0])
    assert len(got) > 60_000
    assert got[:-1] == list(enumerate(rows, 1))[: len(got) - 1]
    with pytest.raises(InputError, match="ends too early"):
        list(read_lines(path, BrokenLog(fatal=True)))


def test_garbage_after_the_magic_bytes_is_reported(tmp_path: Path) -> None:
    for magic in (b"\x1f\x8b", b"\x28\xb5\x2f\xfd"):
        path = tmp_path / "garbage"
        path.write_bytes(magic + b"\xff" * 100)
        log = BrokenLog()
        assert list(read_lines(path, log)) == []
        assert log.count == 1


def test_a_line_without_end_is_passed_over_in_bounded_memory() -> None:
    class Endless(io.RawIOBase):
        sent = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
            if self.sent >= 100 * 2**20:
                buffer[:5] = b"\nend\n"
                return 5 if self.closing() else 0
            buffer[:] = b"x" * len(buffer)
            self.sent += len(buffer)
            return len(buffer)

        ended = False

        def closing(self) -> bool:
            first, self.ended = not self.ended, True
            return first

    log = BrokenLog()
    tracemalloc.start()
    got = list(split_lines(io.BufferedReader(Endless()), "endless", log, max_line_bytes=2**20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert got == [(2, b"end")]
    assert "endless:1: a line of more than" in str(log.first[0])
    assert peak < 8 * 2**20
