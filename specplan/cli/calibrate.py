"""`specplan calibrate`."""

import typer

from specplan.cli import options


def calibrate(
    output: str = typer.Option(..., "--output", "-o", help="Profile to write, such as hardware_profiles/mine.yaml."),
    device: str = typer.Option("cpu", "--device", help="cpu, cuda, cuda:1, ..."),
    gpu: str = typer.Option(
        None, "--gpu", help="Shipped profile of the same card: its peaks are kept and fractions are of them."
    ),
    name: str = typer.Option(None, "--name", help="Name of the profile; the file's if not given."),
    number_format: list[str] = typer.Option(
        [], "--format", help="float32, bfloat16, float16; the first is that of weights and cache. Repeat for more."
    ),
    threads: int = typer.Option(None, "--threads", help="CPU threads of torch."),
    repeats: int = typer.Option(7, "--repeats", help="Runs of each kind; the best counts."),
    buffer: str = typer.Option(None, "--buffer", help="What is read in one run, larger than every cache: 1 GiB."),
    inner: int = typer.Option(None, "--inner", help="Side of the square weights that are read and multiplied."),
    from_server: list[str] = typer.Option(
        [],
        "--from-server",
        "--from-metrics",
        help="In place of this device: addresses, saved metrics pages or bench results of your server; writes what its "
        "own steps took by batch and width (JSON), for --measured TARGET=FILE.",
    ),
    context: str = options.CONTEXT_LEN,
    model: str = typer.Option(
        None, "--model", help="Take --inner from the width of this model: narrow weights stream more slowly on a CPU."
    ),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Measure this device and write a hardware profile: bandwidth, matmul rate by positions and format, launches.

    The passes are specplan's own, not an engine's: for those, --from-server. A repeat that differs by more than a fifth
    is refused as noise.
    """
    from specplan import units
    from specplan.errors import InputError
    from specplan.files.writing import write_whole
    from specplan.harness.calibrate import CalibrateJob
    from specplan.harness.calibrate import calibrate as measure
    from specplan.report import calibration_table, json_document
    from specplan.report.console import Console
    from specplan.report.output_file import output_path
    from specplan.report.progress import Bars
    from specplan.specs.catalog import load_model
    from specplan.specs.hardware import dump_accelerator, load_accelerator

    if from_server:
        from specplan.telemetry.read import read_origin
        from specplan.telemetry.step_table import step_table

        path = output_path(output, (".json",))
        table = step_table([o for name in from_server for o in read_origin(name)], units.parse_count(context))
        write_whole(path, json_document.render(table) + "\n")
        typer.echo(json_document.render(table) if json else f"{len(table['rows'])} steps; wrote {path}")
        return
    path = output_path(output, (".yaml", ".yml"))
    if model is not None:
        if inner is not None:
            raise InputError("give either --model or --inner")
        inner = load_model(model).hidden_size
    if inner is not None and not 64 <= inner <= 65536:
        raise InputError(f"--inner {inner}: must be from 64 to 65536")
    job = CalibrateJob(
        device=device,
        formats=tuple(number_format),
        buffer_bytes=0 if buffer is None else int(units.parse(buffer, "memory")),
        inner=inner or 0,
        repeats=repeats,
        threads=threads,
    )
    datasheet = None if gpu is None else load_accelerator(gpu)
    with Bars() as bars:
        report = measure(job, name or path.stem, datasheet=datasheet, progress=bars.update, repeated=repeats > 1)
    write_whole(path, dump_accelerator(report.profile))
    if json:
        typer.echo(json_document.render(calibration_table.calibration_document(report)))
        return
    calibration_table.print_calibration(report, Console(wide=True))
    typer.echo(f"wrote {path}")
