"""A measurement of the harness as a JSON document, as tables, and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from specplan.decide import engine_speed
from specplan.decide.engine_speed import EngineSpeed
from specplan.decide.measured import ASSUMPTIONS, MeasuredSource
from specplan.decide.measured_speed import NOT_MODELED, MeasuredSpeed, plane_source
from specplan.report.measured_document import PROVENANCE, measured_entry
from specplan.report.measured_table import figure_table, print_line, print_measured, print_positions

SPEED_PROVENANCE: Final = {
    "tokens_per_s": "measured",
    "measured_speedup": "measured",
    "c": "measured",
    "v": "measured",
    "predicted_speedup": "derived",
}


def speed_entry(s: MeasuredSpeed) -> dict[str, Any]:
    """One source on one set of prompts: its acceptance, its speed, and what predicts it."""
    return measured_entry(s.measured) | {
        "num_speculative_tokens": s.kappa,
        "tokens_per_s": s.tokens_per_s,
        "plain_tokens_per_s": s.plain_tokens_per_s,
        "draft_step_s": s.draft_s,
        "verify_step_s": s.verify_s,
        "host_step_s": s.host_s,
        "c": s.c,
        "draft_over_plain_pass": s.draft_step_ratio,
        "v": s.v,
        "v_by_width": [{"width": width, "v": v} for width, v in s.widths],
        "measured_speedup": s.speedup,
        "measured_speedup_low": s.speedup_low,
        "measured_speedup_high": s.speedup_high,
        "verdict": s.verdict,
        "predicted_speedup": s.predicted_speedup,
        "predicted_tokens_per_s": s.predicted_tokens_per_s,
        "predicted_tokens_per_step": s.predicted_emitted,
        "predicted_step_s": s.predicted_step_s,
        "measured_over_predicted_emitted": s.emitted_ratio,
        "predicted_over_measured_step_time": s.time_ratio,
        "sentence": s.sentence,
    }


def engine_entry(s: EngineSpeed) -> dict[str, Any]:
    """One source on one set of prompts inside an engine: its acceptance and its speed."""
    return measured_entry(s.measured) | {
        "tokens_per_s": s.tokens_per_s,
        "plain_tokens_per_s": s.plain_tokens_per_s,
        "measured_speedup": s.speedup,
        "step_over_plain_step": s.step_cost,
        "sentence": s.sentence,
    }


def measure_document(
    inputs: Mapping[str, Any],
    speeds: Sequence[MeasuredSpeed],
    plain: Sequence[MeasuredSource],
    passes: Mapping[int, float],
    context_len: int,
    engine: Sequence[EngineSpeed] = (),
    warm_up_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The document that ``specplan measure --json`` prints and writes."""
    return {
        "command": "measure",
        "inputs": dict(inputs),
        "sources": [*(speed_entry(s) for s in speeds), *(engine_entry(s) for s in engine)],
        "plain": [measured_entry(m) for m in plain],
        "warm_up_s": dict(warm_up_s or {}),
        "pass_times": {
            "context": context_len,
            "widths": list(passes),
            "target_pass_s": list(passes.values()),
        },
        "provenance": PROVENANCE | SPEED_PROVENANCE,
        "assumptions": list(ASSUMPTIONS),
        "not_modeled": list(engine_speed.NOT_MODELED if engine else NOT_MODELED),
    }


def print_measurement(
    speeds: Sequence[MeasuredSpeed],
    passes: Mapping[int, float],
    context_len: int,
    console: Console,
    warm_up_s: Mapping[str, float] | None = None,
) -> None:
    """Acceptance, speed, and one sentence per source."""
    print_measured([s.measured for s in speeds], console)
    print_positions([s.measured for s in speeds], console)
    console.print()
    table = figure_table(
        ("source", "left"),
        ("tag", "left"),
        *((name, "right") for name in ("tok/s", "speedup", "predicted", "c", "v", "draft ms", "verify ms", "host ms")),
        *((name, "right") for name in ("E meas/pred", "T pred/meas")),
    )
    for s in speeds:
        table.add_row(
            s.measured.source,
            s.measured.tag,
            f"{s.tokens_per_s:.1f}",
            f"{s.speedup:.2f}x" + ("" if s.speedup_low is None else f" ({s.speedup_low:.2f}-{s.speedup_high:.2f})"),
            f"{s.predicted_speedup:.2f}x",
            "0 (host)" if s.c is None else f"{s.c:.3f}",
            f"{s.v:.2f}",
            *(f"{1e3 * seconds:.2f}" for seconds in (s.draft_s, s.verify_s, s.host_s)),
            f"{s.emitted_ratio:.3f}",
            f"{s.time_ratio:.3f}",
        )
    console.print(table)
    widths = ", ".join(f"{w}: {1e3 * t:.2f}" for w, t in passes.items())
    console.print(
        f"measured: tok/s, speedup over plain decoding, c and v from single passes (ms by width at context "
        f"{context_len}: {widths}). Host matching is not overlapped with the device: draft and verify times add up.",
        style="dim",
        highlight=False,
    )
    if warm_up_s:
        spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in warm_up_s.items())
        print_line(f"warmed up before the clock ran (kernels compiled, caches made): {spent}", console)
    for s in speeds:
        if (share := s.measured.confidence_explains) is not None:
            print_line(
                f"{s.measured.source}{f' on {s.measured.tag}' if s.measured.tag else ''}: the probabilities of its own "
                f"drafts explain {share:.0%} of whether they are accepted (adaptive={share:.2f})",
                console,
            )
    for s in speeds:
        print_line(s.sentence, console)


def print_engine(speeds: Sequence[EngineSpeed], runner: str, console: Console) -> None:
    """Acceptance and speed inside an engine, and one sentence per source."""
    print_measured([s.measured for s in speeds], console)
    print_positions([s.measured for s in speeds], console)
    console.print()
    table = figure_table(
        ("source", "left"), ("tag", "left"), *((n, "right") for n in ("tok/s", "plain tok/s", "speedup", "step cost"))
    )
    for s in speeds:
        table.add_row(
            s.measured.source,
            s.measured.tag,
            f"{s.tokens_per_s:.1f}",
            f"{s.plain_tokens_per_s:.1f}",
            f"{s.speedup:.2f}x",
            "-" if s.step_cost is None else f"{s.step_cost:.2f}",
        )
    console.print(table)
    console.print(
        f"measured in {runner}: tok/s over the decode steps' wall time; step cost is a mean step over a plain one",
        style="dim",
        highlight=False,
    )
    for s in speeds:
        print_line(s.sentence, console)


def draw_measurement(speeds: Sequence[MeasuredSpeed], folder: Path, title: str, **look: Any) -> None:
    """``plane.svg``, every measured source as a point, and ``speeds.svg``, measured speedups beside predicted ones.

    `look` as `specplan.report.drawing.Drawing`; `title` is the heading where it has none.
    """
    from specplan.decide.documents import shortest_measured
    from specplan.decide.plane import plane
    from specplan.report.compare_plot import draw_speeds
    from specplan.report.picture import save
    from specplan.report.plane_plot import draw_planes

    look = look | {"title": title if look.get("title") is None else look["title"]}
    points = [plane_source(s) for s in speeds]
    drawn = plane(points, kappa=shortest_measured([p.source for p in points]) or min(s.kappa for s in speeds))
    save(draw_planes([drawn], **look), folder / "plane.svg", title)
    save(draw_speeds(speeds, **look), folder / "speeds.svg", title)
