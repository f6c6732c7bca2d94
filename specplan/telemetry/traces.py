"""An engine's own trace, step by step: what each step drafted and what it emitted."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

from specplan.errors import InputError
from specplan.records.step import StepRecord
from specplan.records.tally import Tally
from specplan.telemetry.observation import Observation, Translation

Json = Mapping[str, Any]

_DRAFTED: Final = "drafts"
_EMITTED: Final = "gen"


def is_trace(document: object) -> TypeGuard[Json]:
    """Whether a JSON document holds requests with the steps that an engine ran for them.

    >>> is_trace({"requests": [{"prompt_token_ids": [1], "steps": [{"drafts": [], "gen": [2]}]}]})
    True
    >>> is_trace({"requests": [{"prompt_token_ids": [1], "output_token_ids": [2]}]})
    False
    """
    requests = document.get("requests") if isinstance(document, Mapping) else None
    return isinstance(requests, list) and any(
        isinstance(r, Mapping) and isinstance(r.get("steps"), list) for r in requests
    )


def read_trace(document: Json, origin: str) -> Observation:
    """Every verify step of a trace, with its draft: the whole measurement, for any kind of draft.

    Parameters
    ----------
    document : mapping
        ``requests``, each with ``prompt_token_ids`` and ``steps`` of ``drafts`` (token ids that were verified) and
        ``gen`` (token ids that the step emitted, those past a stop included). The first step of a request is its
        prefill: it emits one token and verifies nothing.
    origin : str
        Name of the file in reports.

    Raises
    ------
    InputError
        If a step is of another form, or emitted what its draft does not allow; with its request and number.
    """
    steps: list[StepRecord] = []
    source = _source(document)
    for number, request in enumerate(document["requests"]):
        name = f"request {number}"
        if not isinstance(request, Mapping):
            raise InputError(f"{origin}: {name} is not a JSON object")
        if not isinstance(request.get("steps"), list):
            raise InputError(f"{origin}: {name} has no list of steps")
        steps += _steps(request, f"{origin}: {name}", f"{number}:{request.get('id', '')}", source)
    tally = Tally.of_steps(steps)
    return Observation(
        engine="vllm" if "vllm" in str(document.get("engine", "vllm")).lower() else str(document["engine"]),
        origin=origin,
        source=source,
        tally=tally,
        steps=tuple(steps),
        translations=(
            Translation(
                name="steps",
                value=tally.steps or 0,
                meaning="steps of the requests after their prefills, with or without a draft",
                ours="steps",
            ),
            Translation(
                name="steps[].drafts",
                value=tally.drafted_tokens or 0,
                meaning="draft tokens scheduled for verification",
                ours="drafts, drafted_tokens",
            ),
            Translation(
                name="steps[].gen",
                value=tally.emitted_tokens or 0,
                meaning="tokens emitted by the steps, bonus and tokens past a stop included",
                ours="accepted_tokens = one less in each step with a draft",
            ),
        ),
    )


def _steps(request: Json, where: str, name: str, source: str) -> Iterator[StepRecord]:
    """Verify steps of one request."""
    context = len(_ids(request, "prompt_token_ids", where))
    tag = str(request.get("kind", request.get("tag", "")))
    for number, step in enumerate(request["steps"]):
        here = f"{where}, step {number}"
        if not isinstance(step, Mapping):
            raise InputError(f"{here} is not a JSON object")
        drafted, emitted = _ids(step, _DRAFTED, here), _ids(step, _EMITTED, here)
        accepted = len(emitted) - 1
        if emitted and (drafted or accepted) and (emitted[:-1] != drafted[:accepted] or number == 0):
            raise InputError(
                f"{here}: emitted {emitted[:8]} after the draft {drafted[:8]}; expected accepted tokens and one more, "
                "and no draft in the first step"
            )
        if emitted and number:
            yield StepRecord(
                request=name,
                step=number - 1,
                source=source,
                context_len=context,
                drafted=len(drafted),
                accepted=accepted,
                emitted=len(emitted),
                tag=tag,
            )
        context += len(emitted)


def _ids(row: Json, key: str, where: str) -> list[int]:
    values = row.get(key)
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise InputError(f"{where}: {key} must be a list of token ids")
    return values


def _source(document: Json) -> str:
    """What drafts, as the trace's configuration says."""
    config = document.get("speculative_config")
    if not isinstance(config, Mapping):
        return "none"
    return str(config.get("method") or config.get("model") or "draft")
