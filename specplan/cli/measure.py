"""`specplan measure`."""

import typer


def measure(
    target: str = typer.Option(
        "smollm2-135m", "--target", help="smollm2-135m, a .gguf file, or a folder with config.json and safetensors."
    ),
    source: list[str] = typer.Option(
        [], "--source", "-s", help="Such as ngram:min=2,max=5,k=3, suffix, draft:drop=12-15, draft:model=FOLDER,k=5."
    ),
    prompts: list[str] = typer.Option([], "--prompts", help="JSONL files, or the shipped sets copy and open."),
    output: str = typer.Option(None, "--output", "-o", help="Folder for records, outputs, summary and picture."),
    max_tokens: int = typer.Option(128, "--max-tokens", help="Tokens to emit per prompt."),
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
    runner: str = typer.Option("own", "--runner", help="own: the loop of this package; vllm: an installed vLLM."),
    demo: bool = typer.Option(False, "--demo", help="SmolLM2-135M with n-gram, suffix and a self-draft on both sets."),
    tiny: bool = typer.Option(False, "--tiny", help="3 prompts per file, 40 tokens: a look in under two minutes."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Run real proposers and verifiers on a real model: alpha and tokens per second, beside what c and v predict.

    Every step is written to the output folder as it happens; the same command takes up a killed run.
    """
    from pathlib import Path

    from specplan.errors import InputError
    from specplan.files.writing import write_whole
    from specplan.harness.job import MeasureJob, run_job
    from specplan.report import json_document, measure_report
    from specplan.report.console import Console
    from specplan.report.progress import Bars

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
    )
    with Bars() as bars:
        found = run_job(job, folder, progress=bars.update)
    passes = found.passes
    document = measure_report.measure_document(
        found.inputs, found.speeds, found.plain, passes, found.mean_context_len, found.engine, found.warm_up_s
    )
    write_whole(folder / "summary.json", json_document.render(document) + "\n")
    picture = folder / "plane.svg"
    if found.speeds:
        measure_report.draw_measurement(found.speeds, picture, f"{target}, measured")
    if json:
        typer.echo(json_document.render(document))
        return
    console = Console(wide=True)
    if found.engine:
        measure_report.print_engine(found.engine, str(found.inputs["runner"]), console)
        typer.echo(f"wrote {folder}/steps.jsonl, outputs.jsonl, summary.json and vllm.log")
        return
    measure_report.print_measurement(found.speeds, passes, found.mean_context_len, console, found.warm_up_s)
    typer.echo(f"wrote {folder}/steps.jsonl, outputs.jsonl, summary.json and plane.svg")
