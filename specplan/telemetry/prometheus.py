"""Prometheus text of vLLM, SGLang, TensorRT-LLM and llama.cpp: counters of one scrape, or of the window between two."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from specplan.errors import InputError, MissingExtraError
from specplan.records.means import Means
from specplan.records.tally import UNKNOWN, Tally, checked
from specplan.telemetry.observation import Load, Observation, Translation, translated
from specplan.telemetry.sglang_rates import sglang_means, sglang_translations, taken

Labels = frozenset[tuple[str, str]]

_COUNTER_ENDS: Final = ("_total", "_count", "_sum", "_bucket")

_VLLM: Final = "vllm:spec_decode_num_"
_SGLANG: Final = "sglang:spec_"
_LLAMACPP: Final = "llamacpp:"
_TRTLLM: Final = "trtllm_spec_decode_num_"
ENGINE_PREFIXES: Final = ("vllm:", "sglang:", "trtllm_", _LLAMACPP)
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
        raise MissingExtraError("prometheus_client", extra="ingest") from None
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
    except (ValueError, IndexError, KeyError, OverflowError) as error:
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
    return f"{name}_total" if bare and (kind == "counter" or name.startswith((_VLLM, _TRTLLM))) else name


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


def pooled(windows: Sequence[Scrape]) -> Scrape:
    """Windows of one server as one: sums of what each counted; gauges as they are in the last."""
    last = windows[-1]
    values = dict(last.values)
    counters = frozenset().union(*(w.counters for w in windows))
    for window in windows[:-1]:
        for key, value in window.values.items():
            if key[0] in counters:
                values[key] = values.get(key, 0.0) + value
    return Scrape(origin=last.origin, values=values, not_finite=last.not_finite, counters=counters)


def counted(scrape: Scrape, name: str) -> float:
    """Sum of a counter over all labels; 0 where there is none."""
    return sum(value for (found, _), value in scrape.values.items() if found == name)


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

    def values(self, name: str) -> list[float]:
        """The single series."""
        return [self._scrape.values[key] for key in self._keys(name)]

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


def _engines(scrape: Scrape, prefix: str, labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """Label and value that tell the engines of one model apart, where there are several."""
    wanted = labels.items()
    mine = [dict(found) for name, found in scrape.values if name.startswith(prefix) and wanted <= dict(found).items()]
    for label in ("engine", "dp_rank", "worker"):
        values = sorted({found[label] for found in mine if label in found}, key=lambda v: (len(v), v))
        if len(values) > 1:
            return [(label, v) for v in values]
    return []


def observations(
    scrape: Scrape, *, window_s: float | None = None, notes: Iterable[str] = (), width: int | None = None
) -> list[Observation]:
    """What the engines in a scrape (or in the window between two) say of speculation.

    One entry per model; where several engines serve it (data parallelism), one more for each. `width` is SGLang's
    num_draft_tokens, where the page does not tell it.

    Raises
    ------
    InputError
        If no engine's speculation counters are there; the message says which engine it is and what it lacks.
    """
    found: list[Observation] = []
    translators: tuple[tuple[str, Callable[[_Series, str], Observation]], ...] = (
        (_VLLM, _vllm),
        (_SGLANG, lambda series, origin: _sglang(series, origin, width)),
        (_TRTLLM, _trtllm),
    )
    for prefix, translate in translators:
        for labels in _models(scrape, prefix):
            whole = translate(_Series(scrape, labels), scrape.origin)
            parts = _engines(scrape, prefix, labels)
            found.append(whole)
            for label, engine in parts:
                part = translate(_Series(scrape, {**labels, label: engine}), scrape.origin)
                found.append(replace(part, source=f"{whole.source} engine {engine}"))
    names = {name for name, _ in scrape.values}
    if names & set(_LLAMACPP_DRAFTED):
        found.append(_llamacpp(_Series(scrape, {}), scrape.origin))
    if not found:
        plain = [_plain(_Series(scrape, labels), scrape.origin) for labels in _models(scrape, "vllm:iteration_tokens")]
        found = [o for o in plain if o.step_s is not None]
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
    if any(name.startswith("trtllm_") for name in names):
        return "this TensorRT-LLM has no spec_decode counters; give its iteration statistics (/metrics as JSON)"
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
    rows = [
        translated("vllm", f"{_VLLM}drafts_total", drafts),
        translated("vllm", f"{_VLLM}draft_tokens_total", drafted),
        translated("vllm", f"{_VLLM}accepted_tokens_total", accepted),
    ]
    if at is not None:
        rows.append(translated("vllm", f"{_VLLM}accepted_tokens_per_pos_total", at))
    if steps is not None:
        rows.append(translated("vllm", basis, series.total(basis) or 0, kind=kind))
    load, told, said = _load(series, "vllm")
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
        translations=(*rows, *told),
        labels=MappingProxyType(dict(series.labels)),
        step_s=seconds / steps if seconds is not None and steps and kind == "measured" else None,
        mean_batch=_mean_batch(series, steps),
        load=load,
        notes=(*notes, *said),
    )


# What each engine calls running and waiting requests, the use of its cache, and requests thrown out.
_LOADS: Final = {
    "vllm": (
        ("vllm:num_requests_running",),
        ("vllm:num_requests_waiting",),
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ("vllm:num_preemptions_total",),
    ),
    "sglang": (
        ("sglang:num_running_reqs",),
        ("sglang:num_queue_reqs",),
        ("sglang:token_usage",),
        ("sglang:num_retracted_reqs",),
    ),
    "llama.cpp": (
        ("llamacpp:requests_processing",),
        ("llamacpp:requests_deferred",),
        ("llamacpp:kv_cache_usage_ratio",),
        (),
    ),
}
_FULL: Final = 0.95


def _load(series: _Series, engine: str) -> tuple[Load | None, list[Translation], list[str]]:
    """How busy the engine was at the scrape: the figures, and what follows from them."""
    values: list[float | None] = []
    rows: list[Translation] = []
    for field, names in enumerate(_LOADS[engine]):
        name = next((n for n in names if series.total(n) is not None), None)
        value = None if name is None else (series.mean(name) if field == 2 else series.total(name))
        values.append(value)
        if name is not None and value is not None:
            rows.append(translated(engine, name, value))
    if not rows:
        return None, [], []
    running, waiting, use, thrown = values
    notes = []
    if waiting:
        full = "" if use is None else f" with {use:.0%} of the cache in use"
        notes.append(f"{waiting:.0f} requests wait beside {running or 0:.0f} running{full}")
    if thrown:
        notes.append(
            f"{thrown:.0f} preemptions: work was thrown away for want of cache; tokens per step do not show it"
        )
    load = Load(running=running, waiting=waiting, cache_use=use, preemptions=None if thrown is None else int(thrown))
    return load, rows, notes


def _latency(series: _Series) -> str:
    """The histogram with one entry per request-step after the prefill; it had another name before vLLM 0.11."""
    old = "vllm:time_per_output_token_seconds"
    new = "vllm:inter_token_latency_seconds"
    return old if series.total(f"{new}_count") is None and series.total(f"{old}_count") is not None else new


def _plain(series: _Series, origin: str) -> Observation:
    """A vLLM that runs without speculation: the time and the batch of its steps."""
    steps, seconds = series.count(f"{_latency(series)}_count"), series.total(f"{_latency(series)}_sum")
    load, told, said = _load(series, "vllm")
    return Observation(
        engine="vllm",
        origin=origin,
        source=series.labels.get("model_name", "vllm"),
        tally=None,
        means=Means(tokens_per_step=1.0),
        translations=tuple(told),
        labels=MappingProxyType(dict(series.labels)),
        step_s=seconds / steps if steps and seconds is not None else None,
        mean_batch=_mean_batch(series, steps),
        load=load,
        notes=(f"{_what_is_missing({'vllm:'})}: its plain steps alone are read", *said),
    )


def _mean_batch(series: _Series, steps: int | None) -> float | None:
    """Requests per iteration of the engine: decodes and prefills over iterations."""
    iterations = series.count("vllm:iteration_tokens_total_count")
    prefills = series.count("vllm:time_to_first_token_seconds_count")
    return (steps + prefills) / iterations if steps is not None and prefills is not None and iterations else None


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
            translated("vllm", f"{_VLLM}draft_tokens_total", drafted),
            translated("vllm", f"{_VLLM}accepted_tokens_total", accepted),
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


_NO_WIDTH: Final = "older: the page has no gauge of num_draft_tokens, as of versions before that change"


def _sglang(series: _Series, origin: str, given: int | None) -> Observation:
    names = (f"{_SGLANG}accept_length", f"{_SGLANG}accept_rate")
    length, rate = (series.mean(name) for name in names)
    told, chain = series.mean(f"{_SGLANG}num_draft_tokens"), series.mean(f"{_SGLANG}num_steps")
    calls = series.count(f"{_SGLANG}verify_calls_total")
    if length is None:
        raise InputError(f"{origin}: {names[0]} is missing; this SGLang has not decoded yet, scrape later")
    if length < 1:
        raise InputError(f"{origin}: {names[0]} is {length:g}: nothing was decoded yet, scrape under load")
    width = given if given is not None else round(told) if told else None
    notes = ["gauges hold the last logging interval only, and keep no counts: no interval of confidence follows"]
    reading = None
    # Means over several engines of a mean fit no rule.
    if rate and len(series.values(names[0])) == 1:
        try:
            reading, said = taken([(length, rate)], width=width, digits=None, dated="" if told else _NO_WIDTH)
        except InputError as error:
            raise InputError(f"{origin}: {error}") from None
        notes += said
        width = width if width is not None or reading is None else reading.width
    load, rows, busy = _load(series, "sglang")
    return Observation(
        engine="sglang",
        origin=origin,
        source=series.labels.get("model_name", "sglang"),
        tally=None,
        means=sglang_means(length, width, None if not chain else int(chain)),
        translations=(
            *sglang_translations(
                length,
                rate,
                names=names,
                reading=reading,
                width=width if told or given else None,
                calls=calls,
            ),
            *rows,
        ),
        labels=MappingProxyType(dict(series.labels)),
        load=load,
        notes=(*notes, *busy),
    )


def _trtllm(series: _Series, origin: str) -> Observation:
    drafted = _required(series, f"{_TRTLLM}draft_tokens_total", origin)
    accepted = _required(series, f"{_TRTLLM}accepted_tokens_total", origin)
    length, overhead = (series.mean(f"trtllm_spec_decode_{name}") for name in ("acceptance_length", "draft_overhead"))
    rows = [
        translated("tensorrt-llm", f"{_TRTLLM}draft_tokens_total", drafted),
        translated("tensorrt-llm", f"{_TRTLLM}accepted_tokens_total", accepted),
    ]
    if length is not None:
        rows.append(translated("tensorrt-llm", "trtllm_spec_decode_acceptance_length", length))
    if overhead is not None:
        rows.append(translated("tensorrt-llm", "trtllm_spec_decode_draft_overhead", overhead))
    return Observation(
        engine="tensorrt-llm",
        origin=origin,
        source=series.labels.get("model_name", "tensorrt-llm"),
        tally=checked(replace(UNKNOWN, drafted_tokens=drafted, verified_tokens=drafted, accepted_tokens=accepted)),
        translations=tuple(rows),
        labels=MappingProxyType(dict(series.labels)),
        draft_share=overhead,
        notes=(
            "these counters do not say how many drafts there were: alpha is bounded, not known; "
            "the iteration statistics have numRequestsWithDraftTokens",
        ),
    )


def _llamacpp(series: _Series, origin: str) -> Observation:
    drafted_name, drafted = _first(series, _LLAMACPP_DRAFTED)
    accepted_name, accepted = _first(series, _LLAMACPP_ACCEPTED)
    if drafted is None or accepted is None:
        raise InputError(f"{origin}: {_LLAMACPP_ACCEPTED[0]} is missing beside {drafted_name}; give the log instead")
    load, rows, busy = _load(series, "llama.cpp")
    return Observation(
        engine="llama.cpp",
        origin=origin,
        source="llama.cpp",
        tally=checked(replace(UNKNOWN, drafted_tokens=drafted, verified_tokens=drafted, accepted_tokens=accepted)),
        translations=(
            translated("llama.cpp", _LLAMACPP_DRAFTED[0], drafted, spelt=drafted_name),
            translated("llama.cpp", _LLAMACPP_ACCEPTED[0], accepted, spelt=accepted_name),
            *rows,
        ),
        load=load,
        notes=("these counters do not say how many drafts there were: alpha is bounded, not known", *busy),
    )


def _first(series: _Series, names: Iterable[str]) -> tuple[str, int | None]:
    for name in names:
        if (value := series.count(name)) is not None:
            return name, value
    return "", None
