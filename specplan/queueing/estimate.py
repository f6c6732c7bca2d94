"""What a rate gives without a simulation: batch and step time at their fixed point, by Little's law.

Source: the fixed point of batch and step time as in arXiv 2605.15051, there with measured costs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from specplan.queueing.outcome import Target
from specplan.queueing.served_source import ServedSource
from specplan.queueing.time_loop import drafting_s, target_s

_P_OF_MEAN: Final = {"mean": 1.0, "p50": 1.0, "p90": 1.3, "p95": 1.5, "p99": 2.0}
"""Percentiles of a latency over its mean, roughly; the simulation decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Steady state at one rate.

    Attributes
    ----------
    rate : float
        Requests per second.
    batch : float
        Decoding requests.
    step_s : float
        A step of them, with the share of prompts that it carries.
    tpot_s, ttft_s : float
        Means.
    prefill_share : float
        Share of the time that prompts take.
    is_stable : bool
        Whether the engine keeps up within its cache and its limit of requests.
    """

    rate: float
    batch: float
    step_s: float
    tpot_s: float
    ttft_s: float
    prefill_share: float
    is_stable: bool


def estimate(served: ServedSource, rate: float, prompt: float, output: float, emitted: float) -> Estimate:
    r"""Steady state of requests of mean lengths at one rate.

    With step time T(B) of B decoding requests, E tokens per request and step, and c seconds that one prompt adds:

    .. math:: B = \lambda \frac{O}{E} \frac{T(B)}{1 - \lambda c}

    Parameters
    ----------
    served : ServedSource
    rate : float
        Requests per second.
    prompt, output : float
        Mean tokens.
    emitted : float
        E over all steps.
    """
    return _steady(served, rate, prompt, output, emitted, step_by_batch(served, prompt + output / 2))


def _steady(
    served: ServedSource, rate: float, prompt: float, output: float, emitted: float, step_s: Callable[[float], float]
) -> Estimate:
    context = prompt + output / 2
    prompt_s = prefill_s(served, prompt)
    share = rate * prompt_s
    rules = served.rules
    slots = rules.kappa + rules.lookahead
    most = min(rules.max_num_seqs, rules.usable_blocks * rules.block_size / (context + slots))
    if share >= 1:
        return Estimate(rate=rate, batch=most, step_s=math.inf, tpot_s=math.inf, ttft_s=math.inf, prefill_share=1.0,
                        is_stable=False)  # fmt: skip

    def wanted(batch: float) -> float:
        return rate * output / emitted * step_s(batch) / (1 - share)

    low, high = 0.0, float(most)
    is_stable = wanted(high) <= high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if wanted(middle) > middle else (low, middle)
    batch = high if is_stable else float(most)
    step = step_s(max(batch, 1.0)) / (1 - share)
    wait = share * prompt_s / (2 * (1 - share))
    return Estimate(
        rate=rate,
        batch=batch,
        step_s=step,
        tpot_s=step / emitted,
        ttft_s=prompt_s + step + wait if is_stable else math.inf,
        prefill_share=share,
        is_stable=is_stable,
    )


def step_by_batch(served: ServedSource, context: float) -> Callable[[float], float]:
    """Seconds of a step by its decoding requests, linear between whole numbers of them."""
    t = served.times
    most = served.rules.max_num_seqs

    @cache
    def whole(n: int) -> float:
        tokens = int(n * context)
        seconds = target_s(t, n * (1 + served.kappa), n, tokens, 0.0, 0) + float(t.table[t.host_at + n])
        if served.kappa:
            seconds += drafting_s(t, n, tokens, 0, 0.0) + float(t.table[t.drafted_at + n])
        return float(seconds)

    def step_s(batch: float) -> float:
        low = min(int(batch), most)
        a, b = whole(max(low, 1)), whole(max(min(low + 1, most), 1))
        return a + (batch - low) * (b - a)

    return step_s


def prefill_s(served: ServedSource, prompt: float) -> float:
    """Seconds that a prompt adds to the steps that carry it."""
    t = served.times
    budget = served.rules.max_num_batched_tokens
    tokens = int(min(max(prompt, 1), budget - 1))
    one = float(t.table[tokens + 1] - t.table[1])
    pairs = prompt * (prompt + 1) / 2
    seconds = one * prompt / tokens + pairs * t.pair_s + t.chunk_s
    if served.kappa:
        seconds += float(t.table[t.prompt_at + tokens]) * prompt / tokens + pairs * t.draft_pair_s
    return max(seconds, 0.0)


def estimated_rate(
    served: ServedSource, targets: tuple[Target, ...], prompt: float, output: float, emitted: float
) -> float:
    """Highest rate at which the estimate holds the targets; 0 where none does."""
    step_s = step_by_batch(served, prompt + output / 2)

    def good(rate: float) -> bool:
        found = _steady(served, rate, prompt, output, emitted, step_s)
        for target in targets:
            mean = {"tpot": found.tpot_s, "ttft": found.ttft_s, "itl": found.step_s}.get(
                target.latency, found.ttft_s + output * found.tpot_s
            )
            spread = 1.15 if target.latency == "tpot" and target.statistic != "mean" else _P_OF_MEAN[target.statistic]
            if mean * spread > target.seconds:
                return False
        return found.is_stable

    low, high = 0.0, 1 / max(prefill_s(served, prompt), 1e-9)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return float(np.float64(low))
