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
    quantization: str = options.QUANTIZATION,
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
    output: str = options.PICTURE,
    data: str = typer.Option(None, "--data", help="The arrays behind the picture: .csv or .json."),
    title: str = options.TITLE,
    width: float = options.WIDTH,
    legend: str = options.LEGEND,
    dpi: int = options.DPI,
    font_size: float = options.FONT_SIZE,
    style: str = options.STYLE,
    json: bool = options.JSON,
) -> None:
    """Draw the (alpha, c) plane: contours of equal speedup, ties, each source as a line or a point.

    A draft model's c follows from models and card. Its alpha is free unless --alpha gives one; then its indifference
    curve is followed down to c = 0, where a free draft would tie with it.
    """
    from specplan.api.plane import plane as ask
    from specplan.report.output_file import ARRAYS, output_path
    from specplan.units import read_numbers

    picture = options.picture(
        output, title=title, width=width, legend=legend, dpi=dpi, font_size=font_size, style=style
    )
    arrays = None if data is None else output_path(data, ARRAYS)
    found = ask(
        targets or [],
        gpu,
        sources=[*source, *points],
        draft=draft,
        alpha=alpha,
        c=cost,
        kappa=kappa,
        quantization=quantization,
        tp=tp,
        batch=batch,
        context_len=context,
        kind=kind,
        x_max=x_max,
        c_max=c_max,
        log_c=log_c,
        levels=read_numbers(levels, "--levels", 0.0) if levels else (),
        cells=cells,
        engine=engine,
        layer=layer,
        measured=measured or (),
        kv_cache_dtype=kv_cache_dtype,
        ridge=ridge,
    )
    if picture is not None:
        picture.draw(found.plot, f"specplan plane, {kind}")
    if arrays is not None:
        found.write_arrays(arrays)
    options.answer(found, json=json)
    if not json:
        for written in (output, data):
            if written is not None:
                typer.echo(f"wrote {written}")
