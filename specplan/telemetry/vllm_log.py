"""vLLM's log: its lines of speculation, and the lines of load beside them that tell all steps."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Final

from specplan.errors import InputError
from specplan.records.tally import Tally
from specplan.telemetry.observation import Interval, Load, Observation, Translation, translated
from specplan.telemetry.rounded import RateLine, pooled

_NUMBER: Final = r"(\d+(?:\.\d+)?|nan)"
MARKS: Final = ("SpecDecoding metrics:", "Speculative metrics:", "Mean acceptance length:")
LOAD_MARK: Final = "Avg generation throughput:"
# Figures of a line by name: their order changed from version to version, and the oldest lines have the totals alone.
_LENGTH: Final = re.compile(rf"Mean acceptance length: {_NUMBER}")
_ACCEPTED: Final = re.compile(r"(?:Accepted: (\d+) tokens|Number of accepted tokens: (\d+))")
_DRAFTED: Final = re.compile(r"(?:Drafted: (\d+) tokens|Number of draft tokens: (\d+))")
_DRAFTED_RATE: Final = re.compile(r"Drafted throughput: ([\d.]+) tokens/s")
_RATES: Final = re.compile(r"Per-position acceptance rate: (\d[\d.]*(?:, \d[\d.]*)*)")
_V0: Final = re.compile(
    r"System efficiency: .*?Number of speculative tokens: (\d+), Number of accepted tokens: (\d+), "
    r"Number of draft tokens: (\d+), Number of emitted tokens: (\d+)"
)
_TOKENS: Final = re.compile(r"Avg generation throughput: ([\d.]+) tokens/s\b")
_RUNNING: Final = re.compile(r"Running: (\d+) reqs")
_WAITING: Final = re.compile(r"(?:Waiting|Pending): (\d+) reqs")
_CACHE: Final = re.compile(r"GPU KV cache usage: ([\d.]+)%")
_ENGINE: Final = re.compile(r"Engine (\d+)")
_SERVER: Final = re.compile(r"\(([\w.-]+ pid=\d+)\)")
_TIME: Final = re.compile(r"(?:(\d{4})[-/])?(\d{2})-(\d{2})[T ](\d{2}):(\d{2}):(\d{2})")

DEFAULT_INTERVAL_S: Final = 10.0
"""vLLM's VLLM_LOG_STATS_INTERVAL."""
_NEAR: Final = 0.03
"""By which share tokens and accepted tokens of one line may part: a request's first and last tokens."""


def seconds_of(line: str) -> tuple[float | None, str]:
    """Time of a log line in seconds from some beginning, and as it stands there."""
    m = _TIME.search(line[:80])
    if m is None:
        return None, ""
    try:
        when = datetime(int(m[1] or 2000), int(m[2]), int(m[3]), int(m[4]), int(m[5]), int(m[6]))
    except ValueError:
        return None, ""
    return (when - datetime(2000, 1, 1)).total_seconds(), m[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drafting:
    at: int
    time_s: float | None
    when: str
    line: RateLine
    window_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadLine:
    at: int
    time_s: float | None
    engine: str
    tokens_per_s: float
    running: int
    waiting: int
    cache_use: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """Lines that one server printed at one time."""

    loads: tuple[_LoadLine, ...]
    drafts: tuple[_Drafting, ...]

    @property
    def busy(self) -> tuple[_LoadLine, ...]:
        return tuple(x for x in self.loads if x.tokens_per_s > 0 or x.running)


@dataclass(slots=True)
class _Server:
    loads: list[_LoadLine] = field(default_factory=list)
    drafts: list[_Drafting] = field(default_factory=list)
    seen: int = 0


@dataclass(slots=True)
class VllmLines:
    """What the lines of vLLM add up to so far, server by server; the last total of the V0 engine."""

    servers: dict[str, _Server] = field(default_factory=dict)
    count: int = 0
    v0: re.Match[str] | None = None
    unread: int = 0

    def add(self, line: str) -> None:
        """Take a line with one of `MARKS` or `LOAD_MARK`."""
        self.count += 1
        m = _SERVER.search(line)
        server = self.servers.setdefault(m[1] if m else "", _Server())
        time_s, when = seconds_of(line)
        if LOAD_MARK in line:
            if (load := _load_line(line, self.count, time_s)) is None:
                self.unread += 1
            else:
                server.loads.append(load)
        elif (v0 := _V0.search(line)) is not None:
            self.v0 = v0
        else:
            server.seen += 1
            if (found := _drafting(line, self.count, time_s, when)) is not None:
                server.drafts.append(found)

    def observations(self, origin: str) -> list[Observation]:
        """One entry per server, and per engine of a server that runs several."""
        found = [
            o
            for name, server in self.servers.items()
            if server.seen
            for o in _observed(server, name if len(self.servers) > 1 else "", self.unread, origin)
        ]
        return found if self.v0 is None else [*found, _v0(self.v0, origin)]


def _load_line(line: str, at: int, time_s: float | None) -> _LoadLine | None:
    tokens, running = _TOKENS.search(line), _RUNNING.search(line)
    if tokens is None or running is None:
        return None
    waiting, cache, engine = _WAITING.search(line), _CACHE.search(line), _ENGINE.search(line)
    return _LoadLine(
        at=at,
        time_s=time_s,
        engine=engine[1] if engine else "",
        tokens_per_s=float(tokens[1]),
        running=int(running[1]),
        waiting=int(waiting[1]) if waiting else 0,
        cache_use=float(cache[1]) / 100 if cache else None,
    )


def _drafting(line: str, at: int, time_s: float | None, when: str) -> _Drafting | None:
    length, rates = _LENGTH.search(line), _RATES.search(line)
    accepted, drafted, rate = _ACCEPTED.search(line), _DRAFTED.search(line), _DRAFTED_RATE.search(line)
    if accepted is None or drafted is None:
        return None
    n = int(drafted[1] or drafted[2])
    found = RateLine(
        mean_length=math.nan if length is None else float(length[1]),
        accepted=int(accepted[1] or accepted[2]),
        drafted=n,
        rates=() if rates is None else tuple(float(x) for x in rates[1].split(",")),
    )
    if "throughput" in line and "raft acceptance rate" not in line and not _whole(line, found):
        return None  # versions that print throughputs end with the average: the line is cut off
    per_s = float(rate[1]) if rate else 0.0
    return _Drafting(at=at, time_s=time_s, when=when, line=found, window_s=n / per_s if per_s > 0 and n else None)


def _whole(text: str, line: RateLine) -> bool:
    """Whether a line ends with its last rate: as many positions, three digits each, as every draft has tokens."""
    found = line.recovered() if re.search(r", \d\.\d{3}\s*$", text) else None
    return found is not None and found.drafts * len(line.rates) == line.drafted


def _observed(server: _Server, name: str, unread: int, origin: str) -> list[Observation]:
    if not server.drafts:
        raise InputError(
            f"{origin}: {server.seen} lines of vLLM's speculation metrics, but none has 'Accepted: N tokens' and "
            "'Drafted: N tokens'; expected the lines whole, as vLLM prints them"
        )
    drafts = [d for d in server.drafts if d.line.drafted]
    if not drafts:
        raise InputError(
            f"{origin}: all {server.seen} lines of vLLM's speculation metrics are of intervals without a draft"
        )
    _one_server(drafts, origin)
    notes = []
    if server.seen > len(server.drafts):
        notes.append(
            f"{server.seen - len(server.drafts)} of {server.seen} metrics lines are incomplete and were not used"
        )
    if unread:
        notes.append(f"{unread} lines of load are in another unit or incomplete and were not used")
    buckets = _buckets(server.loads, drafts)
    window_s = _interval_s(drafts, server.loads)
    labels = {"server": name} if name else {}
    total = _translated(drafts, buckets, window_s, labels, origin, notes)
    engines = sorted({x.engine for b in buckets for x in b.loads if b.drafts})
    if len(engines) < 2 or not (rows := _by_engine(buckets)):
        return [total]
    return [
        total,
        *(
            _translated(
                [d for b in rows[engine] for d in b.drafts],
                rows[engine],
                window_s,
                {**labels, "engine": engine},
                origin,
                [],
            )
            for engine in engines
            if rows.get(engine)
        ),
    ]


def _one_server(drafts: Sequence[_Drafting], origin: str) -> None:
    """Refuse lines that one server cannot have printed."""
    widths = sorted({len(d.line.rates) for d in drafts if d.line.rates})
    if len(widths) > 1:
        raise InputError(
            f"{origin}: lines with {' and '.join(map(str, widths))} positions: several servers, or a restart with "
            "another number of tokens; split the log"
        )


def _buckets(loads: Sequence[_LoadLine], drafts: Sequence[_Drafting]) -> list[_Bucket]:
    """Lines of load and of drafts that belong together: printed at one time, or in turns where there are no times."""
    lines: list[_LoadLine | _Drafting] = sorted((*loads, *drafts), key=lambda x: x.at)
    if any(x.time_s is None for x in lines):
        return _in_turns(lines)
    groups: list[list[_LoadLine | _Drafting]] = []
    for x in sorted(lines, key=lambda x: (x.time_s or 0.0, x.at)):
        near = groups and (x.time_s or 0.0) - (groups[-1][0].time_s or 0.0) <= 1.0
        if near and (x.time_s == groups[-1][0].time_s or type(x) is not type(groups[-1][-1])):
            groups[-1].append(x)
        else:
            groups.append([x])
    found = [_bucket(g) for g in groups]
    apart = not any(b.loads and b.drafts for b in found)
    return _in_turns(lines, longest_s=60.0) if apart and loads else found


def _in_turns(lines: Sequence[_LoadLine | _Drafting], longest_s: float = math.inf) -> list[_Bucket]:
    """Pairs, where the two kinds of lines follow one another strictly; else every line alone."""
    kinds = [type(x) for x in lines]
    gaps = [(b.time_s or 0.0) - (a.time_s or 0.0) for a, b in zip(lines[::2], lines[1::2], strict=False)]
    strict = len(lines) % 2 == 0 and all(a is not b for a, b in pairwise(kinds)) and max(gaps, default=0.0) <= longest_s
    return [_bucket(lines[i : i + 2]) for i in range(0, len(lines), 2)] if strict else [_bucket([x]) for x in lines]


def _bucket(lines: Iterable[_LoadLine | _Drafting]) -> _Bucket:
    rows = tuple(lines)
    return _Bucket(
        loads=tuple(x for x in rows if isinstance(x, _LoadLine)),
        drafts=tuple(x for x in rows if isinstance(x, _Drafting)),
    )


def _by_engine(buckets: Sequence[_Bucket]) -> dict[str, list[_Bucket]]:
    """Buckets of single engines, where every line of drafts stands right behind its engine's line of load."""
    out: dict[str, list[_Bucket]] = {}
    for b in buckets:
        lines: list[_LoadLine | _Drafting] = [*b.loads, *b.drafts]
        engine = None
        for x in sorted(lines, key=lambda x: x.at):
            if isinstance(x, _LoadLine):
                engine = x
            elif engine is None:
                return {}
            else:
                out.setdefault(engine.engine, []).append(_Bucket(loads=(engine,), drafts=(x,)))
                engine = None
    return out


def _interval_s(drafts: Sequence[_Drafting], loads: Sequence[_LoadLine]) -> tuple[float, str]:
    """Seconds that a line without throughputs covers, and where that comes from."""
    every: list[_LoadLine | _Drafting] = [*drafts, *loads]
    times = sorted({x.time_s for x in every if x.time_s is not None})
    gaps = [b - a for a, b in pairwise(times) if b - a > 1.0]
    gap = median(gaps) if gaps else DEFAULT_INTERVAL_S
    if abs(gap - DEFAULT_INTERVAL_S) <= 1.0:
        return DEFAULT_INTERVAL_S, "vLLM's default interval"
    return gap, "from the lines' times"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """All steps behind the lines that have a line of load beside them."""

    steps: int
    drafts: int
    lines: int
    tokens: float
    misfits: int
    mean_running: float | None
    request_s: float
    load: Load


def _all_steps(buckets: Sequence[_Bucket], window: float) -> _Steps:
    r"""Steps = tokens - accepted, line by line: each step emits one token of its own beside those accepted.

    A line whose tokens fall short of drafts and accepted tokens by no more than rounding, a request's first tokens and
    tokens past a stop explain has a draft in every step; one that falls shorter is not of the same engine or time.
    """
    steps = drafts = lines = misfits = 0
    tokens = request_s = 0.0
    running: list[float] = []
    for b in buckets:
        busy = b.busy
        if not b.drafts or not busy or len(busy) != len(b.drafts):
            continue
        found = [d.line.recovered() for d in b.drafts]
        if any(f is None for f in found):
            continue
        seconds = median(d.window_s or window for d in b.drafts)
        emitted = seconds * sum(x.tokens_per_s for x in busy)
        n = sum(f.drafts for f in found if f is not None)
        free = emitted - sum(d.line.accepted for d in b.drafts)
        slack = 0.05 * seconds * len(busy) + _NEAR * emitted + 1
        if free < n - slack:
            misfits += 1
            continue
        steps, drafts, lines, tokens = steps + max(n, round(free)), drafts + n, lines + 1, tokens + emitted
        running.append(sum(x.running for x in busy))
        request_s += seconds * running[-1]
    rows = [x for b in buckets for x in b.loads]
    uses = [x.cache_use for x in rows if x.cache_use is not None]
    return _Steps(
        steps=steps,
        drafts=drafts,
        lines=lines,
        tokens=tokens,
        misfits=misfits,
        mean_running=sum(running) / len(running) if running and any(running) else None,
        request_s=request_s,
        load=Load(
            running=sum(x.running for x in rows) / len(rows) if rows else None,
            waiting=sum(x.waiting for x in rows) / len(rows) if rows else None,
            cache_use=max(uses) if uses else None,
        ),
    )


def _translated(
    drafts: Sequence[_Drafting],
    buckets: Sequence[_Bucket],
    window: tuple[float, str],
    labels: dict[str, str],
    origin: str,
    notes: list[str],
) -> Observation:
    tally, found = pooled([d.line for d in drafts])
    notes = [*notes, *found]
    loads = {(x.time_s, x.engine, x.tokens_per_s) for b in buckets for x in b.loads if x.time_s is not None}
    twice = len(loads) - len({x[:2] for x in loads})
    if twice:
        raise InputError(
            f"{origin}: two lines of load of one engine at one time ({twice} times): the log holds several "
            "servers; give each its own"
        )
    overlapping = _overlap(drafts, len({x.engine for b in buckets for x in b.loads}) or 1)
    if overlapping:
        raise InputError(f"{origin}: {overlapping}; give each server's log for itself")
    s = _all_steps(buckets, window[0])
    tally, told = _with_steps(tally, s, len(drafts), window, all(d.window_s for d in drafts))
    notes += told
    accepted, drafted = tally.accepted_tokens or 0, tally.drafted_tokens or 0
    rows: list[Translation] = []
    if tally.drafts:
        rows.append(translated("vllm", "Mean acceptance length", 1 + accepted / tally.drafts, kind="derived"))
    rows += [
        translated("vllm", "Accepted", accepted),
        translated("vllm", "Drafted", drafted),
        translated("vllm", "Avg Draft acceptance rate", 100 * accepted / drafted),
    ]
    if tally.drafts and tally.accepted_at is not None:
        means = tuple(a / tally.drafts for a in tally.accepted_at)
        rows.insert(3, translated("vllm", "Per-position acceptance rate", means, kind="derived"))
    if s.lines:
        rows.append(translated("vllm", "Avg generation throughput", _mean_rate(buckets), kind="derived"))
        if s.mean_running is not None:
            rows.append(translated("vllm", "Running", s.mean_running, kind="derived"))
            at_most = 1e3 * s.request_s / max(s.steps, 1)
            rows.append(
                Translation(
                    name="seconds x Running / steps",
                    value=at_most,
                    meaning="milliseconds of a step, prefills and idle time of the interval included",
                    ours="a step takes at most this; shown only",
                    kind="derived",
                )
            )
    return Observation(
        engine="vllm",
        origin=origin,
        source=f"vllm engine {labels['engine']}" if "engine" in labels else "vllm",
        tally=tally,
        translations=tuple(rows),
        labels=MappingProxyType(labels),
        mean_batch=s.mean_running,
        load=s.load if s.load.running is not None else None,
        series=tuple(_series(d, buckets) for d in drafts if d.when),
        notes=tuple(notes),
    )


def _mean_rate(buckets: Sequence[_Bucket]) -> float:
    rates = [sum(x.tokens_per_s for x in b.busy) for b in buckets if b.drafts and b.busy]
    return sum(rates) / len(rates)


def _series(d: _Drafting, buckets: Sequence[_Bucket]) -> Interval:
    found = d.line.recovered()
    own = next((b for b in buckets if d in b.drafts and len(b.drafts) == len(b.busy) == 1), None)
    return Interval(
        when=d.when,
        drafts=0 if found is None else found.drafts,
        drafted=d.line.drafted,
        accepted=d.line.accepted,
        tokens_per_s=None if own is None else own.busy[0].tokens_per_s,
        running=None if own is None else own.busy[0].running,
    )


def _overlap(drafts: Sequence[_Drafting], engines: int) -> str:
    """What shows that lines of more servers than engines are mixed: they cover more time than passed."""
    known = {(d.time_s, d.window_s, d.line) for d in drafts if d.time_s is not None and d.window_s is not None}
    if len(known) < 3:
        return ""
    times = sorted(t for t, _, _ in known)
    covered, passed = sum(sorted(w for _, w, _ in known)[:-1]), times[-1] - times[0]
    if covered <= 1.3 * engines * (passed + 1.0):
        return ""
    return f"{len(known)} lines cover {covered:.0f} s in a log of {passed:.0f} s: several servers are mixed"


def _with_steps(tally: Tally, s: _Steps, lines: int, window: tuple[float, str], timed: bool) -> tuple[Tally, list[str]]:
    if not s.lines or not s.drafts or not tally.drafts or tally.accepted_tokens is None:
        why = "no line of load ('Avg generation throughput ... Running: N reqs') belongs to one of them"
        if s.misfits:
            why = "the tokens beside them are fewer than their drafts and accepted tokens: lines of several engines"
        return tally, [f"steps without a draft are in no line, and {why}: coverage and tokens per step stay unknown"]
    notes = [
        "steps = generated tokens - accepted, from the lines of load (derived); a first token counts as a step"
        + ("" if timed else f"; a line covers {window[0]:g} s ({window[1]})")
    ]
    steps = s.steps
    if s.lines < lines:
        steps = round(s.steps * tally.drafts / s.drafts)
        notes.append(f"coverage is of the {s.lines} of {lines} lines that have a line of load; taken for all")
    if s.misfits:
        notes.append(f"{s.misfits} lines of load do not belong to the drafts beside them and were not used")
    steps = max(steps, tally.drafts)
    coverage, emitted = tally.drafts / steps, steps + tally.accepted_tokens
    if coverage < 0.5:
        notes.append(
            f"a draft is rare: {coverage:.1%} of the steps had one, so a step emits {emitted / steps:.2f} tokens, "
            f"not {1 + tally.accepted_tokens / tally.drafts:.2f}"
        )
    return replace(tally, steps=steps, emitted_tokens=emitted), notes


def _v0(m: re.Match[str], origin: str) -> Observation:
    """The V0 engine's totals since its start.

    It counted the verdict of every position, also behind a rejection, as accepted; what the steps kept is in the
    emitted tokens: one of the target's own per draft, and the accepted ones before the first rejection.
    """
    k, counted, drafted, emitted = (int(figure) for figure in m.groups())
    if k < 1 or drafted % k:
        raise InputError(f"{origin}: {drafted} draft tokens are no whole number of drafts of {k}; the line is damaged")
    drafts = drafted // k
    return Observation(
        engine="vllm",
        origin=origin,
        source="vllm",
        tally=Tally.of_counters(drafts=drafts, drafted_tokens=drafted, accepted_tokens=emitted - drafts),
        translations=(
            translated("vllm", "Number of draft tokens", drafted),
            translated("vllm", "Number of emitted tokens", emitted, kind="derived"),
            translated("vllm", "Number of accepted tokens", counted),
        ),
        notes=(
            "vLLM's V0 engine: the last cumulative line since its start was used; every draft is taken to emit a token "
            "of the target's own (assumed)",
        ),
    )
