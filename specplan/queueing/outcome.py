"""What a load got: latencies, rates, shares of time; one run, and several seeds together with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from specplan.errors import InputError
from specplan.queueing.load import Floats
from specplan.queueing.stream import Served, gap_edges
from specplan.units import parse

STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")
LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A latency that must hold.

    Attributes
    ----------
    latency : str
        One of `LATENCIES`.
    statistic : str
        One of `STATISTICS`.
    seconds : float
    """

    latency: str
    statistic: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.latency} {self.statistic} <= {self.seconds * 1e3:g} ms"


def read_target(text: str, latency: str) -> Target:
    """A target as an option spells it: ``p95=500ms``, or ``500ms`` for the mean.

    Raises
    ------
    InputError
        For a time without a unit, or an unknown statistic.

    Examples
    --------
    >>> read_target("p95=500ms", "ttft").seconds
    0.5
    """
    statistic, equals, amount = text.rpartition("=")
    statistic = statistic.strip() if equals else "mean"
    if statistic not in STATISTICS:
        raise InputError(f"--{latency} {text}: expected one of {', '.join(STATISTICS)}, such as p95=500ms")
    try:
        seconds = parse(amount.strip(), "time")
    except InputError as error:
        raise InputError(f"--{latency} {text}: {error}") from None
    if seconds <= 0:
        raise InputError(f"--{latency} {text}: must be above 0")
    return Target(latency=latency, statistic=statistic, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run gave; latencies in seconds, rates per second of virtual time.

    Attributes
    ----------
    requests, counted : int
        Of the run, and after the warm-up: those that the latencies are of.
    latencies : mapping of str to mapping of str to float
        By `LATENCIES` and `STATISTICS`. ``ttft`` runs from arrival to the first token; ``tpot`` is the time per token
        after it, of requests with at least two; ``itl`` the gaps between emissions (a step's tokens come together, so
        with drafts a gap holds several); ``e2e`` from arrival to the last token.
    request_rate, token_rate, prompt_rate : float
        Finished requests, emitted tokens and prompt tokens per second.
    goodput : float or None
        Requests per second that met every target on their own; None without targets.
    running, waiting : float
        Mean numbers over time.
    cache_use : float
        Mean share of blocks in use.
    preemptions : int
    accepted_length : float
        Emitted tokens per request and step that emitted: E over all steps.
    drafted_share : float
        Steps of requests with a draft among those that emitted.
    utilisation : float
        Share of time in steps.
    draft_share, verify_share, host_share, prefill_share : float
        Of the time in steps; the last overlaps with the others.
    hit_rate : float
        Prompt tokens found in the prefix cache.
    queue_s : float
        Mean time from arrival to admission.
    """

    requests: int
    counted: int
    latencies: Mapping[str, Mapping[str, float]]
    request_rate: float
    token_rate: float
    prompt_rate: float
    goodput: float | None
    running: float
    waiting: float
    cache_use: float
    preemptions: int
    accepted_length: float
    drafted_share: float
    utilisation: float
    draft_share: float
    verify_share: float
    host_share: float
    prefill_share: float
    hit_rate: float
    queue_s: float


def outcome(served: Served, targets: Sequence[Target] = (), *, warmup: float = 0.1) -> Outcome:
    """Sum up a run.

    Parameters
    ----------
    served : Served
    targets : sequence of Target
        For the goodput; each request is held against each of them alone.
    warmup : float
        Share of the first requests that latencies leave out, in [0, 1).

    Raises
    ------
    InputError
        If the warm-up leaves no request.
    """
    if not 0 <= warmup < 1:
        raise InputError(f"--warmup {warmup:g}: must lie in [0, 1)")
    arrival = served.requests.arrival
    first = int(arrival.size * warmup)
    keep = slice(first, None)
    ttft = (served.first - arrival)[keep]
    e2e = (served.finish - arrival)[keep]
    emitted = served.emitted[keep]
    many = emitted > 1
    tpot = (served.finish - served.first)[keep][many] / (emitted[many] - 1)
    per_request: dict[str, Floats] = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    latencies = {name: statistics(values) for name, values in per_request.items()}
    latencies["itl"] = _gap_statistics(served.gaps)
    # The rates are those of the time in which requests kept coming, plus what the last ones took.
    span = max(served.seconds["span"], 1e-300)
    busy = max(served.seconds["busy"], 1e-300)
    counts = served.counts
    return Outcome(
        requests=arrival.size,
        counted=ttft.size,
        latencies=latencies,
        request_rate=arrival.size / span,
        token_rate=counts["emitted"] / span,
        prompt_rate=float(served.requests.prompt.sum()) / span,
        goodput=_goodput(per_request, many, targets, span * (1 - warmup)) if targets else None,
        running=served.seconds["in_batch"] / span,
        waiting=(served.seconds["in_system"] - served.seconds["in_batch"]) / span,
        cache_use=served.seconds["in_pool"] / span / served.blocks,
        preemptions=counts["preemptions"],
        accepted_length=counts["emitted"] / max(counts["turns"], 1),
        drafted_share=counts["drafts"] / max(counts["turns"], 1),
        utilisation=served.seconds["busy"] / span / served.replicas,
        draft_share=served.seconds["draft"] / busy,
        verify_share=served.seconds["verify"] / busy,
        host_share=served.seconds["host"] / busy,
        prefill_share=served.seconds["prefill"] / busy,
        hit_rate=counts["hits"] / max(counts["looked_up"], 1),
        queue_s=float(np.mean((served.start - arrival)[keep])),
    )


def statistics(values: Floats) -> dict[str, float]:
    """Mean and percentiles, linear between order statistics; NaN where there is nothing."""
    if values.size == 0:
        return dict.fromkeys(STATISTICS, float("nan"))
    quantiles = np.quantile(values, [0.5, 0.9, 0.95, 0.99])
    return dict(zip(STATISTICS, (float(values.mean()), *map(float, quantiles)), strict=True))


def _gap_statistics(gaps: Floats) -> dict[str, float]:
    """Mean and percentiles of binned gaps, good to half a bin (0.2%)."""
    total = gaps.sum()
    if total == 0:
        return dict.fromkeys(STATISTICS, float("nan"))
    middle, part = gap_edges(), np.cumsum(gaps) / total
    found = [float(middle[np.searchsorted(part, q)]) for q in (0.5, 0.9, 0.95, 0.99)]
    return dict(zip(STATISTICS, (float(gaps @ middle / total), *found), strict=True))


def _goodput(per_request: Mapping[str, Floats], many: np.ndarray, targets: Sequence[Target], span: float) -> float:
    good = np.ones(many.size, bool)
    for target in targets:
        if target.latency == "tpot":
            good[np.flatnonzero(many)[per_request["tpot"] > target.seconds]] = False
        elif target.latency != "itl":
            good &= per_request[target.latency] <= target.seconds
    return float(good.sum()) / span


def holds(found: Outcome, targets: Sequence[Target]) -> bool:
    """Whether every target holds."""
    return all(found.latencies[t.latency][t.statistic] <= t.seconds for t in targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean over seeds, and half the width of its 95% interval (NaN with one seed)."""

    mean: float
    half: float


_T975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of a mean over seeds.

    >>> round(interval([1.0, 2.0, 3.0]).half, 3)
    2.484
    """
    found = np.asarray(values, np.float64)
    if found.size < 2:
        return Interval(mean=float(found.mean()), half=float("nan"))
    t = _T975[found.size - 2] if found.size - 2 < len(_T975) else 1.96 + 2.4 / (found.size - 1)
    return Interval(mean=float(found.mean()), half=float(t * found.std(ddof=1) / found.size**0.5))
