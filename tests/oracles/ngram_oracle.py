"""Brute force for every n-gram rule: the definition, read aloud. Slow; the referee of the compiled proposers."""

from collections.abc import Sequence

from specplan.propose.ngram import NgramRule
from specplan.propose.protocol import EMPTY, Draft


def draft(context: Sequence[int], k: int, rule: NgramRule) -> Draft:
    """The draft by definition: for n from the longest down, every start from one side; O(T^2).

    Examples
    --------
    >>> from specplan.propose.ngram import vllm_v1, vllm_v2
    >>> draft([5, 6, 7, 8, 5, 6], 5, vllm_v1(2, 4)).tokens, draft([5, 6, 7, 8, 5, 6], 5, vllm_v2(2, 4)).tokens
    ((7, 8, 5, 6), (7, 8, 5, 6, 6))
    """
    x = list(context)
    size = len(x)
    limit = rule.limit(size, k)
    if limit == 0:
        return EMPTY
    tokens: list[int] = []
    match_len = 0
    for n in range(min(rule.max_n, size - 1), rule.min_n - 1, -1):
        starts = [s for s in range(size - n) if x[s : s + n] == x[size - n :]]
        if starts:
            start = starts[-1 if rule.latest else 0]
            match_len, tokens = n, x[start + n : start + n + limit]
            break
    for i, token in enumerate(tokens):
        if token in rule.stop_ids:
            tokens = tokens[:i]
            break
    if rule.fill:
        tokens = tokens + [x[-1] if x else 0] * (limit - len(tokens))
    return Draft(tuple(tokens), match_len=match_len) if tokens or match_len else EMPTY
