"""Text from outside as it may be shown: no control characters, no bidi overrides, no credentials, no endless values."""

import re
from collections.abc import Iterable
from typing import Final

MAX_SHOWN: Final = 200
"""Most characters of one value that a message repeats."""
MAX_MESSAGE: Final = 4000

_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_CREDENTIALS: Final = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*:/{1,2})[^/\s?#]*@")
_LONG: Final = re.compile(rf"'[^']{{{MAX_SHOWN - 1},}}'|\"[^\"]{{{MAX_SHOWN - 1},}}\"|\S{{{MAX_SHOWN + 1},}}")


def is_url(text: str) -> bool:
    """Whether `text` is read over HTTP rather than from a file.

    >>> is_url("http://127.0.0.1:8000/metrics"), is_url("metrics.txt")
    (True, False)
    """
    return text.lower().startswith(("http://", "https://"))


def escaped(text: str) -> str:
    r"""`text` with control characters, bidi overrides, line ends and other invisible characters as escapes.

    >>> escaped("a\x1b[31m\nb")
    'a\\x1b[31m\\nb'
    """
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def shown(value: object) -> str:
    """A value from outside on one line: escaped, without credentials, cut where it is longer than `MAX_SHOWN`.

    >>> len(shown("x" * 300)), shown("http://me:secret@host/metrics")
    (200, 'http://host/metrics')
    """
    return _cut(escaped(without_credentials(str(value))))


def _cut(text: str) -> str:
    """Both ends of a long text, `MAX_SHOWN` characters in all: of a path the end tells most."""
    if len(text) <= MAX_SHOWN:
        return text
    middle = f"...({len(text)} characters)..."
    room = MAX_SHOWN - len(middle)
    return text[: room - room // 3] + middle + text[len(text) - room // 3 :]


def without_credentials(text: str) -> str:
    """`text` with the user and password of each address left out.

    >>> without_credentials("cannot read https://u:p@h:1/metrics")
    'cannot read https://h:1/metrics'
    """
    return _CREDENTIALS.sub(r"\1", text)


def one_line(text: str) -> str:
    r"""A message on one line: white space as single spaces, long values cut, the rest escaped, no credentials.

    >>> one_line("read 'a\nb',\n got " + "9" * 1000)[:24]
    "read 'a b', got 99999999"
    """
    joined = " ".join(without_credentials(text).split())
    return escaped(_LONG.sub(lambda found: _cut(found[0]), joined))[:MAX_MESSAGE]


def near_misses(name: str, known: Iterable[str]) -> str:
    """Known names that are close to `name`, as a question; empty where none is.

    >>> near_misses("comprae", ("compare", "cost"))
    '; did you mean compare?'
    """
    import difflib  # only where something was misspelled

    by_lower = {k.lower(): k for k in known}
    near = [by_lower[n] for n in difflib.get_close_matches(name.lower(), by_lower, n=4, cutoff=0.55)]
    near = near or [k for lower, k in by_lower.items() if name.strip() and name.lower() in lower][:4]
    return f"; did you mean {', '.join(near)}?" if near else ""
