"""A measurement of a running server: what it would send, as tables, and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from specplan.decide.measured import ASSUMPTIONS
from specplan.decide.served_speed import NOT_MODELED, ServedSpeed
from specplan.report.measured_document import PROVENANCE, measured_entry
from specplan.report.measured_table import figure_table, print_line, print_measured, print_positions

_PROVENANCE: Final = {
    "tokens_per_s": "measured",
    "measured_speedup": "measured",
    "step_s": "measured",
    "mean_batch": "measured",
    "prompt_tokens": "assumed",
}


def served_entry(s: ServedSpeed) -> dict[str, Any]:
    """One concurrency and tag."""
    return measured_entry(s.measured) | {
        "concurrency": s.concurrency,
        "tokens_per_s": s.tokens_per_s,
        "plain_tokens_per_s": s.plain_tokens_per_s,
        "measured_speedup": s.speedup,
        "measured_speedup_low": s.speedup_low,
        "measured_speedup_high": s.speedup_high,
        "verdict": s.verdict,
        "step_s": s.step_s,
        "plain_step_s": s.plain_step_s,
        "step_over_plain_step": s.step_ratio,
        "mean_batch": s.batch,
        "plain_mean_batch": s.plain_batch,
        "sentence": s.sentence,
    }


def server_document(
    inputs: Mapping[str, Any],
    cost: Mapping[str, int],
    speeds: Sequence[ServedSpeed] = (),
    *,
    context_len: int | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The document of ``specplan measure --server``; without speeds, of what it would send."""
    return {
        "command": "measure",
        "inputs": dict(inputs),
        "sent": bool(speeds),
        "cost": dict(cost),
        "sources": [served_entry(s) for s in speeds],
        "context": context_len,
        "provenance": PROVENANCE | _PROVENANCE,
        "assumptions": list(ASSUMPTIONS),
        "not_modeled": list(NOT_MODELED),
        "notes": list(notes),
    }


def cost_sentence(cost: Mapping[str, int], *, where: str, at: str) -> str:
    """What is sent, in one sentence.

    >>> cost_sentence({"requests": 4, "prompt_tokens": 400, "answer_tokens": 256}, where="http://a", at="1, 2")[:57]
    '4 requests to http://a, 1, 2 at a time: about 400 tokens '
    """
    return (
        f"{cost['requests']:,} requests to {where}, {at} at a time: about {cost['prompt_tokens']:,} tokens of prompts "
        f"(assumed, 4 characters each) and at most {cost['answer_tokens']:,} of answers"
    )


def print_server(speeds: Sequence[ServedSpeed], notes: Sequence[str], console: Console) -> None:
    """Acceptance and speed by concurrency, and one sentence for each."""
    whole = [s for s in speeds if not s.measured.tag]
    for s in whole:
        tags = [t.measured for t in speeds if t.concurrency == s.concurrency and t.measured.tag]
        print_line(f"\n{s.concurrency} at a time", console)
        print_measured([s.measured, *tags], console)
        print_positions([s.measured, *tags], console)
    console.print()
    table = figure_table(
        ("at a time", "right"),
        ("tag", "left"),
        *((n, "right") for n in ("tok/s", "plain tok/s", "speedup", "step ms", "plain ms", "batch", "plain batch")),
    )
    for s in speeds:
        between = "" if s.speedup_low is None else f" ({s.speedup_low:.2f}-{s.speedup_high:.2f})"
        table.add_row(
            str(s.concurrency),
            s.measured.tag or "all",
            _figure(s.tokens_per_s),
            _figure(s.plain_tokens_per_s),
            "-" if s.speedup is None else f"{s.speedup:.2f}x{between}",
            *(_figure(None if t is None else 1e3 * t, 2) for t in (s.step_s, s.plain_step_s)),
            *(_figure(b, 2) for b in (s.batch, s.plain_batch)),
        )
    console.print(table)
    console.print(
        "measured: tok/s of one request behind its first token; steps by the server's counters, where it has them; "
        "batch: requests in flight as each meets them; intervals over rounds, each paired with the same requests under "
        "plain decoding",
        style="dim",
        highlight=False,
    )
    for note in notes:
        print_line(f"note: {note}", console)
    for s in speeds:
        print_line(s.sentence, console)


def _figure(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
