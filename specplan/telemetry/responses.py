"""Speculative metrics that engines attach to single responses: vLLM, SGLang and llama.cpp."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError
from specplan.records.files import read_steps
from specplan.records.step import StepRecord
from specplan.records.tally import EMPTY, UNKNOWN, Clusters, Tally, checked
from specplan.telemetry.observation import Observation, Translation, translated
from specplan.telemetry.sglang_rates import sglang_means, sglang_translations

Json = Mapping[str, Any]

_VLLM_KEY: Final = "num_spec_steps"
_SGLANG_KEY: Final = "spec_verify_ct"
_LLAMA_KEY: Final = "draft_n"

# SGLang's spellings, the newest first.
_SGLANG_ACCEPTED: Final = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_SGLANG_DRAFTED: Final = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_SGLANG_HISTOGRAM: Final = ("spec_correct_drafts_histogram", "spec_accept_histogram")


def find_metrics(response: Json) -> tuple[str, Json] | None:
    """Engine and speculative metrics of one response, wherever that engine puts them.

    Looked at: the object itself, ``metrics.speculative_decoding`` (vLLM), ``meta_info`` of the response or of its
    choices (SGLang), ``timings`` (llama.cpp).

    >>> find_metrics({"timings": {"draft_n": 12, "draft_n_accepted": 9}})
    ('llama.cpp', {'draft_n': 12, 'draft_n_accepted': 9})
    """
    for place in _places(response):
        for key, engine in ((_VLLM_KEY, "vllm"), (_SGLANG_KEY, "sglang"), (_LLAMA_KEY, "llama.cpp")):
            if key in place:
                return engine, place
    return None


def _places(response: Json) -> Iterator[Json]:
    yield response
    metrics = response.get("metrics")
    candidates = [
        metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None,
        response.get("speculative_decoding"),
        response.get("meta_info"),
        response.get("timings"),
    ]
    choices = response.get("choices")
    if isinstance(choices, list):
        candidates += [c.get("meta_info") for c in choices if isinstance(c, Mapping)]
    yield from (c for c in candidates if isinstance(c, Mapping))


def _count(metrics: Json, key: str) -> int:
    value = metrics.get(key)
    if type(value) is not int or value < 0:
        raise InputError(f"{key} must be a whole number of at least 0, got {value!r}")
    return value


def _optional_count(metrics: Json, key: str) -> int | None:
    return None if metrics.get(key) is None else _count(metrics, key)


def _first_count(metrics: Json, keys: Iterable[str]) -> int | None:
    return next((n for key in keys if (n := _optional_count(metrics, key)) is not None), None)


def _counts(metrics: Json, key: str) -> tuple[int, ...] | None:
    values = metrics.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise InputError(f"{key} must be a list of whole numbers of at least 0")
    return tuple(values)


def _emitted(response: Json, accepted: int) -> int | None:
    """Verify steps of a response, from its number of tokens: tokens = prefill's one + steps + accepted.

    An accepted token past a stop is counted as accepted and not delivered, which makes this a little too small; it is
    None where it would be impossible.
    """
    usage = response.get("usage")
    holders = [usage, response.get("meta_info"), response]
    for holder in holders:
        if isinstance(holder, Mapping) and type(holder.get("completion_tokens")) is int:
            steps = int(holder["completion_tokens"]) - 1 - accepted
            return steps if steps >= 0 else None
    return None


def _one_choice(response: Json) -> bool:
    choices = response.get("choices")
    return not isinstance(choices, list) or len(choices) == 1


def _vllm(response: Json, metrics: Json, request: str) -> tuple[Tally, tuple[StepRecord, ...]]:
    drafts, drafted = _count(metrics, _VLLM_KEY), _count(metrics, "num_draft_tokens")
    accepted = _count(metrics, "num_accepted_draft_tokens")
    steps = _emitted(response, accepted) if _one_choice(response) else None
    steps = steps if steps is not None and steps >= drafts else None
    emitted = None if steps is None else steps + accepted
    per_step = _counts(metrics, "per_step_accepted"), _counts(metrics, "per_step_drafted")
    if per_step[0] is not None and per_step[1] is not None:
        rows = _vllm_steps(request, per_step[0], per_step[1], drafts, drafted, accepted)
        return replace(Tally.of_request(rows), steps=steps, emitted_tokens=emitted), rows
    histogram = _counts(metrics, "acceptance_histogram")
    at = None
    if histogram is not None:
        if sum(histogram) != drafts:
            raise InputError(f"acceptance_histogram adds up to {sum(histogram)}, num_spec_steps is {drafts}")
        at = [sum(histogram[i + 1 :]) for i in range(len(histogram) - 1)]
    tally = Tally.of_counters(
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        accepted_at=at,
        steps=steps,
        emitted_tokens=emitted,
    )
    return _as_request(tally), ()


def _vllm_steps(
    request: str, accepted: Sequence[int], drafted: Sequence[int], n: int, n_drafted: int, n_accepted: int
) -> tuple[StepRecord, ...]:
    if len(accepted) != len(drafted) or len(accepted) != n:
        raise InputError(f"per_step_accepted has {len(accepted)} and per_step_drafted {len(drafted)} of {n} steps")
    if sum(accepted) != n_accepted or sum(drafted) != n_drafted:
        raise InputError("per_step_accepted or per_step_drafted does not add up to the totals beside it")
    if any(a > d for a, d in zip(accepted, drafted, strict=True)):
        raise InputError("a step accepted more tokens than it drafted")
    # Only steps with a draft are listed, so the context at each is not told.
    return tuple(
        StepRecord(request=request, step=i, source="vllm", context_len=0, drafted=d, accepted=a, emitted=a + 1)
        for i, (a, d) in enumerate(zip(accepted, drafted, strict=True))
    )


def _as_request(tally: Tally) -> Tally:
    tested, accepted = tally.tested_tokens, tally.accepted_tokens
    clusters = None if tested is None or accepted is None else Clusters.of(accepted, tested)
    return replace(tally, requests=1, prefills=1, clusters=clusters)


def _sglang(response: Json, metrics: Json, request: str) -> tuple[Tally, tuple[StepRecord, ...]]:
    del request
    steps = _count(metrics, _SGLANG_KEY)
    accepted, drafted = (_first_count(metrics, names) for names in (_SGLANG_ACCEPTED, _SGLANG_DRAFTED))
    if steps == 0 and not accepted and not drafted:
        # done with the prefill: newer versions leave the other fields out
        return _as_request(Tally(steps=0)), ()
    if accepted is None or drafted is None:
        return _as_request(_sglang_of_tokens(response, metrics, steps)), ()
    histogram = next((h for name in _SGLANG_HISTOGRAM if (h := _counts(metrics, name)) is not None), None)
    at = None
    if histogram and drafted % max(steps, 1) == 0:
        if sum(histogram) != steps:
            raise InputError(f"the histogram of correct drafts adds up to {sum(histogram)}, {_SGLANG_KEY} is {steps}")
        width = drafted // max(steps, 1)
        at = [sum(histogram[i + 1 :]) for i in range(width)]
    tally = Tally.of_counters(
        drafts=steps,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        accepted_at=at,
        steps=steps,
        emitted_tokens=steps + accepted,
    )
    return _as_request(tally), ()


def _sglang_of_tokens(response: Json, metrics: Json, steps: int) -> Tally:
    """Tally of versions that told the steps alone: the tokens after the prefill's are the steps' own and accepted."""
    tokens = _optional_count(metrics, "completion_tokens")
    tokens = _optional_count(response, "completion_tokens") if tokens is None else tokens
    accepted = None if tokens is None or tokens < 1 + steps else tokens - 1 - steps
    return replace(
        UNKNOWN,
        steps=steps,
        drafts=steps,
        accepted_tokens=accepted,
        emitted_tokens=None if accepted is None else steps + accepted,
    )


def _llamacpp(response: Json, metrics: Json, request: str) -> tuple[Tally, tuple[StepRecord, ...]]:
    del response, request
    drafted, accepted = _count(metrics, _LLAMA_KEY), _count(metrics, "draft_n_accepted")
    tokens = _optional_count(metrics, "predicted_n")
    steps = None if tokens is None or tokens < 1 + accepted else tokens - 1 - accepted
    tally = replace(
        UNKNOWN,
        requests=1,
        prefills=1,
        steps=steps,
        emitted_tokens=None if steps is None else steps + accepted,
        drafted_tokens=drafted,
        verified_tokens=drafted,
        accepted_tokens=accepted,
    )
    return checked(tally), ()


_READERS: Final = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llamacpp}

_NOTES: Final = {
    "vllm": (
        "steps = completion tokens - 1 - accepted, per request (derived); vLLM counts accepted tokens past a stop too, "
        "so this can be a few too small",
    ),
    "sglang": (
        "proposed drafts are spec_verify_ct x (num_draft_tokens - 1), padding and siblings included",
        "alpha and conditional rates take each draft as a chain (topk 1); for a tree they are rates of some branch",
    ),
    "llama.cpp": ("timings do not say how many drafts there were: alpha is bounded, not known",),
}


def read_responses(responses: Iterable[tuple[str, Json]], origin: str) -> list[Observation]:
    """Observations, one per engine, from responses with speculative metrics.

    Parameters
    ----------
    responses : iterable of (str, mapping)
        A name for messages (a line, an id) and the response.
    origin : str
        Name of the file in reports.

    Raises
    ------
    InputError
        If a metrics object contradicts itself, or if there is none.
    """
    tallies: dict[str, Tally] = {}
    rows: dict[str, list[StepRecord]] = {}
    models: dict[str, str] = {}
    without = 0
    for number, (name, response) in enumerate(responses):
        found = find_metrics(response)
        if found is None:
            without += 1
            continue
        engine, metrics = found
        try:
            tally, steps = _READERS[engine](response, metrics, str(response.get("id") or f"request-{number}"))
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        tallies[engine] = tallies.get(engine, EMPTY) + tally
        rows.setdefault(engine, []).extend(steps)
        models.setdefault(engine, str(response.get("model") or engine))
    if not tallies:
        raise InputError(
            f"{origin}: no response has speculative metrics; vLLM adds them with --per-request-spec-decode-metrics, "
            "SGLang in meta_info, llama.cpp in timings"
        )
    notes = (f"{without} responses without speculative metrics were left out",) if without else ()
    return [
        Observation(
            engine=engine,
            origin=origin,
            source=models[engine],
            tally=tally,
            steps=tuple(rows[engine]),
            translations=_translations(engine, tally),
            notes=(*_NOTES[engine], *notes),
        )
        for engine, tally in tallies.items()
    ]


_FIELDS: Final = {
    # engine: ((spelling, attribute of the tally), ...)
    "vllm": (
        ("num_spec_steps", "drafts"),
        ("num_draft_tokens", "drafted_tokens"),
        ("num_accepted_draft_tokens", "accepted_tokens"),
        ("acceptance_histogram", "accepted_histogram"),
        ("usage.completion_tokens", "steps"),
    ),
    "sglang": (
        ("spec_verify_ct", "steps"),
        ("spec_num_proposed_drafts", "drafted_tokens"),
        ("spec_num_correct_drafts", "accepted_tokens"),
        ("spec_correct_drafts_histogram", "accepted_histogram"),
    ),
    "llama.cpp": (("draft_n", "drafted_tokens"), ("draft_n_accepted", "accepted_tokens"), ("predicted_n", "steps")),
}


def _translations(engine: str, tally: Tally) -> tuple[Translation, ...]:
    out = []
    for name, attribute in _FIELDS[engine]:
        if (value := getattr(tally, attribute)) is not None:
            derived = attribute == "steps" and engine != "sglang"
            out.append(translated(engine, name, value, ours=attribute, kind="derived" if derived else "measured"))
    return tuple(out)


def server_info(document: object) -> Json | None:
    """The part of SGLang's ``/get_server_info`` that holds its lifetime mean, or None."""
    if not isinstance(document, Mapping):
        return None
    states = document.get("internal_states")
    for place in (document, *(states if isinstance(states, list) else ())):
        if isinstance(place, Mapping) and "avg_spec_accept_length" in place:
            return {**document, **place}
    return None


def read_server_info(info: Json, origin: str) -> Observation:
    """Observation of SGLang's server information: a lifetime mean, and the server's own arguments.

    Raises
    ------
    InputError
        If the mean is no number of at least 1.
    """
    length = info["avg_spec_accept_length"]
    if isinstance(length, bool) or not isinstance(length, int | float) or not 1 <= length < float("inf"):
        raise InputError(f"{origin}: avg_spec_accept_length must be a number of at least 1, got {length!r}")
    width, chain = _optional_count(info, "speculative_num_draft_tokens"), _optional_count(info, "speculative_num_steps")
    if str(info.get("speculative_algorithm")).upper() == "NGRAM":
        chain = None  # the steps are width // breadth there, and bound nothing
    return Observation(
        engine="sglang",
        origin=origin,
        source=str(info.get("served_model_name") or info.get("model_path") or "sglang"),
        tally=None,
        means=sglang_means(float(length), width, chain),
        translations=sglang_translations(
            float(length), None, names=("avg_spec_accept_length", ""), reading=None, width=width
        ),
        notes=("a mean since the server's start, without counts: no interval of confidence follows",),
    )


def read_step_records(path: Path, origin: str) -> list[Observation]:
    """Steps that replay, measure or ingest wrote, one observation per source."""
    by_source: dict[str, list[StepRecord]] = {}
    for record in read_steps(path):
        by_source.setdefault(record.source, []).append(record)
    if not by_source:
        raise InputError(f"{origin}: no steps in this file")
    return [
        Observation(
            engine="specplan",
            origin=origin,
            source=source,
            tally=Tally.of_steps(steps),
            steps=tuple(steps),
            translations=(),
        )
        for source, steps in by_source.items()
    ]
