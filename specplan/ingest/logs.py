"""Log lines of vLLM, SGLang and llama.cpp about speculation, from files of any length."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from specplan.errors import InputError
from specplan.ingest.observation import Observation, Translation
from specplan.ingest.prometheus import sglang_means, sglang_translations
from specplan.ingest.rounded import RecoveredDrafts, recover_drafts
from specplan.records.tally import EMPTY, UNKNOWN, Clusters, Tally, checked

_NUMBER: Final = r"(\d+(?:\.\d+)?|nan)"
# Figures of a line by name: their order changed from version to version, and the oldest lines have the totals alone.
_VLLM_MARKS: Final = ("SpecDecoding metrics:", "Speculative metrics:")
_VLLM_LENGTH: Final = re.compile(rf"Mean acceptance length: {_NUMBER}")
_VLLM_ACCEPTED: Final = re.compile(r"(?:Accepted: (\d+) tokens|Number of accepted tokens: (\d+))")
_VLLM_DRAFTED: Final = re.compile(r"(?:Drafted: (\d+) tokens|Number of draft tokens: (\d+))")
_VLLM_RATES: Final = re.compile(r"Per-position acceptance rate: (\d[\d.]*(?:, \d[\d.]*)*)")
_VLLM_V0: Final = re.compile(
    r"System efficiency: .*?Number of speculative tokens: (\d+), Number of accepted tokens: (\d+), "
    r"Number of draft tokens: (\d+), Number of emitted tokens: (\d+)"
)
_SGLANG: Final = re.compile(rf"Decode batch.*?#running-req: (\d+).*?accept len: {_NUMBER}(?:, accept rate: {_NUMBER})?")
_SGLANG_WIDEST: Final = 1024
_SGLANG_WIDTH: Final = re.compile(r"speculative_num_draft_tokens=(\d+)")
_SGLANG_STEPS: Final = re.compile(r"speculative_num_steps=(\d+)")
_LLAMA_SLOT: Final = re.compile(
    rf"draft acceptance(?: rate)? = +{_NUMBER} +\( *(\d+) accepted / +(\d+) generated\)"
    rf"(?:, mean acceptance length = +{_NUMBER}, acceptance rate per position = \(([\d., ]*)\))?"
)
_LLAMA_TOTAL: Final = re.compile(
    r"statistics +([\w.-]+): #calls(?:\(b,g,a\))? = +([\d ]+?), #gen drafts = +(\d+), #acc drafts = +(\d+), "
    r"#gen tokens = +(\d+), #acc tokens = +(\d+)"
    rf"(?:, #mean acc len = +{_NUMBER}, #acc rate/pos = \(([\d., ]*)\))?"
)
_LLAMA_TOOL: Final = re.compile(r"\b(n_drafted|n_accept|n_predict) += (\d+)\s*$")
_LLAMA_EVAL: Final = re.compile(r"(?<!prompt )eval time = +[\d.]+ ms / +(\d+) (?:tokens|runs)")


def _rates(text: str | None) -> list[float]:
    return [float(part) for part in (text or "").split(",") if part.strip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Figures of one line of vLLM or one request of llama.cpp."""

    mean_length: float
    accepted: int
    drafted: int
    rates: tuple[float, ...]

    def recovered(self) -> RecoveredDrafts | None:
        return recover_drafts(self.mean_length, self.accepted, self.drafted, self.rates)


def read_log(lines: Iterable[str], origin: str) -> list[Observation]:
    """What a log says of speculation, one entry per engine (and per kind of draft for llama.cpp).

    Parameters
    ----------
    lines : iterable of str
        Lines with any prefix (time, level, process).
    origin : str
        Name of the log in reports.

    Raises
    ------
    InputError
        If no line speaks of speculation.
    """
    vllm, llama, arguments = _VllmLines(), _LlamaLines(), _SglangArguments()
    sglang: list[tuple[int, float, float | None]] = []
    for line in lines:
        if any(mark in line for mark in _VLLM_MARKS):
            vllm.add(line)
        elif "accept len" in line and (m := _SGLANG.search(line)):
            rate = float(m[3]) if m[3] else None
            sglang.append((int(m[1]), float(m[2]), rate))
        elif "speculative_num_draft_tokens=" in line:
            arguments.add(line)
        else:
            llama.add(line)
    out = vllm.observations(origin)
    if sglang:
        out.append(_sglang(sglang, arguments.width, arguments.chain, origin))
    out += llama.observations(origin)
    if not out:
        raise InputError(
            f"{origin}: no line speaks of speculation; expected 'SpecDecoding metrics:' (vLLM), "
            "'accept len:' (SGLang) or 'draft acceptance' (llama.cpp)"
        )
    return out


@dataclass(slots=True)
class _VllmLines:
    """What the lines of vLLM add up to so far: intervals of the V1 engine, the last total of the V0 engine."""

    intervals: list[_Line] = field(default_factory=list)
    seen: int = 0
    v0: re.Match[str] | None = None

    def add(self, line: str) -> None:
        if (m := _VLLM_V0.search(line)) is not None:
            self.v0 = m
        else:
            self.seen += 1
            self.intervals += _vllm_line(line)

    def observations(self, origin: str) -> list[Observation]:
        found = [_vllm(self.intervals, self.seen, origin)] if self.seen else []
        return found if self.v0 is None else [*found, _vllm_v0(self.v0, origin)]


@dataclass(slots=True)
class _LlamaLines:
    """What the lines of llama.cpp add up to so far: requests, totals by kind of draft, counters of a tool."""

    slots: list[_Line] = field(default_factory=list)
    totals: dict[str, re.Match[str]] = field(default_factory=dict)
    tool: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    requests: int = 0

    def add(self, line: str) -> None:
        if "draft acceptance" in line and (m := _LLAMA_SLOT.search(line)):
            rates = tuple(_rates(m[5]))
            self.slots.append(
                _Line(mean_length=float(m[4] or "nan"), accepted=int(m[2]), drafted=int(m[3]), rates=rates)
            )
        elif "statistics" in line and (m := _LLAMA_TOTAL.search(line)):
            self.totals[m[1]] = m
        elif "eval time" in line and (m := _LLAMA_EVAL.search(line)):
            self.tokens, self.requests = self.tokens + int(m[1]), self.requests + 1
        elif "n_" in line and (m := _LLAMA_TOOL.search(line)):
            self.tool[m[1]] = int(m[2])

    def observations(self, origin: str) -> list[Observation]:
        if self.totals:
            return list(_llamacpp_totals(self.totals, origin))
        if self.slots:
            return [_llamacpp_slots(self.slots, self.tokens, self.requests, origin)]
        return [_llamacpp_tool(self.tool, origin)] if {"n_drafted", "n_accept"} <= self.tool.keys() else []


@dataclass(slots=True)
class _SglangArguments:
    """Width and longest chain of a draft, from the start-up line with the server's arguments."""

    width: int | None = None
    chain: int | None = None

    def add(self, line: str) -> None:
        self.width = int(m[1]) if (m := _SGLANG_WIDTH.search(line)) else self.width
        self.chain = int(m[1]) if (m := _SGLANG_STEPS.search(line)) else self.chain
        if "speculative_algorithm='NGRAM'" in line:
            self.chain = None  # the steps are width // breadth there, and bound nothing


def _vllm_line(line: str) -> Iterator[_Line]:
    length, rates = _VLLM_LENGTH.search(line), _VLLM_RATES.search(line)
    accepted, drafted = _VLLM_ACCEPTED.search(line), _VLLM_DRAFTED.search(line)
    cut_off = "throughput" in line and "Avg Draft acceptance rate" not in line  # versions that print both end with it
    if accepted is not None and drafted is not None and not cut_off:
        yield _Line(
            mean_length=math.nan if length is None else float(length[1]),
            accepted=int(accepted[1] or accepted[2]),
            drafted=int(drafted[1] or drafted[2]),
            rates=tuple(_rates(None if rates is None else rates[1])),
        )


def _vllm(found: list[_Line], seen: int, origin: str) -> Observation:
    if not found:
        raise InputError(
            f"{origin}: {seen} lines of vLLM's speculation metrics, but none has 'Accepted: N tokens' and "
            "'Drafted: N tokens'; expected the lines whole, as vLLM prints them"
        )
    lines = [line for line in found if line.drafted]
    if not lines:
        raise InputError(f"{origin}: all {seen} lines of vLLM's speculation metrics are of intervals without a draft")
    tally, notes = _pooled(lines, per_request=False)
    if seen > len(found):
        notes.append(f"{seen - len(found)} of {seen} metrics lines are incomplete and were not used")
    notes.append("steps without a draft are in no line: coverage and tokens per step stay unknown; /metrics has them")
    accepted, drafted = tally.accepted_tokens or 0, tally.drafted_tokens or 0
    translations = [
        Translation(name="Accepted", value=accepted, meaning="tokens, bonus excluded", ours="accepted_tokens"),
        Translation(name="Drafted", value=drafted, meaning="tokens verified", ours="drafted_tokens"),
        Translation(
            name="Avg Draft acceptance rate",
            value=100 * accepted / drafted,
            meaning="percent, accepted/drafted tokens, pooled",
            ours="accepted_per_drafted (not alpha)",
        ),
    ]
    if tally.drafts:
        translations.insert(
            0,
            Translation(
                name="Mean acceptance length",
                value=1 + accepted / tally.drafts,
                meaning="1 + accepted/drafts over steps that had a draft, bonus included; pooled over the lines here",
                ours="tokens_per_drafted_step; drafts recovered from each line's rounded figure",
                kind="derived",
            ),
        )
    if tally.drafts and tally.accepted_at is not None:
        translations.insert(
            3,
            Translation(
                name="Per-position acceptance rate",
                value=tuple(_position_means(tally)),
                meaning="unconditional: drafts accepted beyond each position / drafts, 3 digits a line",
                ours="position_rates_unconditional",
                kind="derived",
            ),
        )
    return Observation(
        engine="vllm",
        origin=origin,
        source="vllm",
        tally=tally,
        translations=tuple(translations),
        notes=tuple(notes),
    )


def _vllm_v0(m: re.Match[str], origin: str) -> Observation:
    """The V0 engine's totals since its start.

    It counted the verdict of every position, also behind a rejection, as accepted; what the steps kept is in the
    emitted tokens: one of the target's own per draft, and the accepted ones before the first rejection.
    """
    k, counted, drafted, emitted = (int(figure) for figure in m.groups())
    if k < 1 or drafted % k:
        raise InputError(f"{origin}: {drafted} draft tokens are no whole number of drafts of {k}; the line is damaged")
    drafts = drafted // k
    accepted = emitted - drafts
    return Observation(
        engine="vllm",
        origin=origin,
        source="vllm",
        tally=Tally.of_counters(drafts=drafts, drafted_tokens=drafted, accepted_tokens=accepted),
        translations=(
            Translation(
                name="Number of draft tokens",
                value=drafted,
                meaning="tokens verified",
                ours="drafted_tokens; / k: drafts",
            ),
            Translation(
                name="Number of emitted tokens",
                value=emitted,
                meaning="tokens that the verified drafts led to, the target's own token of each included",
                ours="accepted_tokens = this - drafts",
                kind="derived",
            ),
            Translation(
                name="Number of accepted tokens",
                value=counted,
                meaning="positions whose verdict was yes, those behind a rejection included",
                ours="shown only; neither accepted_tokens nor alpha",
            ),
        ),
        notes=(
            "vLLM's V0 engine: the last cumulative line since its start was used; every draft is taken to emit a token "
            "of the target's own (assumed)",
        ),
    )


def _position_means(tally: Tally) -> list[float]:
    return [a / tally.drafts for a in tally.accepted_at or ()] if tally.drafts else []


def _pooled(lines: list[_Line], *, per_request: bool) -> tuple[Tally, list[str]]:
    """Sum over lines, each with its recovered number of drafts; a line may be one request or one interval."""
    total, low, high = EMPTY, 0, 0
    misfits = without = 0
    for line in lines:
        found = line.recovered()
        if found is None:
            without += math.isnan(line.mean_length)
            misfits += not math.isnan(line.mean_length)
            part = replace(
                UNKNOWN, drafted_tokens=line.drafted, verified_tokens=line.drafted, accepted_tokens=line.accepted
            )
        else:
            low, high = low + found.low, high + found.high
            part = Tally.of_counters(
                drafts=found.drafts,
                drafted_tokens=line.drafted,
                accepted_tokens=line.accepted,
                accepted_at=found.accepted_at,
            )
        if per_request:
            tested = part.tested_tokens
            clusters = None if tested is None else Clusters.of(line.accepted, tested)
            part = replace(part, requests=1, prefills=1, clusters=clusters)
        total += part
    notes = []
    if without:
        notes.append(f"{without} lines have totals alone, as older versions print them: drafts stay unknown")
    if misfits:
        notes.append(f"the figures of {misfits} lines fit no whole number of drafts; the number stays unknown")
    if total.drafts is not None and low != high:
        notes.append(f"rounded figures allow {low} to {high} drafts; {total.drafts} was taken")
    return checked(total), notes


def _sglang(
    lines: list[tuple[int, float, float | None]], width: int | None, chain: int | None, origin: str
) -> Observation:
    weight = sum(running for running, _, _ in lines)
    if weight == 0:
        raise InputError(f"{origin}: all 'Decode batch' lines have #running-req: 0; nothing was decoded")
    length = sum(running * value for running, value, _ in lines) / weight
    rated = [(running, rate) for running, _, rate in lines if rate is not None]
    rate = sum(r * x for r, x in rated) / sum(r for r, _ in rated) if rated else None
    notes = [
        f"{len(lines)} decode lines, weighted by #running-req: each line covers the same number of passes (assumed)",
        "means without counts: no interval of confidence follows",
    ]
    if width is None and rated:
        widths = _sglang_widths(lines)
        width = widths[0] if len(widths) == 1 else None
        notes.append(
            f"num_draft_tokens = {width} follows from the two means of each line"
            if width is not None
            else "num_draft_tokens does not follow from these lines; alpha needs it (it stands in the start-up log)"
        )
    return Observation(
        engine="sglang",
        origin=origin,
        source="sglang",
        tally=None,
        means=sglang_means(length, rate, width, chain),
        translations=sglang_translations(length, rate, names=("accept len", "accept rate"), width=width, calls=None),
        mean_batch=weight / len(lines),
        notes=tuple(notes),
    )


def _sglang_widths(lines: list[tuple[int, float, float | None]]) -> list[int]:
    """Every N for which (accept len - 1) / (N - 1) rounds to the accept rate in all lines (two digits each)."""
    half = 0.005 * (1 + 1e-9)
    return [
        n + 1
        for n in range(1, _SGLANG_WIDEST)
        if all(rate is None or abs((length - 1) / n - rate) <= half * (1 + 1 / n) for _, length, rate in lines)
    ]


def _llamacpp_totals(totals: dict[str, re.Match[str]], origin: str) -> Iterator[Observation]:
    for name, m in totals.items():
        calls = [int(c) for c in m[2].split()]
        drafts, hit, drafted, accepted = (int(m[i]) for i in (3, 4, 5, 6))
        # One figure: generation calls; three: begin, generate, accumulate.
        asked = calls[1] if len(calls) == 3 else calls[0]
        steps = asked if len(totals) == 1 and asked >= drafts else None
        rates = _rates(m[8])
        found = recover_drafts(float(m[7]), accepted, drafted, rates) if m[7] and rates else None
        at = found.accepted_at if found is not None and found.drafts == drafts else None
        yield Observation(
            engine="llama.cpp",
            origin=origin,
            source=name,
            tally=Tally.of_counters(
                drafts=drafts,
                drafted_tokens=drafted,
                accepted_tokens=accepted,
                accepted_at=at,
                steps=steps,
                emitted_tokens=None if steps is None else steps + accepted,
            ),
            translations=(
                Translation(
                    name="#calls",
                    value=tuple(float(c) for c in calls),
                    meaning="begin, generate and accumulate calls of this kind of draft since the start",
                    ours="steps = generate calls" if steps is not None else "shown only",
                    kind="derived",
                ),
                Translation(name="#gen drafts", value=drafts, meaning="drafts made", ours="drafts"),
                Translation(
                    name="#acc drafts",
                    value=hit,
                    meaning="drafts with at least one token accepted",
                    ours="position_rates_unconditional[0] = this / drafts",
                ),
                Translation(name="#gen tokens", value=drafted, meaning="tokens drafted", ours="drafted_tokens"),
                Translation(name="#acc tokens", value=accepted, meaning="bonus excluded", ours="accepted_tokens"),
            ),
            notes=("the last cumulative line since the server's start was used",)
            + (() if len(totals) == 1 else ("several kinds draft in turn: all steps cannot be told for one of them",)),
        )


def _llamacpp_tool(tool: dict[str, int], origin: str) -> Observation:
    """Counters that llama.cpp's command-line tools print at their end."""
    drafted, accepted, tokens = tool["n_drafted"], tool["n_accept"], tool.get("n_predict")
    steps = None if tokens is None or tokens < accepted else tokens - accepted
    return Observation(
        engine="llama.cpp",
        origin=origin,
        source="llama.cpp",
        tally=checked(
            replace(
                UNKNOWN,
                steps=steps,
                emitted_tokens=None if steps is None else tokens,
                drafted_tokens=drafted,
                verified_tokens=drafted,
                accepted_tokens=accepted,
            )
        ),
        translations=(
            Translation(name="n_drafted", value=drafted, meaning="draft tokens verified", ours="drafted_tokens"),
            Translation(name="n_accept", value=accepted, meaning="accepted, bonus excluded", ours="accepted_tokens"),
            *(
                ()
                if steps is None
                else (
                    Translation(
                        name="n_predict",
                        value=tokens or 0,
                        meaning="tokens emitted; each pass emits one of its own",
                        ours="emitted_tokens; steps = this - n_accept",
                        kind="derived",
                    ),
                )
            ),
        ),
        notes=("these counters do not say how many drafts there were: alpha is bounded, not known",),
    )


def _llamacpp_slots(lines: list[_Line], tokens: int, requests: int, origin: str) -> Observation:
    tally, notes = _pooled(lines, per_request=True)
    accepted, drafted = tally.accepted_tokens or 0, tally.drafted_tokens or 0
    steps = tokens - requests - accepted
    complete = requests == len(lines) and steps >= (tally.drafts or 0) and tokens > 0
    if complete:
        tally = replace(tally, steps=steps, emitted_tokens=steps + accepted)
    else:
        notes.append("'eval time' lines do not match the drafts' lines one to one: all steps stay unknown")
    return Observation(
        engine="llama.cpp",
        origin=origin,
        source="llama.cpp",
        tally=checked(tally),
        translations=(
            Translation(name="accepted", value=accepted, meaning="tokens, bonus excluded", ours="accepted_tokens"),
            Translation(name="generated", value=drafted, meaning="draft tokens verified", ours="drafted_tokens"),
            Translation(
                name="mean acceptance length",
                value=tuple(line.mean_length for line in lines),
                meaning="1 + accepted / verification steps that had a draft, per request",
                ours="tokens_per_drafted_step; drafts recovered from it",
                kind="derived",
            ),
            Translation(
                name="eval time ... tokens",
                value=tokens,
                meaning="tokens of the requests; less one per request and the accepted ones, these are the steps",
                ours="steps" if complete else "shown only",
                kind="derived",
            ),
        ),
        notes=tuple(notes),
    )
