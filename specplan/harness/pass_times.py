"""Times of single passes, apart from any run: a model at a width, a batch and a context."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from specplan.errors import InputError
from specplan.harness.causal_lm import CausalLM
from specplan.harness.llama import Llama


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Median time of one pass.

    Attributes
    ----------
    width, batch, context_len : int
        Positions per row, rows, and committed tokens per row.
    seconds : float
        Median of the repeats.
    spread : float
        Interquartile range over the median.
    """

    width: int
    batch: int
    context_len: int
    seconds: float
    spread: float


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run, from an idle device to an idle device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


class GraphedPass:
    """One pass of fixed shape, captured as a CUDA graph where the device has them, else run eagerly.

    The cache keeps its length, so every run does the same work.
    """

    def __init__(self, model: Llama, *, width: int, batch: int, context_len: int) -> None:
        self.context_len = context_len
        self.cache = model.new_cache(batch, context_len + width)
        self.cache.lengths.fill_(context_len)
        self.cache.span = context_len
        self.tokens = torch.zeros((batch, width), dtype=torch.int64, device=model.device)
        self._model, self._span = model, context_len + width
        self._graph = self._capture() if model.device.type == "cuda" else None

    def _eager(self) -> torch.Tensor:
        logits: torch.Tensor = self._model(self.tokens, self.cache, span=self._span)
        return logits

    def _capture(self) -> torch.cuda.CUDAGraph:
        """The graph, on the model's own card; memory that does not suffice is one line."""
        device = self._model.device
        try:
            with torch.cuda.device(device):
                side = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch leaves it untyped
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self._eager()
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.logits = self._eager()
        except torch.cuda.OutOfMemoryError:
            rows, width = self.tokens.shape
            raise InputError(
                f"{device}: no memory left to capture a pass of {rows} x {width} positions behind {self.context_len} "
                "tokens; take a smaller batch, width or context"
            ) from None
        return graph

    def __call__(self) -> None:
        """Run the pass."""
        if self._graph is None:
            self._eager()
        else:
            with torch.cuda.device(self._model.device):
                self._graph.replay()


class AppendedPass:
    """One pass of a model whose cache grows: it is appended, timed and taken back."""

    def __init__(self, model: CausalLM, *, width: int, batch: int, context_len: int) -> None:
        self.context_len, self._model = context_len, model
        self.cache = model.new_cache(batch, context_len + width)
        self.tokens = torch.zeros((batch, width), dtype=torch.int64, device=model.device)
        self._kept = torch.full((batch,), context_len, device=model.device)
        if context_len:
            model(self.tokens[:, :1].expand(batch, context_len), self.cache, last_only=True)
            self.cache.commit(self._kept, context_len)

    def __call__(self) -> None:
        """Run the pass."""
        self._model(self.tokens, self.cache)
        self.cache.truncate(self._kept, self.context_len)


class PassClock:
    """Times single passes of several widths, a round at a time, so that a run can take a round between its requests.

    Rounds spread over a run see the machine as the run sees it; each round times every width, so drift falls on all.
    """

    def __init__(self, model: CausalLM, widths: Iterable[int], *, capacity: int, batch: int = 1) -> None:
        self._model, self._batch, self._capacity = model, batch, capacity
        self.widths = tuple(sorted(set(widths)))
        self._runs: dict[int, GraphedPass | AppendedPass] = {}

    def round(self, context_len: int) -> dict[int, float]:
        """Seconds of one pass of each width behind `context_len` tokens."""
        if not self._runs or self._runs[self.widths[0]].context_len != context_len:
            room = min(context_len, self._capacity - self.widths[-1])
            self._runs = {w: self._single(w, room) for w in self.widths}
            for run in self._runs.values():
                run()  # warm up the new shapes
        return {w: timed(run, self._model.device) for w, run in self._runs.items()}

    def _single(self, width: int, context_len: int) -> GraphedPass | AppendedPass:
        if isinstance(self._model, Llama):
            return GraphedPass(self._model, width=width, batch=self._batch, context_len=context_len)
        return AppendedPass(self._model, width=width, batch=self._batch, context_len=context_len)


def pass_times(
    model: Llama, widths: Iterable[int], *, batch: int = 1, context_len: int = 0, repeats: int = 7
) -> tuple[PassTime, ...]:
    """Median time of a pass at each width, the widths interleaved.

    Parameters
    ----------
    model : Llama
    widths : iterable of int
        Positions per row.
    batch, context_len : int
        Rows, and committed tokens per row.
    repeats : int
        Timed runs of each width, after one that warms up.
    """
    chosen = tuple(widths)
    clock = PassClock(model, chosen, capacity=context_len + max(chosen), batch=batch)
    rounds = [clock.round(context_len) for _ in range(repeats)]
    return tuple(_summary(w, batch, context_len, [r[w] for r in rounds]) for w in clock.widths)


def _summary(width: int, batch: int, context_len: int, times: list[float]) -> PassTime:
    low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    spread = (high - low) / middle
    return PassTime(width=width, batch=batch, context_len=context_len, seconds=middle, spread=spread)
