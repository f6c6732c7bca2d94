"""Files that a command writes: their suffix and folder are checked before any work is done."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from specplan.errors import InputError

PICTURES: Final = (".svg", ".png", ".pdf")
ARRAYS: Final = (".csv", ".json")


def output_path(text: str, suffixes: Sequence[str]) -> Path:
    """The path, if it has one of the suffixes and its folder exists.

    >>> output_path("plane.bmp", PICTURES)
    Traceback (most recent call last):
    specplan.errors.InputError: plane.bmp: must end in .svg, .png or .pdf
    """
    path = Path(text)
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{text}: must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    if not path.parent.is_dir():
        raise InputError(f"{text}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise InputError(f"{text}: is a folder")
    return path


def write_text(path: Path, text: str) -> None:
    """Write a text file, or say in one line why it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all, or say in one line why it cannot be written.

    For regular files only: the name is given to a new file.
    """
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
