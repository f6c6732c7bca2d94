"""What engines call the figures of speculation, by version: their definition and ours.

A name whose meaning changed stands once per meaning. What translates a figure takes its words from here, so that the
table that ``specplan ingest --words`` prints is the one in use.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from specplan.errors import NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One name of one engine, with one meaning.

    Attributes
    ----------
    engine : str
        ``vllm``, ``sglang``, ``tensorrt-llm`` or ``llama.cpp``.
    place : str
        Where it is printed: ``metrics``, ``log``, ``bench``, ``response``, ``stats`` or ``start-up``.
    name : str
        As the engine spells it.
    meaning : str
        The engine's definition: over which steps, bonus included or not, pooled or conditional.
    ours : str
        Our quantity, or what is made of it.
    versions : str
        Versions in which it has this meaning; ``all`` where no other is known.
    """

    engine: str
    place: str
    name: str
    meaning: str
    ours: str
    versions: str


@cache
def words() -> tuple[Word, ...]:
    """The whole table, engine by engine."""
    text = resources.files(__package__).joinpath("engine_words.tsv").read_text("utf-8")
    names, *rows = (line.split("\t") for line in text.splitlines())
    return tuple(Word(**dict(zip(names, row, strict=True))) for row in rows)


def words_named(name: str) -> tuple[Word, ...]:
    """All meanings of a name, in the order of the table; case, ``_total`` and an engine's prefix may be left out.

    >>> [w.versions for w in words_named("spec_accept_rate")]
    ['before sglang#23530 (April 2026)', 'since sglang#23530 (April 2026)']
    """
    wanted = name.strip().lower().removesuffix("_total")
    return tuple(
        w
        for w in words()
        if wanted in {(full := w.name.lower().removesuffix("_total")), full.partition(":")[2], full.rpartition(".")[2]}
    )


def word(engine: str, name: str, *, versions: str = "") -> Word:
    """The meaning of an engine's name; `versions` picks one of several by the beginning of its versions.

    Raises
    ------
    NotFoundError
        If the table has no such name.

    Examples
    --------
    >>> word("vllm", "vllm:spec_decode_num_drafts_total").ours
    'drafts'
    """
    for w in words():
        if w.engine == engine and w.name == name and w.versions.startswith(versions):
            return w
    raise NotFoundError(f"no word {name!r} of {engine}; specplan ingest --words lists them")
