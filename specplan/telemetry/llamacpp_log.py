"""llama.cpp's log: requests of its server, totals by kind of draft, and what its tools print at their end."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from specplan.records.tally import UNKNOWN, Tally, checked
from specplan.telemetry.observation import Observation, Translation, translated
from specplan.telemetry.rounded import RateLine, pooled, recover_drafts

_NUMBER: Final = r"(\d+(?:\.\d+)?|nan)"
_SLOT: Final = re.compile(
    rf"draft acceptance(?: rate)? = +{_NUMBER} +\( *(\d+) accepted / +(\d+) generated\)"
    rf"(?:, mean acceptance length = +{_NUMBER}, acceptance rate per position = \(([\d., ]*)\))?"
)
_TOTAL: Final = re.compile(
    r"statistics +([\w.-]+): #calls(?:\(b,g,a\))? = +([\d ]+?), #gen drafts = +(\d+), #acc drafts = +(\d+), "
    r"#gen tokens = +(\d+), #acc tokens = +(\d+)"
    rf"(?:, #mean acc len = +{_NUMBER}, #acc rate/pos = \(([\d., ]*)\))?"
    r"(?:, dur(?:\(b,g,a\))? = +([\d., ]+) ms)?"
)
_TOOL: Final = re.compile(r"\b(n_draft|n_drafted|n_accept|n_predict) += (\d+)\s*$")
_EVAL: Final = re.compile(r"(prompt )?eval time += +([\d.]+) ms / +(\d+) (?:tokens|runs)")
_SECTION: Final = re.compile(r"^\s*(?:\S+ +[A-Z] +)?(draft|target):\s*$")


def _rates(text: str | None) -> list[float]:
    return [float(part) for part in (text or "").split(",") if part.strip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Eval:
    ms: float
    tokens: int


@dataclass(slots=True)
class LlamaLines:
    """What the lines of llama.cpp add up to so far: requests, totals by kind of draft, counters of a tool."""

    slots: list[RateLine] = field(default_factory=list)
    totals: dict[str, re.Match[str]] = field(default_factory=dict)
    tool: dict[str, int] = field(default_factory=dict)
    evals: list[_Eval] = field(default_factory=list)
    section: str = ""
    timed: dict[tuple[str, str], _Eval] = field(default_factory=dict)

    def add(self, line: str) -> bool:
        """Take a line; False where it is none of llama.cpp's."""
        if "draft acceptance" in line and (m := _SLOT.search(line)):
            self.slots.append(
                RateLine(
                    mean_length=float(m[4] or "nan"),
                    accepted=int(m[2]),
                    drafted=int(m[3]),
                    rates=tuple(_rates(m[5])),
                )
            )
        elif "statistics" in line and (m := _TOTAL.search(line)):
            self.totals[m[1]] = m
        elif "eval time" in line and (m := _EVAL.search(line)):
            found = _Eval(ms=float(m[2]), tokens=int(m[3]))
            if self.section:
                self.timed[self.section, "prompt" if m[1] else "eval"] = found
            elif not m[1]:
                self.evals.append(found)
        elif "n_" in line and (m := _TOOL.search(line)):
            self.tool[m[1]] = int(m[2])
        elif ":" in line and (m := _SECTION.match(line)):
            self.section = m[1]
        else:
            return False
        return True

    def observations(self, origin: str) -> list[Observation]:
        """One entry per kind of draft, or of the requests, or of a tool."""
        if self.totals:
            return list(_totals(self, origin))
        if self.slots:
            return [_requests(self, origin)]
        return [_tool(self, origin)] if {"n_drafted", "n_accept"} <= self.tool.keys() else []


def _totals(log: LlamaLines, origin: str) -> Iterator[Observation]:
    for name, m in log.totals.items():
        calls = [int(c) for c in m[2].split()]
        drafts, hit, drafted, accepted = (int(m[i]) for i in (3, 4, 5, 6))
        # One figure: generation calls; three: begin, generate, accumulate.
        asked = calls[1] if len(calls) == 3 else calls[0]
        steps = asked if len(log.totals) == 1 and asked >= drafts else None
        rates = _rates(m[8])
        found = recover_drafts(float(m[7]), accepted, drafted, rates) if m[7] and rates else None
        at = found.accepted_at if found is not None and found.drafts == drafts else None
        tally = Tally.of_counters(
            drafts=drafts,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            accepted_at=at,
            steps=steps,
            emitted_tokens=None if steps is None else steps + accepted,
        )
        yield _timed(
            Observation(
                engine="llama.cpp",
                origin=origin,
                source=name,
                tally=tally,
                translations=(
                    translated(
                        "llama.cpp",
                        "#calls",
                        tuple(float(c) for c in calls),
                        ours="" if steps is not None else "shown only",
                        kind="derived",
                    ),
                    translated("llama.cpp", "#gen drafts", drafts),
                    translated("llama.cpp", "#acc drafts", hit),
                    translated("llama.cpp", "#gen tokens", drafted),
                    translated("llama.cpp", "#acc tokens", accepted),
                ),
                notes=("the last cumulative line since the server's start was used",)
                + (
                    ()
                    if len(log.totals) == 1
                    else ("several kinds draft in turn: all steps cannot be told for one of them",)
                ),
            ),
            sum(_rates(m[9])) or None,
            log.evals,
        )


def _timed(seen: Observation, draft_ms: float | None, evals: list[_Eval]) -> Observation:
    """The observation with the times of its steps, where the requests' tokens are those of its steps.

    Seconds per step are the requests' decoding time over the steps. A draft pass makes one token (a model's), so it
    takes the drafting time over the drafted tokens; what is left of a step is the verifying pass.
    """
    tally, ms = seen.tally, sum(e.ms for e in evals)
    if tally is None or not tally.steps or not evals or not ms:
        return seen
    told = sum(e.tokens for e in evals) - len(evals)
    if abs(told - (tally.emitted_tokens or 0)) > 0.02 * told + 2 * len(evals):
        return seen
    step = ms / tally.steps
    if draft_ms is None or not tally.drafted_tokens or draft_ms >= ms:
        return replace(seen, step_s=step / 1e3)
    draft, verify = draft_ms / tally.drafted_tokens, (ms - draft_ms) / tally.steps
    return replace(
        seen,
        step_s=step / 1e3,
        draft_share=draft_ms / ms,
        translations=(
            *seen.translations,
            translated("llama.cpp", "dur(b,g,a)", draft_ms),
            _derived("draft ms / drafted token", draft, "milliseconds of one draft pass", "draft pass"),
            _derived("verify ms / step", verify, "milliseconds of a step outside drafting", "verifying pass"),
        ),
        notes=(
            *seen.notes,
            f"a draft pass takes {draft / verify:.3f} of a verifying pass: c is at least that (c over a plain pass)",
        ),
    )


def _derived(name: str, value: float, meaning: str, ours: str) -> Translation:
    return Translation(name=name, value=value, meaning=meaning, ours=ours, kind="derived")


def _tool(log: LlamaLines, origin: str) -> Observation:
    """Counters that llama.cpp's command-line tools print at their end, and the times of their two models."""
    tool = log.tool
    drafted, accepted, tokens = tool["n_drafted"], tool["n_accept"], tool.get("n_predict")
    steps = None if tokens is None or tokens < accepted else tokens - accepted
    rows = [translated("llama.cpp", "n_drafted", drafted), translated("llama.cpp", "n_accept", accepted)]
    if steps is not None:
        rows.append(translated("llama.cpp", "n_predict", tokens or 0, kind="derived"))
    if "n_draft" in tool:
        rows.append(translated("llama.cpp", "n_draft", tool["n_draft"]))
    tally = checked(
        replace(
            UNKNOWN,
            steps=steps,
            emitted_tokens=None if steps is None else tokens,
            drafted_tokens=drafted,
            verified_tokens=drafted,
            accepted_tokens=accepted,
        )
    )
    notes = ["these counters do not say how many drafts there were: alpha is bounded, not known"]
    times, told = _two_models(log.timed, steps, drafted)
    return Observation(
        engine="llama.cpp",
        origin=origin,
        source="llama.cpp",
        tally=tally,
        c=times.get("c"),
        v=times.get("v"),
        mean_batch=1.0,
        translations=(*rows, *told),
        notes=tuple(notes),
    )


def _two_models(
    timed: dict[tuple[str, str], _Eval], steps: int | None, drafted: int
) -> tuple[dict[str, float], list[Translation]]:
    """C and v from the times of the draft and of the target in one output.

    The draft's single passes are its "eval" runs; the target's passes over one token its "eval" runs (steps whose draft
    was empty), those over several its "prompt eval", whose first is the prompt.
    """
    rows: list[Translation] = []
    draft, plain, wide = timed.get(("draft", "eval")), timed.get(("target", "eval")), timed.get(("target", "prompt"))
    one = None if draft is None or not draft.tokens or not draft.ms else draft.ms / draft.tokens
    if one is not None:
        rows.append(translated("llama.cpp", "draft: eval time", one, spelt="draft: eval time / run"))
    base = None if plain is None or plain.tokens < 2 or not plain.ms else plain.ms / plain.tokens
    if base is not None:
        rows.append(translated("llama.cpp", "target: eval time", base, spelt="target: eval time / run"))
    verify = None
    if wide is not None and steps and wide.ms and drafted:
        passes = max(1, steps - (plain.tokens if plain is not None else 0))
        verify = wide.ms / passes
        rows.append(
            translated("llama.cpp", "target: prompt eval time", verify, spelt="target: prompt eval time / step")
        )
    found: dict[str, float] = {}
    if one is not None and base is not None:
        found["c"] = one / base
        rows.append(_derived("c", one / base, "a draft pass over the target's pass of one token", "c"))
    elif one is not None and verify is not None:
        found["c"] = one / verify
        rows.append(
            _derived(
                "c", one / verify, "a draft pass over a verifying pass: no pass of one token was timed", "c at least"
            )
        )
    if verify is not None and base is not None:
        found["v"] = verify / base
        rows.append(_derived("v", verify / base, "a verifying pass, the prompt's in it, over a plain one", "v at most"))
    return found, rows


def _requests(log: LlamaLines, origin: str) -> Observation:
    tally, notes = pooled(log.slots, per_request=True)
    accepted, drafted = tally.accepted_tokens or 0, tally.drafted_tokens or 0
    tokens, requests = sum(e.tokens for e in log.evals), len(log.evals)
    steps = tokens - requests - accepted
    complete = requests == len(log.slots) and steps >= (tally.drafts or 0) and tokens > 0
    if complete:
        tally = replace(tally, steps=steps, emitted_tokens=steps + accepted)
    else:
        notes.append("'eval time' lines do not match the drafts' lines one to one: all steps stay unknown")
    return _timed(
        Observation(
            engine="llama.cpp",
            origin=origin,
            source="llama.cpp",
            tally=checked(tally),
            translations=(
                translated("llama.cpp", "accepted", accepted),
                translated("llama.cpp", "generated", drafted),
                translated(
                    "llama.cpp",
                    "mean acceptance length",
                    tuple(line.mean_length for line in log.slots),
                    kind="derived",
                ),
                translated(
                    "llama.cpp",
                    "eval time ... tokens",
                    tokens,
                    ours="" if complete else "shown only",
                    kind="derived",
                ),
            ),
            notes=tuple(notes),
        ),
        None,
        log.evals if complete else [],
    )
