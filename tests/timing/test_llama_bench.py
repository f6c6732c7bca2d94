"""Tables of llama-bench in each of its forms give one measured table."""

import json
from pathlib import Path

import pytest

from specplan.errors import InputError
from specplan.timing.measured_steps import load_measured_table

FIELDS = [
    {"n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ts": 50.0},
    {"n_prompt": 4, "n_gen": 0, "n_depth": 0, "avg_ts": 180.0},
    {"n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 40.0},
    {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 3000.0},
]
MARKDOWN = """| model | size | params | backend | ngl | test | t/s |
| ----- | ---: | -----: | ------- | --: | ---: | --: |
| llama 8B Q4_K | 4.58 GiB | 8.03 B | CUDA | 99 | tg128 | 50.00 ± 0.10 |
| llama 8B Q4_K | 4.58 GiB | 8.03 B | CUDA | 99 | pp4 | 180.00 ± 0.10 |
| llama 8B Q4_K | 4.58 GiB | 8.03 B | CUDA | 99 | tg128 @ d4096 | 40.00 ± 0.10 |
| llama 8B Q4_K | 4.58 GiB | 8.03 B | CUDA | 99 | pp512 | 3000.00 ± 0.10 |

build: abc (1)
"""
CSV = "n_prompt,n_gen,n_depth,avg_ts\n" + "".join(",".join(f'"{v}"' for v in row.values()) + "\n" for row in FIELDS)


@pytest.mark.parametrize(
    "text",
    [json.dumps(FIELDS), "".join(json.dumps(f) + "\n" for f in FIELDS), MARKDOWN, CSV],
    ids=["json", "jsonl", "md", "csv"],
)
def test_every_form_gives_the_same_times(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bench"
    path.write_text(text)
    table = load_measured_table(path)
    assert float(table.time_s(1, 1, 64)) == pytest.approx(1 / 50, rel=0.02)
    assert float(table.time_s(1, 4, 0)) == pytest.approx(4 / 180, rel=0.02)
    assert float(table.time_s(1, 1, 4160)) == pytest.approx(1 / 40, rel=0.02)


def test_prefills_alone_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "bench"
    path.write_text(json.dumps(FIELDS[-1:]))
    with pytest.raises(InputError, match="a llama-bench table without a test tgN"):
        load_measured_table(path)
