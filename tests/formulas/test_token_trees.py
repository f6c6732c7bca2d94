"""Token trees: F against outcome enumeration, the dynamic programme against brute force and greedy growth."""

import heapq
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.formulas import tree
from specplan.formulas.emitted import expected_emitted, expected_emitted_hazard

ranks = st.lists(st.floats(0, 1), min_size=1, max_size=4).map(lambda raw: np.array(raw) / max(1.0, sum(raw)))


@cache
def ordered_trees(n: int) -> tuple[tuple[int, ...], ...]:
    """Every ordered tree of n nodes, each as its parents in preorder."""
    if n == 1:
        return ((-1,),)
    out = []
    for first in range(1, n):
        for child in ordered_trees(first):
            for rest in ordered_trees(n - first):
                shifted = tuple(0 if p < 0 else p + 1 for p in child)
                tail = tuple(p if p <= 0 else p + first for p in rest[1:])
                out.append((-1, *shifted, *tail))
    return tuple(out)


def children_of(parents: tuple[int, ...]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)
    return children


def outcome_mean(parents: tuple[int, ...], p: np.ndarray) -> float:
    """Mean of emitted tokens over every way a step can end: the accepted path and where it stops."""
    children = children_of(parents)

    def walk(node: int, depth: int, weight: float) -> Iterator[tuple[float, int]]:
        stay = 1.0
        for rank, child in enumerate(children[node]):
            stay -= p[rank]
            yield from walk(child, depth + 1, weight * p[rank])
        yield weight * stay, depth + 1

    return sum(w * emitted for w, emitted in walk(0, 0, 1.0))


def fits(parents: tuple[int, ...], n_ranks: int, max_depth: int) -> bool:
    return max(map(len, children_of(parents))) <= n_ranks and tree.tree_depth(parents) <= max_depth


def greedy_value(budget: int, p: np.ndarray, max_depth: int) -> float:
    """Take the most probable node that is not yet taken: best for rank acceptances that fall with rank."""
    total, heap = 0.0, [(-1.0, 0)]
    for _ in range(budget):
        if not heap:
            break
        weight, depth = heapq.heappop(heap)
        total -= weight
        if depth < max_depth:
            for x in p:
                heapq.heappush(heap, (weight * x, depth + 1))
    return total


def test_catalan_numbers_of_trees() -> None:
    assert [len(ordered_trees(n)) for n in range(1, 8)] == [1, 1, 2, 5, 14, 42, 132]


@given(st.integers(1, 7), ranks, st.integers(0, 200))
def test_path_products_equal_the_mean_over_outcomes(n: int, p: np.ndarray, which: int) -> None:
    candidates = [t for t in ordered_trees(n) if fits(t, p.size, n)]
    t = candidates[which % len(candidates)]
    assert tree.expected_emitted_tree(t, p) == pytest.approx(outcome_mean(t, p), rel=1e-12)


@settings(max_examples=60)
@given(st.integers(1, 7), ranks, st.integers(0, 6))
def test_dynamic_programme_equals_brute_force(n: int, p: np.ndarray, max_depth: int) -> None:
    def brute(limit: int) -> float:
        return max(
            tree.expected_emitted_tree(t, p)
            for m in range(1, n + 1)
            for t in ordered_trees(m)
            if fits(t, p.size, limit)
        )

    best = tree.best_tree(n, p)
    assert len(best) <= n
    assert tree.expected_emitted_tree(best, p) == pytest.approx(brute(n), rel=1e-12)
    shallow = tree.best_tree(n, p, max_depth)
    assert tree.tree_depth(shallow) <= max_depth
    assert tree.expected_emitted_tree(shallow, p) == pytest.approx(brute(max_depth), rel=1e-12)
    assert float(tree.best_tree_values(n, p, max_depth)[max_depth, n]) == pytest.approx(brute(max_depth), rel=1e-12)


@settings(max_examples=30)
@given(st.integers(1, 6), st.lists(ranks, min_size=1, max_size=3))
def test_acceptance_by_depth_equals_brute_force(n: int, rows: list[np.ndarray]) -> None:
    width = max(r.size for r in rows)
    p = np.array([np.pad(r, (0, width - r.size)) for r in rows])
    best = tree.best_tree(n, p)
    brute = max(
        tree.expected_emitted_tree(t, p) for m in range(1, n + 1) for t in ordered_trees(m) if fits(t, width, len(rows))
    )
    assert tree.expected_emitted_tree(best, p) == pytest.approx(brute, rel=1e-12)


@pytest.mark.parametrize(("budget", "max_depth"), [(64, 6), (128, 10), (64, 63)])
def test_sequoia_sizes_agree_with_greedy_growth(budget: int, max_depth: int) -> None:
    p = 0.6 * 0.45 ** np.arange(8)
    p /= max(1.0, p.sum())
    best = tree.best_tree(budget, p, max_depth)
    assert len(best) == budget
    assert tree.tree_depth(best) <= max_depth
    assert tree.expected_emitted_tree(best, p) == pytest.approx(greedy_value(budget, p, max_depth), rel=1e-12)


def test_offloading_size_agrees_with_greedy_growth() -> None:
    p = 0.7 * 0.4 ** np.arange(6)
    p /= max(1.0, p.sum())
    best = tree.best_tree(768, p)
    assert tree.expected_emitted_tree(best, p) == pytest.approx(greedy_value(768, p, 768), rel=1e-12)


@given(st.floats(0, 1), st.integers(1, 30))
def test_one_rank_is_a_chain(alpha: float, nodes: int) -> None:
    chain = tuple(range(-1, nodes - 1))
    want = float(expected_emitted(alpha, nodes - 1))
    assert tree.expected_emitted_tree(chain, [alpha]) == pytest.approx(want, rel=1e-13)
    assert tree.expected_emitted_tree(tree.best_tree(nodes, [alpha]), [alpha]) == pytest.approx(want, rel=1e-13)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_chain_with_acceptance_by_depth_is_a_hazard(h: list[float]) -> None:
    chain = tuple(range(-1, len(h)))
    rows = np.array(h)[:, None]
    assert tree.expected_emitted_tree(chain, rows) == pytest.approx(float(expected_emitted_hazard(h)), rel=1e-13)


@given(ranks, st.integers(1, 40))
def test_bounds_of_sequoia(p: np.ndarray, budget: int) -> None:
    value = tree.expected_emitted_tree(tree.best_tree(budget, p), p)
    assert value >= float(expected_emitted(p[0], budget - 1)) * (1 - 1e-12)  # the chain is one of the trees
    if p.sum() < 1:
        assert value <= 1 / (1 - p.sum()) * (1 + 1e-12)  # the unbounded tree of all ranks
    assert value <= tree.expected_emitted_tree(tree.best_tree(budget + 1, p), p) * (1 + 1e-12)


def test_independent_chains_add_at_most_one_token() -> None:
    """Sequoia: k chains below the root emit at most one token more than the longest chain."""
    p = np.array([0.6, 0.3, 0.1])
    k, depth = 3, 10
    parents = [-1]
    for _ in range(k):
        parents += [0, *range(len(parents), len(parents) + depth - 1)]
    one = tree.expected_emitted_tree(tuple(range(-1, depth)), p)
    assert one <= 1 / (1 - p[0])
    assert tree.expected_emitted_tree(tuple(parents), p) <= one + 1


@pytest.mark.parametrize(
    ("tokens", "depth", "speedup", "implied"),
    [  # Sequoia table 3, Llama2-7B with JF68M on an A100, trees of 128 nodes; c = 0.5 ms / 24.2 ms
        (5.08, 10, 4.04, 1.05),
        (3.92, 7, 3.18, 1.088),
        (3.86, 7, 3.22, 1.054),
        (3.33, 6, 2.71, 1.105),
        (4.05, 7, 3.41, 1.043),
        (3.45, 6, 2.83, 1.095),
        (4.98, 10, 4.03, 1.029),
        (3.96, 7, 3.18, 1.1),
    ],
)
def test_sequoia_table_3_implies_a_verify_factor_near_one(
    tokens: float, depth: int, speedup: float, implied: float
) -> None:
    assert float(tree.tree_speedup(tokens, depth, 0.5 / 24.2, implied)) == pytest.approx(speedup, rel=2e-3)


def test_best_size_is_the_best_cell_of_the_table() -> None:
    p, c, t = [0.6, 0.2, 0.1], 0.03, 1 + 0.01 * np.arange(48)
    n, d, s = tree.best_tree_size(p, c, t, 8)
    table = [
        (tree.expected_emitted_tree(tree.best_tree(m, p, k), p) / (t[m - 1] + k * c), m, k)
        for m in range(1, 49)
        for k in range(9)
    ]
    assert s == pytest.approx(max(table)[0], rel=1e-12)
    assert s == pytest.approx(tree.expected_emitted_tree(tree.best_tree(n, p, d), p) / (t[n - 1] + d * c), rel=1e-12)
    assert tree.best_tree_size([0.01], 0.5, np.ones(8), 4) == (1, 0, 1.0)


def test_a_padded_budget_is_paid_in_every_step() -> None:
    sparse = float(tree.padded_tree_speedup(0.1, 3.0, 1.36))
    assert sparse == pytest.approx((0.1 * 3 + 0.9) / 1.36)
    assert float(tree.padded_tree_speedup(0.0, 3.0, 1.36)) < 1  # nothing matched, everything verified
    assert float(tree.padded_tree_speedup(1.0, 3.0, 1.0)) == 3.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: tree.expected_emitted_tree((0,), [0.5]), "first parent is -1"),
        (lambda: tree.expected_emitted_tree((), [0.5]), "first parent is -1"),
        (lambda: tree.expected_emitted_tree((-1, 1), [0.5]), "must follow its parent"),
        (lambda: tree.expected_emitted_tree((-1, 0, 0), [0.5]), "rank 2 at depth 1"),
        (lambda: tree.expected_emitted_tree((-1, 0, 1), [[0.5]]), "rank 1 at depth 2"),
        (lambda: tree.best_tree(0, [0.5]), "at least 1 node"),
        (lambda: tree.best_tree(4, [0.6, 0.6]), "sum to at most 1"),
        (lambda: tree.best_tree(4, np.zeros((2, 2, 2))), "shape"),
    ],
)
def test_bad_trees_are_named(call: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    assert says in str(caught.value)
