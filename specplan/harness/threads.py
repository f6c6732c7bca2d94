"""How many CPU threads a model's passes run fastest on, by a short trial."""

import os
import statistics
from typing import Final

import torch

from specplan.harness.causal_lm import CausalLM
from specplan.harness.pass_times import PassClock

_ROUNDS: Final = 9
_WORTH: Final = 1.25


def fastest_threads(model: CausalLM, *, width: int = 4, context_len: int = 64) -> int:
    """Set torch to the thread count whose pass of `width` positions is fastest, and return it.

    Tried are 1, half of the processors that this process may use, and all of them, in turn. Beside other work, threads
    that wait for each other can take several times as long as one alone, now and then if not always: more threads must
    be faster by `_WORTH` on the mean of the trials. The count stays as it is
    where OMP_NUM_THREADS states it, and on other devices than the CPU.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = sorted({1, max(usable // 2, 1), usable})
    if model.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ or len(counts) == 1:
        return torch.get_num_threads()
    clock = PassClock(model, [width], capacity=context_len + width)
    clock.round(context_len)
    times: dict[int, list[float]] = {n: [] for n in counts}
    for _ in range(_ROUNDS):
        for n in counts:
            torch.set_num_threads(n)
            times[n].append(clock.round(context_len)[width])
    best = 1
    for n in counts[1:]:
        best = n if statistics.mean(times[n]) * _WORTH < statistics.mean(times[best]) else best
    torch.set_num_threads(best)
    return best
