"""Prometheus text of vLLM, SGLang and llama.cpp: counters of one scrape, or of the window between two."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from specplan.errors import InputError, MissingExtraError
from specplan.ingest.observation import Observation, Translation
from specplan.records.means import Means
from specplan.records.tally import UNKNOWN, Tally, checked

Labels = frozenset[tuple[str, str]]

_COUNTER_ENDS: Final = ("_total", "_count", "_sum", "_bucket")

_VLLM: Final = "vllm:spec_decode_num_"
_SGLANG: Final = "sglang:spec_"
_LLAMACPP: Final = "llamacpp:"
ENGINE_PREFIXES: Final = ("vllm:", "sglang:", _LLAMACPP)
"""How names of the engines' metrics begin."""
# llama.cpp itself exports no draft counters; builds that do spell them in these ways.
_LLAMACPP_DRAFTED: Final = ("llamacpp:n_drafted_total", "llamacpp:n_draft_total")
_LLAMACPP_ACCEPTED: Final = (
    "llamacpp:n_drafted_accepted_total",
    "llamacpp:n_draft_accepted_total",
    "llamacpp:n_accepted_total",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Samples of one scrape by name and labels; values that are not finite are kept apart.

    Attributes
    ----------
    origin : str
        File or URL.
    values : mapping
        (sample name, labels) -> value.
    not_finite : frozenset
        Samples that were NaN or infinite.
    counters : frozenset of str
        Names of samples that only grow: counters, and counts and sums of histograms.
    """

    origin: str
    values: Mapping[tuple[str, Labels], float]
    not_finite: frozenset[tuple[str, Labels]]
    counters: frozenset[str]


def parse_scrape(text: str, origin: str) -> Scrape:
    r"""Samples of a text exposition.

    Raises
    ------
    InputError
        If a line is not of the format, with its text.
    MissingExtraError
        Without `prometheus_client`.

    Examples
    --------
    >>> s = parse_scrape('# TYPE a counter\na_total{x="1"} 3.5\n', "here")
    >>> [(name, value) for (name, labels), value in s.values.items()]
    [('a_total', 3.5)]
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ModuleNotFoundError:
        raise MissingExtraError("prometheus_client", extra="replay") from None
    values: dict[tuple[str, Labels], float] = {}
    bad: set[tuple[str, Labels]] = set()
    counters: set[str] = set()
    try:
        for family in text_string_to_metric_families(text.replace("\r\n", "\n")):
            for sample in family.samples:
                name = _counter_name(sample.name, family.type)
                key = (name, frozenset(sample.labels.items()))
                if math.isfinite(sample.value):
                    values[key] = sample.value
                else:
                    bad.add(key)
                if name.endswith(_COUNTER_ENDS) and family.type != "gauge":
                    counters.add(name)
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(
            f"{origin} is not Prometheus text: {str(error)[:160]}; expected the /metrics page of an engine"
        ) from None
    return Scrape(origin=origin, values=values, not_finite=frozenset(bad), counters=frozenset(counters))


def _counter_name(name: str, kind: str) -> str:
    """Name of a sample; counters end in ``_total``, which exporters that rewrite pages leave out.

    >>> _counter_name("vllm:spec_decode_num_drafts", "unknown"), _counter_name("vllm:kv_cache_usage_perc", "gauge")
    ('vllm:spec_decode_num_drafts_total', 'vllm:kv_cache_usage_perc')
    """
    bare = not name.endswith((*_COUNTER_ENDS, "_created"))
    return f"{name}_total" if bare and (kind == "counter" or name.startswith(_VLLM)) else name


def between(before: Scrape, after: Scrape) -> tuple[Scrape, tuple[str, ...]]:
    """Increase of each counter from one scrape to the next; gauges as they are in the second.

    An engine that restarted in between began all of its counters anew, also those that are larger by now: where one
    fell, or was created anew, what each counted since the restart is its increase, and a note says so.

    Raises
    ------
    InputError
        If a speculation counter of the first scrape is not a finite number.
    """
    anew = _restarted(before, after)
    notes = [f"{why} between the scrapes: the engine restarted; counted from the restart" for why in anew.values()]
    values: dict[tuple[str, Labels], float] = {}
    for key, value in after.values.items():
        name, labels = key
        if name in after.counters and key in before.not_finite and "spec" in name:
            raise InputError(f"{before.origin}: {name} is not a finite number; take the first scrape again")
        counted = name in after.counters and not {_engine(labels), frozenset()} & anew.keys()
        values[key] = value - before.values.get(key, 0.0) if counted else value
    gone = sorted({name for name, labels in before.values if name in before.counters and (name, labels) not in values})
    notes.extend(f"{name} is in the first scrape but not in the second; not counted" for name in gone if "spec" in name)
    window = Scrape(origin=after.origin, values=values, not_finite=after.not_finite, counters=after.counters)
    return window, tuple(dict.fromkeys(notes))


def _engine(labels: Labels) -> Labels:
    """Labels without those that tell the series of one engine apart."""
    return frozenset((name, value) for name, value in labels if name not in ("le", "position"))


def _restarted(before: Scrape, after: Scrape) -> dict[Labels, str]:
    """Engines whose counters began anew, each with what shows it; the empty labels are those of the whole page."""
    found: dict[Labels, str] = {}
    for key, value in after.values.items():
        name, labels = key
        earlier = before.values.get(key)
        if earlier is None:
            continue
        if name in after.counters and name.startswith(ENGINE_PREFIXES) and value < earlier:
            found.setdefault(_engine(labels), f"{name} fell from {earlier:g} to {value:g}")
        elif (name.endswith("_created") or name == "process_start_time_seconds") and value > earlier:
            found.setdefault(_engine(labels), f"{name} moved on from {earlier:.0f} to {value:.0f}")
    return found


class _Series:
    """Series of one model: sums over ranks and engines, by name."""

    def __init__(self, scrape: Scrape, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self._scrape = scrape
        self._wanted = frozenset(labels.items())

    def _keys(self, name: str) -> list[tuple[str, Labels]]:
        return [key for key in self._scrape.values if key[0] == name and self._wanted <= key[1]]

    def total(self, name: str) -> float | None:
        """Sum over ranks, or None if there is no such series."""
        if any(key[0] == name and self._wanted <= key[1] for key in self._scrape.not_finite):
            raise InputError(f"{self._scrape.origin}: {name} is not a finite number; scrape again")
        keys = self._keys(name)
        return sum(self._scrape.values[key] for key in keys) if keys else None

    def count(self, name: str) -> int | None:
        """Sum over ranks as a whole number."""
        value = self.total(name)
        if value is None:
            return None
        if value < 0 or value != int(value):
            raise InputError(f"{self._scrape.origin}: {name} is {value:g}; expected a whole number of at least 0")
        return int(value)

    def mean(self, name: str) -> float | None:
        """Mean over ranks of a gauge."""
        keys = self._keys(name)
        total = self.total(name)
        return None if total is None else total / len(keys)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums by the values of one label."""
        out: dict[str, float] = {}
        for key in self._keys(name):
            place = dict(key[1]).get(label, "")
            out[place] = out.get(place, 0.0) + self._scrape.values[key]
        return out


def _models(scrape: Scrape, prefix: str) -> list[dict[str, str]]:
    """Labels that tell models apart, of the series whose name has the prefix."""
    found: dict[tuple[tuple[str, str], ...], None] = {}
    for name, labels in (*scrape.values, *scrape.not_finite):
        if name.startswith(prefix) and not name.endswith("_created"):
            kept = {k: v for k, v in labels if k in ("model_name", "engine_type", "model")}
            found[tuple(sorted(kept.items()))] = None
    return [dict(labels) for labels in found]


def observations(scrape: Scrape, *, window_s: float | None = None, notes: Iterable[str] = ()) -> list[Observation]:
    """What the engines in a scrape (or in the window between two) say of speculation, one entry per model.

    Raises
    ------
    InputError
        If no engine's speculation counters are there; the message says which engine it is and what it lacks.
    """
    found: list[Observation] = []
    translators: tuple[tuple[str, Callable[[_Series, str], Observation]], ...] = (
        (_VLLM, _vllm),
        (_SGLANG, _sglang),
    )
    for prefix, translate in translators:
        found += [translate(_Series(scrape, labels), scrape.origin) for labels in _models(scrape, prefix)]
    names = {name for name, _ in scrape.values}
    if names & set(_LLAMACPP_DRAFTED):
        found.append(_llamacpp(_Series(scrape, {}), scrape.origin))
    if not found:
        raise InputError(f"{scrape.origin}: {_what_is_missing(names)}")
    extra = tuple(notes)
    return [_with_window(o, window_s, extra) for o in found]


def _with_window(o: Observation, window_s: float | None, notes: tuple[str, ...]) -> Observation:
    return replace(o, window_s=window_s, notes=(*notes, *o.notes))


def _what_is_missing(names: set[str]) -> str:
    if any(name.startswith("vllm:") for name in names):
        return "this vLLM has no spec_decode counters; it runs without --speculative-config or with --disable-log-stats"
    if any(name.startswith("sglang:") for name in names):
        return "this SGLang has no spec_ gauges; it runs without --speculative-algorithm"
    if any(name.startswith(_LLAMACPP) for name in names):
        return (
            "this llama.cpp exports no draft counters; "
            "give its log or its responses, whose timings have draft_n and draft_n_accepted"
        )
    return "no metrics of vLLM, SGLang or llama.cpp; expected names such as vllm:spec_decode_num_drafts_total"


def _required(series: _Series, name: str, origin: str) -> int:
    value = series.count(name)
    if value is None:
        raise InputError(f"{origin}: {name} is missing for {dict(series.labels) or 'this engine'}; scrape again")
    return value


def _vllm(series: _Series, origin: str) -> Observation:
    if (old := _vllm_without_drafts(series, origin)) is not None:
        return old
    drafts = _required(series, f"{_VLLM}drafts_total", origin)
    drafted = _required(series, f"{_VLLM}draft_tokens_total", origin)
    accepted = _required(series, f"{_VLLM}accepted_tokens_total", origin)
    notes: list[str] = []
    at = _positions(series, f"{_VLLM}accepted_tokens_per_pos_total", drafts, accepted, origin, notes)
    kind, basis = "measured", f"{_latency(series)}_count"
    steps = series.count(basis)
    if steps is None:
        steps, basis, kind = _steps_from_tokens(series, accepted), "vllm:generation_tokens_total", "derived"
    if steps is not None and steps < drafts:
        notes.append(f"{basis} gives {steps} steps, fewer than the {drafts} drafts; all steps stay unknown")
        steps = None
    seconds = series.total(f"{_latency(series)}_sum")
    emitted = None if steps is None else steps + accepted
    translations = [
        Translation(
            name=f"{_VLLM}drafts_total",
            value=drafts,
            meaning="request-steps with at least one scheduled draft token; steps without a draft are not in it",
            ours="drafts",
        ),
        Translation(
            name=f"{_VLLM}draft_tokens_total",
            value=drafted,
            meaning="draft tokens verified; filler of the V2 n-gram matcher is among them",
            ours="drafted_tokens",
        ),
        Translation(
            name=f"{_VLLM}accepted_tokens_total",
            value=accepted,
            meaning="draft tokens accepted, bonus excluded, tokens past a stop included",
            ours="accepted_tokens",
        ),
    ]
    if at is not None:
        translations.append(
            Translation(
                name=f"{_VLLM}accepted_tokens_per_pos_total",
                value=at,
                meaning="drafts accepted beyond each position: unconditional counts",
                ours="accepted_histogram; conditional rates by division of neighbours",
            )
        )
    if steps is not None:
        translations.append(
            Translation(
                name=basis,
                value=series.total(basis) or 0,
                meaning="one entry per request-step after the prefill"
                if kind == "measured"
                else "tokens that users got; less one per request and the accepted ones, these are the steps",
                ours="steps",
                kind=kind,
            )
        )
    iterations, prefills = (
        series.count("vllm:iteration_tokens_total_count"),
        series.count("vllm:time_to_first_token_seconds_count"),
    )
    batch = (steps + prefills) / iterations if steps is not None and prefills is not None and iterations else None
    return Observation(
        engine="vllm",
        origin=origin,
        source=series.labels.get("model_name", "vllm"),
        tally=Tally.of_counters(
            drafts=drafts,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            accepted_at=at,
            steps=steps,
            emitted_tokens=emitted,
        ),
        translations=tuple(translations),
        labels=MappingProxyType(dict(series.labels)),
        step_s=seconds / steps if seconds is not None and steps and kind == "measured" else None,
        mean_batch=batch,
        notes=tuple(notes),
    )


def _latency(series: _Series) -> str:
    """The histogram with one entry per request-step after the prefill; it had another name before vLLM 0.11."""
    old = "vllm:time_per_output_token_seconds"
    new = "vllm:inter_token_latency_seconds"
    return old if series.total(f"{new}_count") is None and series.total(f"{old}_count") is not None else new


def _vllm_without_drafts(series: _Series, origin: str) -> Observation | None:
    """Totals of a vLLM that did not count drafts yet; None where it does, or where a count is missing that it has."""
    drafted, accepted = series.count(f"{_VLLM}draft_tokens_total"), series.count(f"{_VLLM}accepted_tokens_total")
    if series.count(f"{_VLLM}emitted_tokens_total") is not None:
        raise InputError(
            f"{origin}: this is vLLM's V0 engine, which counts verdicts behind a rejection as accepted; "
            "give its log, whose 'Speculative metrics:' lines have what the steps kept"
        )
    counts_drafts = any(
        series.total(f"{_VLLM}{name}_total") is not None for name in ("drafts", "accepted_tokens_per_pos")
    )
    if counts_drafts or drafted is None or accepted is None:
        return None
    return Observation(
        engine="vllm",
        origin=origin,
        source=series.labels.get("model_name", "vllm"),
        tally=checked(replace(UNKNOWN, drafted_tokens=drafted, verified_tokens=drafted, accepted_tokens=accepted)),
        translations=(
            Translation(
                name=f"{_VLLM}draft_tokens_total", value=drafted, meaning="draft tokens verified", ours="drafted_tokens"
            ),
            Translation(
                name=f"{_VLLM}accepted_tokens_total",
                value=accepted,
                meaning="draft tokens accepted, bonus excluded",
                ours="accepted_tokens",
            ),
        ),
        labels=MappingProxyType(dict(series.labels)),
        notes=("this vLLM (older than 0.9) does not count drafts: alpha is bounded, not known",),
    )


def _steps_from_tokens(series: _Series, accepted: int) -> int | None:
    """Steps = tokens - prefills - accepted; a little too few where stops cut accepted tokens off."""
    tokens = series.count("vllm:generation_tokens_total")
    prefills = series.count("vllm:time_to_first_token_seconds_count")
    if tokens is None or prefills is None or tokens < prefills + accepted:
        return None
    return tokens - prefills - accepted


def _positions(
    series: _Series, name: str, drafts: int, accepted: int, origin: str, notes: list[str]
) -> tuple[int, ...] | None:
    """Accepted drafts by position; None, with a note, where they do not belong to the totals beside them."""
    if series.total(name) is None:
        return None
    by_position = series.by_label(name, "position")
    try:
        places = {int(place): int(value) for place, value in by_position.items()}
    except ValueError:
        raise InputError(f"{origin}: {name} has a position that is no number") from None
    if sorted(places) != list(range(len(places))):
        raise InputError(f"{origin}: {name} lacks a position; found {sorted(places)}")
    at = tuple(places[i] for i in range(len(places)))
    if sum(at) != accepted or (at and at[0] > drafts):
        notes.append(
            f"{name} adds up to {sum(at)}, accepted tokens are {accepted}: scraped while a step was counted; "
            "rates by position are left out"
        )
        return None
    return at


def _sglang(series: _Series, origin: str) -> Observation:
    length = series.mean(f"{_SGLANG}accept_length")
    rate = series.mean(f"{_SGLANG}accept_rate")
    width, chain = series.mean(f"{_SGLANG}num_draft_tokens"), series.mean(f"{_SGLANG}num_steps")
    calls = series.count(f"{_SGLANG}verify_calls_total")
    if length is None:
        raise InputError(f"{origin}: {_SGLANG}accept_length is missing; this SGLang has not decoded yet, scrape later")
    if length < 1:
        raise InputError(f"{origin}: {_SGLANG}accept_length is {length:g}: nothing was decoded yet, scrape under load")
    notes = ["gauges hold the last logging interval only, and keep no counts: no interval of confidence follows"]
    if not width and rate and (found := _sglang_width(length, rate)) is not None:
        width = found
        notes.append(f"num_draft_tokens = {width} follows from the two means")
    return Observation(
        engine="sglang",
        origin=origin,
        source=series.labels.get("model_name", "sglang"),
        tally=None,
        means=sglang_means(length, rate, None if not width else int(width), None if not chain else int(chain)),
        translations=sglang_translations(
            length, rate, names=(f"{_SGLANG}accept_length", f"{_SGLANG}accept_rate"), width=width, calls=calls
        ),
        labels=MappingProxyType(dict(series.labels)),
        notes=tuple(notes),
    )


def _sglang_width(length: float, rate: float) -> int | None:
    """N from accept length and rate in full digits: (length - 1) / rate is N - 1; None where it is no whole number.

    >>> _sglang_width(2.5, 0.5), _sglang_width(2.5, 0.47)
    (4, None)
    """
    drafted = (length - 1.0) / rate
    return round(drafted) + 1 if round(drafted) >= 1 and abs(drafted - round(drafted)) < 1e-6 * drafted else None


def sglang_means(length: float, rate: float | None, width: int | None, chain: int | None) -> Means:
    """SGLang verifies num_draft_tokens - 1 drafted positions in every step, so drafted steps are all steps.

    `chain` is num_steps, which bounds the accepted path of a model's drafts; NGRAM sets it too and is not bound by it,
    which shows where a step emits more than num_steps + 1 tokens.
    """
    if chain is not None and length > chain + 1:
        chain = None
    return Means(
        tokens_per_step=length,
        tokens_per_drafted_step=length,
        accepted_per_drafted=rate,
        draft_len=None if width is None else width - 1,
        chain_len=chain or (None if width is None else width - 1),
    )


def sglang_translations(
    length: float, rate: float | None, *, names: tuple[str, str], width: float | None, calls: int | None
) -> tuple[Translation, ...]:
    """SGLang's definitions of its two means."""
    out = [
        Translation(
            name=names[0],
            value=length,
            meaning="accepted tokens with the bonus, per step of a running request, over all steps: this is E",
            ours="tokens_per_step",
        )
    ]
    if rate is not None:
        out.append(
            Translation(
                name=names[1],
                value=rate,
                meaning="correct drafts / (steps x (num_draft_tokens - 1)), padding and sibling branches included",
                ours="accepted_per_drafted (pooled; not alpha)",
            )
        )
    if width:
        out.append(
            Translation(
                name=f"{_SGLANG}num_draft_tokens",
                value=width,
                meaning="positions verified per step, the root included",
                ours="drafted positions per step = this - 1",
            )
        )
    if calls is not None:
        out.append(
            Translation(
                name=f"{_SGLANG}verify_calls_total",
                value=calls,
                meaning="verification passes since the start",
                ours="shown only: it does not say how many requests each pass had",
            )
        )
    return tuple(out)


def _llamacpp(series: _Series, origin: str) -> Observation:
    drafted_name, drafted = _first(series, _LLAMACPP_DRAFTED)
    accepted_name, accepted = _first(series, _LLAMACPP_ACCEPTED)
    if drafted is None or accepted is None:
        raise InputError(f"{origin}: {_LLAMACPP_ACCEPTED[0]} is missing beside {drafted_name}; give the log instead")
    return Observation(
        engine="llama.cpp",
        origin=origin,
        source="llama.cpp",
        tally=checked(replace(UNKNOWN, drafted_tokens=drafted, verified_tokens=drafted, accepted_tokens=accepted)),
        translations=(
            Translation(
                name=drafted_name, value=drafted, meaning="draft tokens generated and verified", ours="drafted_tokens"
            ),
            Translation(name=accepted_name, value=accepted, meaning="draft tokens accepted", ours="accepted_tokens"),
        ),
        notes=("these counters do not say how many drafts there were: alpha is bounded, not known",),
    )


def _first(series: _Series, names: Iterable[str]) -> tuple[str, int | None]:
    for name in names:
        if (value := series.count(name)) is not None:
            return name, value
    return "", None
