# ruff: noqa: S101 - check_integrity asserts
"""SGLang's online corpus: a trie of all windows of at most D tokens, bounded in nodes, oldest leaf out first."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specplan.propose.compiled import load
from specplan.propose.protocol import Tokens, as_tokens
from specplan.propose.sglang_rule import SglangRule


class SglangTrie:
    """Depth-capped trie with counts, an order among children, and eviction by age.

    Inserting a sequence walks every window seq[i : i + D] from the root: a missing node is made with count 1, an
    existing one counted, each touched. A path's nodes become the newest of all, parents before children, so the oldest
    node is always a leaf. Arrays grow by doubling up to the capacity: 48 bytes a node, and an index of the children of
    wide nodes.

    Parameters
    ----------
    rule : SglangRule
        Depth, capacity, match type (order among children) and quirks.

    Examples
    --------
    >>> trie = SglangTrie(SglangRule(max_trie_depth=3))
    >>> trie.insert([1, 2, 3, 4])
    >>> trie.n_nodes, trie.count([2, 3]), trie.count([1, 2, 3, 4])
    (9, 1, 0)
    >>> trie.insert([2, 5])
    >>> trie.continuations([2])  # last touched first
    [(5, 1), (3, 1)]
    """

    def __init__(self, rule: SglangRule) -> None:
        self.rule = rule
        self._kernels = load("sglang_trie_kernels")
        self.params: NDArray[np.int64] = rule.as_array()
        self._path = np.empty(rule.max_trie_depth, np.int64)
        self.head: NDArray[np.int64] = np.zeros(self._kernels.HEAD_FIELDS, np.int64)
        self._clear()

    def _clear(self) -> None:
        k = self._kernels
        rows = min(1024, self.rule.capacity)
        self.nodes: NDArray[np.int32] = np.empty((rows, k.NODE_FIELDS), np.int32)
        self.nodes[0] = 0
        self.slots: NDArray[np.int32] = np.zeros(1024, np.int32)
        epoch = self.head[k.EPOCH]
        self.head[:] = 0
        self.head[k.EPOCH] = epoch
        self.head[k.CAPACITY] = self.rule.capacity
        self.head[k.USED] = self.head[k.UNTOUCHED] = 1

    def reset(self) -> None:
        """Forget everything; match states of before are void."""
        self._clear()
        self.head[self._kernels.EPOCH] += 1

    def insert(self, tokens: Tokens, *, new: int | None = None) -> None:
        """Insert all windows of a sequence.

        Parameters
        ----------
        tokens : sequence of int
            The sequence; an empty one does nothing.
        new : int, optional
            Only this many of its last tokens are new: nodes of earlier positions are touched but not counted again,
            so that counts are occurrences although windows are inserted as they grow. None: all are counted, as the
            engine does with windows that overlap.

        Examples
        --------
        >>> trie = SglangTrie(SglangRule())
        >>> trie.insert([1, 2]); trie.insert([1, 2, 3], new=1)
        >>> trie.count([1, 2]), trie.count([1, 2, 3])
        (1, 1)
        """
        array = as_tokens(tokens)
        counted_from = 0 if new is None else array.size - min(new, array.size)
        self.nodes, self.slots = self._kernels.insert(
            self.nodes, self.slots, self.head, self.params, array, 0, array.size, counted_from, self._path
        )

    def _node(self, path: Sequence[int]) -> int:
        node = 0
        for token in path:
            node = self._kernels.child(self.nodes, self.slots, node, token)
            if node == 0:
                break
        return node

    def count(self, path: Sequence[int]) -> int:
        """Count of the node at a non-empty root path; 0 when it is not there."""
        node = self._node(path)
        return int(self.nodes[node, self._kernels.COUNT]) if node else 0

    def continuations(self, path: Sequence[int]) -> list[tuple[int, int]]:
        """Children (token, count) of the node at a root path; in PROB order, max_bfs_breadth ranked ones come first."""
        k = self._kernels
        node = self._node(path)
        children = []
        if node or not path:
            if self.rule.match_type == "PROB" and node:
                k.fill_ranks(self.nodes, node, self.rule.max_bfs_breadth)
            node = int(self.nodes[node, k.FIRST])
            while node:
                children.append((int(self.nodes[node, k.TOKEN]), int(self.nodes[node, k.COUNT])))
                node = int(self.nodes[node, k.NEXT])
        return children

    @property
    def n_nodes(self) -> int:
        """Nodes held, the root left out: at most capacity - 1."""
        return int(self.head[self._kernels.USED]) - 1

    @property
    def n_evicted(self) -> int:
        """Nodes evicted since the last reset."""
        return int(self.head[self._kernels.EVICTED])

    @property
    def memory_bytes(self) -> int:
        """Bytes of the arrays now held."""
        return self.nodes.nbytes + self.slots.nbytes + self.head.nbytes + self.params.nbytes + self._path.nbytes

    def check_integrity(self) -> None:
        """Verify every invariant; AssertionError names what is broken. Walks all nodes: for tests."""
        k, nodes, rule = self._kernels, self.nodes, self.rule
        paths: dict[int, tuple[int, ...]] = {0: ()}
        stack = [0]
        while stack:
            parent = stack.pop()
            children = self._check_children(parent)
            for child in children:
                assert child not in paths, "every node has one parent"
                paths[child] = (*paths[parent], int(nodes[child, k.TOKEN]))
                stack.append(child)
        assert len(paths) == self.head[k.USED] <= rule.capacity, (
            "as many nodes are reached as are used, within capacity"
        )
        assert max(map(len, paths.values())) <= rule.max_trie_depth, "no path is longer than the depth"
        assert len(set(paths.values())) == len(paths), "siblings have different tokens"
        known = set(paths.values())
        assert all(path[1:] in known for path in known if path), "the suffix of a path is a path"
        self._check_age(paths)
        in_slots = self.slots[self.slots != 0]
        flagged = [node for node in paths if nodes[node, k.FLAGS] & k.SLOTTED]
        assert sorted(in_slots.tolist()) == sorted(flagged), "the index holds the flagged nodes"
        assert len(flagged) == self.head[k.N_SLOTTED], "indexed nodes are counted"
        assert 2 * len(flagged) <= self.slots.size, "the index is at most half full"
        free = []
        node = int(self.head[k.FREE])
        while node:
            free.append(node)
            node = int(nodes[node, k.OLDER])
        assert not set(free) & set(paths), "a free node is not in use"
        assert len(free) + len(paths) == self.head[k.UNTOUCHED] <= len(nodes), "every touched row is used or free"

    def _check_children(self, parent: int) -> list[int]:
        k, nodes = self._kernels, self.nodes
        children = []
        before, node = 0, int(nodes[parent, k.FIRST])
        while node:
            assert nodes[node, k.PARENT] == parent, "a child knows its parent"
            assert nodes[node, k.PREV] == before, "siblings are linked both ways"
            children.append(node)
            before, node = node, int(nodes[node, k.NEXT])
        assert len(children) == nodes[parent, k.DEGREE], "children are counted"
        if len(children) > k.NARROW:
            assert all(nodes[child, k.FLAGS] & k.SLOTTED for child in children), "children of a wide node are indexed"
        for child in children:
            token = int(nodes[child, k.TOKEN])
            assert k.child(nodes, self.slots, parent, token) == child, "a child is found"
        if self.rule.match_type == "PROB" and parent:
            ranked = k.n_ranked(nodes, parent)
            assert ranked <= self.rule.max_bfs_breadth, "not more children are ranked than are drafted"
            flags = [bool(nodes[child, k.FLAGS] & k.RANKED) for child in children]
            assert flags == [i < ranked for i in range(len(children))], "the first children are the ranked ones"
            assert nodes[parent, k.RANK_TAIL] == (children[ranked - 1] if ranked else 0), (
                "the last ranked child is known"
            )
            keys = [(-int(nodes[child, k.COUNT]), int(nodes[child, k.TOKEN])) for child in children]
            assert keys[:ranked] == sorted(keys)[:ranked], "the ranked children are the most frequent, in order"
        return children

    def _check_age(self, paths: dict[int, tuple[int, ...]]) -> None:
        k, nodes = self._kernels, self.nodes
        age: dict[int, int] = {}
        newer, node = 0, int(self.head[k.NEWEST])
        while node:
            assert nodes[node, k.NEWER] == newer, "ages are linked both ways"
            age[node] = len(age)
            newer, node = node, int(nodes[node, k.OLDER])
        assert self.head[k.OLDEST] == newer, "the oldest node ends the list"
        assert set(age) == set(paths) - {0}, "every node has an age"
        for node in age:
            parent = int(nodes[node, k.PARENT])
            assert parent == 0 or age[parent] < age[node], "a parent is newer than its children"
