"""Every number that the chapter prints is a row; each must pass, and none may go missing."""

import pytest

from specplan.evidence.chapter import ChapterRow, chapter_rows
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator

ROWS = chapter_rows(
    load_model("llama3-70b"), load_model("llama3-8b"), load_model("llama3.2-1b"), load_accelerator("h100-sxm")
)
PRINTED = [
    *("43", "67", "0.165", "0.0178", "9", "2.533", "1.495", "1.053", "1.69", "1.6955", "2.40", "2.4047"),
    *("0.666", "0.661", "0.654", "0.459", "0.430", "0.314"),
    *("855.6", "68.451", "1.051", "69.502", "139.0", "34.75", "10.37", "96", "1.236"),
    *("71.69", "70.55", "1.05", "32.85", "36.83", "147.3", "320", "482,772", "58", "2.30", "0.575", "32", "10"),
    *("145.0", "352", "432,026", "52", "10.3", "10.5", "482,757", "432,013"),
    *("5", "0.53", "1", "8.9", "64", "1.29", "2.38", "1", "4"),
    *("24", "400", "295", "70,553,706,496", "8,030,261,248", "1,235,814,400"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.section}: {r.sentence}")
def test_row(row: ChapterRow) -> None:
    assert row.passes, f"printed {row.printed}, ours {row.value}"


def test_no_printed_number_is_missing() -> None:
    assert [row.printed for row in ROWS] == PRINTED


def test_a_wrong_value_fails() -> None:
    row = ChapterRow(section="", sentence="", printed="10.37", value=10.376, unit="ms")
    assert not row.passes
