"""`specplan measure`."""

from pathlib import Path
from typing import Any

import typer

from specplan.cli import options


def measure(
    target: str = typer.Option(
        "smollm2-135m", "--target", help="smollm2-135m, a .gguf file, or a folder with config.json and safetensors."
    ),
    source: list[str] = typer.Option(
        [], "--source", "-s", help="Such as ngram:min=2,max=5,k=3, suffix, draft:drop=12-15, draft:model=FOLDER,k=5."
    ),
    prompts: list[str] = typer.Option([], "--prompts", help="JSONL files, or the shipped sets copy and open."),
    output: str = typer.Option(None, "--output", "-o", help="Folder for records, outputs, summary and picture."),
    max_tokens: int = typer.Option(
        None, "--max-tokens", help="Tokens to emit per prompt. [default: 128, in a demo 64]"
    ),
    temperature: float = typer.Option(0.0, "--temperature", help="0 is greedy."),
    rule: str = typer.Option(
        "standard",
        "--rule",
        help="Above temperature 0: standard, or block (over steps not lossless in vLLM 0.32).",
    ),
    batch: int = typer.Option(1, "--batch", "-b", help="Requests that run at a time."),
    limit: int = typer.Option(None, "--limit", help="Prompts per file."),
    dtype: str = typer.Option("float32", "--dtype", help="float32, bfloat16 or float16."),
    device: str = typer.Option("cpu", "--device", help="cpu, cuda, cuda:1, ..."),
    threads: int = typer.Option(None, "--threads", help="CPU threads of torch."),
    seed: int = typer.Option(0, "--seed", help="Of every draw."),
    server: str = typer.Option(None, "--server", help="Address of a running server with speculation (OpenAI's API)."),
    server_plain: str = typer.Option(None, "--server-plain", help="Another of the same model without speculation."),
    plain_body: str = typer.Option(
        None, "--plain-body", help="JSON by which a request leaves drafts out, where --server allows it per request."
    ),
    concurrency: list[str] = typer.Option(["1"], "--concurrency", help="With --server: requests at a time, 1,4,8."),
    key_variable: str = typer.Option(None, "--key-variable", help="Environment variable with the servers' API key."),
    yes: bool = typer.Option(False, "--yes", help="With --server: send; without this or --limit it only says what."),
    runner: str = typer.Option("own", "--runner", help="own: the loop of this package; vllm: an installed vLLM."),
    demo: bool = typer.Option(False, "--demo", help="SmolLM2-135M with n-gram, suffix and a self-draft on both sets."),
    seconds: float = typer.Option(
        None, "--seconds", help="Begin no further request after so long; two per tag at least. [default: 100 in a demo]"
    ),
    tiny: bool = typer.Option(False, "--tiny", help="3 prompts per file, 40 tokens: a look in under two minutes."),
    title: str = options.TITLE,
    width: float = options.WIDTH,
    legend: str = options.LEGEND,
    font_size: float = options.FONT_SIZE,
    style: str = options.STYLE,
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Run real proposers and verifiers on a real model: alpha and tokens per second, beside what c and v predict.

    Every step is written to the output folder as it happens; the same command takes up a killed run.
    """
    from specplan.errors import InputError

    if max_tokens is None:
        max_tokens = 64 if demo else 128
    if server is not None:
        if source or demo:
            raise InputError(f"--server {server}: what drafts is the server's own; leave out --source and --demo")
        _measure_server(
            server,
            server_plain,
            plain_body,
            prompts,
            _counts(concurrency),
            Path(output or "runs/server"),
            limit=min(limit or 3, 3) if tiny else limit,
            max_tokens=min(max_tokens, 40) if tiny else max_tokens,
            temperature=temperature,
            seed=seed,
            key_variable=key_variable,
            sends=yes or limit is not None,
            json=json,
        )
        return
    if server_plain is not None or plain_body is not None:
        raise InputError(
            "--server-plain and --plain-body stand beside --server; give the address of the one that drafts"
        )
    from specplan.files.writing import write_whole
    from specplan.harness.job import MeasureJob, run_job
    from specplan.report import json_document, measure_report
    from specplan.report.console import Console
    from specplan.report.drawing import Drawing
    from specplan.report.progress import Bars

    look: dict[str, Any] = {"title": title, "width": width, "legend": legend, "font_size": font_size, "style": style}
    Drawing(**look)  # said before the run, not after
    sources = list(source) or (["ngram:min=2,max=5,k=3", "suffix", "draft:drop=12-15,k=3"] if demo else [])
    sets = list(prompts) or (["copy", "open"] if demo else [])
    if not sources:
        raise InputError("give at least one --source, such as ngram:min=2,max=5,k=3, or --demo")
    if not sets:
        raise InputError("give --prompts FILE, or one of the shipped sets copy and open, or --demo")
    folder = Path(output or ("runs/demo" if demo else "runs/measure"))
    job = MeasureJob(
        target=target,
        sources=tuple(sources),
        prompts=tuple(sets),
        max_tokens=min(max_tokens, 40) if tiny else max_tokens,
        temperature=temperature,
        rule=rule,
        batch=batch,
        limit=min(limit or 3, 3) if tiny else limit,
        dtype=dtype,
        device=device,
        threads=threads,
        seed=seed,
        runner=runner,
        seconds=100.0 if demo and runner == "own" and seconds is None and limit is None else seconds,
    )
    with Bars(early=True) as bars:
        found = run_job(job, folder, progress=bars.update)
    passes = found.passes
    document = measure_report.measure_document(
        found.inputs, found.speeds, found.plain, passes, found.mean_context_len, found.engine, found.warm_up_s
    )
    write_whole(folder / "summary.json", json_document.render(document) + "\n")
    if found.speeds:
        measure_report.draw_measurement(found.speeds, folder, f"{target}, measured", **look)
    if json:
        typer.echo(json_document.render(document))
        return
    console = Console(wide=True)
    if found.engine:
        measure_report.print_engine(found.engine, str(found.inputs["runner"]), console)
        typer.echo(f"wrote {folder}/steps.jsonl, outputs.jsonl, summary.json and vllm.log")
        return
    measure_report.print_measurement(found.speeds, passes, found.mean_context_len, console, found.warm_up_s)
    typer.echo(f"wrote {folder}/steps.jsonl, outputs.jsonl, summary.json, plane.svg and speeds.svg")


def _counts(texts: list[str]) -> list[int]:
    """Counts of a repeated or comma-separated option."""
    from specplan.cli.options import counts

    return [n for text in texts for n in counts(text)]


def _measure_server(
    server: str,
    plain: str | None,
    plain_body: str | None,
    prompts: list[str],
    concurrency: list[int],
    folder: Path,
    *,
    limit: int | None,
    max_tokens: int,
    temperature: float,
    seed: int,
    key_variable: str | None,
    sends: bool,
    json: bool,
) -> None:
    """Measure a running server, or say what would be sent."""
    import os
    from json import dumps

    from specplan.errors import InputError
    from specplan.files.documents import json_object
    from specplan.files.writing import make_folder, write_whole
    from specplan.records.prompts import prompt_file, read_prompts
    from specplan.report.console import Console
    from specplan.report.json_document import render
    from specplan.report.progress import Bars
    from specplan.report.server_report import cost_sentence, print_server, server_document
    from specplan.telemetry.server_run import ServerJob, run_server
    from specplan.telemetry.step_table import step_table

    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: must be at least 1")
    sets = prompts or ["copy", "open"]
    if key_variable is not None and key_variable not in os.environ:
        raise InputError(f"--key-variable {key_variable}: no such variable in the environment")
    job = ServerJob(
        server=server,
        plain=plain,
        plain_body={} if plain_body is None else json_object(plain_body, "--plain-body"),
        prompts=tuple(p for name in sets for p in read_prompts(prompt_file(name), limit=limit)),
        concurrency=tuple(concurrency),
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        key="" if key_variable is None else os.environ[key_variable],
    )
    inputs = {
        "server": server,
        "server_plain": plain,
        "plain_body": plain_body,
        "prompts": sets,
        "limit": limit,
        "concurrency": concurrency,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    if not sends:
        if json:
            typer.echo(render(server_document(inputs, job.cost())))
            return
        where = server if plain is None else f"{server} and {plain}"
        typer.echo(cost_sentence(job.cost(), where=where, at=", ".join(map(str, concurrency))))
        typer.echo("nothing was sent; add --yes, or --limit N for N prompts of each file")
        return
    make_folder(folder)
    with Bars(early=True) as bars:
        run = run_server(job, progress=bars.update)
    document = server_document(
        inputs | {"models": run.models}, job.cost(), run.speeds, context_len=run.context_len, notes=run.notes
    )
    write_whole(folder / "requests.jsonl", "".join(dumps(row) + "\n" for row in run.rows))
    for name, page in run.pages.items():
        write_whole(folder / f"{name}.prom", page)
    write_whole(folder / "summary.json", render(document) + "\n")
    write_whole(folder / "steps.json", render(step_table(run.observed, run.context_len)) + "\n")
    if json:
        typer.echo(render(document))
        return
    print_server(run.speeds, run.notes, Console(wide=True))
    typer.echo(f"wrote {folder}/requests.jsonl, summary.json, the pages of counters, and steps.json for --measured")
