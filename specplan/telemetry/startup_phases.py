"""Phases of an SGLang start-up: which load and which pool is the target's, and which the draft's.

The draft is loaded and gets its pool by the same words as the target. Neither the order of lines nor the version is
relied on: of the loads on a rank the largest is the target's, of its pools the largest; what is free before loading is
the most that any load began with, what is left for the pool the least that a load before the pool ended with.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from specplan.records.startup import Reading

_POOLS: Final = ("pool_key_bytes", "pool_value_bytes", "pool_bytes")


def sglang_phases(readings: Iterable[Reading]) -> Iterator[Reading]:
    """Readings with the draft's under names of their own, and without those that a draft's load makes meaningless."""
    found = list(readings)
    for rank in dict.fromkeys(r.rank for r in found):
        own = [r for r in found if r.rank == rank]
        yield from _loads(_pools(own))


def _pools(own: list[Reading]) -> list[Reading]:
    """Pools of one rank; rows go with the bytes of their line."""
    largest: dict[str, float] = {}
    for r in own:
        if r.term in _POOLS:
            largest[r.term] = max(r.value, largest.get(r.term, 0.0))
    of_draft = {r.line for r in own if r.term in _POOLS and r.value < largest[r.term]}
    return [
        replace(r, term=f"draft_{r.term}") if r.line in of_draft and r.term in (*_POOLS, "pool_tokens") else r
        for r in own
    ]


def _loads(own: list[Reading]) -> Iterator[Reading]:
    weights = [r for r in own if r.term == "weights_bytes"]
    ends = [r for r in own if r.term == "free_after_load_bytes"]
    begins = [r for r in own if r.term == "free_at_start_bytes"]
    pooled = max((r.value for r in own if r.term == "free_after_pool_bytes"), default=None)
    target = max(weights, key=lambda r: r.value, default=None)
    # A draft that is loaded after the pool ends with less than the pool left.
    before_pool = [r for r in ends if pooled is None or r.value > pooled] or ends
    least = min(before_pool, key=lambda r: r.value, default=None)
    most = max(begins, key=lambda r: r.value, default=None)
    if most is None and target is not None:
        # No line says what was free: what was left after the target's load, and what it took.
        left = max(ends, key=lambda r: r.value, default=None)
        if left is not None:
            yield replace(
                left, term="free_at_start_bytes", value=left.value + target.value, step=left.step + target.step
            )
    kept = {"free_after_load_bytes": least, "free_at_start_bytes": most}
    for r in own:
        if r.term == "weights_bytes" and target is not None and r.value < target.value:
            yield replace(r, term="draft_weights_bytes")
        elif (chosen := kept.get(r.term)) is None or r.value == chosen.value:
            yield r
