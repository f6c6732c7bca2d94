"""The `order` of a model spec: ``"80x block"``, ``"10x(5x sliding, full), 2x sliding"``.

::

    order  = term { "," term }
    term   = [ count "x" ] ( name | "(" order ")" )
"""

import re
from collections.abc import Sequence
from typing import Final

from specplan.errors import InputError

MAX_LAYERS: Final = 10_000
"""No decoder has more; a larger order is a slip of the pen."""

_TOKEN: Final = re.compile(r"\s*(?:(\d+)\s*[x×]\s*(?=[\w(])|([A-Za-z_][\w.\-]*)|([(),]))")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> re.Match[str] | None:
        if not self.text[self.at :].strip():
            return None
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            rest = self.text[self.at :].strip()[:20]
            raise InputError(f"cannot read {rest!r}; write for example '10x(5x sliding, full), 2x sliding'")
        return match

    def order(self, depth: int) -> list[str]:
        if depth > 20:
            raise InputError("parentheses nested too deeply")
        names = self.term(depth)
        while (token := self.peek()) is not None and token[3] == ",":
            self.at = token.end()
            names += self.term(depth)
        return names

    def term(self, depth: int) -> list[str]:
        token = self.peek()
        times = 1
        if token is not None and token[1]:
            if len(token[1]) > 6:
                raise InputError(f"{token[1]} layers, more than {MAX_LAYERS}")
            times, self.at = int(token[1]), token.end()
            token = self.peek()
        if token is None or not (token[2] or token[3] == "("):
            raise InputError(
                f"expected a layer name or '(' {f'before {token[0].strip()!r}' if token else 'at the end'}"
            )
        self.at = token.end()
        names = [token[2]] if token[2] else self.parenthesis(depth)
        if times < 1 or times * len(names) > MAX_LAYERS:
            raise InputError(f"{times * len(names)} layers, expected 1 to {MAX_LAYERS}")
        return names * times

    def parenthesis(self, depth: int) -> list[str]:
        names = self.order(depth + 1)
        token = self.peek()
        if token is None or token[3] != ")":
            raise InputError("a '(' is not closed")
        self.at = token.end()
        return names


def parse_order(text: str) -> tuple[str, ...]:
    """Layer names that `text` stands for, in order.

    Raises
    ------
    InputError
        When the text is not an order, or stands for no layer or more than `MAX_LAYERS`.

    Examples
    --------
    >>> parse_order("2x(2x sliding, full), sliding")
    ('sliding', 'sliding', 'full', 'sliding', 'sliding', 'full', 'sliding')
    """
    parser = _Parser(text)
    try:
        names = parser.order(0)
        rest = parser.peek()
        if rest is not None:
            raise InputError(f"unexpected {rest[0].strip()!r}")
    except InputError as error:
        raise InputError(f"order {text[:80]!r}: {error}") from None
    if len(names) > MAX_LAYERS:
        raise InputError(f"order {text[:80]!r}: {len(names)} layers, more than {MAX_LAYERS}")
    return tuple(names)


def format_order(names: Sequence[str]) -> str:
    """Short order that `parse_order` reads back as `names`.

    >>> format_order(["block"] * 80)
    '80x block'
    >>> format_order((["sliding"] * 5 + ["full"]) * 10 + ["sliding"] * 2)
    '10x(5x sliding, full), 2x sliding'
    """
    terms: list[str] = []
    at = 0
    while at < len(names):
        period, times = _longest_repeat(names, at)
        unit = names[at : at + period]
        inner = unit[0] if period == 1 else _runs(unit)
        if times > 1:
            inner = f"{times}x {inner}" if period == 1 else f"{times}x({inner})"
        terms.append(inner)
        at += period * times
    return ", ".join(terms)


def _runs(names: Sequence[str]) -> str:
    terms: list[str] = []
    at = 0
    while at < len(names):
        end = at
        while end < len(names) and names[end] == names[at]:
            end += 1
        terms.append(names[at] if end - at == 1 else f"{end - at}x {names[at]}")
        at = end
    return ", ".join(terms)


def _longest_repeat(names: Sequence[str], at: int) -> tuple[int, int]:
    """Period (at most 16) and repetitions from `at` that cover most; the shorter period on a tie."""
    best = (1, 1)
    for period in range(1, min(16, len(names) - at) + 1):
        unit = names[at : at + period]
        times = 1
        while names[at + period * times : at + period * (times + 1)] == unit:
            times += 1
        if (times > 1 or period == 1) and period * times > best[0] * best[1]:
            best = (period, times)
    return best
