"""`specplan ingest`."""

import typer

from specplan.cli import options


def ingest(
    origins: list[str] = typer.Argument(
        None, help="URL of a metrics page, or files: page, log, bench result or summary, responses, trace (JSON)."
    ),
    before: str = typer.Option(None, "--before", help="An earlier scrape (URL or file): only what came since counts."),
    interval: float = typer.Option(None, "--interval", help="Scrape the address twice, this many seconds apart."),
    width: int = typer.Option(None, "--width", help="SGLang's num_draft_tokens, where the input does not tell it."),
    alert: list[str] = typer.Option(
        [], "--alert", help="Exit with 1 where it holds: alpha<0.5, length<2, coverage<0.3, waste>0.6, 20% (a fall)."
    ),
    rules: str = typer.Option(None, "--rules", help="Print Prometheus alert rules for vllm, sglang or llama.cpp."),
    words: bool = typer.Option(False, "--words", help="Print every engine's words by version, and what each is here."),
    timeout: float = typer.Option(10.0, "--timeout", help="Seconds for one answer over HTTP."),
    target: str = typer.Option(None, "--target", help="Model that the engine serves: adds cost, speedup, best k."),
    quantization: str = options.QUANTIZATION,
    draft: str = typer.Option(None, "--draft", "-d", help="Draft model that it runs; none for n-gram and suffix."),
    source: str = typer.Option(None, "--source", "-s", help="What it runs, as in every command; instead of --draft."),
    c: float = typer.Option(None, "--c", help="Cost of a draft step over a target step, if it is known."),
    gpu: str = options.GPU,
    tp: int = options.TP,
    batch: int = typer.Option(
        None, "--batch", "-b", help="Requests per step. [default: the engine's mean where it tells one, else 1]"
    ),
    context: str = options.CONTEXT_LEN,
    layer: str = options.LAYER,
    records: str = typer.Option(None, "--records", help="Write the single steps here, where the engine tells them."),
    table: str = typer.Option(
        None, "--step-table", help="Write what the engine's steps took here (JSON), for --measured TARGET=FILE."
    ),
    json: bool = options.JSON,
) -> None:
    """Read a running engine's metrics or logs: its figures translated, alpha, whether it pays, and a better k.

    vLLM, SGLang and llama.cpp each define acceptance in their own way; every figure is shown with the engine's
    definition and what it is here.
    """
    from pathlib import Path

    if words or (rules is not None and not origins):
        _print_reference(rules, json)
        return
    from specplan import units
    from specplan.api.sources import one_source
    from specplan.decide.change import alert as read_alert
    from specplan.decide.pricing import Pair
    from specplan.errors import InputError
    from specplan.records.files import StepWriter, refuse_overwrite
    from specplan.specs.catalog import load_model, load_target
    from specplan.specs.hardware import load_accelerator
    from specplan.telemetry.joined import joined
    from specplan.telemetry.read import read_origin
    from specplan.telemetry.summary import ingested

    if not origins or (width is not None and width < 2):
        raise InputError("name a URL or a file to read; --width is at least 2, the root and one drafted token")
    pair = None
    if source is not None and (draft is not None or c is not None):
        raise InputError(f"--source {source}: states the draft and its cost; leave out --draft and --c")
    if target is not None:
        served = load_target(target, quantization)
        drafter = None if draft is None else load_model(draft)
        if source is not None:
            named = one_source(source, target=served)
            drafter, c = named.model, 0.0 if named.is_weightless and named.c is None else named.c
        pair = Pair(target=served, draft=drafter, accelerator=load_accelerator(gpu), tp=tp, layer=layer)
    elif draft is not None or c is not None or source is not None or quantization is not None:
        raise InputError("--source, --draft, --c and --quantization price a target; give --target too")
    if before is not None and len(origins) > 1:
        raise InputError("--before is an earlier scrape of one address or file; give one of them")
    alerts = [read_alert(text) for text in alert]
    outputs = [None if path is None else Path(path) for path in (records, table)]
    refuse_overwrite(outputs, [Path(origin) for origin in origins])
    observed = [
        o
        for origin in origins
        for o in read_origin(origin, before=before, interval_s=interval, timeout_s=timeout, width=width)
    ]
    observed = joined(observed)
    found = ingested(observed, pair=pair, c=c, batch=batch, context_len=units.parse_count(context))
    if records is not None:
        with StepWriter(Path(records), {"origins": origins}) as writer:
            for o in observed:
                writer.write(o.steps)
    if table is not None:
        from specplan.files.writing import write_whole
        from specplan.report.json_document import render
        from specplan.telemetry.step_table import step_table

        write_whole(Path(table), render(step_table(observed, units.parse_count(context))) + "\n")
    if json:
        from specplan.report.ingest_report import ingest_document
        from specplan.report.json_document import render

        inputs = {
            "origins": origins,
            "before": before,
            "interval_s": interval,
            "target": target,
            "quantization": quantization,
            "draft": draft,
            "gpu": None if target is None else gpu,
            "tensor_parallel_size": tp,
        }
        typer.echo(render(ingest_document(inputs, found)))
    else:
        from specplan.report.console import Console
        from specplan.report.ingest_report import print_ingest

        print_ingest(found, Console(wide=True))
    _fire([said for a in alerts for i in found if (said := a.fires(i.measured, i.earlier, i.found_break)) is not None])


def _fire(alerts: list[str]) -> None:
    """Name the alerts and end with 1, if there are some."""
    for said in alerts:
        typer.echo(f"alert: {said}", err=True)
    if alerts:
        raise typer.Exit(1)


def _print_reference(rules: str | None, json: bool) -> None:
    """Alert rules of an engine, or the table of words."""
    if rules is None:
        _print_words(json)
        return
    from specplan.report.alert_rules import alert_rules

    typer.echo(alert_rules(rules))


def _print_words(json: bool) -> None:
    """The table of words, as Markdown or as one document."""
    from dataclasses import asdict

    from specplan.report.json_document import render
    from specplan.report.words_table import words_markdown
    from specplan.values.engine_words import words

    found = [asdict(w) for w in words()]
    typer.echo(render({"command": "ingest", "inputs": {"words": True}, "words": found}) if json else words_markdown())
