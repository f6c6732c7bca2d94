"""`specplan replay`."""

from typing import TYPE_CHECKING

import typer

from specplan.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from specplan.decide.classes import ClassPlan
    from specplan.decide.pricing import Pair
    from specplan.traces.summary import Replayed


def replay(
    traces: list[str] = typer.Argument(
        ..., help="Recorded requests: JSONL (.gz, .zst), JSON, Parquet, vLLM logs; globs work. 'smollm2' is shipped."
    ),
    source: list[str] = typer.Option(
        [], "--source", "-s", help="Draft source, such as ngram:min=2,max=5,k=3, suffix, sglang-ngram:budget=8."
    ),
    grid: list[str] = typer.Option(
        [], "--grid", help="Sources with several values, such as ngram:min=1..5,max=5|8,k=3|5|7; the best is named."
    ),
    prompt_field: str = typer.Option(None, "--prompt-field", help="Field of the prompt (ids or text; a.b.c works)."),
    response_field: str = typer.Option(
        None,
        "--response-field",
        help="Field of the response (ids or text); by default what the steps emitted, where a trace has it.",
    ),
    tag_field: str = typer.Option(None, "--tag-field", help="Field that groups the report. [default: kind or tag]"),
    id_field: str = typer.Option(None, "--id-field", help="Field of the request id. [default: id, request_id, ...]"),
    tokenizer: str = typer.Option(None, "--tokenizer", help="tokenizer.json or its folder, for text and chats."),
    chat_template: str = typer.Option(None, "--chat-template", help="File with the template of the chats."),
    turns: str = typer.Option("last", "--turns", help="Which answers of a chat are responses: last or all."),
    strict: bool = typer.Option(False, "--strict", help="Stop at the first broken line instead of skipping it."),
    concurrency: int = typer.Option(1, "--concurrency", help="Requests that the engine ran at a time."),
    order: str = typer.Option("arrival", "--order", help="arrival, recorded (the trace's step_order), shuffle:SEED."),
    replicas: int = typer.Option(1, "--replicas", help="Engines that share the requests, each with its own store."),
    jobs: int = typer.Option(1, "--jobs", "-j", help="Processes."),
    on: str = typer.Option("local", "--on", help="Where the work runs: local or ray."),
    checkpoint: str = typer.Option(None, "--checkpoint", help="File to note finished parts in, and to resume from."),
    per_request: str = typer.Option(None, "--per-request", help="Write one JSON line per request and source here."),
    records: str = typer.Option(None, "--records", help="Write every step here, as JSON lines."),
    window: int = typer.Option(16, "--window", help="Requests per window of the drift series (at least)."),
    alert: str = typer.Option(
        None, "--alert", help="Exit with 1 if accepted tokens per step fell by more than this (20%)."
    ),
    target: str = typer.Option(None, "--target", help="Model that is served: adds speedup and time."),
    quantization: str = options.QUANTIZATION,
    gpu: str = options.GPU,
    tp: int = options.TP,
    batch: int = options.BATCH,
    context: str = options.CONTEXT_LEN,
    layer: str = options.LAYER,
    adaptive: bool = typer.Option(
        False, "--adaptive", help="What adaptive verification would give on --target, at batch 1, 16, 64, 256 and -b."
    ),
    picture: str = typer.Option(
        None,
        "--picture",
        help="With --adaptive: draft length by class of requests (tag) over batch, .svg, .png or .pdf.",
    ),
    timing: bool = typer.Option(False, "--timing", help="Show the time per step of specplan's own matchers."),
    json: bool = options.JSON,
) -> None:
    """Replay recorded tokens through draft sources as an engine would have run them: alpha without a GPU.

    For drafts without probabilities (all matchers), acceptance on a recorded output is an unbiased estimate at any
    temperature: a drafted token is accepted with the target's probability, and the record is a draw from it.
    """
    from pathlib import Path

    from specplan import units
    from specplan.decide.classes import ClassPlan
    from specplan.decide.drift import alert_threshold
    from specplan.decide.pricing import Pair
    from specplan.files.lines import BrokenLog
    from specplan.propose.spelling import grid_of, parse_source
    from specplan.report.progress import Bars
    from specplan.report.replay_report import ReplayFacts
    from specplan.runners import runner_of
    from specplan.specs.catalog import load_target
    from specplan.specs.hardware import load_accelerator
    from specplan.traces.adaptive import AdaptiveReplay, replay_adaptively
    from specplan.traces.read import TraceReader, find_files
    from specplan.traces.run import ReplayPlan, run
    from specplan.traces.shapes import Fields
    from specplan.traces.summary import best_of, replayed
    from specplan.traces.text import TextEncoder

    drawn = _asked_of_target(target, quantization, adaptive=adaptive, picture=picture)
    threshold = None if alert is None else alert_threshold(alert)
    named = {parse_source(text): text.strip() for text in source}
    for text in grid:
        named = grid_of(text) | named
    plan = ReplayPlan(
        paths=tuple(find_files(traces)),
        sources=tuple(named),
        labels=tuple(named.values()),
        concurrency=concurrency,
        order=order,
        replicas=replicas,
        window=window,
    )
    pair = None
    if target is not None:
        served = load_target(target, quantization)
        pair = Pair(target=served, accelerator=load_accelerator(gpu), tp=tp, layer=layer)
    reader = TraceReader(
        fields=Fields(prompt=prompt_field, response=response_field, tag=tag_field, id=id_field, turns=turns),
        encoder=None
        if tokenizer is None
        else TextEncoder(Path(tokenizer), None if chat_template is None else Path(chat_template)),
        broken=BrokenLog(fatal=strict, remedy="; leave out --strict to count and skip such lines"),
    )
    with Bars() as bars:
        result = run(
            plan,
            reader,
            runner=runner_of(on, jobs),
            checkpoint=None if checkpoint is None else Path(checkpoint),
            per_request=None if per_request is None else Path(per_request),
            records=None if records is None else Path(records),
            progress=bars.update,
        )
    sources = replayed(result, pair=pair, batch=batch, context_len=units.parse_count(context))
    best = best_of(sources) if grid else None
    facts = ReplayFacts(
        requests=result.requests,
        tokens=result.tokens,
        broken=result.broken.count,
        first_broken=tuple(str(line) for line in result.broken.first),
        notes=result.notes,
        best_by_tokens=None if best is None else best.by_tokens_per_step.measured.source,
        best_by_time=None if best is None or best.by_time is None else best.by_time.measured.source,
    )
    budgets: tuple[AdaptiveReplay, ...] = ()
    classes: list[tuple[str, tuple[ClassPlan, ...]]] = []
    if adaptive and pair is not None:
        loads, read = sorted({1, 16, 64, 256, batch}), list(reader.read(plan.paths))
        with Bars() as bars:
            length = units.parse_count(context)
            budgets = replay_adaptively(named, read, pair, loads, length, progress=bars.update)
        classes = _by_class(sources, pair, loads, length)
        if drawn is not None:
            _draw_classes(classes, drawn, f"Who should speculate: {target} on {tp} x {gpu}")
    if json:
        from specplan.report.json_document import render
        from specplan.report.replay_report import replay_document

        inputs = plan.inputs() | {"target": target, "quantization": quantization}
        inputs |= {"gpu": None if target is None else gpu, "batch": batch, "tp": tp}
        document = replay_document(inputs, sources, facts)
        if budgets:
            from specplan.report.adaptive_table import adaptive_entries, class_entries

            document["adaptive"] = adaptive_entries(budgets)
            document["classes"] = class_entries(classes)
        typer.echo(render(document))
    else:
        from specplan.report.console import Console
        from specplan.report.replay_report import print_replay

        console = Console(wide=True)
        print_replay(sources, facts, console, timing=timing)
        if budgets:
            from specplan.report.adaptive_table import print_adaptive, print_classes

            print_adaptive(budgets, console, where=f"for {target} on {tp} x {gpu}, context {context}")
            if classes:
                print_classes(classes, console)
    _fire(sources, threshold)


def _asked_of_target(
    target: str | None, quantization: str | None, *, adaptive: bool, picture: str | None
) -> "Path | None":
    """Where the picture goes; refuses options that need another beside them."""
    from specplan.errors import InputError
    from specplan.report.output_file import PICTURES, output_path

    if adaptive and target is None:
        raise InputError("--adaptive prices steps: name the model that is served, --target")
    if quantization and target is None:
        raise InputError(f"--quantization {quantization}: is the format of the model that is served; name it, --target")
    if picture is not None and not adaptive:
        raise InputError(f"--picture {picture}: draws draft lengths by class of requests; add --adaptive")
    return None if picture is None else output_path(picture, PICTURES)


def _fire(sources: "Sequence[Replayed]", threshold: float | None) -> None:
    """Name the sources that fell by more than the threshold and end with 1, if there are some."""
    if threshold is None:
        return
    fallen = [(r.measured.source, r.drift) for r in sources if r.drift is not None and r.drift.passes(threshold)]
    for name, fall in fallen:
        typer.echo(
            f"alert: {name}: accepted tokens per step fell by {fall.fall:.0%} at request {fall.at_request}",
            err=True,
        )
    if fallen:
        raise typer.Exit(1)


def _by_class(
    sources: "Sequence[Replayed]", pair: "Pair", loads: list[int], context_len: int
) -> "list[tuple[str, tuple[ClassPlan, ...]]]":
    """Draft lengths by class of requests, of the sources that drafted for at least two classes."""
    from specplan.decide.classes import class_plans
    from specplan.timing.draft_time import host_ngram_s

    matching = [float(host_ngram_s(n, context_len)) for n in loads]
    found = [(s.measured.source, class_plans(s.tags, pair, loads, context_len, matching)) for s in sources]
    return [(name, plans) for name, plans in found if plans]


def _draw_classes(classes: "list[tuple[str, tuple[ClassPlan, ...]]]", path: "Path", heading: str) -> None:
    from specplan.errors import InputError
    from specplan.report.class_plot import draw_classes
    from specplan.report.picture import save

    if not classes:
        raise InputError(f"--picture {path}: the trace has no two classes of requests (--tag-field)")
    save(draw_classes(classes, title=heading), path, heading)
