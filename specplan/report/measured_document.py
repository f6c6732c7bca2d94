"""Measured sources as JSON: one form for replay, ingest and measure."""

from collections.abc import Sequence
from typing import Any, Final

from specplan.decide.drift import Drift
from specplan.decide.measured import ASSUMPTIONS, MeasuredSource
from specplan.decide.measured_point import NOT_MODELED, MeasuredPoint

PROVENANCE: Final[dict[str, str]] = {
    "steps": "measured",
    "drafts": "measured",
    "drafted_tokens": "measured",
    "accepted_tokens": "measured",
    "alpha": "measured",
    "coverage": "measured",
    "tokens_per_step": "measured",
    "c": "derived",
    "speedup": "derived",
    "alpha_break_even": "derived",
    "best_kappa": "derived",
}
"""Where each figure comes from, unless the source's own ``provenance`` says otherwise."""


def measured_entry(m: MeasuredSource) -> dict[str, Any]:
    """One source: counts, alpha with its interval, rates by position, E both ways.

    Unknown figures are null. ``alpha_basis`` says what the interval rests on.
    """
    t = m.tally
    return {
        "source": m.source,
        "tag": m.tag,
        "requests": None if t is None else t.requests,
        "prefills": None if t is None else t.prefills,
        "steps": None if t is None else t.steps,
        "drafts": None if t is None else t.drafts,
        "drafted_tokens": None if t is None else t.drafted_tokens,
        "accepted_tokens": None if t is None else t.accepted_tokens,
        "tested_tokens": None if t is None else t.tested_tokens,
        "verified_tokens": None if t is None else t.verified_tokens,
        "emitted_tokens": None if t is None else t.emitted_tokens,
        "wasted_tokens": wasted(m),
        "accepted_histogram": None if t is None else t.accepted_histogram,
        "accepted_per_position": None if t is None else t.accepted_at,
        "tested_per_position": None if t is None else t.tested_at,
        "coverage": m.coverage,
        "hit_rate": m.hit_rate,
        "continuation_rate": m.continuation_rate,
        "alpha": m.alpha.value,
        "alpha_low": m.alpha.low,
        "alpha_high": m.alpha.high,
        "alpha_basis": m.alpha.basis,
        "position_rates_unconditional": m.position_rates_unconditional,
        "position_rates_conditional": m.position_rates_conditional,
        "tokens_per_step": m.tokens_per_step,
        "tokens_per_drafted_step": m.tokens_per_drafted_step,
        "accepted_per_drafted": m.accepted_per_drafted,
        "mean_draft_len": m.draft_len,
        "by_draft_len": [
            {"drafted": row.drafted, "drafts": row.drafts, "accepted_tokens": row.accepted_tokens, "alpha": row.alpha}
            for row in m.lengths
        ],
        "draft_s": None if t is None else t.draft_s,
        "verify_s": None if t is None else t.verify_s,
        "host_s": None if t is None else t.host_s,
        "provenance": "measured" if m.alpha.kind == "measured" else "derived",
        "confidence_explains": m.confidence_explains,
        "notes": list(m.notes),
    }


def wasted(m: MeasuredSource) -> int | None:
    """Draft positions that were verified and not accepted."""
    t = m.tally
    if t is None or t.verified_tokens is None or t.accepted_tokens is None:
        return None
    return t.verified_tokens - t.accepted_tokens


def point_entry(p: MeasuredPoint) -> dict[str, Any]:
    """Where a source lies and whether it pays."""
    return {
        "target": p.place.pair.target.name,
        "gpu": p.place.pair.accelerator.name,
        "tensor_parallel_size": p.place.pair.tp,
        "batch": p.place.batch,
        "context": p.place.context_len,
        "kappa": p.kappa,
        "c": p.c,
        "c_origin": p.c_origin,
        "alpha": p.measured.alpha.value,
        "alpha_break_even": p.alpha_break_even,
        "step_cost": p.step_cost,
        "speedup": p.speedup,
        "expected_speedup": p.expected_speedup,
        "pays": p.pays,
        "impossible": p.impossible,
        "byte_floor_s": p.floor_s,
        "best_kappa": p.best_kappa,
        "best_speedup": p.best_speedup,
        "expected_tokens_per_step": p.expected_emitted,
        "observed_tokens_per_step": p.measured.tokens_per_step,
        "plain_step_s": p.plain_s,
        "expected_step_s": p.expected_step_s,
        "observed_step_s": p.place.observed_step_s,
        "tokens_per_s": p.tokens_per_s,
        "sentence": p.sentence,
    }


def drift_entry(d: Drift | None) -> dict[str, Any] | None:
    """A fall of accepted tokens per step in the course of a trace."""
    if d is None:
        return None
    return {
        "baseline_accepted_per_step": d.baseline,
        "baseline_windows": d.baseline_windows,
        "fall": d.fall,
        "at_request": d.at_request,
        "sigmas": d.sigmas,
    }


def envelope(command: str, inputs: dict[str, Any], sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document around the sources: inputs, provenance, assumptions, what is not modelled."""
    return {
        "command": command,
        "inputs": inputs,
        "sources": list(sources),
        "provenance": PROVENANCE,
        "assumptions": list(ASSUMPTIONS),
        "not_modeled": list(NOT_MODELED),
    }
