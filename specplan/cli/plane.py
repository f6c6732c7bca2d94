"""`specplan plane`."""

import typer

from specplan.cli import options


def plane(
    targets: list[str] = typer.Argument(None, help="Targets: spec names, YAML files, config.json files or folders."),
    draft: list[str] = typer.Option(
        [], "--draft", "-d", help="Draft model (or eagle, mtp) of the targets; repeatable."
    ),
    source: list[str] = options.SOURCE,
    points: list[str] = typer.Option(
        [], "--points", help="The same as --source, for documents: FILE.json, or step records."
    ),
    cost: list[str] = typer.Option([], "--cost", help="NAME=0.16: c of a measured source with weights."),
    alpha: list[str] = typer.Option(
        [], "--alpha", "-a", help="Acceptance of the drafts (.7, .6..0.8, .8/.7/.6), or NAME=... Without it it is free."
    ),
    gpu: str = options.GPU,
    tp: int = options.TP,
    kappa: int = typer.Option(
        None, "--num-speculative-tokens", "-k", help="Drafted tokens per step. [default: the least measured, else 3]"
    ),
    batch: int = options.BATCH,
    context: str = options.CONTEXT_LEN,
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    layer: str = options.LAYER,
    measured: list[str] = options.MEASURED,
    engine: str = options.ENGINE,
    ridge: float = options.RIDGE,
    kind: str = typer.Option("plane", "--kind", help="plane, or speedup over kappa, batch, coverage or context."),
    x_max: str = typer.Option(None, "--max", help="Upper end of the kappa, batch or context axis."),
    c_max: float = typer.Option(None, "--c-max", help="Upper end of the c axis."),
    log_c: bool = typer.Option(False, "--log-c", help="Logarithmic c axis (c = 0 stays on it)."),
    levels: list[str] = typer.Option([], "--levels", help="Speedups of the contours, such as 1,1.5,2."),
    cells: int = typer.Option(101, "--cells", help="Grid cells along each axis in --data."),
    output: str = typer.Option(None, "--output", "-o", help="Picture: .svg, .png or .pdf."),
    data: str = typer.Option(None, "--data", help="The arrays behind the picture: .csv or .json."),
    title: str = typer.Option("", "--title", help="Heading of the picture."),
    width: float = typer.Option(None, "--width", help="Width of the picture in inches."),
    json: bool = options.JSON,
) -> None:
    """Draw the (alpha, c) plane: contours of equal speedup, ties, each source as a line or a point.

    A draft model's c follows from models and card. Its alpha is free unless --alpha gives one; then its indifference
    curve is followed down to c = 0, where a free draft would tie with it.
    """
    from specplan import units
    from specplan.cli.source_option import Place, load_sources, picture_width, scenes
    from specplan.decide.documents import shortest_measured
    from specplan.decide.plane import planes_of
    from specplan.decide.sweep import axis_named, default_axis, sweep
    from specplan.report import plane_report
    from specplan.report.output_file import ARRAYS, PICTURES, output_path
    from specplan.units import read_numbers

    axis = None if kind == "plane" else axis_named(kind)
    picture = None if output is None else output_path(output, PICTURES)
    arrays = None if data is None else output_path(data, ARRAYS)
    inches = picture_width(width)
    given = load_sources([*source, *points], models=False)
    if kappa is None:
        kappa = 3 if draft else shortest_measured(given) or 3
    place = Place(
        gpu=gpu,
        tp=tp,
        kv_cache_dtype=kv_cache_dtype,
        layer=layer,
        measured=measured or (),
        engine=engine,
        batch=batch,
        context_len=units.parse_count(context),
        ridge=ridge,
        kappa=kappa,
    )
    found = scenes(place, targets or [], drafts=draft, sources=given, alphas=alpha, costs=cost)
    if axis is None:
        drawn = planes_of(
            found,
            kappa=kappa,
            batch=batch,
            context_len=place.context_len,
            levels=read_numbers(levels, "--levels", 0.0) if levels else None,
            c_max=c_max,
            scale="log" if log_c else "linear",
            cells=cells,
        )
        document = plane_report.plane_document(drawn, with_grid=arrays is not None)
        rows = plane_report.plane_rows(drawn)
    else:
        placed = [entry for scene in found for entry in scene.placed]
        xs = default_axis(axis, None if x_max is None else units.parse_count(x_max))
        swept = sweep(axis, placed, xs=xs, batch=batch, context_len=place.context_len)
        document = plane_report.sweep_document(swept, found)
        rows = plane_report.sweep_rows(swept)
    if picture is not None:
        # matplotlib is imported only for a picture
        from specplan.report.picture import save
        from specplan.report.plane_plot import draw_planes
        from specplan.report.sweep_plot import draw_sweep

        figure = (
            draw_planes(drawn, title=title, width=inches)
            if axis is None
            else draw_sweep(swept, title=title, width=inches)
        )
        save(figure, picture, title or f"specplan plane, {kind}")
    if arrays is not None:
        plane_report.write_data(arrays, document, rows)
    if json:
        from specplan.report import json_document

        typer.echo(json_document.render(document))
        return
    from specplan.report.console import Console

    if targets:
        typer.echo(place.where)
    if axis is None:
        plane_report.print_planes(drawn, Console())
    else:
        plane_report.print_sweep(swept, Console())
        plane_report.print_notes(document, Console())
    for written in (output, data):
        if written is not None:
            typer.echo(f"wrote {written}")
