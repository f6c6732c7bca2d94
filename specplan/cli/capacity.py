"""`specplan capacity`."""

import typer

from specplan.cli import options


def capacity(
    target: str = typer.Argument(..., help="Spec name, YAML file, Hugging Face config.json, or a folder with one."),
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
    max_num_seqs: int = typer.Option(1024, "--max-num-seqs"),
    max_num_batched_tokens: str = typer.Option("8k", "--max-num-batched-tokens"),
    engine: str = typer.Option("vllm", "--engine", help="vllm; the scheduler of no other engine is simulated yet."),
    layer: str = typer.Option("modelled", "--layer", help="roofline or modelled."),
    jobs: int = typer.Option(1, "--jobs", "-j", help="Processes."),
    on: str = typer.Option("local", "--on", help="Where the searches run: local or ray."),
    checkpoint: str = typer.Option(
        None, "--checkpoint", help="File to note finished candidates in, and to resume from."
    ),
    picture: str = typer.Option(None, "--picture", "-o", help="Draw throughput against speed per user."),
    rates_picture: str = typer.Option(None, "--rates-picture", help="Draw p95 TTFT over the rate."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Which cards, how many, speculating or not: the highest rate that holds the targets, and what it costs."""
    from pathlib import Path

    from specplan import units
    from specplan.api.sources import load_sources
    from specplan.decide.step_setting import Setting
    from specplan.report.output_file import PICTURES, output_path
    from specplan.report.progress import Bars
    from specplan.runners import runner_of
    from specplan.simulate.answer import read_load
    from specplan.simulate.capacity import Candidate, Question, ranked, read_prices
    from specplan.simulate.capacity import capacity as search
    from specplan.simulate.outcome import read_target
    from specplan.simulate.served_source import Limits, check_seeds
    from specplan.specs.catalog import load_target
    from specplan.specs.hardware import load_accelerator
    from specplan.timing.step_time import machine

    targets = tuple(
        read_target(text, name) for name, texts in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)) for text in texts
    )
    limits = Limits(
        max_model_len=units.parse_count(max_model_len),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=units.parse_count(max_num_batched_tokens),
    )
    load, _, _ = read_load(
        rate=rate,
        burstiness=burstiness,
        prompts=input_,
        outputs=output,
        requests=requests,
        longest=limits.max_model_len,
    )
    question = Question(load=load, targets=targets, limits=limits, seeds=tuple(check_seeds(seeds)), warmup=warmup)
    for given in (picture, rates_picture):
        if given is not None:
            output_path(given, PICTURES)
    cards = {name.strip(): load_accelerator(name.strip()) for name in gpu.split(",")}
    prices = read_prices(price, {card.name for card in cards.values()})
    model = load_target(target, quantization)
    candidates = [
        Candidate(setting=Setting(target=model, on=machine(card, engine, ranks, layer)), source=one)
        for card in cards.values()
        for ranks in (units.read_whole(text, "--tp") for text in tp.split(","))
        for one in load_sources(source, kappa)
    ]
    found = []
    with Bars() as bars:
        for answer in search(
            candidates,
            question,
            runner=runner_of(on, jobs),
            checkpoint=None if checkpoint is None else Path(checkpoint),
        ):
            found.append(answer)
            bars.update("candidates", len(found), len(candidates))
    powers = {card.name: card.tdp_w for card in cards.values() if card.tdp_w is not None}
    report = ranked(found, question, model.name, prices, powers)
    if picture is not None or rates_picture is not None:
        from specplan.report.picture import save
        from specplan.report.queue_plot import draw_pareto, draw_rates

        for path, draw, title in ((picture, draw_pareto, "throughput against speed per user"),
                                  (rates_picture, draw_rates, "latency over rate")):  # fmt: skip
            if path is not None:
                save(draw(report), Path(path), title)
    if json:
        from specplan.report.capacity_report import capacity_document
        from specplan.report.json_document import render

        typer.echo(render(capacity_document(report)))
    else:
        from specplan.report.capacity_report import print_capacity
        from specplan.report.console import Console

        print_capacity(report, Console())
    if not report.reaches:
        raise typer.Exit(1)
