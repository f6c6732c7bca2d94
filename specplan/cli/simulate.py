"""`specplan simulate`."""

import typer

from specplan.cli import options


def simulate(
    target: str = typer.Argument(..., help="Spec name, YAML file, Hugging Face config.json, or a folder with one."),
    source: list[str] = typer.Option(
        ["none"],
        "--source",
        "-s",
        help="none; ngram:coverage=.4,alpha=.8,k=3; llama3.2-1b:alpha=.7; a measured document. Repeat for more.",
    ),
    gpu: str = typer.Option("h100-sxm", "--gpu", help="Hardware profile: a name or a YAML file."),
    quantization: str = options.QUANTIZATION,
    tp: int = typer.Option(1, "--tensor-parallel-size", "--tp", help="Ranks that share the model."),
    rate: float = typer.Option(None, "--rate", help="Open load: requests per second."),
    burstiness: float = typer.Option(1.0, "--burstiness", help="Gaps of the open load: 1 Poisson, below it bursts."),
    concurrency: int = typer.Option(None, "--concurrency", help="Closed load: requests in the system."),
    turnaround: str = typer.Option("0 ms", "--turnaround", help="Of a closed load: from an end to the next arrival."),
    trace: str = typer.Option(
        None, "--trace", help="Recorded load: JSONL, CSV or Parquet; Azure, BurstGPT, Mooncake; 'chat' is shipped."
    ),
    trace_rate: float = typer.Option(1.0, "--trace-rate", help="Factor on the trace's arrival rate."),
    leave_out: bool = typer.Option(
        False, "--leave-out-refused", help="Leave out, and count, requests of the trace that the engine refuses."
    ),
    input_: str = typer.Option(None, "--input", help="Prompt tokens: 1500; p50=800,p95=4000; a histogram file."),
    output: str = typer.Option(None, "--output", help="Output tokens, likewise."),
    requests: int = typer.Option(2000, "--requests", "-n", help="Requests of each seed."),
    seeds: int = typer.Option(1, "--seeds", help="Runs with other draws; intervals are over them."),
    seed: int = typer.Option(0, "--seed", help="The first seed."),
    warmup: float = typer.Option(0.1, "--warmup", help="Share of the first requests that latencies leave out."),
    ttft: list[str] = typer.Option([], "--ttft", help="Target, such as p95=500ms."),
    tpot: list[str] = typer.Option([], "--tpot", help="Target of the time per token after the first."),
    e2e: list[str] = typer.Option([], "--e2e", help="Target from arrival to the last token."),
    kappa: int = typer.Option(None, "--num-speculative-tokens", "-k", help="Of sources that fix none."),
    max_model_len: str = typer.Option("8k", "--max-model-len"),
    max_num_seqs: int = typer.Option(1024, "--max-num-seqs"),
    max_num_batched_tokens: str = typer.Option("8k", "--max-num-batched-tokens"),
    block_size: int = typer.Option(16, "--block-size"),
    prefix_caching: bool = typer.Option(True, "--enable-prefix-caching/--no-enable-prefix-caching"),
    long_prefill: int = typer.Option(0, "--long-prefill-token-threshold"),
    num_blocks: int = typer.Option(None, "--num-gpu-blocks-override", help="In place of the predicted pool."),
    engine: str = typer.Option("vllm", "--engine", help="vllm; the scheduler of no other engine is simulated yet."),
    layer: str = typer.Option("modelled", "--layer", help="roofline, modelled or measured."),
    measured: list[str] = typer.Option(
        None, "--measured", help="NAME=FILE: measured step times, for --layer measured."
    ),
    records: str = typer.Option(None, "--steps", help="Step records whose drafts and acceptance are replayed."),
    kv_cache_dtype: str = typer.Option("auto", "--kv-cache-dtype", help="auto, fp8, bfloat16, ..."),
    utilization: float = typer.Option(None, "--gpu-memory-utilization", help="The engine's default if not given."),
    per_request: str = typer.Option(None, "--per-request", help="Write one row per request: .csv, .jsonl, .parquet."),
    chrome: str = typer.Option(None, "--chrome-trace", help="Write steps and requests for Perfetto (.json)."),
    picture: str = typer.Option(None, "--picture", "-o", help="Draw the queue over time (.svg, .png, .pdf)."),
    json: bool = typer.Option(False, "--json", help="One JSON document and nothing else."),
) -> None:
    """Serve a load in virtual time: latencies, throughput and queues with and without speculation."""
    from pathlib import Path

    from specplan import units
    from specplan.api.sources import load_sources, load_tables
    from specplan.decide.step_setting import Setting
    from specplan.report.output_file import PICTURES, output_path
    from specplan.report.progress import Bars
    from specplan.simulate.answer import Simulation, placed_sources, read_load, serve_sources
    from specplan.simulate.outcome import read_target
    from specplan.simulate.served_source import Limits, check_seeds
    from specplan.simulate.stream import Served
    from specplan.specs.catalog import load_target
    from specplan.specs.hardware import load_accelerator
    from specplan.timing.step_time import machine
    from specplan.values import formats

    targets = tuple(
        read_target(text, name) for name, texts in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)) for text in texts
    )
    limits = Limits(
        max_model_len=units.parse_count(max_model_len),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=units.parse_count(max_num_batched_tokens),
        block_size=block_size,
        prefix_caching=prefix_caching,
        long_prefill_token_threshold=long_prefill,
        num_blocks=num_blocks,
    )
    load, text, notes = read_load(
        rate=rate,
        burstiness=burstiness,
        concurrency=concurrency,
        turnaround_s=units.parse(turnaround, "time"),
        trace=trace,
        trace_rate=trace_rate,
        leave_out=leave_out,
        prompts=input_,
        outputs=output,
        requests=requests,
        longest=limits.max_model_len,
    )
    for given, suffixes in ((per_request, (".csv", ".jsonl", ".parquet")), (chrome, (".json", ".json")),
                            (picture, PICTURES)):  # fmt: skip
        if given is not None:
            output_path(given, suffixes)
    steps = []
    if records is not None:
        from specplan.records.files import read_steps

        steps = list(read_steps(Path(records)))
    model = load_target(target, quantization)
    setting = Setting(
        target=model,
        on=machine(load_accelerator(gpu), engine, tp, layer),
        kv_format=None if kv_cache_dtype == "auto" else formats.lookup(kv_cache_dtype),
        gpu_memory_utilization=utilization,
        tables=load_tables(measured),
    )
    sources = placed_sources(setting, load_sources(source, kappa), limits, load, records=steps)
    runs: list[tuple[str, Served]] = []
    keep = None if per_request is None and chrome is None and picture is None else lambda t, s: runs.append((t, s))
    with Bars() as bars:
        answers = serve_sources(
            sources,
            load,
            [seed + i for i in check_seeds(seeds)],
            targets,
            warmup=warmup,
            log=chrome is not None,
            keep=keep,
            progress=bars.update,
        )
    report = Simulation(
        setting=setting,
        limits=limits,
        load_text=text,
        requests=load.count,
        seeds=seeds,
        warmup=warmup,
        targets=targets,
        answers=answers,
        layer=layer,
        notes=notes,
    )
    from specplan.report import simulate_report

    if per_request is not None:
        simulate_report.write_requests(Path(per_request), runs)
    if chrome is not None:
        simulate_report.write_chrome_trace(Path(chrome), runs)
    if picture is not None:
        from specplan.report.picture import save
        from specplan.report.queue_plot import draw_queue

        save(draw_queue(runs), Path(picture), "queue over time")
    if json:
        from specplan.report.json_document import render

        typer.echo(render(simulate_report.simulate_document(report)))
    else:
        from specplan.report.console import Console

        simulate_report.print_simulation(report, Console())
    if targets and not any(a.holds(targets) for a in answers):
        raise typer.Exit(1)
