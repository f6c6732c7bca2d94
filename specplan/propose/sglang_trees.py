"""Draft trees as SGLang lays them out: N rows per request, level by level, with masks and links for the verify pass."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.compiled import load
from specplan.propose.protocol import EMPTY, Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLinks:
    """What a tree attention pass needs to know of laid-out trees.

    Attributes
    ----------
    masks : uint8 array, shape (B, N, N)
        masks[b, i, j] is 1 when j is i itself or an ancestor of i.
    retrieve_index : int64 array, shape (B, N)
        b N + i.
    next_token : int32 array, shape (B, N)
        First child, or -1.
    next_sibling : int32 array, shape (B, N)
        Next row with the same parent, or -1.
    positions : int64 array, shape (B, N)
        Sequence position: sequence length and the number of strict ancestors.
    """

    masks: NDArray[np.uint8]
    retrieve_index: NDArray[np.int64]
    next_token: NDArray[np.int32]
    next_sibling: NDArray[np.int32]
    positions: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTrees:
    """Draft trees of a batch of B requests, N rows each.

    Attributes
    ----------
    tokens : int32 array, shape (B, N)
        Row 0 is the last context token; rows of one level stand together; rows from `sizes` on are padding: token 0
        with the engine's quirks, -1 without.
    parents : int32 array, shape (B, N)
        Row of the parent; -1 for row 0, 0 for padding.
    chances : float64 array, shape (B, N)
        PROB: the product of shares along the path. BFS estimates none: 0.
    sizes : int64 array, shape (B,)
        Rows in use, row 0 included.
    match_lens : int64 array, shape (B,)
        Longest suffix of the context with a continuation, in trie or corpora; 0 for none.

    Examples
    --------
    >>> trees = DraftTrees(
    ...     tokens=np.array([[7, 4, 5, 6, 0]], np.int32), parents=np.array([[-1, 0, 0, 1, 0]], np.int32),
    ...     chances=np.zeros((1, 5)), sizes=np.array([4]), match_lens=np.array([2]))
    >>> trees.paths(0)
    [(4,), (5,), (4, 6)]
    >>> links = trees.links([100])
    >>> links.next_token.tolist(), links.next_sibling.tolist(), links.positions.tolist()
    ([[1, 3, -1, -1, -1]], [[-1, 2, 4, -1, -1]], [[100, 101, 101, 102, 101]])
    >>> links.masks[0, 3].tolist()
    [1, 1, 0, 1, 0]
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    chances: NDArray[np.float64]
    sizes: NDArray[np.int64]
    match_lens: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.tokens)

    def links(self, seq_lens: "NDArray[np.integer] | list[int]") -> TreeLinks:
        """Masks and links of all trees, padding included.

        Parameters
        ----------
        seq_lens : integers, shape (B,)
            Position of row 0 in each sequence.
        """
        batch, width = self.tokens.shape
        base = np.asarray(seq_lens, np.int64)
        if base.shape != (batch,):
            raise InputError(f"seq_lens: expected {batch} lengths, one per tree, got shape {base.shape}")
        masks = np.empty((batch, width, width), np.uint8)
        links = np.empty((batch, 3, width), np.int32)
        load("sglang_tree_kernels").link_batch(self.parents, masks, links)
        return TreeLinks(
            masks=masks,
            retrieve_index=np.arange(batch * width).reshape(batch, width),
            next_token=links[:, 0],
            next_sibling=links[:, 1],
            positions=base[:, None] + links[:, 2],
        )

    def paths(self, row: int) -> list[tuple[int, ...]]:
        """Root-to-node token paths of tree `row`, padding left out, in the order of the rows."""
        paths: list[tuple[int, ...]] = [()]
        for i in range(1, int(self.sizes[row])):
            paths.append((*paths[self.parents[row, i]], int(self.tokens[row, i])))
        return paths[1:]

    def draft(self, row: int) -> Draft:
        """Tree `row` without its root and padding.

        >>> trees = DraftTrees(
        ...     tokens=np.array([[7, 4, 6]], np.int32), parents=np.array([[-1, 0, 1]], np.int32),
        ...     chances=np.array([[1.0, 0.75, 0.5]]), sizes=np.array([3]), match_lens=np.array([2]))
        >>> draft = trees.draft(0)
        >>> draft.tokens, draft.parents, draft.score
        ((4, 6), (-1, 0), 1.25)
        """
        size = int(self.sizes[row])
        if size == 1:
            return EMPTY
        chances = self.chances[row, 1:size]
        scores = tuple(chances.tolist()) if chances.any() else None
        return Draft(
            tokens=tuple(self.tokens[row, 1:size].tolist()),
            parents=tuple((self.parents[row, 1:size] - 1).tolist()),
            scores=scores,
            score=float(chances.sum()),
            match_len=int(self.match_lens[row]),
        )
