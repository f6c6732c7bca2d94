"""`specplan bench`."""

import typer


def bench(
    target: str = typer.Argument(..., help="Spec name, YAML file, Hugging Face config.json, or a folder with one."),
    draft: str = typer.Option(None, "--draft", "-d", help="Draft model, timed at the same shapes: gives c."),
    tp: int = typer.Option(1, "--tensor-parallel-size", "--tp", help="Ranks that share the model; one of them is run."),
    device: str = typer.Option("cpu", "--device", help="cpu, cuda, cuda:1, ..."),
    dtype: str = typer.Option("bfloat16", "--dtype", help="float32, bfloat16 or float16."),
    batch: str = typer.Option("1,8", "--batch", "-b", help="Rows per pass, comma separated."),
    width: str = typer.Option("1,2,4,8", "--width", help="Positions per row, comma separated."),
    context: str = typer.Option("128,2048", "--context", help="Cached tokens per row, comma separated (32k works)."),
    layers: int = typer.Option(None, "--layers", help="Run only the first layers of each model."),
    gpu: str = typer.Option(
        None, "--gpu", help="Profile for floors: a name or a YAML file. This device is read shortly if not given."
    ),
    compiled: bool = typer.Option(False, "--compile", help="Put the layers through torch.compile."),
    repeats: int = typer.Option(7, "--repeats", help="Timed runs of each pass."),
    threads: int = typer.Option(None, "--threads", help="CPU threads of torch."),
    output: str = typer.Option(
        None, "--output", "-o", help="Table of step times for --measured; the draft's goes beside it, with its name."
    ),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Measure step time against width, batch and context with random weights at true shapes."""
    from specplan import units
    from specplan.errors import InputError
    from specplan.files.writing import write_whole
    from specplan.harness.bench import BenchJob
    from specplan.harness.bench import bench as measure
    from specplan.report import bench_table, json_document
    from specplan.report.console import Console
    from specplan.report.output_file import output_path
    from specplan.report.progress import Bars
    from specplan.specs.catalog import load_model
    from specplan.specs.hardware import load_accelerator

    path = None if output is None else output_path(output, (".json", ".JSON"))
    batches, widths, contexts = (
        tuple(units.parse_count(part) for part in text.split(",")) for text in (batch, width, context)
    )
    job = BenchJob(
        device=device,
        dtype=dtype,
        tp=tp,
        batches=batches,
        widths=widths,
        contexts=contexts,
        layers=layers,
        repeats=repeats,
        threads=threads,
        compiled=compiled,
    )
    if draft is not None and draft == target:
        raise InputError(f"--draft {draft}: is the target itself; c is 1")
    with Bars() as bars:
        report = measure(
            load_model(target),
            job,
            draft=None if draft is None else load_model(draft),
            accelerator=None if gpu is None else load_accelerator(gpu),
            progress=bars.update,
        )
    if path is not None:
        write_whole(path, json_document.render(bench_table.table_document(report, report.target)) + "\n")
        if report.draft is not None:
            beside = path.with_name(f"{path.stem}.{report.draft.model.name}.json")
            write_whole(beside, json_document.render(bench_table.table_document(report, report.draft)) + "\n")
    if json:
        typer.echo(json_document.render(bench_table.bench_document(report)))
        return
    bench_table.print_bench(report, Console(wide=True))
    if path is not None:
        typer.echo(f"wrote {path}")
        if report.draft is not None:
            typer.echo(f"wrote {beside}")
