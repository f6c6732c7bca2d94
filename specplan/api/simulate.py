"""A load served in virtual time by each source."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from specplan import units
from specplan.api.answer import Answer, accelerator_of, model_of, question, several
from specplan.api.sources import load_sources, load_tables
from specplan.decide.step_setting import Setting
from specplan.errors import InputError
from specplan.queueing import answer as room
from specplan.queueing.outcome import Target, read_target
from specplan.queueing.replicas import Routing
from specplan.queueing.served_source import Limits, check_seeds
from specplan.queueing.stream import Served
from specplan.report import simulate_report
from specplan.report.console import Console
from specplan.report.output_file import check_drawing
from specplan.timing.step_time import machine
from specplan.values import formats
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source

KEPT: Final = ("", "requests", "steps")
"""What of the runs an answer can keep: nothing, their requests, or every step too."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulated(Answer, room.Simulation):
    """The answer of `simulate`: the fields of `specplan.queueing.answer.Simulation`, and the runs where kept."""

    runs: tuple[tuple[str, Served], ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether some source holds every target."""
        return any(a.holds(self.targets) for a in self.answers)

    def document(self) -> dict[str, Any]:
        """The figures as a document."""
        return simulate_report.simulate_document(self)

    def show(self, console: Console) -> None:
        """Print the tables of ``specplan simulate``."""
        simulate_report.print_simulation(self, console)

    def headline(self) -> str:
        """The target, the card, and each source's mean time per token and p95 of the first."""
        on = self.setting.on
        each = (
            f"{a.title} TTFT p95 {a.latency('ttft', 'p95').mean * 1e3:.0f} ms,"
            f" TPOT {a.latency('tpot', 'mean').mean * 1e3:.1f} ms"
            for a in self.answers
            if a.outcomes
        )
        return f"{self.setting.target.name} on {on.tp} x {on.accelerator.name}: {'; '.join(each)}"

    def plot(self, **look: Any) -> Any:
        """The queue over time, as a matplotlib figure; `look` as `specplan.report.drawing.Drawing`.

        Raises
        ------
        InputError
            If the runs were not kept.
        """
        check_drawing()
        from specplan.report.queue_plot import draw_queue

        return draw_queue(self._kept("requests"), **look)

    def write_requests(self, path: str | Path) -> None:
        """Write one row per request as .csv, .jsonl or .parquet, whole or not at all."""
        simulate_report.write_requests(Path(path), self._kept("requests"))

    def write_chrome_trace(self, path: str | Path) -> None:
        """Write steps and requests for Perfetto, whole or not at all."""
        simulate_report.write_chrome_trace(Path(path), self._kept("steps"))

    def _kept(self, least: str) -> tuple[tuple[str, Served], ...]:
        if KEPT.index(self.asked.get("keep", "")) < KEPT.index(least):
            raise InputError(f"the runs were not kept; ask with keep={least!r}")
        return self.runs


def read_targets(**given: str | Sequence[str]) -> tuple[Target, ...]:
    """Targets by latency.

    >>> [str(t) for t in read_targets(ttft="p95=500ms", tpot=["mean=20ms", "p99=60ms"])]
    ['ttft p95 <= 500 ms', 'tpot mean <= 20 ms', 'tpot p99 <= 60 ms']
    """
    return tuple(read_target(text, name) for name, texts in given.items() for text in several(texts))


@question
def simulate(
    target: str | Path | Model,
    accelerator: str | Path | Accelerator = "h100-sxm",
    *,
    sources: str | Source | Sequence[str | Source] = "none",
    quantization: str | None = None,
    tp: int = 1,
    rate: float | None = None,
    burstiness: float = 1.0,
    concurrency: int | None = None,
    turnaround: str | float = "0 ms",
    trace: str | Path | None = None,
    trace_rate: float = 1.0,
    leave_out_refused: bool = False,
    input_len: str | int | None = None,
    output_len: str | int | None = None,
    requests: int = 2000,
    seeds: int = 1,
    seed: int = 0,
    warmup: float = 0.1,
    ttft: str | Sequence[str] = (),
    tpot: str | Sequence[str] = (),
    e2e: str | Sequence[str] = (),
    kappa: int | None = None,
    max_model_len: int | str = "8k",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | str | None = None,
    block_size: int | None = None,
    enable_prefix_caching: bool = True,
    long_prefill_token_threshold: int = 0,
    num_gpu_blocks_override: int | None = None,
    engine: str = "vllm",
    engine_version: str | None = None,
    layer: str = "modelled",
    measured: Sequence[str] = (),
    steps: str | Path | None = None,
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float | None = None,
    replicas: int = 1,
    routing: str = "round-robin",
    keep: str = "",
    progress: Callable[[str, int, int], None] | None = None,
) -> Simulated:
    """Latencies, throughput and queues of a stream of requests, with each source.

    Parameters
    ----------
    target, accelerator, sources, quantization, tp, layer, measured, kv_cache_dtype, gpu_memory_utilization
        As in `compare`.
    rate, burstiness, concurrency, turnaround, trace, trace_rate, leave_out_refused
        The arrivals: open, closed or recorded, as the options of ``specplan simulate``.
    input_len, output_len : int or str, optional
        Prompt and output tokens: ``1500``, ``"p50=800,p95=4000"``, or a histogram file.
    requests, seeds, seed, warmup
        Requests per seed, number of seeds, the first of them, and the share of first requests left out.
    ttft, tpot, e2e : str, or several
        Targets, such as ``"p95=500ms"``.
    kappa, max_model_len, max_num_seqs, max_num_batched_tokens, block_size, enable_prefix_caching,
    long_prefill_token_threshold, num_gpu_blocks_override, engine, engine_version
        As the engine's own options.
    steps : str or Path, optional
        Step records whose drafts and acceptance are replayed.
    replicas, routing
        Engines that share the load, and how a request finds one: ``round-robin`` or ``least-loaded``.
    keep : {"", "requests", "steps"}
        What of each source's first run is kept for `Simulated.plot` and the files of single requests.
    progress : callable, optional
        Called with a source's title and how many of how many requests have ended.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> found = simulate("llama3-8b", rate=2.0, input_len=500, output_len=100, requests=50, ttft="p95=1s")
    >>> found.holds
    True
    """
    if keep not in KEPT:
        raise InputError(f"keep={keep!r}: expected one of {', '.join(map(repr, KEPT))}")
    targets = read_targets(ttft=ttft, tpot=tpot, e2e=e2e)
    routed = Routing(replicas=replicas, by=routing)
    if keep == "steps" and replicas > 1:
        raise InputError(f"--replicas {replicas}: single steps are kept of one engine alone; leave out --chrome-trace")
    limits = Limits(
        max_model_len=units.parse_count(max_model_len),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=None if max_num_batched_tokens is None else units.parse_count(max_num_batched_tokens),
        block_size=block_size,
        prefix_caching=enable_prefix_caching,
        long_prefill_token_threshold=long_prefill_token_threshold,
        num_blocks=num_gpu_blocks_override,
    )
    load, text, notes = room.read_load(
        rate=rate,
        burstiness=burstiness,
        concurrency=concurrency,
        turnaround_s=units.parse(turnaround, "time") if isinstance(turnaround, str) else turnaround,
        trace=None if trace is None else str(trace),
        trace_rate=trace_rate,
        leave_out=leave_out_refused,
        prompts=None if input_len is None else str(input_len),
        outputs=None if output_len is None else str(output_len),
        requests=requests,
        longest=limits.max_model_len,
    )
    records = []
    if steps is not None:
        from specplan.records.files import read_steps

        records = list(read_steps(Path(steps)))
    setting = Setting(
        target=model_of(target, quantization),
        on=machine(accelerator_of(accelerator), engine, tp, layer),
        kv_format=None if kv_cache_dtype == "auto" else formats.lookup(kv_cache_dtype),
        gpu_memory_utilization=gpu_memory_utilization,
        engine_version=engine_version,
        tables=load_tables(measured),
    )
    named = load_sources(several(sources), kappa)
    placed = room.placed_sources(setting, named, limits, load, records=records, routing=routed)
    runs: list[tuple[str, Served]] = []
    answers = room.serve_sources(
        placed,
        load,
        [seed + i for i in check_seeds(seeds)],
        targets,
        warmup=warmup,
        log=keep == "steps",
        keep=(lambda title, served: runs.append((title, served))) if keep else None,
        progress=progress,
    )
    return Simulated(
        setting=setting,
        limits=limits,
        load_text=text,
        requests=load.count,
        seeds=seeds,
        warmup=warmup,
        targets=targets,
        answers=answers,
        layer=layer,
        routing=routed,
        notes=notes,
        runs=tuple(runs),
    )
