"""The shipped start-ups judge the prediction: 42 of one H100 node, 128 rows of public logs."""

import functools

import pytest

from specplan.evidence.startup_checks import StartupRow
from specplan.evidence.validate_startup import EXPLAIN_BEYOND, startup_table, summarise
from specplan.specs.hardware import load_accelerator
from specplan.specs.huggingface.vision import import_served


@functools.cache
def _rows() -> tuple[StartupRow, ...]:
    return startup_table(import_served, load_accelerator)


def _checked(set_name: str, check: str) -> list[StartupRow]:
    return [row for row in _rows() if row.set_name == set_name and row.check == check]


def _errors(rows: list[StartupRow]) -> list[float]:
    return sorted(abs(row.error) for row in rows if row.error is not None)


def test_every_start_is_in_the_table() -> None:
    assert len({row.id for row in _rows() if row.set_name == "h100"}) == 42
    assert len({row.id for row in _rows() if row.set_name == "public"}) == 128
    assert all(row.note for row in _rows() if row.error is None)


def test_weights_from_name_and_flags_alone() -> None:
    errors = _errors(_checked("h100", "weights"))
    assert len(errors) == 42
    assert sum(error <= 0.01 for error in errors) >= 0.95 * 42


def test_tokens_from_name_and_flags_alone() -> None:
    errors = _errors(_checked("h100", "tokens from flags"))
    assert len(errors) == 42
    summary = {(s.set_name, s.check): s for s in summarise(_rows())}["h100", "tokens from flags"]
    assert summary.median < 0.001
    assert summary.p90 < 0.015
    assert summary.largest < 0.04


def test_tokens_from_the_logs_own_terms() -> None:
    errors = _errors(_checked("h100", "tokens from printed bytes"))
    assert len(errors) == 42
    assert max(errors) < 0.0005


@pytest.mark.parametrize("check", ["tokens from printed bytes", "tokens as whole blocks"])
def test_public_pools_follow_from_their_bytes(check: str) -> None:
    rows = _checked("public", check)
    assert rows
    for row in rows:
        assert row.error is not None
        assert abs(row.error) <= max(0.002, row.slack) or row.note, row


def test_logs_whose_model_and_card_are_found_by_name() -> None:
    rows = [row for row in _rows() if row.set_name == "named"]
    assert {row.id for row in rows} == {f"u{i:03}" for i in (1, 3, 4, 7, 8, 10, 12, 15, 17, 19, 21, 23)}
    layout = [row for row in rows if row.check in ("tokens from printed bytes", "layout")]
    assert len(layout) >= 13
    for row in layout:
        assert row.error is not None
        assert abs(row.error) <= max(0.002, row.slack), row


def test_bounds_hold_what_unfitted_logs_print() -> None:
    bounded = [row for row in _rows() if row.enclosed is not None and not row.fitted]
    assert len(bounded) >= 8
    assert sum(row.enclosed is True for row in bounded) >= 0.8 * len(bounded)
    assert any(row.fitted for row in _rows())


def test_far_rows_say_why() -> None:
    for row in _rows():
        if row.error is not None and abs(row.error) > EXPLAIN_BEYOND:
            assert row.note, row


def test_draft_deltas_within_one_percent() -> None:
    deltas = _checked("public", "draft delta")
    assert {row.id for row in deltas} == {"v063", "v057", "s006"}
    assert all(row.error is not None and abs(row.error) < 0.01 for row in deltas)
