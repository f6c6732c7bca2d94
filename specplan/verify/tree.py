"""Tree rules: several continuations are verified in one pass, siblings one after another without bias."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.verify.categorical import checked_draft, checked_rows, checked_uniforms, draw
from specplan.verify.outcome import BoolArray, FloatArray, IntArray, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Shape of the drafted trees of a batch: N nodes per request, parents before children, siblings in index order.

    Attributes
    ----------
    parents : ndarray of int64, shape (B, N)
        Index of each node's parent; -1 for a continuation of the context itself.
    depth : ndarray of int64, shape (B, N)
        0 for the children of the context.
    rank : ndarray of int64, shape (B, N)
        Number of earlier siblings.
    """

    parents: IntArray
    depth: IntArray
    rank: IntArray

    @classmethod
    def of(cls, parents: npt.ArrayLike, batch: int, nodes: int) -> "Tree":
        """Shape from the parents of one tree for all, shape (N,), or of one per request, shape (B, N).

        Raises
        ------
        InputError
            Naming the node whose parent does not stand before it.

        Examples
        --------
        >>> Tree.of([-1, 0, 0, -1], batch=1, nodes=4).rank.tolist()
        [[0, 0, 1, 1]]
        """
        a = np.asarray(parents)
        if a.shape not in ((nodes,), (batch, nodes)) or (a.size and a.dtype.kind not in "iu"):
            raise InputError(
                f"parents: expected whole numbers of shape ({nodes},) or ({batch}, {nodes}), got {a.shape}"
            )
        above = np.broadcast_to(a.astype(np.int64), (batch, nodes)).copy()
        bad = np.argwhere((above < -1) | (above >= np.arange(nodes)))
        if len(bad):
            b, j = bad[0].tolist()
            raise InputError(f"parents: request {b}, node {j} has parent {above[b, j]}; expected -1 or an earlier node")
        depth, rank = np.zeros_like(above), np.zeros_like(above)
        row = np.arange(batch)
        for j in range(nodes):
            parent = above[:, j]
            depth[:, j] = np.where(parent < 0, 0, depth[row, parent] + 1)
            rank[:, j] = (above[:, :j] == parent[:, None]).sum(axis=1)
        return cls(parents=above, depth=depth, rank=rank)

    @property
    def height(self) -> int:
        """Longest chain of drafted tokens.

        >>> Tree.of([-1, 0, 1, -1], batch=1, nodes=4).height
        3
        """
        return int(self.depth.max(initial=-1)) + 1

    @property
    def ancestors(self) -> BoolArray:
        """Entry (b, j, i): node i lies strictly above node j.

        >>> Tree.of([-1, 0, 1], batch=1, nodes=3).ancestors[0, 2].tolist()
        [True, True, False]
        """
        batch, n = self.parents.shape
        above = np.zeros((batch, n, n), dtype=bool)
        row = np.arange(batch)
        for j in range(n):
            parent = self.parents[:, j]
            above[:, j] = np.where(parent[:, None] >= 0, above[row, parent], False)
            above[row[parent >= 0], j, parent[parent >= 0]] = True
        return above

    @property
    def earlier_siblings(self) -> BoolArray:
        """Entry (b, j, i): node i is a sibling of node j and stands before it.

        >>> Tree.of([-1, -1, 0], batch=1, nodes=3).earlier_siblings[0, 1].tolist()
        [True, False, False]
        """
        n = self.parents.shape[1]
        return np.asarray((self.parents[:, :, None] == self.parents[:, None, :]) & np.tri(n, k=-1, dtype=bool))

    def live(self, draft: IntArray) -> BoolArray:
        """Nodes that hold a token, as all their ancestors do; shape (B, N)."""
        alive = draft >= 0
        row = np.arange(len(draft))
        for j in range(draft.shape[1]):
            parent = self.parents[:, j]
            alive[:, j] &= (parent < 0) | alive[row, parent]
        return alive

    def rows_in_use(self, live: BoolArray) -> tuple[BoolArray, BoolArray]:
        """Rows (B, N + 1) of the target, and of the draft, that a verdict can depend on; row 0 is the context's."""
        target = np.concatenate([np.ones((len(live), 1), dtype=bool), live], axis=1)
        branching = np.zeros_like(target)
        b, j = np.nonzero(live)
        branching[b, self.parents[b, j] + 1] = True
        return target, branching


def accept_tree_greedy(scores: npt.ArrayLike, draft: npt.ArrayLike, *, parents: npt.ArrayLike) -> Outcome:
    """Descend to the child that equals the target's argmax while there is one; then emit the argmax.

    Parameters
    ----------
    scores : array_like, shape (B, N + 1, V)
        Logits or probabilities of the target after the context (row 0) and after node j (row j + 1).
    draft : array_like of int, shape (B, N)
        Token of each node; -1 for a node that is not there, which its descendants then are not either.
    parents : array_like of int, shape (N,) or (B, N)
        As in `Tree`, and as proposers give them.

    Returns
    -------
    Outcome
        The tokens of greedy decoding. Ties go to the lowest id; among equal siblings, to the first.

    Raises
    ------
    InputError
        For NaN in a row in use; for tokens or parents out of range.

    Notes
    -----
    Source: SGLang 0.5.23, greedy tree walk.

    Examples
    --------
    >>> scores = [[[0, 1, 0], [1, 0, 0], [0, 0, 1]]]  # after the context, after node 0, after node 1
    >>> accept_tree_greedy(scores, [[0, 1]], parents=[-1, -1]).emitted_tokens()
    [[1, 2]]
    """
    d, tree, live = checked_tree(scores, draft, parents)
    s = checked_rows("target scores", scores, tree.rows_in_use(live)[0], total=None)
    best = s.argmax(axis=-1)
    paths, last = [], []
    for b in range(len(d)):
        path: list[int] = []
        while True:
            at = path[-1] if path else -1
            kids = np.flatnonzero(live[b] & (tree.parents[b] == at) & (d[b] == best[b, at + 1]))
            if not len(kids):
                break
            path.append(int(kids[0]))
        paths.append(path)
        last.append(int(best[b, at + 1]))
    return tree_outcome(tree, d, live, paths, last, None)


Verdict: TypeAlias = tuple[int | None, FloatArray, float]
"""On the children of a node: the first accepted, the residual after all of them, the chance that one is accepted."""


def accept_tree(
    p: npt.ArrayLike,
    q: npt.ArrayLike | None,
    draft: npt.ArrayLike,
    u: npt.ArrayLike,
    *,
    parents: npt.ArrayLike,
    replacement: bool = True,
) -> Outcome:
    r"""Verify a sampled tree, siblings in order, each against what its predecessors left; emits p's distribution.

    At a node, with :math:`r_1 = p` and :math:`s_1 = q`, sibling t with token x and coin u:

    .. math::

        \text{accept} \iff u\, s_t(x) < r_t(x), \qquad
        \text{else } r_{t+1} \propto \max(r_t - s_t, 0)

    An accepted sibling is descended to. When none is, the last token is drawn from the r that is left; at a leaf, from
    its p.

    Parameters
    ----------
    p : array_like, shape (B, N + 1, V)
        Target distributions after the context (row 0) and after node j (row j + 1).
    q : array_like, shape (B, N + 1, V), or None
        Row j + 1: distribution from which the children of node j were drawn. None for chosen siblings (n-gram trees,
        the draft's top tokens): s is then one-hot at x.
    draft, parents : array_like
        As in `accept_tree_greedy`.
    u : array_like, shape (B, N + 1)
        Uniforms in [0, 1): the coin of each node, then the one that draws the last token.
    replacement : bool
        How siblings were drawn from q: independently (True: :math:`s_t = q`), or each from what its predecessors left
        (False: :math:`s_t` is q without their tokens, normalised).

    Returns
    -------
    Outcome
        `overlap` is the probability, given the siblings, that one of them is accepted.

    Raises
    ------
    InputError
        Naming the row that is not a distribution, the token or parent out of range, the uniform outside [0, 1).

    Notes
    -----
    A sibling that s cannot have produced (its probability there is 0) is judged as chosen, which is exact however it
    came about. A repeated sibling is never accepted twice over: duplicates and padding cause no bias.
    Source: SpecInfer (arXiv 2305.09781) for independent siblings; Sequoia (arXiv 2402.12374) for siblings without
    replacement. The rule for chosen siblings equals sampling from p and looking the token up among them.

    Examples
    --------
    >>> p = [[[0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]]]
    >>> out = accept_tree(p, None, [[0, 1]], [[0.5, 0.9, 0.0]], parents=[-1, -1])
    >>> out.emitted_tokens(), out.nodes.tolist(), out.overlap.tolist()  # the second sibling has all that is left
    ([[1, 0]], [[1]], [[1.0]])
    """
    d, tree, live = checked_tree(p, draft, parents)
    target, branching = tree.rows_in_use(live)
    p_rows = checked_rows("target probabilities", p, target)
    q_rows = None if q is None else checked_rows("draft probabilities", q, branching, p_rows.shape[-1])
    coins = checked_uniforms(u, target.shape)

    def judge(b: int, row: int, kids: IntArray) -> Verdict:
        return _descend(p_rows[b, row], None if q_rows is None else q_rows[b, row], d[b], kids, coins[b], replacement)

    return walked(tree, d, live, judge, coins[:, -1])


def _descend(
    p: FloatArray, q: FloatArray | None, token: IntArray, kids: IntArray, coin: FloatArray, replacement: bool
) -> Verdict:
    r = p / p.sum()
    s = None if q is None else q / q.sum()
    chosen, none_accepted = None, 1.0
    for j in kids.tolist():
        x = token[j]
        sampled = s is not None and s[x] > 0.0
        chance = min(1.0, r[x] / s[x]) if s is not None and sampled else r[x]
        accept = coin[j] * s[x] < r[x] if s is not None and sampled else coin[j] < r[x]
        if accept and chosen is None:
            chosen = j
        none_accepted *= 1.0 - chance
        if s is not None and sampled:
            left = np.maximum(r - s, 0.0)
            if not replacement:
                s = s.copy()
                s[x] = 0.0
                s = s / s.sum() if s.any() else s
        else:
            left = r.copy()
            left[x] = 0.0
        r = left / left.sum() if left.any() else r
    return chosen, r, 1.0 - none_accepted


def checked_tree(rows: npt.ArrayLike, draft: npt.ArrayLike, parents: npt.ArrayLike) -> tuple[IntArray, Tree, BoolArray]:
    """Tokens, shape and live nodes of a batch of trees, checked."""
    shape = np.shape(rows)
    d, _ = checked_draft(draft, shape[-1] if shape else 0)
    tree = Tree.of(parents, *d.shape)
    return d, tree, tree.live(d)


def walked(
    tree: Tree, draft: IntArray, live: BoolArray, judge: Callable[[int, int, IntArray], Verdict], u: FloatArray
) -> Outcome:
    """Walk each tree from its root: ask `judge` (request, row, children) at a node, descend to the child it accepts.

    Where it accepts none, `u`, shape (B,), draws the last token from the residual.
    """
    paths, weights, chances = [], [], []
    for b in range(len(draft)):
        path: list[int] = []
        level: list[float] = []
        while True:
            at = path[-1] if path else -1
            kids = np.flatnonzero(live[b] & (tree.parents[b] == at))
            chosen, left, chance = judge(b, at + 1, kids)
            if len(kids):
                level.append(chance)
            if chosen is None:
                break
            path.append(chosen)
        paths.append(path)
        weights.append(left)
        chances.append(level)
    last = draw(np.array(weights), u).tolist() if weights else []
    return tree_outcome(tree, draft, live, paths, last, chances)


def tree_outcome(
    tree: Tree,
    draft: IntArray,
    live: BoolArray,
    paths: list[list[int]],
    last: list[int],
    chances: list[list[float]] | None,
) -> Outcome:
    """`Outcome` of walks down trees: the accepted nodes of each, its last token, and the chance at each level."""
    batch, height = len(draft), tree.height
    tokens = np.full((batch, height + 1), -1, dtype=np.int64)
    nodes = np.full((batch, height), -1, dtype=np.int64)
    reached = np.zeros((batch, height), dtype=bool)
    overlap = None if chances is None else np.full((batch, height), np.nan)
    accepted = np.array([len(path) for path in paths], dtype=np.int64)
    for b, path in enumerate(paths):
        n = len(path)
        nodes[b, :n] = path
        tokens[b, : n + 1] = [*draft[b, path].tolist(), last[b]]
        stopped_among_children = (live[b] & (tree.parents[b] == (path[-1] if path else -1))).any()
        reached[b, : n + int(stopped_among_children)] = True
        if overlap is not None and chances is not None:
            overlap[b, : len(chances[b])] = chances[b]
    return Outcome(
        tokens=tokens,
        accepted=accepted,
        drafted=live.sum(axis=1, dtype=np.int64),
        reached=reached,
        overlap=overlap,
        nodes=nodes,
    )
