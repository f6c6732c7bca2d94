"""Docstrings as the site shows them: their formulas and examples in Markdown (they are written for Python's own readers)."""

import re
from typing import Any

import griffe


def in_markdown(text: str) -> str:
    r"""A docstring's formulas between dollars, and examples that stand in no section in a block.

    >>> in_markdown("E.\n\n.. math:: a\n    + b\n\n>>> 1\n1")
    'E.\n\n$$ a + b $$\n\n```pycon\n>>> 1\n1\n```'
    """
    text = re.sub(
        r"^\.\. math:: (.+(?:\n[ \t]+.+)*)", lambda m: f"$$ {' '.join(m[1].split())} $$", text, flags=re.MULTILINE
    )
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    if "Examples\n---" in text:
        return text
    return re.sub(r"^>>> .+(?:\n.+)*", lambda m: f"```pycon\n{m[0]}\n```", text, flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object that griffe reads."""
        if obj.docstring is not None:
            obj.docstring.value = in_markdown(obj.docstring.value)
