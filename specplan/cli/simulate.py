"""`specplan simulate`."""

import typer

from specplan.cli import options


def simulate(
    target: str = options.TARGET,
    source: list[str] = typer.Option(
        ["none"],
        "--source",
        "-s",
        help="none; ngram:coverage=.4,alpha=.8,k=3; llama3.2-1b:alpha=.7; a measured document. Repeat for more.",
    ),
    gpu: str = options.GPU,
    quantization: str = options.QUANTIZATION,
    tp: int = options.TP,
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
    max_num_seqs: int = typer.Option(None, "--max-num-seqs", "--max-running-requests", help="[default: the engine's]"),
    max_num_batched_tokens: str = typer.Option(
        None, "--max-num-batched-tokens", "--chunked-prefill-size", help="[default: the engine's]"
    ),
    block_size: int = typer.Option(None, "--block-size", "--page-size", help="[default: 16; SGLang 1]"),
    prefix_caching: bool = typer.Option(True, "--enable-prefix-caching/--no-enable-prefix-caching"),
    long_prefill: int = typer.Option(0, "--long-prefill-token-threshold"),
    num_blocks: int = typer.Option(None, "--num-gpu-blocks-override", help="In place of the predicted pool."),
    engine: str = typer.Option("vllm", "--engine", help="Whose scheduler: vllm or sglang."),
    engine_version: str = options.ENGINE_VERSION,
    layer: str = options.LAYER,
    measured: list[str] = options.MEASURED,
    records: str = typer.Option(None, "--steps", help="Step records whose drafts and acceptance are replayed."),
    kv_cache_dtype: str = options.KV_CACHE_DTYPE,
    utilization: float = options.UTILIZATION,
    replicas: int = typer.Option(1, "--replicas", help="Engines of this kind that share the load."),
    routing: str = typer.Option("round-robin", "--routing", help="How a request finds one: or least-loaded."),
    per_request: str = typer.Option(None, "--per-request", help="Write one row per request: .csv, .jsonl, .parquet."),
    chrome: str = typer.Option(None, "--chrome-trace", help="Write steps and requests for Perfetto (.json)."),
    picture: str = typer.Option(None, "--picture", "-o", help="Draw the queue over time (.svg, .png, .pdf, .pgf)."),
    title: str = options.TITLE,
    width: float = options.WIDTH,
    legend: str = options.LEGEND,
    dpi: int = options.DPI,
    font_size: float = options.FONT_SIZE,
    style: str = options.STYLE,
    json: bool = options.JSON,
) -> None:
    """Serve a load in virtual time: latencies, throughput and queues with and without speculation."""
    from specplan.api.simulate import simulate as ask
    from specplan.report.output_file import output_path
    from specplan.report.progress import Bars

    for given, suffixes in ((per_request, (".csv", ".jsonl", ".parquet")), (chrome, (".json", ".json"))):
        if given is not None:
            output_path(given, suffixes)
    drawn = options.picture(picture, title=title, width=width, legend=legend, dpi=dpi, font_size=font_size, style=style)
    with Bars() as bars:
        report = ask(
            target,
            gpu,
            sources=source,
            quantization=quantization,
            tp=tp,
            rate=rate,
            burstiness=burstiness,
            concurrency=concurrency,
            turnaround=turnaround,
            trace=trace,
            trace_rate=trace_rate,
            leave_out_refused=leave_out,
            input_len=input_,
            output_len=output,
            requests=requests,
            seeds=seeds,
            seed=seed,
            warmup=warmup,
            ttft=ttft,
            tpot=tpot,
            e2e=e2e,
            kappa=kappa,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            enable_prefix_caching=prefix_caching,
            long_prefill_token_threshold=long_prefill,
            num_gpu_blocks_override=num_blocks,
            engine=engine,
            engine_version=engine_version,
            layer=layer,
            measured=measured or (),
            steps=records,
            kv_cache_dtype=kv_cache_dtype,
            gpu_memory_utilization=utilization,
            replicas=replicas,
            routing=routing,
            keep="steps" if chrome is not None else "requests" if per_request or picture else "",
            progress=bars.update,
        )
    if per_request is not None:
        report.write_requests(per_request)
    if chrome is not None:
        report.write_chrome_trace(chrome)
    if drawn is not None:
        drawn.draw(report.plot, "queue over time")
    options.answer(report, json=json)
    if report.targets and not report.holds:
        raise typer.Exit(1)
