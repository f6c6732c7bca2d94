"""The result file of ``vllm bench serve``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from specplan.errors import InputError
from specplan.ingest.observation import Observation, Translation
from specplan.records.means import Means
from specplan.records.tally import Tally

_P: Final = "spec_decode_"
KEYS: Final = frozenset({"request_throughput", "output_throughput", "total_token_throughput", "mean_tpot_ms"})
"""At least two of these make a JSON object a benchmark result."""


def is_bench_result(document: object) -> bool:
    """Whether a JSON document is what ``vllm bench serve --save-result`` writes.

    >>> is_bench_result({"request_throughput": 1.0, "output_throughput": 9.0})
    True
    """
    return isinstance(document, Mapping) and len(KEYS & set(document)) >= 2


def read_bench(result: Mapping[str, Any], origin: str) -> Observation:
    """Speculation during the benchmark: differences of the server's counters around it, as vLLM writes them.

    Raises
    ------
    InputError
        If the result has no ``spec_decode_`` figures, or they contradict one another.
    """
    length, rate = _number(result, "acceptance_length", origin), _number(result, "acceptance_rate", origin)
    counts = {key: _number(result, key, origin) for key in ("num_drafts", "draft_tokens", "accepted_tokens")}
    rates = _rates(result, origin)
    if length is None and counts["num_drafts"] is None:
        raise InputError(
            f"{origin}: no {_P}acceptance_length or {_P}num_drafts in this benchmark result; "
            "the server ran without speculation, or its /metrics could not be read"
        )
    translations = [
        Translation(name=_P + key, value=value, meaning=meaning, ours=ours)
        for key, value, meaning, ours in (
            ("num_drafts", counts["num_drafts"], "steps with a draft during the benchmark", "drafts"),
            ("draft_tokens", counts["draft_tokens"], "draft tokens verified", "drafted_tokens"),
            ("accepted_tokens", counts["accepted_tokens"], "accepted, bonus excluded", "accepted_tokens"),
            ("acceptance_length", length, "1 + accepted/drafts over drafted steps", "tokens_per_drafted_step"),
            ("acceptance_rate", rate, "percent, accepted/drafted tokens", "accepted_per_drafted (not alpha)"),
            ("per_position_acceptance_rates", rates, "unconditional", "position_rates_unconditional"),
        )
        if value is not None
    ]
    tally, notes = None, []
    if None not in counts.values():
        drafts, drafted, accepted = (int(value or 0) for value in counts.values())
        steps = _steps(result, accepted, drafts)
        notes.append(
            "steps = output tokens - requests - accepted (derived); a few too small where stops cut accepted tokens off"
            if steps is not None
            else "output tokens do not match the drafts: all steps stay unknown"
        )
        tally = Tally.of_counters(
            drafts=drafts,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            accepted_at=_whole(rates, drafts, accepted),
            steps=steps,
            emitted_tokens=None if steps is None else steps + accepted,
        )
    means = Means(
        tokens_per_drafted_step=length,
        accepted_per_drafted=None if rate is None else rate / 100,
        position_rates=rates,
        chain_len=len(rates) if rates else None,
    )
    model = str(result.get("model_id") or "vllm")
    return Observation(
        engine="vllm",
        origin=origin,
        source=model,
        tally=tally,
        means=None if tally is not None else means,
        translations=tuple(translations),
        labels=MappingProxyType({"model_name": model}),
        window_s=_positive(result.get("duration")),
        notes=tuple(notes),
    )


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _number(result: Mapping[str, Any], key: str, origin: str) -> float | None:
    value = result.get(_P + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{origin}: {_P}{key} must be a number of at least 0, got {value!r}")
    return float(value)


def _rates(result: Mapping[str, Any], origin: str) -> tuple[float, ...] | None:
    values = result.get(f"{_P}per_position_acceptance_rates")
    if not values:
        return None
    if not isinstance(values, list) or not all(isinstance(v, int | float) and 0 <= v <= 1 for v in values):
        raise InputError(f"{origin}: {_P}per_position_acceptance_rates must be a list of numbers in [0, 1]")
    return tuple(float(v) for v in values)


def _whole(rates: tuple[float, ...] | None, drafts: int, accepted: int) -> tuple[int, ...] | None:
    """Counts per position; the rates are written in full, so they give whole numbers or are of another window."""
    if rates is None:
        return None
    at = tuple(round(rate * drafts) for rate in rates)
    return at if sum(at) == accepted else None


def _steps(result: Mapping[str, Any], accepted: int, drafts: int) -> int | None:
    tokens, requests = result.get("total_output_tokens"), result.get("completed")
    if type(tokens) is not int or type(requests) is not int:
        return None
    steps = tokens - requests - accepted
    return steps if steps >= drafts else None
