"""Prompts of a file: ids or text, each once; what is none of both is refused with its line."""

import json
from pathlib import Path

import pytest

from specplan.errors import InputError
from specplan.records.prompts import read_prompts


def prompts(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_ids_win_over_text_and_names_have_defaults(tmp_path: Path) -> None:
    path = prompts(
        tmp_path / "p.jsonl", {"prompt_token_ids": [0, 7], "prompt": "x"}, {"id": 5, "prompt": "y", "tag": "t"}
    )
    ids, text = read_prompts(path)
    assert (ids.id, ids.tag, ids.text, ids.ids) == ("p-1", "p", "", (0, 7))
    assert (text.id, text.tag, text.text, text.ids) == ("5", "t", "y", ())
    assert [p.id for p in read_prompts(path, limit=1)] == ["p-1"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt_token_ids": [1, -1]}, "must be a list of token ids"),
        ({"prompt_token_ids": [1, True]}, "must be a list of token ids"),
        ({"prompt_token_ids": [1.0]}, "must be a list of token ids"),
        ({"prompt_token_ids": "12"}, "must be a list of token ids"),
        ({"prompt_token_ids": []}, "expected a field prompt"),
        ({"prompt": ""}, "expected a field prompt"),
        ({"prompt": 3}, "expected a field prompt"),
        ({"prompt": "again", "id": "a"}, "id 'a' stands twice"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_line(tmp_path: Path, row: dict[str, object], says: str) -> None:
    path = prompts(tmp_path / "p.jsonl", {"id": "a", "prompt": "x"}, row)
    with pytest.raises(InputError, match=rf"^{path}:2: .*{says}"):
        list(read_prompts(path))


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prompts"):
        list(read_prompts(prompts(tmp_path / "p.jsonl")))
