"""The parameters of SGLang's n-gram drafting, with the engine's names and defaults (0.5.23)."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError

Quirks: TypeAlias = Literal["sglang-0.5.23"]
"""An engine whose documented quirks are reproduced."""

QUIRKS: Final = "sglang-0.5.23"


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangRule:
    """How a context becomes a draft tree.

    Attributes
    ----------
    draft_token_num : int
        N: positions verified per request and step, the last context token (root) included; at least 1.
    match_type : {"BFS", "PROB"}
        BFS ranks continuations by recency and grows breadth-first; PROB ranks by frequency and grows best-first.
    max_trie_depth : int
        D: longest indexed window, in tokens; at least 2.
    min_bfs_breadth, max_bfs_breadth : int
        Children per node at the longest and at the shortest match (BFS); PROB keeps max_bfs_breadth children per node.
    capacity : int
        Nodes of the online trie, the root included; at least D + 1.
    external_sam_budget : int
        Nodes of each draft that are kept for external corpora; at most N - 1.
    external_corpus_max_tokens : int
        Tokens of all external corpora together.
    quirks : "sglang-0.5.23" or None
        Reproduce the engine exactly, where the sane rule differs (listed in `specplan.propose.sglang_ngram`).

    Raises
    ------
    InputError
        For a value outside its range.

    Examples
    --------
    >>> SglangRule().draft_token_num, SglangRule(quirks="sglang-0.5.23").max_trie_depth
    (12, 18)
    >>> SglangRule(external_sam_budget=12)
    Traceback (most recent call last):
    specplan.errors.InputError: external_sam_budget 12: expected 0 to draft_token_num - 1 = 11
    """

    draft_token_num: int = 12
    match_type: Literal["BFS", "PROB"] = "BFS"
    max_trie_depth: int = 18
    min_bfs_breadth: int = 1
    max_bfs_breadth: int = 10
    capacity: int = 10_000_000
    external_sam_budget: int = 0
    external_corpus_max_tokens: int = 10_000_000
    quirks: Quirks | None = None

    def __post_init__(self) -> None:
        if self.quirks not in (None, QUIRKS):
            raise InputError(f"quirks {self.quirks!r}: expected {QUIRKS} or nothing")
        if self.match_type not in ("BFS", "PROB"):
            raise InputError(f"match_type {self.match_type!r}: expected BFS or PROB")
        for name, low in (("draft_token_num", 1), ("max_trie_depth", 2), ("min_bfs_breadth", 1)):
            if getattr(self, name) < low:
                raise InputError(f"{name} {getattr(self, name)}: expected at least {low}")
        if not self.min_bfs_breadth <= self.max_bfs_breadth < 2**16:
            raise InputError(
                f"max_bfs_breadth {self.max_bfs_breadth}: expected {self.min_bfs_breadth} (min_bfs_breadth) "
                f"to {2**16 - 1}"
            )
        if not self.max_trie_depth < self.capacity < 2**31:
            raise InputError(
                f"capacity {self.capacity}: expected at least max_trie_depth + 1 = {self.max_trie_depth + 1} nodes, so "
                f"that one window and the root fit, and fewer than {2**31}"
            )
        # the engine clamps too large a budget in silence
        most = self.draft_token_num - 1
        if self.external_sam_budget < 0 or (self.quirks is None and self.external_sam_budget > most):
            raise InputError(
                f"external_sam_budget {self.external_sam_budget}: expected 0 to draft_token_num - 1 = {most}"
            )
        if self.external_corpus_max_tokens < 1:
            raise InputError(f"external_corpus_max_tokens {self.external_corpus_max_tokens}: expected at least 1")

    def as_array(self) -> NDArray[np.int64]:
        """The parameters as the compiled loops take them.

        >>> SglangRule().as_array()
        array([12, 18,  1, 10,  0,  0,  0])
        """
        return np.array(
            [
                self.draft_token_num,
                self.max_trie_depth,
                self.min_bfs_breadth,
                self.max_bfs_breadth,
                self.match_type == "PROB",
                self.external_sam_budget,
                self.quirks is not None,
            ],
            np.int64,
        )
