"""Result files of other tools, told apart by their shape: SpecForge, TensorRT-LLM, guidellm, AISimulate."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from specplan.errors import InputError
from specplan.records.means import Means
from specplan.records.tally import UNKNOWN, Tally, checked
from specplan.telemetry.bench import read_bench
from specplan.telemetry.observation import Observation, Speed, translated

Json = Mapping[str, Any]


def read_result(document: object, origin: str, *, width: int | None = None) -> list[Observation] | None:
    """What a result file of one of these tools says; None where it is of none of them."""
    rows = _iterations(document)
    if rows:
        return [_trtllm(rows, origin)]
    if not isinstance(document, Mapping):
        return None
    if sets := _specforge_sets(document):
        return [o for name, entry in sets for o in _specforge(name, entry, document, origin, width)]
    benchmarks = document.get("benchmarks")
    if (
        isinstance(benchmarks, list)
        and benchmarks
        and all(isinstance(b, Mapping) and "metrics" in b for b in benchmarks)
    ):
        return [_guidellm(b, number, origin) for number, b in enumerate(benchmarks, 1)]
    speed = _speed_anywhere(document)
    return None if speed is None else [_compared("simulator", "simulator", speed, origin)]


def _specforge_sets(document: Json) -> list[tuple[str, Json]]:
    """(benchmark, entry) of a SpecForge result: lists by benchmark, each entry with ``metrics`` of its runs."""
    return [
        (name, entry)
        for name, entries in document.items()
        if isinstance(entries, list)
        for entry in entries
        if isinstance(entry, Mapping)
        and isinstance(entry.get("metrics"), list)
        and any(isinstance(m, Mapping) and "output_throughput" in m for m in entry["metrics"])
    ]


def _specforge(name: str, entry: Json, document: Json, origin: str, width: int | None) -> Iterator[Observation]:
    """One entry per run; a run with 0 steps is plain decoding."""
    for run in entry["metrics"]:
        if not isinstance(run, Mapping):
            raise InputError(f"{origin}: {name}: a run of a SpecForge result is an object, got {run!r}")
        plain = entry.get("steps") == 0 or run.get("accept_length") in (None, 1, 1.0)
        result = {
            **{k: v for k, v in run.items() if not (plain and k == "accept_length")},
            "backend": "sglang",
            "model_id": f"{name}, plain" if plain else name,
            "max_concurrency": entry.get("batch_size"),
            "speculative_num_draft_tokens": entry.get("num_draft_tokens"),
            "speculative_num_steps": entry.get("steps"),
            "speculative_eagle_topk": entry.get("topk"),
        }
        seen = read_bench(result, f"{origin}: {name}", width=None if plain else width)
        model = document.get("model")
        labels = {"model_name": str(model)} if isinstance(model, str) else {}
        yield replace(seen, origin=origin, labels=MappingProxyType(labels))


def _iterations(document: object) -> list[Json]:
    """Iterations of TensorRT-LLM's statistics that have some of speculation."""
    items = document if isinstance(document, list) else [document]
    return [i for i in items if isinstance(i, Mapping) and isinstance(i.get("specDecodingStats"), Mapping)]


def _trtllm(rows: Sequence[Json], origin: str) -> Observation:
    """Sums over iterations, whose counts are exact; drafts are the requests of each iteration with a draft."""
    stats = [(row, row["specDecodingStats"]) for row in rows]
    drafted, accepted, drafts = (
        sum(_whole(spec, key, origin) for _, spec in stats)
        for key in ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
    )
    if not drafted:
        raise InputError(f"{origin}: TensorRT-LLM's statistics of {len(rows)} iterations without a draft token")
    batches = [row.get("inflightBatchingStats") for row, _ in stats]
    running = [_whole(b, "numGenRequests", origin) for b in batches if isinstance(b, Mapping) and "numGenRequests" in b]
    steps = sum(running) if len(running) == len(stats) and sum(running) >= drafts else None
    alone = [  # iterations without prefill: their time is a step's
        float(row["iterLatencyMS"])
        for row, b in zip(rows, batches, strict=True)
        if isinstance(b, Mapping)
        and not b.get("numContextRequests")
        and b.get("numGenRequests")
        and row.get("iterLatencyMS")
    ]
    shares = [float(spec["draftOverhead"]) for _, spec in stats if spec.get("draftOverhead")]
    share = sum(shares) / len(shares) if shares else None
    table = [
        translated("tensorrt-llm", "numDraftTokens", drafted),
        translated("tensorrt-llm", "numAcceptedTokens", accepted),
        translated("tensorrt-llm", "numRequestsWithDraftTokens", drafts),
    ]
    if steps is not None:
        table.append(translated("tensorrt-llm", "numGenRequests", steps))
    if alone:
        table.append(translated("tensorrt-llm", "iterLatencyMS", sum(alone) / len(alone)))
    if share is not None:
        table.append(translated("tensorrt-llm", "draftOverhead", share))
    if drafts:
        tally = Tally.of_counters(
            drafts=drafts,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            steps=steps,
            emitted_tokens=None if steps is None else steps + accepted,
        )
    else:
        tally = checked(replace(UNKNOWN, drafted_tokens=drafted, verified_tokens=drafted, accepted_tokens=accepted))
    return Observation(
        engine="tensorrt-llm",
        origin=origin,
        source="tensorrt-llm",
        tally=tally,
        translations=tuple(table),
        step_s=sum(alone) / len(alone) / 1e3 if alone else None,
        mean_batch=sum(running) / len(running) if running else None,
        draft_share=share,
        notes=(f"{len(rows)} iterations of TensorRT-LLM",),
    )


def _whole(row: Json, key: str, origin: str) -> int:
    value = row.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise InputError(f"{origin}: {key} must be a whole number of at least 0, got {value!r}")
    return int(value)


_COMPARED: Final = (
    "{tool} measures from outside and has no figure of speculation: its speeds are read, to compare with another's; "
    "alpha is on the server's /metrics page or in its log",
)


def _compared(tool: str, source: str, speed: Speed, origin: str) -> Observation:
    return Observation(
        engine=tool,
        origin=origin,
        source=source,
        tally=None,
        means=Means(),
        translations=(),
        mean_batch=speed.concurrency,
        speed=speed,
        notes=tuple(text.format(tool=tool) for text in _COMPARED),
    )


def _guidellm(benchmark: Json, number: int, origin: str) -> Observation:
    metrics = benchmark["metrics"]
    speed = Speed(
        tokens_per_s=_mean(metrics, "output_tokens_per_second"),
        token_s=_milli(_mean(metrics, "time_per_output_token_ms")),
        chunk_s=_milli(_mean(metrics, "inter_token_latency_ms")),
        first_s=_milli(_mean(metrics, "time_to_first_token_ms")),
        concurrency=_mean(metrics, "request_concurrency"),
    )
    if speed == Speed():
        raise InputError(f"{origin}: a guidellm result whose benchmark {number} has none of its speeds under metrics")
    return _compared("guidellm", f"guidellm benchmark {number}", speed, origin)


def _milli(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _mean(metrics: object, name: str) -> float | None:
    """Mean of guidellm's distribution of the successful requests."""
    place = metrics.get(name) if isinstance(metrics, Mapping) else None
    for key in ("successful", "mean"):
        if isinstance(place, Mapping):
            place = place.get(key, place.get("mean"))
    return _finite(place)


def _finite(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if usable else None  # type: ignore[arg-type]


# Words of a path that name a speed, in a simulator's or another tool's file; milliseconds unless the path says seconds.
_WORDS: Final = {
    "token_s": ("tpot", "time_per_output_token"),
    "chunk_s": ("itl", "inter_token_latency"),
    "first_s": ("ttft", "time_to_first_token"),
    "tokens_per_s": ("output_throughput", "output_tokens_per_s", "output_token_throughput", "tokens/s"),
}


def _speed_anywhere(document: Json) -> Speed | None:
    """Mean speeds of a nested document by the words of their paths; None where fewer than two are told."""
    found: dict[str, float] = {}
    for path, value in _leaves(document, ""):
        if any(
            part in path for part in ("p50", "p90", "p95", "p99", "p75", "min", "max", "std", "median", "input", "slo")
        ):
            continue
        for field, words in _WORDS.items():
            if field not in found and any(word in path for word in words):
                seconds = path.endswith(("_s", "_sec", "_seconds")) and field != "tokens_per_s"
                found[field] = value if seconds or field == "tokens_per_s" else value / 1e3
    return Speed(**found) if len(found) >= 2 else None


def _leaves(document: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield from _leaves(value, f"{path}.{str(key).lower()}")
    elif (value := _finite(document)) is not None:
        yield path, value
