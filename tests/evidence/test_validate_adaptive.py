"""Published tables of adaptive verification: tested rows hold, and what a table lacks is named."""

import json
from pathlib import Path

import pytest

from specplan.errors import InputError
from specplan.evidence.validate_adaptive import adaptive_tables


def test_published_tables_hold() -> None:
    medians = {(r.name, s.quantity): s.median_error for r in adaptive_tables() for s in r.summaries if s.use == "test"}
    assert medians["vllm-52362", "adaptive / fixed"] < 0.12
    assert medians["vllm-52362", "overtakes fixed, concurrency"] < 1.0
    assert medians["llamacpp-25173-q4km", "speedup of dflash"] < 0.15


def written(tmp_path: Path, *tables: object) -> Path:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps({"tables": tables}))
    return path


def test_a_table_that_lacks_a_column_is_named(tmp_path: Path) -> None:
    table = {"id": "mine", "k": 7, "columns": ["concurrency", "tok_s_fixed_k7"], "rows": [[1, 2.0]]}
    with pytest.raises(InputError, match="table mine: needs columns"):
        adaptive_tables(written(tmp_path, table))
    holes = {**table, "columns": ["concurrency", "tok_s_fixed_k7", "tok_s_adaptive_k7"], "rows": [[1, 2.0, None]]}
    with pytest.raises(InputError, match="tok_s_adaptive_k7"):
        adaptive_tables(written(tmp_path, holes))
    for wrong in (1, {"id": "x"}, {"id": "x", "columns": ["task"], "rows": []}, {**table, "k": 0}):
        with pytest.raises(InputError):
            adaptive_tables(written(tmp_path, wrong))
