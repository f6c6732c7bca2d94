r"""Token trees: expected emitted tokens, the best tree for a node budget, and what a padded budget costs.

A tree is a tuple of parents: node 0 is the root (the last emitted token, parent -1), each later node follows its
parent, and the children of a node are its candidates of rank 1, 2, ... in the order in which they appear. Acceptance is
positional: :math:`P_b` is the probability that the candidate of rank b is the accepted one, given that its parent was
accepted; so the :math:`P_b` sum to at most 1, and what is missing is the probability that none is.

Source: Sequoia (arXiv 2402.12374), Proposition 3.4 (F), Algorithm 1 (the dynamic programme), section 4 (the speedup);
SGLang 0.5.23 for the padded budget.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.formulas.emitted import FloatArray, IntArray, checked_between, checked_kappa, emitted_over_all_steps

_NONE: Final = -np.inf


def _ranks(acceptance: npt.ArrayLike) -> FloatArray:
    p = np.atleast_1d(checked_between("rank acceptance", acceptance, 0.0, 1.0))
    if p.ndim > 2 or p.size == 0:
        raise InputError(f"rank acceptance must have shape (ranks,) or (depths, ranks), got {p.shape}")
    totals = p.sum(axis=-1)
    if np.any(totals > 1.0 + 1e-12):
        raise InputError(f"rank acceptances of one node are exclusive and sum to at most 1, got {totals.max():g}")
    return p


def expected_emitted_tree(parents: tuple[int, ...], acceptance: npt.ArrayLike) -> float:
    r"""F: tokens that a step with this tree is expected to emit, the bonus token included.

    .. math:: F(T) = \sum_{v \in T} \prod_{u \in \mathrm{path}(v)} P_{\mathrm{rank}(u)}

    Parameters
    ----------
    parents : tuple of int
        Parent of each node; -1 first, then parents that come before their children.
    acceptance : array_like, shape (ranks,) or (depths, ranks)
        :math:`P_b` by rank, or by depth and rank (row 0: children of the root).

    Returns
    -------
    float
        Between 1 (the root alone) and the depth plus 1.

    Raises
    ------
    InputError
        If the parents are no tree, or the tree needs a rank or depth that `acceptance` does not give.

    Examples
    --------
    >>> expected_emitted_tree((-1, 0, 1, 2), [0.7])
    2.533
    >>> expected_emitted_tree((-1, 0, 0, 1), [0.5, 0.25])
    2.0
    """
    p = _ranks(acceptance)
    value, children, depth = [1.0], [0], [0]
    if not parents or parents[0] != -1:
        raise InputError(f"a tree's first parent is -1 (the root), got {parents[:1]}")
    for node, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < node:
            raise InputError(f"node {node} must follow its parent, got parent {parent}")
        rank, level = children[parent], depth[parent]
        if rank >= p.shape[-1] or (p.ndim == 2 and level >= p.shape[0]):
            raise InputError(
                f"node {node} has rank {rank + 1} at depth {level + 1}; rank acceptance has shape {p.shape}"
            )
        value.append(value[parent] * float(p[level, rank] if p.ndim == 2 else p[rank]))
        children[parent] += 1
        children.append(0)
        depth.append(level + 1)
    return float(sum(sorted(value)))  # ascending: the small terms add up before they meet the large ones


def tree_depth(parents: tuple[int, ...]) -> int:
    """Drafting steps that a tree takes: the longest path below the root.

    >>> tree_depth((-1, 0, 0, 1))
    2
    """
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    return max(depth, default=0)


def best_tree_values(budget: int, acceptance: npt.ArrayLike, max_depth: int) -> FloatArray:
    r"""Largest F for every depth limit and node budget at once.

    .. math:: T_d[n] = \max_b C_b[n-1], \quad
              C_b[m] = \max_{1 \le j \le m} C_{b-1}[m-j] + P_b\,T_{d-1}[j]

    Parameters
    ----------
    budget : int
        Most nodes N, the root included, at least 1.
    acceptance : array_like, shape (ranks,)
        :math:`P_b` by rank, the same at every depth.
    max_depth : int
        Deepest tree D that is considered, at least 0.

    Returns
    -------
    ndarray, shape (D + 1, N + 1)
        Entry [d, n]: F of the best tree of at most n nodes and depth at most d; [., 0] is 0 (no tree).

    Examples
    --------
    >>> best_tree_values(4, [0.5, 0.25], 2)[:, 4].tolist()
    [1.0, 1.75, 2.0]
    """
    p = _ranks(acceptance)
    if p.ndim != 1:
        raise InputError("a table over depth limits needs one vector of rank acceptances, not one per depth")
    return np.stack([values for values, _ in _levels(budget, np.tile(p, (max(max_depth, 1), 1)), max_depth)])


def best_tree(budget: int, acceptance: npt.ArrayLike, max_depth: int | None = None) -> tuple[int, ...]:
    r"""The tree of largest F within a node budget: Sequoia's dynamic programme.

    .. math:: T[n, b] = \max_{1 \le m \le n-1} T[n-m, b-1] + P_b\,\max_{b'} T[m, b'], \quad T[1, 0] = 1

    Parameters
    ----------
    budget : int
        Most nodes, the root included, at least 1.
    acceptance : array_like, shape (ranks,) or (depths, ranks)
        As in `expected_emitted_tree`. The number of ranks bounds the children of a node; a row per depth bounds the
        depth.
    max_depth : int, optional
        Deepest tree allowed; without it the budget is the only limit.

    Returns
    -------
    tuple of int
        Parents in breadth-first order. Fewer than `budget` nodes where no further one can be accepted.

    Examples
    --------
    >>> best_tree(4, [0.7, 0.2])
    (-1, 0, 1, 2)
    >>> best_tree(4, [0.5, 0.3])
    (-1, 0, 0, 1)
    """
    p = _ranks(acceptance)
    n = _checked_budget(budget)
    limit = n - 1 if max_depth is None else min(int(checked_kappa(max_depth)), n - 1)
    if p.ndim == 1 and (max_depth is None or limit == n - 1):
        tables = [_unlimited(n, p)]
        stationary = True
    else:
        limit = min(limit, p.shape[0]) if p.ndim == 2 else limit
        rows = p if p.ndim == 2 else np.tile(p, (max(limit, 1), 1))
        tables = [choices for _, choices in _levels(n, rows[: max(limit, 1)], limit)]
        stationary = False
    parents = [-1]
    # (node, nodes of its subtree, index of its table), breadth first
    queue = [(0, n, len(tables) - 1)]
    for node, size, table in queue:
        below = table if stationary else table - 1
        for child_size in tables[table].children(size):
            parents.append(node)
            queue.append((len(parents) - 1, child_size, below))
    return tuple(parents)


def _checked_budget(budget: int) -> int:
    n = int(checked_kappa(budget))
    if n < 1:
        raise InputError(f"a tree needs a budget of at least 1 node, the root; got {n}")
    return n


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """How the best forests below a root were made up.

    Attributes
    ----------
    best_rank : ndarray, shape (N + 1,)
        For at most n nodes: how many children the root has.
    used : ndarray, shape (N + 1,)
        For at most n nodes: how many the best tree uses.
    share : ndarray, shape (ranks + 1, N)
        For b children and m nodes below the root: nodes of the subtree of the last child.
    """

    best_rank: IntArray
    used: IntArray
    share: IntArray

    def children(self, size: int) -> list[int]:
        """Subtree sizes of the root's children, rank 1 first."""
        out: list[int] = []
        below = int(self.used[size]) - 1
        for b in range(int(self.best_rank[size]), 0, -1):
            out.append(int(self.share[b, below]))
            below -= out[-1]
        return out[::-1]


def _best_of(forests: FloatArray, share: IntArray) -> tuple[FloatArray, _Choices]:
    """Values and choices of roots over forests[b, m] (b children, exactly m nodes below the root)."""
    n = forests.shape[1]
    values, best_rank, used = np.zeros(n + 1), np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    rank = np.argmax(forests, axis=0)
    exact = 1.0 + forests[rank, np.arange(n)]
    for size in range(1, n + 1):  # where one more node gains nothing, the smaller tree stays
        grows = exact[size - 1] > values[size - 1]
        values[size] = exact[size - 1] if grows else values[size - 1]
        best_rank[size] = rank[size - 1] if grows else best_rank[size - 1]
        used[size] = size if grows else used[size - 1]
    return values, _Choices(best_rank=best_rank, used=used, share=share)


def _levels(budget: int, rows: FloatArray, max_depth: int) -> list[tuple[FloatArray, _Choices]]:
    """Best trees with depth limits 0 ... max_depth; the tree of limit d takes its root's children from row D - d."""
    n = _checked_budget(budget)
    ranks = rows.shape[-1]
    alone = np.full((ranks + 1, n), _NONE)
    alone[0, 0] = 0.0
    levels = [_best_of(alone, np.zeros((ranks + 1, n), dtype=np.int64))]
    for depth in range(1, int(checked_kappa(max_depth)) + 1):
        subtree = levels[-1][0]
        forests, share = alone.copy(), np.zeros((ranks + 1, n), dtype=np.int64)
        # window[m, j] = forests[b - 1, m - j], so that one addition and one argmax serve every m
        for b, p in enumerate(rows[max_depth - depth], start=1):
            padded = np.concatenate([np.full(n, _NONE), forests[b - 1]])
            window = np.lib.stride_tricks.sliding_window_view(padded, n)[1:, ::-1]
            total = window.copy()
            total[:, 0] = _NONE  # a child that is there has at least one node
            total[:, 1:] += p * subtree[1:n]
            share[b] = np.argmax(total, axis=1)
            forests[b] = total[np.arange(n), share[b]]
        levels.append(_best_of(forests, share))
    return levels


def _unlimited(n: int, p: FloatArray) -> _Choices:
    """The same without a depth limit: the subtrees below are the smaller trees of the same table."""
    ranks = p.size
    forests, share = np.full((ranks + 1, n), _NONE), np.zeros((ranks + 1, n), dtype=np.int64)
    forests[0, 0] = 0.0
    subtree = np.zeros(n + 1)  # value of the best tree of at most that many nodes, filled as sizes grow
    subtree[1] = 1.0
    for m in range(1, n):
        for b in range(1, min(ranks, m) + 1):
            total = forests[b - 1, m - 1 :: -1] + p[b - 1] * subtree[1 : m + 1]
            j = int(np.argmax(total))
            share[b, m], forests[b, m] = j + 1, total[j]
        subtree[m + 1] = max(subtree[m], 1.0 + forests[:, m].max())
    return _best_of(forests, share)[1]


def tree_speedup(
    emitted: npt.ArrayLike, depth: npt.ArrayLike, c: npt.ArrayLike, verify: npt.ArrayLike = 1.0
) -> FloatArray:
    r"""Speedup of a tree: its tokens over one verify pass and one draft step per level.

    .. math:: \frac{G(n, d)}{t(n) + d\,c}

    Parameters
    ----------
    emitted : array_like
        G: tokens per step.
    depth : array_like of int
        d: levels, each one batched draft step.
    c : array_like
        Draft step over plain target step, at least 0.
    verify : array_like
        t(n): verifying n positions over verifying one.

    Examples
    --------
    >>> round(float(tree_speedup(5.08, 10, 0.5 / 24.2, 1.05)), 2)
    4.04
    """
    cost = checked_between("verify factor", verify, np.finfo(float).tiny, np.inf) + checked_kappa(
        depth
    ) * checked_between("c", c, 0.0, np.inf)
    return np.asarray(emitted) / cost


def best_tree_size(
    acceptance: npt.ArrayLike, c: float, verify: npt.ArrayLike, max_depth: int
) -> tuple[int, int, float]:
    r"""Node count and depth of highest speedup, for given verify factors.

    .. math:: \max_{n, d} \frac{T_d[n]}{t(n) + d\,c}

    Parameters
    ----------
    acceptance : array_like, shape (ranks,)
        :math:`P_b` by rank.
    c : float
        Draft step over plain target step, at least 0.
    verify : array_like, shape (N,)
        t(n) for n = 1 ... N nodes.
    max_depth : int
        Deepest tree considered.

    Returns
    -------
    tuple
        Nodes (root included), depth, speedup; (1, 0, 1.0) where no tree pays.

    Examples
    --------
    >>> n, d, s = best_tree_size([0.6, 0.2], 0.05, np.ones(16), 8)
    >>> n, d, round(s, 3)
    (16, 4, 2.645)
    """
    t = np.atleast_1d(checked_between("verify factor", verify, np.finfo(float).tiny, np.inf))
    values = best_tree_values(t.size, acceptance, max_depth)[:, 1:]
    depth = np.arange(values.shape[0])[:, None]
    speedups = tree_speedup(values, depth, c, t)
    d, n = np.unravel_index(int(np.argmax(speedups)), speedups.shape)
    if speedups[d, n] <= 1.0:
        return 1, 0, 1.0
    return int(n) + 1, int(d), float(speedups[d, n])


def padded_tree_speedup(
    coverage: npt.ArrayLike,
    emitted: npt.ArrayLike,
    verify: npt.ArrayLike,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""Speedup of a matcher whose tree is always padded to its node budget, as SGLang's n-gram worker does.

    .. math:: s = \frac{1 + \gamma(F - 1)}{t(N) + o}

    Every step of every request verifies N positions, whether anything matched or not; only the yield is diluted by the
    coverage.

    Parameters
    ----------
    coverage : array_like
        Share of the steps in which the tree holds a real draft, in [0, 1].
    emitted : array_like
        F of a step that does, at least 1.
    verify : array_like
        t(N) at the full budget (``--speculative-num-draft-tokens``, root included).
    overhead : array_like
        Matching and the insertion into the corpus, in units of a plain step.

    Notes
    -----
    Source: SGLang 0.5.23, ``ngram_worker`` (the corpus always returns batch times budget tokens).

    Examples
    --------
    >>> round(float(padded_tree_speedup(0.1, 3.0, 1.36)), 3)
    0.882
    """
    t = checked_between("verify factor", verify, np.finfo(float).tiny, np.inf)
    return emitted_over_all_steps(coverage, emitted) / (t + checked_between("overhead", overhead, 0.0, np.inf))
