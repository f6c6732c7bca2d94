"""SGLang's n-gram drafting by brute force: the rules of the compiled proposer, spelled out on tuples and dicts.

Slow and small on purpose. A trie node is its path, an automaton's class is a set of end positions found by scanning, a
draft tree is a dict from path to chance in order of creation.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from specplan.propose.automaton import SEPARATOR
from specplan.propose.sglang_rule import SglangRule

Path = tuple[int, ...]
Tree = dict[Path, float]
"""Root-to-node paths in order of creation, each with its chance (0 for BFS)."""

Spot = tuple[int, ...]
"""A place with continuations: a trie path, or end positions in a corpus."""

After = Callable[[Spot], list[tuple[int, int, Spot]]]
"""Continuations of a spot in rank order: token, count, next spot."""


@dataclass(slots=True)
class _Node:
    count: int
    stamp: int  # the window that touched it last
    born: int  # two nodes at one path, one after the other's eviction, differ in it


@dataclass(slots=True)
class _State:
    epoch: int
    total: int
    anchors: list[tuple[Path, int] | None]  # of the last 1, 2, ... tokens


@dataclass(frozen=True, slots=True)
class OracleMatch:
    """A draft: its tree, and the longest suffix with a continuation."""

    tree: Tree
    match_len: int


class OracleCorpus:
    """A corpus that is scanned for every question.

    >>> corpus = OracleCorpus([[1, 2, 3], [2, 4]])
    >>> corpus.n_tokens, corpus.ends((2,)), corpus.after(corpus.ends((2,)))
    (6, (1, 4), {3: (2,), 4: (5,)})
    """

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        tokens: list[int] = []
        for i, document in enumerate(documents):
            tokens.extend([SEPARATOR] * (i > 0))
            tokens.extend(document)
        self.tokens = tuple(tokens)

    @property
    def n_tokens(self) -> int:
        """Tokens, separators included."""
        return len(self.tokens)

    def ends(self, pattern: Path) -> tuple[int, ...]:
        """Positions of the last token of each occurrence."""
        n = len(pattern)
        return tuple(e for e in range(n - 1, len(self.tokens)) if self.tokens[e - n + 1 : e + 1] == pattern)

    def after(self, ends: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """Tokens that follow, each with the end positions of the longer string."""
        following: dict[int, tuple[int, ...]] = {}
        for end in ends:
            if end + 1 < len(self.tokens) and self.tokens[end + 1] != SEPARATOR:
                token = self.tokens[end + 1]
                following[token] = (*following.get(token, ()), end + 1)
        return following

    def anchors(self, context: Path) -> list[tuple[int, tuple[int, ...]]]:
        """(length, end positions) of the context's suffixes that occur: the longest of each set, longest first."""
        found: list[tuple[int, tuple[int, ...]]] = []
        for length in range(len(context), 0, -1):
            ends = self.ends(context[-length:])
            if ends and (not found or found[-1][1] != ends):
                found.append((length, ends))
        return found


class OracleNgram:
    """Trie, corpora and match states; the calls of `SglangNgram` that matter for drafts.

    >>> oracle = OracleNgram(SglangRule(draft_token_num=4))
    >>> oracle.insert([1, 2, 3, 4])
    >>> oracle.match("a", [9, 2]).tree
    {(3,): 0.0, (3, 4): 0.0}
    """

    def __init__(self, rule: SglangRule) -> None:
        self.rule = rule
        self.nodes: dict[Path, _Node] = {}
        self.corpora: dict[str, OracleCorpus] = {}
        self._states: dict[Hashable, _State] = {}
        self._clock = 0
        self._epoch = 0

    # ---------------------------------------------------------------------------------------------------------- trie

    def insert(self, tokens: Sequence[int], *, new: int | None = None) -> None:
        """Insert every window of at most D tokens; the last `new` tokens are counted, None: all."""
        counted_from = 0 if new is None else len(tokens) - min(new, len(tokens))
        for start in range(len(tokens)):
            window = tuple(tokens[start : start + self.rule.max_trie_depth])
            if start + len(window) > counted_from:
                self._insert_window(window, counted_from - start)

    def _insert_window(self, window: Path, counted_from: int) -> None:
        self._clock += 1
        paths = [window[: d + 1] for d in range(len(window))]
        needed = len(window)
        if self.rule.quirks is None:
            needed = sum(path not in self.nodes for path in paths)
            for path in paths:
                if path in self.nodes:
                    self.nodes[path].stamp = self._clock
        while self.nodes and needed > self.rule.capacity - 1 - len(self.nodes):
            # oldest window first; of one window, the deepest node first
            del self.nodes[min(self.nodes, key=lambda path: (self.nodes[path].stamp, -len(path)))]
        for d, path in enumerate(paths):
            if path not in self.nodes:
                self.nodes[path] = _Node(1, self._clock, self._clock)
            else:
                self.nodes[path].count += d >= counted_from
                self.nodes[path].stamp = self._clock

    def children(self, path: Path) -> list[tuple[int, int]]:
        """(token, count) of the children, in rank order."""
        below = [(p[-1], node) for p, node in self.nodes.items() if p[:-1] == path]
        if self.rule.match_type == "BFS":
            below.sort(key=lambda item: -item[1].stamp)
        else:
            below.sort(key=lambda item: (-item[1].count, item[0]))
        return [(token, node.count) for token, node in below]

    def reset(self) -> None:
        """Empty the trie, void the match states."""
        self.nodes.clear()
        self._epoch += 1

    def erase(self, request_id: Hashable) -> None:
        """Drop a match state."""
        self._states.pop(request_id, None)

    # --------------------------------------------------------------------------------------------------------- match

    def _anchor(self, path: Path) -> tuple[Path, int] | None:
        return (path, self.nodes[path].born) if path in self.nodes else None

    def _follow(self, request_id: Hashable, context: Path, total: int) -> list[Path]:
        """Trie paths that the last 1, 2, ... tokens match, longest first, through the request's state."""
        depth = self.rule.max_trie_depth
        state = self._states.get(request_id)
        lengths = min(len(context), depth)
        rebuilt = [self._anchor(context[-length:]) for length in range(1, lengths + 1)]
        if state is not None and self.rule.quirks is not None:
            appended = total - state.total
            live = all(a is None or (a[0] in self.nodes and self.nodes[a[0]].born == a[1]) for a in state.anchors)
            if (
                state.epoch == self._epoch
                and 0 <= appended <= len(context)
                and len(state.anchors) == min(state.total, depth)
                and live
            ):
                anchors = state.anchors
                for token in context[len(context) - appended :]:
                    longer = [None if a is None else self._anchor((*a[0], token)) for a in anchors]
                    anchors = [self._anchor((token,)), *longer][:depth]
                rebuilt = anchors
        self._states[request_id] = _State(self._epoch, total, rebuilt)
        return [anchor[0] for anchor in reversed(rebuilt) if anchor is not None]

    def match(
        self, request_id: Hashable, context: Sequence[int], total_len: int | None = None, width: int | None = None
    ) -> OracleMatch:
        """Draft tree of one request of at most `width` rows, root included."""
        rule = self.rule
        text = tuple(context)
        total = len(text) if total_len is None else total_len
        room = (rule.draft_token_num if width is None else width) - 1
        paths = [path for path in self._follow(request_id, text, total) if self.children(path)]
        in_corpora = [
            (corpus, [(m, ends) for m, ends in corpus.anchors(text[-rule.max_trie_depth :]) if corpus.after(ends)])
            for corpus in self.corpora.values()
        ]
        longest = max([len(path) for path in paths[:1]] + [found[0][0] for _, found in in_corpora if found], default=0)
        budget = min(rule.external_sam_budget, room)
        if rule.quirks is not None:
            return OracleMatch(self._as_engine(paths, in_corpora, budget, room), longest)
        matched = {id(corpus): max([m for m, _ in corpus.anchors(text[-rule.max_trie_depth :])], default=0)
                   for corpus, _ in in_corpora}  # fmt: skip
        in_corpora.sort(key=lambda item: -matched[id(item[0])])
        tree: Tree = {}
        for turn, (corpus, found) in enumerate(in_corpora):
            others = len(in_corpora) - turn
            before = len(tree)
            self._grow_from_corpus(tree, corpus, found, before + -(-budget // others))
            budget -= len(tree) - before
        self._grow_from_trie(tree, paths, room)
        for corpus, found in in_corpora:
            self._grow_from_corpus(tree, corpus, found, room)
        return OracleMatch(tree, longest)

    def _as_engine(
        self,
        paths: list[Path],
        in_corpora: list[tuple[OracleCorpus, list[tuple[int, tuple[int, ...]]]]],
        budget: int,
        room: int,
    ) -> Tree:
        share = budget // len(in_corpora) if in_corpora else 0
        own: Tree = {}
        self._grow_from_trie(own, paths, room - share * len(in_corpora))
        if share == 0:
            return own
        trees = [own]
        for corpus, found in in_corpora:
            trees.append({})
            self._grow_from_corpus(trees[-1], corpus, found, share)
        merged: Tree = {}
        for tree in trees:
            parents = {path[:-1] for path in tree}
            for path, chance in tree.items():
                if path != (0,) or path in parents:
                    merged.setdefault(path, chance)
        return merged

    # -------------------------------------------------------------------------------------------------------- growth

    def _grow_from_trie(self, tree: Tree, paths: list[Path], limit: int) -> None:
        def after(path: Spot) -> list[tuple[int, int, Spot]]:
            return [(token, count, (*path, token)) for token, count in self.children(path)]

        for path in paths:
            self._grow(tree, path, len(path), limit, after)

    def _grow_from_corpus(
        self, tree: Tree, corpus: OracleCorpus, found: list[tuple[int, tuple[int, ...]]], limit: int
    ) -> None:
        by_recency = self.rule.match_type == "BFS"

        def after(ends: Spot) -> list[tuple[int, int, Spot]]:
            following = corpus.after(ends)
            rank = sorted(following, key=lambda t: (-following[t][-1] if by_recency else -len(following[t]), t))
            return [(token, len(following[token]), following[token]) for token in rank]

        for matched, ends in found:
            self._grow(tree, ends, matched, limit, after)

    def _grow(self, tree: Tree, anchor: Spot, matched: int, limit: int, after: After) -> None:
        if self.rule.match_type == "BFS":
            self._grow_by_recency(tree, anchor, matched, limit, after)
        else:
            self._grow_by_count(tree, anchor, limit, after)

    def _grow_by_recency(self, tree: Tree, anchor: Spot, matched: int, limit: int, after: After) -> None:
        rule = self.rule
        deepest = max(1, rule.max_trie_depth - 1)
        scale = (rule.max_bfs_breadth - rule.min_bfs_breadth) / deepest
        queue: list[tuple[Path, float, Spot]] = [((), (deepest - matched) * scale + rule.min_bfs_breadth, anchor)]
        while queue and len(tree) < limit:
            parent, breadth, spot = queue.pop(0)
            for token, _, longer in after(spot)[: max(1, int(breadth))]:
                if len(tree) >= limit:
                    return
                tree.setdefault((*parent, token), 0.0)
                queue.append(((*parent, token), breadth - scale, longer))

    def _grow_by_count(self, tree: Tree, anchor: Spot, limit: int, after: After) -> None:
        heap = _Heap(stable=self.rule.quirks is None)
        parent: Path = ()
        spot, chance = anchor, 1.0
        while True:
            best = after(spot)[: self.rule.max_bfs_breadth]
            total = sum(count for _, count, _ in best)
            for token, count, longer in best:
                heap.push(count / total * chance, ((*parent, token), longer))
            if not heap or len(tree) >= limit:
                return
            chance, (parent, spot) = heap.pop()
            tree.setdefault(parent, chance)


class _Heap:
    """Largest chance first; equal ones first come first served, or (not stable) in a C++ priority queue's order."""

    def __init__(self, *, stable: bool) -> None:
        self._stable = stable
        self._made = 0
        self._items: list[tuple[float, int, tuple[Path, Spot]]] = []

    def __len__(self) -> int:
        return len(self._items)

    def _less(self, a: tuple[float, int, tuple[Path, Spot]], b: tuple[float, int, tuple[Path, Spot]]) -> bool:
        return a[0] < b[0] or (self._stable and a[0] == b[0] and a[1] > b[1])

    def _rise(self, at: int) -> None:
        items = self._items
        while at and self._less(items[(at - 1) // 2], items[at]):
            items[at], items[(at - 1) // 2] = items[(at - 1) // 2], items[at]
            at = (at - 1) // 2

    def push(self, chance: float, value: tuple[Path, Spot]) -> None:
        self._items.append((chance, self._made, value))
        self._made += 1
        self._rise(len(self._items) - 1)

    def pop(self) -> tuple[float, tuple[Path, Spot]]:
        items = self._items
        top, last = items[0], items.pop()
        if items:
            at = 0
            while 2 * at + 1 < len(items):
                child = 2 * at + 1
                # of two equal children the right one moves up
                if child + 1 < len(items) and not self._less(items[child + 1], items[child]):
                    child += 1
                items[at] = items[child]
                at = child
            items[at] = last
            self._rise(at)
        return top[0], top[2]


def accepted_in(tree: Tree, continuation: Sequence[int], *, pads_root: bool) -> int:
    """Longest root path of a tree that equals what follows; a padding row accepts a token 0.

    >>> accepted_in({(1,): 0.0, (1, 2): 0.0}, [1, 2, 3], pads_root=False), accepted_in({}, [0], pads_root=True)
    (2, 1)
    """
    accepted = 0
    while accepted < len(continuation) and tuple(continuation[: accepted + 1]) in tree:
        accepted += 1
    return max(accepted, int(pads_root and list(continuation[:1]) == [0]))


def replay(
    requests: Sequence[tuple[Sequence[int], Sequence[int]]],
    oracle: OracleNgram,
    *,
    concurrency: int,
    index_prompts: bool,
) -> list[tuple[int, int, int, int, int, int]]:
    """Serve (prompt, response) pairs; rows (request, context_len, drafted, accepted, emitted, match_len), sorted.

    >>> oracle = OracleNgram(SglangRule(draft_token_num=3))
    >>> replay([([1, 2, 3, 1], [2, 3, 1])], oracle, concurrency=1, index_prompts=True)
    [(0, 5, 2, 2, 2, 2)]
    """
    engine, depth = oracle.rule.quirks is not None, oracle.rule.max_trie_depth
    rows = []
    waiting = list(range(len(requests)))
    running: dict[int, int] = {}  # request -> tokens so far, the prefill's one included
    while waiting or running:
        while waiting and len(running) < concurrency:
            r = waiting.pop(0)
            text = [*requests[r][0], *requests[r][1]]
            at = len(requests[r][0]) + 1
            if index_prompts:
                oracle.insert(requests[r][0])
            if not engine and at <= len(text):
                oracle.insert(text[max(0, at - depth) : at], new=1)
            if at < len(text):
                running[r] = at
        step = {}
        for r, at in running.items():
            text = [*requests[r][0], *requests[r][1]]
            found = oracle.match(r, text[max(0, at - depth) : at], at)
            pads = engine and len(found.tree) < oracle.rule.draft_token_num - 1
            accepted = accepted_in(found.tree, text[at:], pads_root=pads)
            step[r] = min(accepted + 1, len(text) - at)
            rows.append((r, at, len(found.tree), accepted, step[r], found.match_len))
        for r, emitted in step.items():
            text = [*requests[r][0], *requests[r][1]]
            at = running[r]
            if engine:
                oracle.insert(text[max(0, at - depth) : at])
            else:
                oracle.insert(text[max(0, at - depth + 1) : at + emitted], new=emitted)
            running[r] = at + emitted
            if running[r] == len(text):
                del running[r]
    return sorted(rows)
