"""Files that a command writes: their suffix and folder are checked before any work is done."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from specplan.errors import InputError, MissingExtraError

PICTURES: Final = (".svg", ".png", ".pdf", ".pgf")
ARRAYS: Final = (".csv", ".json")


def output_path(text: str, suffixes: Sequence[str]) -> Path:
    """The path, if it has one of the suffixes and its folder exists.

    >>> output_path("plane.bmp", PICTURES)
    Traceback (most recent call last):
    specplan.errors.InputError: plane.bmp: must end in .svg, .png, .pdf or .pgf
    """
    path = Path(text)
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{text}: must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    if not path.parent.is_dir():
        raise InputError(f"{text}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise InputError(f"{text}: is a folder")
    return path


def picture_path(text: str) -> Path:
    """`output_path` of a picture, if there is something to draw it with."""
    path = output_path(text, PICTURES)
    check_drawing()
    return path


def check_drawing() -> None:
    """Nothing, where matplotlib is installed.

    Raises
    ------
    MissingExtraError
        Where it is not: before the work whose picture is asked for.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", extra="plot")
