"""How many cards a stream of requests takes, by card, ranks and source."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specplan import units
from specplan.api.answer import Answer, accelerator_of, model_of, question, several
from specplan.api.simulate import read_targets
from specplan.api.sources import load_sources
from specplan.decide.step_setting import Setting
from specplan.errors import InputError
from specplan.queueing import capacity as room
from specplan.queueing.answer import read_load
from specplan.queueing.served_source import Limits, check_seeds
from specplan.report import capacity_report
from specplan.report.console import Console
from specplan.report.output_file import check_drawing
from specplan.runners import runner_of
from specplan.timing.step_time import machine
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Capacity(Answer, room.Capacity):
    """The answer of `capacity`: the fields of `specplan.queueing.capacity.Capacity`."""

    asked: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The figures as a document."""
        return capacity_report.capacity_document(self)

    def show(self, console: Console) -> None:
        """Print the table of ``specplan capacity``."""
        capacity_report.print_capacity(self, console)

    def headline(self) -> str:
        """The best candidate, or that none reaches the targets."""
        best = self.found[0]
        if not best.replicas:
            return f"{self.target}: nothing holds the targets"
        return (
            f"{self.target}: {best.cards} x {best.gpu} as {best.replicas} of TP {best.tp}, {best.source},"
            f" {best.rate:.3g} requests/s each"
        )

    def plot(self, kind: str = "pareto", **look: Any) -> Any:
        """Throughput against speed per user (``pareto``), or p95 TTFT over the rate (``rates``), by matplotlib.

        `look` as `specplan.report.drawing.Drawing`.
        """
        check_drawing()
        from specplan.report.queue_plot import draw_pareto, draw_rates

        drawn = {"pareto": draw_pareto, "rates": draw_rates}
        if kind not in drawn:
            raise InputError(f"kind={kind!r}: one of {', '.join(drawn)}")
        return drawn[kind](self, **look)


@question
def capacity(
    target: str | Path | Model,
    accelerator: str | Path | Accelerator | Sequence[str | Path | Accelerator] = "h100-sxm",
    *,
    rate: float,
    input_len: str | int,
    output_len: str | int,
    sources: str | Source | Sequence[str | Source] = "none",
    quantization: str | None = None,
    tp: int | Sequence[int] = 1,
    ttft: str | Sequence[str] = (),
    tpot: str | Sequence[str] = (),
    e2e: str | Sequence[str] = (),
    price: str | Sequence[str] = (),
    burstiness: float = 1.0,
    requests: int = 1500,
    seeds: int = 1,
    warmup: float = 0.1,
    kappa: int | None = None,
    max_model_len: int | str = "8k",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | str | None = None,
    engine: str = "vllm",
    layer: str = "modelled",
    jobs: int = 1,
    on: str = "local",
    checkpoint: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Capacity:
    """The highest rate that holds the targets, the replicas for the asked rate, and what they cost, best first.

    Parameters
    ----------
    target, sources, quantization, input_len, output_len, ttft, tpot, e2e, burstiness, requests, seeds, warmup, kappa,
    max_model_len, max_num_seqs, max_num_batched_tokens, engine, layer
        As in `simulate`.
    accelerator, tp : one or several
    rate : float
        Requests per second that all replicas together take.
    price : str, or several
        ``"h100-sxm=2.5"``, per card and hour.
    jobs, on, checkpoint
        Processes, ``"local"`` or ``"ray"``, and the file in which finished candidates are noted.
    progress : callable, optional
        Called with a word and how many of how many candidates are found.

    Raises
    ------
    SpecplanError
        One line that says what was read and what to do.

    Examples
    --------
    >>> found = capacity("llama3-8b", rate=4.0, input_len=500, output_len=100, requests=200, tpot="p95=30ms")
    >>> found.reaches
    True
    """
    targets = read_targets(ttft=ttft, tpot=tpot, e2e=e2e)
    limits = Limits(
        max_model_len=units.parse_count(max_model_len),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=None if max_num_batched_tokens is None else units.parse_count(max_num_batched_tokens),
    )
    load, _, _ = read_load(
        rate=rate,
        burstiness=burstiness,
        prompts=str(input_len),
        outputs=str(output_len),
        requests=requests,
        longest=limits.max_model_len,
    )
    asked = room.Question(load=load, targets=targets, limits=limits, seeds=tuple(check_seeds(seeds)), warmup=warmup)
    cards = [accelerator_of(card) for card in several(accelerator)]
    prices = room.read_prices(several(price), {card.name for card in cards})
    model = model_of(target, quantization)
    candidates = [
        room.Candidate(setting=Setting(target=model, on=machine(card, engine, ranks, layer)), source=one)
        for card in cards
        for ranks in several(tp)
        for one in load_sources(several(sources), kappa)
    ]
    found = []
    searched = room.capacity(
        candidates,
        asked,
        runner=runner_of(on, jobs),
        checkpoint=None if checkpoint is None else Path(checkpoint),
    )
    for answer in searched:
        found.append(answer)
        if progress is not None:
            progress("candidates", len(found), len(candidates))
    powers = {card.name: card.tdp_w for card in cards if card.tdp_w is not None}
    return Capacity.of(room.ranked(found, asked, model.name, prices, powers))
