"""Files and JSON from outside: each bound is one clear line, quickly, and nothing inside the bounds is refused."""

import gzip
import json
import os
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.files import documents, reading
from specplan.files.documents import json_object, parse_json, read_json
from specplan.files.lines import BrokenLog, read_lines
from specplan.files.reading import open_file, peek, read_bytes, read_text
from specplan.files.text import MAX_SHOWN, escaped, one_line, shown

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_what_json_can_say_is_read_as_it_stands(value: object) -> None:
    text = json.dumps(value)
    assert parse_json(text, "x") == json.loads(text)
    assert parse_json(b"\xef\xbb\xbf" + text.encode(), "x") == json.loads(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[NaN]", "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[1e999]", "too large"),
        ("[" + "9" * 309 + "]", "a number of 309 digits"),
        ("[0." + "9" * 1_000_000 + "]", "too large"),
        ("[" * 101 + "]" * 101, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested too deeply"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "key 'c' appears twice"),
        ("{", "not JSON: .* at line 1 column 2"),
        (b"\xff\xfe", "expected UTF-8"),
        ("[" + "," * documents.MAX_VALUES + "]", "more than 8000000 values"),
    ],
)
def test_each_bound_of_json_is_one_line(text: str | bytes, says: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError, match=says) as caught:
        parse_json(text, "here")
    assert str(caught.value).startswith("here: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert time.process_time() - start < 5


def test_bounds_are_not_met_one_step_before_them() -> None:
    assert parse_json("[" * 100 + "]" * 100, "x")
    assert parse_json("9" * 308, "x") == int("9" * 308)
    assert parse_json('{"a": NaN}', "x", nan="unknown") == {"a": None}
    assert parse_json("[0.0, Infinity]", "x", nan="keep") == [0.0, float("inf")]  # a bound that is none, in a config


def test_a_list_is_no_object() -> None:
    with pytest.raises(InputError, match="expected a JSON object with named fields, got list"):
        json_object("[1]", "x")


def test_pipes_devices_and_folders_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        (tmp_path / "pipe", "pipe or a device"),
        (Path("/dev/zero"), "pipe or a device"),
        (tmp_path, "is a folder"),
        (tmp_path / "absent", "no such file, expected a table"),
        (tmp_path / ("x" * 5000), "cannot be read"),
        (Path("a\x00b"), "null"),
    ):
        for read in (open_file, read_bytes, read_text, read_json):
            with pytest.raises(InputError, match=says):
                read(path, "a table")


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_the_bound_is_read_and_one_byte_more_is_not(tmp_path: Path, packed: bool) -> None:
    for n in (1000, 1001):
        body = b" " * n
        (tmp_path / str(n)).write_bytes(gzip.compress(body) if packed else body)
    assert len(read_bytes(tmp_path / "1000", "x", 1000)) == 1000
    with pytest.raises(InputError, match="larger than 1000 bytes"):
        read_bytes(tmp_path / "1001", "x", 1000)


def test_a_cut_off_archive_is_no_document_and_still_has_a_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(os.urandom(5000).hex().encode())[:-40])
    with pytest.raises(InputError, match="cut off or corrupt"):
        read_bytes(path)
    assert len(peek(path)) > 1000


def test_a_decompression_bomb_of_lines_ends(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b" " * 2**20, 9) * 300)  # 300 MiB in as many kilobytes
    with pytest.raises(InputError, match="decompresses to more than"):
        list(read_lines(path, BrokenLog()))


def test_binary_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for body in (b"\xff\xfe", b"a\x00b"):
        path.write_bytes(body)
        with pytest.raises(InputError, match="a binary file, expected a spec"):
            read_text(path, "a spec")
    assert reading.MAX_TEXT_BYTES < reading.MAX_DOCUMENT_BYTES


@given(st.text())
def test_shown_text_holds_no_control_and_no_bidi(text: str) -> None:
    for out in (escaped(text), shown(text), one_line(text)):
        assert not {unicodedata.category(char) for char in out} & {"Cc", "Cs", "Zl", "Zp"}
        assert not set(out) & set("\x1b\n\r\t\x07\u202e\u2066\u200f\x9b")
    assert len(shown(text)) <= MAX_SHOWN


@pytest.mark.parametrize("address", ["http://user:secret@host:1/x", "HTTPS://token@host", "redis://:secret@h"])
def test_credentials_are_not_repeated(address: str) -> None:
    for said in (shown(address), one_line(f"cannot read {address}: refused")):
        assert "secret" not in said
        assert "token" not in said
        assert "h" in said


def test_long_values_are_cut_inside_a_message() -> None:
    said = one_line(f"read '{'a b' * 1000}', expected {'x' * 5000} or \"{'c d ' * 500}\"")
    assert len(said) < 3 * MAX_SHOWN + 60
    assert "(3002 characters)" in said
