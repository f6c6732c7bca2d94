"""`specplan capacity`."""

from functools import partial
from typing import Any

import typer

from specplan.cli import options


def capacity(
    target: str = options.TARGET,
    rate: float = typer.Option(..., "--rate", help="Requests per second that all replicas together take."),
    input_: str = typer.Option(..., "--input", help="Prompt tokens: 1500; p50=800,p95=4000; a histogram file."),
    output: str = typer.Option(..., "--output", help="Output tokens, likewise."),
    gpu: str = typer.Option("h100-sxm", "--gpu", help="Hardware profiles, comma separated."),
    quantization: str = options.QUANTIZATION,
    tp: str = typer.Option("1", "--tensor-parallel-size", "--tp", help="Ranks of a replica, comma separated."),
    source: list[str] = typer.Option(["none"], "--source", "-s", help="As in simulate; repeat for more."),
    ttft: list[str] = typer.Option([], "--ttft", help="Target, such as p95=500ms."),
    tpot: list[str] = typer.Option([], "--tpot", help="Target, such as p95=30ms."),
    e2e: list[str] = typer.Option([], "--e2e", help="Target from arrival to the last token."),
    price: list[str] = typer.Option([], "--price", help="GPU=PRICE per card and hour; repeat for more."),
    burstiness: float = typer.Option(1.0, "--burstiness", help="Gaps of arrivals: 1 Poisson, below it bursts."),
    requests: int = typer.Option(1500, "--requests", "-n", help="Requests of each simulated run."),
    seeds: int = typer.Option(1, "--seeds", help="Runs per rate; the targets must hold in each."),
    warmup: float = typer.Option(0.1, "--warmup", help="Share of the first requests that latencies leave out."),
    kappa: int = typer.Option(None, "--num-speculative-tokens", "-k", help="Of sources that fix none."),
    max_model_len: str = typer.Option("8k", "--max-model-len"),
    max_num_seqs: int = typer.Option(None, "--max-num-seqs", "--max-running-requests", help="[default: the engine's]"),
    max_num_batched_tokens: str = typer.Option(
        None, "--max-num-batched-tokens", "--chunked-prefill-size", help="[default: the engine's]"
    ),
    engine: str = typer.Option("vllm", "--engine", help="Whose scheduler: vllm or sglang."),
    layer: str = typer.Option("modelled", "--layer", help="roofline or modelled."),
    jobs: int = typer.Option(1, "--jobs", "-j", help="Processes."),
    on: str = typer.Option("local", "--on", help="Where the searches run: local or ray."),
    checkpoint: str = typer.Option(
        None, "--checkpoint", help="File to note finished candidates in, and to resume from."
    ),
    picture: str = typer.Option(None, "--picture", "-o", help="Draw throughput against speed per user."),
    rates_picture: str = typer.Option(None, "--rates-picture", help="Draw p95 TTFT over the rate."),
    title: str = options.TITLE,
    width: float = options.WIDTH,
    legend: str = options.LEGEND,
    dpi: int = options.DPI,
    font_size: float = options.FONT_SIZE,
    style: str = options.STYLE,
    json: bool = options.JSON,
) -> None:
    """Which cards, how many, speculating or not: the highest rate that holds the targets, and what it costs."""
    from specplan import units
    from specplan.api.capacity import capacity as ask
    from specplan.report.progress import Bars

    look: dict[str, Any] = {
        "title": title,
        "width": width,
        "legend": legend,
        "dpi": dpi,
        "font_size": font_size,
        "style": style,
    }
    drawn = (
        (options.picture(picture, **look), "pareto", "throughput against speed per user"),
        (options.picture(rates_picture, **look), "rates", "latency over rate"),
    )
    with Bars() as bars:
        report = ask(
            target,
            [name.strip() for name in gpu.split(",")],
            rate=rate,
            input_len=input_,
            output_len=output,
            sources=source,
            quantization=quantization,
            tp=[units.read_whole(ranks, "--tp") for ranks in tp.split(",")],
            ttft=ttft,
            tpot=tpot,
            e2e=e2e,
            price=price,
            burstiness=burstiness,
            requests=requests,
            seeds=seeds,
            warmup=warmup,
            kappa=kappa,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            engine=engine,
            layer=layer,
            jobs=jobs,
            on=on,
            checkpoint=checkpoint,
            progress=bars.update,
        )
    for one, kind, name in drawn:
        if one is not None:
            one.draw(partial(report.plot, kind), name)
    options.answer(report, json=json)
    if not report.reaches:
        raise typer.Exit(1)
