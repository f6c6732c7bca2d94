"""Every rule emits the target's law: proved by enumeration, not sampled.

A rule is piecewise constant in its uniforms. An oracle in exact fractions, written from the definitions, names the
cells on which it is constant; each form of the rule is evaluated at the very edges of every cell and inside it. If the
answers within a cell agree, the sum of cell volumes times answers is the exact integral of the rule over its uniforms.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

Dist = tuple[Fraction, ...]
Prefix = tuple[int, ...]
Model = Callable[[Prefix], Dist]
ONE, ZERO = Fraction(1), Fraction(0)


# ---- pairs of models: the distribution of the next token given the tokens since the context -------------------------


def seeded(*parts: object) -> np.random.Generator:
    return np.random.default_rng(list(repr(parts).encode()))


def fractions_model(vocab: int, seed: int, zeros: float) -> Model:
    @cache
    def dist(prefix: Prefix) -> Dist:
        rng = seeded(seed, *prefix)
        weights = [0 if rng.random() < zeros else int(rng.integers(1, 7)) for _ in range(vocab)]
        weights[int(rng.integers(vocab))] += 1
        return tuple(Fraction(w, sum(weights)) for w in weights)

    return dist


def constant(*weights: int) -> Model:
    return lambda _: tuple(Fraction(w, sum(weights)) for w in weights)


PAIRS: dict[str, tuple[int, Model, Model]] = {
    "dense-2": (2, fractions_model(2, 1, 0.0), fractions_model(2, 2, 0.0)),
    "dense-3": (3, fractions_model(3, 3, 0.0), fractions_model(3, 4, 0.0)),
    "zeros-3": (3, fractions_model(3, 5, 0.4), fractions_model(3, 6, 0.4)),
    "equal-3": (3, fractions_model(3, 7, 0.2), fractions_model(3, 7, 0.2)),
    "disjoint-3": (3, constant(1, 2, 0), constant(0, 0, 1)),
    "greedy-target-3": (3, fractions_model(3, 8, 1.0), fractions_model(3, 9, 0.0)),
    "paper-2": (2, constant(1, 2), constant(2, 1)),
    "narrow-source-4": (4, fractions_model(4, 10, 0.0), constant(1, 2, 0, 0)),
}


# ---- the oracle: cells of uniforms, by the definitions --------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A box of uniforms: half-open intervals of some columns; the others are free."""

    intervals: dict[int, tuple[Fraction, Fraction]] = field(default_factory=dict)

    def with_(self, column: int, low: Fraction, high: Fraction) -> "Cell":
        return Cell({**self.intervals, column: (low, high)})

    @property
    def volume(self) -> Fraction:
        out = ONE
        for low, high in self.intervals.values():
            out *= high - low
        return out


def normalised(weights: list[Fraction]) -> Dist:
    total = sum(weights)
    return tuple(w / total for w in weights)


def residual(p: Dist, q: Dist) -> Dist:
    return normalised([max(a - b, ZERO) for a, b in zip(p, q, strict=True)])


def one_hot(token: int, vocab: int) -> Dist:
    return tuple(ONE if v == token else ZERO for v in range(vocab))


def draws(cell: Cell, column: int, dist: Dist) -> Iterator[Cell]:
    """One cell per token of the last draw."""
    low = ZERO
    for mass in dist:
        if mass > 0:
            yield cell.with_(column, low, low + mass)
        low += mass


def chance(p: Fraction, q: Fraction) -> Fraction:
    return min(ONE, p / q)


def standard_cells(p: list[Dist], q: list[Dist], tokens: Prefix, last: int) -> Iterator[Cell]:
    cell = Cell()
    for i, x in enumerate(tokens):
        a = chance(p[i][x], q[i][x])
        if a < 1:
            yield from draws(cell.with_(i, a, ONE), last, residual(p[i], q[i]))
        if a == 0:
            return
        cell = cell.with_(i, ZERO, a)
    yield from draws(cell, last, p[len(tokens)])


def block_cells(p: list[Dist], q: list[Dist], tokens: Prefix, last: int) -> Iterator[Cell]:
    n = len(tokens)
    big_p, h = [ONE], []
    for i, x in enumerate(tokens):
        big_p.append(min(ONE, big_p[-1] * p[i][x] / q[i][x]))
    for i in range(1, n + 1):
        if i == n:
            h.append(big_p[n])
            continue
        r = sum((max(big_p[i] * a - b, ZERO) for a, b in zip(p[i], q[i], strict=True)), ZERO)
        h.append(ONE if r + 1 - big_p[i] == 0 else r / (r + 1 - big_p[i]))
    for tau in range(n + 1):
        if tau and h[tau - 1] == 0:
            continue
        cell = Cell() if tau == 0 else Cell({tau - 1: (ZERO, h[tau - 1])})
        for j in range(tau, n):
            cell = cell.with_(j, h[j], ONE)
        if cell.volume == 0:
            continue
        weights = p[n] if tau == n else residual(tuple(big_p[tau] * a for a in p[tau]), q[tau])
        yield from draws(cell, last, weights)


@dataclass(frozen=True)
class TreeShape:
    parents: tuple[int, ...]

    @property
    def height(self) -> int:
        return max(len(self.path(j)) for j in range(len(self.parents)))

    def path(self, j: int) -> tuple[int, ...]:
        return () if j < 0 else (*self.path(self.parents[j]), j)

    def children(self, node: int) -> list[int]:
        return [j for j, parent in enumerate(self.parents) if parent == node]


def without_tokens(q: Dist, tokens: list[int]) -> Dist | None:
    left = [ZERO if v in tokens else w for v, w in enumerate(q)]
    return normalised(left) if any(left) else None


def tree_cells(
    p: list[Dist], q: list[Dist] | None, tokens: Prefix, shape: TreeShape, last: int, *, replacement: bool
) -> Iterator[Cell]:
    def below(node: int, cell: Cell) -> Iterator[Cell]:
        r = p[node + 1]
        before: list[int] = []
        for j in shape.children(node):
            x = tokens[j]
            s = None if q is None else q[node + 1] if replacement else without_tokens(q[node + 1], before)
            if s is None or s[x] == 0:
                s = one_hot(x, len(r))
            a = chance(r[x], s[x])
            if a > 0:
                yield from below(j, cell.with_(j, ZERO, a))
            if a == 1:
                return
            cell, r = cell.with_(j, a, ONE), residual(r, s)
            before.append(x)
        yield from draws(cell, last, r)

    return below(-1, Cell())


def sglang_cells(p: list[Dist], tokens: Prefix, shape: TreeShape, last: int) -> Iterator[Cell]:
    def below(node: int, cell: Cell) -> Iterator[Cell]:
        r = list(p[node + 1])
        total = ZERO
        for j in shape.children(node):
            x = tokens[j]
            if p[node + 1][x] > 0 and total < 1:
                upper = min(ONE, total + p[node + 1][x])
                yield from below(j, cell.with_(node + 1, total, upper))
                total = upper
            r[x] = ZERO
        if total < 1:
            cell = cell.with_(node + 1, total, ONE) if shape.children(node) else cell
            yield from draws(cell, last, normalised(r) if any(r) else p[node + 1])

    return below(-1, Cell())


# ---- from cells to the law that a form emits ------------------------------------------------------------------------


def points(cell: Cell, columns: int, edge: float, rng: np.random.Generator) -> Iterator[list[float]]:
    """Uniforms at the lower edges, at the upper edges, in the middle, and at a random mix; free columns at random."""

    def at(low: Fraction, high: Fraction, where: int) -> float:
        if where == 0:
            return 0.0 if low == 0 else min(float(low) + edge, float((low + high) / 2))
        if where == 1:
            return max(float(high) - edge, float((low + high) / 2))
        return float((low + high) / 2)

    for where in (0, 1, 2, None):
        u = [rng.random() for _ in range(columns)]
        for column, (low, high) in cell.intervals.items():
            u[column] = at(low, high, int(rng.integers(3)) if where is None else where)
        yield u


@dataclass
class Batch:
    """Rows of one call of a rule, each a point of a cell of some draft, with the weight of draft and cell."""

    p: list = field(default_factory=list)
    q: list = field(default_factory=list)
    draft: list = field(default_factory=list)
    u: list = field(default_factory=list)
    group: list[tuple[int, Fraction]] = field(default_factory=list)  # (which law, probability of draft and cell)
    cell: list[int] = field(default_factory=list)
    cells: int = 0

    def add(
        self, cell: Cell, columns: int, edge: float, rng: np.random.Generator, group: int, weight: Fraction, **row
    ) -> None:
        """Rows at the points of a cell, for a draft of probability `weight`."""
        for u in points(cell, columns, edge, rng):
            self.u.append(u)
            self.group.append((group, weight * cell.volume))
            self.cell.append(self.cells)
            for name, value in row.items():
                getattr(self, name).append(value)
        self.cells += 1

    def laws(self, outcome) -> dict[int, dict[Prefix, Fraction]]:
        """Law of the emitted tokens in each group; every point of a cell must have emitted the same."""
        emitted = [tuple(t) for t in outcome.emitted_tokens()]
        by_cell: dict[int, Prefix] = {}
        laws: dict[int, dict[Prefix, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        for row, cell in enumerate(self.cell):
            if cell in by_cell:
                assert emitted[row] == by_cell[cell], f"u {self.u[row]} leaves the cell of {by_cell[cell]}"
                continue
            by_cell[cell] = emitted[row]
            group, weight = self.group[row]
            laws[group][emitted[row]] += weight
        return laws

    def mean(self, values, group: int) -> Fraction:
        """Exact expectation of an integer per row within a group."""
        seen: dict[int, Fraction] = {}
        for row, cell in enumerate(self.cell):
            if self.group[row][0] == group:
                seen[cell] = self.group[row][1] * int(values[row])
        return sum(seen.values(), ZERO)


def chain_law(model: Model, vocab: int, length: int) -> dict[Prefix, Fraction]:
    law = {(): ONE}
    for _ in range(length):
        law = {(*x, v): w * model(x)[v] for x, w in law.items() for v in range(vocab)}
    return law


def completed(law: dict[Prefix, Fraction], model: Model, vocab: int, length: int) -> dict[Prefix, Fraction]:
    """Law of the first `length` tokens when the target goes on after what a step emitted."""
    out: dict[Prefix, Fraction] = defaultdict(Fraction)
    for emitted, weight in law.items():
        for rest, w in continuations(model, vocab, emitted, length):
            out[rest] += weight * w
    return out


def continuations(model: Model, vocab: int, prefix: Prefix, length: int) -> Iterator[tuple[Prefix, Fraction]]:
    if len(prefix) >= length:
        yield prefix[:length], ONE
        return
    for v, w in enumerate(model(prefix)):
        if w > 0:
            for rest, more in continuations(model, vocab, (*prefix, v), length):
                yield rest, w * more


def assert_target_law(law: dict[Prefix, Fraction], model: Model, vocab: int, length: int) -> None:
    whole, target = completed(law, model, vocab, length), chain_law(model, vocab, length)
    worst = max(abs(float(whole.get(x, ZERO) - w)) for x, w in target.items())
    assert worst <= 1e-12
    assert all(target.get(x, ZERO) > 0 for x in whole)


def floats(dist: Dist) -> list[float]:
    return [float(w) for w in dist]


NAN_ROW = float("nan")


def chain_batch(pair: str, kappa: int, cells, edge: float, *, chosen: bool = False) -> Batch:
    """All drafts of all lengths 0 ... kappa in one ragged call; rows that no verdict may read hold NaN.

    `chosen`: the drafted token is a function of the prefix instead of a draw from q.
    """
    vocab, target, source = PAIRS[pair]
    rng = seeded(pair, kappa)
    batch = Batch()
    for length in range(kappa + 1):
        for x in itertools.product(range(vocab), repeat=length):
            p = [target(x[:i]) for i in range(length + 1)]
            q = [source(x[:i]) for i in range(length)]
            if chosen:
                q = [one_hot(max(range(vocab), key=row.__getitem__), vocab) for row in q]
            weight = ONE
            for row, token in zip(q, x, strict=True):
                weight *= row[token]
            if weight == 0:
                continue
            pad = kappa - length
            row = {
                "p": [floats(r) for r in p] + [[NAN_ROW] * vocab] * pad,
                "q": [floats(r) for r in q] + [[NAN_ROW] * vocab] * pad,
                # The slot after the draft is -1; what stands behind it must not matter.
                "draft": [*x, *([-1, *(int(rng.integers(-1, vocab)) for _ in range(pad - 1))] if pad else [])],
            }
            for cell in cells(p, q, x, kappa):
                batch.add(cell, kappa + 1, edge, rng, length, weight, **row)
    return batch


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("rule", "cells"), [("accept_standard", standard_cells), ("accept_block", block_cells)])
def test_chains_from_q_emit_the_target(form, rule, cells, pair):
    kappa = 3
    batch = chain_batch(pair, kappa, cells, form.edge)
    outcome = form(rule, batch.p, batch.q, batch.draft, batch.u)
    vocab, target, _ = PAIRS[pair]
    laws = batch.laws(outcome)
    for length in range(kappa + 1):
        assert_target_law(laws[length], target, vocab, kappa + 1)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", ["accept_one_hot", "accept_block"])
def test_chosen_chains_emit_the_target(form, rule, pair):
    kappa = 3
    cells = standard_cells if rule == "accept_one_hot" else block_cells
    batch = chain_batch(pair, kappa, cells, form.edge, chosen=True)
    inputs = (batch.p, batch.draft, batch.u) if rule == "accept_one_hot" else (batch.p, None, batch.draft, batch.u)
    outcome = form(rule, *inputs)
    vocab, target, _ = PAIRS[pair]
    laws = batch.laws(outcome)
    for length in range(kappa + 1):
        assert_target_law(laws[length], target, vocab, kappa + 1)


@pytest.mark.parametrize(
    ("gamma", "token", "block"),
    [
        (1, Fraction(2, 3), Fraction(2, 3)),
        (2, Fraction(10, 9), Fraction(11, 9)),
        (3, Fraction(38, 27), Fraction(5, 3)),
        (4, Fraction(130, 81), Fraction(166, 81)),
    ],
)
def test_expected_accepted_counts_of_the_block_paper(form, gamma, token, block):
    # Exact fractions: p = (1/3, 2/3), q = (2/3, 1/3), Sun et al. (arXiv 2403.10444) and enumeration of the rule.
    for rule, cells, expected in (("accept_standard", standard_cells, token), ("accept_block", block_cells, block)):
        batch = chain_batch("paper-2", gamma, cells, form.edge)
        outcome = form(rule, batch.p, batch.q, batch.draft, batch.u)
        assert batch.mean(outcome.accepted, group=gamma) == expected


@pytest.mark.parametrize("pair", ["dense-3", "zeros-3", "disjoint-3", "equal-3"])
def test_alpha_is_the_overlap(form, pair):
    _, target, source = PAIRS[pair]
    batch = chain_batch(pair, 1, standard_cells, form.edge)
    outcome = form("accept_standard", batch.p, batch.q, batch.draft, batch.u)
    overlap = sum(min(a, b) for a, b in zip(target(()), source(()), strict=True))
    assert batch.mean(outcome.accepted, group=1) == overlap
    drafted = outcome.drafted == 1
    assert np.allclose(outcome.overlap[drafted, 0], float(overlap), rtol=0, atol=form.exact)
    assert np.isnan(outcome.overlap[~drafted]).all()
    assert outcome.reached[drafted, 0].all()
    assert not outcome.reached[~drafted].any()


# ---- trees ----------------------------------------------------------------------------------------------------------

SHAPES = {
    "fork": TreeShape((-1, -1)),
    "three": TreeShape((-1, -1, -1)),
    "chain": TreeShape((-1, 0, 1)),
    "bushy": TreeShape((-1, -1, 0, 0, 1)),
    "comb": TreeShape((-1, 0, -1, 0)),
}


def drafts(shape: TreeShape, source: Model, vocab: int, mode: str) -> Iterator[tuple[Prefix, Fraction]]:
    """Every drafted tree and its probability: siblings independent, without replacement, chosen, or mixed."""

    def law(j: int, tokens: Prefix) -> Dist:
        prefix = tuple(tokens[i] for i in shape.path(shape.parents[j]))
        before = [tokens[i] for i in shape.children(shape.parents[j]) if i < j]
        q = source(prefix)
        if mode == "replacement":
            return q
        if mode == "without":
            return without_tokens(q, before) or one_hot(0, vocab)
        if mode == "mixed":  # every other sibling is one that q cannot draw
            return q if len(before) % 2 else one_hot(vocab - 1 - len(before) // 2, vocab)
        ranked = sorted(range(vocab), key=lambda v: (-q[v], v))
        return one_hot(ranked[(len(before) // 2 if mode == "repeated" else len(before)) % vocab], vocab)

    def extend(tokens: Prefix, weight: Fraction) -> Iterator[tuple[Prefix, Fraction]]:
        if len(tokens) == len(shape.parents):
            yield tokens, weight
            return
        for v, w in enumerate(law(len(tokens), tokens)):
            if w > 0:
                yield from extend((*tokens, v), weight * w)

    return extend((), ONE)


def tree_batch(pair: str, shape: TreeShape, mode: str, cells, columns: int, edge: float) -> Batch:
    vocab, target, source = PAIRS[pair]
    rng = seeded(pair, shape, mode)
    batch = Batch()
    for tokens, weight in drafts(shape, source, vocab, mode):
        paths = [()] + [tuple(tokens[i] for i in shape.path(j)) for j in range(len(tokens))]
        p, q = [target(x) for x in paths], [source(x) for x in paths]
        row = {
            "p": [floats(r) for r in p],
            "q": [floats(r) if shape.children(j) else [NAN_ROW] * vocab for j, r in enumerate(q, start=-1)],
            "draft": tokens,
        }
        for cell in cells(p, q, tokens):
            batch.add(cell, columns, edge, rng, 0, weight, **row)
    return batch


TREE_CASES = [
    (mode, pair, shape)
    for shape in SHAPES
    for mode in ("replacement", "without", "chosen", "repeated")
    for pair in ("dense-2", "dense-3", "zeros-3", "disjoint-3", "greedy-target-3")
] + [("mixed", "narrow-source-4", shape) for shape in ("fork", "three", "comb")]


@pytest.mark.parametrize(("mode", "pair", "shape"), TREE_CASES)
def test_trees_emit_the_target(form, mode, pair, shape):
    tree = SHAPES[shape]
    q_used = mode in ("replacement", "without", "mixed")
    n = len(tree.parents)

    def cells(p, q, tokens):
        return tree_cells(p, q if q_used else None, tokens, tree, n, replacement=mode != "without")

    batch = tree_batch(pair, tree, mode, cells, n + 1, form.edge)
    outcome = form(
        "accept_tree",
        batch.p,
        batch.q if q_used else None,
        batch.draft,
        batch.u,
        parents=tree.parents,
        replacement=mode != "without",
    )
    vocab, target, _ = PAIRS[pair]
    assert_target_law(batch.laws(outcome)[0], target, vocab, tree.height + 1)


@pytest.mark.parametrize(
    ("pair", "shape"),  # three siblings of two tokens cannot be distinct
    [
        (pair, shape)
        for pair in ("dense-2", "dense-3", "zeros-3")
        for shape in SHAPES
        if (pair, shape) != ("dense-2", "three")
    ],
)
def test_sglang_rule_is_exact_for_distinct_siblings(form, pair, shape):
    tree = SHAPES[shape]
    vocab, target, _ = PAIRS[pair]
    n = len(tree.parents)
    batch = tree_batch(
        pair, tree, "chosen", lambda p, _, tokens: sglang_cells(p, tokens, tree, n + 1), n + 2, form.edge
    )
    outcome = form("accept_sglang_target_only", batch.p, batch.draft, batch.u, parents=tree.parents)
    assert_target_law(batch.laws(outcome)[0], target, vocab, tree.height + 1)


@pytest.mark.parametrize("pads", [1, 2, 4])
def test_sglang_padding_accepts_token_0_too_often_and_the_exact_rule_does_not(form, pads):
    # m pads of token 0 below the root: min(1, m p(0)) instead of p(0).
    p0 = Fraction(3, 10)
    row = (p0, Fraction(3, 10), Fraction(4, 10))
    shape = TreeShape((-1,) * pads)
    p = [row] * (pads + 1)
    for rule, cells, columns, expected in (
        ("accept_sglang_target_only", sglang_cells(p, (0,) * pads, shape, pads + 1), pads + 2, min(ONE, pads * p0)),
        ("accept_tree", tree_cells(p, None, (0,) * pads, shape, pads, replacement=True), pads + 1, p0),
    ):
        batch = Batch()
        for cell in cells:
            rng = seeded(pads)
            batch.add(cell, columns, form.edge, rng, 0, ONE, p=[floats(r) for r in p], draft=[0] * pads)
        q = (None,) if rule == "accept_tree" else ()
        outcome = form(rule, batch.p, *q, batch.draft, batch.u, parents=shape.parents)
        law = batch.laws(outcome)[0]
        assert sum((w for x, w in law.items() if x[0] == 0), ZERO) == expected
