# ruff: noqa: S101 - check_integrity asserts
"""External corpora of SGLang's n-gram drafting: named suffix automata under one token limit, replaced at run time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.files.documents import parse_json
from specplan.files.lines import BrokenLog, read_lines
from specplan.propose.automaton import SuffixAutomaton
from specplan.propose.protocol import TokenArray, Tokens, as_tokens
from specplan.propose.sglang_rule import SglangRule

Tokenize = Callable[[str], Sequence[int]]
"""Text to token ids, without special tokens."""


def read_jsonl(path: str | Path, tokenize: Tokenize | None = None) -> Iterator[TokenArray]:
    r"""Documents of a JSONL file, one per line; blank lines are skipped.

    Parameters
    ----------
    path : path
        With `tokenize` each line is a JSON string, as the engine reads it; without, a JSON array of token ids.
    tokenize : callable, optional
        Text to token ids, without special tokens.

    Raises
    ------
    InputError
        For a missing file, and, with the line number, for a line that is not what it must be.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "corpus.jsonl"
    ...     _ = path.write_text('"ab"\n\n"c"\n')
    ...     [document.tolist() for document in read_jsonl(path, lambda text: [ord(c) for c in text])]
    [[97, 98], [99]]
    """
    expected = "a JSON array of token ids (or give a tokenizer for text)" if tokenize is None else "a JSON string"
    for number, line in read_lines(Path(path), BrokenLog(fatal=True)):
        where = f"corpus {path}, line {number}"
        value = parse_json(line, f"{where}: expected {expected}")
        if tokenize is None:
            fits = isinstance(value, list) and all(type(token) is int for token in value)
        else:
            fits = isinstance(value, str)
        if not fits:
            raise InputError(f"{where}: expected {expected}, got {type(value).__name__}")
        yield as_tokens(value if tokenize is None else tokenize(value), what=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusLoad:
    """What came of adding a corpus.

    Attributes
    ----------
    corpus_id : str
        Its name.
    loaded_token_count : int
        Tokens taken in, separators included.
    n_documents : int
        Documents taken in.
    truncated : bool
        Whether documents were left out to stay within the token limit.
    message : str
        One line for people.
    """

    corpus_id: str
    loaded_token_count: int
    n_documents: int
    truncated: bool
    message: str


@dataclass(frozen=True, slots=True)
class CorpusPool:
    """All automata as the compiled loops take them: joined arrays, and where each one's part starts and stops."""

    states: NDArray[np.int32]
    edges: NDArray[np.int32]
    slots: NDArray[np.int32]
    bounds: NDArray[np.int64]


class SglangCorpora:
    """Named external corpora that share one token limit and one node budget.

    Each is a suffix automaton of its documents, with a separator before every document but the first; separators count
    as tokens. Memory is bounded by the token limit: some 50 bytes per token, and as much again for a moment while a
    second corpus is joined to the first.

    Parameters
    ----------
    rule : SglangRule
        Token limit, match type (order of continuations), quirks.

    Examples
    --------
    >>> corpora = SglangCorpora(SglangRule(external_sam_budget=4, external_corpus_max_tokens=8))
    >>> corpora.add("manual", [[1, 2, 3], [1, 2, 4]]).loaded_token_count
    7
    >>> corpora.token_counts
    {'manual': 7}
    >>> corpora.add("notes", [[5, 6]])
    Traceback (most recent call last):
    specplan.errors.InputError: corpus 'notes' exceeds the limit: 2 tokens after document 1, but 1 of 8 are left;\
 remove one, shorten this one or raise external_corpus_max_tokens
    """

    def __init__(self, rule: SglangRule) -> None:
        self.rule = rule
        self._corpora: dict[str, SuffixAutomaton] = {}
        self._pool = _pool_of([])

    def add(self, corpus_id: str, documents: Iterable[Tokens], *, truncate: bool = False) -> CorpusLoad:
        """Build and commit a corpus; on an error nothing changes.

        Parameters
        ----------
        corpus_id : str
            A name that is not taken.
        documents : iterable of token sequences
            Read once, one at a time.
        truncate : bool
            Past the token limit, stop at the last whole document instead of raising.

        Raises
        ------
        InputError
            For a name that is taken, no tokens, tokens over the limit, or (without quirks) a corpus that no node budget
            would ever let draft.
        """
        rule = self.rule
        if corpus_id in self._corpora:
            raise InputError(
                f"External corpus '{corpus_id}' already exists. Remove it before adding a new corpus with the same id."
            )
        if rule.quirks is None and rule.external_sam_budget == 0:
            raise InputError(
                f"corpus {corpus_id!r} could never draft: external_sam_budget is 0; "
                f"set it to 1..draft_token_num - 1 = {rule.draft_token_num - 1}"
            )
        left = rule.external_corpus_max_tokens - sum(self.token_counts.values())
        automaton = SuffixAutomaton("recency" if rule.match_type == "BFS" else "frequency")
        n_documents, truncated = 0, False
        for document in documents:
            array = as_tokens(document, what=f"corpus {corpus_id!r}, document {n_documents + 1}")
            wanted = automaton.n_tokens + (n_documents > 0) + array.size
            if wanted > left:
                if not truncate:
                    raise InputError(
                        f"corpus {corpus_id!r} exceeds the limit: {wanted} tokens after document {n_documents + 1}, "
                        f"but {left} of {rule.external_corpus_max_tokens} are left; remove one, shorten this one or "
                        "raise external_corpus_max_tokens"
                    )
                truncated = True
                break
            if n_documents:
                automaton.separate()
            automaton.append(array)
            n_documents += 1
        if automaton.n_tokens == 0:
            raise InputError(
                f"corpus {corpus_id!r} is empty: no document has a token within the limit of {left} tokens"
            )
        automaton.freeze()
        self._commit({**self._corpora, corpus_id: automaton})
        note = f" (truncated: exceeded {rule.external_corpus_max_tokens} token limit)" if truncated else ""
        return CorpusLoad(
            corpus_id=corpus_id,
            loaded_token_count=automaton.n_tokens,
            n_documents=n_documents,
            truncated=truncated,
            message=f"{automaton.n_tokens} tokens in {n_documents} documents{note}",
        )

    def add_jsonl(
        self, path: str | Path, tokenize: Tokenize | None = None, *, corpus_id: str | None = None
    ) -> CorpusLoad:
        """Build and commit a corpus from a JSONL file, named by its path unless given; see `read_jsonl` and `add`."""
        return self.add(str(path) if corpus_id is None else corpus_id, read_jsonl(path, tokenize))

    def remove(self, corpus_id: str) -> bool:
        """Drop a corpus and its memory; an unknown name is no error. Answers whether it was there."""
        if corpus_id not in self._corpora:
            return False
        self._commit({name: automaton for name, automaton in self._corpora.items() if name != corpus_id})
        return True

    def _commit(self, corpora: dict[str, SuffixAutomaton]) -> None:
        self._pool = _pool_of(list(corpora.values()))
        self._corpora = corpora

    @property
    def pool(self) -> CorpusPool:
        """The corpora for compiled callers, in order of addition."""
        return self._pool

    @property
    def token_counts(self) -> dict[str, int]:
        """Tokens of each corpus, separators included, in order of addition."""
        return {name: automaton.n_tokens for name, automaton in self._corpora.items()}

    def __getitem__(self, corpus_id: str) -> SuffixAutomaton:
        return self._corpora[corpus_id]

    def __len__(self) -> int:
        """Number of corpora."""
        return len(self._corpora)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the joined arrays; the automata are views into them."""
        pool = self._pool
        return pool.states.nbytes + pool.edges.nbytes + pool.slots.nbytes + pool.bounds.nbytes

    def check_integrity(self) -> None:
        """Verify each automaton, the limit and the joined arrays; AssertionError names what is broken."""
        assert sum(self.token_counts.values()) <= self.rule.external_corpus_max_tokens, "within the token limit"
        assert len(self._pool.bounds) == len(self._corpora), "one part per corpus"
        for automaton in self._corpora.values():
            automaton.check_integrity()
            for own, pooled in zip(
                automaton.arrays, (self._pool.states, self._pool.edges, self._pool.slots), strict=True
            ):
                assert own.size == 0 or np.shares_memory(own, pooled), "an automaton is a view into the joined arrays"


def _pool_of(automata: list[SuffixAutomaton]) -> CorpusPool:
    """Join the automata; one alone is taken as it is, several become views into the joined arrays."""
    parts = [automaton.arrays for automaton in automata]
    bounds = np.zeros((len(parts), 6), np.int64)
    offsets = np.zeros(3, np.int64)
    for c, part in enumerate(parts):
        sizes = np.array([len(array) for array in part])
        bounds[c, 0::2], bounds[c, 1::2] = offsets, offsets + sizes
        offsets += sizes
    if len(parts) == 1:
        states, edges, slots = parts[0]
    else:
        states, edges, slots = (
            np.concatenate([np.empty(shape, np.int32), *(part[i] for part in parts)])
            for i, shape in enumerate([(0, 5), (0, 2), (0,)])
        )
        for automaton, (s0, s1, e0, e1, h0, h1) in zip(automata, bounds.tolist(), strict=True):
            automaton.hold(states[s0:s1], edges[e0:e1], slots[h0:h1])
    return CorpusPool(states, edges, slots, bounds)
