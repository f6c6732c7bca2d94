"""Result of a benchmark: the files of vLLM's and SGLang's, their printed summaries, vLLM's example script.

Every spelling is brought to one set of names first; what is missing of it is derived where the rest allows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from specplan.errors import InputError
from specplan.records.means import Means
from specplan.records.tally import UNKNOWN, Tally, checked
from specplan.telemetry.observation import Observation, Speed, translated
from specplan.telemetry.rounded import positions_behind, recover_drafts
from specplan.telemetry.sglang_rates import sglang_means, sglang_translations

_P: Final = "spec_decode_"
_SPELLINGS: Final = {
    "num_drafts": ("num_drafts", "drafts"),
    "draft_tokens": ("draft_tokens", "num_draft_tokens"),
    "accepted_tokens": ("accepted_tokens", "num_accepted_tokens"),
    "acceptance_length": ("acceptance_length", "mean_acceptance_length"),
    "acceptance_rate": ("acceptance_rate",),
    "per_position_acceptance_rates": ("per_position_acceptance_rates", "acceptance_rates_per_position"),
}
_SPEEDS: Final = {
    "tokens_per_s": ("output_throughput", "output_throughput_tok_s", "output_tokens_per_s"),
    "token_s": ("mean_tpot_ms",),
    "chunk_s": ("mean_itl_ms",),
    "first_s": ("mean_ttft_ms",),
    "concurrency": ("max_concurrency", "max_concurrent_requests", "concurrency"),
}
KEYS: Final = frozenset(
    {
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
        "mean_tpot_ms",
        "mean_itl_ms",
        "mean_ttft_ms",
        "total_output_tokens",
        "completed",
        "duration",
        "accept_length",
        "output_throughput_tok_s",
        *(f"{_P}{key}" for key in _SPELLINGS),
        "num_drafts",
        "num_draft_tokens",
        "num_accepted_tokens",
    }
)
"""At least two of these make a JSON object a benchmark result."""


_COUNTS: Final = ("num_drafts", "draft_tokens", "accepted_tokens")


def is_bench_result(document: object) -> bool:
    """Whether a JSON document is what a benchmark of vLLM or SGLang writes, whole or with keys missing.

    >>> is_bench_result({"request_throughput": 1.0, "output_throughput": 9.0})
    True
    """
    return isinstance(document, Mapping) and len(KEYS & set(document)) >= 2


def read_bench(result: Mapping[str, Any], origin: str, *, width: int | None = None) -> Observation:
    """Speculation during the benchmark, and its speeds.

    Parameters
    ----------
    result : mapping
        vLLM's names; ``rate_digits`` tells to how many digits a printed summary rounded its rates by position.
    origin : str
        Name of the file in reports.
    width : int or None
        SGLang's num_draft_tokens, where the result does not tell it.

    Raises
    ------
    InputError
        If the figures contradict one another, or there is neither a figure of speculation nor a speed.
    """
    if result.get("accept_length") is not None and _number(result, "acceptance_length", origin) is None:
        return _sglang(result, origin, width)
    speed = read_speed(result)
    length, rate = _number(result, "acceptance_length", origin), _number(result, "acceptance_rate", origin)
    rates = _rates(result, origin)
    counts = {key: _number(result, key, origin) for key in _COUNTS}
    given = [key for key, value in counts.items() if value is not None]
    if not given and length is None and rates is None:
        return _speeds_alone(result, speed, origin)
    counts, derived = _completed(counts, length, rate, rates, origin)
    rows = [
        translated("vllm", _P + key, value, kind="measured" if key in given else "derived")
        for key, value in counts.items()
        if value is not None
    ]
    for key, value in (
        ("acceptance_length", length),
        ("acceptance_rate", rate),
        ("per_position_acceptance_rates", rates),
    ):
        if value is not None:
            rows.append(translated("vllm", _P + key, value))
    tally, tested, notes = None, None, list(derived)
    if None not in counts.values():
        drafts, drafted, accepted = (int(value or 0) for value in counts.values())
        _agree(drafts, drafted, accepted, length, rate, origin)
        digits = result.get("rate_digits") or 9
        try:
            at, tested = positions_behind(drafts, drafted, accepted, rates or (), digits)
        except InputError as error:
            at, tested = None, None
            notes.append(f"{error}; they are of another window and left out")
        steps, told = _steps(result, accepted, drafts)
        notes.append(told)
        tally = Tally.of_counters(
            drafts=drafts,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            accepted_at=at,
            steps=steps,
            emitted_tokens=None if steps is None else steps + accepted,
        )
        if tested is not None and tested[0] == tested[1] == tally.tested_tokens:
            tested = None
    elif counts["draft_tokens"] is not None and counts["accepted_tokens"] is not None:
        drafted, accepted = int(counts["draft_tokens"]), int(counts["accepted_tokens"])
        tally = checked(replace(UNKNOWN, drafted_tokens=drafted, verified_tokens=drafted, accepted_tokens=accepted))
        notes.append(f"a vLLM benchmark without {_P}num_drafts and its means: alpha is bounded, not known")
    else:
        missing = ", ".join(_P + key for key, value in counts.items() if value is None)
        notes.append(f"a vLLM benchmark without {missing}: means alone, no interval of confidence follows")
    means = None
    if tally is None:
        whole = rates is not None and (length is None or length <= len(rates) + 1)
        means = Means(
            tokens_per_drafted_step=length,
            accepted_per_drafted=None if rate is None else rate / 100,
            position_rates=rates if whole else None,
            chain_len=len(rates) if rates and whole else None,
        )
    model = str(result.get("model_id") or result.get("model") or "vllm")
    return Observation(
        engine="vllm",
        origin=origin,
        source=model,
        tally=tally,
        means=means,
        tested=tested,
        translations=tuple(rows),
        labels=MappingProxyType({"model_name": model} if model != "vllm" else {}),
        window_s=_positive(result.get("duration")),
        mean_batch=speed.concurrency,
        speed=speed,
        notes=tuple(notes),
    )


def _completed(
    counts: Mapping[str, float | None],
    length: float | None,
    rate: float | None,
    rates: Sequence[float] | None,
    origin: str,
) -> tuple[dict[str, float | None], list[str]]:
    """The three counts, a missing one derived from the means beside the others."""
    drafts, drafted, accepted = counts.values()
    notes = []
    if accepted is None and drafts is not None and length is not None:
        accepted = float(round(drafts * (length - 1)))
        notes.append(f"accepted tokens = drafts x (acceptance length - 1) = {accepted:.0f} (derived)")
    if drafted is None and accepted and rate:
        drafted = float(round(100 * accepted / rate))
        if drafts and len(rates or ()) and abs(drafted / drafts - len(rates or ())) < 0.05:
            drafted = drafts * len(rates or ())
        notes.append(f"draft tokens = accepted / acceptance rate = {drafted:.0f} (derived)")
    if drafts is None and drafted and accepted is not None and length is not None:
        found = recover_drafts(length, int(accepted), int(drafted), (), length_digits=_decimals(length))
        if found is None:
            raise InputError(
                f"{origin}: acceptance length {length:g} fits no number of drafts with {accepted:.0f} accepted of "
                f"{drafted:.0f} draft tokens"
            )
        k = len(rates or ())
        uniform = drafted / k if k and drafted % k == 0 and found.low <= drafted // k <= found.high else None
        drafts = float(found.drafts) if uniform is None else uniform
        notes.append(f"drafts = accepted / (acceptance length - 1) = {drafts:.0f} (derived)")
    return {"num_drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}, notes


def _decimals(value: float) -> int:
    return min(len(repr(value).partition(".")[2]), 9)


def _agree(drafts: int, drafted: int, accepted: int, length: float | None, rate: float | None, origin: str) -> None:
    """Refuse means that are not of the counts beside them: lines of two results, or another unit."""
    for name, told, found in (
        ("acceptance length", length, 1 + accepted / drafts if drafts else math.nan),
        ("acceptance rate", rate, 100 * accepted / drafted if drafted else math.nan),
    ):
        if told is not None and not math.isnan(found) and abs(told - found) > 0.006 + 1e-6 * found:
            raise InputError(
                f"{origin}: counts contradict the {name}: {told:g} is printed, {drafts} drafts, {drafted} draft "
                f"tokens and {accepted} accepted ones give {found:.4g}"
            )


def _speeds_alone(result: Mapping[str, Any], speed: Speed, origin: str) -> Observation:
    """A benchmark without a figure of speculation: its speeds, where it has some."""
    if speed == Speed(concurrency=speed.concurrency) or set(result) & set(map(_P.__add__, _SPELLINGS)):
        raise InputError(
            f"{origin}: a benchmark result without {_P}acceptance_length, {_P}num_drafts or accept_length; vLLM and "
            "SGLang write them where the server speculates and the benchmark can read its metrics"
        )
    engine = "sglang" if "sglang" in str(result.get("backend", "")) else "vllm"
    return Observation(
        engine=engine,
        origin=origin,
        source=str(result.get("model_id") or "benchmark"),
        tally=None,
        means=Means(),
        translations=(),
        window_s=_positive(result.get("duration")),
        mean_batch=speed.concurrency,
        speed=speed,
        notes=(
            f"a benchmark result without figures of speculation ({_P}... or accept_length): its speeds alone are "
            "read, to compare with another's",
        ),
    )


def _sglang(result: Mapping[str, Any], origin: str, given: int | None) -> Observation:
    length = result["accept_length"]
    if isinstance(length, bool) or not isinstance(length, int | float) or not 1 <= length < float("inf"):
        raise InputError(f"{origin}: accept_length must be a number of at least 1, got {length!r}")
    info = result.get("server_info")
    places = [result, info] if isinstance(info, Mapping) else [result]
    width, chain, topk = (
        next((p[f"speculative_{key}"] for p in places if type(p.get(f"speculative_{key}")) is int), None)
        for key in ("num_draft_tokens", "num_steps", "eagle_topk")
    )
    width = given if given is not None else width
    speed = read_speed(result)
    notes = ["accept_length is the server's mean since its start, without counts: no interval of confidence follows"]
    if width is None:
        notes.append("num_draft_tokens is not in an SGLang benchmark result: alpha needs it, give --width")
    if topk is not None and topk > 1:
        notes.append(f"topk {topk}: the draft is a tree, alpha is that of a chain with the same E (derived)")
    model = str(result.get("model_id") or result.get("model") or "sglang")
    return Observation(
        engine="sglang",
        origin=origin,
        source=model,
        tally=None,
        means=sglang_means(float(length), width, chain),
        translations=sglang_translations(float(length), None, names=("accept_length", ""), reading=None, width=width),
        window_s=_positive(result.get("duration")),
        mean_batch=speed.concurrency,
        speed=speed,
        notes=tuple(notes),
    )


def read_speed(result: Mapping[str, Any]) -> Speed:
    """Throughput and latencies of a result; its milliseconds become seconds."""
    found: dict[str, float | None] = {}
    for field, names in _SPEEDS.items():
        value = next((v for name in names if (v := _positive(result.get(name))) is not None), None)
        found[field] = value / 1e3 if value is not None and field in ("token_s", "chunk_s", "first_s") else value
    if found["tokens_per_s"] is None:
        tokens, seconds = _positive(result.get("total_output_tokens")), _positive(result.get("duration"))
        found["tokens_per_s"] = tokens / seconds if tokens and seconds else None
    return Speed(**found)


def _positive(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if usable else None  # type: ignore[arg-type]


def _number(result: Mapping[str, Any], key: str, origin: str) -> float | None:
    names = (_P + key, *_SPELLINGS[key])
    name = next((n for n in names if result.get(n) is not None), None)
    if name is None:
        return None
    value = result[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{origin}: {name} must be a number of at least 0, got {value!r}")
    if key in _COUNTS and not (value <= 2**53 and value == int(value)):
        raise InputError(f"{origin}: {name} must be a whole number of at most 2^53, got {value!r}")
    return float(value)


def _rates(result: Mapping[str, Any], origin: str) -> tuple[float, ...] | None:
    values = next(
        (v for n in _SPELLINGS["per_position_acceptance_rates"] for v in (result.get(_P + n), result.get(n)) if v), None
    )
    if not values:
        return None
    if not isinstance(values, list | tuple) or not all(isinstance(v, int | float) and 0 <= v <= 1 for v in values):
        raise InputError(f"{origin}: {_P}per_position_acceptance_rates must be a list of numbers in [0, 1]")
    return tuple(float(v) for v in values)


def _steps(result: Mapping[str, Any], accepted: int, drafts: int) -> tuple[int | None, str]:
    """All steps = output tokens - one per request - accepted, and what to say of it."""
    tokens, requests = result.get("total_output_tokens"), result.get("completed")
    if type(tokens) is not int:
        return None, "the number of output tokens is not told: all steps stay unknown"
    told = "steps = output tokens - requests - accepted (derived)"
    if type(requests) is not int:
        requests, told = 0, "steps = output tokens - accepted (derived), each request's first token among them"
    steps = tokens - requests - accepted
    if steps >= drafts:
        return steps, f"{told}; a few too small where stops cut accepted tokens off"
    if steps >= drafts - max(0.03 * tokens, requests):
        return drafts, f"{told} are {drafts - steps} fewer than the drafts: stops cut them off, every step had a draft"
    return None, "output tokens do not match the drafts: all steps stay unknown"
