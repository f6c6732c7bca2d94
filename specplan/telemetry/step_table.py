"""What servers and benchmarks measured of whole steps, as a table for the measured layer."""

from collections.abc import Sequence
from typing import Any

from specplan.errors import InputError
from specplan.telemetry.observation import Observation
from specplan.timing.served_steps import ServedPoint, served_rows, tokens_per_step


def served_point(seen: Observation, context_len: int = 0) -> ServedPoint | str:
    """The step that an observation measured, or what it lacks.

    The mean time between a request's answers is the time of a step, by the engine's own histogram or from outside; the
    batch is the engine's mean, what ran at the scrape, or a benchmark's requests in flight.
    """
    speed = seen.speed
    step_s = seen.step_s or (None if speed is None else speed.chunk_s)
    batch = seen.mean_batch or (None if seen.load is None else seen.load.running)
    if step_s is None:
        return "no mean time of a step (inter-token latency)"
    if not batch:
        return "no mean batch (iterations, running requests or concurrency)"
    drafted = _drafted(seen)
    if drafted is None:
        return "drafts of an unknown length"
    emitted = _tokens_per_answer(seen)
    if drafted == 0 and emitted > 1.05:
        return f"{emitted:.2f} tokens per answer (inter-token latency over time per token): drafts of unknown length"
    if drafted == 0:
        return ServedPoint(batch=batch, plain_s=step_s, context_len=context_len)
    return ServedPoint(batch=batch, drafted_s=step_s, kappa=drafted, context_len=context_len)


def _tokens_per_answer(seen: Observation) -> float:
    """Of a benchmark's two latencies; 1 without them."""
    speed = seen.speed
    if speed is None or speed.chunk_s is None or speed.token_s is None:
        return 1.0
    return tokens_per_step(speed.chunk_s, speed.token_s)


def _drafted(seen: Observation) -> float | None:
    """Mean drafted tokens of a step, those without a draft included where they are counted.

    0 of an engine that does not draft, None where it is not told.
    """
    if seen.tally is None:
        known = None if seen.means is None else seen.means.draft_len or seen.means.chain_len
        speculates = seen.means is not None and (seen.means.tokens_per_drafted_step or seen.means.accepted_per_drafted)
        return None if speculates and not known else known or 0
    if not seen.tally.drafts or seen.tally.drafted_tokens is None:
        return 0 if seen.tally.drafts == 0 else None
    return seen.tally.drafted_tokens / (seen.tally.steps or seen.tally.drafts)


def step_table(observed: Sequence[Observation], context_len: int = 0) -> dict[str, Any]:
    """The table's document, which ``--measured TARGET=FILE`` reads.

    Raises
    ------
    InputError
        Where no observation has a step's time and batch; it names what each lacks.
    """
    points = [(seen, served_point(seen, context_len)) for seen in observed]
    lacking = [f"{seen.origin}: {point}" for seen, point in points if isinstance(point, str)]
    rows = [
        {"batch": batch, "width": width, "context": context, "seconds": seconds, "origin": seen.origin}
        for seen, point in points
        if isinstance(point, ServedPoint)
        for batch, width, context, seconds in served_rows([point])
    ]
    if not rows:
        raise InputError(f"no step to write a table of; {'; '.join(lacking)}")
    return {"kind": "step_table", "whole_steps": True, "rows": rows, "left_out": lacking}
